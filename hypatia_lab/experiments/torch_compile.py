"""S000's strategy in place of own kernels: each of its points alone and all together, on a block and on a U-Net."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hypatia_lab.experiments.axes import BOTH, CALLED, STEP, Looks, Setting, Sweep, experiment
from hypatia_lab.experiments.plan import Probe
from hypatia_lab.operations.conv_block import SEED_SHAPE
from hypatia_lab.workloads import Workload

SMALL = (2, 16, 64, 64)
"""What two cores compute in milliseconds. Two images: of one, torch 2.13 has wrong gradients on a CPU."""
CHAINS = ((3, 5, 33, 29), (1, 8, 64, 64))
"""Odd extents, and a single image."""


def images(*counts: int, of: tuple[int, ...] = SEED_SHAPE) -> tuple[tuple[int, ...], ...]:
    """So many images at once."""
    return tuple((count, *of[1:]) for count in counts)


ONE = {"cuda": (SEED_SHAPE,), "cpu": (SMALL,)}
BEYOND_QUICK = {"quick": (), **ONE}
ALL_POINTS = {"seed cuda": (), **BEYOND_QUICK}
"""On a GPU the seeds' preset has most points in PyTorch's default arithmetic alone, for compiling takes its time: in
IEEE float32 those that show which convolution the compiler picks."""
FULL = {"full cuda": (SEED_SHAPE,)}
LAYOUTS = f"{BOTH} eager_channels_last group_norm group_norm_channels_last"
IEEE = f"{BOTH} eager_channels_last compile"
TOGETHER = "eager compile_together"

point = partial(Sweep, asked="first", budget_s=0.1)
POINTS = (
    # A single block; the wall clock is where launches count, which reduce-overhead saves.
    point(
        "conv_block",
        ONE,
        {
            "seed cuda": IEEE,
            # On two cores a compiler takes seconds for each.
            "": (
                f"{LAYOUTS} preallocated script compile ?compile_channels_last ?compile_together",
                {"full cuda": "compile_reduce_overhead compile_max_autotune"},
            ),
        },
        clocks=CALLED,
    ),
    point("conv_block_autocast", {"quick": ONE}, "eager ?compile_together", "bfloat16"),
    point("conv_block_tanh", ALL_POINTS, "eager compile"),
    point("conv_block", ALL_POINTS, f"{LAYOUTS} compile compile_together", "bfloat16"),
    point("conv_block_autocast", ALL_POINTS, "eager eager_channels_last compile_together", "bfloat16"),
    point("conv_block", FULL, {"tf32": "eager compile", "": "eager"}, "tf32 float16"),
    point("conv_block_autocast", FULL, "eager", "float16"),
    # S000's batching: how the time of an image depends on how many there are at once.
    point(
        "conv_block",
        {"quick": (), "full cuda": images(1, 20, 80), "cpu": images(1, 8, of=SMALL)},
        "eager compile",
        asked="dropped",
        clocks=CALLED,
    ),
    # The U-Net, its output and its training step: to compile it takes longer than the quick preset may. A caller wins
    # back what compiling cost by the wall.
    point(
        "unet",
        BEYOND_QUICK,
        {"seed cuda": IEEE, "": (f"{LAYOUTS} script compile compile_together", {"cuda": "compile_reduce_overhead"})},
        clocks=CALLED,
    ),
    point("unet_group", ALL_POINTS, "eager"),
    point("unet_autocast", ALL_POINTS, TOGETHER, "bfloat16", clocks=CALLED),
    point("unet", ALL_POINTS, f"{LAYOUTS} compile compile_together", direction=STEP, clocks=CALLED),
    point("unet_autocast", ALL_POINTS, TOGETHER, "bfloat16", STEP, budget_s=0.15),
    point("unet", FULL, {"bfloat16": TOGETHER, "": "eager"}, "bfloat16 tf32"),
    point("unet", FULL, "eager", "bfloat16", STEP, budget_s=0.15),
    # Chains of normalisations, which are checked and not timed. A step checks the output, too.
    Sweep(
        "norm_chain",
        BEYOND_QUICK | dict.fromkeys(ONE, CHAINS),
        {"seed cuda": "eager compile", "": "eager eager_channels_last compile compile_channels_last"},
        {"seed cuda": "float32", "first": "float32 bfloat16", "": "float32"},
        STEP,
        asked="dropped",
        clocks="",
    ),
    # Two cores compile each for seconds in every process.
    Sweep("norm_chain", {"quick cuda": CHAINS[:1]}, "eager compile", asked="dropped", clocks=""),
)
LAYOUT_KERNELS = "eager eager_channels_last group_norm_channels_last compile compile_together"
KERNELS = Looks("conv_block", ONE, {"quick": "eager", "": LAYOUT_KERNELS}, asked="first")
"""Which kernels a block is made of, eager and compiled, in each layout."""

# What compiles is chosen: in eight processes it takes half of the time, a U-Net two to three times a block's. So the
# seeds' preset leaves to the full one: max-autotune and channels last of a compiled block, a U-Net that is compiled in
# other ways than the default, what is cast to bfloat16 and compiled, and eighty images. On a CPU default is ieee by
# another name: as much as shows that it is.
brief = partial(Sweep, asked="first", budget_s={"cuda": 0.05, "cpu": 0.1})
ON_GPU = {"quick": (), "cuda": (SEED_SHAPE,)}
WHOLE = {"full": TOGETHER, "": "eager"}
DEFAULTS = (
    brief(
        "conv_block",
        ONE,
        (
            {
                "quick": f"{BOTH} group_norm ?naive ?compile",
                "cpu": f"{LAYOUTS} preallocated script naive compile",
                "": f"{LAYOUTS} preallocated script naive naive_malloc compile compile_together "
                "compile_reduce_overhead",
            },
            {"full cuda": "compile_channels_last compile_max_autotune"},
        ),
        "default",
        clocks=CALLED,
    ),
    brief("conv_block", ONE, "eager ?compile", clocks=CALLED),
    # The document's GELU is an approximation.
    brief("conv_block_tanh", ON_GPU, "eager naive compile", "default", clocks=CALLED),
    brief(
        "conv_block_autocast",
        {"quick cpu": (), **ONE},
        {"quick": "eager", "cuda bfloat16": TOGETHER, "": "eager"},
        {"quick": "bfloat16", "cuda": "bfloat16 float16", "": "bfloat16"},
    ),
    brief("conv_block", ON_GPU, WHOLE, "bfloat16"),
    brief(
        "unet",
        BEYOND_QUICK,
        {
            "cpu": f"{BOTH} group_norm compile",
            "": (f"{LAYOUTS} script compile", {"full": "compile_together compile_reduce_overhead"}),
        },
        "default",
        clocks=CALLED,
    ),
    brief("unet_autocast", BEYOND_QUICK, {"cuda": TOGETHER, "": "eager"}, "bfloat16", clocks=CALLED),
    brief("unet", ON_GPU, WHOLE, "bfloat16"),
    brief("unet", ON_GPU, (LAYOUTS, "compile", {"full": "compile_together"}), "default", STEP, clocks=CALLED),
    brief("unet_autocast", ON_GPU, TOGETHER, "bfloat16", STEP),
    brief("unet", ON_GPU, "eager", "bfloat16", STEP),
    Sweep(
        "conv_block",
        {"quick": (), "full cuda": images(1, 20, 80), "cuda": images(1, 20)},
        "eager compile",
        "default",
        asked="dropped",
        clocks=CALLED,
        budget_s=0.03,
    ),
)
DEFAULT_KERNELS = Looks("conv_block", {"quick cpu": (), **ONE}, "eager compile naive", "default", asked="first")
"""How many kernels a block launches with PyTorch as installed: eager, compiled and the seeds' own."""

BLOCK, UNET = ("conv_block", "float32", "forward"), ("unet", "float32", "forward")
TRAINED, CAST = ("unet", "float32", STEP), ("unet_autocast", "bfloat16", "forward")
STARTS = {
    # A process that compiles takes two cores a third of a minute; the page of warm-up has one.
    "quick cpu": (),
    "quick": ((BLOCK, "eager", ""), (BLOCK, "compile", "empty")),
    "seed cuda": (
        (BLOCK, "eager", ""),
        (BLOCK, "compile", "empty"),
        (UNET, "eager", ""),
        (UNET, "compile", "empty"),
        (BLOCK, "compile", "disk"),
    ),
    "": (
        *((work, name, "") for work in (BLOCK, UNET) for name in ("eager", "script")),
        (BLOCK, "compile", "empty"),
        (BLOCK, "compile", "disk"),
        (UNET, "compile", "empty"),
        (TRAINED, "eager", ""),
        (TRAINED, "compile", "empty"),
        (CAST, "compile_together", "empty"),
    ),
}
"""With nothing stored, and with Inductor's caches. By fewer than three processes no start is judged."""
MORE_STARTS = {"full cuda": ((BLOCK, "compile_max_autotune", "empty"), (BLOCK, "compile_reduce_overhead", "empty"))}


def _starts(at: Setting) -> Iterator[Probe]:
    (shape,) = at.shapes[:1] or at.pick(ONE)
    for (operation, dtype, direction), name, case in (*at.pick(STARTS), *at.pick(MORE_STARTS)):
        yield Probe("start", Workload(operation, shape, dtype, direction=direction), name, case, 3)


EXPERIMENTS = (
    experiment(
        "library_defaults",
        "06_torch_compile",
        "a block and a U-Net with PyTorch's arithmetic as installed, and what is compared with that",
        *DEFAULTS,
        probes=(DEFAULT_KERNELS,),
    ),
    experiment(
        "torch_compile",
        "06_torch_compile",
        "compiling, mixed precision, layouts and scripts for a block and a U-Net",
        *POINTS,
        probes=(KERNELS,),
    ),
    experiment(
        *("compile_time", "06_torch_compile", "what compiling costs a fresh process"),
        operation="conv_block",
        probes=(_starts,),
    ),
)
