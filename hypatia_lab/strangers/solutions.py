"""A solution of SOL-ExecBench's format or FlashInfer-Trace's: sources in a JSON file, and the function to be called.

The two differ in a few keys. ``spec.languages`` is a list, of ``pytorch``, ``triton``, ``cute_dsl``, ``cutile``,
``cudnn_frontend``, ``cuda_cpp``, ``cutlass``, ``cudnn`` and ``cublas``; FlashInfer-Trace's ``spec.language`` is one of
``python``, ``triton``, ``cpp``, ``cuda`` and ``tilelang``, and C++ that names no ``binding`` is bound by TVM's.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from hypatia_lab import files
from hypatia_lab.kernels.loader import NO_GPU, compiler_missing
from hypatia_lab.strangers import reader_kernel, source_file
from hypatia_lab.strangers.reader_kernel import OwnError

PYTHON = {
    "pytorch": "torch",
    "python": "torch",
    "triton": "triton",
    "cute_dsl": "cutlass",
    "cutile": "cuda.tile",
    "cudnn_frontend": "cudnn",
    "tilelang": "tilelang",
}
"""Language → the module that it needs."""
CPP = ("cuda_cpp", "cuda", "cpp", "cutlass", "cudnn", "cublas")
"""Languages that are compiled."""
ON_A_CPU = ("pytorch", "python", "cpp")
"""Languages that need no GPU by themselves."""
COMPILED = (".cu", ".cpp", ".cc", ".cxx", ".c")
OPTIONS = {"cflags": [], "cuda_cflags": ["-O3", "--use_fast_math"], "ld_flags": ["-lcuda"]}
"""Where a solution says nothing."""
CUTLASS = "CUTLASS_DIR"
"""The environment's name of the folder of CUTLASS."""


@dataclass(frozen=True)
class Solution:
    """What a solution's file says; nothing of it is run. ``writes``: it takes the outputs, and returns nothing."""

    path: Path
    name: str
    languages: tuple[str, ...]
    file: str
    function: str
    writes: bool
    binding: str
    options: Mapping[str, list[str]]
    sources: Mapping[str, str]

    @property
    def text(self) -> str:
        """Its sources, one after the other, each with its name above it."""
        return "\n".join(f"# {name}\n{source.rstrip()}\n" for name, source in self.sources.items())

    def missing(self, device: str) -> str:
        """Why it cannot run on ``device``; empty where it can."""
        if device == "cpu" and (self._needs_nvcc or not set(self.languages) <= {*ON_A_CPU, "cuda_cpp"}):
            return f"is in {' and '.join(self.languages)}, and {NO_GPU}"
        if self.languages[0] in CPP:
            if self.binding != "torch":
                return f"is bound by {self.binding}; the lab builds PyTorch's binding alone"
            if "cutlass" in self.languages and not os.path.isdir(f"{_cutlass()}/include"):
                return f"needs CUTLASS; there is none in {_cutlass()} (${CUTLASS})"
            return compiler_missing()
        for language in self.languages:
            if not _importable(PYTHON[language]):
                return f"is in {language}, whose module {PYTHON[language]} is not installed"
        return ""

    @property
    def _needs_nvcc(self) -> bool:
        return any(name.endswith(".cu") for name in self.sources)

    def loaded(self) -> Callable[[], Callable[..., Any]]:
        """Run it, if it is Python that runs here; what then gives its function, which builds what is to be compiled.

        Raises :class:`OwnError`: a file that fails, a function that is not there, no nvcc where that is needed.
        """
        if self.languages[0] in CPP:
            if self._needs_nvcc and not _nvcc():
                raise OwnError(f"{self.path}: needs nvcc, which is not here (install CUDA's toolkit or set CUDA_HOME)")
            return cache(self._built)
        if any(not _importable(PYTHON[language]) for language in self.languages):
            return partial(_never, self)
        folder = unpacked(self.sources, Path(tempfile.mkdtemp(prefix="solution-")))
        sys.path.append(str(folder))
        module = run(self.path, folder, self.file)
        found = getattr(module, self.function, None)
        if not callable(found):
            raise OwnError(f"{self.path}: {self.file} has no function {self.function}, which entry_point names")
        return lambda: found

    def _built(self) -> Callable[..., Any]:
        """Its function, compiled. Raises ``RuntimeError`` with the compiler's complaints."""
        from torch.utils import cpp_extension

        name = f"solution_{reader_kernel.digest(self.path)}"
        home = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or tempfile.mkdtemp(prefix="solution-"))
        folder = unpacked(self.sources, home / name)
        include = [str(folder)]
        if "cutlass" in self.languages:
            include += [f"{_cutlass()}/include", f"{_cutlass()}/tools/util/include"]
        module = cpp_extension.load(
            name=name,
            sources=[str(folder / one) for one in self.sources if one.endswith(COMPILED)],
            extra_cflags=self.options["cflags"],
            extra_cuda_cflags=self.options["cuda_cflags"],
            extra_ldflags=self.options["ld_flags"],
            extra_include_paths=include,
            build_directory=str(folder),
        )
        found = getattr(module, self.function, None)
        if found is None:
            raise RuntimeError(f"what was built of {self.file} has no {self.function}, which entry_point names")
        return found


def read(path: Path) -> Solution:
    """The solution in the file ``path``, of whatever definition it says that it solves.

    Raises :class:`OwnError` naming the file and the key of what is not as it must be.
    """
    told = read_json(path)
    spec = field(path, told, "spec", dict)
    listed = field(path, spec, "languages", list, "spec.") if "language" not in spec else [spec["language"]]
    if not listed or not (set(listed) <= set(PYTHON) or set(listed) <= set(CPP)):
        known = f"{', '.join(PYTHON)}; or of {', '.join(CPP)}"
        raise OwnError(f"{path}: spec.languages is {listed}; it must be some of {known}")
    file, _, function = field(path, spec, "entry_point", str, "spec.").partition("::")
    sources = {
        field(path, one, "path", str, "sources."): field(path, one, "content", str, "sources.")
        for one in field(path, told, "sources", list)
    }
    for name in sources:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise OwnError(f"{path}: source {name!r} lies outside of its folder")
    if not function.isidentifier() or file not in sources:
        there = f"file::function, with a file of {', '.join(sources) or 'none'}"
        raise OwnError(f"{path}: spec.entry_point is {spec['entry_point']!r}; it must be {there}")
    return Solution(
        path=path,
        name=str(told.get("name") or path.stem),
        languages=tuple(listed),
        file=file,
        function=function,
        writes=bool(spec.get("destination_passing_style", True)),
        binding=spec.get("binding") or ("tvm-ffi" if "language" in spec else "torch"),
        options=OPTIONS | (spec.get("compile_options") or {}),
        sources=sources,
    )


# ---------------------------------------------------------------- files


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file ``path``. Raises :class:`OwnError`."""
    return parsed(path, files.text(path, OwnError))


def parsed(path: Path, text: str) -> dict[str, Any]:
    """The object that ``text``, of the file ``path``, is. Raises :class:`OwnError`."""
    try:
        found = json.loads(text)
    except ValueError as cause:
        raise OwnError(f"{path}: is no JSON ({cause})") from None
    if not isinstance(found, dict):
        raise OwnError(f"{path}: must be an object, not a {type(found).__name__}")
    return found


def field(path: Path, told: Any, key: str, kind: type | tuple[type, ...], within: str = "") -> Any:
    """What ``told``, of the file ``path``, has under ``key``, of that ``kind``. Raises :class:`OwnError`."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(told, dict) or key not in told:
        raise OwnError(f"{path}: lacks {within}{key}")
    if type(told[key]) not in kinds:
        wanted = " or ".join(one.__name__ for one in kinds)
        raise OwnError(f"{path}: {within}{key} must be of type {wanted}, not {type(told[key]).__name__}")
    return told[key]


def unpacked(sources: Mapping[str, str], folder: Path) -> Path:
    """Write ``sources`` below ``folder``, which is returned; what is there already is not touched."""
    for name, source in sources.items():
        there = folder / name
        if not there.is_file() or there.read_text(encoding="utf-8") != source:
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_text(source, encoding="utf-8")
    return folder


def run(path: Path, folder: Path, file: str) -> ModuleType:
    """Run ``file``, which was unpacked from ``path`` into ``folder``, as a module. Raises :class:`OwnError`."""
    try:
        return source_file.run(folder / file, OwnError)
    except OwnError as cause:
        raise OwnError(f"{path}: {str(cause).removeprefix(f'{folder}{os.sep}')}") from None


def _never(solution: Solution) -> Any:
    raise RuntimeError(solution.missing("cuda"))


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # the package that it would be in
        return False


def _nvcc() -> str:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    there = shutil.which("nvcc", path=f"{home}/bin") if home else None
    return there or shutil.which("nvcc") or ""


def _cutlass() -> str:
    return os.environ.get(CUTLASS, "/usr/local/cutlass")
