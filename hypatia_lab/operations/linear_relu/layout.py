"""Where the numbers lie: Linear+ReLU on the same numbers in several memory layouts, and what copies them.

Every layout of x ``(batch, in)`` and W ``(out, in)`` is made from one draw: row-major, column-major, rows of a wider
matrix, an address that is no multiple of 16 bytes, a batch of sequences in and out of order, W stored as ``(in, out)``.
The variants compute y = max(0, x·Wᵀ + b) the plain eager way, so that only the layout differs.
Sources: S001 and S002 ("reshape copies, view is free", ``.contiguous()``), S004 (column-major and packed weights).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as functional

from hypatia_lab.operations.linear_relu import LINEAR_RELU
from hypatia_lab.variants import variant, variants
from hypatia_lab.workloads import Operation, Workload, register, unaligned

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs

NAME = "linear_relu_layout"
PADDING = 64
"""Columns of the wider matrix beyond those of x: rows keep the alignment that they have without it."""
COPYING = ("clone", "copy_", "_to_copy")
"""Operators of ATen that compute nothing and write a tensor's numbers to another place."""


def sequences(batch: int) -> tuple[int, int]:
    """``batch`` rows as (sequences, rows of each), as square as it divides; (1, batch) for a prime number."""
    count = next(n for n in range(math.isqrt(batch), 0, -1) if batch % n == 0)
    return count, batch // count


def _inputs(workload: Workload, device: str, generator: torch.Generator) -> Inputs:
    plain = LINEAR_RELU.make_inputs(workload, device, generator)
    x, weight = plain["x"], plain["weight"]
    batch, in_features, _ = workload.shape
    ordered = x.view(*sequences(batch), in_features)
    return plain | {
        "x_column_major": x.t().contiguous().t(),
        "x_padded": x.new_zeros(batch, in_features + PADDING)[:, :in_features].copy_(x),
        "x_unaligned": unaligned(x),
        "x_batch": ordered,
        "x_strided_batch": ordered.transpose(0, 1).contiguous().transpose(0, 1),
        "weight_packed": weight.t().contiguous(),
        "weight_unaligned": unaligned(weight),
    }


def _plain(inputs: Inputs) -> Inputs:
    return {name: inputs[name] for name in ("x", "weight", "bias")}


register(
    Operation(
        name=NAME,
        dims=("batch", "in", "out"),
        summary="y = max(0, x·Wᵀ + b) with x and W in several memory layouts",
        make_inputs=_inputs,
        reference=lambda inputs: LINEAR_RELU.reference(_plain(inputs)),
        flops=LINEAR_RELU.flops,
        traffic=LINEAR_RELU.traffic,
        faults=lambda inputs: LINEAR_RELU.faults(_plain(inputs)),
        depth=LINEAR_RELU.depth,
        scale=LINEAR_RELU.scale,
    )
)


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(functional.linear(x, weight, bias))


def _bind(inputs: Inputs, x: str = "x", weight: str = "weight") -> Run:
    rows, columns, bias = inputs[x], inputs[weight], inputs["bias"]
    return lambda: _product(rows, columns, bias)


@variant(NAME, "row_major", origin="peer", baseline=True, label="row by row")
def row_major(workload: Workload, inputs: Inputs) -> Run:
    """x (batch, in) and W (out, in) row by row, as torch.nn.Linear keeps them."""
    return _bind(inputs)


@variant(NAME, "x_column_major", origin="rebuilt", label="x column by column", tags=("layout",))
def x_column_major(workload: Workload, inputs: Inputs) -> Run:
    """x stored column by column (S004)."""
    return _bind(inputs, x="x_column_major")


# [layouts]
@variant(NAME, "weight_packed", origin="rebuilt", label="weight packed before", tags=("layout",))
def weight_packed(workload: Workload, inputs: Inputs) -> Run:
    """W stored as (in, out), packed before the first call (S004)."""
    packed, x, bias = inputs["weight_packed"], inputs["x"], inputs["bias"]
    return lambda: _product(x, packed.t(), bias)  # (1)


@variant(NAME, "pack_each_call", origin="own", label="weight packed each call", tags=("layout",))
def pack_each_call(workload: Workload, inputs: Inputs) -> Run:
    """W packed as (in, out) in every call, as it must be while it is being trained."""
    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    return lambda: _product(x, weight.t().contiguous().t(), bias)  # (2)


# [/layouts]


@variant(NAME, "x_padded", origin="own", label="x padded", tags=("layout",))
def x_padded(workload: Workload, inputs: Inputs) -> Run:
    """x as the first columns of a wider matrix: rows are apart, nothing copies them."""
    return _bind(inputs, x="x_padded")


@variant(NAME, "x_unaligned", origin="own", label="x unaligned", tags=("layout",))
def x_unaligned(workload: Workload, inputs: Inputs) -> Run:
    """x begins one element past a 16-byte boundary."""
    return _bind(inputs, x="x_unaligned")


@variant(NAME, "weight_unaligned", origin="own", label="weight unaligned", tags=("layout",))
def weight_unaligned(workload: Workload, inputs: Inputs) -> Run:
    """W begins one element past a 16-byte boundary."""
    return _bind(inputs, weight="weight_unaligned")


@variant(NAME, "x_batch_view", origin="rebuilt", label="batch of sequences by view", tags=("layout",))
def x_batch_view(workload: Workload, inputs: Inputs) -> Run:
    """x as a contiguous batch of sequences, flattened by view (S001 v2)."""
    x, weight, bias = inputs["x_batch"], inputs["weight"], inputs["bias"]
    return lambda: _product(x.view(-1, x.shape[-1]), weight, bias)


@variant(NAME, "x_strided_batch", origin="rebuilt", label="strided batch, copied", tags=("layout",))
def x_strided_batch(workload: Workload, inputs: Inputs) -> Run:
    """x as a transposed batch of sequences, flattened by reshape, which has to copy (S001 v1); view raises."""
    x, weight, bias = inputs["x_strided_batch"], inputs["weight"], inputs["bias"]
    return lambda: _product(x.reshape(-1, x.shape[-1]), weight, bias)


@variant(NAME, "copy_first", origin="rebuilt", label="x copied first", tags=("layout",))
def copy_first(workload: Workload, inputs: Inputs) -> Run:
    """The column-major x made contiguous in every call, then the product (S002)."""
    x, weight, bias = inputs["x_column_major"], inputs["weight"], inputs["bias"]
    return lambda: _product(x.contiguous(), weight, bias)


# ---------------------------------------------------------------- what copies


def copies(run: Callable[[], Any]) -> list[tuple[str, int]]:
    """The copies that one call of ``run`` asks torch's dispatcher for: (operator, bytes written), in their order.

    A copy inside another operator (a library's own scratch memory) does not go through the dispatcher; on a GPU the
    count of kernels shows those.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    found: list[tuple[str, int]] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            name = func.overloadpacket.__name__
            if name in COPYING:
                found.append((name, out.numel() * out.element_size()))
            return out

    with Watch():
        run()
    return found


def shares_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are views of one piece of memory."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


@dataclass(frozen=True)
class Handling:
    """What ``call`` does to a tensor of ``layout`` with ``strides``: bytes copied, or None where it raises."""

    layout: str
    strides: tuple[int, ...]
    call: str
    copied: int | None


LAYOUTS = {
    "contiguous": "x_batch",
    "transposed batch": "x_strided_batch",
    "column-major": "x_column_major",
    "rows of a wider matrix": "x_padded",
    "unaligned": "x_unaligned",
}
"""Words for a layout → the input that has it."""

CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda x: x.view(-1, x.shape[-1]),
    "reshape": lambda x: x.reshape(-1, x.shape[-1]),
    "contiguous": lambda x: x.contiguous(),
    "transpose": lambda x: x.transpose(-1, -2),
}
"""Calls that S001 and S002 argue about; the first two flatten all dimensions but the last."""


def handlings(shape: tuple[int, ...], dtype: str = "float32", device: str = "cpu") -> list[Handling]:
    """Every call of :data:`CALLS` on every layout of :data:`LAYOUTS`, tried out.

    A call is taken to copy when its result lies in other memory than its input; the dispatcher says how many bytes.
    """
    inputs = Workload(NAME, shape, dtype).inputs(device)
    return [
        Handling(layout, inputs[name].stride(), call, bytes_copied(function, inputs[name]))
        for layout, name in LAYOUTS.items()
        for call, function in CALLS.items()
    ]


def bytes_copied(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> int | None:
    results: list[torch.Tensor] = []
    try:
        seen = sum(size for _, size in copies(lambda: results.append(function(x))))
    except RuntimeError:  # view, where the strides allow none
        return None
    if shares_memory(results[0], x) != (seen == 0):
        raise AssertionError(f"the dispatcher saw {seen} bytes copied, and the memory says otherwise")
    return seen


def variant_copies(shape: tuple[int, ...], dtype: str = "float32", device: str = "cpu") -> dict[str, int]:
    """Bytes that one call of each variant copies before its product, by variant in order of registration."""
    workload = Workload(NAME, shape, dtype)
    inputs = workload.inputs(device)
    return {
        name: sum(size for _, size in copies(found.factory(workload, inputs))) for name, found in variants(NAME).items()
    }
