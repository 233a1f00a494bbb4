"""The registry: who computes an operation, and how. The only list of variants there is.

A variant says of itself what plans, records and pages must know: they ask here and list no names. What a number rests
on goes into its record; a label, a tag or a look is asked for when a page is made, which then imports the operations
(:func:`load`), and torch with them. So nothing here is copied, and what only reads records stays light.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hypatia_lab import workloads
from hypatia_lab.messages import unknown

if TYPE_CHECKING:
    from hypatia_lab.workloads import Inputs, Workload

    Run = Callable[[], Any]  # a tensor; in direction forward_backward a tuple of them
    Factory = Callable[[Workload, Inputs], Run]

ORIGINS = ("author", "rebuilt", "peer", "own")
"""author: a document's own program; seed: rebuilt from one of the five documents; peer: a library's; own: this
project's."""

PLAIN = ("ieee", "tf32", "default")
"""Maths that PyTorch's own products know; whoever multiplies as exactly as ieee asks has them all. Split operands are
an arithmetic that a variant must have of its own."""

WHOLE_DEVICE = ("wall", "profiler")
"""Clocks of a GPU that see what any stream does; the others see PyTorch's current one."""

AGAIN = "@again"
"""Suffix of the A/A control: the same variant, built a second time, under another name."""


HOMES = ("hypatia_lab.operations", "hypatia_lab.diffraction", "hypatia_lab.egraph.variants", "hypatia_lab.dispatch")
"""Packages that register the lab's variants when they are imported."""


LABELS = {
    "eager": "eager PyTorch",
    "eager_channels_last": "eager, channels last",
    "eager_graph": "eager, replayed as a graph",
    "group_norm": "eager by group_norm",
    "group_norm_channels_last": "group_norm, channels last",
    "script": "torch.jit.script",
    "compile": "torch.compile",
    "compile_channels_last": "torch.compile, channels last",
    "compile_reduce_overhead": "torch.compile with CUDA graphs",
    "compile_max_autotune": "torch.compile, tuned",
    "compile_freezing": "torch.compile, weights frozen",
    "compile_together": "torch.compile, all points together",
    "epilogue": "the library's epilogue",
}
"""What people call the library's forms, which most operations have; of all others the variant says it."""


def anywhere(workload: Workload, device: str) -> str:
    """The default need: runs everywhere."""
    return ""


@dataclass(frozen=True)
class Variant:
    """One implementation of an operation.

    ``factory(workload, inputs)`` allocates and compiles, then returns a callable of no arguments that
    computes the output once (in direction forward_backward the tuple of ``workload.parts``); only that callable is
    timed. ``needs(workload, device)`` returns ``""`` when the variant can run there, else the reason why not;
    ``directions`` and ``maths`` are those it computes. A ``host`` variant computes on the CPU's cores whatever
    the workload's device, and its output lies there: only the wall clock can time it beside a GPU's. One of
    ``own_stream`` launches on a stream that PyTorch does not know of: see :meth:`untimed`.
    ``label`` is what a person calls it. ``tags`` are the kinds it is one of, by which plans and chapters ask for it
    (:func:`names`). ``splits``, of a variant that splits float32's operands: the arithmetic (dtype/math) of its
    products, and how many it makes of one. ``operator``: it is called through an operator of PyTorch's that the lab
    registers, which a document's program was not.
    """

    operation: str
    name: str
    origin: str
    factory: Factory
    needs: Callable[[Workload, str], str]
    directions: tuple[str, ...]
    maths: tuple[str, ...]
    label: str
    baseline: bool = False
    host: bool = False
    tags: tuple[str, ...] = ()
    splits: tuple[str, int] | None = None
    operator: bool = False
    own_stream: bool = False

    @property
    def module(self) -> str:
        """The module that its factory, or the function which that binds, is of."""
        made: Any = self.factory
        while isinstance(made, partial):
            made = made.func
        return made.__module__

    @property
    def compiles(self) -> bool:
        """Whether torch.compile makes it, which its name then says: building it takes seconds to minutes."""
        return "compile" in self.name

    @property
    def chosen_anew(self) -> bool:
        """Whether a compiler or another library's planner chooses, in seconds and anew in each process, how it runs."""
        return self.compiles or "peer" in self.tags

    @property
    def measures(self) -> bool:
        """Whether building it times forms, to choose among them and to keep what it chose."""
        return not {"dispatched", "graph"}.isdisjoint(self.tags)

    def untimed(self, clock: str, device: str) -> str:
        """Why ``clock`` cannot time it beside others on ``device``; empty where it can."""
        if device == "cuda" and self.host and clock != "wall":
            return "runs on the host: the wall clock times it"
        if device == "cuda" and self.own_stream and clock not in WHOLE_DEVICE:
            return f"launches on a stream of its own: the clocks {' and '.join(WHOLE_DEVICE)} time it"
        if "replayed" in self.tags and clock != "graph":
            return "made for a CUDA graph, where a launch costs little: the clock graph times it"
        return ""


_VARIANTS: dict[str, dict[str, Variant]] = {}


def variant(
    operation: str,
    name: str,
    *,
    origin: str,
    needs: Callable[[Workload, str], str] = anywhere,
    directions: tuple[str, ...] = ("forward",),
    maths: tuple[str, ...] = PLAIN,
    label: str = "",
    **more: Any,
) -> Callable[[Factory], Factory]:
    """Register the decorated factory as variant ``name`` of ``operation``.

    To ``needs`` is added that the workload's direction is one of ``directions`` and its math one of ``maths``. Without
    a ``label`` it has that of :data:`LABELS`, or its name in words. ``more`` is what else a :class:`Variant` says of
    itself. Raises ``ValueError`` for an unknown origin, a name taken, or a second baseline, ``TypeError`` for what no
    variant says.
    """
    if origin == "seed":
        warnings.warn("origin 'seed' is called 'rebuilt' now; the old word goes in the next release", stacklevel=2)
        origin = "rebuilt"

    def able(workload: Workload, device: str) -> str:
        if workload.direction not in directions:
            return f"{name} computes {' and '.join(directions)} only"
        if workload.math not in maths:
            return f"{name} multiplies as {' or '.join(maths)}, not as {workload.math}"
        return needs(workload, device)

    def add(factory: Factory) -> Factory:
        known = _VARIANTS.setdefault(operation, {})
        if origin not in ORIGINS:
            raise ValueError(unknown("origin", origin, ORIGINS, f"{operation}/{name}"))
        if name in known or AGAIN in name:
            raise ValueError(f"variant name {operation}/{name} is taken or reserved")
        told = label or LABELS.get(name, name.replace("_", " "))
        found = Variant(operation, name, origin, factory, able, directions, maths, told, **more)
        if found.baseline and any(v.baseline for v in known.values()):
            raise ValueError(f"{operation} has two baselines")
        known[name] = found
        return factory

    return add


def variants(operation: str) -> dict[str, Variant]:
    """The registered variants of ``operation`` by name, in order of registration."""
    return dict(_VARIANTS.get(operation, {}))


def names(operation: str, *tags: str, direction: str = "forward") -> tuple[str, ...]:
    """Those that compute ``operation`` in ``direction`` and have one of ``tags``, in order of registration.

    Without tags: those that have none and are no baseline. They belong to no kind that a plan or a chapter asks for, as
    whatever is new: the experiment that is about their operation takes up all of them.
    """
    load()
    return tuple(
        one.name
        for one in _VARIANTS.get(operation, {}).values()
        if direction in one.directions and (set(tags) & set(one.tags) if tags else not one.tags and not one.baseline)
    )


def label(operation: str, name: str) -> str:
    """What a person calls the variant ``name``; the name itself where it is none of the lab's, or no longer."""
    load()
    found = _VARIANTS.get(operation, {}).get(name.removesuffix(AGAIN))
    if found is None:
        return name
    return found.label + (", again" if name.endswith(AGAIN) else "")


@cache
def load() -> None:
    """Import every package that registers variants of the lab, once: with them torch, which takes seconds."""
    for home in HOMES:
        import_module(home)


@contextmanager
def restored() -> Iterator[None]:
    """What the body registers is forgotten when it ends, operations and variants."""
    operations, known = dict(workloads._OPERATIONS), {name: dict(own) for name, own in _VARIANTS.items()}
    try:
        yield
    finally:
        workloads._OPERATIONS.clear()
        workloads._OPERATIONS.update(operations)
        _VARIANTS.clear()
        _VARIANTS.update(known)


def registered() -> tuple[str, ...]:
    """The operations that have variants, whether or not there is such an operation."""
    return tuple(_VARIANTS)


def find(operation: str, name: str) -> Variant:
    """The variant called ``name``; an A/A name (``eager@again``) finds the variant it repeats.

    Raises ``KeyError`` naming the nearest one, or those known, when there is none.
    """
    known = _VARIANTS.get(operation, {})
    try:
        return known[name.removesuffix(AGAIN)]
    except KeyError:
        raise KeyError(unknown("variant", name, known, operation)) from None


def baseline(operation: str) -> str:
    """Name of the variant that ratios of ``operation`` are taken against. Raises ``KeyError`` if none."""
    for candidate in _VARIANTS.get(operation, {}).values():
        if candidate.baseline:
            return candidate.name
    raise KeyError(f"{operation} has no baseline variant")
