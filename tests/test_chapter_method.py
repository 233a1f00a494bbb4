"""Page 01: the A/A control in words, the planted kernels, and the timers side by side."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from synthetic import ceilings, cell_line, detail_line, evidence_of, played, write_records

from hypatia_lab import experiments, intervals, planted, results, variants
from hypatia_lab.chapters import method
from hypatia_lab.chapters.stability import Coverage
from hypatia_lab.figures import ceilings as ceiling_figures
from hypatia_lab.pages import verify
from hypatia_lab.workloads import Workload

WORK = {"topic": "oracle", "unit": "us", "shape": [256, 256, 512]}


def timers(lab: list[float], other: Sequence[float | None], **changes: Any) -> list[dict[str, Any]]:
    """The detail lines of both timers of one variant."""
    said = zip(("hot clock", "torch.utils.benchmark"), (lab, other), strict=True)
    return [detail_line(**WORK | {"name": name, "values": values} | changes) for name, values in said]


def shown(root: Path, *lines: dict[str, Any]) -> Any:
    write_records(root, "box", "cpu", {"oracle": lines})
    return evidence_of(root)


def test_two_timers_that_agree_and_two_that_do_not(tmp_path):
    own = [100.0, 101.0, 102.0, 101.0, 101.0]
    lab = shown(
        tmp_path,
        *timers(own, [100.1, 101.0, 102.0, 101.0, 101.0]),
        *timers(own, [80.0, 80.5, 81.0, 80.5, 80.5], variant="epilogue"),
        *timers(own, [99.0, 101.0, 121.0, 101.0, 101.0], variant="aten"),
    )
    rows = method.oracle(lab, "box").to_dict("records")
    assert [(row["variant"], row["within ±5%"]) for row in rows] == [
        ("eager", "yes"),
        ("epilogue", "no"),
        ("aten", "undecided"),
    ]
    assert rows[0]["hot clock"] == "101 µs"
    assert rows[0]["workload"].startswith("linear_relu 256×256×512")
    assert rows[1]["ratio"].startswith("1.255×")
    assert method.beside(lab, "box").startswith("1 of 3 times agree")
    assert "1 undecided" in method.beside(lab, "box")
    few = shown(tmp_path / "few", *timers(own[:4], [100.5, 101.0, 102.0, None]))
    assert method.oracle(few, "box")["n"].tolist() == ["3"]
    assert "0 of 1 times agree" in method.beside(few, "box")
    assert "1 of too few processes to tell" in method.beside(few, "box")


def test_what_could_not_be_timed_says_why_and_counts_as_no_agreement(tmp_path):
    skipped = detail_line(**WORK | {"name": "oracle", "values": [], "status": "skipped", "reason": "no triton"})
    lab = shown(tmp_path, skipped)
    (row,) = method.oracle(lab, "box").to_dict("records")
    assert row["status"] == "skipped: no triton"
    assert method.beside(lab, "box").startswith("0 of 1 times")


def test_a_machine_without_that_record_says_so(tmp_path):
    write_records(tmp_path, "box", "cpu", {"ceilings": ceilings({"ieee": 1.0}, "hot")})
    lab = evidence_of(tmp_path)
    assert method.oracle(lab, "box") is None
    assert not re.search(r"\d", method.beside(lab, "box"))


def test_the_controls_card_tells_too_many_false_differences_from_too_few(tmp_path):
    titles = {}
    for different in (5, 0, 20):
        pairs = [
            cell_line(shape=[n, 8, 8], variant=name, clock="hot", medians_us=[factor * 100.0, factor * 100.1])
            for n in range(1, 101)
            for name, factor in (("eager", 1), ("eager@again", 2 if n <= different else 1))
        ]
        write_records(tmp_path / str(different), "box", "cpu", {"agreement": pairs})
        card = method.false_alarms(evidence_of(tmp_path / str(different)), "box")
        assert card is not None
        assert float(card.figure.rstrip("%")) == different
        titles[different] = card.title
    assert len(set(titles.values())) == 3
    write_records(tmp_path / "few", "box", "cpu", {"agreement": pairs[-6:]})
    card = method.false_alarms(evidence_of(tmp_path / "few"), "box")
    assert card is not None
    assert card.open


def test_what_two_visits_share_is_told_by_clock_and_by_tuner():
    found = [
        Coverage("graph", "another chip", "same", False, 95, 100),
        Coverage("graph", "another chip", "same", True, 10, 40),
        Coverage("graph", "same chip", "same", False, 100, 100),
        Coverage("wall", "same chip", "same", False, 95, 100),
    ]
    first, second, third = method.coverage(found).to_dict("records")
    one, other = method.TUNING.values()
    assert (first["clock"], first["chip"], first[one]) == ("graph", "another chip", "95.0% [88.7, 98.4] of 100")
    assert first[other].endswith("of 40")
    assert second[other] == third[other] == "–"
    assert f"97% of {one} and 25% of {other}" in method.covered(found)
    assert other not in method.covered([share for share in found if not share.tuned])
    elsewhere = Coverage("wall", "another chip", "another", True, 1, 2)
    assert f"97% of {one}" in method.covered([*found, elsewhere])  # what ran other code counts apart
    assert method.covered([elsewhere]).count("50%") == 1
    assert method.covered([]) == ""


def test_the_card_of_the_next_visit_says_where_agreement_is_short():
    def card(*shares):
        own = [Coverage("graph", "same chip", code, False, *share) for code, share in shares]
        found = method.next_visit([*own, Coverage("graph", "same chip", "same", True, 0, 100)])
        assert found is not None
        return found

    good, bad = ("same", (95, 100)), ("another", (55, 100))
    titles = {tuple(one): card(*one).title for one in ([good], [good, bad], [("same", (55, 100)), bad])}
    assert len(set(titles.values())) == 3
    assert (card(good).figure, card(good, bad).figure) == ("95%", "55%")  # that of which the title speaks
    assert "95 of 100" in card(good, bad).text
    assert "55 of 100" in card(good, bad).text
    assert card(good, ("another", (1, 2))) == card(good)  # too few to tell
    assert method.next_visit([]) is None


def test_what_was_not_rejected_is_said_first():
    told = [
        {"operation": "mlp", "planted": "layer 2 skipped", "named": "layer 2 skipped"},
        {"operation": "mlp, both passes", "planted": "masks missing", "named": "grad_x: masks missing"},
        {"operation": "rule of the optimizer", "planted": "ReLU dropped", "named": "counterexample"},
    ]
    assert "All 3 were rejected" in method.caught(told)
    told[0]["named"] = ""
    assert "1 of 3 were not rejected" in method.caught(told)
    assert "layer 2 skipped (mlp)" in method.caught(told)
    assert method.by_operation(told).values.tolist() == [
        ["mlp", 1, "layer 2 skipped (NOT REJECTED)"],
        ["mlp, both passes", 1, "grad_x: masks missing"],
        ["rule of the optimizer", 1, "ReLU dropped (counterexample)"],
    ]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_two_hundred_pairs_are_asked_for_on_each_machine(device):
    """With those of the other pages, whose plans are made the same way."""
    clock = "graph" if device == "cuda" else "hot"
    plans = {name: one.plan("seed", device, ()) for name, one in experiments.EXPERIMENTS.items()}
    pairs = [
        (name, group.workload, variant)
        for name, groups in plans.items()
        for group in groups
        for variant in group.variants
        if variant.endswith("@again") and clock in group.clocks
    ]
    assert len(set(pairs)) == len(pairs) >= 200
    assert sum(name == "agreement" for name, *_ in pairs) > 140


def test_every_way_of_copying_changes_no_bit():
    source = torch.tensor([-0.0, math.inf, math.nan, 1e-45, 1.5])
    for way in variants.variants("copy").values():
        out = way.factory(Workload("copy", (5,)), {"source": source})()
        assert out is not source
        assert torch.equal(out.view(torch.int32), source.view(torch.int32))


def test_of_two_ways_of_copying_the_quicker_is_the_ceiling_and_drawn(tmp_path):
    own = {"operation": "copy", "clock": "graph", "flops": 0, "traffic": 10**9}
    cells = [
        cell_line(**own, shape=[2**n], variant=name, medians_us=[us, us])
        for n, name, us in ((26, "eager", 250.0), (28, "eager", 400.0), (28, "copy_kernel", 200.0))
    ]
    write_records(tmp_path, "gpu", "cuda", {"ceilings": cells})
    lab = evidence_of(tmp_path)
    assert results.ceilings(lab.records) == {("copy", "", "graph"): pytest.approx(5e12)}
    figure, table = ceiling_figures.sweep(lab.leading("gpu", experiment="ceilings"))
    assert list(next(trace for trace in figure.data if trace.mode == "markers").x) == pytest.approx([4e12, 5e12])
    assert list(table["variant"]) == ["eager", "copy_kernel"]


@pytest.mark.parametrize(("preset", "processes"), [("quick", 5), ("seed", 5), ("full", 6)])
def test_the_other_timer_is_asked_in_several_processes(preset, processes):
    for device in ("cpu", "cuda"):
        probes = experiments.EXPERIMENTS["oracle"].probes(preset, device, ())
        assert [probe.processes for probe in probes] == [processes] * (1 if preset == "quick" else 2)
    (probe,) = experiments.EXPERIMENTS["oracle"].probes(preset, "cpu", ((8, 8, 8),))
    assert probe.workload.shape == (8, 8, 8)


def test_the_page(tmp_path, monkeypatch):
    one = {"shape": [256, 256, 512], "flops": 2 * 256 * 256 * 512, "traffic": 10**6, "samples_us": []}
    cells = [
        cell_line(**one | {"clock": word, "variant": name, "medians_us": [us, 800 - us]})
        for word in ("hot", "wall")
        for name, us in (("eager", 400.0), ("eager@again", 401.0), ("cublas_relu", 500.0), ("epilogue", 350.0))
    ]
    parts = {
        "ceilings": ceilings({"ieee": 1.0}, "hot"),
        "method": cells,
        "oracle": timers([400.0, 401.0, 402.0, 401.0, 400.0], [400.0, 402.0, 401.0, 401.0, 402.0]),
    }
    write_records(tmp_path, "box", "cpu", parts)
    text = played("01_method", tmp_path, monkeypatch)
    assert intervals.TOO_FEW in text
    assert "1 of 1 times agree with the other timer" in text
    assert f"All {len(planted.KERNELS) + len(planted.RULES)} were rejected" in text
    assert re.search(r"conv_block +17 .*; kernel flipped;.*; no padding \(wrong shape\)", text)
    assert "rows in reverse (wrong values)" in text


def test_what_a_check_says_is_read_into_a_table():
    told = [
        *verify.verify("mlp2", "cpu").splitlines(),
        *verify.verify("relu", "cpu", without=["x"]).splitlines(),
    ]
    lines = method.agreeing(told).to_dict("records")
    assert {(line["operation"], line["direction"]) for line in lines} >= {("mlp2", "forward"), ("relu", "forward")}
    assert [line["left out, known to be wrong"] for line in lines][:: len(lines) - 1] == ["", "x"]


def test_the_page_of_checks_tries_every_operation_and_names_the_largest_error(tmp_path, monkeypatch):
    own = {"operation": "relu", "shape": [8, 8], "medians_us": [1.0, 1.0]}
    cells = [
        cell_line(**own, variant="eager", error=1e-8),
        cell_line(**own, variant="naive", origin="seed", error=3e-7),
        cell_line(**own | {"medians_us": []}, variant="guess", origin="own", status="wrong", reason="off", error=0.5),
        cell_line(**own, variant="eager", dtype="bfloat16", error=2e-3),
    ]
    step = Workload("linear_relu", (64, 16, 8), "float32", "ieee", "forward_backward")
    bounds = {step.tolerance(part) for part in step.parts}
    of_step = {"operation": "linear_relu", "shape": [64, 16, 8], "direction": step.direction, "medians_us": [1.0, 1.0]}
    cells.append(cell_line(**of_step, variant="eager", error=min(bounds) / 10))
    write_records(tmp_path, "box", "cpu", {"method": cells})
    lab = evidence_of(tmp_path)
    several, half, single = method.errors(lab, "box").to_dict("records")
    assert max(bounds) > 1.1 * min(bounds)
    assert several["share of its bound"] == "10%"  # which part it is of no record says
    nearest = "nearest variant"
    assert (single["operation"], single["arithmetic"], single[nearest]) == ("relu", "float32", "naive")
    assert (single["variants timed"], single["error"], single["size"]) == (2, "3.00e-07", "8×8")
    alone = [Workload("relu", (8, 8), dtype).tolerance() for dtype in ("float32", "bfloat16")]
    shares = [f"{error / bound:.0%}" for error, bound in zip((3e-7, 2e-3), alone, strict=True)]
    assert [line["share of its bound"] for line in (single, half)] == shares
    assert half[nearest] == "eager"
    (bad,) = method.wrong(lab, "box").to_dict("records")
    assert (bad["variant"], bad["arithmetic"], bad["sizes"]) == ("guess", "float32", "1")
    assert "off" in bad.values()
    assert shares[0] in method.nearest(lab, "box")
    assert "guess" in method.nearest(lab, "box")
    text = played("20_checks", tmp_path, monkeypatch)
    for operation in method.CHECKED:
        assert f"{operation} verified" in text
    assert "diffraction verified without eager_direct" in text
    assert "3.00e-07" in text
