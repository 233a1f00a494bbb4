"""Probe ``choice``: which forms the dispatcher has chosen for the layers of a variant that asks it.

Run as a process by :mod:`hypatia_lab.bench.sessions`. What processes before it have chosen is stored, so nothing is
measured again.
"""

from __future__ import annotations

from hypatia_lab.probes.probe import Emit, Ended, Subject, probe


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
    for (_, _, _, x, weight, *_), form in LINEAR_RELU.chosen.items():
        sizes = "x".join(map(str, (*x, weight[0])))
        emit("detail", topic="choice", name=f"{LINEAR_RELU.operation} {sizes}: {form}", unit="1", value=1, count=1)


if __name__ == "__main__":
    probe(look)
