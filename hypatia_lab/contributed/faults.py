"""What is told of a contribution: faults, for each of which it is refused, and notes, for none."""

from __future__ import annotations

from dataclasses import dataclass, field

NAMES = {
    "link": "a symbolic link, a folder, or something else that is no plain file",
    "stray": "a file that the manifest does not list",
    "missing": "a file that the manifest lists and that is not there",
    "size": "too large, or too many files",
    "depth": "JSON nested too deeply",
    "manifest": "a damaged manifest, or one that says something else than the records",
    "digest": "not the bytes that the manifest was made of",
    "schema": "no record as the lab writes it",
    "machine": "records of several machines, or under another machine's name",
    "date": "measured in the future",
    "commit": "measured with code that is not in the repository",
    "work": "another count of operations or bytes than the lab's own",
    "rate": "faster than the machine can be",
    "time": "times, clocks or shares that cannot be",
    "control": "identical code seemed different too often",
    "private": "something that tells whose machine it is",
}
"""Every fault by its name, and what it means."""
_SHOWN = 240


def shown(text: str) -> str:
    """``text`` of unknown origin for a terminal: in one line, without control characters, cut."""
    plain = "".join(c if c.isprintable() else "?" for c in text.encode("utf-8", "replace").decode("utf-8"))
    return plain if len(plain) <= _SHOWN else plain[: _SHOWN - 1] + "…"


@dataclass(frozen=True)
class Fault:
    """One fault: ``file`` relative to the folder (``.``: the folder), its ``line`` (from 1; 0: none), name and text."""

    file: str
    line: int
    name: str
    told: str

    def __str__(self) -> str:
        at = f"{shown(self.file)}:{self.line}" if self.line else shown(self.file)
        return f"{at}: {self.name}: {shown(self.told)}"


@dataclass
class Report:
    """What was found in a folder: ``faults``, and ``notes`` on what was held against what."""

    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def fault(self, file: str, name: str, told: str, line: int = 0) -> None:
        """Add a fault. Raises ``KeyError`` for a name that is not of :data:`NAMES`."""
        NAMES[name]
        self.faults.append(Fault(file, line, name, told))

    def rows(self) -> list[dict[str, object]]:
        """The faults, then the notes, as rows for other programs: refused, file, line, name, told."""
        found = [
            {"refused": True, "file": shown(one.file), "line": one.line, "name": one.name, "told": shown(one.told)}
            for one in self.faults
        ]
        notes = [{"refused": False, "file": ".", "line": 0, "name": "note", "told": shown(text)} for text in self.notes]
        return [*found, *notes]
