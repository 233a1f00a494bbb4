"""What tests do with CUDA sources and no GPU: run their kernels in an emulator, compile them to machine code."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from hypatia_lab.kernels import loader

HERE = Path(__file__).resolve().parent


def symbol(instance: str) -> str:
    """The emulator's C name of a kernel ``instance``."""
    return re.sub(r"\W+", "_", instance)


def _kernels(path: Path, taken: set[Path]) -> str:
    """The kernels of a source and of what it includes, each once, without the sections of instructions, which the
    emulator has its own of.
    """
    if path in taken:
        return ""
    taken.add(path)
    text = path.read_text()
    _, own = re.split("// ---- (?:kernels|built on them)\n", text)
    folders = (path.parent, loader.SOURCES)
    named = re.findall(r'^#include "(.+)"$', text, re.MULTILINE)
    included = [next(folder / name for folder in folders if (folder / name).exists()) for name in named]
    return "".join(_kernels(one, taken) for one in included) + own


def emulated_source(*names: str) -> str:
    """The kernels of ``<name>.cu``, as :func:`built` takes them."""
    taken: set[Path] = set()
    kernels = "".join(_kernels(loader.SOURCES / f"{name}.cu", taken) for name in names)
    return re.sub(r"extern __shared__ .*dynamic_shared\[\];", "", kernels)


ENTRY = """
extern "C" const char* {symbol}(const unsigned* grid, const unsigned* block, unsigned cluster, void** given) {{
    return launch({instance}, grid, block, cluster, given);
}}
"""


@cache
def emulator(names: str, instances: tuple[str, ...]) -> ctypes.CDLL:
    """A library for a CPU of those kernels of one or several ``<name>.cu``, such as ``relu_inplace<float, float>``."""
    return built(emulated_source(*names.split()), instances)


def built(kernels: str, instances: Sequence[str]) -> ctypes.CDLL:
    """A library of ``instances`` of ``kernels``, which know the instructions of the emulator."""
    entries = [ENTRY.format(symbol=symbol(instance), instance=instance) for instance in instances]
    unit = [f'#include "{HERE / "cuda_emulation.hpp"}"', kernels, *entries]
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
        source.write_text("\n".join(unit))
        # Fibers jump from stack to stack, which a fortified library takes for a mistake.
        flags = ["-std=c++17", "-O1", "-ftree-vectorize", "-U_FORTIFY_SOURCE", "-w", "-shared", "-fPIC"]
        command = [loader.compiler(), *flags, str(source), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]
        return ctypes.CDLL(str(library))


def emulation(
    instances: Mapping[str, Sequence[str]],
    *,
    processors: int = 4,
    at_once: Callable[[str, int, int], int] = lambda instance, blocks, cluster: cluster,
) -> Any:
    """A fixture: launches go to emulators of those kernels of each source, of a GPU of so many multiprocessors.

    Sources that are named together, a blank between, are built together. A kernel that is not named is built alone when
    it is launched. ``at_once`` says how many blocks run at once, given an instance, its grid's blocks and the
    cluster that its launcher was asked for.
    """

    @pytest.fixture
    def emulation(monkeypatch: pytest.MonkeyPatch) -> None:
        if missing := loader.cpp_missing():
            pytest.skip(missing)

        def launcher(name: str, kernel: str, *template: str | int, shared: int = 0, cluster: int = 1, **_: Any) -> Any:
            assert shared <= 227 * 1024
            instance = loader.instance_of(kernel, *template)
            found = (one for one in instances.items() if instance in one[1])
            names, together = next(found, (name, [instance]))
            library = emulator(names, tuple(together))
            return lambda grid, block, *given: launch(
                library, instance, grid, block, given, at_once(instance, grid[0], cluster)
            )

        def made(*given: Any, **how: Any) -> torch.Tensor:
            names, own = next(iter(instances.items()))  # emulators make maps alike
            return tensor_map(emulator(names, tuple(own)), *given, **how)

        monkeypatch.setattr(loader, "cuda_launcher", launcher)
        monkeypatch.setattr(loader, "tensor_map", made)
        monkeypatch.setattr(loader, "multiprocessors", lambda device: processors)

    return emulation


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


def launch(
    library: ctypes.CDLL,
    instance: str,
    grid: Sequence[int],
    block: Sequence[int],
    arguments: Sequence[Any],
    cluster: int = 1,
) -> None:
    """Runs ``instance`` in the emulator; fails with what it found wrong."""
    run = getattr(library, symbol(instance))
    run.restype = ctypes.c_char_p
    numbers = {int: ctypes.c_int64, float: ctypes.c_float}
    values = [
        numbers[type(a)](a) if type(a) in numbers else ctypes.c_void_p(a.data_ptr() if a is not None else None)
        for a in arguments
    ]
    extents = [(ctypes.c_uint * 3)(*given, *(1,) * (3 - len(given))) for given in (grid, block)]
    given = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    complaint = run(*extents, ctypes.c_uint(cluster), given)
    assert complaint is None, complaint


def machine_code(folder: Path, name: str, instances: Sequence[str]) -> str:
    """What nvcc says of the kernels of ``<name>.cu`` that it makes machine code of; skips where there is none."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on this machine: the CUDA sources are not compiled")
    unit, path = folder / "kernels.cu", loader.SOURCES / f"{name}.cu"
    taken = [f"const void* taken_{number} = (const void*){one};" for number, one in enumerate(instances)]
    unit.write_text("\n".join([path.read_text(), *taken]))
    options = ["-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-cubin", "-Xptxas", "-v"]
    command = [nvcc, *options, f"-I{loader.SOURCES}", f"-I{path.parent}", "-o", str(folder / "out.cubin"), str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


def compiles_without_spills(folder: Path, name: str, instances: Sequence[str]) -> None:
    """nvcc makes machine code of sm_90a of every instance, with all registers and asynchronous products kept."""
    said = machine_code(folder, name, instances)
    spills = re.findall(r"(\d+) bytes spill stores", said)
    assert len(spills) == len(instances)
    assert set(spills) == {"0"}
    # What ptxas says when products are not left to run while the next ones are issued, or registers not moved.
    assert "serialized" not in said
    assert "setmaxnreg" not in said
