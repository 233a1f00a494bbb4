"""Where two machines, or two folders of records, disagree: the claims whose verdicts differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypatia_lab.claims.judgement import Judgement

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
    silent = {"not_testable", "not_reproduced"}
    return sorted(out, key=lambda line: not silent.isdisjoint((line["verdict_a"], line["verdict_b"])))
