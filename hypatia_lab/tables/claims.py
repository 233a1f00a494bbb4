"""Tables of claims and verdicts: rows of the judge as text, as tables, and shown on a page."""

from __future__ import annotations

import html as markup
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypatia_lab import formats
from hypatia_lab.claims import ANY, VERDICTS, Judgement
from hypatia_lab.formats import MISSING, absent, number, span, with_unit
from hypatia_lab.tables import TableError, frame, html, html_column


def quantity_text(value: Any, unit: str) -> str:
    """A figure with its unit, or the ends of a range of measured ones; ``–`` where there is none."""
    if absent(value):
        return MISSING
    ends = value if isinstance(value, list | tuple) else [value]
    return with_unit("–".join(map(_figure, ends)), unit)


def claimed_text(value: Any, unit: str) -> str:
    """What a claim says, its figure or its range, with the unit; a range that has no end is "or more" or "or less"."""
    if isinstance(value, list | tuple):
        return span(min(value), max(value), _figure, unit)
    return quantity_text(value, unit)


def _claimed(row: Judgement) -> str:
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
        near = abs(edge - end) <= _USUAL * abs(end)
        return text if near else f"{text} (band: {quantity_text(edge, row.unit)} {word})"
    text = claimed_text(row.claimed, row.unit)
    margin = _USUAL * abs(ends[0]) if len(ends) == 1 else 0
    if not band or (abs(band[0] - min(ends)) <= margin and abs(band[1] - max(ends)) <= margin):
        return text
    return f"{text} (band: {claimed_text(band, row.unit)})"


_USUAL = 0.105
"""A band within so much of a single figure is the usual one, ±10% but for rounding, and goes without saying."""


def _figure(value: float) -> str:
    return f"{value:.6g}" if isinstance(value, int) or value == round(value, 3) else number(value)


def verdict_text(verdict: str) -> str:
    """A verdict as its sign and word, so that neither colour nor sign alone carries it: ``✗ refuted``."""
    return f"{VERDICTS[verdict]} {verdict.replace('_', ' ')}".replace(" ", "\N{NO-BREAK SPACE}")


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
            {
                "id": row.id,
                "verdict": verdict_text(row.verdict),
                "claimed": _claimed(row),
                "measured": judged(row),
                "claim": row.claim,
                "bound": quantity_text(row.bound, row.unit),
                "machine": _machine(row.machine),
                "program": row.program or MISSING,
                "section": row.section,
                "reason": row.reason or MISSING,
            }
            for row in claim_rows
        ]
    )


def judged(row: Judgement) -> str:
    """What was measured for a claim: with its interval and n, as a span of several, or ``–``.

    n is the number of processes, the fewest of several workloads; what was worked out has none.
    """
    count = f" (n = {row.n})" if row.n else ""
    if absent(row.measured):
        if absent(row.low):
            return formats.UNTOLD + count if row.n else MISSING
        return quantity_text([row.low, row.high], row.unit) + count
    if row.low == row.high:  # worked out, or one exact figure: no interval
        return quantity_text(row.measured, row.unit) + count
    return formats.interval(row.measured, row.low, row.high, row.unit) + count


def _on(claim_rows: Sequence[Judgement], machines: Sequence[str]) -> list[Judgement]:
    """The rows of ``machines`` (empty: all), and those that no machine decides."""
    return [row for row in claim_rows if not machines or row.machine in (*machines, ANY)]


def _machine(name: str) -> str:
    return "any machine" if name == ANY else name


def verdicts_by_seed(claim_rows: Sequence[Judgement], machine: str) -> Any:
    """How many claims of each document have each verdict on ``machine``: a line a document, a column a verdict.

    Rows of :func:`hypatia_lab.claims.statements`. Claims that no machine decides count with every machine, so that a
    line adds up to the document's claims. Raises :class:`TableError` when there is no claim.
    """
    rows = [row for row in claim_rows if row.machine in (machine, ANY)]
    if not rows:
        raise TableError(f"verdicts_by_seed: no claims judged on {machine!r}")
    counts = Counter((row.seed, row.verdict) for row in rows)
    present = [verdict for verdict in VERDICTS if any(row.verdict == verdict for row in rows)]
    lines = []
    for seed in [*dict.fromkeys(row.seed for row in rows), "all"]:
        own = {
            verdict: sum(n for (one, v), n in counts.items() if v == verdict and seed in (one, "all"))
            for verdict in present
        }
        line = {"document": seed} | {verdict_text(verdict): n for verdict, n in own.items()}
        lines.append(line | {"all": sum(own.values())})
    return frame(lines)


def show_claims(claim_rows: Sequence[Judgement], machine: str) -> None:
    """Display in a notebook what ``machine`` says of claims, rows of :func:`hypatia_lab.claims.statements`.

    A line a claim: id, verdict and the claim, with its parts and their figures folded beneath it. Those that could not
    be tested are folded away beneath the table. Nothing is displayed where there is no row.
    """
    from IPython.display import display

    own = _on(claim_rows, [machine])
    form, text = [], []
    for untested in (False, True):
        if not (rows := [row for row in own if (row.verdict == "not_testable") is untested]):
            continue
        table = frame([{"id": row.id, "verdict": verdict_text(row.verdict), "claim": row.claim} for row in rows])
        text.append(table.to_string(index=False))
        table["figures and reasons"] = html_column(_parts([row]) for row in rows)
        summary = "Not testable here" if untested else ""
        form.append(html(table, folded={"figures and reasons": "claim"}, summary=summary))
    if form:
        form += _cautions(own)
        display({"text/html": "\n".join(form), "text/plain": "\n".join(text)}, raw=True)


def heard(claim_rows: Sequence[Judgement]) -> tuple[list[Judgement], dict[str, list[str]]]:
    """The rows that say more than "not testable" of their claim, or else its first one; and machine → other ids."""
    loud = {row.id for row in claim_rows if not _dumb(row)}
    kept: list[Judgement] = []
    silent: dict[str, list[str]] = {}
    for row in claim_rows:
        if _dumb(row) and row.id in loud:
            silent.setdefault(_machine(row.machine), []).append(row.id)
        else:
            kept.append(row)
            loud.add(row.id)
    return kept, silent


def _dumb(row: Judgement) -> bool:
    return row.verdict == "not_testable" and judged(row) == MISSING


def _set_on(row: Judgement) -> str:
    """The day on which the band of ``row`` was set and whether before or after the first record that bears on it."""
    return row.band_set.replace(" ", ", ") or MISSING


def claims_counted(claim_rows: Sequence[Judgement]) -> str:
    """``144 claims in 355 parts``, of the rows of :func:`hypatia_lab.claims.statements`."""
    parts = {part.id for row in claim_rows for part in row.parts}
    return f"{len({row.id for row in claim_rows})} claims in {len(parts)} parts"


def statements_table(claim_rows: Sequence[Judgement], machines: Sequence[str] = ()) -> Any:
    """The ledger as a DataFrame of text, a line a claim: id, its verdict on each machine, claim, document.

    Rows of :func:`hypatia_lab.claims.statements`, of ``machines`` alone where some are named. A claim that no machine
    decides has its verdict under every machine. Raises :class:`TableError` when there is no claim.
    """
    rows = _on(claim_rows, machines)
    if not rows:
        raise TableError("statements_table: no claims; the ledger is empty, or the filter let nothing through")
    names = [name for name in dict.fromkeys(row.machine for row in rows) if name != ANY] or [ANY]
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        line = {"id": row.id, **dict.fromkeys(map(_machine, names), MISSING)}
        line = lines.setdefault(row.id, line | {"claim": row.claim, "document": row.seed})
        own = names if row.machine == ANY else [row.machine]
        line.update({_machine(name): verdict_text(row.verdict) for name in own})
    return frame(list(lines.values()))


def show_statements(claim_rows: Sequence[Judgement], machines: Sequence[str] = ()) -> None:
    """Display :func:`statements_table` in a notebook, to be filtered, with the parts folded under each claim.

    What no machine shown can test is folded away beneath the others, in a table of its own. Of a machine that is not
    among ``machines``, where some are named, the parts show what was measured there and nothing else.
    """
    from IPython.display import display

    table = statements_table(claim_rows, machines)
    text = table.to_string(index=False)
    stated: dict[str, list[Judgement]] = {}
    shown = (*machines, ANY)
    for row in claim_rows:
        parts = row.parts
        if machines and row.machine not in shown:  # what no machine decides stands there once already
            parts = [part for part in parts if part.machine != ANY and not _dumb(part)]
            if not parts:
                continue
        stated.setdefault(row.id, []).append(replace(row, parts=tuple(parts)))
    table["parts"] = html_column(_parts(stated[name]) for name in table["id"])
    dumb = table[[name for name in table if name not in ("id", "claim", "document", "parts")]]
    dumb = (dumb == verdict_text("not_testable")).all(axis=1)
    form = []
    if not dumb.all():
        form.append(html(table[~dumb], filterable=True, folded={"parts": "claim"}))
    if dumb.any():
        silent = table.loc[dumb, ["id", "claim", "document", "parts"]]
        form.append(html(silent, folded={"parts": "claim"}, summary="Not testable here"))
    form += _cautions([row for rows in stated.values() for row in rows])
    display({"text/html": "\n".join(form), "text/plain": text}, raw=True)


def _cautions(rows: Sequence[Judgement]) -> list[str]:
    """Each caution on the parts of ``rows`` once, as HTML: it is a machine's, and not a claim's."""
    said = dict.fromkeys(part.caution for row in rows for part in row.parts if part.caution)
    return [f"<p>{markup.escape(text)}</p>" for text in said]


def _parts(rows: Sequence[Judgement]) -> str:
    """The parts of one claim as HTML: a body of lines a part, of each machine its figures and, beneath, the reason.

    ``rows`` are those of the claim, one a machine. Of several parts, what became of the whole is said first. Beneath a
    reason the details are folded.
    """
    parts: dict[str, dict[str, Judgement]] = {}
    for part in (part for row in rows for part in row.parts):
        parts.setdefault(part.id, {})[part.machine] = part
    titles = ("machine", "verdict", "claimed", "measured", "bound", "program", "band set")
    escape, bodies = markup.escape, []
    wide = f' colspan="{len(titles)}"'
    for name, own in parts.items():
        first = next(iter(own.values()))
        heading = f'<tr><th scope="rowgroup"{wide}>{escape(name)} {escape(first.claim)}</th></tr>'
        lines = [heading] if len(parts) > 1 else []
        claimed = escape(_claimed(first))
        for part in own.values():
            # What the claim itself explains stands once, beneath its machines; a machine's caution beneath the table.
            more = escape(" ".join(text for text in part.details if text not in (part.why, part.caution)))
            reason = escape(part.reason) + (f"<details><summary>details</summary>{more}</details>" if more else "")
            figures = [escape(judged(part)), escape(quantity_text(part.bound, part.unit))]
            shown = "".join(f"<td>{text}</td>" for text in figures)
            shown += f"<td>{escape(part.program or MISSING)}</td><td>{escape(_set_on(part))}</td>"
            verdict = escape(verdict_text(part.verdict))
            machine = escape(_machine(part.machine))
            lines.append(f'<tr><th scope="row">{machine}</th><td>{verdict}</td><td>{claimed}</td>{shown}</tr>')
            lines.append(f"<tr><td{wide}>{reason}</td></tr>" if reason else "")
        why = escape(f"{first.why} Section of the document: {first.section}.")
        bodies.append(f"<tbody>{''.join(lines)}<tr><td{wide}>{why}</td></tr></tbody>")
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    said = [f"<p>{escape(_machine(row.machine))}: {escape(row.reason)}</p>" for row in rows if len(parts) > 1]
    return f'{"".join(said)}<table class="lab-parts"><thead><tr>{head}</tr></thead>{"".join(bodies)}</table>'
