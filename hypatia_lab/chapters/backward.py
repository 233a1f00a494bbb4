"""The gradient of Linear+ReLU: findings and tables of its chapter.

A *step* is a forward and a backward pass together, the direction ``forward_backward``; what is said of the backward
pass alone is a step less a forward pass of the same variant, which another experiment timed.
"""

from __future__ import annotations

from typing import Any

from hypatia_lab import formats, intervals, results
from hypatia_lab.formats import absent
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, answered, silent, span_text, unsaid, way_in
from hypatia_lab.pages.phrases import labelled, spoken, times
from hypatia_lab.results import LAUNCH, Row
from hypatia_lab.workloads import DTYPES

PAGE = "15_backward"
EXPERIMENT = "backward"
DIRECTION = "forward_backward"
FORWARD = ("aten_fusion", "tensor_cores")
"""Experiments that time a forward pass, the one with more of the variants first."""
SEED_SHAPE = "1024x784x2048"
GOAL = 1.3
"""Multiple of the better of eager and torch.compile that a fused step in bfloat16 is to reach at the seeds' size."""
OWN, RIVALS = "fused_backward", ("eager", "compile")
SPLIT = ("fp16x3_backward", "fp16x3_cuda")
"""Variants that make each float32 product three of float16."""
SEED_FORWARD, SEED_DEFAULT, SEED_V2 = 1.05, 15.0, 2.0
"""S002's milliseconds: v2's forward pass, PyTorch's default backward pass, v2's."""
TENTH = 0.1
"""How far a single claimed figure may be off, as in the ledger."""
JUDGED = ("S002-37f",)
"""The part of the ledger on v2's backward pass beside PyTorch's."""


# ---------------------------------------------------------------- reading


def steps(lab: Evidence, machine: str, clock: str = "", **wanted: Any) -> list[Row]:
    """Rows of forward and backward passes by ``clock`` (the primary one), smallest first; also those without a time."""
    rows = lab.select(
        machine=machine,
        experiment=EXPERIMENT,
        operation="linear_relu",
        direction=DIRECTION,
        clock=clock or lab.primary(machine),
        **wanted,
    )
    return sorted(rows, key=lambda row: row.flops)


def drawn(lab: Evidence, machine: str, dtype: str, clock: str = "") -> list[Row]:
    """The rows for a figure, without v1: its naive forward would squeeze all others together."""
    return [row for row in steps(lab, machine, clock, dtype=dtype) if row.variant != "naive"]


def _by_variant(lab: Evidence, machine: str, dtype: str) -> dict[str, Row]:
    """The timed variants at the seeds' size, or at the largest size measured where that one was not."""
    rows = [row for row in steps(lab, machine, dtype=dtype) if row.timed]
    shapes = [row.shape for row in rows]
    chosen = SEED_SHAPE if SEED_SHAPE in shapes else shapes[-1] if shapes else ""
    return {row.variant: row for row in rows if row.shape == chosen}


def forward_pass(lab: Evidence, step: Row) -> Row | None:
    """The forward pass of the same variant, workload and clock, from another experiment; None if nobody timed it."""
    wanted = {key: getattr(step, key) for key in ("machine", "operation", "shape", "dtype", "math", "clock", "variant")}
    for experiment in FORWARD:
        for row in lab.select(experiment=experiment, direction="forward", **wanted):
            if row.timed:
                return row
    return None


def alone(lab: Evidence, step: Row) -> list[float]:
    """µs of the backward pass alone, a step less a forward pass, one a pair of processes; empty if not to be had."""
    forward = forward_pass(lab, step)
    if forward is None:
        return []
    pairs = zip(step.medians_us, forward.medians_us, strict=False)
    found = [both - one for both, one in pairs if both is not None and one is not None]
    return found if all(us > 0 for us in found) else []


# ---------------------------------------------------------------- findings


def goal(lab: Evidence, machine: str) -> Finding | None:
    """The fused backward in bfloat16 against the better of eager and torch.compile."""
    found = _by_variant(lab, machine, "bfloat16")
    rivals = sorted((found[name] for name in RIVALS if name in found), key=lambda row: row.median_us)
    if OWN not in found or not rivals:
        return None
    own, rival = found[OWN], rivals[0]
    factor = rival.over(own)
    if factor.doubt:
        return unsaid(lab, machine, "Whether a fused backward pays", PAGE, [factor])
    met = True if factor.above(GOAL) else False if factor.below(GOAL) else None
    waiting = called(lab, machine)
    text = f"Against {labelled(rival)} at {own.at} in bfloat16, where this book's goal is {GOAL:g}×"
    text += ". " if met else ", which is missed. " if met is False else ", which is open. "
    # The goal is older than the other libraries' variants, and the quickest of them is what a user would pick.
    quickest = min((row for row in found.values() if row.origin == "peer"), key=lambda row: row.median_us)
    if quickest.median_us < rival.median_us and not (beside := quickest.over(own)).doubt:
        text += f"Against {labelled(quickest)}, which is quicker, it is {spoken(beside)}. "
    return Finding(
        spoken(factor),
        "A fused backward pays" + (" inside a CUDA graph" if own.clock == "graph" else "")
        if met
        else "A fused backward does not pay here"
        if not factor.above(1)
        else "A fused backward pays, but less than wanted"
        if met is False
        else "Whether a fused backward reaches its goal is open",
        (text + waiting).strip(),
        PAGE,
    )


def called(lab: Evidence, machine: str) -> str:
    """How the fused backward does when it is called from Python, in a sentence; empty where no wall clock was asked.

    On a CPU one clock times both.
    """
    if lab.primary(machine) != "graph":
        return ""
    rows = [row.speed for row in steps(lab, machine, "wall", variant=OWN) if row.timed and not row.speed.doubt]
    return f"Called from Python it runs at {span_text(rows)} of eager's speed." if rows else ""


def split(lab: Evidence, machine: str) -> Finding | None:
    """The quicker step whose float32 products are three of float16 each, against eager's, over the sizes."""
    quickest: dict[str, Row] = {}
    rows = [
        row for row in steps(lab, machine, dtype="float32", variant=SPLIT) if row.timed and not absent(row.ratio_low)
    ]
    for row in rows:
        quickest[row.shape] = min(quickest.get(row.shape, row), row, key=lambda one: one.median_us)
    every = [row.speed for row in quickest.values()]
    if not every:
        return None
    if not (clear := [gain for gain in every if not gain.doubt]):
        return unsaid(lab, machine, "Whether three float16 products help a step in float32", PAGE, every)
    faster = sum(gain.above(1 + intervals.EQUIVALENCE) for gain in every)
    return Finding(
        span_text(clear),
        "In float32 a step gains from three float16 products"
        if faster == len(every)
        else "In float32 a step gains from three float16 products at some sizes"
        if faster
        else "In float32 no gain from three float16 products shows",
        "Against eager, which multiplies on vector units. "
        f"At each of {len(every)} sizes the quickest such step counts, by the {rows[0].clock} clock. "
        f"{silent(every)}".strip(),
        PAGE,
    )


def default(lab: Evidence, machine: str) -> Finding | None:
    """PyTorch's default backward against v2's, which S002 puts at 15 ms and 2 ms.

    Where the time of v2's step includes the lab's launch path, S002's figures are left out.
    """
    found = _by_variant(lab, machine, "float32")
    eager, second = found.get("eager"), found.get("cublas_relu")
    if eager is None or second is None or absent(second.ratio_low):
        return None
    factor, claimed = second.speed, (SEED_FORWARD + SEED_DEFAULT) / (SEED_FORWARD + SEED_V2)
    band = claimed * (1 - TENTH), claimed * (1 + TENTH)
    aside = way_in([second])
    judged = () if aside else JUDGED
    if factor.doubt:
        return unsaid(lab, machine, "Whether a step with v2 is faster than eager's", PAGE, [factor], judged)
    text = f"A step with v2 against eager's in float32 at {second.at}. "
    text += (
        aside
        or f"S002 has {SEED_DEFAULT:g} ms against {SEED_V2:g} ms for the backward pass. "
        f"With v2's forward pass of {SEED_FORWARD:g} ms in both, a step would gain {formats.spoken(claimed)}×."
    )
    return Finding(
        spoken(factor),
        "v2's step, called through the lab, beside eager's"
        if aside
        else "PyTorch's default backward is not the slow one"
        if factor.below(1.02)
        else "v2's backward gains as much as S002 says"
        if factor.within(*band)
        else "v2's backward gains, by far not what S002 says"
        if factor.above(1.02) and factor.outside(*band)
        else "v2's backward gains little, if anything",
        text,
        PAGE,
        claims=judged,
    )


def library(lab: Evidence, machine: str) -> Finding | None:
    """The library's epilogue with a gradient of its own, against eager; a CPU has no epilogue."""
    rows = [row for row in steps(lab, machine, variant="epilogue") if row.timed and not absent(row.ratio_low)]
    if not rows or lab.primary(machine) != "graph":
        return None
    every = [row.speed for row in rows]
    if not any(intervals.decided(gain) for gain in every):
        return unsaid(lab, machine, "Whether fusing the forward pass helps a whole step", PAGE, every)
    faster = sum(gain.above(1 + intervals.EQUIVALENCE) for gain in every)
    return Finding(
        span_text([gain for gain in every if intervals.decided(gain)]),
        "Fusing the forward pass helps a whole step"
        if faster == len(rows)
        else "Fusing the forward pass helps a whole step in some cases"
        if faster
        else "Fusing the forward pass is hardly seen in a whole step",
        f"By the {rows[0].clock} clock the library's epilogue gains more than 2% in {faster} of {len(rows)} cases. "
        f"{silent(every)}"
        "It saves one ReLU in a step of three products.",
        PAGE,
    )


def allocation() -> Finding:
    """What v2's mask allocates against what it replaced: counted as the page is made, the same on any machine."""
    second, before, _ = (sum(made(form, "float32")) for form in FORMS)
    shorter = [sum(made(form, "bfloat16")) for form in FORMS]
    return Finding(
        f"{formats.spoken(second / before)}×",
        "v2's masking allocates more, not half" if second > before else "v2's masking allocates less",
        f"Counted in float32. In bfloat16 it is {formats.spoken(shorter[0] / shorter[1])}×. "
        "S001 halves the backward's allocation by multiplying in place. Neither of v2's calls works in place.",
        PAGE,
        claims=("S001-66",),
    )


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """What the records of ``machine`` say on this chapter's questions, in its order."""
    return answered(lab, machine, goal, split, default, library)


# ---------------------------------------------------------------- tables


def where(lab: Evidence, machine: str, dtype: str) -> str:
    """The size and dtype that :func:`parts` speaks of."""
    eager = _by_variant(lab, machine, dtype).get("eager")
    return f"{eager.at} in {dtype}" if eager else ""


def parts(lab: Evidence, machine: str, dtype: str = "float32") -> list[dict[str, str]]:
    """What a step is made of: operations, compulsory bytes and the least time of each part, a line a part.

    At the seeds' size, or the largest measured. The last line is the whole, whose tensors go through memory once.
    """
    found = _by_variant(lab, machine, dtype)
    whole = found.get("eager")
    if whole is None:
        return []
    batch, inner, outer = map(int, whole.shape.split("x"))
    x, weight, y = batch * inner, outer * inner, batch * outer
    product = 2 * batch * inner * outer
    made = {
        "forward: y = max(0, x·Wᵀ + b)": (product, x + weight + outer + y),
        "mask: z = grad where y > 0": (0, 3 * y),
        "grad_bias = Σ z": (0, y + outer),
        "grad_x = z·W": (product, y + weight + x),
        "grad_weight = zᵀ·x": (product, y + x + weight),
    }
    best, size = results.ceilings(lab.of(machine)), DTYPES[dtype]
    lines = []
    for name, (flops, elements) in made.items():
        cell = {key: getattr(whole, key) for key in ("operation", "dtype", "math", "clock", "variant")}
        least = results.limit_us(cell | {"flops": flops, "traffic": size * elements, "splits": None}, best)
        lines.append(_part(name, flops, size * elements, least))
    return [*lines, _part("the whole, nothing read twice", whole.flops, whole.traffic, whole.limit_us)]


def _part(name: str, flops: int, nbytes: int, least: float) -> dict[str, str]:
    return {
        "part": name,
        "operations": formats.scaled(float(flops), "FLOP") if flops else formats.MISSING,
        "bytes": formats.scaled(float(nbytes), "B"),
        "least time": formats.duration(least),
    }


def passes(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """A step, its forward pass and what is left for the backward pass: a line a size, dtype and variant."""
    out = []
    for step in steps(lab, machine):
        forward, rest = forward_pass(lab, step), alone(lab, step)
        if forward is None or not rest or step.is_twin:
            continue
        found = intervals.geometric(rest)
        ratio = intervals.geometric([us / one for us, one in zip(rest, forward.medians_us, strict=False) if one])
        out.append(
            {
                "size": f"{step.at} {step.dtype}",
                "variant": labelled(step) + (f" ({LAUNCH})" if step.launch_path else ""),
                "step": step.took,
                "backward": formats.time(found),
                "backward / forward": times(ratio),
            }
        )
    return out


FORMS = {
    "v2: grad.mul(output.gt(0))": "masked_as_v2",
    "what v2 replaced: zeros_like, then filled": "",
    "PyTorch's default: threshold_backward": "masked",
}
"""Form of the mask → the function that computes it; without one, zeros are made and a kernel fills them."""


def made(form: str, dtype: str, shape: tuple[int, int, int] = (1024, 784, 2048)) -> list[int]:
    """Bytes of each tensor that ``form`` makes of the gradient at ``shape`` (batch, in, out), tried out here and now.

    On tensors that have sizes and no memory (torch's meta device), so that every machine gives the same.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from hypatia_lab.operations import linear_relu

    class Made(TorchDispatchMode):
        """Collects the sizes of what operators return."""

        def __init__(self) -> None:
            super().__init__()
            self.sizes: list[int] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            self.sizes.append(out.numel() * out.element_size())
            return out

    grad = torch.empty(shape[0], shape[2], dtype=getattr(torch, dtype), device="meta")
    mask = getattr(linear_relu, FORMS[form]) if FORMS[form] else lambda grad, y: torch.zeros_like(grad)
    with Made() as seen:
        mask(grad, grad)
    return seen.sizes


def allocations() -> list[dict[str, str]]:
    """What each form of masking the gradient allocates at the seeds' size: a line a form."""
    return [
        {"form": form, "new tensors": str(len(made(form, "float32")))}
        | {dtype: formats.scaled(float(sum(made(form, dtype))), "B") for dtype in ("float32", "bfloat16")}
        for form in FORMS
    ]
