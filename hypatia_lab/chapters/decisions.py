"""What to do with a kernel of one's own: the questions in order, answered by the crossovers that were measured.

Every figure is taken from the records when the page is made. A question that a machine's records do not answer has no
finding, and the page says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from hypatia_lab import formats, intervals, results
from hypatia_lab.chapters import conv_block, fused_mlp, tensor_cores, torch_compile
from hypatia_lab.figures import comparisons
from hypatia_lab.figures.ceilings import Point
from hypatia_lab.figures.language import ordered, spanning
from hypatia_lab.formats import absent, listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, silent, unsaid
from hypatia_lab.pages.phrases import fastest, times
from hypatia_lab.results import Row

PAGE = "18_decisions"
EAGER = ("aten_fusion", "mlp_models", "diffraction", "conv_block")
"""Experiments whose eager calls are timed with and without their launches."""
FUSED = {
    "tensor_cores": ("epilogue", "triton"),
    "aten_fusion": ("epilogue",),
    "backward": ("epilogue", "fused_backward"),
    "fused_mlp": fused_mlp.ONE_KERNEL,
    "mlp_models": ("epilogue",),
    "conv_block": tuple(name for name in conv_block.OWN if name not in conv_block.SPLIT),
}
"""Experiment → the forms in fewer kernels that its eager form is held against; of one workload the first counts.

Forms of split operands are left out: they multiply in another arithmetic than the one whose balance a point is held to.
"""
CONTESTS = ("tensor_cores", "backward", "fused_mlp", "conv_block", "diffraction", "gemm_ladder")
"""Experiments in which kernels of our own meet the library and the compiler; of one workload the first counts."""
OPERATIONS = ("linear_relu", "mlp2", "mlp3", "conv_block", "diffraction")
PRECISIONS = ("float64/ieee", "float32/ieee", "float32/tf32", "bfloat16/ieee", "float16/ieee")


# ---------------------------------------------------------------- reading


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
    found, turn = [], balance(lab, machine)
    seen: set[str] = set()
    for experiment, forms in FUSED.items():
        rows = lab.timed(machine, experiment=experiment)
        for workload in dict.fromkeys(row.workload for row in rows if row.workload not in seen):
            row = fastest([row for row in rows if row.workload == workload], forms)
            precision = f"{row.dtype}/{row.math}" if row else ""
            if row is None or absent(row.ratio_low) or precision not in turn or not row.flops:
                continue
            seen.add(workload)
            relative = row.flops / row.traffic / turn[precision]
            kind = row.operation + ("" if row.direction == "forward" else ", step")
            found.append(_point(row, kind, f"{_name(row)}, {row.variant}", relative, row.speed))
    return found


def lacking(lab: Evidence, machine: str, experiments: Iterable[str]) -> str:
    """A sentence on the ``experiments`` that have no record of ``machine``; empty where all have."""
    there = {record.experiment for record in lab.of(machine)}
    missing = [name for name in experiments if name not in there]
    return f"Without a record on `{machine}`, and so not in the figure: {listing(missing)}." if missing else ""


def contests(lab: Evidence, machine: str) -> list[Row]:
    """The quickest kernel of our own where the library or the compiler was timed too: a row a workload.

    Its ratio is the time of its best peer over its own, its ``baseline`` that peer.
    """
    found: dict[str, Row] = {}
    for experiment in CONTESTS:
        rows = lab.timed(machine, experiment=experiment, operation=OPERATIONS)
        rows = [row for row in rows if not row.is_twin and not row.variant.endswith("_graph")]
        if experiment == fused_mlp.FUSED:
            rows = [row for row in rows if row.shape in fused_mlp.GOAL_SHAPES]
        for workload in dict.fromkeys(row.workload for row in rows):
            own, peer = (_quickest(rows, workload, origin) for origin in ("own", "peer"))
            if workload not in found and own is not None and peer is not None:
                found[workload] = own.against(peer)
    return list(found.values())


def _quickest(rows: Sequence[Row], workload: str, origin: str) -> Row | None:
    """The quickest of ``rows`` at ``workload``; what the compiler makes of our own formulae is no kernel of our own."""
    names = {row.variant for row in rows if row.origin == origin}
    kernels = [name for name in names if origin != "own" or not name.startswith("compile")]
    return fastest([row for row in rows if row.workload == workload], kernels)


# ---------------------------------------------------------------- the questions


def launches(lab: Evidence, machine: str) -> Finding | None:
    """Up to which kernel time a call is mostly launching."""
    points = _launched(lab, machine)
    if not points:
        return None
    factors = [factor for _, factor in points]
    if all(factor.doubt for factor in factors):
        return unsaid(lab, machine, "Whether launching takes longer than the kernels", "08_profile", factors)
    mostly = [point for point, factor in points if factor.above(2)]
    hidden = [point for point, factor in points if factor.below(1.1)]
    text = f"In {len(mostly)} of {len(points)} eager calls more than half of what a caller waits is launching: "
    text += f"{_spans(mostly)}. " if mostly else "none. "
    text += f"In {len(hidden)} it is surely less than a tenth: {_spans(hidden)}. " if hidden else ""
    text += silent(factors)
    text += "What a call launches counts more than what it computes. Replaying it as a CUDA graph takes the launches "
    text += "away and no line of the kernel."
    return Finding(
        f"{len(mostly)} of {len(points)}",
        "Launching often takes longer than the kernels" if mostly else "Launching is no call's largest part",
        text,
        "08_profile",
    )


def _spans(points: Sequence[Point]) -> str:
    kinds = list(dict.fromkeys(point.kind for point in points))
    said = []
    for kind in kinds:
        own = [point.along for point in points if point.kind == kind]
        said.append(f"{kind} of {spanning(own, formats.duration)}")
    return listing(said)


def ceiling(lab: Evidence, machine: str) -> Finding | None:
    """How many operations a byte must bring before arithmetic is what takes the time."""
    found = balance(lab, machine)
    if not found:
        return None
    said = [f"{formats.number(value)} in {precision}" for precision, value in found.items()]
    low, high = min(found.values()), max(found.values())
    return Finding(
        f"{formats.number(low)} to {formats.number(high)} FLOP/B"
        if len(found) > 1
        else f"{formats.number(low)} FLOP/B",
        "Divide operations by bytes: the quotient says what binds",
        f"Below so many FLOP per byte memory binds, above arithmetic does: {listing(said)}. Both rates are the best "
        "that was measured here. Count each byte once, as if nothing were read twice. Where memory binds, move fewer "
        "bytes; where arithmetic does, change the precision.",
        "13_machines",
    )


def fusing(lab: Evidence, machine: str) -> Finding | None:
    """What fusing gained on either side of the machine's balance."""
    points = _fused(lab, machine)
    if not points:
        return None
    every = [gain for _, gain in points]
    clear = [(point.along, gain) for point, gain in points if not gain.doubt]
    if not clear:
        return unsaid(lab, machine, "Whether fusing pays", "16_fused_mlp", every)
    sides = {
        "where memory binds": [gain for along, gain in clear if along < 1],
        "where arithmetic binds by less than ten times": [gain for along, gain in clear if 1 <= along < 10],
        "where arithmetic binds by ten times or more": [gain for along, gain in clear if along >= 10],
    }
    sides = {side: own for side, own in sides.items() if own}
    # The middle of many cases, which are no repetitions of one: an extreme one must not move it.
    middle = {side: statistics.median(gain.value for gain in own) for side, own in sides.items()}
    said = []
    for side, own in sides.items():
        surely = sum(gain.above(1 + intervals.EQUIVALENCE) for gain in own)
        said.append(
            f"{side} {formats.number(middle[side])}× (median), and surely gains more than 2% in {surely} of "
            f"{len(own)} cases"
        )
    falls = len(middle) > 1 and list(middle.values()) == sorted(middle.values(), reverse=True)
    gains = sum(gain.above(1 + intervals.EQUIVALENCE) for gain in every)
    return Finding(
        " → ".join(f"{formats.number(value)}×" for value in middle.values()),
        "Fusing pays less the more arithmetic binds"
        if falls
        else f"Fusing pays in {gains} of {len(points)} cases"
        if gains
        else "Fusing surely pays in no case here",
        f"Against eager the quickest form in fewer kernels, split operands left out, has {'; '.join(said)}. "
        f"{silent(every)}Fusing saves bytes and launches, and no operation.",
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
    ahead = [row for row in rows if _ahead(row)]
    behind = [row for row in rows if row.speed.below(1 - intervals.EQUIVALENCE)]
    best, worst = (pick(decided, key=lambda row: row.ratio) for pick in (max, min))
    text = f"A kernel of our own is surely more than 2% ahead of its best peer in {len(ahead)} of {len(rows)} "
    text += f"workloads and surely more than 2% behind in {len(behind)}. {silent(every)}"
    text += f"It is {'most ahead' if ahead else 'closest'} in {best.operation} at {_name(best)}: "
    text += f"{best.variant} has {times(best.speed)} the speed of {best.baseline}{_errors(lab, best)}. "
    if worst is not best:
        text += f"It is {'furthest behind' if worst in behind else 'least ahead'} in {worst.operation} at "
        text += f"{_name(worst)}: {worst.variant} has {times(worst.speed)} the speed of {worst.baseline}. "
    plain = [row for row in behind if row.baseline in ("eager", "epilogue")]
    if plain:
        places = [f"{row.operation} at {_name(row)}" for row in plain]
        text += f"A single call of the library is the quickest form in {listing(places)}."
    return Finding(
        f"{len(ahead)} of {len(rows)}",
        "No kernel of our own surely beats the library or the compiler"
        if not ahead
        else "Kernels of our own beat the library and the compiler in most cases"
        if 2 * len(ahead) > len(rows)
        else "Kernels of our own beat the library and the compiler in some cases",
        text.strip(),
        "14_tensor_cores",
    )


def _errors(lab: Evidence, row: Row) -> str:
    """Both largest absolute errors of a contest that split operands won, and the bound that their goal has."""
    if row.variant not in conv_block.SPLIT:
        return ""
    same = {key: getattr(row, key) for key in ("machine", "experiment", "workload", "clock")}
    own, peer = (formats.number(one.max_error) for one in (row, *lab.select(**same, variant=row.baseline)))
    text = f", at a largest absolute error of {own} where that has {peer}"
    bounds = [goal.most for goal in conv_block.GOALS if (goal.dtype, goal.math) == (row.dtype, row.math)]
    return text + f" (the goal allows {min(bounds):g})" if bounds else text


def digits(lab: Evidence, machine: str) -> Finding | None:
    """The chapter on tensor cores on float32's digits, at the largest size that answers."""
    found = [tensor_cores.digits(lab, machine, shape) for shape in tensor_cores.GOALS]
    last = next((one for one in reversed(found) if one is not None), None)
    answer = "What the result is for decides; here is what float32's digits cost."
    return last and replace(last, text=f"{answer} {last.text}")


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


def _why(lab: Evidence, machine: str, question: str) -> str:
    launching = question == QUESTIONS[0][0] and lab.primary(machine) != "graph"
    return "does not arise: a CPU launches no kernels" if launching else "not measured"


def overview(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Every question with its answer on ``machine``: a line a question, in the order to ask."""
    lines = []
    for number, (question, answer) in enumerate(QUESTIONS, 1):
        found = answer(lab, machine)
        said = f"{found.title} ({found.figure})" if found else _why(lab, machine, question)
        lines.append({"": str(number), "question": question, "answer": said})
    return lines


def opponents(rows: Sequence[Row]) -> Any:
    """Rows of :func:`contests` of one direction as a figure and its table: speed against the best peer, named there."""
    works = "training steps" if rows[0].direction == "forward_backward" else "forward passes"
    ahead = sum(_ahead(row) for row in rows)
    answer = f"Own kernels are more than 2% ahead of their best peer in {ahead} of {len(rows)} {works}"
    figure, table = comparisons.speedups([replace(row, baseline="best peer") for row in rows], title=answer)
    table.insert(4, "best peer", [row.baseline for row in ordered(rows)])
    return figure, table


def _ahead(row: Row) -> bool:
    return row.speed.above(1 + intervals.EQUIVALENCE)
