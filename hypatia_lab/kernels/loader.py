"""Builds and loads the hand-written kernels: C++ through the system compiler, CUDA C++ through cuda.core.

Built libraries are kept in a cache folder under a name made from source, flags and compiler, written by
rename: two processes that build at once do no harm, and an interrupted build leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

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


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` of ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def scalar(dtype: torch.dtype) -> str:
    """CUDA C++ type of the data."""
    return SCALARS[dtype_name(dtype)][0]


NO_GPU = "needs a CUDA GPU"

BROKEN: dict[str, str] = {}
"""Tool (cpp, cuda, or a Python module) → why it does not work although it is there. To look whether a tool is there is
quick; whoever has tried one in vain says so here, and whoever asks for it in this process is then told."""


class BuildError(RuntimeError):
    """A kernel that does not build here; the message holds the compiler's first complaints."""


def cache_folder() -> Path:
    """Where built kernels are kept: the user's cache folder, or without a home one for temporary files."""
    from platformdirs import user_cache_path

    found = user_cache_path("hypatia_lab", appauthor=False)
    return found if found.is_absolute() else Path(tempfile.gettempdir()) / "hypatia_lab"


def compiler() -> str:
    """The C++ compiler: ``$CXX``, else g++, else clang++; empty when there is none."""
    asked = os.environ.get("CXX")
    return next((path for name in (asked, "g++", "clang++") if name and (path := shutil.which(name))), "")


def compiler_missing() -> str:
    """Why there is no C++ compiler here; empty when there is."""
    return BROKEN.get("cpp", "") if compiler() else "no C++ compiler found (install g++ or set CXX)"


def cpp_missing() -> str:
    """Why C++ kernels cannot be built here; empty when they can."""
    if sys.platform != "linux":
        return f"C++ kernels are built on Linux only, this is {sys.platform}"
    return compiler_missing()


def module_missing(name: str, install: str) -> str:
    """Why Python's module ``name`` cannot be had, and that pip can ``install`` it; empty when it can."""
    hidden = sys.modules.get(name.partition(".")[0], "") is None  # Python's own way of saying so
    there = not hidden and (name in sys.modules or _installed(name))
    return BROKEN.get(name, "") if there else f"{name} is not installed (pip install {install})"


def gpu_module_missing(name: str, install: str, device: str) -> str:
    """The same of a module that is of use on a GPU alone: why it cannot run on ``device``."""
    return module_missing(name, install) if device == "cuda" else NO_GPU


@cache
def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def triton_missing(device: str) -> str:
    """Why Triton kernels cannot run on ``device``; empty when they can."""
    return gpu_module_missing("triton", "triton", device)


def _build(source: Path, flags: list[str], against: str = "", suffix: str = ".so", *, native: bool = True) -> Path:
    """Compile ``source`` with ``flags`` once and return the cached result; ``against`` is what else it depends on.

    ``native``: for this very processor. What is not is found again without asking the compiler, in no time.
    """
    compile_with, depends = compiler(), [source.read_text(), _included(source), *flags, against]
    if not compile_with:
        raise BuildError(f"{source.name}: {cpp_missing()}")
    if native:
        depends.append(subprocess.run([compile_with, "--version"], capture_output=True, text=True, check=True).stdout)
        # -march=native makes the result this processor's own, so the processor is part of the name.
        processor = Path("/proc/cpuinfo").read_text().split("\n\n")[0] if Path("/proc/cpuinfo").exists() else ""
        depends += [line for line in processor.splitlines() if line.startswith(("model name", "flags", "Features"))]
    key = hashlib.sha256("\0".join(depends).encode()).hexdigest()[:16]
    target = cache_folder() / f"{source.stem}-{key}{suffix}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(suffix=suffix, dir=target.parent)
    os.close(handle)
    try:
        done = subprocess.run(
            [
                *(compile_with, "-std=c++20", "-O3", *(["-march=native"] if native else [])),
                *(str(source), f"-I{SOURCES}", "-o", temporary, *flags),
            ],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            complaints = "\n".join(done.stderr.splitlines()[:5])
            raise BuildError(f"{source.name} does not build with {compile_with}:\n{complaints}")
        os.chmod(temporary, 0o755)
        os.replace(temporary, target)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    return target


SHARED = ["-shared", "-fPIC"]


@cache
def cpp_library(name: str, *, fast_math: bool = False) -> ctypes.CDLL:
    """The plain C library built from ``<name>.cpp``, such as ``linear_relu/linear_relu`` (OpenMP on). Raises
    :class:`BuildError`."""
    # With -ffast-math, gcc links start-up code that makes the whole process flush denormals to zero, torch included;
    # the library's own arithmetic needs no start-up code.
    flags = ["-fopenmp", *(["-ffast-math", "-nostartfiles"] if fast_math else [])]
    return ctypes.CDLL(str(_build(SOURCES / f"{name}.cpp", [*SHARED, *flags])))


def call_cpp(name: str, function: str, *arguments: torch.Tensor | int | None) -> None:
    """Call ``function`` of ``<name>.cpp``: tensors are passed as pointers, None as a null pointer, whole numbers as
    64-bit integers. Raises :class:`BuildError`.
    """
    getattr(cpp_library(name), function)(*map(_parameter, arguments))


@cache
def cpp_program(name: str) -> Path:
    """The program built from ``<name>.cpp`` (OpenMP and fast math on). Raises :class:`BuildError`."""
    return _build(SOURCES / f"{name}.cpp", ["-fopenmp", "-ffast-math"], suffix="")


@cache
def aten_library(name: str) -> None:
    """Build ``<name>.cpp`` against this torch and load it, so that its ``torch.ops`` exist.

    Raises :class:`BuildError`.
    """
    import torch

    home = Path(torch.__file__).parent
    flags = [f"-I{home / part}" for part in ("include", "include/torch/csrc/api/include")]
    flags += [f"-L{home / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"]
    torch.ops.load_library(
        str(_build(SOURCES / f"{name}.cpp", [*SHARED, *flags], against=torch.__version__, native=False))
    )


def cuda_missing(device: str = "cuda") -> str:
    """Why CUDA C++ kernels cannot run on ``device``; empty when they can."""
    import torch

    if device != "cuda" or not torch.cuda.is_available():
        return NO_GPU
    if missing := module_missing("cuda.core", "'hypatia-lab[gpu]'"):
        return missing
    if not _headers():
        return "no CUDA headers found (cuda_fp16.h; install a CUDA toolkit or set CUDA_HOME)"
    return BROKEN.get("cuda", "")


@cache
def _headers() -> str:
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    if nvcc := shutil.which("nvcc"):
        roots.append(str(Path(nvcc).resolve().parent.parent))
    found = [Path(root) / "include" for root in roots if root]
    for entry in sys.path:
        found += sorted(Path(entry or ".").glob("nvidia/*/include"))
    return next((str(path) for path in found if (path / "cuda_fp16.h").exists()), "")


@cache
def cubin(name: str, instance: str) -> tuple[bytes, bytes]:
    """Mangled name and machine code of ``instance`` of ``<name>.cu``; kept, so that only one process compiles."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    # Hopper's own instructions (wgmma, setmaxnreg) need the target that no other GPU runs.
    arch = f"sm_{major}{minor}" + "a" * ((major, minor) == (9, 0))
    source, depends = sources_of(name)
    key = hashlib.sha256("\0".join([source, depends, instance, arch]).encode()).hexdigest()[:16]
    stored = cache_folder() / f"{Path(name).name}-{key}.cubin"
    try:
        symbol, _, code = stored.read_bytes().partition(b"\0")
    except OSError:
        symbol, code = _compile_cuda(name, source, instance, arch)
        store(stored, symbol + b"\0" + code)
    return symbol, code


@cache
def cuda_kernel(name: str, instance: str) -> Any:
    """The kernel ``instance`` of ``<name>.cu``."""
    import torch
    from cuda.core import Device, ObjectCode  # pyright: ignore[reportMissingImports]

    symbol, code = cubin(name, instance)
    Device(torch.cuda.current_device()).set_current()
    return ObjectCode.from_cubin(code, symbol_mapping={instance: symbol}).get_kernel(instance)


def sources_of(name: str) -> tuple[str, str]:
    """Text of ``<name>.cu``, and that of the lab's own files that it includes."""
    path = SOURCES / f"{name}.cu"
    return path.read_text(), _included(path)


def _included(source: Path) -> str:
    """Text of the lab's own files that ``source`` includes, and that these include."""
    return "\0".join(part for path in included(source) for part in (path.read_text(), _included(path)))


def included(source: Path, home: Path = SOURCES) -> list[Path]:
    """The lab's own files that ``source`` itself includes: beside it, or in ``home``."""
    named = re.findall(r'^#include "(.+)"$', source.read_text(), re.MULTILINE)
    return [next(f / name for f in (source.parent, home) if (f / name).exists()) for name in named]


def _compile_cuda(name: str, source: str, instance: str, arch: str) -> tuple[bytes, bytes]:
    """Mangled name and machine code (cubin) of ``instance``, compiled by NVRTC. Raises :class:`BuildError`."""
    from cuda.core import Program, ProgramOptions  # pyright: ignore[reportMissingImports]

    # NVRTC takes a generic lambda for the host's, even in a kernel.
    default = {"device_as_default_execution_space": True}
    own = [str(SOURCES), str((SOURCES / name).parent)]
    options = ProgramOptions(std="c++17", arch=arch, include_path=[_headers(), *own], **default)
    try:
        module = Program(source, code_type="c++", options=options).compile("cubin", name_expressions=(instance,))
    except Exception as cause:
        raise BuildError(f"{name}.cu does not build for {arch}: {str(cause)[:500]}") from cause
    symbol = module.symbol_mapping[instance]
    return symbol.encode() if isinstance(symbol, str) else symbol, module.code


def store(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` whole or not at all; a cache that cannot be written is no reason to stop."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.replace(temporary, path)
    except OSError:
        return


class TensorMap(ctypes.Structure):
    """A matrix and the boxes in which the copy engine fetches it, made by :func:`tensor_map`; only CUDA reads it."""

    _fields_ = [("opaque", ctypes.c_uint64 * 16)]

    address: int
    described: tuple[Any, ...]
    """What else it was made of, as :func:`hypatia_lab.kernels.recording.map_of` takes it."""


TENSOR_MAP_TYPES = {"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9, "tf32": 11}
"""dtype → ``CUtensorMapDataType`` of cuda.h; "tf32" is float32 in memory, which the copy engine rounds to the nearest
TF32 number on its way."""


@cache
def driver() -> Any:
    """The CUDA driver's library. Its own Python bindings keep tensor maps at addresses that the driver refuses."""
    return ctypes.CDLL("libcuda.so.1")


@cache
def multiprocessors(device: int) -> int:
    """Those of GPU number ``device``."""
    import torch

    return torch.cuda.get_device_properties(device).multi_processor_count


def capability_missing(least: tuple[int, int], *, exactly: bool = False) -> str:
    """Why this machine's GPU runs no CUDA kernel that needs a compute capability of ``least``, or ``exactly`` that."""
    import torch

    if missing := cuda_missing():
        return missing
    found = torch.cuda.get_device_capability()
    if found == least or (found > least and not exactly):
        return ""
    wanted = "{}.{}".format(*least) + ("" if exactly else " or newer")
    return f"needs compute capability {wanted}, this is {found[0]}.{found[1]}"


def _succeeded(status: int, what: str) -> None:
    if status:
        name = ctypes.c_char_p()
        driver().cuGetErrorName(status, ctypes.byref(name))
        raise RuntimeError(f"{what} failed: {(name.value or b'unknown error').decode()} ({status})")


@contextlib.contextmanager
def device_memory(size: int) -> Iterator[int]:
    """Address of ``size`` bytes that the driver hands out on the current device and takes back at the end.

    What cudaMalloc and cudaFree do: both may wait for the device, and no graph can capture them. Pass the address to a
    launch as a whole number. Raises ``RuntimeError`` with the driver's name for what is wrong.
    """
    address = ctypes.c_uint64()
    _succeeded(driver().cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)), f"allocating {size} bytes")
    try:
        yield address.value
    finally:
        _succeeded(driver().cuMemFree_v2(address), f"freeing {size} bytes")


def tensor_map(matrix: torch.Tensor, rows: int, columns: int, *, tf32: bool = False) -> TensorMap:
    """By what the copy engine (TMA) of sm_90 and newer fetches boxes of ``rows`` × ``columns`` from ``matrix``.

    ``matrix`` is 2-D with neighbouring columns next to each other; its address and the bytes from row to row must be
    multiples of 16, and ``columns`` 64 or 128 bytes wide. Numbers beyond the matrix are fetched as zeros; boxes lie in
    shared memory in a swizzle of as many bytes. ``tf32``: those of a float32 matrix are rounded to the nearest TF32
    number there. Pass it to a launch where the kernel takes a ``__grid_constant__`` tensor map.
    Raises ``RuntimeError`` with the driver's name for what is wrong.
    """
    dtype = "tf32" if tf32 else str(matrix.dtype).removeprefix("torch.")
    extents = (matrix.shape[1], matrix.shape[0], matrix.stride(0) * matrix.element_size())
    return encoded(matrix.data_ptr(), dtype, *extents, columns, rows, columns * matrix.element_size())


@lru_cache(maxsize=256)
def encoded(
    address: int, dtype: str, width: int, height: int, pitch: int, columns: int, rows: int, swizzle: int
) -> TensorMap:
    memory = (ctypes.c_char * (ctypes.sizeof(TensorMap) + 127))()
    found = TensorMap.from_buffer(memory, -ctypes.addressof(memory) % 128)  # aligned, as the driver asks
    swizzles, promote_to_256_bytes = {64: 2, 128: 3}, 3
    kind, element = TENSOR_MAP_TYPES[dtype], swizzle // columns
    found.address = address
    found.described = (
        *(kind, swizzles[swizzle], promote_to_256_bytes, 0),
        *((width, height), (element, pitch), (columns, rows)),
    )
    status = driver().cuTensorMapEncodeTiled(
        ctypes.byref(found),
        ctypes.c_int(kind),
        ctypes.c_uint32(2),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * 2)(width, height),
        (ctypes.c_uint64 * 1)(pitch),
        (ctypes.c_uint32 * 2)(columns, rows),
        (ctypes.c_uint32 * 2)(1, 1),
        ctypes.c_int(0),
        ctypes.c_int(swizzles[swizzle]),
        ctypes.c_int(promote_to_256_bytes),
        ctypes.c_int(0),
    )
    _succeeded(status, f"a tensor map of {height} × {width} {dtype} numbers in boxes of {rows} × {columns}")
    return found


UNASKED = 32 * 1024
"""Bytes of dynamic shared memory that need no leave: of 48 KiB in all, for a kernel may declare more of its own."""
_allowed: dict[int, int] = {}
"""Kernel → the most bytes of dynamic shared memory that it was let have; one kernel may have several launchers."""


def _allow_shared(kernel: int, shared: int, what: str) -> None:
    """Let ``kernel`` have ``shared`` bytes of dynamic shared memory a block on the current device, and no less than
    it was let have before.
    """
    if shared <= _allowed.get(kernel, UNASKED):
        return
    device, most_dynamic_shared_bytes = ctypes.c_int(), 8
    _succeeded(driver().cuCtxGetDevice(ctypes.byref(device)), what)
    status = driver().cuKernelSetAttribute(
        ctypes.c_int(most_dynamic_shared_bytes), ctypes.c_int(shared), ctypes.c_void_p(kernel), device
    )
    _succeeded(status, f"{what} with {shared} bytes of shared memory a block")
    _allowed[kernel] = shared


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute`` of cuda.h: its value is a union of 64 bytes."""

    _fields_ = [("id", ctypes.c_uint64), ("value", ctypes.c_uint32 * 16)]


class _Configuration(ctypes.Structure):
    """``CUlaunchConfig`` of cuda.h."""

    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("number", ctypes.c_uint32),
    ]


CLUSTER_DIMENSION, PROGRAMMATIC_STREAM_SERIALIZATION = 4, 6
"""``CUlaunchAttributeID`` of cuda.h."""


Argument = Union["torch.Tensor", TensorMap, int, float, None]
"""What a kernel is given: see :func:`cuda_launcher`."""


def _parameter(argument: Argument) -> Any:
    if isinstance(argument, TensorMap):
        return argument
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    if isinstance(argument, int):
        return ctypes.c_int64(argument)
    return ctypes.c_void_p(None if argument is None else argument.data_ptr())


Launch = Callable[..., None]

observed = threading.local()
"""A thread's ``recorder`` of what would be launched, see :class:`hypatia_lab.kernels.recording.Recorder`."""


def recorder() -> Any:
    """Who records this thread's launches; None where they are made."""
    return getattr(observed, "recorder", None)


def instance_of(kernel: str, *template: str | int) -> str:
    """``kernel`` with its template arguments, C++ types or numbers, as C++ writes it: ``tiles<float, 4, true>``."""
    told = (str(part).lower() if isinstance(part, bool) else str(part) for part in template)
    return f"{kernel}<{', '.join(told)}>" if template else kernel


@cache
def cuda_launcher(
    name: str, kernel: str, *template: str | int, shared: int = 0, cluster: int = 1, dependent: bool = False
) -> Launch:
    """``launch(grid, block, *arguments)`` for ``kernel`` of ``<name>.cu``, on torch's current stream.

    ``template``: its template arguments, see :func:`instance_of`; ``shared`` is its dynamic shared memory, bytes a
    block; so many neighbouring blocks are a ``cluster``, unless the kernel itself says
    so. ``dependent``: blocks may start before the kernel ahead of them on the stream has ended (programmatic dependent
    launch); the kernel must wait for that end (griddepcontrol.wait) before it touches memory. Tensors are passed as
    pointers, None as a null pointer, whole numbers as 64-bit integers, others as floats, tensor maps as they are.
    Compiled at most once on a machine.
    Raises :class:`BuildError` when the source does not compile; ``RuntimeError`` when the driver refuses a launch.
    """
    import torch

    instance = instance_of(kernel, *template)
    built = cuda_kernel(name, instance)
    handle = ctypes.c_void_p(int(built.handle))
    _allow_shared(int(built.handle), shared, instance)
    asked: list[tuple[int, tuple[int, ...]]] = []
    if cluster > 1:
        asked.append((CLUSTER_DIMENSION, (cluster, 1, 1)))
    if dependent:
        asked.append((PROGRAMMATIC_STREAM_SERIALIZATION, (1,)))
    attributes = (_Attribute * len(asked))(*asked)

    def run(grid: tuple[int, ...], block: tuple[int, ...], *arguments: Argument) -> None:
        if (records := recorder()) is not None:
            symbol, code = cubin(name, instance)
            how = {"grid": grid, "block": block, "shared": shared, "cluster": cluster, "dependent": dependent}
            records.cuda(code, symbol.decode(), arguments, **how)
            return
        parameters = [_parameter(argument) for argument in arguments]
        addresses = (ctypes.c_void_p * len(parameters))(*map(ctypes.addressof, parameters))
        extents = ((*grid, *(1,) * (3 - len(grid))), (*block, *(1,) * (3 - len(block))))
        stream = torch.cuda.current_stream().cuda_stream
        configuration = _Configuration(*extents, shared, stream, attributes, len(attributes))
        status = driver().cuLaunchKernelEx(ctypes.byref(configuration), handle, addresses, None)
        _succeeded(status, f"launching {instance} with grid {grid} and block {block}")

    return run
