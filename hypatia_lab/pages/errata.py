"""Errata of the documents: figures that do not follow from the document's own, and claims that exclude each other.

No record is needed: the ledger's expressions are worked out when the page is made.
"""

from __future__ import annotations

import math

from hypatia_lab import claims, formats
from hypatia_lab.claims import Claim
from hypatia_lab.tables.claims import claimed_text, quantity_text


def _known() -> list[Claim]:
    """The documents' claims, in the order of the ledger."""
    return [claim for claim in claims.ledger() if claim.document != claims.LAB]


def wrong() -> list[Claim]:
    """The parts whose own figures give something outside the band, in the order of the ledger."""
    return [claim for claim in _known() if not claim.adds_up]


def counts() -> list[dict[str, str]]:
    """A line a document and one for all: claims, sums, those that fail, claims with one that fails, and pairs of claims
    that exclude each other.
    """
    found, both = _known(), pairs()
    lines = []
    for name in [*dict.fromkeys(claim.document for claim in found), "all"]:
        own = [claim for claim in found if name in (claim.document, "all")]
        bad = [claim for claim in own if not claim.adds_up]
        apart = [pair for pair in both if name in (pair[0].document, pair[1].document, "all")]
        within = [pair for pair in apart if pair[0].document == pair[1].document]
        lines.append(
            {
                "document": name,
                "claims": str(len({claim.lead for claim in own})),
                "sums": str(sum(bool(claim.expression) for claim in own)),
                "sums that fail": str(len(bad)),
                "claims with one that fails": str(len({claim.lead for claim in bad})),
                "pairs within": str(len(within)),
                "pairs across": str(len(apart) - len(within)),
            }
        )
    return lines


def corrections() -> list[dict[str, str]]:
    """What a document says and what its own figures give: a line a part that fails, in each the farthest off first."""
    return [
        {
            "id": claim.id,
            "document": claim.document,
            "it says": claim.claim,
            "claimed": claimed_text(claim.claimed, claim.unit),
            "its own figures give": quantity_text(_given(claim), claim.unit),
            "off by": _off(claim),
            "why": f"{claim.expression}. {claim.why} Section of the document: {claim.section}.",
        }
        for claim in sorted(wrong(), key=lambda claim: (claim.document, -_distance(claim)))
    ]


def _given(claim: Claim) -> float:
    """What the document's figures give: of several readings that which is nearest to what it says."""
    return min(claim.sums, key=lambda value: min(abs(end - value) for end in claim.claimed))


def _distance(claim: Claim) -> float:
    """Decades between claimed and worked out; infinite where one of them is 0 or their signs differ."""
    value = _given(claim)
    end = min(claim.claimed, key=lambda end: abs(end - value))
    return abs(math.log10(value / end)) if value * end > 0 else math.inf


def _off(claim: Claim) -> str:
    distance = _distance(claim)
    if math.isinf(distance):
        return formats.MISSING
    factor = 10**distance
    return f"{formats.number(100 * (factor - 1))}%" if factor < 1.1 else f"{formats.number(factor)}×"


def pairs() -> list[tuple[Claim, Claim]]:
    """The pairs of claims that cannot both hold, each once, in the order of the ledger.

    A figure that is tested by several clocks counts once. A claim beside its own sum that fails is no pair: it is one
    of :func:`wrong` already.
    """
    known = {claim.id: claim for claim in _known()}
    order = {name: number for number, name in enumerate(known)}
    both = {
        tuple(sorted((claim.id, other), key=order.__getitem__)) for claim in known.values() for other in claim.conflicts
    }
    alike: dict[tuple[object, ...], tuple[Claim, Claim]] = {}
    for first, second in sorted(both, key=lambda pair: (order[pair[0]], order[pair[1]])):
        a, b = known[first], known[second]
        if a.lead != b.lead or (a.adds_up and b.adds_up):
            alike.setdefault((a.lead, a.claimed, a.unit, b.lead, b.claimed, b.unit), (a, b))
    return list(alike.values())


def contradictions() -> list[dict[str, str]]:
    """A line a pair of :func:`pairs`: what either says, and the figure that it gives."""
    return [
        {
            "id": a.id,
            "one says": f"{a.claim} ({_figure(a)})",
            "against": b.id,
            "the other says": f"{b.claim} ({_figure(b)})",
        }
        for a, b in pairs()
    ]


def _figure(claim: Claim) -> str:
    """What is claimed, and where it does not follow from the document's own figures, what does."""
    text = claimed_text(claim.claimed, claim.unit)
    if claim.adds_up:
        return text
    return f"{text}; worked out: {quantity_text(_given(claim), claim.unit)}"
