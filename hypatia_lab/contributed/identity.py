"""Which machine some records are of, and whether its name is another's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hypatia_lab.contributed.faults import Report
from hypatia_lab.records import Record


def identity(found: Iterable[Record]) -> tuple[set[Any], set[str]]:
    """What the machine of some records is: devices with their names and cores, and its chips' short hashes."""
    facts = [(record.run["device"], record.run["facts"]) for record in found]
    kinds = {(device, of.get("name"), of.get("cores") if device == "cpu" else None) for device, of in facts}
    return kinds, {of["chip"] for _, of in facts if "chip" in of}


def another(found: Sequence[Record], known: Iterable[Record]) -> str:
    """Whose name the machine of the ``found`` records has, where that is another machine's among ``known``."""
    namesakes = [one for one in known if one.machine == found[0].machine]
    if not namesakes:
        return ""
    (kinds, chips), (others, theirs) = identity(found), identity(namesakes)
    if kinds & others and not (chips and theirs and not chips & theirs):
        return ""
    device, name, cores = min(others, key=str)
    return f"{name}, {cores} cores" if device == "cpu" else f"{name}{', another chip' if kinds & others else ''}"


def is_one(found: Sequence[Record], known: Sequence[Record], report: Report) -> bool:
    """Whether all ``found`` records are of one device and model; adds to ``report`` where they are not, where their
    name is that of another machine among ``known``, and where their chip has another name there."""
    machine = found[0].machine
    kinds, chips = identity(found)
    if len(kinds) > 1:
        named = ", ".join(sorted(str(name) for _, name, _ in kinds))
        report.fault(".", "machine", f"records of {len(kinds)} machines: {named}")
    elif whose := another(found, known):
        report.fault(".", "machine", f"{machine} is the name of another machine in the repository ({whose})")
    for chip in sorted(chips):
        if others := {one.machine for one in known if one.chip == chip} - {machine}:
            report.notes.append(f"chip {chip} is that of {', '.join(sorted(others))} in the repository")
    return len(kinds) == 1
