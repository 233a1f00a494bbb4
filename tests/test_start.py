"""The waterfall of a fresh process: stages that add up, caches that are warm or empty as said, and honest ends."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import hypatia_lab.diffraction  # noqa: F401  (registers)
from hypatia_lab import variants
from hypatia_lab.bench import sessions
from hypatia_lab.kernels import loader
from hypatia_lab.probes import caches, compile_stages
from hypatia_lab.probes.probe import Ended
from hypatia_lab.probes.start import CALLS
from hypatia_lab.workloads import Workload

SMALL = Workload("diffraction", (16, 16))
FIRST = ["interpreter", "import torch", "import hypatia_lab", "set-up", "build"]
EVERY_CALL = [f"call {number}" for number in range(1, CALLS + 1)]
INSIDE = [*compile_stages.STAGES, "rest of call 1"]


def plan_of(folder: Path, variant: str, case: str = "", workload: Workload = SMALL) -> dict[str, Any]:
    """The plan of the first process of a probe."""
    plan: dict[str, Any] = {"device": "cpu", "number": 0, "workload": asdict(workload)}
    return plan | {"variant": variant, "case": case, "folder": str(folder)}


class Heard:
    """What one process of the probe said: ``values`` by name, and its ``status`` and ``reason`` ("ok" without one)."""

    def __init__(self, plan: dict[str, Any], log: Path) -> None:
        self.values: dict[str, float] = {}
        self.status, self.reason = "ok", ""
        # Inductor asks the compiler for ten seconds which vectors the processor has; here any answer will do. And
        # threads that wait for one another are slow where several processes share two cores.
        env = {"TORCHINDUCTOR_VEC_ISA_OK": "1", "OMP_NUM_THREADS": "1"}
        casualty = sessions.run_session(
            "hypatia_lab.probes.start", plan, log, on_event=self.hear, silence_s=300, env=env
        )
        assert casualty is None, log.read_text()

    def hear(self, event: sessions.Event) -> None:
        if event["event"] == "detail":
            assert event["topic"] == "start"
            assert event["unit"] == ("1" if event["name"] in ("error over peak", "cache misses") else "ms")
            self.values[event["name"]] = event["value"]
        elif event["event"] == "status":
            self.status, self.reason = event["status"], event["reason"]


@pytest.mark.slow
def test_an_eager_start_stage_by_stage(tmp_path: Path):
    heard = Heard(plan_of(tmp_path, "eager"), tmp_path / "log")
    assert (heard.status, heard.reason) == ("ok", "")
    assert list(heard.values) == [*FIRST, *EVERY_CALL, "first image", "error over peak"]
    assert all(value > 0 for value in heard.values.values())
    assert heard.values["import torch"] > 50 > heard.values["build"]
    assert heard.values["error over peak"] < SMALL.tolerance()
    parts = sum(heard.values[name] for name in ("set-up", "build", "call 1"))
    assert heard.values["first image"] == pytest.approx(parts)


@pytest.mark.slow
def test_a_wrong_first_image_is_called_wrong(tmp_path: Path):
    workload = Workload("diffraction", (512, 512))
    heard = Heard(plan_of(tmp_path, "eager_direct", workload=workload), tmp_path / "log")
    assert heard.status == "wrong"
    assert heard.reason.startswith("call 1: wrong values")
    assert heard.values["error over peak"] > workload.tolerance()


def test_an_unknown_case_ends_with_its_reason(tmp_path: Path):
    heard = Heard(plan_of(tmp_path, "eager", "tepid"), tmp_path / "log")
    assert heard.status == "crashed"
    assert "unknown case 'tepid'; known: '', empty, " in heard.reason


@pytest.mark.slow
def test_what_cannot_be_prepared_is_skipped(tmp_path: Path):
    plan = plan_of(tmp_path, "compile_reduce_overhead", "disk")
    heard = Heard(plan, tmp_path / "log")
    assert (heard.status, heard.reason) == ("skipped", "while preparing: needs a CUDA GPU")
    assert not list(tmp_path.glob("*/ready"))
    # The probe's other processes take its word for it.
    with pytest.raises(Ended, match="needs a CUDA GPU") as end:
        caches.provide(plan | {"number": 1}, lambda: None)
    assert end.value.status == "skipped"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Heard]:
    """The compiled form under every case, by case; "empty" is the process that prepares "disk" and "mega"."""
    if not loader.compiler():
        pytest.skip(loader.cpp_missing())
    folder = tmp_path_factory.mktemp("start")

    def hear(*cases: tuple[str, str, dict[str, Any]]) -> dict[str, Heard]:
        return {
            name: Heard(plan_of(folder, "compile", case) | more, folder / f"{name}.log") for name, case, more in cases
        }

    by_caches = [("empty", "disk", {"preparing": True}), ("disk", "disk", {}), ("mega", "mega", {})]
    ahead_of_time = [(case, case, {}) for case in caches.PACKAGED]
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda cases: hear(*cases), (by_caches, ahead_of_time))
    assert not list(folder.glob("fresh-*")), "fresh caches are removed"
    return one | other


@pytest.mark.slow
@pytest.mark.parametrize("case", ["empty", "disk", "mega"])
def test_the_stages_of_compiling_add_up_to_the_first_call(compiled: dict[str, Heard], case: str):
    heard = compiled[case]
    assert heard.status == "ok", heard.reason
    names = [*FIRST, *EVERY_CALL, *INSIDE, "first image", "cache misses"]
    assert list(heard.values) == [*names, *(["error over peak"] if case != "empty" else [])]
    assert sum(heard.values[name] for name in INSIDE) == pytest.approx(heard.values["call 1"])
    assert all(heard.values[name] >= 0 for name in INSIDE)
    assert heard.values["Dynamo"] > 0
    assert heard.values["Triton"] == heard.values["autotune"] == 0
    assert heard.values["rest of call 1"] < 0.5 * heard.values["call 1"]
    assert min(heard.values[name] for name in EVERY_CALL[1:]) < 0.1 * heard.values["call 1"]


@pytest.mark.slow
def test_warm_caches_save_the_compiling(compiled: dict[str, Heard]):
    empty, disk, mega = (compiled[case].values for case in ("empty", "disk", "mega"))
    assert empty["cache misses"] == 1
    assert disk["cache misses"] == mega["cache misses"] == 0
    assert empty["AOTAutograd"] > 0 == disk["AOTAutograd"] == mega["AOTAutograd"]
    assert disk["Inductor"] < 0.7 * empty["Inductor"]


@pytest.mark.slow
@pytest.mark.parametrize("case", caches.PACKAGED)
def test_a_package_compiles_nothing_in_the_first_call(compiled: dict[str, Heard], case: str):
    heard = compiled[case]
    assert heard.status == "ok", heard.reason
    assert list(heard.values) == [*FIRST, *EVERY_CALL, "first image", "error over peak"]
    assert heard.values["call 1"] < 0.1 * compiled["empty"].values["call 1"]


@pytest.mark.slow
def test_the_raw_loader_imports_no_compiler(compiled: dict[str, Heard]):
    builds = {case: compiled[case].values["build"] for case in caches.PACKAGED}
    # Caches spare the loader's small programs alone: of 31 s on a GPU box with PyTorch 2.11 a quarter.
    assert builds["aoti_raw"] < 0.3 * builds["aoti_disk"] < 0.3 * builds["aoti_package"], builds


@pytest.fixture
def provide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., caches.Caches]:
    """``provide(case)`` in this process: its environment is restored, and preparing leaves the file ``made``."""
    for name in caches.VARIABLES:
        monkeypatch.setenv(name, "untouched")

    def prepare(plan: dict[str, Any], log: Path, alive: Callable[[], None]) -> None:
        (tmp_path / caches._name(plan) / "made").touch()
        alive()

    monkeypatch.setattr(caches, "_prepare", prepare)
    return lambda case, variant="compile": caches.provide(plan_of(tmp_path, variant, case), lambda: None)


def environment() -> dict[str, str]:
    """The cache folders that the environment names."""
    return {name: os.environ[name] for name in caches.VARIABLES}


def test_nothing_to_cache_leaves_the_environment_alone(provide: Callable[..., caches.Caches]):
    own = provide("")
    assert set(environment().values()) == {"untouched"}
    own.close()


@pytest.mark.parametrize("case", caches.FRESH)
def test_fresh_caches_are_empty_apart_and_removed(provide: Callable[..., caches.Caches], case: str):
    before, own = environment(), provide(case)
    folders = [Path(folder) for folder in environment().values()]
    assert before != environment()
    assert all(folder.is_dir() and not any(folder.iterdir()) for folder in folders)
    assert own.folder not in (None, provide(case).folder)
    own.close()
    assert not Path(str(own.folder)).exists()


@pytest.mark.parametrize("case", [case for case in caches.PREPARED if case not in caches.FRESH])
def test_warm_caches_are_shared_and_stay(provide: Callable[..., caches.Caches], case: str):
    own = provide(case)
    assert own.folder == provide(case).folder != provide(case, "eager").folder
    own.close()
    assert Path(str(own.folder)).exists()


@pytest.mark.parametrize("case", caches.PREPARED)
def test_an_interrupted_preparation_is_begun_anew_and_a_finished_one_kept(provide: Callable[..., Any], case: str):
    shared = provide(case).shared
    (shared / "half").touch()
    provide(case)
    assert ((shared / "half").exists(), (shared / "made").exists()) == (False, True)
    (shared / "ready").touch()
    (shared / "made").unlink()
    provide(case)
    assert not (shared / "made").exists()


@pytest.mark.parametrize(
    ("case", "reason"), [("aoti_raw", "diffraction/compile"), ("mega", "Inductor compiles no part of it")]
)
def test_a_case_that_does_not_suit_the_variant_is_skipped(tmp_path: Path, case: str, reason: str):
    own = caches.Caches(case, tmp_path / "fresh", tmp_path, False)
    with pytest.raises(Ended, match=reason) as end:
        caches.build(own, SMALL, variants.find(SMALL.operation, "eager"), SMALL.inputs("cpu"))
    assert end.value.status == "skipped"


def test_a_torch_without_the_raw_loader_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name = "torch._C._aoti.AOTIModelPackageLoader"
    monkeypatch.setattr(name, Mock(side_effect=TypeError))
    with pytest.raises(Ended, match="takes other arguments"):
        caches._load_raw(tmp_path / "model.pt2", [])
    monkeypatch.delattr(name)
    with pytest.raises(Ended, match=f"has no {name}"):
        caches._load_raw(tmp_path / "model.pt2", [])


def test_a_preparing_process_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def run_session(*arguments: Any, on_event: Callable[[sessions.Event], None], **more: Any) -> sessions.Casualty:
        on_event({"event": "begin", "what": "compile"})
        return sessions.Casualty("compile", "timeout", "no sign of life for 280 s")

    monkeypatch.setattr(sessions, "run_session", run_session)
    alive = Mock()
    with pytest.raises(Ended, match="while preparing: no sign of life"):
        caches.provide(plan_of(tmp_path, "compile", "disk"), alive)
    assert alive.called


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_each_moment_of_compiling_counts_once(device: str):
    from torch._dynamo.utils import dynamo_timed

    def phase(*names: str) -> None:
        """Twenty milliseconds in each of the nested phases, on the way in."""
        if names:
            with dynamo_timed(names[0]):
                time.sleep(0.02)
                phase(*names[1:])

    phase("create_aot_dispatcher_function", "inductor_compile")  # the first time torch imports more
    with compile_stages.watched(device) as spent:
        begun = time.perf_counter()
        phase("entire_frame_compile", "bytecode_tracing", "backend_compile", "create_aot_dispatcher_function")
        phase("inductor_compile", "async_compile.wait", "mm_template_autotuning")
        whole = (time.perf_counter() - begun) * 1e3
        phase("of no compiler")
    waiting = "Inductor" if device == "cpu" else "Triton"
    assert set(spent) == {"Dynamo", "AOTAutograd", "Inductor", waiting, "autotune"}
    assert sum(spent.values()) == pytest.approx(whole, rel=0.05)
    least = Counter({"Dynamo": 40, "AOTAutograd": 20, "Inductor": 20, "autotune": 20}) + Counter({waiting: 20})
    assert {name: ms for name, ms in least.items() if spent[name] < ms} == {}
    phase("entire_frame_compile")
    assert sum(spent.values()) == pytest.approx(whole, rel=0.05)
