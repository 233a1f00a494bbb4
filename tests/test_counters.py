"""The counters probe: reading what Nsight Compute says, refusals with their remedy, and what the plans ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from probing import LINEAR, details, emitted, found, probe, spoilt
from synthetic import run_line

from hypatia_lab import records, variants
from hypatia_lab.bench.details import keep_files, merge
from hypatia_lab.experiments import EXPERIMENTS, Probe
from hypatia_lab.experiments.linear_relu import MEDIUM, SMALL
from hypatia_lab.probes import counters
from hypatia_lab.probes.probe import Ended, Subject
from hypatia_lab.workloads import Workload

HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)
GEMM = "sm90_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_execute_kernel__5x_cublas"
RELU = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::<unnamed>::launch_clamp_scalar("
    "at::TensorIteratorBase &, c10::Scalar, c10::Scalar, at::native::detail::ClampLimits)::[lambda() (instance 1)]"
    "::operator ()() const, std::array<char *, 2>>(int, T2, T3)"
)


def row(number: int, kernel: str, metric: str, unit: str, value: str) -> str:
    """One line of the table, as ncu writes it."""
    place = f'"{number}","4242","python3.12","127.0.0.1","{kernel}","1","7","(256, 1, 1)","(128, 1, 1)","0","9.0"'
    return f'{place},"Command line profiler metrics","{metric}","{unit}","{value}"'


METRICS = ("dram__bytes_read", "dram__bytes_write", "lts__t_sectors_srcunit_tex", "lts__t_sectors_srcunit_tex_op_write")


def launch(number: int, kernel: str, *values: str) -> list[str]:
    """Bytes read, bytes written, sectors of L2, those written, and ns of a kernel."""
    metrics = zip((*METRICS, "gpu__time_duration"), ("byte", "byte", "sector", "sector", "ns"), values, strict=True)
    return [row(number, kernel, f"{metric}.sum", unit, value) for metric, unit, value in metrics]


BEFORE = [
    "==PROF== Connected to process 4242 (/usr/bin/python3.12)",
    "some library's greeting, and a quoted word",
    '==PROF== Profiling "sm90_xmma_gemm_f32f32_f32f32..." - 0: Application replay pass 1',
    "==PROF== Disconnected from process 4242",
]
PRODUCT = launch(0, GEMM, "9,740,288", "0", "2,768,896", "262,144", "71,904")
OUTPUT = "\n".join([*BEFORE, HEAD, *PRODUCT, *launch(1, RELU, "1,024", "512", "524,288", "262,144", "4,640")])


def test_the_table_of_ncu_is_read():
    (name, gemm), (other, _) = counters.launches(OUTPUT)
    assert (name, other) == (GEMM, RELU)
    assert (gemm["read"], gemm["written"], gemm["l2"], gemm["l2_written"]) == (9_740_288, 0, 88_604_672, 262_144 * 32)
    assert gemm["us"] == pytest.approx(71.904)


def test_columns_are_found_by_name_and_units_are_converted():
    head = HEAD.replace('"Grid Size",', '"Grid Size","Kernel Time",') + ',"Rule Name"'
    lines = launch(0, "k", "9.5", "0", "1", "1", "2.5")
    lines = [line.replace('"(128, 1, 1)"', '"(128, 1, 1)","2025-Jan-01"') + ',""' for line in lines]
    lines[0] = lines[0].replace('"byte"', '"Mbyte"')
    lines[4] = lines[4].replace('"ns"', '"usecond"')
    ((_, kernel),) = counters.launches("\n".join([head, *lines]))
    assert (kernel["read"], kernel["us"], kernel["l2_written"]) == (9.5e6, 2.5, 32)


def test_metrics_that_were_not_counted_are_absent_and_others_are_left_alone():
    lines = [one for one in launch(0, "k", "8", "4", "1", "1", "1000") if "lts__" not in one]
    more = row(0, "k", "sm__cycles_elapsed.avg", "cycle", "17")
    assert counters.launches("\n".join([HEAD, *lines, more])) == [("k", {"read": 8, "written": 4, "us": 1.0})]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (BEFORE, "no table"),
        ([HEAD], "empty"),
        ([HEAD, row(0, "k", "dram__bytes_read.sum", "furlong", "1")], "unit 'furlong'"),
        ([HEAD, row(0, "k", "dram__bytes_read.sum", "byte", "n/a")], "'n/a', no number"),
        ([HEAD, row(0, "k", "dram__bytes_read.sum", "byte", "1")], "k lacks dram__bytes_write.sum, gpu__time"),
    ],
)
def test_output_that_makes_no_sense_is_refused(lines: Sequence[str], reason: str):
    with pytest.raises(ValueError, match=reason):
        counters.launches("\n".join(lines))


# ---------------------------------------------------------------- running ncu

DENIED = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the "
    "target device 0. For instructions on enabling permissions and to get more information see "
    "https://developer.nvidia.com/ERR_NVGPUCTRPERM"
)


def gpu(folder: Path, case: str = "") -> Subject:
    """A subject as it would be on a GPU; nothing here computes."""
    own = found(LINEAR, "eager", folder, case=case)
    return Subject(own.workload, own.variant, "cuda", case, folder, 0)


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts a script in ncu's place: ``ncu(output, ...)``, one output a run; returns the file of its arguments."""

    def use(*outputs: str, code: int = 0) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        for number, text in enumerate(outputs):
            (folder / f"out{number}").write_text(text)
        script = folder / "ncu"
        lines = f'cd "{folder}"', 'echo "$@" >> asked', "n=$(($(wc -l < asked) - 1))", "cat out$n", f"exit {code}"
        script.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        script.chmod(0o755)
        monkeypatch.setattr(counters.shutil, "which", lambda name, path=None: str(script))
        return folder / "asked"

    return use


def test_what_a_call_moves_is_emitted(ncu: Callable[..., Path], tmp_path: Path):
    asked = ncu(OUTPUT, OUTPUT)
    seen, emit = emitted()
    counters.look(gpu(tmp_path), emit)
    counters.counted(gpu(tmp_path, "each kernel"))
    total = {line["name"]: (line["unit"], line["value"]) for line in seen if line["topic"] == "counters"}
    assert total == {
        "kernels": ("1", 2),
        "compulsory bytes": ("B", LINEAR.traffic),
        "bytes read": ("B", 9_741_312),
        "bytes written": ("B", 512),
        "L2 bytes": ("B", 105_381_888),
        "L2 written": ("B", 16_777_216),
        "duration": ("us", pytest.approx(76.544)),
        "effective bandwidth": ("B/s", pytest.approx(LINEAR.traffic / 76.544e-6)),
    }
    for topic in (*counters.TOPICS.values(), "kernel_time"):
        assert [line["name"] for line in seen if line["topic"] == topic] == [GEMM, RELU[:200]]
    line, second = asked.read_text().splitlines()
    assert "--cache-control all --replay-mode kernel" in second
    assert "--clock-control none --profile-from-start off --cache-control none --replay-mode application" in line
    assert all(f"{metric}.sum" in line for metric in (*METRICS, "gpu__time_duration"))
    assert line.strip().endswith("program")


def limits(kernel: str, left_out: str = "") -> str:
    """What ncu says of one kernel whose first limit is 1, the second 2 and so on."""
    units = {"launch__registers_per_thread": "register/thread", "dram__bytes_read.sum": "byte"}
    units |= {"sm__warps_active.avg.pct_of_peak_sustained_active": "%", "lts__t_sectors_srcunit_tex.sum": "sector"}
    told = [(metric, units.get(metric, ""), str(n)) for n, (metric, _) in enumerate(counters.LIMITS.values(), 1)]
    kept = [one for one in (*told, ("gpu__time_duration.sum", "us", "30")) if one[0] != left_out]
    return "\n".join([HEAD, *(row(0, kernel, *one) for one in kept)])


@pytest.mark.parametrize(
    ("case", "output", "topics"),
    [("each kernel", OUTPUT, counters.TOPICS), (counters.LIMITED, limits("k"), counters.LIMIT_TOPICS)],
)
def test_every_line_fits_the_schema(
    case: str, output: str, topics: dict[str, str], ncu: Callable[..., Path], tmp_path: Path
):
    ncu(output)
    seen, emit = emitted()
    counters.look(gpu(tmp_path, case), emit)
    lines = merge(Probe("counters", LINEAR, "eager", case, 1), [[{"event": "detail"} | line for line in seen]])
    assert {line["topic"] for line in lines} == {"counters", "kernel_time", *topics.values()}
    run = run_line(experiment="traffic", device="cuda", processes=1)
    assert len(records.load_file(records.write(tmp_path, run, [], lines)).details) == len(lines)


def test_a_metric_that_ncu_does_not_know_is_left_out(ncu: Callable[..., Path], tmp_path: Path):
    lines = [line for line in OUTPUT.splitlines() if "srcunit_tex.sum" not in line]
    asked = ncu("==ERROR== Failed to find metric lts__t_sectors_srcunit_tex.sum\n", "\n".join(lines))
    launches = [values for _, values in counters.counted(gpu(tmp_path))]
    assert counters.total(launches, "l2") is None
    assert counters.total(launches, "l2_written") == 16_777_216
    first, second = asked.read_text().splitlines()
    assert "lts__t_sectors_srcunit_tex.sum" in first
    assert "lts__t_sectors_srcunit_tex.sum" not in second


@pytest.mark.parametrize(
    ("said", "status", "reason"),
    [
        (DENIED, "skipped", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("==WARNING== No kernels were profiled.", "skipped", "no kernel"),
        ("==ERROR== InterprocessLockFailed", "skipped", "lock file"),
        ("ended wrong: ReLU missing: the output matches", "wrong", "ReLU missing: the output matches"),
        ("Traceback\n==ERROR== The application returned an error code (1).", "crashed", "status 1: ==ERROR== The appl"),
        ("nothing to see", "crashed", "exit status 1: no table"),
    ],
)
def test_what_cannot_be_counted_says_why(said: str, status: str, reason: str, ncu: Callable[..., Path], tmp_path: Path):
    ncu(said, code=1)
    with pytest.raises(Ended, match=reason) as end:
        counters.counted(gpu(tmp_path))
    assert end.value.status == status


def test_without_ncu_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(counters.shutil, "which", lambda name, path=None: None)
    with pytest.raises(Ended, match="install nsight-compute") as end:
        counters.counted(gpu(tmp_path))
    assert end.value.status == "skipped"


def test_a_program_that_hangs_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(counters, "LONGEST_S", 0.2)
    with pytest.raises(Ended, match="more than 0 s") as end:
        counters.watched(["sleep", "5"])
    assert end.value.status == "timeout"


def test_ncu_is_looked_for_in_the_toolkit_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    tool = tmp_path / "bin" / "ncu"
    tool.parent.mkdir()
    tool.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert counters.finder() == str(tool)


def test_a_wrong_variant_is_told_by_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    own = spoilt(found(LINEAR, "eager", tmp_path), torch.zeros(16, 24))
    monkeypatch.setattr(counters, "subject", lambda plan: own)
    counters.program("{}")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("ended wrong: ")


def share(number: int, kernel: str, us: str, *percent: str) -> list[str]:
    told = [(metric, "%", value) for metric, value in zip(counters.SHARES.values(), percent, strict=True)]
    return [row(number, kernel, *one) for one in (*told, ("gpu__time_duration.sum", "us", us))]


def test_shares_of_units_are_told_by_kernel_weighted_by_time(ncu: Callable[..., Path], tmp_path: Path):
    some = share(0, "k", "30", "80", "8", "0", "20", "40", "30"), share(1, "k", "10", "40", "8", "0", "20", "40", "30")
    asked = ncu("\n".join([HEAD, *some[0], *share(2, "other", "5", *"123456"), *some[1]]))
    seen, emit = emitted()
    counters.look(gpu(tmp_path, counters.BUSY), emit)
    told = {(line["topic"], line["name"]): (line["value"], line["count"]) for line in seen}
    assert told["share_tensor_cores", "k"] == (pytest.approx(0.7), 2)
    assert told["share_issue_slots", "other"] == (pytest.approx(0.06), 1)
    assert told["kernel_time", "k"] == (40, 2)
    assert told["counters", "duration"] == (45, 1)
    line = asked.read_text()
    assert "--cache-control none --replay-mode kernel" in line
    assert "dram__bytes" not in line


def test_a_share_that_is_missing_is_named(ncu: Callable[..., Path], tmp_path: Path):
    ncu("\n".join([HEAD, *share(0, "k", "30", *"123456")[1:]]))
    with pytest.raises(Ended, match=r"k lacks sm__pipe_tensor_cycles_active"):
        counters.look(gpu(tmp_path, counters.BUSY), lambda *given, **more: None)


def test_what_holds_a_kernel_back_is_told_each_in_a_topic_of_its_own(ncu: Callable[..., Path], tmp_path: Path):
    asked = ncu(limits("linear_relu_shared"))
    seen, emit = emitted()
    counters.look(gpu(tmp_path, counters.LIMITED), emit)
    told = {line["topic"]: (line["unit"], line["value"]) for line in seen if line["name"] == "linear_relu_shared"}
    right = {"registers": ("1", 1), "occupancy": ("1", pytest.approx(0.06)), "read": ("B", 7)}
    right |= {"l2": ("B", 9 * counters.SECTOR), "stall_barrier": ("1", 14)}
    assert {name: told[f"limit_{name}"] for name in right} == right
    assert told["kernel_time"] == ("us", 30)
    assert "--cache-control none --replay-mode kernel" in asked.read_text()


def test_limits_that_ncu_or_the_gpu_does_not_know_are_left_out_one_by_one(ncu: Callable[..., Path], tmp_path: Path):
    gmma, branch = (counters.LIMITS[f"stall {name}"][0] for name in ("gmma", "branch_resolving"))
    of_no_use = limits("k", gmma).replace(f'"{branch}","","15"', f'"{branch}","","n/a"')
    asked = ncu(f"==ERROR== Failed to find metric {gmma}\n", of_no_use)
    ((_, values),) = counters.counted(gpu(tmp_path, counters.LIMITED))
    assert set(counters.LIMITS) - set(values) == {"stall gmma", "stall branch_resolving"}
    first, second = asked.read_text().splitlines()
    assert gmma in first
    assert gmma not in second


def test_every_step_of_the_ladder_is_asked_what_holds_it_back_in_its_dtype():
    asked = [one for one in EXPERIMENTS["units"].probes("seed", "cuda", ()) if one.case == counters.LIMITED]
    found = {one.variant: (one.workload.shape, one.workload.dtype) for one in asked}
    assert len(found) == len(asked)
    assert set(found) == set(variants.names("linear_relu", "ladder_vector", "ladder_tensor"))
    assert {shape for shape, _ in found.values()} == {(8192, 4096, 4096)}
    assert (found["step_async"][1], found["step_mma"][1]) == ("float32", "bfloat16")
    assert not EXPERIMENTS["units"].probes("quick", "cuda", ())


def counted_on_a_gpu(work: Workload, folder: Path, case: str) -> list[dict[str, Any]]:
    """What the probe tells; skips where nothing can be counted."""
    if not torch.cuda.is_available() or not counters.finder():
        pytest.skip("needs a CUDA GPU and ncu")
    events = probe("counters", work, "eager", folder, case=case, device="cuda")
    if events[0]["event"] == "status" and events[0]["status"] == "skipped":
        pytest.skip(events[0]["reason"])
    return events


@pytest.mark.cuda
@pytest.mark.slow
def test_a_gpu_tells_how_busy_its_units_are(tmp_path: Path):
    work = Workload("linear_relu", (4096, 4096, 4096), "bfloat16")
    events = counted_on_a_gpu(work, tmp_path, counters.BUSY)
    shares = list(details(events, "share_tensor_cores").values())
    assert max(shares) > 0.5
    assert min(shares) < 0.05  # the ReLU


@pytest.mark.slow
def test_the_trace_of_a_layout_shows_its_copy(tmp_path: Path):
    work = Workload("linear_relu_layout", (16, 32, 24))
    kernels = details(probe("trace", work, "x_strided_batch", tmp_path), "kernels")
    assert set(kernels) == {"aten::reshape", "aten::linear", "aten::relu"}


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.parametrize("case", ["", "each kernel"])
def test_a_gpu_reads_its_inputs_once(case: str, tmp_path: Path):
    work = Workload("linear_relu", MEDIUM)
    events = counted_on_a_gpu(work, tmp_path, case)
    # The ReLU reads the product, which is as large as what is written, where caches are emptied.
    read = work.traffic if case else work.traffic - 4 * MEDIUM[0] * MEDIUM[2]
    assert 0.95 * read < details(events, "counters")["bytes read"] < 1.3 * read


# ---------------------------------------------------------------- plans


def test_the_plan_of_a_gpu_counts_what_s001_speaks_of():
    asked = EXPERIMENTS["traffic"].probes("seed", "cuda", ())
    places = {(one.workload.shape, one.workload.dtype) for one in asked if one.topic == "counters"}
    assert places == {(shape, dtype) for shape in (SMALL, MEDIUM) for dtype in ("float32", "bfloat16")}
    table = {one.variant for one in asked if one.case == "each kernel"}
    assert table == {"eager", "naive", "cublas_relu"}
    assert {one.variant for one in asked if one.topic == "trace"} == {"epilogue", "aten", "cublas_relu", "eager"}


def test_a_cpu_says_once_that_nothing_is_counted():
    asked = EXPERIMENTS["traffic"].probes("quick", "cpu", ())
    assert [one.variant for one in asked if one.topic == "counters"] == ["eager"]


def test_traces_of_two_dtypes_keep_apart(tmp_path: Path):
    asked = [Probe("trace", Workload("linear_relu", SMALL, dtype), "eager", "", 1) for dtype in ("float32", "bfloat16")]
    for number in range(2):
        folder = tmp_path / "scratch" / str(number)
        folder.mkdir(parents=True)
        (folder / "trace.json.gz").write_bytes(bytes([number]))
    keep_files(asked, tmp_path, tmp_path / "kept", lambda name: True)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "linear_relu-256x256x512-bfloat16-eager-trace.json.gz",
        "linear_relu-256x256x512-eager-trace.json.gz",
    ]
