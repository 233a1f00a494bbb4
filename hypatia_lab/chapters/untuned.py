"""What the sweep over drawn shapes says: where the lab's best form is ahead of, level with or behind its peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hypatia_lab import formats, intervals, variants
from hypatia_lab.figures import shares as share_figure
from hypatia_lab.figures.shares import AHEAD, BEHIND, LEVEL, NONE
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.by_machine import device
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, unsaid
from hypatia_lab.pages.phrases import labelled, spoken
from hypatia_lab.results import Row

PAGE = "21_untuned"
EXPERIMENT, TUNED = "untuned", "untuned_autotune"
FAMILIES = {"linear_relu": "Linear+ReLU", "conv_block": "convolution block", "mlp3": "three layers"}
LIBRARY = ("eager", "epilogue", "group_norm")
"""The library's forms on the tensors that a caller of the dispatcher gives: none asks for another layout."""
BEST = "PyTorch's quickest"
"""Stands for whichever of the library's forms is the quickest at a shape, and what a person calls that."""
DRAWN = {EXPERIMENT: (BEST, "eager_channels_last"), TUNED: ("compile_max_autotune",)}
"""Experiment → the peers that a figure shows: what tunes takes long, so it has few of the shapes."""
PEERS = {EXPERIMENT: (*LIBRARY, *DRAWN[EXPERIMENT][1:]), TUNED: DRAWN[TUNED]}
"""Experiment → each of the peers that it is there for."""
WORSE = 0.05
"""By how much the dispatcher may be slower than the library, at most."""
LATE = f"over {WORSE:.0%} slower"

Shapes = dict[str, dict[str, Row]]
"""Workload → variant → its row."""


def families(lab: Evidence, machine: str, experiment: str = EXPERIMENT) -> dict[str, Shapes]:
    """Family, as a person calls it → its timed rows by workload and variant, in the order of their work."""
    found: dict[str, Shapes] = {}
    for row in lab.timed(machine, experiment=experiment):
        name = f"{FAMILIES[row.operation]}, {'TF32' if row.math == 'tf32' else row.dtype}"
        found.setdefault(name, {}).setdefault(row.workload, {})[row.variant] = row
    return {name: found[name] for name in sorted(found)}


def own(forms: dict[str, Row]) -> Row | None:
    """The quickest form of the lab's at one shape; what the dispatcher chose is none of its own."""
    rows = [row for row in forms.values() if row.origin == "own" and row.variant != "dispatched"]
    return min(rows, key=lambda row: row.median_us, default=None)


def library(forms: dict[str, Row]) -> Row | None:
    """The library's quickest form at one shape."""
    return min((forms[name] for name in LIBRARY if name in forms), key=lambda row: row.median_us, default=None)


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
        if other := library(forms) if peer == BEST else forms.get(peer):
            row = own(forms)
            compared = row.against(other) if row else None
            found.append((compared, other, word(compared.speed) if compared else NONE))
    return found


def compared(
    lab: Evidence, machine: str, peers: Mapping[str, Sequence[str]] = PEERS
) -> dict[tuple[str, str], list[tuple[Row | None, Row, str]]]:
    """Family and peer → what :func:`against` has of them, where there is something."""
    return {
        (family, peer): found
        for experiment, names in peers.items()
        for family, shapes in families(lab, machine, experiment).items()
        for peer in names
        if (found := against(shapes, peer))
    }


def figure(lab: Evidence, machine: str) -> Any:
    """The shares of all families against the library's quickest form and :data:`DRAWN`, as a figure and its table."""
    rows, words = {}, Counter[str]()
    for (family, peer), found in compared(lab, machine, DRAWN).items():
        said = [said for _, _, said in found]
        words.update(said if peer == BEST else ())
        rows[f"{family}: against {_label(found[0][1], peer)}"] = said
    under = [device(lab, machine), f"{lab.primary(machine)} clock", "level: within ±2%, by 95% intervals"]
    title = f"Ahead of {BEST} form at {words[AHEAD]} of {words.total()} shapes"
    return share_figure.shares(rows, title, under)


def _label(row: Row, peer: str) -> str:
    return peer if peer == BEST else variants.label(row.operation, peer)


def counts(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """A line a family and each of its peers: at how many shapes the lab's quickest form is ahead, level, behind."""
    lines = []
    for (family, peer), found in compared(lab, machine).items():
        words = Counter(said for _, _, said in found)
        named = {said: str(words[said]) for said in share_figure.LOOKS}
        lines.append({"family": family, "against": _label(found[0][1], peer), "shapes": str(len(found))} | named)
    used = {name for line in lines for name, text in line.items() if text != "0"}
    return [{name: text for name, text in line.items() if name in used} for line in lines]


def furthest_behind(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """A line a row of the figure: the shape at which the lab's quickest form is behind by most."""
    lines = []
    for (family, _), found in compared(lab, machine, DRAWN).items():
        if worst := _worst(found):
            row, other = worst
            lines.append(
                {
                    "family": family,
                    "the lab's form": labelled(row),
                    "against": labelled(other),
                    "shape": row.at,
                    "time against it": formats.told(row.speed.inverse()),
                }
            )
    return lines


def _worst(found: Sequence[tuple[Row | None, Row, str]]) -> tuple[Row, Row] | None:
    """The row that is behind by most and its peer's; None where none is behind."""
    behind = [(row, other) for row, other, said in found if row and said == BEHIND]
    return min(behind, key=lambda pair: pair[0].ratio, default=None)


def tuner(lab: Evidence, machine: str) -> str:
    """A paragraph (Markdown) on the shapes at which torch.compile tuned; empty where it did not."""
    tried = sum(len(shapes) for shapes in families(lab, machine, TUNED).values())
    few = f"{tried} of the shapes" if tried > 1 else "one of the shapes"
    text = f"takes up to a minute a shape, so an experiment of its own tries it at {few} (`{TUNED}`)."
    return f"**torch.compile with its tuner** {text}" if tried else ""


def right(lab: Evidence, machine: str) -> str:
    """How many answers are within their tolerance, in a sentence; those that are not are named."""
    rows = [row for row in lab.leading(machine, experiment=EXPERIMENT) if row.status != "skipped"]
    wrong = [row for row in rows if row.status in ("wrong", "crashed", "timeout", "cheated")]
    named = "".join(f" {row.variant} at {row.text}: {row.status}, {row.reason}." for row in wrong)
    many = f"{len(rows) - len(wrong)} of {len(rows)} answers, one of each form at each shape that it takes"
    return f"**Right:** {many}, are within their tolerance of float64.{named}"


def dispatched(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """A line a family: the dispatcher's choice against the quickest of the library's forms at each shape."""
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
        if "dispatched" in forms and (best := library(forms)) is not None
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
    pairs = [pair for shapes in families(lab, machine).values() for pair in against(shapes, BEST)]
    rows = [row for row, _, _ in pairs if row]
    if not rows:
        return None
    words = Counter(said for _, _, said in pairs)
    if not words[AHEAD] + words[LEVEL] + words[BEHIND]:
        question = "Whether the lab's forms keep up where nobody tuned"
        return unsaid(lab, machine, question, PAGE, [row.speed for row in rows])
    text = f"On {device(lab, machine)}, {_timed_by(lab, machine)}: {_counted(words)}. "
    text += "Tensors lie as each form wants them, and torch.compile is counted apart."
    if worst := _worst(pairs):
        row, other = worst
        text += f" Furthest behind: {FAMILIES[row.operation]} at {row.at}, "
        text += f"{spoken(row.speed.inverse())} the time of {labelled(other)}."
    title = f"The lab's quickest form beats {BEST} where nobody tuned"
    title = title if words[AHEAD] else f"No form of the lab's beats {BEST} where nobody tuned"
    return Finding(f"{words[AHEAD]} of {len(pairs)} shapes", title, text, PAGE)


def _promise(lab: Evidence, machine: str) -> Finding | None:
    choices = [row for shapes in families(lab, machine).values() for row in _choices(shapes)]
    decided = [row for row in choices if not row.speed.doubt]
    if not choices:
        return None
    if not decided:
        question = "Whether the dispatcher is ever worse than the library"
        return unsaid(lab, machine, question, PAGE, [row.speed for row in choices])
    worst = min(decided, key=lambda row: row.ratio)
    text = f"On {device(lab, machine)}, tensors in PyTorch's default layout: "
    text += f"{_counted(Counter(word(row.speed) for row in choices))}. "
    text += f"Slowest: {FAMILIES[worst.operation]} at {worst.at}, {spoken(worst.speed.inverse())} the time. "
    if lab.primary(machine) == "graph":
        text += "It chose for replayed CUDA graphs and is timed in them; by default it goes by a caller's wait."
    else:
        text += "It chose by a caller's wait, its default, and is timed so."
    title = f"Where the dispatcher's choice is {LATE} than {BEST} form"
    return Finding(f"{sum(map(_late, decided))} of {len(decided)} shapes", title, text, PAGE)
