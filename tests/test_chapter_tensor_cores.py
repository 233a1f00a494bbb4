"""What is said of tensor cores, from synthetic records: findings, tables, the live check and the chapter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from synthetic import Lines, ceilings, cell_line, detail_line, evidence_of, said, write_records

from hypatia_lab import intervals
from hypatia_lab.chapters import tensor_cores
from hypatia_lab.experiments import EXPERIMENTS
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.variants import label, names, variants

pytestmark = pytest.mark.usefixtures("two_processes")

SMALL, MEDIUM, LARGE = [256, 256, 512], [1024, 784, 2048], [8192, 4096, 4096]
RATES = {"ieee": 50.0, "tf32": 360.0, "float16": 690.0, "bfloat16": 760.0}


def cell(variant: str, us: float, shape: Any = MEDIUM, **changes: Any) -> dict[str, Any]:
    """A timed cell of two processes 1% apart, of which a ratio is exact."""
    batch, inner, outer = shape
    work = {
        "shape": shape,
        "flops": 2 * batch * inner * outer,
        "traffic": 4 * (inner * (batch + outer) + batch * outer),
    }
    return cell_line(variant=variant, **(work | {"medians_us": [us, 1.01 * us], "clock": "graph"} | changes))


def float32(times: Mapping[str, float], errors: Mapping[str, float] | None = None, **changes: Any) -> Lines:
    errors = {"tf32x3": 1.5e-7, "fp16x3": 2.5e-7} | dict(errors or {})
    own = tensor_cores.SPLITS
    return [
        cell(name, us, error=errors.get(name, 5e-7), **({"origin": "own" if name in own else "peer"} | changes))
        for name, us in times.items()
    ]


def bfloat16(times: Mapping[str, float], **changes: Any) -> Lines:
    return [cell(name, us, error=1.7e-3, **({"dtype": "bfloat16"} | changes)) for name, us in times.items()]


def launched(variant: str, count: int, again: int | None = None, **changes: Any) -> Lines:
    own = {"variant": variant, "shape": MEDIUM, "dtype": "bfloat16", "topic": "trace", "unit": "1"} | changes
    names = {"kernel launches": count, "kernel launches, counted again": count if again is None else again}
    out = [detail_line(name=name, values=[value], **own) for name, value in names.items()]
    kernel = {"topic": "kernels", "unit": "us", "name": "gemm_kernel", "values": [7.0], "count": count}
    return [*out, detail_line(**own | kernel)]


FAST = {"eager": 75.0, "eager@again": 75.0, "epilogue": 71.0, "compile": 80.0, "tf32x3": 40.0, "fp16x3": 30.0}
FUSED = {"eager": 10.6, "epilogue": 8.0, "compile": 10.5, "compile_max_autotune": 12.3, "triton": 7.9}
GPU = [
    *float32({"eager": 8.6, "epilogue": 7.0, "compile": 9.5, "tf32x3": 6.0, "fp16x3": 6.5}, shape=SMALL),
    *float32(FAST),
    *float32({"eager": 5490.0, "epilogue": 5420.0, "tf32x3": 2900.0, "fp16x3": 1900.0}, shape=LARGE),
    *bfloat16({"eager": 4.7, "epilogue": 3.15, "compile_max_autotune": 2.98, "triton": 2.99}, shape=SMALL),
    *bfloat16(FUSED),
    *bfloat16({"eager": 434.0, "epilogue": 403.0, "compile_max_autotune": 442.0, "triton": 400.0}, shape=LARGE),
    *float32({"eager": 19.0, "epilogue": 14.7, "triton": 15.1}, {"eager": 3e-4}, math="tf32"),
    *launched("eager", 2),
    *launched("epilogue", 1),
    *launched("triton", 1),
    *launched("epilogue", 1, dtype="float32"),
    *launched("tf32x3", 2, dtype="float32"),
]
CPU = [
    *float32({"eager": 900.0, "eager@again": 900.0, "epilogue": 850.0, "compile": 910.0}, shape=SMALL, clock="hot"),
    *bfloat16({"eager": 500.0, "epilogue": 480.0, "compile": 510.0}, shape=SMALL, clock="hot"),
]


def read(tmp_path: Path, *own: dict[str, Any], device: str = "cuda") -> Evidence:
    """Evidence of one machine, ``box``, with ceilings."""
    clock = "graph" if device == "cuda" else "hot"
    write_records(tmp_path, "box", device, {"ceilings": ceilings(RATES, clock), "tensor_cores": own})
    return evidence_of(tmp_path)


# ---------------------------------------------------------------- findings


@pytest.mark.parametrize(
    ("times", "errors", "figure", "title"),
    [
        ({}, {}, "2.5×", "at tensor-core speed"),
        ({"fp16x3": 60.0, "tf32x3": 60.0}, {}, "1.25×", "short of the goal"),
        ({}, {"fp16x3": 9e-7}, "1.88×", "short of the goal"),
        ({}, {"fp16x3": 9e-7, "tf32x3": 8e-7}, "2.5×", "not as exact"),
        ({"fp16x3": 80.0, "tf32x3": 90.0}, {}, "0.938×", "gains nothing"),
    ],
)
def test_digits_are_judged_by_speed_and_error(
    tmp_path: Path, times: dict[str, float], errors: dict[str, float], figure: str, title: str
) -> None:
    found = said(tensor_cores.digits(read(tmp_path, *float32(FAST | times, errors)), "box", "1024x784x2048"))
    assert found.figure == figure
    assert title in found.title


def test_a_size_at_which_the_form_is_not_ahead_is_named(tmp_path: Path) -> None:
    small = float32({"eager": 8.0, "tf32x3": 7.0, "fp16x3": 9.0}, shape=SMALL)
    found = said(tensor_cores.digits(read(tmp_path, *small, *float32(FAST)), "box", "1024x784x2048"))
    assert "At 256×256×512 that form is slower than" in found.text


def test_weights_split_once_are_said_to_be_slower_only_where_they_are(tmp_path: Path) -> None:
    times = {"eager": 8.0, "fp16x3": 5.0, "fp16x3_once": 5.4}
    lab = read(tmp_path, *float32(times, shape=SMALL), *float32(FAST | {"fp16x3_once": 29.0}))
    text = tensor_cores.slower_once(lab, "box")
    assert label("linear_relu", "fp16x3_once") in text
    assert "256×256×512" in text
    assert "1024×784×2048" not in text
    assert tensor_cores.slower_once(read(tmp_path / "quick", *float32(FAST)), "box") == ""


def test_sizes_behind_and_goals_reached_are_counted(tmp_path: Path) -> None:
    small = bfloat16({"eager": 4.7, "epilogue": 3.15, "triton": 2.99}, shape=SMALL)
    found = said(tensor_cores.fused(read(tmp_path, *small, *bfloat16(FUSED | {"triton": 9.0})), "box"))
    assert "behind its best peer at 1 of 2 sizes" in found.title
    assert "the goal is 1.25×, reached at 1 of 2." in found.text


def test_an_interval_that_holds_the_goal_decides_nothing(tmp_path: Path) -> None:
    rows = [cell("eager", 75.0, error=5e-7), cell("fp16x3", 37.0, error=1e-7) | {"medians_us": [36.7, 38.0]}]
    found = said(tensor_cores.digits(read(tmp_path, *rows), "box", "1024x784x2048"))
    assert "open" in found.text
    rows[1]["medians_us"] = [30.0, 45.0]
    found = said(tensor_cores.digits(read(tmp_path / "noisy", *rows), "box", "1024x784x2048"))
    assert (found.figure, found.text) == (intervals.TOO_NOISY, "")


def test_a_split_is_held_against_its_own_arithmetic(tmp_path: Path) -> None:
    lab = read(tmp_path, *float32(FAST))
    limits = {row.variant: row.limit_us for row in lab.rows if row.experiment == "tensor_cores"}
    flops = 2 * 1024 * 784 * 2048
    assert limits["fp16x3"] == pytest.approx(3 * flops / 690e6)
    assert limits["tf32x3"] == pytest.approx(3 * flops / 360e6)
    assert limits["eager"] == pytest.approx(flops / 50e6)
    assert {row["variant"]: row["share of the limit"] for row in tensor_cores.splits(lab, "box")} == {
        label("linear_relu", "tf32x3"): "68.2%",
        label("linear_relu", "fp16x3"): "47.4%",
    }


def test_a_split_that_failed_says_so(tmp_path: Path) -> None:
    rows = float32({"eager": 75.0, "fp16x3": 30.0})
    lab = read(tmp_path, *rows, cell("tf32x3", 1.0, status="wrong", reason="off by 3", medians_us=[]))
    (line,) = (row for row in tensor_cores.splits(lab, "box") if row["variant"] == label("linear_relu", "tf32x3"))
    assert line["against eager"] == "wrong: off by 3"


@pytest.mark.parametrize(
    ("times", "title"),
    [
        ({}, "nowhere seen behind"),
        ({"triton": 9.0}, "behind its best peer"),
        ({"triton": 8.1}, "behind its best peer, within 2% of it"),
        ({"triton": 9.0, "epilogue": 9.2}, "nowhere seen behind"),
    ],
)
def test_a_fused_kernel_is_set_against_its_best_peer(tmp_path: Path, times: dict[str, float], title: str) -> None:
    found = said(tensor_cores.fused(read(tmp_path, *bfloat16(FUSED | times)), "box"))
    assert title in found.title


def test_the_large_size_has_no_goal_against_eager(tmp_path: Path) -> None:
    lab = read(tmp_path, *bfloat16({"eager": 434.0, "epilogue": 403.0, "triton": 400.0}, shape=LARGE))
    found = said(tensor_cores.fused(lab, "box"))
    assert found.figure == "1.08×"


@pytest.mark.parametrize(
    ("eager", "title"),
    [
        (434.0, "What S004 hopes of a true fusion is there"),
        (403.0, "A true fusion of a large product gains other than S004 hopes"),
        (422.0, "A true fusion gains what S004 hopes in some arithmetic only"),
        (600.0, "A true fusion of a large product gains other than S004 hopes"),
    ],
)
def test_what_s004_hopes_of_the_large_size(tmp_path: Path, eager: float, title: str) -> None:
    lab = read(tmp_path, *bfloat16({"eager": eager, "epilogue": 403.0, "triton": 400.0}, shape=LARGE))
    found = said(tensor_cores.hoped(lab, "box"))
    assert found.title == title


@pytest.mark.parametrize(
    ("own", "figure"),
    [
        (launched("triton", 1) + launched("epilogue", 1) + launched("eager", 2), "2 of 2"),
        (launched("triton", 1) + launched("epilogue", 2), "1 of 2"),
        (launched("triton", 1, again=2), "0 of 1"),
    ],
)
def test_a_single_kernel_is_proven_by_every_count(tmp_path: Path, own: Lines, figure: str) -> None:
    found = said(tensor_cores.single(read(tmp_path, *own), "box"))
    assert found.figure == figure


def test_another_experiment_that_counts_the_same_call_adds_nothing(tmp_path: Path) -> None:
    own = launched("epilogue", 1)
    write_records(tmp_path, "box", "cuda", {"ceilings": ceilings(RATES), "tensor_cores": own, "traffic": own})
    lab = evidence_of(tmp_path)
    assert said(tensor_cores.single(lab, "box")).title == "The fusions are true: one kernel each"
    assert [row["profiler"] for row in tensor_cores.kernel_counts(lab, "box")] == ["1"]


def test_both_directions_are_never_one(tmp_path: Path) -> None:
    backward = float32({"eager": 300.0, "fp16x3": 10.0}, direction="forward_backward")
    lab = read(tmp_path, *float32(FAST), *backward)
    assert said(tensor_cores.digits(lab, "box", "1024x784x2048")).figure == "2.5×"


def test_nothing_is_said_of_what_was_not_measured(tmp_path: Path) -> None:
    lab = read(tmp_path, *CPU, device="cpu")
    assert tensor_cores.findings(lab, "box") == []
    assert tensor_cores.splits(lab, "box") == tensor_cores.kernel_counts(lab, "box") == []
    assert not tensor_cores.has_splits(lab, "box")
    assert "they need a CUDA GPU" in tensor_cores.library(lab, "box")
    assert tensor_cores.library(read(tmp_path / "gpu", *GPU), "box") == ""


# ---------------------------------------------------------------- tables


def test_the_ceilings_of_splits(tmp_path: Path) -> None:
    rows = {row["split"]: row for row in tensor_cores.limits(read(tmp_path, *GPU), "box")}
    assert rows["tf32x3"]["a product by 3"] == "120 TFLOP/s"
    assert rows["fp16x3"]["gain at most"] == "4.60×"
    assert set(rows) <= {"tf32x3", "fp16x3", "bf16x3"}


def test_splits_stand_beside_cublas(tmp_path: Path) -> None:
    rows = {(row["size"], row["variant"]): row for row in tensor_cores.splits(read(tmp_path, *GPU), "box")}
    half, tf32 = (label("linear_relu", name) for name in ("fp16x3", "tf32x3"))
    medium = rows["1024×784×2048", half]
    assert (medium["error, of cuBLAS's"], medium["goal"]) == ("0.500×", "2×: reached")
    assert rows["8192×4096×4096", tf32]["goal"] == "2.5×: missed"
    assert rows["256×256×512", tf32]["goal"] == "–"


def test_fusions_name_their_best_peer(tmp_path: Path) -> None:
    rows = {(row["size"], row["variant"]): row for row in tensor_cores.fusions(read(tmp_path, *GPU), "box")}
    own, epilogue = (label("linear_relu", name) for name in ("triton", "epilogue"))
    assert rows["256×256×512 bfloat16", own]["best peer"] == label("linear_relu", "compile_max_autotune")
    assert rows["1024×784×2048 bfloat16", own]["reads"] == "equal"
    assert rows["1024×784×2048 bfloat16", epilogue]["best peer"] == label("linear_relu", "compile")
    assert rows["1024×784×2048 TF32", own]["reads"] == "slower"
    assert rows["256×256×512 bfloat16", epilogue]["reads"] == "slower"


def test_each_kernel_of_our_own_is_judged(tmp_path: Path) -> None:
    lab = read(tmp_path, *bfloat16(FUSED | {"cuda": 7.1}), *float32({"eager": 19.0, "cuda": 12.4}, math="tf32"))
    titles = [found.title for found in tensor_cores.findings(lab, "box")]
    for name in tensor_cores.OWN:
        (title,) = (title for title in titles if title.lower().startswith(label("linear_relu", name).lower()))
        assert "nowhere seen behind" in title
    rows = {row["size"]: row for row in tensor_cores.fusions(lab, "box") if row["variant"] == "one CUDA kernel"}
    assert {row["reads"] for row in rows.values()} == {"faster"}
    assert set(rows) == {"1024×784×2048 bfloat16", "1024×784×2048 TF32"}


def test_bits_held_fall_for_float16_alone() -> None:
    rows = tensor_cores.held()
    bits = {name: [int(row[name].split()[0]) for row in rows] for name in tensor_cores.TERMS}
    assert min(bits["tf32x3"]) >= 22
    near = sum(place <= 16 for place in tensor_cores.PLACES)
    assert min(bits["fp16x3"][:near]) >= 22
    assert bits["fp16x3"] == sorted(bits["fp16x3"], reverse=True)
    assert bits["fp16x3"][-1] < 8


def test_every_name_is_one_of_the_lab() -> None:
    assert {*tensor_cores.SPLITS, *tensor_cores.FUSED, *tensor_cores.PEERS, *tensor_cores.ONE} <= set(
        variants("linear_relu")
    )
    assert EXPERIMENTS[tensor_cores.EXPERIMENT].notebook == tensor_cores.PAGE
    assert set(names("linear_relu", "split")) == {*tensor_cores.SPLITS, *tensor_cores.ONCE}
