"""How a number is written, everywhere the same: tables, titles, alt text, reasons. Numbers in, text out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from hypatia_lab import intervals
from hypatia_lab.intervals import Interval

MISSING = "–"
UNTOLD = "too noisy"
"""What stands for an interval so wide that its numbers say nothing."""
ALONE = "one process, no interval"
"""What stands for a figure that a single process has measured."""


def absent(value: Any) -> bool:
    """Whether ``value`` is None or NaN: a number that does not exist."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _decimals(value: float, digits: int = 3) -> int:
    """Decimal places that show ``digits`` significant digits of ``value`` (negative left of the point)."""
    return digits - 1 - math.floor(math.log10(abs(value))) if value else 0


def significant(value: float) -> float:
    """``value`` rounded to 5 significant digits, for drawing: fewer would move the ends of narrow intervals."""
    return float(f"{value:.5g}")


def shape(text: str) -> str:
    """``1024x784x2048`` as a reader sees it: ``1024×784×2048``."""
    return text.replace("x", "×")


def direction(name: str) -> str:
    """``forward_backward`` as a reader sees it: ``forward and backward``."""
    return name.replace("_", " and ")


def workload(name: str) -> str:
    """``linear_relu 1024×784×2048 float32/ieee`` of operation/shape/dtype/math/direction; no word of forward."""
    operation, extents, dtype, math, way = name.split("/")
    text = f"{operation} {shape(extents)} {dtype}/{math}"
    return text if way == "forward" else f"{text} {direction(way)}"


def model(shape: str) -> str:
    """An MLP, batch x in x hidden x layers x out, in words: ``784 → 2 × 256 → 10, batch 64``."""
    batch, first, hidden, layers, last = shape.split("x")
    return f"{first} → {layers} × {hidden} → {last}, batch {batch}"


def cut(text: str, most: int) -> str:
    """``text``, or as much of it as ``most`` characters hold."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def listing(items: Sequence[str]) -> str:
    """``a, b and c``, each once; empty of nothing."""
    words = list(dict.fromkeys(items))
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


_ONE = {
    "launches": "launch",
    "kernels": "kernel",
    "regions": "region",
    "nodes": "node",
    "calls": "call",
    "copies": "copy",
}
"""Unit of a count → the same of one."""


def with_unit(text: str, unit: str) -> str:
    """A written figure and its unit: a space between them unless it is a sign, and one launch, not 1 launches."""
    if unit in ("", "×", "%"):
        return text + unit
    return f"{text} {_ONE.get(unit, unit) if text == '1' else unit}"


def span(low: float, high: float, write: Callable[[float], str], unit: str = "") -> str:
    """A range as text, ``unit`` behind it: what goes up to a million has no end, what begins below a millionth no
    beginning.
    """
    if low == high:
        return with_unit(write(low), unit)
    if high >= 1e6 > low:
        return f"{with_unit(write(low), unit)} or more"
    if 0 <= low <= 1e-6 < high:
        return f"{with_unit(write(high), unit)} or less"
    return with_unit(f"{write(low)}–{write(high)}", unit)


def number(value: float | int | None, decimals: int | None = None) -> str:
    """``value`` with 3 significant digits (or so many ``decimals``); whole numbers as they are; ``–`` if absent."""
    if absent(value):
        return MISSING
    assert value is not None
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    if value and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.2e}"
    places = _decimals(value) if decimals is None else decimals
    rounded = round(value, places)
    if decimals is None:
        places = _decimals(rounded)  # 9.996 has become 10.0, which needs a decimal less
    return f"{rounded:.{max(places, 0)}f}"


def spoken(value: float) -> str:
    """``value`` as one says it: two digits, three between a half and two, where two would hide a difference."""
    digits = 3 if 0.5 <= abs(value) < 2 else 2
    rounded = round(value, _decimals(value, digits)) if value else 0.0
    return f"{rounded:,.{max(_decimals(rounded, digits), 0)}f}"


def interval(value: float | None, low: float | None, high: float | None, unit: str = "×", n: int = 0) -> str:
    """``54.1× [53.9, 54.3]``: as many decimals as the half-width asks for, at least 3 significant digits.

    Wider than a factor of 100, or without bounds, it is ``too noisy (n = 2)`` (``n`` where it is known) and no numbers
    are written, nor of a single process; ``–`` when there is no value.
    """
    if absent(value):
        return MISSING
    assert value is not None
    low, high = (math.nan if end is None else end for end in (low, high))
    if absent(low) or absent(high) or (value and Interval(value, low, high, n).width > intervals.UNTOLD):
        return ALONE if n == 1 else f"{UNTOLD} (n = {n})" if n else UNTOLD
    half = (high - low) / 2
    places = max(_decimals(value), min(_decimals(half, 1), 4) if half else 0)
    return f"{with_unit(number(value, places), unit)} [{number(low, places)}, {number(high, places)}]"


def told(found: Interval, unit: str = "×") -> str:
    """An estimate as :func:`interval` writes it."""
    return interval(found.value, found.low, found.high, unit, found.n)


def figure(found: Interval, unit: str) -> str:
    """The same of anything that may be counted: what is the same in every process is exact and has no interval."""
    return with_unit(f"{found.value:,.6g}", unit) if found.low == found.high else told(found, unit)


def time(found: Interval) -> str:
    """An estimate of a time in µs, in the unit that suits it: ``1.52 s [1.50, 1.54]``."""
    unit = duration(found.value).split(" ")[-1]
    return told(found.times(1 / {"s": 1e6, "ms": 1e3, "ns": 1e-3}.get(unit, 1.0)), unit)


DOUBTS = {
    intervals.TOO_NOISY: "too noisy to say",
    intervals.TOO_FEW: "of too few processes to tell",
    intervals.VETOED: "whose A/A control failed",
}
"""Why an estimate says nothing → the same behind a noun."""


def margin(share: float) -> str:
    """How far up or down an estimate may be off: ``±3.2%``, from ±100% on as a factor, and no number beyond 100."""
    if share < 1:
        return f"±{number(100 * share)}%"
    return f"a factor of {number(1 + share)}" if share < intervals.UNTOLD else "a factor of 100 and more"


def _in_steps(value: float | None, steps: Sequence[tuple[float, str]]) -> str:
    if absent(value):
        return MISSING
    assert value is not None
    factor, unit = next((s for s in steps if abs(value) >= s[0] * 0.9995), steps[-1])
    return f"{number(value / factor)} {unit}"


def duration(us: float | None) -> str:
    """Microseconds as ``950 ns``, ``4.12 µs``, ``1.10 ms`` or ``2.10 s``."""
    return _in_steps(us, [(1e6, "s"), (1e3, "ms"), (1.0, "µs"), (1e-3, "ns")])


def scaled(value: float | None, unit: str) -> str:
    """A large quantity with its prefix: ``scaled(51.2e12, "FLOP/s")`` is ``51.2 TFLOP/s``."""
    return _in_steps(
        value, [(10.0 ** (3 * k), f"{prefix}{unit}") for k, prefix in ((4, "T"), (3, "G"), (2, "M"), (0, ""))]
    )
