"""What stands behind a linear layer, f of y = f(x·Wᵀ + b): a ReLU, a GELU, one after the other, or neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch.nn.functional as functional

from hypatia_lab.kernels import loader

if TYPE_CHECKING:
    import torch

GELUS = ("none", "tanh")
"""GELU's forms, as ``torch.nn.functional.gelu`` calls them (``approximate``): by the error function, or by tanh."""


class Epilogue(NamedTuple):
    """A ReLU if ``relu``, then a GELU by ``approximate``, one of :data:`GELUS`, unless that is None."""

    relu: bool = True
    approximate: str | None = None

    def functor(self, dtype: torch.dtype, *, fine: bool = False) -> str:
        """Its name in ``epilogue.cuh``, for sums that are rounded to ``dtype``; ``fine``: right to float32's digits.

        Raises ``ValueError`` for an unknown ``approximate``.
        """
        if self.approximate is None:
            return "Relu" if self.relu else "Same"
        if self.approximate not in GELUS:
            raise ValueError(f"approximate {self.approximate!r} is none of {', '.join(GELUS)}")
        gelu = loader.instance_of("Gelu", loader.scalar(dtype), self.approximate == "tanh", fine)
        return f"Then<Relu, {gelu}>" if self.relu else gelu


NOTHING, RELU = Epilogue(relu=False), Epilogue()


def activated(u: torch.Tensor, relu: bool, approximate: str | None) -> torch.Tensor:
    """``u`` behind that :class:`Epilogue`, of its shape and dtype, by PyTorch's own operations."""
    u = u.relu() if relu else u
    return u if approximate is None else functional.gelu(u, approximate=approximate)
