"""GPUs of one model side by side: how far their ratios and verdicts agree, and where the scatter comes from.

Only records that name their chip can tell one from another. Those of other visits count beside the book's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypatia_lab import claims, results, spread
from hypatia_lab.chapters.stability import Visit
from hypatia_lab.formats import MISSING
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.records import Record
from hypatia_lab.spread import Across
from hypatia_lab.tables import chips
from hypatia_lab.tables import claims as claim_tables

CLOCKS = ("graph", "wall")
Verdict = dict[str, Any]
"""A line of :func:`hypatia_lab.claims.agreement`."""


def taken(lab: Evidence, visited: Sequence[Visit]) -> list[Record]:
    """Every record of a GPU, those that other visits left among them."""
    everything = [*lab.records, *(record for visit in visited for record in visit.kept)]
    return [record for record in everything if record.run["device"] == "cuda"]


def _by_model(found: Sequence[Record]) -> dict[str, list[Record]]:
    models: dict[str, list[Record]] = {}
    for record in found:
        models.setdefault(record.device_name, []).append(record)
    return models


def _chips(found: Sequence[Record]) -> list[str]:
    return sorted({record.chip for record in found} - {""})


def side_by_side(found: Sequence[Record]) -> list[Across]:
    """The ratios that two or more chips have, of the records of one model."""
    # Each record under a name of its own, for a chip may have been visited twice.
    named = [replace(one, run=one.run | {"machine": one.digest}) for one in found if one.chip]
    rows = [row for record in named for row in results.rows([record]) if row.clock in CLOCKS]
    return [one for one in spread.across(rows, spread.chips(named)) if len(one.values) > 1]


def said(found: Sequence[Record], held: Mapping[str, Sequence[Verdict]]) -> str:
    """How many chips were seen of each model, and on how many verdicts hold: Markdown.

    ``held`` are the :func:`verdicts` of ``found``.
    """
    lines = []
    for model, own in _by_model(found).items():
        named, known = _chips(own), sum(bool(record.chip) for record in own)
        texts = [f"**{model}**: {known} of {len(own)} records name their chip, {len(named)} chips in all."]
        texts += [_counted(held[model])] if model in held else []
        if named and not (expected := spread.expectations(side_by_side(own))):
            texts += chips.will_mine_differ(len(named), expected)
        lines.append(f"- {' '.join(texts)}")
    return "\n".join(lines) or "No GPU was measured."


def expected(found: Sequence[Record]) -> Any:
    """What is to be expected of the next chip of each model (pandas); None where no two chips have one ratio."""
    models = {model: spread.expectations(side_by_side(own)) for model, own in _by_model(found).items()}
    return chips.expectations_table(models) if any(models.values()) else None


def named(found: Sequence[Record]) -> list[dict[str, str]]:
    """A line a chip that records name: its model and its experiments."""
    lines = []
    for model, own in _by_model(found).items():
        for chip in _chips(own):
            ran = sorted({record.experiment for record in own if record.chip == chip})
            lines.append({"chip": chip, "model": model, "experiments": ", ".join(ran)})
    return lines


def on_yours(lab: Evidence, visited: Sequence[Visit], machine: str) -> str:
    """What another chip of the model of ``machine`` makes of ratios by the graph clock that no tuner chose: Markdown.

    Empty where no two chips measured one.
    """
    own = _by_model(taken(lab, visited)).get(lab.of(machine)[0].device_name, [])
    found = [one for one in spread.expectations(side_by_side(own)) if (one.clock, one.tuned) == ("graph", False)]
    if not found:
        return ""
    said = " ".join(chips.will_mine_differ(len(_chips(own)), found))
    more = "[How chips differ](13_machines.html#from-chip-to-chip)."
    return f"Each interval is of one chip on one visit; another chip of the model may differ. {said} {more}"


def ratio_tables(found: Sequence[Record]) -> dict[str, Any]:
    """Model → its ratios chip by chip (pandas), of the models of which two chips have one."""
    sides = {model: side_by_side(own) for model, own in _by_model(found).items()}
    return {model: chips.ratios_table(own) for model, own in sides.items() if own}


def verdicts(found: Sequence[Record]) -> dict[str, list[Verdict]]:
    """Model → on how many of its chips a verdict holds, of the claims that at least two could test.

    Of the models of which two chips are named; a chip that was visited twice is judged by the later records.
    """
    out = {}
    for model, own in _by_model(found).items():
        latest: dict[tuple[str, str], Record] = {}
        for record in sorted(own, key=lambda one: one.run["started"]):
            if record.chip:
                latest[record.chip, record.experiment] = replace(record, run=record.run | {"machine": record.chip})
        if len(_chips(own)) > 1:
            lines = claims.agreement(claims.judge(list(latest.values()), beside=found))
            out[model] = [line for line in lines if len(line["verdicts"]) > 1]
    return out


def _counted(held: Sequence[Verdict]) -> str:
    if not held:
        return "No claim could be judged on two of them."
    same = sum(line["holds"] == "all" for line in held)
    return f"{same} of {len(held)} parts of claims have one verdict on every chip that could test them."


def verdict_tables(held: Mapping[str, Sequence[Verdict]]) -> dict[str, Any]:
    """Model → the claims whose :func:`verdicts` differ from chip to chip (pandas), of the models that have any."""
    import pandas

    out = {}
    for model, lines in held.items():
        apart = [line for line in lines if line["holds"] != "all"]
        names = sorted({name for line in apart for name in line["verdicts"]})
        if apart:
            out[model] = pandas.DataFrame(
                [
                    {"id": line["id"], "claim": line["claim"]}
                    | {name: _word(line["verdicts"].get(name)) for name in names}
                    | {"one verdict holds on": line["holds"]}
                    for line in apart
                ]
            )
    return out


def _word(verdict: str | None) -> str:
    return claim_tables.verdict_text(verdict) if verdict else MISSING


def scatter(found: Sequence[Record]) -> Any:
    """Where the scatter of ratios comes from, by class of ratios (pandas); None where there is no ratio.

    Of the records that name their chip alone: processes of others, quieter or noisier ones, would stand for theirs.
    """
    kinds: dict[spread.Kind, list[spread.Sighting]] = {}
    for one in spread.sightings([record for record in found if record.chip]):
        if one.kind[0] in CLOCKS:
            kinds.setdefault(one.kind, []).append(one)
    return chips.components_table({kind: spread.components(kinds[kind]) for kind in sorted(kinds)}) if kinds else None
