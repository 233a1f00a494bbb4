"""The graph optimizer: the documents' nine MLPs through the e-graph, and what optimizing itself takes."""

from __future__ import annotations

from hypatia_lab.experiments.plan import Experiment, Group, Probe, Shapes, asked
from hypatia_lab.operations.conv_block import SEED_SHAPE
from hypatia_lab.operations.mlp import MODELS
from hypatia_lab.variants import AGAIN
from hypatia_lab.workloads import Workload

SAFETY = (32, 784, 256, 2, 10)
"""The model of the documents' safety test, beside the nine of their benchmark."""
CPU_MODELS = MODELS[:7]
"""The other two take a CPU up to 0.7 s a call."""
COMPILED = MODELS[::3]
"""Models that torch.compile is asked for in float32, and the first of them in bfloat16: it takes seconds for each, anew
in each of five processes. With max-autotune it is by the full preset alone, for it tries products for minutes."""
TRAINED = (MODELS[0], MODELS[6])
"""Models of which a training step is timed, forward and backward."""
LAYERS = {3: 2, 30: 2, 100: 5, 300: 2}
"""Lengths of MLPs whose optimizing is timed → fresh processes: the one with a limit to keep is looked at more often."""


def _compilers(shape: tuple[int, ...], dtype: str, preset: str) -> list[str]:
    if preset == "full":
        return ["compile", "compile_max_autotune"]
    return ["compile"] if shape in (COMPILED if dtype == "float32" else COMPILED[:1]) else []


def _models(preset: str, device: str, shapes: Shapes) -> list[Group]:
    gpu, quick = device == "cuda", preset == "quick"
    models = list(shapes) or [SAFETY, *(MODELS if gpu else CPU_MODELS)[: None if not quick else 3 if gpu else 1]]
    groups = []
    for shape in models:
        for dtype in ("float32", "bfloat16") if gpu and (shape in COMPILED or preset == "full") else ("float32",):
            names = ["eager", "eager" + AGAIN, "egraph"]
            names += ["egraph_replayed"] if gpu else []
            names += ["egraph_split", "egraph_split_called"] if gpu and dtype == "float32" else []
            if shape != SAFETY:
                names += asked(preset, device, *_compilers(shape, dtype, preset))
            clocks = ("graph", "wall") if gpu else ("hot",)
            if shape == SAFETY and quick and not gpu:  # to rewrite a model takes a process of two cores seconds
                clocks = ()
            groups.append(Group(Workload("mlp", shape, dtype), tuple(names), clocks, 0.05 if gpu else 0.2))
    trained = TRAINED[: (1 if gpu else 0) if quick else 2 if gpu else 1]
    for shape in shapes or trained:
        # 16-bit gradients cannot be judged: see hypatia_lab.operations.mlp.
        work = Workload("mlp", shape, "float32", direction="forward_backward")
        steps = ("eager", "eager" + AGAIN, "egraph", *asked(preset, device, "compile"))
        groups.append(Group(work, steps, ("graph", "wall") if gpu else ("hot",), 0.1 if gpu else 0.2))
    # Fused convolution blocks are for 16-bit numbers on a GPU.
    if gpu and not quick and not shapes:
        names = ("eager", "eager" + AGAIN, "eager_channels_last", "egraph", "egraph_replayed", "compile")
        groups.append(Group(Workload("unet", SEED_SHAPE, "bfloat16"), names, ("graph", "wall"), 0.1))
    return groups


def depth(layers: int) -> Workload:
    """An MLP of so many narrow layers: small enough for the graph to be all that takes time."""
    return Workload("mlp", (8, 64, 64, layers - 1, 64))


def _probes(preset: str, device: str, shapes: Shapes) -> list[Probe]:
    if shapes:
        return []
    quick = preset == "quick"
    lengths = {100: 1} if quick else LAYERS
    probes = [Probe("graph", depth(layers), "egraph", "", processes) for layers, processes in lengths.items()]
    # The documents' scenario: three Linear layers. Kernels on a GPU, operators on a CPU.
    names = ("eager", "egraph", *(("egraph_replayed",) if device == "cuda" else ()))
    for dtype in ("float32", "bfloat16") if device == "cuda" else ("float32",):
        work = Workload("mlp", MODELS[0], dtype)
        probes += [Probe("trace", work, name, "", 1) for name in names]
    return probes


EXPERIMENTS = (
    Experiment(
        "graph_optimizer",
        "11_graph_optimizer",
        "an e-graph over torch.fx: the nine models, a U-Net, kernels, optimizing time",
        "mlp",
        _models,
        _probes,
    ),
)
