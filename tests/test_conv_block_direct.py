"""The convolution of few channels on vector units: on a GPU, in the emulator of one, and compiled by nvcc."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import cuda_sources
import pytest
import torch
from kernel_tensors import DEVICE, error, normal
from torch.nn import functional

from hypatia_lab.kernels import loader
from hypatia_lab.kernels.conv_block import conv_block_direct as direct

NAME = "conv_block/conv_block_direct"
CHANNELS = ((1, 1, 1), (3, 9, 2), (5, 26, 1), (9, 9, 4), (26, 12, 2), (17, 24, 4), (21, 21, 4))
"""In, out, and pixels of a thread."""
INSTANCES = [loader.instance_of("conv_block_direct", *one) for one in CHANNELS]
emulation = cuda_sources.emulation({NAME: INSTANCES})


@pytest.fixture
def kernels(request: pytest.FixtureRequest) -> None:
    """The GPU's; where there is none, an emulator's."""
    if DEVICE == "cpu":
        request.getfixturevalue("emulation")
    elif missing := loader.capability_missing((8, 0)):
        pytest.skip(missing)


def convolved(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tall: int, wide: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The convolution (N, C_out, H, W), and the patches' moments."""
    (images, _, height, width), outer = x.shape, len(weight)
    taps = weight.permute(0, 2, 3, 1).contiguous().view(outer, 9, -1)
    moments = x.new_full((images, -(-height // tall) * -(-width // wide), 2, outer), float("nan"))
    return direct.convolve_direct(x, taps, bias, moments, tall, wide).permute(0, 3, 1, 2), moments


@pytest.mark.usefixtures("kernels")
@pytest.mark.cuda
@pytest.mark.parametrize(("inner", "outer", "pixels"), CHANNELS)
@pytest.mark.parametrize("last", [False, True])
def test_it_sums_nine_products_before_all_channels(inner: int, outer: int, pixels: int, last: bool) -> None:
    images, height, width, wide = 2, 19, 21, 8 * pixels
    shapes = (images, inner, height, width), (outer, inner, 3, 3), (outer,)
    x, weight, bias = normal(*shapes, device=DEVICE, seed=inner * outer)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    exact = functional.conv2d(x.double(), weight.double(), bias.double(), padding=1)
    found, moments = convolved(x, weight, bias, 8, wide)
    # One rounding is off by 0.4 · 2⁻²⁴ in the mean; partial sums of n random numbers have √(n/2) times that.
    assert error(found, exact) <= 1.3 * 0.4 * 2**-24 * ((inner + 9) / 2 + 1) ** 0.5
    assert float((found - exact).abs().max()) < 1e-6 * float(exact.abs().max()) * inner**0.5
    tiles = [(r, q) for r in range(0, height, 8) for q in range(0, width, wide)]
    for image, (number, (r, q)) in product(range(images), enumerate(tiles)):
        part = exact[image, :, r : r + 8, q : q + wide].flatten(1)
        mean = part.mean(1)
        torch.testing.assert_close(moments[image, number, 0].double(), mean, rtol=1e-5, atol=1e-5)
        squares = (part - mean[:, None]).square().sum(1)
        torch.testing.assert_close(moments[image, number, 1].double(), squares, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("kernels")
@pytest.mark.cuda
def test_nan_and_infinity_are_seen_by_their_neighbours_alone() -> None:
    x, weight = normal((1, 9, 12, 40), (9, 9, 3, 3), device=DEVICE)
    x[0, 3, 4, 5], x[0, 8, 11, 39] = float("nan"), float("inf")
    found, moments = convolved(x, weight, None, 8, 32)
    exact = functional.conv2d(x.double().cpu(), weight.double().cpu(), padding=1)
    assert torch.equal(found.isfinite().cpu(), exact.isfinite())
    assert torch.equal(moments[0, :, 0].isfinite().all(1).cpu(), torch.tensor([False, True, True, False]))


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA GPU")
@pytest.mark.cuda
def test_a_block_has_its_shared_memory_near_the_most_that_needs_no_leave() -> None:
    for channels in range(19, 24):
        x, weight = normal((2, channels, 200, 300), (channels, channels, 3, 3), device=DEVICE)
        exact = functional.conv2d(x.double(), weight.double(), padding=1)
        assert error(convolved(x, weight, None, 16, 16)[0], exact) < 2e-7


@pytest.mark.parametrize(
    ("images", "height", "width"), [(1, 2, 1), (1, 257, 48), (3, 471, 21), (20, 61, 43), (5, 391, 375)]
)
def test_patches_fill_a_block_and_leave_blocks_for_all_multiprocessors(images: int, height: int, width: int) -> None:
    tall, wide = direct.patch(images, height, width)
    assert tall * wide in (64, 128, 256)
    assert wide >= tall * wide // direct.THREADS
    blocks = images * -(-height // tall) * -(-width // wide)
    assert blocks >= 132 or tall * wide == 64


def test_without_a_gpu_matrix_products_are_what_there_is() -> None:
    assert not direct.fits(torch.zeros(1, 3, 4, 4), 3, "fp16x3")


def test_it_builds_to_machine_code_without_spills(tmp_path: Path) -> None:
    cuda_sources.compiles_without_spills(tmp_path, NAME, INSTANCES)
