"""Triton's Linear+ReLU: digits of split operands, the kernels in the interpreter, and their machine code."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from hypatia_lab.machine import choose_device
from hypatia_lab.operations.tensor_cores import two_terms

DEVICE = choose_device("auto")

# ---------------------------------------------------------------- digits of split operands


def towards_zero(exact: torch.Tensor) -> torch.Tensor:
    """float64 cut off to float32, as matrix units do with their sums."""
    near = exact.float()
    return torch.where(near.double().abs() > exact.abs(), torch.nextafter(near, torch.zeros_like(near)), near)


def split_product(x: torch.Tensor, weight: torch.Tensor, kind: str, inner: int) -> torch.Tensor:
    """x·Wᵀ by three products of terms: cut-off sums over ``inner`` elements, rounded sums of these."""
    (a, a_small, up), (b, b_small, across) = two_terms(x, kind), two_terms(weight, kind)
    at_once = 16 if kind == "fp16x3" else 8
    total = torch.zeros(len(x), len(weight))
    for start in range(0, x.shape[1], inner):
        part = torch.zeros_like(total)
        for left, right in ((a_small, b), (a, b_small), (a, b)):
            for k in range(start, min(start + inner, x.shape[1]), at_once):
                end = min(k + at_once, start + inner)
                part = towards_zero(part.double() + left[:, k:end] @ right[:, k:end].T)
        total = total + part
    return torch.ldexp(total.double(), -(up + across.T)).float()


def error(out: torch.Tensor, reference: torch.Tensor) -> float:
    return float((out.double() - reference).norm() / reference.norm())


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


KINDS = [("fp16x3", 64), ("tf32x3", 32)]


@pytest.mark.parametrize("magnitude", [1e-18, 1.0, 1e18])
@pytest.mark.parametrize(("kind", "inner"), KINDS)
def test_split_operands_keep_the_accuracy_of_float32(kind: str, inner: int, magnitude: float) -> None:
    x, weight = magnitude * normal(24, 784), normal(24, 784, seed=1)
    reference = x.double() @ weight.double().T
    # cuBLAS in IEEE float32 reached 3.6e-7 at this length on an H200; a chain of 784 fused multiply-adds gives 5e-7.
    chain = torch.zeros(24, 24)
    for k in range(784):
        chain = (chain.double() + x[:, k : k + 1].double() * weight[:, k].double()).float()
    assert error(split_product(x, weight, kind, inner), reference) < 3e-7 < error(chain, reference)


@pytest.mark.parametrize(("kind", "inner"), KINDS)
def test_long_sums_must_leave_the_matrix_units(kind: str, inner: int) -> None:
    x, weight = normal(16, 1024), normal(16, 1024, seed=1)
    reference = x.double() @ weight.double().T
    within = error(split_product(x, weight, kind, 1024), reference)
    assert within > 3 * error(split_product(x, weight, kind, inner), reference)


@pytest.mark.parametrize("kind", ["fp16x3", "tf32x3"])
def test_two_terms_hold_22_bits_and_float16_ends_far_below_the_largest(kind: str) -> None:
    row = torch.cat([torch.ones(1), normal(4000) * torch.logspace(0, -5, 4000)])[None] * 1e25
    large, small, up = two_terms(row, kind)
    off = (torch.ldexp(large + small, -up) - row.double()).abs()
    held = row.abs() >= 2.0**-16 * row.abs().max()
    assert bool((off <= 2.0**-22 * row.abs())[held].all())
    assert bool((off <= torch.maximum(2.0**-22 * row.abs(), 2.0**-39 * row.abs().max())).all())


# ---------------------------------------------------------------- the kernels in the interpreter

START = """
import itertools, torch
from hypatia_lab.kernels.split_products import Plan
from hypatia_lab.kernels.triton.linear_relu import Config, linear_relu
from hypatia_lab.kernels.triton.linear_relu_split import SPLITS, linear_relu_split, split_once

def drawn(batch, inner, outer, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    return tuple(torch.randn(*shape, generator=g).to(dtype) for shape in ((batch, inner), (outer, inner), (outer,)))

def agrees(out, x, weight, bias, tolerance):
    expected = (x.double() @ weight.double().T + (0 if bias is None else bias.double())).relu()
    assert out.shape == expected.shape and out.dtype == x.dtype
    assert float((out.double() - expected).norm()) <= tolerance * float(expected.norm()), out.shape

def ways(x, weight, bias, **how):
    yield linear_relu(x, weight, bias, **how)
    for terms in SPLITS:
        out = linear_relu_split(x, weight, bias, terms=terms, **how)
        # Split before or with x, the weights' terms are the same.
        once = linear_relu_split(x, split_once(weight, terms), bias, terms=terms, **how)
        torch.testing.assert_close(once, out, rtol=0, atol=0, equal_nan=True)
        yield out
"""

SHAPES = """
tiles = Config(16, 16, 32)
for shape in ((1, 1, 1), (2, 69, 7), (17, 40, 20)):
    x, weight, bias = drawn(*shape)
    for out in ways(x, weight, bias, tiles=tiles):
        agrees(out, x, weight, bias, 4e-7)
    x, weight, bias = drawn(*shape, torch.float16)
    agrees(linear_relu(x, weight, bias, tiles=tiles), x, weight, bias, 1e-3)
x, weight, bias = drawn(7, 129, 127)
agrees(linear_relu(x, weight, bias), x, weight, bias, 4e-7)
# Several tiles a program, halves of tiles, plain pointers, a ragged group of tiles.
x, weight, bias = drawn(34, 40, 20)
for how in ({"resident": 1}, {"halves": True}, {"load": False, "store": False}, {"group": 2}):
    agrees(linear_relu(x, weight, bias, tiles=Config(16, 16, 32, **how)), x, weight, bias, 4e-7)
x = x[:17]
agrees(linear_relu_split(x, weight, bias, tiles=Config(16, 16, 32, apart=True)), x, weight, bias, 4e-7)
"""

TF32 = """
from hypatia_lab.kernels.triton import linear_relu as whole

def nearest(values):
    bits = values.view(torch.int32)
    return torch.where(values.isfinite(), ((bits + 0x1000) & ~0x1FFF).view(torch.float32), values).double()

x, weight, bias = drawn(17, 70, 20)
x[3, 5], x[4, 6], weight[2, 1] = float("inf"), float("nan"), 1 + 2.0**-11  # a tie
pointers = Config(16, 16, 32, load=False)
found = linear_relu(x, weight, bias, precision="tf32", tiles=pointers)
expected = torch.relu(nearest(x) @ nearest(weight).T + bias.double()).float()
torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
assert not torch.equal(found, linear_relu(x, weight, bias, tiles=pointers))
halves = x[:3].half(), weight.half(), bias.half()
assert torch.equal(linear_relu(*halves, precision="tf32", tiles=pointers), linear_relu(*halves, tiles=pointers))

# Descriptors round where they are asked to.
for rounded in (False, True):
    assert getattr(whole._operand_tiles(torch.ones(16, 16), [16, 16], rounded), "round_f32_to_tf32", False) == rounded
"""

FORMS = """
x, weight, bias = drawn(3, 24, 4)
spread = torch.stack([bias, bias], 1)[:, 0]
strided, across, wide = torch.stack([x, -x], -1)[..., 0], weight.t().contiguous().t(), torch.cat([x, x], 1)[:, :24]
for given in ((strided, weight, bias), (wide, across, spread), (x, weight, None)):
    for out in ways(*given):
        agrees(out, *given, 4e-7)
for batch in ((), (2, 3), (0,), (3, 0)):
    many = torch.randn(*batch, 24)
    for out in ways(many, weight, bias):
        assert out.shape == (*batch, 4)
        torch.testing.assert_close(out, torch.relu(many @ weight.T + bias), rtol=1e-4, atol=1e-5)
for given in ((torch.ones(3, 0), torch.ones(4, 0), bias), (torch.ones(3, 0), torch.ones(4, 0), None)):
    for out in ways(*given):
        torch.testing.assert_close(out, torch.relu(torch.nn.functional.linear(*given)))
# Rows longer than a program holds come out as those that fit, bit for bit.
from hypatia_lab.kernels.triton import linear_relu_split as split
x, weight, bias = drawn(2, 77, 3)
x[0, 76], weight[1, 40] = 1e4, -1e5
whole = [linear_relu_split(x, weight, bias, terms=terms) for terms in SPLITS]
split.LONGEST = 32
for terms, expected in zip(SPLITS, whole):
    assert torch.equal(linear_relu_split(x, weight, bias, terms=terms), expected)
x[0, 76], weight[1, 40] = 10, -10
for terms in SPLITS:
    agrees(linear_relu_split(x, weight, bias, terms=terms), x, weight, bias, 4e-7)
"""

EXTREMES = """
inf, nan, same = float("inf"), float("nan"), torch.testing.assert_close
x, weight, bias = drawn(8, 40, 19)
x[0, 3], x[1, 5], x[2, 0], x[2, 7], x[3], x[4, 39] = nan, inf, inf, -inf, inf, inf  # the last one in the last tile
weight[0, 5], weight[1, 9], weight[2, 4], weight[3] = 0, inf, nan, -inf
# A number lost beside its row's largest keeps the sign of its product with an infinity; an exact number has no rest.
weight[4, 5], weight[4, 0], weight[5, 5] = -1e-30, 1e10, 1.0
x[5, 9], x[6, 9], x[7, 9], bias[7] = 1.0, -1e-38, 1.5, inf
expected = torch.relu(torch.nn.functional.linear(x.double(), weight.double(), bias.double())).float()
assert 50 < int(expected.isnan().sum()) < 200 and int(expected.isinf().sum()) > 20
for out in ways(x, weight, bias, tiles=Config(16, 16, 16)):
    same(out, expected, equal_nan=True, rtol=1e-5, atol=1e-5)
# Every row of its own magnitude, from subnormal to the largest, in one product.
x, weight, _ = drawn(10, 40, 12)
rows, columns = torch.linspace(-140, 124, 10), torch.linspace(-124, 100, 12)
x = torch.ldexp(x.double(), rows.round()[:, None]).float()
weight = torch.ldexp(weight.double(), columns.round()[:, None]).float()
exact = (x.double() @ weight.double().T).relu()
scale = (x.double().abs() @ weight.double().abs().T).float().double()
for terms in SPLITS:
    out = linear_relu_split(x, weight, None, terms=terms).double()
    normal = exact.abs() < 3e38
    assert int((exact > 0).sum()) > 40 and int((~normal).sum()) > 5
    assert bool(((out - exact).abs() <= 1e-6 * scale + 2.0**-149)[normal].all())
    assert bool(out[~normal].isinf().all())
# The largest numbers there are: their terms do not overflow, nor do sums on the way.
top = torch.finfo(torch.float32).max
x, weight = torch.full((2, 34), top), torch.full((3, 34), 0.5)
weight[:, 17:] = -0.5
weight[1, :2] = 0.75
for terms in SPLITS:
    out = linear_relu_split(x, weight, None, terms=terms)
    same(out, torch.tensor([0.0, 0.5 * top, 0.0]).expand(2, 3), rtol=1e-6, atol=0.0)
# Zeros.
for out in ways(torch.zeros(3, 8), torch.zeros(4, 8), None):
    assert not out.any()
"""

REFUSALS = """
x, weight, bias = drawn(6, 24, 9)
refused = [
    ((x[:, :-1], weight, bias), "do not fit"),
    ((x, weight[0], bias), "do not fit"),
    ((x[0, 0], weight, bias), "do not fit"),
    ((x, weight, bias[:-1]), "bias"),
    ((x, weight, bias[0]), "bias"),
    ((x.half(), weight, bias), "is torch.float"),
    ((x.int(), weight.int(), bias.int()), "x is torch.int32"),
    ((x, weight.to("meta"), bias), "weight is on meta"),
    ((x, weight.clone().requires_grad_(), bias), "weight requires a gradient"),
]
for (given, message), function in itertools.product(refused, (linear_relu, linear_relu_split)):
    try:
        function(*given)
    except ValueError as complaint:
        assert message in str(complaint), complaint
    else:
        raise AssertionError(message)
with torch.no_grad():
    linear_relu_split(x, weight.clone().requires_grad_(), bias)
for wrong in (lambda: linear_relu(x, weight, precision="int8"), lambda: linear_relu_split(x, weight, terms="int8")):
    try:
        wrong()
    except ValueError as complaint:
        assert "int8" in str(complaint)
    else:
        raise AssertionError("int8")
# What was split before is refused once its numbers are others.
once = split_once(weight)
agrees(linear_relu_split(x, once, bias), x, weight, bias, 4e-7)
weight.mul_(2)
for wrong, message in (
    (lambda: linear_relu_split(x, once, bias), "has changed since"),
    (lambda: linear_relu_split(x, split_once(weight), bias, terms="tf32x3"), "it is fp16x3, not tf32x3"),
    (lambda: split_once(weight, "int8"), "int8"),
    (lambda: linear_relu_split(x, weight, bias, tiles=Plan()), "x is on cpu; the CUDA kernel needs"),
    (lambda: linear_relu_split(x, weight, bias, cuda=True), "x is on cpu; the CUDA kernel needs"),
    (lambda: linear_relu_split(x, weight, bias, terms="tf32x3", tiles=Plan()), "not tf32x3"),
    (lambda: split_once(weight.half()), "must be a float32 matrix"),
):
    try:
        wrong()
    except ValueError as complaint:
        assert message in str(complaint), complaint
    else:
        raise AssertionError(message)
agrees(linear_relu_split(x, split_once(weight), bias), x, weight, bias, 4e-7)
"""


PARTS = {
    "agrees with float64 at odd shapes and any cut": SHAPES,
    "rounds to the nearest TF32": TF32,
    "takes any rank of batch, strided inputs, no bias": FORMS,
    "handles infinities, NaN and every magnitude as float32 does": EXTREMES,
    "refuses a misfit by name": REFUSALS,
}

ALL = """
import json, sys, traceback, warnings
warnings.filterwarnings("ignore", category=RuntimeWarning)
complaints = {}
for name, part in json.load(sys.stdin).items():
    try:
        exec(part, dict(globals()))
    except Exception:
        complaints[name] = traceback.format_exc()
json.dump(complaints, sys.stdout)
"""


@pytest.fixture(scope="module")
def complaints(interpreted: Callable[..., str]) -> dict[str, str]:
    """Part → what went wrong, all run in one process: Triton reads once whether it interprets."""
    return json.loads(interpreted(START + ALL, json.dumps(PARTS)))


@pytest.mark.parametrize("part", PARTS)
def test_the_interpreted_kernel(part: str, complaints: dict[str, str]) -> None:
    assert part not in complaints, complaints[part]


# ---------------------------------------------------------------- machine code

MACHINE_CODE = """
from hypatia_lab.kernels.triton import gradient_products as both, linear_relu as whole, linear_relu_split as split
from hypatia_lab.kernels.triton import gradient_products_split as both_split

whole._processors = lambda tensor: 132

def drawn(batch, inner, outer, dtype):
    return tuple(torch.empty(shape, dtype=dtype) for shape in ((batch, inner), (outer, inner), (outer,)))

for shape in ((1024, 784, 2048), (8192, 4096, 4096)):
    whole.linear_relu(*drawn(*shape, torch.bfloat16))
    split.linear_relu_split(*drawn(*shape, torch.float32))
for shape in ((256, 256, 512), (1024, 784, 2048)):
    whole.linear_relu(*drawn(*shape, torch.float32), precision="tf32")
x, weight, _ = drawn(1024, 784, 2048, torch.bfloat16)
shares = torch.empty(16, 2048)
for plan in both.candidates((1024, 784, 2048), torch.bfloat16)[:3]:
    both.gradient_products(torch.empty(1024, 2048, dtype=torch.bfloat16), x, weight, shares=shares, plan=plan)
for shape in ((256, 256, 512), (1024, 784, 2048), (8192, 4096, 4096)):
    x, weight, _ = drawn(*shape, torch.float32)
    y = torch.empty(shape[0], shape[2])
    both_split.gradient_products_split(y, x, weight, y)
products = [code for code in made if code.metadata.name not in ("_split_rows", "_find_exponents", "_split_all")]
assert len(products) == 12
for code in products:
    text = code.asm["ptx"]
    assert "wgmma.mma_async" in text and "cp.async.bulk.tensor" in text, code.metadata.name
    assert code.metadata.shared <= 232448 and ".local" not in text
"""


@pytest.mark.slow
def test_the_kernels_compile_to_hoppers_matrix_instructions(compiled_for_hopper: Callable[[str], None]) -> None:
    compiled_for_hopper(MACHINE_CODE)


# ---------------------------------------------------------------- the variants


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cpu", reason="there is no GPU")
@pytest.mark.parametrize("shape", [(129, 64, 512), (256, 256, 512), (1024, 784, 2048)])
def test_every_tile_rounds_to_the_nearest_tf32(shape: tuple[int, int, int]) -> None:
    pytest.importorskip("triton")
    from hypatia_lab.kernels.triton import linear_relu as whole

    x, weight, bias = (normal(*sizes).to(DEVICE) for sizes in ((shape[0], shape[1]), (shape[2], shape[1]), (shape[2],)))
    exact = torch.relu(x.double() @ weight.double().T + bias.double())
    for tiles in whole.candidates(shape, torch.float32, "tf32"):
        # Of operands cut off it would be 6e-4.
        found = error(whole.linear_relu(x, weight, bias, precision="tf32", tiles=tiles), exact)
        assert found < 3.5e-4, tiles
