"""The ladder of Linear+ReLU kernels: each step beside the step before it, and beside the library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hypatia_lab import intervals
from hypatia_lab.intervals import Interval
from hypatia_lab.operations.linear_relu import ladder_along_k as later
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.readings import fastest, labelled
from hypatia_lab.results import Row
from hypatia_lab.variants import label, names

LADDERS = (("ladder_vector", "ladder_tensor"), ("ladder_cpu",))
"""Tags of the steps on a GPU, and on a CPU."""
TRITON = "triton"
LIBRARY = ("epilogue", "eager")
DTYPES = ("float32", "bfloat16")


def steps() -> tuple[str, ...]:
    """The steps, easiest first: all variants that are registered as one, for a GPU, then for a CPU."""
    return tuple(titles())


def titles() -> dict[str, str]:
    """Step, easiest first → its number and what a person calls it, such as ``3 · column in registers``.

    0 is the start. Files of kernels bear these numbers, so a step that was put in later has that of the one before it,
    and a letter.
    """
    found: dict[str, str] = {}
    for tags in LADDERS:
        own = dict.fromkeys(name for tag in tags for name in names("linear_relu", tag))
        own.pop(later.NAME, None)
        for number, name in enumerate(own):
            if name == later.BEFORE:
                found[later.NAME] = f"{number - 1}b"
            found[name] = str(number)
    return {name: f"{number} · {label('linear_relu', name)}" for name, number in found.items()}


def title(row: Row) -> str:
    """What a page calls what made ``row``: a step with its number, another variant as everywhere."""
    return titles().get(row.variant) or labelled(row)


def order() -> dict[str, str]:
    """Lanes of the figure, easiest first, and what they are called; the library is last."""
    return titles() | {name: label("linear_relu", name) for name in (TRITON, *LIBRARY)}


@dataclass(frozen=True)
class Rung:
    """A kernel of the ladder, with the library at its best for the same size and numbers.

    ``before`` is the step before it; None of the first step, and of what is no step.
    """

    row: Row
    before: Row | None
    library: Row

    @property
    def gain(self) -> Interval:
        """Its speed over the step before; nothing of the first."""
        return self.before.over(self.row) if self.before else intervals.NOTHING

    @property
    def share(self) -> Interval:
        """Its speed as a share of the library's."""
        return self.library.over(self.row)


def climbs(data: Evidence, machine: str, dtype: str) -> dict[str, list[Rung]]:
    """Shape, largest first → the steps in ``dtype``, easiest first, then the Triton kernel and the library at its best.

    A shape without the library, or with a single step, is left out.
    """
    rows = data.timed(machine, experiment="gemm_ladder", operation="linear_relu", dtype=dtype, status="ok")
    found: dict[str, list[Rung]] = {}
    for shape in dict.fromkeys(row.shape for row in reversed(rows)):
        own = {row.variant: row for row in rows if row.shape == shape}
        library, path = fastest(own.values(), LIBRARY), [own[name] for name in steps() if name in own]
        if library is None or len(path) < 2:
            continue
        climb = [Rung(row, before, library) for row, before in zip(path, [None, *path], strict=False)]
        beside = [own[TRITON]] if TRITON in own else []
        found[shape] = [*climb, *(Rung(row, None, library) for row in (*beside, library))]
    return found


def gains(data: Evidence, machine: str, step: str) -> Iterator[Rung]:
    """``step`` at every size, largest first, where it and the step before it were timed."""
    for dtype in DTYPES:
        for climb in climbs(data, machine, dtype).values():
            yield from (rung for rung in climb if rung.row.variant == step and rung.gain.n)


def best(climb: list[Rung]) -> Rung:
    """The quickest step of a climb."""
    return min((rung for rung in climb if rung.row.variant in steps()), key=lambda rung: rung.row.median_us)
