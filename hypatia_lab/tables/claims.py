"""Tables of claims and verdicts: rows of the judge as text, as tables, and shown on a page."""

from __future__ import annotations

import html as markup
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hypatia_lab import formats, intervals
from hypatia_lab.claims import ANY, GROUPS, VERDICTS, Judgement
from hypatia_lab.claims.words import SUMS
from hypatia_lab.formats import MISSING, absent, number, span, with_unit
from hypatia_lab.tables import TableError, display, frame, html, html_column


def quantity_text(value: Any, unit: str) -> str:
    """A figure with its unit, or the ends of a range of measured ones; ``–`` where there is none."""
    if absent(value):
        return MISSING
    ends = value if isinstance(value, list | tuple) else [value]
    return with_unit("–".join(dict.fromkeys(map(_figure, ends))), unit)


def claimed_text(value: Any, unit: str) -> str:
    """What a claim says, its figure or its range, with the unit; a range that has no end is "or more" or "or less"."""
    if isinstance(value, list | tuple):
        return span(min(value), max(value), _figure, unit)
    return quantity_text(value, unit)


def asked(row: Judgement) -> str:
    """What a row of the judge claims, and the band that decides it where that is not about the figure itself.

    A verdict may look false beside a figure alone: 9.58% are confirmed by 0.642% where the band is 18.62% or less.
    What is claimed at least or at most is said so, and of its band the end that decides.
    """
    ends = row.claimed if isinstance(row.claimed, list | tuple) else [row.claimed]
    band = list(row.band)
    band = [] if any(map(absent, band)) else band
    if (sense := row.sense) != "about":
        side, word = (min, "or more") if sense == "at_least" else (max, "or less")
        end, edge = side(ends), side(band or ends)
        text = f"{quantity_text(end, row.unit)} {word}"
        near = abs(edge - end) <= (_USUAL * abs(end) if abs(end) >= 1.5 else 0)
        return text if near else f"{text} (band: {quantity_text(edge, row.unit)} {word})"
    text = claimed_text(row.claimed, row.unit)
    margin = _USUAL * abs(ends[0]) if len(ends) == 1 and abs(ends[0]) >= 1.5 else 0
    if not band or (abs(band[0] - min(ends)) <= margin and abs(band[1] - max(ends)) <= margin):
        return text
    return f"{text} (band: {claimed_text(band, row.unit)})"


_USUAL = 0.105
"""A band within so much of a single figure is the usual one, ±10% but for rounding, and goes without saying; below 1.5
the usual one is ±0.02, which is said."""


def _figure(value: float) -> str:
    return f"{value:.6g}" if isinstance(value, int) or value == round(value, 3) else number(value)


def verdict_text(verdict: str) -> str:
    """A verdict as its sign and word, so that neither colour nor sign alone carries it: ``✗ refuted``."""
    return f"{VERDICTS[verdict]}\N{NO-BREAK SPACE}{verdict.replace('_', ' ')}"


WHOSE = {
    "author": "on the author's program",
    "rewrite": "on the lab's rewrite",
    "equal": "on a rewrite shown equal",
    "library": "on a library's code",
    "own": "on the lab's own code",
    "arithmetic": "by arithmetic",
}
"""Whose program was measured → the mark beside a verdict."""


def whose(row: Judgement) -> str:
    """The mark beside the verdict of ``row``: whose program was measured."""
    return WHOSE.get(row.program, "")


def word(row: Judgement) -> str:
    """The verdict of ``row`` as :func:`verdict_text`, with how many of its cases or parts hold where not all do."""
    counts = f", {row.held} of {row.total}"
    partly = row.verdict in ("confirmed", "confirmed_in_part") and row.held < row.total
    return verdict_text(row.verdict) + counts.replace(" ", "\N{NO-BREAK SPACE}") * partly


def claims_table(claim_rows: Sequence[Judgement]) -> Any:
    """The ledger as a DataFrame of text, a line a row.

    Columns: id, verdict, claimed, measured, claim, bound, machine, program, section, reason. ``claimed`` is written as
    the seed wrote it, with the band where that is not ±10% or the range itself; ``measured`` with its interval and n,
    or as the span of all intervals where several workloads were judged; ``program`` is whose was measured. Raises
    :class:`TableError` when there is no claim, ``KeyError`` for an unknown verdict.
    """
    if not claim_rows:
        raise TableError("claims_table: no claims; the ledger is empty, or the filter let nothing through")
    return frame(
        [
            {"id": row.id}
            | _figures(row)
            | {"claim": row.claim}
            | {
                "bound": quantity_text(row.bound, row.unit),
                "machine": "any machine" if row.machine == ANY else row.machine,
            }
            | {"program": whose(row) or MISSING, "section": row.section, "reason": row.reason or MISSING}
            for row in claim_rows
        ]
    )


def judged(row: Judgement) -> str:
    """What was measured for a claim: with its interval and n, as a span of several, or ``–``.

    n is the number of processes, the fewest of several workloads; what was worked out has none.
    """
    if row.quantity == "arithmetic":
        return f"{quantity_text(list(dict.fromkeys((row.low, row.high))), row.unit)} by its own figures"
    count = f" (n = {row.n})" if row.n else ""
    wide = row.high > intervals.UNTOLD * row.low > 0
    if absent(row.measured) or wide:
        if absent(row.low) or (wide and row.verdict == "undecided"):
            return formats.UNTOLD + count if row.n else MISSING
        return quantity_text([row.low, row.high], row.unit) + count
    if row.low == row.high or absent(row.low):  # worked out, one exact figure, or one process: no interval
        return quantity_text(row.measured, row.unit) + count
    return formats.interval(row.measured, row.low, row.high, row.unit) + count


def on(claim_rows: Sequence[Judgement], machine: str) -> list[Judgement]:
    """The rows of ``machine``, and those that no machine decides."""
    return [row for row in claim_rows if row.machine in (machine, ANY)]


def verdicts_by_seed(claim_rows: Sequence[Judgement], machine: str) -> Any:
    """How many claims of each document have each verdict on ``machine``: a line a document, a column a verdict.

    Rows of :func:`hypatia_lab.claims.statements`. Claims that no machine decides count with every machine, so that a
    line adds up to the document's claims. Raises :class:`TableError` when there is no claim.
    """
    rows = on(claim_rows, machine)
    if not rows:
        raise TableError(f"verdicts_by_seed: no claims judged on {machine!r}")
    present = [verdict for verdict in VERDICTS if any(row.verdict == verdict for row in rows)]
    lines = []
    for seed in [*dict.fromkeys(row.document for row in rows), "all"]:
        own = Counter(row.verdict for row in rows if seed in (row.document, "all"))
        lines.append({"document": seed} | {verdict_text(one): own[one] for one in present} | {"all": own.total()})
    return frame(lines)


def show_claims(claim_rows: Sequence[Judgement], machine: str, first: Collection[str] = ()) -> None:
    """Display in a notebook what ``machine`` says of claims, rows of :func:`hypatia_lab.claims.statements`.

    A line a claim: id, verdict, claimed, measured and the claim, with its parts folded beneath it. Where the ids of
    claims are given as ``first``, only these stand open, and the others are folded away beneath them. So are claims of
    which nothing was measured. Nothing is displayed where there is no row.
    """
    if own := on(claim_rows, machine):
        silent = [row for row in own if row.verdict in ("not_testable", *SUMS)]
        others = [row for row in own if first and row.id not in first and row not in silent]
        _show(own, "figures and reasons", {"The other claims": others, "Not measured here": silent})


def _show(
    rows: Sequence[Judgement], parts: str, apart: Mapping[str, Sequence[Judgement]], more: Sequence[str] = ()
) -> None:
    """Display a line a claim, its parts folded beneath it under the heading ``parts``.

    Those of ``rows`` that are in ``apart`` are folded away beneath their summary. With ``more`` columns, fields of a
    row, the others can be filtered.
    """
    folded = {row.id for own in apart.values() for row in own}
    form, text = [], []
    for summary, own in ({"": [row for row in rows if row.id not in folded]} | {**apart}).items():
        if own:
            lines = [{"id": row.id, "claim": row.claim} | _figures(row) for row in own]
            table = frame(
                [line | {name: getattr(row, name) for name in more} for line, row in zip(lines, own, strict=True)]
            )
            text.append(table.to_string(index=False))
            table[parts] = html_column(_parts(row) for row in own)
            filterable = bool(more) and not summary
            form.append(html(table, filterable=filterable, folded={parts: "claim"}, summary=summary, stacked=True))
    # A caution is a machine's, and not a claim's: each is said once.
    said = dict.fromkeys(part.caution for row in rows for part in row.parts if part.caution)
    form += [f"<p>{markup.escape(caution)}</p>" for caution in said]
    display("\n".join(form), "\n".join(text))


def _figures(row: Judgement) -> dict[str, str]:
    return {"verdict": word(row), "claimed": asked(row), "measured": judged(row)}


def claims_counted(claim_rows: Sequence[Judgement]) -> str:
    """``144 claims in 355 parts``, of the rows of :func:`hypatia_lab.claims.statements`."""
    parts = {part.id for row in claim_rows for part in row.parts}
    return f"{len({row.id for row in claim_rows})} claims in {len(parts)} parts"


def show_statements(claim_rows: Sequence[Judgement], machine: str) -> None:
    """Display what became of every claim on ``machine``, to be filtered, with the parts folded under each claim.

    Rows of :func:`hypatia_lab.claims.statements`. What cannot be tested there is folded away beneath the others, in a
    table of its own. Raises :class:`TableError` when there is no claim.
    """
    if not (own := on(claim_rows, machine)):
        raise TableError("show_statements: no claims; the ledger is empty, or the filter let nothing through")
    silent = [row for row in own if row.verdict == "not_testable"]
    _show(own, "parts", {"Not testable here": silent}, ["document"])


def group_counts(claim_rows: Sequence[Judgement], machine: str) -> Any:
    """What became of claims on ``machine``: a line a group of verdicts, with how many claims, in all and by word.

    Rows of :func:`hypatia_lab.claims.statements`; a claim that no machine decides counts with every machine.
    """
    found = Counter(row.verdict for row in on(claim_rows, machine))
    lines = []
    for group, words in GROUPS.items():
        counts = [f"{verdict_text(verdict)} {found[verdict]}" for verdict in words if found[verdict]]
        total = sum(found[verdict] for verdict in words)
        lines.append({"what became of it": group, "claims": str(total), "of which": ", ".join(counts) or MISSING})
    lines.append({"what became of it": "all", "claims": str(found.total()), "of which": MISSING})
    return frame(lines)


def band_counts(claim_rows: Sequence[Judgement], machine: str) -> Any:
    """What became of parts on ``machine``, by when their bands were set: a line each, a column a group of verdicts."""
    parts = [part for row in on(claim_rows, machine) for part in row.parts if part.band_set]
    lines = []
    for when in ("before", "after"):
        found = Counter(part.verdict for part in parts if part.band_set.endswith(when))
        counts = {group: str(sum(found[word] for word in words)) for group, words in GROUPS.items()}
        lines.append({"band set": f"{when} the first record", "parts": str(found.total())} | counts)
    return frame(lines).drop(columns="by its own arithmetic only")


def _parts(row: Judgement) -> str:
    """The parts of one claim on one machine as HTML: its figures where there are several, and each one's reason.

    Of several parts, what became of the whole is said first. Beneath a reason the details are folded.
    """
    titles = ("part", "verdict", "claimed", "measured", "bound", "program")
    escape, bodies = markup.escape, []
    wide = f' colspan="{len(titles)}"'
    for part in row.parts:
        # A caution is the machine's: it stands beneath the whole table.
        more = escape(" ".join(text for text in part.details if text not in (part.why, part.caution)))
        folded = f"<details><summary>details</summary>{more}</details>" * bool(more)
        # The day, and whether before or after the first record that bears on it.
        set_on = f" Band set: {part.band_set.replace(' ', ', ')}." * bool(part.band_set)
        said = escape(part.reason) + folded
        why = escape(f"{part.why} Section of the document: {part.section}.{set_on}".strip())
        if len(row.parts) == 1:  # its figures are those of the claim, which stand beside it
            limit = "" if absent(part.bound) else f" The limit: {quantity_text(part.bound, part.unit)}."
            return f"<p>{said}</p><p>{why}{escape(limit)}</p>"
        figures = (word(part), asked(part), judged(part), quantity_text(part.bound, part.unit), whose(part) or MISSING)
        cells = "".join(f"<td>{escape(text)}</td>" for text in figures)
        lines = [f'<tr><th scope="row">{escape(part.id)}</th>{cells}</tr>']
        lines += [f"<tr><td{wide}>{text}</td></tr>" for text in (escape(part.claim), said, why) if text]
        bodies.append(f"<tbody>{''.join(lines)}</tbody>")
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    table = f'<table class="lab-parts"><thead><tr>{head}</tr></thead>{"".join(bodies)}</table>'
    return f"<p>{escape(row.reason)}</p>{table}"
