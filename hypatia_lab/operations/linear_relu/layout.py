"""Where the numbers lie: Linear+ReLU on the same numbers in several memory layouts, and what copies them.

Every layout of x ``(batch, in)`` and W ``(out, in)`` is made from one draw: row-major, column-major, rows of a wider
matrix, an address that is no multiple of 16 bytes, a batch of sequences in and out of order, W stored as ``(in, out)``.
The variants compute y = max(0, x·Wᵀ + b) the plain eager way, so that only the layout differs.
Sources: S001 and S002 ("reshape copies, view is free", ``.contiguous()``), S004 (column-major and packed weights).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as functional

from hypatia_lab.operations.linear_relu import LINEAR_RELU
from hypatia_lab.variants import variant, variants
from hypatia_lab.workloads import Workload, register, unaligned

if TYPE_CHECKING:
    from hypatia_lab.variants import Factory
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
    replace(
        LINEAR_RELU,
        name=NAME,
        summary="y = max(0, x·Wᵀ + b) with x and W in several memory layouts",
        make_inputs=_inputs,
        reference=lambda inputs: LINEAR_RELU.reference(_plain(inputs)),
        faults=lambda inputs: LINEAR_RELU.faults(_plain(inputs)),
        backward=None,
    )
)


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(functional.linear(x, weight, bias))


# [layouts]
def _packed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """W stored as (in, out), packed before the first call."""
    return _product(x, weight.t(), bias)  # (1)


def _packed_now(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """W (out, in) packed as (in, out) in every call, as it must be while it is being trained."""
    return _product(x, weight.t().contiguous().t(), bias)  # (2)
    # [/layouts]


def _of(form: Callable[..., torch.Tensor] = _product, x: str = "x", weight: str = "weight") -> Factory:
    """``form`` of the inputs called ``x``, ``weight`` and bias."""
    return lambda workload, inputs: partial(form, inputs[x], inputs[weight], inputs["bias"])


VARIANTS: dict[str, tuple[str, str, Factory]] = {
    "row_major": ("peer", "row by row", _of()),  # as torch.nn.Linear keeps x and W
    "x_column_major": ("rebuilt", "x column by column", _of(x="x_column_major")),  # S004
    "weight_packed": ("rebuilt", "weight packed before", _of(_packed, weight="weight_packed")),  # S004
    "pack_each_call": ("own", "weight packed each call", _of(_packed_now)),
    # The first columns of a wider matrix: rows are apart, nothing copies them.
    "x_padded": ("own", "x padded", _of(x="x_padded")),
    # One element past a 16-byte boundary.
    "x_unaligned": ("own", "x unaligned", _of(x="x_unaligned")),
    "weight_unaligned": ("own", "weight unaligned", _of(weight="weight_unaligned")),
    # A contiguous batch of sequences, flattened by view (S001 v2); a transposed one, which reshape has to copy (S001
    # v1), and of which view raises.
    "x_batch_view": (
        "rebuilt",
        "batch of sequences by view",
        _of(lambda x, *others: _product(x.view(-1, x.shape[-1]), *others), x="x_batch"),
    ),
    "x_strided_batch": (
        "rebuilt",
        "strided batch, copied",
        _of(lambda x, *others: _product(x.reshape(-1, x.shape[-1]), *others), x="x_strided_batch"),
    ),
    # The column-major x made contiguous in every call, then the product (S002).
    "copy_first": (
        "rebuilt",
        "x copied first",
        _of(lambda x, *others: _product(x.contiguous(), *others), x="x_column_major"),
    ),
}
"""Variant → its origin, its label, and what computes it; the first is the baseline."""

for _name, (_origin, _label, _factory) in VARIANTS.items():
    _first = _name == "row_major"
    _laid = partial(variant, NAME, _name, origin=_origin, label=_label)
    _laid(baseline=_first, tags=() if _first else ("layout",))(_factory)


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
