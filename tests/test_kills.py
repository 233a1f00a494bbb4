"""Nothing is lost: processes are killed at random moments (seeded), and what they had finished is still there."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from synthetic import cell_line, recorded, run_line

from hypatia_lab import records

SEED = 20260

# ---------------------------------------------------------------- the writer of records

WRITER = """
import itertools, json, os, random, signal, sys, time
from pathlib import Path
from hypatia_lab import records

root, kills, run, cell = Path(sys.argv[1]), int(sys.argv[2]), *json.loads(sys.argv[3])
chance = random.Random(int(sys.argv[4]))


def write_for_ever(first, tell):
    os.write(tell, b"begun\\n")
    for number in itertools.count(first):
        cells = [cell | {"seed": number, "variant": f"v{place}"} for place in range(1 + number % 20)]
        records.write(root, run | {"experiment": f"e{number}"}, cells, overwrite=True)
        records.write(root, run | {"experiment": "latest"}, cells, overwrite=True)
        os.write(tell, b"%d\\n" % number)


records.write(root, run | {"experiment": "first"}, [cell])  # compiles the schema once, for every fork
number = 0
for _ in range(kills):
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        write_for_ever(number, tell)
    os.close(tell)
    with os.fdopen(hear, "rb") as stream:
        # At a random moment of one of the next writes, however busy the machine is.
        said = [stream.readline() for _ in range(chance.randint(1, 4))]
        time.sleep(chance.uniform(0, 0.006))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said += stream.read().splitlines()
    number = max([number, *(int(word) + 1 for word in said[1:])])
    if number:  # the last one may have been replaced before the news of it was out
        (latest,) = records.load(root, experiments=["latest"])
        assert latest.cells[0]["seed"] in (number - 1, number), (latest.cells[0]["seed"], number)
finished = {record.experiment: record.cells[0]["seed"] for record in records.load(root)}
assert all(finished[f"e{n}"] == n for n in range(number)), "a finished record is missing"
print(number)
"""


def test_a_hundred_kills_of_the_writer_lose_no_record_and_leave_none_in_parts(tmp_path):
    store = tmp_path / "records"
    lines = json.dumps([run_line(), cell_line()])
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(store), "100", lines, str(SEED)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 100, "too few records were finished for the kills to mean anything"
    assert len(list(store.rglob("*.tmp"))) > 5, "no kill came in mid-write"
    records.write(store, run_line(experiment="latest"), [cell_line()], overwrite=True)
    assert {len(record.cells) for record in records.load(store, experiments=["latest"])} == {1}


FULL = """
import json, os, resource, sys
from pathlib import Path
from hypatia_lab import records

root, (run, cell) = Path(sys.argv[1]), json.loads(sys.argv[2])
records.write(root, run, [cell])
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    records.write(root, run, [cell | {"variant": f"v{place}"} for place in range(100)], overwrite=True)
except records.RecordError as cause:
    print(cause)
"""


def test_a_file_that_cannot_grow_leaves_the_old_record_whole(tmp_path):
    """The kernel itself refuses to write on: RLIMIT_FSIZE stands in for a full disk, which takes root to make."""
    lines = json.dumps([run_line(), cell_line()])
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path), lines], capture_output=True, text=True)
    path = tmp_path / "box" / "method" / "2025-01-01-cpu.jsonl"
    assert done.stdout == f"cannot write {path}: File too large; nothing was written\n", done.stderr
    assert len(records.load_file(path).cells) == 1
    assert [file.name for file in path.parent.iterdir()] == [path.name]


# ---------------------------------------------------------------- a measurement, whole


def measured(store: Path) -> Counter[float]:
    """Every median that lies in a part or a record below ``store``. Each file must be whole."""
    found: Counter[float] = Counter()
    for path in store.rglob("*.jsonl"):
        if ".parts" in path.parts:
            head, *rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            assert set(head) == {"key", "excluded", "chips"}
            medians = [row["median_us"] for row in rows]
        else:
            medians = [us for cell in records.load_file(path).cells for us in cell["medians_us"]]
        found.update(float(f"{us:.6g}") for us in medians if us is not None)
    return found


# Stands in for the measuring process: the same events, without torch, and a time that never comes twice.
CHILD = """
import time
from hypatia_lab.bench import sessions

plan, emit = sessions.child_plan()
for index, group in plan["groups"]:
    for name in group["variants"]:
        emit("begin", what=[index, name])
        time.sleep(0.01)
        emit("row", group=index, variant=name, clock="hot", status="ok", reason="", error=1e-7, max_error=1e-6,
             median_us=1 + time.time() % 1000, samples_us=[], calls=1, sm_mhz=[], power_w=[], throttled=False)
    emit("done", group=index)
"""

MEASURE = """
import os, signal, sys, time
from pathlib import Path
from hypatia_lab.bench import composer, sessions, source_tree
from hypatia_lab.experiments import Experiment, Group
from hypatia_lab.workloads import Workload


def groups(preset, device, shapes):
    return [Group(Workload("linear_relu", (n, n, n)), ("eager", "epilogue"), ("hot",), 0.0) for n in range(1, 9)]


names = ("ceilings", "tiny")
composer.EXPERIMENTS = {n: Experiment(n, "none", "a test", "linear_relu", groups, processes=3) for n in names}
source_tree.commit = lambda: ("0" * 40, False)
real = sessions.run_session
sessions.run_session = lambda module, *given, **more: real("stub_child", *given, **more)
composer.machine.facts(device := "cpu")  # imports what the forks would otherwise import each
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        composer.measure("tiny", device=device, machine_name="box", root=Path(sys.argv[1]), progress=False)
        os._exit(0)
    if float(line):
        time.sleep(float(line))
        os.kill(child, signal.SIGKILL)
    print(os.waitpid(child, 0)[1], flush=True)
"""


def test_a_measurement_killed_five_times_goes_on_each_time_where_it_was(tmp_path):
    (tmp_path / "stub_child.py").write_text(CHILD)
    store, chance = tmp_path / "records", random.Random(SEED)
    found = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    program = [sys.executable, "-W", "ignore", "-c", MEASURE, str(store)]
    environment = os.environ | {"PYTHONPATH": found}
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        before, killed = measured(store), 0
        for wait in [*(chance.uniform(0.05, 0.35) for _ in range(5)), 0]:
            running.stdin.write(f"{wait}\n")
            running.stdin.flush()
            killed += int(running.stdout.readline()) == signal.SIGKILL
            after = measured(store)
            assert not before - after, "a finished measurement is missing"
            before = after
        running.stdin.close()
    assert killed == 5
    # A kill in the middle of a write leaves its temporary file, which nobody reads.
    left = [path for path in store.rglob("*") if path.is_file() and path.suffix != ".tmp"]
    assert recorded(store) == ["box/ceilings", "box/tiny"]
    assert len(left) == 2
    # Two experiments of eight groups, two variants and three processes, each measured once and no more.
    assert sum(after.values()) == 2 * 8 * 2 * 3


# ---------------------------------------------------------------- `hypatia-lab run`, whole


def below(pid: int) -> set[int]:
    """Every living descendant of process ``pid``."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found |= {child} | below(child)
    return found


@pytest.mark.slow
def test_a_run_killed_five_times_loses_nothing_and_a_last_one_completes(tmp_path):
    """A whole ``run`` in its own processes. Every second kill takes notebook and measuring process too."""
    store, chance = tmp_path / "records", random.Random(SEED)
    command = [sys.executable, "-m", "hypatia_lab", "run", "02", "--device", "cpu", "--machine", "box"]
    command += ["--shapes", "8x8x8", "--records", str(store), "--output", str(tmp_path / "out")]
    environment = os.environ | {"HYPATIA_COMMIT": "0" * 40}  # whoever works on the tree may commit meanwhile
    before = measured(store)
    for number in range(5):
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
        ) as running:
            time.sleep(chance.uniform(3, 10))
            assert running.poll() is None, "it was over before it was killed"
            helpers = below(running.pid)
            for pid in [running.pid, *(helpers if number % 2 else ())]:
                os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 20
        while any(Path(f"/proc/{pid}").exists() for pid in helpers) and time.monotonic() < end:
            time.sleep(0.1)
        assert not [pid for pid in helpers if Path(f"/proc/{pid}").exists()], "something outlived the run"
        after = measured(store)
        assert not before - after, "a finished measurement is missing"
        before = after
    assert before, "nothing was measured before the last kill"
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert not before - measured(store)
    assert [place.partition("/")[2] for place in recorded(store)] == ["ceilings", "naive_vs_cublas"]
    assert not list(store.rglob(".parts"))
