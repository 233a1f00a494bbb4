"""Numbers in sentences: a notebook's f-strings write them, each with its interval, or say why they cannot be told.

``f"The epilogue runs at {ratio(row.speed)} of eager's speed."`` A number that was not measured leaves its sentence
out (:func:`say`), so that a page reads well on a machine that lacks a record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypatia_lab import formats, intervals
from hypatia_lab.formats import absent
from hypatia_lab.intervals import Interval

NOTHING = "\x00"
"""What stands in an f-string for a number that was not measured."""


@dataclass(frozen=True)
class Number:
    """A measured number for a sentence: ``str`` writes it with its interval, format ``brief`` without.

    In doubt it says so in words. Too wide for its value to mean anything, it tells the nearer bound where its interval
    lies wholly on one side of 1 (of a ratio), and both bounds of what is no ratio.
    """

    found: Interval
    unit: str
    write: Callable[[Interval], str] = formats.told

    def __str__(self) -> str:
        return self._said or self.write(self.found)

    def __format__(self, how: str) -> str:
        if how == "brief":
            return self._said or self.write(self.found).partition(" [")[0]
        if how:
            raise ValueError(f"a number is written plainly or as 'brief', not {how!r}")
        return str(self)

    @property
    def _said(self) -> str:
        """What stands for its value, in words; empty where the value can be told."""
        found = self.found
        if absent(found.value):
            return NOTHING
        if found.flaw or (found.doubt and self.unit == "×" and found.low <= 1 <= found.high):
            return f"a figure {formats.DOUBTS[found.doubt]}"
        if not found.doubt:
            return ""
        if self.unit == "×":
            word, end = ("at least", found.low) if found.low > 1 else ("at most", found.high)
            return f"{word} {formats.spoken(end)}×"
        wide = found.width > intervals.UNTOLD
        return f"a figure {formats.DOUBTS[found.doubt]}" if wide else f"something like {self.write(found)}"


def ratio(found: Interval) -> Number:
    """How many times: ``1.49× [1.48, 1.50]``."""
    return Number(found, "×")


def time(found: Interval) -> Number:
    """A time in µs, in the unit that suits it: ``1.52 s [1.50, 1.54]``."""
    return Number(found, "µs", formats.time)


def share(found: Interval) -> Number:
    """A share of 1 in per cent: ``61.0% [60.2, 61.8]``."""
    return Number(found.times(100) if found.n else found, "%", lambda percent: formats.told(percent, "%"))


def count(found: Interval, unit: str = "") -> Number:
    """What is counted, such as launches, and may be exact: ``3 launches``."""
    return Number(found, unit, lambda counted: formats.figure(counted, unit))


def fixed(value: float, unit: str = "×") -> Number:
    """A figure that has no scatter, such as one error over another: ``0.28×``."""
    alone = Interval(value, value, value, 1)
    return Number(alone, unit, lambda found: formats.with_unit(formats.spoken(found.value), unit))


def span(found: Sequence[Interval], write: Callable[[Interval], Number] = ratio) -> str:
    """The least and the greatest of several numbers, each with its interval: ``1.01× [1.00, 1.02] to 1.49× [1.48,
    1.50]``; of one that one alone. Those in doubt are left out; :data:`NOTHING` where all are."""
    known = sorted((one for one in found if one.n and not one.doubt), key=lambda one: one.value)
    return " to ".join(dict.fromkeys(str(write(one)) for one in (known[:1] + known[-1:]))) or NOTHING


def say(*sentences: str, when: bool = True) -> None:
    """Display ``sentences`` as one paragraph of Markdown, without those that lack a number, or nothing unless ``when``.

    A sentence is one argument: where one of its numbers was not measured all of it is left out.
    """
    from IPython.core.display import Markdown
    from IPython.display import display

    kept = [text for text in sentences if text and NOTHING not in text]
    if when and kept:
        display(Markdown(" ".join(kept)))


def table(rows: Sequence[Any], columns: dict[str, Callable[[Any], Any]]) -> Any:
    """A pandas table, a line a row: heading → what it shows of a row, as text (a :class:`Number` too)."""
    import pandas

    lines = [{name: str(cell(row)).replace(NOTHING, formats.MISSING) for name, cell in columns.items()} for row in rows]
    return pandas.DataFrame(lines, columns=list(columns))
