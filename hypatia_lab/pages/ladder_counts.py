"""What each step of the ladder asks of memory, counted from the constants that its kernel is built and launched with.

A *product* is one multiplication with its addition. Counts are of the source as it is written, inside the matrix; a
compiler may join loads of neighbours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from hypatia_lab.drawings.constants import constants
from hypatia_lab.operations.linear_relu.ladder import STEPS, TILES, Cores

WARP, LINE = 32, 128
"""Threads of a warp; bytes that shared memory gives in one turn, 4 from each of 32 banks."""
FLOPS = 2
"""Operations of a product."""


@dataclass(frozen=True)
class Count:
    """A step's block of ``threads``, which makes ``rows`` × ``columns`` outputs.

    - ``depth``: so many numbers of each row of x and of w are in shared memory at a time; 0 where none are
    - ``size``: bytes of a number
    - ``shared``: numbers that a product takes from shared memory
    - ``load``: bytes that a thread's load moves, 0 where the copy engine fetches
    - ``held``: sums and operands that a thread has in registers at once, 0 where tensor cores multiply
    - ``shared_bytes``: shared memory of a block
    - ``copying``: threads that only copy
    - ``cluster``: blocks that share what they fetch of w
    - ``stores``, ``loads``: turns that shared memory takes for a store of a warp, and for a load, over those it would
      take without a bank conflict; 0 where threads do not do it
    """

    rows: int
    columns: int
    threads: int
    depth: int = 0
    size: int = 4
    shared: Fraction = Fraction(0)
    load: int = 4
    held: int = 0
    shared_bytes: int = 0
    copying: int = 0
    cluster: int = 1
    stores: int = 0
    loads: int = 0

    @property
    def sums(self) -> Fraction:
        """Outputs of a thread that multiplies; less than one where several make one together."""
        return Fraction(self.rows * self.columns, self.threads - self.copying)

    @property
    def memory(self) -> Fraction:
        """Numbers that a product takes from memory, its caches included."""
        fetched = self.rows + self.columns // self.cluster
        return Fraction(fetched, self.rows * self.columns) if self.depth else Fraction(2)

    @property
    def intensity(self) -> Fraction:
        """FLOP for each byte that comes from memory."""
        return FLOPS / (self.memory * self.size)

    @property
    def storing(self) -> Fraction:
        """Turns of shared memory that a product takes to store tiles whose numbers are stored one by one."""
        return self.memory * self.stores / WARP

    @property
    def reading(self) -> Fraction:
        """Turns of shared memory that a product takes to read tiles, number by number."""
        return self.shared * self.loads / WARP

    def blocks(self, batch: int, out: int) -> int:
        """How many tiles a result of ``batch`` × ``out`` has."""
        return -(-batch // self.rows) * -(-out // self.columns)


def turns(places: Iterable[int], size: int) -> int:
    """Turns that shared memory takes for one access of a warp, over those it would take without a bank conflict.

    ``places`` are where its threads read or write, in units of ``size`` bytes (4 or 16). Threads that want the same
    place are served together. Of 16 bytes each, a quarter of the warp fills a turn.
    """
    own, across = list(places), LINE // size
    parts = [set(own[first : first + across]) for first in range(0, len(own), across)]
    return max(max(Counter(place % across for place in part).values()) for part in parts)


def _tiles(step: str, depth: int, **more: Any) -> Count:
    """A step on CUDA cores that keeps tiles of x and of w in shared memory, as float32."""
    launch = STEPS[step].launch
    assert isinstance(launch, Cores)
    (threads,) = launch.block
    kept = (launch.rows + launch.columns) * depth * 4
    return replace(Count(launch.rows, launch.columns, threads, depth, shared_bytes=kept), **more)


def _one_by_one(tile: int, depth: int, column: Callable[[int], int]) -> dict[str, int]:
    """Turns where each thread stores numbers one by one along k, and reads w at the ``column`` of its lane."""
    stored = (lane % depth * tile + lane // depth for lane in range(WARP))
    return {"stores": turns(stored, 4), "loads": turns(map(column, range(WARP)), 4)}


def _squares() -> dict[str, Count]:
    """The steps in which a thread owns a square of outputs."""
    own, ahead = constants("ladder/ladder.cuh"), constants("ladder/step_7_async.cu")
    tile, side, depth = own["TILE"], own["SIDE"], own["DEPTH"]
    packs, across, wide = constants("ladder/substep_6b_along_k.cu")["PACKS"], tile // side, 4
    shared, held = Fraction(2 * side, side * side), side * side + 2 * side

    def wide_loads(place: Callable[[int, int], int], run: Callable[[int], int]) -> dict[str, int]:
        """Turns where a thread loads 16 bytes along k and stores its numbers one by one: ``row`` of line ``k`` at
        ``place(k, row)``. The thread at ``at`` of its line reads w in packs, the first at ``run(at)``."""
        columns = depth // wide
        stored = (lane % columns * wide * tile + place(lane % columns * wide, lane // columns) for lane in range(WARP))
        return {"stores": turns(stored, 4), "loads": turns((run(lane % across) // wide for lane in range(WARP)), 16)}

    def staged(row: int, pack: int) -> int:
        """Where ``staged`` of step 6b keeps 16 bytes of a row."""
        return row * packs + (pack ^ row // 2 % packs)

    in_rows = {
        "load": 16,
        "held": side * side + wide * (side + 1),
        "stores": turns((staged(lane // packs, lane % packs) for lane in range(WARP)), 16),
        "loads": turns((staged(lane % across, 0) for lane in range(WARP)), 16),
    }
    apart = LINE // 4 // (depth // wide)
    kept = ahead["STAGES"] * 2 * tile * packs * 16
    made = {
        "step_registers_2d": (depth, _one_by_one(tile, depth, lambda lane: lane % across * side)),
        "step_vectorized": (depth, {"load": 16} | wide_loads(lambda k, row: row, lambda at: at * side)),
        "step_conflict_free": (
            depth,
            {"load": 16} | wide_loads(lambda k, row: row ^ k // wide * apart, lambda at: at * wide),
        ),
        "step_along_k": (packs * wide, in_rows),
        "step_async": (packs * wide, in_rows | {"shared_bytes": kept}),
    }
    return {step: _tiles(step, deep, **{"shared": shared, "held": held} | more) for step, (deep, more) in made.items()}


def counts() -> dict[str, Count]:
    """Step → its count: in float32 on CUDA cores, in bfloat16 on tensor cores, of TMA's tiles the largest."""
    warp, line = constants("ladder/step_1_coalesced.cu"), constants("ladder/step_3_registers_1d.cu")
    side = constants("ladder/step_2_shared.cu")["SHARED_TILE"]
    rows, columns = warp["COALESCED_ROWS"], warp["COALESCED_COLUMNS"]
    each = line["LINE"]
    mma, row_bytes = constants("ladder/step_8_mma.cu"), constants("hopper.cuh")["ROW_BYTES"]
    # Tensor cores take operands for all sums of a warp (mma), or of the 64 rows of four warps (wgmma), at once.
    down, right = mma["MMA_ROWS"] * 16, mma["MMA_COLUMNS"] * 8
    half, tile, largest = {"depth": row_bytes // 2, "size": 2}, mma["MMA_TILE"], TILES[0]
    wgmma = Count(
        largest.height,
        largest.width,
        128 * (largest.consumers + 1),
        **half,
        shared=Fraction(1, 64) + Fraction(1, largest.width),
        load=0,
        shared_bytes=largest.shared,
        copying=128,
    )
    return {
        "naive": Count(16, 16, 256, held=3),
        "step_coalesced": Count(rows, columns, WARP * rows * columns, held=3),
        "step_shared": _tiles("step_shared", side, shared=Fraction(2), held=3, **_one_by_one(side, side, int)),
        "step_registers_1d": _tiles(
            "step_registers_1d",
            line["LINE_DEPTH"],
            shared=Fraction(each + 1, each),
            held=each + 2,
            **_one_by_one(line["LINE_TILE"], line["LINE_DEPTH"], int),
        ),
        **_squares(),
        "step_mma": Count(
            tile,
            tile,
            mma["MMA_THREADS"],
            **half,
            shared=Fraction(1, down) + Fraction(1, right),
            load=16,
            shared_bytes=mma["MMA_STAGES"] * 2 * tile * row_bytes,
        ),
        "step_wgmma": wgmma,
        "step_multicast": replace(wgmma, cluster=2),
    }


def told(count: Count) -> str:
    """A count in sentences, by which a reader can make it again."""
    if count.sums < 1:
        found = [f"{1 / count.sums} threads make a sum together."]
    else:
        who = "Each thread that multiplies" if count.copying else "Each thread"
        found = [f"{who} makes {count.sums} sum{'s' * (count.sums > 1)}."]
    if count.depth:
        own = f"{count.columns} / {count.cluster}" if count.cluster > 1 else count.columns
        found += [
            f"For {count.rows} × {count.columns} × {count.depth} products a block loads ({count.rows} + {own}) × "
            f"{count.depth} numbers."
        ]
    taken = [f"{count.memory} from memory", *([f"{count.shared} from shared memory"] * bool(count.shared))]
    found += [f"That is, in numbers a product: {', '.join(taken)}." if count.depth else "A product takes two numbers."]
    if count.load > 4:
        numbers = count.load // count.size
        loads = f"{count.memory / numbers} and {count.shared / numbers}"
        found += [f"A load moves {count.load} bytes, so it takes {loads} loads."]
    found += [f"A byte from memory serves {float(count.intensity):.3g} FLOP."]
    if count.depth:
        found += [f"A block of {count.threads} threads has {count.shared_bytes:,} bytes of shared memory."]
    return " ".join(found)
