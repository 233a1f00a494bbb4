"""What a measurement leaves behind: the one record schema, its writer and its reader.

A record is a file ``<records>/<machine>/<experiment>/<date>-<chip>.jsonl``: one ``run`` line (where, when, with which
versions of what is installed and of clock, check and plan), then one ``cell`` line for every workload × variant ×
clock, with a digest of what its variant ran, then one ``detail`` line for everything that a probe saw of one call or
one process (a stage of a cold start, a kernel, an error measure). Files are written whole, by rename, and are never
replaced unless that is asked for.

Each file of a folder is a visit. The newest leads: pages and verdicts are by it, the others tell how well figures
repeat. A file ``lead`` beside them names another one that does. A record may also lie in
``<records>/<machine>/<experiment>.jsonl``, as all did once.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypatia_lab import files as filed
from hypatia_lab import paths
from hypatia_lab.messages import unknown
from hypatia_lab.records.schema import CELL as CELL
from hypatia_lab.records.schema import CLOCKS as CLOCKS
from hypatia_lab.records.schema import DETAIL as DETAIL
from hypatia_lab.records.schema import MAX_SAMPLES as MAX_SAMPLES
from hypatia_lab.records.schema import RUN as RUN
from hypatia_lab.records.schema import SCHEMA as SCHEMA
from hypatia_lab.records.schema import STATUSES as STATUSES
from hypatia_lab.records.schema import mistakes

if TYPE_CHECKING:
    from filelock import FileLock

COMMITTED = paths.HOME / "book" / "records"
"""The records that are part of the repository."""
FLEET = COMMITTED.with_name("fleet")
"""Those of single chips beside them, as a fleet brings them: visits to a model, by which no page tells."""


class RecordError(ValueError):
    """A record that cannot be read or written: the message names file, line, cause and remedy."""


@dataclass(frozen=True, eq=False)
class Record:
    """One record file: its ``run``, ``cell`` and ``detail`` lines, where it lies, and a digest of its content.

    It is nobody's but its own equal, so that what follows from it can be kept.
    """

    path: Path
    run: dict[str, Any]
    cells: tuple[dict[str, Any], ...]
    digest: str
    details: tuple[dict[str, Any], ...] = ()

    @property
    def machine(self) -> str:
        """Name of the machine that was measured."""
        return self.run["machine"]

    @property
    def experiment(self) -> str:
        """Name of the experiment."""
        return self.run["experiment"]

    @property
    def folder(self) -> Path:
        """The machine's folder, in which traces lie beside its records."""
        return _home(self.path).parent

    @property
    def device_name(self) -> str:
        """What the device calls itself, such as ``NVIDIA H200``; the machine's name where the record does not say."""
        return str(self.run["facts"].get("name") or self.machine)

    @property
    def chip(self) -> str:
        """The chip that it was measured on, as :func:`hypatia_lab.machine.chip` has it; empty where it names none."""
        return str(self.run["facts"].get("chip") or "")


def _broken(where: object, said: str) -> RecordError:
    """The error of a record that is not whole: ``where`` it lies, and what is ``said`` of it."""
    return RecordError(f"{where}: {said}; restore the file or measure again")


def machine_name(text: str) -> str:
    """``text`` if it can name a machine and so a folder. Raises :class:`RecordError` otherwise."""
    if not isinstance(text, str) or not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", text):
        raise RecordError(
            f"machine name {text!r} must be lower-case letters, digits, - and _ (at most 64), "
            "without a path in it, such as h200 or my-laptop"
        )
    return text


def model(machine: str, chips: Container[str]) -> str:
    """The model of ``machine``: ``h200`` of ``h200-cb31d3``, if ``cb31d3`` is among ``chips``, those that its records
    name. Any other machine is a model of its own.
    """
    name, _, chip = machine.rpartition("-")
    return name if name and chip and chip in chips else machine


def models(found: Iterable[Record]) -> dict[str, str]:
    """The :func:`model` of every machine of ``found``."""
    chips: dict[str, set[str]] = {}
    for record in found:
        chips.setdefault(record.machine, set()).add(record.chip)
    return {machine: model(machine, own) for machine, own in chips.items()}


def _model_like(folder: str) -> str:
    """The model that a folder's name alone lets one think of, empty where none; its records may say no."""
    found = re.fullmatch(r"(.+)-[0-9a-f]{6}", folder)
    return found[1] if found else ""


def _meant(asked: str, machine: str, its: str) -> bool:
    """Whether who asks for ``asked`` means ``machine``, a chip of the model ``its`` (its own name where it is none)."""
    return asked in (machine, its) or (its != machine and its.startswith(f"{asked}-"))


_MISTAKES = {"run": mistakes(RUN), "cell": mistakes(CELL), "detail": mistakes(DETAIL)}


def _reject(constant: str) -> float:
    raise ValueError(f"{constant} is not a number a record may hold")


_DECODER = json.JSONDecoder(parse_constant=_reject)
_ENCODER = json.JSONEncoder(sort_keys=True, allow_nan=False)  # of a number like 1e999, too, JSON has no word


def parse(line: str, where: str) -> dict[str, Any]:
    """One line of a record as a dict. Raises :class:`RecordError` naming ``where`` when it is malformed."""
    return _read(line, where)[0]


def _read(line: str, where: str) -> tuple[dict[str, Any], str]:
    """What :func:`parse` says, and the line as it would be written in one way, whatever the order of its keys."""
    try:
        row = _DECODER.decode(line)
        canonical = _ENCODER.encode(row)
    except (ValueError, RecursionError) as cause:
        raise _broken(where, f"not a whole JSON line ({cause})") from None
    kind = row.get("kind") if isinstance(row, dict) else None
    if kind not in ("run", "cell", "detail"):
        raise _broken(where, f"kind must be 'run', 'cell' or 'detail', found {kind!r}")
    if told := _MISTAKES[kind](row):
        raise _broken(where, told)
    return row, canonical


def cell_key(cell: dict[str, Any]) -> tuple[Any, ...]:
    """What a cell is the time of: its workload and clock, and its variant at the end. No two of a record share it."""
    workload = (cell["operation"], *cell["shape"], cell["dtype"], cell["math"], cell["direction"])
    return (*workload, cell["clock"], cell["variant"])


def _ensure_once(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Raise :class:`RecordError` when two of ``rows``, the lines after the run line, are the same cell."""
    places: dict[tuple[Any, ...], int] = {}
    for number, row in enumerate(rows, 2):
        if row["kind"] == "cell" and (first := places.setdefault(cell_key(row), number)) != number:
            raise _broken(f"{path}:{number}", f"a second cell of {row['variant']}, the same as that on line {first}")


def load_file(path: Path) -> Record:
    """Read one record file. Raises :class:`RecordError` naming the file and line of the first fault.

    What is read twice is one and the same: its rows are not to be changed.
    """
    return _parsed(path, filed.text(path, RecordError))


@lru_cache(maxsize=256)  # a page or a command asks for the same files again and again
def _parsed(path: Path, text: str) -> Record:
    lines = text.splitlines()
    if not lines:
        raise RecordError(f"{path}:1: empty file; restore it or measure again")
    if not text.endswith("\n"):
        raise _broken(f"{path}:{len(lines)}", "truncated (no end of line)")
    read = [_read(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]
    rows = [row for row, _ in read]
    run, lines_after = rows[0], rows[1:]
    if run["kind"] != "run":
        raise _broken(f"{path}:1", "the first line must be the run")
    for number, row in enumerate(lines_after, 2):
        if row["kind"] == "run":
            raise RecordError(f"{path}:{number}: a second run line; one file holds one run")
        if row["kind"] == "cell" and len(row["medians_us"]) not in (0, run["processes"]):
            said = f"{len(row['medians_us'])} medians for {run['processes']} processes"
            raise _broken(f"{path}:{number}", said)
    _ensure_once(path, lines_after)
    cells = tuple(row for row in lines_after if row["kind"] == "cell")
    details = tuple(row for row in lines_after if row["kind"] == "detail")
    for what, there, promised in (("cells", cells, run["cells"]), ("details", details, run.get("details", 0))):
        if len(there) != promised:
            raise _broken(f"{path}:{len(lines)}", f"{len(there)} {what} where the run line promises {promised}")
    if place(path) != (run["machine"], run["experiment"]):
        raise RecordError(
            f"{path}:1: holds machine {run['machine']!r}, experiment {run['experiment']!r}, but lies elsewhere; "
            f"it belongs in {run['machine']}/{run['experiment']}/"
        )
    canonical = "\n".join(text for _, text in read)
    return Record(path, run, cells, hashlib.sha256(canonical.encode()).hexdigest()[:12], details)


_VISIT = re.compile(r"\d{4}-\d{2}-\d{2}-.+")
LEAD = "lead"
"""The file that names the visit which leads, where that is not the newest."""


def _home(path: Path) -> Path:
    """The folder of the visits among which the record file ``path`` is, by where it lies; its parent is a machine's."""
    return path.resolve().parent if _VISIT.fullmatch(path.stem) else path.resolve().with_suffix("")


def place(path: Path) -> tuple[str, str]:
    """(machine, experiment) of which the record file ``path`` is, by where it lies."""
    return _home(path).parent.name, _home(path).name


def visits(root: Path) -> list[Path]:
    """The record files of ``root``: of the machines that have folders there, else of the machine whose folder it is."""
    root = root.resolve()
    found = [path for depth in ("*.jsonl", "*/*.jsonl", "*/*/*.jsonl") for path in sorted(root.glob(depth))]
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(root).parts)]


def _started(path: Path) -> str:
    """When the record of ``path`` was begun; empty where its first line does not say."""
    try:
        with path.open(encoding="utf-8") as stream:
            return str(json.loads(stream.readline())["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def leading(folder: Path, experiment: str) -> Path | None:
    """The record of ``experiment`` that leads in a machine's ``folder``; None where there is none.

    Raises :class:`RecordError` where the file ``lead`` names a visit that is not there.
    """
    home = folder / experiment
    found = [*home.glob("*.jsonl"), *folder.glob(f"{experiment}.jsonl")]
    if found and (home / LEAD).is_file():
        named = home / f"{(home / LEAD).read_text(encoding='utf-8').strip()}.jsonl"
        if named not in found:
            raise RecordError(f"{home / LEAD}: no {named.name} is beside it; name one that is, or remove the file")
        return named
    return max(found, key=lambda path: (_started(path) if len(found) > 1 else "", path.name), default=None)


def files(root: Path) -> list[Path]:
    """The leading record files of ``root`` (see :func:`visits`): one a machine and experiment."""
    homes = dict.fromkeys(map(_home, visits(root)))
    return sorted(filter(None, (leading(home.parent, home.name) for home in homes)))


def load(*roots: Path, machines: Sequence[str] = (), experiments: Sequence[str] = ()) -> list[Record]:
    """The leading records of ``roots`` (see :func:`files`; default: the committed ones), by machine and experiment.

    ``machines`` and ``experiments`` restrict the result; empty means all. The name of a :func:`model` means the
    machine of that name and all chips of the model, and so does what it begins with: ``h100`` of ``h100-80gb-hbm3``.
    Where two roots hold the same machine and experiment the later root wins. Raises :class:`RecordError` for a
    malformed file or for a machine that was asked for and has no records.
    """
    paths = [path for root in roots or (COMMITTED,) for path in files(root)]
    found: dict[tuple[str, str], Record] = {}
    for path in paths:
        folder, experiment = place(path)
        asked = not machines or any(_meant(name, folder, _model_like(folder)) for name in machines)
        if asked and (not experiments or experiment in experiments):
            found[folder, experiment] = load_file(path)
    known = models(found.values())
    for name in machines:
        if not any(_meant(name, machine, its) for machine, its in known.items()):
            chips = models(load_file(path) for path in paths if _model_like(place(path)[0]))
            there = {place(path)[0] for path in paths} | {*chips.values()}
            raise RecordError(f"no records: {unknown('machine', name, sorted(there))}")
    wanted = {m for m, its in known.items() if not machines or any(_meant(name, m, its) for name in machines)}
    return [found[key] for key in sorted(found) if key[0] in wanted]


def digests(records: Iterable[Record]) -> str:
    """One line a record, ``machine/experiment digest``: any altered record changes it."""
    return "\n".join(f"{r.machine}/{r.experiment}  {r.digest}" for r in records)


def explain(cause: OSError, path: Path) -> RecordError:
    """The clear error behind an :class:`OSError` met while writing ``path``."""
    remedy = {
        errno.ENOSPC: "the disk is full; free some space and run again, nothing measured so far is lost",
        errno.EDQUOT: "the disk quota is used up; free some space and run again",
        errno.EROFS: "the folder is read-only; choose another folder",
        errno.EACCES: "the folder is not writable; choose another folder",
        errno.EPERM: "the folder is not writable; choose another folder",
        errno.ENOTDIR: "a file stands where the folder should be; choose another folder",
        errno.EEXIST: "a file stands where the folder should be; choose another folder",
    }.get(cause.errno or 0, "nothing was written")
    return RecordError(f"cannot write {path}: {cause.strerror}; {remedy}")


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` whole or not at all. Raises :class:`RecordError` when it cannot."""
    _write(path, text.encode(), lasting=True)


def copy(source: Path, target: Path) -> None:
    """Copy a file whole or not at all. Raises :class:`RecordError` that names which one cannot be read, or written."""
    _write(target, filed.content(source, RecordError))


def _write(path: Path, data: bytes, *, lasting: bool = False) -> None:
    """Write ``data`` to ``path`` by rename; ``lasting``: from then on it outlives a loss of power, too."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            if lasting:
                os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as cause:
        raise explain(cause, path) from None
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)


def write(
    root: Path,
    run: dict[str, Any],
    cells: Iterable[dict[str, Any]],
    details: Iterable[dict[str, Any]] = (),
    *,
    overwrite: bool = False,
    at: Path | None = None,
) -> Path:
    """Write one record under ``root`` and return its path.

    The run line gets its number of ``cells`` and ``details`` here. Every line is validated first. With ``overwrite``
    a record of another day or chip stays beside the new one, as an earlier visit; ``at`` is the file of a record that
    has grown, in whose place this one goes. Raises :class:`RecordError` when a line is malformed or a cell doubled,
    when there is a record of the experiment and ``overwrite`` is false, or when the folder cannot be written; nothing
    is left half-written.
    """
    folder = root / machine_name(run.get("machine", ""))
    cells, details = list(cells), list(details)
    counts = {"cells": len(cells)} | ({"details": len(details)} if details else {})
    rows = (run | counts, *cells, *details)
    lines = [json.dumps(row, sort_keys=True) for row in rows]  # a NaN is refused by parse, with its line
    parse(lines[0], f"{folder}: the run line")  # its experiment is to name the file
    known = leading(folder, run["experiment"])
    if known is not None and not overwrite:
        raise RecordError(f"{known} exists; a record is measured again only when asked (--overwrite)")
    path = at or folder / run["experiment"] / f"{run['started'][:10]}-{_chip(run)}.jsonl"
    for number, line in enumerate(lines[1:], 2):
        parse(line, f"{path}:{number}")
    _ensure_once(path, rows[1:])
    write_text(path, "\n".join(lines) + "\n")
    return path


def _chip(run: dict[str, Any]) -> str:
    """What a file is named after beside its day: the chip of ``run``, or its device where it names no single one."""
    chip = str(run["facts"].get("chip", ""))
    return chip if re.fullmatch(r"[0-9a-f]{6}", chip) else str(run["device"])


def ensure_writable(folder: Path) -> None:
    """Find out now whether files can be made in ``folder``. Raises :class:`RecordError` with the reason if not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as cause:
        raise explain(cause, folder) from None


@contextmanager
def held(folder: Path, patience_s: float = 0.0) -> Iterator[None]:
    """Hold a machine's ``folder`` while something is measured there: two at once would take each other's parts away.

    The lock ends with the process that holds it, however that ends, and leaves no file behind. Within one thread it
    may be taken again. Raises :class:`RecordError` when another process has it, and has it still ``patience_s`` seconds
    later, or when the folder cannot be written.
    """
    from filelock import Timeout

    lock = _lock(folder)
    path = Path(lock.lock_file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(patience_s, blocking=patience_s > 0)
    except Timeout:
        said = "another process is measuring this machine there"
        raise RecordError(f"{folder}: {said}; wait until it has ended, or choose another folder of records") from None
    except OSError as cause:
        raise explain(cause, path) from None
    try:
        yield
    finally:
        if lock.lock_counter == 1:  # while it is held: whoever has opened it meanwhile finds that it has no name
            path.unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):  # the parts of what was interrupted stay
            path.parent.rmdir()


def is_held(folder: Path) -> bool:
    """Whether some process holds ``folder`` (see :func:`held`); not, as far as can be told, where it cannot be asked.

    Who wants to hold it in the very moment of asking is refused.
    """
    from filelock import Timeout

    lock = _lock(folder)
    if lock.is_locked or not Path(lock.lock_file).exists():
        return lock.is_locked
    try:
        with lock:
            return False
    except Timeout:
        return True
    except OSError:
        return False


def _lock(folder: Path) -> FileLock:
    """The one lock of ``folder`` that this process has; nobody waits for it."""
    from filelock import FileLock

    return FileLock(folder / ".parts" / "lock", blocking=False, is_singleton=True)
