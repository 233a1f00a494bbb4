"""GELU behind the CUDA kernels of a linear layer: every epilogue by every way out of a kernel, in the emulator of a
GPU, as machine code, on a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import cuda_sources
import pytest
import torch
from kernel_tensors import DEVICE, error, exact, matrices, normal, on_hopper
from test_linear_relu_cuda import ALONE, TOLERANCES
from test_linear_relu_cuda import instance as tiled
from test_split_products import terms

from hypatia_lab.kernels import hopper, loader
from hypatia_lab.kernels.linear_relu import linear_relu_cuda as tiles
from hypatia_lab.kernels.linear_relu import split_products
from hypatia_lab.kernels.linear_relu.epilogue import Epilogue, activated
from hypatia_lab.kernels.linear_relu.linear_relu_cuda import LARGE, LOW, SMALL
from hypatia_lab.operations.linear_gelu import OPERATIONS, linear_activation_cuda, linear_activation_split

Way = tiles.Plan | split_products.Plan | None
TILES = (SMALL, LOW, replace(SMALL, share=2))
"""Sums leave a kernel from the registers, by boxes, or added up by several blocks; or, of few rows, one by one."""
SPLITS = (split_products.Plan(), split_products.Plan(cluster=2, group=2, stages=2))
WAYS: dict[str, tuple[torch.dtype, Way]] = {
    **{
        f"{loader.dtype_name(dtype)}-{'few' if plan is None else f'{plan.width}/{plan.share}'}": (dtype, plan)
        for dtype, plan in product(TOLERANCES, (*TILES, None))
    },
    **{f"fp16x3-{plan.cluster}": (torch.float32, plan) for plan in SPLITS},
}
QUICK = [*(f"bfloat16-{way}" for way in ("64/1", "128/1", "64/2", "few")), "float32-64/1", "float32-few", "fp16x3-1"]
"""Those that every epilogue is tried by; by the others one is, and all by `make sweep`."""


def instance(way: str, name: str) -> str:
    """The kernel of a way with an operation's epilogue; of few rows that of a single one, read number by number."""
    dtype, plan = WAYS[way]
    behind = Epilogue(*OPERATIONS[name]).functor(
        dtype, fine=dtype == torch.float32 and not isinstance(plan, tiles.Plan)
    )
    if isinstance(plan, split_products.Plan):
        return f"linear_relu_split<{plan.stages}, {plan.cluster}, {behind}>"
    if plan is None:
        return loader.instance_of("linear_relu_rows", loader.scalar(dtype), 1, 1, 1, behind)
    return tiled(dtype, plan).removesuffix(">") + f", {behind}>"


def quick(way: str, name: str) -> bool:
    """One operation in turn by a way that is not :data:`QUICK`."""
    return way in QUICK or list(OPERATIONS).index(name) == list(WAYS).index(way) % len(OPERATIONS)


each = pytest.mark.parametrize(
    ("way", "name"),
    [
        pytest.param(way, name, marks=() if quick(way, name) else pytest.mark.sweep)
        for way, name in product(WAYS, OPERATIONS)
    ],
)
BUILT = {
    source: [
        instance(way, name)
        for way, name in product(WAYS, OPERATIONS)
        if quick(way, name) and way.startswith("fp16x3") == source.endswith("split_products")
    ]
    for source in ("linear_relu/linear_relu", "linear_relu/split_products")
}
PACKING = [f"pack_rows<{loader.scalar(dtype)}>" for dtype in TOLERANCES]
emulation = cuda_sources.emulation(BUILT | {"linear_relu/linear_relu": BUILT["linear_relu/linear_relu"] + PACKING})


def computed(way: str, name: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """By the kernel, in memory that held NaN."""
    plan, epilogue = WAYS[way][1], Epilogue(*OPERATIONS[name])
    out = x.new_full((len(x), len(weight)), float("nan"))
    if isinstance(plan, split_products.Plan):
        split_products.linear_relu(terms(x), terms(weight), bias, out, plan=plan, epilogue=epilogue)
    else:
        tiles.linear_relu(x, weight, bias, out, plan=plan, epilogue=epilogue)
    return out


def wanted(name: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return activated(exact(x, weight, bias, relu=False), *OPERATIONS[name])


@each
def test_odd_shapes_agree_with_float64(way: str, name: str, emulation: None) -> None:
    dtype, plan = WAYS[way]
    for batch, inner, outer in [(1, 39, 11)] if plan is None else [(130, 72, 142), (66, 33, 259)]:
        x, weight, bias = matrices(batch, inner=inner, outer=outer, dtype=dtype)
        weight *= inner**-0.5
        allowed = ALONE * TOLERANCES[dtype] if plan is None else TOLERANCES[dtype]
        for shift in (bias, None):
            found, expected = computed(way, name, x, weight, shift), wanted(name, x, weight, shift)
            assert error(found, expected) <= (4e-7 if way.startswith("fp16x3") or way == "float32-few" else allowed)


SHORT = {torch.bfloat16: (4e-3, 3e-5), torch.float16: (6e-4, 5e-6), torch.float32: (1e-6, 5e-6)}
"""dtype → how far off a number may be: its rounding, and the short form of the distribution function times it."""


@each
def test_every_number_nan_and_infinities_are_as_pytorch_has_them(way: str, name: str, emulation: None) -> None:
    """Of -infinity GELU is NaN, behind a ReLU 0."""
    dtype, plan = WAYS[way]
    extremes = [float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 3e38, -3e38, 0.0, -0.0]
    numbers = torch.cat([torch.tensor(extremes), torch.linspace(-14, 14, 500)]).bfloat16()  # TF32 has them all
    x, weight = torch.ones(1 if plan is None else 66, 1, dtype=dtype), numbers.to(dtype)[:, None]
    found, expected = computed(way, name, x, weight, None).double(), wanted(name, x, weight, None)
    fine = dtype == torch.float32 and not isinstance(plan, tiles.Plan)
    rtol, atol = (3e-7, 6e-8) if fine else SHORT[dtype]
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol, equal_nan=True)


# The tiles of most registers, with every epilogue.
COMPILED = {
    "linear_relu/linear_relu": [
        tiled(dtype, replace(LARGE, pair=2)).removesuffix(">") + f", {Epilogue(*how).functor(dtype)}>"
        for dtype, how in product((torch.bfloat16, torch.float32), OPERATIONS.values())
    ],
    "linear_relu/split_products": [
        f"linear_relu_split<3, 2, {Epilogue(*how).functor(torch.float32, fine=True)}>" for how in OPERATIONS.values()
    ],
}


@pytest.mark.parametrize("source", COMPILED)
def test_epilogues_build_to_machine_code_without_spills(source: str, tmp_path: Path) -> None:
    cuda_sources.compiles_without_spills(tmp_path, source, COMPILED[source])


# ---------------------------------------------------------------- the operators


def test_what_they_cannot_compute_is_said() -> None:
    x, weight, bias = torch.ones(9, 24), torch.ones(4, 24), torch.ones(4)
    refused: list[tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None], str, str]] = [
        ((x, weight, bias), "ieee", "float32 as tf32, and of at most 8 rows as ieee, not as ieee"),
        ((x.half(), weight.half(), None), "tf32", "float16 as ieee, not as tf32"),
        ((x.half(), weight, bias), "ieee", "weight is torch.float32"),
        ((x[:, :-1], weight, bias), "tf32", "do not fit"),
        ((x, weight, bias[:-1]), "tf32", "bias"),
        ((x, weight, bias), "tf32", r"x is on cpu; the CUDA kernel needs compute capability 9\.0"),
    ]
    for given, precision, message in refused:
        with pytest.raises(ValueError, match=message):
            linear_activation_cuda(*given, False, "none", precision)
    pytest.importorskip("triton")
    from hypatia_lab.kernels.linear_relu.linear_relu_split import linear_relu_split

    for given, message in (
        *((given, message) for given, _, message in refused[3:]),
        (refused[1][0], "x is torch.float16"),
    ):
        with pytest.raises(ValueError, match=message):
            linear_activation_split(*given, False, "none")
    with pytest.raises(ValueError, match="has a ReLU and nothing else behind it"):
        linear_relu_split(x, weight, bias, epilogue=Epilogue(False, "tanh"))
    memoryless = x.to("meta"), weight.to("meta"), bias.to("meta")
    for form, how in ((linear_activation_cuda, ("none", "tf32")), (linear_activation_split, ("none",))):
        found = form(*memoryless, False, *how)
        assert (found.shape, found.dtype) == ((9, 4), torch.float32)
    with pytest.raises(ValueError, match="approximate 'erf' is none of none, tanh"):
        Epilogue(False, "erf").functor(torch.float16)


def test_the_operator_takes_any_stride_and_has_no_gradient(emulation: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper, "ensure", lambda x: None)
    monkeypatch.setattr(tiles, "default_plan", lambda *how: SMALL)
    rows, weight, wide = normal((20, 40), (9, 24), (18,), dtype=torch.bfloat16)
    x, bias = rows[:, 3:27], wide[::2]
    for given in ((x, weight, bias), (x[:0], weight, bias), (x.view_as(x).unflatten(0, (4, 5)), weight, None)):
        found = linear_activation_cuda(*given, True, "none", "ieee")
        expected = wanted("linear_relu_gelu", *given)
        assert found.shape == expected.shape
        assert error(found, expected) <= 8e-3
    torch.library.opcheck(torch.ops.hypatia.linear_activation_cuda.default, (x, weight, bias, True, "none", "ieee"))
    found = linear_activation_cuda(x.detach().requires_grad_(), weight, bias, False, "tanh", "ieee")
    with pytest.raises(NotImplementedError, match="a fused GELU is for inference here"):
        found.sum().backward()


# ---------------------------------------------------------------- on a GPU


@on_hopper
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_right_on_a_gpu(way: str, name: str) -> None:
    dtype, plan = WAYS[way]
    for batch, inner, outer in ((1, 77, 300), (8, 520, 9)) if plan is None else ((1000, 777, 2001), (129, 1, 300)):
        x, weight, bias = matrices(batch, inner=inner, outer=outer, dtype=dtype, device=DEVICE)
        weight *= inner**-0.5
        found, expected = computed(way, name, x, weight, bias), wanted(name, x, weight, bias)
        assert error(found, expected) <= (4e-7 if way.startswith("fp16x3") else ALONE * TOLERANCES[dtype])
