"""Bytecode for fresh processes: found where it is, kept where it may be, and else in the lab's own folder, once."""

from __future__ import annotations

import importlib.util
import py_compile
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hypatia_lab.bench import bytecode, sessions

LATE = "_inductor/compile_fx.py"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package in torch's place, without bytecode, in a process that may not write any."""
    folder = tmp_path / "site" / "stand_in_torch"
    (folder / "_inductor").mkdir(parents=True)
    for name in ("__init__.py", "_inductor/__init__.py", LATE):
        (folder / name).write_text("number = 1\n")
    real = importlib.util.find_spec
    spec = importlib.util.spec_from_file_location("torch", folder / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: spec if name == "torch" else real(name, *more))
    monkeypatch.setattr(bytecode, "_EVERYTHING", "import stand_in_torch._inductor.compile_fx")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bytecode.environment.cache_clear()
    yield folder
    bytecode.environment.cache_clear()


def kept(tmp_path: Path) -> list[str]:
    """Names of what is kept of the package in the lab's cache."""
    return sorted(path.name.split(".")[0] for path in (tmp_path / "cache").rglob("stand_in_torch/**/*.pyc"))


def test_bytecode_is_kept_in_the_labs_folder_where_python_may_not_write_it(package, tmp_path, capsys):
    folder = tmp_path / "cache" / "hypatia_lab" / "bytecode"
    assert bytecode.environment() == {"PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}
    assert kept(tmp_path) == ["__init__", "__init__", "compile_fx"]
    assert capsys.readouterr().err == f"keeping the bytecode of torch in {folder}, once\n"
    assert not list(package.rglob("*.pyc"))


def test_what_is_kept_already_is_not_made_again(package, monkeypatch, capsys):
    first = bytecode.environment()
    capsys.readouterr()
    bytecode.environment.cache_clear()
    monkeypatch.setattr(bytecode, "_import_everything", lambda kept: pytest.fail("imported again"))
    assert bytecode.environment() == first
    assert capsys.readouterr().err == ""


def test_what_the_process_writes_to_the_temporary_folder_goes_with_it(package, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    wrote = "import pathlib, tempfile; pathlib.Path(tempfile.mkdtemp(), 'left').touch()\n"
    monkeypatch.setattr(bytecode, "_EVERYTHING", wrote + bytecode._EVERYTHING)
    assert bytecode.environment()
    assert kept(tmp_path) == ["__init__", "__init__", "compile_fx"]
    assert not list((tmp_path / "tmp").iterdir())


def test_bytecode_that_lies_beside_its_source_is_enough(package):
    py_compile.compile(str(package / LATE))
    assert bytecode.environment() == {}


def test_a_process_that_may_write_keeps_its_own(package, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert bytecode.environment() == {}


def test_a_folder_that_cannot_be_written_needs_the_labs(package, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(bytecode.os, "access", lambda path, mode: Path(path) != package / "_inductor")
    assert bytecode.environment()
    bytecode.environment.cache_clear()
    monkeypatch.setattr(sys, "pycache_prefix", "elsewhere")
    assert bytecode.environment() == {}


def test_without_a_place_for_it_nothing_is_raised(package, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file")
    assert bytecode.environment() == {}
    assert (tmp_path / "cache").read_text() == "a file"
    (tmp_path / "cache").unlink()
    bytecode.environment.cache_clear()
    monkeypatch.setattr(bytecode.os, "access", lambda path, mode: False)
    assert bytecode.environment() == {}


def test_one_who_never_finishes_is_given_up(package, monkeypatch):
    monkeypatch.setattr(bytecode, "_EVERYTHING", "import time; time.sleep(60)")
    monkeypatch.setattr(bytecode, "LONGEST_S", 0.2)
    assert bytecode.environment()


def test_no_torch_needs_no_bytecode(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert bytecode.environment.__wrapped__() == {}


def test_a_fresh_process_uses_it(package, tmp_path):
    (package.parent / "reader.py").write_text(
        "import sys\n"
        "from hypatia_lab.bench import sessions\n"
        "_, emit = sessions.child_plan()\n"
        "import stand_in_torch._inductor.compile_fx as late\n"
        "emit('told', place=late.__cached__, writes=not sys.dont_write_bytecode)\n"
    )
    told: list[dict[str, Any]] = []
    assert sessions.run_session("reader", {}, tmp_path / "log", on_event=told.append, silence_s=60) is None
    assert told[0]["writes"]
    assert Path(told[0]["place"]).exists()
    assert Path(told[0]["place"]).is_relative_to(tmp_path / "cache")
