"""Whole sets of problems: which candidate is for which, how many are fast, what is judged again, and what is told."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import command
import pytest
from synthetic import cell_line, run_line
from tabled import tabled

from hypatia_lab import records
from hypatia_lab.bench import relay
from hypatia_lab.book import own as own_book
from hypatia_lab.cli import judge_set
from hypatia_lab.intervals import NOTHING, Interval
from hypatia_lab.judged import gate
from hypatia_lab.strangers import problem_set
from hypatia_lab.strangers.problem_set import THRESHOLDS, Verdict

PROBLEMS = ("level1/1_Square.py", "level1/10_Wide.py", "level1/19_ReLU.py", "level2/19_Fused.py", "level2/named.py")
FLAT = ("1_Square.py", "19_ReLU.py", "softmax.py")


# ---------------------------------------------------------------- who belongs to whom


@tabled("problem_set", "candidates")
def test_a_candidate_is_for_the_one_problem_of_its_level_and_name_or_number(problems, candidate, problem):
    chosen, left = problem_set.matched({"levels": PROBLEMS, "flat": FLAT}[problems], [candidate])
    assert chosen == ({problem: candidate} if problem else {})
    assert list(left) == ([] if problem else [candidate])


def test_of_several_candidates_the_one_of_the_very_name_is_judged_else_the_first_sample():
    samples = [f"level_1_problem_1_sample_{number}_kernel.py" for number in (10, 2)]
    chosen, left = problem_set.matched(PROBLEMS, [*samples, "level1/19.py", "level1/19_ReLU.py"])
    assert chosen == {"level1/1_Square.py": samples[1], "level1/19_ReLU.py": "level1/19_ReLU.py"}
    assert left.keys() == {samples[0], "level1/19.py"}


def test_a_folder_is_listed_by_number_and_may_be_a_level_itself(tmp_path):
    for name in ("level1/10_b.py", "level1/9_a.py", "level1/_help.py", "level1/notes.md", "__pycache__/c.py", "d.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert list(problem_set.listed(tmp_path)) == ["d.py", "level1/9_a.py", "level1/10_b.py"]
    assert problem_set.listed(tmp_path / "level1")["level1/9_a.py"] == tmp_path / "level1" / "9_a.py"


# ---------------------------------------------------------------- how many are fast


def test_the_interval_decides_what_is_surely_fast_and_what_may_be():
    speeds = [Interval(value, low, high, 5) for value, low, high in ((1.2, 1.1, 1.3), (1, 0.9, 1.1), (0.7, 0.6, 1.0))]
    assert problem_set.fast(speeds, 1.0) == (1, 2)  # 1.0 itself is not above 1
    assert problem_set.fast(speeds, 0.5) == (3, 3)
    assert problem_set.fast(speeds, 1.1) == (0, 1)
    assert problem_set.fast(speeds, 2.0) == (0, 0)


@pytest.mark.parametrize("speed", [NOTHING, Interval(3, 2.9, 3.1, 2), replace(Interval(3, 2.9, 3.1, 5), vetoed=True)])
def test_an_interval_that_says_nothing_may_be_of_any_speed_but_is_right(speed):
    assert [problem_set.fast([speed], p) for p in THRESHOLDS] == [(1, 1), *[(0, 1)] * 5]


# ---------------------------------------------------------------- the command


def entry(operation: str, status: str) -> dict[str, Any]:
    """What ``judge --json`` says of one."""
    if status in ("problem", "file"):
        return {"outcome": "refused", "fault": status, "message": f"{operation}: no"}
    named = {"workload": f"{operation}/8x4/float32/ieee/forward", "machine": "box", "status": status, "ratio": 2.0}
    return named | {"outcome": gate.PASSED if status == "ok" else gate.FAILED, "reason": "", "message": status}


class Judge:
    """Stands in for judging a pair: what it is ``told`` of a problem's stem, and which were ``asked``."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self.asked: list[str] = []

    def __call__(self, commands: Iterable[tuple[Sequence[str], Path]]) -> Iterator[tuple[str, str]]:
        for asked, _ in commands:
            yield self.judged(Path(asked[4]), Path(asked[asked.index("--output") + 1]))

    def judged(self, problem: Path, output: Path) -> tuple[str, str]:
        self.asked.append(problem.stem)
        status = self.told.get(problem.stem, "ok")
        if status == "killed":
            return "", "killed"
        operation = f"kernelbench_{problem.stem.lower()}"
        if status not in ("problem", "file"):
            run = run_line(experiment=operation, processes=5)
            times = {"eager": ("peer", 2.0), "compile": ("peer", 1.25), "model_new": ("own", 1.0)}
            cells = [
                cell_line(operation=operation, shape=[8, 4], variant=name, origin=origin, medians_us=[us] * 5)
                for name, (origin, us) in times.items()
            ]
            cells[2] |= {"status": status} | ({} if status == "ok" else {"medians_us": [], "reason": "off"})
            records.write(output / "book" / "records", run, cells, overwrite=True)
        return json.dumps([entry(operation, status)]), ""


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Judge:
    found = Judge()
    monkeypatch.setattr(relay, "run", found)
    return found


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Problems and candidates: four pairs, and a problem without a candidate."""
    for number in range(1, 6):
        for kind in ("problems", "candidates")[: 1 if number == 5 else 2]:
            path = tmp_path / kind / f"level{1 + number // 4}" / f"{number}_p.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"# {number}")
    return tmp_path / "problems", tmp_path / "candidates"


def judged(folders: tuple[Path, Path], *given: str, page: bool = False) -> command.Outcome:
    problems, candidates = folders
    output = ("--output", candidates.parent / "book", "--device", "cpu", *([] if page else ["--no-page"]))
    return command.call("judge", "--task", "kernelbench", problems, candidates, *output, *given)


def rows(text: str) -> Iterable[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_what_is_kept_is_not_judged_again_unless_a_file_or_the_question_changed(judge, folders):
    judge.told = {"2_p": "wrong", "4_p": "killed"}
    found = judged(folders)
    assert (found.code, judge.asked) == (1, ["1_p", "2_p", "3_p", "4_p"])
    judge.asked.clear()
    judge.told = {}
    (folders[1] / "level1" / "2_p.py").write_text("# mended")
    found = judged(folders)
    assert (found.code, judge.asked) == (0, ["2_p", "4_p"]), "it was changed, and nothing was kept of the other"
    for given, asked in (((), 0), (("--preset", "full"), 4), (("--preset", "full", "--overwrite"), 4)):
        judge.asked.clear()
        assert (judged(folders, *given).code, len(judge.asked)) == (0, asked)


@pytest.mark.parametrize(
    ("status", "code"),
    [("ok", 0), ("skipped", 0), ("problem", 0)]
    + [(status, 1) for status in ("wrong", "cheated", "crashed", "timeout", "too_fast", "file", "killed")],
)
def test_the_exit_status_says_whether_a_candidate_was_not_right(judge, folders, status, code):
    judge.told = {"1_p": status}
    found = judged(folders)
    assert (found.code, len(judge.asked)) == (code, 4), "whatever becomes of one, the others are judged"
    assert ("level1/1_p" in found.err[-1]) is bool(code)


def test_refused_problems_do_not_count_and_those_without_a_candidate_do(judge, folders):
    judge.told = {"1_p": "problem", "2_p": "wrong"}
    found = judged(folders)
    table = [" ".join(row) for row in rows(found.out)]
    assert {
        "level1 eager 2 1 1 1 1 1 0",
        "level1 compile 2 1 1 1 1 0 0",
        "level2 eager 2 1 1 1 1 1 0",
        "level2 compile 2 1 1 1 1 0 0",
        "all eager 4 2 2 2 2 2 0",
        "all compile 4 2 2 2 2 0 0",
    } == {line for line in table if " eager " in line or " compile " in line}
    assert any(row[:4] == ["level1/3_p", "ok", "2.00×", "[2.00,"] for row in rows(found.out))


def test_json_is_an_entry_a_pair_and_nothing_else(judge, folders):
    judge.told = {"1_p": "problem", "4_p": "killed"}
    first, *others, last = json.loads(judged(folders, "--json").out)
    assert (first["outcome"], first["fault"], first["problem"]) == ("refused", "problem", "level1/1_p.py")
    assert [one["compile"]["ratio"] for one in others] == pytest.approx([1.25, 1.25])
    assert [one["level"] for one in (first, *others, last)] == ["level1"] * 3 + ["level2"]
    assert last["outcome"] == "not judged"
    assert all(one["seconds"] >= 0 for one in (first, *others, last))


def test_shares_judge_a_set_together(judge, folders):
    found = judged(folders, "--share", "1/3")
    assert judge.asked == ["1_p", "4_p"]
    assert ["all", "eager", "5", "2", "to", "4"] in [row[:6] for row in rows(found.out)], "two are open"
    for share in ("2/3", "3/3"):
        judged(folders, "--share", share)
    assert judge.asked == ["1_p", "4_p", "2_p", "3_p"]
    assert judged(folders).code == 0
    assert len(judge.asked) == 4


def test_a_set_can_be_narrowed_down(judge, folders):
    assert judged(folders, "--only", "level1/*").code == 0
    assert judged(folders, "--only", "level2/4_p").code == judged(folders, "--only", "level2").code == 0
    assert judge.asked == ["1_p", "2_p", "3_p", "4_p"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("--only", "level3/*"), "no pair"),
        (("--share", "3/2"), "3/2"),
        (("--fail-below", "1"), "--fail-below"),
        (("--device", "tpu"), "tpu"),
    ],
)
def test_a_set_that_cannot_be_judged_is_refused(judge, folders, given, named):
    found = judged(folders, *given)
    assert (found.code, judge.asked, found.out) == (2, [], "")
    assert named in found.err[-1]


def test_a_folder_does_not_go_with_a_file_nor_a_share_with_one_kernel(judge, folders):
    problem = next(folders[0].glob("*/*.py"))
    assert str(problem) in judged((problem, folders[1])).err[-1]
    assert "--share" in judged((problem, problem), "--share", "1/2").err[-1]


def test_a_page_has_a_line_a_pair_in_which_names_are_no_markup(judge, folders, monkeypatch):
    built: list[Path] = []
    monkeypatch.setattr(judge_set.execution, "build_own", lambda folder, path, quiet: built.append(path))
    (folders[0] / "level1" / "9_<b>.py").write_text("# 9")
    (folders[1] / "level1" / "9.py").write_text("# 9")
    judge.told = {"9_<b>": "problem"}
    looks = folders[0].parent / "book" / "book" / "static"
    judged(folders)
    assert not looks.exists()
    judged(folders, page=True)
    assert looks.exists()
    (page,) = built
    text = page.read_text()
    assert "<b>" not in text
    assert text.count("\n| level1\\/") + text.count("\n| level2\\/") == 5
    assert f"root: notebooks/{own_book.SET}" in (page.parents[1] / "_toc.yml").read_text()


def test_what_is_kept_and_cannot_be_read_is_as_if_it_were_not_there(tmp_path):
    path, verdict = tmp_path / "one.json", Verdict(entry("x", "ok"), {"eager": Interval(2, 1.9, 2.1, 5)}, 3.0)
    problem_set.keep(path, ["a"], verdict)
    assert problem_set.kept(path, ["a"]) == verdict
    assert problem_set.kept(path, ["b"]) is None
    path.write_text(path.read_text()[:-9])
    assert problem_set.kept(path, ["a"]) is None


@pytest.mark.slow
def test_three_pairs_are_judged_in_processes_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")  # no compiler: nobody waits for torch.compile
    monkeypatch.delenv("CXX", raising=False)
    here = Path(__file__).resolve().parent / "kernelbench" / "problems" / "softmax.py"
    problem, folders = here.read_text(), (tmp_path / "problems", tmp_path / "candidates")
    texts = {"right": problem, "wrong": problem, "constant": problem.replace("torch.softmax(x, dim=1)", "x * 0")}
    for folder in folders:
        folder.mkdir()
        for name, text in texts.items():
            new = text if folder == folders[0] else text.replace("class Model(", "class ModelNew(")
            off = name == "wrong" and folder == folders[1]
            (folder / f"{name}.py").write_text(new.replace("dim=1)", "dim=1) * 1.01") if off else new)
    found = judged(folders, "--json", page=True)
    assert found.code == 1
    constant, right, wrong = json.loads(found.out)
    assert (constant["outcome"], constant["fault"]) == ("refused", "problem"), found.err
    assert (right["status"], wrong["status"]) == ("ok", "wrong")
    page = (tmp_path / "book" / "_build" / "html" / "notebooks" / f"{own_book.SET}.html").read_text(encoding="utf-8")
    assert "problem refused" in page
