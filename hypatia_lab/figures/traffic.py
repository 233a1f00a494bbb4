"""Figures of memory traffic: what hardware counters saw of one call.

From detail lines of topic ``counters`` and of the topics that hold its kernels (those of the probe
:mod:`hypatia_lab.probes.counters`), each with its ``machine``; otherwise as in :mod:`hypatia_lab.figures.probes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypatia_lab import formats, tables
from hypatia_lab.figures import marks
from hypatia_lab.figures.language import GREY, FigureError
from hypatia_lab.figures.mark_rows import Segment, bars, draw, stacked
from hypatia_lab.figures.probes import WHO, Configuration, identity, lane, nothing, process_count, read, short_kernel
from hypatia_lab.formats import absent

PARTS = {"read": ("dram_read",), "written": ("l2_written", "dram_written")}
"""What a kernel does → the topics of its bytes, the one that says most of it first."""


def traffic(details: Sequence[dict[str, Any]], title: str) -> tuple[Any, Any]:
    """Bytes that one call moves, kernel by kernel: a lane a configuration, read parts plain and written ones striped.

    Read is what comes from memory; written is what kernels write into the L2 cache (where that was not counted: what
    reaches memory meanwhile). The line stands at the compulsory bytes, each input read and each output written once.
    Values are arithmetic means over the processes. Raises :class:`FigureError` when nothing was counted, or for details
    of several workloads.
    """
    configs, fields, common = read(details, "traffic", "counters")
    if several := [field for field in fields if field in ("operation", "shape", "math")]:
        raise FigureError(f"traffic: one workload at a time, these details differ in {', '.join(several)}")
    compulsory = [found for config in configs if not absent(found := _megabytes(config, "compulsory bytes"))]
    if not compulsory:
        raise nothing(configs, "traffic", "counted bytes")
    kernels = {what: _by_way(details, topics) for what, topics in PARTS.items()}
    cells, rows = [], []
    for config in configs:
        parts, pieces = _parts(config, kernels), []
        for number, (what, line, size) in enumerate(parts):
            said = f"{short_kernel(line['name'])}, {line['count']}×, {what}: {formats.number(size)} MB"
            look, strength = (config.look.colour, STRIPED[what]), 0.7 if number % 2 else 1.0
            pieces.append(Segment(0, size, look, said, strength))
        whole = sum((size for _, _, size in parts), 0.0)
        cells.append(lane(config, fields, text=f"{formats.number(whole)} MB", segments=stacked(pieces)))
        named: dict[str, dict[str, Any]] = {}
        for what, line, size in parts:
            named.setdefault(line["name"], {"launches": line["count"]})[what] = size
        for name, own in (named or {formats.MISSING: {"launches": formats.MISSING}}).items():
            sizes = {f"{what}, MB": formats.number(own.get(what)) for what in PARTS}
            ends = {"kernel": name, "status": config.fault or "ok"}
            rows.append(identity(config) | {"launches": own["launches"]} | sizes | ends)
    key = [(marks.swatch(GREY, pattern), what) for what, pattern in STRIPED.items()]
    under = [*common, process_count(configs), f"line: compulsory, {formats.number(compulsory[0])} MB"]
    table = tables.frame(rows)
    blocks = bars({"": cells}, "moved by one call, MB", formats.number, [(compulsory[0], "solid")])
    columns = [*WHO, "kernel", *(f"{what}, MB" for what in PARTS)]
    return draw(blocks, title, [*under, "shades tell kernels apart"], table, columns, key), table


STRIPED = {"read": "", "written": "/"}
"""What a kernel does → the pattern of its bytes."""


def _parts(
    config: Configuration, kernels: Mapping[str, Mapping[tuple[str, ...], Configuration]]
) -> list[tuple[str, dict[str, Any], float]]:
    """What of :data:`PARTS` the kernels of one name do in one call, their line (name, count of launches), and MB.

    First what they read, then what they write, in order of launch.
    """
    return [
        (what, line, size)
        for what in PARTS
        if (own := kernels[what].get(_key(config))) is not None
        for line in own.details
        if not absent(size := _megabytes(own, line["name"]))
    ]


def _megabytes(config: Configuration, name: str) -> float:
    return config.triple(name, logarithms=False)[0] / 1e6


def _key(config: Configuration) -> tuple[str, ...]:
    return (config.variant, config.case, *config.place.values())


def _by_way(details: Sequence[dict[str, Any]], topics: Sequence[str]) -> dict[tuple[str, ...], Configuration]:
    """The kernels of each configuration in the first of ``topics`` that has them."""
    found: dict[tuple[str, ...], Configuration] = {}
    for topic in reversed(topics):
        if any(line["topic"] == topic for line in details):
            found |= {_key(config): config for config in read(details, "traffic", topic)[0]}
    return found
