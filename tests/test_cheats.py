"""Planted cheats are caught, each by name, and their honest twins are not accused."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import sol_problems
from cheats.catalogue import MEMORY, REFUSED, REPLACED, WRONG, Cheat, catalogue
from kernel_tensors import DEVICE

from hypatia_lab import machine
from hypatia_lab.bench import joining, sessions
from hypatia_lab.experiments import PROCESSES, Source
from hypatia_lab.strangers import kernelbench, reader_kernel, sol_execbench

Row = dict[str, Any]
HERE = Path(__file__).resolve().parent
PLANTED, CANDIDATES = HERE / "cheats" / "planted.py", HERE / "cheats" / "kernelbench"
CLOCKS = {"cpu": ["hot"], "cuda": ["graph", "wall"]}[DEVICE]
SIZE = {"cpu": 256, "cuda": 2048}[DEVICE]
"""Some work for the device."""
CHEATS = [one for one in catalogue().values() if one.device in ("", DEVICE)]
TOGETHER = [one for one in CHEATS if one.acts not in ("imported", "by lot")]
AT_ONCE = {"cpu": 200, "cuda": 12}[DEVICE]
"""So many cheats in one process of a measurement, each with two more; on a GPU each has a context of its own."""
USUAL = "hypatia_lab.judged.coordinator"
FEW = ("time_perf_counter", "by_pointer", "only_the_first_calls", "mode_threads", "bfloat16", "threads_that_sleep")
"""Those that are tried beside every change, for they are caught however busy a machine is; all by `make sweep`."""
DEATHS = ("faults", "exits", "raises")
AS: tuple[dict[str, str], ...] = ({}, {"PLANTED_HONEST": "1"})
"""What a candidate is told: to cheat, or to be honest."""

alone_on_a_gpu = pytest.mark.slow if DEVICE == "cuda" else lambda test: test
"""Of a GPU it is seen that somebody computes, not who: other tests would be taken for a cheat."""


def trial(
    source: Source,
    operation: str,
    shape: list[int],
    names: Sequence[str],
    folder: Path,
    told: Mapping[str, str],
    number: int = 0,
    module: str = USUAL,
) -> dict[str, Row]:
    """By variant, the row of ``names`` and of eager, as one fresh process tells it, whose environment is ``told``.

    Nothing of what is planted runs in this process.
    """
    workload = {"operation": operation, "shape": shape, "dtype": "float32", "math": "ieee"}
    plan = {
        "device": DEVICE,
        "gpu": machine.gpu_uuid() if DEVICE == "cuda" else "",
        "source": dataclasses.asdict(source),
        "silence_s": 60.0,
        "folder": str(folder),
        "number": number,
        "excluded": {},
        "groups": [(0, {"workload": workload, "variants": ["eager", *names], "clocks": CLOCKS, "budget_s": 0.1})],
    }
    rows: dict[str, Row] = {}

    def on_event(event: Row) -> None:
        if event["event"] == "row":
            rows[event["variant"]] = event

    # Many processes take turns on the same cores.
    env = {**told, "PYTHONPATH": os.pathsep.join([str(HERE), *sessions.path().values()]), "OMP_WAIT_POLICY": "passive"}
    log = folder / "log.txt"
    sessions.run_session(module, plan, log, on_event=on_event, silence_s=60.0, env=env)
    return rows


def planted(names: Sequence[str], folder: Path, number: int = 0, module: str = USUAL) -> dict[str, Row]:
    """The rows of the variants ``names`` of one file, and eager's."""
    environment = {"PLANTED": " ".join(names), "PLANTED_SHAPE": f"{SIZE}x{SIZE}"}
    source = Source(str(PLANTED), reader_kernel.digest(PLANTED))
    return trial(source, "planted", [SIZE, SIZE], names, folder, environment, number, module)


def candidate(name: str, problem: str, folder: Path, honest: bool = False) -> dict[str, Row]:
    """The rows of the candidate ``name`` for the KernelBench problem ``problem``, and eager's."""
    path, other = (CANDIDATES / f"{one}.py" for one in (name, problem))
    source = Source(str(path), kernelbench.digest(path, other), kernelbench.KIND, problem=str(other))
    shape = [64, 65536] if problem == "mean" else [256, 256]
    return trial(source, f"kernelbench_{problem}", shape, [kernelbench.CANDIDATE], folder, AS[honest])


def solved(name: str, folder: Path, honest: bool = False) -> dict[str, Row]:
    """The rows of the solution ``name`` of a problem of SOL-ExecBench, and eager's."""
    text = (HERE / "cheats" / "sol_execbench" / f"{name}.py").read_text()
    path, other = sol_problems.solution(folder, text), sol_problems.problem(folder, [sol_problems.workload(SIZE)])
    source = Source(str(path), sol_execbench.digest(path, other), sol_execbench.KIND, problem=str(other))
    return trial(source, "sol_execbench_rms_norm_h96", [SIZE], [sol_execbench.CANDIDATE], folder, AS[honest])


def told(row: Row) -> str:
    """A row's status and reason in a line."""
    return f"{row['status']}: {row['reason']}"


def caught(cheat: Cheat, row: Row) -> bool:
    """Whether a cheat's row says so, and names what it did."""
    return row["status"] in cheat.statuses and bool(re.search(cheat.named, row["reason"]))


def missed(cheats: Sequence[Cheat], rows: dict[str, Row]) -> list[str]:
    return [f"{one.name}: {told(rows[one.name])}" for one in cheats if not caught(one, rows[one.name])]


def accused(rows: dict[str, Row]) -> list[str]:
    """What is said of those that are honest and did not come through."""
    honest = [name for name in rows if name == "eager" or name.endswith("_twin")]
    return [f"{name}: {told(rows[name])}" for name in honest if rows[name]["status"] != "ok"]


def with_twins(cheats: Sequence[Cheat]) -> list[str]:
    return [name for one in cheats for name in (one.name, f"{one.name}_twin")]


def marked(cheats: Sequence[Cheat]) -> list[Any]:
    """As parameters: the known ones that escape are expected to, until they do not."""
    marks = {one.name: [pytest.mark.xfail(reason=one.escapes, strict=True)] if one.escapes else [] for one in cheats}
    return [pytest.param(one, id=one.name, marks=marks[one.name]) for one in cheats]


@pytest.mark.parametrize("module", [USUAL, "small_gpu"])
@alone_on_a_gpu
def test_some_cheats_are_caught_and_named_and_neither_twins_nor_the_others_suffer(tmp_path, module):
    few, deaths = ([catalogue()[name] for name in names] for names in (FEW, DEATHS))
    rows = planted([*with_twins(few), *DEATHS], tmp_path, module=module)
    assert not missed([*few, *deaths], rows)
    assert not accused(rows)


@pytest.mark.sweep
def test_every_cheat_is_caught_in_one_of_five_processes_and_no_twin_is_accused(tmp_path):
    left, rows, found = [one for one in TOGETHER if not one.escapes], dict[str, Row](), list[str]()
    for number in range(PROCESSES["quick"]):
        for start in range(0, len(left), AT_ONCE):
            rows |= planted(with_twins(left[start : start + AT_ONCE]), tmp_path, number)
        left = [one for one in left if not caught(one, rows[one.name])]
        found += accused(rows)
    assert not found
    assert not missed(left, rows)


@pytest.mark.sweep
@pytest.mark.parametrize("cheat", marked([one for one in TOGETHER if one.escapes]))
def test_a_cheat_that_escapes(cheat, tmp_path):
    rows = planted(with_twins([cheat]), tmp_path)
    assert not accused(rows)
    assert not missed([cheat], rows)


@pytest.mark.sweep
@pytest.mark.parametrize("cheat", [one for one in CHEATS if one.acts == "by lot"], ids=lambda one: one.name)
def test_who_cheats_by_lot_is_caught_over_five_processes(cheat, tmp_path):
    rows = [planted(with_twins([cheat]), tmp_path, number) for number in range(PROCESSES["quick"])]
    assert not [told for one in rows for told in accused(one)]
    assert cheat.named in joining.by_lot([one[cheat.name] for one in rows])[0]
    assert not joining.by_lot([one[f"{cheat.name}_twin"] for one in rows])[0]


def held(caught: bool, rows: dict[str, Row]) -> None:
    """Whether the one that is judged is ``caught``, and eager has its numbers, unless nobody has."""
    assert caught, rows
    assert rows["eager"]["status"] == "ok" or rows["eager"]["reason"].startswith("nothing was run"), rows


@pytest.mark.sweep
@pytest.mark.parametrize("cheat", marked([one for one in CHEATS if one.acts == "imported"]))
def test_what_acts_when_it_is_imported_is_caught_and_its_twin_is_not_accused(cheat, tmp_path):
    twin = planted([f"{cheat.name}_twin"], tmp_path)
    assert not accused(twin)
    rows = planted([cheat.name], tmp_path)
    held(caught(cheat, rows[cheat.name]), rows)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "problem", "statuses", "named"),
    [
        ("remembered", "norm_linear", ("cheated",), MEMORY),
        pytest.param(
            *("weights_known", "norm_linear", WRONG, "wrong values"),
            marks=pytest.mark.xfail(reason="a candidate may know weights as Model constructs them", strict=True),
        ),
        ("zeros", "always_zero", REFUSED, "the same in every draw"),
        ("mean_known", "mean", WRONG, "wrong values|low precision"),
        ("patched_timer", "norm_linear", ("cheated",), f"{REPLACED} time.perf_counter"),
        ("callers_output", "centred", WRONG, "wrong values"),
        ("same_memory", "positive", ("cheated",), "its output is the memory of its input 'x'"),
    ],
)
def test_a_candidate_that_cheats_is_caught_and_its_twin_is_not(name, problem, statuses, named, tmp_path):
    honest = "centred" if problem == "always_zero" else problem  # nobody can solve the first
    rows = candidate(name, honest, tmp_path, honest=True)
    assert {row["status"] for row in rows.values()} == {"ok"}, rows
    rows = candidate(name, problem, tmp_path)
    row = rows[kernelbench.CANDIDATE]
    held(row["status"] in statuses and bool(re.search(named, row["reason"])), rows)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "statuses", "named"),
    [
        ("lazy", WRONG, "wrong type: Lazy"),
        ("later", WRONG, "stale|wrong|unwritten|NaN|remembers|goes on|outside"),
        ("patched_events", ("cheated",), f"{REPLACED} torch.cuda.*elapsed_time"),
        ("written_once", WRONG, "stale|unwritten|NaN|wrong values|remembers answers"),
        ("tolerance_spent", WRONG, "unwritten"),
        pytest.param(
            *("streams", WRONG, "clock was changed|not among other calls|stale|goes on|wrong values|unwritten|NaN"),
            marks=pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU"),
        ),
    ],
)
def test_a_solution_that_cheats_is_caught_and_its_twin_is_not(name, statuses, named, tmp_path):
    rows = solved(name, tmp_path, honest=True)
    assert {row["status"] for row in rows.values()} == {"ok"}, rows
    row = solved(name, tmp_path)[sol_execbench.CANDIDATE]
    assert row["status"] in statuses
    assert re.search(named, row["reason"]), row
    if name == "tolerance_spent":
        assert row["beside"]["failed"] == 0, "by the format's own rule it is right"
