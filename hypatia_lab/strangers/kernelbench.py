"""A problem in the format of KernelBench, and a candidate for it, as one operation and its variants.

PROBLEM has ``Model`` (a ``torch.nn.Module``), ``get_inputs()`` and ``get_init_inputs()``; CANDIDATE has ``ModelNew``.
``Model`` is the variant ``eager``, through torch.compile ``compile``; ``ModelNew`` is ``model_new``. All are called as
they are constructed, in training mode, and without gradients. Source: the format of ScalingIntelligence/KernelBench.

The reference is ``Model`` in float64, with the same weights. Nobody has said how many terms are summed up and how often
numbers are rounded: both are counted in one forward pass. An error that rounding alone does not explain is right where
``Model`` itself, in its own dtype, errs nearly as much: exponentials and differences make small errors large.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from hypatia_lab.experiments import Experiment, Source
from hypatia_lab.kernels.compiled import compile_missing, compiled
from hypatia_lab.strangers import reader_kernel, source_file
from hypatia_lab.strangers.reader_kernel import Own, OwnError
from hypatia_lab.variants import variant
from hypatia_lab.workloads import DTYPES, Operation, Workload, operations, register, tail

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs

KIND = "kernelbench"
CANDIDATE = "model_new"
"""The variant that ``ModelNew`` is."""
SLACK = 4.0
"""How often the error of ``Model`` itself is right: whoever sums up in another order errs by another amount."""
RUNNING = ("softmax", "cumsum", "cumprod", "logcumsumexp", "attention")
"""Operators that sum up along an extent and keep it."""
PICKING = ("embedding", "gather", "index", "slice", "select", "take", "narrow", "split", "as_strided", "tril", "triu")
"""Operators after which not all of an input need be read."""


def digest(candidate: Path, problem: Path) -> str:
    """Digest of both texts, 12 hexadecimal digits. Raises :class:`OwnError` when one cannot be read."""
    both = reader_kernel.digest(candidate) + reader_kernel.digest(problem)
    return hashlib.sha256(both.encode()).hexdigest()[:12]


def experiment(candidate: Path, problem: Path, own: Own) -> Experiment:
    """The experiment that measures ``own``, which :func:`load` has returned for the same files."""
    source = Source(str(candidate.resolve()), digest(candidate, problem), KIND, problem=str(problem.resolve()))
    return replace(reader_kernel.experiment(candidate, own), source=source)


def load(path: Path, problem: Path, expected: str = "", process: int = 0, *, candidate: bool = True) -> Own:
    """Run both files and register the operation that they are; its name is ``kernelbench_`` and the problem's.

    ``path`` is the candidate's file, which is not run unless ``candidate``. Inputs and weights are drawn anew in each
    ``process``. ``expected`` is the digest that the files must have.

    Raises :class:`OwnError`, one line that begins with a file: one that cannot be read or fails, lacks a name, whose
    ``Model`` cannot be constructed or called, or whose inputs or outputs are none that can be checked.
    """
    path, problem = path.resolve(), problem.resolve()
    if expected and digest(path, problem) != expected:
        raise OwnError(f"{path}: it or its problem was changed while it was being measured; judge it again")
    task = _Task(problem, process)
    new = candidate_class(path) if candidate else None
    name = f"{KIND}_{re.sub(r'[^a-z0-9]+', '_', problem.stem.lower()).strip('_')}"[:64]
    if name in operations():
        raise OwnError(f"{problem}: operation name {name!r} is taken; name the file otherwise")
    form = task.examined()
    shape = next((tuple(one.shape) for one in task.inputs(0, "cpu").values() if one.dim()), (1,))
    outputs = ("y", *(f"output {number}" for number in range(2, form.outputs + 1)))
    register(
        Operation(
            name=name,
            dims=tuple(f"extent{number}" for number in range(1, len(shape) + 1)),
            summary=form.summary,
            make_inputs=lambda work, device, generator: task.inputs(generator.initial_seed(), device),
            reference=lambda inputs: task.reference(inputs, form.exact),
            flops=lambda shape: 0,  # a candidate may do with fewer than Model
            traffic=lambda shape, itemsize: form.traffic,
            # Where the reference errs as a candidate may, both errors add up.
            depth=lambda shape: form.depth * (1 if form.exact else 4),
            roundings=lambda shape: form.roundings * (1 if form.exact else 4),
            scale=lambda inputs: task.scale(Workload(name, shape, form.dtype), inputs) if form.exact else {},
            outputs=outputs,
        )
    )

    @variant(name, "eager", origin="peer", baseline=True)
    def eager(workload: Workload, inputs: Inputs) -> Run:
        """The problem's Model."""
        return task.call(task.model(_device(inputs)), inputs)

    @variant(name, "compile", origin="peer", needs=compile_missing)
    def compile_default(workload: Workload, inputs: Inputs) -> Run:
        """torch.compile of the problem's Model, default mode."""
        model = task.model(_device(inputs))
        return task.call(compiled(lambda *given: model(*given)), inputs)

    @variant(name, CANDIDATE, origin="own", label="ModelNew")
    def model_new(workload: Workload, inputs: Inputs) -> Run:
        """The candidate's ModelNew, with Model's weights where it has the same."""
        assert new is not None, "whoever builds it has run its file"
        own = task.built(new, path).to(_device(inputs))
        state = task.model(_device(inputs)).state_dict()
        there = own.state_dict()
        if {key: value.shape for key, value in state.items()} == {key: value.shape for key, value in there.items()}:
            own.load_state_dict(state)
        return task.call(own, inputs)

    return Own(name, form.summary, (shape,), (form.dtype,))


def candidate_class(path: Path) -> Callable[..., torch.nn.Module]:
    """Run the candidate's file ``path``; its ``ModelNew``. Raises :class:`OwnError`."""
    return _module_class(path, source_file.run(path, OwnError), "ModelNew")


@dataclass(frozen=True)
class _Form:
    """What one forward pass of Model shows: how its answer looks, and how exact it can be.

    ``depth`` and ``roundings`` are those of :class:`Operation`, ``traffic`` in bytes; ``exact``: float64 will do.
    """

    summary: str
    dtype: str
    outputs: int
    depth: int
    roundings: int
    traffic: int
    exact: bool


class _Task:
    """A problem's file: what it draws and constructs, in this process."""

    def __init__(self, path: Path, process: int) -> None:
        self.path, self.process = path, process
        module = source_file.run(path, OwnError)
        self.Model = _module_class(path, module, "Model")
        self.get_inputs, self.get_init_inputs = (
            _function(path, module, name) for name in ("get_inputs", "get_init_inputs")
        )
        self.model = cache(lambda device: self.built(self.Model, path).to(device))
        self.wide = cache(lambda device: _widened(self.built(self.Model, path)).to(device))
        self.given = self._drawn(0)

    def _drawn(self, seed: int, device: str = "cpu") -> list[Any]:
        """What get_inputs() gives, all of it tensors or numbers, drawn on ``device``, which spares large ones the way
        there; or on the CPU, where it has to be. Raises :class:`OwnError`."""
        with _seeded(7_368_787 * (self.process + 1) + seed), torch.device(device):
            try:
                found = _called(self.path, self.get_inputs)
            except OwnError:
                if device == "cpu":
                    raise
                return self._drawn(seed)
        for number, one in enumerate(found, 1):
            if not isinstance(one, (torch.Tensor, bool, int, float)):
                what = f"get_inputs() gives a {type(one).__name__} as input {number}"
                raise OwnError(f"{self.path}: {what}; inputs must be tensors, or plain numbers")
        if not any(isinstance(one, torch.Tensor) for one in found):
            raise OwnError(f"{self.path}: get_inputs() gives no tensor")
        return found

    @property
    def names(self) -> list[str]:
        """What the inputs are called: as forward's arguments are, where it names as many."""
        taken = inspect.signature(self.Model.forward).parameters.values()
        named = [one.name for one in taken if one.kind is one.POSITIONAL_OR_KEYWORD][1:]
        count = len(self.given)
        return named[:count] if len(named) >= count else [f"input{number}" for number in range(1, count + 1)]

    def inputs(self, seed: int, device: str) -> Inputs:
        """The inputs that are tensors, by name, drawn anew; each in memory of its own."""
        found = zip(self.names, self._drawn(seed, device), strict=True)
        return {name: one.detach().to(device).clone() for name, one in found if isinstance(one, torch.Tensor)}

    def arguments(self, inputs: Inputs) -> list[Any]:
        """What forward takes: ``inputs``, and the numbers in their places."""
        return [inputs.get(name, one) for name, one in zip(self.names, self.given, strict=True)]

    def built(self, made: Callable[..., torch.nn.Module], path: Path) -> torch.nn.Module:
        """``made``, of the file ``path``, as get_init_inputs() says, with the same seed each time in a process."""
        with _seeded(self.process):
            given = _called(self.path, self.get_init_inputs)
            try:
                found = made(*given)
            except Exception as cause:
                told = f"{made.__name__}(*get_init_inputs()) fails{source_file.said(cause, path)}"  # pyright: ignore[reportAttributeAccessIssue]
                raise OwnError(f"{path}: {told}") from None
        return found.requires_grad_(False)

    def call(self, model: Callable[..., Any], inputs: Inputs) -> Run:
        """The call that is timed."""
        given = self.arguments(inputs)
        return lambda: _answer(model(*given))

    def reference(self, inputs: Inputs, exact: bool) -> Any:
        """Model's answer in float64, or, where it does not compute in that, in its own dtype."""
        if not exact:
            return _doubled(self.call(self.model(_device(inputs)), inputs)())
        wide = {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}
        return _doubled(self.call(self.wide(_device(inputs)), wide)())

    def scale(self, work: Workload, inputs: Inputs) -> dict[str, float]:
        """The size, by output, at which the tolerance of ``work`` is :data:`SLACK` times what Model itself errs."""
        own, right = (
            _parts(one) for one in (self.call(self.model(_device(inputs)), inputs)(), self.reference(inputs, True))
        )
        found = {}
        for name, out, exact in zip(work.parts, own, right, strict=True):
            error = (out.double() - exact).abs()
            error = error[error.isfinite()]
            if count := error.numel():
                spread = max(float(error.norm()) / math.sqrt(count), float(error.max()) / tail(count))
                found[name] = SLACK * spread / work.tolerance(name)
        return found

    def examined(self) -> _Form:
        """Run Model once without memory or work, or on the CPU where it needs numbers. Raises :class:`OwnError`."""
        log = logging.getLogger("torch._subclasses.fake_tensor")
        before, log.disabled = log.disabled, True  # what fails there is tried again, or is told in a line
        try:
            with FakeTensorMode(allow_non_fake_inputs=True):
                return self._examined()
        except Exception:  # what a tensor without numbers cannot do, such as item(), or what is wrong here too
            return self._examined()
        finally:
            log.disabled = before

    def _examined(self) -> _Form:
        inputs = self.inputs(0, "cpu")
        model = self.built(self.Model, self.path)
        with _Trace() as seen:
            try:
                out = self.call(model, inputs)()
            except Exception as cause:
                raise OwnError(f"{self.path}: Model fails on its inputs{source_file.said(cause, self.path)}") from None
        if seen.drawn:
            told = f"Model draws random numbers ({seen.drawn}), which no candidate can draw alike"
            remedy = (
                "leave dropout out, or set it to 0"
                if "dropout" in seen.drawn or "bernoulli" in seen.drawn
                else ("draw them in get_inputs, and let forward take them")
            )
            raise OwnError(f"{self.path}: {told}; {remedy}")
        parts = _parts(out)
        kinds = {
            str(one.dtype).removeprefix("torch.") if isinstance(one, torch.Tensor) else type(one).__name__
            for one in parts
        }
        if len(kinds) != 1 or not kinds <= set(DTYPES):
            told = f"Model returns {' and '.join(sorted(kinds)) or 'nothing'}"
            raise OwnError(f"{self.path}: {told}; it must return tensors of one dtype: {', '.join(DTYPES)}")
        (dtype,) = kinds
        why = self._narrow(inputs)
        doc = inspect.getdoc(self.Model) if self.Model.__doc__ else ""
        summary = (doc or f"the problem {self.path.stem}").strip().splitlines()[0].rstrip(".")
        if why:
            summary += f". The reference is computed in {dtype} and twice the error is allowed, for {why}"
        read = [*inputs.values(), *model.state_dict().values()]
        return _Form(
            summary=summary,
            dtype=dtype,
            outputs=len(parts),
            depth=max(1, seen.depth),
            roundings=max(1, seen.operators) * reader_kernel.ROUNDINGS,
            traffic=max(1, sum(one.nbytes for one in (*parts, *([] if seen.picks else read)))),
            exact=not why,
        )

    def _narrow(self, inputs: Inputs) -> str:
        """Why Model does not compute in float64; empty where it does."""
        wide = {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}
        try:
            with _Trace() as seen:
                out = _parts(self.call(_widened(self.built(self.Model, self.path)), wide)())
        except Exception as cause:
            return f"Model fails in float64{source_file.said(cause)}"
        if seen.mixed:
            return f"Model multiplies float64 by another dtype ({seen.mixed})"
        if seen.narrowed:
            return f"Model goes below float64 ({seen.narrowed})"
        return "" if {one.dtype for one in out} == {torch.float64} else "Model gives another dtype than float64"


class _Trace(TorchDispatchMode):
    """Counts what a forward pass is made of, operator by operator.

    ``depth`` terms are summed up, one operator after the other; ``operators`` round. ``picks``: some of its inputs need
    not be read whole. ``drawn`` names an operator that draws random numbers, ``narrowed`` one that makes of float64
    something less, ``mixed`` one that multiplies dtypes which do not go together, as tensors without memory let pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self.depth, self.operators, self.picks = 0, 0, False
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
        self.operators += 1
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


def _widened(model: torch.nn.Module) -> torch.nn.Module:
    """``model`` in float64, whose weights may be without memory, which ``Module.double`` does not take."""
    state = {key: value.double() if value.is_floating_point() else value for key, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    for one in model.modules():
        for name, buffer in one._buffers.items():  # those that are no part of its state
            if buffer is not None and buffer.is_floating_point():
                one._buffers[name] = buffer.double()
    return model


def _floats(tree: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor) and one.is_floating_point()]


def _answer(out: Any) -> Any:
    """What a forward pass returns, as variants do: one tensor, or a tuple of several."""
    if isinstance(out, (tuple, list)):
        return out[0] if len(out) == 1 else tuple(out)
    return out


def _parts(answer: Any) -> tuple[Any, ...]:
    return answer if isinstance(answer, tuple) else (answer,)


def _doubled(answer: Any) -> Any:
    return tuple(one.double() for one in answer) if isinstance(answer, tuple) else answer.double()


def _device(inputs: Inputs) -> str:
    return next(iter(inputs.values())).device.type


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Whatever the body draws by torch, numpy or Python, it draws the same."""
    import numpy

    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        numpy.random.seed(seed % 2**32)
        random.seed(seed)
        yield


def _module_class(path: Path, module: ModuleType, name: str) -> Callable[..., torch.nn.Module]:
    found = getattr(module, name, None)
    if not inspect.isclass(found) or not issubclass(found, torch.nn.Module):
        lacks = "has no" if found is None else "has something else as"
        raise OwnError(f"{path}: {lacks} {name}, which must be a class of torch.nn.Module")
    return found


def _function(path: Path, module: ModuleType, name: str) -> Callable[[], Any]:
    found = getattr(module, name, None)
    if not callable(found):
        raise OwnError(f"{path}: has no function {name}()")
    return found


def _called(path: Path, function: Callable[[], Any]) -> list[Any]:
    """The list that ``function``, of the problem's file, returns. Raises :class:`OwnError`."""
    try:
        found = function()
    except Exception as cause:
        raise OwnError(f"{path}: {function.__name__}() fails{source_file.said(cause, path)}") from None
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise OwnError(f"{path}: {function.__name__}() must return a list, not a {type(found).__name__}")
    return list(found)
