"""Which processes are run, over what, and what becomes of those that die: by processes that answer at once."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from measuring import LARGE, NAMES, SMALL, by_variant, give_ceilings, group, tiny
from synthetic import recorded

from hypatia_lab import intervals, machine, records
from hypatia_lab.bench import ahead, composer, scheduling, sessions
from hypatia_lab.bench.sessions import Casualty, SessionError
from hypatia_lab.experiments import PROCESSES
from hypatia_lab.experiments.plan import LATEST_S, MORE_S, MOST, Source
from hypatia_lab.kernels import loader
from hypatia_lab.strangers.reader_kernel import OwnError, TooLarge

BOTH = (group(SMALL), group(LARGE))


def found(record: Any) -> dict[tuple[tuple[int, ...], str], str]:
    """(shape, variant) → status."""
    return {(tuple(cell["shape"]), cell["variant"]): cell["status"] for cell in record.cells}


# ---------------------------------------------------------------- how many, over what


@pytest.mark.parametrize(
    ("groups", "measured"),
    [([group(clocks=()), group(LARGE)], [[0, 1], [0, 1], [1], [1]]), ([group(clocks=())], [[0], [0]])],
)
def test_two_processes_check_what_is_not_timed_and_all_measure_what_is(lab, groups, measured):
    record = lab.measure(*groups, processes=4)
    assert lab.measured() == measured
    assert {len(cell["medians_us"]) for cell in record.cells} == {0, *(4 for one in groups if one.clocks)}


@pytest.mark.parametrize(("preset", "count"), [("quick", PROCESSES["quick"]), ("seed", 9)])
def test_what_has_a_goal_is_measured_in_more_processes(lab, preset, count):
    assert lab.measure(processes=0, least=9, preset=preset).run["processes"] == count


def test_processes_are_added_where_a_ratio_is_not_known_well_enough(lab):
    slow = 1, 1, "epilogue"
    lab.alter = lambda number, *who: {"median_us": 120.0 if (number % 2, *who) == slow else 100.0}
    record = lab.measure(*BOTH, processes=0, preset="full")
    least, count = PROCESSES["full"], record.run["processes"]
    assert lab.measured() == [[0, 1]] * least + [[1]] * (count - least)
    assert least < count < MOST["full"]
    small, large = (cell["medians_us"] for cell in record.cells if cell["variant"] == "epilogue")
    assert small[least:] == [None] * (count - least)
    assert intervals.known(intervals.ratio([100.0] * count, large), scheduling.CLOSE)
    assert not intervals.known(intervals.ratio([100.0] * least, large[:least]), scheduling.CLOSE)


def test_processes_are_added_until_their_time_is_spent(lab, monkeypatch):
    lab.alter = lambda number, index, name: {"median_us": 100.0 * (1 + (name != "eager") * number)}
    least, most = PROCESSES["quick"], MOST["quick"]

    def count(**how: Any) -> int:
        return lab.measure(processes=0, overwrite=True, **how).run["processes"]

    assert count() == most
    for limits in (MORE_S, LATEST_S):
        with monkeypatch.context() as patch:
            patch.setitem(limits, "quick", -1.0)
            assert count() == least
    monkeypatch.setitem(MORE_S, "quick", -1.0)
    assert count(within_s=60.0) == max(MOST.values())


@pytest.mark.parametrize("name", ["compile", "nvmath"])
def test_what_is_chosen_anew_is_built_in_five_processes(lab, name):
    lab.alter = lambda number, index, who: {"median_us": 100.0 * (1 + (who == name) * number)}
    record = lab.measure(group(SMALL, ("eager", name, "epilogue")), processes=7)
    assert by_variant(record)[name]["medians_us"] == [100.0 * (1 + number) for number in range(5)] + [None] * 2
    assert [data["variants"] for _, data in lab.plans[5]["groups"]] == [["eager", "epilogue"]]


@pytest.mark.parametrize(("tuned", "folders"), [("compile", 0), ("compile_max_autotune", 3)])
def test_each_process_finds_nothing_that_a_tuner_chose_before(lab, monkeypatch, tuned, folders):
    """A CPU's compiled code is nothing that trials decide."""
    seen = []

    def noted(*given: Any, env: dict[str, str], **more: Any) -> Any:
        if env:
            assert set(env) == {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}
            folder = Path(env["TORCHINDUCTOR_CACHE_DIR"])
            assert list(folder.iterdir()) == []
            (folder / "kernel.py").touch()
            seen.append(folder)
        return lab(*given, env=env, **more)

    monkeypatch.setattr(sessions, "run_session", noted)
    lab.measure(group(SMALL, ("eager", tuned)), processes=3)
    assert len(set(seen)) == folders
    assert not any(folder.exists() for folder in seen)


STRANGER = Source("/somewhere/kernel.py", "0" * 12)


@pytest.mark.parametrize(
    ("source", "wrong", "count"),
    [(STRANGER, ("cuda", "triton"), 2), (STRANGER, ("triton",), 4), (None, ("cuda", "triton"), 4)],
)
def test_a_strangers_trial_ends_where_two_processes_find_nothing_of_it_right(lab, source, wrong, count):
    lab.alter = lambda number, index, name: {"status": "wrong", "reason": "off"} if name in wrong else {}
    assert lab.measure(group(SMALL, ("eager", "cuda", "triton")), processes=4, source=source).run["processes"] == count


def test_a_mistake_that_one_process_alone_finds_ends_no_trial(lab):
    lab.alter = lambda number, index, name: {"status": "wrong", "reason": "off"} if number == name.count("cuda") else {}
    assert lab.measure(group(SMALL, ("eager", "cuda")), processes=4, source=STRANGER).run["processes"] == 4


@pytest.mark.parametrize(("fault", "kind"), [("problem", OwnError), ("machine", TooLarge)])
def test_a_problem_that_cannot_be_judged_is_refused_by_its_own_name(lab, monkeypatch, fault, kind):
    def refused(*given: Any, on_event: Any, **more: Any) -> None:
        on_event({"event": "refused", "reason": "its answer is the same in every draw", "fault": fault})

    monkeypatch.setattr(sessions, "run_session", refused)
    source = dataclasses.replace(STRANGER, kind="kernelbench", problem="/somewhere/problem.py")
    with pytest.raises(OwnError, match="^/somewhere/problem.py: its answer is the same") as caught:
        lab.measure(group(), source=source)
    assert type(caught.value) is kind


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The modules that processes wait for, by waiting that has ended; each process is a word, with its number."""
    found: list[list[str]] = []

    @contextlib.contextmanager
    def waiting(modules: list[str], *given: Any) -> Iterator[list[str]]:
        yield [f"process {number}" for number in range(len(modules))]
        found.append(list(modules))

    monkeypatch.setattr(sessions, "waiting", waiting)
    return found


@pytest.mark.parametrize("alone", [True, False])
def test_what_is_too_large_beside_others_is_tried_alone(lab, monkeypatch, waited, alone):
    """Three wait; the second one finds too little memory, and so it does by itself, or not."""

    def refused(module: str, *given: Any, on_event: Any, fresh: Any = None, **more: Any) -> Any:
        if "judged" in module:  # and not the ceilings
            asked.append(fresh)
            if fresh == "process 1" or (not fresh and not alone):
                on_event({"event": "refused", "reason": "it is full", "fault": "machine"})
        return lab(module, *given, on_event=on_event, **more)

    asked: list[str | None] = []
    monkeypatch.setattr(sessions, "room", lambda wanted: wanted)
    monkeypatch.setattr(sessions, "run_session", refused)
    monkeypatch.setattr(scheduling, "_get_ready", lambda *given: None)
    told = contextlib.nullcontext() if alone else pytest.raises(TooLarge, match="it is full")
    with told:
        assert lab.measure(group(), processes=3, source=STRANGER).run["processes"] == 3
    assert asked == ["process 0", "process 1", None, None][: 4 if alone else 3]
    assert len(waited[0]) == 3


def test_a_strangers_ceilings_are_those_that_it_needs_and_the_next_folder_has_them(lab, tmp_path, monkeypatch):
    monkeypatch.setattr(loader, "cache_folder", lambda: tmp_path / "cache")

    def ceilings(name: str) -> Any:
        lab.measure_experiment(tiny(source=STRANGER), root=tmp_path / name)
        (record,) = records.load(tmp_path / name, experiments=["ceilings"])
        return record

    first = ceilings("first")
    assert {(cell["operation"], cell["dtype"]) for cell in first.cells} == {("copy", "float32"), ("matmul", "float32")}
    asked = len(lab.plans)
    assert ceilings("second").cells == first.cells
    assert len(lab.plans) == asked + 1
    monkeypatch.setattr(composer, "PRESENT", {name: number + 1 for name, number in composer.PRESENT.items()})
    ceilings("by another clock")
    assert len(lab.plans) == asked + 1 + asked  # as at first: the kernel, and its ceilings


def test_a_gpus_kernels_are_built_ahead_for_each_experiment_and_a_readers_are_not(lab, monkeypatch):
    """One stamp for all would leave every experiment but the first to a single process."""
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(ahead, "build", lambda what, groups, work, key, quiet: asked.append((what, key)))
    monkeypatch.setattr(machine, "facts", lambda device: {"name": "a card"})
    monkeypatch.setattr(machine, "gpu_uuid", lambda: "GPU-0")
    own = dataclasses.replace(tiny(), name="own", source=Source("own.py", "0" * 12, "program"))
    lab.measure_experiment(dataclasses.replace(tiny(), name="on_a_cpu"))
    give_ceilings(lab.root, device="cuda")
    for spec in (dataclasses.replace(tiny(), name="one"), dataclasses.replace(tiny(group(LARGE)), name="other"), own):
        lab.measure_experiment(spec, device="cuda")
    assert [what for what, _ in asked] == ["one", "other"]
    assert len({key for _, key in asked}) == 2


def test_who_waits_is_given_the_plan_of_its_number_and_only_one(lab, monkeypatch, waited):
    monkeypatch.setattr(sessions, "room", lambda wanted: min(wanted, 1))
    lab.casualties = [Casualty([0, "epilogue"], "crashed", "it died")]
    lab.measure(*BOTH)
    assert waited[0] == ["hypatia_lab.bench.cells"]
    assert [told["fresh"] for told in lab.told] == ["process 0", None]


def test_who_was_started_early_measures_first_what_is_guarded(lab, monkeypatch):
    made = []

    def start(module: str, *given: Any) -> Any:
        event = SimpleNamespace(wait=lambda *limit: True)
        made.append(SimpleNamespace(module=module, up=event, ready=event, tell=lambda plan: None, end=lambda: None))
        return made[-1]

    monkeypatch.setattr(sessions, "start", start)
    monkeypatch.setattr(sessions, "room", lambda wanted: wanted)
    monkeypatch.setattr(machine.Probe, "free_bytes", lambda self: 2.0**50)
    early = [start("early"), start("early")]
    lab.measure(processes=3, source=STRANGER, early=early)
    assert [told["fresh"].module for told in lab.told[:3]] == ["early", "early", sessions.MEASURING[True]]
    lab.told.clear()
    lab.measure(processes=3, overwrite=True, early=early)
    assert {told["fresh"].module for told in lab.told} == {sessions.MEASURING[False]}


def test_it_is_asked_whether_others_are_at_rest_before_anything_is_timed(lab):
    timed: list[int] = []
    lab.measure(processes=3, alone=lambda: timed.append(len(lab.told)))
    assert timed[0] == 0


def test_the_time_limit_reaches_the_processes(lab):
    lab.measure(silence_s=7.0)
    lab.measure(overwrite=True)
    assert [told["silence_s"] for told in lab.told] == [7.0, composer.SILENCE_S]


# ---------------------------------------------------------------- those that die


def test_who_hung_once_is_a_timeout_and_not_waited_for_in_every_process(lab):
    lab.casualties = [Casualty([1, "epilogue"], "timeout", "no sign of life for 300 s")]
    record = lab.measure(*BOTH, processes=3)
    assert lab.measured() == [[0, 1], [1], [0, 1], [0, 1]]
    left_out = {"1/epilogue": ["timeout", "no sign of life for 300 s"]}
    assert [plan["excluded"] for plan in lab.plans] == [{}, left_out, left_out, left_out]
    told = {(tuple(c["shape"]), c["variant"]): (c["status"], c["reason"], len(c["medians_us"])) for c in record.cells}
    assert told.pop((LARGE, "epilogue")) == ("timeout", "no sign of life for 300 s", 0)
    assert set(told.values()) == {("ok", "", 3)}, "at the other size it is still measured, in every process"


def test_a_death_while_inputs_are_drawn_is_of_that_workload_alone(lab):
    lab.casualties = [Casualty([1, ""], "crashed", "the process died (signal SIGKILL)")]
    expected = {(shape, name): word for shape, word in ((SMALL, "ok"), (LARGE, "crashed")) for name in NAMES}
    assert found(lab.measure(*BOTH)) == expected
    assert lab.measured() == [[0, 1], [1]]


@pytest.mark.parametrize("name", ["", "epilogue"])
def test_a_death_after_a_workload_was_done_is_nobodys(lab, monkeypatch, name):
    def dies(module: str, plan: Any, log: Path, **more: Any) -> Any:
        """After its first workload, whatever it is told to measure."""
        lab(module, plan | {"groups": plan["groups"][:1]}, log, **more)
        return Casualty([plan["groups"][0][0], name], "crashed", "the process died (exit status 139)")

    monkeypatch.setattr(sessions, "run_session", dies)
    assert set(found(lab.measure(*BOTH)).values()) == {"ok"}
    assert lab.measured() == [[0], [1]]


def test_a_variant_that_leaves_with_status_0_is_named_and_the_rest_is_measured(lab, monkeypatch):
    def leaves(module: str, plan: Any, log: Path, **more: Any) -> Any:
        if "0/epilogue" not in plan["excluded"]:
            more["on_event"]({"event": "begin", "what": [0, "epilogue"]})
            return None
        return lab(module, plan, log, **more)

    monkeypatch.setattr(sessions, "run_session", leaves)
    record = lab.measure()
    assert list(found(record).values()) == ["ok", "ok", "crashed"]
    assert by_variant(record)["epilogue"]["reason"] == "the process ended before it was done"


def test_the_last_words_of_a_process_are_in_the_reason(lab, monkeypatch):
    def dying(*given: Any, on_event: Any, **more: Any) -> Any:
        casualty = lab(*given, on_event=on_event, **more)
        if casualty is not None:
            on_event({"event": "dying", "reason": "AcceleratorError: an illegal memory access"})
        return casualty

    monkeypatch.setattr(sessions, "run_session", dying)
    lab.casualties = [Casualty([0, "epilogue"], "crashed", "exit status 1")]
    record = lab.measure()
    assert by_variant(record)["epilogue"]["reason"] == "exit status 1: AcceleratorError: an illegal memory access"
    assert list(found(record).values()) == ["ok", "ok", "crashed"]


def test_a_process_that_dies_although_the_culprit_is_left_out_ends_the_run(lab):
    lab.casualties = [Casualty([0, "eager"], "crashed", "signal SIGSEGV")] * 2
    with pytest.raises(SessionError, match=r"eager.*log\.txt"):
        lab.measure()
    assert "box/tiny" not in recorded(lab.root)
