"""The ladder of products, from synthetic records: what stands above what, and the figure of the climb."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernel_tensors import needs_compiler
from synthetic import Lines, ceilings, cells, detail_line
from synthetic import evidence as together

from hypatia_lab.experiments import EXPERIMENTS, units
from hypatia_lab.figures import over_size
from hypatia_lab.figures.language import FigureError
from hypatia_lab.operations.linear_relu import ladder as kernels
from hypatia_lab.operations.linear_relu import ladder_along_k as later
from hypatia_lab.pages import ladder, ladder_limits
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.variants import names, variants

SMALL, LARGE = [256, 256, 512], [8192, 4096, 4096]

VECTOR = tuple(name for name in ladder.steps() if name in names("linear_relu", "ladder_vector"))
FLOAT32: dict[str, float] = dict(
    zip((*VECTOR, "epilogue", "eager"), (800, 400, 200, 100, 50, 40, 20, 25, 20, 10, 12), strict=True)
)
"""Variant → µs in float32: `step_along_k` loses, and the epilogue is the quicker library."""
BFLOAT16 = {"step_async": 15, "step_mma": 2, "step_wgmma": 1.25, "triton": 1.3, "epilogue": 1.1, "eager": 1.0}
HOST = {"naive": 800, "blocked": 80, "threaded": 40, "eager": 20}


def gpu(shape: Sequence[int] = LARGE) -> Lines:
    return cells(FLOAT32, shape=shape) + cells(BFLOAT16, shape=shape, dtype="bfloat16")


def evidence(*own: dict[str, Any], device: str = "cuda") -> Evidence:
    """Evidence of one machine, ``box``."""
    top = ceilings({"ieee": 20.0, "bfloat16": 400.0}, "graph" if device == "cuda" else "hot")
    return together({"ceilings": top, "gemm_ladder": own}, device)


def test_every_step_is_measured_and_every_lane_is_a_variant() -> None:
    planned = {
        name
        for device in ("cpu", "cuda")
        for group in EXPERIMENTS["gemm_ladder"].groups("seed", device)
        for name in group.variants
    }
    assert set(ladder.steps()) <= planned
    assert set(ladder.order()) <= set(variants("linear_relu"))


def test_a_step_has_one_number_which_is_that_of_its_kernels_file() -> None:
    titles = ladder.titles()
    assert titles["naive"].startswith("0 · ")
    for step in kernels.ORDER:
        file, number = kernels.source_of(step), titles[f"step_{step}"].partition(" · ")[0]
        assert file == f"ladder/step_{number}_{step}"
    assert later.SOURCE.startswith(f"ladder/substep_{titles[later.NAME].partition(' ')[0]}_")
    assert len(set(titles.values())) == len(titles)
    order = list(titles)
    assert order.index("step_conflict_free") + 1 == order.index(later.NAME) == order.index(later.BEFORE) - 1
    assert [titles[name][0] for name in ("blocked", "threaded")] == ["1", "2"]


PAGE = json.loads((Path(__file__).parents[1] / "notebooks" / "04_gemm_ladder.ipynb").read_text(encoding="utf-8"))
WORDS = ["".join(cell["source"]) for cell in PAGE["cells"] if cell["cell_type"] == "markdown"]


def test_the_page_heads_each_step_with_its_number_and_name_in_the_order_of_the_climb() -> None:
    headings = re.findall(r"^### (?:On a CPU: )?(.+)$", "\n".join(WORDS), re.MULTILINE)
    assert headings == list(ladder.titles().values())


@needs_compiler
def test_the_program_that_the_page_gives_checks_and_times_a_step(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.+?)```", "\n".join(WORDS), re.DOTALL)
    (tmp_path / "step.py").write_text(program, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "step.py"), "blocked", "cpu", "float32"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (error,) = re.findall(r"error: (\S+)", done.stdout)
    assert float(error) < 1e-6
    assert re.findall(r"(.+)\n +(?:Median: )?[\d.]+ ms", done.stdout) == ["ladder(step, x, w)", "torch.relu(x @ w.T)"]


def test_a_climb_goes_on_in_half_the_digits_and_ends_at_the_library() -> None:
    lab = evidence(*gpu(), *gpu(SMALL))
    ways = {dtype: ladder.climbs(lab, "box", dtype) for dtype in ladder.DTYPES}
    assert list(ways["float32"]) == list(ways["bfloat16"]) == ["8192x4096x4096", "256x256x512"]
    long, short = (way["8192x4096x4096"] for way in ways.values())
    assert [rung.row.variant for rung in long] == [*VECTOR, "epilogue"]
    assert [rung.row.variant for rung in short] == ["step_async", "step_mma", "step_wgmma", "triton", "eager"]
    assert [bool(rung.gain.n) for rung in short] == [False, True, True, False, False]
    assert long[1].gain == long[0].row.over(long[1].row)
    shares = {rung.row.variant: rung.share.value for rung in (*long, *short)}
    assert shares["step_conflict_free"] == pytest.approx(10 / 20)  # of the library in float32
    assert shares["step_wgmma"] == pytest.approx(1 / 1.25)  # and of that in bfloat16
    assert shares["epilogue"] == shares["eager"] == 1
    assert ladder.best(short).row.variant == "step_wgmma"
    gains = list(ladder.gains(lab, "box", "step_shared"))
    assert [rung.row.shape for rung in gains] == ["8192x4096x4096", "256x256x512"]
    assert [rung.row.dtype for rung in ladder.gains(lab, "box", "step_async")] == ["float32"] * 2
    assert not list(ladder.gains(lab, "box", "naive"))


def test_a_climb_on_a_cpu_has_its_own_steps() -> None:
    lab = evidence(*cells(HOST, shape=SMALL, clock="hot"), device="cpu")
    (way,) = ladder.climbs(lab, "box", "float32").values()
    assert [rung.row.variant for rung in way] == list(HOST)
    assert ladder.climbs(lab, "box", "bfloat16") == {}


@pytest.mark.parametrize("kept", [VECTOR, ("naive", *ladder.LIBRARY)])
def test_there_is_no_climb_without_its_top_or_its_steps(kept: Sequence[str]) -> None:
    lab = evidence(*cells({name: FLOAT32[name] for name in kept}, shape=LARGE))
    assert ladder.climbs(lab, "box", "float32") == {}


def test_rungs_draw_a_row_a_step_and_a_panel_a_size() -> None:
    lab = evidence(*gpu(), *gpu(SMALL))
    with pytest.raises(FigureError, match="one machine, operation and clock"):
        over_size.rungs([*lab.rows, replace(lab.rows[-1], clock="wall")], ladder.order(), "Ladder")
    rows = lab.leading("box", experiment="gemm_ladder")
    figure, table = over_size.rungs(rows, ladder.order(), "Ladder")
    assert [list(block.panels) for block in figure.blocks] == [["256×256×512", "8192×4096×4096"]] * 2
    steps = list(ladder.order().values())
    for block, timed in zip(figure.blocks, (FLOAT32, BFLOAT16), strict=True):
        for panel in block.panels.values():
            names = [cell.name for cell in panel]
            assert len(names) == len(timed)
            assert names == [step for step in steps if step in names]
    assert {cell.limit for block in figure.blocks for cell in block.cells} >= {2e13, 4e14}
    assert len(table) == len(FLOAT32) * 2 + len(BFLOAT16) * 2
    assert figure.to_json() == over_size.rungs(rows, ladder.order(), "Ladder")[0].to_json()


def test_a_step_without_a_time_shows_its_status() -> None:
    skipped = {"status": "skipped", "reason": "no GPU", "medians_us": []}
    left_out = cells({"step_multicast": 1.0}, shape=LARGE, dtype="bfloat16", **skipped)
    rows = evidence(*gpu(), *left_out).leading("box", experiment="gemm_ladder")
    figure, table = over_size.rungs(rows, ladder.order(), "Ladder")
    assert any(cell.status == "skipped" and not cell.drawn for block in figure.blocks for cell in block.cells)
    assert any("no GPU" in text for text in table["status"])


# ---------------------------------------------------------------- what holds a step back


def limited(step: str, dtype: str, **told: float) -> list[dict[str, Any]]:
    """Detail lines of what was counted of a step's kernel, by topic."""
    own = {"operation": "linear_relu", "shape": LARGE, "dtype": dtype, "variant": step, "case": units.LIMITED}
    return [detail_line(**own, topic=topic, name="kernel", unit="1", values=[value]) for topic, value in told.items()]


def test_what_holds_each_step_back_is_a_line_in_the_order_of_the_climb() -> None:
    stalls = {"limit_stall_barrier": 1.5, "limit_stall_mio_throttle": 4.5, "limit_stall_wait": 2.0}
    shared = {"limit_registers": 30, "limit_static_shared_memory": 8192, "limit_dynamic_shared_memory": 0}
    busy = {"limit_arithmetic": 0.5, "limit_tensor_cores": 0.25}
    mma = limited("step_mma", "bfloat16", limit_registers=200, **busy)
    lines = [*mma, *limited("step_shared", "float32", limit_l2=3.5e9, **shared, **stalls, **busy)]
    data = together({"units": lines}, "cuda")
    first, second = ladder_limits.rows(data, "box").values()
    assert (first["step"], second["step"]) == ("2 · tiles in shared memory", "8 · tensor cores")
    assert (first["registers a thread"], first["shared memory a block"]) == ("30", "8192 B")
    assert (first["multiply-add units busy"], second["multiply-add units busy"]) == ("50.0%", "25.0%")
    assert first["through L2"] == "3.50 GB"
    assert first["warps wait most for"] == ladder_limits.WAITS["mio_throttle"]
    assert second["warps wait most for"] == second["from memory"] == "–"
    assert "30 registers a thread" in ladder_limits.told(data, "box", "step_shared")
    assert ladder_limits.told(data, "box", "step_async") == ""
    assert ladder_limits.rows(evidence(*gpu()), "box") == {}
