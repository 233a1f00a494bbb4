"""The statistics: how sure a ratio is. Leaf module, numbers in and numbers out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

CONFIDENCE = 0.95
NORMAL = 1.959963984540054
"""Beyond so many standard deviations a normal figure lies in 5% of cases."""
EQUIVALENCE = 0.02
"""Two times are called equal when their ratio is surely within ±2%."""
FEW = 3
"""With fewer processes an estimate says nothing: a narrow interval of two is luck as often as not."""
NOISY = 2.0
"""Of an interval whose bounds lie further apart than this factor no sentence tells the value; it tells the nearer bound
where the interval lies wholly on one side."""
UNTOLD = 100.0
"""Beyond this factor no table shows its value."""

TOO_FEW, TOO_NOISY, VETOED = "too few to tell", "too noisy to say", "A/A failed"
"""Why an estimate says nothing, as pages put it."""


Triple = tuple[float, float, float]
"""A value between the bounds of its interval, which are NaN where there is none."""


@dataclass(frozen=True)
class Interval:
    """A point estimate between two bounds, from ``n`` independent processes.

    ``low`` and ``high`` are NaN when fewer than two processes stand behind it. ``vetoed``: the control beside it told
    identical code apart. What has a :attr:`flaw` lies within nothing, outside nothing, above nothing and below
    nothing: whoever asks needs no rule of his own. A wide one that lies wholly on one side lies there.
    """

    value: float
    low: float
    high: float
    n: int
    vetoed: bool = False

    @property
    def triple(self) -> Triple:
        """The value between its bounds, for drawing."""
        return self.value, self.low, self.high

    @property
    def width(self) -> float:
        """The factor between the bounds: 1 for an exact figure, infinite without bounds.

        Of a difference, which may be zero, the factor f of a positive figure v, from v/√f to v·√f, whose bounds lie as
        many times its size apart. A bound of 0 itself is that of a time or a share cut off where it must end, and so
        infinitely far from the other.
        """
        if self.low == self.high:
            return 1.0
        if self.low == 0:
            return math.inf
        if not (self.low > 0 or self.high < 0):
            if not self.value or not self.low <= self.high:
                return math.inf
            apart = (self.high - self.low) / abs(self.value)  # √f − 1/√f
            return ((apart + math.hypot(apart, 2)) / 2) ** 2
        return max(self.high / self.low, self.low / self.high)

    @property
    def flaw(self) -> str:
        """Why nothing is judged by it: :data:`VETOED` or :data:`TOO_FEW`; else empty."""
        if self.vetoed:
            return VETOED
        exact = self.low == self.high and math.isfinite(self.value)
        return TOO_FEW if not exact and self.n < FEW else ""

    @property
    def doubt(self) -> str:
        """Why its value is not told in a sentence: its :attr:`flaw`, or :data:`TOO_NOISY`; else empty."""
        return self.flaw or (TOO_NOISY if self.width > NOISY else "")

    def above(self, edge: float) -> bool:
        """Whether the whole interval lies above ``edge``."""
        return not self.flaw and self.low > edge

    def below(self, edge: float) -> bool:
        """Whether the whole interval lies below ``edge``."""
        return not self.flaw and self.high < edge

    def within(self, low: float, high: float) -> bool:
        """Whether the whole interval lies in ``[low, high]``."""
        return not self.flaw and low <= self.low and self.high <= high

    def outside(self, low: float, high: float) -> bool:
        """Whether the whole interval misses ``[low, high]``."""
        return self.below(low) or self.above(high)

    def inverse(self) -> Interval:
        """The estimate of the reciprocal, of something positive."""
        return replace(self, value=1 / self.value, low=1 / self.high, high=1 / self.low)

    def times(self, factor: float) -> Interval:
        """The estimate in another unit, ``factor`` (positive) of which make up one of its own."""
        return replace(self, value=factor * self.value, low=factor * self.low, high=factor * self.high)


NOTHING = Interval(math.nan, math.nan, math.nan, 0)
"""What was not measured."""


def geometric(values: Sequence[float]) -> Interval:
    """Geometric mean of positive ``values`` with a t-interval on their logarithms (95%).

    Raises ``ValueError`` when empty or when a value is not positive and finite.
    Source: measured coverage of t-intervals over fresh-process log ratios, 94–96% at 5–20 processes.
    """
    if not values or any(not (v > 0 and math.isfinite(v)) for v in values):
        raise ValueError(f"a geometric mean needs positive finite values, got {list(values)!r}")
    logs = mean([math.log(v) for v in values])
    return Interval(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high), logs.n)


def estimate(values: Sequence[float]) -> Interval:
    """The mean of ``values``, one a process: geometric, or arithmetic where one of them is not positive."""
    return geometric(values) if min(values) > 0 else mean(values)


def prediction(values: Sequence[float]) -> Interval:
    """Geometric mean of positive ``values``, one a machine, with a 95% prediction interval for the next of their kind.

    On logarithms: mean ± t·s·√(1 + 1/n), with t Student's factor for n − 1 degrees of freedom and s the standard
    deviation of the n values. They are measured, so s holds what measuring adds to what the machines differ by, and
    the interval is one for what would be measured next, in as many processes. Raises ``ValueError`` as
    :func:`geometric` does.
    """
    found = geometric(values)
    reach = math.sqrt(found.n + 1)  # the interval of the mean reaches t·s/√n
    low, high = (found.value * (end / found.value) ** reach for end in (found.low, found.high))
    return replace(found, low=low, high=high)


@lru_cache(maxsize=4096)  # a ledger asks for the same few ten thousand times
def student(freedom: float) -> float:
    """Student's factor for a 95% interval with so many degrees of ``freedom``."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + CONFIDENCE / 2))


def variance(values: Sequence[float]) -> float:
    """Sample variance of two or more ``values``; the standard library's, exact in fractions, takes 50 times as long."""
    middle = math.fsum(values) / len(values)
    return math.fsum((x - middle) ** 2 for x in values) / (len(values) - 1)


def mean(values: Sequence[float]) -> Interval:
    """Arithmetic mean of ``values`` with a 95% t-interval. Raises ``ValueError`` when empty."""
    if not values:
        raise ValueError("a mean needs at least one value")
    n = len(values)
    middle = math.fsum(values) / n
    if n < 2:
        return Interval(middle, math.nan, math.nan, n)
    half = student(n - 1) * math.sqrt(variance(values) / n)
    return Interval(middle, middle - half, middle + half, n)


def ratio(numerator: Sequence[float | None], denominator: Sequence[float | None]) -> Interval:
    """Interval of numerator/denominator, paired by process; processes where either is missing drop out.

    Raises ``ValueError`` when no pair is left.
    """
    return geometric([a / b for a, b in zip(numerator, denominator, strict=True) if a is not None and b is not None])


def quotient(above: Interval, below: Interval) -> Interval:
    """``above`` over ``below``, both positive and measured in different processes.

    Half-widths add as squares on a logarithmic scale, and n is the smaller of both. NaN where one has no bounds.
    """
    if not (above.low > 0 and below.low > 0):
        return NOTHING
    value = above.value / below.value
    low = math.hypot(math.log(above.value / above.low), math.log(below.high / below.value))
    high = math.hypot(math.log(above.high / above.value), math.log(below.value / below.low))
    return Interval(value, value * math.exp(-low), value * math.exp(high), min(above.n, below.n))


def welch(samples: Sequence[Sequence[float]], middle: float) -> Interval:
    """A positive figure whose logarithm lies beside ``middle`` by what the means of independent ``samples`` of it do.

    With a t-interval (95%): the variances of the means add, with the degrees of freedom of Welch and Satterthwaite; n
    is the size of the smallest sample. NaN bounds where one has a single value.
    """
    sizes = [len(own) for own in samples]
    value = middle + math.fsum(math.fsum(own) / len(own) - middle for own in samples)
    if min(sizes) < 2:
        return Interval(math.exp(value), math.nan, math.nan, min(sizes))
    shares = [variance(own) / len(own) for own in samples]
    total = math.fsum(shares)
    if not total:
        return Interval(math.exp(value), math.exp(value), math.exp(value), min(sizes))
    freedom = total**2 / math.fsum(share**2 / (size - 1) for share, size in zip(shares, sizes, strict=True))
    half = student(freedom) * math.sqrt(total)
    return Interval(math.exp(value), math.exp(value - half), math.exp(value + half), min(sizes))


def widened(interval: Interval, spread: float) -> Interval:
    """``interval`` of a positive figure, made wider by a further ``spread`` (standard deviation of its logarithm).

    Both are independent, so half-widths add as squares on a logarithmic scale, the new one taken at 95% of a normal
    distribution. One without bounds, or not wholly positive, is returned as it is.
    """
    if not interval.low > 0 or not spread:
        return interval
    more = NORMAL * spread
    below = math.hypot(math.log(interval.value / interval.low), more)
    above = math.hypot(math.log(interval.high / interval.value), more)
    return replace(interval, low=interval.value * math.exp(-below), high=interval.value * math.exp(above))


def equal(interval: Interval) -> bool:
    """Equivalence within ±2%: the whole interval lies in [0.98, 1.02]."""
    return interval.within(1 - EQUIVALENCE, 1 + EQUIVALENCE)


def known(interval: Interval, share: float) -> bool:
    """Whether a positive figure is known to within ±``share``: half the width of its interval, as a factor, is less."""
    return math.sqrt(interval.high / interval.low) - 1 <= share


def reading(interval: Interval) -> str:
    """What an interval of speeds says: ``equal`` (wholly within ±2%), ``faster`` or ``slower`` (it excludes 1), else
    ``undecided`` (it holds 1 and reaches beyond ±2%), or why it says no more (:attr:`Interval.doubt`).
    """
    if equal(interval):
        return "equal"
    sure = "faster" if interval.above(1) else "slower" if interval.below(1) else ""
    return sure or interval.doubt or "undecided"


def same_p(interval: Interval) -> float:
    """Two-sided p-value of the t-test, on the logarithms behind a positive ``interval``, that the truth is 1."""
    from scipy.special import stdtr

    if not interval.low < interval.high:  # without scatter, or without bounds
        return float(interval.value == 1 or interval.n < 2)
    half = math.log(interval.high / interval.low) / 2
    t = abs(math.log(interval.value)) / half * student(interval.n - 1)
    return 2 * float(stdtr(interval.n - 1, -t))


def processes_to_clear(found: Interval, edge: float, most: int, spread: float = 0.0) -> int:
    """How many processes it takes until an interval like ``found``, which holds ``edge``, ends before it.

    The estimate and its scatter are taken to stay what they are, on a logarithmic scale where all is positive; the
    interval then narrows as t/√n does. ``spread`` is what :func:`widened` adds, which no process narrows. At most
    ``most`` + 1, which says that ``most`` would not do.
    """
    import numpy

    ends = [found.low, found.value, found.high, edge]
    low, value, high, at = numpy.log(ends) if min(ends) > 0 else ends
    reach, distance = (high - value if at > value else value - low), abs(at - value)
    more = NORMAL * spread * (min(ends) > 0)
    counts = numpy.arange(2, max(most, found.n) + 1)
    widths = numpy.array([student(count - 1) for count in counts.tolist()]) / numpy.sqrt(counts)
    narrowed = numpy.hypot(widths / widths[found.n - 2] * reach, more)
    enough = counts[(counts > found.n) & (counts <= most) & (narrowed < distance)]
    return int(enough[0]) if len(enough) else most + 1


def false_rate_p(differences: int, pairs: int, rate: float = 1 - CONFIDENCE) -> float:
    """Two-sided binomial p-value that ``differences`` among ``pairs`` A/A pairs come from ``rate``.

    The sum over all counts that are no likelier, as ``scipy.stats.binomtest`` has it, whose import takes a second.
    """

    def log_chance(count: int) -> float:
        ways = math.lgamma(pairs + 1) - math.lgamma(count + 1) - math.lgamma(pairs - count + 1)
        return ways + count * math.log(rate) + (pairs - count) * math.log1p(-rate)

    seen = log_chance(differences)
    chances = (log_chance(count) for count in range(pairs + 1))
    return min(1.0, math.fsum(math.exp(chance) for chance in chances if chance <= seen + 1e-7))


def share(count: int, total: int) -> Interval:
    """``count`` of ``total`` as a share, with its exact 95% interval (Clopper and Pearson). Raises ``ValueError``."""
    if not 0 <= count <= total or not total:
        raise ValueError(f"{count} of {total} is no share")
    from scipy.special import betaincinv

    tail = (1 - CONFIDENCE) / 2
    low = float(betaincinv(count, total - count + 1, tail)) if count else 0.0
    high = float(betaincinv(count + 1, total - count, 1 - tail)) if count < total else 1.0
    return Interval(count / total, low, high, total)


def together(series: Sequence[Sequence[float]]) -> float:
    """Mean correlation of two of ``series``, over all pairs of them; 0 is expected where they are independent.

    Each has one value for each of the same processes; one that never changes says nothing and is left out. NaN for
    fewer than two series. Source: the variance of a sum of standardised series is n + n·(n − 1)·mean correlation.
    """
    import numpy

    values = numpy.asarray([one for one in series if len(set(one)) > 1], dtype=float)
    if len(values) < 2:
        return math.nan
    n, processes = values.shape
    standard = (values - values.mean(1, keepdims=True)) / values.std(1, ddof=1, keepdims=True)
    return float((standard.sum(0) ** 2).sum() / (processes - 1) - n) / (n * (n - 1))


def outliers(samples: Sequence[float]) -> dict[str, int]:
    """How many samples lie beyond Tukey's fences: mild (1.5 IQR) and severe (3 IQR). None is removed."""
    import numpy

    if len(samples) < 4:
        return {"mild": 0, "severe": 0, "of": len(samples)}
    values = numpy.asarray(samples, dtype=float)
    q1, q3 = numpy.percentile(values, [25, 75])
    distance = numpy.maximum(q1 - values, values - q3)
    severe = int((distance > 3 * (q3 - q1)).sum())
    return {"mild": int((distance > 1.5 * (q3 - q1)).sum()) - severe, "severe": severe, "of": len(samples)}
