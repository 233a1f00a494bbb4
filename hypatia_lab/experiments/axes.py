"""Plans as data: sweeps over shapes, dtypes and variants, of which preset and device pick."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypatia_lab import variants
from hypatia_lab.experiments.plan import PRESETS, Experiment, Group, Probe, Shapes
from hypatia_lab.messages import unknown
from hypatia_lab.workloads import DTYPES, MATH, Workload

BOTH = "eager eager@again"
"""The baseline and its A/A control."""
STEP = "forward_backward"
KINDS = {"cuda": "float32 tf32 bfloat16", "cpu": "float32 bfloat16"}
"""What is timed of a product."""
FEWER_KINDS = {"cuda": "float32 bfloat16", "cpu": "float32"}
CPU_CLOCKS = {"quick": "hot", "": "hot cold"}
"""The cold cache is worth its time beyond the quick preset."""
QUICKEST = {"cuda": "graph", "cpu": "hot"}
"""How fast it computes."""
CALLED = {"cuda": "graph wall", "cpu": "hot"}
"""And what a caller waits for, where launching is a part of it."""
SLOW = 2**33
"""Multiplications of a product that takes a CPU seconds."""
WORDS = {*PRESETS, "cpu", "cuda", "asked", "first", "slow", *DTYPES, *MATH["float32"]}
"""What may stand in a key, beside a shape and a number, the first extent of one."""


@dataclass(frozen=True)
class Setting:
    """What a plan is asked for: a preset, a device (cpu or cuda), and shapes in place of its own, if any."""

    preset: str
    device: str
    shapes: Shapes = ()

    def pick(self, among: Any, *words: Any) -> Any:
        """``among``; of a mapping the value of the first key that fits, and () where none does.

        A key fits if it is one of ``words``, such as a shape, or if each word in it is one of them, the preset, the
        device, or "asked" where shapes are asked for. So the key "" always fits. Raises ``KeyError`` for a word that
        none of these is.
        """
        told = {self.preset, self.device, "asked" if self.shapes else "", *words}
        while isinstance(among, Mapping):
            there = {key: set(key.split()) if isinstance(key, str) else {key} for key in among}
            for word in {word for words in there.values() for word in words if isinstance(word, str)}:
                if word not in WORDS and not word.isdigit():
                    raise KeyError(unknown("word", word, WORDS))
            key = next((key for key, words in there.items() if words <= told), None)
            among = () if key is None else among[key]
        return among


@dataclass(frozen=True)
class Axes:
    """Workloads of one operation over ``shapes`` × ``kinds``, and the variants at each.

    Each axis is a value, or a mapping of which :meth:`Setting.pick` picks: by preset and device; at a workload also by
    its shape, the shape's first extent, dtype and math, by "first" for the first of the shapes, and by "slow" for what
    takes a CPU seconds. Of ``kinds``, a word is a dtype (its math is ieee) or a math of float32.

    ``names`` are words, too, or several of them and of such mappings: a variant; "?compile" for one that the quick
    preset of a CPU leaves out, for each of its processes would spend seconds on it; "#fusion" for those of a tag,
    "#new" for those of none (:func:`variants.names`), "#every" for all; "#peers" for other libraries' that launch on
    PyTorch's stream, "#apart" for those with one of their own: none on a CPU, where most cannot run, and none in the
    quick preset, for each plans, tunes or compiles for seconds.

    ``asked`` says what shapes that are asked for do, where the axis has any shape: "each" takes its place, the "first"
    does, it is "dropped" for them, or "kept".
    """

    operation: str
    shapes: Any
    names: Any
    kinds: Any = "float32"
    direction: str = "forward"
    asked: str = "each"

    def workloads(self, at: Setting) -> Iterator[tuple[Workload, tuple[Any, ...]]]:
        """Each workload, and the words by which its values are picked."""
        shapes = at.pick(self.shapes)
        if at.shapes and shapes and self.asked != "kept":
            shapes = at.shapes[: {"each": None, "first": 1, "dropped": 0}[self.asked]]
        for number, shape in enumerate(shapes):
            words: tuple[Any, ...] = (tuple(shape), str(shape[0]), "" if number else "first")
            words += ("slow",) if at.device == "cpu" and math.prod(shape) > SLOW else ()
            for kind in (at.pick(self.kinds, *words) or "").split():
                dtype, mode = (kind, "ieee") if kind in DTYPES else ("float32", kind)
                yield Workload(self.operation, tuple(shape), dtype, mode, self.direction), (*words, dtype, mode)

    def chosen(self, at: Setting, words: Sequence[Any]) -> tuple[str, ...]:
        """The names of the variants at the workload of ``words``."""

        def flat(entries: Any) -> Iterator[str]:
            picked = at.pick(entries, *words)
            for entry in picked.split() if isinstance(picked, str) else picked:
                if not isinstance(entry, str) or " " in entry:
                    yield from flat(entry)
                elif entry.startswith("#"):
                    yield from self.tagged(at, entry[1:])
                elif not entry.startswith("?"):
                    yield entry
                elif (at.preset, at.device) != ("quick", "cpu"):
                    yield entry[1:]

        return tuple(flat(self.names))

    def tagged(self, at: Setting, tag: str) -> tuple[str, ...]:
        """The variants that ``tag`` stands for, in the order of registration."""
        if tag == "every":
            return tuple(variants.variants(self.operation))
        if tag not in ("peers", "apart"):
            return variants.names(self.operation, *({tag} - {"new"}), direction=self.direction)
        if at.preset == "quick" or at.device == "cpu":
            return ()
        found = variants.names(self.operation, "peer", direction=self.direction)
        own_stream = tag == "apart"
        return tuple(name for name in found if variants.find(self.operation, name).own_stream == own_stream)


@dataclass(frozen=True)
class Sweep(Axes):
    """A group for each workload, timed by ``clocks`` within ``budget_s``; without a clock it is checked only."""

    clocks: Any = field(default_factory=lambda: QUICKEST)
    budget_s: Any = 0.0

    def __call__(self, at: Setting) -> Iterator[Group]:
        for work, words in self.workloads(at):
            clocks = tuple((at.pick(self.clocks, *words) or "").split())
            yield Group(work, self.chosen(at, words), clocks, at.pick(self.budget_s, *words))


@dataclass(frozen=True)
class Looks(Axes):
    """A probe for each workload and variant."""

    topic: str = "trace"
    case: str = ""
    processes: Any = 1

    def __call__(self, at: Setting) -> Iterator[Probe]:
        for work, words in self.workloads(at):
            processes = at.pick(self.processes, *words)
            for name in self.chosen(at, words):
                yield Probe(self.topic, work, name, self.case, processes)


Part = Callable[[Setting], Iterable[Any]]


def experiment(
    name: str, notebook: str, summary: str, *parts: Part, probes: Sequence[Part] = (), **more: Any
) -> Experiment:
    """An experiment that plans ``parts``, and ``probes``, one after the other: sweeps, or functions of a setting.

    Its ``operation`` is the first sweep's, unless ``more`` says which, as it may every other field.
    """
    more = {"operation": next((part.operation for part in (*parts, *probes) if isinstance(part, Axes)), "")} | more

    def planned(parts: Sequence[Part]) -> Callable[[str, str, Shapes], list[Any]]:
        return lambda preset, device, shapes: [
            one for part in parts for one in part(Setting(preset, device, tuple(shapes)))
        ]

    return Experiment(name, notebook, summary, plan=planned(parts), probes=planned(probes), **more)
