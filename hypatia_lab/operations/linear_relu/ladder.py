"""The ladder: hand-written kernels of Linear+ReLU, one idea a step, from coalesced reads to tensor cores fed by TMA.

On CUDA (``kernels/ladder/step_*.cu``) the steps follow ``naive``, and the library (``eager``) comes after the last. On
a CPU there are two (``kernels/linear_relu/linear_relu.cpp``): blocks that stay in cache and registers, and the same on
all cores. x is ``(..., in)``, W ``(out, in)``, b ``(out)`` or None, y ``(..., out)``; all of one floating dtype on one
device. Sources: S001 (eight reasons why cuBLAS is fast); the order of steps is that of SGEMM_CUDA and fast.cu, the code
is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from hypatia_lab.kernels import loader
from hypatia_lab.kernels.hopper import HALVES, ROW_BYTES, packed
from hypatia_lab.kernels.operands import ensure_layer, ensure_no_gradient
from hypatia_lab.messages import unknown
from hypatia_lab.operations import linear_relu as plain
from hypatia_lab.operations.operators import operator
from hypatia_lab.operations.torch_forms import bind
from hypatia_lab.variants import variant
from hypatia_lab.workloads import DTYPES

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload

Sizes = tuple[int, int, int]
"""batch, in, out."""
Launch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor, Sizes], None]


ORDER = (
    "coalesced",
    "shared",
    "registers_1d",
    "registers_2d",
    "vectorized",
    "conflict_free",
    "async",
    "mma",
    "wgmma",
    "multicast",
)
"""The steps on a GPU, first to last."""


def source_of(step: str) -> str:
    """The file of ``kernels/`` that has ``step`` of :data:`ORDER`, such as ``ladder/step_2_shared``."""
    return f"ladder/step_{ORDER.index(step) + 1}_{step}"


def _tiles(sizes: Sizes, rows: int, columns: int) -> int:
    return -(-sizes[0] // rows) * -(-sizes[2] // columns)


# ---------------------------------------------------------------- CUDA cores


@dataclass(frozen=True)
class Cores:
    """A step's kernel with one block a tile of ``rows`` × ``columns`` outputs."""

    kernel: str
    block: tuple[int, ...]
    rows: int
    columns: int

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, sizes: Sizes
    ) -> None:
        kernel = f"linear_relu_{self.kernel}"
        launch = loader.cuda_launcher(source_of(self.kernel), kernel, *loader.SCALARS[loader.dtype_name(x.dtype)])
        launch((_tiles(sizes, self.rows, self.columns),), self.block, x, weight, bias, out, *sizes)


# ---------------------------------------------------------------- tensor cores


def _mma(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, sizes: Sizes) -> None:
    """mma.sync on tiles of 128 × 128; rows that do not start at multiples of 16 bytes are fetched number by number."""
    tile, stages = 128, 3
    template, shared = (loader.scalar(x.dtype), sizes[1] % 8 == 0), stages * 2 * tile * ROW_BYTES
    launch = loader.cuda_launcher(source_of("mma"), "linear_relu_mma", *template, shared=shared)
    launch((_tiles(sizes, tile, tile),), (128,), x, weight, _present(bias, out), out, *sizes)


@dataclass(frozen=True)
class Tile:
    """What one block (or cluster of blocks) of the TMA kernel works on.

    ``consumers`` warpgroups of 64 rows each, ``width`` columns (64, 128 or 256), ``stages`` of shared memory; ``group``
    rows of tiles are worked on together, so that they share what the second-level cache holds; ``rate`` is the share of
    the tensor cores' rate that such tiles are expected to reach, for the choice between them.
    """

    consumers: int
    width: int
    stages: int
    group: int
    rate: float

    @property
    def height(self) -> int:
        """Rows of outputs."""
        return 64 * self.consumers

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory a block: alignment, the stages, two barriers of 8 bytes a stage."""
        return 1024 + self.stages * ((self.height + self.width) * ROW_BYTES + 16)


TILES = (Tile(2, 256, 4, 16, 1.0), Tile(2, 128, 6, 16, 0.85), Tile(1, 64, 8, 16, 0.5))
"""Largest first: the larger, the fewer bytes a product; the smaller, the more multiprocessors have work."""


def choose_tile(sizes: Sizes, multiprocessors: int, cluster: int = 1) -> Tile:
    """The tile whose last multiprocessor is expected to finish first; the larger one of equals."""

    def cost(tile: Tile) -> float:
        clusters = _tiles(sizes, tile.height * cluster, tile.width)
        return -(-clusters // (multiprocessors // cluster)) * tile.height * tile.width / tile.rate

    return min(TILES, key=cost)


def _wgmma(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    sizes: Sizes,
    *,
    cluster: int,
) -> None:
    """TMA, wgmma and warps of two kinds; what TMA cannot fetch (``in`` no multiple of 8) goes to the step before."""
    batch, in_features, out_features = sizes
    if in_features % 8 or not in_features:
        return _mma(x, weight, bias, out, sizes)
    multiprocessors = loader.multiprocessors(x.device.index)
    tile = choose_tile(sizes, multiprocessors, cluster)
    template = (loader.scalar(x.dtype), tile.consumers, tile.width, tile.stages, cluster)
    source = source_of("wgmma" if cluster == 1 else "multicast")
    launch = loader.cuda_launcher(source, "linear_relu_wgmma", *template, shared=tile.shared)
    depth = ROW_BYTES // x.element_size()
    maps = (loader.tensor_map(x, tile.height, depth), loader.tensor_map(weight, tile.width // cluster, depth))
    clusters = min(multiprocessors // cluster, _tiles(sizes, tile.height * cluster, tile.width))
    block = (128 * (tile.consumers + 1),)
    return launch((clusters * cluster,), block, *maps, _present(bias, out), out, *sizes, -(-tile.group // cluster))


def _present(bias: torch.Tensor | None, out: torch.Tensor) -> torch.Tensor:
    """A bias for kernels that cannot do without one: zeros where there is none."""
    return out.new_zeros(out.shape[-1]) if bias is None else bias


# ---------------------------------------------------------------- CPU


def _blocked(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    sizes: Sizes,
    *,
    threaded: bool,
) -> None:
    function = f"linear_relu_blocked_{loader.dtype_name(x.dtype)}"
    loader.call_cpp(plain.LOOPS, function, x, weight, bias, out, *sizes, int(threaded))


# ---------------------------------------------------------------- the operation


@dataclass(frozen=True)
class Step:
    """One step: on which kind of device it runs, for which dtypes, how it is launched, and its label."""

    device: str
    launch: Launch
    label: str
    dtypes: tuple[str, ...] = tuple(DTYPES)
    capability: tuple[int, int] = (7, 0)
    exactly: bool = False  # no newer GPU has Hopper's instructions

    @property
    def tag(self) -> str:
        """Which of three ladders it stands on: a GPU's vector units, its tensor cores, or a CPU."""
        if self.device == "cpu":
            return "ladder_cpu"
        return "ladder_vector" if "float32" in self.dtypes else "ladder_tensor"

    def missing(self, dtype: str, device: str) -> str:
        """Why it cannot run there in ``dtype``; empty when it can."""
        if device != self.device:
            return loader.NO_GPU if self.device == "cuda" else "needs a CPU"
        gpu = device == "cuda"
        if reason := loader.capability_missing(self.capability, exactly=self.exactly) if gpu else loader.cpp_missing():
            return reason
        return "" if dtype in self.dtypes else f"tensor cores multiply {' and '.join(self.dtypes)} here, not {dtype}"


STEPS = {
    "step_coalesced": Step("cuda", Cores("coalesced", (32, 16), 4, 4), "neighbours read together"),
    "step_shared": Step("cuda", Cores("shared", (1024,), 32, 32), "tiles in shared memory"),
    "step_registers_1d": Step("cuda", Cores("registers_1d", (512,), 64, 64), "column in registers"),
    "step_registers_2d": Step("cuda", Cores("registers_2d", (256,), 128, 128), "tiles in registers"),
    "step_vectorized": Step("cuda", Cores("vectorized", (256,), 128, 128), "16 bytes a load"),
    "step_conflict_free": Step("cuda", Cores("conflict_free", (256,), 128, 128), "no bank conflicts"),
    "step_async": Step("cuda", Cores("async", (256,), 128, 128), "copies ahead of the arithmetic", capability=(8, 0)),
    "step_mma": Step("cuda", _mma, "tensor cores", HALVES, capability=(8, 0)),
    "step_wgmma": Step("cuda", partial(_wgmma, cluster=1), "Hopper's tensor cores", HALVES, (9, 0), exactly=True),
    "step_multicast": Step(
        "cuda", partial(_wgmma, cluster=2), "tiles shared by two blocks", HALVES, (9, 0), exactly=True
    ),
    "blocked": Step("cpu", partial(_blocked, threaded=False), "blocks in cache"),
    "threaded": Step("cpu", partial(_blocked, threaded=True), "blocks on all cores"),
}
"""Every step by the name of its variant, in the order of the ladder."""


@operator("linear_relu_step", planned=True)
def linear_relu_step(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, step: str) -> torch.Tensor:
    """Linear+ReLU by one step of the ladder, forward only; inputs that are strided or unaligned are copied first.

    Raises ``ValueError`` on a misfit, naming the tensor, and where the step cannot run.
    """
    if step not in STEPS:
        raise ValueError(unknown("step", step, STEPS))
    ensure_layer(x, weight, bias)
    if missing := STEPS[step].missing(loader.dtype_name(x.dtype), x.device.type):
        raise ValueError(f"{step} on x: {missing}")
    out = torch.empty(*x.shape[:-1], weight.shape[0], dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    rows, weight = packed(x.reshape(math.prod(x.shape[:-1]), x.shape[-1])), packed(weight)
    bias = None if bias is None else packed(bias)
    STEPS[step].launch(rows, weight, bias, out, (rows.shape[0], rows.shape[1], weight.shape[0]))
    return out


linear_relu_step.register_fake(lambda x, weight, bias, step: plain.output(x, weight, bias))


def ladder(step: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """y = max(0, x·Wᵀ + b), shape ``(..., out)``, by ``step`` of :data:`STEPS`.

    Raises ``ValueError`` as :func:`linear_relu_step` does, and for a tensor that requires a gradient.
    """
    ensure_no_gradient({"x": x, "weight": weight, "bias": bias}, step)
    return torch.ops.hypatia.linear_relu_step(x, weight, bias, step)


# ---------------------------------------------------------------- the variants


def _needs(step: str, workload: Workload, device: str) -> str:
    return STEPS[step].missing(workload.dtype, device)


def _climbed(step: str, workload: Workload, inputs: Inputs) -> Run:
    return bind(partial(ladder, step), inputs, plain.OPERANDS)


for _step in STEPS:
    _own = partial(variant, "linear_relu", origin="own", maths=("ieee",), tags=(STEPS[_step].tag,))
    _own(_step, needs=partial(_needs, _step), label=STEPS[_step].label)(partial(_climbed, _step))
