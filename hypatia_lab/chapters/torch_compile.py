"""S000's strategy in place of own kernels: findings and the curve of break-even of its chapter.

Everything is held against one thing: eager PyTorch in float32, of the same shape and direction, even where the variant
in question belongs to another operation (autocast) or dtype. Its arithmetic is PyTorch's default where a machine has
that recorded, and else IEEE's; each finding names the one that it speaks of. Ratios are paired by process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab import formats, intervals
from hypatia_lab.chapters.torch_compile_rows import (
    AUTOCAST,
    COMPILED,
    EXPERIMENT,
    FORWARD,
    LAST,
    MODELS,
    STEP,
    TIMES,
    TOGETHER,
    Point,
    base,
    beside,
    row_of,
    views,
)
from hypatia_lab.figures.break_even import NEVER, Curve, at_least_one, count
from hypatia_lab.figures.language import spanning
from hypatia_lab.figures.probe_rows import rare
from hypatia_lab.formats import absent
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, answered, unsaid
from hypatia_lab.pages.phrases import FLOAT32, only, probed, spoken, waited
from hypatia_lab.results import Row

PAGE = "06_torch_compile"
CLAIMED = (2.0, 5.0)
"""What S000 calls proven: times as fast."""
CHANNELS_LAST = "_channels_last"
"""What a variant's name ends with whose image stores the channels of a pixel side by side."""
DOUBLED, TENTH = 2.0, 0.1
"""What S000 expects of mixed precision, and how far a single claimed figure may be off."""


# ---------------------------------------------------------------- compile time and break-even


def paid(lab: Evidence, machine: str, row: Row, case: str) -> list[float]:
    """µs that a fresh process spends on building ``row``'s variant and on its first call, one a process.

    Fresh processes were measured in IEEE arithmetic. They speak for the default, too: to compile it is the same work.
    """
    lines = [
        line
        for line in lab.details(
            machine=machine,
            topic="start",
            operation=row.operation,
            dtype=row.dtype,
            math="ieee" if row.math == "default" else row.math,
            variant=row.variant,
            case=case,
        )
        if line.get("direction", FORWARD) == row.direction and "x".join(map(str, line["shape"])) == row.shape
    ]
    ways = probed(lab, machine, "start", variant=row.variant, case=case) if lines else []
    own = only([way for way in ways if way.details[0] in lines], row.variant, case)
    found = own.per_process("build", "call 1") if own else []
    return [us for us in found if us is not None]


def until(first: Row, row: Row, once: Interval, before: float) -> Interval:
    """Calls until ``row``'s variant has saved what it cost: ``once`` µs less the ``before`` µs of eager's first call.

    Gain a call is the mean of differences in each process. The ends take both intervals at their worst, so that they
    hold at least nine times in ten; :data:`NEVER` where a call saves nothing.
    """
    pairs = zip(first.medians_us, row.medians_us, strict=False)
    saved = intervals.mean([a - b for a, b in pairs if a and b])

    def calls(cost: float, gained: float) -> float:
        return max(0.0, cost - before) / gained if gained > 0 else NEVER

    def known(end: float, other: float) -> float:
        return other if absent(end) else end

    return Interval(
        calls(once.value, saved.value),
        calls(known(once.low, once.value), known(saved.high, saved.value)),
        calls(known(once.high, NEVER), known(saved.low, 0.0)),
        min(once.n, saved.n),
        first.over(row).vetoed,
        once.rare,
    )


def curves(lab: Evidence, machine: str, model: str, direction: str, mode: str) -> list[Curve]:
    """What eager, compiled and scripted forms cost after so many calls, by the clock that a caller waits by.

    Eager's curve, by arithmetic ``mode``, is the first; empty when its fresh start was not measured, or nothing beside
    it.
    """
    first = base(lab, machine, model, direction, mode, waited(lab, machine))
    start = paid(lab, machine, first, "") if first else []
    if first is None or not start:
        return []
    before = rare(start)
    found = [Curve("eager", "eager", first.origin, before, first.time, intervals.NOTHING)]
    for point, row in beside(lab, first):
        if not row.timed or row.variant == "eager" or point.mode or row.dtype != first.dtype:
            continue
        for case, caches in (("", ""), ("empty", ""), ("disk", ", stored")):
            if own := paid(lab, machine, row, case):
                once = rare(own)
                calls = until(first, row, once, before.value)
                found.append(Curve(row.variant + caches, row.variant, row.origin, once, row.time, calls))
    return found if len(found) > 1 else []


def pictured(lab: Evidence, machine: str) -> tuple[str, str, str] | None:
    """Model, direction and arithmetic whose start the chapter draws: the U-Net's forward pass where it was measured."""
    own = [view for view in views(lab, machine) if curves(lab, machine, *view)]
    return max(own, key=lambda view: view[:2] == ("unet", FORWARD), default=None)


def starts(lab: Evidence, machine: str) -> list[dict[str, Any]]:
    """What fresh processes spend until a forward pass of eager and torch.compile, in lines; empty without a time."""
    wanted = {"experiment": TIMES, "topic": "start", "operation": tuple(MODELS), "variant": ("eager", "compile")}
    lines = [one for one in lab.details(machine=machine, **wanted) if one.get("direction", FORWARD) == FORWARD]
    return lines if any(one["values"] for one in lines) else []


# ---------------------------------------------------------------- findings


@dataclass(frozen=True)
class Gains:
    """What a point gives over eager in arithmetic ``mode``: (eager's row, how many times as fast), a pair a case."""

    mode: str
    pairs: list[tuple[Row, Interval]]

    @property
    def all(self) -> list[Interval]:
        return [gain for _, gain in self.pairs]

    @property
    def clear(self) -> list[tuple[Row, Interval]]:
        """The pairs that say something."""
        return [pair for pair in self.pairs if not pair[1].doubt]

    @property
    def best(self) -> tuple[Row, Interval]:
        return max(self.clear, key=lambda pair: pair[1].value)

    @property
    def least(self) -> tuple[Row, Interval]:
        return min(self.clear, key=lambda pair: pair[1].value)

    @property
    def span(self) -> str:
        return spanning([gain.value for _, gain in self.clear], lambda value: f"{formats.spoken(value)}×")

    @property
    def held(self) -> str:
        return FLOAT32[self.mode]

    def every(self, test: Callable[[Interval], bool]) -> bool:
        return all(map(test, self.all))


BOTH = (FORWARD, STEP)


def gains(lab: Evidence, machine: str, point: Point, clock: str, directions: Sequence[str] = BOTH) -> list[Gains]:
    """What ``point`` gives in each arithmetic in which it was timed, the leading one first."""
    found: dict[str, list[tuple[Row, Interval]]] = {}
    for model, direction, mode in views(lab, machine):
        first = base(lab, machine, model, direction, mode, clock) if direction in directions else None
        row = row_of(lab, first, point) if first else None
        if first and row and row.timed:
            found.setdefault(mode, []).append((first, first.over(row)))
    return [Gains(mode, pairs) for mode, pairs in found.items()]


def _card(
    lab: Evidence,
    machine: str,
    found: Sequence[Gains],
    question: str,
    ids: tuple[str, ...],
    write: Callable[[Gains], tuple[str, str, str]],
) -> Finding | None:
    """The card of the leading arithmetic, as ``write`` has it: figure, title, text. None where nothing was timed."""
    if not found:
        return None
    if not found[0].clear:
        return unsaid(lab, machine, question, PAGE, found[0].all, ids)
    figure, title, text = write(found[0])
    return Finding(figure, title, text + _untestable(lab, machine, found[0]), PAGE, claims=ids)


def _alone(lab: Evidence, machine: str) -> str:
    """What a sentence adds of the primary clock, where it leaves out what a caller waits for."""
    return ", by the GPU's work alone" if lab.primary(machine) == "graph" else ""


def _untestable(lab: Evidence, machine: str, found: Gains) -> str:
    """Why ``found`` judges no claim of S000, as a sentence; empty where it does."""
    if lab.primary(machine) != "graph":
        return " S000 speaks of GPUs; this is a CPU."
    return "" if found.mode == "default" else " S000 works in PyTorch's default arithmetic, which this is not."


def called(first: Row) -> str:
    """What a sentence calls the case of eager's row."""
    return f"the {MODELS[first.operation]}" if first.direction == FORWARD else "a training step"


def against(gain: Interval) -> str:
    """The verdict on 2 to 5 times."""
    return "confirmed" if gain.within(*CLAIMED) else "refuted" if gain.outside(*CLAIMED) else "undecided"


def _promise(what: str, found: Gains) -> str:
    """A title: ``what`` against the 2 to 5 times that S000 promises."""
    seen = {against(gain) for gain in found.all}
    if {"confirmed", "refuted"} <= seen:
        held = formats.listing([called(first) for first, gain in found.pairs if against(gain) == "confirmed"])
        return f"{what} gains 2 to 5 times for {held}{'' if 'undecided' in seen else ' only'}"
    if seen == {"confirmed"}:
        return f"{what} gains 2 to 5 times"
    if seen != {"refuted"}:
        return f"Whether {what.lower()} gains 2 to 5 times is open"
    if found.every(lambda gain: gain.below(CLAIMED[0])):
        return f"{what} gains less than 2 times"
    if found.every(lambda gain: gain.above(CLAIMED[1])):
        return f"{what} gains more than 5 times"
    return f"{what} gains something else than 2 to 5 times"


def compiled(lab: Evidence, machine: str) -> Finding | None:
    """torch.compile alone, as a caller waits, against 2 to 5 times."""

    def write(found: Gains) -> tuple[str, str, str]:
        first, gain = found.best
        text = f"In warm calls in {found.held}, the best case is {called(first)} with {spoken(gain)}."
        replayed = gains(lab, machine, COMPILED, "graph")[:1]  # a CPU has none
        if replayed and replayed[0].clear:
            text += f" Replayed without the host it is {replayed[0].span}."
        return found.span, _promise("torch.compile alone", found), text

    found = gains(lab, machine, COMPILED, waited(lab, machine))
    return _card(lab, machine, found, "Whether torch.compile alone gains 2 to 5 times", ("S000-32a", "S000-32b"), write)


def together(lab: Evidence, machine: str) -> Finding | None:
    """All points that go together, against 2 to 5 times."""

    def write(found: Gains) -> tuple[str, str, str]:
        # The part of the claim that can be tested is the U-Net's forward pass.
        net = [pair for pair in found.clear if (pair[0].operation, pair[0].direction) == ("unet", FORWARD)]
        first, gain = net[0] if net else found.least
        text = f"Compiled, channels last, with group_norm's kernel and autocast to bfloat16, {called(first)} is "
        text += f"{spoken(gain)} as fast as in {found.held}."
        if others := [f"{called(own)} {spoken(one)}" for own, one in found.clear if own is not first]:
            text += f" Beside it: {formats.listing(others)}."
        inside = sum(against(one) == "confirmed" for one in found.all)
        text += f" {inside} of {len(found.all)} cases {'lies' if inside == 1 else 'lie'} within "
        text += f"{CLAIMED[0]:g} to {CLAIMED[1]:g} times."
        if net and not _untestable(lab, machine, found):
            text += f" The claim is judged by {called(first)} alone."
        return spoken(gain), _promise("Everything together", found), text

    found = gains(lab, machine, TOGETHER, lab.primary(machine))
    return _card(lab, machine, found, "Whether everything together gains 2 times", ("S000-32c", "S000-32d"), write)


def doubled(what: str, found: Sequence[Interval]) -> str:
    """A title: ``what`` against the twice that S000 promises of mixed precision."""
    low, high = DOUBLED * (1 - TENTH), DOUBLED * (1 + TENTH)
    title = (
        f"{what} gains more than twice"
        if all(one.above(high) for one in found)
        else f"{what} doubles the speed"
        if all(one.within(low, high) for one in found)
        else f"{what} does not double the speed"
        if any(one.below(low) for one in found)
        else f"whether {what} doubles the speed is open"
    )
    return title[0].upper() + title[1:]


def precision(lab: Evidence, machine: str) -> Finding | None:
    """bfloat16 by autocast on eager PyTorch, against twice the throughput, with its error."""

    def write(found: Gains) -> tuple[str, str, str]:
        first, gain = found.best
        row = row_of(lab, first, AUTOCAST)
        text = f"Of the lab's models, {called(first)} gains most from autocast to bfloat16: {spoken(gain)}"
        text += f" against {found.held}{_alone(lab, machine)}."
        if row and not absent(row.error) and first.error:
            text += f" Its error is {formats.spoken(row.error / first.error)} times as large."
        return spoken(gain), doubled("mixed precision", found.all), text

    found = gains(lab, machine, AUTOCAST, lab.primary(machine))
    return _card(lab, machine, found, "Whether mixed precision doubles the speed", ("S000-22a", "S000-22d"), write)


FOURIER = ("fft", "region_transform", "cf32cf32")
"""What kernels of cuDNN's convolution by Fourier transforms, and its products of complex numbers, are named by."""


def fourier(lab: Evidence, first: Row, variant: str) -> float:
    """Share of a block's time on the device in kernels of Fourier transforms, in the arithmetic of ``first``.

    Of the calls that were traced; means are arithmetic, so that kernels add up to a call. 0 where none was recorded.
    """
    where = {key: getattr(first, key) for key in ("machine", "experiment", "dtype", "math")}
    lines = lab.details(**where, topic="kernels", operation="conv_block", variant=variant)
    spent = [(line["name"], intervals.mean(line["values"]).value) for line in lines if line["unit"] == "us"]
    total = sum(us for _, us in spent)
    return sum(us for name, us in spent if any(part in name for part in FOURIER)) / total if total else 0.0


def slow_order(lab: Evidence, machine: str) -> Finding | None:
    """Where channels last at least halves eager's speed, and the compiler, which chooses it, is as slow."""
    clock, half = lab.primary(machine), 1 / DOUBLED
    compiled = {one.mode: one.pairs for one in gains(lab, machine, COMPILED, clock, [FORWARD])}
    for last in gains(lab, machine, LAST, clock, [FORWARD]):
        slow = {first.operation for first, gain in last.pairs if gain.below(half)}
        same = [(first, gain) for first, gain in compiled.get(last.mode, []) if gain.below(half)]
        same = [(first, gain) for first, gain in same if first.operation in slow]
        if not same:
            continue
        first, gain = min(same, key=lambda pair: pair[1].value)
        eager = next(other for own, other in last.pairs if own.operation == first.operation)
        text = f"Compiled, {called(first)} has {spoken(gain)} the speed of eager{_alone(lab, machine)}."
        text += f" Eager with channels last has {spoken(eager)}."
        share = min(fourier(lab, first, way.variant) for way in (COMPILED, LAST))
        if share > 0.5:
            text += f" In both, a convolution by Fourier transforms takes {share:.0%} of the GPU's time."
        title = f"In {last.held} torch.compile picks a slow order of memory"
        return Finding(spoken(gain), title, text, f"{PAGE}#modes-and-the-arithmetic-beneath")
    return None


UNWON, UNSEEN = "never wins it back", "is not seen to win it back"


def won_back(calls: Interval) -> str:
    """What a sentence says of a start."""
    if math.isinf(calls.low) and not calls.doubt:
        return UNWON
    if calls.flaw or not math.isfinite(calls.high):
        return UNSEEN
    if calls.doubt:
        return "wins it back after a number of calls that is too noisy to say"
    return f"wins it back after about {count(calls.value)} calls"


def pays(lab: Evidence, machine: str) -> Finding | None:
    """After how many calls compiling has paid for itself, nothing stored, in the leading arithmetic that tells."""
    found: dict[str, list[tuple[str, Curve]]] = {}
    for model, direction, mode in views(lab, machine):
        name = f"the {MODELS[model]}" if direction == FORWARD else "a training step"
        own = [curve for curve in curves(lab, machine, model, direction, mode) if curve.name == "compile"]
        found.setdefault(mode, []).extend((name, curve) for curve in own)
    mode, pairs = next(((mode, pairs) for mode, pairs in found.items() if pairs), ("", []))
    if not pairs:
        return None

    def seconds(own: Sequence[Curve]) -> str:
        return spanning([curve.paid.value / 1e6 for curve in own], formats.spoken) + " s"

    clear = [curve for _, curve in pairs if not curve.paid.doubt]
    if not clear:
        every = [curve for _, curve in pairs]
        facts = f"A fresh process with nothing stored takes {seconds(every)} to build and make its first call."
        question = "Whether what compiling takes is paid back"
        return unsaid(lab, machine, question, PAGE, [curve.paid for curve in every], facts=facts)
    calls = [(name, at_least_one(curve.calls)) for name, curve in pairs]
    told = [f"{name} {won_back(one)}" for name, one in calls]
    text = "In that time a fresh process with nothing stored builds and makes its first call."
    text += f" Against eager in {FLOAT32[mode]} {formats.listing(told)}."
    never, open_ = (sum(won_back(one) == word for _, one in calls) for word in (UNWON, UNSEEN))
    title = (
        f"What compiling takes is never paid back{' in some cases' if never < len(calls) else ''}"
        if never
        else "What compiling takes is paid back in every case"
        if not open_
        else "Whether what compiling takes is paid back is open in some cases"
    )
    return Finding(seconds(clear), title, text, PAGE)


def correct(lab: Evidence, machine: str) -> Finding | None:
    """Whether compiled chains of normalisations are right; eager's own mistakes are counted too."""
    tried = lab.select(machine=machine, experiment=EXPERIMENT, operation="norm_chain")
    tried = [row for row in tried if row.status != "skipped"]
    mine = [row for row in tried if row.variant.startswith("compile")]
    if not mine:
        return None
    wrong = [row for row in tried if row.status != "ok"]
    bad = sum(row in mine for row in wrong)
    eager = len(wrong) - bad
    text = "Three instance normalisations in a row are held against float64."
    if others := len(tried) - len(mine):
        text += f" In eager PyTorch {others - eager} of {others} are right."
    title = "Some compiled normalisations are wrong" if bad else "Compiled normalisations are right"
    if bad and eager:  # what is wrong without the compiler, too, is not laid to it
        last = all(row.variant.endswith(CHANNELS_LAST) for row in wrong)
        title = f"Some normalisations {'in channels last ' if last else ''}are wrong, compiled or not"
    return Finding(f"{len(mine) - bad} of {len(mine)} right", title, text, PAGE)


def reported() -> Finding:
    """What pytorch#183601 reports, tried in eager PyTorch as the page is made: the same on any machine."""
    import torch

    from hypatia_lab.operations import norm_chain

    x = torch.randn(4, 3, 10, 12, generator=torch.Generator().manual_seed(42))
    answer, means = norm_chain.reported(x)
    exact = norm_chain.reported(x.double())[0]
    noise = bool(means.abs().max() < 1e-6 and (answer - exact).abs().max() > 0.1)
    return Finding(
        "noise" if noise else "digits",
        "The reported chain divides zero by zero, so no answer to it is right"
        if noise
        else "The reported miscompilation is none of rounding",
        "What it returns are rounding errors scaled up to 1. Eager in float32 and in float64 disagree too."
        if noise
        else "Eager in float32 and in float64 agree, so a compiled form that does not is wrong.",
        PAGE,
    )


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """What the records of ``machine`` say on this chapter's questions, the weightiest first."""
    return answered(lab, machine, compiled, together, precision, pays)
