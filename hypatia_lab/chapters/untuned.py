"""What the sweep over drawn shapes says: where the lab's best form is ahead of, level with or behind its peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypatia_lab import formats, intervals
from hypatia_lab.figures import shares as share_figure
from hypatia_lab.figures.shares import AHEAD, BEHIND, LEVEL, NONE
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.by_machine import device
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, unsaid
from hypatia_lab.pages.phrases import labelled, spoken
from hypatia_lab.results import Row

PAGE = "21_untuned"
UNSEEN, LOOKED_AT, TUNED = "unseen", "untuned", "untuned_autotune"
"""Experiments: a draw after the last change to a kernel, one before it, and what tunes at some shapes of that."""
DRAWS = {LOOKED_AT: "first draw", UNSEEN: "second draw"}
FAMILIES = {"linear_relu": "Linear+ReLU", "conv_block": "convolution block", "mlp3": "three layers"}
DEFAULT_LAYOUT = ("eager", "epilogue", "group_norm")
"""PyTorch's forms on tensors in its default layout, which the dispatcher gets here."""
FORMS = (*DEFAULT_LAYOUT, "eager_channels_last")
"""PyTorch's forms: as the lab's, each on tensors in the layout that it wants."""
BEST = "PyTorch's quickest"
"""Stands for whichever of :data:`FORMS` is the quickest at a shape, and what a person calls that."""
COMPILED = "compile_max_autotune"
WORSE = 0.05
"""By how much the dispatcher may be slower than the library, at most."""
LATE = f"over {WORSE:.0%} slower"
FEW, TILE_ROWS = 8, 64
"""Most rows that Linear+ReLU in CUDA multiplies without tensor cores, and rows of its smallest tile."""
COPYING = ("cuda", "layers_cuda")
"""Forms that copy uneven rows first."""
PACK = {"float32": 4, "bfloat16": 8}
"""dtype → how many of its numbers 16 bytes hold."""

Shapes = dict[str, dict[str, Row]]
"""Workload → variant → its row."""


def shown(lab: Evidence, machine: str) -> str:
    """The draw that the page shows of ``machine``: the one that nobody had looked at, where there is a record of it."""
    return UNSEEN if lab.timed(machine, experiment=UNSEEN) else LOOKED_AT


def families(lab: Evidence, machine: str, experiment: str = "") -> dict[str, Shapes]:
    """Family, as a person calls it → its timed rows by workload and variant, in the order of their work.

    Of the draw that is :func:`shown`, if of no other ``experiment``.
    """
    found: dict[str, Shapes] = {}
    for row in lab.timed(machine, experiment=experiment or shown(lab, machine)):
        name = f"{FAMILIES[row.operation]}, {'TF32' if row.math == 'tf32' else row.dtype}"
        found.setdefault(name, {}).setdefault(row.workload, {})[row.variant] = row
    return {name: found[name] for name in sorted(found)}


def own(forms: dict[str, Row]) -> Row | None:
    """The quickest form of the lab's at one shape; what the dispatcher chose is none of its own."""
    rows = [row for row in forms.values() if row.origin == "own" and row.variant != "dispatched"]
    return min(rows, key=lambda row: row.median_us, default=None)


def quickest(forms: dict[str, Row], names: Sequence[str] = FORMS) -> Row | None:
    """The quickest of the forms called ``names``, PyTorch's, at one shape."""
    return min((forms[name] for name in names if name in forms), key=lambda row: row.median_us, default=None)


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


def compared(lab: Evidence, machine: str) -> dict[tuple[str, str], list[tuple[Row | None, Row, str]]]:
    """Family and peer → what :func:`against` has of them, where there is something."""
    return {
        (family, peer): found
        for experiment, names in {"": FORMS, TUNED: (COMPILED,)}.items()
        for family, shapes in families(lab, machine, experiment).items()
        for peer in names
        if (found := against(shapes, peer))
    }


def by_family(lab: Evidence, machine: str, experiment: str = "") -> dict[str, list[tuple[Row | None, Row, str]]]:
    """Family → what :func:`against` has of it and PyTorch's quickest form."""
    return {family: against(shapes, BEST) for family, shapes in families(lab, machine, experiment).items()}


def figure(lab: Evidence, machine: str) -> Any:
    """The shares of all families against PyTorch's quickest form, as a figure and its table."""
    rows = {family: [said for _, _, said in found] for family, found in by_family(lab, machine).items()}
    words = Counter(said for own in rows.values() for said in own)
    under = [
        device(lab, machine),
        DRAWS[shown(lab, machine)],
        f"{lab.primary(machine)} clock",
        "level: within ±2%, by 95% intervals",
    ]
    title = f"Ahead of {BEST} form at {words[AHEAD]} of {words.total()} shapes"
    return share_figure.shares(rows, title, under)


def counts(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """A line a family and each of its peers: at how many shapes the lab's quickest form is ahead, level, behind."""
    lines = []
    for (family, _), found in compared(lab, machine).items():
        words = Counter(said for _, _, said in found)
        named = {said: str(words[said]) for said in share_figure.LOOKS}
        lines.append({"family": family, "against": labelled(found[0][1]), "shapes": str(len(found))} | named)
    used = {name for line in lines for name, text in line.items() if text != "0"}
    return [{name: text for name, text in line.items() if name in used} for line in lines]


def where_behind(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """A line a shape at which PyTorch's quickest form is ahead of the lab's, the furthest first."""
    found = [
        (family, row, other)
        for family, pairs in by_family(lab, machine).items()
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


def _reasons(row: Row) -> list[str]:
    """What may slow the lab's form at its shape, by rules on the shape and the form."""
    few = row.operation == "linear_relu" and FEW < _extents(row)[0] < TILE_ROWS
    found = {"uneven rows": uneven(row) and row.variant not in COPYING, "three products": "x3" in row.variant}
    found[f"{FEW + 1} to {TILE_ROWS - 1} rows"] = few
    return [name for name, holds in found.items() if holds]


def _at(pairs: Sequence[tuple[Row | None, Row, str]], word: str) -> str:
    """At how many of ``pairs`` the lab's form is what ``word`` says: ``at 3 of 20``."""
    return f"at {sum(said == word for *_, said in pairs)} of {len(pairs)}"


def _of(lab: Evidence, machine: str, operation: str) -> list[tuple[Row | None, Row, str]]:
    return [pair for pairs in by_family(lab, machine).values() for pair in pairs if pair[1].operation == operation]


def draw(lab: Evidence, machine: str) -> str:
    """Whether kernels were improved after a look at the shapes of a GPU's record, in sentences; empty on a CPU."""
    if lab.primary(machine) != "graph":
        return ""
    if shown(lab, machine) == LOOKED_AT:
        pairs = _of(lab, machine, "conv_block")
        text = "Kernels of Linear+ReLU and three layers were improved after a look at these shapes, and then timed."
        return f"{text} The convolution block's were not: it is ahead {_at(pairs, AHEAD)}." if pairs else text
    text = "The shapes were drawn after the last change to a kernel."
    before = [pair for pairs in by_family(lab, machine, LOOKED_AT).values() for pair in pairs]
    if before:
        text += f" At shapes after a look at which kernels were improved it is ahead {_at(before, AHEAD)}."
    return text


def channels(lab: Evidence, machine: str) -> str:
    """How often the convolution block is behind with uneven rows and with even ones, in a sentence; "" without both."""
    pairs = _of(lab, machine, "conv_block")
    parts = [[pair for pair in pairs if uneven(pair[1]) is kind] for kind in (True, False)]
    if not all(parts):
        return ""
    odd, even = (_at(part, BEHIND) for part in parts)
    return f"The convolution block is behind {odd} shapes with uneven rows (see below), and {even} with even ones."


def any_length(lab: Evidence, machine: str) -> str:
    """What Linear+ReLU reaches with few rows and with uneven ones, in sentences; empty without such shapes."""
    pairs = _of(lab, machine, "linear_relu")
    few = [pair for pair in pairs if _extents(pair[1])[0] <= FEW]
    odd, even = ([pair for pair in pairs if uneven(pair[1]) is kind] for kind in (True, False))
    text = f"Linear+ReLU is ahead {_at(odd, AHEAD)} shapes with uneven rows" if odd else ""
    text += f", and {_at(even, AHEAD)} with even ones. " if odd and even else ". " if odd else ""
    return text + (f"Of all its shapes with at most {FEW} rows it is ahead {_at(few, AHEAD)}." if few else "")


def most_often_behind(lab: Evidence, machine: str) -> str:
    """The family that is behind at the largest share of its shapes, in a sentence; empty where none is behind."""
    found = by_family(lab, machine)
    share = {name: sum(said == BEHIND for *_, said in own) / len(own) for name, own in found.items() if own}
    worst = max(share, key=share.__getitem__, default="")
    return f"Most often behind: {worst}, {_at(found[worst], BEHIND)} shapes." if worst and share[worst] else ""


def _worst(found: Sequence[tuple[Row | None, Row, str]]) -> tuple[Row, Row] | None:
    """The row that is behind by most and its peer's; None where none is behind."""
    behind = [(row, other) for row, other, said in found if row and said == BEHIND]
    return min(behind, key=lambda pair: pair[0].ratio, default=None)


def tuner(lab: Evidence, machine: str) -> str:
    """A paragraph (Markdown) on the shapes at which torch.compile tuned; empty where it did not."""
    found = [pair for shapes in families(lab, machine, TUNED).values() for pair in against(shapes, COMPILED)]
    if not found:
        return ""
    few = f"{len(found)} shapes" if len(found) > 1 else "one shape"
    text = f"takes up to a minute a shape, so it was tried at {few} of the first draw only. Against it the lab's "
    text += "quickest form is: "
    counted = _counted(Counter(said for *_, said in found))
    return f"**torch.compile with its tuner** {text}{counted}."


def right(lab: Evidence, machine: str) -> str:
    """How many answers are within their tolerance, in a sentence; those that are not are named."""
    rows = lab.leading(machine, experiment=shown(lab, machine))
    rows = [row for row in rows if row.status != "skipped" and not row.is_twin]
    wrong = [row for row in rows if row.status in ("wrong", "crashed", "timeout", "cheated")]
    named = "".join(f" {row.variant} at {row.text}: {row.status}, {row.reason}." for row in wrong)
    many = f"{len(rows) - len(wrong)} of {len(rows)} answers, each of one form at one shape"
    return f"**Right:** {many}, are within their tolerance of float64.{named}"


def dispatched(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """A line a family: the dispatcher's choice against PyTorch's quickest form in the default layout, at each shape."""
    lines = []
    for family, shapes in families(lab, machine).items():
        if rows := _choices(shapes):
            words = Counter(word(row.speed) for row in rows)
            worst = min(rows, key=lambda row: row.ratio)
            lines.append(
                {
                    "family": family,
                    LATE: f"{sum(map(_late, rows))} of {len(rows)}",
                    **{said: str(words[said]) for said in (AHEAD, LEVEL, BEHIND, intervals.TOO_NOISY)},
                    "slowest": f"{worst.at}: {formats.told(worst.speed.inverse())} the time of {BEST} form",
                }
            )
    return lines


def _late(row: Row) -> bool:
    return row.speed.below(1 - WORSE)


def _choices(shapes: Shapes) -> list[Row]:
    return [
        forms["dispatched"].against(best)
        for forms in shapes.values()
        if "dispatched" in forms and (best := quickest(forms, DEFAULT_LAYOUT)) is not None
    ]


def _counted(words: Counter[str]) -> str:
    """All of ``words``: ``95 ahead, 5 level and 71 behind``."""
    return formats.listing([f"{words[said]} {said}" for said in share_figure.LOOKS if words[said]])


def _timed_by(lab: Evidence, machine: str) -> str:
    return "in replayed CUDA graphs" if lab.primary(machine) == "graph" else "as a caller waits"


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """How often the lab's forms are ahead of the library's quickest, and whether the dispatcher is ever worse."""
    return [found for make in (_quickest, _promise) if (found := make(lab, machine))]


def _quickest(lab: Evidence, machine: str) -> Finding | None:
    pairs = [pair for pairs in by_family(lab, machine).values() for pair in pairs]
    rows = [row for row, _, _ in pairs if row]
    if not rows:
        return None
    words = Counter(said for _, _, said in pairs)
    if not words[AHEAD] + words[LEVEL] + words[BEHIND]:
        question = "Whether the lab's forms keep up at drawn shapes"
        return unsaid(lab, machine, question, PAGE, [row.speed for row in rows])
    text = f"On {device(lab, machine)}, {DRAWS[shown(lab, machine)]}, {_timed_by(lab, machine)}: {_counted(words)}. "
    text += "PyTorch's forms and the lab's get tensors in the layout that each wants. torch.compile is not among them."
    text += f" {draw(lab, machine)}".rstrip()
    if worst := _worst(pairs):
        row, other = worst
        text += f" Furthest behind: {FAMILIES[row.operation]} at {row.at}, "
        text += f"{spoken(row.speed.inverse())} the time of {labelled(other)}."
    title = f"The lab's quickest form beats {BEST} at most drawn shapes"
    title = title if 2 * words[AHEAD] > len(pairs) else f"The lab's quickest form beats {BEST} at some drawn shapes"
    title = title if words[AHEAD] else f"No form of the lab's beats {BEST} at drawn shapes"
    return Finding(f"{words[AHEAD]} of {len(pairs)} shapes", title, text, PAGE)


def _promise(lab: Evidence, machine: str) -> Finding | None:
    choices = [row for shapes in families(lab, machine).values() for row in _choices(shapes)]
    decided = [row for row in choices if not row.speed.doubt]
    if not choices:
        return None
    if 2 * len(decided) < len(choices):
        question = "Whether the dispatcher is ever worse than the library"
        return unsaid(lab, machine, question, PAGE, [row.speed for row in choices])
    worst = min(decided, key=lambda row: row.ratio)
    words, graph = Counter(word(row.speed) for row in choices), lab.primary(machine) == "graph"
    text = (
        f"On {device(lab, machine)}, {DRAWS[shown(lab, machine)]}, all in PyTorch's default layout: {_counted(words)}. "
    )
    text += "Where it is ahead it took a form of the lab's. " if words[AHEAD] else ""
    text += f"Slowest: {FAMILIES[worst.operation]} at {worst.at}, {spoken(worst.speed.inverse())} the time. "
    text += (
        'This is with clock="graph", timed in CUDA graphs. The default, by a caller\'s wait, is not tested.'
        if graph
        else "It chose by a caller's wait, its default, and is timed so."
    )
    title = f"Where the dispatcher's choice{' for CUDA graphs' * graph} is {LATE} than {BEST} form"
    return Finding(f"{sum(map(_late, decided))} of {len(decided)} shapes", title, text, PAGE)
