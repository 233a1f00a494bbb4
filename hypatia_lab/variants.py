"""The registry: who computes an operation, and how. The only list of variants there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hypatia_lab.workloads import Inputs, Workload

    Run = Callable[[], Any]  # a tensor; in direction forward_backward a tuple of them
    Factory = Callable[[Workload, Inputs], Run]

ORIGINS = ("author", "seed", "peer", "own")
"""author: a document's own program; seed: rebuilt from one of the five documents; peer: a library's; own: this
project's."""

AGAIN = "@again"
"""Suffix of the A/A control: the same variant, built a second time, under another name."""


def anywhere(workload: Workload, device: str) -> str:
    """The default need: runs everywhere."""
    return ""


@dataclass(frozen=True)
class Variant:
    """One implementation of an operation.

    ``factory(workload, inputs)`` allocates and compiles, then returns a callable of no arguments that
    computes the output once (in direction forward_backward the tuple of ``workload.parts``); only that callable is
    timed. ``needs(workload, device)`` returns ``""`` when the variant can run there, else the reason why not;
    ``directions`` are those it computes. A ``host`` variant computes on the CPU's cores whatever
    the workload's device, and its output lies there: only the wall clock can time it beside a GPU's.
    """

    operation: str
    name: str
    origin: str
    factory: Factory
    needs: Callable[[Workload, str], str]
    directions: tuple[str, ...]
    baseline: bool
    host: bool
    summary: str


_VARIANTS: dict[str, dict[str, Variant]] = {}


def variant(
    operation: str,
    name: str,
    *,
    origin: str,
    needs: Callable[[Workload, str], str] = anywhere,
    directions: tuple[str, ...] = ("forward",),
    baseline: bool = False,
    host: bool = False,
) -> Callable[[Factory], Factory]:
    """Register the decorated factory as variant ``name`` of ``operation``.

    The first line of its docstring becomes its one-line description; to ``needs`` is added that the workload's
    direction is one of ``directions``. Raises ``ValueError`` for an unknown
    origin, a name taken, a second baseline, or a factory without a docstring.
    """

    def directed(workload: Workload, device: str) -> str:
        if workload.direction not in directions:
            return f"{name} computes {' and '.join(directions)} only"
        return needs(workload, device)

    def add(factory: Factory) -> Factory:
        known = _VARIANTS.setdefault(operation, {})
        if origin not in ORIGINS:
            raise ValueError(f"origin {origin!r} of {operation}/{name} is none of {', '.join(ORIGINS)}")
        if name in known or AGAIN in name:
            raise ValueError(f"variant name {operation}/{name} is taken or reserved")
        if baseline and any(v.baseline for v in known.values()):
            raise ValueError(f"{operation} has two baselines")
        if not factory.__doc__:
            raise ValueError(f"variant {operation}/{name} needs a docstring: its first line describes it")
        summary = factory.__doc__.strip().splitlines()[0]
        known[name] = Variant(operation, name, origin, factory, directed, directions, baseline, host, summary)
        return factory

    return add


def variants(operation: str) -> dict[str, Variant]:
    """The registered variants of ``operation`` by name, in order of registration."""
    return dict(_VARIANTS.get(operation, {}))


def registered() -> tuple[str, ...]:
    """The operations that have variants, whether or not there is such an operation."""
    return tuple(_VARIANTS)


def find(operation: str, name: str) -> Variant:
    """The variant called ``name``; an A/A name (``eager@again``) finds the variant it repeats.

    Raises ``KeyError`` naming the known variants when there is none.
    """
    known = _VARIANTS.get(operation, {})
    try:
        return known[name.removesuffix(AGAIN)]
    except KeyError:
        raise KeyError(f"{operation} has no variant {name!r}; known: {', '.join(known) or 'none'}") from None


def baseline(operation: str) -> str:
    """Name of the variant that ratios of ``operation`` are taken against. Raises ``KeyError`` if none."""
    for candidate in _VARIANTS.get(operation, {}).values():
        if candidate.baseline:
            return candidate.name
    raise KeyError(f"{operation} has no baseline variant")
