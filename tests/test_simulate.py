"""The public way to an image: strips, memory, progress, the choice of who computes, and the command."""

from __future__ import annotations

import dataclasses
import errno
import importlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import numpy
import pytest
import torch
from command import call, files_below, refused
from kernel_tensors import DEVICE, on_gpu
from tabled import tabled, tables
from test_diffraction import FULL, golden, image, off

from hypatia_lab.cli import commands
from hypatia_lab.diffraction import Beam, Crystal, Detector, Scene, SimulationError, Spindle, seed_scene, simulate
from hypatia_lab.kernels import loader
from hypatia_lab.machine import MachineError
from hypatia_lab.variants import variants
from hypatia_lab.workloads import WorkloadError

# The package's attribute of this name is the function.
module = importlib.import_module("hypatia_lab.diffraction.simulate")
QUICK = [name for name in variants("diffraction") if not name.startswith("compile") and name != "eager_direct"]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strips of 5 rows at most."""
    monkeypatch.setattr(module, "ROOM", dict.fromkeys(module.ROOM, 45))
    monkeypatch.setattr(module, "LEAST", 1)


@pytest.mark.parametrize("slow", [1, 5, 7, 10, 23])
@pytest.mark.parametrize("name", QUICK)
@pytest.mark.usefixtures("narrow")
def test_strips_make_up_the_whole_image(name: str, slow: int) -> None:
    scene = dataclasses.replace(FULL, detector=dataclasses.replace(FULL.detector, slow=slow))
    # float32: a tile of such coarse pixels spans half the hemisphere.
    for dtype, allowed in (("float64", 1e-9), ("float32", 2e-4)):
        try:
            out = simulate(scene, dtype=dtype, variant=name)
        except SimulationError as cause:
            pytest.skip(str(cause))
        assert (out.shape, out.dtype, out.device.type) == ((slow, 9), getattr(torch, dtype), DEVICE)
        assert off(out.cpu(), image(scene)) < allowed


def test_every_feature_at_once_by_the_variant_chosen() -> None:
    scene = dataclasses.replace(FULL, crystal=dataclasses.replace(FULL.crystal, mosaic_spread=1.0, mosaic_domains=3))
    assert off(simulate(scene, dtype="float64").cpu(), image(scene)) < 1e-9
    assert off(simulate(seed_scene(256)).cpu(), golden("cubic256")) < 1e-5


def test_the_fastest_variant_is_ready_without_torch_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.fastest("cpu") == ("eager" if loader.cpp_missing() else "c_openmp")
    monkeypatch.setattr(loader, "cpp_missing", lambda: "no compiler")
    assert module.fastest("cpu") == "eager"
    for names in module.READY.values():
        assert not [name for name in names if name.startswith("compile")]


def test_strips_follow_the_work_that_a_pixel_is() -> None:
    few = Scene(detector=Detector(4096, 1024))
    many = dataclasses.replace(few, spindle=Spindle(0.0, 1.0, 10_000))
    assert module._strip(few, "cpu") == 256
    assert module._strip(few, "cuda") == 4096
    assert module._strip(many, "cpu") == 64
    assert module._strip(dataclasses.replace(few, detector=Detector(10, 10)), "cpu") == 10


@pytest.mark.parametrize(
    ("given", "kind", "named"),
    [
        ({"variant": "nope"}, SimulationError, "'nope'; known: eager, "),
        ({"dtype": "float128"}, WorkloadError, "'float128'"),
        ({"device": "tpu"}, MachineError, "'tpu'"),
        ({"scene": Crystal()}, SimulationError, "Crystal"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(given: dict[str, Any], kind: type[Exception], named: str) -> None:
    asked: dict[str, Any] = {"scene": seed_scene(8)} | given
    with pytest.raises(kind, match=named):
        simulate(**asked)


@pytest.mark.usefixtures("narrow")
def test_progress_is_shown_after_a_second_only(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    scene = dataclasses.replace(FULL, detector=dataclasses.replace(FULL.detector, slow=20))
    eager = variants("diffraction")["eager"]

    def slowly(workload, inputs):
        run = eager.factory(workload, inputs)
        return lambda: (time.sleep(0.4), run())[1]

    simulate(seed_scene(8), variant="eager", device="cpu")
    monkeypatch.setattr(module, "_available", lambda *_: dataclasses.replace(eager, factory=slowly))
    simulate(scene, variant="eager", device="cpu", progress=False)
    assert capsys.readouterr().err == ""
    simulate(scene, variant="eager", device="cpu")
    shown = capsys.readouterr().err
    assert all(told in shown for told in ("eager", "20/20", "row"))
    assert "[00:00<" not in shown  # nothing before the first second is over


MEMORY = """
import torch
from hypatia_lab.diffraction import Beam, Crystal, Detector, Scene, Spindle, simulate
# Not ru_maxrss: a child's begins with what its parent held when it was made.
peak = lambda: int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024**2
crystal = Crystal((70.0, 80.0, 90.0, 75.0, 85.0, 95.0), (10.0, 20.0, 30.0))
beam = Beam(1.0, dispersion=2.0, dispersion_steps=3)
simulate(Scene(crystal, beam, Spindle(), Detector(8, 8)), device="cpu", variant="eager")
before = peak()
simulate(Scene(crystal, beam, Spindle(), Detector(2048, 2048)), device="cpu", variant="eager")
print(before, peak())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_memory_stays_at_a_strips_size_however_large_the_image() -> None:
    """A quarter of the promised 4096² within 3 GB: the image takes 16 MiB, a whole field of it all at once 0.5 GB."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    before, after = map(float, done.stdout.split())
    assert after - before < 0.25
    assert after < 1.5


@on_gpu
@pytest.mark.parametrize("variant", ["", "eager"])
def test_memory_of_the_gpu_stays_within_its_bound(variant: str) -> None:
    scene = Scene(FULL.crystal, Beam(1.0, 2.0, 3), Spindle(), Detector(4096, 4096, oversample=2))
    for dtype in ("float32", "float64"):
        torch.cuda.reset_peak_memory_stats()
        simulate(scene, device="cuda", dtype=dtype, variant=variant)
        assert torch.cuda.max_memory_allocated() < 4e9


# ---------------------------------------------------------------- files of reflections


def test_reflections_are_read_from_lines(tmp_path: Path) -> None:
    path = tmp_path / "f.hkl"
    path.write_text("# h k l F\n0 0 0 100\n\n-1 2 3 4.5e1  # a remark\n")
    assert module.read_reflections(path) == {(0, 0, 0): 100.0, (-1, 2, 3): 45.0}


@tabled("simulate", "bad_files")
def test_a_file_that_holds_something_else_is_refused_by_its_line(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / "f.hkl").write_text(text)
    with pytest.raises(SimulationError, match=f"f.hkl.* line {line}: "):
        module.read_reflections(tmp_path / "f.hkl")


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").touch()
    for name in ("missing", "image", ".", "empty"):
        with pytest.raises(SimulationError, match=str(tmp_path / name)):
            module.read_reflections(tmp_path / name)


# ---------------------------------------------------------------- the command


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the command is called."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_writes_the_image_and_says_what_it_did(empty: Path) -> None:
    options = "--wavelength 6.2 --pixels 256 256 --device cpu --variant eager"
    done = call("simulate", *options.split())
    assert (done.code, [line for line in done.err if "row/s" not in line]) == (0, [""] * bool(done.err))
    assert all(told in done.out for told in ("image.npy", "256 x 256", "float32", "eager on cpu", "peak 154.65"))
    written = numpy.load("image.npy")
    assert written.dtype == numpy.float32
    assert off(torch.from_numpy(written), golden("cubic256")) < 1e-5


def test_every_option_reaches_the_scene(empty: Path) -> None:
    Path("f.hkl").write_text("0 0 0 3\n1 -1 2 50\n")
    done = call("simulate", *tables("simulate")["every_option"].split())
    assert (done.code, done.err) == (0, [])
    assert all(told in done.out for told in ("out.f32", "7 x 9", "32 steps", "float64"))
    structure = {(0, 0, 0): 3.0, (1, -1, 2): 50.0}
    scene = Scene(
        Crystal((40.0, 50.0, 60.0, 75.0, 85.0, 95.0), (-10.0, 20.0, 30.0), (3, 4, 5), 7.0, structure, 1.0, 2, 4),
        Beam(3.0, 4.0, 2, polarization=0.8),
        Spindle(1.0, -3.0, 2),
        Detector(7, 9, 50.0, 8.0, 2, (20.0, 30.0)),
    )
    written = torch.from_numpy(numpy.fromfile("out.f32", dtype="<f4").reshape(7, 9))
    assert off(written, image(scene)) < 1e-6


def test_the_defaults_that_help_states_are_the_scenes() -> None:
    scene = Scene()
    parts = (scene.crystal, scene.beam, scene.spindle, scene.detector)
    fields = {field.name: getattr(part, field.name) for part in parts for field in dataclasses.fields(part)}
    fields |= {"pixels": (scene.detector.slow, scene.detector.fast), "beam_centre": "one pixel beyond the middle"}
    options = commands.main.commands["simulate"].params
    helps = {option.name: option.help or "" for option in options if isinstance(option, click.Option)}
    stated = {name: found[1] for name, text in helps.items() if (found := re.search(r"\[default: (.*)\]", text))}
    del stated["variant"]
    assert len(stated) == 19
    for name, text in stated.items():
        value = fields[name]
        numbers = value if isinstance(value, tuple) else (value,)
        assert text == (value if isinstance(value, str) else " ".join(f"{number:g}" for number in numbers))


@tabled("simulate", "bad_input")
def test_bad_input_is_one_clear_line(empty: Path, options: str, named: str) -> None:
    Path("folder.npy").mkdir()
    assert named in refused("simulate", *options.split())
    assert files_below(empty) == ["folder.npy"]


def test_an_image_that_memory_does_not_hold_is_one_clear_line(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Mock(side_effect=RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    monkeypatch.setattr(torch, "empty", full)
    line = refused("simulate", "--pixels", "60000", "60000", "--device", "cpu", "--variant", "eager")
    assert all(told in line for told in ("60000 x 60000", "13.4 GiB", "float32"))


def test_a_full_disk_is_one_clear_line(empty: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    Path("image.f32").symlink_to("/dev/full")
    assert "image.f32" in refused("simulate", "--pixels", "64", "64", "--output", "image.f32", "--device", "cpu")


@pytest.mark.parametrize(("before", "after"), [(None, []), ("an older image", ["image.npy"])])
def test_a_part_of_an_image_does_not_stay(
    empty: Path, monkeypatch: pytest.MonkeyPatch, before: str | None, after: list[str]
) -> None:
    if before:
        Path("image.npy").write_text(before)

    def full(path: Path, _: Any) -> None:
        path.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("numpy.save", full)
    line = refused("simulate", "--pixels", "8", "8", "--output", "image.npy", "--device", "cpu", "--variant", "eager")
    assert "No space left" in line
    assert [path.name for path in empty.glob("image*")] == after
