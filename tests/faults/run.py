"""Plants each fault of the lists beside this file in a copy of the repository, and runs the tests that must fail by it.

``python tests/faults/run.py [--only id ...] [--subject name] [--jobs 1]``. An entry names no file of the package: its
``old`` stands exactly once in all of it, wherever that is.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SUFFIXES = (".py", ".cpp", ".cu", ".cuh", ".yaml")
LIMIT_S = 300
USUAL = "not sweep and not slow"
"""The marks of what ``make test`` runs; ``-m`` of an entry takes its place."""
PASSED, FAILED, NOTHING = "passed", "failed", "no tests ran"
OWN = threading.local()
"""Its ``copy`` is the copy of the repository that a worker has for itself."""
TIMES = itertools.count(int(time.time()))
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Fault:
    """``old`` becomes ``new``, for which ``why`` the ``tests`` (what pytest is told to run) fail."""

    subject: str
    id: str
    old: str
    new: str
    tests: str
    why: str

    @property
    def selection(self) -> tuple[str, str]:
        """Files, and the expression by which their tests are chosen; empty: all of them."""
        words = shlex.split(self.tests)
        at = words.index("-k") if "-k" in words else len(words)
        return shlex.join([*words[:at], *words[at + 2 :]]), "".join(words[at + 1 : at + 2])


def faults() -> list[Fault]:
    """All of them, by subject."""
    files = sorted(HERE.glob("*.yaml"))
    return [Fault(path.stem, **one) for path in files for one in yaml.load(path.read_text("utf-8"), Loader=_LOADER)]


def package(root: Path = ROOT) -> dict[Path, str]:
    """The files of the package in which a fault may be planted, with their text."""
    found = sorted(path for path in (root / "hypatia_lab").rglob("*") if path.suffix in SUFFIXES)
    return {path: path.read_text(encoding="utf-8") for path in found if "__pycache__" not in path.parts}


def begin(scratch: str) -> None:
    """Copy what git tracks, or would track, to a folder of this worker's own."""
    OWN.copy = Path(tempfile.mkdtemp(dir=scratch), ROOT.name)
    asked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    told = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, told.split("\0")):
        if (ROOT / name).is_file():
            (OWN.copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, OWN.copy / name)


def outcome(files: str, words: str) -> str:
    """What becomes of the selected tests in this worker's copy. Whoever is not through in time has failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", USUAL, *shlex.split(files)]
    command += ["-k", words] if words else []
    with subprocess.Popen(
        command,
        cwd=OWN.copy,
        env=os.environ | {"PYTHONPATH": str(OWN.copy)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = 1
    return {0: PASSED, 5: NOTHING}.get(code, FAILED)


def sound(files: str, wanted: Iterable[str]) -> set[tuple[str, str]]:
    """The selections of ``files`` that pass without a fault: tried all at once, and alone only where that fails."""
    words = sorted(set(wanted))
    if outcome(files, "" if "" in words else " or ".join(f"({one})" for one in words)) == PASSED:
        return {(files, one) for one in words}
    return {(files, one) for one in words if len(words) > 1 and outcome(files, one) == PASSED}


def planted(fault: Fault, passing: set[tuple[str, str]]) -> str:
    """In a word, whether ``fault`` is caught."""
    places = [(path, text) for path, text in package(OWN.copy).items() if fault.old in text]
    if len(places) != 1:
        return "old not found" if not places else f"old in {len(places)} files"
    if fault.selection not in passing:
        return "NOT caught: its tests do not pass without it"
    ((path, text),) = places
    try:
        write(path, text.replace(fault.old, fault.new))
        found = outcome(*fault.selection)
    finally:
        write(path, text)
    return {PASSED: "NOT caught", FAILED: "caught", NOTHING: f"tests passed vacuously: {NOTHING}"}[found]


def write(path: Path, text: str) -> None:
    """Write ``text``, with a time that no other text has had: by it Python knows what it has compiled."""
    path.write_text(text, encoding="utf-8")
    os.utime(path, (now := next(TIMES), now))


def main() -> int:
    """1 if a fault is not caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="id")
    parser.add_argument("--subject", default="")
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    chosen = [one for one in faults() if one.id in (asked.only or [one.id]) and asked.subject in ("", one.subject)]
    begun, missed, wanted = time.monotonic(), 0, dict[str, list[str]]()
    for one in chosen:
        wanted.setdefault(one.selection[0], []).append(one.selection[1])
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(asked.jobs, "", begin, (scratch,)) as pool:
        passing = set[tuple[str, str]]().union(*pool.map(sound, wanted, wanted.values()))
        for one, said in zip(chosen, pool.map(lambda one: planted(one, passing), chosen), strict=True):
            print(f"{said}: {one.subject}/{one.id}" + ("" if said == "caught" else f" ({one.why})"), flush=True)
            missed += said != "caught"
    print(f"{len(chosen) - missed} of {len(chosen)} faults caught, in {time.monotonic() - begun:.0f} s")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
