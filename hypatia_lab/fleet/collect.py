"""Takes what a fleet measured whole into a folder of records, and says what it took, what it left, and why."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hypatia_lab import records
from hypatia_lab.fleet.layout import Layout
from hypatia_lab.fleet.overview import Line, lines
from hypatia_lab.records import Record, RecordError

OUTCOMES = ("taken", "kept", "left")
"""``kept``: what is there already stays. ``left``: it stays in the fleet's folder."""


@dataclass(frozen=True)
class Item:
    """What became of ``what``, a machine folder or one record of it, in a word of :data:`OUTCOMES`, and why."""

    what: str
    outcome: str
    reason: str = ""


def collect(layout: Layout, into: Path) -> list[Item]:
    """Copy every finished machine folder of the fleet to ``into``; what lies there is replaced by what holds as much.

    Raises :class:`hypatia_lab.fleet.layout.FleetError` where there is no fleet, and :class:`RecordError` when ``into``
    cannot be written; what was copied by then stays, and another call goes on.
    """
    told = [line for line in lines(layout) if line.machine and line.state != "twice"]
    jobs = {line.machine: line for line in sorted(told, key=lambda line: line.state == "done")}
    out: list[Item] = []
    for folder in sorted(path for path in layout.records.glob("*") if path.is_dir()):
        line = jobs.get(folder.name)
        if line is None or line.state != "done":
            out.append(Item(folder.name, "left", _unfinished(line)))
            continue
        try:
            found = [records.load_file(path) for path in records.files(folder)]
        except RecordError as cause:
            out.append(Item(folder.name, "left", str(cause)))
            continue
        if why := _unfit(folder.name, found, into):
            out.append(Item(folder.name, "left", why))
            continue
        own = [_take(record, into / folder.name) for record in found]
        if any(item.outcome == "taken" for item in own):
            _copy_others(folder, into / folder.name)
        out += own
    return out


def _unfinished(line: Line | None) -> str:
    if line is None:
        return "no job of the fleet has finished it"
    return f"job {line.number} is {line.state}" + (f": {line.reason}" if line.reason else "")


def _unfit(machine: str, found: Sequence[Record], into: Path) -> str:
    """Why nothing of a finished ``machine`` is taken; "" where it is."""
    if not found:
        return "it holds no record"
    chips = {record.run["facts"].get("chip", "") for record in found}  # none on a CPU
    if len(chips) > 1:
        return f"its records are of several chips: {', '.join(sorted(filter(None, chips))) or 'none'}"
    (own,) = chips
    for path in records.files(into) if own else []:
        if records.place(path)[0] != machine and _chip_of(path) == own:
            return f"chip {own} is there already, as {records.place(path)[0]}"
    return ""


def _chip_of(path: Path) -> str:
    """The chip of a record that lies there already; "" too where it cannot be read, which is not ours to judge."""
    try:
        with path.open(encoding="utf-8") as stream:
            return records.parse(stream.readline(), str(path)).get("facts", {}).get("chip", "")
    except (OSError, ValueError):
        return ""


def _take(record: Record, target: Path) -> Item:
    what, before = f"{record.machine}/{record.experiment}", records.leading(target, record.experiment)
    if before is not None:
        try:
            there = records.load_file(before)
        except RecordError as cause:
            there, why = None, f"what was there cannot be read: {cause}"
        else:
            why = _as_whole(record, there)
            if there.digest == record.digest:
                return Item(what, "kept", "the same is there already")
            if why:
                return Item(what, "kept", why)
            why = "it holds all that was there"
    else:
        why = ""
    records.write_text(target / record.path.relative_to(record.folder), record.path.read_text(encoding="utf-8"))
    return Item(what, "taken", why)


def _as_whole(new: Record, there: Record) -> str:
    """Why ``new`` must not replace what is ``there``; "" where it holds all of it, measured by the same preset."""
    if new.run["preset"] != there.run["preset"]:
        return f"what is there was measured by preset {there.run['preset']}, the new one by {new.run['preset']}"
    lost = {records.cell_key(cell) for cell in there.cells} - {records.cell_key(cell) for cell in new.cells}
    if lost:
        return f"what is there has {len(lost)} cells that the new one lacks"
    if len(new.details) < len(there.details):
        return f"what is there has {len(there.details)} details, the new one {len(new.details)}"
    if new.run["started"] < there.run["started"]:
        return "what is there is newer"
    return ""


def _copy_others(folder: Path, target: Path) -> None:
    """Copy what lies beside the records of ``folder``, such as traces, each file whole or not at all."""
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if not path.is_file() or relative.parts[0] == ".parts" or len(relative.parts) == 1:
            continue
        place, temporary = target / relative, ""
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=place.parent)
            os.close(handle)
            shutil.copyfile(path, temporary)
            os.chmod(temporary, 0o644)
            os.replace(temporary, place)
        except OSError as cause:
            raise records.explain(cause, place) from None
        finally:
            if temporary and os.path.exists(temporary):
                os.unlink(temporary)
