"""What several chips of a model say of the next one, and where the scatter of ratios comes from, as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hypatia_lab import formats, intervals
from hypatia_lab.formats import MISSING, number
from hypatia_lab.spread import Across, Component, Expectation, Kind

TUNING = {False: "untuned", True: "torch.compile's"}
"""Whether a tuner chose the kernels of a variant → what its ratios are called."""


def class_name(kind: Kind) -> str:
    """A class of ratios: ``untuned, graph clock``."""
    clock, tuned = kind
    return f"{TUNING[tuned]}, {clock} clock"


def will_mine_differ(chips: int, found: Sequence[Expectation]) -> list[str]:
    """What is to be expected of the next chip of a model of which ``chips`` were seen, a text a class of ratios.

    A last one says of all classes without an interval what they lack. ``found`` are those of
    :func:`hypatia_lab.spread.expectations`.
    """
    if chips < 2:
        return ["One chip was seen. Nothing can be promised of another."]
    if not found:
        return [f"{chips} chips were seen, but no ratio on two of them. Nothing can be promised of another."]
    said = [f"{class_name((one.clock, one.tuned)).capitalize()}: {_expected(one, chips)}" for one in found]
    if any(one.chips < intervals.FEW for one in found):
        said.append(f"It takes {intervals.FEW} chips that ran the same ratio to say what the next one does.")
    return said


def _expected(found: Expectation, chips: int) -> str:
    what = f"{found.ratios} ratio{'s' if found.ratios > 1 else ''} on {found.chips} or more of {chips} chips"
    seen = f"{what}; the furthest lies {number(100 * found.within)}% from the chips' mean."
    if found.chips < intervals.FEW:
        return seen
    if found.high > intervals.UNTOLD:
        return f"{seen} That is too wide to expect any of yours."
    return f"{seen} Expect 95% of yours within {_ends(found)} times that mean."


def _ends(found: Expectation) -> str:
    places = 2 if found.high == 1 else min(6, max(2, 1 - math.floor(math.log10(found.high - 1))))
    return f"[{number(found.low, places)}, {number(found.high, places)}]"


def expectations_table(found: Mapping[str, Sequence[Expectation]]) -> Any:
    """What to expect of the next chip of each model, a line a class of ratios, as a DataFrame of text.

    The interval is a dash where fewer than :data:`intervals.FEW` chips stand behind a ratio.
    """
    import pandas

    lines = []
    for model, own in found.items():
        for one in own:
            line = {"model": model, "ratios": class_name((one.clock, one.tuned)), "how many": one.ratios}
            line |= {"chips each": f"at least {one.chips}", "furthest": f"{number(100 * one.within)}%"}
            told = MISSING if one.chips < intervals.FEW else _ends(one)
            lines.append(line | {"95% of the next": "too wide" if one.high > intervals.UNTOLD else told})
    return pandas.DataFrame(lines)


def bounds(one: Across, *, alike: bool) -> tuple[str, tuple[float, float]]:
    """What is said of a ratio on the next machine, and its ends: ``next``, a prediction interval, where all machines
    are ``alike`` and there are enough of them, else ``range``, of what was seen.
    """
    predicted = one.next
    return ("next", (predicted.low, predicted.high)) if alike and predicted.n else ("range", one.range)


def span(low: float, high: float) -> str:
    """Two ends as text: ``[0.99, 1.02]``, a dash where there are none."""
    if formats.absent(low):
        return MISSING
    _, _, ends = formats.interval(math.sqrt(low * high), low, high).partition(" [")
    return f"[{ends or f'{number(low)}, {number(high)}]'}"  # ends that lie far apart are no noise here


def ratios_table(found: Sequence[Across]) -> Any:
    """Ratios on several chips of a model, a line a ratio, as a DataFrame of text.

    Columns: ratio, a column for each chip that has any, and range or next (:func:`bounds`) where any has one.
    """
    import pandas

    lines, names = [], sorted({name for one in found for name in one.values})
    for one in found:
        line = {"ratio": f"{one.row.variant} over {one.row.baseline}, {one.row.text}, {one.row.clock} clock"}
        line |= {name: formats.number(one.values[name]) if name in one.values else MISSING for name in names}
        word, ends = bounds(one, alike=True)
        lines.append(line | {"range": "", "next": ""} | {word: span(*ends)})
    table = pandas.DataFrame(lines)
    return table.drop(columns=[name for name in ("range", "next") if not any(table[name])])


def components_table(found: Mapping[Kind, Sequence[Component]]) -> Any:
    """Where the scatter of the ratios comes from: a line a class of ratios, a column a level, as a DataFrame of text.

    A cell has the standard deviation in percent, or a dash where there is not enough to say. A level of which nothing
    is known in any class has no column.
    """
    import pandas

    known = {one.level for own in found.values() for one in own if one.holds}
    lines = [
        {"ratios": TUNING[tuned], "clock": clock} | {one.level: _told(one) for one in own if one.level in known}
        for (clock, tuned), own in found.items()
    ]
    return pandas.DataFrame(lines)


def _told(one: Component) -> str:
    if not one.holds:
        return MISSING
    text = f"{number(100 * one.deviation)}%"
    more = [name for name in one.holds if name != one.level]
    return f"{text}, {formats.listing([f'{name}s' for name in more])} included" if more else text
