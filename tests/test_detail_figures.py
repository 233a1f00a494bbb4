"""Figures of details, of size and precision, and of the image: from synthetic lines, without torch."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy
import pytest
import synthetic
from drawn import Drawn, cells, is_language, points, shown
from test_figures import around

from hypatia_lab import formats, records, results
from hypatia_lab.figures import image as image_figure
from hypatia_lab.figures import language, over_size
from hypatia_lab.figures import probes as probe_figures
from hypatia_lab.figures import shares as share_figure
from hypatia_lab.figures import traffic as traffic_figures
from hypatia_lab.results import Row

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
    own = {"operation": "diffraction", "shape": list(SHAPE), "variant": variant, "topic": topic, "name": name}
    return synthetic.detail_line(**own | {"values": list(values), "machine": "h200"} | more)


def starts() -> list[dict[str, Any]]:
    """Topic ``start``: five processes a way; one way was skipped, one process of another has no value."""
    lines = []
    for (variant, case), own in STARTS.items():
        times: dict[str, float] = LIBRARIES | {"set-up": 6.5} | own
        warm = times.pop("warm")
        first = own.get("call 1") or sum(own[name] for name in [*COMPILED, "rest of call 1"])
        # What reduce-overhead records in its second call it replays from the third on.
        second = 140 if variant == "compile_reduce_overhead" else 4 * warm
        times |= {"call 1": first, "call 2": second} | {f"call {number}": warm for number in range(3, 13)}
        times["first image"] = 6.5 + own["build"] + first
        lines += [
            detail(variant, "start", name, [x * time for x in (0.95, 0.98, 1, 1.03, 1.05)], case=case)
            for name, time in times.items()
        ]
    lines[-1]["values"][2] = None
    reason = "this build of torch saves no artifacts"
    return [*lines, detail("compile", "start", "interpreter", [], case="mega", status="skipped", reason=reason)]


def traced() -> list[dict[str, Any]]:
    """Topics ``kernels`` and ``timeline``: many small kernels, some fused ones, a single one."""
    lines = [detail("eager", "kernels", ELEMENTWISE.format(f"op{n}"), [1.0 + n / 8] * 3, unit="us") for n in range(6)]
    of_variants = {"eager": (NAMES[:5], 60), "compile": (NAMES[5:], 3), "cuda": (["diffraction_f32"], 1)}
    for variant, (names, events) in of_variants.items():
        at, spent = 0.0, dict.fromkeys(names, 0.0)
        for number in range(events):
            name, length = names[number % len(names)], 3.34 + number % 4
            lines.append(detail(variant, "timeline", name, [at, length], unit="us"))
            spent[name] += length
            at += length + (1.5 if number % 7 else 14.0)
        for name, whole in spent.items():
            values = [x * whole for x in (0.99, 1, 1.01)]
            lines.append(detail(variant, "kernels", name, values, unit="us", count=events // len(names)))
    return lines


ORIGINS = {"eager_direct": "rebuilt", "c_openmp": "rebuilt", "compile_anchored": "own", "triton": "own", "cuda": "own"}
DTYPES = {"float64": (8.0, 2e-14), "float32": (1.0, 4e-7)}
"""dtype → how much longer it takes, and its error."""
SPEED = {"eager": 60.0, "eager_direct": 55.0, "compile": 6.0, "compile_reduce_overhead": 5.8, "compile_anchored": 4.0}
SPEED |= {"c_openmp": 800.0, "triton": 2.2, "cuda": 1.9}


@pytest.fixture(scope="module", name="rows")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return rows_of(tmp_path_factory.mktemp("records"))


def rows_of(root: Path) -> list[Row]:
    draw = random.Random(7)
    lines = []
    for side, variant, dtype in product((256, 512, 1024, 2048, 4096), SPEED, DTYPES):
        if dtype == "float64" and side != 1024:
            continue
        slower, error = DTYPES[dtype]
        error *= 1e4 if variant == "eager_direct" else 1 + draw.random()
        who = {"operation": "diffraction", "shape": [side, side], "variant": variant, "dtype": dtype}
        who |= {"origin": ORIGINS.get(variant, "peer"), "clock": "hot" if variant == "c_openmp" else "graph"}
        told = {"flops": 0, "traffic": 8 * side**2, "error": error, "max_error": 150 * error, "peak": 150.0}
        times = around(3.0 + SPEED[variant] * slower * (side / 1024) ** 2, 0.01, 8, draw)
        lines.append(synthetic.cell_line(**who, **told, medians_us=times))
    synthetic.write_records(root, "h200", "cuda", {"diffraction": lines, "ceilings": synthetic.ceilings({})})
    found = results.rows(records.load(root))
    return [replace(r, peak=150.0) for r in found if r.experiment == "diffraction"]


def spots(slow: int = 200, fast: int = 240) -> numpy.ndarray:
    """A lattice of spots on a dim ground, brightest in the middle."""
    y, x = numpy.mgrid[:slow, :fast].astype(float)
    y, x = (y - slow / 2 + 0.5) / 20, (x - fast / 2 + 0.5) / 20
    lattice = (numpy.cos(numpy.pi * y) * numpy.cos(numpy.pi * x)) ** 20
    return 150 * lattice * numpy.exp(-(x * x + y * y) / 8) + 1e-6


ADD, MUL = "elementwise (add)", "elementwise (Mul)"
PLACE: dict[str, Any] = {"pixel": 0.1, "centre": (10.0, 12.0)}
Rows = list[Row]
DRAW: dict[str, Callable[[Rows], Drawn]] = {
    "image": lambda rows: image_figure.image(spots(), "A lattice of spots, brightest in the middle", **PLACE),
    "waterfall": lambda rows: probe_figures.waterfall(starts(), "Importing torch takes longer than compiling"),
    "calls": lambda rows: probe_figures.calls([d for d in starts() if d["variant"] != "c_openmp"], "Two take long"),
    "first_image": lambda rows: probe_figures.first_image(starts(), "Only the cubin is quick", goals=(10, 50)),
    "kernels": lambda rows: probe_figures.kernels(traced(), "One kernel does what eager needs sixty for"),
    "timeline": lambda rows: probe_figures.timeline(traced(), "The device idles between eager's kernels"),
    "precision": lambda rows: over_size.precision([r for r in rows if r.shape == "1024x1024"], "Digits are gained"),
    "over_sizes": lambda rows: over_size.over_sizes([r for r in rows if r.dtype == "float32"], "Near the limit"),
}


def test_the_synthetic_lines_are_what_a_record_holds() -> None:
    for line in [*starts(), *traced()]:
        records.parse(json.dumps({k: v for k, v in line.items() if k != "machine"}), "synthetic")


@pytest.mark.parametrize("name", sorted(DRAW))
def test_equal_details_give_equal_figures_in_the_one_language(name: str, tmp_path: Path) -> None:
    twice = [DRAW[name](rows_of(tmp_path / folder)) for folder in ("a", "b")]
    for figure, table in twice:
        is_language(figure, table)
    assert twice[0][0].to_json() == twice[1][0].to_json()
    assert twice[0][1].to_string() == twice[1][1].to_string()


def test_a_variant_looks_the_same_in_every_figure(rows: Rows) -> None:
    known = {name: language.style(name, ORIGINS.get(name, "peer")) for name in SPEED}
    for name in ("waterfall", "first_image", "kernels", "timeline"):
        for one in cells(DRAW[name](rows)[0]):
            look = known[one.key.split(",")[0]]
            if name in ("waterfall", "first_image"):
                assert (one.look.colour, one.look.symbol) == (look.colour, look.symbol)
            else:
                assert {part.look for part in one.segments} == {(look.colour, "")}


# ---------------------------------------------------------------- fresh processes


def _lane(figure: Any, key: str) -> Any:
    (found,) = (one for one in cells(figure) if one.key == key)
    return found


def test_waterfall_stages_join_up_and_end_at_the_whole(rows: Rows) -> None:
    figure, table = DRAW["waterfall"](rows)
    lane = _lane(figure, "compile, empty")
    for part, following in pairwise(lane.segments):
        assert part.start + part.length == pytest.approx(following.start)
    assert [part.said.split(":")[0] for part in lane.segments][:3] == list(LIBRARIES)[:3]
    assert [part.look for part in lane.segments][:2] == [probe_figures.STAGES[name] for name in list(LIBRARIES)[:2]]
    assert lane.triple[0] == pytest.approx(lane.segments[-1].start + lane.segments[-1].length)
    (mark,) = (mark for mark in shown(figure) if mark.key == "compile, empty")
    assert mark.places["bars"][-1] == pytest.approx(mark.places["marker"][-1], abs=0.1)
    told = {(line["variant"], line["case"]): line for line in table.to_dict("records")}
    assert [told["compile", "empty"][name] for name in ("autotune", "whole")] == ["0", lane.text]
    assert [name for _, name in figure.key] == [name for name in probe_figures.STAGES if name != "autotune"]
    # A whole first call is taken for the rest of it.
    assert _lane(figure, "eager").segments[-1].said.startswith("rest of call 1")
    assert table[table["variant"] == "eager"].iloc[0]["Dynamo"] == formats.MISSING


def test_waterfall_leaves_out_what_it_is_told_to() -> None:
    figure, table = probe_figures.waterfall(starts(), "Less", leave_out=["interpreter", "import torch"])
    assert "import torch" not in [name for _, name in figure.key]
    assert "import torch" not in table.columns
    assert "without interpreter and import torch" in figure.under
    with pytest.raises(language.FigureError, match="no stage 'import numpy'"):
        probe_figures.waterfall(starts(), "Less", leave_out=["import numpy"])


def test_calls_name_what_reduce_overhead_does(rows: Rows) -> None:
    figure, table = DRAW["calls"](rows)
    own = next(t for t in points(figure) if t["name"] == "compile_reduce_overhead, disk")
    assert [text.split()[0] for text in own["text"][:3]] == ["compile", "record", "replay"]
    assert list(own["x"]) == list(range(1, 13))
    assert "call 12" in table.columns
    compiled = [t for t in points(figure) if t["name"].startswith("compile,")]
    assert len(compiled) == len({t.get("xaxis", "x") for t in compiled}) == 3
    assert len({t["marker"]["color"] for t in compiled}) == 1


def test_goals_of_a_first_image_are_lines(rows: Rows) -> None:
    figure, _ = DRAW["first_image"](rows)
    assert [block.lines for block in figure.blocks] == [[(10e3, "dash"), (50e3, "dash")]]


def test_what_was_not_measured_is_said_and_not_drawn(rows: Rows) -> None:
    for name in ("waterfall", "first_image"):
        figure, table = DRAW[name](rows)
        assert figure.body.count("<em>skipped</em>") == 1
        assert "compile, mega" not in [mark.key for mark in shown(figure)]
        assert "skipped: this build of torch saves no artifacts" in set(table["status"])
    assert "not drawn: torch.compile, Mega-Cache (skipped)" in DRAW["calls"](rows)[0].under


def test_a_wrong_first_image_is_never_drawn() -> None:
    wrong = [d | {"status": "wrong", "reason": "error 0.05 of the peak"} for d in starts() if d["variant"] == "triton"]
    figure, _ = probe_figures.first_image([*wrong, *(d for d in starts() if d["variant"] == "cuda")], "One is wrong")
    assert [mark.key for mark in shown(figure)] == ["cuda, cubin"]
    assert "<em>wrong</em>" in figure.body


def test_a_missing_process_leaves_the_others() -> None:
    lines = [detail("cuda", "start", "first image", [4.0, None, 4.2]), detail("cuda", "start", "set-up", [2, None, 3])]
    figure, _ = probe_figures.first_image(lines, "Two of three")
    assert _lane(figure, "cuda").triple[0] == pytest.approx(1e3 * math.sqrt(4.0 * 4.2))
    assert "2 fresh processes" in figure.under
    more = detail("c_openmp", "start", "first image", [4.0, 4.1, 4.2])
    assert "2 to 3 fresh processes" in probe_figures.first_image([*lines, more], "More")[0].under
    assert _lane(probe_figures.waterfall(lines, "Two of three")[0], "cuda").triple[0] == 2500


def test_one_process_has_no_interval_and_says_so() -> None:
    figure, table = probe_figures.first_image([detail("cuda", "start", "first image", [4.0])], "One process")
    (mark,) = shown(figure)
    assert mark.places["ends"] == []
    assert all("no interval" in text for text in (mark.text, table.loc[0, "first image"]))
    assert "1 fresh process" in figure.under
    assert not any("intervals" in part for part in figure.under), "they are spoken of only where there is one"


def test_what_differs_is_on_the_row_and_what_is_shared_above() -> None:
    lines = [detail("cuda", "start", "first image", [4, 5], machine=m) for m in "ab"]
    figure, _ = probe_figures.first_image(lines, "Two machines")
    assert [mark.row for mark in shown(figure)] == ["one CUDA kernel, a", "one CUDA kernel, b"]
    assert "float32/ieee" in figure.under


# ---------------------------------------------------------------- one call


GEMV = "std::enable_if<true, void>::type internal::gemvx::kernel<int, int, double, double, cublasGemvParamsEx<int>"
TILE = "cutlass_80_tensorop_d884gemm_32x32_16x5_nn_align1"


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
        (GEMV, "gemvx::kernel"),
        (f"void cutlass::Kernel2<{TILE}>({TILE}::Params)", "cutlass_80_tensorop_d884…5_nn_align1"),
        ("void (anonymous namespace)::softmax_warp_forward<float>(float*)", "softmax_warp_forward"),
    ],
)
def test_kernel_names_are_shortened_and_stay_telling(name: str, short: str) -> None:
    assert probe_figures.short_kernel(name) == short


def test_kernels_gather_the_small_ones_and_keep_the_sum(rows: Rows) -> None:
    figure, table = DRAW["kernels"](rows)
    own, drawn = table[table["variant"] == "eager"], [one for one in cells(figure) if one.key == "eager"]
    lengths = [part.length for one in drawn for part in one.segments]
    assert (len(own), len(drawn)) == (11, 6)
    times = [d for d in traced() if (d["variant"], d["topic"]) == ("eager", "kernels")]
    assert sum(lengths) == pytest.approx(sum(map(sum, (d["values"] for d in times))) / 3)
    assert own["launches"].sum() == 66
    assert lengths[:5] == sorted(lengths[:5], reverse=True)
    headings = [block.heading for block in figure.blocks]
    assert {"eager PyTorch: 66 launches, 298 µs", "one CUDA kernel: 1 launch, 3.34 µs"} <= set(headings)
    assert drawn[-1].name == "6 others"
    assert NAMES[0] in set(own["kernel"])
    assert len({axis for block in figure.blocks for axis in block.axes().values()}) == 1, "bars are compared"


def test_operators_of_a_host_are_called_and_not_launched() -> None:
    lines = [d | {"device": "cpu"} for d in traced() if d["topic"] == "kernels"]
    figure, table = probe_figures.kernels(lines, "Operators")
    assert "one CUDA kernel: 1 call, 3.34 µs" in [block.heading for block in figure.blocks]
    assert {"operator", "calls"} <= set(table.columns)
    assert "launch" not in figure.to_json()


def test_timeline_shows_every_event_and_says_how_long_the_device_idles(rows: Rows) -> None:
    figure, table = DRAW["timeline"](rows)
    eager = _lane(figure, "eager")
    lines = [d["values"] for d in traced() if (d["variant"], d["topic"]) == ("eager", "timeline")]
    assert [(part.start, part.length) for part in eager.segments] == [tuple(line) for line in lines]
    assert {part.strength for part in eager.segments} == {1.0, 0.6}
    busy = sum(length for _, length in lines) / (lines[-1][0] + lines[-1][1])
    assert f"busy {100 * busy:.0f}%" in eager.text
    assert "longest gap 14.0 µs" in figure.alt
    assert len(table) == 60 + 3 + 1


def test_overlapping_events_count_once() -> None:
    lines = [
        detail("cuda", "timeline", f"k{n}", values, unit="us") for n, values in enumerate([[0, 6], [2, 4], [8, 2]])
    ]
    figure, table = probe_figures.timeline(lines, "Two streams")
    assert "busy 80%" in _lane(figure, "cuda").text
    assert list(table["idle before"]) == [formats.MISSING, formats.MISSING, "2.00 µs"]


def test_traffic_stacks_what_kernels_read_and_write_beside_what_a_call_has_to_move() -> None:
    topics = {"counters": 4e6, "dram_read": 3e6, "l2_written": 2e6}
    lines = [
        detail("cuda", topic, "compulsory bytes" if topic == "counters" else "k", [moved] * 2, unit="B", count=2)
        for topic, moved in topics.items()
    ]
    figure, table = traffic_figures.traffic(lines, "Bytes")
    is_language(figure, table)
    lane = _lane(figure, "cuda")
    assert [(part.start, part.length, part.look[1]) for part in lane.segments] == [(0, 3, ""), (3, 2, "/")]
    assert lane.text == "5.00 MB"
    assert figure.blocks[0].lines == [(4.0, "solid")]
    assert list(table["read, MB"]) == ["3.00"]
    with pytest.raises(language.FigureError, match="differ in shape"):
        traffic_figures.traffic([*lines, *(line | {"shape": [8, 8]} for line in lines)], "Two shapes")


def test_shares_are_parts_of_a_whole() -> None:
    figure, table = share_figure.shares({"a": ["ahead", "behind", "ahead", "level"], "none": []}, "Shares", ["here"])
    is_language(figure, table)
    (lane,) = cells(figure)
    assert [(part.start, part.length) for part in lane.segments] == [(0, 50), (50, 25), (75, 25)]
    assert [name for _, name in figure.key] == ["ahead", "level", "behind"]
    assert (list(table["ahead"]), list(table["of"])) == (["2"], ["4"])
    with pytest.raises(language.FigureError, match="no look for lost"):
        share_figure.shares({"a": ["lost"]}, "Shares", [])
    with pytest.raises(language.FigureError, match="nothing to count"):
        share_figure.shares({"a": []}, "Shares", [])


@pytest.mark.parametrize("name", ["waterfall", "calls", "first_image", "kernels", "timeline"])
def test_nothing_to_draw_is_an_error_that_says_what_is_missing(name: str) -> None:
    draw, topic = getattr(probe_figures, name), name if name in ("kernels", "timeline") else "start"
    with pytest.raises(language.FigureError, match=f"{name}: no details of topic '{topic}' to draw; .* none at all"):
        draw([], "Nothing")
    with pytest.raises(language.FigureError, match="topics given: accuracy"):
        draw([detail("cuda", "accuracy", "error", [1.0])], "Nothing")
    lost = detail("cuda", topic, "call 1", [], status="skipped", reason="no nvcc here", case="cubin")
    with pytest.raises(language.FigureError, match=f"{name}: .* \\(cuda, cubin: skipped: no nvcc here"):
        draw([lost], "Nothing")
