"""The machines side by side: their ceilings, and the claims whose verdicts depend on them, with the reason.

A verdict may differ because the hardware does, or because one machine's interval is too wide. The first is held
against the ceilings: what binds a workload on either machine, and how near its baseline comes to the limit.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence

from hypatia_lab import formats, results
from hypatia_lab.chapters import decisions
from hypatia_lab.claims import UNJUDGED, Judgement
from hypatia_lab.figures.language import spanning
from hypatia_lab.formats import absent, listing
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.records import Record
from hypatia_lab.tables import claims as claim_tables

BASELINES = ("eager", "row_major")
COPY, COLD = "copy", "copy, cold caches"
"""The ceilings of bytes: the second is that of what comes from memory."""
SHOWN = "float32/ieee"
"""The precision whose balance is told in words."""
IDLE = 0.1
"""Below this share of the limit no ceiling is what takes the time: launches, waiting and idle multiprocessors are."""


def _best(lab: Evidence) -> dict[str, dict[str, float]]:
    """A ceiling in words → its rate on each machine that has one, of the ceilings that any machine has.

    Caches are warm, but for one copy: what is warm may never leave the cache.
    """
    best = {name: results.ceilings(lab.of(name)) for name in lab.machines}
    products = [("matmul", precision, f"product, {precision}") for precision in decisions.PRECISIONS]
    found = {}
    for quantity, precision, label in [("copy", "", COPY), ("copy", "", COLD), *products]:
        clocks = {name: "cold" if label == COLD else lab.primary(name) for name in lab.machines}
        own = {name: best[name].get((quantity, precision, clocks[name])) for name in lab.machines}
        if any(own.values()):
            found[label] = {name: rate for name, rate in own.items() if rate}
    return found


def _factors(rates_of: dict[str, dict[str, float]], names: Sequence[str]) -> dict[str, float]:
    """The rates of the first of ``names`` over the second's, of what both have; empty where there is one alone."""
    first, second = (*names, "", "")[:2]
    return {label: own[first] / own[second] for label, own in rates_of.items() if first in own and second in own}


def rates(lab: Evidence) -> list[dict[str, str]]:
    """The ceilings of all machines: a line a quantity, and the first machine's rate over the second's."""
    best = _best(lab)
    factors = _factors(best, lab.machines)
    lines = []
    for label, own in best.items():
        unit = "B/s" if label in (COPY, COLD) else "FLOP/s"
        line = {"ceiling": label}
        line |= {name: formats.scaled(own[name], unit) if name in own else "not measured" for name in lab.machines}
        if factors:
            both = f"{formats.number(factors[label])}×" if label in factors else formats.MISSING
            line[" / ".join(lab.machines[:2])] = both
        lines.append(line)
    return lines


def lead(lab: Evidence) -> str:
    """How fast the first machine copies and multiplies beside the second, and what the CPUs are: Markdown."""
    best = _best(lab)
    factors = _factors(best, lab.machines)
    said = []
    if factors:
        first, second = lab.machines[:2]
        copies = {COLD: "from memory", COPY: "with warm caches"}
        said += [
            f"**`{first}` copies {formats.number(factors[label])} times as fast as `{second}`** {how}."
            for label, how in copies.items()
            if label in factors
        ][:1]
        if products := [factor for label, factor in factors.items() if label not in copies]:
            said.append(f"Its matrix products run {_span(products)} times as fast as those of `{second}`.")
    for name in lab.machines:
        facts = lab.of(name)[0].run["facts"]
        if lab.of(name)[0].run["device"] == "cpu" and facts.get("cores"):
            said.append(f"`{name}` is {facts['cores']} cores of a processor ({facts.get('cpu', facts.get('name'))}).")
        half, single = (best.get(f"product, {dtype}/ieee", {}).get(name) for dtype in ("float16", "float32"))
        if half and single and half < single:
            said.append(
                f"On `{name}` a product in float16 takes {formats.number(single / half)} times as long as in float32: "
                "nothing there multiplies float16 fast."
            )
    return " ".join(said)


def turns(lab: Evidence) -> str:
    """Where memory ends and arithmetic begins, in sentences; empty where nothing has both ceilings."""
    found: dict[str, dict[str, float]] = {}
    for name, precision, value in decisions.balances(lab):
        found.setdefault(precision, {})[name] = value
    said = []
    if own := found.get(SHOWN):
        said.append(
            f"In {SHOWN} arithmetic takes over at "
            f"{listing([f'{formats.number(value)} FLOP a byte on `{name}`' for name, value in own.items()])}."
        )
    if factors := list(_factors(found, lab.machines[1::-1]).values()):
        first, second = lab.machines[:2]
        said.append(f"Over all precisions `{second}` needs {_span(factors)} times as many as `{first}`.")
    return " ".join(said)


def chips(one: Record, other: Record) -> str:
    """Whether two records are of the ``same chip`` or of ``another chip``, or ``chip not recorded`` in one of them."""
    if not (one.chip and other.chip):
        return "chip not recorded"
    return "same chip" if one.chip == other.chip else "another chip"


def compared(pairs: Iterable[tuple[Record, Record]]) -> str:
    """Of how many pairs of records both are of one chip: ``2 (another chip) and 1 (same chip)``."""
    counts = Counter(chips(*pair) for pair in pairs)
    return listing([f"{number} ({said})" for said, number in sorted(counts.items())])


def twins(lab: Evidence) -> str:
    """A line (Markdown) on each two machines that share an experiment and a model of GPU; empty where none do."""
    lines = []
    for couple in itertools.combinations(names(lab), 2):
        one, other = ({record.experiment: record for record in lab.of(name)} for name in couple)
        pairs = [(one[name], other[name]) for name in one if name in other]
        models = {(record.run["device"], record.run["facts"].get("name")) for pair in pairs for record in pair}
        if [device for device, _ in models] == ["cuda"]:
            both = listing([f"`{name}`" for name in couple])
            lines.append(f"- {both}: both {models.pop()[1]}. Experiments compared: {compared(pairs)}.")
    return "\n".join(lines)


# ---------------------------------------------------------------- verdicts


def names(lab: Evidence) -> list[str]:
    """Every machine with a record, those with pages first: a second chip may have run the authors' programs alone."""
    return list(dict.fromkeys((*lab.machines, *(record.machine for record in lab.records))))


def tested(lab: Evidence, judged: Sequence[Judgement]) -> list[list[Judgement]]:
    """The judgements of each part of a claim that at least two machines could test."""
    found: dict[str, list[Judgement]] = {}
    for row in judged:
        if row.machine in names(lab) and row.verdict not in UNJUDGED:
            found.setdefault(row.id, []).append(row)
    return [rows for rows in found.values() if len(rows) > 1]


def reasons(lab: Evidence, judged: Sequence[Judgement]) -> list[dict[str, str]]:
    """A line a part of :func:`tested` whose verdicts differ: each machine's with its figure, and why they differ."""
    lines = []
    for rows in tested(lab, judged):
        if len({row.verdict for row in rows}) == 1:
            continue
        here = {row.machine: f"{claim_tables.verdict_text(row.verdict)}, {claim_tables.judged(row)}" for row in rows}
        kind, why = cause(rows)
        lines.append(
            {"id": rows[0].id, "claim": rows[0].claim, "measured": _measured(rows[0]), "band": _band(rows[0])}
            | {name: here.get(name, formats.MISSING) for name in names(lab)}
            | {
                "the difference is": kind,
                "why": " ".join(filter(None, (why, _ceilings(lab, rows)))),
            }
        )
    return lines


def columns(lab: Evidence, lines: Sequence[dict[str, str]]) -> list[str]:
    """The columns of a table of :func:`reasons`: of the machines those that could judge one of its lines."""
    judged = [name for name in names(lab) if any(line[name] != formats.MISSING for line in lines)]
    return ["id", "claim", "measured", "band", *judged, "the difference is", "why"]


KINDS = {
    "hardware": "at one workload or more the intervals lie apart",
    "certainty": "the intervals overlap, or one is too wide or of too few processes to hold one machine against the "
    "other. Too wide is one whose ends lie more than a factor of two apart. It may still be clear of the band, and so "
    "have a verdict",
    "workloads": "both agree as far as both were measured",
}
"""Why verdicts may differ (:func:`cause`) → what that means."""


def summary(lines: Sequence[dict[str, str]], parts: int) -> str:
    """How many of ``parts`` are lines of :func:`reasons`, and for which reasons, with what each means: Markdown."""
    kinds = [line["the difference is"] for line in lines]
    said = f"**{len(lines)} of {parts} parts of claims that at least two machines could test have different verdicts.**"
    bullets = [f"- *{kind}* ({kinds.count(kind)}): {text}." for kind, text in KINDS.items() if kind in kinds]
    return "\n".join([f"{said} The difference is one of:" if bullets else said, "", *bullets])


def cause(rows: Sequence[Judgement]) -> tuple[str, str]:
    """Whether the machines differ, or only what was measured on them or is known of them."""
    first, *others = rows
    apart, level, silent, shared = [], [], [], False
    for other in others:
        cases = {case.workload: case for case in first.cases}
        for case in other.cases:
            twin = cases.get(case.workload)
            if twin is None:
                continue
            shared = True
            if twin.verdict == case.verdict:
                continue
            ends = [
                f"{formats.interval(*one.estimate.triple, first.unit)} on {row.machine}"
                for one, row in ((twin, first), (case, other))
            ]
            there = case.estimate
            if not there.doubt and twin.estimate.outside(there.low, there.high):
                apart.append(f"{formats.workload(case.workload)}: {' and '.join(ends)}")
            else:
                wide = there.doubt or twin.estimate.doubt
                (silent if wide else level).append(formats.workload(case.workload))
    if not shared:
        return "workloads", "No workload was measured on both."
    if apart:
        return "hardware", f"The intervals lie apart at {'; '.join(apart)}."
    said = [f"At {listing(level)} the intervals overlap."] if level else []
    said += [f"At {listing(silent)} one interval is too wide to tell, or of too few processes."] if silent else []
    if said:
        return "certainty", f"{' '.join(said)} No difference is sure."
    return "workloads", "Where both were measured they agree; the rest was measured on one machine only."


def _measured(row: Judgement) -> str:
    """The quantity behind a verdict, as its details name it."""
    said = "Measured was "
    told = next((text for text in row.details if text.startswith(said)), "")
    return told.removeprefix(said).partition(f", on {row.machine}")[0] or formats.MISSING


def _band(row: Judgement) -> str:
    """What confirms a part of a claim; ``–`` where it has no band."""
    return formats.MISSING if any(map(absent, row.band)) else claim_tables.claimed_text(list(row.band), row.unit)


def _ceilings(lab: Evidence, rows: Sequence[Judgement]) -> str:
    """What the ceilings say of a claim's workloads on each machine; empty where they say nothing."""
    workloads = list(dict.fromkeys(name for row in rows for name in row.workload.split(", ") if name))
    said = []
    for name in (row.machine for row in rows):
        found = [bound for workload in workloads if (bound := binding(lab, name, workload)) is not None]
        if found:
            times = _span([relative for _, relative, _ in found])
            shares = [100 * share for _, _, share in found if not absent(share)]
            near = f"; the baseline reaches {_span(shares)}% of its limit" if shares else ""
            kinds = list(dict.fromkeys(binds for binds, _, _ in found))
            what = kinds[0] if len(kinds) == 1 else f"{' in some cases, '.join(kinds)} in others"
            said.append(f"on {name} {what} binds ({times} times the balance{near})")
    return f"By the ceilings {'; '.join(said)}." if said else ""


def _span(values: Sequence[float]) -> str:
    return spanning(values, formats.number)


def binding(lab: Evidence, machine: str, workload: str) -> tuple[str, float, float] | None:
    """What binds ``workload``, its operations per byte over the machine's balance, its baseline's share of the limit.

    The share is NaN where no baseline was timed; None where a ceiling is lacking or nothing ran the workload.
    """
    rows = lab.leading(machine, workload=workload)
    rows = [row for row in rows if row.flops and row.traffic]
    if not rows:
        return None
    turn = decisions.balance(lab, machine).get(
        results.arithmetic(rows[0].dtype, rows[0].math, results.ceilings(lab.of(machine)))
    )
    if turn is None:
        return None
    relative = rows[0].flops / rows[0].traffic / turn
    timed = [row for row in rows if row.variant in BASELINES and not absent(row.median_us)]
    share = timed[0].limit_us / timed[0].median_us if timed else math.nan
    if share < IDLE:
        return "neither ceiling", relative, share
    return ("arithmetic" if relative >= 1 else "memory"), relative, share
