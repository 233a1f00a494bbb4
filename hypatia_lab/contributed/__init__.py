"""Contributed records: what a stranger measured, packed for a pull request and checked before it is taken.

:func:`pack` makes a folder of one machine's records, :func:`check` tells every fault of such a folder.
"""

from __future__ import annotations

from hypatia_lab.contributed.checking import check
from hypatia_lab.contributed.faults import NAMES, Fault, Report
from hypatia_lab.contributed.packing import ContributionError, Packed, pack

__all__ = ["NAMES", "ContributionError", "Fault", "Packed", "Report", "check", "pack"]
