"""The one-kernel convolution block: on a GPU, in the emulator of one, and compiled to machine code by nvcc."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import cuda_sources
import pytest
import torch
from kernel_tensors import DEVICE, error, normal, on_hopper
from torch.nn import functional

pytest.importorskip("triton")
from hypatia_lab.kernels import loader
from hypatia_lab.kernels.conv_block import conv_block_whole as whole
from hypatia_lab.workloads import tail

ON_A_GPU = DEVICE == "cuda"


@pytest.fixture
def kernels(request: pytest.FixtureRequest) -> None:
    """The GPU's; where there is none, an emulator's."""
    if not ON_A_GPU:
        request.getfixturevalue("emulation")


def either(test: Any) -> Any:
    """Marks a test of the kernels, on a GPU or in the emulator of one."""
    return pytest.mark.usefixtures("kernels")(pytest.mark.cuda(on_hopper(test)) if ON_A_GPU else test)


BF16, HALF, ADJOINT, SINGLE, TRIED, SCALED = KINDS = (
    ("__nv_bfloat16", False, False, False, False),
    ("__half", True, False, False, False),
    ("__half", False, True, False, False),
    ("float", False, False, False, False),
    ("float", False, False, True, False),
    ("float", False, False, False, True),
)
"""Type, whether by tanh, whether the adjoint, whether one product of float16 is tried first, and whether scaled terms
of float16 are multiplied."""


def instances(kind: tuple[Any, ...], *spans: int) -> list[str]:
    return [loader.instance_of("conv_block_whole", *kind, span) for span in spans]


INSTANCES = [one for kind in KINDS for one in instances(kind, 48, 96, 216)]
# What is launched but by `make sweep`.
QUICKLY_EMULATED = [*instances(BF16, 48, 96), *instances(ADJOINT, 48)]
QUICKLY_EMULATED += [one for kind in (HALF, TRIED, SCALED) for one in instances(kind, 48, 216)]
TURNS = [
    loader.instance_of("conv_block_turns", of, tanh) for of in ("__nv_bfloat16", "__half") for tanh in (False, True)
]
GRADIENT_INSTANCES = ["conv_block_gradient<__half, true>", "conv_block_gradient<float, false>"]
emulation = cuda_sources.emulation(
    {"conv_block/conv_block_whole": QUICKLY_EMULATED + TURNS, "conv_block/conv_block_gradient": GRADIENT_INSTANCES},
    at_once=lambda instance, blocks, cluster: blocks,
)


def drawn(images: int, height: int, width: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """x, weight, bias, gamma and beta, channels last."""
    shapes = (images, 64, height, width), (64, 64, 3, 3), (64,), (64,), (64,)
    x, weight, bias, gamma, beta = normal(*shapes, device=DEVICE, seed=images * height * width)
    last = [tensor.to(dtype, memory_format=torch.channels_last) for tensor in (x, weight / 24)]
    return [*last, *(tensor.to(dtype) for tensor in (bias + 3, 1 + gamma / 10, beta / 10))]


def exact(given: list[torch.Tensor], eps: float = 1e-5, approximate: str = "none") -> tuple[torch.Tensor, torch.Tensor]:
    """The convolution, and the answer, in float64.

    Contiguous: on a CPU torch's own gradient of an instance norm of one image, channels last, is wrong.
    """
    x, weight, _, gamma, beta = (tensor.double().contiguous() for tensor in given)
    convolved = functional.conv2d(x, weight, padding=1)
    normal = functional.instance_norm(convolved, weight=gamma, bias=beta, eps=eps)
    return convolved, functional.gelu(normal, approximate=approximate)


def agrees(
    given: list[torch.Tensor], precision: str, approximate: str, tolerance: float, counters: torch.Tensor | None = None
) -> None:
    """With the float64 answer, and so does what is kept for the backward pass."""
    convolved, expected = exact(given, approximate=approximate)
    if precision == "tf32":
        tolerance *= tail(expected.numel()) * STEEPEST * max(1.0, float(given[3].abs().max()))
    how: dict[str, Any] = {"precision": precision, "approximate": approximate, "counters": counters}
    alone, nothing = whole.conv_block_whole(*given, **how)
    out, saved = whole.conv_block_whole(*given, **how, keep=True)
    assert nothing is None
    assert saved is not None
    assert torch.equal(alone, out)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert float((out.double() - expected).abs().max()) < tolerance
    kept = saved.convolved.permute(0, 3, 1, 2), saved.statistics[:, 0], 1 / saved.statistics[:, 1]
    deviation = (convolved.var((2, 3), correction=0) + 1e-5).sqrt()
    for one, other in zip(kept, (convolved, convolved.mean((2, 3)), deviation), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)


WAYS = [
    (torch.bfloat16, "ieee", "none", 5e-2),
    (torch.float16, "ieee", "tanh", 6e-3),
    (torch.float32, "bf16x3", "none", 5e-5),
    (torch.float32, "fp16x3", "none", 3e-6),
    (torch.float32, "tf32", "none", 0.6 * 2**-11),
]
"""The last number is the largest error; of TF32 the error of a sum's operands, rounded to 11 bits, as a share of its
standard deviation: which error is the largest depends on how many there are."""
STEEPEST = 1.13
"""GELU's largest slope."""


# Odd rows of two images, and even ones of one that fill all a block's sums; all pairs run by `make sweep`.
# Of five images four multiprocessors take three, then two. Rows may be longer than what a warpgroup has of them.
ODD, EVEN, MANY, LONG, LONGER = (2, 7, 13), (1, 21, 96), (5, 7, 13), (1, 8, 130), (1, 4, 144)
BF16_WAY, HALF_WAY, _, SCALED_WAY, TF32_WAY = WAYS
QUICK = {ODD: [BF16_WAY], EVEN: [HALF_WAY, SCALED_WAY, TF32_WAY], MANY: [TF32_WAY], LONG: [BF16_WAY]}
QUICK |= {LONGER: [HALF_WAY], (1, 13, 60): []}
EMULATED = [
    pytest.param(shape, *way, marks=() if way in quick else pytest.mark.sweep)
    for way in WAYS
    for shape, quick in QUICK.items()
]
SHAPES = [(5, 128, 128), (1, 9, 13), (3, 65, 100), (1, 97, 131), (2, 30, 64)]
SHAPES += [(1, 40, 215), (132, 5, 8), (7, 128, 128), (133, 5, 8)]
LAUNCHED = [(shape, *way) for way in WAYS for shape in SHAPES] if ON_A_GPU else EMULATED


@either
@pytest.mark.parametrize(("shape", "dtype", "precision", "approximate", "tolerance"), LAUNCHED)
def test_the_kernel_agrees_with_float64(
    shape: tuple[int, int, int], dtype: torch.dtype, precision: str, approximate: str, tolerance: float
) -> None:
    counters = torch.zeros(shape[0], 2, dtype=torch.int32, device=DEVICE)
    for _ in range(3 if ON_A_GPU else 1):
        agrees(drawn(*shape, dtype), precision, approximate, tolerance, counters)
        assert not counters.any()


# Images, their rows, and multiprocessors. Of two images one has five strips of three rows, but one in the last, and one
# seven of two; of three, two have two of three and one three of two. Then three rounds.
IN_TURN = [
    ((2, 13, 7), torch.float16, "none", 6e-3),
    ((3, 5, 4), torch.bfloat16, "tanh", 5e-2),
    ((6, 10, 5), torch.float16, "tanh", 6e-3),
    ((9, 5, 4), torch.bfloat16, "none", 5e-2),
]


@either
@pytest.mark.parametrize(("sizes", "dtype", "approximate", "tolerance"), IN_TURN)
def test_images_in_turn_agree_with_float64(
    sizes: tuple[int, int, int], dtype: torch.dtype, approximate: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, and their halves, have unlike means; beside the last image eps is not small."""
    images, height, processors = sizes
    launcher = Mock(wraps=loader.cuda_launcher)
    monkeypatch.setattr(loader, "cuda_launcher", launcher)
    monkeypatch.setattr(loader, "multiprocessors", lambda device: processors)
    given = drawn(images, height, 128, dtype)
    given[0] += torch.linspace(-3, 3, height * 128, device=DEVICE).view(height, 128).to(dtype)
    given[0][-1] /= 256
    counters = torch.zeros(images, 2, dtype=torch.int32, device=DEVICE)
    agrees(given, "ieee", approximate, tolerance, counters)
    assert not counters.any()
    taken = "conv_block_turns", loader.scalar(dtype), approximate == "tanh"
    assert [call.args[1:] for call in launcher.call_args_list] == 2 * [taken]


@either
@pytest.mark.parametrize("image", [0, 1])
def test_nan_stays_in_its_image_where_images_take_turns(image: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In strips of three rows, and of two, of the first of two rounds."""
    monkeypatch.setattr(loader, "multiprocessors", lambda device: 3)
    given = drawn(4, 5, 128, torch.bfloat16)
    given[0][image, 35, 4, 2] = given[2][5] = NAN
    y, _ = whole.conv_block_whole(*given)
    poisoned = torch.zeros(4, 64, dtype=torch.bool, device=DEVICE)
    poisoned[image] = poisoned[:, 5] = True
    assert torch.equal(y.isnan().all((2, 3)), poisoned)
    assert torch.equal(y.isfinite().all((2, 3)), ~poisoned)


@pytest.mark.parametrize(
    ("size", "dtype", "expected"),
    [
        ((5, 128, 128), torch.bfloat16, [("conv_block_turns", 129)]),
        ((20, 128, 128), torch.bfloat16, [("conv_block_turns", 129)]),
        ((5, 128, 128), torch.float32, [("conv_block_whole", 130)]),
        ((5, 128, 120), torch.bfloat16, [("conv_block_whole", 130)]),
        ((7, 128, 128), torch.bfloat16, [("conv_block_whole", 128), ("conv_block_whole", 129)]),
    ],
)
def test_which_kernel_is_launched(
    size: tuple[int, int, int], dtype: torch.dtype, expected: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And by how many blocks."""
    launcher = Mock()
    monkeypatch.setattr(loader, "cuda_launcher", launcher)
    monkeypatch.setattr(loader, "tensor_map", Mock())
    monkeypatch.setattr(loader, "multiprocessors", lambda device: 132)
    x, weight = (torch.empty(shape, dtype=dtype) for shape in ((size[0], 64, *size[1:]), (64, 64, 3, 3)))
    whole.conv_block_whole(x, weight, precision="tf32")
    kernels = [call.args[1] for call in launcher.call_args_list]
    blocks = [call.args[0][0] for call in launcher.return_value.call_args_list]
    assert list(zip(kernels, blocks, strict=True)) == expected


def test_images_take_turns_where_that_saves_rows() -> None:
    """Not where strips of four rows would do, they do not fit, or there are more strips than a block has room for."""
    assert [whole.early_images(images, 128, 128, 132) for images in (5, 1, 2, 7, 20)] == [3, 0, 0, 0, 0]
    assert [whole.early_images(5, 128, width, 132) for width in (127, 129, 64)] == [0, 0, 0]
    assert [whole.early_images(3, 132, 128, processors) for processors in (87, 88, 98, 99)] == [0, 2, 2, 0]
    assert whole.early_images(3, 134, 128, 98) == 0


def scaled(*which: tuple[int, int | slice, int | slice, float]) -> Callable[[list[torch.Tensor]], None]:
    """Multiplies x (0) or the weight (1), of such images or channels out and channels in, by such a number."""

    def change(given: list[torch.Tensor]) -> None:
        for tensor, outer, inner, factor in which:
            given[tensor][outer, inner] *= factor

    return change


def two_channels(large: float, small: float) -> Callable[[list[torch.Tensor]], None]:
    """Of the second image, one large and one small, whose weights make up for it."""
    return scaled((0, 1, 40, large), (0, 1, 41, small), (1, ALL, 40, 1 / large), (1, ALL, 41, 1 / small))


def one_pixel(value: float, weights: float = 1) -> Callable[[list[torch.Tensor]], None]:
    """In the last strip of the second image only, in a channel of such weights."""

    def change(given: list[torch.Tensor]) -> None:
        given[0][1, 35, 6, 2] = value
        given[1][:, 35] *= weights

    return change


ALL, NAN, INF = slice(None), float("nan"), float("inf")
BEYOND_FLOAT16 = {
    "as drawn": (scaled(), 1e-5, ()),
    "pixels beyond its largest": (scaled((0, 1, ALL, 1e5)), 1e-5, (1,)),
    "one pixel beyond its largest": (one_pixel(1e5), 1e-5, (1,)),
    "one pixel that it holds": (one_pixel(3000, 1e-3), 1e-5, (1,)),
    "pixels below its smallest": (scaled((0, 1, ALL, 1e-7)), 1e-20, (1,)),
    "pixels that are small beside eps": (scaled((0, 1, ALL, 1e-7)), 1e-5, ()),
    "weights beyond its largest": (scaled((1, ALL, ALL, 1e4)), 1e-5, (0, 1)),
    "weights below its smallest": (scaled((1, ALL, ALL, 1e-6)), 1e-20, (0, 1)),
    "one channel out of small weights": (scaled((1, 7, ALL, 1e-6)), 1e-20, (0, 1)),
    "channels of unlike size that it holds": (two_channels(1000, 1e-3), 1e-5, (1,)),
    "channels of unlike size": (two_channels(1e4, 1e-6), 1e-5, (0, 1)),
    "infinity": (one_pixel(INF), 1e-5, (1,)),
    "only channels always multiplied thrice": (
        scaled((0, ALL, slice(16), 0), (0, ALL, slice(32, 64), 0)),
        1e-5,
        (0, 1),
    ),
    "NaN": (one_pixel(NAN), 1e-5, (1,)),
}
"""Of two images: how x and the weight are changed, eps, and the images that are then as exact as by three products."""


QUICK_CASES = ("one pixel that it holds", "only channels always multiplied thrice", "NaN")


@either
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if ON_A_GPU or case in QUICK_CASES else pytest.mark.sweep) for case in BEYOND_FLOAT16],
)
def test_what_float16_does_not_hold_is_multiplied_again(case: str) -> None:
    """Those images, and only those, are as exact as by three products of bfloat16; the others have TF32's accuracy."""
    change, eps, again = BEYOND_FLOAT16[case]
    given = drawn(*ODD, torch.float32)
    change(given)
    counters = torch.zeros(2, 2, dtype=torch.int32, device=DEVICE)
    y, saved = whole.conv_block_whole(*given, eps=eps, precision="tf32", keep=True, counters=counters)
    assert not counters.any()
    assert saved is not None
    z, expected = exact(given, eps)
    off = ((saved.convolved.permute(0, 3, 1, 2).double() - z).abs().amax((2, 3)) / z.std((2, 3))).amax(1)
    away = (y.double() - expected).abs().amax((1, 2, 3))
    for image in range(2):
        if not given[0][image].isfinite().all():
            assert y[image].isnan().all()
        elif image in again:
            assert max(float(off[image]), float(away[image])) < 1e-4
        else:
            assert float(off[image]) > 5e-4
            assert float(away[image]) < 2e-3


UNLIKE = {
    "as drawn": scaled(),
    "pixels of any size": scaled((0, 1, ALL, 1e30), (1, ALL, ALL, 1e-36)),
    "images of unlike sizes": scaled((0, 1, ALL, 1e-20)),
    "weights of unlike sizes": scaled((1, 7, ALL, 1e-12), (1, slice(16, 32), ALL, 1e6)),
    "slices of unlike sizes": scaled((0, ALL, slice(16, 32), 1e8), (1, ALL, slice(16, 32), 1e-8)),
    "channels of unlike sizes": scaled((0, ALL, 40, 1e4), (1, ALL, 40, 1e-4)),
}


@either
@pytest.mark.parametrize("case", UNLIKE)
def test_scaled_terms_hold_float32s_digits(case: str) -> None:
    """Sums are off by what float32's own products may be off: of the sum of all products' magnitudes."""
    given = drawn(*ODD, torch.float32)
    UNLIKE[case](given)
    _, saved = whole.conv_block_whole(*given, eps=1e-20, precision="fp16x3", keep=True)
    assert saved is not None
    (z, _), (size, _) = exact(given), exact([tensor.abs() for tensor in given])
    assert bool(((saved.convolved.permute(0, 3, 1, 2).double() - z).abs() <= 1e-6 * size).all())


@either
@pytest.mark.parametrize(("precision", "value"), [("ieee", NAN), ("fp16x3", NAN), ("fp16x3", INF)])
def test_what_is_not_finite_stays_in_its_image_and_its_channel(precision: str, value: float) -> None:
    given = drawn(*ODD, torch.bfloat16 if precision == "ieee" else torch.float32)
    one_pixel(value)(given)
    given[2][5] = NAN
    y, _ = whole.conv_block_whole(*given, precision=precision)
    assert y[1].isnan().all()
    assert y[0, 5].isnan().all()
    assert int(y[0].isfinite().sum()) == 63 * 7 * 13


GRADIENTS = [(torch.bfloat16, "none", 2e-2), (torch.float16, "tanh", 3e-3), (torch.float32, "none", 1e-6)]
PASSED_BACK = [(shape, *way) for way in GRADIENTS for shape in SHAPES if shape[0] < 132]
if not ON_A_GPU:
    PASSED_BACK = [((1, 13, 17), *way) for way in GRADIENTS[1:]]
    PASSED_BACK += [pytest.param(shape, *GRADIENTS[1], marks=pytest.mark.sweep) for shape in (ODD, MANY, LONG)]


@either
@pytest.mark.parametrize(("shape", "dtype", "approximate", "tolerance"), PASSED_BACK)
def test_gradients_agree_with_float64(
    shape: tuple[int, int, int], dtype: torch.dtype, approximate: str, tolerance: float
) -> None:
    """What is passed back behind the convolution and to x agrees with float64's."""
    given = drawn(*shape, dtype)
    x, weight, bias, gamma, beta = given
    precision = "fp16x3" if dtype == torch.float32 else "ieee"
    _, saved = whole.conv_block_whole(*given, approximate=approximate, precision=precision, keep=True)
    assert saved is not None
    grad = torch.randn(saved.convolved.shape, generator=torch.Generator(DEVICE).manual_seed(1), device=DEVICE).to(dtype)
    counters = torch.zeros(shape[0], 2, dtype=torch.int32, device=DEVICE)
    behind, sums = whole.behind_convolution(grad, saved, gamma, beta, approximate=approximate, counters=counters)
    assert not counters.any()
    leaves = [tensor.double().contiguous().requires_grad_() for tensor in (x, gamma, beta)]
    convolved, y = exact([leaves[0], weight, bias, *leaves[1:]], approximate=approximate)
    expected = torch.autograd.grad(y, [convolved, *leaves], grad.permute(0, 3, 1, 2).double().contiguous())
    back = whole.adjoint(behind, weight.permute(0, 2, 3, 1).reshape(64, 9, 64).contiguous())
    added = sums.double().sum(0)
    found = behind.permute(0, 3, 1, 2), back.permute(0, 3, 1, 2), added[1], added[0]
    assert all(error(*pair) < tolerance for pair in zip(found, expected, strict=True))


def test_what_fits_an_h200_and_what_does_not() -> None:
    goal = (5, 64, 128, 128)
    assert whole.strip_rows(5, 128, 128, 132) == 5
    assert whole.strip_rows(1, 128, 128, 132) == 1
    assert whole.backward_fits(goal, 64, torch.bfloat16, "ieee")
    assert whole.backward_fits(goal, 64, torch.float32, "fp16x3")
    assert not whole.backward_fits(goal, 64, torch.float32, "tf32")
    for dtype, precision in ((torch.bfloat16, "ieee"), (torch.float32, "tf32"), (torch.float32, "fp16x3")):
        assert whole.fits(goal, 64, dtype, precision)
    assert not whole.fits(goal, 64, torch.float32, "ieee")
    assert not whole.fits(goal, 64, torch.float64, "ieee")
    for shape in ((5, 3, 128, 128), (1, 64, 8, 7), (1, 64, 700, 128), (1, 64, 9, 216), (0, 64, 9, 9)):
        assert not whole.fits(shape, 64, torch.bfloat16, "ieee")
    assert not whole.fits(goal, 32, torch.bfloat16, "ieee")
    assert not whole.backward_fits((1, 64, 416, 215), 64, torch.bfloat16, "ieee")
    assert whole.launches(goal, 132) == whole.backward_launches(goal, 132) == [5]
    assert whole.launches((5, 64, 128, 130), 132) == whole.backward_launches((5, 64, 138, 128), 132) == [3, 2]
    assert whole.launches((7, 64, 128, 128), 132) == [4, 3]


@pytest.mark.parametrize("size", [(1, 9, 13), (7, 128, 128), (20, 97, 131), (133, 5, 8), (3, 416, 96), (40, 40, 215)])
def test_every_image_is_launched_once_and_what_is_launched_runs_at_once(size: tuple[int, int, int]) -> None:
    for processors in (4, 114, 132):
        shape = (size[0], 64, *size[1:])
        for images in whole.launches(shape, processors):
            rows = whole.strip_rows(images, *size[1:], processors)
            assert images * -(-size[1] // rows) <= processors
        for images in whole.backward_launches(shape, processors):
            assert processors // images * whole.SHARE >= size[1] * size[2]
        for found in (whole.launches(shape, processors), whole.backward_launches(shape, processors)):
            assert not found or (sum(found) == size[0] and max(found) - min(found) <= 1)


# One of each source, the one of most registers; all by `make sweep`.
COMPILED = [("conv_block/conv_block_whole", instance) for instance in reversed(INSTANCES)]
COMPILED += [("conv_block/conv_block_whole", instance) for instance in TURNS]
COMPILED += [
    ("conv_block/conv_block_gradient", f"conv_block_gradient<{of}>")
    for of in ("float, false", "float, true", "__half, true", "__nv_bfloat16, false")
]
QUICKLY_COMPILED = (INSTANCES[-1], TURNS[-1], GRADIENT_INSTANCES[1])


@pytest.mark.parametrize(
    ("name", "instance"),
    [pytest.param(*one, marks=() if one[1] in QUICKLY_COMPILED else pytest.mark.sweep) for one in COMPILED],
)
def test_machine_code_keeps_its_sums_in_registers(name: str, instance: str, tmp_path: Path) -> None:
    cuda_sources.compiles_without_spills(tmp_path, name, [instance])


@pytest.mark.cuda
@on_hopper
def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="x .* do not fit one kernel"):
        whole.conv_block_whole(torch.zeros(1, 16, 8, 8, device=DEVICE), torch.zeros(16, 16, 3, 3, device=DEVICE))
