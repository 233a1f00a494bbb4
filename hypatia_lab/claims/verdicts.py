"""Judging the ledger: each part of a claim against the records of each machine, by interval, in plain words.

A verdict sees results rows and the details of records only. Its reason is put together from those and the claim, so
no measured figure is ever typed. What has a flaw (:attr:`hypatia_lab.intervals.Interval.flaw`) decides nothing: of too
few processes, too noisy for any table, or from a workload whose A/A control failed.

A document is judged by its author's program. Where a machine has no record of that, a rewrite of the lab's stands in
for it if some record shows both equal by the same clock (:mod:`hypatia_lab.claims.stand_ins`); any other rewrite is a
finding and refutes nobody.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypatia_lab import intervals, results
from hypatia_lab.claims import details, stand_ins
from hypatia_lab.claims.claim import Claim, arithmetic
from hypatia_lab.claims.details import NoFigure, place
from hypatia_lab.claims.judgement import ANY, Case, Judgement
from hypatia_lab.claims.ledger import ledger
from hypatia_lab.claims.quantities import QUANTITIES, Key, Quantity, both_rows, its_row, part_of
from hypatia_lab.formats import number, span, told, with_unit
from hypatia_lab.intervals import Interval
from hypatia_lab.records import Record
from hypatia_lab.results import Row

HOLD = frozenset({"confirmed", "exceeded", "conditional"})
"""Verdicts that say of a part that it holds; a conditional one says that it holds in part."""
DOUBT = 0.05
"""An A/A control less likely than this under a 5% false-difference rate is not at 5%."""
MANY = 1000
"""Beyond so many fresh processes a reason does not say how many would decide a claim."""


@dataclass(frozen=True)
class _Machine:
    """What is known of one machine: its device, its rows by experiment, and its A/A control where that is not at 5%.

    ``figures`` are its rows and details by name, for the claims that name them one by one.
    """

    name: str
    device: str
    experiments: dict[str, dict[Key, Row]]
    figures: details.Index
    control: dict[str, Any] | None

    def rows(self, keys: Sequence[Key], experiment: str = "") -> list[Row]:
        """The rows named by ``keys``, all from one experiment: of those that have all, that of most timed processes.

        Of several with as many it is ``experiment``, if that is among them. Raises :class:`NoFigure`: not_testable when
        no experiment has them, invalid when one is not ok.
        """
        groups = [[index[key] for key in keys] for index in self.experiments.values() if all(k in index for k in keys)]
        ran = [group for group in groups if all(row.status != "skipped" for row in group)]
        for group in ran:
            for row in group:
                if row.status != "ok":
                    what = f"{row.variant} on {row.workload}"
                    raise NoFigure("invalid", f"{what} gave no valid time: {row.status}, {row.reason}")
        if ran:
            return max(ran, key=lambda group: (min(map(_timed, group)), group[0].experiment == experiment))
        for group in groups:
            for row in group:
                if row.status == "skipped":
                    what = f"{row.variant} on {row.workload} at the {row.clock} clock"
                    raise NoFigure("not_testable", f"{what} was skipped: {row.reason or 'no reason given'}")
        lacking = [key for key in keys if all(key not in index for index in self.experiments.values())]
        workload, variant, clock = (lacking or keys)[0]
        raise NoFigure("not_testable", f"{details.MISSING} {variant} on {workload} at the {clock} clock")


def _timed(row: Row) -> int:
    return sum(us is not None for us in row.medians_us)


def _span(ends: tuple[float, float], unit: str = "") -> str:
    return span(*ends, lambda value: f"{value:,.10g}", unit)


def _interval(quantity: Quantity, rows: Sequence[Row]) -> Interval:
    """The quantity with its interval over processes, vetoed where the A/A control of a row failed.

    Raises :class:`NoFigure` when no process measured all rows.
    """
    # A row of a record from elsewhere may hold fewer processes, or none: what both measured is compared.
    processes = zip(*(row.medians_us for row in rows), strict=False)
    values = [quantity.figure(times, rows[-1]) for times in processes if all(times)]
    if not values or any(math.isnan(value) for value in values):
        raise NoFigure("not_testable", "no process measured everything that is needed")
    if len(set(values)) == 1 and not quantity.logarithmic:  # an error: one exact figure, not an estimate
        return Interval(values[0], values[0], values[0], len(values))
    found = intervals.geometric(values) if quantity.logarithmic else intervals.mean(values)
    return replace(found, vetoed=any(row.veto for row in rows))


def _bound(claim: Claim, machine: _Machine, workload: str, clock: str) -> float:
    """The figure that physics allows at most (for times: at least), NaN where it is not known."""
    own = machine.rows(its_row(claim, workload, clock), claim.experiment)[0]
    if claim.bound == "free_relu":
        keys = [(workload, claim.baseline, clock), (part_of(workload, "linear"), "eager", clock)]
        try:  # leaving work out cannot cost time: a bound below 1 is noise
            return max(1.0, _interval(QUANTITIES["ratio"], machine.rows(keys, claim.experiment)).value)
        except NoFigure:
            return math.nan
    limit = [own.limit_us]
    if claim.quantity == "ratio":
        limit.insert(0, machine.rows(both_rows(claim, workload, clock), claim.experiment)[0].median_us)
    return QUANTITIES[claim.quantity].figure(limit, own)


def _case(claim: Claim, machine: _Machine, workload: str, clock: str) -> Case:
    """Judge one workload: the interval against the band."""
    try:
        if claim.quantity in details.QUANTITIES:
            found, throttled = details.measured(claim, machine.figures, workload, clock)
        else:
            quantity = QUANTITIES[claim.quantity]
            rows = machine.rows(quantity.keys(claim, workload, clock), claim.experiment)
            found, throttled = _interval(quantity, rows), any(row.throttled for row in rows)
        bound = _bound(claim, machine, workload, clock) if claim.bound else math.nan
    except NoFigure as cause:
        return Case(workload, cause.verdict, str(cause))
    low, high = claim.limits
    if found.flaw:
        verdict = "undecided"
    elif low <= found.low and found.high <= high:
        verdict = "confirmed"
    elif found.high < low or found.low > high:
        verdict = "exceeded" if _favoured(claim, found) else "refuted"
    else:  # inside or beyond: it holds either way
        verdict = "confirmed" if _favoured(claim, found) else "undecided"
    return Case(workload, verdict, "", found, bound, throttled)


def _favoured(claim: Claim, found: Interval) -> bool:
    """Whether the whole interval lies in the band or beyond it on the side that the claim favours."""
    low, high = claim.band
    return (claim.favour == "high" and found.low >= low) or (claim.favour == "low" and found.high <= high)


def _places(cases: Sequence[Case], verdict: str) -> str:
    return ", ".join(place(case.workload) for case in cases if case.verdict == verdict)


def _combine(claim: Claim, judged: Sequence[Case]) -> str:
    """The verdict on a claim from its verdicts at the workloads that could be judged."""
    seen = {case.verdict for case in judged}
    if claim.quantity == "constant":
        if "refuted" in seen:  # "the same everywhere" falls with one counterexample
            return "refuted"
        return "confirmed" if seen == {"confirmed"} and len(judged) > 1 else "undecided"
    if len(seen) == 1:
        return seen.pop()
    if seen == {"confirmed", "exceeded"}:
        return "exceeded"
    return "conditional" if "refuted" in seen and seen & HOLD else "undecided"


def _counts(claim: Claim, program: str, verdict: str) -> str:
    """What ``verdict`` is worth: a rewrite that no record shows equal, and a forecast that falls short, refute nobody.

    ``program`` is ``rewrite`` for such a rewrite. Who says that something cannot be is refuted by whoever does it.
    """
    if program == "rewrite":
        return "not_reproduced"
    short = claim.forecast and claim.sense != "at_most"
    return "not_reproduced" if short and verdict == "refuted" else verdict


def _band(claim: Claim) -> str:
    """The band in words, by the claim's sense."""
    low, high = claim.band
    if claim.sense == "about":
        return f"the band {_span(claim.band, claim.unit)}"
    word, end = ("at least", low) if claim.sense == "at_least" else ("at most", high)
    return f"{word} {_span((end, end), claim.unit)}"


def _compare(claim: Claim, verdict: str, judged: Sequence[Case]) -> str:
    """How the figures lie to the band, as the end of a sentence."""
    band = _band(claim)
    inside, outside = ("inside", "outside") if claim.sense == "about" else ("as claimed,", "not")
    many = len(judged) > 1
    if verdict == "confirmed":
        return f"{'all ' if many else ''}{inside} {band}"
    if verdict == "exceeded":
        return f"beyond {band}, in the document's favour"
    if verdict == "refuted":
        part = any(case.verdict != "refuted" for case in judged)
        where = f" at {_places(judged, 'refuted')}" if part else ""
        return f"{outside} {band}{where}"
    if verdict == "conditional":
        there = ", ".join(filter(None, (_places(judged, "confirmed"), _places(judged, "exceeded"))))
        open_ = _places(judged, "undecided")
        rest = f"; undecided at {open_}" if open_ else ""
        return f"{inside} {band} at {there} but not at {_places(judged, 'refuted')}{rest}"
    if flaws := _flaws(judged):
        return f"{flaws} against {band}"
    if claim.quantity == "constant" and not many:
        return f"one size cannot show that the figure is the same at all of them; {band} needs at least two"
    where = f" at {_places(judged, 'undecided')}" if many else ""
    return f"across an edge of {band}{where}"


def _flaws(judged: Sequence[Case]) -> str:
    """Why some of ``judged`` decide nothing; empty where none has a flaw."""
    return " and ".join(flaw for flaw in dict.fromkeys(case.estimate.flaw for case in judged) if flaw)


def _settles(claim: Claim, judged: Sequence[Case]) -> str:
    """What would decide an undecided claim: the sentence behind :func:`_compare`'s.

    An interval narrows with the number of processes, so the number at which it would clear the edge of the band follows
    from how far the figure lies from that edge.
    """
    open_ = [case.estimate for case in judged if case.verdict == "undecided"]
    flaws = {found.flaw: found for found in open_}
    if intervals.VETOED in flaws:
        return "A measurement whose A/A control passes would begin to decide it."
    if few := flaws.get(intervals.TOO_FEW):
        return f"{intervals.FEW_RARE if few.rare else intervals.FEW} fresh processes would begin to decide it."
    if intervals.TOO_NOISY in flaws:
        return "A quieter machine would begin to decide it."
    if not open_:  # a figure said to be the same everywhere, seen at one size
        return "Another size would decide it."
    edges = [(found, edge) for found in open_ for edge in claim.limits if found.low <= edge <= found.high]
    needed = max(intervals.processes_to_clear(found, edge, MANY) for found, edge in edges)
    some = f"over {MANY} fresh processes" if needed > MANY else f"about {needed} fresh processes"
    return f"It would take {some} in place of {open_[0].n} to decide it, if they scatter as these did."


def _value(found: Interval, claim: Claim) -> str:
    """A figure with its interval, where it has one."""
    if claim.quantity == "figure" and found.low == found.high:  # exact: a correlation of 0.9999 must not read 1
        return with_unit(f"{found.value:,.8g}", claim.unit)
    return told(found, claim.unit) if found.low != found.high else with_unit(number(found.value), claim.unit)


def _show(case: Case, claim: Claim, many: bool) -> str:
    text = f"{_value(case.estimate, claim)} at {place(case.workload)}"
    text += f" ({case.estimate.flaw})" if case.estimate.flaw else ""
    return text + (f", {case.verdict}" if many else "")


def _judgement(
    claim: Claim, machine: str, verdict: str, reason: str, details: Sequence[str], **figures: Any
) -> Judgement:
    """One judgement: ``reason`` is one sentence, ``details`` are those that stand folded beneath it."""
    low, high = claim.claimed
    told = {"workload": ", ".join(claim.workloads), "program": claim.program, **figures}
    return Judgement(
        id=claim.id,
        lead=claim.lead,
        seed=claim.seed,
        section=claim.section,
        claim=claim.claim,
        claimed=low if low == high else [low, high],
        unit=claim.unit,
        machine=machine,
        sense=claim.sense,
        band_set=claim.band_set,
        verdict=verdict,
        reason=reason,
        details=tuple(filter(None, details)),
        quantity=claim.quantity,
        band=claim.band,
        why=claim.why,
        **told,
    )


def _contradiction(claim: Claim, known: Mapping[str, Claim]) -> str:
    """What ``claim`` contradicts, of the claims that are ``known``; empty where nothing.

    Parts of one statement where one is arithmetic claim the same figure: there it is what comes out that contradicts.
    """
    sums, worked, others = [], [], []
    for name in claim.conflicts:
        other = known.get(name)
        if other is None or other.lead != claim.lead or not (other.expression or claim.expression):
            others.append(name)
        elif not other.adds_up:
            sums.append(name)
        else:
            worked.append(name)
    said = [f"Its own arithmetic contradicts it ({', '.join(sums)})."] if sums else []
    said += [f"Worked out, it contradicts {', '.join(worked)}."] if worked else []
    said += [f"It contradicts {', '.join(others)}."] if others else []
    return " ".join(said)


def _worked_out(claim: Claim, said: str) -> Judgement:
    """The judgement on a claim that arithmetic alone decides; ``said`` is what it contradicts."""
    value = arithmetic(claim.expression)
    verdict = "confirmed" if claim.adds_up else "inconsistent"
    reason = (
        f"Its own figures give {with_unit(number(value), claim.unit)}, which is "
        f"{'what' if claim.adds_up else 'not what'} it says ({_span(claim.claimed, claim.unit)})."
    )
    worked = f"{claim.expression} = {number(value)}; allowed: {_span(claim.band)}."
    return _judgement(claim, ANY, verdict, reason, [worked, claim.why, said], measured=value, low=value, high=value)


def _subject(claim: Claim, clock: str) -> str:
    """What the claim's figure is, as the noun phrase of a reason."""
    if claim.quantity in details.QUANTITIES:
        return details.subject(claim, clock)
    part = {"relu": "the ReLU", "linear": "the Linear"}.get(claim.part)
    text = QUANTITIES[claim.quantity].subject.format(variant=claim.variant, baseline=claim.baseline, part=part)
    return text if claim.quantity in ("launch", "max_error") else f"{text} ({clock} clock)"


def _measured(claim: Claim, machine: _Machine, stand_in: stand_ins.Equalities, said: str) -> Judgement:
    """The judgement on a claim that this machine's records decide, or the reason why they cannot.

    Of a claim about an author's program it is on that program where this machine has it, else on the rewrites
    that stand in for it.
    """
    if claim.device and claim.device != machine.device:
        kind = "CUDA GPUs" if claim.device == "cuda" else "CPUs"
        reason = f"This is a claim about {kind}, and {machine.name} was measured as a {machine.device} device."
        told = [reason, claim.why, said]
        return _judgement(claim, machine.name, "not_testable", claim.untestable or told.pop(0), told)
    clock = claim.clock or results.primary_clock(machine.device)
    cases = _cases(claim, machine, clock)
    program, equality = claim.program, ""
    if claim.rewrites and not any(case.estimate.n or case.verdict == "invalid" for case in cases):
        rewritten = claim.rewritten()
        found = _cases(rewritten, machine, clock)
        if any(case.estimate.n or case.verdict == "invalid" for case in found):
            equal, equality = stand_in.shown(claim, clock)
            claim, cases, program = rewritten, found, "equal" if equal else "rewrite"
    told = _judged(claim, machine, clock, cases, program, [equality, claim.why, said])
    return replace(told, program="rewrite" if program == "equal" else program)


def _cases(claim: Claim, machine: _Machine, clock: str) -> list[Case]:
    return [_case(claim, machine, workload, clock) for workload in claim.workloads]


def _judged(
    claim: Claim, machine: _Machine, clock: str, cases: Sequence[Case], program: str, more: Sequence[str]
) -> Judgement:
    """The judgement on ``cases``, measured by ``program`` (``equal``: a rewrite that a record shows equal)."""
    judged = [case for case in cases if case.estimate.n]
    failed = [case for case in cases if case.verdict == "invalid"]
    missing = [case.reason.rstrip(".") for case in cases if case.verdict == "not_testable"]
    if failed:
        reason = f"{failed[0].reason.rstrip('.')}; a claim is not judged by a measurement that failed a check."
        verdict = "not_testable" if claim.untestable else "invalid"
        return _judgement(claim, machine.name, verdict, reason, [claim.untestable, *more])
    if not judged:
        lacking = f"On {machine.name} {missing[0]}."
        measures = claim.experiment and missing[0].startswith(details.MISSING)
        told = [lacking, f"Experiment {claim.experiment} measures it." if measures else ""]
        reason = claim.untestable or told.pop(0)
        if program == "author" and not claim.untestable:
            reason = f"No record of {machine.name} has the author's program."
            told.insert(0, lacking)
        return _judgement(claim, machine.name, "not_testable", reason, [*told, *more])
    many = len(judged) > 1
    what = f"Measured was {_subject(claim, clock)}, on {machine.name}"
    told = [what + (": " + "; ".join(_show(case, claim, many and not claim.untestable) for case in judged)) + "."]
    settles = ""
    if claim.untestable:
        verdict, reason = "not_testable", claim.untestable
    else:
        verdict = _combine(claim, judged)
        counted, compared = _counts(claim, program, verdict), _compare(claim, verdict, judged)
        reason = f"{_figures(claim, judged)}: {compared}."
        if counted != verdict and program == "rewrite":
            reason = f"Only a rewrite of the lab's could be measured, which refutes nobody: {_figures(claim, judged)}."
            told.append(f"{'That is' if _flaws(judged) else 'It lies'} {compared}.")
        elif counted != verdict:
            reason = f"Nothing of the author's backs this forecast, and here it is not reached: {reason}"
        verdict = counted
        settles = _settles(claim, judged) if verdict == "undecided" else ""
    told.append(settles)
    if missing:
        told.append(f"Left out of the verdict: {'; '.join(missing)}.")
    shown = [case.estimate for case in judged if case.estimate.width <= intervals.UNTOLD]
    bounds = [case.bound for case in judged if not math.isnan(case.bound)]
    bound = math.nan if not bounds else min(bounds) if claim.quantity == "time" else max(bounds)
    if not math.isnan(bound):
        word = "no less than" if claim.quantity == "time" else "at most"
        cause = "A ReLU that cost nothing" if claim.bound == "free_relu" else "The machine's own measured ceilings"
        told.append(f"{cause} would allow {word} {with_unit(number(bound), claim.unit)}.")
    if any(case.throttled for case in judged):
        told.append("Caution: the device throttled during this measurement.")
    caution = _caution(machine.control, verdict)
    return _judgement(
        claim,
        machine.name,
        verdict,
        reason,
        [*told, *more, caution],
        workload=", ".join(case.workload for case in judged),
        measured=math.nan if many else judged[0].estimate.value,
        low=min((found.low for found in shown), default=math.nan) if many else judged[0].estimate.low,
        high=max((found.high for found in shown), default=math.nan) if many else judged[0].estimate.high,
        n=min(case.estimate.n for case in judged),
        bound=bound,
        settles=settles,
        caution=caution,
        cases=tuple(replace(case, verdict="not_testable") if claim.untestable else case for case in judged),
    )


def _figures(claim: Claim, judged: Sequence[Case]) -> str:
    """What was measured, in a few words: the figure with its interval and n, or the span of several.

    Of what has a flaw no figure is told.
    """
    found = judged[0].estimate
    counts = [case.estimate.n for case in judged]
    count = f"{min(counts)} processes" if max(counts) > 1 else "n = 1"
    if len(judged) == 1:
        return f"{'Measured' if found.flaw else _value(found, claim)} ({count})"
    ends = sorted((case.estimate for case in judged if not case.estimate.flaw), key=lambda found: found.value)
    if not ends:
        return f"Measured ({count})"
    exact = all(found.low == found.high for found in ends)
    texts = [_value(found, claim) if exact else with_unit(number(found.value), claim.unit) for found in ends]
    return f"{texts[0]} to {texts[-1]} ({count})"


def _caution(control: dict[str, Any] | None, verdict: str) -> str:
    """What an A/A control that is not at 5% says: above, intervals are too narrow for any verdict; below, too wide."""
    if control is None:
        return ""
    said = f"calls identical code different in {number(100 * control['rate'])}% of {control['pairs']} pairs"
    if control["rate"] > 1 - intervals.CONFIDENCE:
        return f"Caution: the A/A control of {control['machine']} {said}, which is not the 5% it should be."
    if verdict != "undecided":
        return ""
    return f"Intervals of {control['machine']} are wider than they need be: its A/A control {said}, and 5% would do."


def _machines(records: Sequence[Record]) -> list[_Machine]:
    devices = {record.machine: record.run["device"] for record in records}
    experiments: dict[str, dict[str, dict[Key, Row]]] = {name: {} for name in devices}
    rows = results.rows(records)
    for row in rows:
        index = experiments[row.machine].setdefault(row.experiment, {})
        index[row.workload, row.variant, row.clock] = row
    figures = {
        name: details.index(
            (record for record in records if record.machine == name), (row for row in rows if row.machine == name)
        )
        for name in devices
    }
    controls = {control["machine"]: control for control in results.agreement(records, rows) if control["p"] < DOUBT}
    return [
        _Machine(name, device, experiments[name], figures[name], controls.get(name)) for name, device in devices.items()
    ]


def judge(
    records: Sequence[Record], claims: Sequence[Claim] | None = None, *, beside: Sequence[Record] = ()
) -> list[Judgement]:
    """The verdict on every part of a claim: one a part and machine, in order of the ledger and of the records.

    Claims that arithmetic decides, and those nothing measured here can, have a single one, whose machine is
    :data:`ANY`.

    An interval wholly inside the registered band confirms, wholly outside refutes (or exceeds, on the side that the
    claim favours), else the claim is undecided, as it is where an interval has a flaw; confirmed at some workloads
    and refuted at others makes it conditional. What only a rewrite could measure, and a forecast that falls short, is
    not reproduced. ``claims`` defaults to :func:`ledger`. Records ``beside`` those that are judged may show a rewrite
    equal to its original.
    """
    machines = _machines(records)
    equalities = stand_ins.equalities([*records, *beside])
    found = ledger() if claims is None else claims
    known = {claim.id: claim for claim in found}
    rows = []
    for claim in found:
        said = _contradiction(claim, known)
        if claim.quantity == "arithmetic":
            rows.append(_worked_out(claim, said))
        elif claim.quantity == "none":
            rows.append(_judgement(claim, ANY, "not_testable", claim.untestable, [claim.why, said]))
        else:
            rows += [_measured(claim, machine, equalities, said) for machine in machines]
    return rows
