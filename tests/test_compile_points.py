"""S000's strategy as page 06 reads it: its points beside eager, and the calls until a start is won back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from synthetic import Lines, detail_line, evidence
from synthetic import cells as timed

from hypatia_lab.figures.break_even import NEVER, Curve, break_even, calls_text
from hypatia_lab.figures.language import FigureError
from hypatia_lab.intervals import Interval
from hypatia_lab.pages import compile_points
from hypatia_lab.pages.compile_points import STEP, beside, curves, firsts, leading, named

pytestmark = pytest.mark.usefixtures("two_processes")

SEED, SMALL = [5, 64, 128, 128], [2, 16, 64, 64]
NONE = Interval(math.nan, math.nan, math.nan, 0)


def cells(operation: str, times: Mapping[str, float], **changes: Any) -> Lines:
    """Timed cells of two processes 1% apart, of which a ratio is exact."""
    return timed(times, operation, **{"shape": SEED, "max_error": 1e-3, "peak": 5.0} | changes)


def start(operation: str, variant: str, case: str, ms: float, **changes: Any) -> Lines:
    """A fresh process that builds for 1 ms, and whose first call takes ``ms``, 2% apart in two processes."""
    own = {"operation": operation, "shape": SEED, "variant": variant, "topic": "start", "case": case, "unit": "ms"}
    values = {"set-up": 1.0, "build": 1.0, "call 1": ms, "call 2": 1.0}
    return [detail_line(name=name, values=[v, 1.02 * v], **own | changes) for name, v in values.items()]


OWN = [
    *cells("conv_block", {"eager": 400.0, "compile": 250.0}),
    *cells("conv_block", {"eager": 400.0, "compile": 250.0}, clock="wall"),
    *cells("conv_block", {"eager": 100.0, "compile": 70.0}, shape=[1, 64, 128, 128]),
    *cells("unet", {"eager": 2000.0, "compile": 900.0}, clock="wall"),
    *cells("unet", {"eager": 6000.0, "compile": 5000.0}, direction=STEP, clock="wall"),
]
DEFAULTS = [
    *cells("conv_block", {"eager": 120.0, "compile": 90.0}, math="default"),
    *cells("conv_block", {"eager": 40.0, "compile": 20.0}, math="default", shape=[1, 64, 128, 128]),
    *cells("conv_block", {"eager": 408.0, "compile": 3060.0}),
    *cells("conv_block_autocast", {"eager": 100.0}, dtype="bfloat16"),
    *cells("unet", {"eager": 480.0, "compile": 400.0}, math="default", clock="wall"),
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
MACHINE = evidence({"torch_compile": []}).records[0].machine


def test_all_is_held_against_eager_at_the_size_that_has_all_points() -> None:
    data = evidence({"torch_compile": OWN, "library_defaults": DEFAULTS})
    found = firsts(data, MACHINE)
    assert [(named(row), row.math, row.at) for row in found] == [
        ("block", "default", "5×64×128×128"),
        ("block", "ieee", "5×64×128×128"),
    ]
    assert leading(data, MACHINE) == found[:1]
    gains = {point.what: found[0].over(row).value for point, row in beside(data, found[0])}
    assert gains["torch.compile"] == pytest.approx(120 / 90)
    assert gains["eager in IEEE float32"] == pytest.approx(120 / 408)
    assert gains["torch.compile, IEEE float32"] == pytest.approx(120 / 3060)
    assert gains["bfloat16 by autocast"] == pytest.approx(1.2)
    assert [point.what for point, _ in beside(data, found[1])] == ["torch.compile"]


def test_a_cpu_has_one_arithmetic() -> None:
    own = cells("unet", {"eager": 100.0, "compile": 90.0}, clock="hot", shape=SMALL)
    data = evidence({"torch_compile": own, "library_defaults": DEFAULTS}, "cpu")
    assert [(row.operation, row.math) for row in firsts(data, MACHINE)] == [("unet", "ieee")]


def test_rows_of_a_figure_are_held_against_eager_under_its_headings() -> None:
    data = evidence({"library_defaults": DEFAULTS})
    (first,) = leading(data, MACHINE)
    pairs = [(first, row, "heading", point.what) for point, row in beside(data, first)]
    drawn = compile_points.drawn(pairs)
    assert {(row.operation, row.baseline, row.math) for row in drawn} == {("heading", "eager", "default")}
    assert [row.variant for row in drawn] == [name for *_, name in pairs]
    assert compile_points.drawn([]) == []


# ---------------------------------------------------------------- break-even


def test_calls_to_win_back_are_cost_over_gain_in_each_direction() -> None:
    data = evidence({"torch_compile": OWN, "compile_time": STARTS})
    block, net, step = (curves(data, row) for row in firsts(data, MACHINE, "wall"))
    eager, fresh, stored = block
    assert [curve.name for curve in block] == ["eager", "compile", "compile, stored"]
    assert eager.paid.value == pytest.approx(101e3, rel=0.02)
    assert fresh.calls.value == pytest.approx(8900e3 / 150, rel=0.02)  # 9001 ms less 101, at 150 µs a call
    assert fresh.calls.low < fresh.calls.value < fresh.calls.high
    assert stored.calls.value < fresh.calls.value
    assert [own[1].paid.value for own in (net, step)] == pytest.approx([20e6, 40e6], rel=0.02)
    assert curves(data, firsts(data, MACHINE)[0]) == []  # by the clock that a caller waits by alone


def test_what_is_paid_once_in_the_default_was_measured_in_ieee() -> None:
    data = evidence({"library_defaults": DEFAULTS, "compile_time": STARTS})
    (first,) = leading(data, MACHINE, "wall")
    eager, compiled = curves(data, first)
    assert (eager.variant, compiled.variant) == ("eager", "compile")
    assert compiled.calls.value == pytest.approx((20001e3 - 151e3) / 80, rel=0.02)


@pytest.mark.parametrize(
    ("compiled", "text"),
    [([400.0, 404.0], "never"), ([390.0, 420.0], "or more, if ever"), ([390.0, 400.0], "or more, if ever")],
)
def test_what_saves_nothing_is_never_won_back(compiled: list[float], text: str) -> None:
    rows = cells("conv_block", {"eager": 400.0, "compile": 400.0}, clock="wall")
    rows[-1]["medians_us"] = compiled
    data = evidence({"torch_compile": rows, "compile_time": STARTS})
    (first,) = leading(data, MACHINE, "wall")
    assert text in calls_text(curves(data, first)[1].calls)


def test_counts_of_calls_are_read_to_two_digits() -> None:
    assert calls_text(Interval(41234.0, 30499.0, 72001.0, 2)) == "41,000 [30,000, 72,000]"
    assert calls_text(Interval(0.2, 0.0, 3.0, 2)) == "1 [1, 3]"
    assert calls_text(Interval(NEVER, NEVER, NEVER, 2)) == "never"
    assert calls_text(NONE) == "–"


def exact(value: float) -> Interval:
    return Interval(value, value, value, 3)


FIRST = Curve("eager", "eager", "peer", exact(1e3), exact(100.0), NONE)
SECOND = Curve("compile", "compile", "peer", exact(1e6), exact(50.0), Interval(19980.0, 19000.0, 21000.0, 2))


def test_the_curves_cross_where_they_say() -> None:
    never = Curve("script", "script", "peer", exact(2e3), exact(101.0), exact(NEVER))
    figure, table = break_even([FIRST, SECOND, never], "Title", ["box"])
    (dot,) = (trace for trace in figure.plot.data if "markers" in trace.mode)
    assert dot.x[0] == pytest.approx(19980, rel=0.01)
    assert dot.y[0] == pytest.approx((1e3 + 19980 * 100) / 1e6, rel=0.01)
    lines = [(trace.name, trace.xaxis) for trace in figure.plot.data if trace.mode == "lines"]
    assert lines == [("eager", None), ("compile", None), ("eager", "x2"), ("script", "x2")]
    assert "20,000 [19,000, 21,000]" in figure.alt
    assert list(table["variant"]) == ["eager", "compile", "script"]
    assert table.iloc[2, -1] == "never"
    with pytest.raises(FigureError, match="at least two curves"):
        break_even([FIRST], "Title", [])


def test_a_marker_has_its_interval_and_stands_only_where_the_table_has_a_number() -> None:
    def dots(low: float, high: float) -> list[Any]:
        own = replace(SECOND, calls=Interval(19980.0, low, high, 3))
        figure, _ = break_even([FIRST, own], "Title", ["box"])
        return [trace for trace in figure.plot.data if "markers" in trace.mode]

    (dot,) = dots(10000.0, 400000.0)
    assert (dot.error_x.array[0], dot.error_x.arrayminus[0]) == pytest.approx((380020, 9980), rel=0.01)
    assert dots(10.0, 400000.0) == dots(10000.0, NEVER) == []
