"""Memory layouts: the same numbers in each, the right product from each, and what copies them."""

from __future__ import annotations

import pytest
import torch

from hypatia_lab.check import Problem, check
from hypatia_lab.machine import choose_device
from hypatia_lab.operations.linear_relu import layout
from hypatia_lab.variants import variants
from hypatia_lab.workloads import Workload

DEVICE = choose_device("auto")


def problem(shape: tuple[int, ...] = (12, 24, 40), dtype: str = "float32") -> Problem:
    return Problem(Workload(layout.NAME, shape, dtype), DEVICE)


@pytest.mark.parametrize("draw", [0, 1])
def test_every_layout_holds_the_same_numbers_after_each_draw(draw: int) -> None:
    own = problem()
    own.draw(draw)
    x, weight = own.inputs["x"], own.inputs["weight"]
    for name in ("x_column_major", "x_padded", "x_unaligned"):
        assert torch.equal(own.inputs[name], x)
    for name in ("x_batch", "x_strided_batch"):
        assert torch.equal(own.inputs[name].reshape(x.shape), x)
    assert torch.equal(own.inputs["weight_packed"], weight.t())
    assert torch.equal(own.inputs["weight_unaligned"], weight)
    for name in ("x_unaligned", "weight_unaligned"):
        assert own.inputs[name].data_ptr() % 16 == 4
    assert {name: tensor.stride() for name, tensor in own.inputs.items()} == {
        **{"x": (24, 1), "x_column_major": (1, 12), "x_padded": (24 + layout.PADDING, 1), "x_unaligned": (24, 1)},
        **{"x_batch": (96, 24, 1), "x_strided_batch": (24, 72, 1)},
        **{"weight": (24, 1), "weight_packed": (40, 1), "weight_unaligned": (24, 1), "bias": (1,)},
    }


def test_the_numbers_are_those_of_linear_relu() -> None:
    own, plain = Workload(layout.NAME, (6, 5, 4)), Workload("linear_relu", (6, 5, 4))
    for name, tensor in plain.inputs("cpu", draw=1).items():
        assert torch.equal(own.inputs("cpu", draw=1)[name], tensor)
    assert (own.flops, own.traffic) == (plain.flops, plain.traffic)


@pytest.mark.parametrize(
    ("batch", "split"), [(1, (1, 1)), (7, (1, 7)), (12, (3, 4)), (1024, (32, 32)), (8192, (64, 128))]
)
def test_a_batch_is_split_as_square_as_it_divides(batch: int, split: tuple[int, int]) -> None:
    assert layout.sequences(batch) == split


def test_well_known_mistakes_are_named() -> None:
    own = problem()
    inputs = own.inputs
    found = check(lambda: torch.nn.functional.linear(inputs["x"], inputs["weight"], inputs["bias"]), own)
    assert "ReLU missing" in found.reason


def test_what_each_call_does_to_each_layout() -> None:
    found = {(one.layout, one.call): one.copied for one in layout.handlings((12, 24, 40), device=DEVICE)}
    size = 12 * 24 * 4
    expected = {
        "contiguous": (0, 0, 0, 0),
        "transposed batch": (None, size, size, 0),
        "column-major": (0, 0, size, 0),
        "rows of a wider matrix": (0, 0, size, 0),
        "unaligned": (0, 0, 0, 0),
    }
    assert list(layout.CALLS) == ["view", "reshape", "contiguous", "transpose"]
    assert found == {
        (name, call): copied for name, row in expected.items() for call, copied in zip(layout.CALLS, row, strict=True)
    }


@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("bfloat16", 2)])
def test_which_variants_copy_and_how_much(dtype: str, itemsize: int) -> None:
    found = layout.variant_copies((12, 24, 40), dtype, DEVICE)
    assert set(found) == set(variants(layout.NAME))
    assert {name: size for name, size in found.items() if size} == {
        "pack_each_call": itemsize * 24 * 40,
        "x_strided_batch": itemsize * 12 * 24,
        "copy_first": itemsize * 12 * 24,
    }


def test_a_batch_of_a_prime_number_of_rows_is_in_order_whatever_its_strides() -> None:
    assert layout.variant_copies((7, 24, 40))["x_strided_batch"] == 0


def test_memory_and_dispatcher_are_both_asked() -> None:
    x = torch.ones(4, 6)
    assert layout.copies(lambda: x.t().contiguous()) == [("clone", 96)]
    assert layout.copies(lambda: x.contiguous().view(-1)) == []
    assert layout.copies(lambda: x.double()) == [("_to_copy", 192)]
    assert layout.copies(lambda: torch.empty(4, 6).copy_(x)) == [("copy_", 96)]
    assert layout.shares_memory(x, x[1:].t())
    assert not layout.shares_memory(x, x.clone())
    with pytest.raises(AssertionError, match="0 bytes copied"):
        layout.bytes_copied(lambda x: x + 1, x)
