"""Measuring by processes that answer at once: what the tests of :mod:`hypatia_lab.bench` share."""

from __future__ import annotations

import json
import os
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from synthetic import run_line

from hypatia_lab import records
from hypatia_lab.bench import composer, joining
from hypatia_lab.bench.sessions import Casualty
from hypatia_lab.experiments import Experiment, Group, Probe
from hypatia_lab.workloads import Workload

SMALL, LARGE = (4, 8, 6), (8, 16, 12)
NAMES = ("eager", "eager@again", "epilogue")
DEADLY = Path(__file__).parent / "deadly"


def group(shape: tuple[int, ...] = SMALL, names: tuple[str, ...] = NAMES, clocks: tuple[str, ...] = ("hot",)) -> Group:
    """Variants of Linear+ReLU on one tiny workload, timed for a moment."""
    return Group(Workload("linear_relu", shape), names, clocks, 0.0)


def tiny(*groups: Group, probes: Sequence[Probe] = (), **how: Any) -> Experiment:
    """An experiment that always plans ``groups`` (one over SMALL, if none), in one process unless ``how`` differs."""
    planned = list(groups) or [group()]
    how = {"plan": lambda *_: planned, "probes": lambda *_: list(probes), "processes": 1} | how
    return Experiment("tiny", "none", "a test", "linear_relu", **how)


def answer(index: int, name: str, word: str, **changes: Any) -> dict[str, Any]:
    """A row as a measuring process reports it."""
    row = {"group": index, "variant": name, "clock": word, "status": "ok", "reason": "", "error": 1e-7}
    row |= {"max_error": 1e-6, "median_us": 100.0, "samples_us": [99.0, 100.0, 101.0, 100.0], "calls": 5}
    return row | {"sm_mhz": [], "power_w": [], "throttled": False} | changes


def give_ceilings(root: Path, *, us: float = 1e-3, **run: Any) -> Path:
    """A ceilings record of a machine that takes ``us`` for SMALL's arithmetic and half of it for its bytes."""
    work = Workload("linear_relu", SMALL)

    def cell(operation: str, shape: tuple[int, ...], median_us: float, **amounts: int) -> dict[str, Any]:
        row = answer(0, "eager", "hot", median_us=median_us, samples_us=[])
        one = Group(Workload(operation, shape), ("eager",), ("hot",), 0.0)
        return joining.cell(one, "eager", "hot", [[row]], 0, {}) | amounts

    cells = [
        cell("matmul", (16, 16, 16), us, flops=work.flops, traffic=0),
        cell("copy", (1024,), us / 2, flops=0, traffic=work.traffic),
    ]
    return records.write(root, run_line(experiment="ceilings", processes=1) | run, cells, overwrite=True)


class Lab:
    """Measures under ``root`` as machine "box", on the CPU, by processes that answer every row of the plan at once.

    It stands in for ``run_session``, and remembers what it was given. ``alter(number, index, name)`` changes a row;
    ``casualties`` are handed out first, one a session, each after the groups before it are done.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plans: list[dict[str, Any]] = []
        self.told: list[dict[str, Any]] = []
        self.casualties: list[Casualty] = []
        self.alter: Callable[[int, int, str], dict[str, Any]] = lambda number, index, name: {}

    def measure(self, *groups: Group, **how: Any) -> records.Record:
        """The record of :func:`tiny`; of ``how`` what is :func:`composer.measure`'s goes there."""
        settings = {"preset", "device", "shapes", "overwrite", "silence_s", "early", "alone"} & set(how)
        asked = {name: how.pop(name) for name in settings}
        return self.measure_experiment(tiny(*groups, **how), **asked)

    def measure_experiment(self, experiment: str | Experiment, **asked: Any) -> records.Record:
        """The record of ``experiment``, without a progress bar."""
        return composer.measure(experiment, **{"machine_name": "box", "root": self.root, "progress": False} | asked)

    def __call__(
        self, module: str, plan: dict[str, Any], log: Path, *, on_event: Any, env: dict[str, str], **more: Any
    ) -> Casualty | None:
        guarded = (plan["source"] or {"kind": "program"})["kind"] != "program"
        assert module == f"hypatia_lab.{'judged.coordinator' if guarded else 'bench.cells'}"
        assert log.parent.is_dir()
        plan = json.loads(json.dumps(plan))  # as the child would see it
        self.plans.append(plan)
        self.told.append({"env": env, **more})
        casualty = self.casualties.pop(0) if self.casualties else None
        for index, described in plan["groups"]:
            for name in ("", *described["variants"]):
                on_event({"event": "begin", "what": [index, name]})
                if casualty and casualty.what == [index, name]:
                    return casualty
                if not name:
                    continue
                left_out = plan["excluded"].get(f"{index}/{name}") or plan["excluded"].get(f"{index}/")
                status, reason = left_out or ("ok", "")
                changes = self.alter(plan["number"], index, name)
                if status != "ok":
                    changes |= {"status": status, "reason": reason, "median_us": None, "samples_us": []}
                for word in described["clocks"] or ["none"]:
                    on_event({"event": "row", **answer(index, name, word), **changes})
            on_event({"event": "done", "group": index})
        return None

    def measured(self) -> list[list[int]]:
        """Group numbers by session."""
        return [[index for index, _ in plan["groups"]] for plan in self.plans]

    def interrupted(self, *groups: Group, session: int = 0, at: int = 0, **how: Any) -> None:
        """Measure until group ``at`` of that ``session``, where the run is interrupted. Sessions take longer by and by:
        100 µs times their number."""

        def alter(number: int, index: int, name: str) -> dict[str, Any]:
            if (len(self.plans), index) == (session + 1, at):
                raise KeyboardInterrupt
            return {"median_us": 100.0 * len(self.plans)}

        self.alter = alter
        with pytest.raises(KeyboardInterrupt):
            self.measure(*groups, **how)


def by_variant(record: records.Record) -> dict[str, dict[str, Any]]:
    """Variant → its cell, where each has one."""
    return {cell["variant"]: cell for cell in record.cells}


def register_deadly(patch: pytest.MonkeyPatch) -> None:
    """Registers the variants of ``deadly/``, here and in every fresh Python process started from here."""
    patch.setenv("PYTHONPATH", str(DEADLY), prepend=os.pathsep)
    runpy.run_path(str(DEADLY / "deadly.py"))
