"""Builds and loads the hand-written kernels: C++ through the system compiler, CUDA C++ through cuda.core.

Built libraries are kept in a cache folder under a name made from source, flags and compiler, written by
rename: two processes that build at once do no harm, and an interrupted build leaves nothing behind.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SOURCES = Path(__file__).resolve().parent

SCALARS = {
    "float64": ("double", "double"),
    "float32": ("float", "float"),
    "bfloat16": ("__nv_bfloat16", "float"),
    "float16": ("__half", "float"),
}
"""dtype → CUDA C++ type of the data, and of the accumulator."""


class BuildError(RuntimeError):
    """A kernel that does not build here; the message holds the compiler's first complaints."""


def cache_folder() -> Path:
    """Where built kernels are kept: ``$XDG_CACHE_HOME/hypatia_lab``, or the temporary folder without a home."""
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        root = Path(tempfile.gettempdir())
    return root / "hypatia_lab"


def compiler() -> str:
    """The C++ compiler: ``$CXX``, else g++, else clang++; empty when there is none."""
    asked = os.environ.get("CXX")
    return next((path for name in (asked, "g++", "clang++") if name and (path := shutil.which(name))), "")


def cpp_missing() -> str:
    """Why C++ kernels cannot be built here; empty when they can."""
    if sys.platform != "linux":
        return f"C++ kernels are built on Linux only, this is {sys.platform}"
    return "" if compiler() else "no C++ compiler found (install g++ or set CXX)"


def _build(source: Path, flags: list[str], against: str = "") -> Path:
    compile_with = compiler()
    if not compile_with:
        raise BuildError(f"{source.name}: {cpp_missing()}")
    version = subprocess.run([compile_with, "--version"], capture_output=True, text=True, check=True).stdout
    # -march=native makes the result this processor's own, so the processor is part of the name.
    processor = Path("/proc/cpuinfo").read_text().split("\n\n")[0] if Path("/proc/cpuinfo").exists() else ""
    flagged = [line for line in processor.splitlines() if line.startswith(("model name", "flags", "Features"))]
    key = hashlib.sha256("\0".join([source.read_text(), *flags, against, version, *flagged]).encode()).hexdigest()[:16]
    target = cache_folder() / f"{source.stem}-{key}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(suffix=".so", dir=target.parent)
    os.close(handle)
    try:
        done = subprocess.run(
            [
                compile_with,
                "-shared",
                "-fPIC",
                "-std=c++20",
                "-O3",
                "-march=native",
                str(source),
                "-o",
                temporary,
                *flags,
            ],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            complaints = "\n".join(done.stderr.splitlines()[:5])
            raise BuildError(f"{source.name} does not build with {compile_with}:\n{complaints}")
        os.replace(temporary, target)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    return target


@cache
def cpp_library(name: str) -> ctypes.CDLL:
    """The plain C library built from ``cpu/<name>.cpp`` (OpenMP on). Raises :class:`BuildError`."""
    return ctypes.CDLL(str(_build(SOURCES / "cpu" / f"{name}.cpp", ["-fopenmp"])))


@cache
def aten_library(name: str) -> None:
    """Build ``aten/<name>.cpp`` against this torch and load it, so that its ``torch.ops`` exist.

    Raises :class:`BuildError`.
    """
    import torch
    from torch.utils import cpp_extension

    flags = [f"-I{path}" for path in cpp_extension.include_paths()]
    flags += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    flags += [f"-L{path}" for path in cpp_extension.library_paths()] + ["-ltorch", "-ltorch_cpu", "-lc10"]
    torch.ops.load_library(str(_build(SOURCES / "aten" / f"{name}.cpp", flags, against=torch.__version__)))


def cuda_missing() -> str:
    """Why CUDA C++ kernels cannot run here; empty when they can."""
    import importlib.util

    import torch

    if not torch.cuda.is_available():
        return "needs a CUDA device"
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.core") is None:
        return "cuda.core is not installed (pip install 'hypatia-lab[gpu]')"
    return "" if _headers() else "no CUDA headers found (cuda_fp16.h; install a CUDA toolkit or set CUDA_HOME)"


@cache
def _headers() -> str:
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    if nvcc := shutil.which("nvcc"):
        roots.append(str(Path(nvcc).resolve().parent.parent))
    found = [Path(root) / "include" for root in roots if root]
    for entry in sys.path:
        found += sorted(Path(entry or ".").glob("nvidia/*/include"))
    return next((str(path) for path in found if (path / "cuda_fp16.h").exists()), "")


class _TorchStream:
    """A stream of torch's, in the form cuda.core takes from strangers."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


@cache
def _stream(handle: int) -> Any:
    import torch
    from cuda.core import Device  # pyright: ignore[reportMissingImports]

    return Device(torch.cuda.current_device()).create_stream(_TorchStream(handle))


@cache
def _cuda_kernel(name: str, dtype: str) -> Any:
    import torch
    from cuda.core import Device, Program, ProgramOptions  # pyright: ignore[reportMissingImports]

    device = Device(torch.cuda.current_device())
    device.set_current()
    major, minor = torch.cuda.get_device_capability()
    options = ProgramOptions(std="c++17", arch=f"sm_{major}{minor}", include_path=[_headers()])
    instance = f"{name}<{', '.join(SCALARS[dtype])}>"
    source = (SOURCES / "cuda" / f"{name}.cu").read_text()
    try:
        module = Program(source, code_type="c++", options=options).compile("cubin", name_expressions=(instance,))
    except Exception as cause:
        raise BuildError(f"{name}.cu does not build for sm_{major}{minor}: {str(cause)[:500]}") from cause
    return module.get_kernel(instance)


def launch_cuda(
    name: str, dtype: str, grid: tuple[int, ...], block: tuple[int, ...], *arguments: torch.Tensor | int | None
) -> None:
    """Launch ``cuda/<name>.cu`` for ``dtype`` on torch's current stream.

    Tensors are passed as pointers, None as a null pointer, whole numbers as 64-bit integers.
    Raises :class:`BuildError` when the source does not compile.
    """
    import numpy
    import torch
    from cuda.core import LaunchConfig, launch  # pyright: ignore[reportMissingImports]

    kernel = _cuda_kernel(name, dtype)
    values = [a.data_ptr() if isinstance(a, torch.Tensor) else 0 if a is None else numpy.int64(a) for a in arguments]
    launch(_stream(torch.cuda.current_stream().cuda_stream), LaunchConfig(grid=grid, block=block), kernel, *values)
