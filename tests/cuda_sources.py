"""What tests do with CUDA sources and no GPU: run their kernels in an emulator, compile them to machine code."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from hypatia_lab.kernels import loader

HERE = Path(__file__).resolve().parent
HEADER = '#include "hopper.cuh"\n'


def symbol(instance: str) -> str:
    """The emulator's C name of a kernel ``instance``."""
    return re.sub(r"\W+", "_", instance)


def _emulated_source(name: str) -> str:
    """The kernels of a source, without the section of its instructions, which the emulator has its own of."""
    text = (loader.CUDA_SOURCES / f"{name}.cu").read_text()
    _, kernels = text.split("// ---- kernels\n")
    if HEADER in text:
        _, shared = (loader.CUDA_SOURCES / "hopper.cuh").read_text().split("// ---- built on them\n")
        kernels = shared + kernels
    return re.sub(r"extern __shared__ .*dynamic_shared\[\];", "", kernels)


def entry(instance: str, maps: int, types: Sequence[str], cluster: int | str = 1) -> str:
    """C++ through which tests launch ``instance``, which takes so many tensor maps and then ``types``.

    ``cluster`` blocks run at once; "grid": all.
    """
    types = ["const TensorMap*"] * maps + list(types)
    declared = ", ".join(f"{kind} a{number}" for number, kind in enumerate(types))
    passed = ", ".join("*" * (number < maps) + f"a{number}" for number in range(len(types)))
    return (
        f'extern "C" const char* {symbol(instance)}(unsigned grid, unsigned threads, {declared}) {{'
        f" return launch(grid, {cluster}, {{threads, 1, 1}}, [=] {{ {instance}({passed}); }}); }}"
    )


@cache
def emulator(name: str, entries: tuple[str, ...]) -> ctypes.CDLL:
    """A library of ``cuda/<name>.cu`` for a CPU; ``entries`` are the C++ functions through which tests launch it."""
    unit = [f'#include "{HERE / "cuda_emulation.hpp"}"', _emulated_source(name), *entries]
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, f"{name}.cpp"), Path(folder, f"{name}.so")
        source.write_text("\n".join(unit))
        # Fibers jump from stack to stack, which a fortified library takes for a mistake.
        flags = ["-std=c++17", "-O1", "-ftree-vectorize", "-U_FORTIFY_SOURCE", "-w", "-shared", "-fPIC"]
        command = [loader.compiler(), *flags, str(source), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]
        return ctypes.CDLL(str(library))


def tensor_map(
    library: ctypes.CDLL, matrix: torch.Tensor, rows: int, columns: int, *, tf32: bool = False
) -> torch.Tensor:
    """The emulator's own stand-in for :func:`loader.tensor_map`."""
    assert columns * matrix.element_size() in (64, 128)
    assert rows <= 256
    memory = torch.zeros(128 + 127, dtype=torch.uint8)
    aligned = memory[-memory.data_ptr() % 128 :][:128]
    pitch = matrix.stride(0) * matrix.element_size()
    assert matrix.data_ptr() % 16 == pitch % 16 == 0
    height, width, pitch = map(ctypes.c_int64, (*matrix.shape, pitch))
    addresses = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (aligned, matrix))
    library.fill_map(*addresses, width, height, pitch, rows, columns, matrix.element_size(), int(tf32))
    return aligned


def launch(library: ctypes.CDLL, instance: str, extents: Sequence[int], arguments: Sequence[Any]) -> None:
    """Runs ``instance`` in the emulator; fails with what it found wrong."""
    run = getattr(library, symbol(instance))
    run.restype = ctypes.c_char_p
    numbers = {int: ctypes.c_int64, float: ctypes.c_float}
    values = [
        numbers[type(a)](a) if type(a) in numbers else ctypes.c_void_p(a.data_ptr() if a is not None else None)
        for a in arguments
    ]
    complaint = run(*map(ctypes.c_uint, extents), *values)
    assert complaint is None, complaint


def compiles_without_spills(folder: Path, name: str, instantiations: Sequence[str]) -> None:
    """nvcc makes machine code of sm_90a of every instantiation, with all registers and asynchronous products kept."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on this machine: the CUDA sources are not compiled")
    unit = folder / f"{name}.cu"
    source = (loader.CUDA_SOURCES / f"{name}.cu").read_text()
    unit.write_text("\n".join([source, *instantiations]))
    target = ["-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-cubin", "-Xptxas", "-v"]
    command = [nvcc, *target, f"-I{loader.CUDA_SOURCES}", "-o", str(folder / "out.cubin"), str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    spills = re.findall(r"(\d+) bytes spill stores", done.stderr)
    assert len(spills) == len(instantiations)
    assert set(spills) == {"0"}
    # What ptxas says when products are not left to run while the next ones are issued, or registers not moved.
    assert "serialized" not in done.stderr
    assert "setmaxnreg" not in done.stderr
