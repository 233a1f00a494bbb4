"""Takes what a fleet measured whole into a folder of records, and says what it took, what it left, and why."""

from __future__ import annotations

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
        try:
            found = _finished(folder, jobs.get(folder.name), into)
        except RecordError as cause:
            out.append(Item(folder.name, "left", str(cause)))
            continue
        own = [_take(record, into / folder.name) for record in found]
        if any(item.outcome == "taken" for item in own):
            for path in sorted(path for path in (folder / "traces").glob("*") if path.is_file()):
                records.copy(path, into / folder.name / "traces" / path.name)
        out += own
    return out


def _finished(folder: Path, job: Line | None, into: Path) -> list[Record]:
    """The records of the machine ``folder``; raises :class:`RecordError` that says why nothing of it is to be taken."""
    if job is None:
        raise RecordError("no job of the fleet has finished it")
    if job.state != "done":
        raise RecordError(f"job {job.number} is {job.state}" + (f": {job.reason}" if job.reason else ""))
    found = [records.load_file(path) for path in records.files(folder)]
    if not found:
        raise RecordError("it holds no record")
    chips = {record.chip for record in found}  # none on a CPU
    if len(chips) > 1:
        raise RecordError(f"its records are of several chips: {', '.join(sorted(filter(None, chips)))}")
    (own,) = chips
    for path in records.files(into) if own else []:
        if (name := records.place(path)[0]) != folder.name and _chip_of(path) == own:
            raise RecordError(f"chip {own} is there already, as {name}")
    return found


def _chip_of(path: Path) -> str:
    """The chip of a record that lies there already; "" too where it cannot be read, which is not ours to judge."""
    try:
        with path.open(encoding="utf-8") as stream:
            return records.parse(stream.readline(), str(path)).get("facts", {}).get("chip", "")
    except (OSError, ValueError):
        return ""


def _take(record: Record, target: Path) -> Item:
    """Write ``record`` into the machine folder ``target``, unless more is there already."""
    outcome, why = _against(record, records.leading(target, record.experiment))
    if outcome == "taken":
        records.write_text(target / record.path.relative_to(record.folder), record.path.read_text(encoding="utf-8"))
    return Item(f"{record.machine}/{record.experiment}", outcome, why)


def _against(record: Record, before: Path | None) -> tuple[str, str]:
    """What becomes of ``record``, and why, where ``before`` is the record that is there."""
    if before is None:
        return "taken", ""
    try:
        there = records.load_file(before)
    except RecordError as cause:
        return "taken", f"what was there cannot be read: {cause}"
    if there.digest == record.digest:
        return "kept", "the same is there already"
    why = _as_whole(record, there)
    return ("kept", why) if why else ("taken", "it holds all that was there")


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
