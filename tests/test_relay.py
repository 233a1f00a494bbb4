"""Commands that measure one after the other: who waits for whom, and that none is left."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hypatia_lab.bench import relay, sessions

COMMAND = """
import json, pathlib, sys, time
from hypatia_lab.bench.relay import Turn

name, here, kind = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]

def did(what, seconds=0.0):
    begun = time.monotonic()
    time.sleep(seconds)
    with here.open("a") as log:
        log.write(json.dumps([name, what, begun, time.monotonic()]) + "\\n")

turn = Turn()
did("imports", 0.3)
turn.begin([])
did("reads", 0.1)
if kind == "refused":
    sys.exit("hypatia-lab: refused")
turn.alone()
turn.alone()
did("times", 0.3)
turn.measured()
did("tells", 1.0)
print(f"of {name}", flush=True)
if kind == "stays":
    try:
        time.sleep(600)
    finally:
        did("keeps")
"""
AHEAD = pytest.mark.parametrize("ahead", [True, False])


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Commands, each given by name and kind, that write what they do into a file; and a look into that file."""
    monkeypatch.setattr(sessions, "python", lambda _, *asked: [sys.executable, "-c", COMMAND, *asked])

    def made(kinds: dict[str, str]) -> Any:
        return [([name, str(tmp_path / "did"), kind], tmp_path / "logs" / name) for name, kind in kinds.items()]

    def did() -> dict[tuple[str, str], tuple[float, float]]:
        lines = map(json.loads, (tmp_path / "did").read_text().splitlines())
        return {(name, what): (begun, ended) for name, what, begun, ended in lines}

    return made, did


@AHEAD
def test_nobody_computes_beside_what_is_timed_and_the_next_one_gets_ready_meanwhile(commands, monkeypatch, ahead):
    made, did = commands
    monkeypatch.setattr(relay, "beside", lambda: ahead)
    assert list(relay.run(made(dict.fromkeys("abc", "")))) == [(f"of {name}\n", "exit status 0") for name in "abc"]
    found = did()
    for name in "abc":
        begun, ended = found[name, "times"]
        others = {key: span for key, span in found.items() if key[0] != name}
        assert not [key for key, span in others.items() if span[0] < ended and begun < span[1]]
    for this, after in ("ab", "bc"):
        assert found[this, "times"][1] <= found[after, "reads"][0]
        assert found[after, "imports" if not ahead else "reads"][0] < found[this, "tells"][1]
        assert (found[after, "imports"][0] < found[this, "times"][0]) is ahead


@AHEAD
def test_whoever_is_refused_lets_the_next_one_begin(commands, monkeypatch, ahead):
    made, did = commands
    monkeypatch.setattr(relay, "beside", lambda: ahead)
    found = list(relay.run(made({"a": "refused", "b": "refused", "c": "", "d": "refused"})))
    assert found == [("", "refused")] * 2 + [("of c\n", "exit status 0"), ("", "refused")]
    assert ("c", "tells") in did()


@pytest.mark.parametrize("ending", ["closed", "interrupted"])
def test_those_that_run_are_ended_and_waited_for(commands, monkeypatch, ending):
    made, did = commands
    monkeypatch.setattr(relay, "beside", lambda: True)
    run = relay.run(made({"a": "", "b": "stays", "c": ""}))
    begun = time.monotonic()
    with closing(run):
        next(run)
        if ending == "interrupted":

            def told(self: Any) -> Any:
                raise KeyboardInterrupt

            monkeypatch.setattr(relay.Runner, "told", told)
            with pytest.raises(KeyboardInterrupt):
                next(run)
    assert time.monotonic() - begun < 60
    assert ("c", "reads") not in did()


def test_without_a_relay_nobody_waits(monkeypatch):
    monkeypatch.delenv(relay.WORD, raising=False)
    turn = relay.Turn()
    assert not turn.awaited
    turn.begin([])
    turn.alone()
    turn.measured()


def test_whoever_has_lost_its_relay_ends(monkeypatch):
    reader, writer = os.pipe()
    monkeypatch.setenv(relay.WORD, str(writer))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(SystemExit, match="no more"):
        relay.Turn().begin([])
    for one in (reader, writer):
        os.close(one)
