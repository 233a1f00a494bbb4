"""Is it right? A variant is compared with a float64 reference before, and again after, it is timed.

Fresh memory is poisoned with NaN, inputs are drawn anew for a second call, and a wrong output is told
which fault it looks like, so that a rejection reads like a diagnosis. An answer of several tensors (y and its
gradients) is judged part by part, and a rejection names the part.

How far off is right follows from τ, :meth:`Workload.tolerance`, twice the standard error of rounding to nearest as a
share of what is rounded. Of n elements none may be off by more than τ·tail(n) times the root mean square of the largest
row, for rows differ in size: so far do n errors scatter (:func:`hypatia_lab.workloads.tail`). An element far above its
row has errors of its own size, and a sum that cancels those of its terms. The norm may be off by τ times itself, or,
where elements are few, by what one tensor in a million is, τ/2·(1 + tail(1)/√n). Kinks that rounding may have moved add
what they make jump.

Of 16-bit products PyTorch lets cuBLAS keep running sums in 16 bits, and its own answer may then be off by more (on an
H100 up to four times τ, at few rows and long sums). So an answer is right, too, that would be if PyTorch's own were, at
the same inputs and as far as such sums explain what that is off by, unless a known mistake is nearer to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hypatia_lab import variants
from hypatia_lab.workloads import DTYPES, Workload, tail, unaligned

if TYPE_CHECKING:
    import torch

    from hypatia_lab.workloads import Inputs

VERSIONS = {
    1: "2026-11-28: as it is since 26 November, when answers in 16 bits beyond the plain bound became right where "
    "PyTorch's own agree and no known mistake is nearer; of fewer than 8 elements none is called rounded, and of a "
    "wrong answer of over 134 million it is not told what it looks like; what is off by less than lower precision "
    "would be is not called that",
}
"""What changed which answers are right, or by which name a wrong one goes, and since when."""
VERSION = max(VERSIONS)

SOME = 8
"""Elements of which it shows whether rounding has touched them all; of fewer, any mistake may have."""
HALVED = 5e-5
"""Share of the norm: what rounding to half as many bits as float32 has leaves is more."""
PIECE = 2**26
"""Numbers that are looked at at once."""
LARGE = 2**30
"""Bytes from which on nothing is held that is not needed: a GPU has little room beside large answers."""
POISON = {2: (0x7FFA, 0x7FED), 4: (0x7FFA7FFA, 0x7FEDBEEF), 8: (0x7FFA7FFA7FFA7FFA, 0x7FEDBEEF7FEDBEEF)}
"""Bit patterns (by element size in bytes) of memory that nothing wrote: ours on a GPU, c10's junk on a CPU."""


@dataclass(frozen=True)
class Check:
    """Outcome of a check: ``reason`` is empty when right; errors are NaN-free numbers or None.

    ``error`` is ‖out − ref‖/‖ref‖ and ``max_error`` is max |out − ref|, both against float64; ``peak`` is max |ref|
    (or what stands for it) where errors are judged against it. Of several parts each is the worst one's, or that of
    the part that is wrong.
    """

    reason: str
    error: float | None = None
    max_error: float | None = None
    peak: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the variant computed the right thing."""
        return not self.reason


class Problem:
    """One workload on one device: its inputs, which can be redrawn in place, and float64 references.

    Variants are built on :attr:`inputs`; :meth:`draw` refills those same tensors with other numbers, so a
    variant that keeps an answer from the call before is found out.
    """

    def __init__(self, workload: Workload, device: str) -> None:
        self.workload = workload
        self.device = device
        self.inputs: Inputs = workload.inputs(device, draw=0)
        self._references: dict[int, tuple[torch.Tensor, ...]] = {}
        self._scales: dict[int, dict[str, float]] = {}
        self._jumps: dict[int, dict[str, torch.Tensor]] = {}
        self._library: dict[int, list[tuple[torch.Tensor, ...]]] = {}
        self.drawn = 0

    def draw(self, number: int) -> None:
        """Refill the inputs in place with draw ``number``."""
        self._refill(number)
        give_back()
        self.drawn = number

    def _refill(self, number: int) -> None:
        for name, fresh in self.workload.inputs(self.device, draw=number).items():
            self.inputs[name].copy_(fresh)

    def forget(self, *numbers: int) -> None:
        """Forget the answers to all draws but ``numbers`` and the one that is drawn now."""
        for known in (self._references, self._scales, self._jumps, self._library):
            for number in known.keys() - {*numbers, self.drawn}:
                del known[number]

    def reference(self) -> torch.Tensor:
        """The float64 answer for the inputs as now drawn; of several parts the first, y."""
        return self.references()[0]

    def references(self) -> tuple[torch.Tensor, ...]:
        """The float64 answer for the inputs as now drawn, a tensor for each of the workload's parts."""
        if self.drawn not in self._references:
            self.scales()  # first: what it takes is free again then
            spec, backward = self.workload.spec, self.workload.backward
            found = backward.reference(self.inputs, None, 0.0) if backward else spec.reference(self.inputs)
            self._references[self.drawn] = found if isinstance(found, tuple) else (found,)
            give_back()
        return self._references[self.drawn]

    def scales(self) -> dict[str, float]:
        """By part, the size that errors are judged against where its own is smaller; for inputs as now drawn."""
        if self.drawn not in self._scales:
            self._scales[self.drawn] = self.workload.spec.scale(self.inputs)
            give_back()
        return self._scales[self.drawn]

    def jumps(self) -> dict[str, torch.Tensor]:
        """By gradient and element, what kinks that rounding may move make of it; for inputs as now drawn."""
        if self.drawn not in self._jumps:
            backward = self.workload.backward
            self._jumps[self.drawn] = backward.jumps(self.inputs, self.workload.tolerance() / 2) if backward else {}
        return self._jumps[self.drawn]

    def library(self) -> list[tuple[torch.Tensor, ...]]:
        """PyTorch's own answers to the inputs as now drawn, if its sums may be kept in 16 bits; else none.

        They are the baseline's, with matrices stored as they are, column by column, and at addresses that are no
        multiple of 16 bytes: cuBLAS has other kernels for each.
        """
        if self.drawn not in self._library:
            found = []
            known = [one for one in variants.variants(self.workload.operation).values() if one.baseline]
            if known and DTYPES[self.workload.dtype] == 2 and not known[0].needs(self.workload, self.device):
                matrices = {name: t for name, t in self.inputs.items() if t.dim() == 2}
                columns = {name: _by_column(t) for name, t in matrices.items() if name != "x"}
                shifted = {name: unaligned(t) for name, t in matrices.items()}
                found = [known[0].factory(self.workload, self.inputs | laid)() for laid in ({}, columns, shifted)]
            self._library[self.drawn] = [out if isinstance(out, tuple) else (out,) for out in found]
        return self._library[self.drawn]

    def stale(self, part: int = 0) -> list[torch.Tensor]:
        """References of the other draws: what an output of an earlier call would look like."""
        return [found[part] for number, found in self._references.items() if number != self.drawn]


@dataclass(frozen=True)
class _Part:
    """One tensor of an answer, and what it is judged against."""

    problem: Problem
    number: int
    reference: torch.Tensor

    @property
    def name(self) -> str:
        return self.problem.workload.parts[self.number]

    @property
    def tolerance(self) -> float:
        return self.problem.workload.tolerance(self.name)

    @cached_property
    def least(self) -> float:
        """The size that errors are judged against where the reference's own is smaller."""
        return self.problem.scales().get(self.name, 0.0)

    @cached_property
    def sized(self) -> torch.Tensor:
        """The finite elements of the reference."""
        return finite(self.reference)

    @cached_property
    def count(self) -> int:
        """How many those are, at least 1."""
        return max(1, self.sized.numel())

    @cached_property
    def peak(self) -> float:
        """Largest finite |reference|, or what stands for it."""
        return max(self.least, float(self.sized.norm(float("inf"))) if self.sized.numel() else 0.0)

    @cached_property
    def norm(self) -> float:
        """‖reference‖ of the finite elements, or what stands for it."""
        return max(self.least * self.sized.numel() ** 0.5, float(self.sized.norm()))

    @cached_property
    def jump(self) -> torch.Tensor:
        """Of each element, or of all, what kinks that rounding may move make of it."""
        nothing = self.reference.new_zeros(())
        return self.problem.jumps().get(self.name, nothing) if self.number else nothing

    @cached_property
    def allowed(self) -> float:
        """Largest acceptable error of one element, but for kinks."""
        if self.problem.workload.spec.peak_error is not None:
            return self.tolerance * self.peak
        known = self.reference if self.sized is self.reference else self.reference.nan_to_num(0.0, 0.0, 0.0)
        return self.tolerance * max(tail(self.count) * max(self.least, _largest_row(known)), self.peak)

    @cached_property
    def share(self) -> float:
        """Largest acceptable error of the norm, as a share of it."""
        if self.problem.workload.spec.peak_error is not None:
            return float("inf")
        jumped = float(self.jump.norm()) / self.norm if self.norm else 0.0
        return self.tolerance * max(1.0, (1.0 + tail(1) / self.count**0.5) / 2) + jumped

    def beyond(self, difference: torch.Tensor, factor: float = 1.0, jump: torch.Tensor | None = None) -> torch.Tensor:
        """Where ``difference``, |out − ref|, is more than acceptable, or than ``factor`` times what rounding may do.

        ``jump`` is that of the elements at hand, if they are not all.
        """
        return difference > factor * self.allowed + tail(self.count) * (self.jump if jump is None else jump)

    def matches_library(self, out: torch.Tensor) -> bool:
        """Whether ``out`` would be right if an answer of PyTorch's own were, one that its short sums explain.

        No known mistake may be nearer to ``out`` than what is right: sums that are far off could hide it.
        """
        workload = self.problem.workload
        if workload.spec.peak_error is not None or not (theirs := self.problem.library()):
            return False
        most = workload.tolerance(self.name, short_sums=True) / self.tolerance
        for answers in theirs:
            own = answers[self.number].double()
            off = _difference(own, self.reference)
            explained = _error(off, self.norm) <= most * self.share and not bool(self.beyond(off, most).any())
            if explained and self.agrees(out, own):
                return not self.nearer_to_a_mistake(out)
        return False

    def nearer_to_a_mistake(self, out: torch.Tensor) -> bool:
        """Whether a known mistake is nearer to ``out`` than what is right; one as good as right may be, by chance."""
        distance = float(_difference(out, self.reference).norm())
        for wrong in self.faults().values():
            visible = wrong.shape == out.shape and _error(_difference(wrong, self.reference), self.norm) > self.share
            if visible and float(_difference(out, wrong).norm()) < distance:
                return True
        return False

    def agrees(self, out: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether ``out`` would be right if ``other`` were: the answer of an earlier call, or of a mistake."""
        # Rounding of that answer is of the same size as a right one's, hence the same bounds.
        difference = _difference(out, other)
        close = _error(difference, float(finite(other).norm())) <= self.share
        return close and not bool(self.beyond(difference).any())

    def faults(self) -> dict[str, torch.Tensor]:
        """The float64 answers of well-known mistakes, by name."""
        workload, inputs = self.problem.workload, self.problem.inputs
        if self.number == 0 or workload.backward is None:
            return workload.spec.faults(inputs)
        return workload.backward.faults(inputs).get(self.name, {})


def give_back() -> None:
    """Give back what torch holds of a GPU's memory beside its tensors, where that is much.

    Of a large answer few fit there, and a piece of what was held for one is no place for another.
    """
    import torch

    if torch.cuda.is_initialized() and torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > LARGE:
        torch.cuda.empty_cache()


@contextlib.contextmanager
def poisoned(device: str, *nbytes: int) -> Iterator[None]:
    """While the body runs, memory that torch hands out holds NaN patterns instead of earlier results.

    On a GPU the caching allocator's free blocks of about each of ``nbytes`` are filled first; on a CPU torch's own
    junk-filling allocator is switched on (c10's ``caffe2_cpu_allocator_do_junk_fill``), for every allocation.
    """
    import torch

    if device == "cuda":
        blocks = [
            torch.full((max(1, size // 2),), 0x7FFA, dtype=torch.int16, device=device)
            for size in nbytes
            for _ in range(4 if size < LARGE else 1)
        ]
        del blocks
        yield
        return
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    flag = ctypes.c_bool.in_dll(library, "FLAGS_caffe2_cpu_allocator_do_junk_fill")
    flag.value = True
    try:
        yield
    finally:
        flag.value = False


def check(run: Callable[[], object], problem: Problem, *, place: str = "") -> Check:
    """Call ``run`` on two draws of ``problem``'s inputs and judge both outputs; returns the worse :class:`Check`.

    ``place`` is where the output must lie, if not on the problem's device.

    Exceptions of ``run`` pass through. Sources: quack's tests (error relative to a higher-precision reference),
    KernelBench (checks before timing).
    """
    worst = Check("", 0.0, 0.0)
    for number in (0, 1):
        problem.draw(number)
        sizes = [reference.numel() * DTYPES[problem.workload.dtype] for reference in problem.references()]
        before = {name: tensor.clone() for name, tensor in problem.inputs.items()}
        with poisoned(place or problem.device, *sizes):
            out = run()
        for name, tensor in problem.inputs.items():
            if not same_bits(tensor, before[name]):
                return Check(f"input changed: the call wrote into {name!r}")
        found = judge(out, problem, place=place)
        if not found.ok:
            return found
        worst = worse(worst, found)
    return worst


def worse(a: Check, b: Check) -> Check:
    """What the checks of two right outputs are together."""
    # The smaller peak: errors relative to it are then never flattered.
    peak = b.peak if a.peak is None or b.peak is None else min(a.peak, b.peak)
    return Check("", max(a.error or 0.0, b.error or 0.0), max(a.max_error or 0.0, b.max_error or 0.0), peak)


def judge(out: object, problem: Problem, *, place: str = "") -> Check:
    """Compare one output with the reference of the inputs as now drawn; name the fault if it is wrong.

    ``place`` is where the output must lie, if not on the problem's device. Of several parts the output is the tuple.
    Its y is judged first; in direction ``forward_backward`` the gradients are then held against a reference whose kinks
    lie where that y has them, as far as an error that y may have could have moved it across.
    """
    workload, names = problem.workload, problem.workload.parts
    y = _Part(problem, 0, problem.reference())
    if len(names) == 1:
        return _judge(out, y, place)
    if not isinstance(out, tuple) or len(out) != len(names):
        what = f"tuple of {len(out)}" if isinstance(out, tuple) else type(out).__name__
        return Check(f"wrong type: {what} instead of the tuple ({', '.join(names)})")
    worst = _judge(out[0], y, place)
    if not worst.ok:
        return replace(worst, reason=f"y: {worst.reason}")
    own = problem.references()
    if workload.backward is not None:
        own = workload.backward.reference(problem.inputs, out[0].to(problem.device), y.allowed)
    for number, name in enumerate(names[1:], 1):
        found = _judge(out[number], _Part(problem, number, own[number]), place)
        if not found.ok:
            return replace(found, reason=f"{name}: {found.reason}")
        worst = worse(worst, found)
    return worst


def _judge(out: object, part: _Part, place: str) -> Check:
    """Compare one tensor with its reference; name the fault if it is wrong."""
    import torch

    problem, reference = part.problem, part.reference
    workload = problem.workload
    if not isinstance(out, torch.Tensor):
        return Check(f"wrong type: {type(out).__name__} instead of a tensor")
    if out.shape != reference.shape:
        return Check(f"wrong shape: {list(out.shape)} instead of {list(reference.shape)}")
    if out.dtype != getattr(torch, wanted := workload.part_dtype(part.name)):
        return Check(f"wrong dtype: {str(out.dtype).removeprefix('torch.')} instead of {wanted}")
    if out.device.type != (place or problem.device):
        return Check(f"wrong device: {out.device.type} instead of {place or problem.device}")
    out = out.detach().to(problem.device)
    pairs = list(zip(_pieces(out), _pieces(reference), strict=True))
    unclear = [pair for pair in pairs if _may_be_nan(pair[0])]  # poison is, too
    if any(bool(_is_poison(piece).any()) for piece, _ in unclear):
        return Check(f"unwritten: {_region(_is_poison(out))} still hold the poison")
    if any(bool(_invalid(*pair).any()) for pair in unclear):
        return Check(f"NaN: {_region(_invalid(out, reference))} are NaN where the reference is not")
    norms, largest, bad = [0.0], 0.0, 0
    for pair, jump in zip(pairs, _pieces(part.jump.expand(reference.shape)), strict=True):
        difference = _difference(*pair)
        norms.append(float(difference.norm()))
        most = float(difference.max())
        largest = max(largest, most)
        if most > part.allowed:  # whatever kinks make of an element allows it more, not less
            bad += int(part.beyond(difference, jump=jump).sum())
    error = math.hypot(*norms) / (part.norm or 1.0)
    told = workload.spec.peak_error is not None or bool(workload.spec.accuracy)
    peak = part.peak if told and reference.numel() else None
    if (error <= part.share and not bad) or part.matches_library(out):
        return Check("", error, largest, peak)
    if reference.nbytes > LARGE:  # of what it looks like more would be held than a GPU has
        region = f"{bad} of {reference.numel()} elements"
        return Check(f"wrong values: {_off(part, error, largest)}; {region} are off", error, largest, peak)
    return Check(_diagnose(out, part, error, part.beyond(_difference(out, reference))), error, largest, peak)


def _pieces(numbers: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """``numbers`` in pieces that are looked at one after the other: of a large answer a GPU holds no two."""
    return numbers.reshape(-1).split(PIECE) if numbers.numel() else ()


def _may_be_nan(piece: torch.Tensor) -> bool:
    """Whether there may be a NaN in ``piece``: one makes the sum one, and so may infinities."""
    return not piece.dtype.is_floating_point or bool(piece.sum().isnan())


def _invalid(out: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    return out.isnan() & ~reference.isnan()


def _by_column(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.t().contiguous().t()


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether both hold the same numbers, NaN where the other has NaN."""
    import torch

    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


def _is_poison(out: torch.Tensor) -> torch.Tensor:
    import torch

    as_integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[out.element_size()]
    bits = out.contiguous().view(as_integer)
    ours, junk = POISON[out.element_size()]
    return (bits == ours) | (bits == junk)


def finite(numbers: torch.Tensor) -> torch.Tensor:
    """The elements that have a size, and ``numbers`` as they are where all have: infinities and NaN have none."""
    # A sum shows them, and takes no memory, where a large answer's would fill a GPU.
    return numbers if bool(numbers.sum().isfinite()) else numbers[numbers.isfinite()]


def _largest_row(known: torch.Tensor) -> float:
    """The largest root mean square of a row: all that has one first index, or a whole vector."""
    rows = known.flatten(1) if known.dim() > 1 and known.numel() > len(known) else known.reshape(1, -1)
    return float(rows.norm(dim=1).max()) / rows.shape[1] ** 0.5 if rows.numel() else 0.0


def _difference(out: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """|out − reference|: 0 where both are the same infinity or both NaN, infinite where only one is."""
    difference = out.sub(reference).abs_()  # in float64, in one place: an answer may be half a GPU's
    if bool(difference.sum().isfinite()):
        return difference
    same = (out == reference) | (out.isnan() & reference.isnan())
    return difference.masked_fill(difference.isnan(), float("inf")).masked_fill(same, 0.0)


def _error(difference: torch.Tensor, norm: float) -> float:
    return float(difference.norm()) / (norm or 1.0)


def _grid(mask: torch.Tensor) -> torch.Tensor:
    """``mask`` as rows and columns; of a scalar one element."""
    return mask.reshape(-1, mask.shape[-1]) if mask.dim() else mask.reshape(1, 1)


def _region(mask: torch.Tensor) -> str:
    """Where ``mask`` is true, in words: how many elements, and the rows and columns they span."""
    grid = _grid(mask)
    rows, columns = grid.any(1).nonzero().flatten(), grid.any(0).nonzero().flatten()
    total = int(grid.sum())
    if total == grid.numel():
        return f"all {total} elements"
    if total == 0:  # many small errors add up to a large norm
        return f"0 of {grid.numel()} elements alone"
    return (
        f"{total} of {grid.numel()} elements (rows {int(rows[0])}–{int(rows[-1])} of {grid.shape[0]}, "
        f"columns {int(columns[0])}–{int(columns[-1])} of {grid.shape[1]})"
    )


def _diagnose(out: torch.Tensor, part: _Part, error: float, bad: torch.Tensor) -> str:
    """The fault an output looks like that is wrong at ``bad``. Order matters: exact matches first, patterns, size."""
    import torch

    workload, reference = part.problem.workload, part.reference
    for old in part.problem.stale(part.number):
        if part.agrees(out, old):
            return "stale output: this is the answer to the previous inputs"
    for name, wrong in part.faults().items():
        if wrong.shape == reference.shape and part.agrees(out, wrong):
            error = _error(_difference(out, wrong), float(finite(wrong).norm()))
            return f"{name}: the output matches that mistake to {error:.1e}"
    grid = _grid(bad)
    share = int(grid.sum()) / max(1, grid.numel())
    if grid.shape[1] > 1 and int(bad.sum()) > 1 and not bool(grid[:, 1:].any()):
        return f"writes past a row: only column 0 is wrong ({_region(bad)}), where an overrun of the row before lands"
    if 0 < share < 0.5 and not bool(((out != 0) & bad).any()):
        return f"unwritten: {_region(bad)} are zero"
    # Rounding touches every element that is not zero; a misplaced one touches some.
    written = reference != 0
    count = int(written.sum())
    rounded = count >= SOME and int((bad & written).sum()) > count / 2
    bits = torch.finfo(out.dtype).bits
    if workload.math == "ieee" and error < 8e-3 and rounded and (bits > 32 or (bits == 32 and error > HALVED)):
        level = "bfloat16" if error > 1e-3 else "TF32 or float16" if error > HALVED else "float32"
        return (
            f"low precision, or another formula: error {error:.1e} is the size of {level} rounding, "
            f"not of {workload.dtype}'s (at most {part.share:.1e})"
        )
    return f"wrong values: {_off(part, error, float(_difference(out, reference).max()))}; {_region(bad)} are off"


def _off(part: _Part, error: float, largest: float) -> str:
    """How far off a wrong output is, and how far a right one may be."""
    if part.problem.workload.spec.peak_error is not None:
        return f"off by {largest / (part.peak or 1.0):.1e} of the peak, at most {part.tolerance:.1e} is right"
    return f"error {error:.1e}, at most {part.share:.1e} is right"
