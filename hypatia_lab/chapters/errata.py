"""Errata of the seeds: figures that do not follow from the document's own, and claims that exclude each other.

No record is needed: the ledger's expressions are worked out when the page is made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypatia_lab import claims, formats
from hypatia_lab.claims import Claim
from hypatia_lab.tables.claims import claimed_text, quantity_text

PAGE = "19_errata"


def wrong(ledger: Sequence[Claim] | None = None) -> list[Claim]:
    """The claims whose own figures give something outside the band, in the order of the ledger."""
    return [c for c in (claims.ledger() if ledger is None else ledger) if not c.adds_up]


def sound(ledger: Sequence[Claim] | None = None) -> list[Claim]:
    """The claims whose arithmetic holds, in the order of the ledger."""
    return [c for c in (claims.ledger() if ledger is None else ledger) if c.expression and c.adds_up]


def headline(ledger: Sequence[Claim] | None = None) -> str:
    """The page's finding, Markdown: how many claims fail, how many exclude each other, how many sums come out."""
    found = list(claims.ledger() if ledger is None else ledger)
    bad, everything = {claim.lead for claim in wrong(found)}, {claim.lead for claim in found}
    return (
        f"**{len(bad)} of {len(everything)} claims** contain a figure that does not follow from what their document "
        f"says itself. {len(pairs(found))} pairs of claims exclude each other. {len(sound(found))} sums come out."
    )


def counts(ledger: Sequence[Claim] | None = None) -> list[dict[str, str]]:
    """A line a document: claims and their parts, claims that arithmetic can decide, those of which a part fails it, and
    pairs of parts that contradict each other.
    """
    found = list(claims.ledger() if ledger is None else ledger)
    bad, both = wrong(found), pairs(found)
    seeds = list(dict.fromkeys(claim.seed for claim in found))
    lines = []
    for seed in seeds:
        own = [claim for claim in found if claim.seed == seed]
        apart = [pair for pair in both if seed in (pair[0].seed, pair[1].seed)]
        within = [pair for pair in apart if pair[0].seed == pair[1].seed]
        lines.append(
            {
                "document": seed,
                "claims": str(len({claim.lead for claim in own})),
                "parts": str(len(own)),
                "with a sum": str(len({claim.lead for claim in own if claim.expression})),
                "that fail": str(len({claim.lead for claim in bad if claim.seed == seed})),
                "parts that fail": str(sum(claim.seed == seed for claim in bad)),
                "pairs within": str(len(within)),
                "pairs across": str(len(apart) - len(within)),
            }
        )
    return lines


def corrections(ledger: Sequence[Claim] | None = None) -> list[dict[str, str]]:
    """What a document says and what its own figures give: a line a part that fails, in each the farthest off first."""
    lines = []
    for claim in sorted(wrong(ledger), key=lambda claim: (claim.seed, -_distance(claim))):
        value = claims.arithmetic(claim.expression)
        lines.append(
            {
                "id": claim.id,
                "document": claim.seed,
                "it says": claim.claim,
                "claimed": claimed_text(claim.claimed, claim.unit),
                "its own figures give": quantity_text(value, claim.unit),
                "off by": _off(claim),
                "why": f"{claim.expression}. {claim.why} Section of the document: {claim.section}.",
            }
        )
    return lines


def _nearest(claim: Claim) -> float:
    """The end of the claimed range that lies nearer to what the figures give."""
    value = claims.arithmetic(claim.expression)
    return min(claim.claimed, key=lambda end: abs(end - value))


def _distance(claim: Claim) -> float:
    """Decades between claimed and worked out; infinite where one of them is 0 or their signs differ."""
    value, end = claims.arithmetic(claim.expression), _nearest(claim)
    return abs(math.log10(value / end)) if value * end > 0 else math.inf


def _off(claim: Claim) -> str:
    distance = _distance(claim)
    if math.isinf(distance):
        return formats.MISSING
    factor = 10**distance
    return f"{formats.number(100 * (factor - 1))}%" if factor < 1.1 else f"{formats.number(factor)}×"


def pairs(ledger: Sequence[Claim] | None = None) -> list[tuple[Claim, Claim]]:
    """The pairs of claims that cannot both hold, each once, in the order of the ledger.

    A figure that is tested by several clocks counts once. A claim beside its own sum that fails is no pair: it is one
    of :func:`wrong` already.
    """
    found = list(claims.ledger() if ledger is None else ledger)
    known = {claim.id: claim for claim in found}
    order = list(known)
    both = {
        tuple(sorted((claim.id, other), key=order.index))
        for claim in found
        for other in claim.conflicts
        if other in known
    }
    alike: dict[tuple[object, ...], tuple[Claim, Claim]] = {}
    for pair in sorted(both, key=lambda pair: (order.index(pair[0]), order.index(pair[1]))):
        a, b = known[pair[0]], known[pair[1]]
        if a.lead != b.lead or (a.adds_up and b.adds_up):
            alike.setdefault((a.lead, a.claimed, a.unit, b.lead, b.claimed, b.unit), (a, b))
    return list(alike.values())


def contradictions(ledger: Sequence[Claim] | None = None) -> list[dict[str, str]]:
    """A line a pair of :func:`pairs`: what either says, and the figure that it gives."""
    return [
        {
            "id": a.id,
            "one says": f"{a.claim} ({_figure(a)})",
            "against": b.id,
            "the other says": f"{b.claim} ({_figure(b)})",
        }
        for a, b in pairs(ledger)
    ]


def _figure(claim: Claim) -> str:
    """What is claimed, and where it does not follow from the document's own figures, what does."""
    text = claimed_text(claim.claimed, claim.unit)
    if claim.adds_up:
        return text
    return f"{text}; worked out: {quantity_text(claims.arithmetic(claim.expression), claim.unit)}"
