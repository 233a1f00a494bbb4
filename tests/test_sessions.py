"""Fresh processes and their ends: each follows the script of ``session_child.py``."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from hypatia_lab import machine
from hypatia_lab.bench import sessions
from hypatia_lab.bench.sessions import Casualty, SessionError

CHILD = "session_child"
HERE = Path(__file__).parent


class Session:
    """Runs the child over ``steps`` and keeps its events."""

    def __init__(self, folder: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self.hear = self.events.append
        self.log = folder / "log.txt"
        self.log.touch()

    def __call__(self, *steps: tuple[str, Any], module: str = CHILD, silence_s: float = 30.0, fresh: Any = None) -> Any:
        plan = {"steps": steps}
        return sessions.run_session(module, plan, self.log, on_event=self.hear, silence_s=silence_s, fresh=fresh)

    def pids(self) -> list[int]:
        """The numbers of the processes that told theirs: there must be some."""
        found = [event["pid"] for event in self.events if "pid" in event]
        assert found
        return found


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A child that follows a script."""
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
    return Session(tmp_path)


def alive(pid: int) -> bool:
    """Whether process ``pid`` still runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int, seconds: float = 5.0) -> bool:
    """Whether process ``pid`` ends within ``seconds``."""
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def test_a_session_is_a_fresh_process_that_tells_in_order_and_prints_to_the_log(session, capfd):
    value = {"shape": [1, 2], "text": "µs ≤ 5\nnext"}
    assert session(("print", "one"), ("begin", [0, "a"]), ("tell", value), ("tell", 2)) is None
    first = session.events[-1]["pid"]
    assert [event["event"] for event in session.events] == ["begin", "told", "told"]
    assert (session.events[1]["value"], session.events[1]["torch"]) == (value, False)
    assert session(("print", "two"), ("tell", 3)) is None
    assert len({first, session.events[-1]["pid"], os.getpid()}) == 3
    assert session.log.read_text() == "one\ntwo\n"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("line", ["", "[]", "7", '{"kind": "end"}', "[" * 100_000])
def test_a_child_that_says_what_is_no_event_has_crashed(session, line):
    found = session(("begin", 1), ("say", line))
    assert (found.what, found.status) == (1, "crashed")
    assert [event["event"] for event in session.events] == ["begin"]


@pytest.mark.parametrize(
    ("end", "told"), [("segfault", "signal SIGSEGV"), ("exit", "exit status 3"), ("raise", "exit status 1")]
)
def test_a_crash_names_what_had_begun_last(session, end, told):
    found = session(("begin", [0, "a"]), ("begin", [0, "b"]), ("half", None), (end, 3))
    assert found == Casualty([0, "b"], "crashed", f"the process died ({told})")
    assert [event["what"] for event in session.events] == [[0, "a"], [0, "b"]]


def test_silence_is_a_timeout_and_leaves_no_process_behind(session):
    """It may take longer as long as it tells."""
    telling = [step for n in range(3) for step in (("tell", n), ("sleep", 0.5))]
    found = session(*telling, ("helper", 60), ("begin", [0, "b"]), ("sleep", 60), silence_s=1.2)
    assert (found.what, found.status) == ([0, "b"], "timeout")
    assert len(session.events) == 5
    assert all(map(gone, session.pids()))


@pytest.mark.parametrize(
    ("steps", "module", "told"),
    [
        ([("print", "hello"), ("raise", "no such device")], CHILD, "RuntimeError: no such device"),
        ([("sleep", 60)], CHILD, "1 s"),
        ([], "no_such_module", "no_such_module"),
    ],
)
def test_a_child_that_fails_before_it_began_is_an_error_with_its_last_words(session, monkeypatch, steps, module, told):
    monkeypatch.setattr(sessions, "START_S", 1.0)
    with pytest.raises(SessionError, match=told):
        session(*steps, module=module, silence_s=1.0)


def test_what_a_process_takes_to_start_is_no_silence(session):
    """However little is allowed later: a busy machine imports for seconds."""
    assert session(("sleep", 1.5), ("begin", [0, "a"]), silence_s=0.5) is None


def test_a_child_that_ends_before_it_is_told_anything_is_an_error_too(session, monkeypatch):
    real = subprocess.Popen

    def ended(*given: Any, **more: Any) -> Any:
        child = real(*given, **more)
        child.wait()
        return child

    monkeypatch.setattr(subprocess, "Popen", ended)
    with pytest.raises(SessionError, match="no_such_module"):
        session(module="no_such_module")


def test_processes_wait_for_their_plans_and_those_that_nobody_needs_are_ended(session):
    modules = [CHILD, CHILD, CHILD, "no_such_module"]
    with sessions.waiting(modules, [{}, {"WORD": "second"}, {}, {}], session.log) as fresh:
        pids = [one.process.pid for one in fresh]
        assert all(map(alive, pids[:3]))
        for place in (1, 0):
            assert session(("begin", [0, "a"]), ("tell", place), ("exit", 3), fresh=fresh[place]) is not None
        assert session.pids() == [pids[1], pids[0]]
        with pytest.raises(SessionError, match="no_such_module"):
            session(fresh=fresh[3])
        assert alive(pids[2])
    assert all(map(gone, pids))


def test_who_is_told_ahead_gets_ready_and_waits_for_its_turn(session):
    with sessions.waiting([CHILD, CHILD], [{}, {}], session.log) as fresh:
        for one in fresh:
            one.tell({"steps": [("wait", None), ("tell", 1)]})
        assert all(one.ready.wait(20) for one in fresh)
        time.sleep(0.2)
        assert [one.lines.qsize() for one in fresh] == [1, 1]
        assert session(fresh=fresh[1]) is None
        assert [event["event"] for event in session.events] == ["ready", "told"]
        assert fresh[0].lines.qsize() == 1


def test_what_a_child_says_last_is_heard_although_it_has_ended_meanwhile(session):
    with sessions.waiting([CHILD], [{}], session.log) as (fresh,):

        class Slow(queue.Queue):
            def get(self, *given: Any, **more: Any) -> Any:
                if fresh.process.poll() is None:
                    fresh.process.wait()
                    raise queue.Empty
                return super().get(*given, **more)

        fresh.lines = Slow()
        assert session(("tell", 1), ("tell", 2), fresh=fresh) is None
    assert len(session.events) == 2


def test_who_lives_on_and_holds_the_childs_pipe_holds_nothing_up(session):
    """Neither a helper that it forked, nor one that left its process group."""
    start = time.monotonic()
    found = session(("begin", [0, "a"]), ("leave", 30), ("fork", 3), ("segfault", None), silence_s=1.5)
    assert found == Casualty([0, "a"], "crashed", "the process died (signal SIGSEGV)")
    assert session(("begin", [0, "a"]), ("leave", 30)) is None
    assert time.monotonic() - start < 15
    for pid in session.pids():
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("after", [("exit", 139), ("segfault", None), ("sleep", 60), ("thread", 60)])
def test_what_becomes_of_a_child_that_has_said_all_is_nobodys_fault(session, monkeypatch, after):
    monkeypatch.setattr(sessions, "LEAVE_S", 0.2)
    assert session(("begin", [0, "a"]), ("end", None), after) is None
    assert [event["event"] for event in session.events] == ["begin"]


def test_a_child_that_says_no_more_and_lives_on_is_a_timeout_of_what_it_had_begun(session, monkeypatch):
    monkeypatch.setattr(sessions, "LEAVE_S", 0.5)
    found = session(("begin", [0, "a"]), ("thread", 60), ("close", None))
    assert (found.what, found.status) == ([0, "a"], "timeout")


def test_modules_in_the_current_folder_stand_in_for_nobodys(session, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    for name in ("random", "statistics", "hypatia_lab"):
        (here / f"{name}.py").write_text("raise RuntimeError('the reader's own')")
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}{HERE}")  # an empty entry is the current folder, too
    assert session(("lab", None)) is None
    assert [event["value"] for event in session.events] == [sessions.__file__], "not the same hypatia_lab"


def test_an_interrupt_kills_the_child_and_passes_on(session, monkeypatch):
    def interrupt(event: dict[str, Any]) -> None:
        session.events.append(event)
        if event["event"] == "told":
            raise KeyboardInterrupt

    monkeypatch.setattr(session, "hear", interrupt)
    with pytest.raises(KeyboardInterrupt):
        session(("helper", 60), ("tell", 1), ("sleep", 60))
    assert len(session.events) == 2
    assert all(map(gone, session.pids()))


PARENT = """
import pathlib
from hypatia_lab.bench import sessions
plan = {'steps': [['tell', 1], ['sleep', 60]]}
tell = lambda event: print(event['pid'], flush=True)
sessions.run_session('session_child', plan, pathlib.Path('log'), on_event=tell, silence_s=60)
"""


def test_a_child_does_not_outlive_a_parent_that_is_killed(tmp_path, session):
    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.kill()
    assert gone(child)


@pytest.mark.parametrize(("cores", "free_gib", "room"), [(16, 3.5, 3), (4, 100, 5), (4, 1.5, 0), (2, 100, 0)])
def test_as_many_get_ready_side_by_side_as_memory_lets_where_there_are_cores(monkeypatch, cores, free_gib, room):
    monkeypatch.setattr(machine, "cores", lambda: cores)
    monkeypatch.setattr(machine, "gpus", lambda: 2)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free_gib * 2**30))
    assert sessions.room(5) == room
