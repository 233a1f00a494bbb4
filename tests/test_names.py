"""A name that there is not is told before anything runs, with the nearest one that there is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tabled import CASES, tabled

from hypatia_lab import records
from hypatia_lab.bench import composer
from hypatia_lab.claims import ClaimError, ledger, load
from hypatia_lab.claims.claim import AUTHOR, Figure
from hypatia_lab.cli.claim_names import ensure_named
from hypatia_lab.experiments import EXPERIMENTS, Experiment, Group, Probe
from hypatia_lab.experiments.plan import PlanError
from hypatia_lab.messages import unknown
from hypatia_lab.workloads import Workload

# The sentence


@tabled("names", "nearest")
def test_the_nearest_name_is_told_and_of_few_all(name, known, told):
    assert unknown("variant", name, known, "mlp") == told


# Plans


WORK = Workload("linear_relu", (4, 4, 4))


@tabled("names", "plans")
def test_a_plan_that_names_what_there_is_not_is_refused(variant, clocks, probe, told):
    group = Group(WORK, (variant,), tuple(clocks), 0.1)
    probes = [Probe(topic, WORK, *more) for topic, *more in probe]
    spec = Experiment("tiny", "99_tiny", "", "linear_relu", lambda *_: [group], lambda *_: probes)
    with pytest.raises(PlanError) as caught:
        composer.plan(spec, "quick", "cpu")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_shape_of_another_number_of_extents_is_refused():
    with pytest.raises(PlanError, match="shape 64x64 does not fit naive_vs_cublas: its shapes are batch x in x out"):
        composer.plan("naive_vs_cublas", "quick", "cpu", [(64, 64)])
    assert EXPERIMENTS["mlp_models"].fitting([(64, 64), (1, 2, 3, 4, 5)]) == [(1, 2, 3, 4, 5)]


# Claims


TEXT = (CASES / "claims_of_mine.yaml").read_text(encoding="utf-8")


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


@tabled("names", "claims")
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


def named(workload: Workload) -> str:
    return "/".join([workload.operation, workload.shape_text, workload.dtype, workload.math, workload.direction])


ONLY_IN_FULL = ("tensor_cores", "warm_up")
"""Experiments of which the full preset alone measures what decides some claim."""


def planned(experiment: str) -> Iterator[tuple[str, str, str]]:
    """Workload, variant, and clock or topic of what ``experiment`` measures and looks at on a GPU."""
    spec = EXPERIMENTS[experiment]
    for preset in ("seed", "full") if experiment in ONLY_IN_FULL else ("seed",):
        for group in spec.plan(preset, "cuda", ()):
            yield from itertools.product([named(group.workload)], group.variants, group.clocks)
        for probe in spec.probes(preset, "cuda", ()):
            yield named(probe.workload), probe.variant, probe.topic


@pytest.mark.parametrize("experiment", sorted(EXPERIMENTS.keys() & {claim.experiment for claim in ledger()}))
def test_whatever_decides_a_claim_is_measured_by_its_experiment(experiment):
    there = {*planned(experiment), *planned("ceilings")}
    for claim in ledger():
        if claim.experiment == experiment:
            sides = [Figure(name, clock=claim.clock) for name in (claim.variant, claim.baseline) if name]
            for workload, figure in itertools.product(claim.workloads, [*claim.of, *claim.over, *claim.under] or sides):
                variant = dict(claim.rewrites).get(figure.variant, figure.variant)
                what = figure.topic or figure.clock or "graph"
                assert (figure.workload or workload, variant, what) in there, claim.id
