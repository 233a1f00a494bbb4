"""The command that sets machines side by side: compare."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from hypatia_lab import claims as ledger
from hypatia_lab import formats, older, records, results
from hypatia_lab.cli import options
from hypatia_lab.cli.reading import load, root_of
from hypatia_lab.cli.terminal import show, wrap
from hypatia_lab.intervals import Interval
from hypatia_lab.records import Record
from hypatia_lab.results import Row, grouped, visits
from hypatia_lab.results.visits import Across, Expectation
from hypatia_lab.tables import claims as claim_tables


@click.command()
@click.argument("machines", nargs=-1, required=True)
@click.option("--all", "everything", is_flag=True, help="Also list ratios that agree, and verdicts of one side only.")
@options.records
@options.paged
@options.as_json
def compare(machines: tuple[str, ...], everything: bool, folders: tuple[Path, ...], paged: bool, as_json: bool) -> None:
    """Set MACHINES side by side: ratios that differ, the largest difference first, and verdicts that differ.

    Two ratios differ when their intervals do not overlap; an interval allows for what another visit to the model may
    change. Where several experiments measured a ratio, one of them is shown and named. Verdicts are those on
    the parts of claims, each of which has its own figures.

    Each of MACHINES is the name of a recorded machine or a folder: one machine's records, or a folder above them, such
    as the --output of judge. Two folders may hold records of one machine. A model's name stands for its chips, where
    several are recorded. With three machines or more you also see how far a ratio ranges and, from five chips of a
    model on, where the next one's will lie.

    With --json, of two machines: all verdicts that differ, those that both sides reached first. Of more: one line for
    each ratio, class of ratios and verdict; the key kind says which.
    """
    sides: list[tuple[str, list[Record]]] = []
    for text in machines:
        for side in _sides(text, folders, {*machines} - {text}):
            if twin := [name for name, other in sides if other == side]:
                raise click.UsageError(f"{twin[0]} and {text} are the same records; name two machines or folders")
            sides.append((text, side))
    if len(sides) < 2:
        raise click.UsageError(f"Missing argument: a second machine or folder to set beside {machines[0]}")
    names = [side[0].machine for _, side in sides]
    names = [text if names.count(name) > 1 else name for name, (text, _) in zip(names, sides, strict=True)]
    loaded = [
        replace(record, run=record.run | {"machine": name})
        for name, (_, side) in zip(names, sides, strict=True)
        for record in side
    ]
    evidence, beside = results.measured(loaded), results.measured(records.load())
    found = of(names, loaded, ledger.judge(evidence, _own_ledger(*machines), beside=beside))
    show(lambda: lines(found, everything=everything), lambda: json_rows(found), as_json=as_json, paged=paged)


def _sides(text: str, folders: tuple[Path, ...], others: Set[str]) -> list[list[Record]]:
    """The records of each side that ``text`` names: a machine, the chips of a model, a folder with one machine's.

    A machine that is called like its model is meant alone beside one chip, or where ``others`` name a chip.
    """
    place = Path(text)
    named = not place.is_dir() or any(path.name == text for path in records.COMMITTED.glob("*/"))
    sides = grouped(load(folders, (text,)) if named else records.load(root_of(place)), attrgetter("machine"))
    if not named and len(sides) > 1:
        raise click.UsageError(f"{text} holds records of {', '.join(sorted(sides))}; name one of its folders")
    alone = len(sides) == 2 or not others.isdisjoint(sides)
    return [sides[text]] if text in sides and alone else list(sides.values())


def _own_ledger(*places: str) -> list[ledger.Claim]:
    """The lab's ledger, and the claims in the readers' books among ``places``; of an id twice the last one counts."""
    books = [path for place in places for path in sorted((Path(place) / "book" / "claims").glob("*.yaml"))]
    own = [claim for path in books for claim in ledger.load(path)]
    return list({claim.id: claim for claim in (*ledger.ledger(), *own)}.values())


# ---------------------------------------------------------------- side by side: for people, and for programs

FAR = 0.05
"""Ratios that are apart by more come first."""


@dataclass(frozen=True)
class SideBySide:
    """The machines ``names``: their ratios, what each model's next chip will do, and the judge's ``parts`` of claims.

    ``alike``: all are of one model. ``models`` has of each model how many chips were seen and what to expect of the
    next, ``made`` the record of each machine and experiment.
    """

    names: Sequence[str]
    ratios: list[Across]
    alike: bool
    models: dict[str, tuple[int, list[Expectation]]]
    parts: Sequence[ledger.Judgement]
    made: Mapping[tuple[str, str], Record]

    def apart(self, rows: Iterable[Row | ledger.Judgement]) -> list[str]:
        """In which parts the instruments that made the records of ``rows``, of several machines, differ."""
        own = [(row.machine, [row.experiment] if isinstance(row, Row) else row.experiments) for row in rows]
        return older.apart(self.made[machine, name] for machine, names in own for name in names)


def of(names: Sequence[str], records: Sequence[Record], parts: Sequence[ledger.Judgement]) -> SideBySide:
    """What the ``records`` of machines ``names`` say, of any kinds; ``parts`` as in :class:`SideBySide`."""
    rows, known = list(visits.facts(results.rows(records), records).values()), visits.chips(records)
    models = {}
    for name, own in grouped(records, attrgetter("device_name")).items():
        machines = {record.machine for record in own}
        # A machine of which no record names a chip counts as one.
        named = {(record.machine, record.chip) for record in own if record.chip}
        seen = {chip for _, chip in named} | (machines - {machine for machine, _ in named})
        found = visits.across((row for row in rows if row.machine in machines), known)
        models[name] = len(seen), visits.expectations(found)
    made = {(record.machine, record.experiment): record for record in records}
    return SideBySide(names, visits.across(rows, known), len(models) == 1, models, parts, made)


def json_rows(found: SideBySide) -> list[dict[str, Any]]:
    """Lines for programs: of two machines :func:`hypatia_lab.claims.differences`, of more, told apart by ``kind``:
    those of a ratio and a verdict with ``instruments``, of their records: in which parts those differ.

    ``ratio``: experiment, workload, clock, variant, baseline, machines (machine → experiment, ratio, low, high, n and
    doubt: why it says nothing, or empty), chips (how many are counted), bounds (``range`` or ``next``), low, high.
    ``expectation``: model and what :class:`Expectation` has. ``verdict``: as :func:`hypatia_lab.claims.agreement` has.
    """
    parts = grouped((row for row in found.parts if row.machine in found.names), attrgetter("id"))
    differ = {name: {"instruments": found.apart(own)} for name, own in parts.items()}
    if len(found.names) == 2:
        return [line | differ[line["id"]] for line in ledger.differences(found.parts, *found.names)]
    out: list[dict[str, Any]] = []
    for one in found.ratios:
        word, (low, high) = bounds(one, alike=found.alike)
        line: dict[str, Any] = {"kind": "ratio", "experiment": one.row.experiment}
        line |= zip(("workload", "clock", "variant", "baseline"), visits.fact(one.row), strict=True)
        line["machines"] = {machine: _figures(row) for machine, row in one.rows.items()}
        line["instruments"] = found.apart(one.rows.values())
        out.append(line | {"chips": len(one.values), "bounds": word, "low": low, "high": high})
    for model, (_, expected) in found.models.items():
        out += [{"kind": "expectation", "model": model} | vars(one) for one in expected]
    return out + [{"kind": "verdict"} | line | differ[line["id"]] for line in ledger.agreement(found.parts)]


def _figures(row: Row) -> dict[str, Any]:
    own = {"experiment": row.experiment, "ratio": row.speed.value}
    return own | {name: getattr(row.speed, name) for name in ("low", "high", "n", "doubt")}


def lines(found: SideBySide, *, everything: bool = False) -> list[str]:
    """The same for people: how many ratios and verdicts differ, whether the next machine will, and then each of them.

    Ratios that are not apart, and verdicts that a side could not reach, are listed if ``everything`` is asked for.
    """
    tested = ledger.tested(found.parts, found.names)
    differ = ledger.differing(tested)
    groups = _grouped(found.ratios)
    far, less, _, unsure = map(len, groups.values())
    unknown = f"{unsure} are too noisy or have too few processes"
    said = wrap(f"Ratios: {far} of {len(found.ratios)} differ by more than {FAR:.0%}, {less} by less; {unknown}.", 4)
    said += wrap(f"Verdicts: {len(differ)} of {len(tested)} differ, on parts of claims that two or more could judge.")
    judged = {own[0].id for own in tested}
    rest = [row for row in found.parts if row.machine in found.names and row.id not in judged]
    silent = ledger.differing(grouped(rest, attrgetter("id")).values())
    said += wrap(f"Left out: {len(silent)} verdicts on parts that fewer than two could judge (--all).") * bool(silent)
    said += _next_lines(found) if len(found.names) > 2 else []
    for own in [*differ, *silent] if everything else differ:
        said += ["", *_verdict_lines(own, found)]
    for title, ratios in groups.items():
        if ratios and (everything or title in (APART, LESS)):
            said += ["", title, "-" * len(title), *(line for one in ratios for line in _ratio_lines(one, found))]
    return said


APART, LESS = f"Ratios that differ by more than {FAR:.0%}", "Ratios that differ by less"
NOT, UNSURE = "Ratios that do not differ: their intervals overlap", "Too few processes, or too noisy to say"


def _grouped(ratios: Sequence[Across]) -> dict[str, list[Across]]:
    """The ratios by how far apart they are, those that are farthest first."""
    far = {id(one): _apart(one) for one in ratios}
    found = sorted(ratios, key=lambda one: far[id(one)], reverse=True)
    edge = math.log1p(FAR)
    return {
        APART: [one for one in found if far[id(one)] > edge],
        LESS: [one for one in found if 0 < far[id(one)] <= edge],
        NOT: [one for one in found if not far[id(one)] and len(_sure(one)) > 1],
        UNSURE: [one for one in found if len(_sure(one)) < 2],
    }


def _sure(one: Across) -> list[Interval]:
    return [row.speed for row in one.rows.values() if not row.speed.doubt]


def _apart(one: Across) -> float:
    """The logarithm of the largest quotient of two of its ratios whose intervals exclude each other; 0 of none."""
    pairs = itertools.combinations(_sure(one), 2)
    return max((abs(math.log(a.value / b.value)) for a, b in pairs if a.outside(b.low, b.high)), default=0.0)


def _ratio_lines(one: Across, found: SideBySide) -> list[str]:
    """A ratio: what it is, how far apart the machines are, and each with its interval and experiment."""
    row, values = one.row, [own.ratio for own in one.rows.values()]
    size = f"{formats.number(max(values) / min(values))}× apart"
    said = wrap(f"{row.variant} over {row.baseline}, {row.text}, {row.clock} clock: {size}", 4)
    said += _instruments(found.apart(one.rows.values()), 4)
    for machine, own in one.rows.items():
        said += wrap(f"{machine} {formats.told(own.speed)} (n = {own.n}, {own.experiment})", 8, 4)
    word, ends = bounds(one, alike=found.alike)
    return said + wrap(f"{word} {span(*ends)}", 8, 4) * (len(found.names) > 2)


def bounds(one: Across, *, alike: bool) -> tuple[str, tuple[float, float]]:
    """What is said of a ratio on the next machine, and its ends: ``next``, a prediction interval, where all machines
    are ``alike`` and there are enough of them, else ``range``, of what was seen.
    """
    predicted = one.next
    return ("next", (predicted.low, predicted.high)) if alike and predicted.n else ("range", one.range)


def span(low: float, high: float) -> str:
    """Two ends as text: ``[0.99, 1.02]``, a dash where there are none."""
    if formats.absent(low):
        return formats.MISSING
    _, _, ends = formats.interval(math.sqrt(low * high), low, high).partition(" [")
    return f"[{ends or f'{formats.number(low)}, {formats.number(high)}]'}"  # ends that lie far apart are no noise here


def _next_lines(found: SideBySide) -> list[str]:
    """What another chip of each model is expected to do, a text a class of ratios."""
    said = ["", "Will mine differ?"]
    for model, (seen, expected) in found.models.items():
        said += wrap(f"{model}, chips seen: {seen}. It takes {visits.CHIPS} that ran one ratio to say.", 4, 2)
        for one in expected:
            tuned = " a tuner's" * one.tuned
            far = f"{formats.number(100 * one.within)}% from the chips' mean"
            text = f"{one.ratios}{tuned} ratios by the {one.clock} clock on {one.chips} chips or more: "
            text += f"the furthest lies {far}, 95% of the next within {span(one.low, one.high)} times that mean."
            said += wrap(text, 6, 4)
    return said


def _instruments(parts: Sequence[str], indent: int) -> list[str]:
    """That what stands above was made by different instruments, and in which ``parts``, if in any."""
    return wrap(f"Measured with different versions of {formats.listing(parts)}.", indent, indent) if parts else []


def _verdict_lines(own: Sequence[ledger.Judgement], found: SideBySide) -> list[str]:
    """A part of a claim, and each machine's verdict with its reason."""
    said = wrap(f"{own[0].id}  {own[0].claim}", 2) + _instruments(found.apart(own), 2)
    for row in own:
        said += wrap(f"{row.machine}: {claim_tables.verdict_text(row.verdict)}. {row.reason}", 4, 2)
    return said
