"""Forward passes and whole steps are never mixed: in figures, ratios, limits and probes."""

from __future__ import annotations

import pytest
from synthetic import Lines, ceilings, cells, evidence

from hypatia_lab.experiments import EXPERIMENTS, PRESETS, units
from hypatia_lab.figures import comparisons, over_size, wording
from hypatia_lab.results import Row

pytestmark = pytest.mark.usefixtures("two_processes")

STEP = cells({"eager": 290.0, "epilogue": 285.0}, direction="forward_backward")
FORWARD = cells({"eager": 75.0, "epilogue": 71.0}, direction="forward")


def read(**parts: Lines) -> list[Row]:
    top = ceilings({"ieee": 50.0, "bfloat16": 760.0})
    return evidence({"ceilings": top, **parts}).select(variant=("eager", "epilogue"), operation="linear_relu")


def test_figures_and_tables_tell_directions_apart() -> None:
    both = read(backward=STEP, aten_fusion=FORWARD)
    draw = {
        "slowdowns": lambda rows: comparisons.slowdowns(rows),
        "speedups": lambda rows: comparisons.speedups(rows),
        "times": lambda rows: comparisons.times_against_limit(rows),
        "precision": lambda rows: over_size.precision(rows, "Title"),
        "over_sizes": lambda rows: over_size.over_sizes(rows, "Title"),
    }
    for name, figure in draw.items():
        mixed, table = figure(both)
        assert "forward and backward" in mixed.to_json(), name
        assert len(set(table["workload"])) == 2, name
        alone, _ = figure([row for row in both if row.direction == "forward_backward"])
        assert "forward and backward" in alone.under, name
    assert wording.split_fields(both)[0] == ["direction"]
    with pytest.raises(comparisons.FigureError, match="one machine and workload at a time"):
        comparisons.ladder(both)


def test_ratios_and_limits_belong_to_one_direction() -> None:
    found = {row.direction: row for row in read(backward=[*STEP, *FORWARD]) if row.variant == "epilogue"}
    assert found["forward"].ratio == pytest.approx(75 / 71)
    assert found["forward_backward"].ratio == pytest.approx(290 / 285)
    assert found["forward_backward"].limit_us == pytest.approx(3 * found["forward"].limit_us)


def test_only_starts_busy_units_training_and_its_choices_are_probed_in_both_directions() -> None:
    for experiment in EXPERIMENTS.values():
        for device in ("cpu", "cuda"):
            for preset in PRESETS:
                probes = experiment.probes(preset, device, ())
                both = ("start", "training", "choice")
                rest = [probe for probe in probes if probe.topic not in both and probe.case != units.CASE]
                assert {probe.workload.direction for probe in rest} <= {"forward"}
