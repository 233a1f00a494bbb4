"""The convolution block: its peers and the seeds' three kernels."""

from __future__ import annotations

from dataclasses import replace

from hypatia_lab.experiments.axes import BOTH, FEWER_KINDS, KINDS, STEP, Looks, Sweep, experiment
from hypatia_lab.experiments.plan import FOR_GOALS
from hypatia_lab.operations.conv_block import SEED_SHAPE

SPLIT = "triton_fp16x3 whole_fp16x3"
"""Own kernels that multiply float32 as three products of float16."""
OWN = {"float32 ieee": SPLIT, "": "triton whole"}
CORNERS = ((1, 3, 97, 131), (33, 16, 16, 16), (2, 64, 65, 100), (2, 96, 40, 40))
"""Shapes that are only checked: one image and many, odd extents, few channels and many, no power of two."""
BATCHES = tuple((images, *SEED_SHAPE[1:]) for images in (1, 2, 20))
"""Images of the seeds' size at once, beside the seeds' five: where a kernel of our own begins to pay."""
MIDDLE, WIDER, SMALL = (2, 16, 64, 64), (1, 64, 64, 64), (1, 16, 64, 64)

SIZES = {"full cuda": (SEED_SHAPE, (5, 16, 128, 128), (5, 128, 64, 64), (5, 64, 512, 512)), "cuda": (SEED_SHAPE,)}

ON_GPU = (
    # How fast it computes by the graph clock; what a caller waits for by the wall's, with fewer variants.
    Sweep(
        "conv_block",
        SIZES,
        (
            BOTH,
            {
                "float32 ieee": f"naive eager_channels_last group_norm compile triton {SPLIT}",
                "tf32": "eager_channels_last triton whole",
                "": "naive eager_channels_last compile compile_channels_last triton whole",
            },
            "#new",
            {"first": "#peers"},
        ),
        KINDS,
        budget_s=0.15,
    ),
    # Three products of bfloat16 keep 16 bits of an operand: an arithmetic of its own.
    Sweep(
        "conv_block", {"quick": (), "cuda": (SEED_SHAPE,)}, "eager triton whole", "bf16x3", asked="first", budget_s=0.1
    ),
    Sweep(
        "conv_block",
        SIZES,
        (
            f"{BOTH} eager_graph",
            {
                "float32": "naive naive_malloc whole_fp16x3",
                "": "triton whole",
            },
            "#new",
            {"first": "#apart"},
        ),
        FEWER_KINDS,
        clocks="wall",
        budget_s=0.1,
    ),
    Sweep(
        "conv_block",
        {"quick": (), "cuda": (SEED_SHAPE,)},
        ("eager", OWN, "#apart"),
        KINDS,
        asked="first",
        clocks="profiler",
        budget_s=0.05,
    ),
    Sweep(
        "conv_block",
        {"cuda": (SEED_SHAPE,)},
        (f"{BOTH} eager_channels_last", {"bfloat16": "compile compile_channels_last"}, OWN, "#new"),
        FEWER_KINDS,
        STEP,
        asked="first",
        budget_s=0.15,
    ),
    Sweep(
        "conv_block",
        {"quick": (), "cuda": BATCHES},
        {"float32": f"eager naive {SPLIT}", "": "eager triton whole"},
        FEWER_KINDS,
        asked="dropped",
        budget_s=0.05,
    ),
)
ON_CPU = (
    # On two cores the seeds' loops take seconds a call at the seeds' size, a compiler as long in every process.
    Sweep(
        "conv_block",
        {"quick cpu": (SMALL,), "cpu": (WIDER,)},
        f"{BOTH} naive threaded eager_channels_last group_norm #new",
        budget_s=0.2,
    ),
    Sweep(
        "conv_block",
        {"quick": (), "cpu": (WIDER, SEED_SHAPE)},
        {WIDER: "eager naive", "": "eager eager_channels_last group_norm"},
        {WIDER: "bfloat16", "": "float32"},
        asked="dropped",
        budget_s={WIDER: 0.1, "": 0.2},
    ),
    Sweep(
        "conv_block",
        {"cpu": ((2, 16, 32, 32),)},
        f"{BOTH} eager_channels_last group_norm",
        direction=STEP,
        asked="dropped",
        budget_s=0.2,
    ),
)

PLAIN = ("eager naive", {"cpu": "threaded", "": "triton whole"})
ALL_KINDS = {"cuda": "float32 bfloat16 float16 float64 tf32", "cpu": "float32 bfloat16 float16"}
GELUS = Sweep(
    "conv_block",
    # The quick preset of a CPU leaves what is only checked to the page of checks.
    {"quick cpu": (), "quick": (MIDDLE,), "cuda": (SEED_SHAPE,), "": (MIDDLE,)},
    (*PLAIN, {"cuda": {"float32 ieee": SPLIT}}),
    # What is timed on a GPU is checked there. The ledger holds a largest error of what was timed.
    {"quick": ALL_KINDS, "cuda": "float16 float64", "": ALL_KINDS},
    asked="dropped",
    clocks={"quick": "", "cuda float16": "graph"},
    budget_s={"quick": 0.0, "cuda float16": 0.03, "": 0.0},
)
ODD = Sweep(
    "conv_block",
    {"quick cpu": (), "quick": CORNERS[:1], "cuda": CORNERS, "": CORNERS[:2]},  # large ones take a CPU seconds
    (*PLAIN, "eager_channels_last", {"cuda": {"float32": SPLIT}}),
    FEWER_KINDS,
    asked="dropped",
    clocks="",
)
CHECKED = (
    # Both GELUs in every dtype, which S000's one error is held against; then shapes that are not the goal's.
    GELUS,
    replace(
        GELUS,
        operation="conv_block_tanh",
        kinds={"quick": "float32", "cpu": "float32", "": ALL_KINDS},
        clocks="",
        budget_s=0.0,
    ),
    ODD,
    replace(ODD, shapes={"quick": (), "cuda": CORNERS}, names=("eager", OWN), direction=STEP),
)
KERNELS = (
    Looks(
        "conv_block",
        {"quick cpu": (SMALL,), "cuda": (SEED_SHAPE,)},
        {
            "quick float32": "eager naive",
            "quick": "eager compile_channels_last",
            "float32": f"eager naive group_norm naive_malloc eager_channels_last compile {SPLIT}",
            "": "eager compile_channels_last triton whole",
        },
        FEWER_KINDS,
        asked="first",
    ),
    Looks("conv_block", {"quick": (), "cpu": BATCHES[:1]}, "eager naive group_norm", asked="kept"),
)

EXPERIMENTS = (
    experiment(
        "conv_block",
        "05_conv_block",
        "three kernels against the library",
        *(*ON_GPU, *ON_CPU, *CHECKED),
        probes=KERNELS,
        least=FOR_GOALS,
    ),
)
