"""What to do with a kernel of one's own: the questions in order, answered by the crossovers that were measured."""

from __future__ import annotations

import html
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from hypatia_lab import formats, intervals, results, variants
from hypatia_lab.chapters import fused_mlp, tensor_cores, torch_compile
from hypatia_lab.figures import comparisons
from hypatia_lab.figures.ceilings import Point
from hypatia_lab.figures.language import ordered
from hypatia_lab.formats import absent, listing
from hypatia_lab.intervals import EQUIVALENCE, Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, headline, unsaid
from hypatia_lab.pages.phrases import spoken
from hypatia_lab.results import Row

PAGE = "18_decisions"
EAGER = ("aten_fusion", "mlp_models", "diffraction", "conv_block")
"""Experiments whose eager calls are timed with and without their launches."""
FUSED = ("tensor_cores", "aten_fusion", "backward", "fused_mlp", "mlp_models", "conv_block")
"""Experiments in which forms in fewer kernels meet eager; of one workload the first counts."""
CONTESTS = ("tensor_cores", "backward", "fused_mlp", "conv_block", "diffraction", "gemm_ladder")
"""Experiments in which kernels of our own meet the library and the compiler; of one workload the first counts."""
READ = tuple(dict.fromkeys((*EAGER, *FUSED, *CONTESTS)))
"""All of these: a machine that has one of them has a place on the page."""
FUSING = {"tensor_cores", "backward", "fused", "own kernel"}
"""Tags of the kernels of our own that do in one what eager does in several."""
OPERATIONS = ("linear_relu", "mlp2", "mlp3", "conv_block", "diffraction")
PRECISIONS = ("float64/ieee", "float32/ieee", "float32/tf32", "bfloat16/ieee", "float16/ieee")


# ---------------------------------------------------------------- reading


def is_kernel(row: Row) -> bool:
    """Whether it is a kernel of our own, and not what the compiler or a CUDA graph makes of our formulae."""
    return row.origin == "own" and not row.variant.startswith("compile") and not row.variant.endswith("_graph")


def _fuses(row: Row) -> bool:
    """Whether it is a form in fewer kernels.

    Not counted are those of split operands: they multiply in another arithmetic than the one whose balance a point is
    held to.
    """
    known = variants.variants(row.operation).get(row.variant)
    if known is None or known.splits is not None:
        return False
    return row.variant == "epilogue" or (is_kernel(row) and bool(FUSING & set(known.tags)))


def quickest(rows: Iterable[Row]) -> Row | None:
    return min(rows, key=lambda row: row.median_us, default=None)


def _name(row: Row) -> str:
    text = f"{row.at} {row.dtype}" + ("" if row.math == "ieee" else f"/{row.math}")
    return text if row.direction == "forward" else f"{text} {formats.direction(row.direction)}"


Measured = tuple[Point, Interval]
"""A point of a figure, and the ratio that it stands at."""


def _point(row: Row, kind: str, name: str, along: float, factor: Interval) -> Measured:
    return Point(kind, row.origin, name, along, (factor.value, factor.low, factor.high)), factor


def launched(lab: Evidence, machine: str) -> list[Point]:
    """Eager calls by the wall clock over the same calls replayed as a graph, over the µs of the latter; GPU only."""
    return [point for point, _ in _launched(lab, machine)]


def _launched(lab: Evidence, machine: str) -> list[Measured]:
    found = []
    for experiment in EAGER if lab.primary(machine) == "graph" else ():
        walls = {row.workload: row for row in lab.timed(machine, experiment=experiment, variant="eager", clock="wall")}
        for row in lab.timed(machine, experiment=experiment, variant="eager", clock="graph"):
            if row.workload in walls and (factor := walls[row.workload].over(row)).n:
                found.append(_point(row, row.operation, _name(row), row.median_us, factor))
    return found


def balance(lab: Evidence, machine: str) -> dict[str, float]:
    """dtype/math → FLOP per byte at which the best measured rates of both take equally long, warm."""
    best, clock = results.ceilings(lab.of(machine)), lab.primary(machine)
    bandwidth = best.get(("copy", "", clock))
    rates = {precision: best.get(("matmul", precision, clock)) for precision in PRECISIONS}
    return {precision: rate / bandwidth for precision, rate in rates.items() if rate and bandwidth}


def balances(lab: Evidence) -> list[tuple[str, str, float]]:
    """Machine, dtype/math and balance (FLOP/B) of all machines that have both ceilings."""
    return [(name, *found) for name in lab.machines for found in balance(lab, name).items()]


def fused(lab: Evidence, machine: str) -> list[Point]:
    """Gain over eager of the quickest form in fewer kernels, over FLOP per byte in units of the machine's balance."""
    return [point for point, _ in _fused(lab, machine)]


def _fused(lab: Evidence, machine: str) -> list[Measured]:
    variants.load()
    found, turn = [], balance(lab, machine)
    seen: set[str] = set()
    for experiment in FUSED:
        rows = lab.timed(machine, experiment=experiment)
        forms = [row for row in rows if _fuses(row)]
        for workload in dict.fromkeys(row.workload for row in forms if row.workload not in seen):
            row = quickest(row for row in forms if row.workload == workload)
            assert row is not None
            precision = f"{row.dtype}/{row.math}"
            if absent(row.ratio_low) or precision not in turn or not row.flops:
                continue
            seen.add(workload)
            relative = row.flops / row.traffic / turn[precision]
            kind = row.operation + ("" if row.direction == "forward" else ", step")
            label = variants.label(row.operation, row.variant)
            found.append(_point(row, kind, f"{_name(row)}, {label}", relative, row.speed))
    return found


def lacking(lab: Evidence, machine: str, experiments: Iterable[str]) -> str:
    """A sentence on the ``experiments`` that have no record of ``machine``; empty where all have."""
    there = {record.experiment for record in lab.of(machine)}
    missing = [name for name in experiments if name not in there]
    return f"Without a record on `{machine}`, and so not in the figure: {listing(missing)}." if missing else ""


SWEPT = {"fused_mlp": ("65536x64", "65536x128")}
"""Experiment → its shapes that count: of a sweep over sizes not every point is a workload of its own."""

COMPILED = ("diffraction",)
"""Operations of which no library has a call. Only the compiler is a peer: eager takes a kernel an operation."""


def contests(lab: Evidence, machine: str) -> list[Row]:
    """The quickest kernel of our own where the library or the compiler was timed too: a row a workload.

    Its ratio is the time of its best peer over its own, its ``baseline`` that peer.
    """
    found: dict[str, Row] = {}
    for experiment in CONTESTS:
        rows = lab.timed(machine, experiment=experiment, operation=OPERATIONS)
        rows = [row for row in rows if row.shape in SWEPT.get(experiment, (row.shape,))]
        for workload in dict.fromkeys(row.workload for row in rows if row.workload not in found):
            here = [row for row in rows if row.workload == workload]
            own = quickest(row for row in here if is_kernel(row))
            peers = [row for row in here if row.origin == "peer" and not row.variant.endswith("_graph")]
            if not any(row.operation not in COMPILED or row.variant.startswith("compile") for row in peers):
                continue
            peer = quickest(peers)
            if own is not None and peer is not None:
                found[workload] = own.against(peer)
    return list(found.values())


# ---------------------------------------------------------------- the questions


def launches(lab: Evidence, machine: str) -> Finding | None:
    """Up to which kernel time a call is mostly launching."""
    points = _launched(lab, machine)
    if not points:
        return None
    factors = [factor for _, factor in points]
    if all(factor.doubt for factor in factors):
        return unsaid(lab, machine, "Whether launching takes longer than the kernels", "08_profile", factors)
    mostly = [factor for factor in factors if factor.above(2)]
    text = "These callers wait more than twice as long as the kernels take. " if mostly else ""
    return Finding(
        f"{len(mostly)} of {len(points)} calls",
        "Launching often takes longer than the kernels" if mostly else "Launching is no call's largest part",
        f"{text}Replaying a CUDA graph takes the launches away, and changes no kernel.",
        "08_profile",
    )


def ceiling(lab: Evidence, machine: str) -> Finding | None:
    """How many operations a byte must bring before arithmetic is what takes the time."""
    found = balance(lab, machine)
    if not found:
        return None
    precision = "float32/ieee" if "float32/ieee" in found else next(iter(found))
    least, most = (end(found, key=lambda name: found[name]) for end in (min, max))
    ends = [formats.spoken(end) for end in dict.fromkeys((found[least], found[most]))]
    others = dict.fromkeys(name for name in (least, most) if name != precision)
    return Finding(
        f"{' to '.join(ends)} FLOP per byte",
        "Divide operations by bytes: the quotient says what binds",
        f"In {precision} memory binds below {formats.spoken(found[precision])} FLOP per byte, and arithmetic above. "
        + "".join(f"In {name} the border is {formats.spoken(found[name])}. " for name in others)
        + "The copies are of warm data, which the cache may hold; of data from memory alone the balance is higher. "
        "Where memory binds, move fewer bytes; where arithmetic does, change the precision.",
        "13_machines",
    )


SIDES = {
    "Where memory binds": (0, 1),
    "Where arithmetic binds by less than ten times": (1, 10),
    "Where arithmetic binds by ten times or more": (10, float("inf")),
}
"""Parts of the scale of operations per byte over the machine's balance."""


def fusing(lab: Evidence, machine: str) -> Finding | None:
    """What fusing gained on either side of the machine's balance."""
    points = _fused(lab, machine)
    if not points:
        return None
    clear = [(point.along, gain) for point, gain in points if not gain.doubt]
    if not clear:
        return unsaid(lab, machine, "Whether fusing pays", "16_fused_mlp", [gain for _, gain in points])
    sides = {side: [gain.value for along, gain in clear if low <= along < high] for side, (low, high) in SIDES.items()}
    # The middle of many cases, which are no repetitions of one: an extreme one must not move it.
    middle = {side: statistics.median(own) for side, own in sides.items() if own}
    falls = len(middle) > 1 and list(middle.values()) == sorted(middle.values(), reverse=True)
    gains = sum(gain.above(1 + EQUIVALENCE) for _, gain in points)
    where = listing([f"{side[0].lower()}{side[1:]}" for side in middle])
    return Finding(
        " → ".join(f"{formats.spoken(value)}×" for value in middle.values()),
        "Fusing pays less the more arithmetic binds"
        if falls
        else f"Fusing pays in {gains} of {len(points)} cases"
        if gains
        else "Fusing surely pays in no case here",
        f"Median speed of the best fused form against eager{', in this order' if len(middle) > 1 else ''}: {where}. "
        "Fusing saves bytes and launches, and no operation.",
        "16_fused_mlp",
    )


def library(lab: Evidence, machine: str) -> Finding | None:
    """Where the library or the compiler is ahead of every kernel of our own, and where one of them is."""
    rows = contests(lab, machine)
    if not rows:
        return None
    every = [row.speed for row in rows]
    decided = [row for row in rows if intervals.decided(row.speed)]
    if not decided:
        question = "Whether a kernel of our own beats the library or the compiler"
        return unsaid(lab, machine, question, "14_tensor_cores", every)
    ahead = sum(row.reading == "faster" for row in rows)  # as the figure counts them
    best = max(decided, key=lambda row: row.ratio)
    behind = sum(row.reading == "slower" and row.baseline in ("eager", "epilogue") for row in rows)
    kernel, peer = (variants.label(best.operation, name) for name in (best.variant, best.baseline))
    text = f"{'Furthest ahead' if ahead else 'Closest'}: {kernel} in {best.operation.replace('_', ' ')} at "
    text += f"{_name(best)}, with {spoken(best.speed)} the speed of {peer}. "
    if behind:
        text += f"In {behind} workload{'s' * (behind > 1)} one call of the library is the quickest form."
    return Finding(
        f"{ahead} of {len(rows)} workloads",
        "No kernel of our own surely beats the library or the compiler"
        if not ahead
        else f"Kernels of our own beat library and compiler in {'most' if 2 * ahead > len(rows) else 'some'} cases",
        text.strip(),
        "14_tensor_cores",
    )


def digits(lab: Evidence, machine: str) -> Finding | None:
    """What float32's digits cost on tensor cores: the weightiest finding of that chapter."""
    return headline(tensor_cores.findings(lab, machine), "14_tensor_cores")


QUESTIONS: tuple[tuple[str, Callable[[Evidence, str], Finding | None]], ...] = (
    ("Does the device wait for the host?", launches),
    ("What binds the call: bytes or operations?", ceiling),
    ("Does fusing pay?", fusing),
    ("How much fits into one kernel?", fused_mlp.crossover),
    ("Is there a library call that is as fast?", library),
    ("How many digits are needed?", digits),
    ("Does the compiler's time come back?", torch_compile.pays),
)
"""What to ask of a kernel, in this order, and who answers."""


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """The answers that the records of ``machine`` give, each behind its question, in the order of :data:`QUESTIONS`."""
    return [
        replace(found, title=f"{question} {found.title}")
        for question, answer in QUESTIONS
        if (found := answer(lab, machine)) is not None
    ]


def answers(lab: Evidence, machine: str) -> str:
    """Every question with its answer on ``machine`` (Markdown), numbered in the order to ask."""
    lines = []
    for number, (question, answer) in enumerate(QUESTIONS, 1):
        found = answer(lab, machine)
        said = "Not measured on this machine."
        if found:
            link = f'<a href="{found.page.partition("#")[0]}.html">{html.escape(found.title)}</a>'
            said = f"{link}: **{found.figure}**. {found.text}"
        elif answer is launches and lab.primary(machine) != "graph":
            said = "It does not arise: a CPU launches no kernels."
        lines.append(f"{number}. **{question}** {said}")
    return "\n".join(lines)


def opponents(rows: Sequence[Row]) -> Any:
    """Rows of :func:`contests` of one direction as a figure and its table: speed against the best peer, named there."""
    works = "training steps" if rows[0].direction == "forward_backward" else "forward passes"
    title = f"The quickest own kernel against its best peer: {works}"
    figure, table = comparisons.speedups([replace(row, baseline="best peer") for row in rows], title=title)
    table.insert(4, "best peer", [row.baseline for row in ordered(rows)])
    return figure, table
