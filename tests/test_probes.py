"""Probes: what they read out of traces, images and programs, and how their processes end."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from kernel_tensors import needs_compiler, on_gpu
from probing import IMAGE, LINEAR, details, found, probe, spoilt

from hypatia_lab import check, clock, dispatch, variants
from hypatia_lab.bench import sessions
from hypatia_lab.bench.details import collect
from hypatia_lab.diffraction.operations import layout_of
from hypatia_lab.dispatch import LINEAR_RELU
from hypatia_lab.experiments import Probe
from hypatia_lab.probes import accuracy, choice, oracle, process, trace, training
from hypatia_lab.probes.probe import Ended, Subject
from hypatia_lab.workloads import Workload

# ---------------------------------------------------------------- processes


def shared(monkeypatch: pytest.MonkeyPatch, deadly: str = "") -> list[list[str]]:
    """Variants of every process that is started from here on; the process of ``deadly`` dies of it."""
    started: list[list[str]] = []

    def run_session(module: str, plan: dict[str, Any], log: Path, *, on_event: Any, **more: Any) -> Any:
        names = [one["variant"] for one in [plan, *plan["more"]]]
        started.append(names)
        for number, name in enumerate(names):
            on_event({"event": "begin", "what": name, "subject": number})
            on_event({"event": "detail", "topic": "trace", "name": f"{name}'s", "unit": "1", "value": 1, "count": 1})
            if name == deadly:
                return sessions.Casualty(name, "crashed", "the process died")
        return None

    monkeypatch.setattr(sessions, "run_session", run_session)
    return started


def test_probes_that_may_share_a_process_do_and_who_kills_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = [Probe("trace", LINEAR, name, "", 2) for name in ("a", "deadly", "b", "c")]
    plan.insert(1, Probe("counters", LINEAR, "alone", "", 1))
    started = shared(monkeypatch, deadly="deadly")
    lines = collect(plan, "cpu", tmp_path, "key", progress=False)
    behind = ["b", "c"]
    assert started == [["a", "deadly", *behind], behind, ["a", "deadly", *behind], behind, ["alone"]]
    assert all(line["name"] == f"{line['variant']}'s" for line in lines)
    ended = [(line["variant"], line["status"], len(line["values"])) for line in lines]
    assert ended == [("a", "ok", 2), ("alone", "ok", 1), ("deadly", "crashed", 2), ("b", "ok", 2), ("c", "ok", 2)]
    del started[:]
    assert collect(plan, "cpu", tmp_path, "key", progress=False) == lines
    assert started == []
    (tmp_path / "probe-3-1.json").unlink()
    assert collect(plan, "cpu", tmp_path, "key", progress=False) == lines
    assert started == [["b"]]
    collect(plan, "cpu", tmp_path, "another key", progress=False)
    assert len(started) == 6


def test_an_interrupted_process_loses_only_the_probe_it_was_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = [Probe("trace", LINEAR, name, "", 1) for name in ("a", "b", "c")]

    def interrupted(*given: Any, on_event: Any, **more: Any) -> None:
        for number, name in enumerate(("a", "b")):
            on_event({"event": "begin", "what": name, "subject": number})
        raise KeyboardInterrupt

    monkeypatch.setattr(sessions, "run_session", interrupted)
    with pytest.raises(KeyboardInterrupt):
        collect(plan, "cpu", tmp_path, "key", progress=False)
    started = shared(monkeypatch)
    collect(plan, "cpu", tmp_path, "key", progress=False)
    assert started == [["b", "c"]]


@pytest.mark.slow
def test_what_one_process_sees_of_two_variants_is_what_two_see(tmp_path: Path):
    plan = [Probe("trace", LINEAR, name, "", 1) for name in ("eager", "no such variant", "cublas_relu")]
    together = collect(plan, "cpu", tmp_path / "1", "key", progress=False)
    alone = [line for one in plan for line in collect([one], "cpu", tmp_path / "2", one.variant, progress=False)]

    def counted(lines: list[dict[str, Any]]) -> list[list[Any]]:
        keys = ("variant", "name", "status", "count")
        return [[line[key] for key in keys] for line in lines if line["unit"] == "1" or line["topic"] == "kernels"]

    assert counted(together) == counted(alone)
    assert [line["variant"] for line in together if line["status"] != "ok"] == ["no such variant"]
    assert sorted(path.parent.name for path in (tmp_path / "1" / "scratch").rglob("trace.json.gz")) == ["0", "2"]


# ---------------------------------------------------------------- accuracy


def test_measures_of_error_see_what_they_can():
    reference = torch.linspace(1, 2, 40, dtype=torch.float64).view(8, 5)
    right = accuracy.measures(reference, reference)
    spoiled = (accuracy.spoiled(reference, how) for how in ("scaled", "faulty row"))
    scaled, faulty = (accuracy.measures(one, reference) for one in spoiled)
    assert right.pop("correlation") == pytest.approx(1)
    assert not any(right.values())
    assert (scaled["correlation"], scaled["error"], scaled["largest error over peak"]) == pytest.approx((1, 0.1, 0.1))
    assert (faulty["largest relative error"], faulty["mean relative error"]) == (1, pytest.approx(1 / 8))
    with pytest.raises(KeyError, match="nonsense"):
        accuracy.spoiled(reference, "nonsense")


def test_a_faulty_row_leaves_the_output_itself_alone():
    out = torch.ones(2, 4, 3)
    assert (float(accuracy.spoiled(out, "faulty row").sum()), float(out.sum())) == (21, 24)


def test_measures_that_do_not_exist_are_left_out():
    dark = torch.tensor([[1.0, 1e-9, 0.0, 0.5]], dtype=torch.float64)  # has no relative error where it is dark
    assert accuracy.measures(dark + 1e-8, dark)["largest relative error"] == pytest.approx(2e-8)
    nothing = torch.zeros(2, 2, dtype=torch.float64)
    assert accuracy.measures(nothing, nothing) == {}
    assert "correlation" not in accuracy.measures(torch.ones(2, 2), torch.eye(2, dtype=torch.float64))


@pytest.mark.slow
def test_the_accuracy_of_a_variant(tmp_path: Path):
    measured = details(probe("accuracy", LINEAR, "eager", tmp_path, case="scaled"), "accuracy")
    assert {"mean relative error", "largest relative error", "largest error over peak"} < measured.keys()
    assert (measured["correlation"], measured["error"]) == (pytest.approx(1), pytest.approx(0.1, rel=1e-4))


@pytest.mark.parametrize(
    ("topic", "output", "reason"),
    [
        (accuracy, torch.zeros(3), "wrong shape"),
        (accuracy, torch.full((16, 24), math.nan), "384 of 384 elements are not finite"),
        (oracle, torch.zeros(16, 24), "wrong values"),
        (trace, torch.zeros(16, 24), "wrong values"),
    ],
)
def test_an_output_that_is_wrong_is_looked_at_no_further(topic: Any, output: torch.Tensor, reason: str, tmp_path: Path):
    with pytest.raises(Ended, match=reason) as end:
        topic.look(spoilt(found(LINEAR, "eager", tmp_path), output), pytest.fail)
    assert end.value.status == "wrong"


# ---------------------------------------------------------------- oracle


def looked(whole: Subject, topic: Any = oracle) -> dict[str, float]:
    """Name → value that a probe emits of ``whole``."""
    seen: dict[str, float] = {}
    topic.look(whole, lambda event, *, name, value, **_: seen.update({name: value}))
    return seen


def test_both_timers_time_the_same_call_turn_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    order: list[str] = []

    def turn(word: str) -> float:
        order.append(word)
        return float(len(order))

    monkeypatch.setattr(oracle.clock, "measure", lambda runs, word, *_, **__: {"it": clock.Timing(1, [turn(word)])})
    monkeypatch.setitem(oracle.ORACLES, "cpu", ("hot", "the other", lambda run: turn("other")))
    whole = found(LINEAR, "eager", tmp_path)
    assert looked(whole) == {"hot clock": 2.5, "the other": 2.5}
    assert looked(replace(whole, number=1)) == {"hot clock": 6.5, "the other": 6.5}
    assert order == ["hot", "other", "other", "hot", "other", "hot", "hot", "other"]


def test_torchs_timer_agrees_that_a_call_takes_what_it_sleeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(oracle, "BUDGET_S", 0.03)
    whole = found(LINEAR, "eager", tmp_path)

    def slow(*given: Any) -> Callable[[], Any]:
        run = whole.variant.factory(*given)
        return lambda: (time.sleep(5e-3), run())[1]

    seen = looked(replace(whole, variant=replace(whole.variant, factory=slow)))
    assert list(seen) == ["hot clock", "torch.utils.benchmark"]
    assert all(5e3 < us < 5e4 for us in seen.values()), seen


def test_a_call_that_the_lab_cannot_time_ends_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for error, status in ((clock.RunError("no memory"), "crashed"), (clock.ClockError("no graph"), "skipped")):
        monkeypatch.setattr(oracle.clock, "measure", lambda *_, error=error, **__: {"it": error})
        with pytest.raises(Ended) as end:
            looked(found(LINEAR, "eager", tmp_path))
        assert end.value.status == status


@on_gpu
def test_tritons_timer_gives_microseconds():
    x = torch.randn(4096, 4096, device="cuda")
    assert 10 < oracle.tritons(lambda: x + 1) < 1000


# ---------------------------------------------------------------- training


def test_losses_fall_as_float64s_do_and_a_gradient_that_is_off_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = Workload("mlp", (16, 24, 32, 2, 8), direction="forward_backward")
    whole, right = found(model, "eager", tmp_path), looked(found(model, "eager", tmp_path), training)
    assert right["last loss"] < right["first loss"] / 2
    assert right["distance"] < 1e-5

    def off(workload: Workload, inputs: dict[str, torch.Tensor]) -> Callable[[], Any]:
        run = whole.variant.factory(workload, inputs)
        return lambda: tuple(tensor * (1 + 1e-3 * (place == 2)) for place, tensor in enumerate(run()))

    monkeypatch.setattr(Subject, "checked", lambda self, problem: off(self.workload, problem.inputs))
    assert looked(whole, training)["distance"] > 1e-4


# ---------------------------------------------------------------- choice


def test_what_the_dispatcher_chose_is_told_a_kind_of_layer_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = found(Workload("mlp", (16, 24, 32, 3, 8), direction="forward_backward"), "modules", tmp_path)
    monkeypatch.setattr(LINEAR_RELU, "measured", lambda *given: "epilogue", raising=False)
    monkeypatch.setattr(dispatch, "folder", lambda: tmp_path / "choices")
    said: list[dict[str, Any]] = []
    for times in (1, 2):
        choice.look(model, lambda event, **fields: said.append(fields))
        assert [one["name"] for one in said] == times * [f"linear_relu 16x{n}x32: epilogue" for n in (24, 32)]
    with pytest.raises(Ended, match="no layer"):
        choice.look(found(model.workload, "eager", tmp_path), pytest.fail)


# ---------------------------------------------------------------- how probes end


@pytest.mark.slow
@pytest.mark.parametrize(("topic", "variant"), [("trace", "compile_reduce_overhead"), ("counters", "eager")])
def test_what_cannot_be_looked_at_here_is_skipped(topic: str, variant: str, tmp_path: Path):
    (status,) = probe(topic, IMAGE, variant, tmp_path)
    assert (status["event"], status["status"]) == ("status", "skipped")
    assert "CUDA" in status["reason"]


def test_a_probe_that_fails_says_so(tmp_path: Path):
    (status,) = probe("accuracy", LINEAR, "nobody", tmp_path)
    assert status["status"] == "crashed"
    assert "nobody" in status["reason"]
    assert "Traceback" in (tmp_path / "log.txt").read_text()


def test_what_torch_does_not_compute_is_not_traced(tmp_path: Path):
    with pytest.raises(Ended, match="outside torch"):
        trace.look(found(IMAGE, "c_openmp", tmp_path), pytest.fail)


# ---------------------------------------------------------------- process


def test_the_vectors_file_holds_sizes_and_arrays(tmp_path: Path):
    workload = Workload("diffraction_table", (6, 9))
    inputs = workload.inputs("cpu")
    process.write_vectors(tmp_path / "vectors", inputs, layout_of(workload))
    raw = (tmp_path / "vectors").read_bytes()
    sizes = numpy.frombuffer(raw, dtype=numpy.int64, count=14).tolist()
    assert sizes == [1, 1, 27, 27, 27, -13, -13, -13, 6, 9, 1, 5, 5, 5]
    arrays = numpy.frombuffer(raw, dtype=numpy.float64, offset=14 * 8)
    assert len(arrays) == 9 + 4 + 10 + 4 + 27**3
    assert arrays[13:23].tolist() == inputs["detector"].tolist()


@needs_compiler
def test_a_header_that_asks_for_more_than_a_scene_allows_is_refused(tmp_path: Path):
    whole = found(Workload("diffraction", (2, 3)), "c_openmp", tmp_path)
    program, vectors, image = process.command(whole, tmp_path / "i")
    right = Path(vectors).read_bytes()
    sizes = numpy.frombuffer(right, dtype=numpy.int64, count=14)

    def said(changes: dict[int, int], more: bytes = b"") -> str:
        """What the program says of the file with other numbers at some places of its header."""
        header = sizes.copy()
        header[[*changes]] = [*changes.values()]
        Path(vectors).write_bytes(header.tobytes() + right[header.nbytes :] + more)
        done = subprocess.run([program, vectors, image], capture_output=True, text=True)
        assert done.returncode == int(bool(done.stderr))
        return done.stderr

    assert not said({10: 64})  # so many subpixels there may be
    for place, most in enumerate([10**8] * 2 + [20_003] * 3 + [10_001] * 3 + [2**16] * 2 + [64] + [10_000] * 3):
        for wrong in (most + 1, 2**62, -most - 1):
            reason = said({place: wrong})
            assert f" = {wrong}, which must be from " in reason
            assert f" to {most};" in reason
    assert "structure table of 8003600540027 entries" in said(dict.fromkeys((2, 3, 4), 20_003))
    assert "cut short: its header asks for 7200" in said({0: 10**8})
    assert "too long" in said({}, b"more")


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("variant", ["c_openmp", "eager"])
def test_a_whole_program_takes_longer_than_its_parts(variant: str, tmp_path: Path):
    times = details(probe("process", IMAGE, variant, tmp_path), "process")
    assert list(times) == ["whole", "simulation", "file output"]
    assert 0 < times["simulation"] + times["file output"] < times["whole"]
    pixels = numpy.fromfile(tmp_path / f"{variant}.f32", dtype=numpy.float32)
    problem = check.Problem(IMAGE, "cpu")
    assert process.judged(tmp_path / f"{variant}.f32", problem).ok
    (2 * pixels).tofile(tmp_path / "doubled.f32")
    assert "wrong values" in process.judged(tmp_path / "doubled.f32", problem).reason
    pixels[1:].tofile(tmp_path / "short.f32")
    assert "1535 pixels instead of 1536" in process.judged(tmp_path / "short.f32", problem).reason


def test_a_program_that_fails_is_told_apart():
    for line, reason in (
        (["sh", "-c", "echo no room >&2; exit 3"], "exit status 3: no room"),
        (["echo", "done"], "exit status 0: it said nothing"),
    ):
        with pytest.raises(Ended, match=reason) as end:
            process.timed(line)
        assert end.value.status == "crashed"


def test_only_float32_images_are_written(tmp_path: Path):
    with pytest.raises(Ended, match="float64") as end:
        process.look(found(Workload("diffraction", (32, 48), "float64"), "eager", tmp_path), pytest.fail)
    assert end.value.status == "skipped"


def test_the_program_is_run_once_untimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    runs: list[list[str]] = []
    answer = variants.find("linear_relu", "eager").factory(LINEAR, LINEAR.inputs("cpu"))()

    def timed(line: list[str]) -> dict[str, float]:
        runs.append(line)
        answer.numpy().tofile(line[-1])
        return {"whole": float(len(runs))}

    monkeypatch.setattr(process, "timed", timed)
    assert looked(found(LINEAR, "eager", tmp_path), process) == {"whole": 2.0}
    assert runs == [runs[0]] * 2
