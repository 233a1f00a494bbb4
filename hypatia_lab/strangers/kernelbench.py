"""A problem in the format of KernelBench, and a candidate for it, as one operation and its variants.

PROBLEM has ``Model`` (a ``torch.nn.Module``), ``get_inputs()`` and ``get_init_inputs()``; CANDIDATE has ``ModelNew``.
``Model`` is the variant ``eager``, through torch.compile ``compile``; ``ModelNew`` is ``model_new``. All are called as
they are constructed, in training mode, and without gradients. Source: the format of ScalingIntelligence/KernelBench.

The reference is ``Model`` in float64, with the same weights (:mod:`hypatia_lab.strangers.reference`).
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from hypatia_lab.strangers import reader_kernel, source_file
from hypatia_lab.strangers.reader_kernel import Own, OwnError
from hypatia_lab.strangers.reference import Reference, declare, device_of, seeded
from hypatia_lab.variants import variant

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload

KIND = "kernelbench"
CANDIDATE = "model_new"
"""The variant that ``ModelNew`` is."""
text, problem_digest = reader_kernel.text, reader_kernel.digest
"""Candidate and problem are a Python file each."""


def digest(candidate: Path, problem: Path) -> str:
    """Digest of both texts, 12 hexadecimal digits. Raises :class:`OwnError` when one cannot be read."""
    both = reader_kernel.digest(candidate) + reader_kernel.digest(problem)
    return hashlib.sha256(both.encode()).hexdigest()[:12]


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
    dims = tuple(f"extent{number}" for number in range(1, len(task.shape) + 1))
    own = declare(name, dims, (task,), task.outputs, task.summary)

    @variant(name, CANDIDATE, origin="own", label="ModelNew")
    def model_new(workload: Workload, inputs: Inputs) -> Run:
        """The candidate's ModelNew, with Model's weights where it has the same."""
        assert new is not None, "whoever builds it has run its file"
        model = task.built(new, path).to(device_of(inputs))
        state = task.model(device_of(inputs)).state_dict()
        there = model.state_dict()
        if {key: value.shape for key, value in state.items()} == {key: value.shape for key, value in there.items()}:
            model.load_state_dict(state)
        return task.call(model, inputs)

    return own


def located(candidate: Path) -> Path:
    """The candidate's file."""
    return candidate


def left_out(problem: Path) -> list[str]:
    """Nothing: a problem is one workload."""
    return []


def tried(path: Path, problem: Path) -> None:
    """Run the candidate's file. Raises :class:`OwnError`."""
    candidate_class(path)


def candidate_class(path: Path) -> Callable[..., torch.nn.Module]:
    """Run the candidate's file ``path``; its ``ModelNew``. Raises :class:`OwnError`."""
    return _module_class(path, source_file.run(path, OwnError), "ModelNew")


class _Task(Reference):
    """A problem's file: what it draws and constructs, in this process."""

    called = "Model"

    def __init__(self, path: Path, process: int) -> None:
        super().__init__(path)
        self.process = process
        module = source_file.run(path, OwnError)
        self.Model = _module_class(path, module, "Model")
        self.get_inputs, self.get_init_inputs = (
            _function(path, module, name) for name in ("get_inputs", "get_init_inputs")
        )
        self.model = cache(lambda device: self.built(self.Model, path).to(device))
        self.given = self._drawn(0, "meta")
        self.shape = next((tuple(one.shape) for one in self.given if isinstance(one, torch.Tensor) and one.dim()), (1,))

    def _drawn(self, seed: int, device: str = "cpu") -> list[Any]:
        """What get_inputs() gives, all of it tensors or numbers, drawn on ``device``, which spares large ones the way
        there (on ``meta`` they have no memory at all); or on the CPU, where it has to be. Raises :class:`OwnError`."""
        with seeded(seed, self.process), torch.device(device):
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
        with seeded(self.process):
            given = _called(self.path, self.get_init_inputs)
            told = f"{path}: {made.__name__}(*get_init_inputs()) fails"  # pyright: ignore[reportAttributeAccessIssue]
            with source_file.telling(OwnError, told, path):
                found = made(*given)
        return found.requires_grad_(False)

    def made(self, device: str, wide: bool = False) -> tuple[Callable[..., Any], list[torch.Tensor]]:
        model = self.built(self.Model, self.path)
        model = _widened(model) if wide else model
        if device != "cpu":  # where it was built; without memory it cannot be moved
            model.to(device)
        return model, [*model.state_dict().values()]

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what Model returns."""
        return ("y", *(f"output {number}" for number in range(2, len(self.form.dtypes) + 1)))

    @property
    def summary(self) -> str:
        """The first line that describes Model."""
        doc = inspect.getdoc(self.Model) if self.Model.__doc__ else ""
        return (doc or f"the problem {self.path.stem}").strip().splitlines()[0].rstrip(".")


def _widened(model: torch.nn.Module) -> torch.nn.Module:
    """``model`` in float64, whose weights may be without memory, which ``Module.double`` does not take."""
    model.load_state_dict(reader_kernel.widened(model.state_dict()), assign=True)
    for one in model.modules():
        for name, buffer in one._buffers.items():  # those that are no part of its state
            if buffer is not None and buffer.is_floating_point():
                one._buffers[name] = buffer.double()
    return model


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
