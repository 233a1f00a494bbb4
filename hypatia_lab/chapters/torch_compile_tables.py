"""S000's strategy: the tables of its chapter, and the rows of its figures of errors and rooflines."""

from __future__ import annotations

from collections.abc import Sequence

from hypatia_lab import formats, results
from hypatia_lab.chapters.torch_compile import paid, until
from hypatia_lab.chapters.torch_compile_rows import FORWARD, MATHS, MODELS, base, beside, drawn, gain, select
from hypatia_lab.figures.break_even import calls_text
from hypatia_lab.figures.probe_rows import rare
from hypatia_lab.formats import absent
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.phrases import FLOAT32, durations, times, waited
from hypatia_lab.results import Row


def summary(lab: Evidence, machine: str, model: str, direction: str, mode: str) -> list[dict[str, str]]:
    """Every point beside eager in float32: time, gain, error, what it costs once and when that is won back.

    Eager's arithmetic is ``mode``. A line a point and clock. The error is the largest over the peak; of a training
    step, that of the norm, largest of its parts.
    """
    out = []
    for clock in dict.fromkeys((lab.primary(machine), waited(lab, machine))):
        first = base(lab, machine, model, direction, mode, clock)
        if first is None:
            continue
        start = paid(lab, machine, first, "")
        out.append(_line("–", f"eager in {FLOAT32[mode]}", first, first) | _once(start, None))
        for point, row in beside(lab, first):
            if point.by_wall and clock != waited(lab, machine):
                continue
            line = _line(point.number, point.what, first, row)
            if not row.timed:
                out.append(line | {"paid once": formats.MISSING, "won back in": formats.MISSING})
                continue
            case = "empty" if paid(lab, machine, row, "empty") else ""
            asked = row.variant != "eager" and clock == waited(lab, machine)
            once = paid(lab, machine, row, case) if asked else []
            won = until(first, row, rare(once), rare(start).value) if once and start else None
            out.append(line | _once(once, won))
    return out


def _line(number: str, what: str, first: Row, row: Row) -> dict[str, str]:
    wrong = row.off if row.direction == FORWARD else row.error
    return {
        "point": number,
        "what": what,
        "clock": row.clock,
        "time": row.took if row.timed else f"{row.status}: {row.reason}".removesuffix(": "),
        "× eager": (times(gain(first, row)) if row is not first else "1×") if row.timed else formats.MISSING,
        "error": formats.MISSING if absent(wrong) else f"{wrong:.1e}",
    }


def _once(once: Sequence[float], won: Interval | None) -> dict[str, str]:
    return {"paid once": durations(once), "won back in": formats.MISSING if won is None else calls_text(won)}


def batches(lab: Evidence, machine: str, mode: str) -> list[dict[str, str]]:
    """Time of a call and of an image over the number of images at once, eager and compiled, smallest first.

    In float32 by arithmetic ``mode``.
    """
    out = []
    for clock in dict.fromkeys((lab.primary(machine), waited(lab, machine))):
        rows = lab.timed(
            machine,
            experiment=MATHS[mode],
            operation="conv_block",
            dtype="float32",
            math=mode,
            direction=FORWARD,
            clock=clock,
            variant=("eager", "compile"),
        )
        sizes = sorted({row.shape for row in rows}, key=lambda shape: int(shape.split("x")[0]))
        if len({shape.split("x")[0] for shape in sizes}) < 2:
            continue
        for shape in sizes:
            for row in (row for row in rows if row.shape == shape):
                images = int(shape.split("x")[0])
                out.append(
                    {
                        "images": str(images),
                        "shape": row.at,
                        "variant": row.variant,
                        "clock": clock,
                        "call": row.took,
                        "an image": formats.time(row.time.times(1 / images)),
                        "of the limit": row.attained or formats.MISSING,
                    }
                )
    return out


def chains(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """How each chain of normalisations was judged: a line a shape, dtype, direction and variant."""
    return [
        {
            "shape": row.at,
            "dtype": row.dtype,
            "direction": formats.direction(row.direction),
            "variant": row.variant,
            "error": formats.MISSING if absent(row.error) else f"{row.error:.1e}",
            "status": row.status if not row.reason or row.status == "ok" else f"{row.status}: {row.reason}",
        }
        for row in select(lab, machine, operation="norm_chain")
    ]


def roofed(lab: Evidence, machine: str, mode: str) -> tuple[list[Row], dict[tuple[str, str, str], float]]:
    """Rows for the roofline, and the machine's ceilings: both models in float32 by arithmetic ``mode``."""
    own = {"experiment": MATHS[mode], "dtype": "float32", "math": mode}
    rows = lab.timed(machine, operation=tuple(MODELS), **own)
    shapes = {first.shape for model in MODELS if (first := base(lab, machine, model, FORWARD, mode))}
    return [row for row in rows if row.shape in shapes], results.ceilings(lab.of(machine))


def priced(lab: Evidence, machine: str, model: str, mode: str) -> list[Row]:
    """Rows for error against time: a forward pass of ``model``, eager in float32 by arithmetic ``mode`` first.

    Without other functions.
    """
    first = base(lab, machine, model, FORWARD, mode)
    if first is None:
        return []
    return [first, *drawn(lab, machine, model, FORWARD, mode, replacing=True)]
