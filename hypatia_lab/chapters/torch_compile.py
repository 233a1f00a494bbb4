"""S000's strategy in place of own kernels: findings, tables, curves and claims of its chapter.

Everything is held against one thing: eager PyTorch in float32, of the same shape and direction, even where the variant
in question belongs to another operation (autocast, another GELU) or dtype. Its arithmetic is PyTorch's default where a
machine has that recorded, with IEEE's beside it, and else IEEE's; each sentence names the one that it speaks of. Ratios
are paired by process. Every measured figure is taken from the records when a page is made; what was not measured is
left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypatia_lab import claims, formats, intervals
from hypatia_lab.chapters.torch_compile_rows import (
    EXPERIMENT,
    FORWARD,
    MODELS,
    POINTS,
    STEP,
    Point,
    base,
    beside,
    gain,
    maths,
    row_of,
    select,
    views,
)
from hypatia_lab.claims import Claim
from hypatia_lab.figures.break_even import NEVER, Curve, at_least_one, calls_text, count
from hypatia_lab.figures.language import spanning
from hypatia_lab.figures.probe_rows import rare
from hypatia_lab.formats import absent, listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, unsaid
from hypatia_lab.pages.phrases import FLOAT32, only, probed, say, waited
from hypatia_lab.results import Row

PAGE = "06_torch_compile"
CLAIMED = (2.0, 5.0)
"""What S000 calls proven: times as fast."""
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
    own = only([way for way in ways if way.lines[0] in lines], row.variant, case)
    found = own.per_process("build", "call 1") if own else []
    return [us for us in found if us is not None]


def cases(lab: Evidence, machine: str, row: Row) -> list[str]:
    """Which caches the fresh processes of ``row``'s variant found, as far as they were tried and went well."""
    return [case for case in ("", "empty", "disk") if paid(lab, machine, row, case)]


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
        if not row.timed or row.variant == "eager" or point.mode:
            continue
        for case in cases(lab, machine, row):
            once = rare(paid(lab, machine, row, case))
            caches = {"": "", "empty": "", "disk": ", stored"}[case]
            calls = until(first, row, once, before.value)
            dtype = "" if row.dtype == first.dtype else f", {row.dtype}"
            found.append(Curve(row.variant + dtype + caches, row.variant, row.origin, once, row.time, calls))
    return found if len(found) > 1 else []


def curves_title(found: Sequence[Curve]) -> str:
    """What :func:`curves` show of the compiled forms."""
    calls = [at_least_one(curve.calls) for curve in found if curve.variant.startswith("compile")]
    won = [one.value for one in calls if not one.doubt and one.value < NEVER]
    never = [one for one in calls if not one.doubt and one.value == NEVER]
    after = f"after {spanning(won, count)} calls" if won else ""
    if len(won) == len(calls):
        return f"Compiling is won back {after}"
    if won:
        return f"Compiling is won back by {'some forms only' if never else 'some forms'}, {after}"
    if calls and len(never) == len(calls):
        return "Compiling is never won back"
    return f"Whether compiling is won back: {next((one.doubt for one in calls if one.doubt), 'undecided')}"


# ---------------------------------------------------------------- findings


def _against(found: Interval, band: tuple[float, float]) -> str:
    return "confirmed" if found.within(*band) else "refuted" if found.outside(*band) else "undecided"


def _on_gpu(lab: Evidence, machine: str, text: str) -> str:
    """``text``, and on a CPU that S000 speaks of GPUs."""
    return text if lab.primary(machine) == "graph" else f"{text} S000 speaks of GPUs, and this is a CPU."


Pairs = list[tuple[Row, Row]]
"""(eager in float32, a point) of each model and direction that has both."""


def _measured(
    lab: Evidence, machine: str, point: Point, clock: str, directions: Sequence[str] = (FORWARD, STEP)
) -> dict[str, Pairs]:
    """Arithmetic → the pairs of ``point`` that have a time, the leading one first; none without any."""
    out: dict[str, Pairs] = {}
    for mode in maths(lab, machine):
        for direction, model in ((direction, model) for direction in directions for model in MODELS):
            first = base(lab, machine, model, direction, mode, clock)
            row = row_of(lab, first, point) if first else None
            if first and row and row.timed:
                out.setdefault(mode, []).append((first, row))
    return out


def _gains(pairs: Pairs) -> list[Interval]:
    return [gain(first, row) for first, row in pairs]


def _unsaid(lab: Evidence, machine: str, question: str, pairs: Pairs, *judged: str) -> Finding | None:
    """The card of a question that none of ``pairs`` answers; None where one does."""
    gains = _gains(pairs)
    return unsaid(lab, machine, question, PAGE, gains, judged) if all(one.doubt for one in gains) else None


def _clear(pairs: Pairs) -> list[Interval]:
    """The gains of those pairs that say something."""
    return [one for one in _gains(pairs) if not one.doubt]


def _listed(pairs: Pairs) -> str:
    """``the block 1.43× [1.42, 1.44] and the U-Net 1.30× [1.29, 1.31]``."""
    return listing([f"{_name(first)} {say(gain(first, row))}" for first, row in pairs])


def _elsewhere(found: dict[str, Pairs]) -> str:
    """The same against the other arithmetics, as sentences; empty where there is none."""
    return "".join(f"Against {FLOAT32[mode]}: {_listed(pairs)}. " for mode, pairs in list(found.items())[1:])


def _name(first: Row) -> str:
    what = MODELS[first.operation]
    return what if first.direction == FORWARD else f"a training step of {what}"


def _together(verdicts: Sequence[str]) -> str:
    """One word for several figures held against one band."""
    seen = set(verdicts)
    if len(seen) == 1:
        return seen.pop()
    return "conditional" if {"confirmed", "refuted"} <= seen else "undecided"


def compiled(lab: Evidence, machine: str) -> Finding | None:
    """torch.compile alone, float32, as a caller waits, against 2 to 5 times."""
    clock = waited(lab, machine)
    found = _measured(lab, machine, POINTS[0], clock)
    if not found:
        return None
    mode, pairs = next(iter(found.items()))
    judged = "S000-32a", "S000-32b"
    if card := _unsaid(lab, machine, "Whether torch.compile alone gives 2 to 5 times", pairs, *judged):
        return card
    gains = _gains(pairs)
    verdict = _together([_against(found, CLAIMED) for found in gains])
    said = [f"{say(one)} ({_name(first)})" for (first, _), one in zip(pairs, gains, strict=True)]
    best = max(_clear(pairs), key=lambda one: one.value)
    title = {
        "confirmed": "torch.compile alone gives what is promised of it",
        "refuted": "torch.compile alone does not give 2 to 5 times"
        if best.below(CLAIMED[0])
        else "torch.compile alone gives something else than 2 to 5 times",
        "conditional": "torch.compile alone gives 2 to 5 times in some cases",
        "undecided": "it is open whether torch.compile alone gives 2 to 5 times",
    }[verdict]
    text = f"Compiled in {FLOAT32[mode]} and warm, a call runs at {listing(said)} of eager's speed, by the {clock} "
    text += f"clock, at {pairs[0][0].at}. "
    if others := _other_batches(lab, machine, mode, clock):
        text += f"The block alone depends on the number of images: {listing(others)}. "
    for other, own in list(found.items())[1:]:
        text += f"In {FLOAT32[other]}: {_listed(own)}. "
    text += "S000 calls 2 to 5 times proven."
    text = _on_gpu(lab, machine, text)
    title = f"In {FLOAT32[mode]} {title}"
    span = spanning([one.value for one in _clear(pairs)], lambda value: f"{formats.number(value)}×")
    return Finding(span, title, text, PAGE, claims=judged)


def _other_batches(lab: Evidence, machine: str, mode: str, clock: str) -> list[str]:
    """The compiled block against eager at the sizes beside the plan's own, as text."""
    first = base(lab, machine, "conv_block", FORWARD, mode, clock)
    if first is None:
        return []
    same = {
        key: getattr(first, key)
        for key in ("machine", "experiment", "operation", "dtype", "math", "direction", "clock")
    }
    rows = lab.timed(**same, variant=("eager", "compile"))
    found = {}
    for row in rows:
        found.setdefault(row.shape, {})[row.variant] = row
    both = [(shape, pair) for shape, pair in found.items() if len(pair) == 2 and shape != first.shape]
    return [f"{say(pair['eager'].over(pair['compile']))} at {pair['eager'].at}" for _, pair in both]


LAST = next(point for point in POINTS if point.what == "channels last")
FOURIER = ("fft", "region_transform", "cf32cf32")
"""What kernels of cuDNN's convolution by Fourier transforms, and its products of complex numbers, are named by."""


def _fourier(lab: Evidence, first: Row, variant: str) -> float:
    """Share of a block's time on the device in kernels of Fourier transforms, in the arithmetic of ``first``.

    Of the calls that were traced; means are arithmetic, so that kernels add up to a call. 0 where none was recorded.
    """
    where = {key: getattr(first, key) for key in ("machine", "experiment", "dtype", "math")}
    lines = lab.details(**where, topic="kernels", operation="conv_block", variant=variant)
    spent = [(line["name"], intervals.mean(line["values"]).value) for line in lines if line["unit"] == "us"]
    total = sum(us for _, us in spent)
    return sum(us for name, us in spent if any(part in name for part in FOURIER)) / total if total else 0.0


def _chosen(lab: Evidence, machine: str, mode: str, pairs: Pairs) -> str:
    """Whether the compiler is as slow where channels last at least halves eager's speed, in sentences; empty if not."""
    slow = [first.operation for first, row in pairs if gain(first, row).below(1 / DOUBLED)]
    compared = _measured(lab, machine, POINTS[0], pairs[0][0].clock, [FORWARD]).get(mode, [])
    same = [(first, row) for first, row in compared if first.operation in slow]
    same = [(first, row) for first, row in same if gain(first, row).below(1 / DOUBLED)]
    if not same:
        return ""
    text = f"torch.compile, which picks the order itself, is as slow there: {_listed(same)}. "
    share = _fourier(lab, pairs[0][0], LAST.variant), _fourier(lab, pairs[0][0], "compile")
    if min(share) > 0.5:
        text += f"Kernels of a Fourier transform take {share[0]:.0%} of a call's time on the GPU in eager channels "
        text += f"last and {share[1]:.0%} compiled: the library picks that algorithm for this order and size. "
    return text


def channels_last(lab: Evidence, machine: str) -> Finding | None:
    """Channels last in eager float32, and whether what the compiler makes is as slow by choosing it."""
    clock = lab.primary(machine)
    found = _measured(lab, machine, LAST, clock, [FORWARD])
    if not found:
        return None
    mode, pairs = next(iter(found.items()))
    if card := _unsaid(lab, machine, "Whether channels last speeds up convolutions", pairs, "S000-21c"):
        return card
    gains, first, chosen = _gains(pairs), pairs[0][0], _chosen(lab, machine, mode, pairs)
    text = f"In eager {FLOAT32[mode]} at {first.at}, by the {clock} clock, channels last against the usual order: "
    text += f"{_listed(pairs)} as fast. S000 asks for better operators and names no order of memory. {chosen}"
    for other, own in list(found.items())[1:]:
        text += f"In {FLOAT32[other]}: {_listed(own)} as fast. {_chosen(lab, machine, other, own)}"
    eager, compiled = (row_of(lab, first, point) for point in (TF32, TF32_COMPILED))
    if eager and compiled and eager.timed and compiled.timed:
        text += "PyTorch lets convolutions use TF32 unless told otherwise: then "
        text += f"{_name(first)} compiled is {say(eager.over(compiled))} as fast as eager."
    text = _on_gpu(lab, machine, text.strip())
    least = min(_clear(pairs), key=lambda one: one.value)
    what = f"convolutions in {FLOAT32[mode]}"
    return Finding(
        f"{formats.number(least.value)}×",
        f"Channels last slows {what} down, and torch.compile chooses it"
        if chosen
        else f"Channels last slows {what} down"
        if all(one.below(1 - intervals.EQUIVALENCE) for one in gains)
        else f"Channels last speeds up {what}"
        if all(one.above(1 + intervals.EQUIVALENCE) for one in gains)
        else f"Channels last is not seen to speed up {what} in every case",
        text,
        PAGE,
        claims=("S000-21c",),
    )


TF32, TF32_COMPILED = (
    next(p for p in POINTS if (p.variant, p.mode) == (name, "tf32")) for name in ("eager", "compile")
)


def pays(lab: Evidence, machine: str) -> Finding | None:
    """After how many calls compiling has paid for itself, nothing stored, in the leading arithmetic that tells."""
    said, facts, spent, seen, held = [], [], [], [], ""
    for model, direction, mode in views(lab, machine):
        own = next((c for c in curves(lab, machine, model, direction, mode) if c.name == "compile"), None)
        if own is None or held not in ("", mode):
            continue
        name = MODELS[model] if direction == FORWARD else f"a training step of {MODELS[model]}"
        calls = at_least_one(own.calls)
        back = f"a number {formats.DOUBTS[calls.doubt]}" if calls.doubt else calls_text(calls)
        said.append(f"{name} {formats.lasts(own.paid)} (calls to win it back: {back})")
        facts.append(f"{name} {formats.duration(own.paid.value)} (n = {own.paid.n})")
        spent.append(own.paid)
        seen.append(calls)
        held = mode
    if not said:
        return None
    clear = [paid_us.value for paid_us in spent if not paid_us.doubt]
    text = "With nothing stored, building and the first call of a fresh process take: "
    if not clear:
        question = "Whether what compiling takes is paid back"
        return unsaid(lab, machine, question, PAGE, spent, facts=f"{text}{'; '.join(facts)}.")
    return Finding(
        spanning(clear, formats.duration),
        "What compiling takes is never paid back in some cases"
        if any(math.isinf(calls.low) and not calls.doubt for calls in seen)
        else "Whether what compiling takes is paid back is open in some cases"
        if any(math.isinf(calls.high) or calls.doubt for calls in seen)
        else "What compiling takes is paid back in every case",
        f"{text}{'; '.join(said)}. Calls are counted against eager in {FLOAT32[held]}. Whoever comes with a new shape "
        "pays again.",
        PAGE,
    )


def precision(lab: Evidence, machine: str) -> Finding | None:
    """bfloat16 by autocast on eager PyTorch, against twice the throughput, with its error."""
    point = next(p for p in POINTS if p.what == "bfloat16 by autocast")
    found = _measured(lab, machine, point, lab.primary(machine))
    if not found:
        return None
    band = DOUBLED * (1 - TENTH), DOUBLED * (1 + TENTH)
    mode, pairs = next(iter(found.items()))
    judged = "S000-22a", "S000-22d"
    if card := _unsaid(lab, machine, "Whether mixed precision by itself doubles the speed", pairs, *judged):
        return card
    gains, held = _gains(pairs), FLOAT32[mode]
    best = max(_clear(pairs), key=lambda one: one.value)
    first, row = pairs[gains.index(best)]
    text = f"By the {lab.primary(machine)} clock, eager under autocast against eager in {held}: {_listed(pairs)}. "
    text += f"{_elsewhere(found)}S000 expects twice the throughput. "
    if not absent(row.error):
        worst = "" if first.direction == FORWARD else " in the worst of y and the gradients"
        text += f"The price of {formats.number(best.value)}× is a relative error of {formats.number(100 * row.error)}%"
        text += f"{worst}, where {held} has {formats.number(100 * first.error)}%."
    text = _on_gpu(lab, machine, text.strip())
    return Finding(
        f"{formats.number(best.value)}×",
        f"Mixed precision gains more than twice over {held}"
        if all(one.above(band[1]) for one in gains)
        else f"Mixed precision doubles the speed of {held}"
        if all(one.within(*band) for one in gains)
        else f"Mixed precision by itself is slower than {held}"
        if all(one.below(1) for one in gains)
        else f"Mixed precision by itself does not double the speed of {held} everywhere"
        if any(one.below(band[0]) for one in gains)
        else f"Whether mixed precision doubles the speed of {held} is open in some cases",
        text,
        PAGE,
        claims=judged,
    )


def together(lab: Evidence, machine: str) -> Finding | None:
    """All points that go together, against 2 to 5 times, and what of it is the compiler's."""
    point = next(p for p in POINTS if p.what == "together, bfloat16 by autocast")
    found = _measured(lab, machine, point, lab.primary(machine))
    if not found:
        return None
    mode, pairs = next(iter(found.items()))
    judged = "S000-32c", "S000-32d"
    if card := _unsaid(lab, machine, "Whether all points together reach 2 times the speed", pairs, *judged):
        return card
    gains, held = _gains(pairs), FLOAT32[mode]
    best = max(_clear(pairs), key=lambda one: one.value)
    plain = _measured(lab, machine, TOGETHER, lab.primary(machine)).get(mode, [])
    text = f"By the {lab.primary(machine)} clock, compiled, channels last, by group_norm's kernel and under bfloat16 "
    text += f"autocast, against eager in {held}: {_listed(pairs)}. "
    text += f"The same without autocast, in {held}: {_listed(plain)}. " if plain else ""
    text += f"{_elsewhere(found)}S000 expects 2 to 5 times. TorchScript is not among them: torch.compile takes no "
    text = _on_gpu(lab, machine, f"{text}scripted function.")
    title = {
        "confirmed": "All points together reach 2 to 5 times the speed of {}",
        "refuted": "All points together give more than 5 times the speed of {}"
        if all(one.above(CLAIMED[1]) for one in gains)
        else "All points together do not reach 2 times the speed of {}"
        if all(one.below(CLAIMED[0]) for one in gains)
        else "All points together give something else than 2 to 5 times the speed of {}",
        "conditional": "All points together reach 2 to 5 times the speed of {} in some cases",
        "undecided": "Whether all points together reach 2 times the speed of {} is open",
    }[_together([_against(one, CLAIMED) for one in gains])]
    return Finding(f"{formats.number(best.value)}×", title.format(held), text, PAGE, claims=judged)


TOGETHER = next(point for point in POINTS if point.what == "together, float32")
SCRIPT = next(point for point in POINTS if point.variant == "script")


def script(lab: Evidence, machine: str) -> Finding | None:
    """TorchScript against eager, as a caller waits."""
    found = _measured(lab, machine, SCRIPT, waited(lab, machine), [FORWARD])
    if not found:
        return None
    mode, pairs = next(iter(found.items()))
    if card := _unsaid(lab, machine, "Whether TorchScript gains", pairs, "S000-21g"):
        return card
    gains = _gains(pairs)
    faster = [one for one in gains if one.above(1 + intervals.EQUIVALENCE)]
    text = f"Scripted, in {FLOAT32[mode]}, {_listed(pairs)} as fast as eager. "
    for other, own in list(found.items())[1:]:
        text += f"In {FLOAT32[other]}: {_listed(own)}. "
    text += "PyTorch calls torch.jit.script deprecated, and means torch.compile or torch.export instead."
    text = _on_gpu(lab, machine, text)
    best = max(_clear(pairs), key=lambda one: one.value)
    return Finding(
        f"{formats.number(best.value)}×",
        "TorchScript gains" if len(faster) == len(gains) else "TorchScript gains little, if anything",
        text,
        PAGE,
        claims=("S000-21g",),
    )


def correct(lab: Evidence, machine: str) -> Finding | None:
    """Whether compiled chains of normalisations are right; eager's own mistakes are named too."""
    rows = select(lab, machine, operation="norm_chain")
    if not rows:
        return None
    tried = [row for row in rows if row.status != "skipped"]
    mine = [row for row in tried if row.variant.startswith("compile")]
    bad, eager = ([row for row in own if row.status != "ok"] for own in (mine, [r for r in tried if r not in mine]))

    def shown(row: Row) -> str:
        way = f"{row.variant} at {row.at} in {row.dtype}, {formats.direction(row.direction)}"
        return f"{way} ({row.reason.split(':')[0]})"

    text = (
        f"Of {len(mine)} compiled chains of three instance normalisations {len(mine) - len(bad)} agree with float64. "
    )
    text += f"Wrong: {listing([shown(row) for row in bad])}. " if bad else ""
    text += f"Wrong without a compiler: {listing([shown(row) for row in eager])}." if eager else ""
    return Finding(
        f"{len(mine) - len(bad)} of {len(mine)}",
        "Some compiled chains of normalisations are wrong" if bad else "Compiled chains of normalisations are right",
        text.strip(),
        PAGE,
    )


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
        "The reported miscompilation scales rounding errors up to 1"
        if noise
        else "The reported miscompilation is none of rounding",
        "pytorch#183601 takes the mean of each instance-normalised plane, which is zero, and divides what is left by "
        "its norm. "
        + (
            "Here eager PyTorch in float32 and in float64 disagree as well, by more than a tenth of the largest "
            "possible value: the chain has no answer to be held to, and its compiled form being another says nothing."
            if noise
            else "Here eager PyTorch in float32 and in float64 agree, so a compiled form that does not is wrong."
        ),
        PAGE,
    )


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """What the records of ``machine`` say on this chapter's questions, in its order."""
    asked = (compiled, channels_last, together, precision, pays, script, correct)
    return [found for found in (ask(lab, machine) for ask in asked) if found is not None]


# ---------------------------------------------------------------- claims


def chapter_claims() -> list[Claim]:
    """The claims whose verdicts the chapter shows, in the order of the ledger."""
    return [
        claim
        for claim in claims.ledger(seeds=["S000"])
        if claim.experiment == EXPERIMENT or claim.section.startswith(("Strategy", "Expected Results"))
    ]
