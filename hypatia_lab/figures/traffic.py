"""Figures of memory traffic: what hardware counters saw of one call.

From detail lines of topic ``counters`` and of the topics that hold its kernels (those of the probe
:mod:`hypatia_lab.probes.counters`), each with its ``machine``; otherwise as in :mod:`hypatia_lab.figures.probes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab import formats
from hypatia_lab.figures.language import LINE, SMALL, FigureError, assemble, heading, rule_trace
from hypatia_lab.figures.panels import above_rows
from hypatia_lab.figures.probe_rows import (
    COLUMN,
    Configuration,
    bar_trace,
    closed,
    frame,
    identity,
    lanes,
    nothing,
    process_count,
    read,
)
from hypatia_lab.figures.probes import short_kernel
from hypatia_lab.formats import absent

PARTS = {"read": ("dram_read",), "written": ("l2_written", "dram_written")}
"""What a kernel does → the topics of its bytes, the one that says most of it first."""


def traffic(details: Sequence[dict[str, Any]], title: str) -> tuple[Any, Any]:
    """Bytes that one call moves, kernel by kernel: a lane a configuration, read parts plain and written ones striped.

    Read is what comes from memory; written is what kernels write into the L2 cache (where that was not counted: what
    reaches memory meanwhile). The black line with white edges stands at the compulsory bytes, each input read and
    each output written once. Values are arithmetic means over the processes. Raises :class:`FigureError` when nothing
    was counted, or for details of several workloads.
    """
    configs, fields, common = read(details, "traffic", "counters")
    if several := [field for field in fields if field in ("operation", "shape", "math")]:
        raise FigureError(f"traffic: one workload at a time, these details differ in {', '.join(several)}")
    compulsory = [found for config in configs if not absent(found := _megabytes(config, "compulsory bytes"))]
    if not compulsory:
        raise nothing(configs, "traffic", "counted bytes")
    kernels = {what: _by_way(details, topics) for what, topics in PARTS.items()}
    line = round(compulsory[0], 3)
    ends, said = [-0.5, len(configs) - 0.5], f"compulsory: {formats.number(line)} MB"
    # Black between two white edges shows on every bar and on either ground.
    rule = [rule_trace([line] * 2, ends, "solid", said, line={"color": c, "width": w}) for c, w in _CASED]
    data: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    told: list[str] = []
    longest = line
    column = SMALL | {"xref": "paper", "x": 1, "xanchor": "left", "xshift": 8}
    for n, config in enumerate(configs):
        parts = _parts(config, kernels)
        if not parts:
            notes.append(column | {"text": f"<i>{config.status}</i>", "y": n})
            rows.append(_row(config, formats.MISSING, []))
            continue
        at = 0.0
        for part in parts:
            hover = f"{config.said(fields)}<br>{short_kernel(part.kernel)}, {part.launches}×"
            shown = {"name": f"{config.text(fields)}, {part.what}", "width": 0.6}
            shown |= {"hovertext": [f"{hover}<br>{part.what}: {formats.number(part.size)} MB"]}
            pattern = "/" if part.what == "written" else ""
            bars = bar_trace(config.look.colour, pattern, [at], [part.size], [n], **shown)
            bars["marker"]["line"] = {"width": 1, "color": LINE}  # where a kernel's part ends
            data.append(bars)
            at += part.size
        longest = max(longest, at)
        notes.append(column | {"text": f"{formats.number(at)} MB", "y": n})
        names = list(dict.fromkeys(part.kernel for part in parts))
        rows += [_row(config, name, [part for part in parts if part.kernel == name]) for name in names]
        launches = sum(part.launches for part in parts if part.what == "read")
        sums = {what: sum(part.size for part in parts if part.what == what) for what in PARTS}
        told.append(
            f"{config.text(fields)}: {launches} kernel{'' if launches == 1 else 's'}, "
            + ", ".join(f"{formats.number(size)} MB {what}" for what, size in sums.items())
        )
    under = [
        *common,
        process_count(configs),
        "plain: read",
        "striped: written",
        "black and white line: compulsory",
    ]
    head = heading(title, under)
    head["margin"] |= {"r": COLUMN}
    names = [config.text(fields) for config in configs]
    layout = lanes(head, names) | {
        "barmode": "overlay",
        "xaxis": {"range": [0, round(1.05 * longest, 3)], "nticks": 6, "title": {"text": "moved by one call, MB"}},
        "annotations": notes,
    }
    alt = (
        f"Bytes moved by one call, by kernel ({', '.join(common)}); compulsory: {formats.number(line)} MB. "
        f"{'; '.join(told)}."
    )
    return assemble(data + rule, above_rows(closed(layout), names), alt), frame(rows)


_CASED = (("#ffffff", 5), ("#000000", 2))


@dataclass(frozen=True)
class _Part:
    """What kernels of one name do in one call: ``what`` of :data:`PARTS`, how many launches, how many MB."""

    what: str
    kernel: str
    launches: int
    size: float


def _parts(config: Configuration, kernels: Mapping[str, Mapping[tuple[str, ...], Configuration]]) -> list[_Part]:
    """The parts of one configuration: what its kernels read, then what they write, in order of launch."""
    return [
        _Part(what, line["name"], line["count"], size)
        for what in PARTS
        if (own := kernels[what].get(_key(config))) is not None
        for line in own.details
        if not absent(size := _megabytes(own, line["name"]))
    ]


def _row(config: Configuration, kernel: str, parts: Sequence[_Part]) -> dict[str, Any]:
    sizes = {part.what: part.size for part in parts}
    cells = {f"{what}, MB": formats.number(sizes.get(what)) for what in PARTS}
    launches = parts[0].launches if parts else formats.MISSING
    return identity(config) | {"launches": launches} | cells | {"kernel": kernel, "status": config.fault or "ok"}


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
