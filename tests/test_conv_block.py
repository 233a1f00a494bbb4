"""The convolution block: what is right, every fault by name, the peers, the seeds' pipeline on a CPU and emulated."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cuda_sources
import pytest
import torch
import torch.nn.functional as functional
from cuda_sources import compiles_without_spills
from kernel_tensors import DEVICE, accepted, needs_compiler, normal, on_gpu

from hypatia_lab import records, results
from hypatia_lab.check import Check, Problem, check, judge
from hypatia_lab.experiments import EXPERIMENTS, PRESETS
from hypatia_lab.kernels import loader
from hypatia_lab.operations import conv_block
from hypatia_lab.operations.conv_block import GRADIENTS, OPERATIONS, PARAMETERS
from hypatia_lab.operations.conv_block import own as conv_block_kernels
from hypatia_lab.operations.conv_block import pipeline as conv_block_pipeline
from hypatia_lab.operations.conv_block.pipeline import WAYS, pipeline
from hypatia_lab.planted import BLOCK_FAULTS, BOTH, block
from hypatia_lab.variants import baseline, variants
from hypatia_lab.workloads import MATH, Workload

Inputs = dict[str, torch.Tensor]


# ---------------------------------------------------------------- what is right


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    "shape", [(1, 3, 7, 5), (33, 4, 9, 10), (2, 16, 33, 40), (1, 64, 17, 31), (2, 96, 8, 8), (1, 3, 97, 131)]
)
def test_the_references_are_what_autograd_makes_of_torchs_own_functions(shape: tuple[int, ...], operation: str) -> None:
    problem = Problem(Workload(operation, shape, "float64", direction=BOTH), DEVICE)
    references = dict(zip(("y", *GRADIENTS), problem.references(), strict=True))
    own = answer(problem.inputs, approximate=OPERATIONS[operation])
    for (name, found), wanted in zip(references.items(), own, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")
    assert not references["grad_bias"].any(), "exactly zero"


def test_outputs_are_normalised_and_one_channel_is_quiet() -> None:
    inputs = Workload("conv_block", (5, 16, 32, 32)).inputs("cpu")
    z = functional.conv2d(inputs["x"], inputs["weight"], inputs["bias"], padding=1)
    variance = z.var((0, 2, 3))
    assert 0.01 < float(variance[0]) < 0.1
    assert bool(((variance[1:] > 1) & (variance[1:] < 3)).all())
    assert 3 < float(conv_block.reference(inputs, "none").abs().max()) < 7


def test_a_draw_keeps_every_layout_the_same_numbers() -> None:
    problem = Problem(Workload("conv_block", (2, 3, 5, 6), direction=BOTH), "cpu")
    problem.draw(1)
    for name in ("x", "weight", "grad"):
        assert torch.equal(problem.inputs[name], problem.inputs[f"{name}_channels_last"])
    assert problem.inputs["x_channels_last"].stride() == (90, 1, 18, 3)


def test_work_is_counted() -> None:
    seed = Workload("conv_block", conv_block.SEED_SHAPE)
    assert 2 * 5 * 64 * 64 * 9 * 128 * 128 == 6_039_797_760 < seed.flops < 1.02 * 6_039_797_760
    assert seed.traffic == 4 * (2 * 5 * 64 * 128 * 128 + 64 * 64 * 9 + 3 * 64)
    both = Workload("conv_block", conv_block.SEED_SHAPE, direction=BOTH)
    assert (both.flops, both.traffic) == (3 * seed.flops, 2 * seed.traffic)
    assert seed.tolerance() == pytest.approx(3.07e-6, rel=1e-2)
    assert Workload("conv_block", (1, 1, 2, 2), math="tf32").tolerance() == pytest.approx(2**-10, rel=1e-2)
    assert baseline("conv_block") == baseline("conv_block_tanh") == "eager"


def test_what_passed_for_float32_by_three_bfloat16_products_is_told_no_more(
    committed_records: list[records.Record],
) -> None:
    rows = [row for row in results.rows(committed_records) if row.operation in OPERATIONS]
    assert not any("bf16x3" in name for name in (*variants("conv_block"), *(row.variant for row in rows)))
    float32 = [row for row in rows if row.workload.endswith("float32/ieee/forward") and row.status == "ok"]
    assert max(row.error for row in float32) < results.FLOAT32  # the dispatcher chose some, too


def test_math_is_set_for_convolutions_too() -> None:
    before = torch.backends.cudnn.allow_tf32
    for math, allowed in (("ieee", False), ("tf32", True)):
        with Workload("conv_block", (1, 1, 2, 2), math=math).precision():
            assert torch.backends.cudnn.allow_tf32 is allowed
    assert torch.backends.cudnn.allow_tf32 is before


# ---------------------------------------------------------------- the variants


def test_each_way_of_the_pipeline_is_a_variant_with_its_origin() -> None:
    known = variants("conv_block")
    assert [known[way].origin for way in ("naive", "naive_malloc", "threaded")] == ["rebuilt", "rebuilt", "own"]
    assert "per_tile" not in known


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_plans_hold_the_documents_size(device: str, preset: str) -> None:
    sizes = {group.workload.shape for group in EXPERIMENTS["conv_block"].plan(preset, device, ())}
    assert (conv_block.SEED_SHAPE in sizes) is ((preset, device) != ("quick", "cpu"))


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_timed_on_an_h200_can_run_there(preset: str) -> None:
    own = {name for name, found in variants("conv_block").items() if found.origin == "own"} - {"threaded"}
    timed: set[str] = set()
    for group in EXPERIMENTS["conv_block"].plan(preset, "cuda", ()):
        for name in own & set(group.variants):
            why = variants(group.workload.operation)[name].needs(group.workload, "cuda")
            # More images than an H200 has room for at once are two kernels' work, and so are other channels than 64.
            few = group.workload.shape[0] <= 5 and group.workload.shape[1] == 64
            if group.clocks and group.workload.shape[2:] == (128, 128) and (few or "whole" not in name):
                assert not why, (name, group.workload)
                timed.add(name)
    assert {"triton", "whole", "whole_fp16x3"} <= timed


def test_the_one_kernel_is_taken_where_it_is_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(images: int, dtype: torch.dtype, precision: str = "bf16x3", **how: bool) -> str:
        x = torch.empty(images, 64, 128, 128, dtype=dtype, device="meta")
        return conv_block_kernels.quicker(x, 64, precision, **how)

    assert taken(5, torch.bfloat16) == "triton"  # there is no GPU
    monkeypatch.setattr(conv_block_kernels, "missing", lambda form, device: "")
    monkeypatch.setattr(conv_block_kernels, "fits", lambda size, *more: size[0] < 9)
    assert [n for n in (1, 2, 3, 8, 9) if taken(n, torch.bfloat16, "ieee") == "whole"] == [3, 8]
    assert taken(1, torch.bfloat16, step=True) == "whole"
    assert taken(5, torch.float32, "ieee") == "triton"
    assert taken(5, torch.float32) == "whole"


@on_gpu
@pytest.mark.parametrize("images", [5, 20])
def test_three_products_of_float16_are_as_near_float64_as_eager(images: int) -> None:
    workload = Workload("conv_block", (images, *conv_block.SEED_SHAPE[1:]))
    known = variants("conv_block")
    if missing := known["triton_fp16x3"].needs(workload, DEVICE):
        pytest.skip(missing)
    with workload.precision():
        problem = Problem(workload, DEVICE)
        own, eager = (
            judge(known[name].factory(workload, problem.inputs)(), problem) for name in ("triton_fp16x3", "eager")
        )
    assert accepted(own) <= 1.25 * accepted(eager)
    assert (own.max_error or 0.0) <= 1.25 * (eager.max_error or 0.0)


def test_a_captured_variant_replays_what_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def capture(work: Callable[[], None]) -> SimpleNamespace:
        work()
        calls.append("recorded")
        work()
        return SimpleNamespace(replay=lambda: calls.append("replayed"))

    monkeypatch.setattr(conv_block_kernels, "capture", capture)
    for direction in ("forward", BOTH):
        workload = Workload("conv_block", (2, 3, 8, 8), direction=direction)
        run = variants("conv_block")["eager_graph"].factory(workload, workload.inputs("cpu"))
        assert run() is run()
        assert judge(run(), Problem(workload, "cpu")).ok
    assert calls == 2 * ["recorded", "replayed", "replayed", "replayed"]


def test_what_a_captured_run_allocated_lives_as_long_as_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_block_kernels, "capture", lambda work: SimpleNamespace(replay=work() or (lambda: None)))
    own: list[weakref.ref[torch.Tensor]] = []

    def factory(workload: Workload, inputs: Inputs) -> Callable[[], torch.Tensor]:
        counters = torch.zeros(1)
        own.append(weakref.ref(counters))
        return lambda: counters + 1

    replay = conv_block_kernels.captured(factory)(Workload("conv_block", (2, 3, 8, 8)), {})
    gc.collect()
    assert own[0]() is not None
    del replay
    gc.collect()
    assert own[0]() is None


# ---------------------------------------------------------------- what is wrong

SQUARE = (3, 6, 33, 24)


def named(reason: str, problem: Problem, run: Callable[[Inputs], object]) -> Check:
    """The check's finding, which begins with ``reason``."""
    found = check(lambda: run(problem.inputs), problem)
    assert not found.ok
    assert found.reason.startswith(reason)
    return found


@pytest.mark.parametrize("reason", BLOCK_FAULTS)
def test_a_planted_fault_is_named_where_gelu_is_by_tanh(reason: str) -> None:
    named(reason, Problem(Workload("conv_block_tanh", SQUARE), "cpu"), block("tanh", **BLOCK_FAULTS[reason]))


def test_the_two_gelus_are_told_apart_in_float32_and_not_in_tf32() -> None:
    for operation, approximate, reason in (
        ("conv_block", "tanh", "GELU by tanh instead of erf"),
        ("conv_block_tanh", "none", "GELU by erf instead of tanh"),
    ):
        run = block(approximate)
        found = named(reason, Problem(Workload(operation, SQUARE), "cpu"), run)
        assert 1e-4 < (found.max_error or 0) < 1e-3
        loose = Problem(Workload(operation, SQUARE, math="tf32"), "cpu")
        assert judge(run(loose.inputs), loose).ok


def test_tf32_is_right_where_it_is_asked_for_and_bfloat16_is_not() -> None:
    def tf32(t: torch.Tensor) -> torch.Tensor:
        return ((t.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)  # to nearest, 10 bits kept

    for shape in ((1, 3, 7, 5), SQUARE, (2, 64, 31, 33)):
        problem = Problem(Workload("conv_block", shape, math="tf32"), "cpu")
        i = problem.inputs
        rest = i["bias"], i["gamma"], i["beta"]
        assert judge(conv_block.conv_block(tf32(i["x"]), tf32(i["weight"]), *rest), problem).ok
        short = conv_block.conv_block(i["x"].bfloat16().float(), i["weight"].bfloat16().float(), *rest)
        assert not judge(short, problem).ok


def test_a_missing_bias_is_no_fault() -> None:
    problem = Problem(Workload("conv_block", SQUARE), "cpu")
    i = problem.inputs
    assert check(lambda: conv_block.conv_block(i["x"], i["weight"], None, i["gamma"], i["beta"]), problem).ok


def answer(
    i: Inputs, change: Callable[..., torch.Tensor] = functional.instance_norm, approximate: str = "none"
) -> tuple[torch.Tensor, ...]:
    """y and autograd's gradients, with ``change`` in place of the normalisation."""
    leaves = [i[name].clone().requires_grad_() for name in PARAMETERS]
    x, weight, bias, gamma, beta = leaves
    z = functional.conv2d(x, weight, bias, padding=1)
    y = functional.gelu(change(z, weight=gamma, bias=beta), approximate=approximate)
    return y.detach(), *torch.autograd.grad(y, leaves, i["grad"])


def with_part(number: int, change: Callable[[torch.Tensor, Inputs], torch.Tensor]) -> Callable[[Inputs], object]:
    def run(i: Inputs) -> object:
        parts = list(answer(i))
        parts[number] = change(parts[number], i)
        return tuple(parts)

    return run


def constant(mean: bool, variance: bool) -> Callable[..., torch.Tensor]:
    """Instance normalisation whose mean or variance is kept from autograd."""

    def norm(z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        spread, middle = torch.var_mean(z, (2, 3), correction=0, keepdim=True)
        middle, spread = middle.detach() if mean else middle, spread.detach() if variance else spread
        return (z - middle) * (spread + 1e-5).rsqrt() * weight.view(1, -1, 1, 1) + bias.view(1, -1, 1, 1)

    return norm


BACKWARD: dict[str, Callable[[Inputs], object]] = {
    "grad_x: statistics taken as constants": lambda i: answer(i, constant(True, True)),
    "grad_x: gradient through the mean missing": lambda i: answer(i, constant(True, False)),
    "grad_x: gradient through the variance missing": lambda i: answer(i, constant(False, True)),
    "grad_x: upstream gradient taken as ones": lambda i: answer(i | {"grad": torch.ones_like(i["grad"])}),
    "grad_x: gradient missing (zeros)": with_part(1, lambda part, i: torch.zeros_like(part)),
    "grad_x: kernel flipped": with_part(
        1, lambda part, i: functional.conv_transpose2d(at_z(i), i["weight"].flip(2, 3), padding=1)
    ),
    "grad_weight: mean over the batch for its sum": with_part(2, lambda part, i: part / len(i["x"])),
    "grad_bias: statistics taken as constants": with_part(3, lambda part, i: answer(i, constant(True, True))[3]),
    "grad_bias: wrong values": with_part(3, lambda part, i: torch.ones_like(part)),
    "grad_gamma: mean over the batch for its sum": with_part(4, lambda part, i: part / len(i["x"])),
    "grad_gamma: derivative of GELU missing": with_part(
        4, lambda part, i: (i["grad"] * conv_block.normalised(z_of(i))[0]).sum((0, 2, 3))
    ),
    "grad_beta: derivative of GELU missing": with_part(5, lambda part, i: i["grad"].sum((0, 2, 3))),
}


def z_of(i: Inputs) -> torch.Tensor:
    return functional.conv2d(i["x"], i["weight"], i["bias"], padding=1)


def at_z(i: Inputs) -> torch.Tensor:
    """The gradient at the convolution's output."""
    z = z_of(i).requires_grad_()
    y = functional.gelu(functional.instance_norm(z, weight=i["gamma"], bias=i["beta"]))
    return torch.autograd.grad(y, z, i["grad"])[0]


@pytest.mark.parametrize("reason", BACKWARD)
def test_a_planted_fault_of_the_backward_pass_is_named(reason: str) -> None:
    named(reason, Problem(Workload("conv_block", SQUARE, direction=BOTH), "cpu"), BACKWARD[reason])


@pytest.mark.parametrize("dtype", MATH)
def test_what_rounding_leaves_of_the_biases_gradient_is_right_and_recorded_small(dtype: str) -> None:
    problem = Problem(Workload("conv_block", SQUARE, dtype, direction=BOTH), "cpu")
    parts = answer(problem.inputs)
    assert bool(parts[3].any())  # exactly zero it is not
    assert (
        accepted(judge(parts, problem)) < {"float64": 1e-12, "float32": 2e-5, "bfloat16": 1e-2, "float16": 2e-3}[dtype]
    )


@pytest.mark.skipif(DEVICE != "cpu", reason="torch's CPU kernel is meant")
def test_the_check_finds_torchs_wrong_gradient_of_one_image_channels_last() -> None:
    """torch 2.13 on a CPU: of one image, instance_norm's gradients are wrong when the upstream one is channels last."""
    workload = Workload("conv_block", (1, 3, 7, 5), direction=BOTH)
    problem = Problem(workload, "cpu")
    found = check(variants("conv_block")["eager_channels_last"].factory(workload, problem.inputs), problem)
    if found.ok:
        pytest.skip(f"torch {torch.__version__} computes it rightly")
    assert found.reason.startswith("grad_x: wrong values: ")


# ---------------------------------------------------------------- the pipeline


Five = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def tensors(batch: int = 2, inner: int = 3, outer: int = 4, height: int = 7, width: int = 6) -> Five:
    shapes = (batch, inner, height, width), (outer, inner, 3, 3), (outer,), (outer,), (outer,)
    x, weight, bias, gamma, beta = normal(*shapes, device=DEVICE, seed=1)
    return x, weight, bias, gamma, beta


def runnable() -> list[str]:
    return [way for way in WAYS if not conv_block_pipeline.unable(way, DEVICE)]


@needs_compiler
def test_other_channels_out_strided_inputs_a_missing_bias_and_no_image_are_taken() -> None:
    x, weight, bias, gamma, beta = tensors()
    expected = conv_block.conv_block(x, weight, bias, gamma, beta)
    faint = 1e-3 * x, weight, bias, gamma, beta  # of a variance beside which epsilon is large
    for way in runnable():
        torch.testing.assert_close(pipeline(way, *faint), conv_block.conv_block(*faint), rtol=1e-4, atol=1e-4)
        for case in (x, x.contiguous(memory_format=torch.channels_last), torch.stack([x, -x], -1)[..., 0]):
            torch.testing.assert_close(pipeline(way, case, weight, bias, gamma, beta), expected, rtol=1e-5, atol=1e-5)
        across = weight.contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(pipeline(way, x, across, None, gamma, beta), expected, rtol=1e-5, atol=1e-5)
        assert pipeline(way, x[:0], weight, bias, gamma, beta).shape == (0, 4, 7, 6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, w, b, g, s: (x[0], w, b, g, s), r"\[3, 7, 6\]"),
        (lambda x, w, b, g, s: (x[:, :2], w, b, g, s), "3 channels, but got 2 channels"),
        (lambda x, w, b, g, s: (x, w[..., :1], b, g, s), "weight of size"),
        (lambda x, w, b, g, s: (x, w, b[:3], g, s), "expected bias .* 4 elements"),
        (lambda x, w, b, g, s: (x, w, b, g[None], s), "expected gamma"),
        (lambda x, w, b, g, s: (x, w, b, g, s[:1]), "expected beta"),
        (lambda x, w, b, g, s: (x[..., :1, :1], w, b, g, s), r"torch.Size\(\[2, 4, 1, 1\]\)"),
        (lambda x, w, b, g, s: (x, w.double(), b, g, s), r"torch.float32\) and weight type \(torch.float64"),
        (lambda x, w, b, g, s: (x, w, b, g, s.half()), "beta type"),
        (lambda x, w, b, g, s: tuple(t.int() for t in (x, w, b, g, s)), r"Input type \(torch.int32\)"),
        (lambda x, w, b, g, s: (x, w, b, g.requires_grad_(), s), "gamma requires a gradient and naive"),
    ],
)
def test_a_misfit_is_refused_as_torch_words_it(change: Callable[..., tuple[Any, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pipeline("naive", *change(*tensors()))


def test_tensors_on_two_devices_are_refused() -> None:
    x, weight, bias, gamma, beta = tensors()
    with pytest.raises(ValueError, match="same device.* and meta"):
        conv_block.checked(x, weight, bias, gamma.to("meta"), beta)


@pytest.mark.parametrize(
    ("function", "how", "message"),
    [
        (partial(pipeline, "naive"), {"approximate": "erf"}, "none or tanh, not 'erf'"),
        (partial(pipeline, "naive"), {"p": 1.5}, "between 0 and 1, but got 1.5"),
        (partial(pipeline, "per_tile"), {}, "'per_tile'; known: naive, "),
        *[(partial(pipeline, "naive_malloc"), {}, "naive_malloc on x: needs a CUDA GPU")] * (DEVICE == "cpu"),
        *[(conv_block_kernels.fused_conv_block, {}, "triton on x: needs a CUDA GPU")] * (DEVICE == "cpu"),
        (conv_block_kernels.fused_conv_block, {"p": -1}, "between 0 and 1, but got -1"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(function: Any, how: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(*tensors(), **how)


@needs_compiler
def test_opcheck_passes() -> None:
    x, weight, _, gamma, beta = tensors()
    arguments = x, weight, None, gamma, beta, "tanh", 0.5, 3, "naive"
    torch.library.opcheck(torch.ops.hypatia.conv_block_pipeline.default, arguments)


# ---------------------------------------------------------------- dropout


def philox(counter: int, seed: int) -> int:
    """First number of Philox4x32-10, from the paper's description, in Python's whole numbers."""
    low = 2**32 - 1
    words, keys = [counter & low, counter >> 32, 0, 0], [seed & low, seed >> 32]
    for _ in range(10):
        left, right = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [right >> 32 ^ words[1] ^ keys[0], right & low, left >> 32 ^ words[3] ^ keys[1], left & low]
        keys = [(keys[0] + 0x9E3779B9) & low, (keys[1] + 0xBB67AE85) & low]
    return words[0]


def test_the_generator_is_philox() -> None:
    assert philox(0, 0) == 0x6627E8D5  # the known answer of its authors


@needs_compiler
@pytest.mark.parametrize(("p", "seed"), [(0.1, 0), (0.5, 7), (0.9, 2**40 + 1), (1.0, 3)])
def test_dropout_drops_what_the_generator_says_and_scales_the_rest(p: float, seed: int) -> None:
    given = tensors(batch=3)
    whole = conv_block.conv_block(*given)
    dropped = [philox(number, seed) < round(p * 2**32) for number in range(whole.numel())]
    mask = torch.tensor(dropped, device=DEVICE).view(whole.shape)
    expected = torch.where(mask, 0.0, whole / max(1e-9, 1 - p))
    for way in runnable():
        found = pipeline(way, *given, p=p, seed=seed)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(found, pipeline(way, *given, p=p, seed=seed))


def test_the_library_block_drops_too() -> None:
    given = tensors(4, 2, 8, 64, 64)
    whole, some = conv_block.conv_block(*given), conv_block.conv_block(*given, p=0.25)
    assert float((some == 0).double().mean()) == pytest.approx(0.25, abs=0.006)
    torch.testing.assert_close(some[some != 0], (whole / 0.75)[some != 0])


# ---------------------------------------------------------------- the CUDA kernels, emulated

KINDS = ("float32", "float64", "bfloat16")


def instances(dtypes: Iterable[str]) -> list[str]:
    kernels = (("convolve",), ("statistics",), ("finish", True), ("finish", False))
    return [
        loader.instance_of(f"conv_block_{name}", *loader.SCALARS[dtype], *more)
        for dtype in dtypes
        for name, *more in kernels
    ]


class Driver:
    """Stands in for the CUDA driver's library: its memory holds NaN, and is counted."""

    def __init__(self) -> None:
        self.held: dict[int, torch.Tensor] = {}
        self.sizes: list[int] = []

    def cuMemAlloc_v2(self, address: Any, size: Any) -> int:
        memory = torch.full((size.value,), 255, dtype=torch.uint8)
        ctypes.cast(address, ctypes.POINTER(ctypes.c_uint64))[0] = memory.data_ptr()
        self.held[memory.data_ptr()] = memory
        self.sizes.append(size.value)
        return 0

    def cuMemFree_v2(self, address: Any) -> int:
        del self.held[address.value]
        return 0


emulation = cuda_sources.emulation({"conv_block/conv_block": instances(KINDS)})


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, emulation: None) -> Driver:
    """``naive_malloc`` runs on a CPU: its kernels in the emulator, its memory from a stand-in."""
    found = Driver()
    monkeypatch.setattr(loader, "driver", lambda: found)
    monkeypatch.setattr(conv_block_pipeline, "unable", lambda way, device: "")
    return found


@pytest.mark.parametrize("dtype", KINDS)
def test_the_emulated_kernels_agree_with_float64(dtype: str, driver: Driver) -> None:
    for operation, approximate in OPERATIONS.items():
        for shape in ((1, 1, 1, 2), (2, 3, 7, 5), (1, 2, 17, 23)):
            problem = Problem(Workload(operation, shape, dtype), "cpu")
            x, weight, bias, gamma, beta = (problem.inputs[name] for name in PARAMETERS)
            found = judge(pipeline("naive_malloc", x, weight, bias, gamma, beta, approximate=approximate), problem)
            assert found.ok, f"{shape}: {found.reason}"


@pytest.mark.skipif(DEVICE != "cpu", reason="the CPU's kernels are compared with the emulated ones")
def test_the_emulated_dropout_is_that_of_the_cpu(driver: Driver) -> None:
    x, weight, _, gamma, beta = tensors()
    found, expected = (pipeline(way, x, weight, None, gamma, beta, p=0.4, seed=5) for way in ("naive_malloc", "naive"))
    assert torch.equal(found == 0, expected == 0)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_memory_of_the_driver_is_given_back(driver: Driver) -> None:
    """``naive_malloc`` asks the driver for both results in between, passes their addresses, and frees them."""
    x, weight, bias, gamma, beta = (tensor.cpu() for tensor in tensors())
    found = pipeline("naive_malloc", x, weight, bias, gamma, beta)
    assert driver.sizes == [4 * found.numel(), 4 * 2 * 2 * 4]
    assert not driver.held

    def launch() -> None:
        with loader.device_memory(64) as address:
            assert address in driver.held
            raise RuntimeError("a launch that failed")

    with pytest.raises(RuntimeError, match="a launch that failed"):
        launch()
    assert not driver.held


@pytest.mark.parametrize(
    "dtype", [pytest.param(dtype, marks=[pytest.mark.slow] * (dtype != "float32")) for dtype in loader.SCALARS]
)
def test_the_cuda_kernels_build_to_machine_code_without_spills(dtype: str, tmp_path: Path) -> None:
    compiles_without_spills(tmp_path, "conv_block/conv_block", instances([dtype]))
