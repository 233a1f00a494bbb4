"""Tables and short sentences of the chapters on the diffraction simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypatia_lab import formats, records
from hypatia_lab.chapters.diffraction_findings import called, compiled_start, dtype_pairs, main_size, simulations
from hypatia_lab.figures.probe_rows import Configuration
from hypatia_lab.formats import absent, listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import span_text
from hypatia_lab.pages.phrases import fastest, labelled, probed, spent, spoken, waited
from hypatia_lab.results import Row
from hypatia_lab.workloads import Workload, parse_shape

CASES = ("diffraction_triclinic", "diffraction_sources", "diffraction_table")
SKIPPED = "not measured"


def cases(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """The other scenes: a line a variant, a column a scene, with its time and error, or what is wrong with it."""
    rows = lab.leading(machine, experiment="diffraction", operation=CASES, dtype="float32")
    scenes = [scene for scene in CASES if any(row.operation == scene for row in rows)]
    found = {(row.variant, row.operation): row for row in rows}
    return [
        {"form": called(name)}
        | {scene.removeprefix("diffraction_"): _said(found.get((name, scene))) for scene in scenes}
        for name in dict.fromkeys(row.variant for row in rows)
    ]


def cases_said(lab: Evidence, machine: str) -> str:
    """Which forms are right in the other scenes, which are wrong in how many, and what is right, a sentence each."""
    rows = lab.leading(machine, experiment="diffraction", operation=CASES, dtype="float32")
    checked = [row for row in rows if not (row.status == "skipped" and absent(row.max_error))]
    right, wrong = [], []
    for name in dict.fromkeys(row.variant for row in checked):
        own = [row for row in checked if row.variant == name]
        bad = sum(row.status not in ("ok", "skipped") for row in own)
        (wrong if bad else right).append(called(name) + (f" ({bad} of {len(own)})" if bad else ""))
    said = [f"Right wherever they ran: {'; '.join(right)}."] if right else []
    said += [f"Wrong or failed: {'; '.join(wrong)}."] if wrong else []
    bounds = {row.operation: Workload(row.operation, parse_shape(row.shape)).tolerance() for row in checked}
    most = [f"{formats.number(off)} ({name.removeprefix('diffraction_')})" for name, off in bounds.items()]
    return " ".join([*said, *([f"The largest error allowed, over the peak: {listing(most)}."] if most else [])])


def _said(row: Row | None) -> str:
    """Time and error of a row, or its status; a host variant has no time by a GPU's clock, but it was checked."""
    if row is None or (row.status == "skipped" and absent(row.max_error)):
        return SKIPPED
    off = f"{formats.number(row.off)} of the peak"
    if row.status not in ("ok", "skipped"):
        status = row.status.replace("_", " ")
        return status if absent(row.off) else f"{status}: off by {off}"
    return f"{'right' if not row.timed else row.took}, {off}"


def programs(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Whole programs against a warm call in process: a line a size and program, all with their intervals."""
    warm = simulations(lab, machine, waited(lab, machine))
    out = []
    for way in probed(lab, machine, "process"):
        shape = way.shape.replace("×", "x")
        call = fastest([row for row in warm if row.shape == shape], [way.variant])
        line = {"pixels": way.shape, "program": called(way.variant)}
        if way.fault:
            out.append(line | {"whole program": way.fault})
            continue
        line |= {"whole program": spent(way, "whole"), "first simulation": spent(way, "simulation")}
        line |= {"writing the file": spent(way, "file output")}
        out.append(line | {"warm call in process": formats.MISSING if call is None else call.took})
    return out


def programs_said(lab: Evidence, machine: str) -> str:
    """What whole programs take at the largest detector beside a warm call of theirs, in a sentence."""
    ways = [way for way in probed(lab, machine, "process") if not way.fault]
    warm = simulations(lab, machine, waited(lab, machine))
    said = []
    for way in (way for way in ways if way.shape == ways[-1].shape):
        call, whole = fastest([row for row in warm if row.at == way.shape], [way.variant]), way.estimate("whole")
        if call is not None and not whole.doubt and not call.time.doubt:
            warm_call = spoken(call.time, "µs")
            said.append(f"{spoken(whole, 'µs')} with *{called(way.variant)}* (a warm call: {warm_call})")
    return f"At {ways[-1].shape} a whole program takes {listing(said)}." if said else ""


COUNTED = (
    "kernel launches",
    "kernel launches, counted again",
    "unique kernels",
    "annotations",
    "compiled regions",
    "GPU time",
    "span",
    "busy",
    "in graph replay",
    "largest idle gap",
    "top kernel",
    "top three kernels",
)
"""Lines of topic ``trace`` that a chapter shows."""
ON_A_CPU = {
    "kernel launches": "operators called",
    "kernel launches, counted again": "operators called, by the dispatcher",
    "unique kernels": "unique operators",
    "GPU time": "time in operators",
    "top kernel": "top operator",
    "top three kernels": "top three operators",
}
"""What those lines count on a CPU, which launches no kernels."""


def counts(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """What a profile of one warm image says: a line per measure, a column per variant."""
    found = main_size(probed(lab, machine, "trace", operation="diffraction"))
    names = {} if lab.primary(machine) == "graph" else ON_A_CPU
    lines = [
        {"one warm image": names.get(name, name)} | {called(way.variant): _counted(way, name) for way in found}
        for name in COUNTED
    ]
    if any(way.fault for way in found):
        lines.append({"one warm image": "status"} | {called(way.variant): way.fault or "ok" for way in found})
    return lines if found else []


def _counted(way: Configuration, name: str) -> str:
    """A line of a trace as text, in its unit."""
    unit = next((line["unit"] for line in way.details if line["name"] == name), "")
    value = way.triple(name, logarithms=False)[0]
    if absent(value):
        return formats.MISSING
    if unit == "us":
        return spent(way, name) if value else "0"
    return f"{formats.number(value)}%" if unit == "%" else f"{value:g}"


def dtype_cost(lab: Evidence, machine: str) -> list[Row]:
    """Each form's row in float64 with its time in float32 as the baseline."""
    return [replace(twice.against(single), baseline="float32") for single, twice, _ in dtype_pairs(lab, machine)]


def cost(lab: Evidence, machine: str) -> str:
    """The title of :func:`dtype_cost`: from the least factor to the greatest, by the clock that verdicts rest on."""
    primary = lab.primary(machine)
    found = [factor for row, _, factor in dtype_pairs(lab, machine) if row.clock == primary and not factor.doubt]
    return f"An image takes {span_text(found)} as long in float64" if found else "An image in float64 against float32"


def quickest(rows: Sequence[Row]) -> str:
    """The title of a figure of time and error: the fastest of ``rows`` whose time says something, and its error."""
    clear = [row for row in rows if not row.time.doubt]
    if not clear:
        return "Time and error"
    best = min(clear, key=lambda row: row.median_us)
    kind = best.dtype if best.math == "ieee" else f"{best.dtype}/{best.math}"
    error = _percent(best.error) if absent(best.off) else f"{_percent(best.off)} of the peak"
    return f"Fastest: {labelled(best)} in {kind}, off by {error}"


def _percent(share: float) -> str:
    """A share as cards say it."""
    return formats.MISSING if absent(share) else f"{formats.spoken(100 * share)}%"


def diluted(lab: Evidence, machine: str) -> tuple[float, Interval] | None:
    """What the mean of one recording call and two replays makes of float64 / float32, and what the replays say."""
    pairs = [pair for pair in dtype_pairs(lab, machine) if pair[0].variant == "compile_reduce_overhead"]
    way = compiled_start(lab, machine)
    if not pairs or way is None or way.variant != "compile_reduce_overhead":
        return None
    single, twice, factor = pairs[0]
    record = way.estimate("call 2").value
    if factor.doubt:
        return None
    return (record + 2 * twice.median_us) / (record + 2 * single.median_us), factor


ACCURACY = {"largest error over peak": "error over the peak", "mean relative error": "mean relative error"}
"""Measure of the probe that is a share → what a page calls it."""
SPOILT = {"scaled": "the same, times 1.1", "faulty row": "the same, one row zero"}
"""What is wrong with an image → the name of its line, beneath that of the image."""


def errors_by_size(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Error over the peak in float32: a line a form, a column a size."""
    found = probed(lab, machine, "accuracy", case="")
    sizes = list(dict.fromkeys(way.shape for way in found))
    out = []
    for name in dict.fromkeys(way.variant for way in found):
        own = {way.shape: way for way in found if way.variant == name}
        values = {
            size: _percent(own[size].triple("largest error over peak")[0]) if size in own else formats.MISSING
            for size in sizes
        }
        out.append({"form": called(name)} | values)
    return out


def blind(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """What each measure of error makes of a right image, two spoilt ones and the direct form: a line an image."""
    found = main_size([way for way in probed(lab, machine, "accuracy") if not way.fault])
    spoilt = {way.variant for way in found if way.case}
    out = []
    for way in found:
        if way.variant not in {*spoilt, "eager_direct"}:
            continue
        values = {name: way.triple(name, logarithms=False)[0] for name in ("correlation", *ACCURACY)}
        line = {"image": SPOILT.get(way.case) or called(way.variant)}
        # Written as S003 writes it: six decimals.
        line["correlation"] = formats.MISSING if absent(values["correlation"]) else f"{values['correlation']:.6f}"
        out.append(line | {what: _percent(values[name]) for name, what in ACCURACY.items()})
    return out


def errors_by_depth(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """How the error of a matrix product grows with its depth: a line a form, from the least depth to the greatest.

    A form that missed the check has an error too. No line where one depth was measured, or no error is left.
    """
    found: dict[str, dict[int, Row]] = {}
    for row in lab.leading(machine, experiment="precision", operation="matmul"):
        if not absent(row.error):
            found.setdefault(f"{row.dtype}, {row.math}", {})[parse_shape(row.shape)[1]] = row
    out = []
    for form, rows in found.items():
        low, high = min(rows), max(rows)
        if low == high or not rows[low].error:
            continue
        line = {"form": form} | {f"error at depth {depth}": _percent(rows[depth].error) for depth in (low, high)}
        grows = formats.with_unit(formats.number(rows[high].error / rows[low].error), "×")
        out.append(line | {"grows": grows, "the check says": rows[high].status})
    return out


def main_lines(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The detail lines at the size that most ways were looked at (the others are there to compare sizes)."""
    looked = dict.fromkeys((tuple(line["shape"]), line["variant"], line["case"]) for line in lines)
    shapes = [shape for shape, _, _ in looked]
    chosen = max(dict.fromkeys(shapes), key=shapes.count, default=())
    return [line for line in lines if tuple(line["shape"]) == chosen]


def traces(lab: Evidence, machine: str, root: Path) -> dict[str, str]:
    """Variant → where its Chrome trace lies, relative to a page in ``notebooks/``.

    Only files that are there, among the committed records or below ``root``, this machine's own.
    """
    found = {}
    for way in probed(lab, machine, "trace", operation="diffraction"):
        shape = way.shape.replace("×", "x")
        name = f"{machine}/traces/{way.operation}-{shape}-{way.variant}-trace.json.gz"
        if any((folder / name).is_file() for folder in (records.COMMITTED, root)):
            found[f"{called(way.variant)} at {way.shape}"] = f"../records/{name}"
    return found


def show_traces(links: dict[str, str]) -> None:
    """Display links to Chrome traces, one a variant."""
    from IPython.display import display

    items = "".join(f'<li><a href="{href}" download>{text}</a></li>' for text, href in links.items())
    display({"text/html": f"<ul>{items}</ul>", "text/plain": "\n".join(links.values())}, raw=True)
