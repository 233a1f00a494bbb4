"""Judging in CI: what passes, what fails and what is left undecided; the exit status, the JSON, and the entry for
tests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic import ceilings, cell_line, run_line

from hypatia_lab import intervals, reader_kernel, records, results, testing, variants
from hypatia_lab.bench import composer
from hypatia_lab.book import own as own_book
from hypatia_lab.cli import commands
from hypatia_lab.experiments import PROCESSES
from hypatia_lab.judged import gate
from hypatia_lab.machine import default_name

EAGER = [100.0, 100.2, 100.1, 99.9, 100.0]


def at(speed: float, *others: float) -> list[float]:
    """Times (µs) of five processes that are so many times as fast as eager; of one speed, with a little scatter."""
    own = [speed, *others] if others else [speed * wobble for wobble in (0.999, 1.0, 1.001, 1.0, 1.0005)]
    return [us / speed for us, speed in zip(EAGER, own, strict=True)]


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
    ("medians", "outcome", "said"),
    [
        (at(1.2), gate.PASSED, ", not below 1.05"),
        (at(0.97), gate.FAILED, ", below 1.05"),
        (at(1.02), gate.FAILED, ", below 1.05"),
        (at(1.0, 1.1, 1.05, 1.08, 1.03), gate.UNDECIDED, "undecided: 1.05 lies within; "),
        # Wide as it is, all of it lies on one side.
        (at(3.0, 9.0, 6.0, 8.0, 4.0), gate.PASSED, ", not below 1.05"),
    ],
)
def test_the_whole_interval_decides(medians, outcome, said):
    (found,) = ruled(cell("eager", EAGER), cell("mine", medians))
    ends = found.row.speed
    assert found.outcome == outcome
    assert re.fullmatch(r"mine at 8x4 float32: [\d.]+ \[[\d.]+, [\d.]+\] of eager's speed.*", found.message)
    assert said in found.message
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


def test_an_interval_that_says_nothing_decides_nothing():
    few = ruled(cell("eager", EAGER[:2]), cell("mine", at(2.0)[:2]))
    apart = cell("eager@again", at(2.0), baseline="eager")
    vetoed = ruled(cell("eager", EAGER), apart, cell("mine", at(2.0)))
    wild = ruled(cell("eager", EAGER), cell("mine", at(1, 2000, 3, 500, 40)))
    for found, word in ((few, "2 of at least 3 processes"), (vetoed, "told apart"), (wild, "too noisy (n = 5)")):
        (one,) = found
        assert one.outcome == gate.UNDECIDED
        assert word in one.message
        assert one.stops(let_undecided=False) is not one.stops(let_undecided=True)


def test_the_processes_that_would_decide_are_those_of_the_preset_that_is_named():
    for near in (1.0, 1.02, 1.03, 1.045):
        (found,) = ruled(cell("eager", EAGER), cell("mine", at(near, near + 0.06, near + 0.02, near - 0.02, near)))
        if told := re.search(r"about (\d+) processes \(--preset (\w+)\)", found.message):
            needed = int(told[1])
            assert found.row.n < needed <= max(20, PROCESSES[told[2]])
            assert needed == intervals.processes_to_clear(found.row.speed, 1.05, 20)
        else:
            assert found.outcome == gate.FAILED or "more than 20 processes" in found.message


def test_each_variant_and_workload_is_held_against_the_one_asked_for():
    cells = [cell("eager", EAGER), cell("compile", at(2.0)), cell("mine", at(1.5)), cell("yours", at(3.0))]
    cells += [one | {"shape": [16, 4]} for one in cells]
    found = ruled(*cells, against="compile", limit=1.0)
    assert [(one.row.variant, one.row.shape, one.outcome) for one in found] == [
        ("mine", "8x4", gate.FAILED),
        ("yours", "8x4", gate.PASSED),
        ("mine", "16x4", gate.FAILED),
        ("yours", "16x4", gate.PASSED),
    ]
    assert {one.row.baseline for one in found} == {"compile"}
    assert found[0].row.ratio == pytest.approx(0.75, rel=0.01)
    assert {one.row.variant for one in ruled(*cells, against="mine")} == {"yours"}


# ---------------------------------------------------------------- the command

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], rehearsed_here: None) -> Call:
    """Calls the command in this process, which forgets what a file declared; exit status, output, complaints."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with variants.restored(), pytest.raises(SystemExit) as ended:
            commands.main([str(argument) for argument in arguments], prog_name="hypatia-lab")
        assert isinstance(ended.value.code, int)
        told = capsys.readouterr()
        return ended.value.code, told.out, told.err

    return run


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The template with another kernel of the reader's, in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.py"
    second = (
        '\n\n@variant("tiny", "yours", origin="own")\ndef yours(workload, inputs):\n    return mine(workload, inputs)\n'
    )
    path.write_text(own_book.template("tiny.py") + second)
    return path


def recorded(kernel: Path, **mine: Any) -> tuple[object, ...]:
    """Leaves a record of ``kernel``, in which ``mine`` is so, and returns the arguments that read it again."""
    run = run_line(experiment="tiny", processes=5, source=reader_kernel.digest(kernel))
    names = {"eager": EAGER, "eager@again": EAGER, "compile": at(0.5), "mine": at(1.2), "yours": at(1.5)}
    cells = [cell(name, times, baseline="eager") | (mine if name == "mine" else {}) for name, times in names.items()]
    folder = kernel.parent / "book"
    records.write(folder / "book" / "records", run, cells, overwrite=True)
    own_book.begin(folder)
    given = ("--device", "cpu", "--machine", "box", "--shapes", "8x4", "--output", folder, "--no-page")
    return ("judge", kernel, *given)


UNDECIDED = {"medians_us": at(1.0, 1.1, 1.05, 1.08, 1.03)}


def test_a_faster_kernel_passes_and_says_so(kernel, call):
    code, out, err = call(*recorded(kernel), "--fail-below", "1.05")
    assert code == 0
    assert len(re.findall(r"(mine|yours) at 8x4 float32: .* of eager's speed, not below 1\.05", out)) == 2
    assert "hypatia-lab: " not in err


@pytest.mark.parametrize(
    ("mine", "given", "code", "told"),
    [
        ({"medians_us": at(0.97)}, (), 1, r"mine at 8x4 float32: 0\.97.* of eager's speed, below 1\.05"),
        ({"medians_us": at(0.97)}, ("--undecided", "pass"), 1, "below 1.05"),
        ({"medians_us": at(0.97)}, ("--against", "compile"), 0, ""),
        ({"medians_us": at(1.2)}, ("--against", "yours"), 1, "of yours's speed, below 1.05"),
        ({"status": "wrong", "reason": "a tail"}, ("--undecided", "pass"), 1, "mine at 8x4 float32: wrong: a tail"),
        ({"status": "skipped", "reason": "no GPU"}, (), 1, "mine at 8x4 float32: skipped: no GPU"),
        (UNDECIDED, (), 1, "undecided: 1.05 lies within; .* would decide"),
        (UNDECIDED, ("--undecided", "fail"), 1, "undecided"),
        (UNDECIDED, ("--undecided", "pass"), 0, r"undecided: 1\.05 lies within; .* \(let through\)"),
    ],
)
def test_the_exit_status_is_the_answer_and_the_reason_one_line(kernel, call, mine, given, code, told):
    found, _, err = call(*recorded(kernel, **mine), "--fail-below", "1.05", *given)
    lines = [line for line in err.splitlines() if line.startswith("hypatia-lab: ")]
    assert found == code
    assert len(lines) == bool(told)
    assert not told or re.search(told, lines[0])


def test_without_a_limit_all_is_as_it_was(kernel, call):
    assert call(*recorded(kernel, medians_us=at(0.5)))[0] == 0
    assert call(*recorded(kernel, status="skipped", reason="no GPU"))[0] == 0
    code, _, err = call(*recorded(kernel, status="wrong", reason="a tail"))
    assert (code, err.splitlines()[-1]) == (1, "hypatia-lab: not right: mine (wrong)")


def test_json_is_an_array_of_every_variant_and_workload_and_nothing_else(kernel, call):
    code, out, _ = call(*recorded(kernel, **UNDECIDED), "--fail-below", "1.05", "--json")
    mine, yours = json.loads(out)
    assert code == 1
    assert (mine["variant"], mine["outcome"], yours["outcome"]) == ("mine", gate.UNDECIDED, gate.PASSED)
    assert (mine["workload"], mine["against"]) == ("tiny/8x4/float32/ieee/forward", "eager")
    assert mine["ratio_low"] < mine["limit"] == 1.05 < mine["ratio_high"]
    assert (mine["status"], mine["reason"], mine["n"]) == ("ok", "", 5)
    code, out, _ = call(*recorded(kernel, status="wrong", reason="a tail"), "--json")
    mine, _ = json.loads(out)
    assert (code, mine["outcome"], mine["limit"], mine["ratio"]) == (1, gate.FAILED, None, None)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--fail-below", "1", "--against", "eagre"), "unknown variant 'eagre' of tiny; did you mean 'eager'?"),
        (("--fail-below", "1", "--against", "eager@again"), "unknown variant 'eager@again' of tiny"),
        (("--against", "eager"), "--against eager goes with --fail-below"),
        (("--undecided", "pass"), "--undecided pass goes with --fail-below"),
        (("--fail-below", "0"), "Invalid value for '--fail-below'"),
        (("--fail-below", "nan"), "Invalid value for '--fail-below'"),
        (("--fail-below", "1", "--undecided", "maybe"), "Invalid value for '--undecided'"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_runs(kernel, call, monkeypatch, given, told):
    monkeypatch.setattr(composer, "measure", lambda *_, **__: pytest.fail("something was measured"))
    code, out, err = call("judge", kernel, "--device", "cpu", *given)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert told in err


def test_one_kernel_is_not_held_against_itself(kernel, call):
    kernel.write_text(own_book.template("tiny.py"))
    code, _, err = call("judge", kernel, "--device", "cpu", "--fail-below", "1", "--against", "mine")
    assert code == 2
    assert "mine is the only variant of yours" in err


# ---------------------------------------------------------------- in a test


@pytest.fixture
def here(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of :func:`testing.judge` runs in this process and reads what is recorded."""
    kept = ("--overwrite",)  # would measure
    named = ("--machine", "box")
    monkeypatch.setattr(testing, "_run", lambda asked: call(*(one for one in asked if one not in kept), *named))


def judged(kernel: Path, **given: Any) -> list[dict[str, Any]]:
    return testing.judge(kernel, shapes=["8x4"], device="cpu", output=kernel.parent / "book", **given)


@pytest.mark.usefixtures("here")
def test_a_test_passes_or_fails_by_the_same_message(kernel, call):
    recorded(kernel)
    assert {row["variant"]: row["outcome"] for row in judged(kernel, at_least=1.05)} == dict.fromkeys(
        ("mine", "yours"), gate.PASSED
    )
    with pytest.raises(AssertionError, match=r"^mine at 8x4 float32: 0\.80.* of yours's speed, below 1\.05$"):
        judged(kernel, at_least=1.05, against="yours")
    arguments = recorded(kernel, **UNDECIDED)
    with pytest.raises(AssertionError) as caught:
        judged(kernel, at_least=1.05)
    assert f"hypatia-lab: {caught.value}\n" in call(*arguments, "--fail-below", "1.05")[2]
    assert len(judged(kernel, at_least=1.05, undecided="pass")) == 2


def test_a_test_asks_what_the_command_understands(kernel, call, monkeypatch):
    """Of all that a test may say; the first that cannot be is what the command complains of."""
    monkeypatch.setattr(testing, "_run", lambda asked: call(*asked))
    task = ("kernelbench", kernel.with_name("gone.py"))
    with pytest.raises(testing.JudgeError, match=r"gone\.py: cannot be read"):
        testing.judge(kernel, at_least=1.05, undecided="pass", task=task, device="cpu", output="book")
    with pytest.raises(testing.JudgeError, match="--shapes is for a file of your own"):
        testing.judge(kernel, at_least=1.05, task=task, shapes=["4x4"], device="cpu")


@pytest.mark.usefixtures("here")
def test_a_question_that_cannot_be_asked_is_no_failed_assertion(kernel):
    with pytest.raises(testing.JudgeError, match="^unknown variant 'eagre' of tiny"):
        judged(kernel, at_least=1.05, against="eagre")
    with pytest.raises(testing.JudgeError, match="cannot be read"):
        judged(kernel.with_name("none.py"), at_least=1.05)


LOOKUP = '''

@variant("tiny", "short", origin="own")
def short(workload, inputs):
    """Skips the last row."""
    run = mine(workload, inputs)
    return lambda: run() * (torch.arange(workload.shape[0])[:, None] < workload.shape[0] - 1)
'''


@pytest.mark.slow
def test_a_kernel_is_measured_and_failed_in_a_process_of_its_own(kernel, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")  # no compiler: nobody waits for torch.compile
    monkeypatch.delenv("CXX", raising=False)
    slow = kernel.read_text().replace("return torch.nn", "x = x @ torch.eye(x.shape[1]).to(x)\n    return torch.nn")
    kernel.write_text(slow + LOOKUP)
    book = tmp_path / "book"
    line = run_line(machine=default_name("cpu"), experiment="ceilings")
    records.write(book / "book" / "records", line, ceilings({"ieee": 1e3, "float64": 1e3}, "hot"))
    own_book.begin(book)
    with pytest.raises(AssertionError, match="^short at 64x512 float32: wrong: unwritten: [^\n]*$"):
        testing.judge(kernel, at_least=1.05, shapes=["64x512"], device="cpu", output=book)
    (found,) = records.load(book / "book" / "records", experiments=["tiny"])
    (fast,) = (row for row in results.rows([found]) if row.variant == "mine")
    assert fast.n >= PROCESSES["quick"]
    assert fast.ratio_low > 1.05
    assert sorted(path.name for path in tmp_path.iterdir()) == ["book", "tiny.py"]
