"""S000's operator by its authors' own scripts: what the document expects, and what they print here."""

from __future__ import annotations

from hypatia_lab import formats
from hypatia_lab.chapters import scripts
from hypatia_lab.chapters.torch_compile import CLAIMED, PAGE, against, doubled
from hypatia_lab.figures.probe_rows import Configuration
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, unsaid
from hypatia_lab.pages.phrases import spoken

EXPERIMENT = "author_spinlock"
OPERATOR, SHAPE = "author_operator", "5x64x128x128"
MEAN = "a call, mean of 100"
FIGURES = {
    "benchmark_torch_compile": {
        "eager": (f"{MEAN}, eager", formats.MISSING),
        "compiled": (f"{MEAN}, compiled by max-autotune", formats.MISSING),
        "speedup": ("eager / compiled", "2–5×"),
    },
    "benchmark_mixed_precision": {
        "fp16 speedup": ("500 steps, float32 / float16 autocast", "2×"),
        "bf16 speedup": ("500 steps, float32 / bfloat16 autocast", "2×"),
    },
    "benchmark_additional": {
        "batch 2": ("500 steps of two operators at once, float16", formats.MISSING),
        "batch 3": ("the same of three", formats.MISSING),
        "batch 2 compiled speedup": ("two at once, eager / compiled", "2–5×"),
    },
}
"""Script → its figures: what each is, and what S000 has."""
TIMES = ("speedup", "fp16 speedup", "bf16 speedup", "batch 2 compiled speedup")
"""Figures that are a multiple."""


def _way(lab: Evidence, machine: str, script: str) -> Configuration | None:
    return scripts.way(lab, machine, EXPERIMENT, script, OPERATOR, SHAPE)


def printed(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """What the scripts print on ``machine``, a line a figure; empty where none of them ran."""
    lines = [
        {"script": f"{script}.py"} | line
        for script, figures in FIGURES.items()
        for line in scripts.lines(_way(lab, machine, script), "S000", figures, TIMES)
    ]
    return [line for line in lines if line["the script here"] != formats.MISSING]


def compiled(lab: Evidence, machine: str) -> Finding | None:
    """The authors' operator, compiled by their own script, against 2 to 5 times."""
    own, part = _way(lab, machine, "benchmark_torch_compile"), "S000-32e"
    gain, eager, fast = (scripts.measured(own, name) for name in ("speedup", "eager", "compiled"))
    if gain is None or eager is None or fast is None:
        return None
    facts = f"A call of their operator takes {spoken(eager, 'µs')} eager and {spoken(fast, 'µs')} compiled."
    if once := scripts.measured(own, "compile time"):
        facts += f" To tune it took {formats.spoken(once.value / 1e6)} s."
    if gain.doubt:
        return unsaid(lab, machine, "Whether their script gains 2 to 5 times", PAGE, [gain], (part,), facts)
    low, high = CLAIMED
    than = f"less than {low:g} times" if gain.below(low) else f"more than {high:g} times"
    title = {
        "confirmed": "By its authors' own script torch.compile gains 2 to 5 times",
        "refuted": f"By its authors' own script torch.compile gains {than}",
    }.get(against(gain), "Whether torch.compile gains 2 to 5 times by its authors' script is open")
    return Finding(spoken(gain), title, facts, PAGE, claims=(part,))


def precision(lab: Evidence, machine: str) -> Finding | None:
    """The authors' operator under autocast by their own script, against twice the throughput."""
    own, parts = _way(lab, machine, "benchmark_mixed_precision"), ("S000-22e", "S000-22f")
    half, brain = (scripts.measured(own, f"{short} speedup") for short in ("fp16", "bf16"))
    if half is None or brain is None:
        return None
    what = "by its authors' own script mixed precision"
    if half.doubt:
        return unsaid(lab, machine, "Whether mixed precision doubles the speed by their script", PAGE, [half], parts)
    text = f"That is 500 steps of their operator in float16 against float32. In bfloat16 it is {spoken(brain)}."
    return Finding(spoken(half), doubled(what, [half, brain]), text, PAGE, claims=parts)
