"""Plans as data: what a setting picks of an axis, and which groups and probes come of it."""

from __future__ import annotations

import pytest

from hypatia_lab.experiments.axes import SLOW, Looks, Setting, Sweep, experiment
from hypatia_lab.experiments.plan import PlanError

SMALL, LARGE, ASKED, MORE = (4, 8, 6), (8, 16, 12), (3, 3, 3), (5, 5, 5)
SHAPES = {"quick": (SMALL,), "cuda": (SMALL, LARGE)}


def groups(sweep: Sweep, preset: str, device: str, *shapes: tuple[int, ...]) -> list[tuple[object, ...]]:
    """Shape, dtype, math, variants and clocks of each group."""
    found = sweep(Setting(preset, device, shapes))
    return [(g.workload.shape, g.workload.dtype, g.workload.math, g.variants, g.clocks) for g in found]


@pytest.mark.parametrize(
    ("at", "picked"),
    [
        (Setting("quick", "cpu"), 1),
        (Setting("quick", "cuda"), 2),
        (Setting("seed", "cuda"), 3),
        (Setting("full", "cuda", (ASKED,)), 4),
        (Setting("full", "cpu"), ()),
    ],
)
def test_the_first_key_whose_words_all_fit_is_picked(at, picked):
    among = {"quick cpu": 1, "quick": 2, "asked": 4, "cuda": {LARGE: 5, "": 3}}
    assert at.pick(among) == picked
    assert at.pick(7) == 7
    assert Setting("seed", "cuda").pick(among, LARGE) == 5


def test_a_key_of_an_unknown_word_is_an_error_wherever_it_stands():
    with pytest.raises(KeyError, match="'qick'.*quick"):
        Setting("quick", "cpu").pick({"quick": 1, "qick cuda": 2})


def test_a_sweep_is_over_shapes_and_then_kinds_each_with_its_own_values():
    sweep = Sweep(
        *("linear_relu", SHAPES, ("eager", {"tf32": "epilogue", LARGE: {"bfloat16": "triton"}}), "tf32 bfloat16"),
        clocks={"first bfloat16": "graph wall", "": "graph"},
    )
    assert groups(sweep, "full", "cuda") == [
        (SMALL, "float32", "tf32", ("eager", "epilogue"), ("graph",)),
        (SMALL, "bfloat16", "ieee", ("eager",), ("graph", "wall")),
        (LARGE, "float32", "tf32", ("eager", "epilogue"), ("graph",)),
        (LARGE, "bfloat16", "ieee", ("eager", "triton"), ("graph",)),
    ]
    assert groups(sweep, "full", "cpu") == groups(sweep, "full", "cpu", ASKED) == []


@pytest.mark.parametrize(
    ("asked", "shapes"),
    [("each", [ASKED, MORE]), ("first", [ASKED]), ("dropped", []), ("kept", [SMALL, LARGE])],
)
def test_shapes_that_are_asked_for_take_the_place_of_a_sweeps_own(asked, shapes):
    sweep = Sweep("linear_relu", SHAPES, "eager", asked=asked)
    assert [found[0] for found in groups(sweep, "seed", "cuda", ASKED, MORE)] == shapes
    assert [found[0] for found in groups(sweep, "seed", "cuda")] == [SMALL, LARGE]


def test_what_is_costly_is_left_out_where_time_is_short():
    sweep = Sweep("linear_relu", (SMALL,), "eager ?compile #peers #apart")

    def names(preset: str, device: str) -> tuple[str, ...]:
        return next(sweep(Setting(preset, device))).variants

    assert names("quick", "cpu") == ("eager",)
    assert names("quick", "cuda") == names("full", "cpu") == ("eager", "compile")
    rest = names("full", "cuda")[2:]
    assert "jax" in rest
    assert len(rest) == len(set(rest)) > 1
    slow = Sweep("linear_relu", ((SLOW + 1, 1, 1),), "eager", clocks={"slow": "hot", "": "hot cold"})
    assert [groups(slow, "full", device)[0][-1] for device in ("cpu", "cuda")] == [("hot",), ("hot", "cold")]


def test_an_experiment_is_its_parts_one_after_the_other():
    looks = Looks("linear_relu", SHAPES, "eager naive", topic="counters", processes={"first": 3, "": 1})
    spec = experiment(
        *("tiny", "none", "", Sweep("linear_relu", (SMALL,), "eager")),
        *(lambda at: Sweep("linear_relu", (LARGE,), "naiv" if at.preset == "full" else "naive")(at),),
        probes=(looks,),
    )
    assert spec.operation == "linear_relu"
    assert [(g.workload.shape, g.variants) for g in spec.groups("seed", "cpu")] == [
        (SMALL, ("eager",)),
        (LARGE, ("naive",)),
    ]
    found = [(p.topic, p.workload.shape, p.variant, p.processes) for p in spec.probes("seed", "cuda", ())]
    assert found == [
        *(("counters", SMALL, name, 3) for name in ("eager", "naive")),
        *(("counters", LARGE, name, 1) for name in ("eager", "naive")),
    ]
    with pytest.raises(PlanError, match="naiv"):
        spec.groups("full", "cpu")
