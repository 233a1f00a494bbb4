"""Where launching, fusing and own kernels pay: points and rows over several experiments of one machine."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import Any

from hypatia_lab import formats, intervals, results, tables, variants
from hypatia_lab.experiments import units
from hypatia_lab.figures.ceilings import Point
from hypatia_lab.figures.comparisons import speeds
from hypatia_lab.figures.drawn_rows import ordered
from hypatia_lab.figures.language import BLUE, PRECISIONS, SHAPES, Style
from hypatia_lab.figures.mark_rows import Block, Cell, draw
from hypatia_lab.formats import absent
from hypatia_lab.pages.beside import error
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.numbers import ratio
from hypatia_lab.pages.readings import quickest
from hypatia_lab.pages.untuned import UNSEEN
from hypatia_lab.results import Row

EAGER = ("aten_fusion", "mlp_models", "diffraction", "conv_block")
"""Experiments whose eager calls are timed with and without their launches."""
FUSED = ("tensor_cores", "aten_fusion", "backward", "fused_mlp", "mlp_models", "conv_block")
"""Experiments in which forms in fewer kernels meet eager; of one workload the first counts."""
CONTESTS = ("tensor_cores", "backward", "fused_mlp", "conv_block", "diffraction", "gemm_ladder")
"""Experiments in which kernels of our own meet the library and the compiler; of one workload the first counts."""
COUNTED = "units"
"""The experiment that counts how busy kernels keep the GPU's units."""
READ = tuple(dict.fromkeys((*EAGER, *FUSED, *CONTESTS, UNSEEN)))
FUSING = {"tensor_cores", "backward", "fused", "own kernel"}
"""Tags of the kernels of our own that do in one what eager does in several."""
OPERATIONS = ("linear_relu", "mlp2", "mlp3", "conv_block", "diffraction")
SWEPT = {"fused_mlp": ("65536x64", "65536x128")}
"""Experiment → its shapes that count: of a sweep over sizes not every point is a workload of its own."""
COMPILED = ("diffraction",)
"""Operations of which no library has a call: the compiler is the only peer."""


def is_kernel(row: Row) -> bool:
    """Whether it is a kernel of our own, and not what the compiler or a CUDA graph makes of our formulae."""
    return row.origin == "own" and not row.variant.startswith("compile") and not row.variant.endswith("_graph")


def splits(row: Row) -> bool:
    """Whether it multiplies in split numbers on tensor cores, which is another arithmetic than its baseline's."""
    known = variants.variants(row.operation).get(row.variant)
    return row.math.endswith("x3") or (known is not None and known.splits is not None)


def _fuses(row: Row) -> bool:
    """Whether it is a form in fewer kernels, in the arithmetic of its baseline."""
    known = variants.variants(row.operation).get(row.variant)
    fused = is_kernel(row) and known is not None and bool(FUSING & set(known.tags))
    return (row.variant == "epilogue" or fused) and not splits(row)


def named(row: Row) -> str:
    """A workload of one operation for a reader: ``1024×784×2048 float32/tf32``."""
    text = f"{row.at} {row.dtype}/{row.math}".removesuffix("/ieee")
    return f"{text} {formats.direction(row.direction)}".removesuffix(" forward")


def launched(data: Evidence, machine: str) -> list[tuple[Point, intervals.Interval]]:
    """Eager calls by the wall clock over the same calls replayed as a graph, over the µs of the latter; GPU only."""
    found = []
    for experiment in EAGER if data.primary(machine) == "graph" else ():
        walls = {row.workload: row for row in data.timed(machine, experiment=experiment, variant="eager", clock="wall")}
        for row in data.timed(machine, experiment=experiment, variant="eager", clock="graph"):
            if row.workload in walls and (factor := walls[row.workload].over(row)).n:
                found.append((Point(row.operation, row.origin, named(row), row.median_us, factor.triple), factor))
    return found


def balance(data: Evidence, machine: str) -> dict[str, float]:
    """dtype/math → FLOP per byte at which the best measured rates of both take equally long, warm."""
    best, clock = data.measured[machine].ceilings, data.primary(machine)
    bandwidth = best.get(("copy", "", clock))
    rates = {precision: best.get(("matmul", precision, clock)) for precision in PRECISIONS}
    return {precision: rate / bandwidth for precision, rate in rates.items() if rate and bandwidth}


def fused(data: Evidence, machine: str) -> list[tuple[Point, Row]]:
    """Gain over eager of the quickest form in fewer kernels, over FLOP per byte in units of the machine's balance."""
    variants.load()
    found, turn = {}, balance(data, machine)
    for experiment in FUSED:
        forms = [row for row in data.timed(machine, experiment=experiment) if _fuses(row)]
        for workload in dict.fromkeys(row.workload for row in forms if row.workload not in found):
            row = quickest(row for row in forms if row.workload == workload)
            assert row is not None
            precision = f"{row.dtype}/{row.math}"
            if not absent(row.ratio_low) and precision in turn and row.flops:
                along = row.flops / row.traffic / turn[precision]
                kind = f"{row.operation}, {row.direction}".removesuffix(", forward").replace("forward_backward", "step")
                label = f"{named(row)}, {variants.label(row.operation, row.variant)}"
                found[workload] = Point(kind, row.origin, label, along, row.speed.triple), row
    return list(found.values())


def contests(data: Evidence, machine: str, experiments: Sequence[str] = CONTESTS) -> list[Row]:
    """The quickest kernel of our own where the library or the compiler was timed too: a row a workload.

    Its ratio is the time of its best peer over its own, its ``baseline`` that peer.
    """
    variants.load()
    found: dict[str, Row] = {}
    for experiment in experiments:
        rows = data.timed(machine, experiment=experiment, operation=OPERATIONS)
        rows = [row for row in rows if row.shape in SWEPT.get(experiment, (row.shape,))]
        for workload in dict.fromkeys(row.workload for row in rows if row.workload not in found):
            here = [row for row in rows if row.workload == workload]
            own = quickest(row for row in here if is_kernel(row) and not row.variant.startswith("dispatched"))
            peers = [row for row in here if row.origin == "peer" and not row.variant.endswith("_graph")]
            known = [row for row in peers if row.operation not in COMPILED or row.variant.startswith("compile")]
            peer = quickest(peers)
            if known and own is not None and peer is not None:
                found[workload] = own.against(peer)
    return list(found.values())


def standing(data: Evidence, machine: str) -> list[dict[str, str]]:
    """How often the quickest own kernel is ahead of its best peer: a line a kind of contest.

    Products of split numbers, which are another arithmetic than their peer's, and shapes that nobody tuned for apart.
    """
    tuned = contests(data, machine)
    drawn = contests(data, machine, [UNSEEN])
    kinds = {
        f"{shapes}, {arithmetic}": [row for row in rows if splits(row) == split]
        for shapes, rows in {"tuned": tuned, "random": drawn}.items()
        for arithmetic, split in {"same arithmetic": False, "split products": True}.items()
    }
    lines = []
    for kind, rows in kinds.items():
        times = sorted(one for one in (error(data, row, variant="eager") for row in rows) if not absent(one))
        off = [statistics.median(times), times[-1]] if times else [float("nan")] * 2
        middle, most = (f"{formats.number(value)}×".replace(f"{formats.MISSING}×", formats.MISSING) for value in off)
        words = [row.reading for row in rows]
        counts = {word: str(words.count(word)) for word in ("faster", "equal", "slower")}
        undecided = str(len(words) - sum(map(int, counts.values())))
        line = {"where": kind, "workloads": str(len(rows))} | counts | {"undecided": undecided}
        lines.append(line | {"error over eager's": middle, "at most": most})
    return [line for line in lines if line["workloads"] != "0"]


SIDES = {
    "memory binds": (0.0, 1.0),
    "arithmetic binds, by less than ten times": (1.0, 10.0),
    "arithmetic binds, by ten times or more": (10.0, float("inf")),
}
"""Parts of the scale of operations per byte over the machine's balance."""


def side_lines(data: Evidence, machine: str) -> list[dict[str, str]]:
    """Gains of fusing on each of :data:`SIDES`: how many cases, the least, the middle and the largest."""
    clear = [(point.along, row.speed.value) for point, row in fused(data, machine) if not row.speed.doubt]
    lines = []
    for side, (low, high) in SIDES.items():
        if own := sorted(gain for along, gain in clear if low <= along < high):
            texts = [f"{formats.spoken(gain)}×" for gain in (own[0], statistics.median(own), own[-1])]
            lines.append(
                {"where": side, "cases": str(len(own))} | dict(zip(("least", "median", "most"), texts, strict=True))
            )
    return lines


def opponents(data: Evidence, rows: Sequence[Row]) -> Any:
    """Rows of :func:`contests` of one direction as a figure and its table: speed against the best peer, named there."""
    rows = ordered(rows)
    blocks: dict[str, list[Cell]] = {}
    for row in rows:
        kernel, peer = (variants.label(row.operation, name) for name in (row.variant, row.baseline))
        kind = f"{row.dtype}/{row.math}".removesuffix("/ieee")
        name = f"{row.at}, {kind}: {ratio(row.speed):brief} {peer}"
        said = f"{row.operation} {row.at}, {kind}<br>{kernel} against {peer}"
        look, text = Style(BLUE, SHAPES["own"][0], 0), f"{formats.told(row.speed)}, {row.reading}"
        cell = Cell(name, "", look, row.speed.triple, said, text, row.variant)
        blocks.setdefault(row.operation, []).append(cell)
    counts = tables.counted([row.reading for row in rows])
    under = [rows[0].machine, f"{rows[0].clock} clock", "grey: equal within ±2%", counts]
    title = f"The quickest own kernel against its best peer, {formats.direction(rows[0].direction)}"
    parts = [Block(operation, own, **speeds(rows, "best peer")) for operation, own in blocks.items()]
    table = tables.results_table(rows)
    table.insert(4, "best peer", [row.baseline for row in rows])
    table["error over eager's"] = [f"{formats.number(error(data, row, variant='eager'))}×" for row in rows]
    return draw(parts, title, under, table, ["workload", "variant", "best peer", "ratio"]), table


def busy(data: Evidence, machine: str) -> list[dict[str, str]]:
    """Each counted kernel as a line of a table: its workload, its time, and its share of each unit of the GPU."""
    found: dict[tuple[str, ...], dict[str, float]] = {}
    topics = {topic: unit for unit, topic in units.TOPICS.items()} | {"kernel_time": "us"}
    for line in data.details(machine=machine, experiment=COUNTED, case=units.CASE, status="ok"):
        if line["topic"] in topics:
            own = found.setdefault((results.workload(line), line["variant"], line["name"]), {})
            own[topics[line["topic"]]] = line["values"][0]
    return [
        {
            "work": formats.workload(work),
            "kernel": re.split(r"[<(]", kernel.removeprefix("void "))[0].rpartition("::")[2],
            "takes under the profiler": formats.duration(own["us"]),
        }
        | {unit: f"{own[unit]:.0%}" for unit in units.TOPICS}
        for (work, _, kernel), own in found.items()
    ]
