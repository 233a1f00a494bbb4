"""The claims ledger: what the seeds claim, in YAML, and what the records say about it, part by part and as a whole."""

# ruff: noqa: F401 (what it offers is what it imports)

from __future__ import annotations

from hypatia_lab.claims.claim import Claim, arithmetic
from hypatia_lab.claims.differences import agreement, differences, differing, tested
from hypatia_lab.claims.judgement import ANY, COLUMNS, Judgement
from hypatia_lab.claims.ledger import LAB, ClaimError, Contents, Draft, claimed, gather, ledger, load, load_file
from hypatia_lab.claims.statements import statements
from hypatia_lab.claims.verdicts import judge
from hypatia_lab.claims.words import GROUPS, UNJUDGED, VERDICTS
