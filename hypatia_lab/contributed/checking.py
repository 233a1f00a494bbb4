"""Every fault of a contribution. Nothing in it is run, followed, or parsed before it is known to be small."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from hypatia_lab import records, results
from hypatia_lab.contributed import bounded, commits, manifest, plausible, private
from hypatia_lab.contributed.faults import Report, shown
from hypatia_lab.contributed.rates import possible
from hypatia_lab.records import Record, RecordError

_LETTER_BYTES = 50_000
_STARTED = r"^20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"
_STRICT: dict[str, dict[str, Any]] = {
    "run": {
        "started": {"type": "string", "pattern": _STARTED},
        "facts": {"type": "object", "required": ["name"], "additionalProperties": False, "properties": private.FACTS},
        "grown": {"type": "array", "items": {"properties": {"started": {"type": "string", "pattern": _STARTED}}}},
    },
    "cell": {
        "baseline": {"type": "string", "pattern": "^[a-z][a-z0-9_]{0,63}$"},
        "splits": {
            "anyOf": [
                {"type": "null"},
                {
                    "type": "array",
                    "items": [{"type": "string", "maxLength": 40}, {"type": "integer", "minimum": 1, "maximum": 9}],
                    "minItems": 2,
                    "maxItems": 2,
                },
            ]
        },
    },
    "detail": {},
}
"""What the lab writes more narrowly than its schema of records says: kind of line → fields."""


@cache
def _strict(kind: str) -> Any:
    import fastjsonschema

    return fastjsonschema.compile({"type": "object", "properties": _STRICT[kind]})


def written(row: dict[str, Any]) -> str:
    """A line of a contributed record: one way to write it, so that nothing hides in how it is written."""
    return json.dumps(row, sort_keys=True, separators=(",", ":"))


def check(folder: Path, known: Iterable[Record] | None = None, names: frozenset[str] = private.NOBODY) -> Report:
    """All that is wrong with the contribution in ``folder``, and what it was held against.

    ``known`` are the records that the lab has (default: the committed ones, but for those in ``folder`` itself);
    ``names`` are words that nothing may tell, such as :func:`private.own_names`.
    """
    report = Report()
    if folder.is_symlink() or not folder.is_dir():
        report.fault(".", "link", f"{folder} is no folder")
        return report
    folder = folder.resolve()
    here = _files(folder, report)
    told = _manifest(folder, here, report)
    _digests(folder, here, told, report)
    sound = [
        found for name in sorted(here) if name.endswith(".jsonl") and (found := _record(folder / name, names, report))
    ]
    for name in sorted(here):
        if name.startswith("traces/"):
            _trace(folder, name, names, report)
    if manifest.LETTER in here:
        _letter(folder, names, report)
    if told is not None:
        _ensure_silent(told, manifest.NAME, 0, names, report)
    if not any(name.endswith(".jsonl") for name in here):
        report.fault(".", "missing", "no record")
    if sound:
        if known is None:
            known = [one for one in records.load() if one.folder != folder]
        whole = len(sound) == sum(name.endswith(".jsonl") for name in here)
        _together(sound, list(known), told if whole else None, report)
    return report


def _files(folder: Path, report: Report) -> dict[str, int]:
    """The files of ``folder`` that may be read, by name with their size; adds to ``report`` what is wrong with others.

    None may where there are too many, or where they are too large together.
    """
    here: dict[str, int] = {}
    sizes = []
    for number, (name, size, plain) in enumerate(bounded.entries(folder), 1):
        if number > bounded.MAX_FILES:
            report.fault(".", "size", f"more than {bounded.MAX_FILES} files; the rest was not looked at")
            return {}
        sizes.append(size)
        if not plain:
            report.fault(name, "link", "no plain file")
        elif not _expected(name):
            report.fault(name, "stray", "the manifest cannot list such a file")
        elif size > (_LETTER_BYTES if name == manifest.LETTER else bounded.MAX_BYTES):
            report.fault(name, "size", f"{size:,} bytes")
        else:
            here[name] = size
    if sum(sizes) > bounded.MAX_BYTES:
        report.fault(".", "size", f"{sum(sizes):,} bytes in all, more than {bounded.MAX_BYTES:,}")
        if sum(here.values()) > bounded.MAX_BYTES:
            return {}
    return here


def _expected(name: str) -> bool:
    if name in (manifest.NAME, manifest.LETTER):
        return True
    return any(re.fullmatch(pattern.strip("^$"), name) for pattern in (manifest.RECORD_FILE, manifest.TRACE_FILE))


def _manifest(folder: Path, here: Collection[str], report: Report) -> dict[str, Any] | None:
    if manifest.NAME not in here:
        report.fault(manifest.NAME, "missing", "there is none to read; hypatia-lab contribute writes one")
        return None
    try:
        found = bounded.parsed((folder / manifest.NAME).read_bytes())
    except bounded.BoundError as cause:
        report.fault(manifest.NAME, cause.name, str(cause))
        return None
    if told := manifest.fault(found):
        report.fault(manifest.NAME, "manifest", told)
        return None
    return found


def _digests(folder: Path, here: Collection[str], told: dict[str, Any] | None, report: Report) -> None:
    """Hold the files against the manifest, where there is one."""
    if told is None:
        return
    listed = {name: entry for kind in ("records", "traces") for name, entry in told[kind].items()}
    for name in sorted({*listed, *here} - {manifest.NAME, manifest.LETTER}):
        if name not in here:
            report.fault(name, "missing", "the manifest lists it")
        elif name not in listed:
            report.fault(name, "stray", "the manifest does not list it")
        elif manifest.digest((folder / name).read_bytes()) != listed[name]:
            report.fault(name, "digest", "its size or its SHA-256 is not that of the manifest")


def _record(path: Path, names: frozenset[str], report: Report) -> Record | None:
    """The record in ``path`` if nothing is wrong with its form; adds to ``report`` what is."""
    before = len(report.faults)
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError:
        report.fault(path.name, "schema", "not UTF-8")
        return None
    deep = [number for number, line in enumerate(lines, 1) if bounded.depth(line) > bounded.MAX_DEPTH]
    for number in deep:
        report.fault(path.name, "depth", f"nested deeper than {bounded.MAX_DEPTH} levels", number)
    if deep:
        return None
    if not lines[-1]:
        lines.pop()  # the end of the last line
    rows = [_line(line, path, number, names, report) for number, line in enumerate(lines, 1)]
    kinds = [row["kind"] if row else "" for row in rows]
    odd = [
        number for number, (line, row) in enumerate(zip(lines, rows, strict=True), 1) if row and line != written(row)
    ]
    if odd:
        said = f"{len(odd)} lines are not written as hypatia-lab contribute writes them"
        report.fault(path.name, "schema", said, odd[0])
    if "" not in kinds and kinds != sorted(kinds, key=("run", "cell", "detail").index):
        report.fault(path.name, "schema", "details before cells, or the run not first")
    try:
        found = records.load_file(path)
    except RecordError as cause:
        told, number = _placed(str(cause), path)
        if None not in rows:  # else it says again what was said of the first of them
            report.fault(path.name, "schema", told, number)
        return None
    return found if not any(one.name == "schema" for one in report.faults[before:]) else None


def _line(line: str, path: Path, number: int, names: frozenset[str], report: Report) -> dict[str, Any] | None:
    """What a ``line`` of a record holds, None where it is none; adds to ``report`` what is wrong with it alone."""
    import fastjsonschema

    try:
        row = records.parse(line, str(path))
    except RecordError as cause:
        report.fault(path.name, "schema", _placed(str(cause), path)[0], number)
        return None
    try:
        _strict(row["kind"])(row)
    except fastjsonschema.JsonSchemaException as cause:
        report.fault(path.name, "schema", str(cause), number)
    _ensure_silent(row, path.name, number, names, report)
    return row


def _placed(told: str, path: Path) -> tuple[str, int]:
    """What the lab's loader says, without the path and its remedy, and the line (0: none) that it names."""
    match = re.match(r"(?::(\d+))?: ", said := told.removeprefix(str(path)))
    text = said[match.end() :] if match else said
    return text.removesuffix("; restore the file or measure again"), int(match[1] or 0) if match else 0


def _ensure_silent(value: Any, file: str, number: int, names: frozenset[str], report: Report) -> None:
    for key, what, words in private.told(value, names):
        report.fault(file, "private", f"{what} in {shown(key) or 'its keys'}: {words}", number)


def _trace(folder: Path, name: str, names: frozenset[str], report: Report) -> None:
    try:
        found = bounded.parsed(bounded.unpacked((folder / name).read_bytes()))
    except bounded.BoundError as cause:
        report.fault(name, "schema" if cause.name == "manifest" else cause.name, str(cause))
        return
    if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
        report.fault(name, "schema", "no trace: it has no traceEvents")
    _ensure_silent(found, name, 0, names, report)


def _letter(folder: Path, names: frozenset[str], report: Report) -> None:
    text = (folder / manifest.LETTER).read_bytes().decode("utf-8", "replace")
    for number, line in enumerate(text.split("\n"), 1):
        _ensure_silent(line, manifest.LETTER, number, names, report)


def _together(sound: list[Record], known: list[Record], told: dict[str, Any] | None, report: Report) -> None:
    """What the ``sound`` records say of each other, of ``known`` ones, and against the manifest where all are sound."""
    alike = _machine(sound, known, report)
    _commits(sound, report)
    for record in sound:
        plausible.times(record, report)
        plausible.work(record, report)
    if not alike:
        return
    plausible.rates(sound, possible(sound, known), report)
    rows = results.rows(sound)
    control = results.agreement(sound, rows)
    plausible.intervals_hold(rows, report)
    plausible.control(control, report)
    for key, value in manifest.described(sound, control).items() if told is not None else ():
        if told is not None and told[key] != value:
            report.fault(manifest.NAME, "manifest", f"{key} is {told[key]!r}, by the records {value!r}")


def identity(found: Iterable[Record]) -> tuple[set[Any], set[str]]:
    """What the machine of some records is: devices with their names and cores, and its chips' short hashes."""
    facts = [(record.run["device"], record.run["facts"]) for record in found]
    kinds = {(device, of.get("name"), of.get("cores") if device == "cpu" else None) for device, of in facts}
    return kinds, {of["chip"] for _, of in facts if "chip" in of}


def another(found: Iterable[Record], known: Iterable[Record]) -> str:
    """Whose name the machine of the ``found`` records has, where that is another machine's among ``known``."""
    found = list(found)
    namesakes = [one for one in known if one.machine == found[0].machine]
    if not namesakes:
        return ""
    (kinds, chips), (others, theirs) = identity(found), identity(namesakes)
    if kinds & others and not (chips and theirs and not chips & theirs):
        return ""
    device, name, cores = min(others, key=str)
    return f"{name}, {cores} cores" if device == "cpu" else f"{name}{', another chip' if kinds & others else ''}"


def _machine(sound: list[Record], known: list[Record], report: Report) -> bool:
    """Whether all records are of one device and model; adds to ``report`` where not, or where the name is taken."""
    kinds, _ = identity(sound)
    if len(kinds) > 1:
        report.fault(
            ".", "machine", f"records of {len(kinds)} machines: {', '.join(sorted(str(one[1]) for one in kinds))}"
        )
    elif whose := another(sound, known):
        report.fault(".", "machine", f"{sound[0].machine} is the name of another machine in the repository ({whose})")
    for chip in sorted(identity(sound)[1]):
        others = {one.machine for one in known if one.run["facts"].get("chip") == chip} - {sound[0].machine}
        if others:
            report.notes.append(f"chip {chip} is that of {', '.join(sorted(others))} in the repository")
    today = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    for record in sound:
        for one in (record.run, *record.run.get("grown", [])):
            if one["started"] > f"{today:%Y-%m-%dT%H:%M:%SZ}":
                report.fault(record.path.name, "date", f"started {one['started']}", 1)
    return len(kinds) == 1


def _commits(sound: list[Record], report: Report) -> None:
    repository = commits.history()
    named = {
        record.path.name: {one["commit"] for one in (record.run, *record.run.get("grown", []))} for record in sound
    }
    formed = sorted({one for every in named.values() for one in every if commits.well_formed(one)})
    lacking = commits.missing(tuple(formed), repository) if repository and formed else []
    for file, every in named.items():
        for one in sorted(every):
            if one not in formed:
                report.fault(file, "commit", f"{one!r} is no commit: nobody can tell what code measured", 1)
            elif one in lacking:
                report.fault(file, "commit", f"{one} is not in this repository", 1)
    if repository is None:
        report.notes.append("commits: no repository with its history is here, so only their form was checked")
    if any(one["dirty"] for record in sound for one in (record.run, *record.run.get("grown", []))):
        report.notes.append("some records were measured with changes to the lab's code that no commit holds")
