"""Is the rewritten module the original? Every byte of its state, its outputs, its gradients, and every step.

- The checksum is SHA-256 over name, dtype, shape and bytes of every parameter and buffer; comparing changes none.
- ``outputs``: on the example inputs in their own dtype, what is written into included; the same random numbers.
- ``outputs, float64``: both modules with everything in float64, where roundings cannot hide a mistake.
- ``gradients``: of a fixed combination of the outputs, with respect to parameters and inputs, in their own dtype. A
  ReLU whose argument rounds to the other side of zero moves a gradient by more than a rounding: if a share ε of them
  does, by √ε, so that is the tolerance.
- ``gradients, float64``: the same in float64, where that does not happen.

Each error is the largest ‖new − old‖/‖old‖. What cannot be compared is left out with the reason.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from hypatia_lab.egraph.fx_in import draws_random_numbers
from hypatia_lab.egraph.module import Plain, Rewrite

TOLERANCE = 1000
"""Largest ‖new − old‖/‖old‖ of a result, in units of its dtype's machine epsilon: roundings pass, errors do not."""


@dataclass
class Comparison:
    """``errors`` by name of the comparison, what was ``left_out`` and why, and what is wrong (``reason``, or empty)."""

    reason: str = ""
    errors: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    checksum: str = ""


def checksum(module: torch.nn.Module) -> str:
    """SHA-256 over name, dtype, shape and every byte of every parameter and buffer of ``module``, as hexadecimals."""
    total = hashlib.sha256()
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        flat = tensor.detach().contiguous().reshape(-1)
        total.update(flat.view(torch.uint8).cpu().numpy().tobytes() if flat.numel() else b"")
    return total.hexdigest()


def compare(
    old: torch.nn.Module, new: fx.GraphModule, args: Sequence[Any], kwargs: Mapping[str, Any], tolerance: float
) -> Comparison:
    """Everything above, up to the first fault."""
    found = Comparison(checksum=checksum(old))
    shared = {id(tensor) for tensor in (*old.parameters(), *old.buffers())}
    if any(id(tensor) not in shared for tensor in (*new.parameters(), *new.buffers())):
        found.reason = "a parameter was copied"
        return found
    random = draws_random_numbers(new)
    wide = None if random else _in_float64(old, new, args, kwargs)
    why = "random numbers differ from dtype to dtype" if random else "the module cannot be copied, or not to float64"
    for name, run, power in (("outputs", _outputs, 1.0), ("gradients", _gradients, 0.5)):
        for kind, modules in ((name, (old, new, args, kwargs)), (f"{name}, float64", wide)):
            if found.reason:
                return found
            if modules is None:
                found.left_out[kind] = why
                continue
            first, second, *inputs = modules
            try:
                before = run(first, first, *inputs)
            except Exception as error:  # the original itself does not run so: nothing to compare with
                found.left_out[kind] = f"the original fails: {type(error).__name__}: {str(error).splitlines()[:1]}"
                continue
            if not before:
                found.left_out[kind] = "nothing to compare"
                continue
            try:
                after = run(second, first, *inputs)
            except Exception as error:
                found.reason = f"{kind}: the rewritten module fails: {type(error).__name__}: {error}"
                return found
            found.errors[kind], found.reason = _apart(kind, before, after, tolerance, power)
    if not found.reason and checksum(old) != found.checksum:
        found.reason = "comparing changed a parameter or a buffer"
    return found


def step_errors(
    old: fx.GraphModule, new: fx.GraphModule, steps: Sequence[Rewrite], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Rewrite, ...]:
    """``steps`` with the ``error`` of each, where its value is a tensor of both graphs.

    Both graphs run once on the example inputs; what a graph writes into is restored.
    """
    before = _values(old, {step.at[0] for step in steps}, old, args, kwargs)
    after = _values(new, {step.node for step in steps}, old, args, kwargs)
    both = [step.at[0] in before and step.node in after for step in steps]
    return tuple(
        replace(step, error=_difference(before[step.at[0]], after[step.node])[0]) if there else step
        for step, there in zip(steps, both, strict=True)
    )


def _values(
    module: fx.GraphModule, wanted: set[str], state: torch.nn.Module, args: Any, kwargs: Any
) -> dict[str, torch.Tensor]:
    """The tensors that the nodes ``wanted`` compute, by name."""
    seen: dict[str, torch.Tensor] = {}

    class Watching(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            out = super().run_node(n)
            if n.name in wanted and isinstance(out, torch.Tensor):
                seen[n.name] = _own(out)
            return out

    # The interpreter wants the arguments as the graph has them.
    flat = pytree.tree_leaves(pytree.tree_map(_own, (tuple(args), dict(kwargs))))
    with _restored(state), torch.no_grad():
        Watching(module).run(*flat, enable_io_processing=False)
    return seen


@contextmanager
def _restored(module: torch.nn.Module) -> Iterator[None]:
    """Run something by one seed, and put every parameter, buffer and random number generator back as it was."""
    tensors = [*module.parameters(), *module.buffers()]
    kept = [tensor.detach().clone() for tensor in tensors]
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, kept, strict=True):
                if not torch.equal(tensor, value):
                    tensor.copy_(value)


def _own(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _outputs(module: torch.nn.Module, state: torch.nn.Module, args: Any, kwargs: Any) -> list[Any]:
    """Outputs, then arguments and ``state``'s buffers after the call: what is written into is a result too."""
    args, kwargs = pytree.tree_map(_own, (tuple(args), dict(kwargs)))
    with _restored(state), torch.no_grad():
        outputs = module(*args, **kwargs)
        return [_own(leaf) for leaf in pytree.tree_leaves((outputs, args, kwargs, list(state.buffers())))]


def _gradients(module: torch.nn.Module, state: torch.nn.Module, args: Any, kwargs: Any) -> list[Any]:
    """Gradients of Σ c·output, c fixed, with respect to parameters and floating inputs that the outputs depend on."""

    def leaf(value: Any) -> Any:
        own = _own(value)
        return own.requires_grad_() if isinstance(own, torch.Tensor) and own.is_floating_point() else own

    parameters = [parameter for parameter in state.parameters() if parameter.requires_grad]
    if not parameters:
        return []
    arguments = pytree.tree_map(leaf, (tuple(args), dict(kwargs)))
    inputs = [one for one in pytree.tree_leaves(arguments) if isinstance(one, torch.Tensor) and one.requires_grad]
    with _restored(state), torch.enable_grad():
        # Copies: what is a leaf must not be written into.
        args, kwargs = pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, arguments)
        results = pytree.tree_leaves(module(*args, **kwargs))
        outputs = [out for out in results if isinstance(out, torch.Tensor) and out.requires_grad]
        if not outputs:
            return []
        total = torch.zeros((), dtype=torch.float64, device=outputs[0].device)
        for out in outputs:
            weights = torch.linspace(-1, 1.5, out.numel(), dtype=torch.float64, device=out.device).view(out.shape)
            total = total + (out.double() * weights).sum()
        found = torch.autograd.grad(total, [*parameters, *inputs], allow_unused=True)
        return [None if gradient is None else gradient.detach() for gradient in found]


def _in_float64(old: torch.nn.Module, new: fx.GraphModule, args: Any, kwargs: Any) -> tuple[Any, ...] | None:
    """Copies of both modules on one copied state, and the inputs, everything floating in float64."""

    def wide(leaf: Any) -> Any:
        floating = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.detach().double() if floating else leaf

    try:
        # One memo: what the two share, their copies share.
        first, second = copy.deepcopy((old, new))
        # Not Module.double(): it would give each a buffer of its own.
        for tensor in {id(t): t for m in (first, second) for t in (*m.parameters(), *m.buffers())}.values():
            if tensor.is_floating_point():
                tensor.data = tensor.data.double()
    except Exception:  # a module may hold anything
        return None
    if isinstance(second.graph._codegen, Plain):
        # It would refuse arguments of another dtype.
        second.graph.set_codegen(Plain({}))
        second.recompile()
    return (first, second, *pytree.tree_map(wide, (tuple(args), dict(kwargs))))


def _apart(kind: str, before: list[Any], after: list[Any], tolerance: float, power: float) -> tuple[float, str]:
    """Largest relative error over all results, and what is wrong (empty: nothing)."""
    if len(before) != len(after):
        return math.nan, f"{kind}: {len(after)} results, were {len(before)}"
    worst = 0.0
    for number, (a, b) in enumerate(zip(before, after, strict=True)):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            error, reason = _difference(a, b)
            allowed = (tolerance * torch.finfo(a.dtype).eps) ** power if a.is_floating_point() else 0.0
            if not reason and error > allowed:
                reason = f"differs by {error:.2g} of its norm"
            if reason:
                return error, f"{kind}: result {number} {reason}"
            worst = max(worst, error)
        elif (a is None) != (b is None):
            return math.nan, f"{kind}: result {number} is {'absent' if b is None else 'there'}, was not"
    return worst, ""


def _difference(a: torch.Tensor, b: torch.Tensor) -> tuple[float, str]:
    """‖b − a‖/‖a‖ where both are finite (absolute where a is 0), and what makes them incomparable."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return math.nan, f"is {b.dtype} {list(b.shape)}, was {a.dtype} {list(a.shape)}"
    if not a.is_floating_point():
        return float(not torch.equal(a, b)), ""
    finite = a.isfinite()
    if not torch.equal(finite, b.isfinite()):
        return math.nan, "is not finite at other places"
    x, y = a[finite].double(), b[finite].double()
    scale, apart = float(x.norm()), float((x - y).norm())
    return (apart / scale if scale else apart), ""
