"""Three machines or more, side by side: what ``hypatia-lab compare`` says of them, as lines and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab import formats, results, spread
from hypatia_lab.cli.terminal import table, wrap
from hypatia_lab.formats import MISSING
from hypatia_lab.records import Record
from hypatia_lab.results import Row
from hypatia_lab.spread import Across, Expectation
from hypatia_lab.tables import chips
from hypatia_lab.tables import claims as claim_tables

DOUBTED = "?"
"""Behind a ratio that says nothing by itself."""


@dataclass(frozen=True)
class SideBySide:
    """The machines ``names``: their ratios, what each model's next chip will do, and on how many verdicts hold.

    ``alike``: all are of one model. ``models`` has of each model how many chips were seen and what to expect of the
    next. ``verdicts`` are those of :func:`hypatia_lab.claims.agreement`.
    """

    names: Sequence[str]
    ratios: list[Across]
    alike: bool
    models: dict[str, tuple[int, list[Expectation]]]
    verdicts: list[dict[str, Any]]


def of(names: Sequence[str], records: Sequence[Record], verdicts: list[dict[str, Any]]) -> SideBySide:
    """What the ``records`` of machines ``names`` say, of any kinds; ``verdicts`` as in :class:`SideBySide`."""
    rows, known = results.rows(records), spread.chips(records)
    devices: dict[str, dict[str, set[str]]] = {}  # model → machine → chips
    for record in records:
        devices.setdefault(record.device_name, {}).setdefault(record.machine, set()).update({record.chip} - {""})
    models = {}
    for name, own in devices.items():
        # A machine of which no record names a chip counts as one.
        seen = {chip for machine, named in own.items() for chip in named or {machine}}
        found = spread.across((row for row in rows if row.machine in own), known)
        models[name] = len(seen), spread.expectations(found)
    return SideBySide(names, spread.across(rows, known), len(devices) == 1, models, verdicts)


def json_rows(found: SideBySide) -> list[dict[str, Any]]:
    """Lines for programs, told apart by ``kind``.

    ``ratio``: experiment, workload, clock, variant, baseline, machines (machine → ratio, low, high, n and doubt: why it
    says nothing, or empty), chips (how many are counted), bounds (``range`` or ``next``), low, high.
    ``expectation``: model and what :class:`Expectation` has. ``verdict``: as :func:`hypatia_lab.claims.agreement` has.
    """
    out: list[dict[str, Any]] = []
    for one in found.ratios:
        bounds, (low, high) = chips.bounds(one, alike=found.alike)
        named = dict(zip(("experiment", "workload", "clock", "variant", "baseline"), spread.key(one.row), strict=True))
        own = {machine: _figures(row) for machine, row in one.rows.items()}
        ends = {"bounds": bounds, "low": low, "high": high}
        out.append({"kind": "ratio"} | named | {"machines": own, "chips": len(one.values)} | ends)
    for model, (_, expected) in found.models.items():
        out += [{"kind": "expectation", "model": model} | vars(one) for one in expected]
    return out + [{"kind": "verdict"} | line for line in found.verdicts]


def _figures(row: Row) -> dict[str, Any]:
    speed = row.speed
    return {"ratio": speed.value, "low": speed.low, "high": speed.high, "n": speed.n, "doubt": speed.doubt}


def lines(found: SideBySide) -> list[str]:
    """The same for people: how much agrees, whether the next machine will differ, a line a ratio, verdicts."""
    said = wrap(f"Ratios that at least two of {len(found.names)} machines measured: {len(found.ratios)}.")
    said += wrap(_counted(found.verdicts))
    said += ["", "Will mine differ?"]
    for model, (seen, expected) in found.models.items():
        said += [line for text in chips.will_mine_differ(seen, expected) for line in wrap(f"{model}: {text}", 4, 2)]
    if found.ratios:
        said += ["", *_ratio_lines(found)]
    for line in found.verdicts:
        if len(set(line["verdicts"].values())) > 1:
            said += ["", *wrap(f"{line['id']}  {line['claim']}", 2), *wrap(f"{_by_verdict(line)}.", 4, 2)]
    return said


def _counted(verdicts: Sequence[dict[str, Any]]) -> str:
    """On how many machines how many verdicts hold, in a sentence or two."""
    several = Counter(line["holds"] for line in verdicts if len(line["verdicts"]) > 1)
    places = {"all": "on all machines that could test it", "most": "on most", "some": "on some", "one": "on one each"}
    told = [f"{several[word]} {where}" for word, where in places.items() if several[word]]
    alone = sum(len(line["verdicts"]) == 1 for line in verdicts)
    text = f"The commonest verdict on a part of a claim holds: {', '.join(told)}." if told else "No verdict is shared."
    return f"{text} Tested on one machine alone: {alone} parts." if alone else text


def _by_verdict(line: dict[str, Any]) -> str:
    by: dict[str, list[str]] = {}
    for machine, verdict in line["verdicts"].items():
        by.setdefault(verdict, []).append(machine)
    ordered = sorted(by.items(), key=lambda item: -len(item[1]))
    return "; ".join(f"{claim_tables.verdict_text(verdict)} on {formats.listing(own)}" for verdict, own in ordered)


def _ratio_lines(found: SideBySide) -> list[str]:
    entries, groups = [], []
    for one in found.ratios:
        bounds, ends = chips.bounds(one, alike=found.alike)
        entries.append(
            {"variant": one.row.variant}
            | {name: _value(one.rows.get(name)) for name in found.names}
            | {"range": "", "next": ""}
            | {bounds: chips.span(*ends)}
        )
        groups.append(f"{one.row.text}, {one.row.clock} clock, against {one.row.baseline} ({one.row.experiment})")
    head, *cells = table(entries, "variant", found.names, indent=2)
    grouped: dict[str, list[str]] = {}
    for title, cell in zip(groups, cells, strict=True):
        grouped.setdefault(title, []).append(cell)
    said = [head, *(line for title, own in grouped.items() for line in ["", *wrap(title, 4), *own])]
    said += ["", *wrap(_legend(found, head, entries))]
    return said


def _value(row: Row | None) -> str:
    if row is None:
        return MISSING
    speed = row.speed
    return formats.told(speed).partition(" [")[0] if not speed.doubt else f"{formats.number(speed.value)}×{DOUBTED}"


def _legend(found: SideBySide, head: str, entries: Sequence[dict[str, str]]) -> str:
    said = "range: the least and the largest ratio seen."
    if any(line["next"] for line in entries):
        said += " next: where the next machine's ratio lies, with 95%."
    if any(line[name].endswith(DOUBTED) for line in entries for name in found.names):
        said += f" {DOUBTED}: says nothing by itself and is left out of it (too few processes, or noise)."
    if any(name not in head.split() for name in found.names):
        said += " Machines that did not fit are in --json."
    return said
