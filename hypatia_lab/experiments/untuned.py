"""Shapes drawn at random, by a seed that is written here: the same in every run and on every machine."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from hypatia_lab.experiments.axes import Setting, experiment
from hypatia_lab.experiments.plan import Group
from hypatia_lab.kernels.linear_relu import linear_relu_cuda
from hypatia_lab.kernels.mlp import mlp_cuda
from hypatia_lab.variants import AGAIN
from hypatia_lab.workloads import Workload, operations

SEED = 20261203
"""Of the draw: whoever improves a kernel after a look at its shapes needs another one."""
COUNT = {"quick": 2, "seed": 10, "full": 60}
"""Shapes a family, of all its dtypes together; in the quick preset of each dtype. The full preset's first are the seed
preset's, and the quick one's are among them."""
ODD, STEP = 0.7, 8
"""Share of extents that are made odd, for few that people choose are; the others are multiples of so much, as theirs
are, so that rows of both kinds meet, those that can be fetched in whole packs and those that cannot."""
TWINS = 2
"""Shapes of each kind, a dozen of all, at which there is an A/A control."""
CALLED = {"quick": 0, "seed": 2, "full": 10}
"""Shapes of each kind, the first that were drawn, at which the dispatcher is also called as a caller waits: beside
PyTorch's forms, each with its launches."""
LARGEST = 2**24
"""Most numbers of a tensor of activations: in float64 it takes 128 MB."""
MOST_FLOP = {"quick": 2**25, "seed": 2**31, "full": 2**31}
"""Most operations of a call in the quick preset, which takes the largest of so many or fewer, and on a CPU: half a
millisecond and some fifty of two cores."""

FAMILIES: dict[str, tuple[tuple[int, int], ...]] = {
    "linear_relu": ((1, 8192), (32, 4096), (32, 4096)),
    "conv_block": ((1, 20), (3, 128), (16, 512), (16, 512)),
    "mlp3": ((64, 131_072), (16, 512)),
}
"""Operation → least and largest of each extent: rows × in × out, images × channels × height × width, rows × width."""

KINDS: dict[tuple[str, str, str], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("linear_relu", "bfloat16", "ieee"): (("epilogue",), ("triton", "cuda")),
    ("linear_relu", "float32", "ieee"): (("epilogue",), ("fp16x3", "fp16x3_cuda", "cuda")),
    ("linear_relu", "float32", "tf32"): (("epilogue",), ("triton", "cuda")),
    ("conv_block", "bfloat16", "ieee"): (("eager_channels_last", "group_norm"), ("triton", "whole")),
    ("conv_block", "float32", "ieee"): (("eager_channels_last", "group_norm"), ("triton_fp16x3", "whole_fp16x3")),
    ("mlp3", "bfloat16", "ieee"): (("epilogue",), ("fused", "fused_cuda", "layers_cuda")),
}
"""Operation, dtype and math → the library's forms beside eager, last one that takes tensors in the default layout, and
the lab's on a GPU."""
ON_CPU = {"linear_relu": ("threaded",), "conv_block": ("threaded",), "mlp3": ()}


def _extent(low: int, high: int, luck: random.Random) -> int:
    found = math.exp(luck.uniform(math.log(low), math.log(high)))
    if luck.random() < ODD:
        return min(2 * int(found / 2) + 1, high - 1 + high % 2)
    return max(STEP * round(found / STEP), low)


def drawn(operation: str, count: int) -> list[tuple[int, ...]]:
    """The first ``count`` shapes of ``operation``, log-uniform and all different, in the order in which they came."""
    luck = random.Random(f"{SEED} {operation}")
    found: dict[tuple[int, ...], None] = {}
    while len(found) < count:
        shape = tuple(_extent(low, high, luck) for low, high in FAMILIES[operation])
        numbers = math.prod(shape) if operation != "linear_relu" else math.prod(sorted(shape)[1:])
        if numbers <= LARGEST:
            found[shape] = None
    return list(found)


def _fits(kind: tuple[str, str, str], name: str, shape: tuple[int, ...]) -> bool:
    """Whether a form may compute ``shape``: where it says no by itself at nearly all, a record need not hold it."""
    if name.startswith("whole"):
        return shape[1] == 64
    if name == "cuda" and kind[1:] == ("float32", "ieee"):
        return shape[0] <= linear_relu_cuda.FEW
    return name != "fused_cuda" or shape[1] in mlp_cuda.WIDTHS


def _kinds(at: Setting) -> Iterator[tuple[tuple[str, str, str], list[tuple[int, ...]]]]:
    """Operation, dtype and math, and the shapes of each that were drawn."""
    gpu, preset = at.device == "cuda", at.preset
    # A CPU has no TF32, and the lab no form of its own in 16 bits there.
    kinds = [kind for kind in KINDS if gpu or kind[1:] == ("float32", "ieee") or kind[0] == "mlp3"]
    for operation, dtype, mode in kinds:
        flops: Callable[[tuple[int, ...]], int] = operations()[operation].flops
        sizes = drawn(operation, COUNT["seed" if preset == "quick" else preset])
        if preset != "quick":  # a family's shapes are shared out among its dtypes
            alike = [kind for kind in kinds if kind[0] == operation]
            sizes = sizes[alike.index((operation, dtype, mode)) :: len(alike)]
        if preset == "quick" or not gpu:
            sizes = [shape for shape in sizes if flops(shape) <= MOST_FLOP[preset]]
        if preset == "quick":
            sizes = sorted(sizes, key=flops)[-COUNT[preset] :]
        yield (operation, dtype, mode), sizes


def _unseen(at: Setting) -> Iterator[Group]:
    clock, budget_s = ("graph", 0.01) if at.device == "cuda" else ("hot", 0.02)
    for kind, sizes in _kinds(at):
        own = KINDS[kind][1] if at.device == "cuda" else ON_CPU[kind[0]]
        for number, shape in enumerate(sizes):
            twin = ("eager" + AGAIN,) if number < TWINS and at.preset != "quick" else ()
            names = ("eager", *KINDS[kind][0], *(name for name in own if _fits(kind, name, shape)), "dispatched", *twin)
            work = Workload(kind[0], shape, *kind[1:])
            yield Group(work, names, (clock,), budget_s)
            if at.device == "cuda" and number < CALLED[at.preset]:
                names = ("eager", KINDS[kind][0][-1], "dispatched_wall", *twin)
                yield Group(work, names, ("wall",), 5 * budget_s)  # a host's times scatter more


EXPERIMENTS = (experiment("unseen", "21_untuned", "drawn shapes of three families, and a dispatcher", _unseen),)
