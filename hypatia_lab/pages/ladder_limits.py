"""What hardware counters say holds each step of the ladder back."""

from __future__ import annotations

import math
from typing import Any

from hypatia_lab import formats
from hypatia_lab.experiments.units import LIMIT_TOPICS, LIMITED
from hypatia_lab.pages import ladder
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.variants import names

STALL = "stall "
WAITS = {
    "long_scoreboard": "numbers from memory",
    "short_scoreboard": "an answer of shared memory",
    "mio_throttle": "a place in shared memory's queue",
    "lg_throttle": "a place in memory's queue",
    "barrier": "the other warps of the block",
    "math_pipe_throttle": "the arithmetic units",
    "gmma": "the product of a warpgroup",
    "wait": "the instruction before",
    "not_selected": "their turn, ready to go on",
}
"""ncu's word for what warps wait for → what a page calls it."""


def counted(data: Evidence, machine: str) -> dict[str, dict[str, float]]:
    """Step, easiest first → what was counted of its kernel, by the names of :data:`LIMIT_TOPICS`."""
    meaning = {topic: name for name, topic in LIMIT_TOPICS.items()}
    found: dict[str, dict[str, float]] = {}
    for line in data.details(machine=machine, experiment="units", case=LIMITED, status="ok"):
        if line["topic"] in meaning:
            found.setdefault(line["variant"], {})[meaning[line["topic"]]] = line["values"][0]
    return {step: found[step] for step in ladder.steps() if step in found}


def waits(own: dict[str, float]) -> str:
    """What warps wait for most often; empty where none of it was counted."""
    stalls = {name.removeprefix(STALL): value for name, value in own.items() if name.startswith(STALL)}
    most = max(stalls, key=lambda name: stalls[name], default="")
    return WAITS.get(most, most.replace("_", " "))


def rows(data: Evidence, machine: str) -> dict[str, dict[str, str]]:
    """Step → its line of a table: what its kernel takes up, moves and keeps busy, and what its warps wait for.

    "Room" is for so many blocks on a multiprocessor, by registers and by shared memory.
    """
    tensor = names("linear_relu", "ladder_tensor")
    lines: dict[str, dict[str, str]] = {}
    for step, own in counted(data, machine).items():

        def said(*what: str, unit: str = "", per: float = 1.0, decimals: int | None = None, own: Any = own) -> str:
            if formats.absent(found := sum(own.get(name, math.nan) for name in what) / per):
                return formats.MISSING
            return formats.with_unit(formats.number(found, decimals), unit)

        conflicts = own.get("conflict turns", math.nan) / max(own.get("shared turns", math.nan), 1)
        lines[step] = {
            "step": ladder.titles()[step],
            "registers a thread": said("registers", decimals=0),
            "shared memory a block": said("static shared memory", "dynamic shared memory", unit="B", decimals=0),
            "room by registers": said("blocks by registers", decimals=0),
            "room by shared memory": said("blocks by shared memory", decimals=0),
            "occupancy": said("occupancy", unit="%", per=0.01),
            "from memory": said("read", unit="GB", per=1e9),
            "through L2": said("l2", unit="GB", per=1e9),
            "turns for conflicts": formats.MISSING if formats.absent(conflicts) else f"{conflicts:.0%}",
            "multiply-add units busy": said("tensor cores" if step in tensor else "arithmetic", unit="%", per=0.01),
            "warps wait most for": waits(own) or formats.MISSING,
        }
    return lines


def told(data: Evidence, machine: str, step: str) -> str:
    """What was counted of a step in a sentence; empty where nothing was."""
    line = rows(data, machine).get(step)
    if line is None:
        return ""
    return (
        f"*By counters:* {line['registers a thread']} registers a thread; the multiply-add units are busy for "
        f"{line['multiply-add units busy']} of the time; warps wait most for {line['warps wait most for']}."
    )
