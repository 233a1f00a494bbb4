"""Records: what is written comes back, what is damaged names its line, and a failed write leaves nothing."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from synthetic import cell_line, detail_line, run_line
from tabled import tabled

from hypatia_lab import records
from hypatia_lab.records import RecordError

IN_ONE_FOLDER = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
WRITTEN = "box/method/2025-01-01-cpu.jsonl"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A good record of one run line and three cells."""
    cells = [cell_line(), cell_line(variant="eager@again"), cell_line(clock="none", medians_us=[], samples_us=[])]
    return records.write(tmp_path, run_line(), cells)


def files_of(folder: Path) -> list[str]:
    """Every file below ``folder``, hidden ones too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def tried(act: Callable[..., Any], *given: Any, **more: Any) -> tuple[Any, str]:
    """What comes of it, and the complaint in its place."""
    try:
        return act(*given, **more), ""
    except RecordError as cause:
        return None, str(cause)


def refused(act: Callable[..., Any], *given: Any, **more: Any) -> str:
    """The one line with which a record is refused."""
    (line,) = tried(act, *given, **more)[1].splitlines()
    return line


# ---------------------------------------------------------------- round trip


def test_what_is_written_comes_back(tmp_path, written):
    record = records.load_file(written)
    assert written.stat().st_mode & 0o777 == 0o644, "others cannot read it"
    assert record.run == run_line() | {"cells": 3}
    assert [cell["variant"] for cell in record.cells] == ["eager", "eager@again", "eager"]
    assert record.cells[0] == cell_line()
    assert (record.machine, record.experiment, record.path) == ("box", "method", written)
    assert files_of(tmp_path) == [WRITTEN] == [str(written.relative_to(tmp_path))]


def test_the_digest_changes_with_any_number_and_not_with_the_layout(tmp_path):
    path = records.write(tmp_path, run_line(), [cell_line()], [detail_line()])
    run, cell, detail = rows = [json.loads(line) for line in path.read_text().splitlines()]

    def digest(*rows: dict[str, Any]) -> str:
        path.write_text("".join(json.dumps(dict(reversed(row.items()))) + "\n" for row in rows))
        return records.load_file(path).digest

    before, after = digest(*rows), digest(run, cell | {"medians_us": [1.8, None]}, detail)
    assert records.digests([records.load_file(path)]) == f"box/method  {after}"
    others = digest(run | {"preset": "seed"}, cell, detail), digest(run, cell, detail | {"values": [1.5, 1.0]})
    assert len({before, after, *others}) == 4
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert records.load_file(path).digest == before


def test_a_record_is_replaced_only_when_asked(tmp_path, written):
    before = written.read_bytes()
    assert "--overwrite" in refused(records.write, tmp_path, run_line(preset="seed"), [])
    assert written.read_bytes() == before
    records.write(tmp_path, run_line(preset="seed"), [], overwrite=True)
    assert records.load_file(written).run["preset"] == "seed"


# ---------------------------------------------------------------- malformed


def test_a_file_cut_off_anywhere_in_a_line_names_that_line(written):
    whole = written.read_bytes()
    for size in range(0, len(whole), 7):
        if size and whole[:size].endswith(b"\n"):
            continue
        written.write_bytes(whole[:size])
        line = whole[:size].count(b"\n") + 1
        assert refused(records.load_file, written).startswith(f"{written}:{line}: ")


def damage(path: Path, edit: Callable[[list[Any]], object]) -> str:
    """What is said of the record at ``path`` after an ``edit`` of its lines."""
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    edit(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return refused(records.load_file, path)


@tabled("records", "malformed")
def test_a_malformed_line_is_named_with_its_field(written, line, changes, told):
    """What becomes null is left out."""
    gone = {name for name, value in changes.items() if value is None}

    def edit(rows: list[Any]) -> None:
        rows[line - 1] = {name: value for name, value in (rows[line - 1] | changes).items() if name not in gone}

    assert re.match(rf"{written}:{line}: .*{re.escape(told)}", damage(written, edit))


@pytest.mark.parametrize(
    ("edit", "line", "told"),
    [
        (lambda rows: rows[3].update(shape=[2, 10**400, 4]), 4, "shape"),
        (lambda rows: rows.append(detail_line(values=[10**400, 1.0])), 5, "values"),
        (lambda rows: rows.append(detail_line(count=10**400)), 5, "count"),
        (lambda rows: rows.append(cell_line()), 5, "eager, the same as that on line 2"),
        (lambda rows: rows.append(run_line(cells=0)), 5, "run line"),
        (lambda rows: rows.append([1, 2]), 5, "kind"),
        (lambda rows: rows.append("text"), 5, "kind"),
        (lambda rows: rows.pop(0), 1, "run"),
        (lambda rows: rows.pop(), 3, "2 cells where the run line promises 3"),
    ],
)
def test_a_malformed_line_is_named_with_its_fault(written, edit, line, told):
    assert re.match(rf"{written}:{line}: .*{re.escape(told)}", damage(written, edit))


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        *((b"1.5, null", f"{number}, null".encode(), 2) for number in ("NaN", "Infinity", "-Infinity", "1e999")),
        *((b"1.5, null", f"{number}, null".encode(), 2) for number in ("1" * 5000, "0x10", "01")),
        (b"\n", b"\n\n", 2),  # a blank line
        (b"ieee", b"\xff\xfe", 2),
        (b"{", b"[" * 200_000, 1),
    ],
)
def test_what_is_no_json_number_or_no_text_at_all_is_refused(written, old, new, line):
    whole = written.read_bytes()
    assert old in whole
    written.write_bytes(whole.replace(old, new, 1))
    assert re.match(rf"{re.escape(str(written))}:{line}: .*(JSON|UTF-8)", refused(records.load_file, written))


def test_an_empty_file_and_a_missing_file_are_named(tmp_path):
    path = tmp_path / "method.jsonl"
    assert str(path) in refused(records.load_file, path)
    path.touch()
    assert f"{path}:1: " in refused(records.load_file, path)


@IN_ONE_FOLDER
@given(st.data())
def test_any_damage_gives_a_record_or_one_clear_error(tmp_path, data):
    path = records.write(tmp_path, run_line(), [cell_line(), cell_line(variant="naive")], overwrite=True)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    record, complaint = tried(records.load_file, path)
    if record:  # still of its schema: one that could have been written
        records.write(tmp_path, record.run, record.cells, overwrite=True)
        assert records.load_file(path).cells == record.cells
    assert record or re.fullmatch(f"{path}:.*", complaint)


# ---------------------------------------------------------------- writing


LEADING_OUT = ("", ".", "..", "../x", "a/b", "/etc", "a\\b", "A", "-a", "a b", "a\n", "x" * 65, "ü")
NAMES = st.text("abc/.~\\\0\n- ", max_size=12) | st.text(max_size=70) | st.sampled_from([*LEADING_OUT, "box"])


@IN_ONE_FOLDER
@given(NAMES, NAMES)
@example("h200", "method")
@example("epyc_2c", "a-0")
@example("0", "0")
@example("a", "a.")
def test_whatever_a_record_calls_itself_it_cannot_lead_out_of_its_folder(tmp_path, machine, experiment):
    root = Path(tempfile.mkdtemp(dir=tmp_path))
    before = {*tmp_path.rglob("*")}
    path, complaint = tried(records.write, root, run_line(machine=machine, experiment=experiment), [cell_line()])
    assert "\n" not in complaint
    assert bool(path) is all(re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", name) for name in (machine, experiment))
    assert {*tmp_path.rglob("*")} - before == ({root / machine, path.parent, path} if path else set())
    shutil.rmtree(root)


@pytest.mark.parametrize(
    "second",
    [
        *(cell_line(variant="naive", medians_us=[number, 1.0]) for number in (float("nan"), float("inf"), -1.0)),
        cell_line(seed=1, medians_us=[9.0, 9.0]),  # a doubled cell
    ],
)
def test_a_malformed_cell_is_refused_before_anything_is_written(tmp_path, second):
    assert ".jsonl:3: " in refused(records.write, tmp_path, run_line(), [cell_line(), second])
    assert list(tmp_path.iterdir()) == []


FAILURES = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "quota",
    errno.EROFS: "read-only; choose another",
    errno.EACCES: "not writable",
    errno.EIO: "nothing was written",
}


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize("code", FAILURES)
def test_a_write_that_fails_says_why_and_leaves_the_old_record(tmp_path, monkeypatch, written, step, code):
    before = written.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(records.os, step, Mock(side_effect=OSError(code, os.strerror(code))))
        told = refused(records.write, tmp_path, run_line(), [], overwrite=True)
    assert all(named in told for named in (str(written), FAILURES[code]))
    assert (files_of(tmp_path), written.read_bytes()) == ([WRITTEN], before)


def test_an_interrupt_in_mid_write_leaves_no_partial_file(tmp_path, monkeypatch, written):
    monkeypatch.setattr(records.os, "fsync", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        records.write(tmp_path, run_line(experiment="other"), [cell_line()])
    assert files_of(tmp_path) == [WRITTEN]


def test_a_folder_that_takes_no_files_is_named(tmp_path):
    (tmp_path / "records").write_text("mine")
    for root in (tmp_path / "records", Path("/proc/no-such-folder")):
        assert f"{root}/{WRITTEN}: " in refused(records.write, root, run_line(), [cell_line()])
    assert (tmp_path / "records").read_text() == "mine"


# ---------------------------------------------------------------- loading


def test_machines_and_experiments_restrict_what_is_read(tmp_path):
    for machine, experiment in ("ax", "ay", "bx", "by"):
        records.write(tmp_path, run_line(machine=machine, experiment=experiment), [])
    for wanted, names in (
        ({}, "ax ay bx by"),
        ({"machines": ["b"]}, "bx by"),
        ({"experiments": ["y"]}, "ay by"),
        ({"machines": ["a"], "experiments": ["x"]}, "ax"),
    ):
        assert [r.machine + r.experiment for r in records.load(tmp_path, **wanted)] == names.split()


def test_a_damaged_or_unfinished_record_that_was_not_asked_for_does_no_harm(tmp_path, written):
    bad, part = tmp_path / "broken" / "method.jsonl", written.parent / ".parts" / "method" / "0.jsonl"
    for path in (bad, written.parent / ".half.jsonl", part):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{")
    assert [r.machine for r in records.load(tmp_path, machines=["box"])] == ["box"]
    assert f"{bad}:1" in refused(records.load, tmp_path)


def test_a_later_folder_wins(tmp_path):
    for preset in ("quick", "seed"):
        records.write(tmp_path / preset, run_line(preset=preset), [])
    assert [found.run["preset"] for found in records.load(tmp_path / "quick", tmp_path / "seed")] == ["seed"]


def test_of_several_visits_the_newest_leads_unless_a_line_names_another(tmp_path):
    days = [f"2025-01-0{day}T00:00:00Z" for day in (2, 3, 1)]
    paths = [records.write(tmp_path, run_line(started=day), [cell_line()], overwrite=True) for day in days]
    assert records.visits(tmp_path) == sorted(paths)
    assert [found.run["started"] for found in records.load(tmp_path)] == [days[1]]
    (paths[0].parent / records.LEAD).write_text(f"{paths[0].stem}\n")
    assert [found.run["started"] for found in records.load(tmp_path / "box")] == [days[0]]
    (paths[0].parent / records.LEAD).write_text("2025-01-09-cpu\n")
    assert "2025-01-09-cpu.jsonl" in refused(records.load, tmp_path)


def test_of_two_visits_on_a_day_the_later_one_leads(tmp_path):
    for hour, chip in enumerate(("ffffff", "aaaaaa")):
        run = run_line(started=f"2025-01-01T0{hour}:00:00Z", facts={"chip": chip})
        records.write(tmp_path, run, [cell_line()], overwrite=True)
    (found,) = records.load(tmp_path)
    assert (found.chip, found.path.name) == ("aaaaaa", "2025-01-01-aaaaaa.jsonl")


@pytest.mark.parametrize(("day", "leads"), [("2024-12-31", "new"), ("2025-01-02", "old")])
def test_a_record_in_the_old_place_is_one_visit_among_the_others(tmp_path, written, day, leads):
    old = tmp_path / "box" / "method.jsonl"
    old.write_text(written.read_text().replace("2025-01-01T", f"{day}T"))
    (found,) = records.load(tmp_path)
    assert found.path == {"old": old, "new": written}[leads]
    assert records.visits(tmp_path) == [old, written]
    written.unlink()
    assert [record.path for record in records.load(tmp_path / "box")] == [old]
    assert records.write(tmp_path, run_line(), [cell_line()], overwrite=True, at=old) == old


def test_a_machine_without_records_is_named_with_those_that_have(tmp_path, written):
    assert "'h300'; known: box" in refused(records.load, tmp_path, machines=["h300"])
    assert "'h300'; known: none" in refused(records.load, tmp_path / "empty", machines=["h300"])


def test_every_committed_record_is_sound(committed_records):
    assert committed_records, f"no records below {records.COMMITTED}"
    assert [str(record.path) for record in committed_records if not record.cells and not record.details] == []


# ---------------------------------------------------------------- one at a time

HOLD = """
import sys
from pathlib import Path
from hypatia_lab import records
try:
    with records.held(Path(sys.argv[1])):
        print("held", flush=True)
        sys.stdin.read()
except records.RecordError as cause:
    print(cause)
"""


def test_a_second_process_is_told_that_another_measures_and_the_lock_ends_with_it(tmp_path):
    folder = tmp_path / "box"
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert str(folder) in refused(records.held(folder).__enter__)
        other.kill()
    assert files_of(tmp_path) == ["box/.parts/lock"], "a killed process cleans nothing up"
    with records.held(folder), records.held(folder):
        asked = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
        assert asked.stdout.startswith(f"{folder}: ")
    assert [path.name for path in folder.iterdir()] == []


def test_a_folder_that_was_held_keeps_the_parts_of_what_was_interrupted(tmp_path):
    part = tmp_path / "box" / ".parts" / "method" / "0.jsonl"
    with contextlib.suppress(KeyboardInterrupt), records.held(tmp_path / "box"):
        part.parent.mkdir()
        part.write_text("{}")
        raise KeyboardInterrupt
    assert files_of(tmp_path) == ["box/.parts/method/0.jsonl"]
    assert str(part) in refused(records.held(part).__enter__)
