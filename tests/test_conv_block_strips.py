"""The one-kernel convolution block, run on a CPU as plain Python: copies, barriers and asynchronous products by torch.

No interpreter runs Gluon. Here its functions are called as they are written, on stand-ins for what they import: a
product is computed as late as the waits allow, so memory that is overwritten too early gives a wrong result; a barrier
complains when it is passed before its bytes have come. Programs are threads, since they wait for each other.
"""

from __future__ import annotations

import threading
import time
import types
from typing import Any

import pytest
import torch
from torch.nn.grad import conv2d_input

pytest.importorskip("triton")
from hypatia_lab.kernels.triton import conv_block_whole as whole

LOCAL = threading.local()
LOCK = threading.Lock()


def tagged(dtype: torch.dtype) -> Any:
    """A stand-in for Gluon's dtype that torch's ``to`` takes, too."""
    tag: Any = torch.empty((), dtype=dtype)
    tag.primitive_bitwidth = 8 * dtype.itemsize
    return tag


class Shared:
    """Shared memory; views share it."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data, self.shape, self.numel, self.dtype = data, list(data.shape), data.numel(), tagged(data.dtype)

    def index(self, number: int) -> Shared:
        assert 0 <= number < len(self.data)
        return Shared(self.data[number])

    def reshape(self, shape: Any) -> Shared:
        return Shared(self.data.view(tuple(shape)))

    def permute(self, order: tuple[int, ...]) -> Shared:
        return Shared(self.data.permute(order))

    def store(self, value: torch.Tensor) -> None:
        assert not LOCAL.products
        self.data.copy_(value)


class Pointer:
    """Addresses of a tensor's numbers."""

    def __init__(self, tensor: torch.Tensor, at: Any = 0) -> None:
        self.flat, self.at = tensor.view(-1), at

    def __add__(self, more: Any) -> Pointer:
        return Pointer(self.flat, self.at + more)

    def __getitem__(self, key: Any) -> Pointer:
        return Pointer(self.flat, self.at[key])


class Descriptor:
    """A tensor that is copied by boxes, with zeros beyond its edges."""

    layout = None

    def __init__(self, given: Any) -> None:
        self.base, self.dtype = given.base.view(*given.shape), tagged(given.base.dtype)
        self.block_type = types.SimpleNamespace(shape=given.block_shape)

    def inside(self, at: list[int], box: list[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """What of the tensor is in a box at ``at``, and where in the box it is."""
        starts = [int(a) for a in at]
        ends = [min(a + b, n) for a, b, n in zip(starts, box, self.base.shape, strict=True)]
        there = tuple(slice(max(a, 0), max(e, 0)) for a, e in zip(starts, ends, strict=True))
        here = tuple(slice(max(-a, 0), max(e - a, max(-a, 0))) for a, e in zip(starts, ends, strict=True))
        return there, here


def expect(bar: Shared, count: int) -> None:
    state = LOCAL.barriers.setdefault(bar.data.data_ptr(), [0, 0])
    assert state[1] == 0, "a barrier is armed twice"
    state[1] = count


def wait(bar: Shared, phase: int) -> None:
    completed, missing = LOCAL.barriers[bar.data.data_ptr()]
    assert missing == 0
    assert completed % 2 != phase, "a barrier's phase has not come"


def copy_in(source: Descriptor, at: list[int], bar: Shared, into: Shared) -> None:
    assert list(into.shape) == list(source.block_type.shape)
    into.data.zero_()
    there, here = source.inside(at, into.shape)
    into.data[here] = source.base[there]
    state = LOCAL.barriers[bar.data.data_ptr()]
    state[1] -= into.numel * into.dtype.primitive_bitwidth // 8
    assert state[1] >= 0
    state[0] += state[1] == 0


def copy_out(out: Descriptor, at: list[int], held: Shared) -> None:
    there, here = out.inside(at, held.shape)
    out.base[there] = held.data[here]


def multiply(a: Shared, b: Shared, total: torch.Tensor, *, is_async: bool) -> torch.Tensor:
    assert is_async
    LOCAL.products.append((total, a, b))
    return total


def wait_products(most: int, deps: tuple[torch.Tensor, ...]) -> Any:
    while len(LOCAL.products) > most:
        total, a, b = LOCAL.products.pop(0)
        total += a.data.float() @ b.data.float()
    return deps[0] if len(deps) == 1 else deps


def load(at: Pointer, mask: Any = None, other: float = 0.0, cache_modifier: str = "") -> torch.Tensor:
    found = at.flat[at.at if mask is None else torch.where(mask, at.at, 0)]
    return found if mask is None else torch.where(mask, found, other)


def store(at: Pointer, value: torch.Tensor, mask: Any = None) -> None:
    where, value = torch.broadcast_tensors(at.at, value)
    kept = torch.ones(where.shape, dtype=torch.bool) if mask is None else mask.expand(where.shape)
    at.flat[where[kept]] = value[kept].to(at.flat.dtype)


def atomic(update: Any) -> Any:
    def run(at: Pointer, value: int, sem: str) -> int:
        assert not LOCAL.products
        time.sleep(0)
        with LOCK:
            old = int(at.flat[at.at])
            at.flat[at.at] = update(old, value)
        return old

    return run


def scalar(*values: Any) -> list[torch.Tensor]:
    return [torch.as_tensor(value) for value in values]


GLUON = types.SimpleNamespace(
    float32=torch.float32,
    int64=torch.int64,
    static_range=range,
    program_id=lambda axis: torch.tensor(LOCAL.program),
    allocate_shared_memory=lambda dtype, shape, layout: Shared(
        torch.full(shape, 7, dtype=getattr(dtype, "dtype", dtype))
    ),
    NVMMADistributedLayout=lambda **_: None,
    SliceLayout=lambda *_: None,
    BlockedLayout=lambda *_: None,
    zeros=lambda shape, dtype, layout: torch.zeros(*shape, dtype=dtype),
    arange=lambda first, last, layout: torch.arange(first, last),
    minimum=lambda a, b: torch.minimum(*scalar(a, b)),
    where=torch.where,
    sum=torch.sum,
    sqrt_rn=torch.sqrt,
    convert_layout=lambda value, layout: value,
    load=load,
    store=store,
    atomic_add=atomic(lambda old, value: old + value),
    atomic_xchg=atomic(lambda old, value: value),
)
STANDINS = {
    "gl": GLUON,
    "mbarrier": types.SimpleNamespace(
        MBarrierLayout=lambda: None, init=lambda *_, **__: None, expect=expect, wait=wait
    ),
    "tma": types.SimpleNamespace(
        async_copy_global_to_shared=copy_in, async_copy_shared_to_global=copy_out, store_wait=lambda pending: None
    ),
    "warpgroup_mma": multiply,
    "warpgroup_mma_wait": wait_products,
    "fence_async_shared": lambda: None,
    "meet": lambda: None,
    "gelu": lambda u, tanh, short: torch.nn.functional.gelu(u, approximate="tanh" if tanh else "none"),
}


class Threads:
    """Runs the kernel's source, one thread a program."""

    def __init__(self) -> None:
        scope = vars(whole) | STANDINS
        for name, kernel in vars(whole).items():
            if name.startswith("_") and hasattr(kernel, "fn"):
                scope[name] = types.FunctionType(kernel.fn.__code__, scope, name, kernel.fn.__defaults__)
        self.kernel = scope["_whole"]

    def __getitem__(self, grid: tuple[int]) -> Any:
        return lambda *given, **how: self.run(grid[0], given, how)

    def run(self, programs: int, given: tuple[Any, ...], how: dict[str, Any]) -> None:
        del how["launch_cooperative_grid"]
        seen = [
            Descriptor(each)
            if isinstance(each, whole.TensorDescriptor)
            else Pointer(each)
            if isinstance(each, torch.Tensor)
            else torch.tensor(each)
            if isinstance(each, int)
            else each
            for each in given
        ]
        complaints: list[BaseException] = []

        def program(number: int) -> None:
            LOCAL.program, LOCAL.products, LOCAL.barriers = number, [], {}
            try:
                self.kernel(*seen, **how)
                assert all(missing == 0 for _, missing in LOCAL.barriers.values())
            except BaseException as complaint:
                complaints.append(complaint)

        threads = [threading.Thread(target=program, args=(n,), daemon=True) for n in range(programs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20 if not complaints else 0)
        if complaints:
            raise complaints[0]


def in_terms(tensor: torch.Tensor, precision: str, dependent: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    if precision == "tf32":
        return tensor.clone(), None
    large = tensor.bfloat16()
    return large, (tensor - large.float()).bfloat16()


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "_whole", Threads())
    monkeypatch.setattr(whole, "terms", in_terms)
    monkeypatch.setattr(whole, "_processors", lambda tensor: 6)


CASES = [
    (torch.float16, "ieee", 5e-3),
    (torch.float32, "tf32", 2e-5),
    (torch.float32, "bf16x3", 1e-4),
]


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("shape", [(2, 32, 16, 8, 13), (1, 16, 32, 17, 70), (3, 16, 16, 2, 1)])
@pytest.mark.parametrize(("dtype", "precision", "tolerance"), CASES)
def test_strips_agree_with_float64(
    shape: tuple[int, int, int, int, int], dtype: torch.dtype, precision: str, tolerance: float
) -> None:
    images, inner, outer, height, width = shape
    x, weight = normal(images, inner, height, width), normal(outer, inner, 3, 3, seed=1) * (9 * inner) ** -0.5
    x, weight, bias, gamma, beta = (t.to(dtype) for t in (x, weight, *normal(3, outer, seed=2)))
    convolved = torch.nn.functional.conv2d(x.double(), weight.double(), bias.double(), padding=1)
    expected = torch.nn.functional.instance_norm(convolved, weight=gamma.double(), bias=beta.double(), eps=1e-5)
    expected = torch.nn.functional.gelu(expected)
    counters = torch.zeros(images, 2, dtype=torch.int32)
    strips = whole.candidates(shape, dtype, precision, 6)
    assert strips
    # Two planes of two pixels blow their errors up.
    tolerance *= 1 if height * width > 2 else 30
    for strip in strips[:5:2]:
        how = {"precision": precision, "strip": strip, "counters": counters, "keep": strip is strips[0]}
        out, saved = whole.conv_block_whole(x, weight, bias, gamma, beta, **how)
        assert float((out.double() - expected).abs().max()) < tolerance, strip
        assert not counters.any()
        if saved is not None:
            assert float((saved.convolved.permute(0, 3, 1, 2).double() - convolved).abs().max()) < tolerance
            torch.testing.assert_close(saved.statistics[:, 0].double(), convolved.mean((2, 3)), rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("shape", [(2, 32, 16, 8, 13), (1, 16, 32, 17, 70)])
def test_the_adjoint_agrees_with_float64(shape: tuple[int, int, int, int, int]) -> None:
    images, inner, outer, height, width = shape
    grad, weight = normal(images, height, width, outer).half(), normal(outer, inner, 3, 3, seed=1).half()
    back = conv2d_input(
        [images, inner, height, width], weight.double(), grad.permute(0, 3, 1, 2).double(), padding=1
    ).permute(0, 2, 3, 1)
    taps = weight.permute(0, 2, 3, 1).reshape(outer, 9, inner)
    strips = whole.candidates((images, outer, inner, height, width), torch.float16, "ieee", 6)
    for strip in {strips[0], strips[-3]}:
        out = whole.adjoint(grad, taps, strip)
        assert float((out.double() - back).abs().max()) < 1e-3 * float(back.abs().max())
