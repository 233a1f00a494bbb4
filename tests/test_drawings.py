"""The drawings: well-formed, readable on any ground and by ear, and true to the kernels that they draw."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations, product

import pytest

from hypatia_lab import drawings
from hypatia_lab.drawings import fusion, geometry, memory, tensor_cores
from hypatia_lab.drawings.bars import LEFT, ROOM, Bar, bars
from hypatia_lab.drawings.canvas import WIDTH
from hypatia_lab.drawings.constants import constants
from hypatia_lab.kernels.loader import SOURCES

SVG = "{http://www.w3.org/2000/svg}"
GROUNDS = ("#ffffff", "#121212")
LETTER = 0.6
"""Width of a letter in units of its size: more than any system font takes for a line of ordinary text."""
everyone = pytest.mark.parametrize("name", drawings.DRAWINGS)


def parsed(name: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawings.svg(name))


def luminance(colour: str) -> float:
    """Relative luminance of "#rrggbb", as WCAG 2 defines it."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def boxes(root: ElementTree.Element) -> list[tuple[str, float, float, float, float]]:
    """Text and left, top, right and bottom of every label."""
    found = []
    for label in root.iter(f"{SVG}text"):
        text, size = label.text or "", float(label.attrib["font-size"])
        wide = LETTER * size * len(text)
        left = float(label.attrib["x"]) - wide * {"start": 0, "middle": 0.5, "end": 1}[label.attrib["text-anchor"]]
        line = float(label.attrib["y"])
        found.append((text, left, line - 0.75 * size, left + wide, line + 0.2 * size))
    return found


@everyone
def test_a_drawing_says_in_words_what_it_shows(name):
    root = parsed(name)
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert description is not None
    assert len(description.text or "") > len(title.text or "") > 0
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-labelledby"].split() == [title.attrib["id"], description.attrib["id"]]


@everyone
def test_a_drawing_is_the_same_every_time_and_needs_nothing_else(name):
    text = drawings.svg(name)
    assert text == drawings.svg(name)
    assert not re.search(r"<script|@import|href|url\((?!#)", text)
    ids = set(re.findall(r' id="([^"]+)"', text))
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= ids


def test_several_drawings_can_stand_on_one_page():
    ids = [found for name in drawings.DRAWINGS for found in re.findall(r' id="([^"]+)"', drawings.svg(name))]
    assert len(ids) == len(set(ids))
    assert all(any(found.startswith(f"{name}-") for name in drawings.DRAWINGS) for found in ids)


@everyone
def test_text_lies_inside_is_large_enough_and_meets_no_other(name):
    root = parsed(name)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    placed = boxes(root)
    for text, left, top, right, bottom in placed:
        assert 0 <= left < right <= width, text
        assert 0 <= top < bottom <= height, text
    for (text, left, top, right, bottom), (other, left2, top2, right2, bottom2) in combinations(placed, 2):
        apart = right <= left2 or right2 <= left or bottom <= top2 or bottom2 <= top
        assert apart, f"{text!r} meets {other!r}"
    for label in root.iter(f"{SVG}text"):
        assert float(label.attrib["font-size"]) * 720 / width >= 12
        assert label.attrib["fill"] == "currentColor"


@everyone
def test_shapes_lie_inside(name):
    root = parsed(name)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for shape in [*root.iter(f"{SVG}rect"), *root.iter(f"{SVG}polyline"), *root.iter(f"{SVG}polygon")]:
        if points := shape.get("points"):
            corners = [tuple(map(float, point.split(","))) for point in points.split()]
        else:
            x, y, wide, high = (float(shape.attrib[key]) for key in ("x", "y", "width", "height"))
            assert min(wide, high) > 0, shape.attrib
            corners = [(x, y), (x + wide, y + high)]
        assert all(0 <= x <= width and 0 <= y <= height for x, y in corners), shape.attrib


@everyone
def test_colours_show_on_white_and_on_black(name):
    colours = {
        value for shape in parsed(name).iter() for key, value in shape.attrib.items() if key in ("stroke", "fill")
    }
    for colour in {c for c in colours if not c.startswith("url(")} - {"currentColor", "none"}:
        for ground in GROUNDS:
            dark, light = sorted((luminance(colour), luminance(ground)))
            assert (light + 0.05) / (dark + 0.05) >= 3, f"{colour} on {ground}"


def test_show_gives_a_figure_and_its_words(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    drawings.show("tiles")
    (bundle,) = shown
    figure = ElementTree.fromstring(bundle["text/html"])
    assert (figure.tag, figure.attrib["class"]) == ("figure", "lab-drawing")
    assert figure.find("figcaption") is not None
    assert str(parsed("tiles").findtext(f"{SVG}desc")) in bundle["text/plain"]


def test_words_are_escaped():
    drawing = bars("escaped", "one & two", [Bar("a < b", 1.0, 1.0, 1.0, "1 & 1")]).svg()
    assert "a &lt; b" in drawing
    assert "one &amp; two" in drawing
    assert "<" not in re.sub(r"</?[a-z]+[^<>]*>", "", drawing)


def test_an_unknown_drawing_is_refused_by_name():
    with pytest.raises(ValueError, match="did you mean 'tiles'"):
        drawings.svg("tile")


@pytest.mark.parametrize(("matrix", "of_ptx"), [("A", 8), ("B", 4), ("C", 4)])
def test_fragments_hold_every_element_once(matrix, of_ptx):
    rows, columns, held, element = tensor_cores.FRAGMENTS[matrix]
    assert held == of_ptx
    assert sorted(element(lane, i) for lane in range(32) for i in range(held)) == [
        *product(range(rows), range(columns))
    ]


def test_fragments_lie_as_ptx_says():
    """Spot checks against the figures of the PTX ISA (mma.m16n8k16): the row and column of a lane's register."""
    a, b = tensor_cores.a_element, tensor_cores.b_element
    assert [a(1, 1), a(4, 2), a(31, 7), a(0, 4)] == [(0, 3), (9, 0), (15, 15), (0, 8)]
    assert [b(5, 0), b(31, 3)] == [(2, 1), (15, 7)]
    # What finish_rows of the kernel says: sum 2 half + n is at row lane / 4 + 8 half, column 2 (lane % 4) + n.
    for lane, half, n in product(range(32), range(2), range(2)):
        assert tensor_cores.c_element(lane, 2 * half + n) == (lane // 4 + 8 * half, 2 * (lane % 4) + n)


def test_the_swizzle_gives_eight_rows_all_banks_and_loses_nothing():
    def banks(place, pack: int) -> set[int]:
        bytes_ = [128 * row + 16 * place(row, pack) + byte for row in range(8) for byte in range(16)]
        return {byte // memory.BANK % memory.BANKS for byte in bytes_}

    for pack in range(8):
        assert len(banks(memory.swizzled, pack)) == memory.BANKS
        assert len(banks(memory.plainly, pack)) == 16 // memory.BANK
    assert all({memory.swizzled(row, pack) for pack in range(8)} == set(range(8)) for row in range(8))
    assert "(pack ^ row % 8) * 16" in (SOURCES / "ladder/step_8_mma.cu").read_text(encoding="utf-8")


def test_what_a_split_leaves_out_is_as_small_as_said():
    """Of any two numbers rounded to ``bits``, the product of what was left over is within 2^(−2·bits) of the whole."""
    description = parsed("split_product").findtext(f"{SVG}desc") or ""
    superscript = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    for bits in tensor_cores.TERMS.values():
        assert f"2{str(-2 * bits).translate(superscript)}" in description
        worst = 1 + 2.0**-bits  # half a unit in the last place above a power of two
        left_over = abs(worst - round(worst * 2 ** (bits - 1)) / 2 ** (bits - 1))
        assert 0.99 * 2.0**-bits < left_over / worst <= 2.0**-bits


def test_the_reflection_lies_on_the_circle_and_on_the_lattice():
    ewald = geometry.Ewald()
    point = ewald.node(*ewald.index)
    assert math.dist(ewald.centre, ewald.origin) == pytest.approx(ewald.radius)
    assert math.dist(ewald.centre, point) == pytest.approx(ewald.radius)
    # q = (d − i)/λ, i along x: exactly the vector from the lattice's origin to the point.
    dx, dy = ewald.direction
    q = ewald.radius * (dx - 1), ewald.radius * dy
    assert (point[0] - ewald.origin[0], point[1] - ewald.origin[1]) == pytest.approx(q)
    one, other, both = (math.dist(ewald.origin, ewald.node(*index)) for index in ((1, 0), (0, 1), ewald.index))
    assert (other, both) == pytest.approx((one, math.hypot(*ewald.index) * one))


def test_sizes_and_rules_are_those_of_the_code():
    from hypatia_lab.egraph.rules import GOALS
    from hypatia_lab.kernels.conv_block.conv_block_whole import CHANNELS
    from hypatia_lab.kernels.mlp import mlp_cuda
    from hypatia_lab.operations.linear_relu import ladder

    steps = ladder.STEPS
    assert steps["step_shared"].launch.rows == constants("ladder/step_2_shared.cu")["SHARED_TILE"]  # pyright: ignore[reportFunctionMemberAccess]
    assert steps["step_registers_2d"].launch.rows == constants("ladder/ladder.cuh")["TILE"]  # pyright: ignore[reportFunctionMemberAccess]
    assert constants("mlp/mlp.cu")["TILE_ROWS"] == mlp_cuda.TILE_ROWS
    assert constants("conv_block/conv_block_whole.cu")["CHANNELS"] == CHANNELS
    assert {rule.name for rules in GOALS.values() for rule in rules} >= set(fusion.RULES)


def test_bars_are_as_long_as_their_numbers_and_reach_no_edge():
    lanes = [Bar("a", 10.0, 8.0, 16.0, "10 ms"), Bar("b", 40.0, 36.0, 50.0, "40 ms", strong=True)]
    text = bars("some", "Some numbers", lanes, mark=(20.0, "claimed")).svg()
    widths = [float(found) for found in re.findall(r'<rect [^>]*? width="([\d.]+)"', text)]
    assert widths[1] == pytest.approx(4 * widths[0], rel=1e-3)
    assert max(widths) < WIDTH - ROOM
    # Of each bar its interval and a cap at either end, then the mark across both.
    ends = [
        [float(x) - LEFT for x in re.findall(r"([\d.]+),", found)] for found in re.findall(r'points="([^"]+)"', text)
    ]
    assert [len(points) for points in ends] == 8 * [2]
    unit = widths[0] / 10
    assert [*ends[0], *ends[3]] == pytest.approx([unit * n for n in (8, 16, 36, 50)], rel=1e-2)
    assert max(map(max, ends)) + LEFT == pytest.approx(WIDTH - ROOM, abs=1)
    assert "10 ms" in text
    assert "claimed" in text
    with pytest.raises(ValueError, match="nothing"):
        bars("none", "None", [])
