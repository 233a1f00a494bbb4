"""The instrument of a record: which versions of the clock, of the check and of the plan made it."""

from __future__ import annotations

from hypatia_lab import check, clock
from hypatia_lab.experiments import plan

PRESENT = {"clock": clock.VERSION, "check": check.VERSION, "plan": plan.VERSION}
"""Part → number of its present version, as a run line has them."""
