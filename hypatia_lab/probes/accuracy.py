"""Probe ``accuracy``: one output under several measures of error, to show which of them are blind.

Run as a process by :mod:`hypatia_lab.bench.sessions`. Correlation cannot see a factor, a norm hides what is small,
a mean hides what is rare. Case ``scaled`` multiplies the output by 1.1, ``faulty row`` sets one row to zero.
A wrong variant is measured like any other: what the measures make of it is the question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypatia_lab.probes.probe import Emit, Ended, Subject, probe

if TYPE_CHECKING:
    from torch import Tensor


DARK = 1e-6
"""Pixels below this share of the peak are left out of relative errors: some are zero, and few carry digits."""


def measures(out: Tensor, reference: Tensor) -> dict[str, float]:
    """Measures of ``out`` against the float64 ``reference`` of the same shape, by name, all without a unit.

    A measure that does not exist (the correlation of a constant, relative errors where all is zero) is left out.
    """
    difference, size = out.double() - reference, reference.abs()
    peak, norm = float(size.max()), float(reference.norm())
    own, its = out.double() - out.double().mean(), reference - reference.mean()
    spread = float(own.norm()) * float(its.norm())
    found = {"correlation": float((own * its).sum()) / spread} if spread else {}
    if peak > 0:
        bright = size > DARK * peak
        relative = difference[bright].abs() / size[bright]
        found |= {
            "error": float(difference.norm()) / norm,
            "mean relative error": float(relative.mean()),
            "largest relative error": float(relative.max()),
            "largest error over peak": float(difference.abs().max()) / peak,
        }
    return found


CASES = ("", "scaled", "faulty row")
"""What is wrong with the output that is looked at; nothing, where it is empty."""


def spoiled(out: Tensor, case: str) -> Tensor:
    """``out`` with the fault that ``case`` names; a row a quarter of the way down is the faulty one.

    Raises ``KeyError`` for an unknown case.
    """
    if case == "faulty row":
        out = out.clone()
        rows = out.view(-1, out.shape[-1])
        rows[len(rows) // 4] = 0
        return out
    return out * {"": 1.0, "scaled": 1.1}[case]


def look(subject: Subject, emit: Emit) -> None:
    """Emit every measure of one output. Raises :class:`Ended` for an output that cannot be compared."""
    problem = subject.problem()
    out, reference = subject.variant.factory(subject.workload, problem.inputs)(), problem.reference()
    if out.shape != reference.shape:
        raise Ended("wrong", f"wrong shape: {list(out.shape)} instead of {list(reference.shape)}")
    if not bool(out.isfinite().all()):
        raise Ended("wrong", f"{int((~out.isfinite()).sum())} of {out.numel()} elements are not finite")
    for name, value in measures(spoiled(out, subject.case), reference).items():
        emit("detail", topic="accuracy", name=name, unit="1", value=value, count=1)


if __name__ == "__main__":
    probe(look)
