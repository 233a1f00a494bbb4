"""A fleet: one job a GPU, and nothing is lost when a job is killed, put back into the queue or finds no room."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from command import call, refused
from synthetic import cell_line, run_line, said

from hypatia_lab import records
from hypatia_lab.fleet import overview, progress_line, submit
from hypatia_lab.fleet.collect import collect
from hypatia_lab.fleet.job import Programs, Work
from hypatia_lab.fleet.layout import Asked, FleetError, Layout, Submission, Told

PAGES = ("01_one", "02_two")
PROGRAM = (sys.executable, str(Path(__file__).parent / "fleet_stand_in.py"))
STAND_IN = Programs((*PROGRAM, "chip"), (*PROGRAM, "run"))
CHIPS = {"0": "h200-aaaaaa", "1": "h200-bbbbbb", "2": "h200-aaaaaa", "3": "h200-cccccc"}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Gives back the signals that submitit takes when it runs a job in this process."""
    kept = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGCONT, signal.SIGUSR2, signal.SIGINT)}
    yield
    for one, handler in kept.items():
        signal.signal(one, handler)


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """An empty fleet's folder; what the stand-in is told lies beside it."""
    told = tmp_path / "stand_in.json"
    told.write_text(json.dumps({"chips": CHIPS, "run": run_line(), "cells": [cell_line()]}))
    monkeypatch.setenv("HYPATIA_STAND_IN", str(told))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setattr(submit, "BEAT_S", 0.05)
    monkeypatch.setattr(submit, "ALL_TOLD_S", 0.5)
    return Layout(tmp_path / "fleet")


def ask(layout: Layout, count: int | None, place: str = "box", gpus: Sequence[str] = tuple(CHIPS)) -> list[Work]:
    """The attempts that ``fleet run`` would start, on this machine if nothing else is said."""
    asked, numbers = submit.ask(layout, Asked(PAGES, "quick", "cuda"), count)
    return submit.works(layout, asked, numbers, place, gpus, STAND_IN)


def measured(layout: Layout) -> Counter[str]:
    """What the stand-in has measured: machine and notebook, and how often."""
    return Counter((layout.folder.parent / "measured").read_text().splitlines())


def states(layout: Layout) -> list[str]:
    """The states of the jobs."""
    return [line.state for line in overview.lines(layout)]


def until(there: Callable[[], bool]) -> None:
    """Wait for what is to be there soon."""
    due = time.monotonic() + 20
    while not there():
        assert time.monotonic() < due
        time.sleep(0.02)


# ---------------------------------------------------------------- on one machine, in real processes


def test_a_killed_and_a_preempted_job_go_on_and_a_chip_that_is_held_is_not_measured_twice(layout, tmp_path):
    pytest.importorskip("submitit")
    pauses = [tmp_path / f"pause-{name}-02_two" for name in ("h200-aaaaaa", "h200-bbbbbb")]
    for pause in pauses:
        pause.touch()
    said: list[overview.Line] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as of what a shell runs in the background
    with records.held(layout.folder):
        box = threading.Thread(target=submit.box, args=(layout, ask(layout, 3), True, said.append))
        box.start()
        at = [tmp_path / f"at-{name}-02_two" for name in ("h200-aaaaaa", "h200-bbbbbb")]
        until(lambda: all(path.exists() and path.read_text() for path in at))
        until(lambda: sorted(states(layout)) == ["running", "running", "twice"])
        until(lambda: sorted(line.notebook for line in overview.lines(layout)) == ["", "02_two", "02_two"])
        (preempted, _, _), (killed, orphan, own) = (path.read_text().split() for path in at)
        assert own == "1"
        os.kill(int(killed), signal.SIGKILL)
        os.kill(int(preempted), signal.SIGUSR2)
        until(lambda: not Path(f"/proc/{orphan}").exists())
        until(lambda: states(layout)[1] == "failed")
        until(lambda: at[0].read_text().split()[:1] not in ([], [preempted]))  # it is at that notebook again
        for pause in pauses:
            pause.unlink()
        box.join(20)
    assert not box.is_alive()
    assert said[-1].state == "done"
    assert sorted(states(layout)) == ["done", "failed", "twice"]
    again = ask(layout, None)
    assert [work.number for work in again] == [1]
    with records.held(layout.folder):
        submit.box(layout, again, True, said.append)
    assert sorted(states(layout)) == ["done", "done", "twice"]
    assert measured(layout) == {f"{chip} {page}": 1 for chip in ("h200-aaaaaa", "h200-bbbbbb") for page in PAGES}
    assert ask(layout, None) == []


def run_one(folder: str) -> None:
    """What the process does that the test below interrupts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background have been told to ignore it
    layout = Layout(Path(folder))
    with records.held(layout.folder):
        submit.box(layout, ask(layout, 1), True, print)


def test_an_interrupt_ends_what_it_started_and_the_same_call_goes_on(layout, tmp_path):
    pytest.importorskip("submitit")
    pause = tmp_path / "pause-h200-aaaaaa-02_two"
    pause.touch()
    program = f"import test_fleet; test_fleet.run_one({str(layout.folder)!r})"
    printed = tmp_path / "printed"
    with printed.open("w") as said, subprocess.Popen([sys.executable, "-c", program], stderr=said) as process:
        at = tmp_path / "at-h200-aaaaaa-02_two"
        until(lambda: at.exists() and len(at.read_text().split()) == 3)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=60)
        finally:
            process.kill()
    assert printed.read_text().count("Traceback") == 1  # its own: nothing catches it here
    pids = [int(text) for text in at.read_text().split()[:2]]
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert states(layout) == ["failed"]
    pause.unlink()
    with records.held(layout.folder):
        submit.box(layout, ask(layout, None), True, lambda line: None)
    assert states(layout) == ["done"]
    assert measured(layout) == {f"h200-aaaaaa {page}": 1 for page in PAGES}


# ---------------------------------------------------------------- on Slurm, which is played


def test_an_array_on_slurm_measures_a_chip_once_and_its_failed_and_requeued_jobs_go_on(layout, tmp_path, monkeypatch):
    mocked = pytest.importorskip("submitit.slurm.test_slurm").mocked_slurm
    from submitit.core import submission, utils
    from submitit.slurm.slurm import SlurmJobEnvironment

    (tmp_path / "kill-h200-bbbbbb-02_two").touch()
    queue: dict[str, str] = {}
    monkeypatch.setattr(overview, "slurm_queue", lambda: queue)
    monkeypatch.setattr(SlurmJobEnvironment, "_requeue", lambda self, countdown: None)
    parameters = submit.slurm_parameters(["partition=gpu,time=30", "nodelist=a,b"], "cuda")
    with mocked() as mock:
        names = submit.slurm(layout, ask(layout, 4, "slurm", ()), parameters)
        script = (layout.logs / f"{names[0].split('_')[0]}_submission.sh").read_text()
        for flag in ("array=0-3%4", "gpus-per-node=1", "requeue", "nodelist=a,b", "partition=gpu", "time=30"):
            assert f"#SBATCH --{flag}\n" in script
        assert states(layout)[0] == "failed"  # Slurm does not know them
        queue |= dict.fromkeys(names, "PENDING")
        assert states(layout) == ["waiting"] * 4
        for name in names[:3]:
            with mock.job_context(name):
                if name == names[1]:
                    with pytest.raises(FleetError, match="SIGKILL at 02_two"):
                        submission.process_job(layout.logs)
                    del queue[name]
                else:
                    submission.process_job(layout.logs)
        layout.tell(3, Told(1, 1, "running", "h200-cccccc"))
        with mock.job_context(names[3]):
            environment = SlurmJobEnvironment()
            kept = environment.paths.submitted_pickle
            leftover = kept.with_suffix(".pkl.save_tmp")
            sent = utils.DelayedSubmission.load(kept)
            handler = submission.job_environment.SignalHandler(environment, environment.paths, sent)
            with pytest.raises(SystemExit):
                handler.checkpoint_and_try_requeue(signal.SIGUSR2)
        assert states(layout) == ["done", "failed", "twice", "preempted"]
        leftover.write_text("what a kill left half-written")
        with mock.job_context(names[3]):
            submission.process_job(layout.logs)
        assert not leftover.exists()
        (again,) = submit.slurm(layout, ask(layout, None, "slurm", ()), parameters)
        queue[again] = "PENDING"
        assert states(layout) == ["done", "waiting", "twice", "done"]
        with mock.job_context(names[1]):  # which Slurm had put into its queue again meanwhile
            submission.process_job(layout.logs)
        assert states(layout)[1] == "waiting"
        with mock.job_context(again):
            submission.process_job(layout.logs)
    assert states(layout) == ["done", "done", "twice", "done"]
    assert measured(layout) == {f"{chip} {page}": 1 for chip in set(CHIPS.values()) for page in PAGES}


@pytest.mark.parametrize(
    ("texts", "cause"), [(["partitoin=gpu"], "'partition'"), (["gpu"], "partition=gpu"), (["time=2:00:00"], "2:00:00")]
)
def test_a_wrong_parameter_of_slurm_is_named(texts, cause):
    pytest.importorskip("submitit")
    with pytest.raises(FleetError, match=cause):
        submit.slurm_parameters(texts, "cuda")


def test_a_gpu_is_asked_for_once():
    pytest.importorskip("submitit")
    assert submit.slurm_parameters(["time=5"], "cuda")["gpus_per_node"] == 1
    assert "gpus_per_node" not in submit.slurm_parameters(["gres=gpu:h100:1"], "cuda")
    assert "gpus_per_node" not in submit.slurm_parameters(["time=5"], "cpu")


def test_what_slurm_says_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert overview.slurm_queue() is None
    assert overview.slurm_accounts(["7_1"]) == {}
    answers = {"squeue": "7_0|RUNNING\\n7_1|PENDING\\n8|COMPLETING", "sacct": "7_1|CANCELLED by 0\\n9|OUT_OF_MEMORY"}
    for name, told in answers.items():
        (tmp_path / name).write_text(f"#!/bin/sh\nprintf '{told}\\n'\n")
        (tmp_path / name).chmod(0o755)
    assert overview.slurm_queue() == {"7_0": "RUNNING", "7_1": "PENDING", "8": "COMPLETING"}
    assert overview.slurm_accounts(["7_1", "9"]) == {"7_1": "CANCELLED", "9": "OUT_OF_MEMORY"}
    (tmp_path / "sacct").write_text("#!/bin/sh\necho Slurm accounting storage is disabled >&2\nexit 1\n")
    assert overview.slurm_accounts(["9"]) == {}


# ---------------------------------------------------------------- how a job stands


def stand(layout: Layout, place: str, name: str, state: str, machine: str = "h200-aaaaaa", number: int = 0) -> None:
    """A job that was submitted and said ``state`` ("": nothing) before its process was gone."""
    if layout.asked() is None:
        layout.ask(Asked(PAGES, "quick", "cuda"))
    layout.submit(number, Submission(1, 1, place, name))
    if state:
        layout.tell(number, Told(1, 1, state, machine))


@pytest.mark.parametrize(
    ("place", "name", "told", "queue", "state", "idle"),
    [
        ("slurm", "7_0", "", {"7_0": "PENDING"}, "waiting", False),
        ("slurm", "7_0", "", {"7_0": "RUNNING"}, "running", False),
        ("slurm", "7_0", "", {}, "failed", True),
        ("slurm", "", "", {}, "waiting", True),  # fleet run was killed while it submitted
        ("slurm", "7_0", "running", {"7_0": "RUNNING"}, "running", False),  # on a file system without locks
        ("slurm", "7_0", "running", {"7_0": "PENDING"}, "preempted", False),
        ("slurm", "7_0", "preempted", {"7_0": "REQUEUED"}, "preempted", False),
        ("slurm", "7_0", "running", {}, "failed", True),
        ("slurm", "7_0", "running", None, "preempted", False),  # asked where there is no Slurm
        ("slurm", "7_0", "failed", {"7_0": "COMPLETING"}, "failed", True),
        ("slurm", "7_0", "failed", {"7_0": "PENDING"}, "preempted", False),  # scontrol requeue ended what it ran
        ("slurm", "7_0", "done", {"7_0": "COMPLETING"}, "done", True),
        ("box", "99", "", {}, "waiting", True),
        ("box", "99", "running", {}, "failed", True),
        ("box", "99", "preempted", {}, "preempted", True),
        ("box", "99", "twice", {}, "waiting", True),  # whoever held its chip then got another one
    ],
)
def test_a_job_stands_as_its_file_its_lock_and_slurm_say(layout, monkeypatch, place, name, told, queue, state, idle):
    stand(layout, place, name, told)
    monkeypatch.setattr(overview, "slurm_queue", lambda: queue)
    monkeypatch.setattr(overview, "slurm_accounts", lambda names: dict.fromkeys(names, "TIMEOUT"))
    (line,) = overview.lines(layout)
    assert (line.state, line.idle) == (state, idle)
    assert ("TIMEOUT" in line.reason) == (place == "slurm" and line.reason.startswith(overview.SILENT))
    with records.held(layout.job(0)):
        (line,) = overview.lines(layout)
        assert line.state in ("running", told, state)


def test_a_fleet_that_is_asked_for_something_else_says_so_and_overwrite_starts_it_over(layout):
    stand(layout, "box", "1", "done")
    stand(layout, "box", "2", "failed", number=1)
    for other in (Asked(PAGES, "seed", "cuda"), Asked((), "quick", "cuda"), Asked(PAGES, "quick", "cpu")):
        with pytest.raises(FleetError, match="--folder"):
            submit.ask(layout, other, None)
    same = Asked(PAGES, "quick", "cuda")
    assert submit.ask(layout, same, None)[1] == [1]
    assert submit.ask(layout, same, 4)[1] == [1, 2, 3]
    over = Asked(PAGES, "quick", "cuda", overwrite=True)
    layout.tell(1, Told(1, 1, "running"))
    with records.held(layout.job(1)), pytest.raises(FleetError, match="let it end"):
        submit.ask(layout, over, None)
    asked, numbers = submit.ask(layout, over, None)
    assert (asked.overwrite, asked.round, numbers) == (True, 2, [0, 1])
    layout.submit(0, Submission(2, 2, "box", "3"))
    layout.tell(0, Told(2, 2, "done", "h200-aaaaaa"))
    for again in (over, same):  # interrupted, it goes on
        assert submit.ask(layout, again, None) == (asked, [1])
    layout.submit(1, Submission(2, 2, "box", "4"))
    layout.tell(1, Told(2, 2, "twice", "h200-aaaaaa"))
    assert submit.ask(layout, same, None)[1] == []
    assert submit.ask(layout, over, None)[0].round == 3


def test_a_damaged_file_of_a_fleet_is_named(layout):
    stand(layout, "box", "1", "done")
    (layout.job(0) / "state.json").write_text("{")
    assert states(layout) == ["waiting"]
    (layout.folder / "fleet.json").write_text('{"preset": 3}')
    with pytest.raises(FleetError, match="damaged"):
        overview.lines(layout)


def test_a_job_says_what_failed_and_what_else_it_measured_is_kept(layout, tmp_path):
    pytest.importorskip("submitit")
    (tmp_path / "fail-h200-aaaaaa-01_one").touch()
    with records.held(layout.folder):
        submit.box(layout, ask(layout, 1), True, lambda line: None)
    (line,) = overview.lines(layout)
    assert (line.state, line.reason) == ("failed", "01_one: RuntimeError: no luck")
    assert "no luck" in Path(line.log).read_text()
    assert measured(layout) == {"h200-aaaaaa 02_two": 1}


# ---------------------------------------------------------------- bringing records home


def put(root: Path, machine: str, variants: tuple[str, ...] = ("eager",), chip: str = "", page: str = "01_one") -> Path:
    """A record of ``machine`` below ``root``, of so many cells."""
    facts = {"name": "GPU"} | ({"chip": chip} if chip else {})
    run = run_line(machine=machine, experiment=page, facts=facts)
    return records.write(root, run, [cell_line(variant=name) for name in variants], overwrite=True)


def outcomes(layout: Layout, into: Path) -> dict[str, str]:
    """What was collected, and what became of it."""
    return {item.what: item.outcome for item in collect(layout, into)}


def test_finished_machines_are_collected_once_and_what_is_there_is_never_made_less(layout, tmp_path):
    into = tmp_path / "book"
    stand(layout, "box", "1", "done")
    stand(layout, "box", "2", "twice", number=1)
    stand(layout, "box", "3", "failed", "h200-bbbbbb", number=2)
    own = put(layout.records, "h200-aaaaaa", chip="aaaaaa")
    (own.parent.parent / "traces").mkdir()
    (own.parent.parent / "traces" / "one.json.gz").write_bytes(b"trace")
    put(layout.records, "h200-bbbbbb", chip="bbbbbb")
    assert outcomes(layout, into) == {"h200-aaaaaa/01_one": "taken", "h200-bbbbbb": "left"}
    assert records.load(into)[0].digest == records.load(layout.records)[0].digest
    assert (into / "h200-aaaaaa" / "traces" / "one.json.gz").read_bytes() == b"trace"
    assert sorted(path.name for path in into.iterdir()) == ["h200-aaaaaa"]
    assert outcomes(layout, into)["h200-aaaaaa/01_one"] == "kept"
    there = put(into, "h200-aaaaaa", ("eager", "compile"), chip="aaaaaa").read_text()
    assert outcomes(layout, into)["h200-aaaaaa/01_one"] == "kept"
    assert said(records.leading(into / "h200-aaaaaa", "01_one")).read_text() == there
    put(layout.records, "h200-aaaaaa", ("eager", "compile", "naive"), chip="aaaaaa")
    put(layout.records, "h200-aaaaaa", chip="aaaaaa", page="02_two")
    put(into, "h200-aaaaaa", ("eager", "compile"), chip="aaaaaa", page="02_two")
    both = {"h200-aaaaaa/01_one": "taken", "h200-aaaaaa/02_two": "kept"}
    assert outcomes(layout, into) == both | {"h200-bbbbbb": "left"}
    assert [len(record.cells) for record in records.load(into)] == [3, 2]


def test_a_chip_under_another_name_a_mixed_folder_and_a_damaged_record_are_left_with_the_reason(layout, tmp_path):
    into = tmp_path / "book"
    put(into, "h200", chip="aaaaaa")
    for number, machine in enumerate(("h200-aaaaaa", "h200-bbbbbb", "h200-cccccc", "h200-dddddd")):
        stand(layout, "box", str(number), "done", machine, number)
    put(layout.records, "h200-aaaaaa", chip="aaaaaa")
    put(layout.records, "h200-bbbbbb", chip="bbbbbb")
    put(layout.records, "h200-bbbbbb", chip="cccccc", page="02_two")
    path = put(layout.records, "h200-cccccc", chip="cccccc")
    path.write_text(path.read_text()[:-40])
    (layout.records / "h200-dddddd").mkdir()
    found = {item.what: item for item in collect(layout, into)}
    assert {item.outcome for item in found.values()} == {"left"}
    for machine, reason in {"a": "as h200", "b": "several chips", "c": str(path), "d": "no record"}.items():
        assert reason in found[f"h200-{machine * 6}"].reason
    assert [records.place(path)[0] for path in records.files(into)] == ["h200"]


# ---------------------------------------------------------------- the command


def test_status_and_collect_tell_people_and_programs_the_same(layout, tmp_path):
    status = ("fleet", "status", "--folder", layout.folder)
    collected = ("fleet", "collect", "--folder", layout.folder, "--into", tmp_path / "book")
    assert "fleet run" in refused(*status)
    stand(layout, "box", "1", "done")
    stand(layout, "box", "2", "running", "h200-bbbbbb", number=1)
    put(layout.records, "h200-aaaaaa")
    said = call(*status).out
    assert all(text in said for text in ("2 jobs: 1 done, 1 failed", "h200-bbbbbb", overview.SILENT))
    assert all(len(line) <= 100 for line in said.splitlines() if str(layout.folder) not in line)
    assert [line["state"] for line in json.loads(call(*status, "--json").out)] == ["done", "failed"]
    assert [item["outcome"] for item in json.loads(call(*collected, "--json").out)] == ["taken"]
    assert "kept: h200-aaaaaa/01_one" in call(*collected).out


@pytest.mark.parametrize("given", [[], ["--box", "--slurm", "time=5"], ["--slurm", "time=5", "--one-after-the-other"]])
def test_a_fleet_needs_to_know_where(tmp_path, given):
    pytest.importorskip("submitit")
    assert refused("fleet", "run", *given, "--folder", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_without_submitit_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("hypatia_lab.paths.find_spec", lambda name: None)
    assert "[fleet]" in refused("fleet", "run", "--box", "--folder", tmp_path)


@pytest.mark.parametrize("line", ["", "[1/2]", "[1/2] 01_one: no luck", "failed: 01_one", "x [1/2] 01_one"])
def test_only_a_step_is_read_as_one(line):
    assert progress_line.read(line) is None
    step = progress_line.Step(3, 14, "02_naive_vs_cublas")
    assert progress_line.read(f"{step}\n") == step
