"""Products of matrices in two float16 terms each, by a CUDA kernel for Hopper (``split_products.cu``): its plans.

The terms are those of :mod:`hypatia_lab.kernels.linear_relu.linear_relu_split`: rows scaled by powers of two, (rows,
depth) large and small ones, and the rows' exponents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from hypatia_lab.kernels import hopper, loader
from hypatia_lab.kernels.linear_relu.epilogue import RELU, Epilogue

if TYPE_CHECKING:
    from torch import Tensor

TILE, DEPTH, CONSUMERS = 128, 64, 2
"""Rows and columns of a tile, numbers along k a stage, warpgroups that multiply, as ``split_products.cu`` has them."""

THREADS = 128 * (CONSUMERS + 1)
SOURCE = "linear_relu/split_products"

BOUND, NOT_FINITE = 14, 1024
"""A scaled row's largest magnitude is at least 2^BOUND and less than twice that; what is added to the exponent of a row
that is not finite."""


A_WARP = 1024
"""Numbers of a row that one warp splits; of more of them four do."""


class Terms(NamedTuple):
    """A matrix (rows, depth) in two float16 terms, rows from multiples of 16 bytes on, and exponents (rows), int32."""

    large: Tensor
    small: Tensor
    exponents: Tensor


@dataclass(frozen=True)
class Plan:
    """How the kernel is cut, for tuning; every choice computes the same.

    ``cluster`` blocks, one below the other, fetch the right operand together (1 or 2). ``group`` rows of tiles are
    worked on column by column. ``stages`` of 64 numbers along k are in shared memory.
    """

    cluster: int = 1
    group: int = 8
    stages: int = 3

    def shared(self) -> int:
        """Bytes of dynamic shared memory a block: alignment, stages, a tile's columns, barriers."""
        return 1023 + self.stages * 4 * TILE * DEPTH * 2 + CONSUMERS * TILE * 8 + 2 * 8 * self.stages

    def tiles(self, height: int, width: int) -> int:
        """Of a product's output, a cluster's."""
        return -(-height // (TILE * self.cluster)) * -(-width // TILE)


def default_plan(*outputs: Sequence[int]) -> Plan:
    """The plan for products with ``outputs`` of so many rows and columns."""
    alone, pairs = Plan(), Plan(cluster=2, group=4)
    few, many = (sum(plan.cluster * plan.tiles(*size) for size in outputs) for plan in (alone, pairs))
    # Blocks that fetch together wait for each other, which pays where all have several tiles and few are without rows.
    return pairs if few > 264 and many <= 1.1 * few else alone


def ensure_able(tensor: Tensor, terms: str = "fp16x3") -> None:
    """Raise ``ValueError`` where the kernel cannot run on the device of ``tensor``, or for other ``terms``."""
    if terms != "fp16x3":
        raise ValueError(f"the CUDA kernel multiplies float16 terms (fp16x3), not {terms}")
    hopper.ensure(tensor)


def _launcher(kernel: str, plan: Plan, *more: str) -> loader.Launch:
    how = {"shared": plan.shared(), "cluster": plan.cluster, "dependent": True}
    return loader.cuda_launcher(SOURCE, kernel, plan.stages, plan.cluster, *more, **how)


def split_rows(first: Tensor, second: Tensor | None, values: Tensor, exponents: Tensor) -> None:
    """Write the terms of the rows of ``first``, followed by those of ``second``, and their exponents.

    float32 matrices of as many columns, neighbouring ones next to each other; ``values`` (2, rows, columns or more)
    float16, of whole 16 bytes a row, large terms and small ones; ``exponents`` (rows) int32. On one GPU of compute
    capability 9.0, by programmatic dependent launch.
    """
    behind, rows = first if second is None else second, len(exponents)
    warps = 1 if first.shape[1] <= A_WARP else 4
    packed = all(one.data_ptr() % 16 == one.stride(0) % 4 == 0 for one in (first, behind))
    blocks = -(-rows * warps // 4)
    launch = loader.cuda_launcher(
        SOURCE,
        "split_rows",
        warps,
        packed,
        shared=hopper.share_of_memory(blocks, first.device.index),
        dependent=True,
    )
    pitches = first.stride(0), behind.stride(0), values.stride(1)
    given = first, behind, values[0], values[1], exponents, len(first), rows, first.shape[1], *pitches
    launch((blocks,), (128,), *given)


def _maps(products: Sequence[tuple[Terms, Terms, Tensor]], plan: Plan) -> list[loader.TensorMap]:
    """Of the left operand's two terms, then the right one's, of every product."""
    return [
        loader.tensor_map(term, rows, DEPTH)
        for left, right, _ in products
        for terms, rows in ((left, TILE), (right, TILE // plan.cluster))
        for term in (terms.large, terms.small)
    ]


def _grid(products: Sequence[tuple[Terms, Terms, Tensor]], plan: Plan) -> tuple[int]:
    tiles = sum(plan.tiles(*out.shape) for *_, out in products)
    return (min(tiles, loader.multiprocessors(products[0][2].device.index) // plan.cluster) * plan.cluster,)


def linear_relu(
    x: Terms,
    weight: Terms,
    bias: Tensor | None,
    out: Tensor,
    *,
    plan: Plan | None = None,
    epilogue: Epilogue = RELU,
) -> None:
    """Write max(0, x·Wᵀ + b) to ``out`` (batch, out) of x (batch, in) and W (out, in); bias (out) float32.

    ``epilogue`` is what stands in the ReLU's place. ``out`` is contiguous, no extent is zero. On one GPU of compute
    capability 9.0, by programmatic dependent launch.
    ``plan``: in place of the default one. Raises ``RuntimeError`` for a plan that the driver refuses.
    """
    (batch, inner), outer = x.large.shape, len(weight.large)
    plan = plan or default_plan((batch, outer))
    products = [(x, weight, out)]
    behind = () if epilogue == RELU else (epilogue.functor(torch.float32, fine=True),)
    launch = _launcher("linear_relu_split", plan, *behind)
    exponents, sizes = (x.exponents, weight.exponents), (batch, inner, outer, plan.group)
    launch(_grid(products, plan), (THREADS,), *_maps(products, plan), *exponents, bias, out, *sizes)


def multiply(products: Sequence[tuple[Terms, Terms, Tensor]], *, plan: Plan | None = None) -> None:
    """Write a·bᵀ to out for one or two ``products`` (a, b, out) of any depths, in one launch; as :func:`linear_relu`.

    Of two that with the longer sums is begun first, so that shorter ones fill up what is left.
    """
    plan = plan or default_plan(*(tuple(out.shape) for *_, out in products))
    first, *more = sorted(products, key=lambda product: -product[0].large.shape[1])
    (second,) = more or (first,)
    launch = _launcher("two_products_split", plan)
    sizes = [size for a, _, out in (first, second) for size in (out.shape[0], a.large.shape[1], out.shape[1])]
    if not more:
        sizes[3] = 0  # of no rows
    launch(
        _grid(products, plan),
        (THREADS,),
        *_maps((first, second), plan),
        *(terms.exponents for a, b, _ in (first, second) for terms in (a, b)),
        first[2],
        second[2],
        *sizes,
        plan.group,
    )
