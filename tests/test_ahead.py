"""Kernels that several processes build before anything is measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from measuring import register_deadly

from hypatia_lab import dispatch, machine, variants
from hypatia_lab.bench import ahead, sessions
from hypatia_lab.experiments import Group
from hypatia_lab.workloads import Workload

SHAPES = ((4, 8, 16), (5, 8, 16), (6, 8, 16))
GROUPS = [
    Group(Workload("linear_relu", shape, "float32", "ieee"), ("eager", "eager@again", "cublas_relu"), ("hot",), 0.01)
    for shape in SHAPES
]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The plan of a measuring process on a CPU but for its groups, where nothing was built and cores are many."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "cores", lambda: 2 * ahead.CORES)
    monkeypatch.setattr(machine, "gpus", lambda: 1)
    (tmp_path / "parts").mkdir()
    return {"device": "cpu", "source": None, "silence_s": 60.0, "folder": str(tmp_path / "parts"), "gpu": ""}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The plans of processes that end at once, as they are asked for."""
    plans: list[dict[str, Any]] = []
    monkeypatch.setattr(sessions, "run_session", lambda module, plan, log, **how: plans.append(plan))
    return plans


def test_processes_at_once_check_every_group_and_time_nothing(work, monkeypatch):
    """With a variant of which nothing is to be compiled."""
    told: list[str] = []
    real = sessions.run_session

    def run_session(*given: Any, on_event: Any, **how: Any) -> Any:
        def listen(event: sessions.Event) -> None:
            told.append(event["event"])
            on_event(event)

        return real(*given, on_event=listen, **how)

    monkeypatch.setattr(sessions, "run_session", run_session)
    with variants.restored():
        register_deadly(monkeypatch)
        ahead.build("tiny", [replace(one, variants=("eager", "right")) for one in GROUPS], work, "key", quiet=True)
    assert told.count("done") == len(GROUPS)
    assert set(told) == {"begin", "done"}  # and no row


def test_what_was_built_here_is_not_built_again_until_something_changes(work, asked):
    ahead.build("tiny", GROUPS, work, "key", quiet=True)
    ahead.build("tiny", GROUPS, work, "key", quiet=True)
    assert len(asked) == 1
    ahead.build("tiny", GROUPS, work, "another", quiet=True)
    assert len(asked) == 2


def test_every_group_is_in_one_share_without_a_clock(work, asked):
    ahead.build("tiny", GROUPS, work, "key", quiet=True)
    shares = asked[0]["shares"]
    assert len(shares) == 2
    groups = [group for share in shares for _, group in share["groups"]]
    assert sorted(group["workload"]["shape"] for group in groups) == sorted(SHAPES)
    assert {group["clocks"] for group in groups} == {()}
    assert {group["variants"] for group in groups} == {("eager", "cublas_relu")}  # the twin is the same kernel


def test_libraries_alone_leave_nothing_to_build(work, asked):
    ahead.build("tiny", [replace(one, variants=("eager", "epilogue")) for one in GROUPS], work, "key", quiet=True)
    assert asked == []


def test_who_has_a_kind_of_workload_has_all_of_it(work, asked, monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 8 * ahead.CORES)
    kinds = ("float32", "bfloat16", "float64", "float16")
    mixed = [replace(one, workload=replace(one.workload, dtype=dtype)) for one in GROUPS for dtype in kinds]
    ahead.build("tiny", mixed, work, "key", quiet=True)
    shares = asked[0]["shares"]
    assert len(shares) == 8
    assert all(len({group["workload"]["dtype"] for _, group in share["groups"]}) == 1 for share in shares)
    numbers = sorted(number for share in shares for number, _ in share["groups"])
    assert numbers == list(range(len(mixed)))


@pytest.mark.parametrize(("cores", "gpus"), [(2 * ahead.CORES - 1, 1), (4 * ahead.CORES, 4)])
def test_nothing_is_built_ahead_on_few_cores(cores, gpus, work, asked, monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: cores)
    monkeypatch.setattr(machine, "gpus", lambda: gpus)
    ahead.build("tiny", GROUPS, work, "key", quiet=True)
    assert asked == []


def test_what_measures_or_is_built_anew_is_left_out_and_the_dispatchers_candidates_are_not():
    variants.load()
    work = Workload("mlp", (4, 784, 256, 1, 10), "float32", "ieee")
    names = tuple(variants.variants("mlp"))
    kept = ahead._buildable(Group(work, names, ("hot",), 0.1)).variants
    assert "eager" in kept
    assert not [name for name in kept if "egraph" in name or "compile" in name]
    layer = Workload("linear_relu", (4, 8, 16), "float32", "ieee")
    kept = ahead._buildable(Group(layer, ("eager", "dispatched"), ("hot",), 0.1)).variants
    contending = [name for name, one in variants.variants("linear_relu").items() if dispatch.contends(one)]
    assert "dispatched" not in kept
    assert set(contending) <= set(kept)


def test_a_process_that_dies_ends_nothing_but_its_share(monkeypatch):
    said: list[str] = []
    plan = {"shares": [{"number": 0}, {"number": 1}], "log": "log.txt", "silence_s": 1.0}

    def run_session(module: str, share: dict[str, Any], log: Path, *, on_event: Any, silence_s: float) -> Any:
        if not share["number"]:
            raise sessions.SessionError("it died")
        on_event({"event": "row", "group": 0})
        on_event({"event": "done", "group": 0})

    monkeypatch.setattr(sessions, "run_session", run_session)
    monkeypatch.setattr(sessions, "child_plan", lambda: (plan, lambda event, **told: said.append(event)))
    ahead.main()
    assert said == ["done", "end"]
