"""From what was seen of a judged variant: whether its numbers are its own, and if not, what it did.

Each test returns an empty sentence where all is well, else one that says what was seen, and the numbers behind it. What
is usual on a machine that does other things, too, is what the baseline shows beside it. Beyond that thresholds leave
room: a variant has to be caught in most of a process's samples, and where there are few in all of them and by more.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from operator import sub
from typing import Any

ENOUGH, FEWEST = 10, 2
"""Samples in one process: below the first, all of them must tell the same; below the second nothing is said."""
SOME = 5
"""Samples that showed an output, of which there are few, below which nothing is said of them."""
APART, FAR_APART = 1.06, 1.5
"""A sample takes so much longer outside than is usual before a worker's clock is not believed; of few samples."""
ANSWER_S = 1e-4
"""And so much longer whatever it takes: a mark has to arrive."""
REMEMBERED, SURELY = 1.35, 3.0
"""A call on new inputs takes so much longer than the same call again before it is said to remember; of few pairs."""
FASTER, REST_S = 0.5, 5e-5
"""Of a call alone, calls without a rest save such a share and so long before it is said to remember."""
ASIDE, ASIDE_S = 0.3, 1e-4
"""Such a share of the baseline's call, and so long, may pass around a call beyond what is usual."""
IDLE = 0.2
"""Share of a core, or of the GPU's time, that a process may use while nobody has called it."""
LEFT = 32
"""So many threads more than after its first calls a process may have, and twice as many as there are cores: pools."""

BEHIND_S = 2e-3
"""So much work, beyond what baselines leave, may be left on a GPU when an output is there."""

Finding = tuple[str, dict[str, Any]]


@dataclass
class Seen:
    """What was seen of a variant in one process, under one clock; all in seconds.

    ``told_s`` and ``passed_s``: samples of ``calls`` calls each as its process timed them, and as the coordinator did.
    ``new_s`` and ``again_s``: a call on inputs that it had not seen, and the same once more on the same ones.
    ``aside_s`` and ``shown_s``: what passed between those in all, where no output was asked for, and where one was.
    """

    calls: int
    told_s: list[float] = field(default_factory=list)
    passed_s: list[float] = field(default_factory=list)
    new_s: list[float] = field(default_factory=list)
    again_s: list[float] = field(default_factory=list)
    aside_s: list[float] = field(default_factory=list)
    shown_s: list[float] = field(default_factory=list)


def clock(seen: Seen, usual: Seen, others: Sequence[Seen] = ()) -> Finding:
    """Whether the worker's clock goes as the coordinator's does.

    What every sample of the baselines takes besides, ``others`` among them, a shorter one takes, too.
    """
    if len(seen.told_s) < FEWEST:
        return "", {}
    told, passed = statistics.median(seen.told_s), statistics.median(seen.passed_s)
    ratios = [p / t for t, p in zip(usual.told_s, usual.passed_s, strict=True)]
    lag = max(1.0, statistics.median(ratios or [1.0]))  # where marks are read late, less seems to pass than was told
    besides = [statistics.median(map(sub, one.passed_s, one.told_s)) for one in (usual, *others) if one.told_s]
    besides_s = max(0.0, min(besides, default=0.0))
    factor = APART if len(seen.told_s) >= ENOUGH else FAR_APART
    late = [
        p > t * factor + max(t * factor * (lag - 1), besides_s) + ANSWER_S
        for t, p in zip(seen.told_s, seen.passed_s, strict=True)
    ]
    if not _most(late):
        return "", {}
    numbers = {"told_us": told * 1e6, "passed_us": passed * 1e6, "samples": len(late)}
    seen_from = f"it told {_ms(told)} of samples that took {_ms(passed)} by a clock outside"
    return f"its clock was changed, or work goes on beside it: {seen_from}", numbers


def memory(seen: Seen, usual: Seen) -> Finding:
    """Whether a call takes as long on known inputs as on new ones."""
    ratios, others = ([new / again for new, again in zip(one.new_s, one.again_s, strict=True)] for one in (seen, usual))
    if len(ratios) < FEWEST:
        return "", {}
    beyond = (REMEMBERED if len(ratios) >= ENOUGH else SURELY) * max(1.0, statistics.median(others or [1.0]))
    if statistics.median(ratios) < beyond or not _most([ratio > (1 + beyond) / 2 for ratio in ratios]):
        return "", {}
    new, again = statistics.median(seen.new_s), statistics.median(seen.again_s)
    numbers = {"new_us": new * 1e6, "again_us": again * 1e6, "pairs": len(ratios)}
    return f"it remembers answers: {_ms(new)} on new inputs, {_ms(again)} on the same once more", numbers


def halved(seen: Seen, usual: Seen) -> dict[str, Any]:
    """How many calls once more, of so many ``pairs``, took less than ``half`` of what they took on new inputs; and how
    many do ``by_chance``, the other way round or with the baseline.

    One process has too few for a verdict: see :func:`hypatia_lab.bench.joining.cell`.
    """

    def count(first: Sequence[float], then: Sequence[float]) -> int:
        return sum(one > 2 * other for one, other in zip(first, then, strict=True))

    by_chance = max(count(seen.again_s, seen.new_s), count(usual.new_s, usual.again_s))
    return {"half": count(seen.new_s, seen.again_s), "by_chance": by_chance, "pairs": len(seen.new_s)}


def bursts(seen: Seen, usual: Seen) -> Finding:
    """Whether calls among others take what one alone does; whoever goes without a rest is a little faster."""
    if min(len(seen.told_s), len(usual.told_s)) < FEWEST:
        return "", {}
    alone, together = statistics.median(seen.again_s), statistics.median(seen.told_s) / seen.calls
    rested = statistics.median(usual.again_s) - statistics.median(usual.told_s) / usual.calls
    least, most = _low(seen.again_s), _high(seen.told_s) / seen.calls
    if most > (1 - FASTER) * (least - max(0.0, rested) - REST_S):
        return "", {}
    numbers = {"alone_us": alone * 1e6, "together_us": together * 1e6, "usual_us": rested * 1e6}
    return f"it remembers answers: {_ms(alone)} alone, {_ms(together)} when called again and again", numbers


def aside(seen: Seen, usual: Seen, others: Sequence[Seen] = ()) -> Finding:
    """Whether it computes outside of the calls that are timed, while inputs or outputs are handed over.

    To hand over takes what the process is busy with, so whatever ``others`` of the baselines take is usual, too.
    """
    for kind, least in (("aside_s", ENOUGH), ("shown_s", SOME)):
        own, *rests = (getattr(one, kind) for one in (seen, usual, *others))
        rests = [rest for rest in rests if len(rest) >= least]
        if len(own) < least or not rests:
            continue
        between, rest = statistics.median(own), max(map(statistics.median, rests))
        margin = max(ASIDE * statistics.median(usual.again_s) + ASIDE_S, 2 * statistics.median(seen.again_s))
        if _low(own) > max(map(_high, rests)) + margin:
            numbers = {"between_us": between * 1e6, "usual_us": rest * 1e6, "samples": len(own)}
            return f"it computes between calls: {_ms(between)} pass there, with the baseline {_ms(rest)}", numbers
    return "", {}


def behind(left_s: Sequence[float], usual_s: Sequence[float]) -> Finding:
    """Whether calls leave work on the GPU that nobody waits for: what passed, after each of their outputs was there,
    until the GPU had done all that it was given."""
    least = min(left_s, default=0.0)
    if least <= BEHIND_S + max(usual_s, default=0.0):
        return "", {}
    numbers = {"left_us": least * 1e6, "calls": len(left_s)}
    return f"it leaves work behind that nobody waits for: {_ms(least)} after its output was there", numbers


def threads(first: int, most: int, cores: int) -> Finding:
    """Whether its calls leave threads behind, which may do anything later: of ``most`` it had ``first`` after its first
    calls."""
    if most - first <= max(LEFT, 2 * cores):
        return "", {}
    numbers = {"threads": most, "first": first}
    return f"it leaves threads behind: {most - first} more than after its first calls", numbers


def aliased(names: Collection[str], allowed: Collection[str]) -> str:
    """Whether its output lies in the memory of inputs where the baseline's does not."""
    if beyond := sorted(set(names) - set(allowed)):
        return f"its output is the memory of its input {', '.join(map(repr, beyond))}"
    return ""


def tampering(replaced: Sequence[str], changed: Sequence[str], when: str) -> str:
    """What it made of its process: functions that were ``replaced``, modes that it ``changed``."""
    more = f" and {len(replaced) - 3} more" if len(replaced) > 3 else ""
    done = [f"changed {'; '.join(changed)}"] if changed else []
    done += [f"replaced {', '.join(replaced[:3])}{more}"] if replaced else []
    return f"{when} it {' and '.join(done)}" if done else ""


def idling(core: float, gpu: float) -> Finding:
    """Whether it goes on computing: the shares of a ``core`` and of the ``gpu``'s time while nobody had called it."""
    if max(core, gpu) <= IDLE:
        return "", {}
    told = f"{core:.0%} of a core" if core > IDLE else f"{gpu:.0%} of the GPU's time"
    return f"it goes on computing after its calls have returned: {told}", {"core": core, "gpu": gpu}


def _most(found: Sequence[bool]) -> bool:
    return sum(found) >= (0.85 * len(found) if len(found) >= ENOUGH else len(found))


def _low(found: Sequence[float]) -> float:
    """What hardly any is below; of few the least."""
    return sorted(found)[len(found) // 8 if len(found) >= ENOUGH else 0]


def _high(found: Sequence[float]) -> float:
    """What hardly any is above; of few the greatest."""
    return sorted(found)[-1 - (len(found) // 8 if len(found) >= ENOUGH else 0)]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
