"""What a figure shows, read back from what it displays: rows of marks from their HTML, points from plotly's traces."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from hypatia_lab.figures import Figure, mark_rows
from hypatia_lab.figures.axes import Axis
from hypatia_lab.figures.mark_rows import Cell

Drawn = tuple[Figure, Any]
Number = float | None


@dataclass(frozen=True)
class Mark:
    """A mark of a page: its row, panel and key, its numbers, and the places (%) of what is drawn, by kind."""

    row: str
    panel: str
    key: str
    numbers: dict[str, float]
    text: str
    places: dict[str, list[float]]


def cells(figure: Figure) -> list[Cell]:
    return [cell for block in figure.blocks for cell in block.cells]


def places(figure: Figure) -> list[tuple[Cell, Axis]]:
    """Each cell with its axis."""
    found = []
    for block in figure.blocks:
        axes = block.axes()
        found += [(cell, axes[cell.panel]) for cell in block.cells]
    return found


def shown(figure: Figure) -> list[Mark]:
    """The marks of a figure of rows, in the order of its HTML."""
    found = []
    for table in ElementTree.fromstring(f"<div>{figure.body}</div>").iter("table"):
        body = table.find("tbody")
        for line in [] if body is None else body:
            name, *own = line
            for cell in own:
                if (drawing := cell.find("svg")) is None:
                    continue
                numbers = {key.removeprefix("data-"): float(cell.attrib[key]) for key in cell.attrib if _numeric(key)}
                text = cell.findtext("small", "").replace("\N{NO-BREAK SPACE}", " ")
                label, key = cell.get("data-label", ""), cell.get("data-key", "")
                found.append(Mark("".join(name.itertext()), label, key, numbers, text, _places(drawing)))
    return found


def _numeric(name: str) -> bool:
    return name in ("data-value", "data-low", "data-high")


def _places(drawing: Any) -> dict[str, list[float]]:
    """Kind → places along the axis: ``marker``, the two ``ends`` of an interval, ``limit``, ``lines``, ``bars``."""
    found: dict[str, list[float]] = {"marker": [], "ends": [], "limit": [], "lines": [], "bars": [], "band": []}
    for part in drawing:
        at = {key: float(text.rstrip("%")) for key, text in part.attrib.items() if text.endswith("%")}
        if part.tag == "svg":
            found["marker"].append(at["x"])
        elif part.tag == "g":
            bar = part.find("rect").attrib
            left, wide = (float(bar[key].rstrip("%")) for key in ("x", "width"))
            found["bars"] += [left, left + wide]
        elif part.tag == "rect":
            found["band"] += [at["x"], at["x"] + at["width"]]
        elif part.get("stroke") != "#808080" and at["x1"] != at["x2"]:
            found["ends"] += [at["x1"], at["x2"]]
        elif part.get("stroke") == "#808080" and "y2" in at:
            found["limit" if part.get("stroke-width") == "3" else "lines"].append(at["x1"])
    return found


def content(figure: Figure) -> dict[str, Any]:
    """The data and layout of a figure that plotly draws."""
    return json.loads(figure.plot.to_json())


def points(figure: Figure) -> list[dict[str, Any]]:
    """The traces of measured points, with their intervals."""
    return [t for t in content(figure)["data"] if "error_x" in t or "error_y" in t]


def is_language(figure: Figure, table: Any) -> None:
    """Assert what holds of every figure: words, intervals, rounding, grounds; marks stand where their numbers say."""
    assert figure.title
    assert figure.alt.startswith(figure.title)
    assert figure.alt.endswith(".")
    assert any(letter.isdigit() for letter in figure.alt)
    assert len(table) > 0
    for text in (figure.alt, table.to_string(), figure.head, *(f"{c.said} {c.text}" for c in cells(figure))):
        assert "nan" not in text
    assert figure.to_json().count("(log scale)") >= any(axis.log for _, axis in places(figure))
    if figure.plot is None:
        _rows(figure)
    else:
        _plot(figure)


def _rows(figure: Figure) -> None:
    drawn = [(cell, axis) for cell, axis in places(figure) if cell.drawn]
    seen = shown(figure)
    assert len(seen) == len(drawn)
    wanted = sorted(_told(cell, axis) for cell, axis in drawn)
    assert sorted((m.row, m.panel, m.key, str(m.numbers), str(_kept(m))) for m in seen) == wanted
    for mark in seen:
        ends, marker = mark.places["ends"], mark.places["marker"]
        assert ("low" in mark.numbers and mark.numbers["low"] < mark.numbers["high"]) == bool(ends)
        assert all(-0.1 <= place <= 100.1 for place in (*ends, *marker, *mark.places["bars"], *mark.places["limit"]))


def _kept(mark: Mark) -> dict[str, list[float]]:
    # The marker lies over the triangles of an interval that was cut.
    return {"ends": mark.places["ends"], "limit": mark.places["limit"], "marker": mark.places["marker"][-1:]}


def _told(cell: Cell, axis: Axis) -> tuple[str, str, str, str, str]:
    named = zip(("value", "low", "high"), cell.triple, strict=True)
    numbers = {name: float(f"{mark_rows.significant(v):g}") for name, v in named if not math.isnan(v)}
    value, low, high = cell.triple
    ends = [min(100.0, max(0.0, axis.place(end) if end > 0 or not axis.log else 0.0)) for end in (low, high)]
    places = {"ends": [float(f"{end:g}") for end in ends] if low < high else []}
    places["limit"] = [] if math.isnan(cell.limit) else [float(f"{axis.place(cell.limit):g}")]
    places["marker"] = [float(f"{axis.place(value):g}")] if cell.look.symbol and not math.isnan(value) else []
    return cell.name, cell.panel, cell.key, str(numbers), str(places)


def _plot(figure: Figure) -> None:
    layout = content(figure)["layout"]
    theme = layout.pop("template")["layout"]
    assert theme["paper_bgcolor"] == theme["plot_bgcolor"] == "rgba(0,0,0,0)"
    assert "width" not in layout
    assert not [font for font in _walk(layout | {"theme": theme}, "font") if "color" in font], "the page's mode decides"
    for name, axis in layout.items():
        if name.startswith(("xaxis", "yaxis")) and axis.get("type") == "log":
            assert "(log scale)" in axis.get("title", {}).get("text", figure.head)
    for trace in points(figure):
        bars = trace.get("error_x") or trace["error_y"]
        sizes = {len(bars["array"]), len(bars["arrayminus"]), *(len(trace[key]) for key in ("x", "y", "hovertext"))}
        assert len(sizes) == 1
    for trace in content(figure)["data"]:
        for number in (n for axis in ("x", "y") for n in trace.get(axis, []) if isinstance(n, float)):
            assert number == mark_rows.significant(number) or number == round(number, 3)


def _walk(value: Any, key: str) -> list[Any]:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [v for k, v in value.items() if k.endswith(key)] if isinstance(value, dict) else []
    return own + [found for child in children for found in _walk(child, key)]
