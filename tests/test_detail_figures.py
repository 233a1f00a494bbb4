"""Figures of details, of size and precision, and of the image: from synthetic lines, without torch."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
import pytest
from test_tables import around, cell, run

from hypatia_lab import formats, records, results
from hypatia_lab.figures import image as image_figure
from hypatia_lab.figures import language, over_size
from hypatia_lab.figures import probes as probe_figures
from hypatia_lab.results import Row
from hypatia_lab.variants import label

SHAPE = (1024, 1024)
LIBRARIES = {"interpreter": 31.0, "import torch": 1650.0, "import hypatia_lab": 42.0, "CUDA context": 210.0}
COMPILED = {"Dynamo": 310.0, "AOTAutograd": 190.0, "Inductor": 420.0, "Triton": 640.0, "autotune": 0.0}
STARTS: dict[tuple[str, str], dict[str, float]] = {
    ("eager", ""): {"build": 0.01, "call 1": 38.0, "warm": 1.4},
    ("compile", "empty"): {"build": 1.1, **COMPILED, "rest of call 1": 95.0, "warm": 0.12},
    ("compile", "disk"): {"build": 1.2, **COMPILED, "Inductor": 70, "Triton": 12, "rest of call 1": 60, "warm": 0.12},
    ("compile", "aoti_raw"): {"build": 18.0, "call 1": 9.0, "warm": 0.11},
    ("compile_reduce_overhead", "disk"): {"build": 1.2, **COMPILED, "rest of call 1": 160.0, "warm": 0.05},
    ("triton", "cubin"): {"build": 12.0, "call 1": 3.1, "warm": 0.03},
    ("cuda", "cubin"): {"build": 1.9, "call 1": 0.4, "warm": 0.021},
    ("c_openmp", ""): {"build": 4.0, "call 1": 22.0, "warm": 4.4},
}  # fmt: skip
ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{}_kernel_cuda(at::TensorIteratorBase&)"
    "::{{lambda()#2}}::operator()() const::{{lambda()#2}}, std::array<char*, 2ul> >(int, at::native"
)
NAMES = [
    *(ELEMENTWISE.format(name) for name in ("sin", "mul", "where", "round")),
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>(float*)",
    "triton_poi_fused_abs_bitwise_and_bitwise_not_div_full_like_ge_gt_lift_fresh_mul_rsub_sin_sub_where_7",
]


def detail(variant: str, topic: str, name: str, values: Sequence[float | None], **more: Any) -> dict[str, Any]:
    """One detail line as ``Evidence.details`` gives it."""
    filled: dict[str, Any] = {
        "kind": "detail",
        "operation": "diffraction",
        "shape": list(SHAPE),
        "dtype": "float32",
        "math": "ieee",
        "variant": variant,
        "topic": topic,
        "case": "",
        "name": name,
        "unit": "ms",
        "count": 1,
        "values": list(values),
        "status": "ok",
        "reason": "",
        "machine": "h200",
    }
    return filled | more


def starts() -> list[dict[str, Any]]:
    """Topic ``start``: five processes a way; one way was skipped, one process of another has no value."""
    draw = random.Random(3)
    lines = []

    def add(variant: str, case: str, name: str, center: float) -> None:
        values = [center * math.exp(draw.gauss(0, 0.04)) for _ in range(5)]
        lines.append(detail(variant, "start", name, values, case=case))

    for (variant, case), own in STARTS.items():
        for name, center in (LIBRARIES | {"set-up": 6.5} | own).items():
            if name != "warm":
                add(variant, case, name, center)
        first = own.get("call 1") or sum(own[name] for name in [*COMPILED, "rest of call 1"])
        for number in range(1, 13):
            slower = {1: first, 2: 4 * own["warm"]}.get(number, own["warm"])
            if number > 1 or "call 1" not in own:
                # What reduce-overhead records in its second call it replays from the third on.
                add(variant, case, f"call {number}", 140 if (number, own["warm"]) == (2, 0.05) else slower)
        add(variant, case, "first image", 6.5 + own["build"] + first)
    lines[-1]["values"][2] = None
    reason = "this build of torch saves no artifacts"
    lines.append(detail("compile", "start", "interpreter", [], case="mega", status="skipped", reason=reason))
    return lines


def traced() -> list[dict[str, Any]]:
    """Topics ``kernels`` and ``timeline``: many small kernels, some fused ones, a single one."""
    draw = random.Random(9)
    lines = []
    for variant, names in (("eager", NAMES[:5]), ("compile", NAMES[5:]), ("cuda", ["diffraction_f32"])):
        events = 60 if variant == "eager" else 3 * len(names)
        at = 0.0
        spent: dict[str, list[float]] = {}
        for number in range(events if variant != "cuda" else 1):
            name, length = names[number % len(names)], 3.0 + 4 * draw.random()
            lines.append(detail(variant, "timeline", name, [at, length], unit="us"))
            spent.setdefault(name, []).append(length)
            at += length + (draw.random() * 3 if number % 7 else 14.0)
        for name, lengths in spent.items():
            values = [sum(lengths) * math.exp(draw.gauss(0, 0.01)) for _ in range(3)]
            lines.append(detail(variant, "kernels", name, values, unit="us", count=len(lengths)))
        if variant == "eager":
            lines += [
                detail(variant, "kernels", ELEMENTWISE.format(f"op{n}"), [1.0 + n / 8] * 3, unit="us") for n in range(6)
            ]
    return lines


ORIGINS = {"eager_direct": "seed", "c_openmp": "seed", "compile_anchored": "own", "triton": "own", "cuda": "own"}
KINDS = {"float64/ieee": (8.0, 2e-14), "float32/ieee": (1.0, 4e-7)}
SPEED = {"eager": 60.0, "eager_direct": 55.0, "compile": 6.0, "compile_reduce_overhead": 5.8, "compile_anchored": 4.0}
SPEED |= {"c_openmp": 800.0, "triton": 2.2, "cuda": 1.9}


def _write(root: Path) -> list[records.Record]:
    draw = random.Random(7)
    cells = []
    for side in (256, 512, 1024, 2048, 4096):
        for variant, factor in SPEED.items():
            for kind, (slower, error) in KINDS.items():
                dtype, mode = kind.split("/")
                if dtype == "float64" and side != 1024:
                    continue
                worse = error * (1e4 if variant == "eager_direct" else 1 + draw.random())
                filled = cell(
                    "copy",
                    (side * side,),
                    variant,
                    around(3.0 + factor * slower * (side / 1024) ** 2, 0.01, 8, draw),
                    dtype=dtype,
                    math=mode,
                    clock="hot" if variant == "c_openmp" else "graph",
                )
                said = {"operation": "diffraction", "shape": [side, side], "error": worse, "max_error": 150 * worse}
                cells.append(filled | said | {"origin": ORIGINS.get(variant, "peer"), "peak": 150.0})
    records.write(root, run("h200", "diffraction", 8), cells)
    copied = cell("copy", (2**28,), "eager", around(2**31 / 4e12 * 1e6, 0.01, 8, draw), clock="graph")
    records.write(root, run("h200", "ceilings", 8), [copied])
    return records.load(root)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return rows_of(tmp_path_factory.mktemp("records"))


def rows_of(root: Path) -> list[Row]:
    return [replace(r, peak=150.0) for r in results.rows(_write(root)) if r.experiment == "diffraction"]


def spots(slow: int = 200, fast: int = 240) -> numpy.ndarray:
    """A lattice of spots on a dim ground, brightest in the middle."""
    y, x = numpy.mgrid[:slow, :fast].astype(float)
    y, x = (y - slow / 2 + 0.5) / 20, (x - fast / 2 + 0.5) / 20
    lattice = (numpy.cos(numpy.pi * y) * numpy.cos(numpy.pi * x)) ** 20
    return 150 * lattice * numpy.exp(-(x * x + y * y) / 8) + 1e-6


ADD, MUL = "elementwise (add)", "elementwise (Mul)"
PLACE: dict[str, Any] = {"pixel": 0.1, "centre": (10.0, 12.0)}
Rows = list[Row]
Drawn = tuple[Any, Any]
DRAW: dict[str, Callable[[Rows], Drawn]] = {
    "image": lambda rows: image_figure.image(spots(), "A lattice of spots, brightest in the middle", **PLACE),
    "waterfall": lambda rows: probe_figures.waterfall(starts(), "Importing torch takes longer than compiling"),
    "calls": lambda rows: probe_figures.calls(
        [d for d in starts() if d["variant"] != "c_openmp"], "The first two calls take longer than all that follow"
    ),
    "first_image": lambda rows: probe_figures.first_image(
        starts(), "Only the stored cubin draws its first image within 10 ms", goals=(10, 50)
    ),
    "kernels": lambda rows: probe_figures.kernels(traced(), "One kernel does what eager needs sixty for"),
    "timeline": lambda rows: probe_figures.timeline(traced(), "The device idles between eager's kernels"),
    "precision": lambda rows: over_size.precision(
        [r for r in rows if r.shape == "1024x1024"], "Removing the integer first costs nothing and gains four digits"
    ),
    "over_sizes": lambda rows: over_size.over_sizes(
        [r for r in rows if r.dtype == "float32"], "The own kernels stay near the limit at every size"
    ),
}


def test_the_synthetic_lines_are_what_a_record_holds() -> None:
    for line in [*starts(), *traced()]:
        records.parse(json.dumps({k: v for k, v in line.items() if k != "machine"}), "synthetic")


@pytest.fixture(params=sorted(DRAW))
def drawn(request: pytest.FixtureRequest, rows: Rows) -> Drawn:
    return DRAW[request.param](rows)


def content(figure: Any) -> dict[str, Any]:
    return json.loads(figure.to_json())


def points(figure: Any) -> list[dict[str, Any]]:
    """The traces of measured points that are seen."""
    scatter = [t for t in content(figure)["data"] if t["type"] == "scatter" and "markers" in t["mode"]]
    return [t for t in scatter if t["marker"].get("opacity") != 0]


def notes(figure: Any) -> list[str]:
    return [note.text for note in figure.layout.annotations]


def _walk(value: Any, key: str) -> Iterator[Any]:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        yield from _walk(child, key)
    if isinstance(value, dict):
        yield from (v for k, v in value.items() if k.endswith(key))


def _axes(figure: Any) -> dict[str, dict[str, Any]]:
    return {name: axis for name, axis in content(figure)["layout"].items() if name.startswith(("xaxis", "yaxis"))}


@pytest.mark.parametrize("name", sorted(DRAW))
def test_equal_details_give_equal_json(name: str, tmp_path: Path) -> None:
    twice = [DRAW[name](rows_of(tmp_path / folder)) for folder in ("a", "b")]
    assert twice[0][0].to_json() == twice[1][0].to_json()
    assert twice[0][1].to_string() == twice[1][1].to_string()


def test_alt_text_says_figures_and_the_table_holds_them(drawn: Drawn) -> None:
    figure, table = drawn
    alt = figure.layout.meta["alt"]
    assert any(c.isdigit() for c in alt)
    assert alt.endswith(".")
    for text in (alt, table.to_string(), figure.layout.title.text, *notes(figure)):
        assert "nan" not in text
    assert len(table) > 0


def test_title_axes_and_ground_follow_the_visual_language(drawn: Drawn) -> None:
    figure, _ = drawn
    layout = content(figure)["layout"]
    assert layout["title"]["text"].startswith("<b>")
    theme = layout.pop("template")["layout"]
    assert theme["paper_bgcolor"] == theme["plot_bgcolor"] == "rgba(0,0,0,0)"
    assert "width" not in layout
    assert [font.get("color") for font in _walk(layout, "font")] == [None] * len(list(_walk(layout, "font")))
    words = " ".join(notes(figure)) + layout["xaxis"].get("title", {}).get("text", "")
    assert words
    for axis in _axes(figure).values():
        assert axis.get("type") != "log" or "(log scale)" in axis.get("title", {}).get("text", "") + words


def test_points_carry_their_intervals_and_numbers_are_rounded(drawn: Drawn) -> None:
    for trace in points(drawn[0]):
        bars = trace.get("error_x") or trace["error_y"]
        assert len(bars["array"]) == len(bars["arrayminus"]) == len(trace["x"]) == len(trace["y"])
        assert len(trace["hovertext"]) == len(trace["x"])
    for trace in content(drawn[0])["data"]:
        for axis in ("x", "y", "base"):
            for number in trace.get(axis, []):
                assert number == formats.significant(number) or number == round(number, 3)


def test_a_variant_looks_the_same_in_every_figure(rows: Rows) -> None:
    looks: dict[str, set[tuple[str, str]]] = {}
    called = {label("diffraction", name): name for name in SPEED}
    for name in ("waterfall", "calls", "first_image", "over_sizes"):
        for trace in points(DRAW[name](rows)[0]):
            variant = called.get(trace["name"].rpartition(", ")[0]) or trace["name"].split(" ")[0].split(",")[0]
            symbol = trace["marker"]["symbol"].removesuffix("-open")
            looks.setdefault(variant, set()).add((trace["marker"]["color"], symbol))
    assert set(looks) == set(SPEED)
    known = {name: language.style(name, ORIGINS.get(name, "peer")) for name in SPEED}
    assert looks == {name: {(look.colour, look.symbol)} for name, look in known.items()}
    for trace in content(DRAW["timeline"](rows)[0])["data"]:
        assert trace["marker"]["color"] == known[trace["name"]].colour


def test_variants_of_one_page_differ_in_colour_and_in_shape() -> None:
    own = {name: language.style(name, ORIGINS.get(name, "peer")) for name in ("eager", *SPEED, "compile_max_autotune")}
    assert len({look.colour for look in own.values()}) == len({look.symbol for look in own.values()}) == len(own)
    assert len({look.place for look in own.values()}) == len(own)


# ---------------------------------------------------------------- fresh processes


def _lane(figure: Any, words: str) -> int:
    axis = figure.layout.yaxis
    return axis.tickvals[[text.replace("<br>", " ") for text in axis.ticktext].index(words)]


def test_waterfall_stages_join_up_and_end_at_the_whole(rows: Rows) -> None:
    figure, table = DRAW["waterfall"](rows)
    lane = _lane(figure, "torch.compile, nothing stored")
    bars = [
        (trace["base"][n], trace["x"][n], trace["name"])
        for trace in content(figure)["data"]
        if trace["type"] == "bar"
        for n, y in enumerate(trace["y"])
        if y == lane
    ]
    for (start, length, _), (following, _, _) in pairwise(bars):
        assert start + length == pytest.approx(following, abs=0.002)
    assert [name for _, _, name in bars][:3] == ["interpreter", "import torch", "import lab"]
    whole = next(t for t in points(figure) if t["name"] == "compile, empty")
    assert whole["x"][0] == pytest.approx(bars[-1][0] + bars[-1][1], rel=0.005)
    line = table[(table["variant"] == "compile") & (table["case"] == "empty")].iloc[0]
    assert line["autotune"] == "0"
    assert line["whole"].startswith(formats.duration(whole["x"][0] * 1e3).split(" ")[0])


def test_waterfall_takes_a_whole_first_call_for_the_rest_of_it(rows: Rows) -> None:
    figure, table = DRAW["waterfall"](rows)
    rest = next(t for t in content(figure)["data"] if t["name"] == "rest of call 1")
    assert _lane(figure, "eager PyTorch") in rest["y"]
    eager = table[table["variant"] == "eager"].iloc[0]
    assert eager["Dynamo"] == formats.MISSING
    assert eager["rest of call 1"].endswith("ms")


def test_waterfall_leaves_out_what_it_is_told_to() -> None:
    figure, table = probe_figures.waterfall(starts(), "Less", leave_out=["interpreter", "import torch"])
    assert "import torch" not in [t["name"] for t in content(figure)["data"]]
    assert "import torch" not in table.columns
    assert "without interpreter and import torch" in figure.layout.title.text
    many = ["interpreter", "import torch", "import hypatia_lab", "CUDA context"]
    figure, _ = probe_figures.waterfall(starts(), "Less", leave_out=many)
    assert "without interpreter to CUDA context" in figure.layout.title.text
    with pytest.raises(language.FigureError, match="no stage 'import numpy'"):
        probe_figures.waterfall(starts(), "Less", leave_out=["import numpy"])


def test_stages_are_told_apart_without_colour_alone() -> None:
    assert len(set(probe_figures.STAGES.values())) == len(probe_figures.STAGES)
    for (colour, pattern), (next_colour, next_pattern) in pairwise(probe_figures.STAGES.values()):
        assert colour != next_colour or pattern != next_pattern


def test_calls_name_what_reduce_overhead_does(rows: Rows) -> None:
    figure, table = DRAW["calls"](rows)
    marks = {note.text: note for note in figure.layout.annotations}
    assert {"compile", "record", "replay"} <= set(marks)
    own = next(t for t in points(figure) if t["name"] == "compile_reduce_overhead, disk")
    for word, call in (("compile", 1), ("record", 2), ("replay", 3)):
        assert marks[word].x == call
        assert 10 ** marks[word].y == pytest.approx(own["y"][call - 1], rel=0.01)
        assert (marks[word].xref, marks[word].yref) == (own["xaxis"], own["yaxis"])
    assert list(own["x"]) == list(range(1, 13))
    assert "call 12" in table.columns
    bare, _ = probe_figures.calls([d for d in starts() if d["variant"] == "cuda"], "One")
    assert not {"compile", "record", "replay"} & set(notes(bare))


def test_calls_tell_cases_of_one_variant_apart(rows: Rows) -> None:
    compiled = [t for t in points(DRAW["calls"](rows)[0]) if t["name"].startswith("compile,")]
    assert len(compiled) == 3
    assert len({t["marker"]["color"] for t in compiled}) == 1
    assert len({t.get("xaxis", "x") for t in compiled}) == 3


def test_first_image_judges_goals_by_the_interval(rows: Rows) -> None:
    figure, table = DRAW["first_image"](rows)
    assert {t.x[0] for t in figure.data if t.line.dash == "dash"} == {10, 50}
    judged = {(line["variant"], line["case"]): line["within 10 ms"] for line in table.to_dict("records")}
    assert judged["cuda", "cubin"] == "yes"
    assert judged["triton", "cubin"] == "no"
    assert judged["compile", "mega"] == formats.MISSING
    lines = [detail("cuda", "start", "first image", values, case=str(n)) for n, values in enumerate([[8, 13], [8]])]
    _, table = probe_figures.first_image(lines, "Undecided", goals=[10])
    assert list(table["within 10 ms"]) == ["undecided", "undecided"]


def test_what_was_not_measured_is_said_and_not_drawn(rows: Rows) -> None:
    for name in ("waterfall", "first_image"):
        figure, table = DRAW[name](rows)
        assert "<i>skipped</i>" in notes(figure)
        assert "compile, mega" not in [t["name"] for t in points(figure)]
        assert "skipped: this build of torch saves no artifacts" in set(table["status"])
    assert "not drawn: torch.compile, Mega-Cache (skipped)" in DRAW["calls"](rows)[0].layout.title.text


def test_a_wrong_first_image_is_never_drawn() -> None:
    wrong = [d | {"status": "wrong", "reason": "error 0.05 of the peak"} for d in starts() if d["variant"] == "triton"]
    figure, _ = probe_figures.first_image([*wrong, *(d for d in starts() if d["variant"] == "cuda")], "One is wrong")
    assert [t["name"] for t in points(figure)] == ["cuda, cubin"]
    assert "<i>wrong</i>" in notes(figure)


def test_a_missing_process_leaves_the_others() -> None:
    lines = [detail("cuda", "start", "first image", [4.0, None, 4.2]), detail("cuda", "start", "set-up", [2, None, 3])]
    figure, _ = probe_figures.first_image(lines, "Two of three")
    (point,) = points(figure)
    assert point["x"][0] == formats.significant(math.sqrt(4.0 * 4.2))
    assert "2 fresh processes" in figure.layout.title.text
    more = detail("c_openmp", "start", "first image", [4.0, 4.1, 4.2])
    assert "2 to 3 fresh processes" in probe_figures.first_image([*lines, more], "More")[0].layout.title.text
    (whole,) = points(probe_figures.waterfall(lines, "Two of three")[0])
    assert whole["x"] == [2.5]  # ms


def test_one_process_has_no_interval_and_says_so() -> None:
    figure, table = probe_figures.first_image([detail("cuda", "start", "first image", [4.0])], "One process")
    (point,) = points(figure)
    assert (point["error_x"]["array"], point["error_x"]["arrayminus"]) == ([0.0], [0.0])
    assert "no interval" in point["hovertext"][0]
    assert "no interval" in table.loc[0, "first image"]
    assert "1 fresh process" in figure.layout.title.text


def test_what_differs_is_on_the_line_and_what_is_shared_in_the_title() -> None:
    lines = [detail("cuda", "start", "first image", [4, 5], machine=m, dtype=d) for m in "ab" for d in ("float32",)]
    figure, _ = probe_figures.first_image(lines, "Two machines")
    assert list(figure.layout.yaxis.ticktext) == ["one CUDA kernel, a", "one CUDA kernel, b"]
    assert "float32/ieee" in figure.layout.title.text


def test_a_new_variant_is_drawn_with_the_look_of_its_own_name() -> None:
    lines = [
        detail("split_k", "start", "first image", [4, 5], **more) for more in ({}, {"origin": "peer", "case": "b"})
    ]
    for line, origin in zip(lines, ("own", "peer"), strict=True):
        (point,) = points(probe_figures.first_image([line], "New")[0])
        assert point["marker"]["symbol"] == language.style("split_k", origin).symbol


# ---------------------------------------------------------------- one call


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (NAMES[0], "vectorized_elementwise (sin)"),
        (NAMES[4], "CatArrayBatchedCopy"),
        (NAMES[5], "triton_poi_fused_abs_bit…sub_where_7"),
        ("diffraction_f32", "diffraction_f32"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
        ("void at::native::elementwise_kernel<4, at::native::gpu_kernel_impl<at::native::CUDAFunctor_add<float>", ADD),
        ("void at::native::elementwise_kernel<4, at::native::AUnaryFunctor<float, binary_internal::MulFunctor<f", MUL),
        ("void (anonymous namespace)::softmax_warp_forward<float>(float*)", "softmax_warp_forward"),
    ],
)
def test_kernel_names_are_shortened_and_stay_telling(name: str, short: str) -> None:
    assert probe_figures.short_kernel(name) == short


def test_kernels_gather_the_small_ones_and_keep_the_sum(rows: Rows) -> None:
    figure, table = DRAW["kernels"](rows)
    eager = next(t for t in content(figure)["data"] if t["name"] == "eager")
    own = table[table["variant"] == "eager"]
    assert len(own) == 11
    assert len(eager["x"]) == 6
    times = [d for d in traced() if (d["variant"], d["topic"]) == ("eager", "kernels")]
    assert sum(eager["x"]) == pytest.approx(sum(map(sum, (d["values"] for d in times))) / 3, rel=0.01)
    assert own["launches"].sum() == 66
    assert eager["x"][:5] == sorted(eager["x"][:5], reverse=True)
    assert "<b>eager PyTorch</b>: 66 launches, 297 µs" in notes(figure)
    assert "<b>one CUDA kernel</b>: 1 launch, 3.34 µs" in notes(figure)
    assert "6 others" in notes(figure)
    assert NAMES[0] in set(own["kernel"])


def test_operators_of_a_host_are_called_and_not_launched() -> None:
    lines = [d | {"device": "cpu"} for d in traced() if d["topic"] == "kernels"]
    figure, table = probe_figures.kernels(lines, "Operators")
    assert "<b>one CUDA kernel</b>: 1 call, 3.34 µs" in notes(figure)
    assert content(figure)["layout"]["xaxis"]["title"]["text"].startswith("time per call")
    assert {"operator", "calls"} <= set(table.columns)
    assert "launch" not in str(content(figure)["layout"])


def test_kernels_of_many_milliseconds_are_drawn_in_them() -> None:
    lines = [d for d in traced() if d["topic"] == "kernels"]
    slow = [d | {"values": [500 * value for value in d["values"]]} for d in lines]
    quick, long = (content(probe_figures.kernels(given, "Kernels")[0]) for given in (lines, slow))
    assert quick["layout"]["xaxis"]["title"]["text"].endswith("µs")
    assert long["layout"]["xaxis"]["title"]["text"].endswith("ms")
    for one, other in zip(quick["data"], long["data"], strict=True):
        assert other["x"] == pytest.approx([us / 2 for us in one["x"]], rel=0.02)


def test_timeline_shows_every_event_and_says_how_long_the_device_idles(rows: Rows) -> None:
    figure, table = DRAW["timeline"](rows)
    eager = next(t for t in content(figure)["data"] if t["name"] == "eager")
    lines = [d["values"] for d in traced() if (d["variant"], d["topic"]) == ("eager", "timeline")]
    assert eager["base"] == [round(start, 3) for start, _ in lines]
    assert eager["x"] == [round(length, 3) for _, length in lines]
    busy = sum(length for _, length in lines) / (lines[-1][0] + lines[-1][1])
    assert f"busy {100 * busy:.0f}%" in figure.layout.yaxis.ticktext[0]
    assert "longest gap 14.0 µs" in figure.layout.meta["alt"]
    assert len(table) == 60 + 3 + 1


def test_overlapping_events_count_once() -> None:
    lines = [
        detail("cuda", "timeline", f"k{n}", values, unit="us") for n, values in enumerate([[0, 6], [2, 4], [8, 2]])
    ]
    figure, table = probe_figures.timeline(lines, "Two streams")
    assert figure.layout.yaxis.ticktext == ("one CUDA kernel: busy 80%",)
    assert list(table["idle before"]) == [formats.MISSING, formats.MISSING, "2.00 µs"]


@pytest.mark.parametrize(
    ("draw", "topic"),
    [
        (probe_figures.waterfall, "start"),
        (probe_figures.calls, "start"),
        (probe_figures.first_image, "start"),
        (probe_figures.kernels, "kernels"),
        (probe_figures.timeline, "timeline"),
    ],
)
def test_nothing_to_draw_is_an_error_that_says_what_is_missing(draw: Any, topic: str) -> None:
    name = draw.__name__
    with pytest.raises(language.FigureError, match=f"{name}: no details of topic '{topic}' to draw; .* none at all"):
        draw([], "Nothing")
    with pytest.raises(language.FigureError, match="topics given: accuracy"):
        draw([detail("cuda", "accuracy", "error", [1.0])], "Nothing")
    lost = detail("cuda", topic, "call 1", [], status="skipped", reason="no nvcc here", case="cubin")
    with pytest.raises(language.FigureError, match=f"{name}: .* \\(cuda, cubin: skipped: no nvcc here"):
        draw([lost], "Nothing")


def test_names_of_cxx_kernels_say_what_runs() -> None:
    gemv = "std::enable_if<true, void>::type internal::gemvx::kernel<int, int, double, double, cublasGemvParamsEx<int>"
    tile = "cutlass_80_tensorop_d884gemm_32x32_16x5_nn_align1"
    assert probe_figures.short_kernel(gemv) == "gemvx::kernel"
    assert probe_figures.short_kernel(f"void cutlass::Kernel2<{tile}>({tile}::Params)").startswith(
        "cutlass_80_tensorop_d884"
    )


def test_long_starts_and_timelines_are_drawn_in_larger_units() -> None:
    lines = [detail("cuda", "start", "set-up", [2e4, 2.1e4]), detail("cuda", "start", "first image", [4, 5])]
    figure = content(probe_figures.waterfall(lines, "Long")[0])
    assert figure["layout"]["xaxis"]["title"]["text"] == "time, s"
    assert figure["data"][0]["x"] == [20.5]
    events = [detail("cuda", "timeline", "k", [0, 3e4], unit="us")]
    figure = content(probe_figures.timeline(events, "Long")[0])
    assert figure["layout"]["xaxis"]["title"]["text"].endswith("ms")
    assert figure["data"][0]["x"] == [30.0]


def test_intervals_are_spoken_of_only_where_there_is_one(rows: Rows) -> None:
    lines = [d | {"values": d["values"][:1]} for d in traced() if d["topic"] == "kernels"]
    bare, full = probe_figures.kernels(lines, "One")[0], DRAW["kernels"](rows)[0]
    assert "intervals" not in bare.layout.title.text
    assert "bars: 95% intervals" in full.layout.title.text
    assert not any(trace.error_x.visible for trace in bare.data)


def test_intervals_of_a_whole_start_lie_below_the_words_on_its_bar(rows: Rows) -> None:
    figure = content(DRAW["waterfall"](rows)[0])
    bars = [trace for trace in figure["data"] if trace["type"] == "bar"]
    lowest = max(trace["width"] for trace in bars) / 2
    for trace in (t for t in figure["data"] if t["type"] == "scatter"):
        assert lowest < trace["y"][0] % 1 < 0.5
