from __future__ import annotations

import ast
import itertools
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import judgement
from test_tables import around, cell, run

from hypatia_lab import figures, formats, places, records, results
from hypatia_lab.claims import VERDICTS
from hypatia_lab.figures import ceilings as ceiling_figures
from hypatia_lab.figures import comparisons, display, language, panels, probe_rows
from hypatia_lab.figures import verdicts as verdict_figure
from hypatia_lab.results import Row
from hypatia_lab.variants import label, load, registered, variants

pytestmark = pytest.mark.usefixtures("two_processes")

SHAPES = [(256, 256, 512), (1024, 784, 2048), (8192, 4096, 4096)]
VARIANTS = {"eager": 1.0, "naive": 27.0, "cublas_relu": 1.001, "aten": 1.0, "epilogue": 0.94, "compile": 0.97}
OVERHEAD = {"wall": 20.0, "hot": 6.0, "graph": 0.0, "cold": 4.0}
LOST = {"status": "timeout", "reason": "over 60 s", "error": None, "max_error": None}


def _write(root: Path) -> list[records.Record]:
    draw = random.Random(7)
    cells = []
    for number, shape in enumerate(SHAPES):
        for clock, overhead in OVERHEAD.items():
            for variant, factor in VARIANTS.items():
                lost = variant == "compile" and shape == SHAPES[2]
                medians = [] if lost else around(5.0 * 20**number * factor + overhead, 0.003, 8, draw)
                cells.append(cell("linear_relu", shape, variant, medians, clock=clock, **(LOST if lost else {})))
    records.write(root, run("h200", "method", 8), cells)
    cells = [
        cell("matmul", (n, n, n), "eager", around(2 * n**3 / peak * 1e6 + 5, 0.01, 8, draw), dtype=dtype, math=mode)
        for dtype, mode, peak in (("float32", "ieee", 5e13), ("float32", "tf32", 4e14), ("bfloat16", "ieee", 7e14))
        for n in (512, 2048, 8192)
    ]
    cells += [cell("copy", (n,), "eager", around(8 * n / 4e12 * 1e6, 0.01, 8, draw)) for n in (2**28, 2**20, 2**24)]
    records.write(root, run("h200", "ceilings", 8), cells)
    cells = []
    for number in range(40):
        for clock in ("graph", "hot"):
            shape = (64 + number, 64, 64)
            again = 80 * (1.02 if number < 3 else 1.0)
            cells.append(cell("linear_relu", shape, "eager", around(80, 0.002, 8, draw), clock=clock))
            cells.append(cell("linear_relu", shape, "eager@again", around(again, 0.002, 8, draw), clock=clock))
    records.write(root, run("h200", "agreement", 8), cells)
    return records.load(root)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[records.Record]:
    return _write(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def rows(found: list[records.Record]) -> list[Row]:
    return results.rows(found)


Drawn = tuple[Any, Any]
DRAW: dict[str, Callable[[list[Row], list[records.Record]], Drawn]] = {
    "slowdowns": lambda rows, found: comparisons.slowdowns(_by(rows, "graph"), claimed=7.67),
    "speedups": lambda rows, found: comparisons.speedups([r for r in _by(rows, "graph") if r.variant != "naive"]),
    "times": lambda rows, found: comparisons.times_against_limit(_by(rows, "graph")),
    "ladder": lambda rows, found: comparisons.ladder([r for r in rows if _ladder(r)]),
    "roofline": lambda rows, found: ceiling_figures.roofline(_by(rows, "graph"), results.ceilings(found), clock="hot"),
    "agreement": lambda rows, found: comparisons.agreement(found, "h200"),
    "sweep": lambda rows, found: ceiling_figures.sweep([r for r in rows if r.experiment == "ceilings"]),
}


def _by(rows: list[Row], clock: str) -> list[Row]:
    return [r for r in rows if r.experiment == "method" and r.clock == clock]


def _ladder(row: Row) -> bool:
    return row.experiment == "method" and row.shape == "256x256x512" and row.variant in ("eager", "aten", "naive")


def _words(layout: dict[str, Any]) -> str:
    return " ".join(note["text"] for note in layout.get("annotations", ()))


def _points(figure: Any) -> list[dict[str, Any]]:
    """The traces that show measured points."""
    return [t for t in json.loads(figure.to_json())["data"] if "markers" in t["mode"]]


def _numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [n for v in value.values() for n in _numbers(v)]
    if isinstance(value, list):
        return [n for v in value for n in _numbers(v)]
    return [value] if isinstance(value, float) else []


@pytest.fixture(params=sorted(DRAW))
def drawn(request: pytest.FixtureRequest, rows: list[Row], found: list[records.Record]) -> Drawn:
    return DRAW[request.param](rows, found)


@pytest.mark.parametrize("name", sorted(DRAW))
def test_equal_records_give_equal_json(name: str, tmp_path: Path) -> None:
    twice = []
    for folder in ("a", "b"):
        again = _write(tmp_path / folder)
        figure, table = DRAW[name](results.rows(again), again)
        twice.append((figure.to_json(), display.data_and_source(table, again)))
    assert twice[0] == twice[1]


def test_alt_text_says_figures_and_the_table_holds_them(drawn: Drawn) -> None:
    figure, table = drawn
    alt = figure.layout.meta["alt"]
    assert any(c.isdigit() for c in alt)
    assert alt.endswith(".")
    assert "nan" not in alt
    assert len(table) > 0
    assert "nan" not in table.to_string()


def test_title_and_axes_are_named_and_log_axes_say_so(drawn: Drawn) -> None:
    layout = json.loads(drawn[0].to_json())["layout"]
    assert layout["title"]["text"].startswith("<b>")
    for name, axis in layout.items():
        if name.startswith(("xaxis", "yaxis")) and axis.get("type") == "log":
            assert "(log scale)" in axis.get("title", {}).get("text", "") + _words(layout)
    titles = [axis.get("title", {}).get("text", "") for name, axis in layout.items() if name.startswith("xaxis")]
    assert any(titles) or any(unit in _words(layout) for unit in ("×", "time per call", "FLOP/s"))


def test_every_measured_point_carries_its_interval(drawn: Drawn) -> None:
    for trace in _points(drawn[0]):
        bars = trace.get("error_x") or trace["error_y"]
        assert len(bars["array"]) == len(bars["arrayminus"]) == len(trace["x"]) == len(trace["y"])
        assert len(trace["hovertext"]) == len(trace["x"])
        assert all("[" in text or "FLOP/s" in text or "B/s" in text for text in trace["hovertext"])
    drawn_bars = [n for t in _points(drawn[0]) for n in (t.get("error_x") or t["error_y"])["array"]]
    assert max(drawn_bars) > 0


def test_the_figure_reads_on_light_and_dark_ground(drawn: Drawn) -> None:
    layout = json.loads(drawn[0].to_json())["layout"]
    theme = layout.pop("template")["layout"]
    assert theme["paper_bgcolor"] == theme["plot_bgcolor"] == "rgba(0,0,0,0)"
    assert "width" not in layout
    colours = [f.get("color") for f in _fonts(layout | {"theme": theme})]
    assert colours == [None] * len(colours)


def _fonts(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [f for v in value for f in _fonts(v)]
    if not isinstance(value, dict):
        return []
    own = [v for k, v in value.items() if k.endswith("font")]
    return own + [f for v in value.values() for f in _fonts(v)]


def test_numbers_are_rounded(drawn: Drawn) -> None:
    for trace in json.loads(drawn[0].to_json())["data"]:
        for axis in ("x", "y"):
            for number in _numbers(trace[axis]):
                assert number == formats.significant(number) or number == round(number, 3)


def test_slowdowns_draw_the_inverse_ratio_and_the_claim(rows: list[Row], found: list[records.Record]) -> None:
    figure, table = DRAW["slowdowns"](rows, found)
    naive = [x for t in _points(figure) if t["name"] == "naive (seed)" for x in t["x"]]
    expected = [1 / r.ratio for r in _by(rows, "graph") if r.variant == "naive"]
    assert naive == [formats.significant(v) for v in expected]
    claims = [t for t in figure.data if t.line.dash == "dash"]
    assert {x for claim in claims for x in claim.x} == {7.67}
    assert len(claims) == len(SHAPES)
    assert "7.67×" in figure.layout.title.text
    assert "7.67×" in figure.layout.meta["alt"]
    assert list(table["variant"]).count("naive") == 3
    assert "eager (peer)" not in [t.name for t in figure.data]


def test_what_was_not_measured_is_said_and_not_drawn(rows: list[Row], found: list[records.Record]) -> None:
    figure, table = DRAW["speedups"](rows, found)
    compiled = [x for t in _points(figure) if t["name"] == "compile (peer)" for x in t["x"]]
    assert len(compiled) == 2
    (note,) = (a for a in figure.layout.annotations if a.text == "<i>timeout</i>")
    low, high = figure.layout.xaxis.range
    assert abs(note.x - (1 - low) / (high - low)) > 0.2, "beside the line at 1"
    assert "timeout: over 60 s" in set(table["status"])


def test_speedups_shade_the_band_of_equivalence(rows: list[Row], found: list[records.Record]) -> None:
    figure, _ = DRAW["speedups"](rows, found)
    assert {(s.x0, s.x1) for s in figure.layout.shapes} == {(0.98, 1.02)}
    low, high = figure.layout.xaxis.range
    assert low < 0.98 < 1.02 < high


def _lanes(figure: Any) -> dict[tuple[str, str], str]:
    """(panel, variant) → the name at the left of the row on which its point lies."""
    layout = json.loads(figure.to_json())["layout"]
    found = {}
    for trace in _points(figure):
        own = layout[trace.get("yaxis", "y").replace("y", "yaxis")]
        named = dict(zip(own["tickvals"], own["ticktext"], strict=True))
        found |= {(trace.get("xaxis", "x"), trace["name"].split(" ")[0]): named[y] for y in trace["y"]}
    return found


def test_every_line_bears_the_name_of_what_is_drawn_on_it(rows: list[Row]) -> None:
    two: list[Row] = [replace(r, machine=machine) for machine in ("h200", "b200") for r in _by(rows, "graph")]
    for given in (two, two[::-1]):
        figure, _ = comparisons.speedups(given)
        found = _lanes(figure)
        assert len(found) == sum(not math.isnan(r.ratio) for r in two if r.variant != "eager")
        for (_, variant), text in found.items():
            assert text.replace("<br>", " ") == label("linear_relu", variant)
        headings = [a.text for a in figure.layout.annotations if a.text.startswith("<b>")]
        assert headings == ["<b>b200</b>", "<b>h200</b>"]
        panels = [a.text for a in figure.layout.annotations if "×" in a.text and "speed" not in a.text]
        assert panels == [formats.shape("x".join(map(str, shape))) for shape in SHAPES] * 2


def test_a_telephone_has_the_names_above_their_rows_and_three_panels_beside_each_other(rows: list[Row]) -> None:
    many = [replace(r, shape=f"{256 + n}x256x512", flops=r.flops + n) for n in range(5) for r in _by(rows, "graph")]
    figure, _ = comparisons.speedups([r for r in many if r.variant != "naive"])
    layout = json.loads(figure.to_json())["layout"]
    narrow = layout["meta"]["narrow"]
    for placed, beside in ((layout, 5), (narrow, 3)):
        tops = [axis["domain"][1] for name, axis in placed.items() if name.startswith("yaxis")]
        assert max(map(tops.count, tops)) == beside
        assert max(axis["domain"][1] for name, axis in placed.items() if name.startswith("xaxis")) <= 1
    assert set(narrow) >= {name for name in layout if name.startswith(("xaxis", "yaxis"))}
    names = {label("linear_relu", r.variant) for r in rows if r.variant in ("aten", "epilogue", "compile")}
    assert names <= {note["text"] for note in narrow["annotations"]}
    assert not any(axis["showticklabels"] for name, axis in narrow.items() if name.startswith("yaxis"))


def test_on_a_telephone_a_long_name_is_whole_and_rows_make_room_for_its_lines() -> None:
    def placed(longest: str) -> tuple[list[str], float]:
        """What stands above three rows, and what of the figure's height a row has (px)."""
        one = panels.Cell("", "", language.Style("#000000", "circle", 0), (1.5, 1.4, 1.6), "")
        own = [replace(one, name=name, key=name) for name in ("eager", longest, "naive")]
        block = panels.Block("", own, {"title": {"text": "times"}, "type": "log", "range": [-1, 1]})
        figure = panels.draw([block], language.heading("Speeds", ["box"]), "Three speeds on a box.")
        narrow = json.loads(figure.to_json())["layout"]["meta"]["narrow"]
        high, axis = narrow["height"] - narrow["margin"]["t"] - narrow["margin"]["b"], narrow["yaxis"]
        part = (axis["domain"][1] - axis["domain"][0]) / (axis["range"][0] - axis["range"][1])
        return [note["text"] for note in narrow["annotations"] if note.get("name") == panels.ROW_NAME], high * part

    short, pitch = placed("torch.compile")
    assert short == ["eager", "torch.compile", "naive"]
    words = "5×64×128×128, bfloat16: 2.5× cuDNN's graph, then torch.compile"
    (_, long, _), taller = placed(words)
    assert long.replace("<br>", " ") == words
    assert max(map(len, long.split("<br>"))) <= panels.ABOVE < len(words)
    assert taller > pitch + 12 * long.count("<br>")


def test_on_a_telephone_no_name_and_no_tick_of_a_panel_meets_those_of_the_next(rows: list[Row]) -> None:
    figure, _ = comparisons.slowdowns(_by(rows, "graph"))
    narrow = json.loads(figure.to_json())["layout"]["meta"]["narrow"]
    lines: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for name, axis in ((name, axis) for name, axis in narrow.items() if name.startswith("xaxis")):
        (first, last), (low, high) = ([310 * end for end in axis["domain"]], axis["range"])
        height = narrow[name.replace("x", "y", 1)]["domain"][1]
        for value, text in zip(axis["tickvals"], axis["ticktext"], strict=True):
            middle = first + (math.log10(value) - low) / (high - low) * (last - first)
            lines.setdefault(("tick", height), []).append((middle - 3.7 * len(text), middle + 3.7 * len(text)))
        assert len(axis["tickvals"]) > 1
        for note in narrow["annotations"]:
            if note.get("xref") == f"x{name.removeprefix('xaxis')} domain" and "×" in note["text"]:
                half = 4 * max(map(len, note["text"].split("<br>")))  # digits and crosses are wide
                lines.setdefault(("name", height), []).append(((first + last) / 2 - half, (first + last) / 2 + half))
    assert sum(len(found) for (kind, _), found in lines.items() if kind == "name") == len(SHAPES)
    for found in lines.values():
        for (_, end), (start, _) in itertools.pairwise(sorted(found)):
            assert end + 4 < start


def test_what_has_nothing_beside_it_is_a_row_that_says_what_it_computes(rows: list[Row]) -> None:
    one = [r for r in _by(rows, "graph") if r.variant == "naive"]
    many = [replace(r, shape=f"{n}x256x512", flops=r.flops + n) for n in range(1, 4) for r in one[:2]]
    figure, _ = comparisons.slowdowns([replace(r, dtype=d) for d in ("float32", "bfloat16") for r in many[::2]])
    assert "xaxis2" not in json.loads(figure.to_json())["layout"]
    assert len(set(figure.layout.yaxis.ticktext)) == 6
    assert f"<b>{label('linear_relu', 'naive')}</b>" in [a.text for a in figure.layout.annotations]


def test_one_process_has_no_interval_and_says_so(tmp_path: Path) -> None:
    cells = [cell("linear_relu", SHAPES[0], "eager", [10.0]), cell("linear_relu", SHAPES[0], "aten", [10.0])]
    records.write(tmp_path, run("m", "method", 1), cells)
    figure, table = comparisons.speedups(results.rows(records.load(tmp_path)))
    (trace,) = _points(figure)
    assert (trace["error_x"]["array"], trace["error_x"]["arrayminus"]) == ([0.0], [0.0])
    assert formats.ALONE in trace["hovertext"][0]
    assert table.loc[0, "ratio"] == formats.ALONE


def test_limits_are_lines_and_absent_without_ceilings(rows: list[Row], found: list[records.Record]) -> None:
    figure, _ = DRAW["times"](rows, found)
    limits = [t.x[0] for t in figure.data if t.mode == "lines"]
    assert len({round(axis["range"][1] - axis["range"][0], 2) for axis in _horizontal(figure)}) == 1, "the same span"
    expected = dict.fromkeys(r.limit_us for r in _by(rows, "graph") if r.variant == "eager")
    assert limits == [formats.significant(v) for v in expected]
    bare, _ = comparisons.times_against_limit([replace(r, limit_us=math.nan) for r in _by(rows, "graph")])
    assert not [t for t in bare.data if t.mode == "lines"]
    assert "no ceiling was measured" in bare.layout.meta["alt"]


def _horizontal(figure: Any) -> list[dict[str, Any]]:
    return [axis for name, axis in json.loads(figure.to_json())["layout"].items() if name.startswith("xaxis")]


def test_a_row_with_a_limit_of_its_own_has_a_line_of_its_own(rows: list[Row]) -> None:
    small = [r for r in _by(rows, "graph") if r.flops == min(row.flops for row in _by(rows, "graph"))]
    figure, _ = comparisons.times_against_limit([replace(r, limit_us=1.0 + (r.variant == "naive")) for r in small])
    lines = {t.x[0]: t.y[1] - t.y[0] for t in figure.data if t.mode == "lines"}
    singles = sum("@" not in r.variant for r in small)
    assert lines[2.0] == 1
    assert sum(t.y[1] - t.y[0] for t in figure.data if t.mode == "lines") == singles


def test_ladder_shows_each_clock_and_its_reading(rows: list[Row], found: list[records.Record]) -> None:
    figure, table = DRAW["ladder"](rows, found)
    words = [a.text for a in figure.layout.annotations]
    assert [word for word in words if word.endswith(" clock")] == [
        f"{c} clock" for c in ("wall", "hot", "graph", "cold")
    ] * 2
    assert list(table["reads"]).count("slower") == 2
    assert set(table["reads"]) == {"equal", "slower", results.LAUNCH}
    with pytest.raises(comparisons.FigureError, match="one machine and workload at a time"):
        comparisons.ladder([r for r in rows if r.experiment == "method"])
    with pytest.raises(comparisons.FigureError, match="only baselines"):
        comparisons.ladder([r for r in rows if _ladder(r) and r.variant == "eager"])


def test_roofline_stays_under_its_roofs(rows: list[Row], found: list[records.Record]) -> None:
    ceilings = results.ceilings(found)
    figure, _ = DRAW["roofline"](rows, found)
    roof = next(t for t in figure.data if t.hovertext and "float32/ieee" in t.hovertext and t.mode == "lines")
    assert roof.y[0] == formats.significant(ceilings["matmul", "float32/ieee", "hot"])
    with pytest.raises(
        comparisons.FigureError, match="copy bandwidth by the cold clock is missing from the ceilings of h200"
    ):
        ceiling_figures.roofline(_by(rows, "graph"), ceilings, clock="cold")
    with pytest.raises(comparisons.FigureError, match="a matrix rate for float32/ieee"):
        ceiling_figures.roofline(_by(rows, "graph"), {("copy", "", "hot"): 4e12}, clock="hot")


def test_agreement_draws_the_pairs_that_it_counts(found: list[records.Record]) -> None:
    summary = results.agreement(found)[0]
    figure, table = comparisons.agreement(found, "h200")
    held, excluded = _points(figure)
    assert len(excluded["x"]) == summary["differences"] >= 3
    assert len(held["x"]) + len(excluded["x"]) == len(table) == summary["pairs"] == 40
    assert list(table["holds 1"]).count("no") == summary["differences"]
    assert f"{summary['differences']} of 40 A/A pairs" in figure.layout.title.text
    assert "expected 5%" in figure.layout.meta["alt"]
    with pytest.raises(comparisons.FigureError, match="machine 'b200'; records of: h200"):
        comparisons.agreement(found, "b200")


def test_sweep_orders_by_size_and_names_the_best(rows: list[Row], found: list[records.Record]) -> None:
    figure, _ = DRAW["sweep"](rows, found)
    named = [note.text.replace("<br>", " ") for note in figure.layout.annotations]
    for (operation, arithmetic, clock), rate in results.ceilings(found).items():
        if clock == "hot":
            unit = "B/s" if operation == "copy" else "FLOP/s"
            assert f"{arithmetic or 'copy'}, ceiling {formats.scaled(rate, unit)}" in named
    for trace in _points(figure):
        assert trace["y"] == sorted(trace["y"])
    with pytest.raises(comparisons.FigureError, match="one machine and clock"):
        ceiling_figures.sweep(
            [r for r in rows if r.experiment == "ceilings"] + [replace(rows[0], operation="copy", clock="cold")]
        )


@pytest.mark.parametrize(
    "draw",
    [
        comparisons.slowdowns,
        comparisons.speedups,
        comparisons.times_against_limit,
        comparisons.ladder,
        ceiling_figures.sweep,
        lambda rows: ceiling_figures.roofline(rows, {}, clock="hot"),
    ],
)
def test_nothing_to_draw_is_an_error_that_says_what_is_missing(draw: Any, rows: list[Row]) -> None:
    with pytest.raises(comparisons.FigureError, match="no rows to draw"):
        draw([])
    lost = [replace(r, operation="matmul") for r in rows if r.status == "timeout"]
    with pytest.raises(comparisons.FigureError, match="timeout over 60 s"):
        draw(lost)


def test_a_variant_looks_the_same_everywhere_and_unlike_the_others(
    rows: list[Row], found: list[records.Record]
) -> None:
    looks: dict[str, set[tuple[str, str]]] = {}
    named: dict[Any, str] = {label("linear_relu", r.variant): f"{r.variant} ({r.origin})" for r in rows}
    for figure in ("slowdowns", "speedups", "times", "ladder", "roofline"):
        for trace in _points(DRAW[figure](rows, found)[0]):
            name = str(named.get(trace["name"], trace["name"]))
            looks.setdefault(name, set()).add((trace["marker"]["color"], trace["marker"]["symbol"]))
    assert set(looks) == {f"{v} ({'seed' if v in ('naive', 'cublas_relu', 'aten') else 'peer'})" for v in VARIANTS}
    assert all(len(seen) == 1 for seen in looks.values())
    everything = [look for seen in looks.values() for look in seen]
    assert len({colour for colour, _ in everything}) == len({symbol for _, symbol in everything}) == len(looks)


def test_origins_show_without_colour() -> None:
    families = [set(symbols) for symbols in language.SHAPES.values()]
    assert sum(map(len, families)) == len(set.union(*families))
    for name, origin in {
        "naive": "seed",
        "cublas_relu": "seed",
        "aten": "seed",
        "eager": "peer",
        "epilogue": "peer",
    }.items():
        assert comparisons.style(name, origin).symbol in language.SHAPES[origin]
    for origin, symbols in language.SHAPES.items():
        assert comparisons.style("never_seen_before", origin).symbol in symbols


LOOKS = """
import random
from hypatia_lab import variants
from hypatia_lab.figures import language
variants.load()
before = {name: language.style(name, "own") for name in ("triton", "cuda", "step_mma")}
language._registered.cache_clear()
def factory(workload, inputs):
    "Nothing."
factory.__module__ = "hypatia_lab.operations.invented"
draw = random.Random(5)
names = ["".join(draw.choices("abcdefgh_", k=12)) for _ in range(200)]
for name in names:
    variants.variant("invented", name, origin="own")(factory)
assert before == {name: language.style(name, "own") for name in before}
print([(look.colour, look.symbol, look.place) for look in (language.style(name, "own") for name in names)])
"""


def test_two_hundred_new_variants_differ_as_far_as_there_are_looks_and_change_none() -> None:
    runs = [subprocess.run([sys.executable, "-c", LOOKS], capture_output=True, text=True, check=True) for _ in "ab"]
    first, second = (ast.literal_eval(run.stdout) for run in runs)
    assert first == second
    load()
    there = {name for found in map(variants, registered()) for name, one in found.items() if one.origin == "own"}
    free = len(language.SHAPES["own"]) * len(language.COLOURS) - len(there)
    assert len({(colour, symbol) for colour, symbol, _ in first[:free]}) == free > 20
    assert len({place for _, _, place in first}) == len(first)


def test_registered_variants_look_apart_and_a_control_is_hollow() -> None:
    load()
    for origin in language.SHAPES:
        names = {name for found in map(variants, registered()) for name, one in found.items() if one.origin == origin}
        looks = [language.style(name, origin) for name in names]
        assert len({(look.colour, look.symbol) for look in looks}) == len(looks)
    assert comparisons.style("eager@again", "peer").symbol == "circle-open"
    assert comparisons.style("eager@again", "peer").colour == comparisons.style("eager", "peer").colour
    with pytest.raises(KeyError):
        comparisons.style("x", "nobody")


def test_show_gives_plotly_json_then_folded_data(
    rows: list[Row], found: list[records.Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    import IPython.display

    shown: list[dict[str, Any]] = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, raw: shown.append(bundle))
    figure, table = DRAW["slowdowns"](rows, found)
    figures.show(figure, table, found)
    first, second = shown
    assert set(first) == {"application/vnd.plotly.v1+json", "text/plain"}
    assert first["text/plain"] == figure.layout.meta["alt"]
    assert first["application/vnd.plotly.v1+json"]["data"]
    assert second["text/html"].startswith('<details class="figure-data"><summary>Data and source</summary>')
    assert '<a href="../records/h200/method/2025-11-20-cuda.jsonl">h200/method</a>' in second["text/html"]
    assert 'scope="col"' in second["text/html"]
    json.dumps(first, allow_nan=False)


def test_parts_of_a_heading_share_lines_and_none_ends_in_a_dot() -> None:
    under = ["diffraction", "1024×1024", "float32/ieee", "graph clock", "h200", "", "bars: 95% intervals", "x" * 40]
    layout = language.heading("A title", under)
    small = [line.partition(">")[2].removesuffix("</span>") for line in layout["title"]["text"].split("<br>")[1:]]
    assert " · ".join(small) == " · ".join(filter(None, under))
    assert all(len(line) <= 61 and not line.endswith(" ·") for line in small)
    assert layout["meta"] == {"title": "A title", "under": [u for u in under if u]}


def test_sizes_come_in_order_and_operations_together(rows: list[Row]) -> None:
    (one,) = [r for r in _by(rows, "graph") if (r.variant, r.shape) == ("aten", "256x256x512")]
    mixed = [
        replace(one, operation=operation, shape=shape, flops=0.0, workload=f"{operation}/{shape}")
        for shape in ("4096x4096", "512x512", "1024x1024")
        for operation in ("mlp2", "diffraction")
    ]
    sizes = ["512x512", "1024x1024", "4096x4096"]
    expected = [(operation, size) for operation in ("diffraction", "mlp2") for size in sizes]
    assert [(r.operation, r.shape) for r in language.ordered(mixed)] == expected


def test_labels_of_a_log_axis_have_room_on_a_telephone() -> None:
    for low, high in ((90.0, 3e3), (0.5e3, 2e3), (3e3, 4e5), (1.0, 1e6)):
        axis = language.time_axis([low, high])
        left, right = axis["range"]
        at = [250 * (math.log10(value) - left) / (right - left) for value in axis["tickvals"]]
        assert len(at) > 1
        for (a, one), (b, other) in itertools.pairwise(zip(at, axis["ticktext"], strict=True)):
            assert b - a > 3.2 * (len(one) + len(other))


def test_variants_of_the_committed_records_look_different() -> None:
    looks: dict[tuple[str, str], set[str]] = {}
    for row in results.rows(records.load(places.HOME / "book" / "records")):
        if not row.variant.endswith(language.AGAIN):
            look = language.style(row.variant, row.origin)
            looks.setdefault((look.colour, look.symbol), set()).add(row.variant)
    assert len(looks) > 40
    assert [names for names in looks.values() if len(names) > 1] == []


def test_every_kind_of_a_crossover_has_a_tile_that_names_it() -> None:
    points = [
        ceiling_figures.Point(f"kind {n}", origin, "call", 1.0 + n, (2.0, 1.9, 2.1))
        for n in range(20)
        for origin in ("peer", "own")
    ]
    figure, _ = ceiling_figures.crossover(points, "Many kinds", ["here"], along="x", across="y")
    tiles: dict[str, set[str]] = {}
    for trace in _points(figure):
        tiles.setdefault(trace.get("xaxis", "x"), set()).add(trace["name"])
    assert list(tiles.values()) == [{f"kind {n} (peer)", f"kind {n} (own)"} for n in range(20)]
    assert [note.text for note in figure.layout.annotations if note.text.startswith("kind")] == [
        f"kind {n}" for n in range(20)
    ]


@pytest.mark.parametrize("colour", [*language.PALETTE, language.GREY, language.OLIVE, language.WINE])
def test_words_on_bars_stand_out(colour: str) -> None:
    bars = probe_rows.bar_trace(colour, "/", [0.0], [1.0], [0.0], text=["7"])
    ground, ink = (_luminance(c) for c in (colour, bars["insidetextfont"]["color"]))
    assert (max(ground, ink) + 0.05) / (min(ground, ink) + 0.05) >= 4.5


def _luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    light = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]


def test_a_bar_that_leaves_its_axis_is_cut_and_marked(tmp_path: Path) -> None:
    noisy: dict[str, list[float | None]] = {
        "eager": [10.0] * 5,
        "aten": [10.1, 9.9, 10.0, 10.0, 10.1],
        "epilogue": [1.0, 90.0, 3.0, 40.0, 2.0],
    }
    records.write(tmp_path, run("m", "method", 5), [cell("linear_relu", SHAPES[0], *one) for one in noisy.items()])
    figure, table = comparisons.speedups(results.rows(records.load(tmp_path)))
    low, high = (10**end for end in figure.layout.xaxis.range)
    assert high / low < 2000
    marks = [trace for trace in figure.to_plotly_json()["data"] if trace.get("hovertext") == "the interval goes on"]
    assert [mark["marker"]["symbol"] for mark in marks] == ["triangle-right", "triangle-left"]
    assert [mark["x"][0] for mark in marks] == pytest.approx([high, low], rel=0.01)
    for trace in (trace for trace in _points(figure) if "error_x" in trace):
        bars = trace["error_x"]
        for value, up, down in zip(trace["x"], bars["array"], bars["arrayminus"], strict=True):
            assert low * 0.99 <= value - down <= value + up <= high * 1.01
    assert "goes on" in figure.layout.meta["alt"]
    assert set(table["ratio"]) >= {"too noisy (n = 5)"}
    calm, _ = comparisons.speedups([row for row in results.rows(records.load(tmp_path)) if row.variant != "epilogue"])
    assert "goes on" not in calm.layout.meta["alt"]


def test_titles_of_panels_end_before_their_neighbours_whatever_rows_are_called() -> None:
    looks = language.style("eager", "peer")
    titles = [f"{width} → 2 × 256 → 10, batch 64" for width in range(784, 789)]
    cells = [
        panels.Cell("a name as long as names of rows are", title, looks, (1.0, 1.0, 1.0), "said") for title in titles
    ]
    block = panels.Block("", cells, {"range": [0, 2], "title": {"text": "time"}})
    figure = panels.draw([block], language.heading("Some panels", []), "five panels").to_dict()["layout"]
    plot = panels.PAGE - figure["margin"]["l"] - figure["margin"]["r"]
    ends = [figure[f"xaxis{n or ''}"]["domain"] for n in (0, 2, 3, 4, 5)]
    pitch = plot * (ends[1][0] - ends[0][0])
    lines = [line for note in figure["annotations"] if "→" in note["text"] for line in note["text"].split("<br>")]
    assert len(lines) > len(titles)
    assert max(6.8 * len(line) for line in lines) < pitch


def test_verdicts_are_drawn_by_document() -> None:
    rows = [
        judgement(machine="gpu", verdict="confirmed"),
        judgement(id="S002-01", seed="S002", machine="gpu", verdict="refuted"),
        judgement(id="S002-02", seed="S002", machine="any", verdict="inconsistent"),
        judgement(machine="cpu", verdict="undecided"),
    ]
    figure, table = verdict_figure.verdicts(rows, "gpu")
    drawn = {(trace.name, trace.xaxis or "x"): list(trace.x) for trace in figure.data}
    assert [panel for (verdict, panel), count in drawn.items() if verdict == "refuted" and count == [1]] == ["x2"]
    assert sum(count for (count,) in drawn.values()) == 3
    assert list(table["document"]) == ["S001", "S002", "all"]
    assert list(verdict_figure.LOOKS) == list(VERDICTS)
    with pytest.raises(language.FigureError, match="no claims judged on 'gpu'"):
        verdict_figure.verdicts(rows[3:], "gpu")


def test_what_was_measured_is_drawn_over_what_is_claimed_where_both_are_one_figure() -> None:
    about = judgement(claimed=2.0, measured=3.0, low=2.5, high=4.0, unit="%")
    others = ({"claimed": [1.0, 2.0]}, {"sense": "at_least"}, {"parts": (about, about)}, {"claimed": 0.0})
    rows = [about, *(replace(about, id="S002-01", **other) for other in (*others, {"measured": math.nan}))]
    figure, table = verdict_figure.over_claimed(rows, "h200")
    (points,) = (trace for trace in figure.data if trace.error_x.array is not None)
    assert (list(points.x), list(points.error_x.array), list(points.error_x.arrayminus)) == ([1.5], [0.5], [0.25])
    assert list(table["id"]) == [about.id]
    with pytest.raises(language.FigureError, match="no claim has a figure of 'h200'"):
        verdict_figure.over_claimed(rows[1:], "h200")
