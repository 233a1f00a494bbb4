"""The CUDA kernels that multiply float32 in two float16 terms: in the emulator of a GPU, as machine code, on a GPU."""

from __future__ import annotations

from pathlib import Path

import cuda_sources
import pytest
import torch
from kernel_tensors import DEVICE, error, exact, matrices, normal, on_hopper, packed

from hypatia_lab.kernels import hopper, loader
from hypatia_lab.kernels.linear_relu import split_products
from hypatia_lab.kernels.linear_relu.split_products import Plan, Terms

# ---------------------------------------------------------------- emulated

PLANS = (Plan(), Plan(cluster=2, group=2, stages=2))
KERNELS = ("linear_relu_split", "two_products_split")


def instance(kernel: str, plan: Plan) -> str:
    return f"{kernel}<{plan.stages}, {plan.cluster}>"


SPLITS = [f"split_rows<{warps}, {packed}>" for warps in (1, 4) for packed in ("true", "false")]
emulation = cuda_sources.emulation(
    {"linear_relu/split_products": [*(instance(name, plan) for name in KERNELS for plan in PLANS), *SPLITS]},
)


def terms(matrix: torch.Tensor) -> Terms:
    """As the first of the two kernels leaves them; rows of whole 16 bytes."""
    largest = torch.where(matrix.isfinite(), matrix, 0).abs().amax(1)
    exponents = ((largest.view(torch.int32) >> 23) & 0xFF).clamp(min=1)
    scaled = torch.ldexp(matrix.double(), split_products.BOUND + 127 - exponents[:, None])
    large = scaled.half()
    small = torch.where(matrix.isfinite(), scaled - large.double(), float("nan")).half()
    exponents = exponents + torch.where(matrix.isfinite().all(1), 0, split_products.NOT_FINITE)
    return Terms(packed(large), packed(small), exponents.int())


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (130, 200, 259), (257, 161, 132)])
def test_the_emulated_kernel_agrees_with_float64(shape: tuple[int, int, int], plan: Plan, emulation: None) -> None:
    batch, inner, outer = shape
    x, weight, bias = matrices(batch, inner=inner, outer=outer)
    for shift in (bias, None):
        out = torch.full((batch, outer), float("nan"))
        split_products.linear_relu(terms(x), terms(weight), shift, out, plan=plan)
        assert error(out, exact(x, weight, shift)) <= 4e-7


@pytest.mark.parametrize("plan", PLANS)
def test_infinities_nan_and_every_magnitude_are_as_in_float32(plan: Plan, emulation: None) -> None:
    inf, nan = float("inf"), float("nan")
    x, weight, bias = matrices(260, inner=70, outer=140)
    x[0, 3], x[1, 5], x[2, 0], x[2, 7], x[259, 69] = nan, inf, inf, -inf, inf
    weight[0, 5], weight[1, 9], weight[2, 4], weight[139] = 0, inf, nan, -inf
    out = torch.full((260, 140), nan)
    split_products.linear_relu(terms(x), terms(weight), bias, out, plan=plan)
    expected = exact(x, weight, bias).float()
    assert int(expected.isnan().sum()) > 400
    assert int(expected.isinf().sum()) > 200
    torch.testing.assert_close(out, expected, equal_nan=True, rtol=1e-5, atol=1e-5)

    up, across = torch.linspace(-140, 124, 260).round(), torch.linspace(-124, 100, 140).round()
    x, weight, _ = matrices(260, inner=70, outer=140)
    x, weight = (torch.ldexp(one.double(), by[:, None]).float() for one, by in ((x, up), (weight, across)))
    split_products.linear_relu(terms(x), terms(weight), None, out, plan=plan)
    found, expected = out.double(), exact(x, weight, None)
    scale, beyond = x.double().abs() @ weight.double().abs().T, expected > 3.5e38
    assert int(beyond.sum()) > 1000
    assert bool(found[beyond].isinf().all())
    assert bool(((found - expected).abs() <= 1e-6 * scale + 2.0**-149)[expected < 3e38].all())


@pytest.mark.parametrize("inner", [1, 77, 784, 1500, 4101])
@pytest.mark.parametrize("gap", [0, 1])
def test_rows_are_split_into_two_terms(inner: int, gap: int, emulation: None) -> None:
    inf, nan = float("inf"), float("nan")
    wide = -(-inner // 4) * 4 + gap
    first, second = (one[:, :inner] for one in normal((5, wide), (3, wide)))
    first[0, 0], first[1] = nan, torch.ldexp(first[1], torch.linspace(-140, 120, inner).round())
    first[2], second[0, -1], second[1] = 0, -inf, 2.0**-149
    for other in (second, None):
        matrix = first if other is None else torch.cat([first, other])
        values = torch.full((2, len(matrix), -(-inner // 8) * 8), nan, dtype=torch.float16)
        exponents = torch.full((len(matrix),), -1, dtype=torch.int32)
        split_products.split_rows(first, other, values, exponents)
        expected, (large, small) = terms(matrix), values[:, :, :inner]
        assert torch.equal(exponents, expected.exponents)
        lost = (expected.large == 0) & (matrix != 0)
        assert torch.equal(large[lost], torch.copysign(torch.full_like(large, 2.0**-24), matrix)[lost])
        torch.testing.assert_close(large[~lost], expected.large[~lost], rtol=0, atol=0, equal_nan=True)
        kept = matrix.isfinite().all(1)[:, None] & ~lost
        assert torch.equal(small[kept], expected.small[kept])


@pytest.mark.parametrize("plan", PLANS)
def test_two_products_of_two_depths_are_one_launch(plan: Plan, emulation: None) -> None:
    sizes = (150, 90, 200), (300, 250, 40)
    pairs = [normal((m, k), (n, k)) for m, k, n in sizes]
    for chosen in ([0, 1], [1, 0], [0], [1]):
        products = [(pairs[i], torch.full((sizes[i][0], sizes[i][2]), float("nan"))) for i in chosen]
        split_products.multiply([(terms(a), terms(b), out) for (a, b), out in products], plan=plan)
        for (a, b), out in products:
            assert error(out, a.double() @ b.double().T) <= 4e-7


# ---------------------------------------------------------------- the launch and the machine code

LARGE, LONG, FLAT = (8192, 4096), (1024, 2048), (100, 40000)


def test_no_multiprocessor_takes_many_more_of_a_short_kernels_blocks_than_its_share(monkeypatch) -> None:
    monkeypatch.setattr(loader, "multiprocessors", lambda device: 132)
    whole, static = 228 * 1024, 1024  # of a multiprocessor's shared memory, and of a block's at most
    for blocks in (1, 132, 133, 256, 264, 768, 1000, 4224):
        share, own = -(-blocks // 132), hopper.share_of_memory(blocks, 0) + 1024
        assert own - 1024 + static <= 227 * 1024
        assert share <= whole // (own + static)
        assert whole // own <= share + max(1, share // 4)
    assert hopper.share_of_memory(4225, 0) == 0


def test_blocks_share_where_there_are_many_tiles_and_few_without_rows() -> None:
    clusters = [split_products.default_plan(size).cluster for size in (LARGE, LONG, FLAT)]
    assert clusters == [2, 1, 1]
    assert split_products.default_plan(LONG, LARGE).cluster == 2
    for size in (LARGE, LONG):
        assert split_products.default_plan(size).shared() <= 227 * 1024


PLANNED = [split_products.default_plan(size) for size in (LARGE, LONG)]
# The one of most registers; all by `make sweep`.
COMPILED = {
    "largest": [instance("two_products_split", PLANNED[0])],
    "all": [*(instance(kernel, plan) for plan in PLANNED for kernel in KERNELS), *SPLITS],
}


@pytest.mark.parametrize("which", ["largest", pytest.param("all", marks=pytest.mark.sweep)])
def test_the_kernels_build_to_machine_code_without_spills(which: str, tmp_path: Path) -> None:
    cuda_sources.compiles_without_spills(tmp_path, "linear_relu/split_products", COMPILED[which])


def test_what_it_cannot_run_on_is_said() -> None:
    with pytest.raises(ValueError, match="not tf32x3"):
        split_products.ensure_able(torch.empty(1), "tf32x3")
    with pytest.raises(ValueError, match=r"x is on cpu; the CUDA kernel needs compute capability 9\.0"):
        split_products.ensure_able(torch.empty(1))


# ---------------------------------------------------------------- on a GPU


@on_hopper
@pytest.mark.parametrize("plan", [*PLANS, Plan(cluster=2, group=4), Plan(group=3)])
@pytest.mark.parametrize("shape", [(1024, 784, 2048), (1000, 777, 2001), (129, 1, 300), (9, 1501, 60)])
def test_every_plan_is_right_on_a_gpu(shape: tuple[int, int, int], plan: Plan) -> None:
    from hypatia_lab.kernels.linear_relu import gradient_products_split as gradients
    from hypatia_lab.kernels.linear_relu import linear_relu_split as product

    batch, inner, outer = shape
    x, weight, bias, grad = normal((batch, inner), (outer, inner), (outer,), (batch, outer), device=DEVICE)
    spoiled = x.clone()
    spoiled[-1, -1], spoiled[0, 0] = float("inf"), float("nan")
    y = product.linear_relu_split(spoiled, weight, bias, tiles=plan)
    torch.testing.assert_close(y, exact(spoiled, weight, bias).float(), equal_nan=True, rtol=1e-4, atol=1e-4)
    masked = torch.where(y <= 0, 0.0, grad).double()
    found = gradients.gradient_products_split(grad, x, weight, y, plan=plan)
    for own, right in zip(found, (masked @ weight.double(), masked.T @ x.double(), masked.sum(0)), strict=True):
        assert error(own, right) <= 4e-7
