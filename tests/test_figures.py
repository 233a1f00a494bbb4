from __future__ import annotations

import ast
import math
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from drawn import Drawn, cells, content, is_language, places, points, shown
from synthetic import cell_line, judgement, write_records

from hypatia_lab import formats, records, results, tables
from hypatia_lab.claims import VERDICTS
from hypatia_lab.claims.claim import AUTHOR
from hypatia_lab.figures import axes, comparisons, data_and_source, drawn_rows, language, mark_rows, marks, over_size
from hypatia_lab.figures import ceilings as ceiling_figures
from hypatia_lab.figures import verdicts as verdict_figure
from hypatia_lab.results import Row
from hypatia_lab.variants import label, load, registered, restored, variants
from hypatia_lab.variants import variant as add
from hypatia_lab.workloads import Workload

pytestmark = pytest.mark.usefixtures("two_processes")

SHAPES = [(256, 256, 512), (1024, 784, 2048), (8192, 4096, 4096)]
VARIANTS = {"eager": 1.0, "naive": 27.0, "cublas_relu": 1.001, "aten": 1.0, "epilogue": 0.94, "compile": 0.97}
OVERHEAD = {"wall": 20.0, "hot": 6.0, "graph": 0.0, "cold": 4.0}
LOST = {"status": "timeout", "reason": "over 60 s", "error": None, "max_error": None}


def around(center: float, spread: float, processes: int, draw: random.Random) -> list[float]:
    """Per-process medians (µs) scattered about ``center`` with a relative spread."""
    return [center * math.exp(draw.gauss(0, spread)) for _ in range(processes)]


def cell(operation: str, shape: tuple[int, ...], variant: str, medians: Sequence[float], **how: Any) -> dict[str, Any]:
    """A cell of what the operation amounts to, by the lab's own variant."""
    load()
    work = Workload(operation, shape)
    known = variants(operation)[variant.removesuffix(language.AGAIN)]
    own = {"operation": operation, "shape": list(shape), "variant": variant, "origin": known.origin}
    own["operator"] = known.operator
    return cell_line(**own, flops=work.flops, traffic=work.traffic, medians_us=medians, **how)


def _write(root: Path) -> list[records.Record]:
    draw = random.Random(7)
    method, agreement = [], []
    for number, shape in enumerate(SHAPES):
        for clock, overhead in OVERHEAD.items():
            for variant, factor in VARIANTS.items():
                lost = variant == "compile" and shape == SHAPES[2]
                medians = [] if lost else around(5.0 * 20**number * factor + overhead, 0.003, 8, draw)
                method.append(cell("linear_relu", shape, variant, medians, clock=clock, **(LOST if lost else {})))
    ceilings = [
        cell("matmul", (n, n, n), "eager", around(2 * n**3 / peak * 1e6 + 5, 0.01, 8, draw), dtype=dtype, math=mode)
        for dtype, mode, peak in (("float32", "ieee", 5e13), ("float32", "tf32", 4e14), ("bfloat16", "ieee", 7e14))
        for n in (512, 2048, 8192)
    ]
    ceilings += [cell("copy", (n,), "eager", around(8 * n / 4e12 * 1e6, 0.01, 8, draw)) for n in (2**28, 2**20, 2**24)]
    for number in range(40):
        for clock in ("graph", "hot"):
            shape = (64 + number, 64, 64)
            for name, us in (("eager", 80.0), ("eager@again", 80 * (1.02 if number < 3 else 1.0))):
                agreement.append(cell("linear_relu", shape, name, around(us, 0.002, 8, draw), clock=clock))
    write_records(root, "h200", "cuda", {"method": method, "ceilings": ceilings, "agreement": agreement})
    return records.load(root)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[records.Record]:
    return _write(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def rows(found: list[records.Record]) -> list[Row]:
    return results.rows(found)


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


@pytest.mark.parametrize("name", sorted(DRAW))
def test_equal_records_give_equal_figures_in_the_one_language(name: str, tmp_path: Path) -> None:
    twice = []
    for folder in ("a", "b"):
        again = _write(tmp_path / folder)
        figure, table = DRAW[name](results.rows(again), again)
        is_language(figure, table)
        twice.append((figure.to_json(), data_and_source(table, again)))
    assert twice[0] == twice[1]


def test_slowdowns_draw_the_inverse_ratio_and_the_claim(rows: list[Row], found: list[records.Record]) -> None:
    figure, table = DRAW["slowdowns"](rows, found)
    naive = [mark.numbers["value"] for mark in shown(figure) if mark.key == "naive (rebuilt)"]
    assert naive == [formats.significant(1 / r.ratio) for r in _by(rows, "graph") if r.variant == "naive"]
    (block,) = figure.blocks
    assert block.lines == [(1.0, "solid"), (7.67, "dash")]
    for mark, (_, axis) in zip(shown(figure), places(figure), strict=False):
        assert mark.places["lines"] == [axis.place(1.0), axis.place(7.67)]
    assert "7.67×" in figure.head
    assert list(table["variant"]).count("naive") == len(SHAPES)
    assert "eager (peer)" not in [mark.key for mark in shown(figure)]
    link = '<a href="../records/h200/method/2025-01-01-cuda.jsonl">h200/method</a>'
    assert link in data_and_source(table, found)


def test_what_was_not_measured_is_said_and_not_drawn(rows: list[Row], found: list[records.Record]) -> None:
    figure, table = DRAW["speedups"](rows, found)
    assert sum(mark.key == "compile (peer)" for mark in shown(figure)) == 2
    assert figure.body.count("<em>timeout</em>") == 1
    assert "timeout: over 60 s" in set(table["status"])


def test_speedups_shade_the_band_of_equivalence(rows: list[Row], found: list[records.Record]) -> None:
    figure, _ = DRAW["speedups"](rows, found)
    for mark, (_, axis) in zip(shown(figure), (p for p in places(figure) if p[0].drawn), strict=True):
        assert mark.places["band"] == pytest.approx([axis.place(0.98), axis.place(1.02)], abs=0.01)


def test_every_row_bears_the_name_of_what_is_drawn_on_it(rows: list[Row]) -> None:
    two: list[Row] = [replace(r, machine=machine) for machine in ("h200", "b200") for r in _by(rows, "graph")]
    for given in (two, two[::-1]):
        figure, _ = comparisons.speedups(given)
        assert len(shown(figure)) == sum(not math.isnan(r.ratio) for r in two if r.variant != "eager")
        for mark in shown(figure):
            assert mark.row == label("linear_relu", mark.key.split(" ")[0])
        assert [block.heading for block in figure.blocks] == ["b200", "h200"]
        for block in figure.blocks:
            assert list(block.panels) == [formats.shape("x".join(map(str, shape))) for shape in SHAPES]


def test_a_name_that_a_panel_has_twice_makes_two_rows() -> None:
    look = language.style("eager", "peer")
    own = [mark_rows.Cell("one name", "", look, (at, math.nan, math.nan), "", key=str(at)) for at in (1.0, 2.0)]
    block = mark_rows.Block("", own, axes.Axis(0, 3, "times"))
    assert [row[""].key for row in block.rows] == ["1.0", "2.0"]


def test_what_has_nothing_beside_it_is_a_row_that_says_what_it_computes(rows: list[Row]) -> None:
    one = [r for r in _by(rows, "graph") if r.variant == "naive"]
    many = [replace(r, shape=f"{n}x256x512", flops=r.flops + n) for n in range(1, 4) for r in one[:2]]
    figure, _ = comparisons.slowdowns([replace(r, dtype=d) for d in ("float32", "bfloat16") for r in many[::2]])
    (block,) = figure.blocks
    assert (block.heading, list(block.panels)) == (label("linear_relu", "naive"), [""])
    assert len({mark.row for mark in shown(figure)}) == 6


def test_one_process_has_no_interval_and_says_so(tmp_path: Path) -> None:
    lines = [cell("linear_relu", SHAPES[0], name, [10.0]) for name in ("eager", "aten")]
    write_records(tmp_path, "m", "cuda", {"method": lines})
    figure, table = comparisons.speedups(results.rows(records.load(tmp_path)))
    (mark,) = shown(figure)
    assert mark.places["ends"] == []
    assert formats.ALONE in mark.text
    assert table.loc[0, "ratio"] == formats.ALONE


def test_limits_are_lines_and_absent_without_ceilings(rows: list[Row], found: list[records.Record]) -> None:
    figure, _ = DRAW["times"](rows, found)
    spans = {round(axis.high / axis.low, 6) for _, axis in places(figure)}
    assert len(spans) == 1, "a distance means the same in each panel"
    limits = {(r.shape, r.variant): r.limit_us + (r.variant == "naive") for r in _by(rows, "graph")}
    own = [replace(r, limit_us=limits[r.shape, r.variant]) for r in _by(rows, "graph")]
    for given, wanted in ((_by(rows, "graph"), {r.limit_us for r in rows}), (own, set(limits.values()))):
        drawn, table = comparisons.times_against_limit(given)
        is_language(drawn, table)
        assert {c.limit for c in cells(drawn)} <= wanted
        assert all(len(mark.places["limit"]) == 1 for mark in shown(drawn))
    bare, _ = comparisons.times_against_limit([replace(r, limit_us=math.nan) for r in _by(rows, "graph")])
    assert not any(mark.places["limit"] for mark in shown(bare))
    assert "no ceiling was measured" in bare.under


def test_ladder_shows_each_clock_and_its_reading(rows: list[Row], found: list[records.Record]) -> None:
    figure, table = DRAW["ladder"](rows, found)
    clocks = [f"{c} clock" for c in ("wall", "hot", "graph", "cold")]
    assert [list(block.panels) for block in figure.blocks] == [clocks] * 2
    assert list(table["reads"]).count("slower") == 2
    assert set(table["reads"]) == {"equal", "slower", results.LAUNCH}
    with pytest.raises(comparisons.FigureError, match="one machine and workload at a time"):
        comparisons.ladder([r for r in rows if r.experiment == "method"])
    with pytest.raises(comparisons.FigureError, match="only baselines"):
        comparisons.ladder([r for r in rows if _ladder(r) and r.variant == "eager"])


def test_roofline_stays_under_its_roofs(rows: list[Row], found: list[records.Record]) -> None:
    ceilings = results.ceilings(found)
    figure, _ = DRAW["roofline"](rows, found)
    lines = [t for t in content(figure)["data"] if t["mode"] == "lines"]
    roof = next(t for t in lines if "float32/ieee" in t["hovertext"])
    assert roof["y"][0] == roof["y"][1] == formats.significant(ceilings["matmul", "float32/ieee", "hot"])
    bandwidth = ceilings["copy", "", "hot"]
    slope = next(t for t in lines if "copy" in t["hovertext"])
    assert [y / x for x, y in zip(slope["x"], slope["y"], strict=True)] == pytest.approx([bandwidth] * 2, rel=1e-4)
    assert content(figure)["layout"]["meta"]["tiles"] == [trace["name"] for trace in points(figure)]
    with pytest.raises(comparisons.FigureError, match="copy bandwidth by the cold clock is missing .* h200"):
        ceiling_figures.roofline(_by(rows, "graph"), ceilings, clock="cold")
    with pytest.raises(comparisons.FigureError, match="a matrix rate for float32/ieee"):
        ceiling_figures.roofline(_by(rows, "graph"), {("copy", "", "hot"): 4e12}, clock="hot")


def test_agreement_draws_the_pairs_that_it_counts(found: list[records.Record]) -> None:
    summary = results.agreement(found)[0]
    figure, table = comparisons.agreement(found, "h200")
    held, excluded = points(figure)
    assert len(excluded["x"]) == summary["differences"] >= 3
    assert len(held["x"]) + len(excluded["x"]) == len(table) == summary["pairs"] == 40
    assert list(table["holds 1"]).count("no") == summary["differences"]
    assert f"{summary['differences']} of 40 A/A pairs" in figure.alt
    with pytest.raises(comparisons.FigureError, match="machine 'b200'; records of: h200"):
        comparisons.agreement(found, "b200")


COPIES = ["8.39 MB", "134 MB", "2.15 GB"]


def test_sweep_orders_by_size_and_names_the_best(rows: list[Row], found: list[records.Record]) -> None:
    figure, _ = DRAW["sweep"](rows, found)
    drawn = {panel: own for block in figure.blocks for panel, own in block.panels.items()}
    for (operation, arithmetic, clock), rate in results.ceilings(found).items():
        if clock == "hot":
            unit = "B/s" if operation == "copy" else "FLOP/s"
            own = drawn.pop(f"{arithmetic or 'copy'}, ceiling {formats.scaled(rate, unit)}")
            assert {c.limit for c in own} == {rate}
            assert [c.name for c in own] == (COPIES if operation == "copy" else ["512³", "2048³", "8192³"])
    assert not drawn
    own = [r for r in rows if r.experiment == "ceilings"]
    with pytest.raises(comparisons.FigureError, match="one machine and clock"):
        ceiling_figures.sweep([*own, replace(own[0], clock="cold")])


@pytest.mark.parametrize(
    "draw",
    [
        comparisons.slowdowns,
        comparisons.speedups,
        comparisons.times_against_limit,
        comparisons.ladder,
        ceiling_figures.sweep,
        lambda rows: ceiling_figures.roofline(rows, {}, clock="hot"),
        lambda rows: over_size.precision(rows, "Nothing"),
        lambda rows: over_size.over_sizes(rows, "Nothing"),
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
    looks = {r.variant: language.style(r.variant, r.origin) for r in rows if r.experiment == "method"}
    for name in ("slowdowns", "speedups", "times", "ladder"):
        for c in cells(DRAW[name](rows, found)[0]):
            assert c.look == looks[c.key.split(" ")[0]]
    drawn = [trace["marker"] for trace in points(DRAW["roofline"](rows, found)[0])]
    assert {(m["color"], m["symbol"]) for m in drawn} == {(look.colour, look.symbol) for look in looks.values()}
    for seen in ({look.colour for look in looks.values()}, {look.symbol for look in looks.values()}):
        assert len(seen) == len(VARIANTS)


def test_origins_show_without_colour() -> None:
    families = [{marks.marker(symbol, "#000") for symbol in symbols} for symbols in language.SHAPES.values()]
    assert sum(map(len, families)) == len(set.union(*families))
    for name, origin in (("naive", "rebuilt"), ("aten", "rebuilt"), ("eager", "peer"), ("epilogue", "peer")):
        assert comparisons.style(name, origin).symbol in language.SHAPES[origin]
    for origin, symbols in language.SHAPES.items():
        assert comparisons.style("never_seen_before", origin).symbol in symbols


def invented() -> list[tuple[str, str, int]]:
    """How 200 variants look that nobody has registered before, where all others look as they did."""
    load()
    before = {name: language.style(name, "own") for name in ("triton", "cuda", "step_mma")}
    draw = random.Random(5)
    names = ["".join(draw.choices("abcdefgh_", k=12)) for _ in range(200)]

    def factory(workload: Any, inputs: Any) -> Any:
        """Nothing."""

    factory.__module__ = "hypatia_lab.operations.invented"
    language._registered.cache_clear()
    with restored():
        for name in names:
            add("invented", name, origin="own")(factory)
        assert before == {name: language.style(name, "own") for name in before}
        looks = [language.style(name, "own") for name in names]
    language._registered.cache_clear()
    return [(look.colour, look.symbol, look.place) for look in looks]


def test_two_hundred_new_variants_differ_as_far_as_there_are_looks_and_change_none() -> None:
    program = "import test_figures; print(test_figures.invented())"
    here = Path(__file__).parent
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=here).stdout
    found = invented()
    assert found == ast.literal_eval(told)
    there = {name for found in map(variants, registered()) for name, one in found.items() if one.origin == "own"}
    free = len(language.SHAPES["own"]) * len(language.COLOURS) - len(there)
    assert len({(colour, symbol) for colour, symbol, _ in found[:free]}) == free > 20
    assert len({place for _, _, place in found}) == len(found)


def test_no_two_variants_look_alike_and_a_control_is_hollow(committed_records: list[records.Record]) -> None:
    load()
    known = {(name, one.origin) for found in map(variants, registered()) for name, one in found.items()}
    lines = [line["variant"] for record in committed_records for line in (*record.cells, *record.details)]
    known |= {(name.removesuffix(language.AGAIN), "author") for name in lines if name.startswith(AUTHOR)}
    looks: dict[tuple[str, str], set[str]] = {}
    for name, origin in known:
        look = language.style(name, origin)
        looks.setdefault((look.colour, look.symbol), set()).add(name)
    assert len(looks) > 40
    assert [names for names in looks.values() if len(names) > 1] == []
    assert comparisons.style("eager@again", "peer").symbol == "circle-open"
    assert comparisons.style("eager@again", "peer").colour == comparisons.style("eager", "peer").colour
    assert comparisons.style("author_v1", "author").colour == comparisons.style("naive", "rebuilt").colour
    with pytest.raises(KeyError):
        comparisons.style("x", "nobody")


@pytest.mark.parametrize("hostile", ["</td><script>alert(1)</script>", 'a" onmouseover="x', "<b>&"])
def test_words_are_text_and_no_html(hostile: str) -> None:
    segment = mark_rows.Segment(0, 1, (language.BLUE, "/"), hostile)
    one = mark_rows.Cell(hostile, hostile, language.style("eager", "peer"), (1, 0.5, 2), hostile, hostile, hostile)
    bar = replace(one, name="bar", segments=[segment])
    own = [one, bar, replace(one, name="none", triple=mark_rows.NOTHING, status=hostile)]
    block = mark_rows.Block(hostile, own, axes.Axis(0, 3, hostile))
    table = tables.frame([{"x": hostile}])
    figure = mark_rows.draw([block], hostile, [hostile], table, ["x"], [("", hostile)])
    (output,) = figure.outputs()
    assert hostile not in output["text/html"]
    mark, piece = shown(figure)
    assert (mark.row, mark.panel, mark.key, mark.text) == (hostile,) * 4
    assert piece.places["bars"] == pytest.approx([0, 33.33])


def test_sizes_come_in_order_and_operations_together(rows: list[Row]) -> None:
    (one,) = [r for r in _by(rows, "graph") if (r.variant, r.shape) == ("aten", "256x256x512")]
    mixed = [
        replace(one, operation=operation, shape=shape, flops=0.0, workload=f"{operation}/{shape}")
        for shape in ("4096x4096", "512x512", "1024x1024")
        for operation in ("mlp2", "diffraction")
    ]
    sizes = ["512x512", "1024x1024", "4096x4096"]
    expected = [(operation, size) for operation in ("diffraction", "mlp2") for size in sizes]
    assert [(r.operation, r.shape) for r in drawn_rows.ordered(mixed)] == expected


@pytest.mark.parametrize(("low", "high"), [(90.0, 3e3), (0.5e3, 2e3), (3e3, 4e5), (1.0, 1e6)])
def test_a_log_axis_labels_at_least_two_values_and_places_by_ratio(low: float, high: float) -> None:
    axis = axes.time_axis([low, high])
    drawn = axis.plotly()
    assert len(drawn["tickvals"]) == len(set(drawn["ticktext"])) > 1
    assert all(axis.low <= value <= axis.high for value in drawn["tickvals"])
    assert axis.place(math.sqrt(axis.low * axis.high)) == pytest.approx(50)
    assert (axis.place(axis.low), axis.place(axis.high)) == (0, 100)


def test_every_kind_of_a_crossover_has_a_tile_that_names_it() -> None:
    given = [
        ceiling_figures.Point(f"kind {n}", origin, "call", 1.0 + n, (2.0, 1.9, 2.1))
        for n in range(20)
        for origin in ("peer", "own")
    ]
    figure, table = ceiling_figures.crossover(given, "Many kinds", ["here"], along="x", across="y", at=3.0)
    is_language(figure, table)
    tiles: dict[str, set[str]] = {}
    for trace in points(figure):
        tiles.setdefault(trace.get("xaxis", "x"), set()).add(trace["name"])
    assert list(tiles.values()) == [{f"kind {n} (peer)", f"kind {n} (own)"} for n in range(20)]
    assert content(figure)["layout"]["meta"]["tiles"] == [f"kind {n}" for n in range(20)]
    assert [name for _, name in figure.key] == ["peer", "own"]


NOISY = {
    "eager": [10.0] * 5,
    "aten": [10.1, 9.9, 10.0, 10.0, 10.1],
    "epilogue": [1.0, 90.0, 3.0, 40.0, 2.0],
}


def test_a_bar_that_leaves_its_axis_is_cut_and_marked(tmp_path: Path) -> None:
    write_records(tmp_path, "m", "cuda", {"method": [cell("linear_relu", SHAPES[0], *one) for one in NOISY.items()]})
    figure, table = comparisons.speedups(results.rows(records.load(tmp_path)))
    is_language(figure, table)
    (_, axis), *_ = places(figure)
    assert axis.high / axis.low < 2000
    calm, noisy = (next(m for m in shown(figure) if m.key.startswith(name)) for name in ("aten", "epilogue"))
    assert noisy.places["marker"][:2] == noisy.places["ends"] == [0, 100], "a triangle at either end"
    assert len(calm.places["marker"]) == 1
    assert "too noisy (n = 5)" in set(table["ratio"])


def test_a_bar_of_a_plot_that_leaves_its_axis_is_cut_and_marked() -> None:
    def drawn(high: float) -> tuple[Any, Any]:
        given = [ceiling_figures.Point("a", "own", "call", n, (2.0, 1.9, end)) for n, end in ((1.0, 2.1), (9.0, high))]
        figure, _ = ceiling_figures.crossover(given, "One", [], along="x", across="y")
        return figure, [t for t in content(figure)["data"] if t.get("hovertext") == "the interval goes on"]

    figure, (mark,) = drawn(1e9)
    top = 10 ** content(figure)["layout"]["yaxis"]["range"][1]
    (trace,) = points(figure)
    assert mark["marker"]["symbol"] == "triangle-up"
    assert (mark["x"], mark["y"][0]) == ([9.0], pytest.approx(top, rel=0.01))
    assert trace["y"][1] + trace["error_y"]["array"][1] == pytest.approx(top, rel=0.01)
    assert "triangles: bars that go on" in figure.under
    calm, none = drawn(2.2)
    assert none == []
    assert not any("triangles" in part for part in calm.under)


def test_verdicts_are_drawn_by_document() -> None:
    rows = [
        judgement(machine="gpu", verdict="confirmed"),
        judgement(id="S002-01", document="S002", machine="gpu", verdict="refuted"),
        judgement(id="S002-02", document="S002", machine="any", verdict="inconsistent"),
        judgement(machine="cpu", verdict="undecided"),
    ]
    figure, table = verdict_figure.verdicts(rows, "gpu")
    is_language(figure, table)
    lengths = {(c.key, c.panel): c.segments[0].length for c in cells(figure)}
    drawn = {place: length for place, length in lengths.items() if length}
    assert drawn == {("confirmed", "S001"): 1, ("refuted", "S002"): 1, ("inconsistent", "S002"): 1}
    assert list(table["document"]) == ["S001", "S002", "all"]
    assert list(verdict_figure.LOOKS) == list(VERDICTS)
    with pytest.raises(language.FigureError, match="no claims judged on 'gpu'"):
        verdict_figure.verdicts(rows[3:], "gpu")


def test_what_was_measured_is_drawn_over_what_is_claimed_where_both_are_one_figure() -> None:
    about = judgement(claimed=2.0, measured=3.0, low=2.5, high=4.0, unit="%")
    others = ({"claimed": [1.0, 2.0]}, {"sense": "at_least"}, {"parts": (about, about)}, {"claimed": 0.0})
    rows = [about, *(replace(about, id="S002-01", **other) for other in (*others, {"measured": math.nan}))]
    figure, table = verdict_figure.over_claimed(rows, "h200")
    is_language(figure, table)
    (mark,) = shown(figure)
    assert mark.numbers == {"value": 1.5, "low": 1.25, "high": 2.0}
    assert list(table["id"]) == [about.id]
    with pytest.raises(language.FigureError, match="no claim has a figure of 'h200'"):
        verdict_figure.over_claimed(rows[1:], "h200")
