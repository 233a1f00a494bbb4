"""S000's strategy in place of own kernels: each of its points alone and all together, on a block and on a U-Net."""

from __future__ import annotations

from hypatia_lab.experiments.plan import Experiment, Group, Probe, Shapes, asked
from hypatia_lab.operations.conv_block import SEED_SHAPE
from hypatia_lab.variants import AGAIN
from hypatia_lab.workloads import Workload

SMALL = (2, 16, 64, 64)
"""What two cores compute in milliseconds. Two images: of one, torch 2.13 has wrong gradients on a CPU."""

CHAINS = ((3, 5, 33, 29), (1, 8, 64, 64))
"""Odd extents, and a single image."""

BOTH = ("eager", "eager" + AGAIN)
LAYOUTS = ("eager_channels_last", "group_norm", "group_norm_channels_last")
STEP = "forward_backward"
CAST = "conv_block_autocast"


def _shape(device: str, shapes: Shapes) -> tuple[int, ...]:
    return shapes[0] if shapes else SEED_SHAPE if device == "cuda" else SMALL


IEEE = (*BOTH, "eager_channels_last", "compile")
"""On a GPU the seeds' preset has most points in PyTorch's default arithmetic alone, for compiling takes its time: in
IEEE float32 those that show which convolution the compiler picks."""


def _block(preset: str, device: str, shapes: Shapes) -> list[Group]:
    """The points on a single block; the wall clock is where launches count, which reduce-overhead saves."""
    gpu, quick, shape = device == "cuda", preset == "quick", _shape(device, shapes)
    if gpu and preset == "seed":
        return [Group(Workload("conv_block", shape), IEEE, ("graph", "wall"), 0.1)]
    plain = (*BOTH, *LAYOUTS, "preallocated", "script", "compile")
    # On two cores a compiler takes seconds for each.
    plain += () if quick and not gpu else ("compile_channels_last", "compile_together")
    graphs = ("compile_reduce_overhead", "compile_max_autotune") if gpu and not quick else ()
    clock = ("graph",) if gpu else ("hot",)
    clocks = ("graph", "wall") if gpu else clock
    groups = [Group(Workload("conv_block", shape), plain + graphs, clocks, 0.1)]
    if quick:
        few = ("eager", *asked(preset, device, "compile_together"))
        return [*groups, Group(Workload("conv_block_autocast", shape, "bfloat16"), few, clock, 0.1)]
    cast = ("eager", "eager_channels_last", "compile_together")
    groups += [
        Group(Workload("conv_block_tanh", shape), ("eager", "compile"), clock, 0.1),
        Group(Workload("conv_block", shape, "bfloat16"), (*BOTH, *LAYOUTS, "compile", "compile_together"), clock, 0.1),
        Group(Workload("conv_block_autocast", shape, "bfloat16"), cast, clock, 0.1),
    ]
    if gpu:
        groups += [
            Group(Workload("conv_block", shape, "float32", "tf32"), ("eager", "compile"), clock, 0.1),
            Group(Workload("conv_block", shape, "float16"), ("eager",), clock, 0.1),
            Group(Workload("conv_block_autocast", shape, "float16"), ("eager",), clock, 0.1),
        ]
    # S000's batching: how the time of an image depends on how many there are at once.
    batches = [] if shapes else [(n, *shape[1:]) for n in ((1, 20, 80) if gpu else (1, 8))]
    batches = batches[: None if preset == "full" or not gpu else 2]
    return groups + [Group(Workload("conv_block", one), ("eager", "compile"), clocks, 0.1) for one in batches]


def _unet(preset: str, device: str, shapes: Shapes) -> list[Group]:
    """The points on the U-Net: its output, and its training step."""
    gpu, shape = device == "cuda", _shape(device, shapes)
    clock = ("graph",) if gpu else ("hot",)
    clocks = ("graph", "wall") if gpu else clock  # a caller wins back what compiling cost by the wall
    if preset == "quick":  # to compile it takes longer than that preset may
        return []
    if gpu and preset == "seed":
        return [Group(Workload("unet", shape), IEEE, clocks, 0.1)]
    names = (*BOTH, *LAYOUTS, "script", "compile", "compile_together")
    graphs = ("compile_reduce_overhead",) if gpu else ()
    trained = (*BOTH, *LAYOUTS, "compile", "compile_together")
    groups = [
        Group(Workload("unet", shape), names + graphs, clocks, 0.1),
        Group(Workload("unet_group", shape), ("eager",), clock, 0.1),
        Group(Workload("unet_autocast", shape, "bfloat16"), ("eager", "compile_together"), clocks, 0.1),
        Group(Workload("unet", shape, direction=STEP), trained, clocks, 0.1),
        Group(Workload("unet_autocast", shape, "bfloat16", direction=STEP), ("eager", "compile_together"), clock, 0.15),
    ]
    if gpu:
        groups += [
            Group(Workload("unet", shape, "bfloat16"), ("eager", "compile_together"), clock, 0.1),
            Group(Workload("unet", shape, "float32", "tf32"), ("eager",), clock, 0.1),
            Group(Workload("unet", shape, "bfloat16", direction=STEP), ("eager",), clock, 0.15),
        ]
    return groups


def _chains(preset: str, device: str, shapes: Shapes) -> list[Group]:
    """Chains of normalisations, which are checked and not timed."""
    names = ("eager", "eager_channels_last", "compile", "compile_channels_last")[:: 2 if preset == "quick" else 1]
    odd, single = CHAINS
    # A step checks the output, too.
    found = [(odd, "float32", STEP), (odd, "bfloat16", STEP), (single, "float32", STEP)]
    if (preset, device) == ("seed", "cuda"):
        names, found = names[::2], found[::2]
    if preset == "quick":  # two cores compile each for seconds in every process
        found = [(odd, "float32", "forward")] if device == "cuda" else []
    return [
        Group(Workload("norm_chain", shape, dtype, direction=direction), names, (), 0.0)
        for shape, dtype, direction in found
        if not shapes
    ]


def _points(preset: str, device: str, shapes: Shapes) -> list[Group]:
    return [part for plan in (_block, _unet, _chains) for part in plan(preset, device, shapes)]


def _compile_times(preset: str, device: str, shapes: Shapes) -> list[Probe]:
    """Fresh processes: what compiling costs once, with nothing stored and with Inductor's caches."""
    gpu, quick, shape = device == "cuda", preset == "quick", _shape(device, shapes)
    block, unet = Workload("conv_block", shape), Workload("unet", shape)
    if quick and not gpu:  # a process that compiles takes a third of a minute; the page of warm-up has one
        return []
    if quick:
        return [Probe("start", block, name, case, 3) for name, case in (("eager", ""), ("compile", "empty"))]
    if gpu and preset == "seed":
        ways = [(work, *way) for work in (block, unet) for way in (("eager", ""), ("compile", "empty"))]
        return [Probe("start", work, name, case, 3) for work, name, case in (*ways, (block, "compile", "disk"))]
    ways = [(block, "eager", ""), (block, "script", ""), (unet, "eager", ""), (unet, "script", "")]
    ways += [(block, "compile", "empty"), (block, "compile", "disk"), (unet, "compile", "empty")]
    step = Workload("unet", shape, direction=STEP)
    ways += [(step, "eager", ""), (step, "compile", "empty")]
    ways += [(Workload("unet_autocast", shape, "bfloat16"), "compile_together", "empty")]
    if gpu:
        ways += [(block, "compile_max_autotune", "empty"), (block, "compile_reduce_overhead", "empty")]
    # A process that compiles takes a quarter of a minute and more; by fewer no start is judged.
    return [Probe("start", work, name, case, 3) for work, name, case in ways]


def _kernels(preset: str, device: str, shapes: Shapes) -> list[Probe]:
    """Which kernels a block is made of, eager and compiled, in each layout."""
    names = ("eager", "eager_channels_last", "group_norm_channels_last", "compile", "compile_together")
    work = Workload("conv_block", _shape(device, shapes))
    return [Probe("trace", work, name, "", 1) for name in (names[:1] if preset == "quick" else names)]


def _defaults(preset: str, device: str, shapes: Shapes) -> list[Group]:
    """The points in PyTorch's default arithmetic, and what is compared with it, so that one run has both sides."""
    if device == "cuda":
        return _defaults_on_gpu(preset, shapes)
    # There default is ieee by another name: as much as shows that it is.
    work, clock = Workload("conv_block", _shape(device, shapes), "float32", "default"), ("hot",)
    ieee, cast = Workload("conv_block", work.shape), Workload("conv_block_autocast", work.shape, "bfloat16")
    if preset == "quick":
        return [Group(work, (*BOTH, "group_norm"), clock, 0.1), Group(ieee, ("eager",), clock, 0.1)]
    unet = Workload("unet", work.shape, "float32", "default")
    return [
        Group(work, (*BOTH, *LAYOUTS, "preallocated", "script", "naive", "compile"), clock, 0.1),
        Group(ieee, ("eager", "compile"), clock, 0.1),
        Group(cast, ("eager",), clock, 0.1),
        Group(unet, (*BOTH, "group_norm", "compile"), clock, 0.1),
        Group(Workload("unet_autocast", work.shape, "bfloat16"), ("eager",), clock, 0.1),
    ]


def _defaults_on_gpu(preset: str, shapes: Shapes) -> list[Group]:
    """What compiles is chosen: in eight processes it takes half of the time, a U-Net two to three times a block's.

    So the seeds' preset leaves to the full one: max-autotune and channels last of a compiled block, a U-Net that is
    compiled in other ways than the default, what is cast to bfloat16 and compiled, and eighty images.
    """
    quick, full, shape = preset == "quick", preset == "full", _shape("cuda", shapes)
    both, graph = ("graph", "wall"), ("graph",)
    small, brief = 0.05, 0.03

    def named(operation: str, *, images: int = shape[0], direction: str = "forward") -> Workload:
        return Workload(operation, (images, *shape[1:]), "float32", "default", direction)

    def cast(operation: str, dtype: str = "bfloat16", direction: str = "forward") -> Workload:
        return Workload(operation, shape, dtype, direction=direction)

    ieee = Group(Workload("conv_block", shape), ("eager", "compile"), both, small)
    if quick:
        few = (*BOTH, "group_norm", "naive", "compile")
        return [Group(named("conv_block"), few, both, small), ieee, Group(cast(CAST), ("eager",), graph, small)]
    plain = (*BOTH, *LAYOUTS, "preallocated", "script", "naive", "naive_malloc")
    made = ("compile", "compile_together", "compile_reduce_overhead")
    made += ("compile_channels_last", "compile_max_autotune") if full else ()
    network = (*BOTH, *LAYOUTS, "script", "compile")
    more = ("compile_together", "compile_reduce_overhead") if full else ()
    together = ("eager", "compile_together")
    whole = together if full else ("eager",)
    groups = [
        Group(named("conv_block"), plain + made, both, small),
        ieee,
        # The document's GELU is an approximation.
        Group(named("conv_block_tanh"), ("eager", "naive", "compile"), both, small),
        Group(cast(CAST), together, graph, small),
        Group(cast(CAST, "float16"), ("eager",), graph, small),
        Group(cast("conv_block"), whole, graph, small),
        Group(named("unet"), network + more, both, small),
        Group(cast("unet_autocast"), together, both, small),
        Group(cast("unet"), whole, graph, small),
        Group(named("unet", direction=STEP), (*BOTH, *LAYOUTS, "compile", *more[:1]), both, small),
        Group(cast("unet_autocast", direction=STEP), together, graph, small),
        Group(cast("unet", direction=STEP), ("eager",), graph, small),
    ]
    counts = () if shapes else (1, 20, 80) if full else (1, 20)
    return groups + [Group(named("conv_block", images=n), ("eager", "compile"), both, brief) for n in counts]


def _default_kernels(preset: str, device: str, shapes: Shapes) -> list[Probe]:
    """How many kernels a block launches with PyTorch as installed: eager, compiled and the seeds' own."""
    if (preset, device) == ("quick", "cpu"):
        return []
    work = Workload("conv_block", _shape(device, shapes), "float32", "default")
    return [Probe("trace", work, name, "", 1) for name in ("eager", "compile", "naive")]


EXPERIMENTS = (
    Experiment(
        "library_defaults",
        "06_torch_compile",
        "a block and a U-Net with PyTorch's arithmetic as installed, and what is compared with that",
        "conv_block",
        _defaults,
        _default_kernels,
    ),
    Experiment(
        "torch_compile",
        "06_torch_compile",
        "compiling, mixed precision, layouts and scripts for a block and a U-Net",
        "conv_block",
        _points,
        _kernels,
    ),
    Experiment(
        "compile_time", "06_torch_compile", "what compiling costs a fresh process", "conv_block", probes=_compile_times
    ),
)
