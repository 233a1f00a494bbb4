"""Probe ``choice``: which forms the dispatcher has chosen for the layers of a variant that asks it.

Run as a process by :mod:`hypatia_lab.bench.sessions`. What processes before it have chosen is stored, so nothing is
measured again.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hypatia_lab.probes.probe import Emit, Ended, Subject, probe

if TYPE_CHECKING:
    from hypatia_lab.dispatch import Dispatcher


def chosen(one: Dispatcher) -> Counter[str]:
    """How often each form is the choice for x and weight of such sizes: once for each set of gradients, say."""
    found = Counter[str]()
    for (_, _, _, x, weight, *_), form in one.chosen.items():
        sizes = "x".join(map(str, (*x, weight[0])))
        found[f"{one.operation} {sizes}: {form}"] += 1
    return found


def look(subject: Subject, emit: Emit) -> None:
    """Emit operation, sizes and form of every choice that a call needs. Raises :class:`Ended` where it needs none."""
    from torch.overrides import BaseTorchFunctionMode

    from hypatia_lab.dispatch import LINEAR_RELU

    LINEAR_RELU.forms.clear()
    LINEAR_RELU.chosen.clear()
    run = subject.variant.factory(subject.workload, subject.workload.inputs(subject.device))
    with BaseTorchFunctionMode():  # where somebody looks on, C++ does not compute a run of layers that it knows
        run()
    if not LINEAR_RELU.chosen:
        raise Ended("skipped", f"{subject.variant.name} asks the dispatcher for no layer")
    for name, count in chosen(LINEAR_RELU).items():
        emit("detail", topic="choice", name=name, unit="1", value=count, count=1)


if __name__ == "__main__":
    probe(look)
