"""What kernels ask of the tensors that they are given: that these are alike, that they fit, that none wants a gradient.

Tensors go by the names that a complaint has for them; in place of one there may be None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""The lab's dtypes."""


def ensure_alike(tensors: Mapping[str, Tensor | None], dtypes: Sequence[torch.dtype] = FLOATING) -> None:
    """Raise ``ValueError`` unless all ``tensors`` have the first one's dtype, one of ``dtypes``, and its device."""
    (first, like), *_ = tensors.items()
    assert like is not None
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if tensor.dtype != like.dtype or tensor.dtype not in dtypes:
            raise ValueError(f"{name} is {tensor.dtype}; all must be one of {', '.join(map(str, dtypes))}")
        if tensor.device != like.device:
            raise ValueError(f"{name} is on {tensor.device}, {first} on {like.device}; all must be on one device")


def ensure_layer(x: Tensor, weight: Tensor, bias: Tensor | None, dtypes: Sequence[torch.dtype] = FLOATING) -> None:
    """Raise ``ValueError`` unless x (..., in), weight (out, in) and bias (out) or None fit and are alike."""
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"x {list(x.shape)} and weight {list(weight.shape)} do not fit: x is (..., in), weight (out, in)"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias {list(bias.shape)} does not fit weight {list(weight.shape)}: bias is (out)")
    ensure_alike({"x": x, "weight": weight, "bias": bias}, dtypes)


def ensure_no_gradient(tensors: Mapping[str, Tensor | None], who: str = "this kernel") -> None:
    """Raise ``ValueError`` where a gradient of one of ``tensors`` is asked for, which ``who`` does not have."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{name} requires a gradient and {who} has no backward; call it under torch.no_grad()")
