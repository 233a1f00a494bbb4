"""What the machines' page says of two visits to one machine, from synthetic records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic import cell_line, evidence_of, played, write_records

from hypatia_lab import claims, records
from hypatia_lab.chapters import machines, stability
from hypatia_lab.claims import Claim

WORK = "linear_relu/8x8x8/float32/ieee/forward"
CLAIM = Claim(
    *("S001-01", "A", "Slower.", (10.0, 10.0), "×", "slowdown", "Because."),
    band=(9.0, 11.0),
    workloads=(WORK,),
    variant="naive",
    lead="S001-01",
)


def cells(**times: float) -> list[dict[str, Any]]:
    """Times of five processes, a thousandth apart and in another order for eager: ratios reach 0.39% to both sides."""
    scatter = [1 + n / 1000 for n in (-2, -1, 0, 1, 2)]
    own = {"shape": [8, 8, 8], "clock": "graph"}
    return [
        cell_line(variant=name, medians_us=[us * by for by in (scatter if name == "eager" else scatter[::-1])], **own)
        for name, us in times.items()
    ]


def visited(
    root: Path, monkeypatch: pytest.MonkeyPatch, then: dict[str, Any], now: dict[str, Any]
) -> list[stability.Visit]:
    """The visits to a GPU called ``gpu`` with the experiments ``then`` and, later, ``now``."""
    write_records(root / "visits" / "first", "gpu", "cuda", then)
    write_records(root / "records", "gpu", "cuda", now)
    monkeypatch.setattr(records, "COMMITTED", root / "records")
    judge = claims.judge
    monkeypatch.setattr(stability.claims, "judge", lambda found, beside=(): judge(found, [CLAIM], beside=beside))
    monkeypatch.setattr(stability.claims, "statements", lambda *parts: [])
    return stability.visits(evidence_of(root / "records"))


def amended(path: Path, facts: dict[str, Any], **changes: Any) -> None:
    """Put ``facts`` and ``changes`` into the run line of a record."""
    head, *rest = path.read_text().splitlines()
    run = json.loads(head)
    path.write_text("\n".join([json.dumps(run | changes | {"facts": run["facts"] | facts}), *rest]) + "\n")


def test_only_experiments_of_both_visits_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same = cells(eager=10, naive=100)
    (visit,) = visited(tmp_path, monkeypatch, {"method": same, "layout": same}, {"method": same, "traffic": same})
    assert (visit.name, visit.machine) == ("first", "gpu")
    assert [record.experiment for record in (*visit.then, *visit.now)] == ["method", "method"]
    compared = [(visit, stability.verdicts(visit))]
    assert stability.summary(compared).startswith("**1 of 1 pairs of verdicts are equal.** None turned")
    (line,) = stability.overview(compared)
    assert (line["machine"], line["other visit"]) == ("gpu", "2025-01-01")
    assert (line["equal verdicts"], line["turned round"]) == ("1 of 1", 0)
    assert stability.changed(visit, stability.verdicts(visit)) == []
    (line,) = stability.moved(visit)
    assert (line["ratios"], line["apart"], line["median change"]) == (1, 0, "0%")
    assert line["the book shows"] == "the later"


def test_without_another_visit_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same = cells(eager=10, naive=100)
    assert visited(tmp_path, monkeypatch, {"layout": same}, {"method": same}) == []


def test_a_verdict_that_turned_is_named_with_both_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    then, now = cells(eager=10, naive=100), cells(eager=10, naive=200)
    (visit,) = visited(tmp_path, monkeypatch, {"method": then}, {"method": now})
    pairs = stability.verdicts(visit)
    said = stability.summary([(visit, pairs)])
    assert said.startswith("**0 of 1 pairs")
    assert "On `gpu` S001-01 turned from confirmed to refuted: “Slower.”" in said
    assert stability.overview([(visit, pairs)])[0]["turned round"] == 1
    (line,) = stability.changed(visit, pairs)
    assert line["earlier record"].startswith("✓")
    assert line["later record"].startswith("✗")
    assert line["why"].startswith("The intervals lie apart at linear_relu 8×8×8")
    assert "on the earlier visit and" in line["why"]
    (line,) = stability.moved(visit)
    assert line["apart"] == 1
    assert line["largest change"].startswith("100%: naive at linear_relu 8×8×8")


def test_the_book_may_show_the_earlier_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visited(tmp_path, monkeypatch, {"method": cells(eager=10, naive=200)}, {"method": cells(eager=10, naive=100)})
    kept = tmp_path / "visits" / "first" / "gpu" / "method.jsonl"
    (shown,) = records.load(tmp_path / "records")
    head, *rest = kept.read_text().splitlines()
    kept.write_text("\n".join([json.dumps(json.loads(head) | {"started": "2099-01-01T00:00:00Z"}), *rest]) + "\n")
    (visit,) = stability.visits(evidence_of(tmp_path / "records"))
    assert [record.digest for record in visit.then] == [shown.digest]
    assert visit.now == visit.kept
    assert visit.now[0].run["started"].startswith("2099")
    (line,) = stability.changed(visit, stability.verdicts(visit))
    assert (line["earlier record"][0], line["later record"][0]) == ("✓", "✗")
    assert line["other visit"].startswith("2099")
    assert stability.moved(visit)[0]["the book shows"] == "the earlier"


def test_what_one_visit_could_not_judge_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (visit,) = visited(tmp_path, monkeypatch, {"method": cells(eager=10)}, {"method": cells(eager=10, naive=100)})
    pairs = stability.verdicts(visit)
    assert stability.summary([(visit, pairs)]) == "No claim could be judged on both visits."
    assert stability.overview([(visit, pairs)])[0]["equal verdicts"] == "0 of 0"
    (line,) = stability.moved(visit)
    assert line["ratios"] == 0
    assert line["largest change"] == ""


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        ("e173c4", "e173c4", "same chip"),
        ("e173c4", "b00b1e", "another chip"),
        ("e173c4", None, "chip not recorded"),
        (None, None, "chip not recorded"),
    ],
)
def test_two_visits_say_whether_they_were_to_one_chip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str | None, now: str | None, said: str
) -> None:
    same = cells(eager=10, naive=100)
    visited(tmp_path, monkeypatch, {"method": same}, {"method": same})
    for place, chip in (("visits/first", then), ("records", now)):
        amended(tmp_path / place / "gpu" / "method.jsonl", {"chip": chip} if chip else {})
    lab = evidence_of(tmp_path / "records")
    (visit,) = stability.visits(lab)
    assert stability.moved(visit)[0]["chip"] == said
    assert f"1 ({said})" in machines.compared(zip(visit.then, visit.now, strict=True))
    (found,) = stability.coverage(lab, [visit])
    assert (found.chip, found.agree, found.ratios) == (said, 1, 1)
    assert stability.coverage(lab, [visit], "gpu") == [found]
    assert stability.coverage(lab, [visit], "another") == []


def test_two_machines_of_one_model_of_gpu_say_whether_they_are_one_chip(tmp_path: Path) -> None:
    same = cells(eager=10, naive=100)
    for machine, device in (("gpu", "cuda"), ("gpu-b", "cuda"), ("other", "cuda"), ("box", "cpu"), ("box-b", "cpu")):
        write_records(tmp_path, machine, device, {"method": same, "layout": same})
    for name in ("method", "layout"):
        amended(tmp_path / "other" / f"{name}.jsonl", {"name": "Another model"})
    amended(tmp_path / "gpu" / "method.jsonl", {"chip": "e173c4"})
    amended(tmp_path / "gpu-b" / "method.jsonl", {"chip": "b00b1e"})
    (line,) = machines.twins(evidence_of(tmp_path)).splitlines()
    assert line.startswith("- `gpu` and `gpu-b`: both Prozessor")
    assert "1 (another chip) and 1 (chip not recorded)" in line


def test_ratios_agree_within_both_half_widths_added_in_squares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either interval reaches 0.39% to both sides, so both together 0.56%."""
    own = {"aten": 50.0, "eager@again": 10.0, "compile": 20.0}
    then, now = (
        cells(eager=10, naive=100, **own),
        cells(eager=10, naive=100.6, **own | {"aten": 50.25, "compile": 30.0}),
    )
    then += [line | {"clock": "wall"} for line in then] + [line | {"clock": "cold"} for line in then]
    now += [line | {"clock": "wall"} for line in cells(eager=10, naive=100)]
    (visit,) = visited(tmp_path, monkeypatch, {"method": then}, {"method": now})
    found = stability.coverage(evidence_of(tmp_path / "records"), [visit])
    assert [(one.clock, one.tuned, one.agree, one.ratios) for one in found] == [
        ("graph", False, 1, 2),
        ("graph", True, 0, 1),
        ("wall", False, 1, 1),
    ]
    assert found[0].share.low == pytest.approx(0.0126, abs=1e-4)  # 1 of 2, by Clopper and Pearson
    assert stability.coverage(evidence_of(tmp_path / "records"), []) == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, "same"),
        ({"commit": "0123457" + 33 * "0"}, "another"),
        ({"dirty": True}, "another"),
        ({"facts": {"name": "Another model"}}, None),
        ({"device": "cpu"}, None),
    ],
)
def test_only_visits_to_one_model_of_gpu_are_held_against_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], code: str | None
) -> None:
    same = cells(eager=10, naive=100)
    (visit,) = visited(tmp_path, monkeypatch, {"method": same}, {"method": same})
    clean = {"commit": "0123456" + 33 * "0", "dirty": False, "facts": {}}
    amended(visit.then[0].path, **clean)
    amended(visit.now[0].path, **clean | changes)
    lab = evidence_of(tmp_path / "records")
    assert [one.code for one in stability.coverage(lab, stability.visits(lab))] == ([code] if code else [])


def test_the_page_shows_both_visits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    then, now = cells(eager=10, naive=100), cells(eager=10, naive=200)
    visited(tmp_path, monkeypatch, {"method": then}, {"method": now})
    monkeypatch.undo()
    text = played("13_machines", tmp_path / "records", monkeypatch)
    assert "verdicts are equal" in text or "No claim could be judged on both visits" in text
    assert "visits/first:" in text
    assert records.load(tmp_path / "visits" / "first")[0].digest in text
