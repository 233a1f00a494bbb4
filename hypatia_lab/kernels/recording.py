"""Recording: what a function launches, allocates and calls of PyTorch's, written down as a plan.

A plan holds for shapes, strides, dtypes, devices, alignment (addresses modulo 16) and all that is not a tensor. So a
function that is recorded may look at nothing else: not at numbers in its tensors, nor at global settings of its own.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hypatia_lab.kernels import loader

aten = torch.ops.aten

# The numbers by which launch.cpp knows what it reads.
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


@dataclass
class Plan:
    """A plan as ``launch.cpp`` reads it: ``numbers``, and the ``words`` that some of them count to."""

    numbers: list[int]
    words: list[str]


def kept(code: bytes) -> str:
    """Where the machine code lies from now on."""
    path = loader.cache_folder() / f"{hashlib.sha256(code).hexdigest()[:24]}.cubin"
    if not path.exists():
        loader.store(path, code)
    if not path.exists():
        raise UnplannableError(f"{path} cannot be written")
    return str(path)


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
        self.stream = self.current_stream()
        self.aside = False  # whether the last step ran on a stream of its own
        # Memories that such steps read, and write, and the caller's stream has not waited for.
        self.read: set[int] = set()
        self.written: set[int] = set()

    def current_stream(self) -> Any:
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
        if not any(True for _ in tensors_in((args, *kwargs.values(), found))):
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
        seen = [self._find(tensor) for tensor in tensors_in(arguments)]
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
        writes = [memory for memory in map(self._find, tensors_in(changed)) if memory]
        self._step(_Call(func, arguments, [*results] if fresh else []), reads, [*writes, *fresh])

    def _step(self, step: Any, read: Sequence[_Memory], written: Sequence[_Memory]) -> None:
        """One more ``step``, and the memories that it reads and writes."""
        aside = self.current_stream() != self.stream
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
                parameters.append((NUMBER, bits("<f", argument)))
            elif isinstance(argument, int):
                parameters.append((NUMBER, argument))
            else:
                parameters.append((POINTER, 0 if argument is None else argument.data_ptr()))
        self.launch(kept(code), symbol, parameters, **how)

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
            return [FLOAT, bits("<d", float(value))]
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


def bits(form: str, value: float) -> int:
    return int.from_bytes(struct.pack(form, value), "little", signed=struct.calcsize(form) == 8)


def _span(tensor: torch.Tensor) -> int:
    """Bytes from the tensor's first number to its last."""
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.element_size()


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


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
