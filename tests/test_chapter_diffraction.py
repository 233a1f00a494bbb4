"""What is said of the simulator: every sentence and table from synthetic records, for GPUs, CPUs and half of either."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from synthetic import cell_line, detail_line, said
from synthetic import evidence as together

from hypatia_lab import formats, intervals, records
from hypatia_lab.chapters import diffraction_findings, diffraction_tables
from hypatia_lab.chapters.diffraction_findings import called
from hypatia_lab.experiments import EXPERIMENTS
from hypatia_lab.pages import verify
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding

pytestmark = pytest.mark.usefixtures("two_processes")

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
GOOD, BAD = 1e-6, 0.01
"""Errors over the peak of a right image and of a wrong one."""


def cell(variant: str, us: Sequence[float], **changes: Any) -> dict[str, Any]:
    """A timed cell of the benchmark at 1024² (peak 100); ``error`` over the peak."""
    error = changes.pop("off", GOOD)
    shape = {"operation": "diffraction", "shape": [1024, 1024], "flops": 0, "traffic": 4 * 1024**2}
    measured = {"medians_us": list(us), "max_error": 100 * error, "peak": 100.0, "clock": "wall"}
    return cell_line(variant=variant, baseline="eager", **(shape | measured | changes))


def probe(
    variant: str, topic: str, values: Mapping[str, Sequence[float | None]], **changes: Any
) -> list[dict[str, Any]]:
    """The detail lines of one probe at 1024²; units as the probes have them."""
    units = {"start": "ms", "process": "ms", "kernels": "us", "timeline": "us"}
    own = {"operation": "diffraction", "shape": [1024, 1024], "variant": variant, "topic": topic} | changes
    return [
        detail_line(name=name, values=list(v), **({"unit": units.get(topic, "1")} | own)) for name, v in values.items()
    ]


def start(variant: str, case: str, calls: Sequence[float], first: float = 20.0, **changes: Any) -> list[dict[str, Any]]:
    """A start in two processes: ``calls`` (ms) are calls 1, 2, …, and the last one is call 12."""
    names = [*range(1, len(calls)), 12]
    values: dict[str, Sequence[float]] = {f"call {n}": [ms, 1.01 * ms] for n, ms in zip(names, calls, strict=True)}
    return probe(variant, "start", values | {"first image": [first, 1.01 * first]}, case=case, **changes)


def evidence(*lines: dict[str, Any], device: str = "cuda", experiment: str = "diffraction", **facts: Any) -> Evidence:
    """Evidence of one machine, ``box``, that holds one record, with a bandwidth of 1 TB/s."""
    copies = [cell_line(operation="copy", shape=[2**28], clock=c, traffic=10**9, flops=0) for c in ("graph", "hot")]
    ceilings = [line | {"medians_us": [1000.0, 1000.0]} for line in copies]

    facts = {"name": "box", "cores": 8} | facts
    return together({"ceilings": ceilings, experiment: lines}, device, facts=facts)


def flat(lines: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [line for own in lines for line in own]


C_ROWS = (cell("c_pixelwise", [1000.0, 1010.0]), cell("c_openmp", [200.0, 201.0]))


# ---------------------------------------------------------------- findings


def both(variant: str, single: float, twice: float, **changes: Any) -> list[dict[str, Any]]:
    """A form in float32 and in float64, µs."""
    pair = (("float32", single), ("float64", twice))
    return [cell(variant, [us, 1.001 * us], dtype=dtype, **changes) for dtype, us in pair]


PRODUCTS = flat([both("eager", 10.0, 20.0, operation="matmul", shape=[64, 64, 64], clock="graph", flops=2 * 64**3)])


def gpu(*rows: dict[str, Any]) -> Evidence:
    """The rows by a GPU's own clock."""
    return evidence(*(row | {"clock": "graph"} for row in rows))


def batched(us: Sequence[float], device: str = "cuda") -> Evidence:
    """64 crystals in one call of ours, against one image after the other."""
    place = {"operation": "diffraction_batch", "shape": [64, 256, 256], "baseline": "one_by_one"}
    clock = {"clock": "wall" if device == "cuda" else "hot"}
    rows = [cell(name, t) | place | clock for name, t in (("one_by_one", [99.0, 99.9]), ("cuda", us))]
    return evidence(*rows, device=device)


def started(*calls: float) -> Evidence:
    return evidence(*start("compile_reduce_overhead", "empty", calls), experiment="warm_up")


def priced(us: float, spread: float = 1.0) -> Evidence:
    """An image in float64 of ``us`` and ``spread`` times that against one of 100 µs in float32."""
    single, twice = both("compile", 100.0, us, clock="graph")
    return evidence(single, twice | {"medians_us": [us, spread * us]}, *PRODUCTS, experiment="precision")


OUTCOMES = [
    (diffraction_findings.against_c, lambda us: evidence(*C_ROWS, cell("compile", us)), [50.0, 50.5], [2800.0, 2828.0]),
    (
        diffraction_findings.near_limit,
        lambda us: gpu(cell("cuda", us), cell("compile", [40.0, 40.4])),
        [10.0, 10.1],
        [80.0, 80.1],
    ),
    (diffraction_findings.batch, batched, [0.5, 0.505], [50.0, 50.5]),
    (diffraction_findings.mean_of_three, lambda ms: started(900, ms[0], 0.1, 0.1, 0.1), [44.8], [0.1]),
    (diffraction_findings.double, lambda us: priced(us[0]), [200.0], [100.0]),
    (
        diffraction_findings.launches,
        lambda n: evidence(
            *probe("eager", "trace", {"kernel launches": [90]}), *probe("compile", "trace", {"kernel launches": n})
        ),
        [2],
        [80],
    ),
]
"""Finding, what makes evidence of some times, and two series of those that decide it otherwise."""


@pytest.mark.parametrize(("make", "lab", "one", "other"), OUTCOMES, ids=lambda x: getattr(x, "__name__", ""))
def test_a_card_says_another_thing_where_the_records_do(
    make: Callable[[Evidence, str], Finding | None],
    lab: Callable[[Sequence[float]], Evidence],
    one: Sequence[float],
    other: Sequence[float],
) -> None:
    first, second = (said(make(lab(us), "box")) for us in (one, other))
    assert first.title != second.title
    assert first.figure != second.figure
    assert not first.open
    for card in (first, second):
        assert len(re.findall(r"\. |\.$", card.text)) <= 2
        assert len(card.title.split()) <= 12
        assert "[" not in card.text
        assert not re.search(r"[a-z]_[a-z]", card.text)


@pytest.mark.parametrize(
    ("make", "lab"),
    [
        (diffraction_findings.against_c, evidence(*C_ROWS, cell("compile", [10.0, 100.0]))),
        (diffraction_findings.near_limit, gpu(cell("cuda", [1.0, 50.0]), cell("compile", [40.0, 40.4]))),
        (diffraction_findings.batch, batched([1.0, 500.0])),
        (diffraction_findings.double, priced(100.0, 9.0)),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_card_of_noise_names_no_figure(make: Callable[[Evidence, str], Finding | None], lab: Evidence) -> None:
    found = said(make(lab, "box"))
    assert found.open
    assert not re.search(r"\d×(?!\d)", found.text)


def test_a_card_says_whose_time_it_tells() -> None:
    rows = [*C_ROWS, cell("compile", [50.0, 50.5])]
    on_gpu = said(diffraction_findings.against_c(evidence(*rows), "box"))
    on_cpu = evidence(*(row | {"clock": "hot"} for row in rows), device="cpu")
    for part in ("GPU", "8 CPU cores"):
        assert part in on_gpu.title
        assert part in on_gpu.text
    assert "GPU" not in said(diffraction_findings.against_c(on_cpu, "box")).text


def test_a_batch_is_told_apart_from_the_kernel_that_makes_it() -> None:
    place = {"operation": "diffraction_batch", "shape": [64, 256, 256], "baseline": "one_by_one", "clock": "wall"}
    times = {"one_by_one": [100.0, 101.0], "compile": [5.0, 5.05], "cuda": [0.5, 0.505]}
    found = said(diffraction_findings.batch(evidence(*(cell(n, us) | place for n, us in times.items())), "box"))
    assert (found.figure, found.claims) == ("20×", ("S003-82a",))
    assert "pays what S003 hopes" in found.title
    assert "10× as fast again" in found.text
    noisy = times | {"compile": [5.0, 5.8]}
    open_ = said(diffraction_findings.batch(evidence(*(cell(n, us) | place for n, us in noisy.items())), "box"))
    assert open_.figure == intervals.TOO_NOISY
    assert "in its place" not in open_.text


def test_of_a_form_too_noisy_for_a_figure_no_time_is_said() -> None:
    found = said(diffraction_findings.against_c(evidence(*C_ROWS, cell("compile", [18.0, 20.0])), "box"))
    assert found.figure == intervals.TOO_NOISY
    assert f"{called('compile')} takes a time too noisy to say" in found.text


def test_a_race_names_the_faster_of_two_kinds_at_the_largest_size_with_both() -> None:
    small = [cell("cuda", [10.0, 10.1]), cell("compile", [40.0, 40.4]), *C_ROWS]
    rows = evidence(*small, cell("cuda", [10.0, 10.0], shape=[4096, 4096])).rows
    rows = [row for row in rows if row.operation == "diffraction"]
    own, theirs = diffraction_findings.OWN, diffraction_findings.C
    title = f"At 1024×1024 {called('cuda')} is 20× as fast as {called('c_openmp')}"
    assert diffraction_findings.race(rows, own, theirs, "?") == title
    assert diffraction_findings.race(rows, theirs, own, "?") == title
    assert diffraction_findings.race(rows, own, ("eager",), "?") == "?"
    level = evidence(cell("cuda", [10.0, 10.1]), cell("eager", [10.1, 10.0])).rows
    assert (
        diffraction_findings.race([row for row in level if row.operation == "diffraction"], own, ("eager",), "?") == "?"
    )


def test_the_limit_is_told_with_its_rate() -> None:
    lab = gpu(cell("cuda", [83.9, 83.9]), cell("compile", [400.0, 404.0]))
    rows = diffraction_findings.simulations(lab, "box", "graph")
    title = f"At 1024×1024 {called('cuda')} takes 20× the time of writing the image"
    assert diffraction_findings.over_limit(rows, "?") == title
    assert "1.00 TB/s" in diffraction_findings.write_rate(rows)
    noisy = diffraction_findings.simulations(gpu(cell("cuda", [10.0, 100.0])), "box", "graph")
    assert diffraction_findings.over_limit(noisy, "?") == "?"
    assert diffraction_findings.write_rate([]) == ""


def test_anchoring_is_told_with_the_kernels_that_it_takes() -> None:
    rows = [cell("compile", [10.0, 10.1], clock="graph"), cell("compile_anchored", [30.0, 30.3], clock="graph")]
    counts = {"compile": 4, "compile_anchored": 21}
    traced = flat([probe(name, "trace", {"kernel launches": [n]}) for name, n in counts.items()])
    text = diffraction_findings.anchored_time(evidence(*rows, *traced), "box")
    assert "3.0× the time" in text
    assert "21 kernels in place of 4" in text
    assert "kernels" not in diffraction_findings.anchored_time(evidence(*rows), "box")
    assert diffraction_findings.anchored_time(evidence(rows[0]), "box") == ""


def test_against_c_speaks_of_the_documents_size_and_of_right_images() -> None:
    large = [row | {"shape": [4096, 4096]} for row in (*C_ROWS, cell("compile", [7.0, 7.0]))]
    wrong = cell("compile_reduce_overhead", [], status="wrong", reason="off", off=BAD)
    lab = evidence(*large, *C_ROWS, wrong, cell("compile", [100.0, 101.0]))
    assert said(diffraction_findings.against_c(lab, "box")).figure == "10×"
    assert "4096×4096" in said(diffraction_findings.against_c(evidence(*large), "box")).text


def test_what_the_document_says_of_a_gpu_is_judged_on_none_but_that() -> None:
    assert said(diffraction_findings.batch(batched([0.5, 0.505]), "box")).claims == ("S003-82c",)
    assert said(diffraction_findings.batch(batched([0.5, 0.505], "cpu"), "box")).claims == ()


@pytest.mark.parametrize(("ms", "below"), [(5.0, True), (200.0, False)])
def test_first_image_takes_the_quickest_right_way(ms: float, below: bool) -> None:
    broken = {"status": "wrong", "reason": "call 1: off"}
    ways = flat(
        [
            start("compile", "empty", [1, 1], 3000.0),
            start("compile", "disk", [1, 1], 900.0),
            start("compile", "aoti_raw", [1, 1], ms),
            start("compile", "aoti_package", [1, 1], 1.0, **broken),
            start("eager", "", [1, 1], 2.0),
        ]
    )
    found = said(diffraction_findings.first_image(evidence(*ways, experiment="warm_up"), "box"))
    assert found.figure == f"{formats.spoken(ms)} ms"
    assert found.claims == ("S003-71b", "S003-71e")
    near = flat([start("compile", "empty", [1, 1], 3000.0), start("compile", "aoti_raw", [1, 1], 2950.0)])
    overlapping = said(diffraction_findings.first_image(evidence(*near, experiment="warm_up"), "box"))
    assert overlapping.title != found.title
    on_cpu = said(diffraction_findings.first_image(evidence(*ways, experiment="warm_up", device="cpu"), "box"))
    assert on_cpu.claims == ()
    assert (found.title == "A fresh process need not compile") is below


@pytest.mark.parametrize(("low", "sure"), [(3.0, True), (40.0, False)])
def test_a_first_image_too_noisy_for_a_figure_may_be_surely_soon(low: float, sure: bool) -> None:
    empty = probe("compile", "start", {"first image": [3000.0, 3100.0, 3050.0]}, case="empty")
    kept = probe("compile", "start", {"first image": [low, 1.3 * low, 1.6 * low]}, case="aoti_raw")
    found = said(diffraction_findings.first_image(evidence(*empty, *kept, experiment="warm_up"), "box"))
    assert found.figure == ("under 50 ms" if sure else intervals.TOO_NOISY)
    assert (found.title == "Whether a fresh process has to compile") is not sure


def accuracy(variant: str, off: float, *, case: str = "", side: int = 1024, correlation: float = 1.0) -> Any:
    """What the accuracy probe says of one image, in one process."""
    names = {"correlation": correlation, "error": off, "mean relative error": off, "largest error over peak": off}
    return probe(variant, "accuracy", {name: [v] for name, v in names.items()}, case=case, shape=[side, side])


def test_advice_names_what_is_soon_what_is_quick_and_what_not_to_compile() -> None:
    lines = [
        *start("eager", "", [150.0, 2.0], first=200.0),
        *start("compile", "empty", [5000.0, 0.2], first=6000.0),
        *start("compile", "aoti_raw", [8.0, 0.1], first=9.0),
        *start("cuda", "cubin", [4.0, 0.05], first=5.0),
    ]
    soon, many, few = diffraction_findings.advice(evidence(*lines, experiment="warm_up"), "box")
    assert called("cuda") in soon
    assert diffraction_findings.KEPT["aoti_raw"] in soon
    assert called("eager") not in soon
    assert called("cuda") in many
    assert called("compile") not in many
    assert 20 < float(re.findall(r"at least (\d+) times", few)[0]) < 30  # 30, less what is unsure
    assert f"with nothing stored {called('compile')} takes" in few
    slow = [*start("eager", "", [150.0, 2.0], first=200.0), *start("compile", "empty", [90.0, 0.2], first=100.0)]
    none, *rest = diffraction_findings.advice(evidence(*slow, experiment="warm_up"), "box")
    assert "No form" in none
    assert not [sentence for sentence in rest if "do not compile" in sentence]


def test_calls_that_say_nothing_or_fall_back_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def calls(*each: Sequence[float]) -> Evidence:
        values = {f"call {n}": ms for n, ms in enumerate(zip(*each, strict=True), 1)}
        return evidence(*probe("eager", "start", values | {"first image": [20.0] * len(each)}), experiment="warm_up")

    steady = [90.0, *[10.0] * 11]
    back = [90.0, *[10.0] * 4, *[30.0] * 7]
    noisy = [90.0, *[100.0] * 11]
    assert diffraction_findings.unsteady(calls(steady, steady, steady), "box") == ""
    assert "in 2 of 3 processes call 6" in diffraction_findings.unsteady(calls(back, steady, back), "box")
    assert "Most later calls" in diffraction_findings.unsteady(calls(noisy, steady, steady), "box")
    monkeypatch.setattr(intervals, "FEW_RARE", 3)
    assert "Too few" in diffraction_findings.unsteady(calls(steady, [1.1 * ms for ms in steady]), "box")


def test_whole_numbers_speak_of_the_largest_image() -> None:
    lines = flat(
        [
            accuracy(name, off * side / 1024, side=side)
            for side in (1024, 4096)
            for name, off in (("eager", 1e-6), ("eager_direct", BAD))
        ]
    )
    found = said(diffraction_findings.whole_numbers(evidence(*lines, experiment="precision"), "box"))
    assert found.figure == "4.0%"
    assert "4096×4096" in found.text
    lines[-4] = lines[-4] | {"values": [0.9997]}  # a correlation that does show something
    shows = said(diffraction_findings.whole_numbers(evidence(*lines, experiment="precision"), "box"))
    assert shows.title != found.title


def test_the_price_of_float64_names_the_dearest_and_the_cheapest_form() -> None:
    own = both("compile", 100.0, 400.0, clock="graph") + both("cuda", 10.0, 60.0, clock="graph")
    own += both("compile_reduce_overhead", 100.0, 900.0)  # by the wall clock: not beside the others
    own += both("triton", 10.0, 90.0, clock="graph", shape=[256, 256])  # nor what was timed at another size alone
    text = diffraction_findings.prices(evidence(*own, experiment="precision"), "box")
    assert text.index(called("cuda")) < text.index("6.0×") < text.index(called("compile")) < text.index("4.0×")
    assert "9.0×" not in text
    assert diffraction_findings.prices(priced(200.0), "box") == ""


def test_every_form_is_compared_by_the_clock_it_has() -> None:
    lines = [
        *both("compile", 10.0, 30.0, clock="graph"),
        *both("compile", 100.0, 101.0, clock="wall"),
        *both("compile_reduce_overhead", 50.0, 100.0, clock="wall"),
        *both("triton", 1.0, 2.0, clock="graph", shape=[256, 256]),
        *both("triton", 8.0, 32.0, clock="graph"),
        *both("eager@again", 1.0, 9.0, clock="graph"),
        cell("cuda", [1.0, 1.0], clock="graph"),  # never run in float64
    ]
    lab = evidence(*lines, experiment="precision")
    found = {one.variant: (one.clock, round(f.value, 3)) for one, _, f in diffraction_findings.dtype_pairs(lab, "box")}
    assert found == {"compile": ("graph", 3.0), "compile_reduce_overhead": ("wall", 2.0), "triton": ("graph", 4.0)}


TABLES: list[Callable[[Evidence, str], list[Any]]] = [
    diffraction_tables.cases,
    diffraction_tables.programs,
    diffraction_tables.counts,
    diffraction_tables.errors_by_size,
    diffraction_tables.errors_by_depth,
    diffraction_tables.blind,
    diffraction_tables.dtype_cost,
]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_what_was_not_measured_is_left_out(device: str) -> None:
    skipped = {"status": "skipped", "reason": "needs a CUDA device", "values": []}
    nothing = [
        cell("cuda", [], status="skipped", reason="needs a CUDA device", max_error=None, peak=None),
        detail_line(operation="diffraction", shape=[64, 64], variant="cuda", topic="trace") | skipped,
        detail_line(operation="diffraction", shape=[64, 64], variant="cuda", topic="start", case="cubin") | skipped,
        detail_line(operation="diffraction", shape=[64, 64], variant="cuda", topic="accuracy") | skipped,
    ]
    for lab in (evidence(device=device), evidence(*nothing, device=device)):
        assert diffraction_findings.findings(lab, "box") == []
        assert diffraction_findings.batch(lab, "box") is diffraction_findings.launches(lab, "box") is None
        assert diffraction_tables.diluted(lab, "box") is None
    assert [make(evidence(device=device), "box") for make in TABLES] == [[]] * len(TABLES)


# ---------------------------------------------------------------- tables


def test_cases_say_which_forms_are_right() -> None:
    place = {"operation": "diffraction_table", "clock": "graph"}
    rows = [
        cell("cuda", [8.0, 8.08], **place),
        cell("eager_direct", [], **place, status="wrong", reason="off", off=BAD),
        cell("c_openmp", [], **place, status="skipped", reason="runs on the host"),
        cell("compile", [], **place, status="crashed", reason="no", max_error=None, peak=None),
        cell("triton", [], **place, status="skipped", reason="needs Triton", max_error=None, peak=None),
    ]
    found = {line["form"]: line["table"] for line in diffraction_tables.cases(evidence(*rows), "box")}
    assert found == {
        called("cuda"): "8.04 µs [7.55, 8.56], 1.00e-06 of the peak",
        called("eager_direct"): "wrong: off by 0.0100 of the peak",
        called("c_openmp"): "right, 1.00e-06 of the peak",
        called("compile"): "crashed",
        called("triton"): "not measured",
    }


def test_programs_show_what_a_process_costs_beyond_its_call() -> None:
    times = {"whole": [10.0, 10.0], "simulation": [4.0, 4.0], "file output": [2.0, 2.0]}
    broken = {"status": "crashed", "reason": "exit status 1"}
    lines = probe("c_openmp", "process", times) + probe("cuda", "process", {"process": []}, **broken)
    shown = diffraction_tables.programs(evidence(*C_ROWS, *lines), "box")
    assert shown[0]["whole program"] == "10.0 ms [10.0, 10.0]"
    assert shown[0]["warm call in process"].startswith("200 µs")
    assert shown[1] == {"pixels": "1024×1024", "program": called("cuda"), "whole program": "crashed: exit status 1"}


def test_whole_programs_and_other_scenes_are_told_before_their_tables() -> None:
    times = {"whole": [10.0, 10.0], "simulation": [4.0, 4.0], "file output": [2.0, 2.0]}
    lab = evidence(*C_ROWS, *probe("c_openmp", "process", times))
    told = f"At 1024×1024 a whole program takes 10 ms with *{called('c_openmp')}* (a warm call: 200 µs)."
    assert diffraction_tables.programs_said(lab, "box") == told
    place = {"clock": "graph"}
    rows = [
        cell("cuda", [8.0, 8.08], operation="diffraction_table", **place),
        cell("triton", [], operation="diffraction_table", status="skipped", reason="no", max_error=None, peak=None),
        cell("eager_direct", [], operation="diffraction_table", status="wrong", reason="off", off=BAD, **place),
        cell("eager_direct", [9.0, 9.09], operation="diffraction_triclinic", **place),
    ]
    found = diffraction_tables.cases_said(evidence(*rows), "box")
    assert f"Right wherever they ran: {called('cuda')}." in found
    assert f"Wrong or failed: {called('eager_direct')} (1 of 2)." in found
    assert called("triton") not in found
    assert diffraction_tables.programs_said(evidence(), "box") == diffraction_tables.cases_said(evidence(), "box") == ""


def test_counts_stand_beside_each_other() -> None:
    lines = probe("eager", "trace", {"kernel launches": [90, 90], "unique kernels": [14, 14]})
    lines += probe("eager", "trace", {"GPU time": [200, 202]}, unit="us") + probe(
        "eager", "trace", {"busy": [41, 43]}, unit="%"
    )
    lines += probe("compile", "trace", {"kernel launches": [2, 2], "largest idle gap": [0, 0]}, unit="us")
    lines += probe("cuda", "trace", {"trace": []}, status="crashed", reason="lost")
    found = {line["one warm image"]: line for line in diffraction_tables.counts(evidence(*lines), "box")}
    assert found["kernel launches"][called("eager")] == "90"
    assert found["GPU time"][called("eager")] == "201 µs [189, 214]"
    assert found["busy"][called("eager")] == "42.0%"
    assert found["largest idle gap"][called("compile")] == "0"
    assert found["busy"][called("compile")] == "–"
    status = {called("eager"): "ok", called("compile"): "ok", called("cuda"): "crashed: lost"}
    assert found["status"] == {"one warm image": "status"} | status


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("preset", ["quick", "seed", "full"])
def test_no_start_is_asked_for_twice(preset: str, device: str) -> None:
    planned = EXPERIMENTS["warm_up"].probes(preset, device, [])
    ways = [(probe.workload, probe.variant, probe.case) for probe in planned]
    assert len(set(ways)) == len(ways)


def test_two_probes_of_one_start_are_more_processes_of_it() -> None:
    lines = start("compile", "empty", [9, 1], 100.0) + start("compile", "empty", [9, 1], 300.0)
    way = diffraction_findings.compiled_start(evidence(*lines), "box")
    assert way is not None
    assert way.per_process("first image") == [100e3, 101e3, 300e3, 303e3]


def test_the_mean_of_three_hides_a_dtype() -> None:
    lines = both("compile_reduce_overhead", 100.0, 200.0, clock="wall", medians_us=None)
    for line, us in zip(lines, (100.0, 200.0), strict=True):
        line["medians_us"] = [us, us]
    lab = evidence(
        *lines, *start("compile_reduce_overhead", "empty", [900, 10.0, 0.1, 0.1, 0.1]), experiment="precision"
    )
    mean, replays = said(diffraction_tables.diluted(lab, "box"))
    record = 10e3 * 1.01**0.5
    assert mean == pytest.approx((record + 400) / (record + 200))
    assert replays.value == pytest.approx(2)
    cpu = evidence(*both("compile", 1, 2, clock="hot"), *start("compile", "empty", [9, 1, 1, 1, 1]), device="cpu")
    assert diffraction_tables.diluted(cpu, "box") is None


def test_titles_say_what_float64_costs_and_what_is_fastest() -> None:
    own = both("compile", 100.0, 400.0, clock="graph") + both("cuda", 10.0, 60.0, clock="graph")
    lab = evidence(*own, experiment="precision")
    assert diffraction_tables.cost(lab, "box") == "An image takes 4.0–6.0× as long in float64"
    assert "as long" not in diffraction_tables.cost(priced(100.0, 9.0), "box")
    title = diffraction_tables.quickest(lab.select(operation="diffraction"))
    assert title == f"Fastest: {called('cuda')} in float32, off by 0.00010% of the peak"
    assert diffraction_tables.quickest([]) == "Time and error"
    product = [cell("eager", [1.0, 1.0], operation="matmul", math="tf32", peak=None, error=0.0003)]
    (row,) = evidence(*product, experiment="precision").select(operation="matmul")
    assert diffraction_tables.quickest([row]) == f"Fastest: {called('eager')} in float32/tf32, off by 0.030%"


def test_measures_side_by_side() -> None:
    lines = flat(
        [
            accuracy("eager_direct", BAD),
            accuracy("cuda", GOOD),
            accuracy("cuda", 0.1, case="scaled", correlation=1.0),
            accuracy("cuda", 0.9, case="faulty row", correlation=0.9991),
            accuracy("eager", GOOD, side=2048),
        ]
    )
    lab = evidence(*lines)
    assert [(line["image"], line["correlation"]) for line in diffraction_tables.blind(lab, "box")] == [
        (called("eager_direct"), "1.000000"),
        (called("cuda"), "1.000000"),
        ("the same, times 1.1", "1.000000"),
        ("the same, one row zero", "0.999100"),
    ]
    sizes = {line["form"]: line for line in diffraction_tables.errors_by_size(lab, "box")}
    assert sizes[called("eager_direct")] == {"form": called("eager_direct"), "1024×1024": "1.00%", "2048×2048": "–"}
    assert sizes[called("eager")]["2048×2048"] == "0.00010%"


def test_errors_by_depth_have_a_line_a_form_also_one_that_missed_the_check() -> None:
    def product(depth: int, error: float | None, **changes: Any) -> dict[str, Any]:
        given = {"operation": "matmul", "shape": [64, depth, 64], "clock": "graph", "error": error}
        return cell_line(**given | changes)

    missed = {"status": "wrong", "reason": "error 9.6e-06", "medians_us": []}
    lab = evidence(
        product(4096, 1.0e-6),
        product(1024, 5.0e-7),
        product(2048, 7.0e-7),
        *(
            product(depth, error, math="tf32x3") | more
            for depth, error, more in ((1024, 2.4e-6, {}), (4096, 9.6e-6, missed))
        ),
        *(product(depth, 0.0, dtype="float64") for depth in (1024, 4096)),
        product(1024, 3.0e-4, math="tf32"),
        product(4096, None, math="tf32", status="crashed", medians_us=[]),
        experiment="precision",
    )
    assert diffraction_tables.errors_by_depth(lab, "box") == [
        {
            "form": "float32, ieee",
            "error at depth 1024": "0.000050%",
            "error at depth 4096": "0.00010%",
            "grows": "2.00×",
            "the check says": "ok",
        },
        {
            "form": "float32, tf32x3",
            "error at depth 1024": "0.00024%",
            "error at depth 4096": "0.00096%",
            "grows": "4.00×",
            "the check says": "wrong",
        },
    ]


# ---------------------------------------------------------------- chapters


def test_verify_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []

    def wrong(operation: str, device: str, direction: str, without: Sequence[str]) -> list[str]:
        asked.append(without)
        return []

    monkeypatch.setattr(verify, "_wrong_variants", wrong)
    assert verify.verify("diffraction", "cpu").endswith("agrees with float64")
    assert verify.verify("diffraction", "cpu", without=["eager_direct"]).endswith(
        "(left out: eager_direct, known to be wrong)"
    )
    assert asked == [(), ["eager_direct"]]


@pytest.mark.parametrize("page", ["07_diffraction", "08_profile", "09_precision", "10_warm_up"])
def test_a_chapter_begins_with_its_document_and_ends_with_its_records(page: str) -> None:
    cells = json.loads((NOTEBOOKS / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]
    assert "S003" in "".join(cells[0]["source"])  # the figures in the lead are the document's
    code = [c for c in cells if c["cell_type"] == "code"]
    assert "print(data.digest())" in "".join(code[-1]["source"])


def test_traces_are_linked_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = probe("eager", "trace", {"kernel launches": [9]}) + probe("cuda", "trace", {"kernel launches": [1]})
    folder = tmp_path / "box" / "traces"
    folder.mkdir(parents=True)
    (folder / "diffraction-1024x1024-eager-trace.json.gz").write_bytes(b"")
    monkeypatch.setattr(records, "COMMITTED", tmp_path / "none")
    found = diffraction_tables.traces(evidence(*lines), "box", tmp_path)
    assert found == {
        f"{called('eager')} at 1024×1024": "../records/box/traces/diffraction-1024x1024-eager-trace.json.gz"
    }


def test_a_profile_of_a_cpu_speaks_of_operators() -> None:
    lab = evidence(*probe("eager", "trace", {"kernel launches": [177, 177]}), device="cpu")
    named = [line["one warm image"] for line in diffraction_tables.counts(lab, "box")]
    assert named[0] == "operators called"
    assert not any("kernel" in name or "GPU" in name for name in named)
