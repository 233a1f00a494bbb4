"""What several tests share: the committed book, built once a session; Triton's interpreter, and its compiler."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from forks import forks

from hypatia_lab import claims, intervals, paths, records
from hypatia_lab.book import build

gc.set_threshold(100_000)  # what tests share stays: to look for cycles in it again and again takes time, and finds few


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets two processes tell something, where a test is about what is told and not about how many it takes."""
    monkeypatch.setattr(intervals, "FEW", 2)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A :class:`measuring.Lab` of a machine that has its ceilings; no process waits for its plan."""
    from measuring import Lab, give_ceilings

    from hypatia_lab.bench import sessions, source_tree

    found = Lab(tmp_path)
    give_ceilings(tmp_path)
    # Whoever works on the tree may commit while the tests run; parts of another commit are not reused.
    monkeypatch.setattr(source_tree, "commit", lambda: ("0" * 40, False))
    monkeypatch.setattr(sessions, "room", lambda wanted: 0)
    monkeypatch.setattr(sessions, "run_session", found)
    return found


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers, or adds to the path of imports, is forgotten when it ends."""
    from hypatia_lab import variants
    from hypatia_lab.strangers import programs, reader_kernel

    monkeypatch.setattr(reader_kernel, "_DECLARED", {})
    monkeypatch.setattr(programs, "_DECLARED", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with variants.restored():
        yield


@pytest.fixture
def rehearsed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader's file is tried out in this process, which forgets it; a fresh one a case would be slow.

    What it declares is told in the same words.
    """
    from hypatia_lab import variants
    from hypatia_lab.bench import sessions
    from hypatia_lab.judged import rehearsal
    from hypatia_lab.strangers import reader_kernel

    real = sessions.run_session

    def run_session(module: str, plan: dict[str, Any], log: Path, *, on_event: Any, **how: Any) -> Any:
        if module != rehearsal.__name__:
            return real(module, plan, log, on_event=on_event, **how)

        def emit(event: str, **fields: Any) -> None:
            on_event(json.loads(json.dumps({"event": event} | fields)))

        with pytest.MonkeyPatch.context() as own, variants.restored():
            own.setattr(reader_kernel, "_DECLARED", {})
            own.setattr(sys, "path", list(sys.path))
            own.setattr(rehearsal, "confine", lambda *given: None)
            own.setattr(sessions, "child_plan", lambda: (json.loads(json.dumps(plan)), emit))
            rehearsal.main()
        return None

    monkeypatch.setattr(sessions, "run_session", run_session)
    monkeypatch.setattr(sessions, "start", lambda *given: SimpleNamespace(tell=lambda plan: None, end=lambda: None))


@pytest.fixture
def timed_alike(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The plans of measuring processes, none of which is run: each tells that everything takes 50 µs a call."""
    from hypatia_lab.bench import sessions

    real, plans = sessions.run_session, []
    row = {"event": "row", "status": "ok", "reason": "", "error": 0.0, "max_error": 0.0, "median_us": 50.0, "calls": 1}
    row |= {"samples_us": [], "sm_mhz": [], "power_w": [], "throttled": False}

    def run_session(module: str, plan: dict[str, Any], log: Path, *, on_event: Any, **how: Any) -> Any:
        if "groups" not in plan:
            return real(module, plan, log, on_event=on_event, **how)
        plans.append(plan)
        for index, group in plan["groups"]:
            for name in group["variants"]:
                for clock in group["clocks"]:
                    on_event(row | {"group": index, "variant": name, "clock": clock})
            on_event({"event": "done", "group": index})
        return None

    monkeypatch.setattr(sessions, "run_session", run_session)
    monkeypatch.setattr(sessions, "room", lambda wanted: 0)
    return plans


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[int, int]], None]:
    """What the variants ask of a GPU is answered as an H200 of the given compute capability would."""
    import torch

    from hypatia_lab.kernels import loader

    pytest.importorskip("triton")

    def answer(capability: tuple[int, int]) -> None:
        monkeypatch.setattr(loader, "cuda_missing", lambda *given: "")
        monkeypatch.setattr(loader, "module_missing", lambda name, install: "")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *given: capability)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        properties = SimpleNamespace(multi_processor_count=132)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    return answer


@pytest.fixture
def h200(card: Callable[[tuple[int, int]], None]) -> None:
    """There is an H200, for all that variants know."""
    card((9, 0))


@pytest.fixture(scope="session")
def committed_records() -> list[records.Record]:
    """The records of the repository that lead, read once; nobody changes them."""
    return records.load()


@pytest.fixture(scope="session")
def committed_claims() -> list[claims.Claim]:
    """The ledger of the repository."""
    return claims.ledger()


@pytest.fixture(scope="session")
def committed_book() -> Path:
    """Folder of the book built from the committed notebooks and records, as a reader gets it."""
    return build.build(output=paths.BUILD / "committed" / "html", say=print).parent


@pytest.fixture(scope="session")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., None]]:
    """Calls functions of the files in ``interpreted`` in a process whose Triton kernels are interpreted: :func:`forks`.

    The test is skipped where Triton cannot interpret.
    """
    triton = pytest.importorskip("triton")
    newest = tuple(map(int, numpy.__version__.split(".")[:2]))
    if newest >= (2, 4) and tuple(map(int, triton.__version__.split(".")[:2])) <= (3, 6):
        pytest.skip("Triton 3.6's interpreter fails with numpy 2.4")
    scratch, sources = tmp_path_factory.mktemp("interpreted"), Path(__file__).resolve().parent / "interpreted"
    with forks(sources, scratch, environment={"TRITON_INTERPRET": "1"}) as call:
        yield call


@pytest.fixture
def seeded() -> None:
    """Random numbers are the same in every test."""
    import torch

    torch.manual_seed(0)


@pytest.fixture
def choices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the dispatcher keeps its choices, of which there are none, nor in memory."""
    from hypatia_lab import dispatch, runs

    monkeypatch.setattr(dispatch, "folder", lambda: tmp_path / "choices")
    monkeypatch.setattr(runs, "_in_training", lambda *given: False)  # what C++ was told it does not forget
    monkeypatch.setattr(dispatch, "told", set())
    for one in (dispatch.LINEAR_RELU, *dispatch.CONV_BLOCKS.values(), *dispatch.MLPS.values()):
        monkeypatch.setattr(one, "forms", {})
        monkeypatch.setattr(one, "chosen", {})
    return tmp_path / "choices"


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The optimizer knows no costs that were measured on this machine before."""
    monkeypatch.setattr("hypatia_lab.egraph.measure.cost_file", lambda device: tmp_path / "costs.json")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a notebook's cell displays: bundles of HTML and text."""
    found: list[Any] = []
    monkeypatch.setattr("IPython.display.display", lambda one, raw=False: found.append(one))
    return found


@pytest.fixture(scope="module")
def planned() -> Iterator[None]:
    """Calls on a GPU are planned, whatever the environment says."""
    from hypatia_lab.kernels import loader, plans

    if missing := loader.cpp_missing():
        pytest.skip(missing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "DEVICES", {"cuda"})
        assert plans.available(), loader.BROKEN
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where there is a GPU, modules whose device it is are about it. What is once planned stays so in its process, and
    Python's way is then no longer taken: whoever plans comes last.
    """
    for item in items:
        if getattr(getattr(item, "module", None), "DEVICE", "") == "cuda":
            item.add_marker(pytest.mark.cuda)
    items.sort(key=lambda item: "planned" in getattr(item, "fixturenames", ()))


def pytest_collection_finish() -> None:
    """Whatever was imported until now stays: the collector of garbage need not go through it time and again."""
    gc.freeze()
