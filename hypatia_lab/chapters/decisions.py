"""What to do with a kernel of one's own: the questions in order, answered by the crossovers that were measured."""

from __future__ import annotations

import html
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from hypatia_lab import formats, intervals, results, tables, variants
from hypatia_lab.chapters import fused_mlp, tensor_cores, torch_compile
from hypatia_lab.figures.break_even import at_least_one
from hypatia_lab.figures.ceilings import Point
from hypatia_lab.figures.language import BLUE, SHAPES, Style, heading, ordered, ratio_axis
from hypatia_lab.figures.panels import Block, Cell, draw
from hypatia_lab.formats import absent, listing
from hypatia_lab.intervals import EQUIVALENCE, Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, span_text, unsaid
from hypatia_lab.pages.phrases import FLOAT32, spoken
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


def launched(lab: Evidence, machine: str) -> list[Point]:
    """Eager calls by the wall clock over the same calls replayed as a graph, over the µs of the latter; GPU only."""
    return [point for point, _ in _launched(lab, machine)]


def _launched(lab: Evidence, machine: str) -> list[tuple[Point, Interval]]:
    found = []
    for experiment in EAGER if lab.primary(machine) == "graph" else ():
        walls = {row.workload: row for row in lab.timed(machine, experiment=experiment, variant="eager", clock="wall")}
        for row in lab.timed(machine, experiment=experiment, variant="eager", clock="graph"):
            if row.workload in walls and (factor := walls[row.workload].over(row)).n:
                found.append((Point(row.operation, row.origin, _name(row), row.median_us, factor.triple), factor))
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


def _fused(lab: Evidence, machine: str) -> list[tuple[Point, Row]]:
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
            found.append((Point(kind, row.origin, f"{_name(row)}, {label}", relative, row.speed.triple), row))
    return found


SIDES = {
    "memory binds": (0, 1),
    "arithmetic binds by less than ten times": (1, 10),
    "arithmetic binds by ten times or more": (10, float("inf")),
}
"""Parts of the scale of operations per byte over the machine's balance."""


def _sides(lab: Evidence, machine: str) -> dict[str, list[float]]:
    """The gains that say something, on each of :data:`SIDES` that has one."""
    clear = [(point.along, row.speed.value) for point, row in _fused(lab, machine) if not row.speed.doubt]
    sides = {side: [gain for along, gain in clear if low <= along < high] for side, (low, high) in SIDES.items()}
    return {side: own for side, own in sides.items() if own}


def side_lines(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Each of :data:`SIDES` as a line of a table: how many cases, and their gains."""
    return [
        {
            "where": side,
            "cases": str(len(own)),
            **{
                name: f"{formats.spoken(of(own))}×"
                for name, of in (("least", min), ("median", statistics.median), ("most", max))
            },
        }
        for side, own in _sides(lab, machine).items()
    ]


def below_eager(lab: Evidence, machine: str) -> str:
    """Which points of :func:`fused` are slower than eager, and how many have a form left out there that is ahead."""
    found = _fused(lab, machine)
    slow = [(f"*{point.kind}* {point.name}", row.workload) for point, row in found if row.reading == "slower"]
    if not slow:
        return ""
    ahead = {
        row.workload
        for row in contests(lab, machine)
        if row.reading == "faster" and variants.find(row.operation, row.variant).splits
    }
    text = f"Slower than eager {'is' if len(slow) == 1 else 'are'} {len(slow)} of {len(found)} points: "
    text += f"{'; '.join(name for name, _ in slow)}. "
    if split := sum(workload in ahead for _, workload in slow):
        where = "There" if split == len(slow) == 1 else f"At {split} of them"
        text += f"{where} a form of split operands, left out here, is faster than every peer."
    return text.strip()


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
        return unsaid(lab, machine, "Whether launching takes longer than the kernels", PAGE, factors)
    mostly = [factor for factor in factors if factor.above(2)]
    text = "These callers wait more than twice as long as the kernels take. " if mostly else ""
    return Finding(
        f"{len(mostly)} of {len(points)} calls",
        "Launching often takes longer than the kernels" if mostly else "Launching is no call's largest part",
        f"{text}Replaying a CUDA graph launches all kernels at once, and changes none of them.",
        f"{PAGE}#is-it-the-kernel-at-all",
    )


def ceiling(lab: Evidence, machine: str) -> Finding | None:
    """How many operations a byte must bring before arithmetic is what takes the time."""
    found = balance(lab, machine)
    if not found:
        return None
    told = [name for name in ("float32/ieee", "bfloat16/ieee") if name in found] or list(found)[:1]
    first, *others = [(name.removesuffix("/ieee"), formats.spoken(found[name])) for name in told]
    return Finding(
        f"{first[1]} operations a byte in {first[0]}",
        "Divide the call's operations by the bytes of its inputs and outputs; memory binds below",
        "Above, arithmetic binds. "
        + "".join(f"In {name} the border is {border}. " for name, border in others)
        + "Where memory binds, move fewer bytes. Where arithmetic binds, compute with fewer digits. "
        "The border is this machine's best rate of arithmetic over its best rate of copying, with warm caches; "
        "of data from memory alone it is higher.",
        "13_machines",
    )


def fusing(lab: Evidence, machine: str) -> Finding | None:
    """What fusing gained on either side of the machine's balance."""
    points = _fused(lab, machine)
    if not points:
        return None
    gains = [row.speed for _, row in points]
    sides = _sides(lab, machine)
    if not sides:
        return unsaid(lab, machine, "Whether fusing pays", PAGE, gains)
    # The middle of many cases, which are no repetitions of one: an extreme one must not move it.
    middle = [statistics.median(own) for own in sides.values()]
    falls = len(middle) > 1 and middle == sorted(middle, reverse=True)
    pays = sum(gain.above(1 + EQUIVALENCE) for gain in gains)
    return Finding(
        " → ".join(f"{formats.spoken(value)}×" for value in middle),
        "Fusing pays less the more arithmetic binds"
        if falls
        else f"Fusing pays in {pays} of {len(points)} cases"
        if pays
        else "Fusing surely pays in no case here",
        f"Median speed of the quickest fused form against eager{', in this order' if len(middle) > 1 else ''}: "
        f"{listing([f'where {side}' for side in sides])}. Fusing saves bytes and launches, and no operation.",
        f"{PAGE}#where-does-fusing-pay",
    )


def layers(lab: Evidence, machine: str) -> Finding | None:
    """Up to which width one kernel is faster than layer by layer, and what that is."""
    found, rows = fused_mlp.crossover(lab, machine), [rows for rows, _ in fused_mlp.factors(lab, machine)]
    if found is None:
        return None
    text = "Three layers in one kernel are held against layer by layer: the quicker of eager and the library's fused "
    text += f"call, for {' to '.join(dict.fromkeys((str(min(rows)), str(max(rows)))))} rows. {found.text}"
    return replace(found, text=text, page=f"{found.page}#where-one-kernel-stops-paying")


def library(lab: Evidence, machine: str) -> Finding | None:
    """Where the library or the compiler is ahead of every kernel of our own, and where one of them is."""
    rows = contests(lab, machine)
    if not rows:
        return None
    every = [row.speed for row in rows]
    decided = [row for row in rows if intervals.decided(row.speed)]
    if not decided:
        question = "Whether a kernel of our own beats the library or the compiler"
        return unsaid(lab, machine, question, PAGE, every)
    ahead = sum(row.reading == "faster" for row in rows)  # as the figure counts them
    best = max(decided, key=lambda row: row.ratio)
    behind = [f"*{row.operation}* {_name(row)}" for row in rows if row.reading == "slower"]
    text = f"{'Furthest ahead' if ahead else 'Closest'} is *{best.operation}* {_name(best)}, with {spoken(best.speed)} "
    text += f"the speed of {variants.label(best.operation, best.baseline)}. "
    if behind:
        text += f"A peer is faster in {len(behind)}: {listing(behind)}."
    return Finding(
        f"{ahead} of {len(rows)} workloads",
        "No kernel of our own surely beats the library or the compiler"
        if not ahead
        else f"Kernels of our own beat library and compiler in {'most' if 2 * ahead > len(rows) else 'some'} cases",
        text.strip(),
        f"{PAGE}#where-is-the-library-unbeaten",
    )


FEWER = {("float32", "tf32"): "TF32", ("bfloat16", "ieee"): "bfloat16"}
"""dtype and math of products of fewer digits than float32's → what a page calls them."""


def digits(lab: Evidence, machine: str) -> Finding | None:
    """How much faster float32's digits come by split operands, and how much faster fewer digits are."""
    rows = lab.timed(machine, experiment=tensor_cores.EXPERIMENT, operation="linear_relu", direction="forward")
    eager = {row.shape: row for row in rows if (row.dtype, row.math, row.variant) == ("float32", "ieee", "eager")}

    def best(dtype: str, math: str, counts: Callable[[Row], bool]) -> list[tuple[Interval, float]]:
        """Of each size the quickest form against eager's float32, and its error."""
        own = [row for row in rows if (row.dtype, row.math) == (dtype, math) and counts(row)]
        found = [(first, quickest(row for row in own if row.shape == shape)) for shape, first in eager.items()]
        pairs = [(first.over(row), row.error) for first, row in found if row is not None]
        return [(gain, error) for gain, error in pairs if gain.n]

    split = best(
        "float32",
        "ieee",
        lambda row: row.variant in tensor_cores.SPLITS and tensor_cores.exact(row, eager[row.shape]),
    )
    clear = [gain for gain, _ in split if not gain.doubt]
    if not split:
        return None
    if not clear:
        question = "Whether float32's digits come faster on tensor cores"
        return unsaid(lab, machine, question, tensor_cores.PAGE, [gain for gain, _ in split])
    faster = sum(gain.above(1) for gain in clear)
    text = "Each number is split into two short ones. The quickest such form is held against cuBLAS's own float32, at "
    text += f"{len(split)} size{'s' * (len(split) > 1)}. Its error is no larger. "
    for (dtype, math), name in FEWER.items():
        fewer = [(gain, error) for gain, error in best(dtype, math, lambda _: True) if not gain.doubt]
        if fewer:
            text += f"Where a relative error of {formats.spoken(100 * max(error for _, error in fewer))}% will do, "
            text += f"{name} has {span_text([gain for gain, _ in fewer])} the speed of float32. "
    return Finding(
        span_text(clear),
        "float32's digits come faster on tensor cores"
        if faster == len(split)
        else "float32's digits come faster on tensor cores at some sizes"
        if faster
        else "Splitting float32's numbers gains nothing here",
        text.strip(),
        tensor_cores.PAGE,
    )


COMPILED_MODELS = {
    ("conv_block", "forward"): "the convolution block's forward pass",
    ("unet", "forward"): "a small U-Net of such blocks",
    ("unet", "forward_backward"): "a training step of that U-Net",
}
"""Operation and direction of what was compiled → what it is called."""


def compiling(lab: Evidence, machine: str) -> Finding | None:
    """Whether the time that compiling takes comes back."""
    found = torch_compile.pays(lab, machine)
    if found is None or found.open:
        return found
    starts = [
        (mode, COMPILED_MODELS[model, direction], torch_compile.won_back(at_least_one(curve.calls)))
        for model, direction, mode in torch_compile.views(lab, machine)
        for curve in torch_compile.curves(lab, machine, model, direction, mode)
        if curve.name == "compile"
    ]
    first = starts[0][0]
    text = f"In a fresh process with nothing stored, compiling and the first call take {found.figure}. "
    text += f"All is held against eager, in {FLOAT32[first]}. "
    words = [(name, word) for mode, name, word in starts if mode == first]
    for name, word in words:
        slower = ": compiled, it is slower than eager" if word == torch_compile.UNWON else ""
        text += f"{name[0].upper()}{name[1:]} {word}{slower}. "
    never, unseen = (sum(word == said for _, word in words) for said in (torch_compile.UNWON, torch_compile.UNSEEN))
    return Finding(
        "never" if never == len(words) else "not always" if never else "open in some cases" if unseen else "always",
        "Whether compiling pays itself back",
        f"{text}For yours: divide what compiling takes by what it saves a call. That is the number of calls it takes.",
        f"{torch_compile.PAGE}#what-a-start-costs-and-when-it-pays-back",
    )


QUESTIONS: tuple[tuple[str, Callable[[Evidence, str], Finding | None]], ...] = (
    ("Does the device wait for the host?", launches),
    ("What binds the call: bytes or operations?", ceiling),
    ("Does fusing pay?", fusing),
    ("How much fits into one kernel?", layers),
    ("Is there a library call that is as fast?", library),
    ("How many digits are needed?", digits),
    ("Does the compiler's time come back?", compiling),
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
            page, mark, place = found.page.partition("#")
            link = f'<a href="{page}.html{mark}{place}">{html.escape(found.title)}</a>'
            said = f"{link}: **{found.figure}**. {found.text}"
        elif answer is launches and lab.primary(machine) != "graph":
            said = "It does not arise: a CPU launches no kernels."
        lines.append(f"{number}. **{question}** {said}")
    return "\n".join(lines)


def standing(rows: Sequence[Row]) -> str:
    """How many of :func:`contests` the own kernel is ahead in, and which the others are, in a few sentences."""
    others: dict[str, list[str]] = {}
    for row in rows:
        if row.reading != "faster":
            peer = variants.label(row.operation, row.baseline)
            others.setdefault(row.reading, []).append(f"*{row.operation}* {_name(row)} (peer: {peer})")
    ahead = sum(row.reading == "faster" for row in rows)
    text = f"**In {ahead} of {len(rows)} workloads a kernel of our own is faster than its best peer.** "
    return text + " ".join(f"{word.capitalize()}: {listing(names)}." for word, names in others.items())


LOOK = Style(BLUE, SHAPES["own"][0], 0)
"""How a kernel of our own is drawn where all rows are one."""


def opponents(rows: Sequence[Row]) -> Any:
    """Rows of :func:`contests` of one direction as a figure and its table: speed against the best peer, named there."""
    rows = ordered(rows)
    works = "training steps" if rows[0].direction == "forward_backward" else "forward passes"
    blocks: dict[str, list[Cell]] = {}
    for row in rows:
        kernel, peer = (variants.label(row.operation, name) for name in (row.variant, row.baseline))
        kind = row.dtype if row.math == "ieee" else f"{row.dtype}/{row.math}"
        name = f"{row.at}, {kind}: {spoken(row.speed)} {peer}"
        said = f"{row.at}, {kind}<br>{kernel} against {peer}<br>{formats.told(row.speed)}, {row.reading}"
        blocks.setdefault(row.operation, []).append(Cell(name, "", LOOK, row.speed.triple, said, row.variant))
    more: dict[str, Any] = {"axis": ratio_axis(rows, "speed against best peer, ×"), "lines": [(1.0, "solid", "")]}
    counts = tables.counted([row.reading for row in rows])
    under = [rows[0].machine, f"{rows[0].clock} clock", "bars: 95% intervals", "right is faster"]
    head = heading(
        f"The quickest own kernel against its best peer: {works}", [*under, "grey: equal within ±2%", counts]
    )
    told = "; ".join(cell.said.replace("<br>", ", ") for own in blocks.values() for cell in own)
    figure = draw(
        [Block(operation, own, band=True, **more) for operation, own in blocks.items()],
        head,
        f"Speed of own kernels against their best peer on {rows[0].machine}: {counts}. {told}.",
    )
    table = tables.results_table(rows)
    table.insert(4, "best peer", [row.baseline for row in rows])
    return figure, table
