"""The graph optimizer: the documents' nine MLPs through the e-graph, and what optimizing itself takes."""

from __future__ import annotations

from hypatia_lab.experiments.axes import BOTH, CALLED, FEWER_KINDS, STEP, Looks, Sweep, experiment
from hypatia_lab.experiments.linear_relu import SAFETY
from hypatia_lab.operations.conv_block import SEED_SHAPE
from hypatia_lab.operations.mlp import MODELS
from hypatia_lab.workloads import Workload

COMPILED = MODELS[::3]
"""Models that torch.compile is asked for in float32, and the first of them in bfloat16: it takes seconds for each, anew
in each of five processes. With max-autotune it is by the full preset alone, for it tries products for minutes."""


def depth(layers: int) -> Workload:
    """An MLP of so many narrow layers: small enough for the graph to be all that takes time."""
    return Workload("mlp", (8, 64, 64, layers - 1, 64))


LAYERS = {depth(layers).shape: processes for layers, processes in {3: 2, 30: 2, 100: 5, 300: 2}.items()}
"""MLPs whose optimizing is timed → fresh processes: the one with a limit to keep is looked at more often."""

MODULES = (
    Sweep(
        "mlp",
        {
            "quick cuda": (SAFETY, *MODELS[:3]),
            "quick": (SAFETY, *MODELS[:1]),
            "cuda": (SAFETY, *MODELS),
            "": (SAFETY, *MODELS[:7]),  # the other two take a CPU up to 0.7 s a call
        },
        (
            f"{BOTH} egraph",
            {"cuda": "egraph_replayed"},
            {"cuda float32": "egraph_split egraph_split_called"},
            {
                SAFETY: "",
                "full": "compile compile_max_autotune",
                "float32": dict.fromkeys(COMPILED, "?compile"),
                "": {COMPILED[0]: "?compile"},
            },
        ),
        {"full": FEWER_KINDS, **dict.fromkeys(COMPILED, FEWER_KINDS), "": "float32"},
        # To rewrite a model takes a process of two cores seconds.
        clocks={"quick cpu": {SAFETY: "", "": "hot"}, **CALLED},
        budget_s={"cuda": 0.05, "cpu": 0.2},
    ),
    Sweep(
        "mlp",
        {"asked": MODELS, "quick cpu": (), "quick": MODELS[:1], "cuda": MODELS, "cpu": MODELS[:3]},
        (
            f"{BOTH} egraph sequential modules",
            {"cuda": "modules_replayed"},
            dict.fromkeys(COMPILED, "?compile"),
        ),
        FEWER_KINDS,
        direction=STEP,
        clocks=CALLED,
        budget_s={"cuda": 0.1, "cpu": 0.2},
    ),
    Sweep(
        "unet",
        {"quick": (), "cuda": (SEED_SHAPE,)},
        f"{BOTH} eager_channels_last egraph egraph_replayed compile",
        "bfloat16",  # fused convolution blocks are for 16-bit numbers on a GPU
        asked="dropped",
        clocks="graph wall",
        budget_s=0.1,
    ),
)
OPTIMIZING = Looks(
    "mlp",
    {"quick": (depth(100).shape,), "": tuple(LAYERS)},
    "egraph",
    asked="dropped",
    topic="graph",
    processes={"quick": 1, **LAYERS},
)
KERNELS = Looks(
    "mlp", MODELS[:1], {"cuda": "eager egraph egraph_replayed", "": "eager egraph"}, FEWER_KINDS, asked="dropped"
)
"""The documents' scenario: three Linear layers. Kernels on a GPU, operators on a CPU."""

LOSSES = Looks(
    "mlp",
    {"quick": (), "": COMPILED[:2]},
    ("eager modules egraph", {"cuda": "modules_replayed"}),
    direction=STEP,
    asked="dropped",
    topic="training",
)

CHOICES = Looks(
    "mlp",
    {"quick": (), "": MODELS},
    {"cuda": "modules modules_replayed"},
    FEWER_KINDS,
    direction=STEP,
    asked="dropped",
    topic="choice",
)

EXPERIMENTS = (
    experiment(
        "graph_optimizer",
        "11_graph_optimizer",
        "an e-graph over torch.fx: the nine models, their training, a U-Net, kernels, optimizing time",
        *MODULES,
        probes=(OPTIMIZING, KERNELS, LOSSES, CHOICES),
    ),
)
