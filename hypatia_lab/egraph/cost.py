"""What a term costs: a roofline of its FLOPs, bytes and kernel launches, or a measured time with its interval.

Analytic: launches · launch time + max(FLOPs / rate, bytes / bandwidth), bytes being the operands and the result once
each. Times are in microseconds throughout. A measured time replaces the analytic one where it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypatia_lab.egraph.saturation import EGraph, ENode, typed
from hypatia_lab.egraph.terms import LEAVES, OPERATORS, Operator, Type


@dataclass(frozen=True)
class Time:
    """A time in µs: an estimate between ``low`` and ``high``."""

    low: float
    estimate: float
    high: float


FREE = Time(0.0, 0.0, 0.0)

RATES = {
    "cuda": {"float32": 6e13, "float64": 3e13, "bfloat16": 8e14, "float16": 8e14},
    "cpu": {"float32": 1e11, "float64": 5e10, "bfloat16": 5e10, "float16": 5e10},
}
BANDWIDTH = {"cuda": 4e12, "cpu": 2e10}
LAUNCH_US = {"cuda": 2.0, "cpu": 1.0}
"""Rates (FLOP/s), memory bandwidth (bytes/s) and launches where nothing was measured: the order of magnitude of an H200
and of two cores, to rank alternatives by, not to predict a time."""

DISPATCH_US = 0.2
"""What changes only a view launches nothing, and is still a call: it must not be free, or views would pile up."""


class Application(NamedTuple):
    """An operator, its ``arguments`` (types for tensors, attributes as they are) and the type of its result."""

    operator: Operator
    arguments: tuple[Any, ...]
    out: Type


@dataclass(frozen=True)
class Costs:
    """The cost model of one device (``cuda`` or ``cpu``).

    ``ceilings`` are measured ones as results.ceilings gives them, (quantity, dtype/math, clock) → rate; what they lack
    is :data:`RATES` and :data:`BANDWIDTH`. ``measured`` maps :func:`key` to a measured time and goes before both; with
    ``training`` it is that of the forward and the backward pass. Raises ``ValueError`` for another device.
    """

    device: str
    ceilings: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    measured: Mapping[str, Time] = field(default_factory=dict)
    clock: str = "hot"
    training: bool = False

    def __post_init__(self) -> None:
        if self.device not in RATES:
            raise ValueError(f"no costs for {self.device!r}: the devices are {', '.join(RATES)}")

    def application(self, egraph: EGraph, number: int, way: ENode) -> Application | None:
        """What one way to compute an e-class runs; None where that is no operator, or no kernel can."""
        if way.operator not in OPERATORS or any(c not in egraph.types for c in (number, *way.children)):
            return None
        operator, out = OPERATORS[way.operator], _sized(egraph.types[number], egraph.hints)
        arguments = operator.each(typed(egraph, way), lambda kind: _sized(kind, egraph.hints))
        if out is None or operator.missing(self.device, *arguments):
            return None
        return Application(operator, arguments, out)

    def time(self, egraph: EGraph, number: int, way: ENode) -> Time | None:
        """Time of one way to compute an e-class; None where no kernel can."""
        if way.operator == "Opaque":
            # The same in every selection: it tells where a graph's time goes, and decides nothing.
            types = [_sized(egraph.types.get(own), egraph.hints) for own in (number, *way.children)]
            return FREE if types[0] is None else self._roofline(types[0].dtype, 0, types, 1)
        if way.operator in LEAVES:
            return FREE
        found = self.application(egraph, number, way)
        if found is None:
            return None
        operator, arguments, out = found
        if self.measured and (known := self.measured.get(key(way.operator, arguments, out))) is not None:
            return known
        launches = operator.kernels + operator.more_on_cpu * (self.device == "cpu")
        if not launches:
            return Time(DISPATCH_US, DISPATCH_US, DISPATCH_US)
        tensors = [out, *operator.tensors(arguments)]
        return self._roofline(out.dtype, operator.flops(out, *arguments), tensors, launches)

    def _roofline(self, dtype: str, flops: float, tensors: Sequence[Type | None], launches: int) -> Time:
        moved = sum(tensor.bytes for tensor in tensors if tensor is not None)
        rates = RATES[self.device]
        rate = self.ceilings.get(("matmul", f"{dtype}/ieee", self.clock), rates.get(dtype, rates["float64"]))
        bandwidth = self.ceilings.get(("copy", "", self.clock), BANDWIDTH[self.device])
        time = launches * LAUNCH_US[self.device] + 1e6 * max(flops / rate, moved / bandwidth)
        return Time(time, time, time)


def _sized(kind: Type | None, hints: Mapping[int, int]) -> Type | None:
    """A type with symbolic sizes as in the example."""
    return Type(tuple(hints.get(n, n) for n in kind.shape), kind.dtype) if hints and kind is not None else kind


def key(operator: str, arguments: Sequence[Any], out: Type) -> str:
    """What a measured time is kept under: the operator, its arguments' shapes (or the attribute) and its dtype."""
    parts = ["x".join(map(str, a.shape)) if isinstance(a, Type) else str(a).replace(" ", "") for a in arguments]
    return f"{operator} {out.dtype} {' '.join(parts)}"


def weights(egraph: EGraph, costs: Costs) -> Callable[[int, ENode], float | None]:
    """Weight of a way for extraction, µs: of the original graph's ways the low end of the interval, of all others the
    high end and a little more, so that a tie keeps the original. None where no kernel can, and for a kernel that was
    not measured where the original's was: a roofline promises more than any clock would say.
    """
    original = {(egraph.class_of[name], way) for name, way in egraph.original.items()}
    times = {(number, way): costs.time(egraph, number, way) for number, way in original}
    measured = {number for (number, _), time in times.items() if time is not None and time.low < time.high}

    def weight(number: int, way: ENode) -> float | None:
        if (number, way) in original:
            time = times[number, way]
            return 0.0 if time is None else time.low
        time = costs.time(egraph, number, way)
        if time is None or (number in measured and time.low == time.high > DISPATCH_US):
            return None
        return time.high * (1 + 1e-6)

    return weight
