"""The instrument of a record: which versions of the clock, of the check and of the plan made it."""

from __future__ import annotations

from collections.abc import Mapping

from hypatia_lab import check, clock
from hypatia_lab.experiments import plan

PRESENT = {"clock": clock.VERSION, "check": check.VERSION, "plan": plan.VERSION}
"""Part → number of its present version, as a run line has them."""


def behind(told: Mapping[str, int] | None) -> str:
    """In what the instrument that a record has ``told`` of is older than the present one, in words; empty where it is
    not. None: the record is from before there were numbers, and nobody fills them in."""
    if told is None:
        return "does not say which versions of clock, check and plan made it"
    old = [f"{part} {told[part]} (now {number})" for part, number in PRESENT.items() if told[part] < number]
    return f"is made by an older {', '.join(old)}" if old else ""
