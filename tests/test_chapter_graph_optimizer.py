"""What is said of the graph optimizer, from synthetic records; and its drawings, made here and now."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from synthetic import Lines, ceilings, detail_line, evidence_of, said, write_records
from synthetic import cells as timed

from hypatia_lab import claims, intervals
from hypatia_lab.chapters import graph_drawings
from hypatia_lab.chapters import graph_optimizer as chapter
from hypatia_lab.chapters.claims_shown import claims_of
from hypatia_lab.drawings import graph as graph_figure
from hypatia_lab.drawings.graph import Node, Panel
from hypatia_lab.experiments import EXPERIMENTS, PRESETS
from hypatia_lab.operations.conv_block import SEED_SHAPE
from hypatia_lab.operations.mlp import MODELS
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.variants import variants

pytestmark = pytest.mark.usefixtures("two_processes")

RATES = {"ieee": 50.0, "bfloat16": 760.0}
SMALL, LARGE = MODELS[0], MODELS[6]
UNET = {"operation": "unet", "dtype": "bfloat16"}


def cells(times: Mapping[str, float], shape: Sequence[int] = SMALL, **changes: Any) -> Lines:
    """Timed cells of two processes 1% apart, of which a ratio is exact."""
    return timed(times, **{"operation": "mlp", "shape": shape} | changes)


def trace(variant: str, launches: float, dtype: str = "float32") -> dict[str, Any]:
    own = {"operation": "mlp", "shape": list(SMALL), "dtype": dtype, "topic": "trace", "variant": variant}
    return detail_line(**own, name="kernel launches", unit="1", values=[launches, launches])


def listed(variant: str, kernel: str, dtype: str = "bfloat16") -> dict[str, Any]:
    own = {"operation": "mlp", "shape": list(SMALL), "dtype": dtype, "topic": "kernels", "variant": variant}
    return detail_line(**own, name=kernel, unit="us", values=[1.0, 1.0])


def graph(layers: int, ms: float, **changes: Any) -> Lines:
    own = {"operation": "mlp", "shape": [8, 64, 64, layers - 1, 64], "topic": "graph", "variant": "egraph"} | changes
    named = {"capture": 20 * ms, "graph to module, first": 5 * ms, "graph to module": ms}
    named |= {"read": 0.1 * ms, "saturate": 0.5 * ms, "extract": 0.2 * ms, "rebuild": 0.2 * ms}
    lines = [detail_line(**own, name=name, unit="ms", values=[us, 1.01 * us]) for name, us in named.items()]
    counts = {"nodes before": 2 * layers - 1, "nodes after": layers}
    return lines + [detail_line(**own, name=name, unit="1", values=[n, n]) for name, n in counts.items()]


GPU = [
    *cells({"eager": 40.0, "eager@again": 40.0, "egraph": 35.0, "compile": 36.0, "egraph_split": 34.0}),
    *cells({"eager": 85.0, "egraph": 84.9, "compile": 170.0}, clock="wall"),
    *cells({"eager": 760.0, "egraph": 740.0, "compile": 758.0, "egraph_split": 330.0}, LARGE),
    *cells({"eager": 800.0, "egraph": 780.0, "compile": 880.0, "egraph_split_called": 400.0}, LARGE, clock="wall"),
    *cells({"eager": 20.0, "egraph": 15.0, "compile": 17.0, "compile_max_autotune": 16.0}, dtype="bfloat16"),
    *cells({"eager": 120.0, "egraph": 119.0, "egraph_compile": 110.0, "compile": 100.0}, direction="forward_backward"),
    *cells({"eager": 300.0, "egraph": 299.0, "egraph_compile": 500.0}, direction="forward_backward", clock="wall"),
    *cells(
        {"eager": 500.0, "egraph_replayed": 250.0, "eager_channels_last": 400.0, "compile": 200.0}, SEED_SHAPE, **UNET
    ),
    *cells({"eager": 600.0, "egraph": 300.0}, SEED_SHAPE, **UNET, clock="wall"),
    trace("eager", 5),
    trace("egraph", 3),
    *graph(3, 10.0),
    *graph(100, 150.0),
    *graph(300, 600.0),
]
CPU = [
    *cells({"eager": 250.0, "eager@again": 250.0, "egraph": 250.5, "compile": 330.0}, clock="hot"),
    trace("eager", 5),
    trace("egraph", 5),
    *graph(100, 400.0),
]


def read(tmp_path: Path, own: Lines, device: str = "cuda", machine: str = "box") -> Evidence:
    top = ceilings(RATES, "graph" if device == "cuda" else "hot")
    write_records(tmp_path, machine, device, {"ceilings": top, "graph_optimizer": own})
    return evidence_of(tmp_path)


# ---------------------------------------------------------------- findings


def test_speed_is_told_by_both_clocks(tmp_path: Path) -> None:
    found = said(chapter.speed(read(tmp_path, GPU), "box"))
    assert found.figure == "3 of 3 faster"
    assert "batch 64, in bfloat16 and 2 models in float32, by the graph clock. Against eager: 3 faster," in found.text
    assert "1.03× to 1.33×" in found.text  # replayed
    assert "1.00× to 1.03×" in found.text  # as a caller waits


def test_each_clock_has_the_graph_of_its_own_costs(tmp_path: Path) -> None:
    every = {"egraph_replayed": 30.0, "egraph_split": 20.0, "egraph_split_called": 25.0, "compile": 31.0}
    rows = cells({"eager": 40.0, "egraph": 45.0} | every)
    every |= {"egraph_replayed": 160.0, "egraph_split": 400.0, "egraph_split_called": 50.0}
    rows += cells({"eager": 80.0, "egraph": 70.0} | every, clock="wall")
    lab = read(tmp_path, rows)
    assert said(chapter.speed(lab, "box")).title == "All optimized models are faster than eager"
    assert said(chapter.compilers(lab, "box")).title == "The optimized MLPs keep up with torch.compile"
    others = {"graph": {"egraph", "egraph_split_called"}, "wall": {"egraph_replayed", "egraph_split"}}
    for clock, other in others.items():
        there = chapter.model_rows(lab, "box", clock)
        assert {row.variant for row in there} - {row.variant for row in chapter.fitting(there)} == other
    (line,) = chapter.every(lab, "box")
    assert (line["optimized, graph"][:4], line["optimized, wall"][:4]) == ("1.33", "1.14")
    drawn = chapter.models(lab, "box")
    assert [round(row.ratio, 2) for row in drawn] == [1.33]
    assert chapter.models_title(drawn) == "1 of 1 optimized models are faster than eager"


@pytest.mark.parametrize(
    ("replayed", "waited", "title"),
    [
        ({"eager": 40.0, "egraph": 39.5}, {}, "as fast as"),
        ({"eager": 40.0, "egraph": 35.0}, {"eager": 85.0, "egraph": 95.0}, "slower in others"),
        ({"eager": 40.0, "egraph": 45.0}, {}, "slower in some cases"),
    ],
)
def test_a_longer_wait_is_told(tmp_path: Path, replayed: Any, waited: Any, title: str) -> None:
    lab = read(tmp_path, [*cells(replayed), *cells(waited, clock="wall")])
    assert title in said(chapter.speed(lab, "box")).title


def test_what_the_intervals_leave_open_is_called_open(tmp_path: Path) -> None:
    rows = cells({"eager": 40.0, "egraph": 40.0, "compile": 40.0})
    for medians, tell in (([39.5, 41.0], lambda f: f.title[-4:]), ([30.0, 50.0], lambda f: f.figure)):
        rows[1]["medians_us"] = medians
        lab = read(tmp_path / str(medians[0]), rows)
        for found in (said(chapter.speed(lab, "box")), said(chapter.compilers(lab, "box"))):
            assert tell(found) in ("open", intervals.TOO_NOISY)


def test_calls_and_time_are_held_against_the_documents_picture(tmp_path: Path) -> None:
    found = said(chapter.same_runtime(read(tmp_path, GPU), "box"))
    assert (found.figure, found.title) == ("5 → 3 launches", "Fusing in the graph saves calls")
    assert "In float32: 5 → 3, at 1.14× the speed." in found.text
    more = [trace("eager", 5, "bfloat16"), trace("egraph", 5, "bfloat16")]
    partly = said(chapter.same_runtime(read(tmp_path / "partly", [*GPU, *more]), "box"))
    assert (partly.figure, partly.title) == ("5 → 5 and 5 → 3 launches", found.title)
    more += [listed("eager", "a"), listed("egraph", "b")]
    others = said(chapter.same_runtime(read(tmp_path / "others", [*GPU, *more]), "box"))
    assert others.title == "Speed comes from other kernels, not only from fewer"
    assert "In bfloat16: 5 → 5, by other kernels, at 1.33× the speed." in others.text
    same = [*GPU, *more[:-1], listed("egraph", "a")]
    assert "other" not in said(chapter.same_runtime(read(tmp_path / "same", same), "box")).text
    replayed = said(chapter.same_runtime(read(tmp_path / "replayed", [*GPU, trace("egraph_replayed", 4)]), "box"))
    assert replayed.figure == "5 → 4 launches"
    assert said(chapter.same_runtime(read(tmp_path / "cpu", CPU, "cpu"), "box")).figure == "5 → 5 operators"


def test_compilers_are_rivals(tmp_path: Path) -> None:
    found = said(chapter.compilers(read(tmp_path, GPU), "box"))
    assert found.figure == "3 of 3 not slower"
    assert "autotune" not in found.text  # one case alone
    assert "not timed" not in found.text
    tuned = [*GPU, *cells({"eager": 760.0, "egraph": 740.0, "compile_max_autotune": 780.0}, LARGE, dtype="bfloat16")]
    found = said(chapter.compilers(read(tmp_path / "tuned", tuned), "box"))
    assert "max-autotune it is 1.05× to 1.07×, in 2 cases" in found.text
    assert "In 1 further case torch.compile" in found.text
    slow = cells({"eager": 40.0, "egraph": 35.0, "compile": 30.0})
    assert said(chapter.compilers(read(tmp_path / "slow", slow), "box")).title.startswith("torch.compile is faster")


def test_split_products_are_judged_in_wide_models_only(tmp_path: Path) -> None:
    found = said(chapter.split(read(tmp_path, GPU), "box"))
    assert found.figure == "2.3×"
    assert "made for calls has 2.0× as a caller waits" in found.text
    assert chapter.split(read(tmp_path / "small", GPU[:5]), "box") is None


def test_the_unet_is_judged_by_both_clocks(tmp_path: Path) -> None:
    found = said(chapter.blocks(read(tmp_path, GPU), "box"))
    assert found.figure == "2.0×"
    assert "0.800×. So torch.compile is faster by the graph clock." in found.text
    slow = cells({"eager": 500.0, "egraph": 550.0}, SEED_SHAPE, **UNET, clock="wall")
    fast = cells({"eager": 500.0, "egraph_replayed": 400.0, "egraph": 900.0}, SEED_SHAPE, **UNET)
    assert "slower by another" in said(chapter.blocks(read(tmp_path / "slow", slow + fast), "box")).title
    assert "slower" in said(chapter.blocks(read(tmp_path / "slower", slow), "box")).title
    assert said(chapter.blocks(read(tmp_path / "fast", fast), "box")).figure == "1.25×"
    level = cells({"eager": 500.0, "egraph": 500.0}, SEED_SHAPE, **UNET, clock="wall")
    assert said(chapter.blocks(read(tmp_path / "one", fast + level), "box")).title.endswith("model by the graph clock")
    assert chapter.blocks(read(tmp_path / "none", GPU[:5]), "box") is None


def test_a_training_step_is_judged_by_both_clocks(tmp_path: Path) -> None:
    assert said(chapter.training(read(tmp_path, GPU), "box")).figure == "2 of 2 not slower"
    rows = cells({"eager": 120.0, "egraph": 130.0}, direction="forward_backward")
    found = said(chapter.training(read(tmp_path / "slow", rows), "box"))
    assert (found.figure, "slower in some" in found.title) == ("0.923×", True)  # one case is not counted
    assert chapter.speed(evidence_of(tmp_path / "slow"), "box") is None


@pytest.mark.parametrize(("ms", "word"), [(150.0, "within"), (400.0, "longer"), (249.0, "open")])
def test_a_hundred_layers_have_a_goal(tmp_path: Path, ms: float, word: str) -> None:
    found = said(chapter.optimizing(read(tmp_path, [*cells({"eager": 1.0}), *graph(100, ms)]), "box"))
    assert word in found.title
    assert found.figure.startswith(f"{20 * ms / 1e3:.0f}")  # what takes longest comes first


def test_a_probe_that_failed_says_why(tmp_path: Path) -> None:
    lines = [detail_line(**(graph(100, 1.0)[0] | {"values": [], "status": "wrong", "reason": "it looks like x"}))]
    lab = read(tmp_path, [*cells({"eager": 1.0}), *lines])
    assert chapter.optimizing(lab, "box") is None
    assert "it looks like x" in chapter.stages(lab, "box")[0]["nodes"]


# ---------------------------------------------------------------- tables


def test_a_line_a_model_dtype_and_direction(tmp_path: Path) -> None:
    lines = chapter.every(read(tmp_path, GPU), "box")
    assert [(line["dtype"], line["direction"]) for line in lines] == [
        ("bfloat16", "forward"),
        ("float32", "forward"),
        ("float32", "forward"),
        ("float32", "forward and backward"),
    ]
    assert lines[1]["optimized, graph"].startswith("1.14×")
    assert lines[0]["optimized, split operands, graph"] == "–"


def test_stages_are_told_by_length(tmp_path: Path) -> None:
    lines = chapter.stages(read(tmp_path, GPU), "box")
    assert [(line["layers"], line["nodes"]) for line in lines] == [
        ("3", "5 → 3"),
        ("100", "199 → 100"),
        ("300", "599 → 300"),
    ]
    assert lines[1]["saturate"].startswith("75")


# ---------------------------------------------------------------- drawings and rules


def test_the_scenario_keeps_its_last_relu() -> None:
    panels, words = graph_drawings.scenario()
    assert [len(panel.boxes) for panel in panels] == [7, 4]
    assert graph_drawings.scenario_title(panels) == "6 nodes become 3, the last ReLU among them"
    assert words.endswith("The last pair is fused like the others.")


def test_the_rounds_end_in_one_kernel() -> None:
    panels, words = graph_drawings.rounds()
    assert [panel.caption for panel in panels] == [
        "round 0: as captured",
        "round 1: LinearRelu",
        "round 2: Mlp2",
        "round 3: Mlp3",
    ]
    assert words.endswith("cheapest: Mlp3.")
    chosen = [way.label for ways in panels[-1].boxes for way in ways if way.chosen]
    assert chosen == ["Mlp3"]


def test_a_drawing_is_one_well_formed_svg_with_its_words() -> None:
    read = Panel(
        "reads <far>", ((Node("x"),), (Node("a", (0,)), Node("b", (0,), new=True)), (Node("c", (0, 1), chosen=True),))
    )
    text = graph_figure.drawn([read, read], "Title & more", "In words", "key").svg()
    tree = ElementTree.fromstring(text)
    name = "{http://www.w3.org/2000/svg}"
    assert tree.get("role") == "img"
    assert [tree.findtext(f"{name}{tag}") for tag in ("title", "desc")] == ["Title & more", "In words"]
    labels = [node.text for node in tree.iter(f"{name}text")]
    assert labels == ["reads <far>", "x", "a", "b", "c"] * 2
    # Everything lies inside the drawing, the edge that passes outside the others too.
    width, height = (float(value) for value in (tree.get("viewBox") or "").split()[2:])
    assert (width, height) == (2 * read.size[0], read.size[1])
    assert graph_figure._places([read] * 5)[1:] == (2 * read.size[0], 3 * height)
    assert read.lanes == [0]
    for line in (*tree.iter(f"{name}polyline"), *tree.iter(f"{name}polygon")):
        for point in (line.get("points") or "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height
    assert not re.search(r'"#(?!009E73)', text)


def test_every_own_rule_holds_and_every_wrong_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chapter, "TRIALS", 12)  # the gate's own tests take more
    lines = chapter.rules()
    assert {line["gate"] for line in lines if line["goal"].startswith("none")} == {"refused"}
    stated = [(line["rule"], line["where"]) for line in lines]
    assert len(set(stated)) == len(stated), "a condition tells a rule that holds from the same that is refused"
    assert {line["gate"] for line in lines if not line["goal"].startswith("none")} == {"holds"}
    assert len(chapter.REFUSED) >= 8
    assert chapter.gate(lines).title == "Every rule passes its gate, and wrong ones do not"
    spoilt = [line | {"gate": "holds"} for line in lines]
    assert chapter.gate(spoilt).title == "The gate and the rules disagree"


# ---------------------------------------------------------------- plan and claims


def test_the_plan_asks_what_the_chapter_reads() -> None:
    spec = EXPERIMENTS[chapter.EXPERIMENT]
    assert spec.notebook == chapter.PAGE
    groups = spec.plan("full", "cuda", [])
    assert {group.workload.shape for group in groups} >= set(MODELS)
    asked = {name.removesuffix("@again") for group in groups for name in group.variants}
    rivals = {"eager", "eager_channels_last", "compile", "compile_max_autotune"}
    assert asked == rivals | {*chapter.PLAIN_PAIR, *chapter.SPLIT_PAIR, "egraph_compile"}
    for group in groups:
        assert {name.removesuffix("@again") for name in group.variants} <= set(variants(group.workload.operation))
    for device in ("cpu", "cuda"):
        for preset in PRESETS:
            layers = [p.workload.shape[3] + 1 for p in spec.probes(preset, device, ()) if p.topic == "graph"]
            assert chapter.LONG in layers


def test_claims_on_graphs_are_judged_from_records(tmp_path: Path) -> None:
    rows = claims.judge(read(tmp_path, GPU).records, claims_of(chapter.PAGE))
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row.id, set()).add(row.verdict)
    expected = {"55a": "confirmed", "56a": "not_testable", "17c": "not_testable", "55b": "not_testable"}
    expected |= {"19c": "conditional", "55c": "confirmed", "47b": "not_testable"}
    assert {number: expected[number] in found[f"S004-{number}"] for number in expected} == dict.fromkeys(expected, True)
