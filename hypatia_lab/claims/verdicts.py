"""Judging the ledger: each claim against the records of each machine, by interval, in plain words.

A verdict sees results rows and the details of records only. Its reason is put together from those and the claim, so
no measured figure is ever typed. The verdict on a statement follows from those on its parts alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab import intervals, results
from hypatia_lab.claims import details
from hypatia_lab.claims.details import NoFigure, place
from hypatia_lab.claims.ledger import Claim, arithmetic, ledger
from hypatia_lab.formats import interval, number, span, with_unit
from hypatia_lab.intervals import Interval
from hypatia_lab.records import Record

COLUMNS = (
    *("id", "seed", "section", "claim", "claimed", "unit", "workload", "machine"),
    *("measured", "low", "high", "bound", "verdict", "reason"),
)
VERDICTS = ("confirmed", "refuted", "conditional", "undecided", "not_testable", "inconsistent", "invalid")
ANY = "any"
"""Machine of a row that holds on every machine: arithmetic, and claims that no lab can test."""
HOLD = frozenset({"confirmed", "conditional"})
FAIL = frozenset({"refuted", "inconsistent", "conditional"})
"""Verdicts that say of a part that it holds, and that it does not; a conditional one says both."""
DOUBT = 0.05
"""An A/A control less likely than this under a 5% false-difference rate is not at 5%."""
MANY = 1000
"""Beyond so many fresh processes a reason does not say how many would decide a claim."""

Key = tuple[str, str, str]
"""(workload, variant, clock) of a row."""
Row = dict[str, Any]


@dataclass(frozen=True)
class _Quantity:
    """How a claimed quantity follows from rows of one experiment.

    ``subject`` is the noun phrase of the reason; ``keys(claim, workload, clock)`` names the rows; ``figure`` turns
    their times in one process (µs, in that order) and the last row into the figure; ``logarithmic`` quantities
    are averaged as ratios, the others as they are.
    """

    subject: str
    keys: Callable[[Claim, str, str], list[Key]]
    figure: Callable[[Sequence[float], Row], float]
    logarithmic: bool = True


def _part(workload: str, part: str) -> str:
    """The workload of one ``part`` of a Linear+ReLU (batch x in x out): relu (batch x out) or linear."""
    _, shape, dtype, math_mode, direction = workload.split("/")
    if part == "relu":  # it multiplies nothing, so it has no math mode but its dtype's own
        batch, _, columns = shape.split("x")
        shape, math_mode = f"{batch}x{columns}", "ieee"
    return "/".join((part, shape, dtype, math_mode, direction))


def _own(claim: Claim, workload: str, clock: str) -> list[Key]:
    return [(workload, claim.variant, clock)]


def _both(claim: Claim, workload: str, clock: str) -> list[Key]:
    return [(workload, claim.baseline, clock), (workload, claim.variant, clock)]


def _launch(claim: Claim, workload: str, clock: str) -> list[Key]:
    return [(name, "eager", c) for name in (workload, _part(workload, "linear")) for c in ("wall", "graph")]


QUANTITIES = {
    "ratio": _Quantity("the speed of {variant} relative to {baseline}", _both, lambda t, row: t[0] / t[1]),
    "slowdown": _Quantity("the time of {variant} relative to {baseline}", _both, lambda t, row: t[1] / t[0]),
    "constant": _Quantity("the time of {variant} relative to {baseline}", _both, lambda t, row: t[1] / t[0]),
    "time": _Quantity("the time of {variant}", _own, lambda t, row: t[0] / 1e3),  # ms
    "rate": _Quantity("the arithmetic rate of {variant}", _own, lambda t, row: row["flops"] / t[0] / 1e3),  # GFLOP/s
    "bandwidth": _Quantity(  # GB/s
        "the compulsory traffic of {variant} over its time", _own, lambda t, row: row["traffic"] / t[0] / 1e3
    ),
    "share": _Quantity(  # %
        "the time of {part} alone as a share of eager Linear+ReLU",
        lambda claim, workload, clock: [(workload, "eager", clock), (_part(workload, claim.part), "eager", clock)],
        lambda t, row: 100 * t[1] / t[0],
    ),
    "saving": _Quantity(  # ms
        "the time that {variant} saves over {baseline}", _both, lambda t, row: (t[0] - t[1]) / 1e3, logarithmic=False
    ),
    "launch": _Quantity(  # µs: what the ReLU adds to a caller's wait, beyond what it adds on the GPU itself
        "the launch overhead that the separate ReLU adds (wall clock less CUDA graph, with ReLU less without)",
        _launch,
        lambda t, row: (t[0] - t[1]) - (t[2] - t[3]),
        logarithmic=False,
    ),
    "max_error": _Quantity(
        "the largest error of {variant} against float64", _own, lambda t, row: row["max_error"], logarithmic=False
    ),
}


@dataclass(frozen=True)
class _Case:
    """A claim at one workload on one machine."""

    workload: str
    verdict: str
    reason: str = ""
    found: Interval = Interval(math.nan, math.nan, math.nan, 0)
    bound: float = math.nan
    throttled: bool = False


@dataclass(frozen=True)
class _Machine:
    """What is known of one machine: its device, its rows by experiment, and its A/A control where that is not at 5%.

    ``figures`` are its rows and details by name, for the claims that name them one by one.
    """

    name: str
    device: str
    experiments: dict[str, dict[Key, Row]]
    figures: details.Index
    control: Row | None

    def rows(self, keys: Sequence[Key], experiment: str = "") -> list[Row]:
        """The rows named by ``keys``, all from one experiment: of those that have all, the one with most processes.

        Of several with as many it is ``experiment``, if that is among them. Raises :class:`NoFigure`: not_testable when
        no experiment has them, invalid when one is not ok.
        """
        groups = [[index[key] for key in keys] for index in self.experiments.values() if all(k in index for k in keys)]
        ran = [group for group in groups if all(row["status"] != "skipped" for row in group)]
        for group in ran:
            for row in group:
                if row["status"] != "ok":
                    what = f"{row['variant']} on {row['workload']}"
                    raise NoFigure("invalid", f"{what} gave no valid time: {row['status']}, {row['reason']}")
        if ran:
            return max(ran, key=lambda group: (group[0]["processes"], group[0]["experiment"] == experiment))
        for group in groups:
            for row in group:
                if row["status"] == "skipped":
                    what = f"{row['variant']} on {row['workload']} at the {row['clock']} clock"
                    raise NoFigure("not_testable", f"{what} was skipped: {row['reason'] or 'no reason given'}")
        lacking = [key for key in keys if all(key not in index for index in self.experiments.values())]
        workload, variant, clock = (lacking or keys)[0]
        raise NoFigure("not_testable", f"{details.MISSING} {variant} on {workload} at the {clock} clock")


def _span(ends: tuple[float, float], unit: str = "") -> str:
    return span(*ends, lambda value: f"{value:,.10g}", unit)


def _interval(quantity: _Quantity, rows: Sequence[Row]) -> Interval:
    """The quantity with its interval over processes. Raises :class:`NoFigure` when no process measured all rows."""
    # A row of a record from elsewhere may hold fewer processes, or none: what both measured is compared.
    processes = zip(*(row["medians_us"] for row in rows), strict=False)
    values = [quantity.figure(times, rows[-1]) for times in processes if all(times)]
    if not values or any(math.isnan(value) for value in values):
        raise NoFigure("not_testable", "no process measured everything that is needed")
    if len(set(values)) == 1 and not quantity.logarithmic:  # an error: one exact figure, not an estimate
        return Interval(values[0], values[0], values[0], len(values))
    return intervals.geometric(values) if quantity.logarithmic else intervals.mean(values)


def _bound(claim: Claim, machine: _Machine, workload: str, clock: str) -> float:
    """The figure that physics allows at most (for times: at least), NaN where it is not known."""
    own = machine.rows(_own(claim, workload, clock), claim.experiment)[0]
    if claim.bound == "free_relu":
        keys = [(workload, claim.baseline, clock), (_part(workload, "linear"), "eager", clock)]
        try:  # leaving work out cannot cost time: a bound below 1 is noise
            return max(1.0, _interval(QUANTITIES["ratio"], machine.rows(keys, claim.experiment)).value)
        except NoFigure:
            return math.nan
    limit = [own["limit_us"]]
    if claim.quantity == "ratio":
        limit.insert(0, machine.rows(_both(claim, workload, clock), claim.experiment)[0]["median_us"])
    return QUANTITIES[claim.quantity].figure(limit, own)


def _case(claim: Claim, machine: _Machine, workload: str, clock: str) -> _Case:
    """Judge one workload: the interval against the band."""
    try:
        if claim.quantity in details.QUANTITIES:
            found, throttled = details.measured(claim, machine.figures, workload, clock)
        else:
            quantity = QUANTITIES[claim.quantity]
            rows = machine.rows(quantity.keys(claim, workload, clock), claim.experiment)
            found, throttled = _interval(quantity, rows), any(row["throttled"] for row in rows)
        bound = _bound(claim, machine, workload, clock) if claim.bound else math.nan
    except NoFigure as cause:
        return _Case(workload, cause.verdict, str(cause))
    if found.within(*claim.band):
        verdict = "confirmed"
    elif found.outside(*claim.band):
        verdict = "refuted"
    else:  # also when a single process leaves no interval
        verdict = "undecided"
    return _Case(workload, verdict, "", found, bound, throttled)


def _places(cases: Sequence[_Case], verdict: str) -> str:
    return ", ".join(place(case.workload) for case in cases if case.verdict == verdict)


def _combine(claim: Claim, judged: Sequence[_Case]) -> str:
    """The verdict on a claim from its verdicts at the workloads that could be judged."""
    seen = {case.verdict for case in judged}
    if claim.quantity == "constant":
        if "refuted" in seen:  # "the same everywhere" falls with one counterexample
            return "refuted"
        return "confirmed" if seen == {"confirmed"} and len(judged) > 1 else "undecided"
    if len(seen) == 1:
        return seen.pop()
    return "conditional" if {"confirmed", "refuted"} <= seen else "undecided"


def _compare(claim: Claim, verdict: str, judged: Sequence[_Case]) -> str:
    """The sentence that says how the figures lie to the band."""
    band = f"the band {_span(claim.band)} registered for the claimed {_span(claim.claimed, claim.unit)}"
    many = len(judged) > 1
    if verdict == "confirmed":
        return f"{'Every interval' if many else 'It'} lies inside {band}."
    if verdict == "refuted":
        part = any(case.verdict != "refuted" for case in judged)
        where = f" at {_places(judged, 'refuted')}" if part else ""
        return f"It lies outside {band}{where}."
    if verdict == "conditional":
        open_ = _places(judged, "undecided")
        rest = f"; undecided at {open_}" if open_ else ""
        return f"It lies inside {band} at {_places(judged, 'confirmed')} but not at {_places(judged, 'refuted')}{rest}."
    if any(case.found.n < 2 for case in judged):
        return f"A single process gives no interval to hold against {band}."
    if claim.quantity == "constant" and not many:
        return f"One size cannot show that the figure is the same at all of them; {band} needs at least two."
    if many:
        return f"These records cannot tell at {_places(judged, 'undecided')} whether it lies inside {band}."
    return f"These records cannot tell whether it lies inside {band}."


def _settles(claim: Claim, judged: Sequence[_Case]) -> str:
    """What would decide an undecided claim: the sentence behind :func:`_compare`'s.

    An interval narrows with the number of processes, so the number at which it would clear the edge of the band follows
    from how far the figure lies from that edge.
    """
    open_ = [case.found for case in judged if case.verdict == "undecided"]
    if any(found.n < 2 for found in open_):
        return "A second fresh process would begin to decide it."
    if not open_:  # a figure said to be the same everywhere, seen at one size
        return "Another size would decide it."
    edges = [(found, edge) for found in open_ for edge in claim.band if found.low <= edge <= found.high]
    needed = max(intervals.processes_to_clear(found, edge, MANY) for found, edge in edges)
    some = f"over {MANY} fresh processes" if needed > MANY else f"about {needed} fresh processes"
    return f"It would take {some} in place of {open_[0].n} to decide it, if they scatter as these did."


def _show(case: _Case, claim: Claim, many: bool) -> str:
    found, unit = case.found, claim.unit
    text = with_unit(number(found.value), unit)
    if claim.quantity == "figure" and found.low == found.high:  # exact: a correlation of 0.9999 must not read 1
        text = with_unit(f"{found.value:,.8g}", unit)
    elif found.low < found.high:
        text = f"{interval(found.value, found.low, found.high, unit)} (95% interval)"
    return f"{text} at {place(case.workload)}" + (f", {case.verdict}" if many else "")


def _row(claim: Claim, machine: str, verdict: str, reason: Sequence[str], **figures: Any) -> dict[str, Any]:
    own = {"workload": ", ".join(claim.workloads), "measured": math.nan, "low": math.nan, "high": math.nan}
    own |= {"bound": math.nan, "cases": [], "settles": "", **figures}
    low, high = claim.claimed
    return {
        "id": claim.id,
        "seed": claim.seed,
        "section": claim.section,
        "claim": claim.claim,
        "claimed": low if low == high else [low, high],
        "unit": claim.unit,
        "machine": machine,
        "verdict": verdict,
        "reason": " ".join(part for part in reason if part),
        "quantity": claim.quantity,
        "band": claim.band,
        "why": claim.why,
        **own,
    }


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


def _worked_out(claim: Claim) -> dict[str, Any]:
    """The row of a claim that arithmetic alone decides."""
    value = arithmetic(claim.expression)
    sentence = (
        f"{claim.expression} = {with_unit(number(value), claim.unit)}; the claim says {_span(claim.claimed)}, and "
        + ("that follows" if claim.adds_up else "that does not follow from its own figures")
        + f" (allowed: {_span(claim.band)})."
    )
    verdict = "confirmed" if claim.adds_up else "inconsistent"
    return _row(claim, ANY, verdict, [sentence, claim.why], measured=value, low=value, high=value)


def _subject(claim: Claim, clock: str) -> str:
    """What the claim's figure is, as the noun phrase of a reason."""
    if claim.quantity in details.QUANTITIES:
        return details.subject(claim, clock)
    part = {"relu": "the ReLU", "linear": "the Linear"}.get(claim.part)
    text = QUANTITIES[claim.quantity].subject.format(variant=claim.variant, baseline=claim.baseline, part=part)
    return text if claim.quantity in ("launch", "max_error") else f"{text} ({clock} clock)"


def _measured(claim: Claim, machine: _Machine) -> dict[str, Any]:
    """The row of a claim that this machine's records decide, or the reason why they cannot."""
    if claim.device and claim.device != machine.device:
        kind = "CUDA GPUs" if claim.device == "cuda" else "CPUs"
        reason = [f"This is a claim about {kind}, and {machine.name} was measured as a {machine.device} device."]
        return _row(claim, machine.name, "not_testable", [*reason, claim.untestable, claim.why])
    clock = claim.clock or results.primary_clock(machine.device)
    cases = [_case(claim, machine, workload, clock) for workload in claim.workloads]
    judged = [case for case in cases if case.found.n]
    failed = [case for case in cases if case.verdict == "invalid"]
    missing = [case.reason for case in cases if case.verdict == "not_testable"]
    if failed:
        reason = [f"{failed[0].reason.rstrip('.')}; a claim is not judged by a measurement that failed a check."]
        verdict = "not_testable" if claim.untestable else "invalid"
        return _row(claim, machine.name, verdict, [claim.untestable, *reason, claim.why])
    if not judged:
        reason = [f"On {machine.name} {missing[0].rstrip('.')}."]
        if claim.experiment and missing[0].startswith(details.MISSING):
            reason.append(f"Experiment {claim.experiment} measures it.")
        return _row(claim, machine.name, "not_testable", [claim.untestable, *reason, claim.why])
    many = len(judged) > 1
    shown = "; ".join(_show(case, claim, many and not claim.untestable) for case in judged)
    reason = [f"On {machine.name}, {_subject(claim, clock)} is {shown}."]
    settles = ""
    if claim.untestable:
        verdict = "not_testable"
        reason.insert(0, claim.untestable)
    else:
        verdict = _combine(claim, judged)
        settles = _settles(claim, judged) if verdict == "undecided" else ""
        reason += [_compare(claim, verdict, judged), settles]
    if missing:
        reason.append(f"Left out of the verdict: {'; '.join(m.rstrip('.') for m in missing)}.")
    bounds = [case.bound for case in judged if not math.isnan(case.bound)]
    bound = math.nan if not bounds else min(bounds) if claim.quantity == "time" else max(bounds)
    if not math.isnan(bound):
        word = "no less than" if claim.quantity == "time" else "at most"
        cause = "A ReLU that cost nothing" if claim.bound == "free_relu" else "The machine's own measured ceilings"
        reason.append(f"{cause} would allow {word} {with_unit(number(bound), claim.unit)}.")
    reason.append(claim.why)
    if any(case.throttled for case in judged):
        reason.append("Caution: the device throttled during this measurement.")
    return _row(
        claim,
        machine.name,
        verdict,
        [*reason, _caution(machine.control, verdict)],
        workload=", ".join(case.workload for case in judged),
        measured=math.nan if many else judged[0].found.value,
        low=min(case.found.low for case in judged),
        high=max(case.found.high for case in judged),
        bound=bound,
        settles=settles,
        cases=[
            {
                "workload": case.workload,
                "measured": case.found.value,
                "low": case.found.low,
                "high": case.found.high,
                "bound": case.bound,
                "verdict": "not_testable" if claim.untestable else case.verdict,
            }
            for case in judged
        ],
    )


def _caution(control: Row | None, verdict: str) -> str:
    """What an A/A control that is not at 5% says: above, intervals are too narrow for any verdict; below, too wide."""
    if control is None:
        return ""
    said = (
        f"the A/A control of {control['machine']} calls identical code different in "
        f"{number(100 * control['rate'])}% of {control['pairs']} pairs"
    )
    if control["rate"] > 1 - intervals.CONFIDENCE:
        return f"Caution: {said}, which is not the 5% it should be."
    return f"Its intervals are wider than they need be: {said}, and 5% would do." if verdict == "undecided" else ""


def _machines(records: Sequence[Record]) -> list[_Machine]:
    devices = {record.machine: record.run["device"] for record in records}
    experiments: dict[str, dict[str, dict[Key, Row]]] = {name: {} for name in devices}
    rows = results.rows(records)
    for row in rows:
        index = experiments[row["machine"]].setdefault(row["experiment"], {})
        index[row["workload"], row["variant"], row["clock"]] = row
    figures = {
        name: details.index(
            (record for record in records if record.machine == name), (row for row in rows if row["machine"] == name)
        )
        for name in devices
    }
    controls = {control["machine"]: control for control in results.agreement(records, rows) if control["p"] < DOUBT}
    return [
        _Machine(name, device, experiments[name], figures[name], controls.get(name)) for name, device in devices.items()
    ]


def judge(records: Sequence[Record], claims: Sequence[Claim] | None = None) -> list[dict[str, Any]]:
    """The verdict on every claim: one row a claim and machine, in order of the ledger and of the records.

    ``claimed`` is a number, or [low, high] where the claim gives a range.
    Claims that arithmetic decides, and those nothing measured here can, have a single row whose machine is
    :data:`ANY`. Keys: :data:`COLUMNS`, and quantity, band (low, high), why (that of the claim, which the reason
    holds as well), settles (what would decide an undecided one) and cases (one dict a judged workload: workload,
    measured, low, high, bound, verdict). ``measured`` is NaN where several workloads were judged;
    ``low`` and ``high`` then span them all. ``bound`` is the largest figure (time: the smallest) that the
    machine's own ceilings, or a ReLU that costs nothing, would allow. Numbers that do not exist are NaN.

    An interval wholly inside the registered band confirms, wholly outside refutes, else the claim is undecided;
    confirmed at some workloads and refuted at others makes it conditional. ``claims`` defaults to :func:`ledger`.
    """
    machines = _machines(records)
    found = ledger() if claims is None else claims
    known = {claim.id: claim for claim in found}
    rows = []
    for claim in found:
        if claim.quantity == "arithmetic":
            own = [_worked_out(claim)]
        elif claim.quantity == "none":
            own = [_row(claim, ANY, "not_testable", [claim.untestable, claim.why])]
        else:
            own = [_measured(claim, machine) for machine in machines]
        said = _contradiction(claim, known)
        rows += [row | {"reason": f"{row['reason']} {said}".rstrip()} for row in own]
    return rows


# ---------------------------------------------------------------- statements


def together(verdicts: Iterable[str]) -> str:
    """The verdict on a statement from ``verdicts``, those on its parts.

    Parts that hold and parts that fail make it conditional, whatever is left open. Else what is left open could change
    it: invalid if a part's measurement failed a check, or undecided. Else the parts that could be tested agree, and it
    is confirmed, or refuted (inconsistent if each of them fails its own arithmetic). Parts that cannot be tested do not
    count, unless there is no other.
    """
    seen = set(verdicts) - {"not_testable"}
    if seen & HOLD and seen & FAIL:
        return "conditional"
    for verdict in ("invalid", "undecided", "confirmed", "refuted", "inconsistent"):
        if verdict in seen:
            return verdict
    return "not_testable"


def statements(rows: Sequence[Row], claims: Sequence[Claim] | None = None) -> list[Row]:
    """The verdict on every statement: one row a statement and machine, in order of its lead in the ledger.

    ``rows`` are those of :func:`judge`, ``claims`` the whole ledger or file that they were judged by; it defaults to
    :func:`ledger`. Keys: :data:`COLUMNS`, where the figures are the lead's, and ``parts``: the rows of the parts, the
    lead's first. Of the parts that arithmetic decides, those that fail count on every machine where another part could
    be tested; those that add up do not, for a document that divides rightly has measured nothing. A statement
    that no machine can decide has a single row, whose machine is :data:`ANY`; its parts may have a row a machine.
    """
    found = ledger() if claims is None else claims
    parts: dict[str, list[Claim]] = {claim.id: [claim] for claim in found if not claim.part_of}
    for claim in found:
        if claim.part_of:
            parts[claim.part_of].append(claim)
    own: dict[str, list[Row]] = {}
    for row in rows:
        own.setdefault(row["id"], []).append(row)
    machines = list(dict.fromkeys(row["machine"] for row in rows if row["machine"] != ANY))
    known = {claim.id: claim for claim in found}
    out = []
    for members in parts.values():
        shown = [row for claim in members for row in own.get(claim.id, [])]
        if not any(claim.testable for claim in members):
            out += [_stated(members, shown, ANY, known)] if shown else []
            continue
        for machine in machines:
            out.append(_stated(members, [row for row in shown if row["machine"] in (machine, ANY)], machine, known))
    return out


def _stated(members: Sequence[Claim], rows: Sequence[Row], machine: str, known: Mapping[str, Claim]) -> Row:
    """The row of the statement of ``members``, the lead first, from those of its parts that concern ``machine``."""
    lead = members[0]
    measured = any(row["machine"] != ANY and row["verdict"] != "not_testable" for row in rows)
    tested = measured or machine == ANY
    counted = [row["verdict"] for row in rows if not (measured and _adds_up(row))]
    verdict = together(counted) if tested else "not_testable"
    figures = [row for row in rows if row["id"] == lead.id]
    # Of a lead that no machine decides, each machine has its own figures.
    reason = [lead.untestable, lead.why, _contradiction(lead, known)]
    row = figures[0] if len(figures) == 1 else _row(lead, machine, verdict, reason)
    row = row | {"claim": lead.statement or lead.claim, "machine": machine, "verdict": verdict}
    if len(members) > 1:
        row["reason"] = _sum_up(rows, machine, tested)
    return {key: row[key] for key in COLUMNS} | {"parts": list(rows)}


def _adds_up(row: Row) -> bool:
    """Whether this is a part that arithmetic decides, and its figures follow from each other."""
    return row["quantity"] == "arithmetic" and row["verdict"] == "confirmed"


_SOUND = "sound"
_SAYINGS = {
    "confirmed": ("holds", "hold"),
    _SOUND: ("adds up", "add up"),
    "conditional": ("holds in part", "hold in part"),
    "refuted": ("is refuted", "are refuted"),
    "inconsistent": ("fails its own arithmetic", "fail their own arithmetic"),
    "undecided": ("is undecided", "are undecided"),
    "invalid": ("was not measured rightly", "were not measured rightly"),
    "not_testable": ("cannot be tested", "cannot be tested"),
}


def _sum_up(rows: Sequence[Row], machine: str, tested: bool) -> str:
    """The reason of a statement: what became of which part, and what would decide those that are open."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        names = groups.setdefault(_SOUND if _adds_up(row) else row["verdict"], [])
        if row["id"] not in names:
            names.append(row["id"])
    count = len({row["id"] for row in rows})
    if not tested:
        groups.pop("not_testable", None)
    said = [f"{', '.join(names)} {_SAYINGS[key][len(names) > 1]}" for key in _SAYINGS if (names := groups.get(key))]
    text = f"Of {count} parts {'; '.join(said)}." if tested else f"No part of it could be measured on {machine}."
    if said and not tested:
        text += f" By arithmetic alone {'; '.join(said)}."
    return " ".join([text, *(f"{row['id']}: {row['settles']}" for row in rows if row["settles"])])
