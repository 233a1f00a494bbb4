"""S000's strategy: every point in one table."""

from __future__ import annotations

from hypatia_lab import formats, intervals
from hypatia_lab.chapters.torch_compile import paid, until
from hypatia_lab.chapters.torch_compile_rows import (
    FORWARD,
    MODELS,
    STEP,
    TIMES,
    Point,
    base,
    beside,
    named,
    views,
)
from hypatia_lab.figures.break_even import calls_text
from hypatia_lab.figures.probe_rows import Configuration, process_count, rare
from hypatia_lab.formats import absent
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.phrases import FLOAT32, clocks, durations, probed, spent, times, took, waited
from hypatia_lab.results import Row

EAGER = Point("–", "eager", "eager")


def first_calls(lab: Evidence, machine: str) -> tuple[list[dict[str, str]], str]:
    """Calls of a fresh process that compiles with nothing stored, beside a warm one of eager: a line a model.

    And what all of them have in common. Warm is call 12.
    """
    wanted = {"experiment": TIMES, "operation": tuple(MODELS), "variant": ("eager", "compile"), "case": ("", "empty")}
    found = [config for config in probed(lab, machine, "start", **wanted) if not config.fault]
    eager = {config.operation: config for config in found if config.variant == "eager"}
    out = []
    for config in (config for config in found if config.variant == "compile" and config.operation in eager):
        model, step, _ = config.operation.partition(",")
        out.append(
            {
                "model": named(model, STEP if step else FORWARD),
                "eager, warm": _milliseconds(eager[config.operation], "call 12"),
                "compiled, warm": _milliseconds(config, "call 12"),
                "call 1": spent(config, "call 1"),
                "call 2": _milliseconds(config, "call 2"),
            }
        )
    shapes = ", ".join(dict.fromkeys(config.shape for config in found))
    return out, f"{FLOAT32['ieee']}, {shapes}, {process_count(found)}"


def _milliseconds(way: Configuration, name: str) -> str:
    """Time of the line called ``name`` in ms, so that a warm call of one form can be read against the other's."""
    values = [us / 1e3 for us in way.per_process(name) if us]
    if len(values) >= intervals.FEW_RARE:
        return formats.told(rare(values), "ms")
    return f"{formats.listing([formats.number(ms) for ms in sorted(values)])} ms" if values else formats.MISSING


def summary(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Every point beside eager in float32: time, gain, error, what it costs once and when that is won back.

    A line a model, arithmetic of eager, point and clock. The error is the largest over the peak; of a training step,
    that of the norm, largest of its parts.
    """
    out = []
    for model, direction, mode in views(lab, machine):
        for clock in clocks(lab, machine):
            first = base(lab, machine, model, direction, mode, clock)
            if first is None:
                continue
            for point, row in [(EAGER, first), *beside(lab, first)]:
                if not point.by_wall or clock == waited(lab, machine):
                    line = {"model": named(model, direction), "against eager in": FLOAT32[mode]}
                    out.append(line | _line(point, first, row) | _once(lab, machine, first, row))
    return out


def _line(point: Point, first: Row, row: Row) -> dict[str, str]:
    wrong = row.off if row.direction == FORWARD else row.error
    return {
        "point": point.number,
        "what": point.what,
        "clock": row.clock,
        "time": took(row),
        "× eager": (times(first.over(row)) if row is not first else "1×") if row.timed else formats.MISSING,
        "error": formats.MISSING if absent(wrong) else f"{wrong:.1e}",
    }


def _once(lab: Evidence, machine: str, first: Row, row: Row) -> dict[str, str]:
    """What a fresh process pays once, where a caller waits for it, and after how many calls that is won back."""
    once: list[float] = []
    if row.timed and row.clock == waited(lab, machine) and (row is first or row.variant != "eager"):
        once = paid(lab, machine, row, "empty") or paid(lab, machine, row, "")
    start = paid(lab, machine, first, "") if once and row is not first else []
    won = calls_text(until(first, row, rare(once), rare(start).value)) if start else formats.MISSING
    return {"paid once": durations(once), "won back in": won}
