"""Judging in CI: what passes, what fails and what is left undecided; the exit status, the JSON, and the entry for
tests."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import command
import pytest
from synthetic import cell_line, run_line
from test_own_book import give_ceilings

from hypatia_lab import intervals, records, results, testing, variants
from hypatia_lab.book import own as own_book
from hypatia_lab.experiments import PROCESSES
from hypatia_lab.judged import gate
from hypatia_lab.machine import default_name
from hypatia_lab.strangers import reader_kernel

STRANGERS = Path(__file__).resolve().parent / "strangers"
EAGER = [100.0, 100.2, 100.1, 99.9, 100.0]


def at(speed: float, *others: float) -> list[float]:
    """Times (µs) of five processes that are so many times as fast as eager; of one speed, with a little scatter."""
    own = [speed, *others] if others else [speed * wobble for wobble in (0.999, 1.0, 1.001, 1.0, 1.0005)]
    return [us / speed for us, speed in zip(EAGER, own, strict=True)]


AROUND = at(1.0, 1.1, 1.05, 1.08, 1.03)
"""Around a limit of 1.05."""


def cell(variant: str, medians: list[float], **changes: Any) -> dict[str, Any]:
    """A cell of operation ``tiny``, timed in five processes."""
    own = "peer" if variant.startswith(("eager", "compile")) else "own"
    line = {"operation": "tiny", "shape": [8, 4], "variant": variant, "origin": own, "medians_us": medians}
    return cell_line(**line | changes)


def ruled(*cells: dict[str, Any], against: str = "eager", limit: float | None = 1.05) -> list[gate.Ruling]:
    found = records.Record(Path(), run_line(experiment="tiny", processes=5), cells, "")
    return gate.rulings(results.rows([found]), "hot", against, limit)


# ---------------------------------------------------------------- the interval decides


@pytest.mark.parametrize(
    ("medians", "outcome"),
    [
        (at(1.2), gate.PASSED),
        (at(0.97), gate.FAILED),
        (at(1.02), gate.FAILED),
        (AROUND, gate.UNDECIDED),
        (at(0.95, 1.1, 1.0, 1.08, 1.03), gate.UNDECIDED),  # its middle lies below
        (at(3.0, 9.0, 6.0, 8.0, 4.0), gate.PASSED),  # wide as it is, all of it lies on one side
    ],
)
def test_the_whole_interval_decides(medians, outcome):
    (found,) = ruled(cell("eager", EAGER), cell("mine", medians))
    ends = found.row.speed
    assert found.outcome == outcome
    assert re.match(r"mine at 8x4 float32: [\d.]+ \[[\d.]+, [\d.]+\].*\b1\.05\b", found.message)
    assert (ends.low >= 1.05, ends.high < 1.05) == (outcome == gate.PASSED, outcome == gate.FAILED)


def test_a_limit_that_is_the_end_of_the_interval_is_not_undershot():
    (found,) = ruled(cell("eager", EAGER), cell("mine", EAGER), limit=1.0)
    assert (found.row.speed.low, found.outcome) == (1.0, gate.PASSED)


@pytest.mark.parametrize("status", [status for status in records.STATUSES if status != "ok"])
def test_what_is_not_right_or_was_not_run_fails_whatever_its_speed(status):
    bad = cell("mine", [], status=status, reason="it did that")
    (found,) = ruled(cell("eager", EAGER), bad, limit=0.001)
    assert (found.outcome, found.stops(let_undecided=True)) == (gate.FAILED, True)
    assert found.message == f"mine at 8x4 float32: {status.replace('_', ' ')}: it did that"
    (free,) = ruled(cell("eager", EAGER), bad, limit=None)
    assert free.outcome == (gate.SKIPPED if status == "skipped" else gate.FAILED)


def test_who_fails_by_another_clock_has_failed():
    cells = [cell(name, EAGER, clock=word) for word in ("hot", "wall") for name in ("eager", "mine")]
    cells[-1] |= {"status": "crashed", "reason": "at the third call", "medians_us": []}
    (found,) = ruled(*cells, limit=0.5)
    assert (found.outcome, found.row.status) == (gate.FAILED, "crashed")


def test_without_anything_to_compare_with_it_fails():
    (found,) = ruled(cell("eager", [], status="wrong", reason="off by one"), cell("mine", EAGER))
    assert found.outcome == gate.FAILED
    assert "eager was wrong: off by one" in found.message


@pytest.mark.parametrize(
    ("medians", "others", "flaw"),
    [
        (at(2.0)[:2], [], f"2 of at least {intervals.FEW}"),
        (at(2.0), [cell("eager@again", at(2.0), baseline="eager")], "eager@again"),
        (at(1, 2000, 3, 500, 40), [], "n = 5"),
    ],
)
def test_an_interval_that_says_nothing_decides_nothing(medians, others, flaw):
    (found,) = ruled(cell("eager", EAGER[: len(medians)]), *others, cell("mine", medians))
    assert found.outcome == gate.UNDECIDED
    assert flaw in found.message
    assert found.stops(let_undecided=False) is not found.stops(let_undecided=True)


def test_the_processes_that_would_decide_are_those_of_the_preset_that_is_named():
    for near in (1.0, 1.02, 1.03, 1.045):
        (found,) = ruled(cell("eager", EAGER), cell("mine", at(near, near + 0.06, near + 0.02, near - 0.02, near)))
        if told := re.search(r"about (\d+) processes \(--preset (\w+)\)", found.message):
            needed = int(told[1])
            assert found.row.n < needed <= (20 if told[2] == "full" else PROCESSES[told[2]])
            assert needed == intervals.processes_to_clear(found.row.speed, 1.05, 20)
        else:
            assert found.outcome == gate.FAILED or "more than 20 processes" in found.message


def test_each_variant_and_workload_is_held_against_the_one_asked_for():
    cells = [cell("eager", EAGER), cell("compile", at(2.0)), cell("mine", at(1.5)), cell("yours", at(3.0))]
    cells += [one | {"shape": [16, 4]} for one in cells]
    found = ruled(*cells, against="compile", limit=1.0)
    told = {(one.row.variant, one.row.shape): one.outcome for one in found}
    outcomes = {"mine": gate.FAILED, "yours": gate.PASSED}
    assert told == {(name, shape): outcomes[name] for name in outcomes for shape in ("8x4", "16x4")}
    assert {one.row.baseline for one in found} == {"compile"}
    assert found[0].row.ratio == pytest.approx(0.75, rel=0.01)
    assert {one.row.variant for one in ruled(*cells, against="mine")} == {"yours"}


# ---------------------------------------------------------------- the command


@variants.restored()
def judge(*arguments: object) -> command.Outcome:
    """Calls the command in this process, which forgets what a file declared."""
    return command.call("judge", *arguments)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rehearsed_here: None) -> Path:
    """A file of the reader's, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(STRANGERS / "tiny.py", tmp_path))


def recorded(kernel: Path, **mine: Any) -> tuple[object, ...]:
    """Leaves a record of ``kernel``, in which ``mine`` is so, and returns the arguments that read it again."""
    run = run_line(experiment="tiny", processes=5, source=reader_kernel.digest(kernel))
    names = {"eager": EAGER, "eager@again": EAGER, "compile": at(0.5), "mine": at(1.2), "yours": at(1.5)}
    cells = [cell(name, times, baseline="eager") for name, times in names.items()]
    cells.append(cell("split", EAGER, baseline="eager", origin="peer"))
    cells[3] |= mine
    folder = kernel.parent / "book"
    records.write(folder / "book" / "records", run, cells, overwrite=True)
    own_book.begin(folder)
    return (kernel, "--device", "cpu", "--machine", "box", "--shapes", "8x4", "--no-page", "--output", folder)


WRONG, SKIPPED = {"status": "wrong", "reason": "a tail"}, {"status": "skipped", "reason": "no GPU"}


LIMIT = "--fail-below 1.05"


@pytest.mark.parametrize(
    ("mine", "given", "code", "told"),
    [
        ({}, LIMIT, 0, ""),
        ({"medians_us": at(0.97)}, LIMIT, 1, r"mine at 8x4 float32: 0\.97.* 1\.05"),
        ({"medians_us": at(0.97)}, f"{LIMIT} --undecided pass", 1, r"mine.* 1\.05"),
        ({"medians_us": at(0.97)}, f"{LIMIT} --against compile", 0, ""),
        ({}, f"{LIMIT} --against yours", 1, r"mine.* yours's .*1\.05"),
        (WRONG, f"{LIMIT} --undecided pass", 1, "mine at 8x4 float32: wrong: a tail"),
        (SKIPPED, LIMIT, 1, "mine at 8x4 float32: skipped: no GPU"),
        ({"medians_us": AROUND}, LIMIT, 1, r"undecided: 1\.05"),
        ({"medians_us": AROUND}, f"{LIMIT} --undecided fail", 1, r"undecided: 1\.05"),
        ({"medians_us": AROUND}, f"{LIMIT} --undecided pass", 0, r"undecided: 1\.05"),
        # Without a limit only what is not right fails.
        ({"medians_us": at(0.5)}, "", 0, ""),
        (SKIPPED, "", 0, ""),
        (WRONG, "", 1, r"mine \(wrong\)"),
    ],
)
def test_the_exit_status_is_the_answer_and_the_reason_one_line(kernel, mine, given, code, told):
    found = judge(*recorded(kernel, **mine), *given.split())
    lines = [line for line in found.err if line.startswith("hypatia-lab: ")]
    assert (found.code, len(lines)) == (code, bool(told))
    assert not told or re.search(told, lines[0])
    if (mine, given) == ({}, LIMIT):
        assert len(re.findall(r"(?:mine|yours) at 8x4 float32: .* 1\.05", found.out)) == 2


def test_json_is_an_array_of_every_variant_and_workload_and_nothing_else(kernel):
    found = judge(*recorded(kernel, medians_us=AROUND), "--fail-below", "1.05", "--json")
    mine, yours = json.loads(found.out)
    assert found.code == 1
    assert (mine["variant"], mine["outcome"], yours["outcome"]) == ("mine", gate.UNDECIDED, gate.PASSED)
    assert (mine["workload"], mine["against"]) == ("tiny/8x4/float32/ieee/forward", "eager")
    assert mine["ratio_low"] < mine["limit"] == 1.05 < mine["ratio_high"]
    assert (mine["status"], mine["reason"], mine["n"]) == ("ok", "", 5)
    found = judge(*recorded(kernel, status="wrong", reason="a tail"), "--json")
    mine, _ = json.loads(found.out)
    assert (found.code, mine["outcome"], mine["limit"], mine["ratio"]) == (1, gate.FAILED, None, None)


# ---------------------------------------------------------------- in a test


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of :func:`testing.judge` runs in this process and reads what is recorded."""

    def run(asked: list[str]) -> tuple[int, str, str]:
        found = judge(*(one for one in asked[1:] if one != "--overwrite"), "--machine", "box")
        return found.code, found.out, "".join(f"{line}\n" for line in found.err)

    monkeypatch.setattr(testing, "run_command", run)


def judged(kernel: Path, **given: Any) -> list[dict[str, Any]]:
    asked: dict[str, Any] = {"at_least": 1.05, "device": "cpu", "output": kernel.parent / "book"}
    asked |= {} if "task" in given else {"shapes": ["8x4"]}
    return testing.judge(kernel, **asked | given)


@pytest.mark.usefixtures("here")
def test_a_test_passes_or_fails_by_the_same_message(kernel):
    recorded(kernel)
    assert {row["variant"]: row["outcome"] for row in judged(kernel)} == dict.fromkeys(("mine", "yours"), gate.PASSED)
    with pytest.raises(AssertionError, match=r"^mine at 8x4 float32: 0\.80.* yours's .* 1\.05$"):
        judged(kernel, against="yours")
    arguments = recorded(kernel, medians_us=AROUND)
    with pytest.raises(AssertionError) as caught:
        judged(kernel)
    assert f"hypatia-lab: {caught.value}" in judge(*arguments, "--fail-below", "1.05").err
    assert len(judged(kernel, undecided="pass")) == 2


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("file", "given", "named"),
    [
        ("tiny.py", {"against": "eagre"}, "eagre"),
        ("none.py", {}, "none.py"),
        ("tiny.py", {"task": ("kernelbench", "gone.py")}, "gone.py"),
        ("tiny.py", {"task": ("kernelbench", "gone.py"), "shapes": ["4x4"]}, "--shapes"),
    ],
)
def test_a_question_that_cannot_be_asked_is_no_failed_assertion(kernel, file, given, named):
    with pytest.raises(testing.JudgeError, match=named):
        judged(kernel.with_name(file), **given)


@pytest.mark.slow
def test_a_kernel_is_measured_and_failed_in_a_process_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")  # no compiler: nobody waits for torch.compile
    monkeypatch.delenv("CXX", raising=False)
    book = tmp_path / "book"
    give_ceilings(book, machine=default_name("cpu"))
    with pytest.raises(AssertionError, match="^short at 64x512 float32: wrong: unwritten: [^\n]*$"):
        testing.judge(STRANGERS / "slow_reference.py", at_least=1.05, device="cpu", output=book)
    (found,) = records.load(book / "book" / "records", experiments=["slow_reference"])
    (fast,) = (row for row in results.rows([found]) if row.variant == "mine")
    assert fast.n >= PROCESSES["quick"]
    assert fast.ratio_low > 1.05
    assert [path.name for path in tmp_path.iterdir()] == ["book"]
