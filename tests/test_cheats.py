"""Planted cheats are caught, each by name, and their honest twins are not accused."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from cheats import catalogue
from cheats.catalogue import Cheat

from hypatia_lab import machine, reader_kernel, variants
from hypatia_lab.bench import composer, sessions
from hypatia_lab.experiments import PROCESSES
from hypatia_lab.tasks import kernelbench

Row = dict[str, Any]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HERE = [one for one in catalogue.CHEATS if one.device in ("", DEVICE)]
TOGETHER = [one for one in HERE if not (one.alone or one.problem)]
AT_ONCE = {"cpu": 200, "cuda": 12}[DEVICE]
"""So many cheats in one process of a measurement, each with two more; on a GPU each has a context of its own."""
FEW = (
    "time_perf_counter",
    "by_pointer",
    "only_the_first_calls",
    "mode_threads",
    "bfloat16",
)
"""Those that are tried beside every change, for they are caught however busy a machine is; all by `make sweep`."""

alone_on_a_gpu = pytest.mark.slow if DEVICE == "cuda" else lambda test: test
"""Of a GPU it is seen that somebody computes, not who: other tests would be taken for a cheat."""


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten when it ends."""
    monkeypatch.setattr(reader_kernel, "_DECLARED", {})
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # many processes take turns on the same cores


@variants.restored()
def trial(
    source: str, names: Sequence[str], folder: Path, *, problem: str = "", number: int = 0, budget_s: float = 0.1
) -> dict[str, Row]:
    """By variant, the row of ``names`` and of eager, as one fresh process tells it of a file of the text ``source``.

    The file is not run in this process: what it would declare is written down here.
    """
    reader_kernel._DECLARED.clear()
    path = folder / "planted.py"
    path.write_text(source, encoding="utf-8")
    if problem:
        other = folder / "planted_problem.py"
        other.write_text(problem, encoding="utf-8")
        own = kernelbench.load(path, other, candidate=False)
        experiment = kernelbench.experiment(path, other, own)
    else:
        declared = folder / "planted_declared.py"
        declared.write_text(catalogue.importing("planted", DEVICE, "kernel = answer"), encoding="utf-8")
        experiment = reader_kernel.experiment(path, reader_kernel.load(declared))
    assert experiment.source is not None
    (group,) = composer.plan(experiment, "quick", DEVICE)
    group = dataclasses.replace(group, variants=("eager", *names), budget_s=budget_s)
    plan = {
        "device": DEVICE,
        "gpu": machine.gpu_uuid() if DEVICE == "cuda" else "",
        "source": dataclasses.asdict(experiment.source),
        "silence_s": 60.0,
        "folder": str(folder),
        "number": number,
        "excluded": {},
        "groups": [(0, dataclasses.asdict(group))],
    }
    rows: dict[str, Row] = {}

    def on_event(event: Row) -> None:
        if event["event"] == "row":
            rows[event["variant"]] = event

    log = folder / "log.txt"
    sessions.run_session("hypatia_lab.judged.coordinator", plan, log, on_event=on_event, silence_s=60.0)
    return rows


def told(row: Row) -> str:
    """A row's status and reason in a line."""
    return f"{row['status']}: {row['reason']}"


def caught(cheat: Cheat, row: Row) -> bool:
    """Whether a cheat's row says so, and names what it did."""
    return row["status"] in cheat.statuses and bool(re.search(cheat.named, row["reason"]))


def together(cheats: Sequence[Cheat], folder: Path, **how: Any) -> dict[str, Row]:
    """The rows of ``cheats``, their twins and eager, out of one file."""
    names = [name for one in cheats for name in (one.name, f"{one.name}_twin")]
    return trial(catalogue.factories("planted", DEVICE, cheats), names, folder, **how)


def alone(cheat: Cheat, kind: str, folder: Path, **how: Any) -> dict[str, Row]:
    """The rows of ``cheat`` or of its ``twin`` (which is the ``kind``), of a file of its own, and eager's."""
    text = getattr(cheat, kind)
    if cheat.problem:
        source = catalogue.CANDIDATE + catalogue.body(text) + "\n"
        problem = cheat.twin_problem if kind == "twin" and cheat.twin_problem else cheat.problem
        return trial(source, [kernelbench.CANDIDATE], folder, problem=problem, **how)
    return trial(catalogue.importing("planted", DEVICE, text), ["mine"], folder, **how)


def held(cheats: Sequence[Cheat], rows: dict[str, Row]) -> None:
    """Whether each of ``cheats`` was caught, and no twin accused."""
    missed = [f"{one.name}: {told(rows[one.name])}" for one in cheats if not caught(one, rows[one.name])]
    assert not missed
    honest = [name for name in rows if name == "eager" or name.endswith("_twin")]
    accused = [f"{name}: {told(rows[name])}" for name in honest if rows[name]["status"] != "ok"]
    assert not accused


def batched(cheats: Sequence[Cheat]) -> list[Sequence[Cheat]]:
    """``cheats``, as many at once as a process takes."""
    return [cheats[start : start + AT_ONCE] for start in range(0, len(cheats), AT_ONCE)]


def marked(cheats: Sequence[Cheat]) -> list[Any]:
    """As parameters: the known ones that escape are expected to, until they do not."""
    return [
        pytest.param(
            one, id=one.name, marks=[pytest.mark.xfail(reason=one.escapes, strict=True)] if one.escapes else []
        )
        for one in cheats
    ]


def test_the_catalogue_is_long_and_nothing_is_in_it_twice():
    names = [one.name for one in catalogue.CHEATS]
    assert len(names) == len(set(names)) >= 40
    assert set(FEW) <= set(names)
    for one in catalogue.CHEATS:
        re.compile(one.named)
        for kind in (one.cheat, one.twin):
            compile(catalogue.importing("planted", DEVICE, kind), one.name, "exec")


@alone_on_a_gpu
def test_some_cheats_are_caught_and_their_twins_are_not_accused(tmp_path):
    cheats = [one for one in TOGETHER if one.name in FEW]
    held(cheats, together(cheats, tmp_path))


@pytest.mark.parametrize("cheat", marked([one for one in HERE if one.name == "import_judge"]))
def test_what_acts_when_it_is_imported_is_caught(cheat, tmp_path):
    rows = alone(cheat, "cheat", tmp_path)
    assert all(caught(cheat, row) for name, row in rows.items() if name != "eager")


def test_who_dies_or_speaks_out_of_turn_is_told_how_and_the_others_go_on(tmp_path):
    deaths = """
    @variant("planted", "faults", origin="own")
    def faults(workload, inputs):
        return lambda: ctypes.string_at(0)

    @variant("planted", "leaves", origin="own")
    def leaves(workload, inputs):
        os._exit(3)

    @variant("planted", "raises", origin="own")
    def raises(workload, inputs):
        raise ValueError("not today")
    """
    source = catalogue.importing("planted", DEVICE, "kernel = answer") + catalogue.body(deaths) + "\n"
    rows = trial(source, ["faults", "leaves", "raises", "mine"], tmp_path)
    assert {name: row["status"] for name, row in rows.items() if name in ("eager", "mine")} == {
        "eager": "ok",
        "mine": "ok",
    }
    assert told(rows["faults"]) == "crashed: the process died (signal SIGSEGV)"
    assert told(rows["leaves"]) == "crashed: the process died (exit status 3)"
    assert told(rows["raises"]) == "crashed: ValueError: not today"


@pytest.mark.sweep
def test_every_cheat_is_caught_in_one_of_five_processes_and_no_twin_is_accused(tmp_path):
    left = [one for one in TOGETHER if not one.escapes]
    accused: list[str] = []
    for number in range(PROCESSES["quick"]):
        rows = dict(chain(*(together(some, tmp_path, number=number).items() for some in batched(left))))
        left = [one for one in left if not caught(one, rows[one.name])]
        accused += [f"{name}: {told(row)}" for name, row in rows.items() if "_twin" in name and row["status"] != "ok"]
    assert not accused
    assert not [one.name for one in left]


@pytest.mark.sweep
@pytest.mark.parametrize("cheat", marked([one for one in TOGETHER if one.escapes]))
def test_a_cheat_that_escapes(cheat, tmp_path):
    held([cheat], together([cheat], tmp_path))


@pytest.mark.sweep
@pytest.mark.parametrize("cheat", marked([one for one in HERE if one.alone or one.problem]))
def test_what_has_a_file_of_its_own_is_caught_and_its_twin_is_not_accused(cheat, tmp_path):
    for kind in ("twin", "cheat"):
        rows = alone(cheat, kind, tmp_path)
        (name,) = rows.keys() - {"eager"}
        right = rows[name]["status"] == "ok" if kind == "twin" else caught(cheat, rows[name])
        assert right, told(rows[name])
        eager = rows["eager"]
        assert eager["status"] == "ok" or eager["reason"].startswith("nothing was run"), told(eager)
