"""What a fresh process finds on disk: nothing, warm compiler caches, Mega-Cache's artifacts, a package, a cubin.

A case that needs something prepared is prepared once a folder, by an untimed process of its own; the folder counts
only when the file ``ready`` stands in it, so that an interrupted preparation is begun anew. (Written in place, not
renamed: Triton's cache holds absolute paths.) Sources: ``torch.compiler.save_cache_artifacts``,
``torch._inductor.aoti_compile_and_package``, ``torch._C._aoti.AOTIModelPackageLoader``.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypatia_lab.bench import sessions
from hypatia_lab.messages import unknown
from hypatia_lab.probes.probe import Ended

if TYPE_CHECKING:
    import torch

    from hypatia_lab.variants import Run, Variant
    from hypatia_lab.workloads import Inputs, Workload

FRESH = ("empty", "no cubin", "mega", "aoti_package", "aoti_raw")
"""Cases whose process begins with empty cache folders, whatever else it is given."""
PACKAGED = ("aoti_package", "aoti_disk", "aoti_raw")
"""Cases that load a package compiled ahead of time."""
PREPARED = {"disk": "warm", "mega": "warm", "cubin": "cubin", **dict.fromkeys(PACKAGED, "package")}
"""Case → what another process prepares for it; several cases may share that."""
CASES = ("", *dict.fromkeys((*FRESH, *PREPARED)))
PREPARE_S = 280.0
"""Longest silence of a preparing process (s): less than the process that waits for it is granted itself."""

VARIABLES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "XDG_CACHE_HOME": "kernels",
    "CUDA_CACHE_PATH": "driver",
}
"""Environment variable → folder below a cache folder; torch, Triton, the lab's loader and CUDA's driver read them."""


@dataclass(frozen=True)
class Caches:
    """The caches of this process: ``folder`` holds them, if any, ``shared`` what was prepared, where anything is.

    ``preparing``: this process fills ``shared`` for those to come.
    """

    case: str
    folder: Path | None
    shared: Path
    preparing: bool

    def close(self) -> None:
        """Remove what no other process will use."""
        if self.folder is not None and self.folder.parent != self.shared:
            shutil.rmtree(self.folder, ignore_errors=True)


def provide(plan: dict[str, Any], alive: Callable[[], None]) -> Caches:
    """Point this process at the caches of ``plan``'s case; must come before torch is imported.

    Prepares them first where that is due, and calls ``alive`` now and then meanwhile. Raises :class:`Ended` when they
    cannot be had, ``ValueError`` for an unknown case.
    """
    case, root = plan["case"], Path(plan["folder"])
    if case not in CASES:
        raise ValueError(unknown("case", case, CASES))
    shared, preparing = root / _name(plan), bool(plan.get("preparing"))
    if not case:
        return Caches(case, None, shared, False)
    if case in PREPARED and not preparing and not (shared / "ready").exists():
        failed = shared / "failed"
        if plan["number"] and failed.exists():  # minutes of compiling are not spent again on the same failure
            raise Ended(*json.loads(failed.read_text(encoding="utf-8")))
        shutil.rmtree(shared, ignore_errors=True)
        shared.mkdir(parents=True)
        try:
            _prepare(plan, root / "prepare.log", alive)
        except Ended as end:
            failed.write_text(json.dumps([end.status, end.reason]), encoding="utf-8")
            raise
    if preparing or case not in FRESH:
        folder = shared / "caches"
    else:
        root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="fresh-", dir=root))
    for name, below in VARIABLES.items():
        (folder / below).mkdir(parents=True, exist_ok=True)
        os.environ[name] = str(folder / below)
    return Caches(case, folder, shared, preparing)


def _name(plan: dict[str, Any]) -> str:
    """Folder of what is prepared for ``plan``: another workload or variant needs another."""
    work = plan["workload"]
    shape = "x".join(map(str, work["shape"]))
    kind = [work["operation"], shape, work["dtype"], work["math"], work["direction"]]
    return "-".join([PREPARED.get(plan["case"], "nothing"), *kind, plan["variant"]])


def _prepare(plan: dict[str, Any], log: Path, alive: Callable[[], None]) -> None:
    """Fill the shared folder in a process of its own. Raises :class:`Ended` with what it ended with, if not well."""
    ends: list[Ended] = []

    def hear(event: sessions.Event) -> None:
        alive()
        if event["event"] == "status":
            ends.append(Ended(event["status"], f"while preparing: {event['reason']}"))

    casualty = sessions.run_session(
        "hypatia_lab.probes.start", plan | {"preparing": True}, log, on_event=hear, silence_s=PREPARE_S
    )
    if ends:
        raise ends[0]
    if casualty is not None:
        raise Ended("crashed", f"while preparing: {casualty.reason}")


def build(caches: Caches, workload: Workload, variant: Variant, inputs: Inputs) -> Run:
    """A callable that computes the output once, by way of what was prepared.

    Raises :class:`Ended` when the case does not suit the variant or this torch.
    """
    if caches.case in PACKAGED:
        tensors = _exported(workload, variant, inputs)[1]
        load = _load_raw if caches.case == "aoti_raw" else _load_package
        return load(caches.shared / "model.pt2", tensors)
    run = variant.factory(workload, inputs)
    if caches.case == "mega" and not caches.preparing:
        _load_artifacts(caches.shared / "artifacts")
    return run


def keep(caches: Caches) -> None:
    """In a preparing process, after its calls: leave what the processes to come will load."""
    if caches.case in ("disk", "mega"):
        import torch

        saved = torch.compiler.save_cache_artifacts()
        if saved is not None:
            (caches.shared / "artifacts").write_bytes(saved[0])
    (caches.shared / "ready").touch()


def _load_artifacts(path: Path) -> None:
    import torch

    if not path.exists():
        raise Ended("skipped", "Mega-Cache holds nothing of this variant: Inductor compiles no part of it")
    if torch.compiler.load_cache_artifacts(path.read_bytes()) is None:
        raise Ended("crashed", "Mega-Cache's artifacts could not be read back")


def _exported(workload: Workload, variant: Variant, inputs: Inputs) -> tuple[Any, list[torch.Tensor]]:
    """The torch function that is compiled ahead of time, and the tensors it takes."""
    if variant.name != "compile" or not workload.operation.startswith("diffraction"):
        raise Ended("skipped", f"{workload.operation}/{variant.name} is not exported; diffraction/compile is")
    from hypatia_lab.diffraction.simulators import torch_form

    function, names = torch_form(workload)
    return function, [inputs[name] for name in names]


def package(caches: Caches, workload: Workload, variant: Variant, inputs: Inputs) -> None:
    """In a preparing process: export the variant's torch form for static shapes, compile it and package it.

    Raises :class:`Ended` for a variant that is not exported.
    """
    function, tensors = _exported(workload, variant, inputs)
    import torch

    class Form(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            return function(*tensors)

    exported = torch.export.export(Form(), tuple(tensors))
    # A compiler without the development link of libstdc++ links it statically; two C++ runtimes in one process, and
    # the loader dies in the package's first std::regex. Naming the shared library makes the package use torch's.
    options = {"aot_inductor.custom_op_libs": [":libstdc++.so.6"]} if sys.platform == "linux" else {}
    torch._inductor.aoti_compile_and_package(
        exported, package_path=str(caches.shared / "model.pt2"), inductor_configs=options
    )
    (caches.shared / "ready").touch()


def _load_package(path: Path, tensors: list[torch.Tensor]) -> Run:
    import torch._inductor

    model = torch._inductor.aoti_load_package(str(path))
    return lambda: model(*tensors)


def _load_raw(path: Path, tensors: list[torch.Tensor]) -> Run:
    import torch

    loader = getattr(getattr(torch._C, "_aoti", None), "AOTIModelPackageLoader", None)
    if loader is None:
        raise Ended("skipped", f"torch {torch.__version__} has no torch._C._aoti.AOTIModelPackageLoader")
    # Path, model, single-threaded, runners, device; earlier versions took fewer.
    known = (str(path), "model", False, 1, -1)
    for count in range(len(known), 1, -1):
        try:
            model = loader(*known[:count])
        except TypeError:
            continue
        return lambda: model.run(tensors)[0]
    raise Ended("skipped", f"torch {torch.__version__}: AOTIModelPackageLoader takes other arguments")
