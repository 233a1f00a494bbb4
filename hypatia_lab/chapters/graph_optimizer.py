"""The graph optimizer: the rules and their grades, findings, tables and claims of its chapter.

Grades are made as the page is, the same on any machine. Every measured figure is taken from the records; what a
machine has not measured is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypatia_lab import claims, formats, intervals, tables
from hypatia_lab.chapters.fused_mlp import SAFETY_MODEL
from hypatia_lab.claims import Claim
from hypatia_lab.formats import absent, listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, span_text, unsaid
from hypatia_lab.pages.phrases import lasted, probed, say, spent, times, waited
from hypatia_lab.results import Row

PAGE = "11_graph_optimizer"
EXPERIMENT = "graph_optimizer"
OWN, SPLIT, BACKEND, REPLAYED = "egraph", "egraph_split", "egraph_compile", "egraph_replayed"
STEP = "forward_backward"
LONG, LIMIT_MS = 100, 250
"""The goal of optimizing: so many layers, from the captured graph to the rebuilt module, in so many ms."""
GAIN, GAINS = 1.1, 5
"""The goal on a GPU's own clock: in so many of the nine models so many times as fast as eager."""
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
        "Every rule passes its gate, and the unsound ones do not" if right else "The gate and the rules disagree",
        f"Rules are tried out in float64 on random shapes and on edge values. {held} of {len(own)} earn the grade that "
        f"they claim, and {refused} of {len(wrong)} plausible but wrong ones are refused. Trying refutes and proves "
        "nothing, so a grade is what many drawings did not refute.",
        PAGE,
    )


# ---------------------------------------------------------------- reading


def model_rows(lab: Evidence, machine: str, clock: str = "", direction: str = "forward", **wanted: Any) -> list[Row]:
    """Rows of the nine models with a time by ``clock`` (the primary one), smallest first, without the A/A control;
    ``wanted`` may name another operation.
    """
    wanted = {"direction": direction, "operation": "mlp", "clock": clock or lab.primary(machine)} | wanted
    rows = lab.timed(machine, experiment=EXPERIMENT, **wanted)
    return [row for row in rows if not row.is_twin and row.shape != SAFETY_MODEL]


def _at(row: Row) -> str:
    return f"{formats.model(row.shape)}, {row.dtype}"


def against(rows: Sequence[Row], variant: str, rival: str) -> list[tuple[Row, Interval]]:
    """Rows of ``variant``, each with its speed over that of ``rival`` on the same workload and clock."""
    found = []
    for row in rows:
        peer = next((r for r in rows if r.variant == rival and r.workload == row.workload), None)
        if row.variant == variant and peer is not None:
            found.append((row, peer.over(row)))
    return [(row, factor) for row, factor in found if not absent(factor.low)]


def fitted(rows: Sequence[Row]) -> str:
    """The optimized variant whose costs are those of the clock of ``rows``: for a replayed graph its own, if timed."""
    replayed = [row for row in rows if row.clock == "graph" and row.variant == REPLAYED]
    return REPLAYED if replayed else OWN


def fitting(rows: Sequence[Row]) -> list[Row]:
    """``rows`` without the variant whose costs are those of another clock."""
    other = {OWN, REPLAYED} - {fitted(rows)}
    return [row for row in rows if row.variant not in other]


def _clear(*groups: Sequence[tuple[Row, Interval]]) -> bool:
    """Whether each of ``groups`` has a case that says something."""
    return all(any(not factor.doubt for _, factor in found) for found in groups)


def _spread(found: Sequence[tuple[Row, Interval]]) -> str:
    """The least and the greatest factor of those that say something, of which there is one."""
    clear = [pair for pair in found if not pair[1].doubt]
    least, most = (pick(clear, key=lambda pair: pair[1].value) for pick in (min, max))
    if least is most:
        return f"{times(most[1])} ({_at(most[0])})"
    return f"{times(least[1])} to {times(most[1])}"


def _counted(found: Sequence[tuple[Row, Interval]]) -> str:
    """How many of ``found`` read as what, in the words of the figures."""
    words = [intervals.reading(factor) for _, factor in found]
    if len(words) == 1:
        return f"the one case measured is {words[0]}"
    by_more = sum(factor.below(1 - intervals.EQUIVALENCE) for _, factor in found)
    text = f"of {len(words)} cases {tables.counted(words)}"
    return text + (f" ({by_more or 'none'} by more than 2%)" if "slower" in words else "")


def _of(some: Sequence[Any], every: Sequence[Any]) -> str:
    if len(every) == 1:
        return "the one case measured" if some else "no case (one was measured)"
    return f"{len(some) or 'none'} of {len(every)} cases"


def unmeasured(lab: Evidence, machine: str) -> str:
    """A sentence on those of the documents' nine models that ``machine`` has no record of; empty where it has all."""
    from hypatia_lab.operations.mlp import MODELS

    there = {row.shape for row in model_rows(lab, machine)}
    asked = ["x".join(map(str, shape)) for shape in MODELS]
    missing = [formats.model(shape) for shape in asked if shape not in there]
    if not missing or not there:
        return ""
    return f"On `{machine}` {len(asked) - len(missing)} of the nine were measured. Left out: {'; '.join(missing)}."


def launches(lab: Evidence, machine: str) -> list[tuple[str, float, float]]:
    """(what, launches of eager, launches of the optimized module) of the documents' smallest model, by dtype.

    Launches count in a replayed graph: the module made for one speaks, where it was traced.
    """
    found = []
    for way in probed(lab, machine, "trace", experiment=EXPERIMENT, variant="eager"):
        own = [
            w
            for name in (REPLAYED, OWN)
            for w in probed(lab, machine, "trace", experiment=EXPERIMENT, variant=name)
            if w.where["shape"] == way.where["shape"] and w.where["math"] == way.where["math"]
        ]
        pair = [w.triple("kernel launches")[0] for w in (way, *own[:1]) if not w.fault]
        if len(pair) == 2 and not any(absent(value) for value in pair):
            found.append((way.where["math"].split("/")[0], pair[0], pair[1]))
    return found


# ---------------------------------------------------------------- findings


def speed(lab: Evidence, machine: str) -> Finding | None:
    """The optimized models against eager, by the primary clock and by the one that a caller waits by."""
    rows = model_rows(lab, machine)
    found = against(rows, fitted(rows), "eager")
    if not found:
        return None
    waiting = waited(lab, machine)
    also = against(model_rows(lab, machine, waiting), OWN, "eager") if waiting != lab.primary(machine) else []
    if not _clear(found):
        question = "Whether the optimized models are faster"
        return unsaid(lab, machine, question, PAGE, [factor for _, factor in found])
    slower = [(row, factor) for row, factor in (*found, *also) if factor.below(1 - intervals.EQUIVALENCE)]
    a_little = [pair for pair in (*found, *also) if pair[1].below(1) and pair not in slower]
    faster = [pair for pair in found if intervals.reading(pair[1]) == "faster"]
    gained = [pair for pair in found if pair[1].above(GAIN)]
    text = f"By the {lab.primary(machine)} clock the optimized models have {_spread(found)} of eager's speed: "
    text += f"{_counted(found)}. "
    if also and _clear(also):
        text += f"By the {waiting} clock it is {_spread(also)}: {_counted(also)}. "
        text += f"{GAIN:g}× is reached in {len(gained)} cases; the goal is {GAINS} models. "
    where = [f"{_at(row)} ({row.clock} clock, {times(factor)})" for row, factor in (*slower, *a_little)[:3]]
    text += f"The interval ends below 1 at {listing(where)}." if where else ""
    none = "none is surely slower by more than 2%"
    same = all(intervals.equal(factor) for _, factor in (*found, *also))
    return Finding(
        f"{len(faster)} of {len(found)}",
        f"By the {lab.primary(machine)} clock the optimized models are faster, and {none}"
        if len(faster) == len(found) and not slower
        else f"By the {lab.primary(machine)} clock some optimized models are faster, and {none}"
        if faster and not slower
        else "The optimized models are faster in some cases and slower in others"
        if faster
        else "The optimized models are slower in some cases"
        if slower
        else "The optimized models are as fast as eager"
        if same
        else "Whether the optimized models are as fast as eager is open",
        text.strip(),
        PAGE,
    )


def same_runtime(lab: Evidence, machine: str) -> Finding | None:
    """What a fused node changes that may be the library's epilogue, where S004's is Plan C: nodes, launches, times."""
    counted = launches(lab, machine)
    found = against(model_rows(lab, machine), OWN, "eager")
    if not counted or not found:
        return None
    same = [pair for pair in found if intervals.equal(pair[1])]
    gpu = lab.primary(machine) == "graph"
    what = "kernel launches" if gpu else "operators"
    said = listing([f"{a:g} to {b:g} {what} in {dtype}" for dtype, a, b in counted])
    fewer = any(b < a for _, a, b in counted)
    text = (
        "S004's fused nodes call Plan C: six calls before and after, and the same runtime. Here a fused node may be "
        "the library's epilogue. The smallest model goes from "
    )
    text += f"{said}. Three products and two ReLUs are five calls before, not six"
    text += "; a product of the library's may be two kernels. " if gpu else ". "
    text += f"The time is equal within ±2% in {len(same)} of {len(found)} cases."
    text += "" if gpu else " A CPU has no epilogue to fuse into, so a fused node is a product and a ReLU in its place."
    apart = [pair for pair in found if pair[1].outside(1 - intervals.EQUIVALENCE, 1 + intervals.EQUIVALENCE)]
    return Finding(
        f"{counted[0][1]:g} → {counted[0][2]:g}",
        "Fusing in the graph changes the calls, and the time"
        if fewer and apart
        else "Fusing in the graph changes the calls"
        if fewer
        else "Fusing in the graph alone changes no call",
        text,
        PAGE,
    )


def compilers(lab: Evidence, machine: str) -> Finding | None:
    """The optimized models against torch.compile, default and max-autotune."""
    rows = model_rows(lab, machine)
    found = against(rows, fitted(rows), "compile")
    if not found:
        return None
    if not _clear(found):
        question = "Whether the optimized models keep up with torch.compile"
        return unsaid(lab, machine, question, PAGE, [factor for _, factor in found])
    behind = [pair for pair in found if pair[1].below(1 - intervals.EQUIVALENCE)]
    level = [pair for pair in found if pair[1].above(1 - intervals.EQUIVALENCE)]
    text = f"The optimized models have {_spread(found)} of the speed of torch.compile's default: {_counted(found)}. "
    tuned = against(rows, fitted(rows), "compile_max_autotune")
    if tuned and _clear(tuned):
        text += f"Against max-autotune, where it was asked, it is {_spread(tuned)} of its speed."
    return Finding(
        f"{len(level)} of {len(found)}",
        "The optimized models keep up with torch.compile"
        if len(level) == len(found)
        else "Whether the optimized models keep up with torch.compile is open"
        if not behind
        else "The optimized models keep up with torch.compile in some cases"
        if len(behind) < len(found)
        else "torch.compile is faster",
        text.strip(),
        PAGE,
    )


def split(lab: Evidence, machine: str) -> Finding | None:
    """Split products, allowed explicitly, in the models with wide layers."""
    rows = model_rows(lab, machine, dtype="float32")
    found = [p for p in against(rows, SPLIT, "eager") if int(p[0].shape.split("x")[2]) >= LARGE_HIDDEN]
    if not found:
        return None
    if not _clear(found):
        return unsaid(lab, machine, "Whether split products pay", PAGE, [factor for _, factor in found])
    reached = [pair for pair in found if pair[1].above(SPLIT_GAIN)]
    return Finding(
        span_text([factor for _, factor in found if not factor.doubt]),
        "Split products pay in the large models"
        if len(reached) == len(found)
        else "Split products pay less than wanted",
        f"With split products allowed (float32's accuracy by float16 tensor cores) the models with hidden layers of "
        f"{LARGE_HIDDEN} and more have {_spread(found)} of eager's float32 speed; {SPLIT_GAIN:g}× is reached in "
        f"{len(reached)} of {len(found)}. It is an option of its own, for other roundings than IEEE float32's.",
        PAGE,
    )


def blocks(lab: Evidence, machine: str) -> Finding | None:
    """The U-Net, whose convolution blocks have a rule of their own, by each clock with that clock's costs."""
    found: dict[str, dict[str, Interval]] = {}
    where = ""
    for clock in dict.fromkeys((lab.primary(machine), waited(lab, machine))):
        rows = model_rows(lab, machine, clock, operation="unet")
        for rival in ("eager", "eager_channels_last", "compile"):
            for row, factor in against(rows, fitted(rows), rival):
                found.setdefault(rival, {})[clock] = factor
                where = f"{row.at} in {row.dtype}"
    if "eager" not in found:
        return None
    own_speed = found["eager"]
    if all(factor.doubt for factor in own_speed.values()):
        question = "Whether fused convolution blocks speed up a whole model"
        return unsaid(lab, machine, question, PAGE, list(own_speed.values()))
    said = {r: listing([f"{say(f)} by the {clock} clock" for clock, f in by.items()]) for r, by in found.items()}
    text = (
        f"A U-Net of five blocks at {where}, its convolution blocks fused where that clock's costs favour it and the "
    )
    text += f"whole graph is the faster, has of eager's speed {said['eager']}. "
    for rival, called in (("eager_channels_last", "eager in channels last"), ("compile", "Inductor")):
        text += f"Against {called}: {said[rival]}. " if rival in said else ""
    faster = any(factor.above(1 + intervals.EQUIVALENCE) for factor in own_speed.values())
    slower = any(factor.below(1 - intervals.EQUIVALENCE) for factor in own_speed.values())
    return Finding(
        times(next(factor for factor in own_speed.values() if not factor.doubt)),
        "Through the optimizer a U-Net is slower"
        if slower and not faster
        else "Through the optimizer a U-Net is faster by one clock and slower by another"
        if slower
        else "Fused convolution blocks speed up a whole model"
        if faster
        else "Fused convolution blocks gain nothing in a whole model",
        text.strip(),
        PAGE,
    )


def training(lab: Evidence, machine: str) -> Finding | None:
    """A training step of the optimized modules, and of the modules compiled with the e-graph as backend."""
    clocks = list(dict.fromkeys((lab.primary(machine), waited(lab, machine))))
    own = {clock: against(model_rows(lab, machine, clock, STEP), OWN, "eager") for clock in clocks}
    found = [pair for pairs in own.values() for pair in pairs]
    if not found:
        return None
    if not _clear(found):
        return unsaid(lab, machine, "Whether a training step is slower", PAGE, [factor for _, factor in found])
    slower = [pair for pair in found if pair[1].below(1 - intervals.EQUIVALENCE)]
    level = [pair for pair in found if pair[1].above(1 - intervals.EQUIVALENCE)]
    said = listing([f"{_spread(pairs)} by the {clock} clock" for clock, pairs in own.items() if _clear(pairs)])
    text = f"A step, forward and backward, has of eager's speed {said}: slower by more than 2% in "
    text += (
        f"{_of(slower, found)}. Where gradients are wanted a fused node is a product and a ReLU again, so nothing is "
    )
    text += "gained. "
    backend = {clock: against(model_rows(lab, machine, clock, STEP), BACKEND, "eager") for clock in clocks}
    shown = [f"{_spread(pairs)} by the {clock} clock" for clock, pairs in backend.items() if _clear(pairs)]
    text += f"As a backend of torch.compile, which fuses after differentiation: {listing(shown)}." if shown else ""
    return Finding(
        f"{len(level)} of {len(found)}" if len(found) > 1 else f"{formats.number(found[0][1].value)}×",
        "A training step is not slower"
        if len(level) == len(found)
        else "A training step is slower in some cases"
        if slower
        else "Whether a training step is slower is open",
        text.strip(),
        PAGE,
    )


def optimizing(lab: Evidence, machine: str) -> Finding | None:
    """How long optimizing takes, against the goal at 100 layers."""
    ways = probed(lab, machine, "graph", experiment=EXPERIMENT)
    found = {int(w.where["shape"].split("×")[3]) + 1: w for w in ways if not w.fault}
    if LONG not in found:
        return None
    took_us, most = found[LONG].measured("graph to module"), max(found)
    text = f"From the captured graph of {LONG} layers to the rebuilt module it takes "
    text += f"{lasted(found[LONG], 'graph to module')}; the goal is {LIMIT_MS} ms. Capturing by torch.export, before "
    text += f"that, takes {lasted(found[LONG], 'capture')}. "
    text += f"{most} layers take {lasted(found[most], 'graph to module')}, and no recursion. "
    text += f"The first graph of a process also loads the libraries: {lasted(found[LONG], 'graph to module, first')}."
    if took_us.doubt:
        question = f"Whether {LONG} layers are optimized within {LIMIT_MS} ms"
        return unsaid(lab, machine, question, PAGE, [took_us], facts=text)
    return Finding(
        formats.duration(took_us.value),
        f"{LONG} layers are optimized within {LIMIT_MS} ms"
        if took_us.below(1e3 * LIMIT_MS)
        else f"{LONG} layers take longer than {LIMIT_MS} ms"
        if took_us.above(1e3 * LIMIT_MS)
        else f"Whether {LONG} layers are optimized within {LIMIT_MS} ms is open",
        text,
        PAGE,
    )


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """What the records of ``machine`` say on this chapter's questions, the weightiest first."""
    candidates = (speed, same_runtime, compilers, split, blocks, training, optimizing)
    return [found for found in (candidate(lab, machine) for candidate in candidates) if found is not None]


# ---------------------------------------------------------------- tables


def nine(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """The documents' models against eager by every clock: a line a model and dtype."""
    lines: dict[str, dict[str, str]] = {}
    for clock in dict.fromkeys((lab.primary(machine), waited(lab, machine))):
        for row in fitting(model_rows(lab, machine, clock)):
            line = lines.setdefault(_at(row), {"model": formats.model(row.shape), "dtype": row.dtype})
            if row.variant == row.baseline:
                line[f"eager, {clock}"] = row.took
            elif not absent(row.ratio):
                line[f"{row.variant}, {clock}"] = times(row.speed)
    columns = list(dict.fromkeys(name for line in lines.values() for name in line))
    return [{name: line.get(name, formats.MISSING) for name in columns} for line in lines.values()]


def stages(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Optimizing time stage by stage, a line a number of layers."""
    parts = ("capture", "graph to module, first", "graph to module", "read", "saturate", "extract", "rebuild")
    lines = []
    for way in probed(lab, machine, "graph", experiment=EXPERIMENT):
        layers = int(way.where["shape"].split("×")[3]) + 1
        line = {"layers": str(layers)}
        if way.fault:
            line |= dict.fromkeys(("nodes", *parts), formats.MISSING) | {"nodes": way.fault}
        else:
            before, after = (f"{way.triple(f'nodes {word}')[0]:g}" for word in ("before", "after"))
            line |= {"nodes": f"{before} → {after}"}
            line |= {name: spent(way, name) for name in parts}
        lines.append(line)
    return lines


def calls(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Launches and what they are, of eager and of the optimized module: a line a dtype."""
    word = "kernel launches" if lab.primary(machine) == "graph" else "operators"
    return [
        {"dtype": dtype, f"{word}, eager": f"{a:g}", f"{word}, optimized": f"{b:g}"}
        for dtype, a, b in launches(lab, machine)
    ]


# ---------------------------------------------------------------- claims

APART = ("S004-17", "S004-55", "S004-67")
"""Claims on the scenario's graph, parts of which follow from counting or from the launches of another experiment."""


def chapter_claims() -> list[Claim]:
    """The claims whose verdicts the chapter shows, in the order of the ledger."""
    section = "Graph-Level Fusion"
    return [c for c in claims.ledger() if c.lead in APART or c.experiment == EXPERIMENT or c.section == section]
