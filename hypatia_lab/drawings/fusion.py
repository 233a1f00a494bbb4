"""Fewer trips and fewer launches: several layers in one kernel, terms that mean the same, a graph replayed."""

from __future__ import annotations

from collections.abc import Sequence

from hypatia_lab.drawings.canvas import BLUE, GREEN, LINE, RED, Canvas
from hypatia_lab.drawings.constants import constants


def _memory(draw: Canvas, y: float, title: str) -> None:
    """Device memory as a bar at ``y``, below a title."""
    draw.label(16, y - 10, title, bold=True)
    draw.rectangle(16, y, 408, 26, "device memory", colour=LINE, look="soft")


def _one_by_one(draw: Canvas, title: str, kernels: Sequence[str]) -> None:
    """Device memory, and below it the kernels, each with a way down for what it reads and one up."""
    _memory(draw, 30, title)
    each = 408 / len(kernels)
    for number, kernel in enumerate(kernels):
        x = 16 + number * each
        draw.rectangle(x + 4, 96, each - 8, 34, kernel, colour=RED, look="soft")
        draw.arrow((x + 0.3 * each, 58), (x + 0.3 * each, 94), colour=RED)
        draw.arrow((x + 0.7 * each, 94), (x + 0.7 * each, 58), colour=RED)


def fused_mlp() -> Canvas:
    """Three layers by five kernels with a trip of activations each way, and by one kernel."""
    rows = constants("mlp/mlp.cu")["TILE_ROWS"]
    kernels = ("Linear", "ReLU", "Linear", "ReLU", "Linear")
    draw = Canvas(
        "fused_mlp",
        f"In one kernel the activations stay on the chip: 2 trips to memory in place of eager's {2 * len(kernels)}",
        f"Above, three layers as {len(kernels)} kernels, each with a trip to device memory and back. Below, one: "
        f"{rows} rows of x come in, all layers are computed with the activations in registers, {rows} rows of y go "
        "out. Up to width 128 the weights of all layers are loaded once per block, and stay in shared memory.",
        404,
    )
    _one_by_one(draw, f"A kernel for each operation: {2 * len(kernels)} trips", kernels)
    _memory(draw, 182, "One kernel: 2 trips")
    draw.group(16, 264, 408, 128, "")
    layers = ("Linear\nReLU", "Linear\nReLU", "Linear")
    xs = [32, 173, 314]
    for number, (x, layer) in enumerate(zip(xs, layers, strict=True)):
        draw.rectangle(x, 286, 94, 46, layer, colour=BLUE, look="strong")
        draw.line([(x + 47, 332), (x + 47, 350)], dashed=True)
        if number:
            draw.arrow((xs[number - 1] + 96, 309), (x - 2, 309), colour=BLUE, stroke=2)
    draw.label(220, 280, "activations in registers", anchor="middle")
    draw.rectangle(32, 350, 376, 30, "weights in shared memory, loaded once", colour=GREEN, look="soft")
    draw.arrow((79, 210), (79, 284), colour=BLUE, stroke=2)
    draw.arrow((361, 284), (361, 210), colour=BLUE, stroke=2)
    draw.label(90, 240, f"{rows} rows of x")
    draw.label(350, 240, f"{rows} rows of y", anchor="end")
    return draw


def fused_conv_block() -> Canvas:
    """The convolution block by three operations and by one kernel whose blocks wait for each other's moments."""
    channels = constants("conv_block/conv_block_whole.cu")["CHANNELS"]
    draw = Canvas(
        "fused_conv_block",
        "One kernel keeps the convolution's sums in registers, and its blocks exchange moments only",
        "Above, Conv2d, InstanceNorm2d and GELU, each with a trip to device memory and back. Below, one kernel: a "
        f"block convolves a strip of rows of one image in {channels} channels, keeps the sums in registers, and "
        "writes its strip's moments, two numbers a channel. When all blocks of the image have, each normalises what "
        "it holds, applies GELU and writes its strip of y.",
        420,
    )
    _one_by_one(draw, "A kernel for each operation", ("Conv2d", "InstanceNorm2d", "GELU"))
    draw.label(16, 172, "One kernel: a block for each strip", bold=True)
    columns = (
        (16, 50, "strip\nof x", LINE, "soft"),
        (88, 82, "9 taps:\nsums in\nregisters", BLUE, "strong"),
        (284, 82, "normalise,\nGELU", GREEN, "soft"),
        (388, 40, "strip\nof y", LINE, "soft"),
    )
    for y in (190, 252, 314):
        for x, wide, text, colour, look in columns:
            draw.rectangle(x, y, wide, 54, text, colour=colour, look=look)
        for start, end in ((67, 87), (171, 188), (265, 283), (367, 387)):
            draw.arrow((start + 1, y + 27), (end, y + 27), colour=BLUE, stroke=2)
    draw.rectangle(
        189, 186, 75, 186, "wait for\nmoments\nof all\nblocks\nof the\nimage", colour=RED, look="soft", dashed=True
    )
    draw.label(16, 396, "Moments, two numbers a channel and block, pass\nthrough device memory. The sums do not.")
    return draw


RULES = ("addmm_linear", "linear_relu")
"""The rules that the drawing of the e-graph applies, as :mod:`hypatia_lab.egraph.rules` calls them."""


def e_graph() -> Canvas:
    """Three e-classes of relu(x·wᵀ + b), and the cheapest way out."""
    draw = Canvas(
        "e_graph",
        "Rules add what is equal; extraction then takes the cheapest, here what has the fewest launches",
        "The program relu(addmm(b, x, wᵀ)). Class C holds the transposed w. Class B holds addmm(b, x, C) and, by the "
        f"rule {RULES[0]}, linear(x, w, b). Class A, the result, holds relu(B) and, by the rule {RULES[1]}, "
        "linear_relu(x, w, b). All nodes of a class compute the same. On a GPU relu(B) takes two launches, "
        "linear_relu one: it is chosen.",
        356,
    )
    for name, y, size, ways in (
        ("A: the result", 8, (408, 92), (("relu(B)", ""), ("linear_relu(x, w, b)", RULES[1]))),
        ("B", 138, (408, 92), (("addmm(b, x, C)", ""), ("linear(x, w, b)", RULES[0]))),
        ("C", 268, (180, 76), (("transpose(w)", ""),)),
    ):
        draw.group(16, y, *size, f"class {name}", dashed=True)
        for (text, rule), (x, wide) in zip(ways, ((28, 156), (252, 160)), strict=False):
            colour, stroke = (GREEN, 3) if rule == RULES[1] else (LINE, 1.5)
            draw.rectangle(x, y + 32, wide, 32, text, colour=colour, look="soft", stroke=stroke)
            if rule:
                draw.arrow((x - 66, y + 48), (x - 2, y + 48), colour=BLUE, stroke=2)
                draw.label(x + wide / 2, y + 82, f"rule {rule}", anchor="middle")
    draw.label(72, 90, "2 launches with B")
    draw.label(410, 28, "✓ chosen: 1 launch", anchor="end", bold=True)
    draw.arrow((60, 73), (60, 137))
    draw.arrow((60, 203), (60, 267))
    draw.arrow((212, 295), (234, 295), colour=BLUE, stroke=2)
    draw.arrow((223, 304), (223, 320))
    draw.label(240, 300, "rule: an equal node\nreads another class\nx, w, b: inputs, free")
    return draw


def graph_replay() -> Canvas:
    """Launches and kernels on a time line, one by one and from a CUDA graph."""
    draw = Canvas(
        "graph_replay",
        "One replay of a CUDA graph pays the launch once; the kernels follow each other at once",
        "Above, the processor launches five short kernels one by one. A launch takes longer than its kernel, so the "
        "GPU waits. Below, one replay of a CUDA graph starts the same five, and they run back to back. Not to scale.",
        298,
    )
    left, launch, kernel, count = 52, 71, 26, 5

    def rows(y: float, title: str) -> None:
        draw.label(8, y - 10, title, bold=True)
        draw.label(8, y + 20, "CPU")
        draw.label(8, y + 64, "GPU")
        draw.arrow((left, y + 84), (432, y + 84))

    rows(30, "One by one")
    for number in range(count):
        x = left + number * launch
        draw.rectangle(x, 30, launch - 3, 30, f"launch {number}", colour=RED, look="soft")
        x += launch - 3
        if number:
            draw.rectangle(x - launch + kernel, 74, launch - kernel, 30, "idle", colour=LINE, dashed=True)
        draw.rectangle(x, 74, kernel, 30, str(number), colour=BLUE, look="strong")
    rows(174, "One replay")
    draw.rectangle(left, 174, launch + 9, 30, "replay", colour=RED, look="soft")
    for number in range(count):
        x = left + launch + 9 + number * kernel
        draw.rectangle(x, 218, kernel, 30, str(number), colour=BLUE, look="strong")
    draw.label(left + launch + 19 + count * kernel, 238, "done")
    draw.label(left, 280, "time")
    return draw
