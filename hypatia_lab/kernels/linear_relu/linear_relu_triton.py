"""A linear layer and what stands behind it in one Triton kernel: y = f(x·Wᵀ + b), f a ReLU, a GELU, one after the other
or neither. Products of tiles are made on matrix units, and f of their sums before anything is stored.

x is (batch, in), W (out, in), b (out) or None, y (batch, out).
"""

# Triton's language is not Python to a type checker, and triton need not be installed.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from hypatia_lab.kernels.gelu_triton import gelu
from hypatia_lab.kernels.linear_relu.epilogue import GELUS
from hypatia_lab.kernels.loader import TENSOR_MAP_TYPES
from hypatia_lab.kernels.operands import ensure_layer, ensure_no_gradient

if TYPE_CHECKING:
    from torch import Tensor

# ---------------------------------------------------------------- kernels


@triton.jit
def wait_turn(EARLY: tl.constexpr):
    """Where a kernel begins that may be launched before the kernels before are done: it waits until they are.

    It touches no memory sooner, and only then may the next one be set up: else a long chain of them comes to sit on the
    multiprocessors side by side.
    """
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def corner(number, batch, outer, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    """First row and column of tile ``number``: ``GROUP`` tiles down, then one to the right.

    Programs that run at the same time then share rows of x and of W in the L2 cache.
    """
    tiles_down, tiles_across = tl.cdiv(batch, ROWS), tl.cdiv(outer, COLUMNS)
    first = number // (GROUP * tiles_across) * GROUP
    down = tl.minimum(tiles_down - first, GROUP)
    within = number % (GROUP * tiles_across)
    return (first + within % down) * ROWS, within // down * COLUMNS


@triton.jit
def operand(source, row, k, rows, inner, stride, ROWS: tl.constexpr, INNER: tl.constexpr, TMA: tl.constexpr):
    """Tile (``ROWS``, ``INNER``) of ``source`` (rows, inner) from (``row``, ``k``) on; zeros beyond its edges."""
    if TMA:
        tile = source.load([row, k])
    else:
        r, c = row + tl.arange(0, ROWS)[:, None], k + tl.arange(0, INNER)[None, :]
        tile = tl.load(source + r.to(tl.int64) * stride + c, mask=(r < rows) & (c < inner), other=0.0)
    return tile


@triton.jit
def nearest_tf32(values):
    """``values`` (float32) to the nearest of TF32's 11 bits, ties away from zero; infinities and NaN as they are."""
    bits = values.to(tl.int32, bitcast=True)
    nearest = ((bits + 0x1000) & ~0x1FFF).to(tl.float32, bitcast=True)
    return tl.where((bits & 0x7FFFFFFF) < 0x7F800000, nearest, values)


@triton.jit
def store_tile(values, out, row, column, height, width, stride, TMA: tl.constexpr):
    """Round a tile and store it from (``row``, ``column``) of ``out`` (height, width) on, save what is beyond."""
    if TMA:
        out.store([row, column], values.to(out.dtype))
    else:
        r, c = row + tl.arange(0, values.shape[0])[:, None], column + tl.arange(0, values.shape[1])[None, :]
        inside = (r < height) & (c < width)
        tl.store(out + r.to(tl.int64) * stride + c, values.to(out.dtype.element_ty), mask=inside)


# [activated]
@triton.jit
def activated(values, RELU: tl.constexpr, GELU: tl.constexpr, SHORT: tl.constexpr):
    """The ReLU of ``values`` (NaN stays NaN, as in torch), then the GELU by ``GELU``, of both what is asked for.

    ``SHORT``: see :func:`~hypatia_lab.kernels.gelu_triton.normal_integral`.
    """
    if RELU:
        values = tl.maximum(values, 0.0, propagate_nan=tl.PropagateNan.ALL)
    if GELU is not None:
        values = gelu(values, GELU == "tanh", SHORT)  # (1)
    return values
    # [/activated]


# [linear_relu]
@triton.jit
def put(
    values,
    bias,
    out,
    row,
    column,
    batch,
    outer,
    stride,
    RELU: tl.constexpr,
    GELU: tl.constexpr,
    SHORT: tl.constexpr,
    TMA: tl.constexpr,
):
    """Add the bias, apply what stands behind it and store a tile of any width."""
    if bias is not None:
        columns = column + tl.arange(0, values.shape[1])
        values += tl.load(bias + columns, mask=columns < outer, other=0.0).to(tl.float32)[None, :]
    store_tile(activated(values, RELU, GELU, SHORT), out, row, column, batch, outer, stride, TMA)  # (1)
    # [/linear_relu]


# [linear_relu]
@triton.jit
def _tile(
    number,
    x,
    weight,
    bias,
    out,
    batch,
    inner,
    outer,
    x_stride,
    weight_stride,
    out_stride,
    RELU: tl.constexpr,
    GELU: tl.constexpr,
    SHORT: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    GROUP: tl.constexpr,
    HALVES: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
    ROUND: tl.constexpr,
):
    """Compute and store tile ``number``."""
    row, column = corner(number, batch, outer, ROWS, COLUMNS, GROUP)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)  # (2)
    # At least one step, and the compiler knows: a way around the loop would make it wait for every single product.
    for step in range(tl.maximum(tl.cdiv(inner, INNER), 1)):
        a = operand(x, row, step * INNER, batch, inner, x_stride, ROWS, INNER, LOAD)
        b = operand(weight, column, step * INNER, outer, inner, weight_stride, COLUMNS, INNER, LOAD)
        if ROUND:
            # Matrix units drop an operand's last bits. The copy engine (LOAD) rounds without being told here.
            a, b = nearest_tf32(a), nearest_tf32(b)
        total = tl.dot(a, b.T, total, input_precision=PRECISION)  # (3)
    if HALVES:
        # Half a tile at a time needs half the shared memory on its way out.
        left, right = tl.split(tl.permute(tl.reshape(total, (ROWS, 2, COLUMNS // 2)), (0, 2, 1)))
        put(left, bias, out, row, column, batch, outer, out_stride, RELU, GELU, SHORT, STORE)
        put(right, bias, out, row, column + COLUMNS // 2, batch, outer, out_stride, RELU, GELU, SHORT, STORE)
    else:
        put(total, bias, out, row, column, batch, outer, out_stride, RELU, GELU, SHORT, STORE)  # (4)
    # [/linear_relu]


# [linear_relu]
@triton.jit
def _linear_activation(
    x,
    weight,
    bias,
    out,
    batch,
    inner,
    outer,
    x_stride,
    weight_stride,
    out_stride,
    RELU: tl.constexpr,
    GELU: tl.constexpr,
    SHORT: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    GROUP: tl.constexpr,
    HALVES: tl.constexpr,
    PERSISTENT: tl.constexpr,
    LOAD: tl.constexpr,
    STORE: tl.constexpr,
    ROUND: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    wait_turn(DEPENDENT)
    first = tl.program_id(0)
    if PERSISTENT:
        tiles = tl.cdiv(batch, ROWS) * tl.cdiv(outer, COLUMNS)
        # Flattened into one loop, the loads of a tile start before the tile before it is stored.
        for number in tl.range(first, tiles, tl.num_programs(0), flatten=True):  # (5)
            _tile(
                number, x, weight, bias, out, batch, inner, outer, x_stride, weight_stride, out_stride,
                RELU, GELU, SHORT, PRECISION, ROWS, COLUMNS, INNER, GROUP, HALVES, LOAD, STORE, ROUND,
            )  # fmt: skip
    else:
        _tile(
            first, x, weight, bias, out, batch, inner, outer, x_stride, weight_stride, out_stride,
            RELU, GELU, SHORT, PRECISION, ROWS, COLUMNS, INNER, GROUP, HALVES, LOAD, STORE, ROUND,
        )  # fmt: skip
    # [/linear_relu]


# ---------------------------------------------------------------- which tiles


@dataclass(frozen=True)
class Config:
    """How a product is cut up: (rows, columns) of y a program computes at a time, ``inner`` elements of in a step.

    ``warps`` of a program; ``stages``: steps whose operands are under way at once; ``group``: tiles down before the
    next one to the right; ``resident``: programs a multiprocessor that walk through the tiles (0: a program a tile);
    ``halves``: store a tile in two halves; ``load``, ``store``: by tensor descriptors (TMA) where alignment allows;
    ``dependent``: programmatic dependent launch, so that setting up overlaps the end of the kernel before;
    ``apart``: a sum of its own for one of the small products of split operands.
    """

    rows: int
    columns: int
    inner: int
    warps: int = 4
    stages: int = 3
    group: int = 8
    resident: int = 0
    halves: bool = False
    load: bool = True
    store: bool = True
    dependent: bool = False
    apart: bool = False

    def tile(self, prefix: str = "") -> dict[str, int]:
        """What a kernel is told of a tile, in its own words with ``prefix`` before them."""
        told = {"ROWS": self.rows, "COLUMNS": self.columns, "INNER": self.inner, "GROUP": self.group}
        return {f"{prefix}{name}": number for name, number in told.items()}


PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16x3")
"""How :func:`linear_activation` multiplies float32: as it is, as TF32, or as three products of two terms each."""


def either(*configs: Config) -> list[Config]:
    """Each by programmatic dependent launch, then each by itself."""
    return [*(replace(config, dependent=True) for config in configs), *configs]


def half_as_deep(configs: list[Config]) -> list[Config]:
    """The same bytes a step with operands twice as wide."""
    return [replace(config, inner=config.inner // 2) for config in configs if config.inner >= 32]


_PLAIN = {
    "small": either(
        Config(64, 32, 64, 4, 3, load=False, store=False),
        Config(64, 64, 64, 4, 4, load=False, store=False),
        Config(32, 32, 64, 4, 4, load=False, store=False),
        Config(64, 32, 64, 4, 4),
        Config(64, 32, 128, 4, 2),
        Config(64, 64, 128, 4, 2),
        Config(64, 16, 128, 4, 2),
    ),
    "medium": either(
        Config(128, 128, 64, 4, 4, group=16),
        Config(128, 128, 64, 4, 4),
        Config(128, 128, 64, 8, 4),
        Config(64, 128, 64, 4, 4),
        Config(128, 64, 64, 4, 4),
        Config(64, 256, 64, 4, 4),
        Config(64, 128, 64, 4, 4, load=False, store=False),
    ),
    "large": either(
        Config(128, 256, 64, 8, 4, resident=1, halves=True, group=16),
        Config(128, 256, 64, 8, 4, resident=1, halves=True),
        Config(128, 256, 64, 8, 3, resident=1),
        Config(128, 256, 64, 8, 4, group=16),
        Config(256, 128, 64, 8, 4, resident=1, halves=True, group=16),
        Config(128, 128, 64, 4, 2, resident=2),
    ),
}
_THREEFOLD = [Config(128, 128, 32, 8, 3), Config(64, 128, 32, 4, 3), Config(128, 128, 32, 8, 4)]
_SERIAL = [Config(64, 64, 16, 4, 3), Config(128, 64, 16, 8, 3)]

_CONFIGS: dict[str, dict[str, list[Config]]] = {
    "16 bits": _PLAIN,
    "tf32": {
        # What the copy engine rounds costs nothing; so its tiles come first.
        "small": [
            *(config for config in half_as_deep(_PLAIN["small"]) if config.load),
            *(config for config in half_as_deep(_PLAIN["small"]) if not config.load),
        ],
        "medium": [
            *half_as_deep(_PLAIN["medium"]),
            *either(
                Config(128, 128, 32, 4, 5, group=16),
                Config(128, 128, 32, 8, 5, group=16),
                Config(128, 128, 32, 8, 6, group=16),
                Config(128, 128, 64, 8, 3, group=16),
                Config(64, 256, 32, 8, 4, group=16),
            ),
        ],
        # A float32 tile is too large to be stored whole beside the operands of the next.
        "large": [
            Config(128, 256, 32, 8, 3, resident=1, halves=True),
            Config(128, 256, 32, 8, 4),
            Config(128, 256, 32, 8, 4, group=16),
            Config(128, 128, 32, 8, 4, resident=1),
        ],
    },
    "tf32x3": {"small": [Config(64, 64, 32, 4, 4)], "medium": _THREEFOLD, "large": _THREEFOLD},
    "bf16x3": {"small": [Config(64, 64, 32, 4, 4)], "medium": _THREEFOLD, "large": _THREEFOLD},
    "ieee": {"small": [Config(32, 32, 32, 4, 3)], "medium": _SERIAL, "large": _SERIAL},
}
"""Way of multiplying → size → candidates, the one in use first."""


def size_of(shape: tuple[int, int, int]) -> str:
    """ "small", "medium" or "large": the tiles of 128×128 of (batch, in, out) beside an H200's 132 multiprocessors."""
    tiles = triton.cdiv(shape[0], 128) * triton.cdiv(shape[2], 128)
    return "large" if tiles > 264 else "medium" if tiles >= 64 else "small"


def candidates(shape: tuple[int, int, int], dtype: torch.dtype, precision: str = "ieee") -> list[Config]:
    """Configurations worth trying for (batch, in, out), the one in use first.

    ``precision``, one of :data:`PRECISIONS`, counts for float32 alone.
    """
    return _CONFIGS["16 bits" if dtype.itemsize == 2 else precision][size_of(shape)]


def config(shape: tuple[int, int, int], dtype: torch.dtype, precision: str = "ieee") -> Config:
    """The configuration in use for (batch, in, out); arguments as of :func:`candidates`."""
    return candidates(shape, dtype, precision)[0]


# ---------------------------------------------------------------- launches


def rows_of(tensor: Tensor) -> Tensor:
    """``tensor`` as a matrix whose rows are contiguous: itself where they are, else a copy."""
    matrix = tensor.reshape(tensor.shape[:-1].numel(), tensor.shape[-1])
    return matrix if matrix.stride(1) == 1 and matrix.stride(0) >= matrix.shape[1] else matrix.contiguous()


def hopper(tensor: Tensor) -> bool:
    """Whether ``tensor`` is on a GPU with tensor descriptors and programmatic dependent launch: Hopper or later."""
    return tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= (9, 0)


def described(matrix: Tensor) -> bool:
    """Whether a tensor descriptor can hold ``matrix``: Hopper or later, rows at multiples of 16 bytes."""
    if matrix.is_cuda and not hopper(matrix):
        return False
    aligned = matrix.data_ptr() % 16 == 0 and matrix.stride(0) * matrix.element_size() % 16 == 0
    return aligned and matrix.numel() > 0 and matrix.stride(1) == 1 and matrix.stride(0) >= matrix.shape[1]


@cache
def _let_descriptors_round() -> None:
    """Give Triton before 3.7 the option ``round_f32_to_tf32`` of tensor descriptors, which 3.7 has."""
    if "round_f32_to_tf32" in TensorDescriptor.__dataclass_fields__:
        return
    from triton.backends.nvidia import driver

    made = driver.make_tensordesc_arg

    def make_tensordesc_arg(arg: Any, metadata: Any) -> Any:
        if metadata is not None and getattr(arg, "round_f32_to_tf32", False):
            metadata = metadata | {"elem_type": TENSOR_MAP_TYPES["tf32"]}
        return made(arg, metadata)

    driver.make_tensordesc_arg = make_tensordesc_arg


def operand_tiles(matrix: Tensor, block: list[int], rounded: bool) -> TensorDescriptor:
    """Tiles ``block`` of an operand, ``rounded`` to TF32 as they are loaded."""
    found = TensorDescriptor.from_tensor(matrix, block)
    if rounded:
        _let_descriptors_round()
        found.round_f32_to_tf32 = True
    return found


def processors(tensor: Tensor) -> int:
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count if tensor.is_cuda else 2


def early(dependent: bool, tensor: Tensor) -> dict[str, Any]:
    """What a kernel and Triton are told of programmatic dependent launch, where it is asked for and possible."""
    return {"DEPENDENT": True, "launch_pdl": True} if dependent and hopper(tensor) else {"DEPENDENT": False}


def options(chosen: Config, tensor: Tensor) -> dict[str, Any]:
    """How Triton compiles and launches ``chosen`` for ``tensor``'s device."""
    return {"num_warps": chosen.warps, "num_stages": chosen.stages, **early(chosen.dependent, tensor)}


def tiles_of(matrix: Tensor, block: list[int], by_descriptor: bool = True) -> Tensor | TensorDescriptor:
    """Tiles ``block`` of a matrix, or the matrix itself where the kernel is not to use a tensor descriptor."""
    return TensorDescriptor.from_tensor(matrix, block) if by_descriptor else matrix


def linear_activation(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    relu: bool = True,
    approximate: str | None = None,
    precision: str = "ieee",
    tiles: Config | None = None,
) -> Tensor:
    """f(x·Wᵀ + b) in one kernel: x (..., in), W (out, in), b (out) or None → (..., out) of the same dtype.

    f is a ReLU if ``relu``, then a GELU unless ``approximate``, one of
    :data:`~hypatia_lab.kernels.linear_relu.epilogue.GELUS`, is None. bfloat16, float16, or float32 multiplied as
    ``precision`` says, on a CUDA device (in Triton's interpreter on any); sums and f are float32, rounded once at the
    end. Of 16 bits the error function is a short form, off by far less than they are rounded by. "tf32" rounds operands
    to the nearest number of 11 bits, by tensor descriptors in the copy engine; "tf32x3" and "bf16x3" are Triton's own
    splits, whose large terms overflow near the largest float32. ``tiles`` replaces :func:`config`. NaN and infinities
    go through as in torch's float64.

    Raises ValueError naming the tensor for a wrong rank, mismatched sizes, mixed or other dtypes, mixed devices, or a
    gradient asked for; and for an unknown ``approximate`` or ``precision``.
    """
    ensure_layer(x, weight, bias, (torch.bfloat16, torch.float16, torch.float32))
    ensure_no_gradient({"x": x, "weight": weight, "bias": bias})
    if approximate not in (None, *GELUS):
        raise ValueError(f"approximate {approximate!r} is none of {', '.join(GELUS)}")
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} is none of {', '.join(PRECISIONS)}")
    out = torch.empty(*x.shape[:-1], weight.shape[0], dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    a, b, y = rows_of(x), rows_of(weight), out.view(-1, weight.shape[0])
    sizes = (a.shape[0], a.shape[1], b.shape[0])
    chosen = tiles or config(sizes, x.dtype, precision)
    load, store = chosen.load and described(a) and described(b), chosen.store and described(y)
    count = triton.cdiv(sizes[0], chosen.rows) * triton.cdiv(sizes[2], chosen.columns)
    programs = min(count, chosen.resident * processors(x)) if chosen.resident else count
    columns = chosen.columns // 2 if chosen.halves else chosen.columns
    rounded = precision == "tf32" and x.dtype == torch.float32
    with torch.cuda.device_of(x):
        _linear_activation[(programs,)](
            operand_tiles(a, [chosen.rows, chosen.inner], rounded) if load else a,
            operand_tiles(b, [chosen.columns, chosen.inner], rounded) if load else b,
            None if bias is None else bias.contiguous(),
            tiles_of(y, [chosen.rows, columns], store),
            *sizes,
            *(one.stride(0) for one in (a, b, y)),
            RELU=relu,
            GELU=approximate,
            SHORT=x.dtype.itemsize == 2,
            PRECISION=precision,
            **chosen.tile(),
            HALVES=chosen.halves,
            PERSISTENT=programs < count,
            LOAD=load,
            STORE=store,
            ROUND=rounded and not load,
            **options(chosen, x),
        )
    return out
