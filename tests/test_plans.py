"""Calls without Python: what an operator does is recorded once and carried out by C++, here on a driver's stand-in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forks import forks

from hypatia_lab.kernels import loader

HERE = Path(__file__).resolve().parent

pytestmark = pytest.mark.skipif(bool(loader.cpp_missing()), reason=loader.cpp_missing())

BEGIN = """
import ctypes, sys
from pathlib import Path
import torch
from hypatia_lab.kernels import loader, plans, recording, triton_launches
from hypatia_lab.operations.operators import operator

folder = Path(sys.argv[1])
plans.DRIVER, plans.DEVICES = str(folder / "driver.so"), {"cpu"}
# As some compilers do unasked. Two standard libraries in a process do not mix. What is quicker to build will do.
loader.SHARED = [*loader.SHARED, "-static-libstdc++", "-O1"]
plans.library()
loader.cache_folder = lambda: folder
driver = ctypes.CDLL(plans.DRIVER)
driver.launches.restype = ctypes.c_char_p
"""

TOY = """
from types import SimpleNamespace
loader._cubin = lambda name, instance: (b"scale", b"machine code")
loader._cuda_kernel = lambda name, instance: SimpleNamespace(handle=0)
ran = []

def scale(x, out, factor, **how):
    loader.cuda_launcher("toy", "scale", **how)((2,), (64,), x, out, x.numel(), factor)

@operator("toy_gradient", planned=True)
def toy_gradient(grad: torch.Tensor, x: torch.Tensor, needs_x: bool, bias: torch.Tensor | None, factor: float,
                 y: torch.Tensor) -> torch.Tensor:
    assert y.shape == x.shape
    assert bias is None or bias.shape == x.shape[1:]
    out = torch.empty_like(x)
    scale(grad.contiguous(), out, factor)
    return out

@operator("toy", planned=True)
def toy(x: torch.Tensor, more: list[torch.Tensor], bias: torch.Tensor | None, factor: float,
        word: str) -> tuple[torch.Tensor, torch.Tensor]:
    ran.append(x.shape)
    if word == "refuse":
        raise ValueError("no such word")
    if not x.numel():
        return x.new_empty(x.shape), x.new_zeros(1)
    middle, y = torch.empty_like(x), x.new_empty(x.shape[::-1]).t()
    scale(x.contiguous(), middle, 1.0)
    scale(middle, y, factor, dependent=True)
    total = (y + more[-1]).sum(0).to(torch.float64) * 2
    return y, total if bias is None else total + bias

toy_gradient.register_fake(lambda grad, x, needs_x, bias, factor, y: torch.empty_like(x))
toy.register_fake(lambda x, more, bias, factor, word:
                  (x.new_empty(x.shape[::-1]).t(), x.new_empty(x.shape[1], dtype=torch.float64)))
toy.differentiated_by(toy_gradient, ("y", "total"))
toy_gradient.not_differentiable("once only")
square = torch.randn(4, 4)
square = square + square.t()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the stand-in for the driver lies, and plans are kept."""
    found = tmp_path_factory.mktemp("plans")
    command = [loader.compiler(), "-x", "c", "-w", "-shared", "-fPIC", "-o", str(found / "driver.so")]
    subprocess.run([*command, str(HERE / "driver_stand_in.c")], check=True)
    return found


@pytest.fixture(scope="module")
def passes(folder: Path) -> Iterator[Callable[..., str]]:
    """Runs sources after ``BEGIN``, in a process forked for them: nothing of theirs is left for the next.

    What takes seconds is done once, before: importing torch, and Dynamo, which PyTorch imports when a plan is recorded.
    """
    with forks(BEGIN + "import torch._dynamo", folder, [str(folder)]) as run:
        yield lambda *sources: run("\n".join(sources))


def passes_afresh(folder: Path, *sources: str) -> None:
    """Runs sources after ``BEGIN`` in a process in which nothing else was ever imported."""
    command = [sys.executable, "-c", "\n".join([BEGIN, *sources]), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


REPLAYED = """
def expected(x, more, bias, factor):
    total = (factor * x + more[-1]).sum(0).double() * 2
    return factor * x, total if bias is None else total + bias

for round in range(3):
    for bias in (None, torch.randn(4)):
        for factor in (2.0, -0.5):
            for x in (square + round, (square.double() + round).float()):
                more = [torch.randn(4, 4), torch.randn(4)]
                for one, other in zip(toy(x, more, bias, factor, "any"), expected(x, more, bias, factor)):
                    torch.testing.assert_close(one, other)
                    assert one.dtype == other.dtype
# With and without bias, of two numbers: four kinds of call.
assert len(ran) == 4, ran
# Rows that lie apart, another alignment, no numbers at all, the same tensor twice.
wide = torch.randn(4, 9)
for x in (wide[:, 1:5], wide[:, 2:6], wide[:, ::2][:, :4], square[:, :0]):
    x = x + x.t() if x.numel() else x
    toy(x.clone(), [x], None, 1.0, "any")
apart = torch.zeros(4, 9)[:, 1:5]
apart.copy_(square)
for same in (apart, square, apart):
    y, total = toy(same, [same], None, 3.0, "any")
    torch.testing.assert_close(y, 3 * square)
    torch.testing.assert_close(total, 8 * square.sum(0).double())
assert y.stride() == (1, 4)
# What Python refuses it refuses each time, in its own words.
for _ in range(2):
    try:
        toy(square, [square], None, 1.0, "refuse")
    except ValueError as complaint:
        assert str(complaint) == "no such word"
    else:
        raise AssertionError
# One launch after the other, the second by programmatic dependent launch, of the scale's numbers.
driver.watch(4)
toy(square, [square], None, 2.0, "any")
first, second = (line.split() for line in driver.launches().decode().splitlines())
assert first[:3] == ["2,1,1", "64", "0"] and second[:4] == ["2,1,1", "64", "0", "6:1"], (first, second)
assert int(first[-4], 16) == square.data_ptr() and first[-3] == second[-4]
assert first[-2:] == ["10", "3f800000"] and second[-2:] == ["10", "40000000"]
freed = square.clone()
freed.untyped_storage().resize_(0)
for wrong, message in (
    (lambda: toy(freed, [square], None, 2.0, "any"), "it was freed"),
    (lambda: launched(square), "launching scale with grid .* and block .* failed: CUDA_ERROR_INVALID_VALUE"),
):
    import re
    @operator(f"too_many{message[:2].strip()}", planned=True)
    def launched(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        loader.cuda_launcher("toy", "scale")((1,), (2048,), x, out, x.numel(), 1.0)
        return out
    try:
        wrong()
    except RuntimeError as complaint:
        assert re.search(message, str(complaint)), complaint
    else:
        raise AssertionError(message)
"""


def test_what_was_recorded_is_carried_out_for_tensors_that_are_alike(passes: Callable[..., str]) -> None:
    passes(TOY, REPLAYED)


def test_a_later_process_records_nothing_and_imports_no_triton(folder: Path, passes: Callable[..., str]) -> None:
    call = "toy(square, [square], None, 7.0, 'later')"
    passes(TOY, call, "assert len(ran) == 1, ran")
    # Recorded at last: the other processes here have imported what that takes before.
    found, other = "assert not ran and 'triton' not in sys.modules, ran", "toy(square, [square], None, 8.0, 'later')"
    passes_afresh(folder, TOY, call, found, other, "assert len(ran) == 1, ran")
    for code in folder.glob("*.cubin"):  # a plan is worth nothing without its kernels
        code.unlink()
    passes(TOY, call, "assert len(ran) == 1, ran")


GRADIENTS = """
import itertools

def leaf(x):
    return x.detach().clone().requires_grad_()

for word, bias in itertools.product(("python", "recorded", "replayed"), (None, torch.ones(4))):
    w = leaf(square)
    y, total = toy(w, [square], bias, 2.0, word if word == "python" else "any")
    assert y.requires_grad and not total.requires_grad
    (got,) = torch.autograd.grad((y * square).sum(), w, create_graph=True)
    torch.testing.assert_close(got, 2 * square)
    assert "once only" in str(refusal(lambda: got.sum().backward()))
assert not toy(square, [square], None, 2.0, "any")[0].requires_grad
with torch.no_grad():
    assert not toy(w, [square], None, 2.0, "any")[0].requires_grad
with torch.inference_mode():
    assert toy(w, [square], None, 2.0, "any")[0].is_inference()
    toy(torch.ones(3, 3), [torch.ones(3)], None, 2.0, "never before")
for given in ((w, [square], None, 2.0, "any"), (square, [square, w], torch.ones(4), 2.0, "any")):
    torch.library.opcheck(torch.ops.hypatia.toy.default, given)
for backend in ("eager", "aot_eager"):
    compiled = torch.compile(lambda x: toy(x, [square], None, 2.0, "any")[0] * 2, fullgraph=True, backend=backend)
    w = leaf(square)
    torch.testing.assert_close(compiled(w), 4 * square)
    compiled(w).sum().backward()
    torch.testing.assert_close(w.grad, torch.full_like(square, 4.0))
# Four threads at once, of shapes that some have seen and some have not.
from concurrent.futures import ThreadPoolExecutor
def work(thread):
    for n in range(200):
        x = torch.full((1 + n % 7,) * 2, float(thread))
        y, total = toy(x, [x], None, 2.0, "any")
        assert bool((y == 2 * thread).all()) and total[0] == 6 * thread * len(x)
    return True
with ThreadPoolExecutor(4) as pool:
    assert all(pool.map(work, range(4)))
"""

REFUSAL = """
def refusal(call):
    try:
        call()
    except NotImplementedError as complaint:
        return complaint
    raise AssertionError("nothing was refused")
"""


def test_gradients_compiling_inference_and_threads(passes: Callable[..., str]) -> None:
    passes(TOY, REFUSAL, GRADIENTS)


UNPLANNABLE = """
@operator("toy_reads", planned=True)
def reads(x: torch.Tensor) -> torch.Tensor:
    ran.append(x.shape)
    return x * 2 if x.sum().item() > 0 else x * 3

for n in range(3):
    assert reads(torch.ones(3))[0] == 2 and reads(-torch.ones(3))[0] == -3
assert not any(folder.glob("plan-*reads*"))
"""


def test_what_looks_into_tensors_stays_in_python(passes: Callable[..., str]) -> None:
    passes(TOY, UNPLANNABLE)


def test_without_a_library_that_builds_calls_stay_in_python(passes: Callable[..., str]) -> None:
    broken = """
    def fails(name):
        raise loader.BuildError("no such compiler")
    loader.aten_library = fails
    plans.library.cache_clear()
    import warnings
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            toy(square, [square], None, 1.0, "any")
    """
    asserted = "assert ['no such compiler' in str(one.message) for one in said] == [True] and len(ran) == 2"
    launch = "scale = lambda x, out, factor, **how: out.copy_(factor * x)"
    passes(TOY, launch, "\n".join(line[4:] for line in broken.splitlines()), asserted)


HOPPER = """
import re, triton
from triton.backends.compiler import GPUTarget

class Hopper:
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)

triton.runtime.driver.set_active(Hopper())
from hypatia_lab.kernels.conv_block import conv_block_triton as block, convolution
from hypatia_lab.kernels.linear_relu import gradient_products as products, linear_relu_triton as whole
from hypatia_lab.kernels.linear_relu import masked_gradient as masked
from hypatia_lab.operations.conv_block import own as conv_block_kernels
from hypatia_lab.operations.linear_relu import own_backward as linear_relu_backward, tensor_cores

for module in (block, convolution, products, whole, masked):
    module.hopper = lambda tensor: True
linear_relu_backward._server_gpu = lambda tensor: True
loader.multiprocessors = lambda device: 132
conv_block_kernels.INTERPRETED = True

# Parameters are what the machine code of each kernel has: an address or a tensor map where its own list says so.
record, checked = triton_launches._record, []

def compared(recorder, compiled, given, grid):
    record(recorder, compiled, given, grid)
    entry = re.search(r"\\.entry \\w+\\((.*?)\\)", compiled.asm["ptx"], re.DOTALL).group(1).split(",\\n")
    wanted = [128 if "[128]" in line else int(re.search(r"\\.[a-z](8|16|32|64)", line).group(1)) // 8 for line in entry]
    own = recorder.steps[-1].parameters
    assert len(own) == len(wanted), compiled.metadata.name
    for (kind, value), size in zip(own, wanted):
        assert size == {recording.MAP: 128, recording.POINTER: 8}.get(kind, size), compiled.metadata.name
        if kind == recording.NUMBER and size < 8:
            assert -(2 ** (8 * size - 1)) <= value < 2 ** (8 * size)
    checked.append(compiled.metadata.name)

triton_launches._record = compared

def zeros(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype)

def told(call):
    driver.watch(0)
    call()
    return [line.split() for line in driver.launches().decode().splitlines()]
"""

LINEAR_RELU = """
for sizes, dtype, precision in (((256, 512, 256), torch.bfloat16, "ieee"), ((1024, 784, 2048), torch.float16, "ieee"),
                                ((33, 77, 129), torch.bfloat16, "ieee"), ((1024, 784, 2048), torch.float32, "tf32")):
    batch, inner, outer = sizes
    given = zeros(batch, inner, dtype=dtype), zeros(outer, inner, dtype=dtype), zeros(outer, dtype=dtype)
    (launch,) = told(lambda: tensor_cores.linear_relu_triton(*given, precision))
    chosen = whole.config(sizes, dtype, precision)
    tiles = triton.cdiv(batch, chosen.rows) * triton.cdiv(outer, chosen.columns)
    assert launch[:2] == [f"{tiles},1,1", str(32 * chosen.warps)] and launch[3:] == ["6:1"] * chosen.dependent, launch
x, weight, bias, grad = zeros(256, 512), zeros(256, 512), zeros(256), zeros(256, 256)
assert len(told(lambda: linear_relu_backward.linear_relu_fused(x, weight, bias))) == 1
mask, _ = told(lambda: linear_relu_backward.linear_relu_gradients(grad, x, weight, grad))
# Not more blocks of the short kernel find room on a multiprocessor than their share of all.
across, down, _ = map(int, mask[0].split(","))
least = -(-across * down // 132)
assert least * (int(mask[2]) + 1024) <= 228 * 1024 < (least + 1) * (int(mask[2]) + 1024), mask
for terms in ("fp16x3", "tf32x3"):
    assert len(told(lambda: tensor_cores.linear_relu_split(x.float(), weight.float(), bias.float(), terms))) == 2
# A tensor map is made once for an address: here those of x and W, and one for each result.
fixed = zeros(1024, 784), zeros(2048, 784), None, "ieee"
tensor_cores.linear_relu_triton(*fixed)
before = driver.watch(0)
held = [tensor_cores.linear_relu_triton(*fixed) for _ in range(20)]
assert driver.watch(0) - before <= 20
assert set(checked) == {"_linear_relu", "_masked_gradient", "_gradient_products", "_split_rows", "_linear_relu_split"}
"""

CONV_BLOCK = """
last = torch.channels_last
x, weight = zeros(2, 64, 16, 16).contiguous(memory_format=last), zeros(64, 64, 3, 3).contiguous(memory_format=last)
vectors = [zeros(64) for _ in range(3)]
for keep in (True, False):
    block = lambda: conv_block_kernels.conv_block_fused(x, weight, *vectors, "none", "ieee", "triton", keep, None)
    assert len(told(block)) == 2
y, *saved = conv_block_kernels.conv_block_fused(x.contiguous(), weight, *vectors, "none", "ieee", "triton", True, None)
assert y.is_contiguous(memory_format=last) and set(checked) == {"_convolve", "_normalise"}
"""


@pytest.mark.parametrize("operators", [LINEAR_RELU, CONV_BLOCK], ids=["linear_relu", "conv_block"])
def test_triton_kernels_get_the_parameters_that_their_machine_code_has(
    passes: Callable[..., str], operators: str
) -> None:
    pytest.importorskip("triton.backends.nvidia")
    passes(HOPPER, operators)


HAND_WRITTEN = """
from types import SimpleNamespace
from hypatia_lab.kernels.linear_relu import linear_relu_cuda, split_products
from hypatia_lab.kernels.conv_block import conv_block_whole
from hypatia_lab.kernels.mlp import mlp_cuda
from hypatia_lab.operations.linear_relu import ladder

loader._cubin = lambda name, instance: (instance.encode(), b"machine code")
loader._cuda_kernel = lambda name, instance: SimpleNamespace(handle=driver.a_kernel())
driver.a_kernel.restype = ctypes.c_uint64
loader.driver = lambda: driver
loader.multiprocessors = lambda device: 132
torch.cuda.current_stream = lambda: SimpleNamespace(cuda_stream=0)

def zeros(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype)

def told(call, parameters):
    driver.watch(parameters)
    held = call()
    return [line.split() for line in driver.launches().decode().splitlines()]

def known(lines, inputs):
    # Addresses of the caller's are the same either way; of all others only that they are some.
    own = {tensor.data_ptr() for tensor in inputs}
    return [[word if ":" in word or "," in word or int(word, 16) < 2**32 or int(word, 16) in own else "memory"
             for word in line] for line in lines]

last = torch.channels_last
x, weight = zeros(20, 64, 64, 64).contiguous(memory_format=last), zeros(64, 64, 3, 3).contiguous(memory_format=last)
vectors, counters = [zeros(64) for _ in range(3)], torch.zeros(20, 2, dtype=torch.int32)
rows, square, bias = zeros(1001, 64), [zeros(64, 64) for _ in range(3)], [zeros(64) for _ in range(3)]

@operator("whole", planned=True)
def whole(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor,
          counters: torch.Tensor, eps: float) -> torch.Tensor:
    return conv_block_whole.conv_block_whole(x, weight, bias, gamma, beta, eps=eps, counters=counters)[0]

@operator("layers", planned=True)
def layers(x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor]) -> torch.Tensor:
    return mlp_cuda.forward(x, weights, biases)

@operator("step", planned=True)
def step(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y = x.new_empty(len(x), len(weight))
    ladder.STEPS["step_multicast"].launch(x, weight, bias, y, (len(x), x.shape[1], len(weight)))
    return y

@operator("tiles", planned=True)
def tiles(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y = x.new_empty(len(x), len(weight))
    linear_relu_cuda.linear_relu(x, weight, bias, y)
    return y

@operator("split", planned=True)
def split(x: list[torch.Tensor], weight: list[torch.Tensor], bias: torch.Tensor) -> torch.Tensor:
    y = bias.new_empty(len(x[0]), len(weight[0]))
    split_products.linear_relu(split_products.Terms(*x), split_products.Terms(*weight), bias, y)
    return y

@operator("both", planned=True)
def both(x: list[torch.Tensor], weight: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    pair = split_products.Terms(*x), split_products.Terms(*weight)
    out = torch.empty(len(x[0]), len(weight[0])), torch.empty(len(weight[0]), len(x[0]))
    split_products.multiply([(*pair, out[0]), (*pair[::-1], out[1])])
    return out

def terms(rows, depth):
    wide = torch.zeros(2, rows, -(-depth // 8) * 8, dtype=torch.float16)
    return [*wide[:, :, :depth], torch.zeros(rows, dtype=torch.int32)]

left, right, shift = terms(300, 77), terms(200, 77), torch.zeros(200)
single = zeros(1001, 64, dtype=torch.float32), zeros(65, 64, dtype=torch.float32), zeros(65, dtype=torch.float32)
for operation, given, parameters in (
    (split, (left, right, shift), 12), (both, (left, right), 21),
    (whole, (x, weight, *vectors, counters, 1e-5), 17), (layers, (rows, square, bias), 9),
    (step, (rows, square[0], bias[0]), 8), (tiles, (rows, square[0], bias[0]), 9), (tiles, single, 9),
):
    inputs = [x, weight, *vectors, counters, rows, *square, *bias, *left, *right, shift, *single]
    by_python = known(told(lambda: operation._function(*given), parameters), inputs)
    operation(*given)
    by_plan = known(told(lambda: operation(*given), parameters), inputs)
    assert by_python and by_plan == by_python, (by_python, by_plan)
    assert any(word not in ("memory", "0") and int(word, 16) > 2**32 for line in by_plan for word in line
               if ":" not in word and "," not in word)
# Of float32 the copy engine is told to round, by the plan, too.
described = loader.tensor_map(single[0], 64, 32, tf32=True).described
assert described[0] == 11 and loader.tensor_map(single[0], 64, 32).described[0] == 7
numbers = plans.record(tiles._function, single).numbers
of_x = list(recording.map_of(*described))
assert any(numbers[at : at + len(of_x)] == of_x for at in range(len(numbers)))
"""


def test_hand_written_kernels_get_what_python_gives_them(passes: Callable[..., str]) -> None:
    pytest.importorskip("triton")
    passes(HAND_WRITTEN)


BESIDE = """
def apart(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    streams[0] = "beside"
    a, b = torch.empty_like(x), torch.empty_like(x)
    torch.mm(x, x, out=a)
    streams[0] = "here"
    torch.mm(x, x, out=b)
    return a, b, a * b

streams = ["here"]
recording.Recorder._current = lambda self: streams[0]
recorder = recording.Recorder(torch.device("cpu"))
x = recorder.stand_in(square)
with recorder:
    found = apart(x)
steps = [step if isinstance(step, int) else step.function._schema.name for step in recorder.steps]
assert steps == [recording.BESIDE, "aten::mm", recording.BACK, "aten::mm", recording.JOIN, "aten::mul"], steps
assert recorder.plan(found).numbers[1] == len(steps) + 2
"""


def test_what_runs_on_another_stream_is_waited_for_where_it_is_needed(passes: Callable[..., str]) -> None:
    passes(TOY, BESIDE)
