"""How the lab measures: its own error rate, what holds on the next visit, the wrong kernels it was given, and a timer
that is not its own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hypatia_lab import formats, intervals
from hypatia_lab.figures.language import CLOCKS
from hypatia_lab.formats import listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, agreement
from hypatia_lab.pages.phrases import quotient, spoken, times
from hypatia_lab.results import Row

if TYPE_CHECKING:
    from hypatia_lab.chapters.stability import Coverage

CHECKED = (
    *("linear_relu", "linear_relu_layout", "matmul", "mlp2", "mlp3", "mlp", "conv_block", "conv_block_tanh"),
    *("conv_block_autocast", "norm_chain", "unet", "unet_group", "unet_autocast", "diffraction"),
)
"""Operations whose variants the page of checks tries."""

WRONG = {"diffraction": ("eager_direct",)}
"""Variants known to be wrong, by operation: a document's own, kept as it was."""

BOUND = 0.05
"""The lab's clock and an independent timer are held to differ by less than this share."""
WITHIN = f"within ±{BOUND:.0%}"


def clocks(lab: Evidence, machine: str, workload: str) -> str:
    """How far apart the clocks read one and the same eager call of ``workload``, in a line of Markdown.

    Empty where fewer than two clocks timed it on ``machine``.
    """
    rows = lab.select(machine=machine, experiment="method", workload=workload, variant="eager", status="ok")
    found = {row.median_us: row for row in rows if row.clock in CLOCKS and not row.time.doubt}
    if len(found) < 2:
        return ""
    least, most = found[min(found)], found[max(found)]
    return (
        f"One eager call takes {spoken(least.time, 'µs')} by the {least.clock} clock and {spoken(most.time, 'µs')} by "
        f"the {most.clock} clock: {formats.spoken(most.median_us / least.median_us)} times as long."
    )


TUNING = {False: "untuned ones", True: "torch.compile's"}
"""Whether a tuner chose the kernels of a variant → what its ratios are called."""


def coverage(found: Sequence[Coverage]) -> Any:
    """:func:`hypatia_lab.chapters.stability.coverage` as a table (pandas), a row a clock, chip and code."""
    import pandas

    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for one in found:
        place = {"clock": one.clock, "chip": one.chip, "code": one.code}
        row = rows.setdefault((one.clock, one.chip, one.code), place | dict.fromkeys(TUNING.values(), formats.MISSING))
        row[TUNING[one.tuned]] = _agreeing(one)
    return pandas.DataFrame(list(rows.values()))


def covered(found: Sequence[Coverage]) -> str:
    """What share of the ratios of two visits agree, in sentences; empty where no model of GPU was visited twice."""
    said = []
    for code, when in (("same", "By the same code"), ("another", "By code that had changed")):
        shares = []
        for tuned, name in TUNING.items():
            own = [one for one in found if (one.tuned, one.code) == (tuned, code)]
            if ratios := sum(one.ratios for one in own):
                shares.append(f"{formats.spoken(100 * sum(one.agree for one in own) / ratios)}% of {name}")
        if shares:
            said.append(f"{when}, two visits agree on these ratios: {listing(shares)}.")
    return " ".join([*said, f"Intervals promise {intervals.CONFIDENCE:.0%}."]) if said else ""


def _agreeing(one: Coverage) -> str:
    share = formats.interval(100 * one.share.value, 100 * one.share.low, 100 * one.share.high, "%")
    return f"{share} of {one.ratios}"


def caught(rows: Sequence[dict[str, str]]) -> str:
    """How many wrong kernels :func:`hypatia_lab.planted.tried` put before the check, and whether all were told."""
    missed = [f"{row['planted']} ({row['operation']})" for row in rows if not row["named"]]
    if missed:
        return f"**{len(missed)} of {len(rows)} were not rejected as what they are:** {'; '.join(missed)}."
    rules = sum(row["operation"].startswith("rule") for row in rows)
    return (
        f"**All {len(rows)} were rejected, each with its fault named:** {len(rows) - rules} wrong kernels, and {rules} "
        "rules of the optimizer that change the result."
    )


def by_operation(rows: Iterable[dict[str, str]]) -> Any:
    """The same as a table (pandas), a row an operation: what was planted (what the check says of it).

    Where the check says what was planted, it is said once.
    """
    import pandas

    found: dict[str, list[str]] = {}
    for row in rows:
        said = row["named"] or "NOT REJECTED"
        same = said.removesuffix(":").endswith(row["planted"])
        found.setdefault(row["operation"], []).append(said if same else f"{row['planted']} ({said})")
    columns = ["operation", "number", "planted (what the check says, where in other words)"]
    return pandas.DataFrame([(name, len(told), "; ".join(told)) for name, told in found.items()], columns=columns)


def agreeing(told: Iterable[str]) -> Any:
    """The lines of :func:`hypatia_lab.pages.evidence.verify` as a table (pandas), a row an operation and direction."""
    import pandas

    out = []
    for line in told:
        work, _, rest = line.partition(f": {AGREES}")
        operation, _, direction = work.partition(", ")
        without = rest.partition("left out: ")[2].partition(", known")[0]
        row = {"operation": operation, "direction": direction or "forward", "left out, known to be wrong": without}
        out.append(row)
    return pandas.DataFrame(out)


AGREES = "every variant this machine can run, torch.compile's aside, agrees with float64"
"""What the check says of an operation that is right."""


def bounds() -> Any:
    """The largest error of the norm that is right at typical sizes (pandas), a row an operation and part of an answer.

    A column a dtype and way to multiply; what ReLUs near 0 add is left out.
    """
    import pandas

    import hypatia_lab.experiments  # noqa: F401  (registers the operations)
    from hypatia_lab.workloads import Workload

    typical = {
        "linear_relu": ((1024, 784, 2048), ("y", "grad_weight")),
        "mlp": ((256, 784, 512, 3, 128), ("y",)),
        "conv_block": ((5, 64, 128, 128), ("y", "grad_weight")),
        "unet": ((5, 64, 128, 128), ("y", "grad_x")),
    }
    kinds = {"float32": ("float32", "ieee"), "TF32": ("float32", "tf32")}
    kinds |= {dtype: (dtype, "ieee") for dtype in ("float16", "bfloat16")}
    out = []
    for operation, (shape, parts) in typical.items():
        for part in parts:
            row = {"operation": f"{operation} {formats.shape('x'.join(map(str, shape)))}", "part": part}
            for kind, (dtype, math_mode) in kinds.items():
                work = Workload(operation, shape, dtype, math_mode, "forward_backward")
                row[kind] = formats.number(work.tolerance(part))
            out.append(row)
    return pandas.DataFrame(out)


def unchecked() -> str:
    """In a sentence of Markdown, what the page of checks does not try."""
    import hypatia_lab.experiments  # noqa: F401  (registers the operations)
    from hypatia_lab.workloads import SPLIT, operations

    rest = listing([f"`{name}`" for name in operations() if name not in CHECKED])
    return (
        "Not tried here, and checked where they are timed: what torch.compile makes, products in the math "
        f"{listing(list(SPLIT))}, and the operations {rest}."
    )


def errors(lab: Evidence, machine: str) -> Any:
    """The answers timed on ``machine`` that came nearest to their bounds (pandas).

    A row an operation, dtype and way to multiply.
    """
    import pandas

    found: dict[tuple[str, str], list[Row]] = {}
    for row in _right(lab, machine):
        found.setdefault(_computed(row), []).append(row)
    out = []
    for (work, kind), rows in sorted(found.items()):
        worst = max(rows, key=_share_of_bound)
        share = _share_of_bound(worst)
        out.append(
            {
                "operation": work,
                "arithmetic": kind,
                "nearest variant": worst.variant,
                "share of its bound": f"{share:.0%}" if share >= 0.01 else "under 1%",
                "error": formats.number(worst.error),
                "size": formats.shape(worst.shape),
                "variants timed": len({row.variant for row in rows}),
            }
        )
    return pandas.DataFrame(out)


def wrong(lab: Evidence, machine: str) -> Any:
    """What was called wrong on ``machine`` and so has no time (pandas), a row a variant, operation and arithmetic."""
    import pandas

    found: dict[tuple[str, ...], list[Row]] = {}
    for row in lab.select(machine=machine, status="wrong"):
        found.setdefault((row.variant, *_computed(row)), []).append(row)
    out = []
    for (variant, work, kind), rows in sorted(found.items()):
        worst = max(rows, key=lambda row: row.error)
        line = {"variant": variant, "operation": work, "arithmetic": kind}
        line["sizes"] = str(len({row.shape for row in rows}))
        # Where it is off is of no use without the picture.
        out.append(line | {"what the check said of the worst": worst.reason.partition(" (rows")[0]})
    return pandas.DataFrame(out)


def _right(lab: Evidence, machine: str) -> list[Row]:
    return [row for row in lab.select(machine=machine, status="ok") if not math.isnan(row.error)]


def _computed(row: Row) -> tuple[str, str]:
    """What ``row`` computes and in which arithmetic: ``("linear_relu, forward and backward", "float32 (tf32)")``."""
    work = row.operation if row.direction == "forward" else f"{row.operation}, forward and backward"
    return work, row.dtype if row.math == "ieee" else f"{row.dtype} ({row.math})"


def nearest(lab: Evidence, machine: str) -> str:
    """What was wrong on ``machine``, and which right answer came nearest to its bound (Markdown); empty without any."""
    if not (right := _right(lab, machine)):
        return ""
    names = sorted({f"`{row.variant}`" for row in lab.select(machine=machine, status="wrong")})
    worst = max(right, key=_share_of_bound)
    said = f"within **{_share_of_bound(worst):.0%} of its bound**. The nearest is `{worst.variant}` in "
    said += f"{formats.workload(worst.workload)}."
    if not names:
        return f"Every answer stayed {said}"
    many = f"{len(names)} variants were" if len(names) > 1 else "One variant was"
    return f"**{many} wrong at some size**, where there is no time: {listing(names)}. Every other answer stayed {said}"


def _share_of_bound(row: Row) -> float:
    """How far off ``row``'s answer is, by what it may be: of the norm, or of the largest element where that counts.

    Of several parts at most so far: a record does not say which one's error it holds, so the strictest bound counts.
    """
    import hypatia_lab.experiments  # noqa: F401  (registers the operations)
    from hypatia_lab.workloads import Workload

    shape = tuple(map(int, row.shape.split("x")))  # of more digits than one may ask for
    work = Workload(row.operation, shape, row.dtype, row.math, row.direction)
    if work.spec.peak_error is not None:
        return row.max_error / (work.tolerance() * row.peak)
    return row.error / min(work.tolerance(part) for part in work.parts)


def oracle(lab: Evidence, machine: str) -> Any:
    """Both timers side by side (pandas), a row a workload and variant; None where ``machine`` has no such record."""
    import pandas

    pairs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lab.details(machine=machine, topic="oracle"):
        shape, direction = "x".join(map(str, line["shape"])), line.get("direction", "forward")
        work = formats.workload("/".join((line["operation"], shape, line["dtype"], line["math"], direction)))
        pairs.setdefault((work, line["variant"]), []).append(line)
    out = []
    for (work, variant), lines in pairs.items():
        row: dict[str, Any] = {"workload": work, "variant": variant}
        if len(lines) != 2 or any(line["status"] != "ok" for line in lines):
            out.append(row | {"status": f"{lines[0]['status']}: {lines[0]['reason']}"})
            continue
        own, other = lines
        for line in lines:
            seen = [value for value in line["values"] if value is not None]
            row[line["name"]] = f"{formats.number(intervals.geometric(seen).value)} µs"
        found = quotient(own["values"], other["values"])
        assert found is not None
        band = 1 - BOUND, 1 + BOUND
        agrees = "yes" if found.within(*band) else "no" if found.outside(*band) else found.doubt or "undecided"
        row |= {"ratio": times(found), "n": str(found.n), WITHIN: agrees, "status": "ok"}
        out.append(row)
    return pandas.DataFrame(out).fillna("") if out else None


def beside(lab: Evidence, machine: str) -> str:
    """In a sentence of Markdown, how many of the pairs of :func:`oracle` agree within :data:`BOUND`."""
    frame = oracle(lab, machine)
    if frame is None:
        return "This was not measured here."
    said = Counter(frame.get(WITHIN, []))
    text = f"{said.pop('yes', 0)} of {len(frame)} times agree with the other timer within ±{BOUND:.0%}"
    rest = [f"{number} {formats.DOUBTS.get(word, word)}" for word, number in said.items() if word not in ("no", "")]
    return f"{'; '.join([text, *rest])}."


TELLING = 0.25
"""A rate of false differences is told where its interval does not hold this share, five times the one expected."""


def false_alarms(lab: Evidence, machine: str) -> Finding | None:
    """How often the lab sees a difference between a variant and itself."""
    found = agreement(lab, machine)
    if not found:
        return None
    row, page = found[0], "01_method"
    if row["p"] >= 0.05 and row["rate_low"] < TELLING < row["rate_high"]:
        return Finding(intervals.TOO_FEW, "How often the lab errs", f"Pairs of identical code: {row['pairs']}.", page)
    return Finding(
        f"{formats.spoken(100 * row['rate'])}%",
        "The lab's own error rate is what it should be"
        if row["p"] >= 0.05
        else "The lab sees fewer false differences than it may"
        if row["rate"] < 1 - intervals.CONFIDENCE
        else "The lab's own error rate is off",
        f"It told {row['differences']} of {row['pairs']} pairs of identical code apart. Its intervals allow for "
        f"{1 - intervals.CONFIDENCE:.0%}.",
        page,
    )


def next_visit(found: Sequence[Coverage]) -> Finding | None:
    """How many ratios that no tuner chose agree on two visits, by the same code and by code that had changed.

    ``found`` are the shares of one machine.
    """
    shares = {code: _pooled(found, code) for code in ("same", "another")}
    shares = {code: share for code, share in shares.items() if not share.doubt}
    if not shares:
        return None
    promised = intervals.CONFIDENCE
    short = [share for share in shares.values() if share.below(promised)]
    (first, *_) = short or shares.values()  # what the title speaks of
    words = {"same": "By the same code", "another": "By code that had changed"}
    said = [
        f"{words[code]} two visits agree on {round(share.value * share.n)} of {share.n} ratios."
        for code, share in shares.items()
    ]
    return Finding(
        f"{formats.spoken(100 * first.value)}%",
        "Two visits agree less often than intervals promise"
        if len(short) == len(shares) or shares.get("same") in short
        else "Visits by changed code agree less often than intervals promise"
        if short
        else "Two visits agree as often as intervals promise, as far as can be told",
        f"{' '.join(said)} Intervals promise {promised:.0%}. What a tuner chose is left out.",
        "01_method#on-the-next-visit",
    )


def _pooled(found: Sequence[Coverage], code: str) -> Interval:
    """The share of untuned ratios that agree, of all clocks and chips."""
    own = [one for one in found if one.code == code and not one.tuned]
    ratios = sum(one.ratios for one in own)
    return intervals.share(sum(one.agree for one in own), ratios) if ratios else intervals.NOTHING
