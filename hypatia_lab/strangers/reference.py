"""What a task from elsewhere says is right, at each of its shapes, and the operation with baselines that it makes.

The reference is the task's own code in float64. Nobody has said how many terms are summed up and how often numbers are
rounded: both are counted in one pass. An error that rounding alone does not explain is right where the code itself, in
its own dtype, errs nearly as much: exponentials and differences make small errors large.
"""

from __future__ import annotations

import logging
import math
import random
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from hypatia_lab import check
from hypatia_lab.kernels.compiled import compile_missing, compiled
from hypatia_lab.strangers import reader_kernel, source_file
from hypatia_lab.strangers.reader_kernel import Own, OwnError
from hypatia_lab.variants import variant
from hypatia_lab.workloads import DTYPES, Operation, Workload, operations, register, tail

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs

    Shape = tuple[int, ...]

SLACK = 4.0
"""How often the error of the reference itself is right: whoever sums up in another order errs by another amount."""
RUNNING = ("softmax", "cumsum", "cumprod", "logcumsumexp", "attention")
"""Operators that sum up along an extent and keep it."""
PICKING = ("embedding", "gather", "index", "slice", "select", "take", "narrow", "split", "as_strided", "tril", "triu")
"""Operators after which not all of an input need be read."""

SHORTER = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Form:
    """What one pass of a reference shows: how its answer looks, and how exact it can be.

    ``dtypes`` has one for each output, the first is the workload's; ``depth`` and ``roundings`` are those of
    :class:`Operation`, ``traffic`` in bytes. ``narrow``: why its answer is not in float64; empty where it is.
    """

    dtypes: tuple[str, ...]
    depth: int
    roundings: int
    traffic: int
    narrow: str


class Reference(ABC):
    """A task's own code at one ``shape``. ``path`` is the file that is named where it fails, in which it is
    ``called``. ``mixed``: its outputs may have several dtypes."""

    called: ClassVar[str]
    mixed: ClassVar[bool] = False
    shape: Shape

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept = cache(self.made)
        self._known: tuple[_Drawn | None, Any] = None, None

    @abstractmethod
    def inputs(self, seed: int, device: str) -> Inputs:
        """The inputs that are tensors, by name, drawn anew; each in memory of its own."""

    @abstractmethod
    def arguments(self, inputs: Inputs) -> list[Any]:
        """What the code takes: ``inputs``, and whatever is no tensor, in their places."""

    @abstractmethod
    def made(self, device: str, wide: bool = False) -> tuple[Callable[..., Any], list[torch.Tensor]]:
        """The code, made anew for ``device``, to be called on float64 if it is ``wide``; and the weights it reads."""

    def answer(self, out: Any) -> Any:
        """What the code returns, as variants do: one tensor, or a tuple of several."""
        if isinstance(out, (tuple, list)):
            return out[0] if len(out) == 1 else tuple(out)
        return out

    def beside(self, inputs: Inputs, out: tuple[torch.Tensor, ...]) -> dict[str, float]:
        """What the task's own rule says of ``out``; see :class:`Operation`."""
        return {}

    def call(self, function: Callable[..., Any], inputs: Inputs) -> Run:
        """The call that is timed."""
        given = self.arguments(inputs)
        return lambda: self.answer(function(*given))

    def run(self, inputs: Inputs) -> Run:
        """The call of the code as it is."""
        return self.call(self.kept(device_of(inputs))[0], inputs)

    def right(self, inputs: Inputs) -> Any:
        """The answer in float64, or, where the code does not compute in that, in its own dtype."""
        if self.form.narrow:
            return _doubled(self.run(inputs)())
        drawn, known = self._known
        self._known = None, None  # asked for once: of large answers a GPU holds few
        if drawn and drawn.still(inputs):
            return known
        return _doubled(self.call(self.kept(device_of(inputs), True)[0], reader_kernel.widened(inputs))())

    def scale(self, work: Workload, inputs: Inputs) -> dict[str, float]:
        """The size, by output, at which the tolerance of ``work`` is :data:`SLACK` times what the code itself errs."""
        if self.form.narrow:
            return {}
        found = {}
        drawn, exact = _Drawn(inputs), self.right(inputs)
        for name, right, out in zip(work.parts, parts(exact), parts(self.run(inputs)()), strict=True):
            count, squares, largest = 0, 0.0, 0.0
            for pair in zip(right.reshape(-1).split(check.PIECE), out.reshape(-1).split(check.PIECE), strict=True):
                error = check.finite(torch.sub(*pair).abs_())
                if error.numel():
                    count, squares = count + error.numel(), squares + float(error.norm()) ** 2
                    largest = max(largest, float(error.max()))
            if count:
                spread = max(math.sqrt(squares / count), largest / tail(count))
                found[name] = SLACK * spread / work.tolerance(name)
        self._known = drawn, exact  # the reference for these inputs is asked for next
        return found

    @cached_property
    def form(self) -> Form:
        """What one pass shows, without memory or work, or on the CPU where it needs numbers. Raises
        :class:`OwnError`."""
        log = logging.getLogger("torch._subclasses.fake_tensor")
        before, log.disabled = log.disabled, True  # what fails there is tried again, or is told in a line
        try:
            with FakeTensorMode(allow_non_fake_inputs=True):
                return self._passed()
        except Exception:  # what a tensor without numbers cannot do, such as item(), or what is wrong here too
            return self._passed()
        finally:
            log.disabled = before

    def _passed(self) -> Form:
        inputs = self.inputs(0, "cpu")
        function, weights = self.made("cpu")
        told = f"{self.path}: {self.called} fails on its inputs"
        with _Trace() as seen, source_file.telling(OwnError, told, self.path):
            out = self.call(function, inputs)()
        if seen.drawn:
            told = f"{self.called} draws random numbers ({seen.drawn}), which no candidate can draw alike"
            drops = "dropout" in seen.drawn or "bernoulli" in seen.drawn
            remedy = "leave dropout out, or set it to 0" if drops else "let the inputs hold what is drawn"
            raise OwnError(f"{self.path}: {told}; {remedy}")
        found = parts(out)
        dtypes = tuple(
            str(one.dtype).removeprefix("torch.") if isinstance(one, torch.Tensor) else type(one).__name__
            for one in found
        )
        if not dtypes or not set(dtypes) <= set(DTYPES) or (len(set(dtypes)) > 1 and not self.mixed):
            told = f"{self.called} returns {' and '.join(sorted(set(dtypes))) or 'nothing'}"
            which = "" if self.mixed else " of one dtype"
            raise OwnError(f"{self.path}: {told}; it must return tensors{which}: {', '.join(DTYPES)}")
        longest = max(DTYPES[dtype] for dtype in dtypes)
        read = [*inputs.values(), *weights]
        return Form(
            dtypes=dtypes,
            depth=max(1, seen.depth),
            roundings=max(1, sum(count for size, count in seen.operators.items() if size <= longest))
            * reader_kernel.ROUNDINGS,
            traffic=max(1, sum(one.nbytes for one in (*found, *([] if seen.picks else read)))),
            narrow=self._narrow(inputs),
        )

    def _narrow(self, inputs: Inputs) -> str:
        """Why the code does not compute in float64; empty where it does."""
        try:
            with _Trace() as seen:
                out = parts(self.call(self.made("cpu", wide=True)[0], reader_kernel.widened(inputs))())
        except Exception as cause:
            return f"{self.called} fails in float64{source_file.said(cause)}"
        if seen.mixed:
            return f"{self.called} multiplies float64 by another dtype ({seen.mixed})"
        if seen.narrowed:
            return f"{self.called} goes below float64 ({seen.narrowed})"
        return (
            "" if {one.dtype for one in out} == {torch.float64} else f"{self.called} gives another dtype than float64"
        )


class Given(dict[str, torch.Tensor]):
    """Inputs, by name, that know whose they are: those of two shapes may look alike, and numbers beside them differ."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], reference: Reference) -> None:
        super().__init__(tensors)
        self.reference = reference


def declare(
    name: str, dims: tuple[str, ...], references: Sequence[Reference], outputs: tuple[str, ...], summary: str
) -> Own:
    """Register the operation ``name`` of ``references``, one for each shape, with the baselines ``eager`` and
    ``compile``. Raises :class:`OwnError` where the name is taken, or the first of them cannot be called."""
    first, found = references[0], {one.shape: one for one in references}

    def of(inputs: Inputs) -> Reference:
        return inputs.reference if isinstance(inputs, Given) else first

    def allowed(shape: Shape) -> int:
        """Where the reference errs as a candidate may, both errors add up."""
        return 4 if found[shape].form.narrow else 1

    def scale(inputs: Inputs) -> dict[str, float]:
        own = of(inputs)
        return own.scale(Workload(name, own.shape, own.form.dtypes[0]), inputs)

    if name in operations():
        raise OwnError(f"{first.path}: operation name {name!r} is taken; name it otherwise")
    if why := first.form.narrow:
        summary += f". The reference is computed in {first.form.dtypes[0]} and twice the error is allowed, for {why}"
    register(
        Operation(
            name=name,
            dims=dims,
            summary=summary,
            make_inputs=lambda work, device, generator: Given(
                found[work.shape].inputs(generator.initial_seed(), device), found[work.shape]
            ),
            reference=lambda inputs: of(inputs).right(inputs),
            flops=lambda shape: 0,  # a candidate may do with fewer than the reference
            traffic=lambda shape, itemsize: found[shape].form.traffic,
            depth=lambda shape: found[shape].form.depth * allowed(shape),
            roundings=lambda shape: found[shape].form.roundings * allowed(shape),
            scale=scale,
            beside=lambda inputs, out: of(inputs).beside(inputs, out),
            outputs=outputs,
            dtypes=dict(zip(outputs, first.form.dtypes, strict=True)),
        )
    )

    @variant(name, "eager", origin="peer", baseline=True)
    def eager(workload: Workload, inputs: Inputs) -> Run:
        """The task's own code."""
        return found[workload.shape].run(inputs)

    @variant(name, "compile", origin="peer", needs=compile_missing)
    def compile_default(workload: Workload, inputs: Inputs) -> Run:
        """torch.compile of the task's own code, default mode."""
        own = found[workload.shape]
        function = own.kept(device_of(inputs))[0]
        return own.call(compiled(lambda *given: function(*given)), inputs)

    return Own(name, summary, tuple(found), first.form.dtypes[:1])


class _Drawn:
    """What numbers some inputs hold: which tensors they are, and how often each was written to."""

    def __init__(self, inputs: Inputs) -> None:
        self.seen = {name: (weakref.ref(one), one._version) for name, one in inputs.items()}

    def still(self, inputs: Inputs) -> bool:
        """Whether these are ``inputs``, with nothing written since."""
        found = {name: self.seen.get(name) for name in inputs}
        return all(
            seen and seen[0]() is inputs[name] and seen[1] == inputs[name]._version for name, seen in found.items()
        )


class _Trace(TorchDispatchMode):
    """Counts what a forward pass is made of, operator by operator.

    ``depth`` terms are summed up, one operator after the other; ``operators`` round, by the bytes of what they give.
    ``picks``: some of its inputs need not be read whole. ``drawn`` names an operator that draws random numbers,
    ``narrowed`` one that makes of float64 something less, ``mixed`` one that multiplies dtypes which do not go
    together, as tensors without memory let pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self.depth, self.picks = 0, False
        self.operators: Counter[int] = Counter()
        self.drawn, self.narrowed, self.mixed = "", "", ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(func, OpOverload):
            self._note(func, args, kwargs or {}, out)
        return out

    def _note(self, func: OpOverload, args: Any, kwargs: Any, out: Any) -> None:
        name = func.overloadpacket.__name__
        before, after = _floats((args, kwargs)), _floats(out)
        self.picks |= any(word in name for word in PICKING)
        # Attention says that it draws, even where nothing is dropped.
        if torch.Tag.nondeterministic_seeded in func.tags and "attention" not in name:
            self.drawn = name
        if func.is_view or not before or not after:
            return
        self.operators[min(one.itemsize for one in after)] += 1
        if any(one.dtype == torch.float64 for one in before) and any(one.dtype != torch.float64 for one in after):
            self.narrowed = name
        widest, least = max(before, key=torch.Tensor.numel), max(1, min(one.numel() for one in after))
        if count := flop_registry.get(func.overloadpacket):
            self.depth += count(*args, **kwargs, out_val=out) // (2 * max(1, after[0].numel()))
            if len({one.dtype for one in before}) > 1:
                self.mixed = name
        elif any(word in name for word in RUNNING):
            self.depth += max(widest.shape, default=1)
        elif widest.numel() > least and not any(word in name for word in PICKING):
            self.depth += widest.numel() // least


class Unrounded(TorchDispatchMode):
    """Has all that asks for a shorter floating-point dtype get float64: what code casts for speed, or against
    overflow, is computed in full."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        asked = kwargs or {}
        if asked.get("dtype") in SHORTER:
            asked = {**asked, "dtype": torch.float64}
        return func(*args, **asked)


def _floats(tree: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor) and one.is_floating_point()]


def _doubled(answer: Any) -> Any:
    return tuple(one.double() for one in answer) if isinstance(answer, tuple) else answer.double()


def parts(answer: Any) -> tuple[Any, ...]:
    """An answer as a tuple, whether it is of one tensor or of several."""
    return answer if isinstance(answer, tuple) else (answer,)


def device_of(inputs: Inputs) -> str:
    """``cpu`` or ``cuda``: where ``inputs`` lie."""
    return next(iter(inputs.values())).device.type


@contextmanager
def seeded(seed: int, process: int = -1) -> Iterator[None]:
    """Whatever the body draws by torch, numpy or Python, it draws the same; in each ``process``, if one is told,
    something else."""
    import numpy

    seed += 7_368_787 * (process + 1)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        numpy.random.seed(seed % 2**32)
        random.seed(seed)
        yield
