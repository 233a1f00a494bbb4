"""How each claimed quantity follows from rows of results: which rows, and what figure their times give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypatia_lab.claims.claim import Claim
from hypatia_lab.results import Row

Key = tuple[str, str, str]
"""(workload, variant, clock) of a row."""


@dataclass(frozen=True)
class Quantity:
    """How a claimed quantity follows from rows of one experiment.

    ``subject`` is the noun phrase of the reason; ``keys(claim, workload, clock)`` names the rows; ``figure`` turns
    their times in one process (µs, in that order) and the last row into the figure; ``logarithmic`` quantities
    are averaged as ratios, the others as they are.
    """

    subject: str
    keys: Callable[[Claim, str, str], list[Key]]
    figure: Callable[[Sequence[float], Row], float]
    logarithmic: bool = True


def part_of(workload: str, name: str) -> str:
    """The workload of the part ``name`` of a Linear+ReLU (batch x in x out): relu (batch x out) or linear."""
    _, shape, dtype, math_mode, direction = workload.split("/")
    if name == "relu":  # it multiplies nothing, so it has no math mode but its dtype's its_row
        batch, _, columns = shape.split("x")
        shape, math_mode = f"{batch}x{columns}", "ieee"
    return "/".join((name, shape, dtype, math_mode, direction))


def its_row(claim: Claim, workload: str, clock: str) -> list[Key]:
    """The row of the claim's variant."""
    return [(workload, claim.variant, clock)]


def both_rows(claim: Claim, workload: str, clock: str) -> list[Key]:
    """The rows of the claim's baseline and variant."""
    return [(workload, claim.baseline, clock), (workload, claim.variant, clock)]


def _launch(claim: Claim, workload: str, clock: str) -> list[Key]:
    return [(name, "eager", c) for name in (workload, part_of(workload, "linear")) for c in ("wall", "graph")]


QUANTITIES = {
    "ratio": Quantity("the speed of {variant} relative to {baseline}", both_rows, lambda t, row: t[0] / t[1]),
    "slowdown": Quantity("the time of {variant} relative to {baseline}", both_rows, lambda t, row: t[1] / t[0]),
    "constant": Quantity("the time of {variant} relative to {baseline}", both_rows, lambda t, row: t[1] / t[0]),
    "time": Quantity("the time of {variant}", its_row, lambda t, row: t[0] / 1e3),  # ms
    "rate": Quantity("the arithmetic rate of {variant}", its_row, lambda t, row: row.flops / t[0] / 1e3),  # GFLOP/s
    "bandwidth": Quantity(  # GB/s
        "the compulsory traffic of {variant} over its time", its_row, lambda t, row: row.traffic / t[0] / 1e3
    ),
    "attained": Quantity(  # %
        "the share of what the measured ceilings allow that {variant} reaches",
        its_row,
        lambda t, row: 100 * row.limit_us / t[0],
    ),
    "share": Quantity(  # %
        "the time of {part} alone as a share of eager Linear+ReLU",
        lambda claim, workload, clock: [(workload, "eager", clock), (part_of(workload, claim.part), "eager", clock)],
        lambda t, row: 100 * t[1] / t[0],
    ),
    "saving": Quantity(  # ms
        "the time that {variant} saves over {baseline}",
        both_rows,
        lambda t, row: (t[0] - t[1]) / 1e3,
        logarithmic=False,
    ),
    "launch": Quantity(  # µs: what the ReLU adds to a caller's wait, beyond what it adds on the GPU itself
        "the launch overhead that the separate ReLU adds (wall clock less CUDA graph, with ReLU less without)",
        _launch,
        lambda t, row: (t[0] - t[1]) - (t[2] - t[3]),
        logarithmic=False,
    ),
    "max_error": Quantity(
        "the largest error of {variant} against float64", its_row, lambda t, row: row.max_error, logarithmic=False
    ),
}
