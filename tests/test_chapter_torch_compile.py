"""What is said of S000's strategy, from synthetic records: findings, tables, curves, the live chain and the chapter."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from synthetic import Lines, ceilings, cell_line, detail_line, evidence_of, played, said, write_records
from synthetic import cells as timed
from synthetic import evidence as together

from hypatia_lab import intervals
from hypatia_lab.chapters import torch_compile, torch_compile_authors, torch_compile_rows, torch_compile_tables
from hypatia_lab.chapters.claims_shown import claims_of
from hypatia_lab.chapters.torch_compile_rows import POINTS, STEP
from hypatia_lab.experiments import EXPERIMENTS
from hypatia_lab.figures import comparisons
from hypatia_lab.figures.break_even import NEVER, Curve, break_even, calls_text
from hypatia_lab.figures.language import FigureError
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding
from hypatia_lab.pages.phrases import FLOAT32
from hypatia_lab.variants import variants
from hypatia_lab.workloads import Workload

pytestmark = pytest.mark.usefixtures("two_processes")

SEED, SMALL = [5, 64, 128, 128], [2, 16, 64, 64]
RATES = {"ieee": 50.0, "tf32": 370.0, "bfloat16": 760.0}
NONE = Interval(math.nan, math.nan, math.nan, 0)


def cells(operation: str, times: Mapping[str, float], **changes: Any) -> Lines:
    """Timed cells of two processes 1% apart, of which a ratio is exact."""
    own = {"shape": SEED, "max_error": 1e-3, "peak": 5.0} | changes
    return timed(times, operation, **own)


def start(operation: str, variant: str, case: str, ms: float, **changes: Any) -> Lines:
    """A fresh process that builds for 1 ms, and whose first call takes ``ms``, 2% apart in two processes."""
    own = {"operation": operation, "shape": SEED, "variant": variant, "topic": "start", "case": case, "unit": "ms"}
    values = {"set-up": 1.0, "build": 1.0, "call 1": ms, "call 2": 1.0}
    return [detail_line(name=name, values=[v, 1.02 * v], **own | changes) for name, v in values.items()]


BLOCK = {"eager": 400.0, "eager@again": 400.0, "compile": 250.0, "compile_together": 200.0, "script": 396.0}
BLOCK |= {"group_norm": 380.0, "eager_channels_last": 410.0, "preallocated": 400.0}
NET = {"eager": 2000.0, "compile": 900.0, "compile_together": 800.0, "script": 2000.0}
GPU = [
    *cells("conv_block", BLOCK),
    *cells("conv_block", BLOCK | {"compile_reduce_overhead": 240.0}, clock="wall"),
    *cells("conv_block", {"eager": 100.0, "compile": 70.0}, shape=[1, 64, 128, 128]),
    *cells("conv_block", {"eager": 200.0}, dtype="bfloat16"),
    *cells("conv_block_tanh", {"eager": 395.0, "compile": 240.0}),
    *cells("conv_block_autocast", {"eager": 190.0, "compile_together": 60.0}, dtype="bfloat16"),
    *cells("unet", NET),
    *cells("unet", NET, clock="wall"),
    *cells("unet_autocast", {"eager": 1010.0, "compile_together": 500.0}, dtype="bfloat16"),
    *cells("unet", {"eager": 6000.0, "compile": 5000.0}, direction=STEP),
    *cells("unet", {"eager": 6000.0, "compile": 5000.0}, direction=STEP, clock="wall"),
    *cells("unet_autocast", {"eager": 4000.0, "compile_together": 2900.0}, dtype="bfloat16", direction=STEP),
]
CHAINS = [
    cell_line(operation="norm_chain", shape=[3, 5, 33, 29], clock="none", medians_us=[], variant=name, **more)
    for name, more in (
        ("eager", {}),
        ("compile", {}),
        ("compile_channels_last", {"status": "wrong", "reason": "grad_x: wrong values: error 7.1e-01"}),
    )
]
STARTS = [
    *start("conv_block", "eager", "", 100.0),
    *start("conv_block", "compile", "empty", 9000.0),
    *start("conv_block", "compile", "disk", 5000.0),
    *start("unet", "eager", "", 150.0),
    *start("unet", "compile", "empty", 20000.0),
    *start("unet", "eager", "", 300.0, direction=STEP),
    *start("unet", "compile", "empty", 40000.0, direction=STEP),
]
DEFAULTS = [
    *cells("conv_block", {"eager": 120.0, "compile": 90.0, "eager_channels_last": 160.0}, math="default"),
    *cells("conv_block", {"eager": 150.0, "compile": 300.0}, math="default", clock="wall"),
    *cells("conv_block", {"eager": 40.0, "compile": 20.0}, math="default", shape=[1, 64, 128, 128], clock="wall"),
    *cells("conv_block", {"eager": 408.0, "compile": 3060.0}),
    *cells("conv_block", {"eager": 408.0, "compile": 3060.0}, clock="wall"),
    *cells("conv_block_autocast", {"eager": 100.0, "compile_together": 30.0}, dtype="bfloat16"),
    *cells("unet", {"eager": 480.0, "compile": 400.0, "script": 470.0}, math="default", clock="wall"),
    *cells("unet", {"eager": 480.0, "compile": 400.0}, math="default"),
]
CPU = [
    *cells("conv_block", {"eager": 25000.0, "compile": 20000.0}, clock="hot", shape=SMALL),
    *cells("unet", {"eager": 100000.0, "compile": 101000.0}, clock="hot", shape=SMALL),
]


def read(
    tmp_path: Path, own: Lines, starts: Lines, device: str = "cuda", machine: str = "box", defaults: Lines | None = None
) -> Evidence:
    """Evidence of one machine, with ceilings; with ``defaults`` where they are given."""
    top = ceilings(RATES, "graph" if device == "cuda" else "hot")
    parts = {"ceilings": top, "torch_compile": own, "compile_time": starts}
    write_records(
        tmp_path, machine, device, parts | ({} if defaults is None else {torch_compile_rows.DEFAULTS: defaults})
    )
    return evidence_of(tmp_path)


# ---------------------------------------------------------------- findings


@pytest.mark.parametrize(
    ("block", "net", "step", "verdict"),
    [(250, 1500, 5000, "less than 2"), (150, 900, 2000, "2 to 5"), (250, 900, 5000, "only"), (50, 300, 800, "more")],
)
def test_the_compiler_is_held_to_two_to_five_times(
    tmp_path: Path, block: float, net: float, step: float, verdict: str
) -> None:
    own = [
        *cells("conv_block", {"eager": 400.0, "compile": block}, clock="wall"),
        *cells("unet", {"eager": 2000.0, "compile": net}, clock="wall"),
        *cells("unet", {"eager": 6000.0, "compile": step}, clock="wall", direction=STEP),
    ]
    assert verdict in said(torch_compile.compiled(read(tmp_path, own, []), "box")).title


def test_an_interval_that_holds_two_is_open_and_a_wide_one_says_nothing(tmp_path: Path) -> None:
    rows = cells("conv_block", {"eager": 400.0, "compile": 200.0}, clock="wall")
    rows[-1]["medians_us"] = [198.0, 206.0]
    assert "open" in said(torch_compile.compiled(read(tmp_path, rows, []), "box")).title
    rows[-1]["medians_us"] = [180.0, 220.0]
    noisy = said(torch_compile.compiled(read(tmp_path / "noisy", rows, []), "box"))
    assert (noisy.figure, noisy.text) == (intervals.TOO_NOISY, "")


def test_channels_last_may_be_what_slows_the_compiler_down(tmp_path: Path) -> None:
    slow = cells("conv_block", {"eager": 400.0, "eager_channels_last": 4000.0, "compile": 3900.0})
    where = {"operation": "conv_block", "shape": SEED, "topic": "kernels", "unit": "us"}
    kernels = [
        detail_line(**where, variant=variant, name=name, values=[us])
        for variant in ("eager_channels_last", "compile")
        for name, us in (("vector_fft<0>", 900.0), ("gelu", 100.0))
    ]
    found = said(torch_compile.slow_order(read(tmp_path / "all", [*slow, *kernels], []), "box"))
    assert found.figure == "0.10×"
    assert "Eager with channels last has 0.10×" in found.text
    assert "90%" in found.text
    assert "%" not in said(torch_compile.slow_order(read(tmp_path / "less", slow, []), "box")).text
    quick = cells("conv_block", {"eager": 400.0, "eager_channels_last": 4000.0, "compile": 390.0})
    assert torch_compile.slow_order(read(tmp_path / "quick", quick, []), "box") is None


def test_all_together_is_held_against_float32_across_operations(tmp_path: Path) -> None:
    found = said(torch_compile.together(read(tmp_path, GPU, STARTS), "box"))
    assert found.figure == "4.0×"  # of the U-Net, which the claim is about: 2000 µs in float32 over 500 under autocast
    assert "the block 6.7×" in found.text
    assert "a training step 2.1×" in found.text
    assert "2 of 3 cases" in found.text  # the block gains more than 5 times


def test_mixed_precision_is_held_to_twice_with_its_error(tmp_path: Path) -> None:
    found = said(torch_compile.precision(read(tmp_path, GPU, STARTS), "box"))
    assert found.figure == "2.1×"
    assert "does not double" in found.title  # a training step has 1.5×
    twice = [*cells("conv_block", {"eager": 400.0}), *cells("conv_block_autocast", {"eager": 200.0}, dtype="bfloat16")]
    assert "doubles" in said(torch_compile.precision(read(tmp_path / "other", twice, []), "box")).title


def test_wrong_chains_are_counted(tmp_path: Path) -> None:
    def correct(name: str, *chains: dict[str, Any]) -> Finding:
        return said(torch_compile.correct(read(tmp_path / name, [*GPU, *chains], []), "box"))

    assert (right := correct("right", *CHAINS[:2])).figure == "1 of 1 right"
    assert (mine := correct("mine", *CHAINS)).figure == "1 of 2 right"
    eager_last = CHAINS[2] | {"variant": "eager_channels_last"}
    both = correct("both", *CHAINS, eager_last)
    assert "channels last" in both.title
    anywhere = correct("anywhere", CHAINS[0] | {"status": "wrong", "reason": "nan"}, *CHAINS[1:])
    assert "channels last" not in anywhere.title
    assert len({one.title for one in (right, mine, both, anywhere)}) == 4
    assert "compiled or not" in both.title  # what eager gets wrong as well is not laid to the compiler


def test_the_first_calls_stand_beside_eagers(tmp_path: Path) -> None:
    lines, where = torch_compile_tables.first_calls(read(tmp_path, GPU, STARTS), "box")
    assert [line["model"] for line in lines] == ["block", "U-Net", "U-Net, training"]
    assert "9.0" in lines[0]["call 1"]
    assert "2 fresh processes" in where
    assert torch_compile_tables.first_calls(read(tmp_path / "none", GPU, []), "box")[0] == []


def test_a_cpu_has_one_clock_and_says_only_what_it_measured(tmp_path: Path) -> None:
    lab = read(tmp_path, CPU, [], "cpu")
    assert said(torch_compile.compiled(lab, "box")).figure == "0.990× to 1.25×"
    assert {row.clock for row in torch_compile_rows.promised(lab, "box")} == {"hot"}
    assert torch_compile.together(lab, "box") is None
    assert torch_compile.pays(lab, "box") is None


def test_the_reported_chain_is_noise_here_too() -> None:
    assert torch_compile.reported().figure == "noise"


def test_nothing_is_said_of_what_was_not_measured(tmp_path: Path) -> None:
    lab = read(tmp_path, [], [])
    assert torch_compile.findings(lab, "box") == torch_compile_tables.summary(lab, "box") == []
    assert torch_compile_rows.maths(lab, "box") == torch_compile_rows.views(lab, "box") == []
    assert torch_compile.pictured(lab, "box") is None
    assert torch_compile.starts(lab, "box") == []
    for drawn in (torch_compile_rows.promised, torch_compile_rows.strategy, torch_compile_rows.modes):
        assert drawn(lab, "box") == []
    for mode in torch_compile_rows.MATHS:
        assert torch_compile.curves(lab, "box", "unet", STEP, mode) == []


def test_a_figure_of_what_failed_alone_is_left_out(tmp_path: Path) -> None:
    rows = cells("conv_block", {"eager": 400.0, "compile": 250.0})
    rows[-1] |= {"status": "wrong", "reason": "NaN: all", "medians_us": []}
    lab = read(tmp_path, rows, [])
    assert torch_compile_rows.promised(lab, "box") == []
    (_, line) = torch_compile_tables.summary(lab, "box")
    assert (line["time"], line["× eager"]) == ("wrong: NaN: all", "–")


# ---------------------------------------------------------------- rows of the figures


def test_models_stand_side_by_side_by_both_clocks(tmp_path: Path) -> None:
    rows = torch_compile_rows.promised(read(tmp_path, GPU, STARTS), "box")
    found = {(row.clock, row.variant): round(row.ratio, 2) for row in rows}
    assert found == {
        (clock, name): ratio
        for clock in ("graph", "wall")
        for name, ratio in (("block", 1.6), ("U-Net", 2.22), ("U-Net, training", 1.2))
    }


def test_every_figure_is_drawn(tmp_path: Path) -> None:
    lab = read(tmp_path, GPU, STARTS, defaults=DEFAULTS)
    for drawn in (torch_compile_rows.promised, torch_compile_rows.strategy, torch_compile_rows.modes):
        rows = drawn(lab, "box")
        figure, table = comparisons.speedups(rows)
        assert len(table) == len(rows)
        assert all(row.variant in figure.layout.meta["alt"] for row in rows)
    assert {row.math for row in torch_compile_rows.modes(lab, "box")} == set(FLOAT32)


# ---------------------------------------------------------------- PyTorch's default arithmetic


def test_the_default_leads_where_it_is_recorded(tmp_path: Path) -> None:
    lab = read(tmp_path, GPU, STARTS, defaults=DEFAULTS)
    assert torch_compile_rows.maths(lab, "box") == ["default", "ieee"]
    # 150 over 300 µs and 480 over 400 by default.
    assert said(torch_compile.compiled(lab, "box")).figure == "0.500× to 1.20×"
    assert said(torch_compile.precision(lab, "box")).figure == "1.20×"
    assert said(torch_compile.together(lab, "box")).figure == "4.0×"


def test_every_finding_names_the_arithmetic_that_it_speaks_of(tmp_path: Path) -> None:
    for folder, defaults, mode in (("with", DEFAULTS, "default"), ("without", None, "ieee")):
        lab = read(tmp_path / folder, GPU, STARTS, defaults=defaults)
        for ask in (torch_compile.compiled, torch_compile.together, torch_compile.precision, torch_compile.pays):
            found = said(ask(lab, "box"))
            assert FLOAT32[mode] in f"{found.title} {found.text}", ask
            assert (FLOAT32["default"] in f"{found.title} {found.text}") is (mode == "default"), ask
            if found.claims:  # the ledger has no other arithmetic of S000's
                assert ("which this is not" in found.text) is (mode != "default"), ask


def test_the_table_of_the_default_has_ieee_in_it_from_the_same_processes(tmp_path: Path) -> None:
    lab = read(tmp_path, GPU, STARTS, defaults=DEFAULTS)
    lines = [
        line
        for line in torch_compile_tables.summary(lab, "box")
        if (line["model"], line["clock"]) == ("block", "graph")
    ]
    own = {line["what"]: line["× eager"] for line in lines if line["against eager in"] == FLOAT32["default"]}
    assert own["eager"] == "1×"
    assert own["eager in IEEE float32"].startswith("0.294×")  # 120 over 408
    assert own["torch.compile, IEEE float32"].startswith("0.0392×")
    assert own["torch.compile"].startswith("1.33×")
    assert own["bfloat16 by autocast"].startswith("1.20×")
    other = {line["what"]: line["× eager"] for line in lines if line["against eager in"] == FLOAT32["ieee"]}
    assert "torch.compile, IEEE float32" not in other
    assert "torch.compile, reduce-overhead" not in other
    assert other["all cast to bfloat16"].startswith("2.00×")
    assert other["GELU by tanh (another function)"].startswith("1.01×")


def test_what_is_paid_once_in_the_default_was_measured_in_ieee(tmp_path: Path) -> None:
    lab = read(tmp_path, GPU, STARTS, defaults=DEFAULTS)
    eager, compiled = torch_compile.curves(lab, "box", "unet", "forward", "default")
    assert (eager.variant, compiled.variant) == ("eager", "compile")
    assert compiled.paid.value == pytest.approx(20e6, rel=0.02)
    assert compiled.calls.value == pytest.approx((20001e3 - 151e3) / 80, rel=0.02)
    assert torch_compile.pictured(lab, "box") == ("unet", "forward", "default")


def test_a_cpu_has_one_arithmetic(tmp_path: Path) -> None:
    own = cells("conv_block", {"eager": 25000.0, "compile": 20000.0}, clock="hot", shape=SMALL, math="default")
    lab = read(tmp_path / "both", CPU, [], "cpu", defaults=own)
    assert torch_compile_rows.maths(lab, "box") == ["ieee"]
    lab = read(tmp_path / "default", [], [], "cpu", defaults=own)
    assert torch_compile_rows.maths(lab, "box") == ["default"]
    assert said(torch_compile.compiled(lab, "box")).figure == "1.25×"


# ---------------------------------------------------------------- break-even


def test_calls_to_win_back_are_cost_over_gain(tmp_path: Path) -> None:
    lab = read(tmp_path, GPU, STARTS)
    eager, fresh, stored = torch_compile.curves(lab, "box", "conv_block", "forward", "ieee")
    assert [curve.name for curve in (eager, fresh, stored)] == ["eager", "compile", "compile, stored"]
    assert eager.paid.value == pytest.approx(101e3, rel=0.02)
    # 9001 ms less 101, at 150 µs a call.
    assert fresh.calls.value == pytest.approx(8900e3 / 150, rel=0.02)
    assert fresh.calls.low < fresh.calls.value < fresh.calls.high
    assert stored.calls.value < fresh.calls.value
    lines = torch_compile_tables.summary(lab, "box")
    by_wall = next(ln for ln in lines if (ln["model"], ln["what"], ln["clock"]) == ("block", "torch.compile", "wall"))
    assert by_wall["paid once"].startswith("9.09 s [")
    assert by_wall["won back in"] == calls_text(fresh.calls)


def test_directions_have_starts_of_their_own(tmp_path: Path) -> None:
    lab = read(tmp_path, GPU, STARTS)
    forward, step = (torch_compile.curves(lab, "box", "unet", way, "ieee")[1] for way in ("forward", STEP))
    assert forward.paid.value == pytest.approx(20e6, rel=0.02)
    assert step.paid.value == pytest.approx(40e6, rel=0.02)
    assert said(torch_compile.pays(lab, "box")).figure == "9.1 to 40 s"


@pytest.mark.parametrize(
    ("compiled", "text"),
    [([400.0, 404.0], "never"), ([390.0, 420.0], "or more, if ever"), ([390.0, 400.0], "or more, if ever")],
)
def test_what_saves_nothing_is_never_won_back(tmp_path: Path, compiled: list[float], text: str) -> None:
    rows = cells("conv_block", {"eager": 400.0, "compile": 400.0}, clock="wall")
    rows[-1]["medians_us"] = compiled
    own = torch_compile.curves(read(tmp_path, rows, STARTS), "box", "conv_block", "forward", "ieee")[1]
    assert text in calls_text(own.calls)
    title = said(torch_compile.pays(evidence_of(tmp_path), "box")).title
    assert ("never" in title) is (text == "never")
    assert ("open" in title) is (text != "never")


def test_a_sentence_says_when_a_start_is_won_back_as_far_as_is_known() -> None:
    def words(low: float, value: float, high: float, n: int = 5) -> str:
        return torch_compile.won_back(Interval(value, low, high, n, rare=True))

    assert words(90.0, 100.0, 110.0) == "wins it back after about 100 calls"
    assert words(90.0, 150.0, 270.0) == "wins it back after a number of calls that is too noisy to say"
    assert words(NEVER, NEVER, NEVER) == torch_compile.UNWON
    for unseen in (words(90.0, 100.0, NEVER), words(90.0, 100.0, 110.0, 1), words(1.0, 20.0, 400.0)):
        assert unseen == torch_compile.UNSEEN


def test_counts_of_calls_are_read_to_two_digits() -> None:
    assert calls_text(Interval(41234.0, 30499.0, 72001.0, 2)) == "41,000 [30,000, 72,000]"
    assert calls_text(Interval(0.2, 0.0, 3.0, 2)) == "1 [1, 3]"
    assert calls_text(Interval(NEVER, NEVER, NEVER, 2)) == "never"
    assert calls_text(NONE) == "–"


def test_the_curves_cross_where_they_say() -> None:
    def exact(value: float) -> Interval:
        return Interval(value, value, value, 2)

    first = Curve("eager", "eager", "peer", exact(1e3), exact(100.0), NONE)
    second = Curve("compile", "compile", "peer", exact(1e6), exact(50.0), Interval(19980.0, 19000.0, 21000.0, 2))
    never = Curve("script", "script", "peer", exact(2e3), exact(101.0), exact(NEVER))
    figure, table = break_even([first, second, never], "Title", ["box"])
    (dot,) = (trace for trace in figure.data if trace.mode == "markers")
    assert dot.x[0] == pytest.approx(19980, rel=0.01)
    assert dot.y[0] == pytest.approx((1e3 + 19980 * 100) / 1e6, rel=0.01)
    lines = [(trace.name, trace.xaxis) for trace in figure.data if trace.mode == "lines"]
    assert lines == [("eager", None), ("compile", None), ("eager", "x2"), ("script", "x2")]
    assert "calls to break even: 20,000 [19,000, 21,000]" in figure.layout.meta["alt"]
    assert list(table["variant"]) == ["eager", "compile", "script"]
    assert table.iloc[2, -1] == "never"
    with pytest.raises(FigureError, match="at least two curves"):
        break_even([first], "Title", [])


def test_a_marker_has_its_interval_and_stands_only_where_the_table_has_a_number() -> None:
    def exact(value: float) -> Interval:
        return Interval(value, value, value, 3)

    def dots(low: float, high: float) -> list[Any]:
        first = Curve("eager", "eager", "peer", exact(1e3), exact(100.0), NONE)
        own = Curve("compile", "compile", "peer", exact(1e6), exact(50.0), Interval(19980.0, low, high, 3, rare=True))
        figure, _ = break_even([first, own], "Title", ["box"])
        found = [trace for trace in figure.data if trace.mode == "markers"]
        assert ("marker" in figure.layout.title.text) is bool(found)
        return found

    (dot,) = dots(10000.0, 400000.0)
    assert (dot.error_x.array[0], dot.error_x.arrayminus[0]) == pytest.approx((380020, 9980), rel=0.01)
    assert dots(10.0, 400000.0) == dots(10000.0, NEVER) == []


# ---------------------------------------------------------------- plan and claims


def test_every_name_is_one_of_the_lab() -> None:
    for point in POINTS:
        named = [model + point.suffix for model in torch_compile_rows.MODELS]
        assert any(point.variant in variants(operation) for operation in named), point
    assert {"ieee", "default"} == set(torch_compile_rows.MATHS) == set(FLOAT32)
    for name in torch_compile_rows.EXPERIMENTS:
        assert EXPERIMENTS[name].notebook == torch_compile.PAGE


def test_the_seed_preset_measures_what_the_claims_name() -> None:
    specs = [EXPERIMENTS[name] for name in torch_compile_rows.MATHS.values()]

    def name(work: Workload) -> str:
        return "/".join((work.operation, work.shape_text, work.dtype, work.math, work.direction))

    cells = {
        (name(group.workload), variant, clock)
        for spec in specs
        for group in spec.plan("seed", "cuda", ())
        for variant in group.variants
        for clock in group.clocks
    }
    probed = {(name(one.workload), one.variant, one.topic) for spec in specs for one in spec.probes("seed", "cuda", ())}
    asked = 0
    for claim in claims_of(torch_compile.PAGE):
        if claim.experiment not in torch_compile_rows.MATHS.values():
            continue  # a document's own program
        for workload in claim.workloads:
            for figure in (*claim.over, *claim.under):
                where = (figure.workload or workload, figure.variant)
                named = (*where, figure.topic or figure.clock or "graph")
                assert named in (probed if figure.topic else cells), claim.id
                asked += 1
            if claim.quantity == "ratio":
                for variant in (claim.variant, claim.baseline):
                    assert (workload, variant, claim.clock or "graph") in cells, claim.id
                    asked += 1
    assert asked > 30


# ---------------------------------------------------------------- the chapter


def _said(text: str) -> str:
    """A page without the digests of its records, which change anyway."""
    return re.sub(r"[0-9a-f]{12}", "", text)


def test_an_altered_record_changes_the_chapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read(tmp_path / "first", GPU, STARTS, defaults=DEFAULTS)
    before = played(torch_compile.PAGE, tmp_path / "first", monkeypatch)
    assert before.index(FLOAT32["default"]) < before.index(FLOAT32["ieee"])
    altered = [*DEFAULTS[:-1], DEFAULTS[-1] | {"medians_us": [200.0, 202.0]}]
    read(tmp_path / "second", GPU, STARTS, defaults=altered)
    assert _said(played(torch_compile.PAGE, tmp_path / "second", monkeypatch)) != _said(before)


# ---------------------------------------------------------------- the authors' own scripts


def scripted(eager: list[float], compiled: list[float], **figures: list[float]) -> Evidence:
    """Evidence of a machine, ``box``, where S000's script printed so many ms a call, and figures of others."""
    where = {"topic": "program", "shape": SEED, "operation": "conv_block", "math": "default", "origin": "author"}
    where |= {"variant": torch_compile_authors.OPERATOR, "case": "benchmark_torch_compile"}
    gains = [a / b for a, b in zip(eager, compiled, strict=True)]
    lines = [
        detail_line(**where, name="eager", unit="ms", values=eager),
        detail_line(**where, name="compiled", unit="ms", values=compiled),
        detail_line(**where, name="speedup", unit="1", values=gains),
    ]
    lines += [
        detail_line(**where | {"case": "benchmark_mixed_precision"}, name=name, unit="1", values=values)
        for name, values in figures.items()
    ]
    return together({torch_compile_authors.EXPERIMENT: lines})


@pytest.mark.parametrize(
    ("compiled", "word"),
    [
        ([2.0, 2.01, 1.99], "less"),
        ([1.0, 1.01, 0.99], "2 to 5"),
        ([0.5, 0.51, 0.505], "more"),
        ([1.6, 1.4, 1.5], "open"),
    ],
)
def test_the_authors_script_is_held_to_two_to_five_times(compiled: list[float], word: str) -> None:
    found = said(torch_compile_authors.compiled(scripted([3.0, 3.0, 3.0], compiled), "box"))
    assert word in found.title
    assert "3 ms eager" in found.text.replace("3.0 ms", "3 ms")


def test_what_the_scripts_print_is_a_line_a_figure_and_only_what_was_printed() -> None:
    lab = scripted([3.0, 3.0, 3.0], [2.0, 2.01, 1.99], **{"fp16 speedup": [1.4, 1.41, 1.39]})
    lines = torch_compile_authors.printed(lab, "box")
    assert len(lines) == 4
    assert [line["S000"] for line in lines if "×" in line["the script here"]] == ["2–5×", "2×"]
    assert torch_compile_authors.precision(lab, "box") is None
    other = together({"method": [cell_line()]})
    assert torch_compile_authors.printed(other, "box") == []
    assert torch_compile_authors.compiled(other, "box") is None


def test_mixed_precision_by_the_authors_script_names_its_dtypes() -> None:
    figures = {"fp16 speedup": [1.4, 1.41, 1.39], "bf16 speedup": [1.2, 1.21, 1.19]}
    found = said(torch_compile_authors.precision(scripted([3.0] * 3, [2.0, 2.01, 1.99], **figures), "box"))
    assert "does not double" in found.title
    assert found.figure == "1.40×"
    assert "In bfloat16 it is 1.20×" in found.text
    figures["fp16 speedup"] = [1.0, 2.0, 3.0]
    noisy = said(torch_compile_authors.precision(scripted([3.0] * 3, [2.0, 2.01, 1.99], **figures), "box"))
    assert noisy.open
