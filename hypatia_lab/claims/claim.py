"""What a document claims, as verdicts see it: a :class:`Claim`, its quantity, unit, band and arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hypatia_lab import expressions

NAMES = {"kilo": 1e3, "mega": 1e6, "giga": 1e9, "micro": 1e-6, "milli": 1e-3, "float32": 4}
"""What an ``expression`` may name besides numbers; ``float32`` is its size in bytes."""
MULTIPLY_ADD = "multiply_add"
"""What an ``expression`` may name that documents count as one operation or as two; one that fits is enough."""


@dataclass(frozen=True)
class Figure:
    """One figure of a record: what probe ``topic`` says of ``name`` (in ``case``), or without a topic a cell's time.

    A cell is timed at ``clock`` (``""``: the one that verdicts rest on). ``workload`` is ``""`` where it is the one
    that is being judged.
    """

    variant: str
    topic: str = ""
    name: str = ""
    case: str = ""
    clock: str = ""
    workload: str = ""


PROGRAMS = ("author", "rewrite", "library", "own", "arithmetic")
"""Whose program a part is judged by: the document's author's; the lab's rewrite of that; a library's; one of the lab's
own; or none, because the document's own figures decide."""
SENSES = ("about", "at_least", "at_most")
"""What a claimed figure means: about so much, at least, at most."""


@dataclass(frozen=True)
class Claim:
    """One part of a claim of one seed, with the band that decides it.

    ``claimed`` and ``band`` are (low, high) in ``unit``; a single claimed figure has low equal to high. ``band_set``
    is the day on which the band was written down and whether that was before the first record that bears on it or
    after, such as ``2026-11-21 before``. ``sense`` is one of :data:`SENSES`: what is claimed at least has no upper end
    to its band, what is claimed at most no lower one. ``gain``: the figure of an "about" is a gain that the document
    claims for its own way, so that a larger one understates it and does not refute it.

    ``program`` is one of :data:`PROGRAMS`. Where it is the author's, ``variant``, ``baseline`` and the figures name
    his, and ``rewrites`` says for each which variant of the lab's stands in where his was not measured: as the thing
    itself where a record shows both equal by that clock, else as a finding. ``made_of`` is the operation that shows
    them equal, where what is judged consists of calls of it. A ``forecast`` is what the document expects, or has for
    its target, or a goal of the lab's.

    ``workloads`` are names as in the results table. ``bound``: ``roofline`` (the machine's measured ceilings),
    ``free_relu`` (the ReLU costs nothing) or ``""``. ``device`` and ``clock`` are ``""`` when the claim leaves them
    open, and ``models`` the models of GPU that it is about, where it is about these alone. ``untestable`` says why no
    figure could decide it, ``elsewhere`` why a time or rate that was measured here cannot: it was said of other
    hardware. ``pages`` are those of the book that show it, ``about`` the documents' claims that a finding of the lab's
    speaks of. ``of`` are the figures that quantity
    ``figure`` adds; ``over`` and ``under`` those that ``quotient`` adds above and below the line. ``experiment`` is the
    one that measures what decides; a verdict takes its figures from where they have most processes, and where several
    have as many, from there. ``lead`` is the id of the whole claim, such as ``S001-05`` of part ``S001-05a``, and
    ``statement`` its wording.
    """

    id: str
    section: str
    claim: str
    claimed: tuple[float, float]
    unit: str
    quantity: str
    why: str
    program: str = ""
    sense: str = "about"
    gain: bool = False
    forecast: bool = False
    rewrites: tuple[tuple[str, str], ...] = ()
    workloads: tuple[str, ...] = ()
    variant: str = ""
    baseline: str = "eager"
    part: str = ""
    band: tuple[float, float] = (math.nan, math.nan)
    band_set: str = ""
    bound: str = ""
    device: str = ""
    clock: str = ""
    of: tuple[Figure, ...] = ()
    over: tuple[Figure, ...] = ()
    under: tuple[Figure, ...] = ()
    experiment: str = ""
    expression: str = ""
    untestable: str = ""
    elsewhere: str = ""
    models: tuple[str, ...] = ()
    made_of: str = ""
    conflicts: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()
    about: tuple[str, ...] = ()
    lead: str = ""
    statement: str = ""

    @property
    def document(self) -> str:
        """The document that makes the claim, such as ``S001``."""
        return self.id.partition("-")[0]

    @property
    def testable(self) -> bool:
        """Whether a measurement can decide it; arithmetic, and what no lab can test, is the same on any machine."""
        return self.quantity != "arithmetic" and not self.untestable

    @property
    def sums(self) -> tuple[float, ...]:
        """What its own figures give, by each reading that the document allows; empty without an expression."""
        ways = (1, 2) if MULTIPLY_ADD in self.expression else (1,)
        return tuple(arithmetic(self.expression, way) for way in ways) if self.expression else ()

    @property
    def adds_up(self) -> bool:
        """Whether its own figures give what it says, by one reading at least; True of one without an expression."""
        low, high = self.band
        return not self.sums or any(low <= value <= high for value in self.sums)

    @property
    def limits(self) -> tuple[float, float]:
        """The band as it decides: open above for ``at_least``, below for ``at_most``."""
        low, high = self.band
        return -math.inf if self.sense == "at_most" else low, math.inf if self.sense == "at_least" else high

    @property
    def figures(self) -> tuple[Figure, ...]:
        """The figures of records that it names one by one."""
        return (*self.of, *self.over, *self.under)

    @property
    def programs(self) -> set[str]:
        """The variants that it names."""
        return {self.variant, self.baseline, *(figure.variant for figure in self.figures)}

    @property
    def printed(self) -> bool:
        """Whether an author's script has printed a figure of it, for which no rewrite stands in."""
        return any(figure.topic == "program" for figure in self.figures)

    def rewritten(self) -> Claim:
        """The same part with every program of the author's replaced by the rewrite that stands in for it."""
        known = dict(self.rewrites)

        def own(figures: tuple[Figure, ...]) -> tuple[Figure, ...]:
            return tuple(replace(figure, variant=known.get(figure.variant, figure.variant)) for figure in figures)

        return replace(
            self,
            variant=known.get(self.variant, self.variant),
            baseline=known.get(self.baseline, self.baseline),
            of=own(self.of),
            over=own(self.over),
            under=own(self.under),
        )


ALWAYS = ("section", "claim", "claimed", "unit", "quantity", "why")
_MEASURED = ("workloads", "band")
_JUDGED = ("program", "band_set", "gain", "forecast", "rewrites", "made_of")
_OPEN = ("device", "models", "experiment", "elsewhere")
_MAY = (*_OPEN, "clock")

QUANTITIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ratio": ((*_MEASURED, "variant"), (*_JUDGED, *_MAY, "baseline", "bound")),
    **dict.fromkeys(("slowdown", "constant", "saving"), ((*_MEASURED, "variant"), (*_JUDGED, *_MAY, "baseline"))),
    **dict.fromkeys(("time", "rate", "bandwidth"), ((*_MEASURED, "variant"), (*_JUDGED, *_MAY, "bound"))),
    **dict.fromkeys(("attained", "max_error"), ((*_MEASURED, "variant"), (*_JUDGED, *_MAY))),
    "share": ((*_MEASURED, "part"), (*_JUDGED, *_MAY)),
    "launch": (_MEASURED, (*_JUDGED, *_OPEN)),
    "figure": ((*_MEASURED, "of"), (*_JUDGED, *_OPEN)),
    "quotient": ((*_MEASURED, "over", "under"), (*_JUDGED, *_OPEN)),
    "arithmetic": (("expression", "band"), ()),
    "none": (("untestable",), ()),
}
"""Quantity → (keys its entries must have, keys they may have), besides those that every entry must or may have."""

UNITS = {
    **dict.fromkeys(("ratio", "slowdown", "constant"), "×"),
    **dict.fromkeys(("time", "saving"), "ms"),
    "launch": "µs",
    "rate": "GFLOP/s",
    "bandwidth": "GB/s",
    **dict.fromkeys(("share", "attained"), "%"),
    "max_error": "absolute",
}
"""Quantity → the unit in which a verdict works it out, and so the only one that its band may be in.

Not here: the unit of quantity ``figure`` is converted to, a ``quotient`` is in % or a plain number, and ``arithmetic``
and ``none`` are in whatever the document says.
"""

HARDWARE = ("s", "ms", "µs", "GFLOP/s", "TFLOP/s", "GB/s")
"""Units of what depends on the hardware, so that a document's figure in them is of its author's."""

KINDS = ("ratio", "share", "time", "rate", "size")
"""What a figure of a document seems to be by its unit, before anybody has said what is claimed of it."""

AUTHOR = "author_"
"""How the names of an author's variants begin, and of the experiments that measure them."""


def usual_band(claimed: tuple[float, float], unit: str) -> tuple[float, float]:
    """The band of a claim that writes none: its range; 10% of one figure either way, of one below 1.5× 0.02."""
    low, high = claimed
    if low < high:
        return claimed
    margin = 0.02 if unit == "×" and abs(low) < 1.5 else abs(low) / 10
    return float(f"{low - margin:.10g}"), float(f"{high + margin:.10g}")


def arithmetic(expression: str, multiply_add: int = 1) -> float:
    """The value of an arithmetic ``expression``: numbers, + - * / ** and parentheses, and :data:`NAMES`.

    :data:`MULTIPLY_ADD` stands in it for so many operations. Raises ``ValueError`` for anything else and for a result
    that is not a finite number.
    """
    try:
        return float(expressions.value(expression, NAMES | {MULTIPLY_ADD: multiply_add}))
    except ValueError as cause:
        raise ValueError(
            f"expression {expression!r} cannot be worked out ({cause}); "
            f"use numbers, + - * / ** ( ) and {', '.join([*NAMES, MULTIPLY_ADD])}"
        ) from None


def goes_with(quantity: str) -> tuple[str, ...]:
    """The keys that go with ``quantity``."""
    must, may = QUANTITIES[quantity]
    return (*ALWAYS, "conflicts", "sense", "page", "about", *must, *may)
