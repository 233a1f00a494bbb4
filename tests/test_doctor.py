"""doctor tells the truth: what is hidden or broken is missing, with a remedy, and so are the variants that need it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from command import call, rows_of

from hypatia_lab.cli import doctor
from hypatia_lab.kernels import loader


@pytest.fixture(autouse=True)
def nothing_is_known_to_be_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "BROKEN", {})


def found(report: doctor.Report, subject: str) -> dict[str, str]:
    """Tool or variant → why not."""
    return report.tools if subject == "tool" else report.variants[subject]


@pytest.fixture(scope="module")
def healthy() -> doctor.Report:
    return doctor.examine("cpu")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_line_fits_the_terminal_and_the_summary_comes_first(healthy, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = doctor.text(healthy, everything=True)
    assert max(map(len, lines)) <= width
    heads = [number for number, line in enumerate(lines) if line.startswith(("can ", "lacks ", "linear_relu: "))]
    assert heads == sorted(heads)
    assert heads[0] < 7


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("broken", ["", "it is not installed (pip install it, or ask whoever runs the box)"])
@pytest.mark.parametrize("everything", [True, False], ids=["everything", "tools alone"])
def test_what_is_not_asked_for_in_full_fits_one_screen_and_says_how_much_is_missing(
    healthy, monkeypatch, width, broken, everything
):
    monkeypatch.setenv("COLUMNS", str(width))
    tools, *forms = (
        {one: broken or reason for one, reason in own.items()} for own in (healthy.tools, *healthy.variants.values())
    )
    shown = dict(zip(healthy.variants, forms, strict=True)) if everything else healthy.variants
    lines = doctor.text(replace(healthy, tools=tools, variants=shown))
    assert len(lines) < 24
    assert max(map(len, lines)) <= width
    lacking = [name for name, reason in tools.items() if reason not in ("", loader.NO_GPU)]
    told = [name for name in lacking if any(line.startswith(f"lacks  {name}:") for line in lines)]
    assert told == lacking[: len(told)]
    assert (f"--all shows {len(lacking) - len(told)} more" in " ".join(lines)) is (told != lacking)


def test_variants_that_share_a_reason_are_told_together(healthy):
    reasons = found(healthy, "linear_relu")
    assert reasons["eager"] == ""
    assert reasons["step_shared"] == reasons["triton"] == loader.NO_GPU
    text = "\n".join(doctor.text(healthy, everything=True))
    (block,) = [part for part in text.split("\n\n") if part.startswith("linear_relu: ")]
    assert block.count(loader.NO_GPU) == 1
    assert all(name in block for name in reasons)


@pytest.mark.parametrize(
    ("hidden", "missing", "remedy"),
    [
        ("egglog", {"tool": "egglog", "mlp": "egraph", "unet": "egraph"}, "'hypatia-lab[egraph]'"),
        ("jupyter_book", {"tool": "Jupyter Book"}, "hypatia-lab[book]"),
        ("papermill", {"tool": "papermill"}, "pip install"),
    ],
)
def test_a_hidden_module_is_missing_everywhere_with_its_remedy(monkeypatch, hidden, missing, remedy):
    monkeypatch.setitem(sys.modules, hidden, None)
    report = doctor.examine("cpu")
    (told,) = {found(report, subject)[name] for subject, name in missing.items()}
    assert hidden in told
    assert remedy in told


def test_what_is_installed_and_cannot_be_imported_is_missing_with_its_cause(monkeypatch):
    real = importlib.import_module

    def broken(name: str) -> Any:
        if name == "egglog":
            raise ModuleNotFoundError("No module named 'anywidget'")
        return real(name)

    monkeypatch.setattr(importlib, "import_module", broken)
    report = doctor.examine("cpu")
    told = found(report, "mlp")["egraph"]
    assert all(word in told for word in ("anywidget", "pip install egglog"))


def test_a_compiler_that_fails_is_no_compiler(monkeypatch):
    def broken(name: str) -> None:
        raise loader.BuildError("linear_relu.cpp does not build with g++:\ncannot find -lgomp")

    monkeypatch.setattr(loader, "cpp_library", broken)
    report = doctor.examine("cpu")
    told = found(report, "tool")["C++"]
    assert "-lgomp" in told
    assert found(report, "linear_relu")["naive"] == found(report, "linear_relu")["compile"] == told


def test_a_browser_that_is_not_there_or_does_not_start_is_missing(monkeypatch):
    monkeypatch.setattr(doctor, "chromium", lambda: "")
    assert "apt-get install chromium" in found(doctor.examine("cpu"), "tool")["Chromium"]
    monkeypatch.setattr(doctor, "chromium", lambda: "/bin/false")
    assert "CalledProcessError" in found(doctor.examine("cpu"), "tool")["Chromium"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU box of which nothing but torch's word is there."""
    import torch

    from hypatia_lab import machine

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(machine, "facts", lambda device: {"name": "a GPU", "cores": 1, "memory_gib": 1, "versions": {}})
    monkeypatch.setattr(machine, "default_name", lambda device: "a-gpu")
    monkeypatch.setattr("hypatia_lab.operations.conv_block.own.fits", lambda *_, **__: True)


@pytest.mark.usefixtures("gpu")
def test_a_gpu_without_triton_or_cuda_core_says_so_of_each_variant_that_needs_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setitem(sys.modules, "cuda", None)
    report = doctor.examine("cuda")
    tools = found(report, "tool")
    assert tools["CUDA GPU"] == ""
    assert "triton is not installed" in tools["Triton"]
    assert "cuda.core is not installed" in tools["CUDA C++"]
    assert tools["NVML"]
    assert found(report, "linear_relu")["triton"] == found(report, "linear_relu")["compile"] == tools["Triton"]
    assert found(report, "linear_relu")["step_mma"] == found(report, "diffraction")["cuda"] == tools["CUDA C++"]
    assert found(report, "linear_relu")["eager"] == ""
    assert loader.NO_GPU not in "\n".join(doctor.text(report, everything=True))


@pytest.mark.usefixtures("gpu")
def test_a_kernel_that_does_not_build_counts_as_missing(monkeypatch):
    def broken(*_: Any) -> None:
        raise loader.BuildError("relu_inplace.cu does not build for sm_90a: no cuda_fp16.h")

    monkeypatch.setattr(loader, "cuda_missing", lambda device="cuda": loader.BROKEN.get("cuda", ""))
    monkeypatch.setattr("torch.ones", lambda *_, **__: -1)  # no GPU to hold it
    monkeypatch.setattr(loader, "cuda_launcher", broken)
    report = doctor.examine("cuda")
    assert "cuda_fp16.h" in found(report, "tool")["CUDA C++"]
    assert found(report, "linear_relu")["step_mma"] == found(report, "tool")["CUDA C++"]


def test_other_programs_get_the_same_findings(healthy, monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda device: healthy)
    rows = rows_of("doctor")
    told = {"tool": healthy.tools} | healthy.variants
    assert [(row["subject"], row["name"], row["reason"]) for row in rows] == [
        (subject, name, reason) for subject, own in told.items() for name, reason in own.items()
    ]
    assert all(row["works"] == (not row["reason"]) and row["device"] == "cpu" for row in rows)
    assert call("doctor").out.splitlines() == doctor.text(healthy)
    assert call("doctor", "--all").out.splitlines() == doctor.text(healthy, everything=True)


@pytest.mark.slow  # what it says is held by the tests above
def test_it_ends_well_as_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "hypatia_lab", "doctor", "--device", "cpu"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
