"""Packing: one machine's records into a folder that may be sent, without what tells whose machine it is."""

from __future__ import annotations

import datetime
import gzip
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypatia_lab import claims, formats, records, results
from hypatia_lab.contributed import bounded, manifest, private
from hypatia_lab.contributed.checking import another, check, written
from hypatia_lab.contributed.faults import Report
from hypatia_lab.machine import chip
from hypatia_lab.records import Record
from hypatia_lab.tables.claims import verdict_text

_ROOM, _ENTRY = 10_000, 200
"""Bytes kept for the manifest and the text of the pull request: in any case, and for each file."""
_FREE = {"run": {}, "cell": {"reason": None}, "detail": {"reason": None, "case": 64, "name": 200}}
"""Fields of free text, which are told without what is private, and so many characters of each at most; all others are
names that the lab checks."""

Lines = list[dict[str, Any]]


class ContributionError(ValueError):
    """A contribution that cannot be made: the message names cause and remedy."""


@dataclass(frozen=True)
class Packed:
    """What was packed: the ``folder``, what was ``left_out`` for its size, what was ``taken_out`` as private, by kind
    and number, and the ``report`` of the check on it."""

    folder: Path
    left_out: list[str]
    taken_out: dict[str, int]
    report: Report


@dataclass
class _Parcel:
    """Lines by experiment and traces by name, on their way into the folder, and what became of the rest."""

    lines: dict[str, Lines] = field(default_factory=dict)
    traces: dict[str, bytes] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    taken_out: Counter[str] = field(default_factory=Counter)


def pack(machine: str, root: Path, output: Path, *, name: str = "", known: Sequence[Record] | None = None) -> Packed:
    """Pack the records of ``machine`` under ``root`` into ``output``/``name`` (default: ``machine``), and check them.

    Nothing is left behind when it is stopped. ``known`` are the lab's records (default: the committed ones). Raises
    :class:`ContributionError` when the folder is there already, or when the name is that of this computer or of another
    machine among ``known``; :class:`records.RecordError` for records that are not there or damaged, and where nothing
    can be written.
    """
    name = records.machine_name(name or machine)
    found = records.load(root, machines=[records.machine_name(machine)])
    known = records.load() if known is None else known
    names = _telling(private.own_names(), known)
    renamed = [replace(one, run=one.run | {"machine": name}) for one in found]
    target = output / name
    if whose := another(renamed, known):
        raise ContributionError(
            f"{name} is the name of another machine in the repository ({whose}); choose one with --name"
        )
    if private.found(name, names):
        raise ContributionError(f"{name} is what this computer, or you, are called; choose another name with --name")
    if os.path.lexists(target):
        raise ContributionError(f"{target} is there already; remove it, or choose another --output")
    records.ensure_writable(output)
    parcel = _parcel(renamed, names)
    _fit(parcel)
    try:
        with tempfile.TemporaryDirectory(prefix=".contribute-", dir=output) as scratch:
            folder = Path(scratch) / name
            _write(folder, parcel, known)
            report = check(folder, known, names)
            os.replace(folder, target)
    except OSError as cause:
        raise records.explain(cause, target) from None
    return Packed(target, parcel.left_out, dict(parcel.taken_out), report)


def _telling(names: frozenset[str], known: Iterable[Record]) -> frozenset[str]:
    """Those of ``names`` that are in no record that is ``known``: a word of the lab's own tells nobody."""
    own = {text for one in known for row in (one.run, *one.cells, *one.details) for _, text in private.strings(row)}
    taken = {words.lower() for text in own for _, words in private.found(text, names)} if names else set()
    return frozenset(name for name in names if name.lower() not in taken)


def _parcel(found: Sequence[Record], names: frozenset[str]) -> _Parcel:
    parcel = _Parcel()
    for record in found:
        rows = (record.run, *record.cells, *record.details)
        parcel.lines[record.experiment] = [_cleaned(row, names, parcel.taken_out) for row in rows]
    folders = {record.folder / "traces" for record in found}
    for path in sorted(path for folder in folders for path in folder.glob("*.json.gz")):
        name = f"traces/{path.name}"
        try:
            data = path.read_bytes()
            clean, lost = private.without(bounded.parsed(bounded.unpacked(data)), names)
        except (OSError, bounded.BoundError) as cause:
            parcel.left_out.append(f"{name}: {cause}")
            continue
        if lost:
            data = gzip.compress(json.dumps(clean, separators=(",", ":")).encode(), mtime=0)
        parcel.taken_out.update(lost)
        parcel.traces[name] = data
    return parcel


def _cleaned(row: dict[str, Any], names: frozenset[str], gone: Counter[str]) -> dict[str, Any]:
    """A line of a record without what is private in it; ``gone`` counts that."""

    def clean(value: Any) -> Any:
        found, lost = private.without(value, names)
        gone.update(lost)
        return found

    row = dict(row)
    if row["kind"] == "run":
        row["facts"] = _facts(row["facts"], clean, gone)
    if "provenance" in row:
        row["provenance"] = [one | clean({key: one[key] for key in ("licence", "files")}) for one in row["provenance"]]
    for key, most in _FREE[row["kind"]].items():
        row[key] = clean(row[key])[:most]
    return row


def _facts(facts: Mapping[str, Any], clean: Callable[[Any], Any], gone: Counter[str]) -> dict[str, Any]:
    """The facts that a contribution tells; ``gone`` counts the others. A whole UUID becomes the hash that stands for
    it."""
    kept = {}
    for key, value in facts.items():
        if key == "chip" and isinstance(value, str) and private.found(value):
            value = chip(value)
            gone["GPU UUID"] += 1
        if key in ("name", "cpu"):
            value = clean(value)
        if manifest.of_facts({"name": "", key: value}):
            gone[f"fact {key}"] += 1
        else:
            kept[key] = value
    return kept


def _fit(parcel: _Parcel) -> None:
    """Leave out what is missed least until no more than :data:`bounded.MAX_BYTES` are left.

    First traces; then raw samples, which no verdict and no figure reads; then whole records, those first that time
    nothing and that the fewest claims name, and the ceilings last.
    """
    traces = {name: _ENTRY + len(data) for name, data in parcel.traces.items()}
    bare = {
        name: [row | {"samples_us": []} if row["kind"] == "cell" else row for row in rows]
        for name, rows in parcel.lines.items()
    }
    others = {name: _ENTRY + len(_file(rows)) for name, rows in bare.items()}
    samples = {name: _ENTRY + len(_file(rows)) - others[name] for name, rows in parcel.lines.items()}
    samples = {name: size for name, size in samples.items() if size}
    last = {"ceilings": others.pop("ceilings")} if "ceilings" in others else {}
    asked = Counter(claim.experiment for claim in claims.ledger())
    # A claim that names no experiment may be judged by any that has timed cells.
    asked.update(name for name, rows in parcel.lines.items() if any(row["kind"] == "cell" for row in rows))
    excess = _ROOM + sum(sum(sizes.values()) for sizes in (traces, samples, others, last)) - bounded.MAX_BYTES
    gone: list[list[str]] = []
    for sizes, by in ((traces, {}), (samples, {}), (others, asked), (last, asked)):
        gone.append(_spared(sizes, excess, by))
        excess -= sum(sizes[name] for name in gone[-1])
    dropped = [*gone[2], *gone[3]]
    if len(dropped) == len(bare):
        raise ContributionError(f"not even one record fits into {bounded.MAX_BYTES:,} bytes; nothing was written")
    left_out = {
        f"{len(gone[0])} of {len(traces)} traces": gone[0],
        f"raw samples of {len(gone[1])} of {len(bare)} records": gone[1],
        f"the records of {formats.listing(sorted(dropped))}": dropped,
    }
    parcel.left_out += [said for said, names in left_out.items() if names]
    parcel.traces = {name: data for name, data in parcel.traces.items() if name not in gone[0]}
    kept = {name: bare[name] if name in gone[1] else rows for name, rows in parcel.lines.items()}
    parcel.lines = {name: rows for name, rows in kept.items() if name not in dropped}


def _spared(sizes: Mapping[str, int], over: int, asked: Mapping[str, int]) -> list[str]:
    """What to leave out of ``sizes`` until no byte is ``over``: of those that are enough the least ``asked`` for, and
    of several such the smallest; where none is enough the largest first."""
    left, gone = dict(sizes), []
    while over > 0 and left:
        if enough := [name for name in left if left[name] >= over]:
            chosen = min(enough, key=lambda name: (asked.get(name, 0), left[name]))
        else:
            chosen = max(left, key=left.__getitem__)
        over -= left.pop(chosen)
        gone.append(chosen)
    return gone


def _file(rows: Lines) -> bytes:
    return "".join(written(row) + "\n" for row in rows).encode()


def _write(folder: Path, parcel: _Parcel, known: Sequence[Record]) -> None:
    """Write records, traces, manifest and letter into ``folder``."""
    contents = {f"{name}.jsonl": _file(rows) for name, rows in parcel.lines.items()}
    for name, data in {**contents, **parcel.traces}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    packed = [records.load_file(folder / name) for name in sorted(contents)]
    told = manifest.described(packed, results.agreement(packed)) | {
        "schema": manifest.SCHEMA,
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        "records": {name: manifest.digest(data) for name, data in contents.items()},
        "traces": {name: manifest.digest(data) for name, data in parcel.traces.items()},
        "left_out": parcel.left_out,
    }
    records.write_text(folder / manifest.NAME, json.dumps(told, indent=1, sort_keys=True) + "\n")
    records.write_text(folder / manifest.LETTER, _letter(packed, told, known))


# ---------------------------------------------------------------- the text of the pull request


def _letter(packed: Sequence[Record], told: Mapping[str, Any], known: Sequence[Record]) -> str:
    """Markdown, as ``pull_request.md`` has it, on the ``packed`` records of one machine, of which ``told`` is the
    manifest; ``known`` are the lab's own, which may show a rewrite equal to its original."""
    apart = [f"With {len(told['traces'])} traces."] if told["traces"] else []
    apart += [f"Left out: {'; '.join(told['left_out'])}."] if told["left_out"] else []
    measured = [
        f"| {of.experiment} | {of.run['preset']} | {of.run['processes']} | {len(of.cells)} | {len(of.details)} |"
        for of in packed
    ]
    template = Path(__file__).with_name("pull_request.md").read_text(encoding="utf-8")
    return template.format(
        machine=told["machine"],
        model=told["model"],
        facts=_described(told),
        records="\n".join(measured),
        apart="".join(f"\n{line}\n" for line in apart),
        control=_control(told["control"]),
        ceilings=_ceilings(packed),
        verdicts=_verdicts(packed, known),
    )


def _described(told: Mapping[str, Any]) -> str:
    chips, dirty = ", ".join(told["chips"]), told["dirty"]
    commits = ", ".join(commit[:12] for commit in told["commits"])
    facts = {
        "Machine": told["machine"],
        "Model": told["model"] + (f" (chip {chips})" if chips else ""),
        "Versions": ", ".join(f"{name} {', '.join(of)}" for name, of in told["versions"].items() if of),
        "Presets": ", ".join(told["presets"]),
        "Measured": " to ".join(dict.fromkeys(moment.partition("T")[0] for moment in told["measured"])),
        "Commits": commits + (" (some with changes that no commit holds)" if dirty else ""),
    }
    return "\n".join(f"- {name}: {value}" for name, value in facts.items() if value)


def _control(control: Mapping[str, float] | None) -> str:
    if control is None:
        return "No pair of identical code was measured."
    pairs, differences = control["pairs"], control["differences"]
    value, low, high = (100 * control[name] for name in ("rate", "rate_low", "rate_high"))
    share = formats.interval(value, low, high, "%")
    return f"{differences} of {pairs} pairs of identical code seemed different: {share}, where 5% is expected."


def _ceilings(packed: Sequence[Record]) -> str:
    best = results.ceilings(packed)
    if not best:
        return "None were measured."
    kinds = list(dict.fromkeys((quantity, kind) for quantity, kind, _ in best))
    lines = ["| what | clock | best |", "| --- | --- | --- |"]
    for quantity, kind, clock in sorted(best, key=lambda key: kinds.index(key[:2])):
        rate = formats.scaled(best[quantity, kind, clock], "FLOP/s" if quantity == "matmul" else "B/s")
        lines.append(f"| {f'products, {kind}' if kind else 'copying'} | {clock} | {rate} |")
    return "\n".join(lines)


def _verdicts(packed: Sequence[Record], known: Sequence[Record]) -> str:
    rows = claims.statements(claims.judge(results.measured(packed), beside=results.measured(known)))
    found = Counter(row.verdict for row in rows if row.machine == packed[0].machine)
    return "\n".join(f"| {verdict_text(name)} | {found[name]} |" for name in claims.VERDICTS if found[name])
