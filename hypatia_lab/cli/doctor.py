"""What this machine can do, found by trying: a summary with what would mend the rest, then every variant."""

from __future__ import annotations

import importlib
import subprocess
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import click

from hypatia_lab import machine, messages
from hypatia_lab.book.pdf import chromium
from hypatia_lab.cli import options
from hypatia_lab.cli.execution import RUN
from hypatia_lab.cli.terminal import show, wrap
from hypatia_lab.kernels import loader
from hypatia_lab.variants import Variant, variants
from hypatia_lab.workloads import DTYPES, Workload, operations

EXTENT, FEW = 64, {"batch": 2, "crystals": 2}
"""Every extent of the shape that a variant is asked for, but of those that are named here."""
PATIENCE_S = 60.0
"""A browser that has not said its version after so long will not."""


@dataclass(frozen=True)
class Tool:
    """Something beside torch that the lab uses, and what it ``gives``.

    ``attempt(device)`` uses it and returns why it cannot be used there, or raises what it met; then ``remedy`` may
    help. Variants that need the tool ask the kernels' loader for ``key``.
    """

    name: str
    gives: str
    remedy: str
    attempt: Callable[[str], str]
    key: str = ""

    def missing(self, device: str) -> str:
        """Why it cannot be used on ``device``, and what would help; empty when it was used. From then on the loader
        tells so, too."""
        loader.BROKEN.pop(self.key, None)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self.attempt(device)
        except Exception as cause:  # whatever a broken installation may raise
            found = f"{messages.one_line(cause)} ({self.remedy})"
        if self.key:
            loader.BROKEN[self.key] = found
        return found


@dataclass(frozen=True)
class Report:
    """What was found on ``device`` ("cpu" or "cuda") of ``machine``; ``about`` are its facts in a few words each.

    ``tools`` says of each why it cannot be used, ``variants`` the same by operation and name; empty where it works.
    """

    machine: str
    device: str
    about: tuple[str, ...]
    tools: dict[str, str]
    variants: dict[str, dict[str, str]]


def _gpu(device: str) -> str:
    import torch

    if device == "cuda":
        return ""
    if torch.cuda.is_available():
        return "there is one, which was not asked for (--device cpu)"
    return f"torch sees none ({machine.build()}; book/rerun.md says how to measure on a GPU box)"


def _cpp(device: str) -> str:
    if missing := loader.cpp_missing():
        return missing
    loader.cpp_library("linear_relu/linear_relu")
    return ""


def _cuda(device: str) -> str:
    import torch

    if missing := loader.cuda_missing(device):
        return missing
    numbers = -torch.ones(1, device=device)
    launch = loader.cuda_launcher("linear_relu/relu_inplace", "relu_inplace", "float", "float")
    launch((1,), (32,), numbers, 1)
    return "" if numbers.item() == 0 else "a kernel that was launched has computed nothing (is the driver too old?)"


def _triton(device: str) -> str:
    import torch

    if missing := loader.triton_missing(device):
        return missing
    from hypatia_lab.kernels.linear_relu.masked_gradient import masked_gradient

    ones = torch.ones(1, 1, device=device)
    masked_gradient(ones, ones)
    torch.cuda.synchronize()
    return ""


def _nvml(device: str) -> str:
    if device != "cuda":
        return loader.NO_GPU
    import pynvml

    pynvml.nvmlInit()
    read = machine.Probe(device)()
    return "" if read else "NVML reads neither clock nor power of this GPU (ask whoever runs the box)"


def _importing(install: str, *names: str) -> Callable[[str], str]:
    def attempt(device: str) -> str:
        for name in names:
            if missing := loader.module_missing(name, install):
                return missing
            importlib.import_module(name)
        return ""

    return attempt


def _on_gpu(attempt: Callable[[str], str]) -> Callable[[str], str]:
    return lambda device: attempt(device) if device == "cuda" else loader.NO_GPU


PEERS, BOOK = "'hypatia-lab[peers]'", "'hypatia-lab[book]'"


def _browser(device: str) -> str:
    if not (found := chromium()):
        return "no Chromium found (apt-get install chromium)"
    subprocess.run([found, "--version"], capture_output=True, check=True, timeout=PATIENCE_S)
    return _importing("'hypatia-lab[test]'", "playwright.sync_api")(device)


_BOOK = ("jupyter_book", "myst_nb", "sphinx_design", "sphinxcontrib.bibtex")
TOOLS = (
    Tool("CUDA GPU", "", "", _gpu),
    Tool("C++", "build C++ kernels", "install g++ with OpenMP, or set CXX", _cpp, "cpp"),
    Tool("CUDA C++", "build CUDA kernels", "pip install 'hypatia-lab[gpu]'; install a CUDA toolkit", _cuda, "cuda"),
    Tool("Triton", "build Triton kernels", "pip install triton, and a C compiler", _triton, "triton"),
    Tool("nvmath-python", "", f"pip install {PEERS}", _on_gpu(_importing(PEERS, "nvmath.linalg.advanced")), "nvmath"),
    Tool("JAX", "", f"pip install {PEERS}", _on_gpu(_importing(PEERS, "jax")), "jax"),
    Tool("cuDNN's graphs", "", f"pip install {PEERS}", _on_gpu(_importing(PEERS, "cudnn")), "cudnn"),
    Tool("NVML", "read the GPU's clock and power", "pip install nvidia-ml-py", _nvml),
    Tool("egglog", "rewrite graphs", "pip install egglog", _importing("'hypatia-lab[egraph]'", "egglog"), "egglog"),
    Tool("papermill", "run notebooks", "pip install 'hypatia-lab[run]'", _importing("'hypatia-lab[run]'", *RUN)),
    Tool("Jupyter Book", "build the book", f"pip install {BOOK}", _importing(BOOK, *RUN, *_BOOK)),
    Tool("Chromium", "test it in a browser", "apt-get install chromium", _browser),
)


def examine(device: str) -> Report:
    """Try every tool, then ask every variant, on ``device`` ("auto", "cpu" or "cuda").

    Raises :class:`~hypatia_lab.machine.MachineError` for a device that is not there.
    """
    import hypatia_lab.experiments  # noqa: F401  (registers every operation)

    place = machine.choose_device(device)
    facts = machine.facts(place)
    about = [facts["name"], f"{facts['cores']} cores", f"{facts['memory_gib']} GiB"]
    if reading := machine.Probe(place)():
        about.append(f"at {reading['sm_mhz']:.0f} MHz and {reading['power_w']:.0f} W now")
    about += [f"{name} {version}" for name, version in facts["versions"].items()]
    tools = {tool.name: tool.missing(place) for tool in TOOLS}
    asked = {name: {one.name: _reason(one, place) for one in variants(name).values()} for name in operations()}
    return Report(machine.default_name(place), place, tuple(about), tools, asked)


def _reason(variant: Variant, device: str) -> str:
    """Why ``variant`` can compute nothing there, in none of its arithmetics and directions; empty when it can."""
    spec = operations()[variant.operation]
    shape = tuple(FEW.get(dim, EXTENT) for dim in spec.dims)
    reasons = [
        variant.needs(Workload(variant.operation, shape, dtype, math, direction), device)
        for dtype in sorted(DTYPES, key="float32".__ne__)  # whose reason is the best known, if there are several
        for math in spec.maths(dtype)
        for direction in variant.directions
        if math in variant.maths
    ]
    return "" if "" in reasons else reasons[0]


def rows(report: Report) -> list[dict[str, Any]]:
    """The findings for other programs: machine, device, subject, name, works, reason."""
    place = {"machine": report.machine, "device": report.device}
    return [
        place | {"subject": subject, "name": name, "works": not reason, "reason": reason}
        for subject, own in ({"tool": report.tools} | report.variants).items()
        for name, reason in own.items()
    ]


SCREEN = 24
"""Lines of a terminal."""


def _more(left: int) -> list[str]:
    """What ``--all`` shows, among it so many tools that found no room."""
    others = f"{left} more that it lacks, and " * (left > 0)
    return wrap(
        f"hypatia-lab doctor --all shows {others}which forms of each operation run here, and why others do not."
    )


def text(report: Report, *, everything: bool = False) -> list[str]:
    """The report in lines that fit the terminal: the machine, what it can do and what it lacks, on one screen; the
    reasons that find no room there, and every operation, if ``everything`` is asked for."""
    tools = report.tools
    reasons = [reason for own in report.variants.values() for reason in own.values()]
    on = "GPU" if report.device == "cuda" else "CPU"
    can = [f"measure on the {on} ({reasons.count('')} of {len(reasons)} forms of its operations)"]
    can += [tool.gives for tool in TOOLS if tool.gives and not tools[tool.name]]
    # What a GPU would mend is said once.
    lacks = [f"{name}: {reason}" for name, reason in tools.items() if reason not in ("", loader.NO_GPU)]
    lines = [*wrap(f"{report.machine}: {', '.join(report.about)}", 4), ""]
    lines += wrap(f"can    {', '.join(can)}", 7)
    lacking = [wrap(f"lacks  {one}", 7) for one in lacks or ["nothing"]]
    if not everything:
        room = SCREEN - len(lines) - len(_more(len(lacking))) - 2  # the prompt, and an empty line
        fit = [one for one, size in zip(lacking, accumulate(map(len, lacking)), strict=True) if size <= room]
        return [*lines, *(line for one in fit for line in one), "", *_more(len(lacking) - len(fit))]
    lines += [line for one in lacking for line in one]
    for operation, own in report.variants.items():
        lines += ["", *wrap(f"{operation}: {operations()[operation].summary}", 4)]
        for reason in sorted(dict.fromkeys(own.values()), key=bool):
            names = ", ".join(name for name, why in own.items() if why == reason)
            lines += wrap(f"no   {reason}: {names}" if reason else f"yes  {names}", 7, 2)
    return lines


@click.command()
@click.option("--all", "everything", is_flag=True, help="Every form of every operation, and why it does not run here.")
@options.device
@options.paged
@options.as_json
def doctor(everything: bool, device: str, paged: bool, as_json: bool) -> None:
    """Say what this machine can do, what it lacks and how to mend that."""
    report = examine(device)
    show(lambda: text(report, everything=everything), lambda: rows(report), as_json=as_json, paged=paged)
