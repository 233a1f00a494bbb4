"""Which records are older than the lab: made by another clock, check or plan than today's, or by none that they name.

What of the committed ones is older stands in a list beside them, with the reason why it has not been measured anew. A
test holds the list to the present instrument, so that whoever only reads records need not import what measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from hypatia_lab import records

if TYPE_CHECKING:
    from hypatia_lab.claims import Judgement
    from hypatia_lab.records import Record

MARK = "†"
NAMELESS = "does not say which versions of clock, check and plan made it"
PARTS = ("clock", "check", "plan")


def listed() -> dict[str, str]:
    """The list, ``older.yaml`` of the committed records: place of a record among them → why it is as old as it is.

    Empty where there is none. Raises :class:`records.RecordError` where an entry is no ``record`` with its ``why``, or
    is there twice.
    """
    path = records.COMMITTED / "older.yaml"
    return _read(path, path.read_text(encoding="utf-8")) if path.is_file() else {}


@lru_cache(maxsize=4)  # every record that is read is looked up
def _read(path: Path, text: str) -> dict[str, str]:
    import yaml

    found: dict[str, str] = {}
    for entry in yaml.safe_load(text) or ():
        named = entry.get("record") if isinstance(entry, dict) else None
        if not named or not entry.get("why") or len(entry) > 2 or named in found:
            raise records.RecordError(f"{path}: {entry!r}: an entry is a record, once, and why")
        found[named] = str(entry["why"])
    return found


def place(record: Record) -> str:
    """Where ``record`` lies among the committed ones, as the list has it; empty where it does not."""
    home = records.COMMITTED.resolve()
    path = record.path.resolve()
    return path.relative_to(home).as_posix() if path.is_relative_to(home) else ""


def told(record: Record) -> list[Mapping[str, int] | None]:
    """The instrument of each part of ``record``, as it was begun and as it grew; None of a part that names none."""
    return [one.get("instrument") for one in (record.run, *record.run.get("grown", ()))]


def why(record: Record) -> str:
    """In what ``record``, or a part of it, is older than the lab, in words that follow its name; empty where it is not.

    A part from before there were numbers has none, and nobody fills them in.
    """
    parts = told(record)
    if not (own := place(record)):
        return ", and in a part ".join(dict.fromkeys(filter(None, map(behind, parts))))
    if None in parts:
        return NAMELESS
    numbers = dict.fromkeys(", ".join(f"{part} {one[part]}" for part in PARTS) for one in parts if one)
    return f"is made by {' and '.join(numbers)}, of which one is older than today's" if own in listed() else ""


def behind(told: Mapping[str, int] | None) -> str:
    """In what an instrument that is ``told`` is older than the present one, in words; empty where it is not."""
    if told is None:
        return NAMELESS
    from hypatia_lab.experiments.instrument import PRESENT  # and with it torch

    old = [f"{part} {told[part]} (now {PRESENT[part]})" for part in PARTS if told[part] < PRESENT[part]]
    return f"is made by an older {', '.join(old)}" if old else ""


def apart(found: Iterable[Record]) -> list[str]:
    """In which parts the instruments of records differ; where one names none and another does, that is in all."""
    made = [told(record) for record in found]
    return [part for part in PARTS if len({frozenset(one and one[part] for one in own) for own in made}) > 1]


def under(row: Judgement, known: Mapping[tuple[str, str], Record]) -> str:
    """Which of the records that a verdict rests on are older, and in what; empty where none is.

    ``known`` are those of its evidence by machine and experiment.
    """
    own = {f"{row.machine}/{name}": why(known[row.machine, name]) for name in row.experiments}
    return "; ".join(f"{name} {said}" for name, said in own.items() if said)
