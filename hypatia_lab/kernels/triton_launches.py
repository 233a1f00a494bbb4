"""Launches of Triton's kernels, recorded as its own launcher would make them.

But for one thing: a kernel with an attribute ``kept_apart`` that is true, and that is launched early, gets shared
memory that keeps its blocks apart (:func:`hypatia_lab.kernels.hopper.share_of_memory`).

Source: ``triton/backends/nvidia/driver.py`` of Triton 3.6 and 3.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from hypatia_lab.kernels import hopper, loader
from hypatia_lab.kernels.recording import MAP, NUMBER, POINTER, Recorder, UnplannableError, bits, kept, map_of


@cache
def watch() -> None:
    """From now on Triton's launches are recorded where this thread records, and compiled for it if need be."""
    from triton.runtime.jit import JITFunction

    launch = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        recorder = loader.recorder()
        if recorder is None or warmup:
            return launch(self, *args, grid=grid, warmup=warmup, **kwargs)
        compiled = launch(self, *args, grid=grid, warmup=True, **kwargs)
        given = dict(zip(self.arg_names, args, strict=False)) | kwargs
        record(recorder, getattr(compiled, "result", lambda: compiled)(), given, grid)
        return compiled

    JITFunction.run = run


_INTEGERS = {"i1", "i8", "i16", "i32", "i64", "u1", "u8", "u16", "u32", "u64"}

_TF32 = 11


def record(recorder: Recorder, compiled: Any, given: dict[str, Any], grid: Sequence[int]) -> None:
    """A launch of ``compiled`` with the arguments ``given`` by name."""
    known = compiled.metadata
    maps = iter(getattr(known, "tensordesc_meta", None) or ())
    parameters: list[tuple[int, Any]] = []
    for name, kind in compiled.src.signature.items():
        if kind == "constexpr":
            continue
        value = given[name]
        if not isinstance(kind, str):
            raise UnplannableError(f"{known.name} is given a tuple")
        if kind.startswith("tensordesc"):
            parameters += _descriptor(value, next(maps, None))
        elif kind.startswith("*"):
            parameters.append((POINTER, value.data_ptr()))
        elif kind in _INTEGERS:
            parameters.append((NUMBER, int(value)))
        elif kind in ("fp32", "f32", "fp64"):
            parameters.append((NUMBER, bits("<d" if kind == "fp64" else "<f", float(value))))
        else:
            raise UnplannableError(f"{known.name} is given a {kind}")
    programs = 1
    for extent in grid:
        programs *= extent
    clusters = getattr(known, "num_ctas", 1)
    shared, dependent = known.shared, bool(known.launch_pdl)
    if dependent and getattr(compiled.src.fn, "kept_apart", False):
        shared = max(shared, hopper.share_of_memory(programs, recorder.device.index))
    # Behind its arguments every kernel has memory that Triton asks for, and memory for its profiler.
    for size in (known.global_scratch_size, known.profile_scratch_size):
        parameters.append((POINTER, recorder.scratch(size * programs * clusters)))
    recorder.launch(
        kept(compiled.asm["cubin"]),
        known.name,
        parameters,
        grid=(grid[0] * clusters, *grid[1:]),
        block=(32 * known.num_warps,),
        shared=shared,
        cluster=clusters,
        spread=clusters > 1,
        dependent=dependent,
        cooperative=bool(known.launch_cooperative_grid),
    )


def _descriptor(value: Any, known: Any) -> list[tuple[int, Any]]:
    """A tensor descriptor: its map, then sizes as 32-bit and strides as 64-bit integers."""
    if known is None or known.get("fp4_padded"):
        raise UnplannableError("a tensor descriptor that is no tensor map, or of fp4")
    # The device's numbers of dtypes are not the host's.
    numbered: int = known["elem_type"]
    dtype = {8: 10, 9: 8, 10: 9}.get(numbered, numbered)
    if getattr(value, "round_f32_to_tf32", False):
        dtype = _TF32
    pitches = [stride * known["elem_size"] for stride in value.strides]
    promote_to_128_bytes = 2
    described = map_of(
        dtype,
        known["swizzle"],
        promote_to_128_bytes,
        int(value.padding == "nan"),
        [*reversed(value.shape)],
        [*reversed(pitches)],
        [*reversed(known["block_size"])],
    )
    numbers = [(NUMBER, int(n)) for n in (*value.shape, *value.strides)]
    return [(MAP, (value.base.data_ptr(), described)), *numbers]
