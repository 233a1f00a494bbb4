"""A name that there is not is told before anything runs, with the nearest one that there is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hypatia_lab import records
from hypatia_lab.bench import composer
from hypatia_lab.claims import ClaimError, ledger, load
from hypatia_lab.claims.claim import AUTHOR
from hypatia_lab.cli.claim_names import ensure_named
from hypatia_lab.experiments import EXPERIMENTS, Experiment, Group, Probe
from hypatia_lab.experiments.plan import PlanError
from hypatia_lab.messages import FEW, unknown
from hypatia_lab.workloads import Workload

# The sentence


@pytest.mark.parametrize(
    ("name", "known", "told"),
    [
        ("naiv", ["eager", "naive"], "unknown variant 'naiv' of mlp; did you mean 'naive'? known: eager, naive"),
        ("zzz", ["eager", "naive"], "unknown variant 'zzz' of mlp; known: eager, naive"),
        ("naiv", [*map(str, range(FEW)), "naive"], "unknown variant 'naiv' of mlp; did you mean 'naive'?"),
        ("", ["", "empty"], "unknown variant '' of mlp; did you mean ''? known: '', empty"),
        ("tpu", ["auto", "cpu"], "unknown variant 'tpu' of mlp; known: auto, cpu"),
        (7, [], "unknown variant 7 of mlp; known: none"),
    ],
)
def test_the_nearest_name_is_told_and_of_few_all(name, known, told):
    assert unknown("variant", name, known, "mlp") == told


# Plans


WORK = Workload("linear_relu", (4, 4, 4))


def experiment(group: Group, *probes: Probe) -> Experiment:
    return Experiment("tiny", "99_tiny", "", "linear_relu", lambda *_: [group], lambda *_: list(probes))


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (experiment(Group(WORK, ("eager", "naiv"), ("hot",), 0.1)), "tiny: unknown variant 'naiv' of linear_relu; did"),
        (experiment(Group(WORK, ("eager@agian",), ("hot",), 0.1)), "unknown variant 'eager@agian' of linear_relu; "),
        (experiment(Group(WORK, ("eager",), ("warm",), 0.1)), "tiny: unknown clock 'warm'; "),
        (experiment(Group(WORK, ("eager",), (), 0.1), Probe("start", WORK, "eagr")), "variant 'eagr' of linear_relu"),
        (experiment(Group(WORK, ("eager",), (), 0.1), Probe("strat", WORK, "eager")), "unknown topic 'strat'; did"),
        (experiment(Group(WORK, ("eager",), (), 0.1), Probe("start", WORK, "eager", "emty")), "'emty' of start; did"),
    ],
)
def test_a_plan_that_names_what_there_is_not_is_refused(spec, told):
    with pytest.raises(PlanError) as caught:
        composer.plan(spec, "quick", "cpu")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_shape_of_another_number_of_extents_is_refused():
    with pytest.raises(PlanError, match="shape 64x64 does not fit naive_vs_cublas: its shapes are batch x in x out"):
        composer.plan("naive_vs_cublas", "quick", "cpu", [(64, 64)])
    assert EXPERIMENTS["mlp_models"].fitting([(64, 64), (1, 2, 3, 4, 5)]) == [(1, 2, 3, 4, 5)]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("preset", ["quick", "seed", "full"])
def test_every_plan_of_the_lab_names_what_there_is(preset, device):
    for name, spec in EXPERIMENTS.items():
        composer.plan(name, preset, device)
        shape = tuple(range(8, 8 + len(spec.dims)))
        composer.plan(name, preset, device, [shape])  # whose extents are the operation's


# Claims


TEXT = """\
- id: MINE-1
  section: none
  claim: It is slower.
  claimed: 7.67
  unit: "×"
  quantity: slowdown
  variant: author_v1
  baseline: eager
  rewrites: {author_v1: naive}
  program: author
  experiment: aten_fusion
  workloads: [linear_relu/64x64x64/float32/ieee/forward]
  band: [6.9, 8.4]
  why: It re-reads its inputs.
- id: MINE-2
  section: none
  claim: Warm is faster.
  claimed: 4.1
  unit: "×"
  quantity: quotient
  over: {topic: start, name: call 2, case: empty, variant: compile}
  under: {variant: naive, workload: linear_relu/8x8x8/float32/tf32/forward}
  workloads: [linear_relu/64x64x64/float32/ieee/forward]
  band: [3.69, 4.51]
  why: It replays.
"""


def read(folder: Path, old: str = "", new: str = "") -> tuple[list[Any], str]:
    path = folder / "mine.yaml"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new) if old else TEXT, encoding="utf-8")
    return load(path), str(path)


def test_claims_that_name_what_there_is_pass(tmp_path):
    claims, path = read(tmp_path)
    ensure_named(claims, path)
    own = [replace(claim, experiment="mine") for claim in claims]
    ensure_named(own, path, experiment="mine")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "{author_v1: naive}",
            "{author_v1: nave}",
            "MINE-1a: unknown variant 'nave' of linear_relu; did you mean 'naive'?",
        ),
        (
            "  variant: author_v1\n  baseline: eager\n  rewrites: {author_v1: naive}\n  program: author",
            "  variant: nave",
            "MINE-1a: unknown variant 'nave'",
        ),
        ("baseline: eager", "baseline: eagr", "MINE-1a: unknown variant 'eagr' of linear_relu; did you mean 'eager'?"),
        ("aten_fusion", "aten_fusoin", "MINE-1a: unknown experiment 'aten_fusoin'; did you mean 'aten_fusion'?"),
        ("linear_relu/64", "linear_rleu/64", "MINE-1a: unknown operation 'linear_rleu'; did you mean 'linear_relu'?"),
        ("64x64x64/float32", "64x64x64/flaot32", "MINE-1a: unknown dtype 'flaot32'; did you mean 'float32'?"),
        ("float32/tf32", "float32/ft32", "MINE-2a: unknown math 'ft32' of float32; did you mean 'tf32'?"),
        ("64x64x64", "64x64", "MINE-1a: shape (64, 64) of linear_relu must be batchxinxout"),
        ("case: empty", "case: emtpy", "MINE-2a: unknown case 'emtpy' of start; did you mean 'empty'?"),
        (
            "variant: compile",
            "variant: complie",
            "MINE-2a: unknown variant 'complie' of linear_relu; did you mean 'compile'?",
        ),
        ("linear_relu/8x8x8", "linear/8x8x8", "MINE-2a: unknown variant 'naive' of linear; known: eager"),
    ],
)
def test_a_claim_that_names_what_there_is_not_is_refused_with_file_and_id(tmp_path, old, new, told):
    claims, path = read(tmp_path, old, new)
    with pytest.raises(ClaimError) as caught:
        ensure_named(claims, path)
    assert str(caught.value).startswith(f"{path}: {told}")
    assert "\n" not in str(caught.value)


def test_the_ledger_names_what_there_is_and_what_was_recorded_of_programs_from_outside():
    ensure_named(ledger())
    found = records.load()
    lines = [line for record in found for line in (*record.cells, *record.details)]
    recorded = {line["variant"] for line in lines}
    said = {(line["topic"], line["name"]) for record in found for line in record.details}
    for claim in ledger():
        assert not claim.experiment.startswith(AUTHOR) or claim.experiment in {one.experiment for one in found}
        figures = (*claim.of, *claim.over, *claim.under)
        for name in (claim.variant, claim.baseline, *(figure.variant for figure in figures)):
            assert not name.startswith(AUTHOR) or name in recorded, claim.id
        assert {(figure.topic, figure.name) for figure in figures if figure.topic} <= said, claim.id
