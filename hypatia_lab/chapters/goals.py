"""What the lab's own kernels were to take on an H200, what they take, and what they keep busy."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab import formats, variants
from hypatia_lab.chapters import decisions, tensor_cores
from hypatia_lab.experiments import units
from hypatia_lab.formats import MISSING, absent, listing
from hypatia_lab.intervals import EQUIVALENCE, NOTHING, Interval, reading
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.phrases import times
from hypatia_lab.results import Row

COUNTED = "units"
"""The experiment that counts how busy kernels keep the GPU's units."""
FULL = 0.6
"""A unit that a kernel keeps busy for more of its time is taken for what binds it."""
CHIP, NEAREST, MULTIPROCESSORS = "H200", "H100", 132
"""The goals are of this model of GPU; one of the nearest model that has as many multiprocessors is held to them, too,
though its memory is slower."""

ONCE = tensor_cores.ONCE
"""Forms whose weights are split ahead of the call, which have goals of their own."""


@dataclass(frozen=True)
class Goal:
    """At most ``us`` µs a replayed call of ``workload`` (operation/shape/dtype/math/direction).

    It is for any kernel of our own but :data:`ONCE`, or with ``once`` for these alone. Without ``us``: not behind the
    quickest peer.
    """

    workload: str
    us: float | None
    once: bool = False


LAYER = "linear_relu/{}/{}/forward"
STEP = "linear_relu/{}/{}/forward_backward"
GOALS = (
    Goal(LAYER.format("1024x784x2048", "float32/ieee"), 21),
    Goal(LAYER.format("8192x4096x4096", "float32/ieee"), 1350),
    Goal(LAYER.format("1024x784x2048", "float32/ieee"), 18, once=True),
    Goal(LAYER.format("8192x4096x4096", "float32/ieee"), 1300, once=True),
    Goal(STEP.format("1024x784x2048", "float32/ieee"), 95),
    Goal(STEP.format("8192x4096x4096", "float32/ieee"), 4600),
    Goal(LAYER.format("256x256x512", "bfloat16/ieee"), 1.9),
    Goal(LAYER.format("1024x784x2048", "bfloat16/ieee"), 6.3),
    Goal(LAYER.format("8192x4096x4096", "bfloat16/ieee"), None),
    Goal(LAYER.format("1024x784x2048", "float32/tf32"), 12),
    Goal(STEP.format("1024x784x2048", "bfloat16/ieee"), 20),
    Goal("mlp3/65536x64/bfloat16/ieee/forward", 4.4),
    Goal("mlp3/65536x128/bfloat16/ieee/forward", 11),
    Goal("mlp3/65536x256/bfloat16/ieee/forward", 55),
    Goal("conv_block/5x64x128x128/bfloat16/ieee/forward", 14.5),
    Goal("conv_block/5x64x128x128/float32/ieee/forward", 37),
    Goal("conv_block/5x64x128x128/float32/tf32/forward", 26),
    Goal("conv_block/1x64x128x128/bfloat16/ieee/forward", 10),
    Goal("conv_block/20x64x128x128/bfloat16/ieee/forward", 69),
    Goal("conv_block/5x64x128x128/bfloat16/ieee/forward_backward", 65),
    Goal("diffraction/4096x4096/float32/ieee/forward", 27),
    Goal("diffraction/1024x1024/float32/ieee/forward", 3.3),
    Goal("diffraction_batch/64x256x256/float32/ieee/forward", 8.5),
)


@dataclass(frozen=True)
class Outcome:
    """How far ``goal`` was reached: the quickest of our ``own`` that count, and the quickest ``peer``, if there is one.

    ``missed`` is None where the interval holds the goal.
    """

    goal: Goal
    own: Row
    peer: Row | None

    @property
    def speed(self) -> Interval:
        """The best peer's time over our own; NaN without a peer."""
        return self.own.against(self.peer).speed if self.peer else NOTHING

    @property
    def missed(self) -> bool | None:
        """Whether the goal is surely missed (True) or reached (False)."""
        if self.goal.us is None:
            return self.speed.below(1 - EQUIVALENCE) or (None if self.speed.doubt else False)
        time = self.own.time
        return True if time.above(self.goal.us) else False if time.below(self.goal.us) else None


def concerns(lab: Evidence, machine: str) -> bool:
    """Whether ``machine`` is held to the goals."""

    def is_held(facts: dict[str, Any]) -> bool:
        name = facts.get("name", "")
        return CHIP in name or NEAREST in name and facts.get("multiprocessors") == MULTIPROCESSORS

    return any(is_held(record.run["facts"]) for record in lab.of(machine))


def outcomes(lab: Evidence, machine: str) -> list[Outcome]:
    """What became of :data:`GOALS` on ``machine``, of those that its records have a time for, in their order."""
    if not concerns(lab, machine):
        return []
    variants.load()
    found = []
    for goal in GOALS:
        rows: list[Row] = []
        for experiment in decisions.CONTESTS:  # ratios within one run: the first experiment that has the workload
            timed = lab.timed(machine, experiment=experiment, clock="graph")
            if rows := [row for row in timed if row.workload == goal.workload]:
                break
        ours = [row for row in rows if decisions.is_kernel(row) and (row.variant in ONCE) == goal.once]
        peers = [row for row in rows if row.origin == "peer"]
        if (own := decisions.quickest(ours)) is not None:
            found.append(Outcome(goal, own, decisions.quickest(peers)))
    return found


def summary(lab: Evidence, machine: str, found: Sequence[Outcome]) -> str:
    """How many goals are reached, who is ahead where they are not, and how near the kernels come to the limit."""
    reached, missed, unsaid = ([one for one in found if one.missed is said] for said in (False, True, None))
    text = f"**{len(reached)} of {len(found)} goals are reached**"
    text += f", {len(unsaid)} cannot be told. " if unsaid else ". "
    if missed:
        ahead = sum(reading(one.speed) == "faster" for one in missed)
        text += f"In {ahead} of the {len(missed)} that are missed, the kernel is still ahead of its best peer. "
    over = sorted(
        (one.own.median_us / one.own.limit_us, formats.workload(one.goal.workload))
        for one in found
        if not absent(one.own.limit_us) and not one.own.time.doubt
    )
    if over:
        middle = statistics.median(times for times, _ in over)
        text += f"At the median a kernel takes {formats.spoken(middle)} times the limit. "
        for word, (times, work) in (("nearest", over[0]), ("farthest", over[-1])):
            text += f"The {word} takes {formats.spoken(times)} times the limit ({work}). "
    if not any(CHIP in record.run["facts"].get("name", "") for record in lab.of(machine)):
        text += f"The times were set for an {CHIP}, whose memory is faster than this GPU's."
    return text.strip()


def lines(found: list[Outcome]) -> list[dict[str, str]]:
    """Each outcome as a line of a table: the kernel's time beside the goal, its limit and its best peer."""
    return [_line(one) for one in found]


def _line(one: Outcome) -> dict[str, str]:
    own, goal, peer = one.own, one.goal, one.peer
    return {
        "work": formats.workload(goal.workload),
        "kernel": variants.label(own.operation, own.variant),
        "takes": own.took,
        "goal": formats.duration(goal.us) if goal.us else "not behind",
        "reached": {True: "no", False: "yes", None: "–"}[one.missed],
        "limit": MISSING if absent(own.limit_us) else formats.duration(own.limit_us),
        "times as fast as its best peer": times(one.speed),
        "best peer": variants.label(peer.operation, peer.variant) if peer else MISSING,
    }


# ---------------------------------------------------------------- what binds


def shares(lab: Evidence, machine: str) -> list[dict[str, Any]]:
    """Of each kernel counted on ``machine``: workload, variant, name, time in µs, and its share of each unit."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    topics = {topic: unit for unit, topic in units.TOPICS.items()} | {"kernel_time": "us"}
    for line in lab.details(machine=machine, experiment=COUNTED, case=units.CASE):
        if line["status"] != "ok" or line["topic"] not in topics:
            continue
        shape, direction = "x".join(map(str, line["shape"])), line.get("direction", "forward")
        work = "/".join([line["operation"], shape, line["dtype"], line["math"], direction])
        key = (work, line["variant"], line["name"])
        known = found.setdefault(key, dict(zip(("work", "variant", "kernel"), key, strict=True)))
        known[topics[line["topic"]]] = line["values"][0]
    return list(found.values())


def bound(found: Sequence[dict[str, Any]]) -> str:
    """How many of the kernels ``found`` are near what one unit can do, and which unit that is, in a few sentences."""
    busiest = [max(units.TOPICS, key=lambda unit: line[unit]) for line in found]
    full = Counter(unit for unit, line in zip(busiest, found, strict=True) if line[unit] > FULL)
    which = f": {listing([f'{unit} ({number})' for unit, number in full.most_common()])}" if full else ""
    text = (
        "What holds a kernel back? Hardware counters say for how much of a kernel's time each unit of the GPU is busy. "
    )
    text += (
        f"A unit that is busy for more than {FULL:.0%} of the time is taken for what holds it back: ask less of that. "
    )
    text += f"**{full.total()} of {len(found)} kernels have such a unit{which}.** "
    if full.total() < len(found):
        text += "The others likely wait, for data or for an earlier step. They may gain by more work in flight."
    return text.strip()


def unit_lines(found: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Each kernel of ``found`` as a line of a table."""
    return [
        {
            "work": formats.workload(line["work"]),
            "kernel": _short(line["kernel"]),
            "takes": formats.duration(line["us"]),
        }
        | {unit: f"{line[unit]:.0%}" for unit in units.TOPICS}
        for line in found
    ]


def _short(kernel: str) -> str:
    """A kernel's name without its parameters and what it is made for."""
    return re.split(r"[<(]", kernel.removeprefix("void "))[0].rpartition("::")[2]
