"""The claims ledger: what the seeds claim, in YAML, and what the records say about it, part by part and as a whole."""

from __future__ import annotations

from hypatia_lab.claims.claim import Claim, arithmetic
from hypatia_lab.claims.differences import HOLDS, agreement, differences
from hypatia_lab.claims.drafts import Draft
from hypatia_lab.claims.judgement import ANY, COLUMNS, UNJUDGED, VERDICTS, Judgement
from hypatia_lab.claims.ledger import ClaimError, Contents, gather, ledger, load, load_file
from hypatia_lab.claims.statements import statements, together
from hypatia_lab.claims.verdicts import judge

__all__ = [
    "ANY",
    "COLUMNS",
    "HOLDS",
    "UNJUDGED",
    "VERDICTS",
    "Claim",
    "ClaimError",
    "Contents",
    "Draft",
    "Judgement",
    "agreement",
    "arithmetic",
    "differences",
    "gather",
    "judge",
    "ledger",
    "load",
    "load_file",
    "statements",
    "together",
]
