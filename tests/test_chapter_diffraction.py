"""What is said of the simulator: every sentence and table from synthetic records, for GPUs, CPUs and half of either."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from synthetic import cell_line, detail_line, run_line

from hypatia_lab import claims, formats, intervals, records, results
from hypatia_lab.chapters import diffraction_findings, diffraction_tables
from hypatia_lab.experiments import EXPERIMENTS
from hypatia_lab.pages import findings, phrases, verify
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding
from hypatia_lab.records import Record

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

    def record(name: str, own: Sequence[dict[str, Any]]) -> Record:
        run = run_line(experiment=name, device=device, facts={"name": "box", "cores": 8} | facts)
        cells, details = (tuple(line for line in own if line["kind"] == kind) for kind in ("cell", "detail"))
        return Record(Path("nowhere"), run, cells, "", details)

    found = [record("ceilings", ceilings), record(experiment, lines)]
    return Evidence(found, results.rows(found))


def flat(lines: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [line for own in lines for line in own]


C_ROWS = (cell("c_pixelwise", [1000.0, 1010.0]), cell("c_openmp", [200.0, 201.0]))


def said(found: Finding | None) -> Finding:
    assert found is not None
    return found


# ---------------------------------------------------------------- findings


@pytest.mark.parametrize(
    ("torch_us", "figure", "title"),
    [
        ([50.0, 50.5], "20.0×", "faster than C"),
        ([2800.0, 2828.0], "0.357×", "slower than C"),
        ([990.0, 1030.0], "0.995×", "as fast as C"),
    ],
)
def test_against_c_on_a_gpu(torch_us: list[float], figure: str, title: str) -> None:
    slower = [2 * us for us in torch_us]
    rows = [*C_ROWS, cell("compile", torch_us), cell("compile_reduce_overhead", slower), cell("cuda", [10.0, 10.1])]
    found = said(diffraction_findings.against_c(evidence(*rows), "box"))
    assert found.figure == figure
    assert title in found.title
    assert "a warm call of compile at 1024×1024 takes" in found.text  # the quickest that torch has
    assert "8 cores" in found.text
    assert "own (cuda) is 100× [100, 100]" in found.text


def test_against_c_on_a_cpu() -> None:
    rows = [*C_ROWS, cell("compile", [1500.0, 1515.0]), cell("eager", [9000.0, 9000.0])]
    found = said(diffraction_findings.against_c(evidence(*(r | {"clock": "hot"} for r in rows), device="cpu"), "box"))
    assert "of compile at " in found.text  # the best that torch has here
    assert "slower than C" in found.title


def test_against_c_speaks_of_the_seeds_size_where_it_was_measured() -> None:
    large = [row | {"shape": [4096, 4096]} for row in (*C_ROWS, cell("compile", [7.0, 7.0]))]
    both = [*large, *C_ROWS, cell("compile", [100.0, 101.0])]
    assert "at 1024×1024" in said(diffraction_findings.against_c(evidence(*both), "box")).text
    assert "at 4096×4096" in said(diffraction_findings.against_c(evidence(*large), "box")).text


def test_a_wrong_form_is_never_the_fast_one() -> None:
    wrong = cell("compile_reduce_overhead", [], status="wrong", reason="off", off=BAD)
    rows = [*C_ROWS, wrong, cell("compile", [100.0, 101.0])]
    assert "of compile at " in said(diffraction_findings.against_c(evidence(*rows), "box")).text


@pytest.mark.parametrize(
    ("own_us", "title"),
    [([10.0, 10.1], "is faster than"), ([80.0, 80.1], "is slower than"), ([39.5, 41.0], "is no faster,")],
)
def test_near_limit(own_us: list[float], title: str) -> None:
    rows = [cell("cuda", own_us), cell("triton", [90.0, 90.0]), cell("compile", [40.0, 40.4])]
    lab = evidence(*(row | {"clock": "graph"} for row in rows))
    found = said(diffraction_findings.near_limit(lab, "box"))
    assert "the cuda kernel" in found.text
    assert "alone takes 4.19 µs" in found.text  # 4 MiB at 1 TB/s
    assert title in found.title


@pytest.mark.parametrize(
    ("us", "title"),
    [
        ([0.5, 0.505], "A batch in one call pays more than was hoped"),
        ([50.0, 50.5], "A batch in one call pays"),
        ([99.0, 101.0], "Whether a batch in one call pays"),
    ],
)
def test_batch(us: list[float], title: str) -> None:
    place = {"operation": "diffraction_batch", "shape": [64, 256, 256]}
    rows = [
        cell(name, t, **place) | {"baseline": "one_by_one"} for name, t in (("one_by_one", [99.0, 99.9]), ("cuda", us))
    ]
    found = said(diffraction_findings.batch(evidence(*rows), "box"))
    assert found.title == title
    assert ("64 crystals at 256×256 in one call of cuda" in found.text) is ("Whether" not in title)
    assert found.claims == (() if "Whether" in title else ("S003-82c",))  # of what the ledger decides all the same
    on_cpu = evidence(*(row | {"clock": "hot"} for row in rows), device="cpu")
    assert said(diffraction_findings.batch(on_cpu, "box")).claims == ()  # the document speaks of a GPU


@pytest.mark.parametrize(
    ("calls", "figure"),
    [
        ([900, 44.8, 0.1, 0.1, 0.1], "150×"),
        ([900, 0.1, 0.1, 0.1, 0.1], "1.00×"),
    ],
)
def test_mean_of_three(calls: list[float], figure: str) -> None:
    lab = evidence(*start("compile_reduce_overhead", "empty", calls), experiment="warm_up")
    found = said(diffraction_findings.mean_of_three(lab, "box"))
    assert found.figure == figure
    assert "call 2 records a CUDA graph" in found.text


def test_a_cpu_records_no_graph() -> None:
    lab = evidence(*start("compile", "empty", [900, 0.1, 0.1, 0.1, 0.1]), experiment="warm_up", device="cpu")
    text = said(diffraction_findings.mean_of_three(lab, "box")).text
    assert "records" not in text


def test_uneven_calls_are_undecided() -> None:
    lines = start("compile", "empty", [900, 0.1, 0.1, 0.1, 0.1])
    lines[1] = lines[1] | {"values": [0.130, 0.138]}
    assert said(diffraction_findings.mean_of_three(evidence(*lines), "box")).title == "Early calls are uneven"
    lines[1] = lines[1] | {"values": [0.1, 0.3]}
    noisy = said(diffraction_findings.mean_of_three(evidence(*lines), "box"))
    assert noisy.figure == intervals.TOO_NOISY
    assert "call 2 takes a time too noisy to say" in noisy.text


def test_of_few_processes_each_is_told_and_nothing_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "FEW_RARE", 3)
    lines = start("compile", "empty", [900, 44.8, 0.1, 0.1, 0.1])
    lines[1] = lines[1] | {"values": [44.8, 46.0]}
    found = said(diffraction_findings.mean_of_three(evidence(*lines), "box"))
    assert found.figure == intervals.TOO_FEW
    assert "call 2 takes 44.8 and 46.0 ms" in found.text
    assert "×" not in found.text


def test_a_start_is_not_shortened_where_intervals_overlap() -> None:
    ways = flat([start("compile", "empty", [1, 1], 3000.0), start("compile", "aoti_raw", [1, 1], 2950.0)])
    found = said(diffraction_findings.first_image(evidence(*ways, experiment="warm_up"), "box"))
    assert found.title == "Whether stored code shortens a start is undecided"


@pytest.mark.parametrize(
    ("ms", "title"),
    [
        (5.0, "A fresh process need not compile"),
        (200.0, "Stored code shortens a start"),
        (49.9, "Stored code shortens a start"),
    ],
)
def test_first_image_takes_the_quickest_right_way(ms: float, title: str) -> None:
    broken = {"status": "wrong", "reason": "call 1: off"}
    ways = flat(
        [
            start("compile", "empty", [1, 1], 3000.0),
            start("compile", "disk", [1, 1], 900.0),
            start("compile", "aoti_raw", [1, 1], ms),
            start("compile", "aoti_package", [1, 1], 1.0, **broken),
            start("cuda", "cubin", [1, 1], 3.0),
            start("cuda", "no cubin", [1, 1], 2000.0),
            start("eager", "", [1, 1], 2.0),
        ]
    )
    lab = evidence(*ways, experiment="warm_up")
    found = said(diffraction_findings.first_image(lab, "box"))
    assert found.title == title
    assert "at best (compile, aoti_raw)" in found.text
    assert "(cuda, cubin)" in found.text
    assert "3.01 s [2.83, 3.21] when nothing is stored" in found.text
    (share,) = lab.judged["S003-71e"]["box"]["cases"]  # of a library's way the ledger has the share
    assert f"{formats.figure(share['found'], '%')} of that" in found.text
    assert found.claims == ("S003-71b", "S003-71e")  # our own kernel is told and not judged
    on_cpu = said(diffraction_findings.first_image(evidence(*ways, experiment="warm_up", device="cpu"), "box"))
    assert on_cpu.claims == ()


def accuracy(variant: str, off: float, *, case: str = "", side: int = 1024, correlation: float = 1.0) -> Any:
    """What the accuracy probe says of one image, in one process."""
    names = {"correlation": correlation, "error": off, "mean relative error": off, "largest error over peak": off}
    return probe(variant, "accuracy", {name: [v] for name, v in names.items()}, case=case, shape=[side, side])


def test_whole_numbers_speak_of_the_largest_image() -> None:
    lines = flat(
        [
            accuracy(name, off * side / 1024, side=side)
            for side in (1024, 4096)
            for name, off in (("eager", 1e-6), ("eager_direct", BAD))
        ]
    )
    found = said(diffraction_findings.whole_numbers(evidence(*lines, experiment="precision"), "box"))
    assert found.figure == "4.00%"
    assert found.title == "Perfect correlation, wrong pixels"
    assert "4096×4096" in found.text
    lines[-4] = lines[-4] | {"values": [0.9997]}  # a correlation that does show something
    found = said(diffraction_findings.whole_numbers(evidence(*lines, experiment="precision"), "box"))
    assert "Perfect" not in found.title


def both(variant: str, single: float, twice: float, **changes: Any) -> list[dict[str, Any]]:
    """A form in float32 and in float64, µs."""
    pair = (("float32", single), ("float64", twice))
    return [cell(variant, [us, 1.001 * us], dtype=dtype, **changes) for dtype, us in pair]


PRODUCTS = flat([both("eager", 10.0, 20.0, operation="matmul", shape=[64, 64, 64], clock="graph", flops=2 * 64**3)])


@pytest.mark.parametrize(
    ("us", "title"),
    [(200.0, "float64 is not free in the lab's forms"), (100.0, "float64 costs the lab's forms nothing")],
)
def test_double(us: float, title: str) -> None:
    lab = evidence(*both("compile", 100.0, us, clock="graph"), *PRODUCTS, experiment="precision")
    found = said(diffraction_findings.double(lab, "box"))
    assert found.title == title
    assert "a matrix product 2.00× [2.00, 2.00]" in found.text


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


def test_launches() -> None:
    lines = flat(
        [probe(name, "trace", {"kernel launches": [n, n]}) for name, n in (("eager", 90), ("compile", 2), ("cuda", 1))]
    )
    found = said(diffraction_findings.launches(evidence(*lines, experiment="profile"), "box"))
    assert found.figure == "90 → 2"
    assert "cuda 1" in found.text
    on_cpu = said(diffraction_findings.launches(evidence(*lines, experiment="profile", device="cpu"), "box"))
    assert "operator calls" in on_cpu.text


TABLES: list[Callable[[Evidence, str], list[dict[str, str]]]] = [
    diffraction_tables.sizes_against_c,
    diffraction_tables.cases,
    diffraction_tables.programs,
    diffraction_tables.counts,
    diffraction_tables.dtype_cost,
    diffraction_tables.errors_by_size,
    diffraction_tables.errors_by_depth,
    diffraction_tables.blind,
    diffraction_tables.early_calls,
    diffraction_tables.start_by_size,
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


def test_the_cards_carry_every_finding() -> None:
    lab = evidence(
        *(
            row | {"clock": clock}
            for clock in ("wall", "graph")
            for row in (*C_ROWS, cell("compile", [100, 101]), cell("cuda", [9, 9.1]))
        ),
        *start("compile_reduce_overhead", "empty", [900, 44.8, 0.1, 0.1, 0.1], 3000),
        *start("compile_reduce_overhead", "disk", [900, 44.8, 0.1, 0.1, 0.1], 700),
        *accuracy("eager", 1e-6),
        *accuracy("eager_direct", BAD),
    )
    found = diffraction_findings.findings(lab, "box")
    pages = ["10_warm_up", "07_diffraction", "07_diffraction", "09_precision", "10_warm_up"]
    assert [f.page for f in found] == pages
    html = findings.cards(found, lab, "box")
    assert html.count("lab-card ") == len(found)
    assert all((NOTEBOOKS / f"{f.page}.ipynb").is_file() for f in found)
    # A rewrite judges no document: what names its claims speaks of a library or of a kernel of one's own.
    program = {claim.id: claim.program for claim in claims.ledger(seeds=["S003"])}
    assert {program[part] for f in found for part in f.claims} <= {"library", "own"}


# ---------------------------------------------------------------- tables


def test_sizes_against_c_has_a_line_a_size_and_program() -> None:
    rows = [*C_ROWS, cell("compile", [100.0, 101.0])]
    lines = diffraction_tables.sizes_against_c(evidence(*rows), "box")
    assert [line["C"] for line in lines] == ["pixel by pixel", "vectorised"]
    assert lines[0]["over PyTorch's"] == "10.0× [10.0, 10.0]"
    assert lines[1]["over PyTorch's"] == "2.00× [1.93, 2.06]"
    assert "over our kernel's" not in lines[0]
    rows.append(cell("cuda", [1.0, 1.0], shape=[256, 256]))
    rows.append(cell("c_openmp", [8.0, 8.0], shape=[256, 256]))
    lines = diffraction_tables.sizes_against_c(evidence(*rows), "box")
    assert [line["over our kernel's"] for line in lines] == ["8.00× [8.00, 8.00]", "–", "–"]


def test_cases_say_which_forms_are_right() -> None:
    place = {"operation": "diffraction_table", "clock": "graph"}
    rows = [
        cell("cuda", [8.0, 8.08], **place),
        cell("eager_direct", [], **place, status="wrong", reason="off", off=BAD),
        cell("c_openmp", [], **place, status="skipped", reason="runs on the host"),
        cell("compile", [], **place, status="crashed", reason="no", max_error=None, peak=None),
        cell("triton", [], **place, status="skipped", reason="needs Triton", max_error=None, peak=None),
    ]
    found = {line["variant"]: line["table"] for line in diffraction_tables.cases(evidence(*rows), "box")}
    assert found == {
        "cuda": "8.04 µs [7.55, 8.56], 1.00e-06 of the peak",
        "eager_direct": "wrong: off by 0.0100 of the peak",
        "c_openmp": "right, 1.00e-06 of the peak",
        "compile": "crashed",
        "triton": "not measured",
    }


def test_programs_show_what_a_process_costs_beyond_its_call() -> None:
    times = {"whole": [10.0, 10.0], "simulation": [4.0, 4.0], "file output": [2.0, 2.0]}
    broken = {"status": "crashed", "reason": "exit status 1"}
    lines = probe("c_openmp", "process", times) + probe("cuda", "process", {"process": []}, **broken)
    shown = diffraction_tables.programs(evidence(*C_ROWS, *lines), "box")
    assert shown[0]["whole program"] == "10.0 ms [10.0, 10.0]"
    assert shown[0]["warm call in process"].startswith("200 µs")
    assert shown[1] == {"pixels": "1024×1024", "program": "cuda", "whole program": "crashed: exit status 1"}


def test_counts_stand_beside_each_other() -> None:
    lines = probe("eager", "trace", {"kernel launches": [90, 90], "unique kernels": [14, 14]})
    lines += probe("eager", "trace", {"GPU time": [200, 202]}, unit="us") + probe(
        "eager", "trace", {"busy": [41, 43]}, unit="%"
    )
    lines += probe("compile", "trace", {"kernel launches": [2, 2], "largest idle gap": [0, 0]}, unit="us")
    lines += probe("cuda", "trace", {"trace": []}, status="crashed", reason="lost")
    found = {line["one warm image"]: line for line in diffraction_tables.counts(evidence(*lines), "box")}
    assert found["kernel launches"]["eager"] == "90"
    assert found["GPU time"]["eager"] == "201 µs [189, 214]"
    assert found["busy"]["eager"] == "42.0%"
    assert found["largest idle gap"]["compile"] == "0"
    assert found["busy"]["compile"] == "–"
    assert found["status"] == {"one warm image": "status", "eager": "ok", "compile": "ok", "cuda": "crashed: lost"}


def test_early_calls_show_the_mean_and_what_it_is_made_of() -> None:
    lines = start("compile_reduce_overhead", "empty", [900, 30.0, 0.1, 0.2, 0.1])
    lines += start("compile", "disk", [900, 1, 1, 1, 1]) + start("eager", "", [3, 1, 1, 1, 1])
    found = diffraction_tables.early_calls(evidence(*lines), "box")
    assert [line["way"] for line in found] == ["eager", "compile_reduce_overhead, empty"]
    assert found[1]["mean / call 12"] == "101× [101, 101]"
    assert found[1]["mean of calls 2 to 4"].startswith("10.2 ms [")


def test_starts_by_size_and_the_size_that_most_is_known_of() -> None:
    small = start("compile", "empty", [9, 1, 1, 1, 1], shape=[256, 256])
    lines = [*small, *start("compile", "empty", [9, 1, 1, 1, 1]), *start("eager", "", [9, 1, 1, 1, 1])]
    found = diffraction_tables.start_by_size(evidence(*lines), "box")
    assert [line["pixels"] for line in found] == ["256×256", "1024×1024"]
    assert {tuple(line["shape"]) for line in diffraction_tables.main_lines(lines)} == {(1024, 1024)}
    assert diffraction_tables.main_lines([]) == []


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


def test_set_ups_that_differ_by_size_are_told() -> None:
    def by_size(*seconds: float) -> str:
        sizes = zip((256, 512, 1024), seconds, strict=True)
        lines = flat([start("compile", "empty", [9, 1], 1e3 * s, shape=[n, n]) for n, s in sizes])
        return diffraction_tables.uneven_by_size(evidence(*lines), "box")

    assert by_size(10.0, 12.0, 11.0) == "On `box` they do: the largest mean is 1.20× the least."
    text = by_size(10.0, 30.0, 12.0)
    assert re.match(r"On `box` they do not: 30\.1 s \[.*\] at 512×512, 10\.0 s \[.*\] at 256×256\.", text)
    assert diffraction_tables.uneven_by_size(evidence(*start("compile", "empty", [9, 1])), "box") == ""


def test_what_stored_code_saves_and_what_its_loader_costs() -> None:
    ways = [start("compile", "empty", [1, 1], 7000.0), start("compile", "aoti_raw", [1, 1], 10.0)]
    title, text = diffraction_findings.stored(evidence(*flat(ways)), "box")
    assert title == "Stored code saves up to 7.02 s of set-up and call 1"
    assert "7.03 s [6.60, 7.49] with nothing stored" in text
    ways.append(start("compile", "aoti_package", [1, 1], 31000.0))
    title, text = diffraction_findings.stored(evidence(*flat(ways)), "box")
    assert title.endswith("; PyTorch's package loader costs 31.1 s")
    assert re.search(r"the same package takes 31\.2 s \[.*\], and 10\.0 ms \[.*\] through the bare one\.$", text)
    assert diffraction_findings.stored(evidence(*ways[0]), "box")[1] == ""


def test_the_mean_of_three_hides_a_dtype() -> None:
    lines = both("compile_reduce_overhead", 100.0, 200.0, clock="wall", medians_us=None)
    for line, us in zip(lines, (100.0, 200.0), strict=True):
        line["medians_us"] = [us, us]
    lab = evidence(
        *lines, *start("compile_reduce_overhead", "empty", [900, 10.0, 0.1, 0.1, 0.1]), experiment="precision"
    )
    mean, replays = diffraction_tables.diluted(lab, "box") or (0.0, 0.0)
    record = 10e3 * 1.01**0.5
    assert mean == pytest.approx((record + 400) / (record + 200))
    assert replays == pytest.approx(2)
    cpu = evidence(*both("compile", 1, 2, clock="hot"), *start("compile", "empty", [9, 1, 1, 1, 1]), device="cpu")
    assert diffraction_tables.diluted(cpu, "box") is None


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
        ("eager_direct, as it is", "1.000000"),
        ("cuda, as it is", "1.000000"),
        ("cuda, multiplied by 1.1", "1.000000"),
        ("cuda, one row set to zero", "0.999100"),
    ]
    sizes = {line["variant"]: line for line in diffraction_tables.errors_by_size(lab, "box")}
    assert sizes["eager_direct"] == {"variant": "eager_direct", "1024×1024": "0.0100", "2048×2048": "–"}
    assert sizes["eager"]["2048×2048"] == "1.00e-06"


def test_rates_are_against_float32() -> None:
    def product(dtype: str, us: float) -> dict[str, Any]:
        return cell_line(
            operation="matmul", shape=[9, 9, 9], dtype=dtype, clock="graph", flops=10**9, medians_us=[us, us]
        )

    lab = evidence(product("float32", 10.0), product("float64", 640.0), experiment="ceilings")
    found = diffraction_tables.rates(lab, "box")
    assert [line["arithmetic"] for line in found] == ["float64/ieee", "float32/ieee"]
    assert found[0]["float32's rate / this"] == "64.0×"
    assert found[1]["best rate"] == "100 TFLOP/s"


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
            "error at depth 1024": "5.00e-07",
            "error at depth 4096": "1.00e-06",
            "grows": "2.00×",
            "the check says": "ok",
        },
        {
            "form": "float32, tf32x3",
            "error at depth 1024": "2.40e-06",
            "error at depth 4096": "9.60e-06",
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


def source(page: str) -> str:
    cells = json.loads((NOTEBOOKS / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells)


def test_every_claim_of_the_document_is_judged_on_one_page() -> None:
    pages = sorted({diffraction_tables.CHAPTER, *diffraction_tables.SECTIONS.values()})
    shown = [claim.id for page in pages for claim in diffraction_tables.chapter_claims(page)]
    assert sorted(shown) == sorted(claim.id for claim in claims.ledger(seeds=["S003"]))
    assert all(diffraction_tables.chapter_claims(page) for page in pages)
    for page in pages:
        assert f'chapter_claims("{page}")' in source(page)
    places: dict[str, set[str]] = {}
    for page in pages:
        for claim in diffraction_tables.chapter_claims(page):
            places.setdefault(claim.lead, set()).add(page)
    assert all(len(own) == 1 for own in places.values()), "a claim's parts stand on one page"
    assert {lead: {page} for lead, page in diffraction_tables.APART.items()}.items() <= places.items()


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
    assert found == {"eager at 1024×1024": "../records/box/traces/diffraction-1024x1024-eager-trace.json.gz"}


def test_show_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython.display

    shown: list[dict[str, str]] = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, raw: shown.append(bundle))
    diffraction_tables.show_traces({"eager at 1024×1024": "../records/box/traces/a.json.gz"})
    assert '<a href="../records/box/traces/a.json.gz" download>eager at 1024×1024</a>' in shown[0]["text/html"]
    assert shown[0]["text/plain"] == "../records/box/traces/a.json.gz"


def test_a_figure_names_the_records_it_is_drawn_from() -> None:
    lab = evidence(*C_ROWS)
    assert [r.experiment for r in phrases.behind(lab, "box", "diffraction")] == ["diffraction"]
    assert phrases.behind(lab, "box", "warm_up") == []


def test_a_profile_of_a_cpu_speaks_of_operators() -> None:
    lab = evidence(*probe("eager", "trace", {"kernel launches": [177, 177]}), device="cpu")
    named = [line["one warm image"] for line in diffraction_tables.counts(lab, "box")]
    assert named[0] == "operators called"
    assert not any("kernel" in name or "GPU" in name for name in named)
