"""The one variant that a probe looks at, and how every probe begins and ends."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hypatia_lab import check, messages, variants
from hypatia_lab.bench import sessions
from hypatia_lab.strangers import source_file
from hypatia_lab.workloads import Workload

Emit = Callable[..., None]


class Ended(Exception):
    """A probe that ends before its time, with a ``status`` (skipped, wrong, crashed) and the ``reason``."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True)
class Subject:
    """What a probe looks at: ``variant`` on ``workload``, its output on ``device``.

    ``case`` says which of several ways; ``folder`` outlives this process and is shared by the probe's processes,
    of which this is ``number``. ``source`` is the reader's file (path and digest) that registers the variant, if one
    does.
    """

    workload: Workload
    variant: variants.Variant
    device: str
    case: str
    folder: Path
    number: int
    source: dict[str, Any] | None = None

    @property
    def plan(self) -> dict[str, Any]:
        """What :func:`subject` makes this of, in another process."""
        plan = {"workload": asdict(self.workload), "variant": self.variant.name, "device": self.device}
        return plan | {"case": self.case, "folder": str(self.folder), "number": self.number, "source": self.source}

    def problem(self) -> check.Problem:
        """Inputs as published (draw 0) and their float64 reference, on ``device``."""
        return check.Problem(self.workload, self.device)

    def checked(self, problem: check.Problem) -> variants.Run:
        """The variant built on ``problem``'s inputs and found right. Raises :class:`Ended` when it is wrong."""
        run = self.variant.factory(self.workload, problem.inputs)
        found = check.check(run, problem)
        if not found.ok:
            raise Ended("wrong", found.reason)
        return run


def workload_of(plan: dict[str, Any]) -> Workload:
    """The workload that ``plan`` describes, its operation and variants registered."""
    operation = plan["workload"]["operation"]
    # Only what the operation needs: a fresh process is timed while it imports.
    if operation.startswith("diffraction"):
        import hypatia_lab.diffraction
    elif operation == "mlp":
        import hypatia_lab.egraph.variants
    else:
        import hypatia_lab.operations  # noqa: F401  (each registers)
    return Workload(**plan["workload"] | {"shape": tuple(plan["workload"]["shape"])})


@functools.cache
def _registered(path: str) -> None:
    """Run the reader's file ``path``, once a process: its variants are then registered. Raises ``ValueError``."""
    source_file.run(Path(path), ValueError)


def subject(plan: dict[str, Any]) -> Subject:
    """What ``plan`` asks for. Raises :class:`Ended` (skipped) when the variant cannot run here."""
    workload = workload_of(plan)
    source = plan.get("source")
    if source:
        _registered(source["path"])
    variant = variants.find(workload.operation, plan["variant"])
    missing = variant.needs(workload, plan["device"])
    if missing:
        raise Ended("skipped", missing)
    device = "cpu" if variant.host else plan["device"]
    return Subject(workload, variant, device, plan["case"], Path(plan["folder"]), plan["number"], source)


@contextmanager
def ending(emit: Emit) -> Iterator[None]:
    """Say how a probe, the body, ends where it does before its time; the traceback of a crash goes to the log."""
    try:
        yield
    except Ended as end:
        emit("status", status=end.status, reason=end.reason)
    except Exception as cause:
        traceback.print_exception(cause)
        emit("status", status="crashed", reason=messages.one_line(cause))


def probe(look: Callable[[Any, Emit], None], made: Callable[[dict[str, Any]], Any] = subject) -> None:
    """Entry of a probe's process: ``look`` at the plan's subjects, each in its math mode, and say how that ended.

    ``made(plan)`` is what is looked at, of a ``workload``: a :class:`Subject` unless the probe has a kind of its own.
    """
    plan, emit = sessions.child_plan()
    for number, one in enumerate([plan, *plan.get("more", [])]):
        emit("begin", what=one["variant"], subject=number)
        with ending(emit):
            found = made(one)
            with found.workload.precision():
                look(found, emit)
        if plan.get("more") and plan["device"] == "cuda":
            import torch

            if torch.cuda.is_initialized():
                torch.cuda.synchronize()  # a device left in error ends this process here, with this subject named
                torch.cuda.empty_cache()
    emit("end")
