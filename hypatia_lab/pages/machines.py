"""The machines side by side: what they are, their ceilings, and where memory gives way to arithmetic."""

from __future__ import annotations

from typing import Any

from hypatia_lab import formats, older
from hypatia_lab.figures.language import PRECISIONS
from hypatia_lab.pages import by_machine
from hypatia_lab.pages.decisions import balance
from hypatia_lab.pages.evidence import Evidence


def named(data: Evidence) -> list[dict[str, str]]:
    """A line a machine: what it is, how many chips its records name, and when they were made."""
    lines = []
    for name, called in by_machine.called(data).items():
        own = data.of(name)
        days = sorted(record.run["started"][:10] for record in own)
        facts, chips = own[0].run["facts"], {record.chip for record in own} - {""}
        line = {"machine": called, "records": name, "device": facts["name"], "processor": str(facts.get("cpu", ""))}
        line |= {"chips seen": str(len(chips) or formats.MISSING), "experiments": str(len(own))}
        lines.append(line | {"measured": " to ".join(dict.fromkeys((days[0], days[-1])))})
    return lines


def rates(data: Evidence) -> list[dict[str, Any]]:
    """The best rates that were measured: a line a quantity. Caches are warm but for one copy."""
    kinds = [("copy, cold caches", "copy", "", "cold"), ("copy, warm caches", "copy", "", "")]
    kinds += [(f"product, {precision}", "matmul", precision, "") for precision in PRECISIONS]
    units = {"copy": "B/s", "matmul": "FLOP/s"}
    lines = []
    for label, quantity, precision, clock in kinds:
        line = {"best rate of": label}
        for name, called in by_machine.called(data).items():
            best = data.measured[name].ceilings.get((quantity, precision, clock or data.primary(name)))
            line[called] = formats.scaled(best, units[quantity])
        lines.append(line)
    return lines


def balances(data: Evidence) -> list[tuple[str, str, float]]:
    """Machine, precision and the operations per byte at which its best product and its best warm copy take equally
    long."""
    return [(name, kind, turn) for name in data.machines for kind, turn in balance(data, name).items()]


def waiting(data: Evidence) -> list[dict[str, str]]:
    """A line a record on the list of older ones: the claims that rest on it, and why it was not measured anew."""
    resting: dict[tuple[str, str], list[str]] = {}
    for row in data.stated:
        for name in row.experiments:
            resting.setdefault((row.machine, name), []).append(row.id)
    listed = older.listed()
    return [
        {"record": place}
        | {"claims that rest on it": ", ".join(resting.get((record.machine, record.experiment), ())) or formats.MISSING}
        | {"measured": record.run["started"][:10], "why not since": listed[place]}
        for record in data.records
        if (place := older.place(record)) in listed
    ]
