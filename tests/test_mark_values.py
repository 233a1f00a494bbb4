"""Values beside the marks of a plot: printed where marks are few, and where they hide nothing."""

from __future__ import annotations

from typing import Any

from hypatia_lab.figures import plots
from hypatia_lab.figures.axes import Axis, log_axis
from hypatia_lab.figures.language import BLUE, Style
from hypatia_lab.figures.plots import points_trace

LAYOUT = {"xaxis": Axis(0, 100, "size").plotly(), "yaxis": log_axis([1, 1000], "time").plotly()}


def drawn(places: list[tuple[float, float]], **more: Any) -> dict[str, Any]:
    """A trace with marks at ``places`` after its values have been placed."""
    triples, other = [(y, y, y) for _, y in places], [x for x, _ in places]
    trace = points_trace(Style(BLUE, "circle", 0), triples, other, [""] * len(places), along="y", said="{:g}".format)
    trace |= more
    plots.place_values([trace], LAYOUT)
    return trace


def test_few_marks_have_their_values_beside_them() -> None:
    trace = drawn([(20, 2), (50, 50), (80, 500)])
    assert trace["text"] == ["2", "50", "500"]
    assert "text" in trace["mode"]


def test_many_marks_have_none() -> None:
    trace = drawn([(3 + 4 * n, 2 + n) for n in range(plots.FEW)])
    assert "text" not in trace
    assert "text" not in trace["mode"]


def test_a_value_that_finds_no_room_is_left_out() -> None:
    trace = drawn([(50 + n / 10, 50.0) for n in range(12)])
    assert "" in trace["text"]
    assert any(trace["text"])


def test_a_value_stands_nearer_to_its_own_mark_than_to_any_other() -> None:
    upper, lower = drawn([(50, 50), (50, 40)])["textposition"]
    assert "top" in upper
    assert "bottom" in lower


def test_a_value_stays_inside_of_the_plot() -> None:
    left, right = drawn([(0.5, 30), (99.5, 30)])["textposition"]
    assert "right" in left
    assert "left" in right


def test_ticks_are_round_and_few() -> None:
    assert log_axis([1.3, 17], "ratio").ticks() == [2, 5, 10]
    assert log_axis([0.5, 3e6], "ratio").ticks() == [1, 100, 1e4, 1e6]
    assert Axis(0.93, 1.21, "ratio").ticks() == [1.0, 1.1, 1.2]
    for low, high in ((1, 4), (3e-3, 0.2), (7, 8e9)):
        ticks = log_axis([low, high], "ratio").ticks()
        assert 1 <= len(ticks) <= 6
        assert all(f"{tick:e}"[0] in "125" and low / 1.2 <= tick <= high * 1.2 for tick in ticks)
