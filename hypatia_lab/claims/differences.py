"""Where machines, or folders of records, disagree: the claims whose verdicts differ, and on how many one holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from operator import attrgetter
from typing import Any

from hypatia_lab.claims.judgement import ANY, Judgement
from hypatia_lab.claims.words import UNJUDGED, VERDICTS
from hypatia_lab.results import grouped

SIDES = ("machine", "verdict", "measured", "low", "high", "n", "program", "reason")
"""What is told of either side, with ``_a`` or ``_b`` behind it."""


def differences(rows: Sequence[Judgement], machine_a: str, machine_b: str) -> list[dict[str, Any]]:
    """The claims with different verdicts on two machines: those that both could judge first, in order of the ledger.

    ``rows`` are those of :func:`hypatia_lab.claims.judge`. Keys: id, claim, claimed, unit, and :data:`SIDES` of either
    machine: ``verdict_a``, ``low_b`` and so on. A claim that no machine decides (arithmetic) cannot differ.
    """
    found: dict[str, dict[str, Judgement]] = {}
    for row in rows:
        found.setdefault(row.id, {})[row.machine] = row
    out = []
    for sides in found.values():
        a, b = sides.get(machine_a), sides.get(machine_b)
        if a is None or b is None or a.verdict == b.verdict:
            continue
        line = {key: getattr(a, key) for key in ("id", "claim", "claimed", "unit")}
        for suffix, side in (("a", a), ("b", b)):
            line |= {f"{key}_{suffix}": getattr(side, key) for key in SIDES}
        out.append(line)
    silent = set(UNJUDGED)
    return sorted(out, key=lambda line: not silent.isdisjoint((line["verdict_a"], line["verdict_b"])))


def tested(rows: Iterable[Judgement], machines: Container[str]) -> list[list[Judgement]]:
    """The judgements of each part of a claim that at least two of ``machines`` could judge, in order of the ledger.

    What a machine says of a rewrite that nothing shows equal to the author's program judges nobody, and is left out.
    """
    return [own for own in _by_part(row for row in rows if row.machine in machines) if len(own) > 1]


def _by_part(rows: Iterable[Judgement]) -> list[list[Judgement]]:
    """The judgements on each part that say something of the document's own program."""
    return list(grouped((row for row in rows if row.verdict not in UNJUDGED), attrgetter("id")).values())


def differing(parts: Iterable[list[Judgement]]) -> list[list[Judgement]]:
    """Those of the ``parts`` that machines :func:`tested` whose verdicts are not all the same."""
    return [own for own in parts if len({row.verdict for row in own}) > 1]


def agreement(rows: Sequence[Judgement]) -> list[dict[str, Any]]:
    """On how many machines a verdict holds, a line a claim that any of them could test, in order of the ledger.

    ``rows`` are those of :func:`hypatia_lab.claims.judge`. Keys: id, claim, lead, verdicts (machine → verdict, of those
    that could test it), verdict (the commonest, and of two the first in order of :data:`VERDICTS`), holds (on "all" of
    at least two of them, on "most", on "some" or on "one"). A claim that no machine decides (arithmetic) is left out.
    """
    out = []
    for own in _by_part(row for row in rows if row.machine != ANY):
        counts = Counter(row.verdict for row in own)
        verdict = min(counts, key=lambda word: (-counts[word], list(VERDICTS).index(word)))
        share = counts[verdict] / len(own)
        holds = "one" if counts[verdict] == 1 else "all" if share == 1 else "most" if share > 0.5 else "some"
        line = {key: getattr(own[0], key) for key in ("id", "claim", "lead")}
        out.append(line | {"verdicts": {row.machine: row.verdict for row in own}, "verdict": verdict, "holds": holds})
    return out
