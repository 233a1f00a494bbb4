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

import psutil
import pytest
from synthetic import cell_line, recorded, run_line

from hypatia_lab import records

SEED = 20260
PROGRAMS = Path(__file__).resolve().parent / "kills"
LINES = json.dumps([run_line(), cell_line()])


def run(program: str, *given: object) -> str:
    """What ``program`` prints, which must succeed."""
    command = [sys.executable, PROGRAMS / program, *map(str, given)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---------------------------------------------------------------- the writer of records


@pytest.mark.parametrize("kills", [25, pytest.param(100, marks=pytest.mark.slow)])
def test_a_killed_writer_loses_no_record_and_leaves_none_in_parts(kills, tmp_path):
    store = tmp_path / "records"
    finished = int(run("writer.py", store, kills, LINES, SEED))
    assert finished >= kills, "too few records were finished for the kills to mean anything"
    assert len(list(store.rglob("*.tmp"))) > kills / 20, "no kill came in mid-write"
    records.write(store, run_line(experiment="latest"), [cell_line()], overwrite=True)
    assert {len(record.cells) for record in records.load(store, experiments=["latest"])} == {1}


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


def test_a_measurement_killed_five_times_goes_on_each_time_where_it_was(tmp_path):
    store, chance = tmp_path / "records", random.Random(SEED)
    found = os.pathsep.join([str(PROGRAMS), os.environ.get("PYTHONPATH", "")])
    program = [sys.executable, "-W", "ignore", PROGRAMS / "measure.py", store]
    environment = os.environ | {"PYTHONPATH": found}
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        before, killed = measured(store), 0
        for wait in [*(chance.uniform(0.05, 0.35) for _ in range(5)), 0]:
            print(wait, file=running.stdin, flush=True)
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
            helpers = psutil.Process(running.pid).children(recursive=True)
            for one in helpers if number % 2 else ():
                one.kill()
            running.kill()
        _, left = psutil.wait_procs(helpers, timeout=20)
        assert not left, "something outlived the run"
        after = measured(store)
        assert not before - after, "a finished measurement is missing"
        before = after
    assert before, "nothing was measured before the last kill"
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert not before - measured(store)
    assert [place.partition("/")[2] for place in recorded(store)] == ["ceilings", "naive_vs_cublas"]
    assert not list(store.rglob(".parts"))
