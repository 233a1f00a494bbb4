"""Tensor cores: who holds what of an operand, blocks that share a tile, and float32 out of short numbers."""

from __future__ import annotations

from collections.abc import Callable

from hypatia_lab.drawings.canvas import BLUE, GREEN, LINE, RED, WINE, Canvas

Place = tuple[int, int]
LANE = 5
"""The lane whose share is marked: any will do but 0, whose numbers are the first of everything."""


def a_element(lane: int, i: int) -> Place:
    """Row and column of element ``i`` (0 to 7) of A (16 × 16) that ``lane`` holds (PTX ISA, mma.m16n8k16, 16 bits)."""
    return lane // 4 + (8 if i % 4 >= 2 else 0), lane % 4 * 2 + i % 2 + (8 if i >= 4 else 0)


def b_element(lane: int, i: int) -> Place:
    """Row (along k) and column of element ``i`` (0 to 3) of B (16 × 8)."""
    return lane % 4 * 2 + i % 2 + (8 if i >= 2 else 0), lane // 4


def c_element(lane: int, i: int) -> Place:
    """Row and column of sum ``i`` (0 to 3) of C (16 × 8)."""
    return lane // 4 + (8 if i >= 2 else 0), lane % 4 * 2 + i % 2


FRAGMENTS: dict[str, tuple[int, int, int, Callable[[int, int], Place]]] = {
    "A": (16, 16, 8, a_element),
    "B": (16, 8, 4, b_element),
    "C": (16, 8, 4, c_element),
}
"""Matrix → rows, columns, elements a lane holds, and where each of them is."""


def tensor_core() -> Canvas:
    """The fragments of m16n8k16: a number for each pair says which lane holds it."""
    cell, left, top, gap = 17, 8, 30, 28
    draw = Canvas(
        "tensor_core",
        "A warp multiplies together: each lane holds a few numbers of A, B and C",
        "The operands of mma.m16n8k16: A is 16 × 16, B 16 × 8, C 16 × 8. The number in each pair of neighbouring "
        f"elements is the lane that holds it. Lane {LANE}, marked, holds eight numbers of A in four registers, four "
        "of B in two, and four sums of C.",
        top + 2 * 16 * cell + gap + 8,
    )
    corners = {"A": (left, top + 16 * cell + gap), "B": (left + 16 * cell + 14, top)}
    corners["C"] = corners["B"][0], corners["A"][1]
    looks = {"A": (GREEN, "strong"), "B": (BLUE, "strong"), "C": (RED, "strong")}
    for name, (rows, columns, held, element) in FRAGMENTS.items():
        x, y = corners[name]
        wide, high = (1, 2) if name == "B" else (2, 1)
        pairs, size = (rows // high, columns // wide), (wide * cell, high * cell)
        own = {(row // high, column // wide): looks[name] for row, column in (element(LANE, i) for i in range(held))}
        draw.cells(x, y, *pairs, size, lambda *pair, own=own: own.get(pair))
        for lane in range(32):
            for i in range(0, held, 2):
                row, column = element(lane, i)
                middle = x + (column + wide / 2) * cell, y + (row + high / 2) * cell + 4
                draw.label(*middle, str(lane), anchor="middle", size=11, bold=lane == LANE)
    draw.label(corners["A"][0], corners["A"][1] - 8, "A: 16 × 16, pairs along k", bold=True)
    draw.label(corners["B"][0], top - 8, "B: 16 × 8", bold=True)
    draw.label(corners["C"][0], corners["C"][1] - 8, "C: 16 × 8", bold=True)
    draw.label(
        left,
        top + 24,
        f"C += A·B by one warp.\n\nThe number in a pair is the\nlane that holds it.\n\nLane {LANE} (marked) holds\n8 "
        "numbers of A in 4 registers,\n4 of B in 2,\n4 sums of C in 4.",
    )
    return draw


def cluster() -> Canvas:
    """Two blocks of a cluster, each of which fetches half of a tile for both."""
    draw = Canvas(
        "cluster",
        "Two blocks share a tile of w: each fetches one half, for both",
        "Two blocks of a cluster work on tiles one below the other: other rows of x, the same tile of w. Each "
        "fetches its own x, block 0 the first half of w, block 1 the second; a multicast copy writes each half into "
        "the shared memory of both. So step_multicast reads the tile of w once for two blocks.",
        326,
    )
    draw.group(8, 8, 424, 86, "device memory")
    sources = {"x 0": (14, 68), "half 0": (136, 78), "half 1": (226, 78), "x 1": (358, 68)}
    looks = {"x 0": (LINE, "soft"), "x 1": (LINE, "soft"), "half 0": (BLUE, "strong"), "half 1": (RED, "soft")}
    for name, (x, wide) in sources.items():
        colour, look = looks[name]
        draw.rectangle(x, 40, wide, 40, name, colour=colour, look=look, dashed=name == "half 1")
    draw.label(225, 30, "tile of w", anchor="middle")
    blocks = (("x 0", "half 0", "half 1"), ("half 0", "half 1", "x 1"))
    for block, order in enumerate(blocks):
        left = 8 + block * 216
        draw.group(left, 192, 208, 84, f"block {block}: shared memory", below=True)
        for number, name in enumerate(order):
            x, (colour, look) = left + 10 + number * 64, looks[name]
            source = sources[name][0] + sources[name][1] / 2
            draw.rectangle(x, 202, 60, 44, name, colour=colour, look=look, dashed=name == "half 1")
            start = (source, 81) if name[0] == "x" else (source + (-8 if block == 0 else 8), 81)
            draw.arrow(start, (x + 30, 200), colour=colour, stroke=2, dashed=name == "half 1")
    draw.label(8, 298, "x 0, x 1: rows of x of each block's tile.\nA half of w leaves memory once, arrives twice.")
    return draw


TERMS = {"fp16x3, tf32x3": 11, "bf16x3": 8}
"""Splits → significant bits of a term; a float32 number has 24."""


def split_product() -> Canvas:
    """The bits that two terms hold, and the three of their four products that are computed."""
    draw = Canvas(
        "split_product",
        "One float32 product is three products of short numbers; the smallest of four is left out",
        "A float32 number has 24 significant bits. A large term holds the first 11 of them (float16, TF32) or 8 "
        "(bfloat16), a small one the next as many. Large·large, large·small and small·large are added in float32. "
        "Small·small is left out: at most 2⁻²² of the product with 11 bits, 2⁻¹⁶ with 8.",
        408,
    )
    left, cell, high = 28, 16, 22
    draw.label(left, 20, "float32: 24 significant bits", bold=True)
    draw.cells(left, 28, 1, 24, (cell, high))
    for number, (names, bits) in enumerate(TERMS.items()):
        y = 78 + 62 * number
        draw.label(left, y, f"{names}: terms of {bits} bits")
        wide = bits * cell
        draw.rectangle(left, y + 8, wide, high, "large", colour=BLUE, look="strong")
        draw.rectangle(left + wide, y + 8, wide, high, "small", colour=WINE, look="soft")
        draw.rectangle(left + 2 * wide, y + 8, 24 * cell - 2 * wide, high, colour=LINE, dashed=True)
    draw.label(left, 216, "x·w =", bold=True)
    wide, tall, x0, y0 = 140, 48, 132, 228
    for column, of_w in enumerate(("large", "small")):
        draw.label(x0 + (column + 0.5) * wide, y0 - 8, f"w {of_w}", anchor="middle")
        for row, of_x in enumerate(("large", "small")):
            x, y = x0 + column * wide, y0 + row * (tall + 8)
            if column == 0:
                draw.label(x0 - 12, y + tall / 2 + 5, f"x {of_x}", anchor="end")
            place = x + 4, y, wide - 8, tall
            if row == column == 1:
                draw.rectangle(*place, "small · small\nleft out", colour=LINE, dashed=True)
                for start in (x + 8, x + wide - 24):
                    draw.line([(start, y + tall - 4), (start + 16, y + 4)], colour=LINE)
            else:
                look = "strong" if row == column else "soft"
                draw.rectangle(*place, f"{of_x} · {of_w}", colour=GREEN, look=look)
    draw.label(left, 364, "Left out is at most 2⁻²² of the product\n(11 bits), or 2⁻¹⁶ (8 bits).")
    return draw
