"""Measuring from end to end: what a record holds, what is not believed of it, and what is refused."""

from __future__ import annotations

import subprocess

import pytest
from measuring import LARGE, NAMES, SMALL, Lab, answer, by_variant, give_ceilings, group, register_deadly, tiny
from synthetic import recorded

from hypatia_lab import records, results, variants
from hypatia_lab.bench import composer, joining, kept_records, progress, sessions, source_tree
from hypatia_lab.experiments import EXPERIMENTS
from hypatia_lab.experiments.plan import Source
from hypatia_lab.pages import repeatability

# ---------------------------------------------------------------- real processes, to the end

MANY = (*NAMES, "segfaults", "zeros")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> records.Record:
    """The record of a real process, which waits for its plan, is killed by a variant and started once more, in a folder
    that held nothing but ceilings."""
    root = tmp_path_factory.mktemp("records")
    give_ceilings(root)
    with pytest.MonkeyPatch.context() as patch, variants.restored():
        register_deadly(patch)
        patch.setattr(sessions, "room", lambda wanted: wanted)
        patch.setattr(source_tree, "commit", lambda: ("0" * 40, False))
        groups = (group(LARGE), group(SMALL, MANY, ("hot", "graph")), group(SMALL, clocks=()))
        return Lab(root).measure(*groups)


def test_measuring_leaves_the_record_and_nothing_else(record):
    root = record.path.parents[2]
    assert recorded(root) == ["box/ceilings", "box/tiny"]
    assert len([path for path in root.rglob("*") if path.is_file()]) == 2
    assert not (root / "box" / ".parts").exists()
    assert [r.digest for r in records.load(root, experiments=["tiny"])] == [record.digest]


def test_the_record_holds_every_cell_of_the_plan_small_workloads_first(record):
    assert [(tuple(c["shape"]), c["variant"], c["clock"]) for c in record.cells] == [
        *[(SMALL, name, word) for word in ("hot", "graph") for name in MANY],
        *[(SMALL, name, "none") for name in NAMES],
        *[(LARGE, name, "hot") for name in NAMES],
    ]


def test_a_variant_that_kills_its_process_is_named_and_the_rest_is_measured(record):
    bad = {"segfaults": "crashed", "zeros": "wrong"}
    told = {"hot": "ok", "graph": "skipped", "none": "ok"}
    for cell in record.cells:
        assert cell["status"] == bad.get(cell["variant"], told[cell["clock"]])
        assert bool(cell["medians_us"]) is (cell["status"] == "ok" and cell["clock"] == "hot")
        assert bool(cell["reason"]) is ((cell["status"], cell["clock"]) != ("ok", "hot"))
    reasons = {c["reason"] for c in record.cells if c["variant"] == "segfaults"}
    assert reasons == {"the process died (signal SIGSEGV)"}


def test_each_process_leaves_one_median_of_its_own_samples(record):
    assert record.run["processes"] == 1
    timed = [cell for cell in record.cells if cell["medians_us"]]
    assert len(timed) == 6
    for cell in timed:
        (median_us,) = cell["medians_us"]
        assert 0 < len(cell["samples_us"]) <= records.MAX_SAMPLES
        assert min(cell["samples_us"]) <= median_us
        assert cell["outliers"]["of"] >= 4
    assert all(0 < cell["error"] < 1e-5 for cell in record.cells if cell["status"] == "ok")


def test_the_run_says_what_was_measured_where_and_with_what(record):
    run = record.run
    assert (run["machine"], run["experiment"], run["preset"], run["device"]) == ("box", "tiny", "quick", "cpu")
    assert run["facts"]["cores"] >= 1
    assert "torch" in run["facts"]["versions"]
    assert len(run["started"]) == len("2025-01-01T00:00:00Z")
    assert run["seconds"] > 0.1


def test_every_committed_record_has_the_shapes_of_its_preset(committed_records):
    for kept in [*committed_records, *repeatability.others()]:
        if not kept.run.get("provenance"):  # of a program from outside, which has no preset
            spec, asked = EXPERIMENTS[kept.experiment], (kept.run["preset"], kept.run["device"])
            groups, probes = spec.groups(*asked), spec.probes(*asked, ())
            assert kept_records.otherwise(kept, spec, groups, probes) == "", kept.path


# ---------------------------------------------------------------- what becomes of the answers


def test_the_worst_status_of_all_processes_counts(lab):
    wrong = {"status": "wrong", "reason": "bias missing", "error": 0.5, "samples_us": []}
    answers = {(1, "epilogue"): wrong | {"median_us": None}}
    lab.alter = lambda number, index, name: answers.get((number, name), {"median_us": 100.0 + number})
    cells = by_variant(lab.measure(processes=3))
    assert cells["eager"]["medians_us"] == [100.0, 101.0, 102.0]
    assert cells["epilogue"].items() >= (wrong | {"medians_us": []}).items()


def test_a_control_is_compared_with_what_it_repeats(lab):
    lab.alter = lambda number, index, name: {"median_us": {"eager": 400.0, "epilogue": 300.0}.get(name, 200.0)}
    record = lab.measure(group(SMALL, (*NAMES, "epilogue@again")))
    baselines = {cell["variant"]: cell["baseline"] for cell in record.cells}
    assert baselines == dict.fromkeys(NAMES, "eager") | {"epilogue@again": "epilogue"}
    ratios = {row.variant: row.ratio for row in results.rows([record])}
    assert (ratios["eager@again"], ratios["epilogue@again"]) == (pytest.approx(2.0), pytest.approx(1.5))


def test_a_result_beyond_the_ceilings_is_too_fast_and_has_no_ratio(lab):
    give_ceilings(lab.root, us=100.0)
    # A tenth beyond the ceiling is allowed: 100 µs / 1.1 = 90.9 µs.
    lab.alter = lambda number, index, name: {"median_us": {"epilogue": 90.8, "eager@again": 91.0}.get(name, 200.0)}
    record = lab.measure()
    statuses = {name: cell["status"] for name, cell in by_variant(record).items()}
    assert statuses == {"eager": "ok", "eager@again": "ok", "epilogue": "too_fast"}
    row = {row.variant: row for row in results.rows([record])}
    assert all(figure in str(row["epilogue"].reason) for figure in ("90.8 µs", "100 µs"))
    assert str(row["epilogue"].ratio) == str(row["epilogue"].median_us) == "nan"
    assert row["eager@again"].ratio == pytest.approx(200 / 91)


def test_one_process_beyond_the_ceilings_is_enough_to_doubt_the_cell(lab):
    give_ceilings(lab.root, us=100.0)
    lab.alter = lambda number, index, name: {"median_us": 50.0 if (number, name) == (1, "epilogue") else 200.0}
    assert by_variant(lab.measure(processes=2))["epilogue"]["status"] == "too_fast"


def test_ceilings_that_the_baseline_beats_are_measured_again(lab):
    give_ceilings(lab.root, us=100.0)
    lab.alter = lambda number, index, name: {"median_us": 50.0 if name == "eager" else 200.0}
    record = lab.measure()
    assert len(lab.plans) == 1 + EXPERIMENTS["ceilings"].processes
    (again,) = records.load(lab.root, experiments=["ceilings"])
    assert {cell["medians_us"][0] for cell in again.cells if cell["medians_us"]} == {50.0}
    assert {cell["status"] for cell in record.cells} == {"ok"}


@pytest.mark.parametrize(("again_us", "status"), [(50.0, "ok"), (1e9, "too_fast")])
def test_ceilings_that_a_strangers_kernel_beats_are_measured_again(lab, monkeypatch, tmp_path, again_us, status):
    """They may have been taken while the machine did something else, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    give_ceilings(lab.root, us=100.0)
    own, first = 2, 2 + EXPERIMENTS["ceilings"].processes  # sessions: of the kernel, and until ceilings are complete

    def alter(number: int, index: int, name: str) -> dict[str, float]:
        if len(lab.plans) > own:
            return {"median_us": again_us if len(lab.plans) > first else 1e9}
        return {"median_us": 50.0 if name == "epilogue" else 200.0}

    lab.alter = alter
    record = lab.measure(processes=own, source=Source("/somewhere/kernel.py", "0" * 12))
    assert len(lab.plans) > first
    assert by_variant(record)["epilogue"]["status"] == status


def test_ceilings_are_measured_first_where_there_are_none(lab, tmp_path):
    lab.root = tmp_path / "new"
    lab.measure()
    assert recorded(lab.root) == ["box/ceilings", "box/tiny"]
    assert lab.measured()[-1] == [0]
    assert [len(groups) for groups in lab.measured()] == [len(EXPERIMENTS["ceilings"].groups("quick", "cpu"))] * 3 + [1]


# ---------------------------------------------------------------- which code measured


def test_the_sources_digest_changes_with_any_file_of_the_package(tmp_path):
    (tmp_path / "kernels").mkdir()
    found = set()
    for text in ("one", "two"):
        (tmp_path / "kernels" / "a.cu").write_text(text)
        found.add(source_tree.digest(tmp_path))
    (tmp_path / "kernels" / "a.cu").rename(tmp_path / "a.cu")
    assert len(found | {source_tree.digest(tmp_path)}) == 3


def test_the_commit_of_a_repository_around_the_tree_is_not_its_own(tmp_path, monkeypatch):
    monkeypatch.delenv("HYPATIA_COMMIT", raising=False)
    by = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for asked in (["init", "-q"], [*by, "commit", "-q", "--allow-empty", "-m", "none"]):
        subprocess.run(["git", *asked], cwd=tmp_path, check=True)
    (tmp_path / "hypatia_lab").mkdir()
    (tmp_path / "copy" / "hypatia_lab").mkdir(parents=True)
    head, dirty = source_tree.commit(tmp_path)
    assert (len(head), dirty) == (40, False)
    assert source_tree.commit(tmp_path / "copy") == ("unknown", True)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("name", "asked", "kind", "told"),
    [
        ("nope", {}, composer.BenchError, "'nope'.*ceilings"),
        (tiny(), {"preset": "nope"}, composer.BenchError, "'nope'.*quick, seed, full"),
        (tiny(), {"machine_name": "../x"}, records.RecordError, r"'\.\./x'"),
        (tiny(), {"machine_name": ""}, records.RecordError, "''"),
    ],
)
def test_bad_input_is_refused_before_anything_runs_or_is_written(lab, tmp_path, name, asked, kind, told):
    lab.root = tmp_path / "new"
    with pytest.raises(kind, match=told):
        lab.measure_experiment(name, **asked)
    assert lab.plans == []
    assert not lab.root.exists()


def test_a_folder_that_cannot_be_written_is_found_before_anything_runs(lab, tmp_path):
    lab.root = tmp_path / "file"
    lab.root.write_text("mine")
    with pytest.raises(records.RecordError, match="file"):
        lab.measure()
    assert lab.plans == []
    assert lab.root.read_text() == "mine"


def test_malformed_ceilings_are_named_with_their_line(lab):
    path = give_ceilings(lab.root)
    path.write_text(path.read_text()[:-30])
    with pytest.raises(records.RecordError, match=r"\.jsonl:3: "):
        lab.measure()
    assert "box/tiny" not in recorded(lab.root)


RIGHT = answer(0, "epilogue", "hot")


def joined(*rows):
    """The cell that one row of each process makes."""
    return joining.cell(group(), "epilogue", "hot", [[row] for row in rows], 0, {})


def test_times_accuse_nobody_in_one_process_of_three_and_do_in_two():
    slow = RIGHT | {"status": "cheated", "reason": "it computes between calls", "evidence": {"between_us": 9.0}}
    goes_on = slow | {"evidence": {"core": 1.0}}
    found = joined(RIGHT, slow, RIGHT)
    assert (found["status"], found["medians_us"]) == ("ok", [100.0, None, 100.0])
    assert found["reason"].endswith("alone it computes between calls")
    for rows in ((slow, RIGHT, slow), (RIGHT, slow), (RIGHT, slow, goes_on), (RIGHT, goes_on, RIGHT)):
        assert joined(*rows)["status"] == "cheated"


@pytest.mark.parametrize(
    ("half", "by_chance", "pairs", "status"),
    [(3, 0, 10, "cheated"), (2, 0, 10, "cheated"), (2, 1, 10, "ok"), (1, 0, 10, "ok"), (2, 0, 5, "ok")],
)
def test_who_remembers_now_and_then_is_caught_by_what_all_processes_saw(half, by_chance, pairs, status):
    seen = {"half": half, "pairs": pairs}
    found = joined(*(RIGHT | {"evidence": seen | {"by_chance": by_chance if n else 0}} for n in range(3)))
    assert found["status"] == status
    assert bool(found["medians_us"]) is (status == "ok")
    expected = {"half": 3 * half, "by_chance": 0, "pairs": 3 * pairs} if status == "cheated" else None
    assert found.get("evidence") == expected


def test_a_log_has_a_line_now_and_then_and_no_countdown(capsys, monkeypatch):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    with progress.Countdown("conv_block", 3, False) as bar:
        with bar.doing("getting ready"):
            bar.update(1)
        bar.update(2)
    lines = ["conv_block: 3 to go", "conv_block: getting ready", "conv_block: 2 of 3 to go"]
    assert capsys.readouterr().err.splitlines() == lines
    monkeypatch.setattr(progress, "EVERY_S", 60.0)
    for quiet, asked, said in ((False, "", "conv_block: 3 to go\n"), (True, "", ""), (False, "1", "")):
        monkeypatch.setenv("TQDM_DISABLE", asked)
        with progress.Countdown("conv_block", 3, quiet) as bar:
            bar.update(1)
        assert capsys.readouterr().err == said
