"""Plans: what an operator does on a GPU for arguments of given shapes, written down once and carried out by C++.

Python computes which kernels, tiles, memory and strides a call takes, in tens of microseconds, and always the same for
tensors that are alike. So an operator's function is run once on stand-ins for its tensors, and what it would have
launched, allocated and called of PyTorch's is recorded (:func:`record`). ``aten/launch.cpp`` keeps the plan by the
arguments that it is for and carries it out at every later call. Plans and the machine code they launch are also kept in
the user's cache folder: the next process needs neither Triton nor a compiler.

A plan holds for shapes, strides, dtypes, devices, alignment (addresses modulo 16) and all that is not a tensor. So a
function that is recorded may look at nothing else: not at numbers in its tensors, nor at global settings of its own.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hypatia_lab.kernels import loader

DEVICES = set() if os.environ.get("HYPATIA_PLANS") == "0" else {"cuda"}
"""Kinds of device whose calls are planned. None where ``HYPATIA_PLANS`` is 0."""

DRIVER = "libcuda.so.1"
"""The library that launches."""

aten = torch.ops.aten

# The numbers by which aten/launch.cpp knows what it reads.
ALLOCATE, LAUNCH, CALL, BESIDE, BACK, JOIN = range(6)
POINTER, NUMBER, MAP = range(3)
NONE, INTEGER, FLOAT, BOOL, TENSOR, INTEGERS, TENSORS, DEVICE, WORD, BOOLS, WRAPPED = range(11)

SCALAR_TYPES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.bool: 11,
    torch.bfloat16: 15,
}
MEMORY_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2}

ALIGNMENT = 512
"""Bytes at whose multiples memory begins: as PyTorch's allocator has it."""

ALLOCATIONS = {
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
}


class UnplannableError(Exception):
    """A function does something that no plan can hold; what that is."""


# ---------------------------------------------------------------- the library


@cache
def library() -> Any:
    """What ``aten/launch.cpp`` gives Python, built and loaded once. Raises :class:`loader.BuildError`."""
    loader.aten_library("launch")
    own = torch.ops.hypatia_plans
    own.open_driver(DRIVER)
    return own


def available() -> bool:
    """Whether plans can be carried out here; a library that does not build is said once, in a warning."""
    if loader.cpp_missing() or "launch" in loader.BROKEN:
        return False
    try:
        library()
    except (loader.BuildError, RuntimeError) as cause:
        loader.BROKEN["launch"] = str(cause)
        warnings.warn(f"calls go through Python and take longer: {cause}", stacklevel=2)
        return False
    return True


# ---------------------------------------------------------------- keeping plans


@dataclass
class Plan:
    """A plan as ``aten/launch.cpp`` reads it: ``numbers``, and the ``words`` that some of them count to."""

    numbers: list[int]
    words: list[str]


_unplannable: set[str] = set()


def made_ready(name: str, function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether calling the operator ``name`` with ``args`` again will find a plan; called within such a call.

    If need be the plan is recorded from ``function``, whose exceptions pass through.
    """
    if not library().awaits(name) or torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return False
    key = _key(name, args)
    if key in _unplannable:
        return False
    stored = loader.cache_folder() / f"plan-{key}.json"
    plan = _read(stored)
    if plan is None:
        try:
            plan = record(function, args)
        except UnplannableError:
            _unplannable.add(key)
            return False
        loader.store(stored, json.dumps([plan.numbers, plan.words]).encode())
    library().keep_plan(name, plan.numbers, plan.words)
    return True


def _read(path: Path) -> Plan | None:
    """The plan in ``path``, if it is there with all the machine code that it names."""
    try:
        plan = Plan(*json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return plan if all(Path(word).exists() for word in plan.words if word.endswith(".cubin")) else None


def _kept(code: bytes) -> str:
    """Where the machine code lies from now on."""
    path = loader.cache_folder() / f"{hashlib.sha256(code).hexdigest()[:24]}.cubin"
    if not path.exists():
        loader.store(path, code)
    if not path.exists():
        raise UnplannableError(f"{path} cannot be written")
    return str(path)


@cache
def _sources() -> str:
    """Digest of all that a plan may depend on: the lab's kernels and operations, PyTorch and Triton.

    Of their files, sizes and times: to read them takes a fresh process longer than its first call may.
    """
    home = loader.SOURCES.parent
    found = [str(torch.__version__)]
    triton = None if loader.module_missing("triton", "triton") else importlib.util.find_spec("triton")
    paths = [Path(triton.origin)] if triton and triton.origin else []
    for folder in (loader.SOURCES, home / "operations"):
        paths += (path for path in sorted(folder.rglob("*.*")) if path.suffix in (".py", ".cu", ".cuh", ".cpp"))
    for path in paths:
        seen = path.stat()
        found.append(f"{path} {seen.st_size} {seen.st_mtime_ns}")
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


def _alike(value: Any) -> Any:
    """All of an argument that a plan depends on."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), str(value.device), tuple(value.shape), value.stride(), value.data_ptr() % 16)
    return [*map(_alike, value)] if isinstance(value, list | tuple) else value


def _key(name: str, args: Sequence[Any]) -> str:
    first, device = next(_tensors(args)), ()
    if first.is_cuda:
        found = torch.cuda.get_device_properties(first.device)
        device = found.name, found.major, found.minor, found.multi_processor_count
    return hashlib.sha256(repr((_sources(), name, device, _alike(args))).encode()).hexdigest()[:24]


# ---------------------------------------------------------------- recording


def record(function: Callable[..., Any], args: Sequence[Any]) -> Plan:
    """What ``function`` does for tensors like those in ``args`` (which may hold lists of tensors), with the same rest.

    It is run on stand-ins, tensors of the same layout with nothing of use in them, and launches nothing; operators of
    PyTorch's it does run. Raises :class:`UnplannableError` for what no plan can hold, and what ``function`` raises.
    """
    recorder = Recorder(next(_tensors(args)).device)
    given = [recorder.stand_in(value) for value in args]
    if not loader.module_missing("triton", "triton"):
        _watch_triton()
    with ExitStack() as stack:
        for guard in (torch.inference_mode(False), torch.no_grad(), torch.autocast("cuda", enabled=False)):
            stack.enter_context(guard)
        before, loader.recording.recorder = loader.recorder(), recorder
        stack.callback(setattr, loader.recording, "recorder", before)
        stack.enter_context(recorder)
        found = function(*given)
    return recorder.plan([found] if isinstance(found, torch.Tensor) else [*found])


@dataclass
class _Memory:
    """What the recorded function has of memory: an argument's, its own, or an operator's result."""

    tensor: torch.Tensor
    begin: int
    end: int
    kind: str  # argument, own, result
    number: int = -1
    """Which of the plan's tensors it is, once that is known."""
    whole: torch.Tensor | None = None
    """As what it is handed out, where it is: the plan's tensor has these sizes and strides."""
    called: bool = False
    """Whether an operator of PyTorch's sees it."""
    at: int = -1
    """Bytes into the allocation for all that only kernels see."""


@dataclass
class _Launch:
    cubin: str
    symbol: str
    settings: list[int]
    parameters: list[tuple[int, Any]]


@dataclass
class _Call:
    function: Any
    arguments: list[Any]
    results: list[torch.Tensor | None]


class Recorder(TorchDispatchMode):
    """Writes down what runs within it, in this thread."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.memories: list[_Memory] = []
        self.steps: list[Any] = []
        self.stream = self._current()
        self.aside = False  # whether the last step ran on a stream of its own
        # Memories that such steps read, and write, and the caller's stream has not waited for.
        self.read: set[int] = set()
        self.written: set[int] = set()

    def _current(self) -> Any:
        return torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None

    def stand_in(self, value: Any) -> Any:
        """A tensor of the layout of ``value``, in memory of its own; lists of tensors likewise, all else as it is."""
        if isinstance(value, list | tuple):
            return [self.stand_in(one) for one in value]
        if not isinstance(value, torch.Tensor):
            return value
        size = value.element_size()
        memory = torch.empty(_span(value) // size + 16 // size + 1, dtype=value.dtype, device=value.device)
        found = memory.as_strided(value.shape, value.stride(), (value.data_ptr() % 16) // size)
        begin = memory.data_ptr()
        self.memories.append(_Memory(found, begin, begin + memory.numel() * size, "argument"))
        return found

    def _find(self, tensor: torch.Tensor) -> _Memory | None:
        own = tensor.untyped_storage()._cdata
        return next((one for one in self.memories if one.tensor.untyped_storage()._cdata == own), None)

    def _added(self, tensor: torch.Tensor, kind: str) -> _Memory:
        begin = tensor.untyped_storage().data_ptr()
        found = _Memory(tensor, begin, begin + tensor.untyped_storage().nbytes(), kind)
        self.memories.append(found)
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if not any(True for _ in _tensors((args, *kwargs.values(), found))):
            return found  # such as which dtype two others make
        results = [*found] if isinstance(found, list | tuple) else [] if found is None else [found]
        if not all(one is None or isinstance(one, torch.Tensor) for one in results):
            raise UnplannableError(f"{func} reads what is in a tensor, or gives something other than tensors")
        given = [one for one in results if one is not None]
        if any(one.device != self.device for one in given):
            raise UnplannableError(f"{func} gives a tensor of another device")
        if func in ALLOCATIONS:
            self._added(given[0], "own")
        elif func._schema.is_mutable or not all(self._find(one) for one in given):
            if func.namespace != "aten":
                raise UnplannableError(f"{func} is no operator of PyTorch's")
            self._call(func, args, kwargs, results)
        return found

    def _call(self, func: Any, args: Any, kwargs: Any, results: Sequence[torch.Tensor | None]) -> None:
        arguments = []
        for number, argument in enumerate(func._schema.arguments):
            if number < len(args):
                arguments.append(args[number])
            else:
                default = argument.default_value if argument.has_default_value() else None
                arguments.append(kwargs.get(argument.name, default))
        seen = [self._find(tensor) for tensor in _tensors(arguments)]
        if None in seen:
            raise UnplannableError(f"{func} is given a tensor from elsewhere")
        reads = [memory for memory in seen if memory]
        fresh = []
        if not func._schema.is_mutable:
            given = [one for one in results if one is not None]
            fresh = [self._added(one, "result") for one in given]
            own = {one.untyped_storage()._cdata for one in given}
            if len(own) < len(given) or len(results) != len(func._schema.returns):
                raise UnplannableError(f"results of {func} share memory, or are a list")
        for memory in reads:
            memory.called = True
        pairs = zip(func._schema.arguments, arguments, strict=True)
        changed = [value for argument, value in pairs if argument.alias_info and argument.alias_info.is_write]
        writes = [memory for memory in map(self._find, _tensors(changed)) if memory]
        self._step(_Call(func, arguments, [*results] if fresh else []), reads, [*writes, *fresh])

    def _step(self, step: Any, read: Sequence[_Memory], written: Sequence[_Memory]) -> None:
        """One more ``step``, and the memories that it reads and writes."""
        aside = self._current() != self.stream
        reads, writes = {id(memory) for memory in read}, {id(memory) for memory in written}
        if aside:
            # Whatever the caller's stream did so far is waited for.
            if not self.aside:
                self.steps.append(BESIDE)
            self.read |= reads
            self.written |= writes
        else:
            if self.aside:
                self.steps.append(BACK)
            if (reads | writes) & self.written or writes & self.read:
                self.steps.append(JOIN)
                self.read, self.written = set(), set()
        self.aside = aside
        self.steps.append(step)

    def _place(self, address: int) -> tuple[_Memory, int] | None:
        """The memory that ``address`` lies in, and how far from what the plan knows of it; None for no address."""
        if not address:
            return None
        for memory in self.memories:
            if memory.begin <= address < memory.end:
                return memory, address - (memory.begin if memory.kind == "own" else memory.tensor.data_ptr())
        raise UnplannableError("a kernel is given memory from elsewhere")

    # ------------------------------------------------ launches

    def launch(
        self,
        cubin: str,
        symbol: str,
        parameters: Sequence[tuple[int, Any]],
        *,
        grid: Sequence[int],
        block: Sequence[int],
        shared: int = 0,
        cluster: int = 1,
        spread: bool = False,
        dependent: bool = False,
        cooperative: bool = False,
    ) -> None:
        """One launch of ``symbol`` of the machine code kept as ``cubin``.

        ``parameters``: (POINTER, address), (NUMBER, its bits) or (MAP, (address, :func:`map_of` of it)).
        ``dependent``: programmatic dependent launch. ``spread``: clusters over as many multiprocessors as can be.
        """
        extents = [[*given, *(1,) * (3 - len(given))] for given in (grid, block)]
        if not all(extents[0]):
            return
        placed: list[tuple[int, Any]] = []
        memories: list[_Memory] = []
        for kind, value in parameters:
            if kind == NUMBER:
                placed.append((NUMBER, value))
                continue
            found = self._place(value[0] if kind == MAP else value)
            if found is None:
                placed.append((NUMBER, 0))
                continue
            memories.append(found[0])
            placed.append((kind, (*found, value[1] if kind == MAP else ())))
        settings = [shared, cluster, spread, dependent, cooperative, *extents[0], *extents[1]]
        self._step(_Launch(cubin, symbol, [*map(int, settings)], placed), memories, memories)

    def cuda(self, code: bytes, symbol: str, arguments: Sequence[loader.Argument], **how: Any) -> None:
        """One launch by :func:`loader.cuda_launcher`; ``how`` as of :meth:`launch`."""
        parameters: list[tuple[int, Any]] = []
        for argument in arguments:
            if isinstance(argument, loader.TensorMap):
                parameters.append((MAP, (argument.address, map_of(*argument.described))))
            elif isinstance(argument, float):
                parameters.append((NUMBER, _bits("<f", argument)))
            elif isinstance(argument, int):
                parameters.append((NUMBER, argument))
            else:
                parameters.append((POINTER, 0 if argument is None else argument.data_ptr()))
        self.launch(_kept(code), symbol, parameters, **how)

    def scratch(self, size: int) -> int:
        """Address of ``size`` bytes more that only kernels see; 0 for none."""
        if not size:
            return 0
        return torch.empty(size, dtype=torch.uint8, device=self.device).data_ptr()

    # ------------------------------------------------ writing down

    def plan(self, outputs: Sequence[torch.Tensor]) -> Plan:
        """The plan whose results are ``outputs``. Raises :class:`UnplannableError`."""
        for output in outputs:
            memory = self._find(output)
            if memory is None or memory.kind == "argument":
                raise UnplannableError("a result is an argument, or from elsewhere")
            filled = not output.storage_offset() and _span(output) == memory.end - memory.begin
            if memory.kind == "own" and memory.whole is None and filled:
                memory.whole = output
        if self.aside:
            self.steps.append(BACK)
        if self.read or self.written:
            self.steps.append(JOIN)
        writer = _Writer()
        begin: list[int] = []
        number = 0
        for memory in (one for one in self.memories if one.kind == "argument"):
            memory.number, memory.whole, number = number, memory.tensor, number + 1
        arena, own = 0, [one for one in self.memories if one.kind == "own"]
        launched = {id(one) for one in self._launched()}
        for memory in own:
            if memory.whole is None and (memory.called or any(self._find(output) is memory for output in outputs)):
                memory.whole = memory.tensor
            if memory.whole is None and id(memory) in launched:
                memory.at, arena = arena, arena + -(-(memory.end - memory.begin) // ALIGNMENT) * ALIGNMENT
                memory.number = number
        number += bool(arena)
        steps = 0
        for memory in own:
            if memory.whole is not None:
                memory.number, number, steps = number, number + 1, steps + 1
                begin += [ALLOCATE, SCALAR_TYPES[memory.whole.dtype]]
                begin += [*_list(memory.whole.shape), *_list(memory.whole.stride())]
        for step in self.steps:
            steps += 1
            if isinstance(step, _Launch):
                begin += self._written_launch(step, writer)
            elif isinstance(step, _Call):
                begin += self._written_call(step, writer)
                for result in step.results:
                    if result is not None and (memory := self._find(result)):
                        memory.number, memory.whole = number, result
                    number += 1
                begin.append(len(step.results))
            else:
                begin.append(step)
        views = [number for output in outputs for number in self._view(output)]
        return Plan([arena, steps, *begin, len(outputs), *views], writer.words)

    def _launched(self) -> Iterator[_Memory]:
        for step in self.steps:
            if isinstance(step, _Launch):
                yield from (value[0] for kind, value in step.parameters if kind != NUMBER)

    def _written_launch(self, step: _Launch, writer: _Writer) -> list[int]:
        written = [LAUNCH, writer.word(step.cubin), writer.word(step.symbol), *step.settings, len(step.parameters)]
        for kind, value in step.parameters:
            if kind == NUMBER:
                written += [NUMBER, value]
            else:
                memory, offset, more = value
                written += [kind, memory.number, offset + max(memory.at, 0), *more]
        return written

    def _written_call(self, step: _Call, writer: _Writer) -> list[int]:
        schema = step.function._schema
        written = [CALL, writer.word(schema.name), writer.word(schema.overload_name), len(step.arguments)]
        for argument, value in zip(schema.arguments, step.arguments, strict=True):
            written += self._written_argument(value, str(argument.type), writer)
        return written

    def _written_argument(self, value: Any, kind: str, writer: _Writer) -> list[int]:
        if value is None:
            return [NONE]
        if isinstance(value, torch.Tensor):
            return [TENSOR, *self._view(value)]
        if isinstance(value, int | float) and "Tensor" in kind:
            return [WRAPPED, *self._written_argument(value, "", writer)]
        if isinstance(value, bool):
            return [BOOL, int(value)]
        if isinstance(value, float) or "float" in kind:
            return [FLOAT, _bits("<d", float(value))]
        if isinstance(value, int):
            return [INTEGER, value]
        if isinstance(value, str):
            return [WORD, writer.word(value)]
        if isinstance(value, torch.dtype):
            return [INTEGER, SCALAR_TYPES[value]]
        if isinstance(value, torch.memory_format):
            return [INTEGER, MEMORY_FORMATS[value]]
        if isinstance(value, torch.layout) and value == torch.strided:
            return [INTEGER, 0]
        if isinstance(value, torch.device):
            return [DEVICE]
        if isinstance(value, list | tuple):
            if all(isinstance(one, torch.Tensor) for one in value) and "Tensor" in kind:
                return [TENSORS, len(value), *(number for one in value for number in self._view(one))]
            if all(isinstance(one, bool) for one in value) and "bool" in kind:
                return [BOOLS, *_list(value)]
            if all(isinstance(one, int) for one in value):
                return [INTEGERS, *_list(value)]
        raise UnplannableError(f"an operator is given {value!r}")

    def _view(self, tensor: torch.Tensor) -> list[int]:
        memory = self._find(tensor)
        assert memory
        assert memory.whole is not None
        whole = memory.whole
        if whole.dtype != tensor.dtype:
            raise UnplannableError("memory is seen as two dtypes")
        offset = tensor.storage_offset() - whole.storage_offset()
        same = offset == 0 and whole.shape == tensor.shape and whole.stride() == tensor.stride()
        return [memory.number, int(offset), int(same), *_list(tensor.shape), *_list(tensor.stride())]


@dataclass
class _Writer:
    words: list[str] = field(default_factory=list)

    def word(self, word: str) -> int:
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)


def _list(numbers: Sequence[int]) -> list[int]:
    return [len(numbers), *map(int, numbers)]


def _bits(form: str, value: float) -> int:
    return int.from_bytes(struct.pack(form, value), "little", signed=struct.calcsize(form) == 8)


def _span(tensor: torch.Tensor) -> int:
    """Bytes from the tensor's first number to its last."""
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.element_size()


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def map_of(
    dtype: int,
    swizzle: int,
    promotion: int,
    fill: int,
    sizes: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
) -> tuple[int, ...]:
    """A tensor map but for its address, in ``cuTensorMapEncodeTiled``'s terms: innermost dimension first, ``strides``
    in bytes, of which the driver takes all but the first, an element's own.
    """
    return (dtype, swizzle, promotion, fill, *_list(sizes), *_list(strides), *_list(box))


# ---------------------------------------------------------------- launches of Triton's


@cache
def _watch_triton() -> None:
    """From now on Triton's launches are recorded where this thread records, and compiled for it if need be."""
    from triton.runtime.jit import JITFunction

    launch = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        recorder = loader.recorder()
        if recorder is None or warmup:
            return launch(self, *args, grid=grid, warmup=warmup, **kwargs)
        compiled = launch(self, *args, grid=grid, warmup=True, **kwargs)
        given = dict(zip(self.arg_names, args, strict=False)) | kwargs
        _record_triton(recorder, getattr(compiled, "result", lambda: compiled)(), given, grid)
        return compiled

    JITFunction.run = run


_INTEGERS = {"i1", "i8", "i16", "i32", "i64", "u1", "u8", "u16", "u32", "u64"}

_TF32 = 11


def _record_triton(recorder: Recorder, compiled: Any, given: dict[str, Any], grid: Sequence[int]) -> None:
    """A launch as Triton's own launcher makes it of ``compiled`` and the arguments ``given`` by name.

    Source: ``triton/backends/nvidia/driver.py`` of Triton 3.6 and 3.7.
    """
    known = compiled.metadata
    maps = iter(getattr(known, "tensordesc_meta", None) or ())
    parameters: list[tuple[int, Any]] = []
    for name, kind in compiled.src.signature.items():
        if kind == "constexpr":
            continue
        value = given[name]
        if not isinstance(kind, str):
            raise UnplannableError(f"{known.name} is given a tuple")
        if kind.startswith("tensordesc"):
            parameters += _descriptor(value, next(maps, None))
        elif kind.startswith("*"):
            parameters.append((POINTER, value.data_ptr()))
        elif kind in _INTEGERS:
            parameters.append((NUMBER, int(value)))
        elif kind in ("fp32", "f32", "fp64"):
            parameters.append((NUMBER, _bits("<d" if kind == "fp64" else "<f", float(value))))
        else:
            raise UnplannableError(f"{known.name} is given a {kind}")
    programs = 1
    for extent in grid:
        programs *= extent
    clusters = getattr(known, "num_ctas", 1)
    # Behind its arguments every kernel has memory that Triton asks for, and memory for its profiler.
    for size in (known.global_scratch_size, known.profile_scratch_size):
        parameters.append((POINTER, recorder.scratch(size * programs * clusters)))
    recorder.launch(
        _kept(compiled.asm["cubin"]),
        known.name,
        parameters,
        grid=(grid[0] * clusters, *grid[1:]),
        block=(32 * known.num_warps,),
        shared=known.shared,
        cluster=clusters,
        spread=clusters > 1,
        dependent=bool(known.launch_pdl),
        cooperative=bool(known.launch_cooperative_grid),
    )


def _descriptor(value: Any, known: Any) -> list[tuple[int, Any]]:
    """A tensor descriptor: its map, then sizes as 32-bit and strides as 64-bit integers."""
    if known is None or known.get("fp4_padded"):
        raise UnplannableError("a tensor descriptor that is no tensor map, or of fp4")
    # The device's numbers of dtypes are not the host's.
    numbered: int = known["elem_type"]
    dtype = {8: 10, 9: 8, 10: 9}.get(numbered, numbered)
    if getattr(value, "round_f32_to_tf32", False):
        dtype = _TF32
    pitches = [stride * known["elem_size"] for stride in value.strides]
    promote_to_128_bytes = 2
    described = map_of(
        dtype,
        known["swizzle"],
        promote_to_128_bytes,
        int(value.padding == "nan"),
        [*reversed(value.shape)],
        [*reversed(pitches)],
        [*reversed(known["block_size"])],
    )
    numbers = [(NUMBER, int(n)) for n in (*value.shape, *value.strides)]
    return [(MAP, (value.base.data_ptr(), described)), *numbers]
