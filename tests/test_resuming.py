"""A record that is there, and a run that was interrupted: what is measured again, what is added, what is kept."""

from __future__ import annotations

import dataclasses
import errno
import importlib
import os
import signal
import time
from typing import Any
from unittest.mock import Mock

import pytest
from measuring import LARGE, NAMES, SMALL, group, tiny
from synthetic import recorded

from hypatia_lab import machine, records, results
from hypatia_lab.bench import composer, details, source_tree
from hypatia_lab.cli import execution
from hypatia_lab.experiments import Probe
from hypatia_lab.workloads import Workload

BOTH = (group(SMALL), group(LARGE))
WORK = Workload("linear_relu", SMALL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_measurement_that_is_asked_to_end_says_what_is_kept(number, capsys):
    given = signal.signal(number, signal.default_int_handler)  # who is started in the background may ignore it
    with pytest.raises(SystemExit) as ended, execution.stoppable(), execution.resumable():
        signal.raise_signal(number)
    assert ended.value.code == 128 + number
    assert "is kept" in capsys.readouterr().err
    assert signal.signal(number, given) is signal.default_int_handler


def test_an_interrupt_that_an_import_swallows_comes_again(tmp_path, monkeypatch):
    swallows = "import signal, time\ntry:\n    signal.raise_signal(signal.SIGTERM)\nexcept BaseException:\n    pass\n"
    (tmp_path / "swallows.py").write_text(swallows + "time.sleep(60)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(execution.Stopped), execution.stoppable():
        importlib.import_module("swallows")


def test_what_is_put_in_order_after_an_interrupt_is_not_interrupted(tmp_path, monkeypatch):
    (tmp_path / "interrupted.py").write_text("import signal\nsignal.raise_signal(signal.SIGTERM)\n")
    monkeypatch.syspath_prepend(tmp_path)
    done = []

    def work() -> None:
        try:
            importlib.import_module("interrupted")
        finally:
            time.sleep(3 * execution.AGAIN_S)
            done.append("in order")

    with pytest.raises(execution.Stopped), execution.stoppable():
        work()
    assert done == ["in order"]


def test_who_is_to_outlive_its_terminal_does():
    given = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with execution.stoppable():
        signal.raise_signal(signal.SIGHUP)
    assert signal.signal(signal.SIGHUP, given) == signal.SIG_IGN


# ---------------------------------------------------------------- a record that is there


def test_a_recorded_experiment_is_measured_again_under_overwrite_only(lab):
    first = lab.measure()
    lab.interrupted(session=1, overwrite=True)
    assert records.load_file(first.path).digest == first.digest
    lab.alter = lambda number, index, name: {"median_us": 321.0}
    assert lab.measure().digest == first.digest
    again = lab.measure(overwrite=True)
    assert len(lab.plans) == 3
    assert again.cells[0]["medians_us"] == [321.0]
    assert again.digest == records.load_file(again.path).digest != first.digest


def test_an_overwrite_that_was_interrupted_keeps_what_it_had_measured(lab, monkeypatch):
    lab.measure()
    campaign = composer.campaign(lab.root / "box")
    assert campaign.begin() == []
    lab.alter = lambda number, index, name: {"median_us": 321.0}
    again = lab.measure(overwrite=True)
    assert campaign.begin() == ["tiny"]
    assert lab.measure(overwrite=True).digest == again.digest
    assert len(lab.plans) == 2
    campaign.end()
    assert recorded(lab.root) == ["box/ceilings", "box/tiny"]
    assert not (lab.root / "box" / ".parts").exists()
    lab.measure(overwrite=True)
    assert len(lab.plans) == 3
    campaign.begin()
    campaign.add("tiny")
    monkeypatch.setattr(source_tree, "commit", lambda: ("1" * 40, False))
    assert composer.campaign(lab.root / "box").begin() == [], "other code does not go on with it"


@pytest.mark.parametrize(("asked", "told"), [({"preset": "seed"}, "preset quick"), ({"device": "cuda"}, "on cpu")])
def test_another_preset_or_device_without_overwrite_is_an_error(lab, asked, told):
    first = lab.measure()
    with pytest.raises(composer.BenchError, match=f"{told}.* --overwrite"):
        lab.measure(**asked)
    assert len(lab.plans) == 1
    assert records.load_file(first.path).digest == first.digest


def test_a_record_of_other_shapes_is_not_taken_for_the_presets(lab):
    lab.measure(group(LARGE), shapes=[LARGE])
    with pytest.raises(composer.BenchError, match="tiny of box .*other shapes.* --overwrite"):
        lab.measure(group(SMALL))


def test_a_record_that_holds_more_than_its_plan_is_kept(lab):
    whole = lab.measure(*BOTH)
    assert lab.measure(group(SMALL)).digest == whole.digest
    nothing = dataclasses.replace(tiny(), plan=lambda *_: [])
    assert lab.measure_experiment(nothing).digest == whole.digest
    with pytest.raises(composer.BenchError, match="other shapes"):
        lab.measure_experiment(nothing, shapes=[LARGE])


def test_what_a_plan_has_gained_is_measured_and_nothing_else(lab):
    first = lab.measure(group(SMALL, NAMES[:2]), processes=2)
    lab.plans.clear()
    lab.alter = lambda number, index, name: {"median_us": 50.0 if name == "epilogue" else 100.0}
    grown = lab.measure(*BOTH, processes=2)
    asked = [[data["variants"] for _, data in plan["groups"]] for plan in lab.plans]
    assert asked == [[["eager", "epilogue"], list(NAMES)]] * 2
    assert [plan["number"] for plan in lab.plans] == [2, 3]
    medians = {(tuple(cell["shape"]), cell["variant"]): cell["medians_us"] for cell in grown.cells}
    assert medians[SMALL, "eager"] == [100.0] * 4
    assert medians[SMALL, "eager@again"] == [100.0, 100.0, None, None]
    assert medians[SMALL, "epilogue"] == [None, None, 50.0, 50.0]
    assert medians[LARGE, "eager"] == [None, None, 100.0, 100.0]
    assert (grown.run["started"], grown.run["processes"]) == (first.run["started"], 4)
    assert [since["processes"] for since in grown.run["grown"]] == [2]
    (row,) = [r for r in results.rows([grown]) if (r.shape, r.variant) == ("4x8x6", "epilogue")]
    assert row.ratio == pytest.approx(2.0)
    assert lab.measure(*BOTH, processes=2).digest == grown.digest
    assert len(lab.plans) == 2


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Topic and variant of the probes that were looked at, by run; each says nothing but that it was."""
    asked: list[Any] = []

    def look(wanted: Any, *_: Any, **__: Any) -> list[dict[str, Any]]:
        asked.append([(probe.topic, probe.variant) for probe in wanted])
        return [line for probe in wanted for line in details.merge(probe, [[]])]

    monkeypatch.setattr(details, "collect", look)
    return asked


def test_a_probe_that_a_plan_has_gained_is_looked_at_alone(lab, looked_at):
    planned = [Probe("trace", WORK, "eager", "", 1)]
    lab.measure(probes=planned)
    planned += [Probe("counters", WORK, "eager", "", 1), Probe("trace", WORK, "epilogue", "", 1)]
    grown = lab.measure(probes=planned)
    assert looked_at == [[("trace", "eager")], [("counters", "eager"), ("trace", "epilogue")]]
    assert [line["topic"] for line in grown.details] == ["trace", "counters", "trace"]
    assert len(lab.plans) == 1


def test_probes_of_other_shapes_are_not_taken_for_those_asked_for(lab, looked_at):
    trace, other = (Probe("trace", Workload("linear_relu", shape), "eager", "", 1) for shape in (SMALL, LARGE))
    lab.measure(probes=[trace])
    lab.measure(probes=[trace, other])
    with pytest.raises(composer.BenchError, match="other shapes"):
        lab.measure(probes=[Probe("trace", Workload("linear_relu", (9, 9, 9)), "eager", "", 1)])
    assert len(looked_at) == 2


def test_no_record_is_written_before_its_traces_are_kept(lab, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(details, "keep_files", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            lab.measure()
    assert "box/tiny" not in recorded(lab.root)
    lab.measure()
    assert lab.measured() == [[0]], "what was measured is still there"


def test_traces_that_cannot_be_kept_are_an_error_that_says_why(tmp_path):
    scratch = tmp_path / "scratch" / "0"
    scratch.mkdir(parents=True)
    (scratch / "trace.json.gz").touch()
    (tmp_path / "traces").touch()
    with pytest.raises(records.RecordError, match="traces"):
        details.keep_files([Probe("trace", WORK, "eager")], tmp_path, tmp_path / "traces", lambda name: True)


# ---------------------------------------------------------------- a run that was interrupted


def test_a_finished_process_is_not_run_again(lab):
    lab.interrupted(processes=2, session=1)
    record = lab.measure(processes=2)
    assert record.cells[0]["medians_us"] == [100.0, 300.0]
    assert [plan["number"] for plan in lab.plans] == [0, 1, 1]
    assert "seconds" not in record.run, "what it took before the interruption is not known"
    assert not (lab.root / "box" / ".parts").exists()


@pytest.mark.parametrize(("other", "chip"), [("aaaaaa", "aaaaaa"), ("bbbbbb", "")])
def test_a_record_whose_processes_ran_on_two_chips_is_of_none(lab, monkeypatch, other, chip):
    plain = machine.facts
    monkeypatch.setattr(machine, "facts", lambda device: plain(device) | {"chip": "aaaaaa"})
    lab.interrupted(processes=2, session=1)
    monkeypatch.setattr(machine, "facts", lambda device: plain(device) | {"chip": other})
    record = lab.measure(processes=2)
    assert (record.chip, len(record.cells[0]["medians_us"])) == (chip, 2)


def test_parts_of_another_plan_are_not_mixed_in(lab):
    lab.interrupted(*BOTH, at=1)
    record = lab.measure(group((3, 3, 3)), group(LARGE))
    assert {cell["medians_us"][0] for cell in record.cells} == {200.0}
    assert lab.measured() == [[0, 1], [0, 1]]


@pytest.mark.parametrize("changed", ["versions", "digest"])
def test_parts_of_other_software_are_not_mixed_in(lab, monkeypatch, changed):
    """Of other versions, or of other sources in a tree with changes."""
    monkeypatch.setattr(source_tree, "commit", lambda: ("0" * 40, changed == "digest"))
    monkeypatch.setattr(details, "collect", Mock(side_effect=KeyboardInterrupt))
    for software in ("old", "old", "new"):
        found = {"versions": {"torch": software}, "digest": software}[changed]
        home = machine if changed == "versions" else source_tree
        monkeypatch.setattr(home, changed, lambda found=found: found)
        with pytest.raises(KeyboardInterrupt):
            lab.measure()
    assert lab.measured() == [[0], [0]], "twice with the old software is once"


@pytest.mark.parametrize("damage", ["", "{", '{"key": "other", "excluded": {}}\n', "\x00\xff"])
def test_damaged_parts_are_measured_again(lab, damage):
    part = lab.root / "box" / ".parts" / "tiny" / "0.json"
    part.parent.mkdir(parents=True)
    part.write_bytes(damage.encode("latin-1"))
    assert len(lab.measure().cells) == len(NAMES)
    assert lab.measured() == [[0]]


def test_a_full_disk_in_mid_run_loses_nothing_measured_so_far(lab, monkeypatch):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patch:
        # The log, the first group, and then it is full.
        patch.setattr(os, "fsync", Mock(side_effect=[None, None, full]))
        with pytest.raises(records.RecordError, match="disk is full") as caught:
            lab.measure(*BOTH)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in (lab.root / "box" / ".parts" / "tiny").iterdir()) == ["0.json", "log.txt"]
    assert recorded(lab.root) == ["box/ceilings"]
    lab.measure(*BOTH)
    assert lab.measured() == [[0, 1], [1]]
