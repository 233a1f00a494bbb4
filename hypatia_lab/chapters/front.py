"""The front page: three findings with a picture each, what the documents claim, and the findings of all chapters."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab import claims
from hypatia_lab.chapters import (
    backward,
    conv_block,
    diffraction_findings,
    fused_mlp,
    gemm_ladder,
    graph_optimizer,
    layout_traffic,
    linear_relu,
    tensor_cores,
    torch_compile,
    untuned,
)
from hypatia_lab.claims import ANY, Judgement
from hypatia_lab.drawings.bars import Bar, bars
from hypatia_lab.drawings.canvas import Canvas
from hypatia_lab.formats import listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages import phrases
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, headline
from hypatia_lab.results import Row
from hypatia_lab.tables import claims as claim_tables

CHAPTERS = (
    *(linear_relu, gemm_ladder, conv_block, torch_compile, tensor_cores, backward, fused_mlp, layout_traffic),
    untuned,
    *(graph_optimizer, diffraction_findings),
)
"""What has findings, in the order of the book."""
FULL = 3
"""How many findings open the book."""


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """Every chapter's findings on ``machine``; each chapter lists its own by weight."""
    return [found for chapter in CHAPTERS for found in chapter.findings(lab, machine)]


# ---------------------------------------------------------------- three findings


@dataclass(frozen=True)
class Lead:
    """A finding, and the picture of it where there is one."""

    finding: Finding
    picture: Canvas | None


def leads(lab: Evidence, machine: str) -> list[Lead]:
    """The first three findings on ``machine`` that say something, those of :data:`PICTURES` first."""
    every, found = findings(lab, machine), []
    for page, draw in PICTURES.items():
        if (finding := headline(every, page)) and (picture := draw(lab, machine)):
            found.append(Lead(finding, picture))
    taken = [lead.finding for lead in found]
    found += [Lead(one, None) for one in every if not one.open and one not in taken]
    return found[:FULL]


def _bars(
    machine: str, name: str, title: str, lanes: Sequence[tuple[str, Interval, str]], *, alike: bool = False, **how: Any
) -> Canvas | None:
    """Bars of what says something, the last strong, or all where they are ``alike``; None where fewer than two do."""
    clear = [(label, found, unit) for label, found, unit in lanes if not found.doubt]
    drawn = [
        Bar(label, *found.triple, phrases.spoken(found, unit), alike or number == len(clear) - 1)
        for number, (label, found, unit) in enumerate(clear)
    ]
    return bars(f"{name}-{machine}", title, drawn, **how) if len(drawn) > 1 else None


def _claimed(name: str) -> float:
    """The lower end of what the claim ``name`` says."""
    return min(next(claim for claim in claims.ledger() if claim.lead == name).claimed)


def one_thread(lab: Evidence, machine: str) -> Canvas | None:
    """How many times the library's time the naive kernel takes, by size: the author's own where it was run."""
    for experiment, variant in (("author_hypatia", "author_v1"), ("naive_vs_cublas", "naive")):
        wanted = {"experiment": experiment, "variant": variant, "dtype": "float32", "math": "ieee", "status": "ok"}
        if rows := sorted(lab.leading(machine, **wanted), key=lambda row: row.flops):
            break
    lanes = [(row.at, row.speed.inverse(), "×") for row in rows]
    claimed = _claimed("S004-01")
    mark = None if any(row.launch_path for row in rows) else (claimed, f"S004 claims at every size: {claimed:g}×")
    title = "One thread per output: its time over the library's, by rows × inputs × outputs"
    return _bars(machine, "one-thread", title, lanes, alike=True, mark=mark)


def one_kernel(lab: Evidence, machine: str) -> Canvas | None:
    """Three layers of 64 by eager PyTorch, by the quickest other peer, and by the quickest kernel of our own."""
    rows = lab.leading(machine, experiment="fused_mlp", operation="mlp3", shape="65536x64", status="ok")
    rows = [row for row in rows if not row.is_twin]
    kinds = {"eager": "eager PyTorch", "peer": "the library or the compiler at its best", "own": "one kernel"}
    quickest: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: row.median_us):
        quickest.setdefault("eager" if row.variant == "eager" else row.origin, row)
    lanes = [(text, quickest[kind].time, "µs") for kind, text in kinds.items() if kind in quickest]
    return _bars(machine, "one-kernel", "Time of three layers of width 64", lanes) if "own" in quickest else None


def against_c(lab: Evidence, machine: str) -> Canvas | None:
    """S003's C program on the processor, and its simulator in PyTorch, warm, on the device."""
    experiment, facts = "author_nanobragg", lab.of(machine)[0].run["facts"]
    wanted = {"experiment": experiment, "case": "benchmark_detailed", "variant": "author_c"}
    program = next((way for way in phrases.probed(lab, machine, "program", **wanted) if way.shape == "1024×1024"), None)
    warm = lab.select(machine=machine, experiment=experiment, variant="author_torch", shape="1024x1024", clock="wall")
    if program is None or not warm:
        return None
    gpu, cores = lab.primary(machine) == "graph", f"{facts.get('cores', 'all')} CPU cores"
    lanes = [
        (f"C on {cores}, from its start to its exit", program.estimate("c"), "µs"),
        (f"PyTorch on {'the GPU' if gpu else 'the same cores'}, a warm call", warm[0].time, "µs"),
    ]
    return _bars(machine, "against-c", "Time of one image of 1024×1024 pixels", lanes)


def compiled(lab: Evidence, machine: str) -> Canvas | None:
    """The speed that torch.compile gives each model, in the arithmetic and by the clock of the finding beside it."""
    found = torch_compile.gains(lab, machine, torch_compile.COMPILED, torch_compile.waited(lab, machine))
    lanes = [(f"{torch_compile.called(row)}, {row.at}", gain, "×") for row, gain in (found[0].clear if found else ())]
    mark = (least := _claimed("S000-32"), f"claimed: {least:g}× or more")
    return _bars(
        machine, "compiled", "Speed by torch.compile, in times of eager PyTorch's", lanes, alike=True, mark=mark
    )


PICTURES: dict[str, Callable[[Evidence, str], Canvas | None]] = {
    "02_naive_vs_cublas": one_thread,
    "16_fused_mlp": one_kernel,
    "07_diffraction": against_c,
    "06_torch_compile": compiled,
}
"""Page whose weightiest finding may open the book → what draws it."""


def _first(text: str) -> str:
    return re.split(r"(?<=\.) ", text)[0]


def shown(found: Sequence[Lead], lab: Evidence, machine: str) -> tuple[str, str]:
    """The leads as HTML, picture beside finding, and as plain text."""
    form, text = [], []
    for lead in found:
        one, picture = lead.finding, lead.picture
        head = f'<a href="{one.page.partition("#")[0]}.html">{html.escape(one.title)}</a>'
        number = f'<span class="lab-number">{html.escape(one.figure)}</span>'
        drawn = f'<p class="lab-word">{html.escape(picture.title)}</p>{picture.svg()}' if picture else ""
        said = f"{number}<h3>{head}</h3><p>{html.escape(_first(one.text))}</p>"
        form.append(f'<div class="lab-lead"><div>{drawn}</div><div>{said}</div></div>')
        below = f"\n{picture.title}. {picture.description}" if picture else ""
        text.append(f"{one.figure}: {one.title}. {_first(one.text)}{below}")
    return f'<div class="lab-leads">{"".join(form)}</div>', "\n".join(text)


def show(lab: Evidence, machine: str) -> None:
    """Display the leads of ``machine`` in a notebook, or that there is none."""
    from IPython.display import display

    found = leads(lab, machine)
    form, text = shown(found, lab, machine) if found else ("<p>No finding can be told here.</p>", "No finding.")
    display({"text/html": form, "text/plain": text}, raw=True)


# ---------------------------------------------------------------- the documents


DOCUMENTS = {
    "S000": ("a convolution block in CUDA, given up for torch.compile", "S000-32", "06_torch_compile"),
    "S001": ("why a naive CUDA kernel is slow", "S001-01", "02_naive_vs_cublas"),
    "S002": ("that kernel and a better one, side by side", "S002-55", "03_aten_fusion"),
    "S003": ("a diffraction simulator, in PyTorch and in C", "S003-57", "07_diffraction"),
    "S004": ("fusing with PyTorch's own calls, and a graph optimizer", "S004-49", "16_fused_mlp"),
}
"""Document → what it is about, a claim that it rests on, and the chapter on that."""


def documents(lab: Evidence, machine: str) -> str:
    """The documents (Markdown), an item each: its subject, one of its claims with the verdict, and what was found."""
    every, lines = findings(lab, machine), []
    for seed, (subject, name, page) in DOCUMENTS.items():
        judged, found = lab.judged[name][machine], headline(every, page)
        link = f'<a href="{page}.html">{html.escape(found.title) if found else "The chapter"}</a>'
        verdict = claim_tables.verdict_text(judged.verdict)
        lines.append(f"- **{seed}**: {subject}. It says: *{judged.claim}* Here: {verdict}. {link}.")
    return "\n".join(lines)


def ledger(judged: Sequence[Judgement], machine: str, device: str) -> str:
    """What became of all claims on ``machine``, a ``device``, in a few sentences; ``judged`` are statements.

    Every sum of several verdicts says which it counts.
    """
    rows = [row for row in judged if row.machine in (machine, ANY)]
    count = Counter(row.verdict for row in rows)
    held, fallen = ("confirmed", "exceeded"), ("refuted", "inconsistent")
    silent = [word for word in claim_tables.VERDICTS if word not in (*held, *fallen, "conditional")]
    hold, fall, open_ = (sum(count[word] for word in words) for words in (held, fallen, silent))
    said = [f"Of {len(rows)} claims **{hold} hold and {fall} fall** on {device}."]
    said += [f"Those that hold are {_counted(count, held)}."] if hold else []
    said += [f"Those that fall are {_counted(count, fallen)}."] if fall else []
    said.append(f"{count['conditional']} hold under some conditions.")
    why = 'the records do not say (<a href="12_claims.html">the ledger</a> says why)'
    said.append(f"Of {open_} {why}{f': {_counted(count, silent)}' if open_ else ''}.")
    return " ".join(said)


def _counted(count: Counter[str], words: Sequence[str]) -> str:
    """How many claims have each of the verdicts ``words``: ``19 confirmed and 4 exceeded``, or ``all confirmed``."""
    found = {word.replace("_", " "): count[word] for word in words if count[word]}
    return listing([f"{number} {word}" if len(found) > 1 else f"all {word}" for word, number in found.items()])
