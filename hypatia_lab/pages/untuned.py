"""What the sweep over drawn shapes says: where the lab's best form is ahead of, level with or behind its peers."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from hypatia_lab import formats, intervals, variants
from hypatia_lab.figures import shares as share_figure
from hypatia_lab.figures.shares import AHEAD, BEHIND, LEVEL, NONE
from hypatia_lab.intervals import Interval
from hypatia_lab.pages import beside, readings
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.readings import labelled
from hypatia_lab.results import Row

UNSEEN = "unseen"
"""The experiment: a draw after the last change to a kernel."""
FAMILIES = {"linear_relu": "Linear+ReLU", "conv_block": "convolution block", "mlp3": "three layers"}
DEFAULT_LAYOUT = ("eager", "epilogue", "group_norm")
"""PyTorch's forms on tensors in its default layout, which the dispatcher gets here."""
FORMS = (*DEFAULT_LAYOUT, "eager_channels_last")
"""PyTorch's forms: as the lab's, each on tensors in the layout that it wants."""
BEST = "PyTorch's quickest"
"""Stands for whichever of :data:`FORMS` is the quickest at a shape, and what a person calls that."""
WORSE = 0.05
"""By how much the dispatcher may be slower than the library, at most."""
LATE = f"surely over {WORSE:.0%} slower"
ESTIMATED = f"over {WORSE:.0%} slower by the ratio alone"
FEW, TILE_ROWS = 8, 64
"""Most rows that Linear+ReLU in CUDA multiplies without tensor cores, and rows of its smallest tile."""
FEW_CHANNELS = 26
"""Most channels of which the convolution block's float32 is neither split nor copied, and has no tensor cores."""
COPYING = ("cuda", "layers_cuda", "fp16x3", "fp16x3_cuda", "triton_fp16x3")
"""Forms that copy uneven rows first, or write their parts anew."""
PACK = {"float32": 4, "bfloat16": 8}
"""dtype → how many of its numbers 16 bytes hold."""

Shapes = dict[str, dict[str, Row]]
"""Workload → variant → its row."""


def families(data: Evidence, machine: str, clock: str = "") -> dict[str, Shapes]:
    """Family, as a person calls it → its timed rows by workload and variant, in the order of their work.

    By the machine's primary clock unless another is named.
    """
    found: dict[str, Shapes] = {}
    for row in data.timed(machine, experiment=UNSEEN, clock=clock or data.primary(machine)):
        name = f"{FAMILIES[row.operation]}, {'TF32' if row.math == 'tf32' else row.dtype}"
        found.setdefault(name, {}).setdefault(row.workload, {})[row.variant] = row
    return {name: found[name] for name in sorted(found)}


def own(forms: dict[str, Row]) -> Row | None:
    """The quickest form of the lab's at one shape; what the dispatcher chose is none of its own."""
    return readings.quickest(row for row in forms.values() if row.origin == "own" and row.variant != "dispatched")


def quickest(forms: dict[str, Row], names: Sequence[str] = FORMS) -> Row | None:
    """The quickest of the forms called ``names``, PyTorch's, at one shape."""
    return readings.fastest(forms.values(), names)


def word(found: Interval) -> str:
    """An interval of speeds in a word: ahead, level (within ±2%), behind, or why nothing can be said."""
    said = intervals.reading(found)
    plain = {"faster": AHEAD, "equal": LEVEL, "slower": BEHIND, intervals.TOO_FEW: intervals.TOO_FEW}
    return plain.get(said, intervals.TOO_NOISY)


def against(shapes: Shapes, peer: str) -> list[tuple[Row | None, Row, str]]:
    """At each shape that ``peer`` was timed at: the lab's quickest form with the peer for its baseline, that, the word.

    No first row where the lab has no form for the shape.
    """
    found: list[tuple[Row | None, Row, str]] = []
    for forms in shapes.values():
        if other := quickest(forms) if peer == BEST else forms.get(peer):
            row = own(forms)
            compared = row.against(other) if row else None
            found.append((compared, other, word(compared.speed) if compared else NONE))
    return found


def compared(data: Evidence, machine: str) -> dict[tuple[str, str], list[tuple[Row | None, Row, str]]]:
    """Family and peer → what :func:`against` has of them, where there is something."""
    return {
        (family, peer): found
        for family, shapes in families(data, machine).items()
        for peer in FORMS
        if (found := against(shapes, peer))
    }


def by_family(data: Evidence, machine: str) -> dict[str, list[tuple[Row | None, Row, str]]]:
    """Family → what :func:`against` has of it and PyTorch's quickest form."""
    return {family: against(shapes, BEST) for family, shapes in families(data, machine).items()}


def figure(data: Evidence, machine: str) -> Any:
    """The shares of all families against PyTorch's quickest form, as a figure and its table."""
    rows = {family: [said for _, _, said in found] for family, found in by_family(data, machine).items()}
    words = Counter(said for own in rows.values() for said in own)
    under = [
        data.measured[machine].model,
        f"{data.primary(machine)} clock",
        "level: within ±2%, by 95% intervals; torch.compile left out",
    ]
    many = f"{words[AHEAD]} of {words.total() - words[NONE]} shapes"
    return share_figure.shares(rows, f"The lab's quickest form is ahead of {BEST} at {many}", under)


def counts(data: Evidence, machine: str) -> list[dict[str, str]]:
    """A line a family and each of its peers: at how many shapes the lab's quickest form is ahead, level, behind."""
    lines = []
    for (family, _), found in compared(data, machine).items():
        words = Counter(said for _, _, said in found)
        named = {said: str(words[said]) for said in share_figure.LOOKS}
        lines.append({"family": family, "against": labelled(found[0][1]), "shapes": str(len(found))} | named)
    used = {name for line in lines for name, text in line.items() if text != "0"}
    return [{name: text for name, text in line.items() if name in used} for line in lines]


def where_behind(data: Evidence, machine: str) -> list[dict[str, str]]:
    """A line a shape at which PyTorch's quickest form is ahead of the lab's, the furthest first."""
    found = [
        (family, row, other)
        for family, pairs in by_family(data, machine).items()
        for row, other, said in pairs
        if row and said == BEHIND
    ]
    return [
        {
            "family": family,
            "the lab's form": labelled(row),
            "against": labelled(other),
            "shape": row.at,
            "lab's time / the other's": formats.told(row.speed.inverse()),
            "likely reason": "; ".join(_reasons(row)) or "not known",
        }
        for family, row, other in sorted(found, key=lambda one: one[1].ratio)
    ]


def _extents(row: Row) -> list[int]:
    return [int(extent) for extent in row.shape.split("x")]


def uneven(row: Row) -> bool:
    """Whether rows of a matrix, or the channels of a pixel, are no whole packs of 16 bytes."""
    widths = _extents(row)[1 : 3 if row.operation == "linear_relu" else 2]
    return any(width % PACK[row.dtype] for width in widths)


def _few(row: Row) -> bool:
    return row.operation == "linear_relu" and _extents(row)[0] <= FEW


def _whole(row: Row) -> bool:
    """Whether the block's form of three products takes float32 as it is, for there are few channels."""
    return row.variant == "triton_fp16x3" and _extents(row)[1] <= FEW_CHANNELS


KINDS: dict[str, Callable[[Row], bool]] = {
    "whole 16 bytes": lambda row: not uneven(row),
    "uneven": uneven,
    f"of these two, with at most {FEW} rows of x": _few,
}
"""Kind of rows → whether a row of results is of it."""


def _reasons(row: Row) -> list[str]:
    """What may slow the lab's form at its shape, by rules on the shape and the form."""
    copied = row.variant in COPYING and not (_whole(row) or _few(row)) and _extents(row)[1] % PACK[row.dtype] > 0
    found = {"uneven rows, not copied": uneven(row) and not copied, "rows copied first": copied}
    found["three products"] = "x3" in row.variant and not _whole(row)
    found[f"{FEW + 1} to {TILE_ROWS - 1} rows"] = row.operation == "linear_relu" and FEW < _extents(row)[0] < TILE_ROWS
    return [name for name, holds in found.items() if holds]


def answers(data: Evidence, machine: str) -> list[Row]:
    """Every answer at the drawn shapes, each of one form at one shape."""
    rows = data.leading(machine, experiment=UNSEEN)
    return [row for row in rows if row.status != "skipped" and not row.is_twin]


def by_rows(data: Evidence, machine: str) -> list[dict[str, str]]:
    """A line an operation and kind of rows: at how many shapes the lab's quickest form is ahead, level, behind."""
    pairs = [pair for own in by_family(data, machine).values() for pair in own if pair[2] != NONE]
    lines = []
    for operation, name in FAMILIES.items():
        for kind, holds in KINDS.items():
            words = Counter(said for _, other, said in pairs if other.operation == operation and holds(other))
            if words:
                named = {said: str(words[said]) for said in (AHEAD, LEVEL, BEHIND, intervals.TOO_NOISY)}
                lines.append({"operation": name, "length of a row": kind, "shapes": str(words.total())} | named)
    return lines


def arithmetic(row: Row) -> str:
    """What the lab's form multiplies in: float32 in parts, where it splits that, or whole at so few rows in CUDA."""
    if _whole(row):
        return row.dtype
    variants.load()
    known = variants.variants(row.operation).get(row.variant)
    if known and known.splits:
        return f"{known.splits[1]} products of {known.splits[0].split('/')[0]} parts"
    return "TF32" if row.math == "tf32" and not (row.variant == "cuda" and _few(row)) else row.dtype


def wins(data: Evidence, machine: str) -> list[dict[str, str]]:
    """A line a family and arithmetic of the forms that are ahead: at how many shapes, and their errors over eager's."""
    found: dict[tuple[str, str], list[float]] = {}
    for family, pairs in by_family(data, machine).items():
        for row in (row for row, _, said in pairs if row and said == AHEAD):
            found.setdefault((family, arithmetic(row)), []).append(beside.error(data, row, variant="eager"))
    heads = ("error over eager's: median", "least", "most")
    return [
        {"family": family, "how the lab multiplies": kind, "ahead": str(len(off))}
        | {head: f"{formats.number(of(off))}×" for head, of in zip(heads, (statistics.median, min, max), strict=True)}
        for (family, kind), off in sorted(found.items())
    ]


def dispatched(data: Evidence, machine: str, clock: str = "") -> list[dict[str, str]]:
    """A line a family: the dispatcher's choice against PyTorch's quickest form in the default layout, at each shape.

    ``clock``: "wall" for what is chosen by the time that a caller waits, and timed so.
    """
    lines, name = [], f"dispatched_{clock}" if clock else "dispatched"
    for family, shapes in families(data, machine, clock).items():
        pairs = [(forms.get(name), quickest(forms, DEFAULT_LAYOUT)) for forms in shapes.values()]
        if rows := [choice.against(best) for choice, best in pairs if choice and best]:
            words = Counter(word(row.speed) for row in rows)
            worst = min(rows, key=lambda row: row.ratio)
            lines.append(
                {
                    "family": family,
                    LATE: f"{sum(row.speed.below(1 - WORSE) for row in rows)} of {len(rows)}",
                    ESTIMATED: str(sum(row.ratio < 1 / (1 + WORSE) for row in rows)),
                    **{said: str(words[said]) for said in (AHEAD, LEVEL, BEHIND, intervals.TOO_NOISY)},
                    "slowest": f"{worst.at}: {formats.told(worst.speed.inverse())} the time of {BEST} form",
                }
            )
    return lines
