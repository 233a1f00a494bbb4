"""One measuring process, seen from inside: what it tells of variants that are right, wrong, too slow or deadly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
import torch
from measuring import SMALL, group, register_deadly

from hypatia_lab import clock, messages, variants
from hypatia_lab.bench import cells
from hypatia_lab.workloads import Workload


@pytest.fixture(scope="module")
def deadly() -> Iterator[None]:
    """Registers variants that go wrong."""
    with pytest.MonkeyPatch.context() as patch, variants.restored():
        register_deadly(patch)
        yield


def session_here(excluded: Any = None, device: str = "cpu") -> tuple[cells.OwnSession, list[dict[str, Any]]]:
    """A measuring process's work without the process, and the events it will have emitted."""
    events: list[dict[str, Any]] = []
    plan = {"device": device, "gpu": "", "number": 0, "excluded": excluded or {}, "groups": []}
    return cells.OwnSession(plan, lambda event, **fields: events.append({"event": event} | fields)), events


def run_here(*names: str, **how: Any) -> list[dict[str, Any]]:
    """Every event that a measuring process emits over ``names`` on SMALL."""
    session, events = session_here(**how)
    session.run(0, asdict(group(SMALL, names)))
    return events


def rows_by_name(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The row of each variant; each must have exactly one."""
    rows = [event for event in events if event["event"] == "row"]
    found = {row["variant"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def begun(events: list[dict[str, Any]]) -> list[Any]:
    """What it said that it began, in order."""
    return [event["what"] for event in events if event["event"] == "begin"]


def test_who_comes_first_does_not_follow_from_the_number_of_the_process():
    """Else the same one does in every record, and twins of all records are one pair told many times."""

    def built() -> list[Any]:
        return begun(run_here("eager", "eager@again", "epilogue"))[1:4]

    first = built()
    assert any(built() != first for _ in range(20))  # 6 orders: once in 4e15 by chance


def test_a_wrong_variant_never_has_a_speed(deadly):
    rows = rows_by_name(run_here("eager", "zeros", "zeros_late"))
    assert rows["eager"]["status"] == "ok"
    assert rows["eager"]["median_us"] > 0
    for name in ("zeros", "zeros_late"):
        assert rows[name]["status"] == "wrong"
        assert (rows[name]["median_us"], rows[name]["samples_us"]) == (None, [])
    assert not rows["zeros"]["reason"].startswith("after timing")
    assert rows["zeros_late"]["reason"].startswith("after timing: ")


def test_a_wrong_variant_is_not_even_timed(deadly, monkeypatch):
    timed = []

    def spy(runs: Any, *_: Any, **__: Any) -> Any:
        timed.append(sorted(runs))
        return {name: clock.Timing(1, [1.0]) for name in runs}

    monkeypatch.setattr(clock, "measure", spy)
    run_here("eager", "zeros", "epilogue")
    run_here("zeros")
    assert timed == [["eager", "epilogue"]]


def test_who_fails_is_crashed_with_its_own_words_and_the_others_are_measured(deadly, capfd):
    rows = rows_by_name(run_here("raises", "too_large", "too_large_late", "eager", "epilogue"))
    assert {name: row["status"] for name, row in rows.items()} == {
        **dict.fromkeys(("raises", "too_large", "too_large_late"), "crashed"),
        **dict.fromkeys(("eager", "epilogue"), "ok"),
    }
    assert rows["raises"]["reason"] == "RuntimeError: no such tile"
    assert "and a long story" in capfd.readouterr().err  # the whole of it goes to the log
    assert "DefaultCPUAllocator" in rows["too_large"]["reason"]
    late = rows["too_large_late"]
    assert late["reason"] == "after timing: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert late["median_us"] is None


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_without_memory_for_one_variant_still_measures_the_others(deadly):
    rows = rows_by_name(run_here("too_large", "eager", device="cuda"))
    assert rows["too_large"]["status"] == "crashed"
    assert rows["too_large"]["reason"].startswith("OutOfMemoryError")
    assert rows["eager"]["status"] == "ok"


def test_inputs_that_cannot_be_drawn_end_their_group_only(monkeypatch):
    def full(workload: Workload, device: str) -> Any:
        raise MemoryError("no room for x")

    session, events = session_here()
    with monkeypatch.context() as patch:
        patch.setattr(cells.check, "Problem", full)
        session.run(0, asdict(group(SMALL, ("eager", "epilogue"), ("hot", "cold"))))
    session.run(1, asdict(group(SMALL, ("eager",))))
    rows = [event for event in events if event["event"] == "row"]
    assert [(r["group"], r["variant"], r["clock"], r["status"]) for r in rows] == [
        *((0, name, word, "crashed") for name in ("eager", "epilogue") for word in ("hot", "cold")),
        (1, "eager", "hot", "ok"),
    ]
    assert rows[0]["reason"].endswith("MemoryError: no room for x")
    assert begun(events)[:3] == [[0, ""], [1, ""], [1, "eager"]]


def test_what_killed_an_earlier_process_is_not_run_again(deadly, monkeypatch):
    rows = rows_by_name(run_here("eager", "segfaults", excluded={"0/segfaults": ["timeout", "no sign of life"]}))
    assert (rows["segfaults"]["status"], rows["segfaults"]["reason"]) == ("timeout", "no sign of life")
    assert rows["eager"]["status"] == "ok"
    monkeypatch.setattr(cells.check, "Problem", lambda workload, device: pytest.fail("drawn"))
    rows = rows_by_name(run_here("eager", "epilogue", excluded={"0/": ["crashed", "signal SIGKILL"]}))
    assert {row["status"] for row in rows.values()} == {"crashed"}
    assert all(row["reason"].endswith("signal SIGKILL") for row in rows.values())


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("", "no message"),
        ("\n  no such tile\nand a long story", "no such tile"),
        (
            "backend='inductor' raised:\n\nCppCompileError: C++\nCommand:",
            "backend='inductor' raised: CppCompileError: C++",
        ),
        ("nothing follows:\n", "nothing follows:"),
        ("x" * 300, "x" * 200),
    ],
)
def test_a_failure_is_told_in_one_line_and_an_announced_cause_with_it(message, told):
    assert messages.one_line(RuntimeError(message)) == f"RuntimeError: {told}"


def test_a_variant_that_cannot_run_here_is_skipped_unbuilt(deadly):
    rows = rows_by_name(run_here("eager", "elsewhere"))
    assert (rows["elsewhere"]["status"], rows["elsewhere"]["reason"]) == ("skipped", "not on a cpu")


def test_a_call_beyond_the_limit_is_skipped_with_its_length(monkeypatch):
    monkeypatch.setattr(clock, "once_s", lambda run, device: 6.0)
    row = rows_by_name(run_here("eager"))["eager"]
    assert (row["status"], row["reason"][:3], row["median_us"]) == ("skipped", "6.0", None)


def test_a_size_that_would_take_too_long_is_skipped_without_a_call():
    session, events = session_here()
    session.pace.rates["linear_relu", "eager", "float32", "ieee"] = 1.0  # FLOP/s on a smaller size
    session.run(0, asdict(group(SMALL, ("eager@again",))))
    row = rows_by_name(events)["eager@again"]
    assert (row["status"], row["error"]) == ("skipped", None)
    assert row["reason"].startswith(f"about {Workload('linear_relu', SMALL).flops} s")


@pytest.mark.parametrize(
    ("took", "rate"),
    [([0.4, 0.03], 0.03), ([0.0015], None)],
    ids=["held_up", "all_overhead"],
)
def test_one_call_of_a_small_size_does_not_rule_out_larger_ones(monkeypatch, took, rate):
    """One that was held up is made once more; a short one may be all overhead."""
    session, _ = session_here()
    calls = iter(took)
    monkeypatch.setattr(clock, "once_s", lambda run, device: next(calls))
    session.run(0, asdict(group(SMALL, ("eager",))))
    who = ("linear_relu", "eager", "float32", "ieee")
    assert session.pace.rates == ({who: Workload("linear_relu", SMALL).flops / rate} if rate else {})


@pytest.mark.parametrize(("waited", "times"), [(0.0, 2), (clock.SETTLE_S, 1)], ids=["rests", "never rests"])
def test_background_work_is_waited_for_before_timing(monkeypatch, waited, times):
    told: list[str] = []
    measure = clock.measure
    monkeypatch.setattr(clock, "settle", lambda but: told.append("settled") or waited)
    monkeypatch.setattr(clock, "measure", lambda *given, **more: told.append("timed") or measure(*given, **more))
    session, _ = session_here()
    for index in range(2):
        session.run(index, asdict(group(SMALL, ("eager",))))
    assert told[:2] == ["settled", "timed"]
    assert (told.count("settled"), told.count("timed")) == (times, 2)


@pytest.mark.parametrize("names", [("eager", "dies_late"), ("dies_late", "eager")])
def test_a_death_while_timing_is_blamed_on_the_variant_that_was_running(deadly, names):
    session, events = session_here()
    with pytest.raises(SystemExit):
        session.run(0, asdict(group(SMALL, names)))
    assert begun(events)[-1] == [0, "dies_late"]
