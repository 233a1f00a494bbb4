"""A problem in the format of SOL-ExecBench, or of FlashInfer-Trace before it, and a solution, as an operation.

PROBLEM is a folder with ``definition.json`` (axes, inputs, outputs, and Python source that defines ``run``) and
``workload.jsonl``, a line for each shape. SOLUTION is a JSON file that holds its sources, or a folder with it as
``solution.json``. ``run`` is the variant ``eager``, through torch.compile ``compile``; the solution is ``solution``.
Sources: the documents of NVIDIA/SOL-ExecBench and of flashinfer-ai/flashinfer-bench.

The reference is ``run`` on float64, in which its casts to shorter dtypes are left out. Inputs are drawn as their names
tell, where plain normal numbers would make no sense; what the format fills with ones or zeros is drawn near to those,
so that whoever leaves it out is seen. The format's own tolerance is told beside the verdict.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from hypatia_lab.strangers import reader_kernel, solutions, source_file
from hypatia_lab.strangers.definitions import WHOLE, Line, Problem, Slot, read, stored
from hypatia_lab.strangers.reader_kernel import Own, OwnError
from hypatia_lab.strangers.reference import Reference, Unrounded, declare, device_of, parts, seeded
from hypatia_lab.variants import variant

if TYPE_CHECKING:
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload

KIND = "sol-execbench"
CANDIDATE = "solution"
"""The variant that the solution is."""
STORED = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "BOOL": "bool"} | {
    f"{letter}{size}": f"{word}{size}"
    for letter, word, sizes in (("F", "float", (64, 32, 16)), ("BF", "bfloat", (16,)), ("I", "int", (64, 32, 16, 8)))
    for size in sizes
}
"""dtypes of a safetensors file."""
Draw = Callable[[Sequence[int], torch.dtype], torch.Tensor]


def _normal(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(tuple(shape), dtype=dtype)


def _uniform(low: float, high: float) -> Draw:
    return lambda shape, dtype: low + (high - low) * torch.rand(tuple(shape), dtype=dtype)


def _either(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return (torch.rand(tuple(shape)) < 0.5).to(dtype)


def _causal(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    if shape[-1] != shape[-2]:
        return _either(shape, dtype)
    least = torch.full(tuple(shape[-2:]), torch.finfo(dtype).min, dtype=dtype).triu(1)
    return least.expand(tuple(shape)).clone()


NAMED: tuple[tuple[str, int, Draw], ...] = (
    (r"(.*(norm|layernorm)\d*_)weight|norm_weight", 0, lambda shape, dtype: 1 + 0.1 * _normal(shape, dtype)),
    (r"(.*(norm|layernorm)\d*_)bias|norm_bias", 0, lambda shape, dtype: 0.1 * _normal(shape, dtype)),
    (r"attention_mask|causal_mask", 2, _causal),
    (r".*_mask", 0, _either),
    (r"(rope_)?(cos|sin)(_cached)?", 0, lambda shape, dtype: torch.cos(math.pi * _normal(shape, dtype))),
    (r"(.*_)?(rstd|std|var|variance)\d*", 0, lambda shape, dtype: 0.1 + _normal(shape, dtype).abs()),
    (r"A_log", 0, _uniform(-5.0, -1.0)),
    (r"A_cumsum", 0, lambda shape, dtype: _uniform(-0.1, 0.0)(shape, dtype).cumsum(-1)),
    (r"A", 0, _uniform(-1.0, -1e-3)),
    (r"g", 0, _uniform(-5.0, 0.0)),
    (r"(attn|attention|routing)_weights|probs", 0, lambda shape, dtype: _normal(shape, dtype).softmax(-1)),
    (r"(.*_)?(weights?\d*|projs?\d*|weight_matrix)", 2, lambda shape, dtype: _normal(shape, dtype) / shape[-1] ** 0.5),
)
"""Names of random inputs, with the fewest extents that they go with, and how those are drawn; the first that fits."""


# ---------------------------------------------------------------- the reference


class _Run(Reference):
    """``run``, of the module that the definition's source makes, at one workload."""

    called = "run"
    mixed = True

    def __init__(self, problem: Problem, line: Line, module: ModuleType, process: int) -> None:
        super().__init__(problem.definition)
        self.problem, self.line, self.module, self.process = problem, line, module, process
        self.shape = problem.shape(line)
        self.stored = {
            one.name: self._loaded(one) for one in problem.inputs if self._how(one).get("type") == "safetensors"
        }

    def _how(self, one: Slot) -> Mapping[str, Any]:
        return self.line.inputs.get(one.name, {"type": "random"})

    def _loaded(self, one: Slot) -> torch.Tensor:
        """The stored input. Source: the layout of a safetensors file: the length of its header in 8 bytes, the header
        in JSON, and the data. Raises :class:`OwnError`."""
        path, key = stored(self.problem.folder, self._how(one)["path"]), self._how(one).get("tensor_key", one.name)
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                told = json.loads(file.read(length))[key]
                start, end = told["data_offsets"]
                file.seek(8 + length + start)
                data = bytearray(file.read(end - start))
            kind, shape = STORED[told["dtype"]], tuple(told["shape"])
            found = torch.frombuffer(data, dtype=getattr(torch, kind)).reshape(shape)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as cause:
            raise OwnError(f"{self.path}: {self._at()}: {path} does not hold {key!r} ({cause})") from None
        if (kind, shape) != (one.dtype, one.extents(self.line.axes)):
            told = f"{kind} of {list(shape)}, not {one.dtype} of {list(one.extents(self.line.axes))}"
            raise OwnError(f"{self.path}: {self._at()}: {key!r} of {path} is {told}")
        return found

    def _at(self) -> str:
        return f"workload {self.line.number} ({self.line.name})"

    def inputs(self, seed: int, device: str) -> Inputs:
        found: dict[str, Any] = {}
        with seeded(seed, self.process), torch.device(device):
            own = self._custom(device) if any(self._how(one).get("type") == "custom" for one in self.tensors) else {}
            for one in self.tensors:
                kind, shape = self._how(one).get("type"), one.extents(self.line.axes)
                found[one.name] = (
                    self.stored.get(one.name, own.get(one.name)) if kind != "random" else _drawn(one, shape)
                )
                if not isinstance(found[one.name], torch.Tensor):
                    raise OwnError(f"{self.path}: {self._at()}: {self.problem.draws}() gives no tensor {one.name!r}")
                looks = (str(found[one.name].dtype).removeprefix("torch."), tuple(found[one.name].shape))
                if looks != (one.dtype, shape):
                    told = f"{one.name} is {looks[0]} of {list(looks[1])}, not {one.dtype} of {list(shape)}"
                    raise OwnError(f"{self.path}: {self._at()}: {told}")
        return {name: one.detach().to(device).clone() for name, one in found.items()}

    @property
    def tensors(self) -> list[Slot]:
        """The inputs that are no plain numbers."""
        return [one for one in self.problem.inputs if one.shape is not None and self._how(one)["type"] != "scalar"]

    def _custom(self, device: str) -> Mapping[str, Any]:
        """What the definition's own function draws. Raises :class:`OwnError`."""
        draw = getattr(self.module, self.problem.draws, None)
        with source_file.telling(OwnError, f"{self.path}: {self._at()}: {self.problem.draws}() fails"):
            return draw({**self.line.axes, **self.numbers}, torch.device(device))  # pyright: ignore[reportOptionalCall]

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """The inputs that are plain numbers."""
        return {one.name: self._how(one)["value"] for one in self.problem.inputs if one not in self.tensors}

    def arguments(self, inputs: Inputs) -> list[Any]:
        return [inputs[one.name] if one.name in inputs else self.numbers[one.name] for one in self.problem.inputs]

    def made(self, device: str, wide: bool = False) -> tuple[Callable[..., Any], list[torch.Tensor]]:
        run = self.module.run

        def in_full(*given: Any) -> Any:
            with Unrounded():
                return run(*given)

        return (in_full if wide else run), []

    def answer(self, out: Any) -> Any:
        if isinstance(out, Mapping):
            out = [out[one.name] for one in self.problem.outputs]
        return super().answer(out)

    def written(self, function: Callable[..., Any], inputs: Inputs) -> Run:
        """The call of what writes into outputs that it is given, whose memory is new and as it comes."""
        given, device = self.arguments(inputs), device_of(inputs)
        looks = [(one.extents(self.line.axes), getattr(torch, one.dtype)) for one in self.problem.outputs]

        def run() -> Any:
            outputs = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in looks]
            function(*given, *outputs)
            return outputs[0] if len(outputs) == 1 else tuple(outputs)

        return run

    def beside(self, inputs: Inputs, out: tuple[torch.Tensor, ...]) -> dict[str, float]:
        """The format's own rule, see :func:`compared`, against ``run`` in its own dtype on the same inputs."""
        own = parts(self.run(inputs)())
        found = [compared(one, right, self.line.tolerance) for one, right in zip(out, own, strict=False)]
        if len(out) != len(own) or not found:
            return {"failed": 1.0}
        names = dict.fromkeys(name for one in found for name in one)
        return {name: max(one.get(name, 0.0) for one in found) for name in names}


def compared(out: torch.Tensor, right: torch.Tensor, tolerance: Mapping[str, Any]) -> dict[str, float]:
    """The format's own rule of an answer: ``failed`` 1 or 0, and the numbers behind that.

    An element matches where |out − right| ≤ max_atol + max_rtol · |right|. It fails where less than
    required_matched_ratio of them match, where one is off by more than max_error_cap, where one is not finite (but for
    −∞ in both, with allow_negative_inf), and where all are 0 and should not be.
    """
    if (out.shape, out.dtype) != (right.shape, right.dtype) or out.is_meta:
        return {"failed": 1.0}
    x, y = out.float(), right.float()
    if tolerance.get("allow_negative_inf"):
        same = (x == -math.inf) & (y == -math.inf)
        x, y = x[~same], y[~same]
    finite = x.isfinite() & y.isfinite()
    error = (x - y).abs()
    matched = finite & (error <= tolerance["max_atol"] + tolerance["max_rtol"] * y.abs())
    unmatched = 1 - float(matched.double().mean()) if x.numel() else 0.0
    largest = float(error[finite].max()) if bool(finite.any()) else 0.0
    cap = tolerance.get("max_error_cap")
    failed = not bool(finite.all()) or (not bool(x.any()) and bool(y.any()))
    failed |= 1 - unmatched < tolerance["required_matched_ratio"] or (cap is not None and largest > cap)
    told = {"atol": tolerance["max_atol"], "rtol": tolerance["max_rtol"]}
    told |= {"allowed_unmatched": 1 - tolerance["required_matched_ratio"]}
    return {"failed": float(failed), "unmatched": unmatched, "max_error": largest} | told


def _drawn(one: Slot, shape: Sequence[int]) -> torch.Tensor:
    """A random input."""
    if one.dtype == "bool":
        return torch.randint(0, 2, tuple(shape)).bool()
    if one.dtype in WHOLE:
        return torch.randint(-WHOLE[one.dtype], WHOLE[one.dtype], tuple(shape), dtype=getattr(torch, one.dtype))
    if one.dtype.startswith("float8"):
        return _normal(shape, torch.float32).clamp(-2, 2).to(getattr(torch, one.dtype))
    fits = (draw for name, least, draw in NAMED if len(shape) >= least and re.fullmatch(name, one.name))
    return next(fits, _normal)(shape, getattr(torch, one.dtype))


# ---------------------------------------------------------------- the operation


def located(candidate: Path) -> Path:
    """The solution's file: ``candidate``, or the one in that folder."""
    return candidate / "solution.json" if candidate.is_dir() else candidate


def digest(candidate: Path, problem: Path) -> str:
    """Digest of all three texts, 12 hexadecimal digits. Raises :class:`OwnError` when one cannot be read."""
    return hashlib.sha256((reader_kernel.digest(candidate) + problem_digest(problem)).encode()).hexdigest()[:12]


def problem_digest(problem: Path) -> str:
    """Digest of both of the problem's texts. Raises :class:`OwnError` when one cannot be read."""
    both = "".join(reader_kernel.digest(problem.resolve() / name) for name in ("definition.json", "workload.jsonl"))
    return hashlib.sha256(both.encode()).hexdigest()[:12]


def load(path: Path, problem: Path, expected: str = "", process: int = 0, *, candidate: bool = True) -> Own:
    """Run the definition's source, and the solution unless not ``candidate``; register the operation that they are.

    Its name is ``sol_execbench_`` and the definition's. Inputs are drawn anew in each ``process``. ``expected`` is the
    digest that the files must have.

    Raises :class:`OwnError`, one line that begins with a file: one that cannot be read or does not say what it must,
    source that fails, a ``run`` that cannot be called, and outputs that cannot be checked.
    """
    path = path.resolve()
    if expected and digest(path, problem) != expected:
        raise OwnError(f"{path}: it or its problem was changed while it was being measured; judge it again")
    told = read(problem)
    module = _module(told)
    solution = solutions.read(path)
    called = solution.loaded() if candidate else None
    lines = [_Run(told, line, module, process) for line in told.judged]
    name = f"sol_execbench_{re.sub(r'[^a-z0-9]+', '_', told.name.lower()).strip('_')}"[:64].rstrip("_")
    for one in lines if not candidate else lines[:1]:
        returned, wanted = one.form.dtypes, tuple(slot.dtype for slot in told.outputs)
        if returned != wanted:
            raise OwnError(f"{one.path}: run returns {', '.join(returned)}; outputs are {', '.join(wanted)}")
    own = declare(name, told.dims, lines, ("y", *(one.name for one in told.outputs[1:])), told.summary)
    by_shape = {one.shape: one for one in lines}

    def needs(workload: Workload, device: str) -> str:
        return solution.missing(device)

    @variant(name, CANDIDATE, origin="own", label=solution.name[:80], needs=needs)
    def build(workload: Workload, inputs: Inputs) -> Run:
        """The solution's function."""
        assert called is not None, "whoever builds it has run its file"
        run = by_shape[workload.shape]
        return run.written(called(), inputs) if solution.writes else run.call(called(), inputs)

    return own


def tried(path: Path, problem: Path) -> None:
    """Run the solution, as far as that needs no compiler. Raises :class:`OwnError`."""
    solutions.read(path.resolve()).loaded()


def text(path: Path) -> str:
    """The solution's sources, one after the other."""
    return solutions.read(path.resolve()).text


def left_out(problem: Path) -> list[str]:
    """A line for each workload that is not judged, with the reason."""
    return read(problem).left_out


def _module(problem: Problem) -> ModuleType:
    """The definition's source, run as a module. Raises :class:`OwnError`."""
    folder = solutions.unpacked({"reference.py": problem.source}, Path(tempfile.mkdtemp(prefix="definition-")))
    module = solutions.run(problem.definition, folder, "reference.py")
    names = [one.name for one in problem.inputs]
    run = getattr(module, "run", None)
    if not callable(run):
        raise OwnError(f"{problem.definition}: reference defines no function run({', '.join(names)})")
    if (taken := list(inspect.signature(run).parameters)) != names:
        told = f"run takes {', '.join(taken) or 'nothing'}; inputs are {', '.join(names)}"
        raise OwnError(f"{problem.definition}: reference: {told}")
    return module
