"""A page shows one machine at a time: what a loop over machines displays stands in tabs, one a machine.

The tabs are marks between the outputs, and no box around them: a bar of radio buttons, a line where each machine begins
and one where the last ends. A rule of style hides what stands behind the marks of the machines that are not chosen. So
every output keeps its own kind, which one output of HTML would take from it: a figure is drawn by JupyterLab as in the
book, a text is Markdown, and a stored notebook is compared output by output. No script is needed, in JupyterLab or in
the book, whose ``machines.js`` only makes all bars of a page and of later pages choose alike. Where the rule is not
understood (an old browser, a preview that drops style), the machines stand below each other, each under its name.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from hypatia_lab import claims, older, tables
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.tables import claims as claim_tables


def ordered(data: Evidence) -> list[str]:
    """The machines of a page as :attr:`Evidence.machines` has them, but for the one that was measured now.

    That one comes second: a page opens on the machine that decides most.
    """
    others = [name for name in data.machines if name != data.here]
    own = [name for name in data.machines if name == data.here]
    return [*others[:1], *own, *others[1:]]


def called(data: Evidence) -> dict[str, str]:
    """Each machine of a page, in order → its short name: ``H200``, ``2 CPU cores``.

    The machine's own name stands behind it where several share the short one, and on the reader's own ``yours``.
    """
    found = {}
    for name in ordered(data):
        run = data.of(name)[0].run
        model = re.sub(r"^NVIDIA | \d+ ?GB.*$", "", run["facts"]["name"])
        found[name] = {"cuda": model, "cpu": f"{run['facts'].get('cores', '?')} CPU cores"}[run["device"]]
    short = Counter(found.values())
    found = {name: text if short[text] == 1 else f"{text} {name}" for name, text in found.items()}
    return {name: f"{text} (yours)" if name == data.here else text for name, text in found.items()}


def tabs(data: Evidence, machines: Container[str] | None = None, *, quiet: bool = False) -> Iterator[str]:
    """Each of ``machines`` (left out: all of ``lab``) in turn; what the loop's body displays stands in its tab.

    A bar has a tab for every machine of ``lab``, so that all bars of a page are alike; a machine for which nothing is
    displayed says so unless ``quiet``. Where nothing is displayed for any there is no bar, nor where ``lab`` has one
    machine alone. At most one loop a cell: the rule of style goes by the marks of its cell. A body that raises displays
    nothing.
    """
    from IPython.core.getipython import get_ipython
    from IPython.utils.capture import capture_output

    names = ordered(data)
    wanted = [name for name in names if machines is None or name in machines]
    if len(names) == 1:
        yield from wanted
        return
    titles = called(data)
    own = {name: f"({name})" + f" {older.MARK}" * (name in data.older) for name in names}
    if get_ipython() is None:  # outside of a notebook all that is displayed is text, one machine after the other
        for name in wanted:
            tables.display("", f"{titles[name]} {own[name]}")
            yield name
        return
    shown: dict[str, list[Any]] = dict.fromkeys(names, [])
    for name in wanted:
        with capture_output(stdout=False, stderr=False) as caught:
            yield name
        shown[name] = caught.outputs
    if not any(shown.values()):
        return
    tables.display(bar(titles), f"Machines: {', '.join(f'{what} ({name})' for name, what in titles.items())}")
    for name, what in titles.items():
        nothing = "" if shown[name] or quiet else f"There is nothing to show here for {what}."
        told = f"<strong>{html.escape(what)}</strong> {html.escape(own[name])}"
        begin = f'<p class="lab-panel" data-machine="{html.escape(name)}">{told}</p>'
        tables.display(
            f"{begin}<p>{html.escape(nothing)}</p>" if nothing else begin, f"{what} {own[name]}: {nothing}".rstrip(": ")
        )
        for output in shown[name]:
            output.display()
    tables.display('<div class="lab-panels-end"></div>', "")


HIDDEN = "display:block;height:0;min-height:0;margin:0;padding:0;border:0;overflow:hidden;visibility:hidden"
"""Of no height, but as wide as the page: a figure that is drawn unseen, as by JupyterLab, has the right width."""


def bar(titles: dict[str, str]) -> str:
    """The bar of tabs as HTML, with the rules that show the chosen one; the first of ``titles`` is chosen.

    ``titles`` maps each machine to what it is called, in the order of their marks.
    """
    ends = [f'.lab-panel[data-machine="{html.escape(name)}"]' for name in titles] + [".lab-panels-end"]
    # Browsers read a rule from its end. Without the second part each element of the page, every word of code too, is
    # asked whether one beside it holds a mark: a page then takes seconds to open.
    rules = [
        f':is(.cell_output,.jp-OutputArea):has(.lab-tabs [value="{html.escape(name)}"]:not(:checked))'
        f">:is(.cell_output>*,.jp-OutputArea>*):is(:has({begin}),:has({begin})~*):not(:has({end}),:has({end})~*)"
        f"{{{HIDDEN.replace(';', '!important;')}!important}}"
        for name, begin, end in zip(titles, ends, ends[1:], strict=False)
    ]
    style = [
        ".lab-tabs{display:flex;flex-wrap:wrap;gap:.25rem 1rem}",
        "@supports selector(:has(*)){@media screen{.lab-panel{display:none}}",
        *rules,
        "}",
        "@media print{.lab-tabs{display:none}}",
    ]
    labels = [
        f'<label><input type="radio" name="machine" value="{html.escape(name)}"{" checked" * (not place)}> '
        f"{html.escape(what)}</label>"
        for place, (name, what) in enumerate(titles.items())
    ]
    # A form of its own keeps the choices of two bars apart, in two open notebooks too; Enter must not send it anywhere.
    head = '<form class="lab-tabs" method="dialog" role="radiogroup" aria-label="Machine" autocomplete="off">'
    return "\n".join([head, f"<style>{''.join(style)}</style>", *labels, "</form>"])


def show_claims(data: Evidence, chosen: str | Sequence[claims.Claim], *first: str) -> None:
    """What the records say of the claims that a page shows, by machine: those of the ledger whose ``page`` it is.

    Or of the statements that the claims ``chosen`` are parts of, such as a reader's own. Where ids are given as
    ``first``, the other claims are folded away.
    """
    if isinstance(chosen, str):
        leads = {claim.lead for claim in claims.ledger() if chosen in claim.pages}
        stated = [row for row in data.stated if row.id in leads]
    else:
        leads = {claim.lead for claim in chosen}
        known = {claim.id: claim for claim in (*claims.ledger(), *chosen)}
        parts = [claim for claim in known.values() if claim.lead in leads]
        stated = claims.statements(claims.judge([*data.measured.values()], parts), parts)
    for name in tabs(data):
        claim_tables.show_claims(stated, name, first)


def show_cells(data: Evidence, experiments: Sequence[str] | Callable[[str], Sequence[str]]) -> None:
    """Every cell of ``experiments``, or of those that they are for a machine, folded away, to be filtered."""
    for name in tabs(data):
        wanted = experiments(name) if callable(experiments) else experiments
        if rows := data.select(machine=name, experiment=tuple(wanted)):
            table = tables.results_table(rows).drop(columns="machine")
            tables.show(table, filterable=True, summary="Every cell")
