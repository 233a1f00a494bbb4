"""The front page: three findings with a picture each, and what the documents claim, one line each."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hypatia_lab import claims
from hypatia_lab.drawings.bars import Bar, bars
from hypatia_lab.drawings.canvas import Canvas
from hypatia_lab.formats import MISSING
from hypatia_lab.pages import cards, readings
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.numbers import Number, ratio, time
from hypatia_lab.tables import claims as claim_tables
from hypatia_lab.tables import display, frame, html_column

Lane = tuple[str, Number, bool]
"""A bar's label, its number, and whether it is drawn strong."""


def _bars(machine: str, name: str, title: str, lanes: Sequence[Lane], mark: Any = None) -> Canvas | None:
    """Bars of the numbers that have no flaw, with their intervals; None where fewer than two are left."""
    drawn = [
        Bar(label, *number.found.triple, number.write(number.found).partition(" [")[0], strong)
        for label, number, strong in lanes
        if number.found.n and not number.found.flaw
    ]
    return bars(f"{name}-{machine}", title, drawn, mark=mark) if len(drawn) > 1 else None


def one_thread(data: Evidence, machine: str) -> Canvas | None:
    """How many times the library's time the naive kernel takes, by size."""
    wanted = {"experiment": "naive_vs_cublas", "variant": "naive", "dtype": "float32", "math": "ieee"}
    lanes = [(row.at, ratio(row.speed.inverse()), True) for row in data.timed(machine, **wanted)]
    mark = (claims.claimed("S001-01"), f"S001 claims {claims.claimed('S001-01'):g}×")
    title = "One thread per output: its time over the library's, by rows × inputs × outputs"
    return _bars(machine, "one-thread", title, lanes, mark)


def one_kernel(data: Evidence, machine: str) -> Canvas | None:
    """Three layers of 64 by eager PyTorch, by the quickest other peer, and by the quickest kernel of our own."""
    rows = data.timed(machine, experiment="fused_mlp", operation="mlp3", shape="65536x64")
    rows.sort(key=lambda row: row.median_us)
    kinds = {
        "eager PyTorch": [row for row in rows if row.variant == "eager"],
        "the best of library and torch.compile": [r for r in rows if r.origin == "peer" and r.variant != "eager"],
        "one kernel": [row for row in rows if row.origin == "own"],
    }
    lanes = [(label, time(own[0].time), label == "one kernel") for label, own in kinds.items() if own]
    return _bars(machine, "one-kernel", "Time of three layers of width 64, 65,536 rows, in bfloat16", lanes)


def against_c(data: Evidence, machine: str) -> Canvas | None:
    """One image by C called in this process, by S003's simulator in PyTorch, warm, and by S003's whole C program."""
    timed = {"machine": machine, "shape": "1024x1024", "experiment": "author_nanobragg", "clock": "wall"}
    c, warm = (data.select(**timed, variant=name) for name in ("c_openmp", "author_torch"))
    wanted = {"experiment": "author_nanobragg", "case": "benchmark_detailed", "variant": "author_c"}
    program = [way for way in readings.probed(data, machine, "program", **wanted) if way.shape == "1024×1024"]
    facts = data.of(machine)[0].run["facts"]
    cores = f"{facts.get('cores', 'all')} CPU cores"
    place = {"graph": "the GPU", "hot": "the same cores"}[data.primary(machine)]
    lanes: list[Lane] = [
        (f"the lab's C, called in process, {cores}", time(row.time), True) for row in c[:1] if row.timed
    ]
    lanes += [(f"S003's PyTorch on {place}, a warm call", time(row.time), False) for row in warm[:1] if row.timed]
    lanes += [("nanoBragg's C, the whole program with its files", time(way.estimate("c")), False) for way in program]
    return _bars(machine, "against-c", "Time of one image of 1024×1024 pixels", lanes)


class Lead(NamedTuple):
    """A finding of the front page: the claim of the ledger, the page that tells it, and what draws it."""

    id: str
    page: str
    draw: Callable[[Evidence, str], Canvas | None]


LEADS = (
    Lead("LAB-01", "02_naive_vs_cublas", one_thread),
    Lead("LAB-31", "16_fused_mlp", one_kernel),
    Lead("LAB-60", "07_diffraction", against_c),
)


def show(data: Evidence, machine: str) -> None:
    """Display the leads that have a picture on ``machine`` in a notebook, picture beside finding."""
    form, text = [], []
    for lead in LEADS:
        if (picture := lead.draw(data, machine)) is None:
            continue
        for row in cards.judged(data, machine, [lead.id]):
            drawn = f'<p class="lab-word">{html.escape(picture.title)}</p>{picture.svg()}'
            figures = f"asked {claim_tables.asked(row)} | measured {claim_tables.judged(row)}"
            head = f'<h3><a href="{lead.page}.html">{html.escape(row.claim)}</a></h3>'
            said = f"{head}<p>{claim_tables.word(row)}<br><strong>{html.escape(figures)}</strong></p>"
            form.append(f'<div class="lab-lead"><div>{drawn}</div><div>{said}<p>{html.escape(row.why)}</p></div></div>')
            text.append(f"{row.claim} {claim_tables.word(row)}: {figures}\n{picture.title}. {picture.description}")
    if form:
        leads = f'<div class="lab-leads">{"".join(form)}</div>'
        display(leads, "\n".join(text))


class Document(NamedTuple):
    """A document as a reader may find it: repository and date, what it is about, and one of its claims (a part)."""

    repository: str
    date: str
    about: str
    claim: str


DOCUMENTS = {
    "S000": Document(
        "dgabriele/spinlock", "December 2025", "a convolution block in CUDA, given up by its author", "S000-32a"
    ),
    "S001": Document("mahreman/hypatia", "November 2025", "why a naive CUDA kernel is slow", "S001-01a"),
    "S002": Document("mahreman/hypatia", "November 2025", "that kernel beside a better one", "S002-21a"),
    "S003": Document("hoidn/nanoBragg", "September 2025", "a diffraction simulator, in PyTorch and C", "S003-03a"),
    "S004": Document("mahreman/hypatia", "November 2025", "fusing with PyTorch's own calls", "S004-49a"),
}
"""Document → where it is from and what it is about."""


def documents(data: Evidence, machine: str) -> Any:
    """A line a document (pandas): where it is from, a claim that it rests on, claimed, measured, and the verdict."""
    own = {seed: cards.judged(data, machine, [one.claim])[0] for seed, one in DOCUMENTS.items()}
    table = frame(
        [
            {
                "claims, for example": row.claim,
                "claimed": claim_tables.asked(row),
                "measured": MISSING if row.verdict == "not_testable" else claim_tables.judged(row),
                "verdict": claim_tables.word(row),
            }
            for row in own.values()
        ]
    )
    table.insert(0, "document", html_column(_source(seed, one) for seed, one in DOCUMENTS.items()))
    return table


def _source(seed: str, one: Document) -> str:
    link = f'<a href="https://github.com/{one.repository}">{one.repository}</a>'
    return f"{seed}: {html.escape(one.about)} ({link}, {one.date})"
