"""Judging the ledger: each part of a claim against the records of each machine, by interval, in plain words.

A verdict sees results rows and the details of records only. Its words are those of :mod:`hypatia_lab.claims.words`; its
reason is put together from figures and the claim, so no measured figure is ever typed.

A document is judged by its author's program. Where a machine has no record of that, a rewrite of the lab's stands in
for it if some record shows both equal by the same clock (:mod:`hypatia_lab.claims.stand_ins`); any other rewrite agrees
or differs, and refutes nobody. Intervals hold what lies between two visits to a model
(:mod:`hypatia_lab.results.visits`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypatia_lab import intervals, results
from hypatia_lab.claims import details, stand_ins, words
from hypatia_lab.claims.claim import Claim
from hypatia_lab.claims.details import Failed, NoFigure, place
from hypatia_lab.claims.judgement import ANY, Case, Judgement
from hypatia_lab.claims.ledger import ledger
from hypatia_lab.claims.quantities import QUANTITIES, Key, Quantity, both_rows, its_row, part_of
from hypatia_lab.formats import number, span, told, with_unit
from hypatia_lab.intervals import Interval
from hypatia_lab.results import Measured, Row, scatter

DOUBT = 0.05
"""An A/A control less likely than this under a 5% false-difference rate is not at 5%."""
MANY = 1000
"""Beyond so many fresh processes a reason does not say how many would decide a claim."""


class _Machine:
    """What one machine measured as claims ask for it, and its A/A control where that is not at 5%.

    ``experiments`` are its rows by experiment and name; ``figures`` its rows and details by name, for the claims that
    name them one by one.
    """

    def __init__(self, measured: Measured) -> None:
        self.measured, self.name = measured, measured.machine
        self.experiments: dict[str, dict[Key, Row]] = {}
        for row in measured.rows:
            self.experiments.setdefault(row.experiment, {})[row.workload, row.variant, row.clock] = row
        self.figures = details.index(measured)
        control = results.control(measured)
        self.control = control if control and control["p"] < DOUBT else None

    def _weight(self, group: Sequence[Row]) -> tuple[bool, bool, int, str]:
        timed = min(sum(us is not None for us in row.medians_us) for row in group)
        return scatter.weight(any(row.veto for row in group), timed, self.measured.started[group[0].experiment])

    def rows(self, keys: Sequence[Key]) -> list[Row]:
        """The rows named by ``keys``, all from one experiment: of those that have all, the one that the book tells
        (:func:`hypatia_lab.results.scatter.weight`).

        Raises :class:`NoFigure` when no experiment has them, or one of them is not ok.
        """
        groups = [[index[key] for key in keys] for index in self.experiments.values() if all(k in index for k in keys)]
        ran = [group for group in groups if all(row.status != "skipped" for row in group)]
        for row in (row for group in ran for row in group if row.status != "ok"):
            what = f"{row.variant} on {row.workload}"
            raise Failed(f"{what} gave no valid time ({row.status}: {row.reason}), and decides nothing")
        if ran:
            return max(ran, key=self._weight)
        for row in (row for group in groups for row in group if row.status == "skipped"):
            what = f"{row.variant} on {row.workload} at the {row.clock} clock"
            raise NoFigure(f"{what} was skipped: {row.reason or 'no reason given'}")
        lacking = [key for key in keys if all(key not in index for index in self.experiments.values())]
        workload, variant, clock = (lacking or keys)[0]
        raise NoFigure(f"{details.MISSING} {variant} on {workload} at the {clock} clock")


def _span(ends: tuple[float, float], unit: str = "") -> str:
    return span(*ends, lambda value: f"{value:,.10g}", unit)


# ---------------------------------------------------------------- a case


def _interval(quantity: Quantity, rows: Sequence[Row]) -> Interval:
    """The quantity with its interval over processes, vetoed where the A/A control of a row failed.

    Raises :class:`NoFigure` when no process measured all rows.
    """
    # A row of a record from elsewhere may hold fewer processes, or none: what both measured is compared.
    processes = zip(*(row.medians_us for row in rows), strict=False)
    values = [quantity.figure(times, rows[-1]) for times in processes if all(times)]
    if not values or any(math.isnan(value) for value in values):
        raise NoFigure("no process measured everything that is needed")
    if len(set(values)) == 1 and not quantity.logarithmic:  # an error: one exact figure, not an estimate
        return Interval(values[0], values[0], values[0], len(values))
    found = intervals.geometric(values) if quantity.logarithmic else intervals.mean(values)
    return replace(found, vetoed=any(row.veto for row in rows))


def _scatter(model: str, rows: Sequence[Row], found: Interval) -> float:
    """How far the quantity of ``rows`` differs from visit to visit: the standard deviation of its logarithm."""
    clock = rows[0].clock
    if len(rows) == 1:
        return scatter.between_times(model, clock)
    return scatter.between(model, clock, any(row.chosen for row in rows), found.value)


def _bound(claim: Claim, machine: _Machine, workload: str, clock: str) -> float:
    """The figure that physics allows at most (for times: at least), NaN where it is not known."""
    own = machine.rows(its_row(claim, workload, clock))[0]
    if claim.bound == "free_relu":
        keys = [(workload, claim.baseline, clock), (part_of(workload, "linear"), "eager", clock)]
        try:  # leaving work out cannot cost time: a bound below 1 is noise
            return max(1.0, _interval(QUANTITIES["ratio"], machine.rows(keys)).value)
        except NoFigure:
            return math.nan
    limit = [own.limit_us]
    if claim.quantity == "ratio":
        limit.insert(0, machine.rows(both_rows(claim, workload, clock))[0].median_us)
    return QUANTITIES[claim.quantity].figure(limit, own)


def _case(claim: Claim, machine: _Machine, workload: str, clock: str) -> Case:
    """Read one workload: the interval against the band."""
    try:
        if claim.quantity in details.QUANTITIES:
            model = machine.measured.model
            found, alone, throttled, origins = details.measured(claim, machine.figures, workload, clock, model)
        else:
            quantity = QUANTITIES[claim.quantity]
            rows = machine.rows(quantity.keys(claim, workload, clock))
            alone, throttled = _interval(quantity, rows), any(row.throttled for row in rows)
            origins = {row.experiment for row in rows} | ({"ceilings"} if claim.quantity == "attained" else set())
            between = _scatter(machine.measured.model, rows, alone) if quantity.logarithmic else 0.0
            found = intervals.widened(alone, between)
        bound = _bound(claim, machine, workload, clock) if claim.bound else math.nan
    except NoFigure as cause:
        return Case(workload, "missing", str(cause), failed=isinstance(cause, Failed))
    lies = _lies(claim, found)
    reads = "favour" if claim.gain and lies == "above" else _READS[lies]
    case = Case(workload, reads, "", found, alone, _PHRASES[claim.sense, lies], bound, throttled)
    case = replace(case, experiments=tuple(origins))
    if found.flaw == intervals.VETOED:
        return replace(case, reading="missing", reason=f"the A/A control failed beside {place(workload)}")
    if found.flaw and lies != "nowhere":
        return replace(case, reading="straddles", lies=f"{case.lies}, but from fewer than {intervals.FEW} processes")
    return case


def _lies(claim: Claim, found: Interval) -> str:
    """Where the interval lies to the band: inside, below, above, across an edge, or nowhere without bounds."""
    low, high = claim.limits
    where = {
        "inside": low <= found.low and found.high <= high,
        "below": found.high < low,
        "above": found.low > high,
        "nowhere": math.isnan(found.low),
    }
    return next((name for name, is_there in where.items() if is_there), "across")


_READS = {"inside": "in", "across": "straddles", "nowhere": "straddles", "below": "against", "above": "against"}
"""Where an interval lies → how the case reads; above a gain that is claimed, in favour."""
_PHRASES = {
    ("about", "inside"): "inside the band {band}",
    ("about", "below"): "below the band {band}",
    ("about", "above"): "above the band {band}",
    ("about", "across"): "across an edge of the band {band}",
    ("at_least", "inside"): "at least {band}",
    ("at_least", "below"): "less than {band}",
    ("at_least", "across"): "on both sides of {band}",
    ("at_most", "inside"): "at most {band}",
    ("at_most", "above"): "more than {band}",
    ("at_most", "across"): "on both sides of {band}",
    **{(sense, "nowhere"): "a single process has no interval" for sense in ("about", "at_least", "at_most")},
}
"""A claim's sense and where an interval lies → the same in words."""


def _band(claim: Claim) -> str:
    """The band as it decides: both ends, or the one that does."""
    low, high = claim.band
    ends = {"about": claim.band, "at_least": (low, low), "at_most": (high, high)}[claim.sense]
    return _span(ends, claim.unit)


# ---------------------------------------------------------------- reasons


def _value(found: Interval, claim: Claim) -> str:
    """A figure with its interval, where it has one."""
    if claim.quantity == "figure" and found.low == found.high:  # exact: a correlation of 0.9999 must not read 1
        return with_unit(f"{found.value:,.8g}", claim.unit)
    if found.width > intervals.UNTOLD and found.low > 0:  # so wide that no value is told: between which ends
        return f"{number(found.low)} to {with_unit(number(found.high), claim.unit)}"
    if found.low < found.high:
        return told(found, claim.unit)
    return with_unit(number(found.value), claim.unit)


def _processes(judged: Sequence[Case]) -> str:
    counts = [case.estimate.n for case in judged]
    return f"{min(counts)} processes" if max(counts) > 1 else "n = 1"


def _figures(claim: Claim, judged: Sequence[Case]) -> str:
    """What was measured, in a few words: the figure with its interval and n, or the span of several."""
    if len(judged) == 1:
        return f"{_value(judged[0].estimate, claim)} ({_processes(judged)})"
    ends = sorted((case.estimate for case in judged), key=lambda found: found.value)
    exact = all(found.low == found.high for found in ends)
    if exact:
        texts = list(dict.fromkeys((_value(ends[0], claim), _value(ends[-1], claim))))
        return f"{' to '.join(texts)} ({_processes(judged)})"
    return f"Without their intervals {span(ends[0].value, ends[-1].value, number, claim.unit)} ({_processes(judged)})"


def _compare(claim: Claim, judged: Sequence[Case]) -> str:
    """How the figures lie to the band, as the end of a sentence: all alike, or which of them how."""
    said: dict[str, list[str]] = {}
    for case in judged:
        said.setdefault(case.lies.format(band=_band(claim)), []).append(place(case.workload))
    if len(said) == 1:
        return next(iter(said))
    return "; ".join(f"{text} at {', '.join(where)}" for text, where in said.items())


def _settles(claim: Claim, machine: _Machine, judged: Sequence[Case]) -> str:
    """What would decide cases that straddle: the sentence behind :func:`_compare`'s; empty where none does.

    An interval narrows with the number of processes, but for what lies between two visits.
    """
    open_ = [case for case in judged if case.reading == "straddles"]
    if not open_:
        return ""
    if any(case.estimate.flaw for case in open_):
        return f"{intervals.FEW} fresh processes would begin to decide it."
    pairs = [(case, edge) for case in open_ for edge in claim.limits]
    pairs = [(case, edge) for case, edge in pairs if case.estimate.low <= edge <= case.estimate.high]
    if not pairs:  # a figure said to be the same everywhere, seen at one size
        return "Another size would decide it."
    needed = max(intervals.processes_to_clear(case.visit, edge, MANY, _between(case)) for case, edge in pairs)
    if needed > MANY:
        return "No number of processes on one visit would decide it: the figure lies too near the edge."
    return f"About {needed} fresh processes in place of {open_[0].estimate.n} would decide it, if they scatter alike."


def _between(case: Case) -> float:
    """What lies between two visits in the interval of ``case``: the standard deviation of its logarithm."""
    found, alone = case.estimate, case.visit
    if not alone.low > 0:
        return 0.0
    more = math.log(found.high / found.value) ** 2 - math.log(alone.high / alone.value) ** 2
    return math.sqrt(max(0.0, more)) / intervals.NORMAL


def _show(case: Case, claim: Claim) -> str:
    return f"{_value(case.estimate, claim)} at {place(case.workload)}: {case.lies.format(band=_band(claim))}"


def _judgement(
    claim: Claim, machine: str, verdict: str, reason: str, details: Sequence[str], **figures: Any
) -> Judgement:
    """One judgement: ``reason`` is one sentence, ``details`` are those that stand folded beneath it."""
    low, high = claim.claimed
    taken = ("id", "lead", "document", "section", "claim", "unit", "sense", "band_set", "quantity", "band", "why")
    told = {"workload": ", ".join(claim.workloads), "program": claim.program, **figures}
    return Judgement(
        **{name: getattr(claim, name) for name in taken},
        claimed=low if low == high else [low, high],
        machine=machine,
        verdict=verdict,
        reason=reason,
        details=tuple(filter(None, details)),
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
    given = " or ".join(with_unit(number(value), claim.unit) for value in claim.sums)
    verdict = "adds_up" if claim.adds_up else "inconsistent"
    reason = f"Worked out, it is {given}; the document says {_span(claim.claimed, claim.unit)}."
    worked = f"{claim.expression} = {given}; allowed: {_span(claim.band)}."
    low, high = min(claim.sums), max(claim.sums)
    value = low if low == high else math.nan
    return _judgement(claim, ANY, verdict, reason, [worked, claim.why, said], measured=value, low=low, high=high)


def _subject(claim: Claim, clock: str) -> str:
    """What the claim's figure is, as the noun phrase of a reason."""
    if claim.quantity in details.QUANTITIES:
        return details.subject(claim, clock)
    part = {"relu": "the ReLU", "linear": "the Linear"}.get(claim.part)
    text = QUANTITIES[claim.quantity].subject.format(variant=claim.variant, baseline=claim.baseline, part=part)
    return text if claim.quantity in ("launch", "max_error") else f"{text} ({clock} clock)"


_KINDS = {"cuda": "CUDA GPUs", "cpu": "CPUs"}


def _elsewhere(claim: Claim, machine: _Machine) -> str:
    """Why nothing that ``machine`` measures can decide ``claim``, a sentence; empty where it can."""
    if claim.device not in ("", device := machine.measured.device):
        return f"This is about {_KINDS[claim.device]}, and {machine.name} was measured as a {device} device."
    if claim.models and not any(model in machine.measured.model for model in claim.models):
        return f"This is about {' and '.join(claim.models)}, and {machine.name} is another model."
    return claim.elsewhere


def _measured(claim: Claim, machine: _Machine, equalities: stand_ins.Equalities, said: str) -> Judgement:
    """The judgement on a claim that this machine's records decide, or the reason why they cannot.

    Of a claim about an author's program it is on that program where this machine has it, else on the rewrites
    that stand in for it.
    """
    clock = claim.clock or machine.measured.clock
    cases = [_case(claim, machine, workload, clock) for workload in claim.workloads]
    program, equality, lacking = claim.program, "", cases[0].reason
    if claim.rewrites and not any(case.estimate.n or case.failed for case in cases):
        rewritten = claim.rewritten()
        found = [_case(rewritten, machine, workload, clock) for workload in claim.workloads]
        if any(case.estimate.n or case.failed for case in found):
            equal, equality = stand_ins.shown(equalities, claim, clock)
            claim, cases, program = rewritten, found, "equal" if equal else "rewrite"
    judged, missing = _apart(cases)
    elsewhere = _elsewhere(claim, machine)
    if not judged:
        measures = claim.experiment and missing[0].startswith(details.MISSING)
        told = [f"Experiment {claim.experiment} measures it." if measures else "", claim.why, said]
        told.insert(0, f"Of the author's program: {lacking.rstrip('.')}." if program != claim.program else "")
        reason = elsewhere or f"On {machine.name} {missing[0]}."
        return _judgement(claim, machine.name, "not_testable", reason, told, total=len(cases))
    row = _judged(claim, machine, clock, cases, program, [equality, claim.why, said])
    if elsewhere:  # its figure stands beside, and decides nothing
        shown = tuple(text for text in row.details if text != row.settles)
        row = replace(row, verdict="not_testable", reason=elsewhere, held=0, settles="", details=shown)
    return row


def _apart(cases: Sequence[Case]) -> tuple[list[Case], list[str]]:
    """The cases of which something was measured, and why of the others nothing was."""
    missing = [case.reason.rstrip(".") for case in cases if case.reading == "missing"]
    return [case for case in cases if case.reading != "missing"], missing


def _judged(
    claim: Claim, machine: _Machine, clock: str, cases: Sequence[Case], program: str, more: Sequence[str]
) -> Judgement:
    """The judgement on ``cases``, measured by ``program`` (``equal``: a rewrite that a record shows equal)."""
    judged, missing = _apart(cases)
    if claim.quantity == "constant" and [case.reading for case in judged] == ["in"]:
        lies = f"{judged[0].lies} at one size, which says nothing about others"
        cases = [replace(case, reading="straddles", lies=lies) if case is judged[0] else case for case in cases]
        judged, _ = _apart(cases)
    verdict = words.part((c.reading for c in cases), forecast=claim.forecast, rewrite=program == "rewrite")
    settles = _settles(claim, machine, judged)
    shown = "; ".join(_show(case, claim) for case in judged)
    subject = f"What was measured is {_subject(claim, clock)}, on {machine.name}: {shown}."
    told = [subject, settles]
    if missing:
        told.append(f"Left out of the verdict: {'; '.join(missing)}.")
    many = len(judged) > 1
    clear = [case.estimate for case in judged if case.estimate.width <= intervals.UNTOLD]
    bounds = [case.bound for case in judged if not math.isnan(case.bound)]
    bound = math.nan
    if bounds:
        bound, word = (min(bounds), "no less than") if claim.quantity == "time" else (max(bounds), "at most")
        cause = "A ReLU that cost nothing" if claim.bound == "free_relu" else "The machine's own measured ceilings"
        told.append(f"{cause} would allow {word} {with_unit(number(bound), claim.unit)}.")
    if any(case.throttled for case in judged):
        told.append("Caution: the device throttled during this measurement.")
    caution = _caution(machine.control, verdict)
    return _judgement(
        claim,
        machine.name,
        verdict,
        f"{_figures(claim, judged)}: {_compare(claim, judged)}.",
        [*told, *more, caution],
        program=program,
        workload=", ".join(case.workload for case in judged),
        measured=math.nan if many else judged[0].estimate.value,
        low=min((found.low for found in clear), default=math.nan) if many else judged[0].estimate.low,
        high=max((found.high for found in clear), default=math.nan) if many else judged[0].estimate.high,
        n=min(case.estimate.n for case in judged),
        bound=bound,
        held=sum(case.reading == "in" for case in cases),
        total=len(cases),
        subject=subject,
        settles=settles,
        caution=caution,
        cases=tuple(cases),
    )


def _caution(control: dict[str, Any] | None, verdict: str) -> str:
    """What an A/A control that is not at 5% says: above, intervals are too narrow for any verdict; below, too wide."""
    if control is None:
        return ""
    said = f"finds a difference in {number(100 * control['rate'])}% of {control['pairs']} pairs of identical code"
    if control["rate"] > 1 - intervals.CONFIDENCE:
        return f"Caution: the A/A control of {control['machine']} {said}, which is not the 5% it should be."
    if verdict not in ("undecided", "confirmed_in_part"):
        return ""
    return f"Intervals of {control['machine']} are wider than they need be: its A/A control {said}, and 5% would do."


def judge(
    evidence: Sequence[Measured], claims: Sequence[Claim] | None = None, *, beside: Sequence[Measured] = ()
) -> list[Judgement]:
    """The verdict on every part of a claim: one a part and machine, in order of the ledger and of the ``evidence``.

    That is what machines measured, as :func:`hypatia_lab.results.measured` puts it together.

    Parts that arithmetic decides, and those that no figure can decide, have a single one, whose machine is
    :data:`ANY`. ``claims`` defaults to :func:`ledger`. What lies ``beside`` the evidence may show a rewrite equal to
    its original.
    """
    machines = list(map(_Machine, evidence))
    equalities = stand_ins.equalities((*evidence, *beside))
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
