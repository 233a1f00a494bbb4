"""The findings in sentences: every figure in them is taken from the records when the page is made."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab import formats, intervals, results, tables
from hypatia_lab.claims import words
from hypatia_lab.claims.words import UNJUDGED as SILENT
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.results import Row
from hypatia_lab.tables import claims as claim_tables


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
        return self.figure in (*formats.DOUBTS, "undecided")


def answered(lab: Evidence, machine: str, *asked: Callable[[Evidence, str], Finding | None]) -> list[Finding]:
    """What those of ``asked`` find that find something, in their order."""
    return [found for ask in asked if (found := ask(lab, machine)) is not None]


def headline(found: Sequence[Finding], page: str) -> Finding | None:
    """Of ``found`` the first that is of ``page`` and says something."""
    return next((one for one in found if one.page.partition("#")[0] == page and not one.open), None)


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
    told = [facts]
    if intervals.TOO_FEW in words:
        told.append(f"It takes at least {intervals.FEW} processes.")
    else:
        told += [f"On this machine {detectable(row)}" for row in agreement(lab, machine)]
    ids = claims if claims and _verdict(claims, lab, machine) == "undecided" else ()
    word = Counter(words).most_common(1)[0][0]
    return Finding(word, question, " ".join(filter(None, told)), page, claims=ids)


def agreement(lab: Evidence, machine: str) -> list[dict[str, Any]]:
    return results.agreement(lab.of(machine), [row for row in lab.rows if row.machine == machine])


def detectable(row: dict[str, Any]) -> str:
    return f"a difference of {formats.margin(row['detectable'])} shows in half of all comparisons."


def silent(found: Sequence[Interval]) -> str:
    """A sentence, with a space behind it, on those of ``found`` that say nothing; empty where each says something."""
    words = [one.doubt for one in found if one.doubt]
    return f"Left out of {len(found)} cases: {tables.counted(words)}. " if words else ""


def span_text(found: Sequence[Interval]) -> str:
    """``0.5–1.2×``: the least and the greatest of several ratios."""
    ends = [formats.spoken(end(one.value for one in found)) for end in (min, max)]
    return "–".join(dict.fromkeys(ends)) + "×"


WAY_IN = "It includes the lab's launch path."
EXPLAINED = (
    "The lab's launch path is an operator that Python calls; the authors call their kernels from C++. "
    "A time with that in it judges no document."
)
"""What a launch path is, for a page: once beneath all cards that speak of it."""


def way_in(rows: Sequence[Row]) -> str:
    """A sentence on those of ``rows`` whose time includes the lab's launch path; empty where none does.

    By such rows no document is judged: a finding with this sentence names no claim. Its card is explained beneath.
    """
    return WAY_IN if any(row.launch_path for row in rows) else ""


def _explained(found: Sequence[Finding]) -> str:
    """What stands beneath the findings ``found``, as HTML; empty where all is said."""
    return f"\n<p>{html.escape(EXPLAINED)}</p>" if any(WAY_IN in one.text for one in found) else ""


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
        words = {name: _verdict([name], lab, machine) for name in finding.claims}
        # Those that the verdict on all of them rests on: another's own verdict would contradict the word beside it.
        heard = [name for name, own in words.items() if own not in SILENT]
        heard = heard or [name for name, own in words.items() if own != "not_testable"]
        label = verdict
        if finding.claims:
            label = f"{_claimed(heard or finding.claims)}: {claim_tables.verdict_text(verdict)}"
        word = f'<p class="lab-word">{label}</p>'
        out.append(f'<div class="lab-card {verdict}">{word}{head}<p>{text}</p></div>')
    return '<div class="lab-cards">\n' + "\n".join(out) + "\n</div>" + _explained(found)


def _verdict(ids: Sequence[str], lab: Evidence | None, machine: str) -> str:
    """The verdict on the claims ``ids`` together, as a statement's on its parts."""
    if lab is None:
        raise ValueError(f"the verdict on {', '.join(ids)} follows from records; give the evidence")
    if lost := [name for name in ids if name not in lab.verdicts]:
        raise ValueError(f"no claim {', '.join(lost)} in the ledger")
    own = [lab.verdicts[name] for name in ids]
    return words.claim(on[name] for on in own for name in (machine, claim_tables.ANY) if name in on)


def _claimed(ids: Sequence[str]) -> str:
    """Whose claims ``ids`` are, linked to the ledger, and which: ``S003's claims (S003-49, S003-50)``."""
    seeds = formats.listing([f"{seed}'s" for seed in dict.fromkeys(name.partition("-")[0] for name in ids)])
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
    return '<ul class="lab-list">\n' + "\n".join(out) + "\n</ul>" + _explained(found)


def show(
    found: Sequence[Finding], lab: Evidence | None = None, machine: str = claim_tables.ANY, summary: str = ""
) -> None:
    """Display the findings in a notebook as :func:`cards`, with plain text beside them.

    With a ``summary`` the cards are folded away beneath it and their number.
    """
    form = cards(found, lab, machine)
    if summary:
        title = f"{html.escape(summary)} ({len(found)})"
        form = f'<details class="lab-fold"><summary>{title}</summary>\n{form}\n</details>'
    _display(found, form)


def tell(found: Sequence[Finding]) -> None:
    """Display the findings in a notebook as :func:`sentences`, with plain text beside them."""
    _display(found, sentences(found))


def _display(found: Sequence[Finding], form: str) -> None:
    from IPython.display import display

    text = "\n".join(f"{finding.figure}: {finding.title}. {finding.text}".rstrip() for finding in found)
    display({"text/html": form, "text/plain": text}, raw=True)
