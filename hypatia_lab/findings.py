"""The findings in sentences: every figure in them is taken from the records when the page is made."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab import claims, formats, intervals, results, tables
from hypatia_lab.notebook import Evidence

Row = dict[str, Any]


@dataclass(frozen=True)
class Finding:
    """One thing the lab found: a figure, a headline, a sentence or two, and the page behind it.

    ``page`` may name a place in the page: ``16_fused_mlp#where-it-stops``. ``claims`` are the ids of the documents'
    claims, or parts of claims, that it speaks of; their verdict is the ledger's.
    """

    figure: str
    title: str
    text: str
    page: str
    claims: tuple[str, ...] = ()


def _sizes(lab: Evidence, machine: str, experiment: str, variant: str, dtype: str, mode: str) -> list[Row]:
    """Rows of one variant with a ratio, smallest size first."""
    rows = lab.select(
        machine=machine,
        experiment=experiment,
        operation="linear_relu",
        variant=variant,
        dtype=dtype,
        math=mode,
        clock=lab.primary(machine),
        status="ok",
    )
    return sorted((row for row in rows if not math.isnan(row["ratio_low"])), key=lambda row: row["flops"])


ORIGINALS = {"naive": "author_v1", "cublas_relu": "author_v2", "aten": "author_planc"}
"""Rewrite → the author's program that it stands in for."""


def original(lab: Evidence, machine: str, rewrite: str) -> list[Row]:
    """Rows of the author's program behind ``rewrite`` that have a ratio, smallest size first; empty if unrecorded."""
    return _sizes(lab, machine, "author_hypatia", ORIGINALS[rewrite], "float32", "ieee")


def _list(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " and " + texts[-1]


def _slower(row: Row) -> str:
    return formats.interval(1 / row["ratio"], 1 / row["ratio_high"], 1 / row["ratio_low"])


def _faster(row: Row) -> str:
    return formats.interval(row["ratio"], row["ratio_low"], row["ratio_high"])


def _at(row: Row) -> str:
    return tables.shape_text(row["shape"])


def way_in(rows: Sequence[Row]) -> str:
    """A sentence on those of ``rows`` whose time includes the lab's launch path; empty where none does.

    By such rows no document is judged: a finding with this sentence names no claim.
    """
    clocks = list(dict.fromkeys(row["clock"] for row in rows if results.launch_path(row)))
    if not clocks:
        return ""
    return (
        f"By the {_list(clocks)} clock this includes the lab's launch path, an operator with its gradient in Python, "
        "and not the document's. So it judges no document."
    )


def naive(lab: Evidence, machine: str) -> Finding | None:
    """How much slower one thread per output is than the library, size by size, against the claimed 7.67×."""
    own = original(lab, machine, "naive")
    rows = own or _sizes(lab, machine, "naive_vs_cublas", "naive", "float32", "ieee")
    if not rows:
        return None
    slow = [1 / row["ratio"] for row in rows]
    span = (
        f"{formats.number(min(slow))}–{formats.number(max(slow))}×" if len(rows) > 1 else f"{formats.number(slow[0])}×"
    )
    hits = [row for row in rows if row["ratio_low"] <= 1 / 7.67 <= row["ratio_high"]]
    claimed = "S004 says 7.67× of every size, S001 and S002 of the medium one: that "
    claimed += "is within reach at " + _list([_at(row) for row in hits]) if hits else "is met at no size"
    aside, whose = way_in(rows), "the author's kernel" if own else "it"
    where = _list([f"{_slower(row)} at {_at(row)}" for row in rows])
    return Finding(
        span,
        "One thread per output is slower by a factor that grows with the size"
        if len(slow) > 1 and slow == sorted(slow)
        else "One thread per output is far slower than the library",
        f"Against the library in float32 {whose} takes {where}. {aside or f'{claimed}.'}",
        "02_naive_vs_cublas",
        claims=() if aside else ("S001-01", "S002-53", "S004-01"),
    )


def epilogue(lab: Evidence, machine: str) -> Finding | None:
    """What the library's fused epilogue gains over eager, and whether it makes the ReLU free."""
    chosen: list[Row] = []
    for dtype, mode in (("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee")):
        chosen += _sizes(lab, machine, "aten_fusion", "epilogue", dtype, mode)
    if not chosen:
        return None
    best = max(chosen, key=lambda row: row["ratio"])
    gains = [row for row in chosen if row["ratio_low"] > 1]
    kind = "TF32" if best["math"] == "tf32" else best["dtype"]
    text = f"It gains most at {_at(best)} in {kind}: {_faster(best)} against eager. "
    free = [row for row in chosen if _free(lab, row)]
    if free:
        text += f"In {len(free)} of {len(chosen)} cases it takes at most 2% longer than the product alone: "
        text += "the ReLU is free. "
    else:
        text += f"It is surely faster than eager in {len(gains)} of {len(chosen)} cases. "
    return Finding(
        f"{formats.number(best['ratio'])}×",
        "The library's own epilogue is the fusion worth having"
        if 2 * len(gains) > len(chosen)
        else "The library's fused call gains at some sizes only"
        if gains
        else "The library's fused call gains nothing here",
        text + "It is one call that exists: torch._addmm_activation.",
        "03_aten_fusion",
    )


def against_linear(lab: Evidence, row: Row) -> intervals.Interval | None:
    """Time of ``row`` over that of Linear alone (same workload, clock and processes); None if it was not measured."""
    alone = lab.select(
        machine=row["machine"],
        experiment=row["experiment"],
        operation="linear",
        shape=row["shape"],
        dtype=row["dtype"],
        math=row["math"],
        clock=row["clock"],
        status="ok",
    )
    return intervals.ratio(row["medians_us"], alone[0]["medians_us"]) if alone else None


def _free(lab: Evidence, row: Row) -> bool:
    """Whether a fused call surely takes at most 2% longer than Linear alone."""
    found = against_linear(lab, row)
    return found is not None and found.high <= 1 + intervals.EQUIVALENCE


def cost_of_relu(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """What the ReLU adds to the product, in eager and in the epilogue: one row of text a workload, smallest first."""
    out = []
    for dtype, mode in (("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee")):
        for row in _sizes(lab, machine, "aten_fusion", "epilogue", dtype, mode):
            eager = lab.leading(machine, experiment="aten_fusion", workload=row["workload"], variant="eager")[0]
            plain, fused = against_linear(lab, eager), against_linear(lab, row)
            if plain is None or fused is None:
                continue
            out.append(
                {
                    "workload": f"{_at(row)} {dtype}/{mode}",
                    "eager": formats.interval(plain.value, plain.low, plain.high),
                    "epilogue": formats.interval(fused.value, fused.low, fused.high),
                    "the ReLU is": "free"
                    if fused.high <= 1 + intervals.EQUIVALENCE
                    else "not free"
                    if fused.low > 1 + intervals.EQUIVALENCE
                    else "unclear",
                }
            )
    return out


EXPECTED = {
    "aten": ("S004 expects that of every size.", ("S004-07a", "S004-07b", "S004-07c")),
    "cublas_relu": (
        "S001 expects that of the small size, 1.05× of the medium one and 1.18× of the large one.",
        ("S001-47", "S001-20", "S001-26"),
    ),
}
"""Variant → what its document expects of it beside eager, and the claims that say so."""


def equivalents(lab: Evidence, machine: str, variant: str, name: str) -> Finding | None:
    """Whether a variant that launches what eager launches takes the same time, by equivalence within ±2%.

    ``variant`` is one of :data:`EXPECTED`, ``name`` what its document calls it. Where the author's program is recorded
    it is that one's figures.
    """
    rows = original(lab, machine, variant)
    for dtype, mode in (("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee")) if not rows else ():
        rows += _sizes(lab, machine, "aten_fusion", variant, dtype, mode)
    if not rows:
        return None
    same = [row for row in rows if intervals.equal(_interval(row))]
    apart = [row for row in rows if _interval(row).outside(1 - intervals.EQUIVALENCE, 1 + intervals.EQUIVALENCE)]
    worst = min(rows, key=lambda row: row["ratio"])
    best = max(rows, key=lambda row: row["ratio"])
    aside, (expected, ids) = way_in(rows), EXPECTED[variant]
    name = f"Called through the lab, {name}" if aside else name
    text = f"{name} is equal to eager within ±2% in {len(same)} of {len(rows)} cases"
    text += f", different in {len(apart)}, and too close to call in {len(rows) - len(same) - len(apart)}. "
    text += f"It ranges from {_faster(worst)} at {_at(worst)} in {worst['dtype']} "
    text += f"to {_faster(best)} at {_at(best)} in {best['dtype']}. {aside or expected}"
    return Finding(
        f"{len(same)} of {len(rows)}",
        f"{name} is as fast as eager" + _where(len(same), len(apart), len(rows)),
        text,
        "03_aten_fusion",
        claims=() if aside else ids,
    )


def _where(same: int, apart: int, of: int) -> str:
    if same == of:
        return ""
    if apart:
        return " at some sizes only" if same else " at no size"
    return ", as far as it can be told"


def _interval(row: Row) -> intervals.Interval:
    return intervals.Interval(row["ratio"], row["ratio_low"], row["ratio_high"], row["processes"])


def control(lab: Evidence, machine: str) -> Finding | None:
    """How often the lab sees a difference between a variant and itself."""
    found = [row for row in results.agreement(lab.of(machine)) if row["machine"] == machine]
    if not found:
        return None
    row = found[0]
    fine = row["p"] >= 0.05
    if fine:
        title, told = "The lab's own error rate is what it should be", "does not reject that"
    elif row["rate"] < 1 - intervals.CONFIDENCE:
        title = "The lab sees fewer false differences than it may"
        told = "rejects that: the intervals are wider than they need be"
    else:
        title, told = "The lab's own error rate is off", "rejects that"
    return Finding(
        f"{100 * row['rate']:.1f}%",
        title,
        f"In {row['pairs']} pairs of identical code it saw {row['differences']} differences that do not exist; 5% is "
        f"expected of 95% intervals, and a binomial test {told} (p = {formats.number(row['p'])}). Half of all "
        f"comparisons would detect a difference of {100 * row['detectable']:.2g}%.",
        "01_method",
    )


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """What the records of ``machine`` say, most important first; what was not measured there is left out."""
    candidates = (
        naive(lab, machine),
        epilogue(lab, machine),
        equivalents(lab, machine, "aten", "Plan C"),
        equivalents(lab, machine, "cublas_relu", "v2"),
        control(lab, machine),
    )
    return [finding for finding in candidates if finding is not None]


def cards(found: Sequence[Finding], lab: Evidence | None = None, machine: str = tables.ANY) -> str:
    """The findings as HTML cards, each linked to its page (relative to a page in ``notebooks/``).

    A finding that names claims has the ledger's verdict on them by the records of ``lab`` on ``machine``, under the
    documents' names: a card and a table of claims cannot disagree. Any other is called a finding. Raises
    ``ValueError`` when claims are named and ``lab`` is None, or when one of them is in no ledger.
    """
    out = []
    for finding in found:
        figure, title, text = (html.escape(part) for part in (finding.figure, finding.title, finding.text))
        head = f'<span class="lab-number">{figure}</span><h3><a href="{_address(finding)}">{title}</a></h3>'
        verdict = _verdict(finding.claims, lab, machine) if finding.claims else "finding"
        label = f"{_claimed(finding.claims)}: {tables.verdict_text(verdict)}" if finding.claims else verdict
        word = f'<p class="lab-word">{label}</p>'
        out.append(f'<div class="lab-card {verdict}">{word}{head}<p>{text}</p></div>')
    return '<div class="lab-cards">\n' + "\n".join(out) + "\n</div>"


def _verdict(ids: Sequence[str], lab: Evidence | None, machine: str) -> str:
    """The verdict on the claims ``ids`` together, as a statement's on its parts."""
    if lab is None:
        raise ValueError(f"the verdict on {', '.join(ids)} follows from records; give the evidence")
    if lost := [name for name in ids if name not in lab.verdicts]:
        raise ValueError(f"no claim {', '.join(lost)} in the ledger")
    own = [lab.verdicts[name] for name in ids]
    return claims.together(on[name] for on in own for name in (machine, tables.ANY) if name in on)


def _claimed(ids: Sequence[str]) -> str:
    """Whose claims ``ids`` are, linked to the ledger, and which: ``S003's claims (S003-49, S003-50)``."""
    seeds = _list([f"{seed}'s" for seed in dict.fromkeys(name.partition("-")[0] for name in ids)])
    which = f"{ids[0]} … {ids[-1]}" if len(ids) > 3 else ", ".join(ids)
    link = f'<a href="12_claims.html">{html.escape(seeds)} claim{"s" if len(ids) > 1 else ""}</a>'
    return f"{link} ({html.escape(which)})"


def _address(finding: Finding) -> str:
    page, mark, place = finding.page.partition("#")
    return html.escape(f"{page}.html{mark}{place}", quote=True)


def sentences(found: Sequence[Finding]) -> str:
    """The findings as an HTML list: a linked headline with its figure, and the sentences where there are any."""
    out = []
    for finding in found:
        figure, title, text = (html.escape(part) for part in (finding.figure, finding.title, finding.text))
        out.append(
            f'<li><a href="{_address(finding)}">{title}</a>: <strong>{figure}</strong>. {text}'.rstrip() + "</li>"
        )
    return '<ul class="lab-list">\n' + "\n".join(out) + "\n</ul>"


def show(found: Sequence[Finding], lab: Evidence | None = None, machine: str = tables.ANY) -> None:
    """Display the findings in a notebook as :func:`cards`, with plain text beside them."""
    _display(found, cards(found, lab, machine))


def tell(found: Sequence[Finding]) -> None:
    """Display the findings in a notebook as :func:`sentences`, with plain text beside them."""
    _display(found, sentences(found))


def _display(found: Sequence[Finding], form: str) -> None:
    from IPython.display import display

    text = "\n".join(f"{finding.figure}: {finding.title}. {finding.text}".rstrip() for finding in found)
    display({"text/html": form, "text/plain": text}, raw=True)
