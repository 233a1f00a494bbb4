"""What a page says of records that are older than the lab: one sentence, and a mark beside a machine that has some."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

from hypatia_lab import formats, older, variants
from hypatia_lab.records import Record

NAMELESS = "are from before records said which version of the timing and checking code made them"
EARLIER = "were made by older timing or checking code than today's"
CHANGED = "ran kernels whose source has changed since"


@lru_cache(maxsize=256)  # as many as :mod:`hypatia_lab.records` keeps
def how(record: Record) -> str:
    """How ``record``, or a part of it, is older than the lab: one of the words above; empty where it is not.

    Of what the lab no longer has, and of a reader's file, no sources are known.
    """
    if None in older.told(record):
        return NAMELESS
    if any(map(older.behind, older.told(record))):
        return EARLIER
    variants.load()
    ran = {(cell["operation"], cell["variant"], cell.get("sources", "")) for cell in record.cells}
    return CHANGED if any(_sources(*one) not in ("", told) for *one, told in ran) else ""


@cache
def _sources(operation: str, variant: str) -> str:
    """The digest of what a variant of the lab's runs; empty of another."""
    from hypatia_lab.bench import sources

    try:
        return sources.digest(variants.find(operation, variant))
    except KeyError:
        return ""


def sentence(found: Sequence[tuple[str, str]]) -> str:
    """Whose records on a page are older, and how; empty where none is.

    ``found`` has of each record its machine, and what :func:`how` says.
    """
    told = []
    for word in (NAMELESS, EARLIER, CHANGED):
        if machines := dict.fromkeys(f"`{machine}`" for machine, said in found if said == word):
            told.append(f"records of {formats.listing([*machines])} {word}")
    return f"{older.MARK} Some {'; some '.join(told)}." if told else ""
