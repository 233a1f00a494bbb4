"""Every fault of a contribution. Nothing in it is run, followed, or parsed before it is known to be small."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from hypatia_lab import older, paths, records, results
from hypatia_lab.contributed import bounded, manifest, plausible, private
from hypatia_lab.contributed.faults import Report, shown
from hypatia_lab.records import Record, RecordError

_LETTER_BYTES = 50_000
_COMMIT = re.compile(r"[0-9a-f]{7,40}")


def written(row: dict[str, Any]) -> str:
    """A line of a contributed record: one way to write it, so that nothing hides in how it is written."""
    return json.dumps(row, sort_keys=True, separators=(",", ":"))


def check(folder: Path, known: Iterable[Record] | None = None, names: frozenset[str] = private.NOBODY) -> Report:
    """All that is wrong with the contribution in ``folder``, and what it was held against.

    Of a record file whose form is wrong the first such line is told. ``known`` are the records that the lab has
    (default: the committed ones, but for those in ``folder`` itself); ``names`` are words that nothing may tell, such
    as :func:`private.own_names`.
    """
    report = Report()
    if folder.is_symlink() or not folder.is_dir():
        report.fault(".", "link", f"{folder} is no folder")
        return report
    folder = folder.resolve()
    here = _files(folder, report)
    told = _manifest(folder, here, names, report)
    files = [name for name in here if name.endswith(".jsonl")]
    sound = [found for name in files if (found := _record(folder / name, names, report))]
    for name in here:
        if name.startswith("traces/"):
            _trace(folder, name, names, report)
    if manifest.LETTER in here:
        text = (folder / manifest.LETTER).read_bytes().decode("utf-8", "replace")
        for number, line in enumerate(text.split("\n"), 1):
            _ensure_silent(line, manifest.LETTER, number, names, report)
    if not files:
        report.fault(".", "missing", "no record")
    if sound:
        if known is None:
            known = [one for one in records.load() if one.folder != folder]
        _together(sound, list(known), told if len(sound) == len(files) else None, report)
    return report


def _files(folder: Path, report: Report) -> list[str]:
    """Names of the files of ``folder`` that may be read; adds to ``report`` what is wrong with others.

    None may where there are too many, or where they are too large together.
    """
    found = list(islice(bounded.entries(folder), bounded.MAX_FILES + 1))
    here: dict[str, int] = {}
    for name, size, plain in found[: bounded.MAX_FILES]:
        if not plain:
            report.fault(name, "link", "no plain file")
        elif name not in (manifest.NAME, manifest.LETTER) and not manifest.LISTED.fullmatch(name):
            report.fault(name, "stray", "the manifest cannot list such a file")
        elif size > (_LETTER_BYTES if name == manifest.LETTER else bounded.MAX_BYTES):
            report.fault(name, "size", f"{size:,} bytes")
        else:
            here[name] = size
    if len(found) > bounded.MAX_FILES:
        report.fault(".", "size", f"more than {bounded.MAX_FILES} files; the rest was not looked at")
        return []
    sizes = [size for _, size, _ in found]
    if sum(sizes) > bounded.MAX_BYTES:
        report.fault(".", "size", f"{sum(sizes):,} bytes in all, more than {bounded.MAX_BYTES:,}")
    return sorted(here) if sum(here.values()) <= bounded.MAX_BYTES else []


def _manifest(folder: Path, here: Collection[str], names: frozenset[str], report: Report) -> dict[str, Any] | None:
    """The manifest, where it is one, once the files of ``folder`` have been held against it."""
    if manifest.NAME not in here:
        report.fault(manifest.NAME, "missing", "there is none to read; hypatia-lab contribute writes one")
        return None
    try:
        found = bounded.parsed((folder / manifest.NAME).read_bytes())
    except bounded.BoundError as cause:
        report.fault(manifest.NAME, "depth" if cause.name == "depth" else "manifest", str(cause))
        return None
    if told := manifest.of_manifest(found):
        report.fault(manifest.NAME, "manifest", told)
        return None
    listed = found["records"] | found["traces"]
    for name in sorted({*listed, *here} - {manifest.NAME, manifest.LETTER}):
        if name not in here:
            report.fault(name, "missing", "the manifest lists it")
        elif name not in listed:
            report.fault(name, "stray", "the manifest does not list it")
        elif manifest.digest((folder / name).read_bytes()) != listed[name]:
            report.fault(name, "digest", "its size or its SHA-256 is not that of the manifest")
    _ensure_silent(found, manifest.NAME, 0, names, report)
    return found


def _record(path: Path, names: frozenset[str], report: Report) -> Record | None:
    """The record in ``path`` if nothing is wrong with its form; adds to ``report`` what is."""
    lines = path.read_bytes().decode("utf-8", "replace").split("\n")
    deep = [number for number, line in enumerate(lines, 1) if bounded.depth(line) > bounded.MAX_DEPTH]
    for number in deep:
        report.fault(path.name, "depth", bounded.TOO_DEEP, number)
    if deep:
        return None
    try:
        found = records.load_file(path)
    except RecordError as cause:
        report.fault(path.name, "schema", *_placed(str(cause), path))
        return None
    odd = []
    for number, (line, row) in enumerate(zip(lines, (found.run, *found.cells, *found.details), strict=False), 1):
        if line != written(row):
            odd.append(number)
        _ensure_silent(row, path.name, number, names, report)
    if odd:
        said = f"{len(odd)} lines are not written, or not in the order, as hypatia-lab contribute writes them"
        report.fault(path.name, "schema", said, odd[0])
    if told := manifest.of_facts(found.run["facts"]):
        report.fault(path.name, "schema", f"facts: {told}", 1)
    return None if odd or told else found


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
        report.fault(name, cause.name, str(cause))
        return
    if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
        report.fault(name, "schema", "no trace: it has no traceEvents")
    _ensure_silent(found, name, 0, names, report)


def _together(sound: list[Record], known: list[Record], told: dict[str, Any] | None, report: Report) -> None:
    """What the ``sound`` records say of each other, of ``known`` ones, and against the manifest where all are sound."""
    alike = _is_one(sound, known, report)
    _origins(sound, report)
    for record in sound:
        plausible.lines(record, report)
    if not alike:
        return
    plausible.rates(sound, *plausible.possible(sound, known), report)
    rows = results.rows(sound)
    control = results.agreement(sound)
    plausible.intervals_hold(rows, report)
    plausible.control(control, report)
    for key, value in manifest.described(sound, control).items() if told is not None else ():
        if told is not None and told[key] != value:
            report.fault(manifest.NAME, "manifest", f"{key} is {told[key]!r}, by the records {value!r}")


def _origins(sound: list[Record], report: Report) -> None:
    """Add to ``report`` what is wrong with when, and by what code, the ``sound`` records were measured."""
    begun = {record.path.name: manifest.begun(record) for record in sound}
    wrong = _wrong(one["commit"] for every in begun.values() for one in every)
    today = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    for file, every in begun.items():
        for one in every:
            if one["started"] > f"{today:%Y-%m-%dT%H:%M:%SZ}":
                report.fault(file, "date", f"started {one['started']}", 1)
        for commit in sorted({one["commit"] for one in every} & wrong.keys()):
            report.fault(file, "commit", wrong[commit], 1)
    listed = older.listed()
    aged = {record: said for record in sound if (said := older.why(record))}
    report.notes += [f"{one.path.name} {said}" for one, said in aged.items() if older.place(one) not in listed]
    if count := sum(older.place(one) in listed for one in aged):
        report.notes.append(f"on the list of older records: {count}")
    if history() is None:
        report.notes.append("commits: no repository with its history is here, so only their form was checked")
    if any(one["dirty"] for every in begun.values() for one in every):
        report.notes.append("some records were measured with changes to the lab's code that no commit holds")


# ---------------------------------------------------------------- whose machine it is


def _identity(found: Iterable[Record]) -> tuple[set[Any], set[str]]:
    """What the machine of some records is: devices with their names and cores, and its chips' short hashes."""
    facts = [(record.run["device"], record.run["facts"]) for record in found]
    kinds = {(device, of.get("name"), of.get("cores") if device == "cpu" else None) for device, of in facts}
    return kinds, {of["chip"] for _, of in facts if "chip" in of}


def another(found: Sequence[Record], known: Iterable[Record]) -> str:
    """Whose name the machine of the ``found`` records has, where that is another machine's among ``known``."""
    namesakes = [one for one in known if one.machine == found[0].machine]
    if not namesakes:
        return ""
    (kinds, chips), (others, theirs) = _identity(found), _identity(namesakes)
    if kinds & others and not (chips and theirs and not chips & theirs):
        return ""
    device, name, cores = min(others, key=str)
    return f"{name}, {cores} cores" if device == "cpu" else f"{name}{', another chip' if kinds & others else ''}"


def _is_one(found: Sequence[Record], known: Sequence[Record], report: Report) -> bool:
    """Whether all ``found`` records are of one device and model; adds to ``report`` where they are not, where their
    name is that of another machine among ``known``, and where their chip has another name there."""
    machine = found[0].machine
    kinds, chips = _identity(found)
    if len(kinds) > 1:
        named = ", ".join(sorted(str(name) for _, name, _ in kinds))
        report.fault(".", "machine", f"records of {len(kinds)} machines: {named}")
    elif whose := another(found, known):
        report.fault(".", "machine", f"{machine} is the name of another machine in the repository ({whose})")
    for chip in sorted(chips):
        if others := {one.machine for one in known if one.chip == chip} - {machine}:
            report.notes.append(f"chip {chip} is that of {', '.join(sorted(others))} in the repository")
    return len(kinds) == 1


# ---------------------------------------------------------------- what code measured


def _wrong(commits: Iterable[str]) -> dict[str, str]:
    """Those of ``commits`` that can be none or that :func:`history`, where there is one, lacks: commit → the fault."""
    named = set(commits)
    formed = tuple(sorted(filter(_COMMIT.fullmatch, named)))
    repository = history()
    lacking = missing(formed, repository) if repository and formed else []
    found = {one: f"{one!r} is no commit: nobody can tell what code measured" for one in named.difference(formed)}
    return found | {one: f"{one} is not in this repository" for one in lacking}


@cache
def history() -> Path | None:
    """The checkout that this package lies in, where it is one with its whole history; else None."""
    if not paths.CHECKOUT:
        return None
    try:
        asked = ("rev-parse", "--show-toplevel", "--is-shallow-repository")
        top, shallow = _git(paths.HOME, asked).splitlines()
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None
    return paths.HOME if Path(top).resolve() == paths.HOME and shallow == "false" else None


@cache
def missing(commits: tuple[str, ...], repository: Path) -> list[str]:
    """Those of ``commits``, each 7 to 40 hexadecimal digits, that ``repository`` does not have."""
    asked = "".join(f"{commit}^{{commit}}\n" for commit in commits)
    found = _git(repository, ("cat-file", "--batch-check"), asked).splitlines()
    return [commit for commit, line in zip(commits, found, strict=True) if line.split()[1:2] != ["commit"]]


def _git(repository: Path, asked: Sequence[str], given: str = "") -> str:
    command = ["git", "-C", str(repository), *asked]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout
