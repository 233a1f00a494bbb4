"""Programs from outside: what a program file may declare, what its programs may do, and what is left of them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import call, refused
from synthetic import recorded, run_line
from tabled import tabled, tables

from hypatia_lab import check, paths, records, results, variants
from hypatia_lab.bench import composer, details, fence, sessions
from hypatia_lab.experiments import Probe
from hypatia_lab.probes import program
from hypatia_lab.probes.probe import Ended
from hypatia_lab.strangers import programs
from hypatia_lab.strangers.programs import ProgramError
from hypatia_lab.workloads import Workload

WORK = Workload("linear_relu", (4, 6, 8))
COMMIT = "0123456789" * 4

OUTSIDE = Path(__file__).parent / "outside"
TOOL, FILE = ((OUTSIDE / name).read_text(encoding="utf-8") for name in ("tool.py", "stand_in.py"))


@pytest.fixture(autouse=True)
def found_again(registry: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Temporary folders are made where a test can look for them."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))


def blob(text: str) -> str:
    """What git calls a file of this text."""
    return hashlib.sha1(f"blob {len(text.encode())}\0{text}".encode()).hexdigest()


def stand_in(folder: Path, *changes: tuple[str, str]) -> Path:
    """The program file in ``folder`` with texts replaced, beside the tool that it runs and its pins."""
    (folder / "upstream").mkdir(exist_ok=True)
    (folder / "upstream" / "tool.py").write_text(TOOL)
    (folder / "stand_in.pins").write_text(f"someone/something {COMMIT}\n{blob(TOOL)}  tool.py\n")
    text = FILE
    for old, new in changes:
        begun, rest, _ = old.partition("…")  # and all that follows
        assert begun in text, begun
        text = text[: text.index(begun)] + new if rest else text.replace(old, new)
    path = folder / "stand_in.py"
    path.write_text(text)
    return path


# ---------------------------------------------------------------- what a file may declare


def test_pins_are_what_git_says(tmp_path):
    (found,) = programs.load(stand_in(tmp_path)).provenance
    asked = ["git", "hash-object", "--no-filters", tmp_path / "upstream" / "tool.py"]
    files = {"tool.py": subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()}
    about = {"repository": "someone/something", "commit": COMMIT, "licence": "MIT"}
    assert found.record() == about | {"files": files}


def refusal(path: Path) -> str:
    """The one line with which the program file at ``path`` is refused."""
    with pytest.raises(ProgramError) as caught:
        programs.load(path)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{path}:")
    return line


def test_a_file_that_differs_from_its_pin_is_named_with_both_ids_and_nothing_of_it_runs(tmp_path):
    path = stand_in(tmp_path, (PROGRAM, PROGRAM + "\n(HERE / 'ran').touch()"))
    tool = tmp_path / "upstream" / "tool.py"
    tool.write_text(TOOL + "# better\n")
    line = refusal(path)
    assert all(said in line for said in (str(tool), blob(TOOL), blob(TOOL + "# better\n")))
    tool.unlink()
    assert re.search(f"{tool}.*someone/something|someone/something.*{tool}", refusal(path))
    assert not (tmp_path / "ran").exists()


PROGRAM = 'example = lab.program("author_example", "a stand-in", [upstream])'


@tabled("programs", "no_good")
def test_a_file_that_is_no_good_is_told_why_in_one_line(tmp_path, old, new, named):
    assert named in refusal(stand_in(tmp_path, (old, new)))


@tabled("programs", "pins")
def test_pins_that_are_none_are_refused_by_name(tmp_path, text):
    (tmp_path / "bad.pins").write_text(text)
    with pytest.raises(ProgramError, match=r"bad\.pins: "):
        programs.Provenance.pinned(tmp_path / "bad.pins", root=tmp_path, licence="MIT")


@tabled("programs", "groups")
def test_groups_are_tried_out_before_anything_runs(tmp_path, old, new, named):
    path = stand_in(tmp_path, (old, new))
    line = refused("run", "--program", path, "--device", "cpu", "--records", tmp_path / "records")
    assert str(path) in line
    assert named in line
    assert not (tmp_path / "records").exists()


@tabled("programs", "refused")
def test_what_cannot_be_run_is_told_before_anything_is(tmp_path, monkeypatch, given, named):
    (tmp_path / "twin.py").write_text(stand_in(tmp_path).read_text())
    monkeypatch.chdir(tmp_path)
    assert named in refused("run", *given, "--records", "records", "--device", "cpu")
    assert not (tmp_path / "records").exists()


# ---------------------------------------------------------------- what a program may do


@pytest.fixture(params=["landlock", "snapshot"])
def fenced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the kernel refuses what is written outside; otherwise it is looked for afterwards."""
    wanted = request.param == "landlock"
    if wanted and not fence.abi():
        pytest.skip("this kernel has no Landlock")
    monkeypatch.setattr(program, "FENCE", wanted)
    return wanted


@contextmanager
def shell(folder: Path, limit_s: float = 30.0, emit: Any = lambda *given, **more: None) -> Iterator[program.Shell]:
    """What a command has to work with, beside the tool in ``folder``; nothing of it is left."""
    stand_in(folder)
    scratch = folder / "parts" / "scratch" / "0"
    scratch.mkdir(parents=True)
    due = time.monotonic() + limit_s
    here = program.Shell(WORK, "author_v1", "cpu", 0, scratch, due, (str(folder / "upstream"),), emit)
    yield here
    here.close()
    assert left(folder, 0) == []


def test_what_is_switched_reaches_the_program_and_the_record(tmp_path):
    code = "import os; print(os.environ.get('OLD_WAY'))"
    with shell(tmp_path) as plain:
        switched = replace(plain, switches={"OLD_WAY": "1"})
        assert [one.run([sys.executable, "-c", code]).text for one in (plain, switched)] == ["None\n", "1\n"]
        figures = [one.figure("time", 2.0, "s") for one in (plain, switched)]
    events = [{"event": "detail", **figure} for figure in figures]
    lines = details.merge(Probe("program", WORK, "author_v1", "one", 1), [events])
    path = records.write(tmp_path / "store", run_line(processes=1), [], lines)
    assert [line.get("switches") for line in records.load_file(path).details] == [None, {"OLD_WAY": "1"}]


def tool(folder: Path, *given: object) -> list[Any]:
    return [sys.executable, folder / "upstream" / "tool.py", *given]


def alive(folder: Path) -> list[str]:
    """Command lines of the living processes that were started with ``folder``'s temporary folder, and what they wait
    for in the kernel."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder / "tmp").encode() in (place / "environ").read_bytes() and int(place.name) != os.getpid():
                line = (place / "cmdline").read_text().replace("\0", " ")
                found += [f"{line}({(place / 'wchan').read_text()})"] if line else []
        except OSError:
            continue
    return found


def soon(there: Callable[[], bool], seconds: float) -> bool:
    """Whether it is so within so many seconds, and ten looks a second: a machine may stand still meanwhile."""
    due, looks = time.monotonic() + seconds, 0
    while not (found := there()) and (time.monotonic() < due or looks < 10 * seconds):
        time.sleep(0.02)
        looks += 1
    return found


def left(folder: Path, wait_s: float = 60.0) -> list[str]:
    """Processes of a program and folders made for it that are left, if need be after a moment."""

    def found() -> list[str]:
        return [*alive(folder), *map(str, (folder / "tmp").glob("hypatia-*"))]

    soon(lambda: not found(), wait_s)
    return found()


def ended(folder: Path, *given: object, limit_s: float = 30.0, **more: Any) -> Ended:
    """How a command ends that runs the tool."""
    with shell(folder, limit_s) as here, pytest.raises(Ended) as caught:
        here.run(tool(folder, *given), **more)
    assert "\n" not in caught.value.reason
    return caught.value


def test_a_program_runs_in_an_empty_folder_that_is_gone_afterwards(tmp_path, fenced):
    with shell(tmp_path) as here:
        out = here.run(tool(tmp_path), env={"PYTHONUNBUFFERED": "1"})
        assert "empty: True stdin: ''\nwithin: True\n" in out.text
        assert out.number(r"Fused: +([0-9.,]+) ms", "time") == 1234.5
        assert (out.folder / "answer.txt").read_text() == "42"
        assert 0 < out.seconds < 30
        asked = "import os; print(os.environ['HOME'], os.environ['PYTHONDONTWRITEBYTECODE'])"
        assert here.run([sys.executable, "-c", asked], env={"HOME": "/elsewhere"}).text == "/elsewhere 1\n"
    assert [path.name for path in (tmp_path / "upstream").iterdir()] == ["tool.py"]


@pytest.mark.parametrize(
    ("given", "how", "last"), [("dies", "exit status 1", "cannot go on"), ("segfaults", "SIGSEGV", "so far so good")]
)
def test_a_program_that_dies_says_how(tmp_path, given, how, last):
    end = ended(tmp_path, given)
    assert end.status == "crashed"
    assert all(told in end.reason for told in (how, repr(last)))


def test_a_program_that_hangs_is_stopped_with_all_that_it_started(tmp_path, fenced):
    end = ended(tmp_path, "hangs", limit_s=0.5)
    told = re.search(r"([\d.]+) s.*'pids", end.reason)
    assert told
    assert (end.status, 0 < float(told[1]) <= 0.5) == ("timeout", True)  # what was left of the limit when it began


def test_what_a_program_leaves_running_or_locked_is_removed(tmp_path, fenced):
    with shell(tmp_path) as here:
        here.run(tool(tmp_path, "leaves"))


def test_what_is_written_outside_is_refused_or_told(tmp_path, fenced):
    target = tmp_path / "upstream" / "left"
    end = ended(tmp_path, "writes", target)
    assert str(target) in end.reason
    assert (end.status, target.exists()) == (("crashed", False) if fenced else ("wrong", True))


def test_a_program_that_swallows_the_refusal_has_written_nothing_or_is_found_out(tmp_path, fenced):
    target = tmp_path / "upstream" / "tool.py"
    if fenced:
        with shell(tmp_path) as here:
            here.run(tool(tmp_path, "ignores", target))
        assert target.read_text() == TOOL
    else:
        assert str(target) in ended(tmp_path, "ignores", target).reason


def test_devices_shared_memory_and_declared_places_may_be_written_to(tmp_path, fenced):
    cache, shared = tmp_path / "upstream" / "cache", Path("/dev/shm") / f"hypatia-{os.getpid()}"
    code = f"open('/dev/null', 'w').write('x'); open('{shared}', 'w').write('x'); import os; os.unlink('{shared}')"
    with shell(tmp_path) as here:
        cache.mkdir()
        here.run([sys.executable, "-c", code])
        here.run(tool(tmp_path, "writes", cache / "new"), writes=[cache])
    assert (cache / "new").read_text() == "x"


def test_a_program_that_cannot_be_started_is_told_so(tmp_path):
    with shell(tmp_path) as here:
        with pytest.raises(Ended, match="/no/such/program"):
            here.run(["/no/such/program"])
        with pytest.raises(Ended, match="/no/such/place"):
            here.run(tool(tmp_path), writes=["/no/such/place"])


def test_a_program_that_prints_without_end_is_stopped_after_signs_of_life(tmp_path):
    heard = set[str]()
    endless = [sys.executable, "-c", "while True: print('x' * 1_000_000)"]
    with shell(tmp_path, emit=lambda event, **more: heard.add(event)) as here, pytest.raises(Ended, match="64 MiB"):
        here.run(endless)
    assert heard == {"alive"}


PARENT = """
import os, sys, time
from pathlib import Path
from hypatia_lab.probes import program

here = program.Shell(None, "", "cpu", 0, Path(sys.argv[1]), time.monotonic() + 60, (), lambda *given, **more: None)
here.run([sys.executable, *sys.argv[2:]])
"""


def test_when_whoever_asked_is_killed_nothing_is_left(tmp_path):
    with shell(tmp_path):
        pass
    given = [str(tmp_path / "parts" / "scratch" / "0"), str(tmp_path / "upstream" / "tool.py"), "hangs"]
    with subprocess.Popen([sys.executable, "-c", PARENT, *given]) as parent:
        assert soon(lambda: sum("sleep 600" in line for line in alive(tmp_path)) >= 2, 20)
        parent.send_signal(signal.SIGKILL)
    assert left(tmp_path) == []


def test_a_keeper_whose_signs_of_life_nobody_hears_leaves_nothing_either(tmp_path):
    with shell(tmp_path):
        pass
    plan = {"command": [*map(str, tool(tmp_path, "hangs"))], "env": {}, "limit_s": 60.0, "fence": False}
    plan |= {"writes": [], "watched": [], "spared": []}
    hears, says = os.pipe()
    keeper = subprocess.Popen(
        sessions.python("hypatia_lab.bench.fence"), stdin=subprocess.PIPE, stdout=says, stderr=subprocess.DEVNULL
    )
    assert keeper.stdin is not None
    try:
        for end in (hears, says):
            os.close(end)
        keeper.stdin.write(json.dumps(plan).encode() + b"\n")
        keeper.stdin.flush()
        assert soon(lambda: sum("sleep 600" in line for line in alive(tmp_path)) >= 2, 20)
        time.sleep(2 * fence.BEAT_S)
        keeper.stdin.close()
        assert left(tmp_path, 10) == []
    finally:
        keeper.kill()
        keeper.wait()


def test_a_figure_that_is_not_printed_or_is_none_says_so():
    out = program.Output("Fused: nan ms\nNaive: fast\nall done\n", 1.0, Path())
    with pytest.raises(Ended, match="eager time.*'all done'") as caught:
        out.number(r"Eager: ([0-9.]+)", "eager time")
    assert caught.value.status == "wrong"
    with pytest.raises(Ended, match="'fast'.*naive time"):
        out.number(r"Naive: (\w+)", "naive time")
    assert out.number(r"^Fused: (\w+) ms$", "fused time") != 0


def test_a_figure_that_no_record_can_hold_is_refused(tmp_path):
    wrong: dict[str, Any] = {"unit": "furlong", "dtype": "float8", "variant": "No!", "shape": (1, 2), "operation": "?"}
    with shell(tmp_path) as here:
        for name, value in wrong.items():
            with pytest.raises(ValueError, match=re.escape(str(value))):
                here.figure("time", 1.0, **{name: value})
        for value in (float("nan"), 1e301):
            with pytest.raises(Ended):
                here.figure("time", value)
        figure = here.figure("time", 2, "s", operation="relu", shape=(3, 4), dtype="float16", variant="theirs")
        assert figure["value"] == 2.0
        rate = here.figure("rate", 1.5, "TB/s")
        assert (rate["value"], rate["unit"]) == (1.5e12, "B/s")


# ---------------------------------------------------------------- measured, and recorded


def test_a_run_that_was_interrupted_goes_on_and_records_what_failed_beside_the_rest(tmp_path, monkeypatch):
    path, store = stand_in(tmp_path), tmp_path / "records"
    (tmp_path / "runs").touch()
    records.write(store, run_line(experiment="ceilings"), [])
    # Whoever works on the tree may change it meanwhile.
    monkeypatch.setattr(composer.source_tree, "commit", lambda: ("0" * 40, False))
    monkeypatch.setitem(composer.PROCESSES, "quick", 1)
    real, started = sessions.run_session, []

    def interrupted(module: str, *given: Any, on_event: Any, **more: Any) -> Any:
        def hear(event: Any) -> None:
            on_event(event)
            if len(started) == 2 and event["event"] == "begin" and event["subject"] == 1:
                raise KeyboardInterrupt

        started.append(module)
        return real(module, *given, on_event=hear, **more)

    monkeypatch.setattr(sessions, "run_session", interrupted)
    given = ["run", "--program", str(path), "--device", "cpu", "--machine", "box", "--records", str(store)]
    with variants.restored():
        first = call(*given)
    programs._DECLARED.clear()  # as in another process
    assert (first.code, started) == (130, ["hypatia_lab.bench.cells", "hypatia_lab.strangers.programs"])
    assert left(tmp_path) == []
    assert "box/author_example" not in recorded(store)
    second = call(*given)
    assert (second.code, started[2:]) == (1, ["hypatia_lab.strangers.programs"])
    assert (tmp_path / "runs").read_text() == "x", "what was finished ran again"
    assert left(tmp_path, 0) == []
    assert recorded(store) == ["box/author_example", "box/ceilings"]

    (found,) = records.load(store, experiments=["author_example"])
    (one,) = programs._DECLARED
    assert found.run["provenance"] == [one.provenance[0].record()]
    assert found.run["source"] == hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    ended = {cell["variant"]: (cell["origin"], cell["status"]) for cell in found.cells}
    assert ended == {"eager": ("peer", "ok"), "author_v1": ("author", "ok")}
    (row,) = (row for row in results.rows([found]) if row.variant == "author_v1")
    assert (row.origin, row.ratio > 0) == ("author", True)
    head, *lines = tables("programs")["recorded"]
    assert [[line[key] for key in head] for line in found.details] == lines
    reasons = {line["case"]: line["reason"] for line in found.details}
    assert re.match(r"stand_in\.py:.*AttributeError", reasons["raises"])
    assert reasons["unable"] == "not on cpu"
    told = " ".join([second.out, *second.err])
    assert all(reason in told for reason in reasons.values())

    def again() -> records.Record:
        return composer.measure(programs.experiment(path, one), machine_name="box", root=store, progress=False)

    assert (again().digest, len(started)) == (found.digest, 3)
    pinned = dict(one.provenance[0].files)
    one.provenance = (replace(one.provenance[0], files=pinned | {"tool.py": "0" * 40}),)
    with pytest.raises(composer.BenchError, match="--overwrite"):
        again()
    path.write_text(path.read_text() + "\n")
    with pytest.raises(composer.BenchError, match=r"stand_in\.py"):
        again()


def test_a_file_that_changes_while_it_is_measured_makes_no_figures(tmp_path):
    path = stand_in(tmp_path)
    with variants.restored():
        source = programs.experiment(path, programs.load(path)).source
    programs._DECLARED.clear()
    assert source is not None
    (tmp_path / "upstream" / "tool.py").write_text("print('another')")
    for digest, told in ((source.digest, r"tool\.py"), ("0" * 12, r"stand_in\.py")):
        plan = {"source": {"path": str(path), "digest": digest}, "case": "kernel_only", "device": "cpu"}
        for _ in range(2):  # a second command in the same process is told the same
            with pytest.raises(Ended, match=told):
                programs._job(plan)


# ---------------------------------------------------------------- the worked example of the page

EXAMPLE = paths.HOME / "book" / "examples" / "outside_program.py"


def test_the_example_is_right_and_its_program_prints_its_figures(tmp_path):
    found = programs.load(EXAMPLE)
    groups = [programs.experiment(EXAMPLE, found).plan("seed", device, ()) for device in ("cpu", "cuda")]
    assert [[one.variants for one in group] for group in groups] == [[("eager", "eager@again", "author_example")]] * 2
    workload = groups[0][0].workload
    problem = check.Problem(workload, "cpu")
    run = variants.find("linear_relu", "author_example").factory(workload, problem.inputs)
    assert check.check(run, problem).reason == ""
    with shell(tmp_path, 60) as here:
        figures = {figure["name"]: figure["value"] for figure in found.commands["benchmark"].figures(here)}
    assert list(figures) == ["eager", "fused", "speedup"]
    assert figures["speedup"] == pytest.approx(figures["eager"] / figures["fused"], rel=0.1)
    assert sorted(path.name for path in EXAMPLE.with_name("stand_in").iterdir()) == ["benchmark.py"]


TORCHVISION = """
from torch import nn

class MLP(nn.Sequential):
    def __init__(self, inner, widths):
        layers = []
        for width in widths[:-1]:
            layers += [nn.Linear(inner, width), nn.ReLU(), nn.Dropout(0.0)]
            inner = width
        super().__init__(*layers, nn.Linear(inner, widths[-1]), nn.Dropout(0.0))
"""
"""A stand-in: torchvision is not everywhere. Its MLP is a Sequential of a class of its own, too."""


def test_the_script_of_the_page_trains_a_model_of_torchvisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").touch()
    (tmp_path / "torchvision" / "ops.py").write_text(TORCHVISION, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setattr(programs.Provenance, "verify", lambda one: None)
    found = programs.load(paths.HOME / "book" / "programs" / "torchvision_mlp.py")
    with shell(tmp_path, 120) as here:
        figures = {one["name"]: one["value"] for one in found.commands["training"].figures(here)}
        assert [*here.folder.glob("cache/hypatia_lab/choices/*.json")] != []  # for the next process
    assert figures["replaced"] == 2
    assert all(figures[f"{one}, last loss"] < 0.1 and figures[one] > 0 for one in ("as written", "converted"))
    lines = [line for line in EXAMPLE.with_name("training.py").read_text(encoding="utf-8").splitlines() if line]
    assert len(lines) <= 30


def test_the_page_names_every_status_and_shows_the_example():
    page = (EXAMPLE.parents[1] / "programs.md").read_text(encoding="utf-8")
    shown = re.findall(r"```\{literalinclude\} (\S+)", page)
    assert {f"examples/{EXAMPLE.name}", "examples/outside_program.pins"} == set(shown)
    for line in re.findall(r":(?:start-at|end-at|end-before): '?(.+?)'?\n", page):
        assert line in EXAMPLE.read_text(encoding="utf-8")
    statuses = re.findall(r"(?m)^\| `(\w+)` \|", page.split("## When something is wrong")[1])
    assert set(statuses) == set(details.SEVERITY) - {"ok", "cheated"}
