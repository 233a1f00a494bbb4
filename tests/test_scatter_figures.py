"""Figures of rows that set one number against another, and the diffraction image, from synthetic numbers."""

from __future__ import annotations

import base64
import math
from dataclasses import replace
from typing import Any

import numpy
import pytest
from test_detail_figures import DRAW, PLACE, SPEED, Rows, content, notes, points, rows_of, spots

from hypatia_lab import formats
from hypatia_lab.figures import image as image_figure
from hypatia_lab.figures import language, over_size

pytestmark = pytest.mark.usefixtures("two_processes")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return rows_of(tmp_path_factory.mktemp("records"))


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
    assert levels.max() == image_figure.LEVELS
    assert numpy.argwhere(levels == levels.max()).tolist() == [[700 // 3, 123 // 3]]
    assert intensities.max() == 42.0
    y, x = 700 // 3, 123 // 3
    assert seen["y0"] + y * seen["dy"] == pytest.approx(70.15 - 50, abs=0.15)
    assert seen["x0"] + x * seen["dx"] == pytest.approx(12.35 - 55, abs=0.15)
    assert [float(table.loc[0, name]) for name in ("mm slow", "mm fast")] == pytest.approx([20.05, -42.65], abs=0.06)
    assert len(figure.to_json()) < 400_000
    assert figure.layout.yaxis.scaleanchor == "x"
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1]  # slow runs downwards, as on a detector


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


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (numpy.zeros((4, 4)), "every pixel is dark"),
        (numpy.full((4, 4), math.nan), "NaN"),
        (numpy.full((4, 4), -1.0), "negative"),
        (numpy.zeros(4), r"shape \(4,\)"),
        (numpy.zeros((0, 4)), r"shape \(0, 4\)"),
    ],
)
def test_image_refuses_what_cannot_be_drawn(values: numpy.ndarray, said: str) -> None:
    with pytest.raises(language.FigureError, match=f"image: .*{said}"):
        image_figure.image(values, "Nothing", **PLACE)


# ---------------------------------------------------------------- results rows


def test_precision_draws_error_over_peak_against_time(rows: Rows) -> None:
    figure, table = DRAW["precision"](rows)
    asked = {(r.variant, r.dtype): r for r in rows if r.shape == "1024x1024"}
    assert sum(len(t["x"]) for t in points(figure)) == 2 * len(table) == 2 * len(asked)
    times, errors = (
        [t["x"][0] for t in points(figure) if t["name"] == "cuda" and t.get("xaxis", "x") in axes]
        for axes in (("x", "x3"), ("x2", "x4"))
    )
    wanted = [asked["cuda", dtype] for dtype in ("float64", "float32")]
    assert times == [formats.significant(r.median_us) for r in wanted]
    assert errors == [formats.significant(r.max_error / 150) for r in wanted]
    assert {"<b>float64/ieee</b>", "<b>float32/ieee</b>"} <= set(notes(figure))


def test_precision_falls_back_to_the_relative_error_and_draws_zero(rows: Rows) -> None:
    bare: Rows = [replace(r, peak=math.nan) for r in rows if r.shape == "1024x1024" and r.variant == "cuda"]
    bare[0] = replace(bare[0], error=0.0)
    figure, table = over_size.precision(bare, "Without a peak")
    words = " ".join(notes(figure))
    assert "‖out − ref‖/‖ref‖" in words
    assert "<i>exact</i>" in words
    assert sum(len(t["x"]) for t in points(figure)) == 3, "two times and one error"
    reference, _ = over_size.precision([replace(r, baseline="cuda") for r in bare], "Against itself")
    assert "<i>0 (the reference)</i>" in notes(reference)
    assert "0" in set(table["relative error"])
    with pytest.raises(language.FigureError, match="none of 2 rows has an error"):
        over_size.precision([replace(r, error=math.nan) for r in bare], "No error")


def test_precision_names_rows_by_their_dtype_where_each_has_one(rows: Rows) -> None:
    alone = [r for r in rows if r.shape == "1024x1024" and r.variant == "cuda"]
    figure, _ = over_size.precision(alone, "One form")
    assert list(figure.layout.yaxis.ticktext) == ["float64/ieee", "float32/ieee"]
    assert not [note for note in notes(figure) if note.startswith("<b>float")]
    mixed, _ = over_size.precision([alone[0], replace(alone[1], variant="triton")], "Two forms")
    assert all(", " in name for name in mixed.layout.yaxis.ticktext)


def test_over_sizes_draws_a_panel_a_size_on_one_axis_and_the_limit(rows: Rows) -> None:
    asked = [r for r in rows if r.dtype == "float32"]
    figure, _ = DRAW["over_sizes"](rows)
    limits = {t.x[0] for t in figure.data if t.mode == "lines"}
    assert limits == {formats.significant(r.limit_us) for r in asked}
    sizes = [f"{side}×{side}" for side in (256, 512, 1024, 2048, 4096)]
    assert list(dict.fromkeys(note for note in notes(figure) if note in sizes)) == sizes
    assert {t["name"].split(" ")[0] for t in points(figure)} == set(SPEED)
    drawn = {t["name"]: sum(t["name"] == other["name"] for other in points(figure)) for t in points(figure)}
    assert set(drawn.values()) == {len(sizes)}
    axes = [axis for name, axis in content(figure)["layout"].items() if name.startswith("xaxis")]
    assert len({tuple(axis["range"]) for axis in axes}) == 1
    bare, _ = over_size.over_sizes(asked, "No limit", limit=False)
    assert not [t for t in bare.data if t.mode == "lines"]
    with pytest.raises(language.FigureError, match="one operation at a time, the rows hold diffraction, matmul"):
        over_size.over_sizes([*asked, replace(asked[0], operation="matmul")], "Two operations")


def test_over_sizes_tells_directions_apart(rows: Rows) -> None:
    asked: Rows = [r for r in rows if r.variant == "cuda" and r.dtype == "float32"]
    both = asked + [replace(r, direction="forward_backward", limit_us=3 * r.limit_us) for r in asked]
    figure, _ = over_size.over_sizes(both, "Directions")
    said = " ".join(text for axis in (figure.layout.yaxis,) for text in axis.ticktext) + " ".join(notes(figure))
    assert "forward and backward" in said
    assert sum(t.mode == "lines" for t in figure.data) == 2 * len(asked)


def test_nothing_to_draw_of_rows_is_an_error(rows: Rows) -> None:
    for draw in (over_size.precision, over_size.over_sizes):
        with pytest.raises(language.FigureError, match="no rows to draw"):
            draw([], "Nothing")
        with pytest.raises(language.FigureError, match="none of 1 rows has a time"):
            draw([replace(rows[0], median_us=math.nan, status="timeout")], "Nothing")
