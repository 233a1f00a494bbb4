"""What a page counts of the ladder's steps, beside loops that are run and say what they read."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import cuda_sources
import numpy
import pytest
import torch
from kernel_tensors import matrices, needs_compiler

from hypatia_lab.kernels import loader
from hypatia_lab.operations.linear_relu.ladder import STEPS, TILES
from hypatia_lab.pages import ladder_counts, source
from hypatia_lab.pages.ladder_counts import counts

COUNTS = counts()


class Read:
    """Numbers in memory of some kind, which counts those that are read of it."""

    def __init__(self, numbers: numpy.ndarray) -> None:
        self.numbers, self.count = numbers, 0

    def __getitem__(self, place: Any) -> numpy.ndarray:
        found = self.numbers[place]
        self.count += numpy.size(found)
        return found


def block(tile: tuple[int, int], depth: int, owned: tuple[int, int], shared_by: int = 1) -> tuple[Fraction, Fraction]:
    """Run one block's loops over tiles of ``depth``: numbers read from memory, and from shared memory, a product.

    Who multiplies (a thread, a warp, a warpgroup) owns ``owned`` outputs. Each of ``shared_by`` blocks fetches its part
    of w for all of them; this one is told what the others fetched.
    """
    (rows, columns), (down, across) = tile, owned
    generator = numpy.random.default_rng(0)
    x, w = (Read(generator.standard_normal((n, 2 * depth))) for n in tile)
    y, from_shared, products = numpy.zeros(tile), 0, 0
    for k in range(0, 2 * depth, depth):
        part = slice(k, k + depth)
        fetched = w[: columns // shared_by, part]
        w_tile = Read(numpy.concatenate([fetched, w.numbers[columns // shared_by :, part]]).T.copy())
        x_tile = Read(x[:, part].T.copy())
        for row in range(0, rows, down):
            for column in range(0, columns, across):
                for d in range(depth):
                    left, right = x_tile[d, row : row + down], w_tile[d, column : column + across]
                    y[row : row + down, column : column + across] += numpy.multiply.outer(left, right)
                    products += left.size * right.size
        from_shared += x_tile.count + w_tile.count
    assert numpy.allclose(y, x.numbers @ w.numbers.T)
    return Fraction(x.count + w.count, products), Fraction(from_shared, products)


SQUARE = ((128, 128), 16, (8, 8))
LOOPS: dict[str, tuple[Any, ...]] = {
    "step_shared": ((32, 32), 32, (1, 1)),
    "step_registers_1d": ((64, 64), 16, (8, 1)),
    "step_registers_2d": SQUARE,
    "step_vectorized": SQUARE,
    "step_conflict_free": SQUARE,
    "step_along_k": SQUARE,
    "step_async": SQUARE,
    "step_mma": ((128, 128), 64, (64, 64)),
    "step_wgmma": ((128, 256), 64, (64, 256)),
    "step_multicast": ((128, 256), 64, (64, 256), 2),
}


@pytest.mark.parametrize("step", LOOPS)
def test_loops_that_are_run_read_what_is_counted(step: str) -> None:
    assert block(*LOOPS[step]) == (COUNTS[step].memory, COUNTS[step].shared)


@pytest.mark.parametrize("step", ["naive", "step_coalesced"])
def test_without_tiles_a_product_reads_both_of_its_numbers(step: str) -> None:
    assert (COUNTS[step].memory, COUNTS[step].shared, COUNTS[step].shared_bytes) == (2, 0, 0)
    assert COUNTS[step].intensity == Fraction(1, 4)


def test_a_byte_serves_more_operations_from_step_to_step() -> None:
    found = [count.intensity for count in COUNTS.values()]
    assert found == sorted(found)
    assert COUNTS["step_mma"].intensity == Fraction(2 * 128 * 128 * 64, 2 * (128 + 128) * 64)


# ---------------------------------------------------------------- what is launched


def test_blocks_are_counted_as_they_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []

    def launcher(name: str, kernel: str, *template: Any, shared: int = 0, **_: Any) -> Any:
        return lambda grid, block, *given: made.append((grid[0], int(numpy.prod(block)), shared))

    monkeypatch.setattr(loader, "cuda_launcher", launcher)
    monkeypatch.setattr(loader, "tensor_map", lambda *given: None)
    monkeypatch.setattr(loader, "multiprocessors", lambda device: 10**6)  # so that each tile has a block
    monkeypatch.setattr("hypatia_lab.operations.linear_relu.ladder.TILES", TILES[:1])
    sizes = (300, 64, 520)
    for step, count in COUNTS.items():
        if step == "naive":  # launched by its operation, on a GPU alone
            told = "\n".join(source.region("operations/linear_relu/__init__.py", "launch"))
            assert f"({count.rows}, {count.columns})" in told
            continue
        x, weight, bias = matrices(300, inner=64, outer=520, dtype=torch.bfloat16, device="cpu", seed=1)
        STEPS[step].launch(x, weight, bias, torch.empty(300, 520), sizes)
        blocks, threads, shared = made.pop()
        down = count.rows * count.cluster  # a cluster's tiles lie one below the other
        assert blocks == count.cluster * -(-300 // down) * -(-520 // count.columns), step
        assert threads == count.threads, step
        assert shared in (0, count.shared_bytes), step
    assert COUNTS["step_registers_2d"].blocks(256, 512) == 8


@pytest.mark.slow
@pytest.mark.parametrize("step", [name for name, count in COUNTS.items() if count.held and count.depth])
def test_the_compiler_gives_a_block_the_shared_memory_that_is_counted(step: str, tmp_path: Path) -> None:
    files = {path.stem.split("_", 2)[-1]: path.stem for path in (loader.SOURCES / "ladder").glob("*step_*.cu")}
    files |= {"along_k": "substep_6b_along_k"}
    kernel = step.removeprefix("step_")
    said = cuda_sources.machine_code(tmp_path, f"ladder/{files[kernel]}", [f"linear_relu_{kernel}<float, float>"])
    assert re.findall(r"(\d+) bytes smem", said) == [str(COUNTS[step].shared_bytes)]


# ---------------------------------------------------------------- banks


def served(words: list[list[int]]) -> int:
    """Turns in which 32 banks serve the words that threads want, those of a turn's threads together."""
    turns, due = 0, {word for one in words for word in one}
    while due:
        due -= {next(word for word in due if word % 32 == bank) for bank in {word % 32 for word in due}}
        turns += 1
    return turns


def test_turns_are_those_that_banks_take() -> None:
    generator = numpy.random.default_rng(3)
    for _ in range(100):
        places = generator.integers(0, 64, 32).tolist()
        assert ladder_counts.turns(places, 4) == served([[place] for place in places])
        packs = [served([range(4 * place, 4 * place + 4) for place in places[n : n + 8]]) for n in range(0, 32, 8)]  # pyright: ignore[reportArgumentType]
        assert ladder_counts.turns(places, 16) == max(packs)


LAYOUTS = """
extern "C" int in_order(int k, int row) { return InOrder::place<float, float>(k, row); }
extern "C" int swizzled(int k, int row) { return Swizzled::place<float, float>(k, row); }
extern "C" int run_in_order(int at, int n) { return InOrder::line<float>(at, n); }
extern "C" int run_swizzled(int at, int n) { return Swizzled::line<float>(at, n); }
extern "C" int in_rows(int row, int pack) { return staged(row, pack); }
"""


@pytest.fixture(scope="module")
def layouts() -> Any:
    """The functions of the kernels that say where tiles keep their numbers."""
    sources = cuda_sources.emulated_source("ladder/step_6_conflict_free", "ladder/step_7_async")
    return cuda_sources.built(sources + LAYOUTS, [])


@needs_compiler
def test_turns_of_stores_and_loads_are_those_of_the_kernels_layouts(layouts: Any) -> None:
    lanes = range(32)
    for step, place, run in (
        ("step_vectorized", layouts.in_order, layouts.run_in_order),
        ("step_conflict_free", layouts.swizzled, layouts.run_swizzled),
    ):
        stored = [[k * 128 + place(k, lane // 4)] for lane in lanes for k in [lane % 4 * 4]]
        quarter = [range(first, first + 4) for first in (run(lane, 0) for lane in range(8))]
        assert (served(stored), served(quarter)) == (COUNTS[step].stores, COUNTS[step].loads), step  # pyright: ignore[reportArgumentType]
    for row in (0, 8):  # a quarter of a warp: two rows of packs are stored, a pack of eight rows is loaded
        stored = [[4 * layouts.in_rows(row + lane // 4, lane % 4) + n for n in range(4)] for lane in range(8)]
        loaded = [[4 * layouts.in_rows(row + lane, 0) + n for n in range(4)] for lane in range(8)]
        for step in ("step_along_k", "step_async"):
            assert (served(stored), served(loaded)) == (COUNTS[step].stores, COUNTS[step].loads)


def test_numbers_stored_one_by_one_down_a_column_meet_in_a_bank() -> None:
    found = {step: (COUNTS[step].stores, COUNTS[step].loads) for step in LOOPS if step.startswith("step_re")}
    assert COUNTS["step_shared"].stores == 32
    assert found == {"step_registers_1d": (16, 1), "step_registers_2d": (16, 4)}
    columns = [[lane % 16 * 8] for lane in range(32)]
    assert served(columns) == COUNTS["step_registers_2d"].loads


def test_storing_a_column_takes_as_many_turns_as_all_that_is_read_of_it() -> None:
    count = COUNTS["step_shared"]
    warps, numbers, products = 1024 // 32, 2 * 32 * 32, 32**3
    column = served([[32 * lane] for lane in range(32)])  # a warp stores 32 numbers along k
    assert count.storing == Fraction(numbers // 32 * column, products)
    assert count.reading == Fraction(warps * 32 * 2, products)  # each warp reads two for each of 32 k
