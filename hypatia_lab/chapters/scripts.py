"""What a document's own scripts printed, and what the ledger makes of it: a figure over its processes, in words."""

from __future__ import annotations

from collections.abc import Container, Mapping

from hypatia_lab import formats, intervals
from hypatia_lab.figures.probe_rows import Configuration
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.phrases import probed


def way(lab: Evidence, machine: str, experiment: str, case: str, variant: str, shape: str) -> Configuration | None:
    """The figures that command ``case`` of ``experiment`` gave of ``variant`` at ``shape`` (``1024x1024``).

    None without a record of them.
    """
    found = probed(lab, machine, "program", experiment=experiment, case=case, variant=variant)
    return next((own for own in found if own.shape == formats.shape(shape)), None)


def measured(found: Configuration | None, name: str) -> Interval | None:
    """The figure called ``name`` (times in µs) over its processes, as the ledger has it; None where there is none."""
    value = intervals.NOTHING if found is None else found.estimate(name)
    return value if value.n else None


def judged(lab: Evidence, machine: str, part: str, shape: str = "", *, rewrite: bool = False) -> Interval | None:
    """What the ledger's ``part`` measured on ``machine``, where several sizes were judged that of ``shape``.

    None where nothing was measured, or, unless ``rewrite``, where a rewrite stood in for the author's program.
    """
    row = lab.judged.get(part, {}).get(machine)
    if row is None or (row.program == "rewrite") != rewrite:
        return None
    for case in row.cases:
        if shape in ("", case.workload.split("/")[1]):
            return case.estimate
    return None


def number(found: Interval, unit: str) -> str:
    """A figure with its interval; times are in µs, what is the same in all processes has none."""
    return formats.time(found) if unit in ("s", "ms", "us") else formats.figure(found, unit.replace("1", ""))


def text(found: Configuration | None, name: str, times: Container[str] = ()) -> str:
    """The figure called ``name`` for a reader, without n; ``–`` where there is none. Those in ``times`` are multiples.

    A correlation has six digits, as the scripts write it.
    """
    value = measured(found, name)
    if found is None or value is None:
        return formats.MISSING
    if name == "correlation":
        return f"{value.value:.6f}"
    return number(value, "×" if name in times else next(line["unit"] for line in found.details if line["name"] == name))


def counted(told: str, found: Interval | None) -> str:
    """``told`` with the number of processes behind it, where there are several and it does not say so itself."""
    return told if found is None or found.n < 2 or told.startswith(formats.UNTOLD) else f"{told}, n = {found.n}"


def shown(found: Configuration | None, name: str, times: Container[str] = ()) -> str:
    """:func:`text` with n."""
    return counted(text(found, name, times), measured(found, name))


def estimated(found: Interval | None, unit: str) -> str:
    """A figure of the ledger with n; ``–`` where there is none."""
    return formats.MISSING if found is None else counted(number(found, unit), found)


def lines(
    found: Configuration | None, document: str, figures: Mapping[str, tuple[str, str]], times: Container[str] = ()
) -> list[dict[str, str]]:
    """A line a figure of ``figures`` (name → what it is, what ``document`` has): that, and what was printed here."""
    if found is None or found.fault:
        return []
    return [
        {"figure": what, document: theirs, "the script here": shown(found, name, times)}
        for name, (what, theirs) in figures.items()
    ]
