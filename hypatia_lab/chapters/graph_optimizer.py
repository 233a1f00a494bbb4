"""The graph optimizer: its rules and their grades, which are made as the page is, and the findings of its chapter."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypatia_lab import formats, intervals, tables
from hypatia_lab.chapters.fused_mlp import SAFETY_MODEL
from hypatia_lab.figures.language import spanning
from hypatia_lab.figures.probe_rows import Configuration
from hypatia_lab.formats import absent, listing
from hypatia_lab.intervals import Interval
from hypatia_lab.operations.mlp import MODELS
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, answered, unsaid
from hypatia_lab.pages.phrases import clocks, filled, labelled, probed, spent, spoken, times, waited
from hypatia_lab.results import Row

PAGE = "11_graph_optimizer"
EXPERIMENT = "graph_optimizer"
OWN, REPLAYED, SPLIT = "egraph", "egraph_replayed", "egraph_split"
PLAIN_PAIR, SPLIT_PAIR = (OWN, REPLAYED), ("egraph_split_called", SPLIT)
"""Variants by the costs of a call that a caller waits for, and of a replayed graph."""
STEP = "forward_backward"
LONG, LIMIT_MS = 100, 250
"""The goal of optimizing: so many layers, from the captured graph to the rebuilt module, in so many ms."""
SPLIT_GAIN, LARGE_HIDDEN = 1.5, 2048
"""The goal of split products, in models whose hidden layers are at least so wide."""


# ---------------------------------------------------------------- rules

REFUSED = {
    "ReLU lost behind a Linear": ("(Relu (Linear x w b))", "(Linear x w b)"),
    "ReLU as GELU": ("(Relu x)", "(Gelu x none)"),
    "product as Linear, not transposed": ("(Mm x w)", "(Linear x w (Absent))"),
    "dropout dropped in training": ("(Dropout x p training)", "x"),
    "any sum behind a product as addmm": ("(Add (Mm a b) c)", "(Addmm c a b)"),
    "unequal layers as one MLP kernel": ("(Linear (LinearRelu x w0 b0) w1 b1)", "(Mlp2 x w0 b0 w1 b1)"),
    "ReLU of a sum, term by term": ("(Relu (Add x y))", "(Add (Relu x) (Relu y))"),
    "two transposes, whichever": ("(Transpose (Transpose x i j) k l)", "x"),
    "a view dropped": ("(View x d)", "x"),
}
"""Rules that look right, and are not: what the gate must refuse."""
TRIALS = 40
"""Drawings a rule on the page; the tests take more."""


def rules() -> list[dict[str, str]]:
    """Every rule with the grade that it claims and the one that the gate grants now, a line a rule."""
    from hypatia_lab.egraph import DEFAULT, GOALS, Rule, examine
    from hypatia_lab.egraph.rules import Grade

    lines = []
    for goal, own in GOALS.items():
        for rule in own:
            found = examine(rule, trials=TRIALS)
            held = found.grade is not None and found.grade <= rule.grade
            lines.append(
                {
                    "goal": goal if goal in DEFAULT else f"{goal} (when asked)",
                    "rule": f"{rule.left} → {rule.right}",
                    "where": ", ".join(rule.when) or "anywhere",
                    "claims": rule.grade.name,
                    "gate": "holds" if held else "refused",
                }
            )
    for name, (left, right) in REFUSED.items():
        found = examine(Rule("refused", left, right, Grade.FINITE), trials=400)
        gate = "refused" if found.grade is None else "holds"
        line = {"goal": f"none: {name}", "rule": f"{left} → {right}", "where": "anywhere"}
        lines.append(line | {"claims": "FINITE", "gate": gate})
    return lines


def gate(lines: Sequence[dict[str, str]]) -> Finding:
    """How many of :func:`rules` hold, and how many unsound ones are refused."""
    own = [line for line in lines if not line["goal"].startswith("none")]
    wrong = [line for line in lines if line["goal"].startswith("none")]
    held, refused = (
        sum(line["gate"] == word for line in group) for group, word in ((own, "holds"), (wrong, "refused"))
    )
    right = held == len(own) and refused == len(wrong)
    return Finding(
        f"{held} of {len(own)}",
        "Every rule passes its gate, and wrong ones do not" if right else "The gate and the rules disagree",
        "The optimizer's rules, each tried in float64 on random shapes and edge values. "
        f"Of {len(wrong)} others, which look right and are wrong, {refused} are refused.",
        PAGE,
    )


# ---------------------------------------------------------------- reading


def model_rows(lab: Evidence, machine: str, clock: str = "", direction: str = "forward", **wanted: Any) -> list[Row]:
    """Rows of the nine models with a time by ``clock`` (the primary one), smallest first, without the A/A control;
    ``wanted`` may name another operation.
    """
    wanted = {"direction": direction, "operation": "mlp", "clock": clock or lab.primary(machine)} | wanted
    rows = lab.timed(machine, experiment=EXPERIMENT, **wanted)
    return [row for row in rows if row.shape != SAFETY_MODEL]


Found = list[tuple[Row, Interval]]
"""Rows of one variant, each with its speed over that of a rival on the same workload and clock."""


def against(rows: Sequence[Row], variant: str, rival: str) -> Found:
    """Rows of ``variant``, each with its speed over that of ``rival`` on the same workload and clock."""
    peers = {row.workload: row for row in rows if row.variant == rival}
    found = [(row, peers[row.workload].over(row)) for row in rows if row.variant == variant and row.workload in peers]
    return [(row, factor) for row, factor in found if not absent(factor.low)]


def fitted(rows: Sequence[Row], pair: tuple[str, str] = PLAIN_PAIR) -> str:
    """Of a ``pair`` the variant whose costs are those of the clock of ``rows``: for a graph the replayed, if timed."""
    called, replayed = pair
    return replayed if any(row.clock == "graph" and row.variant == replayed for row in rows) else called


def fitting(rows: Sequence[Row]) -> list[Row]:
    """``rows`` without the variants whose costs are those of another clock."""
    other = {*PLAIN_PAIR, *SPLIT_PAIR} - {fitted(rows, pair) for pair in (PLAIN_PAIR, SPLIT_PAIR)}
    return [row for row in rows if row.variant not in other]


def models(lab: Evidence, machine: str) -> list[Row]:
    """The optimized models against eager, for a figure: a row a dtype under each model, by the primary clock."""
    rows = model_rows(lab, machine)
    own = [row for row in rows if row.variant == fitted(rows) and not absent(row.ratio)]
    dtypes = listing([row.dtype for row in own]) if own else ""
    return [replace(row, variant=row.dtype, dtype=dtypes) for row in own]


def models_title(rows: Sequence[Row]) -> str:
    """In how many of ``rows`` an optimized model is faster."""
    return f"{sum(row.reading == 'faster' for row in rows)} of {len(rows)} optimized models are faster than eager"


def _spread(found: Found) -> str:
    """The least and the greatest factor of those that say something, of which there is one."""
    return spanning([factor.value for _, factor in found if not factor.doubt], lambda v: f"{formats.spoken(v)}×")


def _clear(found: Found) -> bool:
    """Whether a case says something."""
    return any(not factor.doubt for _, factor in found)


def _below(found: Found) -> int:
    """In how many cases it is surely slower, by more than what counts as equal."""
    return sum(factor.below(1 - intervals.EQUIVALENCE) for _, factor in found)


def _level(found: Found) -> int:
    """In how many cases it is surely not slower."""
    return sum(factor.above(1 - intervals.EQUIVALENCE) for _, factor in found)


def launches(lab: Evidence, machine: str) -> list[tuple[str, float, float]]:
    """(dtype, launches of eager, launches of the optimized module) of the documents' smallest model.

    Launches count in a replayed graph: the module made for one speaks, where it was traced.
    """
    found = []
    ways = {
        name: probed(lab, machine, "trace", experiment=EXPERIMENT, variant=name) for name in ("eager", REPLAYED, OWN)
    }
    for way in ways["eager"]:
        own = [w for w in ways[REPLAYED] + ways[OWN] if (w.shape, w.math) == (way.shape, way.math)]
        pair = [w.triple("kernel launches")[0] for w in (way, *own[:1]) if not w.fault]
        if len(pair) == 2 and not any(absent(value) for value in pair):
            found.append((way.math.split("/")[0], pair[0], pair[1]))
    return found


def smallest(lab: Evidence, machine: str) -> dict[str, Interval]:
    """dtype → speed of the documents' smallest model, optimized, against eager."""
    rows = [row for row in model_rows(lab, machine) if row.shape == "x".join(map(str, MODELS[0]))]
    return {row.dtype: factor for row, factor in against(rows, fitted(rows), "eager")}


# ---------------------------------------------------------------- findings


def _unsaid(lab: Evidence, machine: str, question: str, found: Found) -> Finding:
    return unsaid(lab, machine, question, PAGE, [factor for _, factor in found])


def _counted(ahead: int, found: Found, word: str) -> str:
    """In how many cases they are what ``word`` says; of one case its figure."""
    return f"{ahead} of {len(found)} {word}" if len(found) > 1 else _spread(found)


def _by(found: Found) -> str:
    clocks = listing([row.clock for row, _ in found])
    return f"by the {clocks} clock{'s' * (' ' in clocks)}"


def _cases(found: Found) -> str:
    """What the cases of ``found`` are, as a sentence: models, dtypes and clocks."""
    shapes: dict[str, dict[str, None]] = {}
    for row, _ in found:
        shapes.setdefault(row.dtype, {})[row.shape] = None
    own = [f"{_models(list(names))}{',' * (len(names) == 1)} in {dtype}" for dtype, names in shapes.items()]
    return f"Cases: {listing(own)}, {_by(found)}."


def _models(shapes: Sequence[str]) -> str:
    return f"{len(shapes)} models" if len(shapes) > 1 else formats.model(shapes[0])


def speed(lab: Evidence, machine: str) -> Finding | None:
    """The optimized models against eager, by the primary clock and by the one that a caller waits by."""
    by_clock = {}
    for clock in clocks(lab, machine):
        rows = model_rows(lab, machine, clock)
        by_clock[clock] = against(rows, fitted(rows), "eager")
    found = by_clock[lab.primary(machine)]
    if not found:
        return None
    if not _clear(found):
        return _unsaid(lab, machine, "Whether the optimized models are faster", found)
    every = [pair for pairs in by_clock.values() for pair in pairs]
    faster, slower = sum(intervals.reading(factor) == "faster" for _, factor in found), _below(every)
    counted = tables.counted([intervals.reading(factor) for _, factor in found])
    text = f"{_cases(found)} Against eager: {counted}, at {_spread(found)} its speed."
    also = by_clock[waited(lab, machine)]
    if also is not found and _clear(also):
        text += f" What a caller gets, {_by(also)}: {_spread(also)}."
    most = "Most" if 2 * faster > len(found) else "Some"
    title = (
        "The optimized models are faster in some cases and slower in others"
        if faster and slower
        else "The optimized models are slower in some cases"
        if slower
        else "All optimized models are faster than eager"
        if faster == len(found)
        else f"{most} optimized models are faster than eager, and none is slower"
        if faster
        else "The optimized models are as fast as eager"
        if all(intervals.equal(factor) for _, factor in every)
        else "Whether the optimized models are as fast as eager is open"
    )
    return Finding(_counted(faster, found, "faster"), title, text, PAGE)


def _changed(lab: Evidence, machine: str, dtype: str) -> bool:
    """Whether the optimized smallest model calls other kernels than eager; False where they were not listed."""
    eager, replayed, called = (
        {line["name"] for line in lab.details(machine=machine, experiment=EXPERIMENT, topic="kernels", **wanted)}
        for wanted in ({"variant": name, "dtype": dtype} for name in ("eager", REPLAYED, OWN))
    )
    return bool(eager) and (replayed or called or eager) != eager


def same_runtime(lab: Evidence, machine: str) -> Finding | None:
    """What a fused node changes, where S004's calls the same kernels as before: launches, and times."""
    counted, found = launches(lab, machine), against(model_rows(lab, machine), OWN, "eager")
    if not counted or not found:
        return None
    gpu, gains = lab.primary(machine) == "graph", smallest(lab, machine)
    text = f"{'Kernel launches' if gpu else 'Operators'} of the smallest model, before and after. "
    others = False
    for dtype, before, after in counted:
        gain = gains.get(dtype, intervals.NOTHING)
        other = after == before and _changed(lab, machine, dtype)
        others |= other and intervals.reading(gain) == "faster"
        text += f"In {dtype}: {before:g} → {after:g}{f', by other {_called(gpu)}' * other}"
        text += ". " if gain.doubt else f", at {spoken(gain)} the speed. "
    text += "S004 counts six for three layers, with a ReLU behind the last. This model has none there."
    text += "" if gpu else " A CPU has no epilogue to fuse into."
    fewer = any(after < before for _, before, after in counted)
    return Finding(
        f"{listing([f'{before:g} → {after:g}' for _, before, after in counted])} {'launches' if gpu else 'operators'}",
        f"Speed comes from other kernels, not{' only' * fewer} from fewer"
        if others
        else "Fusing in the graph saves calls"
        if fewer
        else "Fusing in the graph alone saves no call",
        text,
        PAGE,
    )


def _called(gpu: bool) -> str:
    return "kernels" if gpu else "operators"


def compilers(lab: Evidence, machine: str) -> Finding | None:
    """The optimized models against torch.compile, default and max-autotune."""
    rows = model_rows(lab, machine)
    found = against(rows, fitted(rows), "compile")
    if not found:
        return None
    if not _clear(found):
        return _unsaid(lab, machine, "Whether the optimized MLPs keep up with torch.compile", found)
    behind, level = _below(found), _level(found)
    text = f"{_cases(found)} They have {_spread(found)} the speed of torch.compile."
    if left := len(against(rows, fitted(rows), "eager")) - len(found):
        text += f" In {left} further case{'s' * (left > 1)} torch.compile was not timed."
    tuned = against(rows, fitted(rows), "compile_max_autotune")
    if _clear(tuned) and len(tuned) > 1:
        text += f" Against its max-autotune it is {_spread(tuned)}, in {len(tuned)} cases."
    return Finding(
        _counted(level, found, "not slower"),
        "The optimized MLPs keep up with torch.compile"
        if level == len(found)
        else "Whether the optimized MLPs keep up with torch.compile is open"
        if not behind
        else "The optimized MLPs keep up with torch.compile in some cases"
        if behind < len(found)
        else "torch.compile is faster than the optimized MLPs",
        text,
        PAGE,
    )


def split(lab: Evidence, machine: str) -> Finding | None:
    """Split products, allowed explicitly, in the models with wide layers, and as a caller waits in all of them."""
    found = [
        pair
        for pair in against(model_rows(lab, machine, dtype="float32"), SPLIT, "eager")
        if int(pair[0].shape.split("x")[2]) >= LARGE_HIDDEN
    ]
    if not found:
        return None
    if not _clear(found):
        return _unsaid(lab, machine, "Whether split products pay", found)
    reached = sum(factor.above(SPLIT_GAIN) for _, factor in found)
    text = f"The speed against eager, with layers of {LARGE_HIDDEN} and wider. {_cases(found)} "
    called = against(model_rows(lab, machine, waited(lab, machine), dtype="float32"), SPLIT_PAIR[0], "eager")
    if _clear(called):
        models = _models(list(dict.fromkeys(row.shape for row, _ in called)))
        text += f"A module made for calls has {_spread(called)} as a caller waits, in {models}. "
    elif not called and waited(lab, machine) != lab.primary(machine):
        text += "What a caller gets is not recorded. "
    return Finding(
        _spread(found),
        "Split products pay in the large models" if reached == len(found) else "Split products pay less than wanted",
        text + "Each float32 number is multiplied as two of float16. That rounds differently, so one asks for it.",
        PAGE,
    )


def blocks(lab: Evidence, machine: str) -> Finding | None:
    """The U-Net, whose convolution blocks have a rule of their own, by each clock with that clock's costs."""
    found: dict[str, Found] = {}
    for clock in clocks(lab, machine):
        rows = model_rows(lab, machine, clock, operation="unet")
        for rival in ("eager", "compile"):
            found.setdefault(rival, []).extend(against(rows, fitted(rows), rival))
    own = found["eager"]
    if not own:
        return None
    if not _clear(own):
        return _unsaid(lab, machine, "Whether fused convolution blocks speed up a whole model", own)
    faster, slower = [pair for pair in own if pair[1].above(1 + intervals.EQUIVALENCE)], _below(own)
    when = f" {_by(faster)}" if 0 < len(faster) < len(own) else ""
    text = f"The speed of a U-Net of five fused blocks against eager, {_by(own)}."
    rival = found["compile"]
    text += f" Against torch.compile it is {_spread(rival)}." if _clear(rival) else ""
    behind = [pair for pair in rival if _below([pair])]
    text += f" So torch.compile is faster {_by(behind)}." if behind else ""
    return Finding(
        _spread(own),
        "An optimized U-Net is faster by one clock and slower by another"
        if faster and slower
        else "Through the optimizer a U-Net is slower"
        if slower
        else f"Fused convolution blocks speed up a whole model{when}"
        if faster
        else "Fused convolution blocks gain nothing over eager in a whole model",
        text,
        PAGE,
    )


def training(lab: Evidence, machine: str) -> Finding | None:
    """A training step of the optimized modules, by each clock."""
    found = [
        pair for clock in clocks(lab, machine) for pair in against(model_rows(lab, machine, clock, STEP), OWN, "eager")
    ]
    if not found:
        return None
    if not _clear(found):
        return _unsaid(lab, machine, "Whether a training step is slower", found)
    level = _level(found)
    text = f"{_cases(found)} A step has {_spread(found)} the speed of eager. "
    if (left := len(found) - level - _below(found)) and len(found) > 1:
        text += f"In {left} of the {len(found)} cases the interval leaves it open. "
    return Finding(
        _counted(level, found, "not slower"),
        "A training step is not slower"
        if level == len(found)
        else "A training step is slower in some cases"
        if _below(found)
        else "Whether a training step is slower is open",
        text + "Where gradients are wanted a fused node is a product and a ReLU again.",
        PAGE,
    )


def optimizing(lab: Evidence, machine: str) -> Finding | None:
    """How long optimizing takes, against the goal at 100 layers."""
    ways = probed(lab, machine, "graph", experiment=EXPERIMENT)
    way = next((w for w in ways if not w.fault and _layers(w) == LONG), None)
    if way is None:
        return None
    took, captured = way.estimate("graph to module"), way.estimate("capture")
    text = "" if captured.doubt else f"Capturing the graph takes {spoken(captured, 'µs')}."
    if took.doubt:
        question = f"Whether {LONG} layers are optimized within {LIMIT_MS} ms"
        return unsaid(lab, machine, question, PAGE, [took], facts=text)
    both = [spoken(one, "µs") for one in (captured, took) if not one.doubt]
    return Finding(
        " + ".join(both),
        f"{LONG} layers, once captured, are optimized within {LIMIT_MS} ms"
        if took.below(1e3 * LIMIT_MS)
        else f"{LONG} layers, once captured, take longer than {LIMIT_MS} ms"
        if took.above(1e3 * LIMIT_MS)
        else f"Whether {LONG} layers, once captured, are optimized within {LIMIT_MS} ms is open",
        f"{text} Optimizing it takes {spoken(took, 'µs')}.".lstrip(),
        PAGE,
    )


def _layers(way: Configuration) -> int:
    return int(way.shape.split("×")[3]) + 1


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """What the records of ``machine`` say on this chapter's questions, the weightiest first."""
    return answered(lab, machine, speed, same_runtime, compilers, split, blocks, training, optimizing)


# ---------------------------------------------------------------- tables


FORMS = dict.fromkeys(PLAIN_PAIR, "optimized") | dict.fromkeys(SPLIT_PAIR, "optimized, split operands")
"""Variant → what a person calls it in a table whose columns name the clock, of which there is one a clock."""


def every(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """The models against eager, forward and in training, by every clock: a line a model, dtype and direction."""
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for direction, clock in itertools.product(("forward", STEP), clocks(lab, machine)):
        for row in fitting(model_rows(lab, machine, clock, direction)):
            key = formats.model(row.shape), row.dtype, formats.direction(direction)
            line = lines.setdefault(key, dict(zip(("model", "dtype", "direction"), key, strict=True)))
            if row.variant == row.baseline:
                line[f"eager, {clock}"] = row.took
            elif not absent(row.ratio):
                line[f"{FORMS.get(row.variant, labelled(row))}, {clock}"] = times(row.speed)
    return filled(list(lines.values()))


def stages(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Optimizing time stage by stage, a line a number of layers."""
    parts = ("capture", "graph to module, first", "graph to module", "read", "saturate", "extract", "rebuild")
    lines = []
    for way in probed(lab, machine, "graph", experiment=EXPERIMENT):
        line = {"layers": str(_layers(way))}
        if way.fault:
            line |= dict.fromkeys(("nodes", *parts), formats.MISSING) | {"nodes": way.fault}
        else:
            before, after = (f"{way.triple(f'nodes {word}')[0]:g}" for word in ("before", "after"))
            line |= {"nodes": f"{before} → {after}"} | {name: spent(way, name) for name in parts}
        lines.append(line)
    return lines


def calls(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Launches and what they are, of eager and of the optimized module: a line a dtype."""
    word, gains = "kernel launches" if lab.primary(machine) == "graph" else "operators", smallest(lab, machine)
    return [
        {
            "dtype": dtype,
            f"{word}, eager": f"{a:g}",
            f"{word}, optimized": f"{b:g}",
            "speed against eager": times(gains[dtype]) if dtype in gains else formats.MISSING,
        }
        for dtype, a, b in launches(lab, machine)
    ]
