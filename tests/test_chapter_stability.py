"""What the machines' page says of two visits to one machine, from synthetic records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic import cell_line, evidence_of, played, write_records

from hypatia_lab import claims, records
from hypatia_lab.chapters import stability
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
    """Times of two processes, a thousandth apart and in different order, so that no ratio is exact."""
    both = {name: [us, 1.001 * us] if name == "eager" else [1.001 * us, us] for name, us in times.items()}
    own = {"shape": [8, 8, 8], "clock": "graph"}
    return [cell_line(variant=name, medians_us=medians, **own) for name, medians in both.items()]


def visited(
    root: Path, monkeypatch: pytest.MonkeyPatch, then: dict[str, Any], now: dict[str, Any]
) -> list[stability.Visit]:
    """The visits to a GPU called ``gpu`` with the experiments ``then`` and, later, ``now``."""
    write_records(root / "visits" / "first", "gpu", "cuda", then)
    write_records(root / "records", "gpu", "cuda", now)
    monkeypatch.setattr(records, "COMMITTED", root / "records")
    judge = claims.judge
    monkeypatch.setattr(stability.claims, "judge", lambda found, beside: judge(found, [CLAIM], beside=beside))
    return stability.visits(evidence_of(root / "records"))


def test_only_experiments_of_both_visits_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same = cells(eager=10, naive=100)
    (visit,) = visited(tmp_path, monkeypatch, {"method": same, "layout": same}, {"method": same, "traffic": same})
    assert (visit.name, visit.machine) == ("first", "gpu")
    assert [record.experiment for record in (*visit.then, *visit.now)] == ["method", "method"]
    assert stability.equal(stability.verdicts(visit)).startswith("**1 of 1 verdicts are equal** (100%). None turned")
    assert stability.changed(visit, stability.verdicts(visit)) == []
    (line,) = stability.moved(visit)
    assert (line["ratios"], line["apart"], line["median change"]) == (1, 0, "0%")


def test_without_another_visit_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same = cells(eager=10, naive=100)
    assert visited(tmp_path, monkeypatch, {"layout": same}, {"method": same}) == []


def test_a_verdict_that_turned_is_named_with_both_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    then, now = cells(eager=10, naive=100), cells(eager=10, naive=200)
    (visit,) = visited(tmp_path, monkeypatch, {"method": then}, {"method": now})
    pairs = stability.verdicts(visit)
    said = stability.equal(pairs)
    assert said == "**0 of 1 verdicts are equal** (0%). Turned from confirmed to refuted or back: S001-01."
    (line,) = stability.changed(visit, pairs)
    assert line["earlier visit"].startswith("✓")
    assert line["later visit"].startswith("✗")
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
    assert (line["earlier visit"][0], line["later visit"][0]) == ("✓", "✗")


def test_what_one_visit_could_not_judge_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (visit,) = visited(tmp_path, monkeypatch, {"method": cells(eager=10)}, {"method": cells(eager=10, naive=100)})
    assert stability.equal(stability.verdicts(visit)) == "No claim could be judged on both visits."
    (line,) = stability.moved(visit)
    assert line["ratios"] == 0
    assert line["largest change"] == ""


def test_the_page_shows_both_visits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    then, now = cells(eager=10, naive=100), cells(eager=10, naive=200)
    visited(tmp_path, monkeypatch, {"method": then}, {"method": now})
    monkeypatch.undo()
    text = played("13_machines", tmp_path / "records", monkeypatch)
    assert "verdicts are equal" in text or "No claim could be judged on both visits" in text
    assert "visits/first:" in text
    assert records.load(tmp_path / "visits" / "first")[0].digest in text
