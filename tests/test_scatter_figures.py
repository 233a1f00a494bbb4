"""Figures of rows that set one number against another, and the diffraction image, from synthetic numbers."""

from __future__ import annotations

import base64
import math
from dataclasses import replace
from typing import Any

import numpy
import pytest
from drawn import content, points, shown
from tabled import tabled
from test_detail_figures import DRAW, PLACE, Rows, images, spots  # noqa: F401  (the fixture rows)

from hypatia_lab import formats
from hypatia_lab.figures import image as image_figure
from hypatia_lab.figures import language, over_size
from hypatia_lab.variants import label

pytestmark = pytest.mark.usefixtures("two_processes")


# ---------------------------------------------------------------- the image


def _decoded(trace: dict[str, Any]) -> numpy.ndarray:
    packed = trace["z"]
    flat = numpy.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"])
    return flat.reshape([int(n) for n in packed["shape"].split(",")])


def test_image_is_small_and_loses_no_spot() -> None:
    values = numpy.full((1000, 1100), 1e-3)
    values[700, 123] = 42.0
    figure, table = image_figure.image(values, "One spot", pixel=0.1, centre=(50.0, 55.0))
    seen, felt = content(figure)["data"]
    assert (seen["z"]["dtype"], felt["z"]["dtype"]) == ("u1", "f4")
    levels, intensities = _decoded(seen), _decoded(felt)
    assert max(levels.shape) <= image_figure.DRAWN
    assert max(intensities.shape) <= image_figure.FELT
    assert (levels.max(), intensities.max()) == (image_figure.LEVELS, 42.0)
    y, x = 700 // 3, 123 // 3
    assert numpy.argwhere(levels == levels.max()).tolist() == [[y, x]]
    assert seen["y0"] + y * seen["dy"] == pytest.approx(70.15 - 50, abs=0.15)
    assert seen["x0"] + x * seen["dx"] == pytest.approx(12.35 - 55, abs=0.15)
    assert [float(table.loc[0, name]) for name in ("mm slow", "mm fast")] == pytest.approx([20.05, -42.65], abs=0.06)
    assert len(figure.to_json()) < 400_000
    low, high = figure.plot.layout.yaxis.range
    assert low > high  # slow runs downwards, as on a detector


def test_image_colour_bar_is_in_intensity() -> None:
    values = numpy.geomspace(1e-4, 1.0, 10_000).reshape(100, 100)
    figure, _ = image_figure.image(values, "Grey wedge", **PLACE)
    bar = content(figure)["data"][0]["colorbar"]
    levels = _decoded(content(figure)["data"][0]).ravel()
    for place, text in zip(bar["tickvals"], bar["ticktext"], strict=True):
        nearest = numpy.abs(values.ravel() - float(text)).argmin()
        assert abs(float(levels[nearest]) - place) <= 1
    assert bar["ticktext"][-1] == "1.00"


def test_last_bits_of_the_image_change_nothing() -> None:
    values = spots()
    noise = 1 + 1e-13 * numpy.random.default_rng(1).standard_normal(values.shape)
    first, second = (image_figure.image(v, "Spots", **PLACE) for v in (values, values * noise))
    assert first[0].to_json() == second[0].to_json()
    assert first[1].to_string() == second[1].to_string()
    assert list(first[1]["spot"]) == list(range(1, 11))


@tabled("scatter_figures", "no_image")
def test_image_refuses_what_cannot_be_drawn(values: Any, said: str) -> None:
    with pytest.raises(language.FigureError, match=f"image: .*{said}"):
        image_figure.image(numpy.array(values, dtype=float), "Nothing", **PLACE)


# ---------------------------------------------------------------- results rows


def test_precision_draws_error_over_peak_against_time(rows: Rows) -> None:
    figure, table = DRAW["precision"](rows)
    asked = {(r.variant, r.dtype): r for r in rows if r.shape == "1024x1024"}
    assert len(shown(figure)) == 2 * len(table) == 2 * len(asked)
    assert [block.heading for block in figure.blocks] == ["float64/ieee", "float32/ieee"]
    for block, dtype in zip(figure.blocks, ("float64", "float32"), strict=True):
        time, error = (one.triple[0] for one in block.cells if one.key == "cuda")
        assert (time, error) == (asked["cuda", dtype].median_us, asked["cuda", dtype].max_error / 150)


def test_precision_falls_back_to_the_relative_error_and_draws_zero(rows: Rows) -> None:
    bare: Rows = [replace(r, peak=math.nan) for r in rows if r.shape == "1024x1024" and r.variant == "cuda"]
    bare[0] = replace(bare[0], error=0.0)
    figure, table = over_size.precision(bare, "Without a peak")
    assert all(word in figure.body for word in ("‖out − ref‖/‖ref‖", "<em>exact</em>"))
    assert len(shown(figure)) == 3, "two times and one error"
    assert "0" in set(table["relative error"])
    with pytest.raises(language.FigureError, match="none of 2 rows has an error"):
        over_size.precision([replace(r, error=math.nan) for r in bare], "No error")


def test_over_sizes_draws_a_line_a_form_and_the_limit(rows: Rows) -> None:
    asked = [r for r in rows if r.dtype == "float32" and r.clock == "graph"]
    figure, _ = over_size.over_sizes(asked, "Sizes")
    (limit,) = (t for t in figure.plot.data if t.mode == "lines")
    told = {math.prod(map(int, r.shape.split("x"))): formats.significant(r.limit_us) for r in asked}
    assert dict(zip(limit.x, limit.y, strict=True)) == told
    sizes = [f"{side}×{side}" for side in (256, 512, 1024, 2048, 4096)]
    assert list(figure.plot.layout.xaxis.ticktext) == sizes
    assert {t["name"]: len(t["x"]) for t in points(figure)} == {label("diffraction", r.variant): 5 for r in asked}
    last = [t["y"][-1] for t in points(figure)]
    assert last == sorted(last, reverse=True), "the key is in the order of the lines"
    assert [name for _, name in figure.key] == [t["name"] for t in content(figure)["data"]]
    gap = "no marker: no time measured"
    assert gap not in figure.under
    bare, _ = over_size.over_sizes(asked, "No limit", limit=False)
    assert not [t for t in bare.plot.data if t.mode == "lines"]
    fewer = [r for r in asked if (r.variant, r.shape) != ("cuda", "1024x1024")]
    figure, _ = over_size.over_sizes(fewer, "A gap", names={"cuda": "Ours"})
    assert gap in figure.under
    assert {t["name"]: len(t["x"]) for t in points(figure)}["Ours"] == 4
    with pytest.raises(language.FigureError, match="one operation at a time, the rows hold diffraction, matmul"):
        over_size.over_sizes([*asked, replace(asked[0], operation="matmul")], "Two operations")


def test_over_sizes_tells_directions_apart(rows: Rows) -> None:
    asked: Rows = [r for r in rows if r.variant == "cuda" and r.dtype == "float32"]
    both = asked + [replace(r, direction="forward_backward", limit_us=3 * r.limit_us) for r in asked]
    figure, _ = over_size.over_sizes(both, "Directions")
    assert sum("forward and backward" in t.name for t in figure.plot.data) == 2
    assert sum(t.mode == "lines" for t in figure.plot.data) == 2
