"""What the sweep over drawn shapes says: where the lab's best form is ahead of, level with or behind its peers."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypatia_lab import formats, intervals, variants
from hypatia_lab.figures import shares as share_figure
from hypatia_lab.figures.shares import AHEAD, BEHIND, LEVEL, NONE
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, unsaid
from hypatia_lab.pages.phrases import spoken
from hypatia_lab.results import Row

PAGE = "21_untuned"
EXPERIMENT, TUNED = "untuned", "untuned_autotune"
FAMILIES = {"linear_relu": "Linear+ReLU", "conv_block": "convolution block", "mlp3": "three layers"}
LIBRARY = ("eager", "epilogue", "group_norm")
"""The library's forms on the tensors that a caller of the dispatcher gives: none asks for another layout."""
PEERS = {EXPERIMENT: (*LIBRARY, "eager_channels_last"), TUNED: ("compile_max_autotune",)}
"""Experiment → the peers that it is there for: what tunes takes long, so it has few of the shapes."""
WORSE = 0.05
"""By how much the dispatcher may be slower than the library, at most."""

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


def against(shapes: Shapes, peer: str) -> list[tuple[Row | None, str]]:
    """At each shape that ``peer`` was timed at: the lab's quickest form with the peer for its baseline, and the word.

    No row where the lab has no form for the shape.
    """
    found: list[tuple[Row | None, str]] = []
    for forms in shapes.values():
        if peer in forms:
            row = own(forms)
            compared = row.against(forms[peer]) if row else None
            found.append((compared, word(compared.speed) if compared else NONE))
    return found


def compared(lab: Evidence, machine: str) -> dict[tuple[str, str], list[tuple[Row | None, str]]]:
    """Family and peer → what :func:`against` has of them, where there is something."""
    return {
        (family, peer): pairs
        for experiment, peers in PEERS.items()
        for family, shapes in families(lab, machine, experiment).items()
        for peer in peers
        if (pairs := against(shapes, peer))
    }


def figure(lab: Evidence, machine: str) -> Any:
    """The shares of all families and peers, as a figure and its table."""
    rows = {
        f"{family}: against {_label(pairs, peer)}": [said for _, said in pairs]
        for (family, peer), pairs in compared(lab, machine).items()
    }
    under = [machine, f"{lab.primary(machine)} clock", "level: within ±2%", "by 95% intervals"]
    return share_figure.shares(rows, "The lab's quickest form on shapes nobody tuned for", under)


def _label(pairs: list[tuple[Row | None, str]], peer: str) -> str:
    operation = next((row.operation for row, _ in pairs if row), "linear_relu")
    return variants.label(operation, peer)


def furthest_behind(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """A line a family and peer: the shape at which the lab's quickest form is surely behind by most."""
    lines = []
    for (family, peer), pairs in compared(lab, machine).items():
        rows = [row for row, said in pairs if row and said == BEHIND]
        if rows:
            worst = min(rows, key=lambda row: row.ratio)
            lines.append(
                {
                    "family": family,
                    "peer": _label(pairs, peer),
                    "shape": worst.at,
                    "the lab's form": variants.label(worst.operation, worst.variant),
                    "its speed, the peer's being 1": formats.told(worst.speed),
                }
            )
    return lines


def right(lab: Evidence, machine: str) -> str:
    """How many answers are right, in a sentence; those that are not are named."""
    rows = [row for row in lab.leading(machine, experiment=EXPERIMENT) if row.status != "skipped"]
    wrong = [row for row in rows if row.status in ("wrong", "crashed", "timeout", "cheated")]
    named = "".join(f" {row.variant} at {row.text}: {row.status}, {row.reason}." for row in wrong)
    return f"Each answer is held against float64: {len(rows) - len(wrong)} of {len(rows)} are right.{named}"


def dispatched(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """A line a family: the dispatcher's choice against the quickest of the library's forms at each shape."""
    lines = []
    for family, shapes in families(lab, machine).items():
        rows = _choices(shapes)
        if rows:
            words = Counter(word(row.speed) for row in rows)
            worst = min(rows, key=lambda row: row.ratio)
            lines.append(
                {
                    "family": family,
                    "shapes": str(len(rows)),
                    **{said: str(words[said]) for said in (AHEAD, LEVEL, BEHIND, intervals.TOO_NOISY)},
                    "surely behind by over 5%": str(sum(row.speed.below(1 - WORSE) for row in rows)),
                    "slowest at": worst.at,
                    "its speed, the library's being 1": formats.told(worst.speed),
                }
            )
    return lines


def _against_best(shapes: Shapes) -> list[str]:
    """The word at each shape where a form of the lab's and one of the library's are timed."""
    pairs = [(own(forms), library(forms)) for forms in shapes.values()]
    return [word(row.against(best).speed) for row, best in pairs if row and best]


def _choices(shapes: Shapes) -> list[Row]:
    return [
        forms["dispatched"].against(best)
        for forms in shapes.values()
        if "dispatched" in forms and (best := library(forms)) is not None
    ]


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """How often the lab's forms are ahead of eager, and whether the dispatcher is ever worse than the library."""
    found = []
    pairs = [pair for (_, peer), pairs in compared(lab, machine).items() if peer == "eager" for pair in pairs]
    rows = [row for row, _ in pairs if row]
    if rows:
        words = Counter(said for _, said in pairs)
        if not words[AHEAD] + words[LEVEL] + words[BEHIND]:
            question = "Whether the lab's forms keep up where nobody tuned"
            found.append(unsaid(lab, machine, question, PAGE, [row.speed for row in rows]))
        else:
            told = formats.listing([f"{words[said]} {said}" for said in share_figure.LOOKS if words[said]])
            best = Counter(said for shapes in families(lab, machine).values() for said in _against_best(shapes))
            told += f". Against the quickest of the library's forms: {best[AHEAD]} ahead, {best[BEHIND]} behind"
            title = "The lab's quickest form beats eager PyTorch at shapes nobody tuned for"
            title = title if words[AHEAD] else "No form of the lab's beats eager PyTorch at shapes nobody tuned for"
            found.append(Finding(f"{words[AHEAD]} of {len(pairs)} shapes", title, f"Of all: {told}.", PAGE))
    choices = [row for shapes in families(lab, machine).values() for row in _choices(shapes)]
    if choices:
        decided = [row for row in choices if not row.speed.doubt]
        if not decided:
            question = "Whether the dispatcher is ever worse than the library"
            found.append(unsaid(lab, machine, question, PAGE, [row.speed for row in choices]))
        else:
            late = sum(row.speed.below(1 - WORSE) for row in decided)
            worst = min(decided, key=lambda row: row.ratio)
            words = Counter(word(row.speed) for row in choices)
            text = f"It is ahead at {words[AHEAD]} and level at {words[LEVEL]}. "
            text += f"Slowest: {FAMILIES[worst.operation]} at {worst.at}, {spoken(worst.speed)} the library's speed."
            title = "Where the dispatcher is surely slower than the library by over 5%"
            found.append(Finding(f"{late} of {len(decided)} shapes", title, text, PAGE))
    return found
