"""A problem's folder in the format of SOL-ExecBench, or of FlashInfer-Trace before it: what it says; nothing is run.

FlashInfer-Trace has no axes of type ``expr``, no inputs of type ``custom`` and no ``tolerance``, and its lines of
workloads are those of traces, which hold a ``workload``. Its ``constraints`` and ``tags``, and ``op_type``, decide
nothing here.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hypatia_lab import expressions, files
from hypatia_lab.strangers import solutions
from hypatia_lab.strangers.reader_kernel import OwnError
from hypatia_lab.strangers.solutions import field
from hypatia_lab.workloads import DTYPES

TOLERANCE = {"max_atol": 1e-2, "max_rtol": 1e-2, "required_matched_ratio": 0.99}
"""Where a workload says nothing."""
WHOLE = {"int8": 128, "int16": 1024, "int32": 1024, "int64": 1024}
"""Random whole numbers lie from minus this to below this."""
FLOATS = (*DTYPES, "float8_e4m3fn", "float8_e5m2")
SIGNS = (*expressions.SIGNS, ast.FloorDiv, ast.Mod)
"""What the expression of an axis may join numbers and axes by."""
NUMBER = "line number"
"""What tells workloads apart that axes do not."""
ROOT = "FLASHINFER_TRACE_DIR"
"""The environment's name of a folder below which safetensors files are looked for, beside the problem's own."""


@dataclass(frozen=True)
class Slot:
    """An input or an output of a definition: ``shape`` of names of axes, None for a plain number."""

    name: str
    dtype: str
    shape: tuple[str, ...] | None

    def extents(self, axes: Mapping[str, int]) -> tuple[int, ...]:
        """Its shape where the axes are so long."""
        return tuple(int(one) if one.isdigit() else axes[one] for one in self.shape or ())


@dataclass(frozen=True)
class Line:
    """A workload: its ``number`` in the file, the length of every axis, and where inputs come from.

    ``refused``: why it is not judged; empty where it is.
    """

    number: int
    name: str
    axes: Mapping[str, int]
    inputs: Mapping[str, Mapping[str, Any]]
    tolerance: Mapping[str, Any]
    refused: str


@dataclass(frozen=True)
class Problem:
    """What a problem's folder says; nothing of it is run."""

    folder: Path
    name: str
    summary: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    source: str
    draws: str
    variable: tuple[str, ...]
    lines: tuple[Line, ...]

    @property
    def definition(self) -> Path:
        """The file that says most of it."""
        return self.folder / "definition.json"

    @cached_property
    def judged(self) -> list[Line]:
        """The workloads that are judged."""
        return [line for line in self.lines if not line.refused]

    @property
    def left_out(self) -> list[str]:
        """A line for each workload that is not judged, with the reason."""
        return [f"{self.workloads}:{line.number}: {line.name}: {line.refused}" for line in self.lines if line.refused]

    @property
    def workloads(self) -> Path:
        """The file of its workloads."""
        return self.folder / "workload.jsonl"

    @cached_property
    def dims(self) -> tuple[str, ...]:
        """What tells workloads apart: axes, and the number of the line where those do not."""
        told = [tuple(line.axes[axis] for axis in self.variable) for line in self.judged]
        return self.variable if self.variable and len(set(told)) == len(told) else (*self.variable, NUMBER)

    def shape(self, line: Line) -> tuple[int, ...]:
        """The extents of ``dims``."""
        return tuple(line.number if dim == NUMBER else line.axes[dim] for dim in self.dims)


def read(folder: Path) -> Problem:
    """The problem in ``folder``. Raises :class:`OwnError` naming file, and key or line, of what cannot be judged."""
    folder = folder.resolve()
    path = folder / "definition.json"
    told = solutions.read_json(path)
    axes = field(path, told, "axes", dict)
    inputs, outputs = (_slots(path, field(path, told, key, dict), key, axes) for key in ("inputs", "outputs"))
    if not outputs or any(one.dtype not in DTYPES or one.shape is None for one in outputs):
        listed = ", ".join(f"{one.name} ({one.dtype})" for one in outputs) or "nothing"
        raise OwnError(f"{path}: outputs are {listed}; the lab judges tensors of {', '.join(DTYPES)}")
    for one in inputs:
        if one.dtype not in (*FLOATS, *WHOLE, "bool"):
            raise OwnError(f"{path}: input {one.name} is of {one.dtype}, which the lab does not draw")
    name = field(path, told, "name", str)
    problem = Problem(
        folder=folder,
        name=name,
        summary=str(told.get("description") or name).strip().splitlines()[0].rstrip("."),
        inputs=inputs,
        outputs=outputs,
        source=field(path, told, "reference", str),
        draws=told.get("custom_inputs_entrypoint") or "",
        variable=tuple(name for name, axis in axes.items() if field(path, axis, "type", str) == "var"),
        lines=(),
    )
    return replace(problem, lines=_lines(problem, path, axes))


def _slots(path: Path, told: Mapping[str, Any], key: str, axes: Mapping[str, Any]) -> tuple[Slot, ...]:
    found = []
    for name, one in told.items():
        shape = field(path, one, "shape", (list, type(None)), f"{key}.{name}.")
        for axis in shape or ():
            if axis not in axes and not str(axis).isdigit():
                raise OwnError(f"{path}: {key}.{name} has an axis {axis!r}, which axes does not tell of")
        extents = None if shape is None else tuple(map(str, shape))
        found.append(Slot(name, field(path, one, "dtype", str, f"{key}.{name}."), extents))
    return tuple(found)


def _lines(problem: Problem, path: Path, axes: Mapping[str, Any]) -> tuple[Line, ...]:
    found = []
    for number, text in enumerate(files.text(problem.workloads, OwnError).splitlines(), 1):
        if not text.strip():
            continue
        where = Path(f"{problem.workloads}:{number}")
        told = solutions.parsed(where, text)
        told = told.get("workload", told)  # FlashInfer-Trace's lines are of traces
        given = field(where, told, "inputs", dict)
        extents = _extents(where, path, axes, field(where, told, "axes", dict))
        name = str(told.get("uuid") or f"workload {number}")
        tolerance = TOLERANCE | (told.get("tolerance") or {})
        for key in TOLERANCE:
            field(where, tolerance, key, (int, float), "tolerance.")
        found.append(Line(number, name, extents, given, tolerance, _refusal(problem, given, extents)))
    if not found or all(line.refused for line in found):
        why = f"none can be judged: {found[0].name}: {found[0].refused}" if found else "has no workload"
        raise OwnError(f"{problem.workloads}: {why}")
    return tuple(found)


def _extents(where: Path, path: Path, axes: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, int]:
    """The length of every axis: the constant ones, those of a workload, and those that follow from others."""
    found: dict[str, int] = {}
    for name, axis in axes.items():
        if axis["type"] == "const":
            found[name] = field(path, axis, "value", int, f"axes.{name}.")
        elif axis["type"] == "var":
            found[name] = field(where, told, name, int, "axes.")
    for name, axis in axes.items():
        if axis["type"] == "expr":
            text = field(path, axis, "expression", str, f"axes.{name}.")
            try:
                value = expressions.value(text, found, SIGNS)
            except ValueError as cause:
                raise OwnError(f"{path}: axes.{name}: {text!r} cannot be worked out: {cause}") from None
            if value != int(value):
                raise OwnError(f"{path}: axes.{name}: {text!r} is {value}, which is no whole number")
            found[name] = int(value)
        elif name not in found:
            raise OwnError(f"{path}: axes.{name} is of type {axis['type']!r}, not const, var or expr")
    return found


def _refusal(problem: Problem, given: Mapping[str, Any], axes: Mapping[str, int]) -> str:
    """Why a workload is not judged; empty where it is."""
    if empty := [name for name, length in axes.items() if length < 1]:
        return f"axis {empty[0]} is {axes[empty[0]]}: nothing is computed"
    drawn = False
    for one in problem.inputs:
        how = given.get(one.name, {"type": "random"})
        kind = how.get("type") if isinstance(how, dict) else None
        if kind == "safetensors":
            if not (found := stored(problem.folder, str(how.get("path")))).is_file():
                return f"input {one.name}: {found} is not there (it may lie below the folder that ${ROOT} names)"
        elif kind == "custom" and not problem.draws:
            return f"input {one.name} is custom, and the definition names no custom_inputs_entrypoint"
        elif kind == "scalar" and type(how.get("value")) not in (bool, int, float):
            return f"input {one.name} is a scalar without a number for a value"
        elif kind in ("random", "custom") and one.shape is None:
            return f"input {one.name} is a plain number and {kind}, and numbers stay the same in every draw"
        elif kind not in ("random", "custom", "scalar"):
            return f"input {one.name} is of type {kind!r}, not random, custom, scalar or safetensors"
        drawn |= kind in ("random", "custom") and one.shape is not None
    return "" if drawn else "all of its inputs are fixed, so nothing would show whether an answer is computed"


def stored(folder: Path, path: str) -> Path:
    """Where a safetensors file lies, or would."""
    there = [Path(root) / path for root in (folder, os.environ.get(ROOT)) if root]
    return next((one for one in there if one.is_file()), there[0])
