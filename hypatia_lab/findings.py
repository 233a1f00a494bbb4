"""The findings in sentences: every figure in them is taken from the records when the page is made."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypatia_lab import claim_tables, claims, formats, intervals, results, tables
from hypatia_lab.intervals import Interval
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

    @property
    def open(self) -> bool:
        """Whether it says in words that nothing can be said: no headline."""
        return self.figure in (*tables.DOUBTS, "undecided")


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


def unsaid(
    lab: Evidence,
    machine: str,
    question: str,
    page: str,
    found: Sequence[Interval],
    claims: tuple[str, ...] = (),
    facts: str = "",
) -> Finding:
    """The card of a ``question`` that none of ``found`` answers: so in words, and what ``machine`` can tell apart.

    ``facts`` are what was seen, in sentences that compare nothing. ``claims`` are named where the ledger is undecided,
    too: it may judge by an interval that carries no sentence.
    """
    words = [intervals.reading(one) for one in found]
    word = Counter(words).most_common(1)[0][0]
    told = [facts, f"Of {len(words)} cases: {tables.counted(words)}." if len(set(words)) > 1 else ""]
    if intervals.TOO_FEW in words:
        least = intervals.FEW_RARE if all(one.rare for one in found) else intervals.FEW
        told.append(f"It takes at least {least} processes.")
    if any(not one.rare and one.doubt != intervals.TOO_FEW for one in found):  # such as the A/A control compares
        told += [f"On this machine {_detectable(row)}" for row in _agreement(lab, machine)]
    ids = claims if claims and _verdict(claims, lab, machine) == "undecided" else ()
    return Finding(word, question, " ".join(filter(None, told)), page, claims=ids)


def _agreement(lab: Evidence, machine: str) -> list[Row]:
    return results.agreement(lab.of(machine), [row for row in lab.rows if row["machine"] == machine])


def _detectable(row: Row) -> str:
    return f"half of all comparisons would detect a difference of {formats.margin(row['detectable'])}."


def silent(found: Sequence[Interval]) -> str:
    """A sentence, with a space behind it, on those of ``found`` that say nothing; empty where each says something."""
    words = [one.doubt for one in found if one.doubt]
    return f"{len(words)} of {len(found)} cases say nothing: {tables.counted(words)}. " if words else ""


def span_text(found: Sequence[Interval]) -> str:
    """``0.5–1.2×``: the least and the greatest of several ratios."""
    ends = [formats.number(end(one.value for one in found)) for end in (min, max)]
    return "–".join(dict.fromkeys(ends)) + "×"


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
    aside, whose = way_in(rows), "the author's kernel" if own else "it"
    ids = () if aside else ("S001-01", "S002-53", "S004-01")
    found = [(row, results.speed(row).inverse()) for row in rows]
    clear = [(row, factor) for row, factor in found if not factor.doubt]
    factors = [factor for _, factor in clear]
    if not clear:
        every = [factor for _, factor in found]
        return unsaid(lab, machine, "How much slower one thread per output is", "02_naive_vs_cublas", every, ids)
    hits = [_at(row) for row, factor in clear if factor.low <= 7.67 <= factor.high]
    claimed = "S004 says 7.67× of every size, S001 and S002 of the medium one: that "
    claimed += f"is within reach at {_list(hits)}" if hits else "is met at no size"
    slower = sum(factor.above(1) for factor in factors)
    where = _list([f"{formats.told(factor)} at {_at(row)}" for row, factor in clear])
    return Finding(
        span_text(factors),
        "One thread per output is slower by a factor that grows with the size"
        if len(factors) > 1 and all(larger.above(smaller.high) for smaller, larger in pairwise(factors))
        else "One thread per output is far slower than the library"
        if all(factor.above(2) for factor in factors)
        else f"One thread per output is slower than the library in {slower} of {len(rows)} cases",
        f"Against the library in float32 {whose} takes {where}. "
        + silent([factor for _, factor in found])
        + (aside or f"{claimed}."),
        "02_naive_vs_cublas",
        claims=ids,
    )


def epilogue(lab: Evidence, machine: str) -> Finding | None:
    """What the library's fused epilogue gains over eager, and whether it makes the ReLU free."""
    chosen: list[Row] = []
    for dtype, mode in (("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee")):
        chosen += _sizes(lab, machine, "aten_fusion", "epilogue", dtype, mode)
    found = [(row, results.speed(row)) for row in chosen]
    decided = [(row, gain) for row, gain in found if intervals.decided(gain)]
    if not decided:
        every = [gain for _, gain in found]
        question = "Whether the library's fused call gains"
        return unsaid(lab, machine, question, "03_aten_fusion", every) if every else None
    row, best = max(decided, key=lambda pair: pair[1].value)
    gains = sum(gain.above(1) for _, gain in decided)
    kind = "TF32" if row["math"] == "tf32" else row["dtype"]
    text = f"It {'gains most' if best.above(1) else 'does best'} at {_at(row)} in {kind}: {formats.told(best)} against "
    text += "eager. "
    free = sum(_free(lab, row) for row in chosen)
    if free:
        text += f"In {free} of {len(chosen)} cases it takes at most 2% longer than the product alone: "
        text += "the ReLU is free. "
    else:
        text += f"It is surely faster than eager in {gains} of {len(chosen)} cases. "
    return Finding(
        f"{formats.number(best.value)}×",
        "The library's own epilogue is the fusion worth having"
        if 2 * gains > len(chosen)
        else "The library's fused call gains at some sizes only"
        if gains
        else "The library's fused call gains nothing that shows here",
        f"{text}{silent([gain for _, gain in found])}It is one call that exists: torch._addmm_activation.",
        "03_aten_fusion",
    )


def against_linear(lab: Evidence, row: Row) -> Interval | None:
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
    return results.over(row, alone[0]) if alone else None


def _free(lab: Evidence, row: Row) -> bool:
    """Whether a fused call surely takes at most 2% longer than Linear alone."""
    found = against_linear(lab, row)
    return found is not None and found.within(0, 1 + intervals.EQUIVALENCE)


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
                    "eager": formats.told(plain),
                    "epilogue": formats.told(fused),
                    "the ReLU is": "free"
                    if _free(lab, row)
                    else "not free"
                    if fused.above(1 + intervals.EQUIVALENCE)
                    else fused.doubt or "unclear",
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
    aside, (expected, ids) = way_in(rows), EXPECTED[variant]
    ids = () if aside else ids
    name = f"Called through the lab, {name}" if aside else name
    found = [(row, results.speed(row)) for row in rows]
    clear = [(row, gain) for row, gain in found if not gain.doubt]
    if not clear:
        question = f"Whether {name[0].lower() + name[1:] if aside else name} is as fast as eager"
        return unsaid(lab, machine, question, "03_aten_fusion", [gain for _, gain in found], ids)
    same = sum(intervals.equal(gain) for _, gain in clear)
    apart = sum(gain.outside(1 - intervals.EQUIVALENCE, 1 + intervals.EQUIVALENCE) for _, gain in clear)
    (least, worst), (most, best) = (pick(clear, key=lambda pair: pair[1].value) for pick in (min, max))
    text = f"{name} is equal to eager within ±2% in {same} of {len(rows)} cases"
    text += f", different in {apart}, and too close to call in {len(clear) - same - apart}. "
    text += f"It ranges from {formats.told(worst)} at {_at(least)} in {least['dtype']} "
    text += f"to {formats.told(best)} at {_at(most)} in {most['dtype']}. "
    return Finding(
        f"{same} of {len(rows)}",
        f"{name} is as fast as eager" + _where(same, apart, len(rows)),
        f"{text}{silent([gain for _, gain in found])}{aside or expected}",
        "03_aten_fusion",
        claims=ids,
    )


def _where(same: int, apart: int, of: int) -> str:
    if same == of:
        return ""
    if apart:
        return " at some sizes only" if same else " at no size" if apart == of else " at no size that can be told"
    return ", as far as it can be told"


def control(lab: Evidence, machine: str) -> Finding | None:
    """How often the lab sees a difference between a variant and itself."""
    found = _agreement(lab, machine)
    if not found:
        return None
    row, sees = found[0], _detectable(found[0])
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
        f"expected of 95% intervals, and a binomial test {told} (p = {formats.number(row['p'])}). "
        f"{sees[0].upper()}{sees[1:]}",
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


def cards(found: Sequence[Finding], lab: Evidence | None = None, machine: str = claim_tables.ANY) -> str:
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
        label = f"{_claimed(finding.claims)}: {claim_tables.verdict_text(verdict)}" if finding.claims else verdict
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
    return claims.together(on[name] for on in own for name in (machine, claim_tables.ANY) if name in on)


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


def show(found: Sequence[Finding], lab: Evidence | None = None, machine: str = claim_tables.ANY) -> None:
    """Display the findings in a notebook as :func:`cards`, with plain text beside them."""
    _display(found, cards(found, lab, machine))


def tell(found: Sequence[Finding]) -> None:
    """Display the findings in a notebook as :func:`sentences`, with plain text beside them."""
    _display(found, sentences(found))


def _display(found: Sequence[Finding], form: str) -> None:
    from IPython.display import display

    text = "\n".join(f"{finding.figure}: {finding.title}. {finding.text}".rstrip() for finding in found)
    display({"text/html": form, "text/plain": text}, raw=True)
