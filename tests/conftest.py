"""What several tests share: the committed book, built once a session; Triton's interpreter, and its compiler."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from forks import forks

from hypatia_lab import intervals, places
from hypatia_lab.book import build


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets two processes tell something, where a test is about what is told and not about how many it takes."""
    monkeypatch.setattr(intervals, "FEW", 2)


@pytest.fixture
def rehearsed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader's file is tried out in this process, which forgets it; a fresh one a case would be slow.

    What it declares is told in the same words.
    """
    from hypatia_lab import reader_kernel, variants
    from hypatia_lab.judged import rehearsal
    from hypatia_lab.profiler import sessions

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
def committed_book() -> Path:
    """Folder of the book built from the committed notebooks and records, as a reader gets it."""
    return build.build(output=places.BUILD / "committed" / "html", say=print).parent


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
def unmeasured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The optimizer knows no costs that were measured on this machine before."""
    monkeypatch.setattr("hypatia_lab.egraph.measure.cost_file", lambda device: tmp_path / "costs.json")


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
