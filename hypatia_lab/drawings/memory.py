"""How numbers reach the arithmetic: neighbours, tiles, registers, banks, copies ahead of time."""

from __future__ import annotations

from hypatia_lab.drawings.canvas import BLUE, GREEN, LINE, RED, Canvas
from hypatia_lab.drawings.constants import constants

WARP, SECTOR, NUMBER = 32, 32, 4
"""Threads of a warp; bytes of what device memory hands out at least; bytes of a float32."""
BANKS, BANK = 32, 4
"""Banks of shared memory, and bytes that one gives at a time."""


def coalescing() -> Canvas:
    """Which sectors a warp touches when its lanes read neighbours, and when each reads a row of its own."""
    each, whole = SECTOR // NUMBER, WARP * NUMBER // SECTOR
    draw = Canvas(
        "coalescing",
        f"Neighbours share their transactions: {whole} for a warp, against {WARP}",
        f"Above, the {WARP} lanes of a warp read neighbouring float32 numbers: {whole} sectors of {SECTOR} bytes, "
        f"all used, as in step_coalesced. Below, each reads from a row of its own: {WARP} sectors, of each one "
        f"number in {each}. The naive kernel reads w so, but in blocks of 16 × 16 threads: two lanes share a row, a "
        "warp touches 16 sectors.",
        348,
    )
    left, wide = 28, 12
    draw.label(left, 20, "Neighbours: lane k reads number k", bold=True)
    draw.cells(left, 30, 1, WARP, (wide, 12), lambda row, column: (LINE, "soft"))
    middles = [left + wide * (lane + 0.5) for lane in range(WARP)]
    for x in middles:
        draw.arrow((x, 43), (x, 68), stroke=0.75)
    draw.cells(left, 70, 1, WARP, (wide, 12), lambda row, column: (BLUE, "strong"))
    for sector in range(whole):
        x = left + sector * each * wide
        draw.rectangle(x + 1, 88, each * wide - 2, 22, f"{SECTOR} bytes", colour=BLUE)
    draw.label(left, 130, f"{whole} transactions, every byte used")
    draw.label(left, 172, "Rows: lane k reads from row k", bold=True)
    draw.cells(left, 182, 1, WARP, (wide, 12), lambda row, column: (LINE, "soft"))
    for x in middles:
        draw.arrow((x, 195), (x, 220), stroke=0.75)
        draw.cells(x - 4, 222, each, 1, (8, 8), lambda row, column: (RED, "strong") if row == 0 else None)
    draw.label(left, 308, f"{WARP} transactions of {SECTOR} bytes (the columns),")
    draw.label(left, 327, f"one number in {each} used")
    return draw


def tiles() -> Canvas:
    """A block's tile of y, the strips of x and w that it needs, and the step that lies in shared memory."""
    side = constants("ladder/step_2_shared.cu")["SHARED_TILE"]
    down, across, deep, size = 4, 5, 6, 32
    row, column, step = 2, 3, 2
    draw = Canvas(
        "tiles",
        "A block computes one tile of y, and reads the strips of x and w that it needs tile by tile",
        f"y = x·wᵀ in tiles of {side} × {side}, as in step_shared. A block's tile of y needs the strip of x in the "
        "same rows and the strip of wᵀ in the same columns. It walks along k: at each step one tile of x and one of "
        f"w lie in shared memory, where each number serves {side} sums.",
        400,
    )
    x0, x1, y0, y1 = 20, 20 + deep * size + 24, 36, 36 + deep * size + 28
    cell = size, size
    now, needed, sums = (BLUE, "strong"), (BLUE, "soft"), (RED, "hatch")
    draw.cells(x0, y1, down, deep, cell, lambda r, c: (now if c == step else needed) if r == row else None)
    draw.cells(x1, y0, deep, across, cell, lambda r, c: (now if r == step else needed) if c == column else None)
    draw.cells(x1, y1, down, across, cell, lambda r, c: sums if (r, c) == (row, column) else None)
    draw.rectangle(x1 + column * size, y1 + row * size, size, size, colour=RED, stroke=3)
    draw.rectangle(x0 + step * size, y1 + row * size, size, size, colour=BLUE, stroke=3)
    draw.rectangle(x1 + column * size, y0 + step * size, size, size, colour=BLUE, stroke=3)
    draw.arrow((x0 + 4, y1 + (row + 0.5) * size), (x0 + deep * size - 4, y1 + (row + 0.5) * size))
    middle = x1 + (column + 0.5) * size
    draw.arrow((middle, y0 + 4), (middle, y0 + deep * size - 4))
    draw.label(x0, y1 - 8, "x: batch × in", bold=True)
    draw.label(x1, y0 - 8, "wᵀ: in × out", bold=True)
    draw.label(x1, y1 - 8, "y: batch × out", bold=True)
    legend = {"sums of one block": sums, "what they need": needed, "in shared memory now": now}
    for number, (text, (colour, look)) in enumerate(legend.items()):
        draw.rectangle(x0, 40 + 32 * number, 22, 22, colour=colour, look=look)
        draw.label(x0 + 32, 56 + 32 * number, text)
    draw.label(x0, 158, f"A tile is {side} × {side} numbers;\neach read serves {side} sums.")
    return draw


def registers() -> Canvas:
    """A thread's square of sums as an outer product of two short columns out of shared memory."""
    ladder = constants("ladder/ladder.cuh")
    side, tile, depth = ladder["SIDE"], ladder["TILE"], ladder["DEPTH"]
    runs, cell = tile // side, 22
    draw = Canvas(
        "registers",
        f"{2 * side} numbers from shared memory serve {side * side} sums in registers",
        f"Of line d of {depth} of both tiles in shared memory, {tile} numbers each, a thread of step_registers_2d "
        f"takes {side} of x and {side} of w into registers and adds all {side * side} products to its {side} × "
        f"{side} sums. A thread with one sum would read two numbers a product.",
        372,
    )
    run, at, x0, y0 = 15, 8, 176, 138
    bar = x0 + side / 2 * cell - (at + 0.5) * run
    draw.label(bar, 20, f"w_tile[d]: {tile} numbers in all")
    draw.cells(bar, 28, 1, runs, (run, 20), lambda r, c: (BLUE, "strong") if c == at else None)
    draw.label(16, 112, f"x_tile[d]:\n{tile} numbers")
    draw.cells(40, y0, runs, 1, (20, 11), lambda r, c: (GREEN, "strong") if r == at else None)
    top, left = y0 - 34, x0 - 34
    draw.cells(x0, top, 1, side, (cell, cell), lambda r, c: (BLUE, "soft"))
    draw.cells(left, y0, side, 1, (cell, cell), lambda r, c: (GREEN, "soft"))
    draw.cells(x0, y0, side, side, (cell, cell), lambda r, c: (RED, "hatch"))
    draw.arrow((x0 + side / 2 * cell, 50), (x0 + side / 2 * cell, top - 3))
    draw.arrow((62, y0 + (at + 0.5) * 11), (left - 3, y0 + (at + 0.5) * 11))
    draw.label(x0 + side * cell + 10, top + 16, f"{side} of w")
    draw.label(left + 28, y0 + side * cell + 18, f"{side} of x", anchor="end")
    draw.label(x0 + side * cell + 8, y0 + 20, f"{side} × {side}\nsums")
    draw.label(16, 360, f"A step of d: {2 * side} shared-memory reads, {side * side} products.")
    return draw


def swizzled(row: int, pack: int) -> int:
    """Where ``linear_relu_mma`` keeps the 16 bytes ``pack`` (0 to 7) of a row of 128 bytes."""
    return pack ^ row % 8


def plainly(row: int, pack: int) -> int:
    """Where a row keeps its 16 bytes ``pack`` when nothing moves them."""
    return pack


def swizzle() -> Canvas:
    """A column of 16-byte packs over the banks, as it comes and swizzled."""
    packs, wanted, cell = 8, 2, 23
    banks = 16 // BANK
    draw = Canvas(
        "swizzle",
        "An exclusive or spreads a column of a tile over all 32 banks",
        f"Eight rows of 128 bytes in shared memory, {packs} packs of 16 bytes each. A tensor core's operand takes "
        f"the same pack of eight rows. As they come, all lie in the same {banks} banks: eight turns. Kept at pack "
        f"xor (row mod 8), as the ladder's tensor-core steps do, they lie in all {BANKS} banks: one turn.",
        296,
    )
    for x0, name, turns, place, colour in (
        (34, "as it comes", "one after the other,\n8 turns", plainly, RED),
        (240, "pack ^ row % 8", "from all banks at once,\n1 turn", swizzled, BLUE),
    ):
        at = {(row, place(row, pack)): pack for row in range(packs) for pack in range(packs)}
        marked = {(row, place(row, wanted)): (colour, "strong") for row in range(packs)}
        draw.label(x0, 20, name, bold=True)
        draw.cells(x0, 30, packs, packs, (cell, cell), lambda *place, marked=marked: marked.get(place))
        for (row, column), pack in at.items():
            x, y = x0 + (column + 0.5) * cell, 30 + (row + 0.5) * cell + 5
            draw.label(x, y, str(pack), anchor="middle", bold=pack == wanted)
        draw.label(x0, 232, f"0–{banks - 1}")
        draw.label(x0 + packs * cell / 2, 232, "banks", anchor="middle")
        draw.label(x0 + packs * cell, 232, f"{BANKS - banks}–{BANKS - 1}", anchor="end")
        draw.label(x0, 255, f"pack {wanted} of 8 rows:\n{turns}")
    for row in range(packs):
        draw.label(28, 30 + (row + 0.5) * cell + 5, str(row), anchor="end")
    draw.label(28, 20, "row", anchor="end")
    return draw


def async_stages() -> Canvas:
    """Copies and products on a time line, one after the other and by stages."""
    stages = constants("ladder/step_7_async.cu")["STAGES"]
    ahead, periods = stages - 1, 6
    left, wide, high = 64, 61, 32
    draw = Canvas(
        "async_stages",
        f"With {stages} stages, the next {ahead} tiles are on their way while one is multiplied",
        f"Above, one tile at a time: copy, wait, multiply. Below, {stages} stages of shared memory, as in "
        f"step_async: while step k is multiplied, the copies for the next {ahead} steps go on into the other stages. "
        "Not to scale.",
        300,
    )

    def slot(first: int, length: int, y: float, text: str, *, copy: bool) -> None:
        x, colour, look = left + first * wide + 1.5, GREEN if copy else BLUE, "soft" if copy else "strong"
        draw.rectangle(x, y, length * wide - 3, high, text, colour=colour, look=look, dashed=copy)

    draw.label(8, 20, "One tile at a time", bold=True)
    for step in range(periods // (ahead + 1)):
        slot(step * (ahead + 1), ahead, 32, f"copy {step}", copy=True)
        slot(step * (ahead + 1) + ahead, 1, 32, f"mul. {step}", copy=False)
    draw.label(8, 53, "stage 0")
    draw.label(8, 104, f"{stages} stages, copies {ahead} steps ahead", bold=True)
    for stage in range(stages):
        draw.label(8, 137 + 40 * stage, f"stage {stage}")
    for step in range(periods):
        y = 116 + 40 * (step % stages)
        # Step k is multiplied in period k + ahead; its copy starts as step k - ahead begins, the first ones at once.
        first = 0 if step < ahead else step
        slot(first, min(ahead, periods - first), y, f"copy {step}", copy=True)
        if step + ahead < periods:
            slot(step + ahead, 1, y, f"mul. {step}", copy=False)
    draw.arrow((left, 246), (left + periods * wide, 246))
    draw.label(left, 264, "time")
    draw.label(8, 288, f"Same time: {periods // stages} products above, {periods - ahead} below.")
    return draw
