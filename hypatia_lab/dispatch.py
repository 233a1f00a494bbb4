"""One function an operation: it calls the form that is quickest here.

That is the library's unless a form of the lab's is significantly faster.

The first call with tensors of new shapes, strides or dtypes measures every form once, on random numbers laid out in the
same way; later ones look the choice up. It is kept in the user's cache folder, so other processes find it.

- **Candidates** are PyTorch's own forms (eager, the library's epilogue) and the lab's own that need nothing that is not
  there. Not among them are steps of a lesson, forms rebuilt from documents, and what keeps something from call to call.
- **Right**: a form whose answer is off from eager's by more than both may be off from float64 is left out, unless it is
  eager that is off; so is one that fails. A warning says so once.
- **Quickest** is one of the lab's only where that is sure: :mod:`hypatia_lab.races` says when.
- **Clock**: ``wall``, what a caller waits for (in training calls back to back, and where that does not tell, the GPU's
  time), or ``graph``, the time in a replayed CUDA graph. A call that is being captured takes what was chosen by
  ``graph`` before in this process, else by ``wall``, else eager; nothing is measured.
- **Gradients**: where some are asked for, forms of both passes race in the same way, by which are asked for;
  :mod:`hypatia_lab.training` has them. Their race is in a thread of its own.
- **torch.compile** asks as it traces, by shapes, and there is no graph break. Where one of the lab's is the choice its
  graph has an operator that looks the choice up when it runs, or of sizes that are known the forms of both passes; else
  PyTorch's own form, which it then compiles. Without gradients one of the lab's must also be faster, by ``graph``, than
  what Inductor makes of PyTorch's, and in a mode that replays CUDA graphs the choice itself is by that clock.
- **Autocast** casts the layers' tensors as it casts linear's where gradients are asked for. Otherwise it gets PyTorch's
  own form, as do torch.export, torch.jit.trace, FX's proxies, transforms of torch.func and subclasses of tensors.

Looking up takes the host some microseconds, and several times as long in a call by itself as in a loop, perhaps since
the caches no longer hold its code. So it asks what is in ``torch._C``, below PyTorch's own functions. Of a call that is
mostly launching this is a share; replayed from a graph it is nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from hypatia_lab import clock as timer
from hypatia_lab import machine, messages, races, tracing, training, variants
from hypatia_lab.kernels import loader
from hypatia_lab.kernels.compiled import compiled
from hypatia_lab.messages import unknown
from hypatia_lab.operations import conv_block as block
from hypatia_lab.operations import linear_relu as layer
from hypatia_lab.operations import mlp as layers
from hypatia_lab.operations.torch_forms import MODES, Form
from hypatia_lab.races import LIBRARY
from hypatia_lab.training import Asked, Calls, Fault, Needs, Tensors
from hypatia_lab.variants import Variant, variant
from hypatia_lab.workloads import Workload, WorkloadError

HOPELESS, LEEWAY_S = 2.0, 1e-4
"""A candidate whose call takes so many times the library's, and so much more (launches in Python), is not measured."""
SLOW_S = 0.5
"""Of what takes so long one call is enough to tell whether it is hopeless."""
CLOCKS = ("wall", "graph")
MOST_KINDS = 32
"""So many shapes of x a layer is measured for in training: of lengths that change from step to step no more are."""

LESSONS = {"ladder_vector", "document"}
"""Tags of forms that are there to be looked at: steps on the way to a kernel, each of which a GPU's compiler would have
to build first, and what a document describes."""
_CHOOSING = threading.RLock()
"""Held while something is chosen: two measurements at a time would disturb each other."""
told: set[tuple[str, str]] = set()


def _unbound(one: Variant, work: Workload, names: tuple[str, ...]) -> Form:
    """A variant as a function of the tensors of its operation, by ``names``; y lies as the library's.

    Its factory binds something to tensors. Where that is a function of them and of nothing else, the first call finds
    it, and later ones do without the factory, which takes the host as long as a launch.
    """
    found: list[Form] = []

    def form(*tensors: torch.Tensor) -> torch.Tensor:
        if found:
            return training.lying_as(tensors[0], found[0](*tensors))
        run = one.factory(work, dict(zip(names, tensors, strict=True)))
        if isinstance(run, partial) and not run.keywords and [*map(id, run.args)] == [*map(id, tensors)]:
            found.append(run.func)
        return training.lying_as(tensors[0], run())

    return form


@dataclass
class Dispatcher:
    """The chosen form of one ``operation`` of the lab's, whose inputs have these ``names``.

    ``shape`` gives the workload's shape of the tensors of a call; ``direct`` are forms that are functions already,
    eager among them, which every call takes where there is nothing to choose. ``tf32`` says whether PyTorch may now
    round float32 so on a GPU: products and convolutions have a switch each. ``both`` gives, by clock, workload, device
    and which gradients are asked for, the forms of both passes beside ``direct``; ``trained`` is the operation, and its
    shape of the tensors of a call, by whose float64 these are judged, where it is another. ``casts``: autocast has the
    tensors as linear's.
    """

    operation: str
    names: tuple[str, ...]
    shape: Callable[..., tuple[int, ...]]
    direct: Mapping[str, Form]
    tf32: Callable[[], bool]
    both: Callable[[str, Workload, str, Needs], Mapping[str, Form]] = lambda *given: {}
    trained: tuple[str, Callable[..., tuple[int, ...]]] | None = None
    casts: bool = False
    forms: dict[Any, Form] = field(default_factory=dict)
    chosen: dict[Any, str] = field(default_factory=dict)

    def __call__(self, clock: str, compilers: bool, *tensors: torch.Tensor | None) -> torch.Tensor:
        """The operation of ``tensors`` by the form that is chosen for the like of them."""
        if torch.compiler.is_dynamo_compiling():
            return tracing.call(self.operation, clock, tensors)
        key = self._key(clock, compilers, tensors)
        form = self.forms.get(key)
        if form is None:
            form = self.choose(key, clock, tensors)
        return form(*tensors)

    def _key(self, clock: str, compilers: bool, tensors: Tensors) -> tuple[Any, ...] | None:
        """What a choice is for; None where there is nothing to choose."""
        x, weight = tensors[0], tensors[1]
        if not (isinstance(x, torch.Tensor) and isinstance(weight, torch.Tensor)):
            return None
        if training.transformed():
            training.tell_once()
            return None
        needs: Needs = ()
        if torch.is_grad_enabled():
            needs = tuple([one is not None and one.requires_grad for one in tensors])
            needs = needs if True in needs else ()
        kind = "cuda" if x.is_cuda else "cpu"
        cast = torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(kind)
        return (
            "graph" if training.is_capturing(x) else clock,
            compilers,
            needs,
            x.shape,
            weight.shape,
            x.dtype,
            x.stride(),
            weight.stride(),
            x.device,
            weight.dtype,
            type(x),
            type(weight),
            len(tensors) > 2 and tensors[2] is None,
            self._math() if x.is_cuda and x.dtype is torch.float32 else "ieee",
            torch.get_autocast_dtype(kind) if cast else None,
        )

    def known(self, clock: str, tensors: Tensors) -> Form | None:
        """The form that was chosen for ``tensors``; None where nothing was."""
        return self.forms.get(self._key(clock, False, tensors))

    def own(self, clock: str, tensors: Tensors) -> Form | None:
        """The choice for ``tensors``, measured now if it is not known, where it is a form of the lab's; else None.

        And None where nothing is differentiated and what Inductor makes of PyTorch's is as fast. (With a backward pass
        Inductor would wait for a lock which whoever traces holds.) And where another thread is choosing.
        """
        key = self._key(clock, False, tensors)
        # Whoever chooses may race torch.compile, for which it needs a lock that whoever traces holds.
        if key is None or not _CHOOSING.acquire(blocking=False):
            return None
        try:
            form = self._choose(key, tensors)
            ours = self.chosen.get(key, "eager") not in LIBRARY
            return form if ours and (key[2] or self._ahead_of_inductor(key, tensors)) else None
        finally:
            _CHOOSING.release()

    def _ahead_of_inductor(self, key: tuple[Any, ...], tensors: Tensors) -> bool:
        name, x, work = self.chosen[key], tensors[0], self._workload(key[-2], tensors, None)
        assert x is not None
        assert work is not None
        forms = {"eager": tracing.by_inductor(self.direct["eager"]), name: self.forms[key]}
        clock, device = ("graph", x.device) if x.is_cuda else ("wall", -1)
        try:
            with torch.cuda.device(device):
                return self._found(work, clock, "inductor", tensors, None, forms)[0] == name
        except Exception:  # where Inductor fails, whoever traces gets what needs nothing of the lab's
            return False

    def _math(self) -> str:
        try:
            return "tf32" if self.tf32() else "ieee"
        except RuntimeError:  # PyTorch's old and new switches say different things
            return "unknown"

    def choose(self, key: tuple[Any, ...] | None, clock: str, tensors: Tensors) -> Form:
        """The form for a ``key`` that is not known yet."""
        # Of torch.export's tensors and of a tracer's sizes, which are tensors, no key is ever known.
        if key is None or torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return self.direct["eager"]
        if training.is_capturing(tensors[0]):  # pyright: ignore[reportArgumentType]
            return self.forms.get((clock, *key[1:])) or self.direct["eager"]
        if clock not in CLOCKS:
            raise ValueError(unknown("clock", clock, CLOCKS))
        return training.apart(partial(self._choose, key, tensors)) if key[2] else self._choose(key, tensors)

    def _choose(self, key: tuple[Any, ...], tensors: Tensors) -> Form:
        clock, compilers, needs, *_, kind, weight, _, precision, autocast = key
        eager, asked = self.direct["eager"], Asked(needs, autocast) if needs else None
        # Whoever chooses may need the thread of the backward pass that waits.
        if not _CHOOSING.acquire(blocking=not training.in_backward()):
            return eager
        try:
            if key not in self.forms:
                name, form = "eager", eager
                x = tensors[0]
                assert x is not None
                if (
                    kind is torch.Tensor
                    and x.device.type in ("cpu", "cuda")
                    and (not asked or (weight in training.PLAIN and self._few(key)))
                    and (not autocast or (asked and self.casts and all(map(training.castable, tensors))))
                    and (work := self._workload(precision, tensors, asked)) is not None
                ):
                    clock = clock if x.is_cuda else "wall"  # a CPU has no graphs
                    with torch.set_grad_enabled(bool(needs)), torch.cuda.device(x.device if x.is_cuda else -1):
                        forms = self.candidates(work, x.device.type, compilers, asked, clock)
                        name, form = self._found(work, clock, compilers, tensors, asked, forms)
                self.chosen[key], self.forms[key] = name, form
            return self.forms[key]
        finally:
            _CHOOSING.release()

    def _few(self, key: tuple[Any, ...]) -> bool:
        """Whether this layer has met few shapes of x yet."""
        return sum(known[:3] == key[:3] and known[4] == key[4] for known in self.forms) < MOST_KINDS

    def _workload(self, precision: str, tensors: Tensors, asked: Asked | None) -> Workload | None:
        """The lab's name of what is computed; None where it has none, and so no form of its own."""
        operation, shape = (self.trained if asked else None) or (self.operation, self.shape)
        try:
            dtype = tensors[0].dtype  # pyright: ignore[reportOptionalMemberAccess]
            if asked and asked.autocast:
                dtype, precision = asked.autocast, "ieee"
            direction = "forward_backward" if asked else "forward"
            return Workload(operation, shape(*tensors), str(dtype).removeprefix("torch."), precision, direction)
        except (WorkloadError, IndexError, AttributeError):
            return None

    def _found(
        self,
        work: Workload,
        clock: str,
        compilers: bool | str,
        tensors: Tensors,
        asked: Asked | None,
        forms: Mapping[str, Form],
    ) -> tuple[str, Form]:
        """The choice among ``forms`` as it was stored, or measured now and stored."""
        place = tensors[0].device  # pyright: ignore[reportOptionalMemberAccess]
        device = place.type
        laid = [None if one is None else [list(one.shape), list(one.stride()), str(one.dtype)] for one in tensors]
        kind = [work.operation, work.dtype, work.math, clock, compilers, asked and list(asked.needs)]
        asks = [*kind, sorted(forms), laid, *_here(place)]
        path = folder() / f"{hashlib.sha256(json.dumps(asks).encode()).hexdigest()[:32]}.json"
        name = _stored(path, asks)
        if name not in forms:
            try:
                given = _alike(work, device, self.names, tensors)
                name = self.measured(forms, given, work, clock, device, asked)
            except RuntimeError:  # tensors that do not fit, too little memory, or a view that overlaps
                name = "eager"
            else:
                loader.store(path, json.dumps({"asked": asks, "form": name}).encode())
        return name, forms[name]

    def candidates(
        self, work: Workload, device: str, compilers: bool = False, asked: Asked | None = None, clock: str = "wall"
    ) -> dict[str, Form]:
        """Name → form, of all that may compute ``work`` on ``device``, the library's first.

        ``asked``: what of a backward pass; then they are forms that can be differentiated.
        """
        variants.load()
        known = variants.variants(self.operation)
        found: dict[str, Form] = {}
        if asked:
            found |= {name: self.direct[name] for name in LIBRARY if name in self.direct and name != "epilogue"}
            found |= self.both(clock, work, device, asked.needs)
        else:
            for name, one in sorted(known.items(), key=lambda pair: pair[0] not in LIBRARY):
                if contends(one) and not one.needs(work, device):
                    found[name] = self.direct.get(name) or _unbound(one, work, self.names)
        for name in ("compile", "compile_max_autotune") if compilers else ():
            if name in known and not known[name].needs(work, device):
                found[name] = compiled(self.direct["eager"], mode=MODES[name])
        return {"eager": self.direct["eager"]} | (asked.cast(found) if asked else found)

    def measured(
        self,
        forms: Mapping[str, Form],
        tensors: Tensors,
        work: Workload,
        clock: str,
        device: str,
        asked: Asked | None = None,
    ) -> str:
        """The name of the quickest of ``forms``, of those that are right on ``tensors``; see the module."""
        both = training.race(asked, forms, self.names, tensors, work) if asked else None
        (runs, fault), least = both or self._one(forms, tensors, work), math.inf
        for name, run in [*runs.items()]:
            del runs[name]
            try:
                if reason := fault(run()):
                    _tell(self.operation, name, reason)
                    continue
                seconds = [timer.once_s(run, device)]
                while len(seconds) < 3 and seconds[-1] < SLOW_S:
                    seconds.append(timer.once_s(run, device))
            except Exception as cause:
                _tell(self.operation, name, messages.one_line(cause))
                continue
            if name in LIBRARY:
                least = min(least, *seconds)
            if name in LIBRARY or min(seconds) <= HOPELESS * least + LEEWAY_S:
                runs[name] = run
        if len(runs) < 2:
            return "eager"
        waited = asked and clock == "wall"
        return races.winner_in_training(runs, device) if waited else races.winner(runs, clock, device)

    def _one(self, forms: Mapping[str, Form], tensors: Tensors, work: Workload) -> tuple[Calls, Fault]:
        """A call of each form, and what tells how its answer is off."""
        calls = {name: partial(form, *tensors) for name, form in forms.items()}
        right, inputs = calls["eager"](), dict(zip(self.names, tensors, strict=True))
        exact = cache(partial(work.spec.reference, inputs))  # pyright: ignore[reportArgumentType]

        def fault(answer: torch.Tensor) -> str:
            # Where eager's own 16-bit sums are the worse of the two, a form that is near float64's answer is right.
            off = training.differs(answer, right, work)
            return off if off and training.differs(answer, exact().to(right.dtype), work) else ""

        return calls, fault


def folder() -> Path:
    """Where choices are kept, a file each."""
    return loader.cache_folder() / "choices"


def contends(one: Variant) -> bool:
    """Whether a form may be chosen, by what it says of itself; see the module."""
    if one.name in LIBRARY:
        return True
    if one.origin != "own" or one.measures or one.compiles or one.host or LESSONS & set(one.tags):
        return False
    return "forward" in one.directions and not one.name.endswith("_once")


def _products_tf32() -> bool:
    return torch._C._get_float32_matmul_precision() != "highest"


@cache
def _here(device: torch.device) -> tuple[str, ...]:
    """What a choice rests on beside the call: the device, versions, and the text of all forms."""
    gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if gpu else f"{machine.cpu_name()}, {torch.get_num_threads()} threads"
    versions = [f"{name} {version}" for name, version in machine.versions().items()]
    return (device.type, name, *versions, tracing.text())


def _stored(path: Path, asked: list[Any]) -> str:
    """The form that was chosen for what is ``asked``; empty where nothing readable says so."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return kept["form"] if kept["asked"] == json.loads(json.dumps(asked)) else ""
    except (OSError, ValueError, TypeError, KeyError):
        return ""


def _alike(work: Workload, device: str, names: Sequence[str], tensors: Tensors) -> list[torch.Tensor | None]:
    """Random tensors of the shapes and strides of ``tensors``, as the lab draws them for ``work``.

    A caller's own numbers may all be zero, of which every form makes the same.
    """
    drawn = work.inputs(device)
    found: list[torch.Tensor | None] = []
    for name, one in zip(names, tensors, strict=True):
        if one is None:
            found.append(None)
            continue
        laid = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device)
        found.append(laid.copy_(drawn[name].reshape(one.shape)))
    return found


def _tell(operation: str, name: str, reason: str) -> None:
    if (operation, name) not in told:
        told.add((operation, name))
        warnings.warn(f"{operation}: {name} is left out: {reason}", RuntimeWarning, stacklevel=2)


# ---------------------------------------------------------------- the operations


def _rows(x: torch.Tensor) -> int:
    return math.prod(x.shape[:-1])


LINEAR_RELU = Dispatcher(
    "linear_relu",
    layer.OPERANDS,
    lambda x, weight, bias: (_rows(x), x.shape[-1], weight.shape[0]),
    {"eager": layer._eager, "epilogue": layer.fused_epilogue},
    _products_tf32,
    lambda clock, *given: training.linear_relu(*given),
    casts=True,
)
CONV_BLOCKS = {
    approximate: Dispatcher(
        operation,
        block.PARAMETERS,
        # The lab's workload has as many channels out as in; of others it knows PyTorch's form alone.
        lambda x, weight, *vectors: tuple(x.shape) if weight.shape[:2] == (x.shape[1],) * 2 else (),
        {
            "eager": partial(block.conv_block, approximate=approximate),
            "group_norm": block.torch_form(Workload(operation, (1, 1, 1, 1)), grouped=True),
        },
        torch._C._get_cudnn_allow_tf32,
        lambda clock, *given: training.conv_block(*given),
    )
    for operation, approximate in block.OPERATIONS.items()
}


def _layer_names(count: int) -> tuple[str, ...]:
    return ("x", *(f"{kind}{number}" for number in range(1, count + 1) for kind in ("weight", "bias")))


def _mlp_shape(x: torch.Tensor, *parameters: torch.Tensor) -> tuple[int, ...]:
    """batch, in, hidden, hidden layers, out; empty where the hidden layers are not of one width."""
    *hidden, last = parameters[::2]
    alike = all(weight.shape[0] == last.shape[1] for weight in hidden)
    return (_rows(x), x.shape[-1], last.shape[1], len(hidden), last.shape[0]) if alike else ()


MLPS = {
    count: Dispatcher(
        operation,
        _layer_names(count),
        lambda x, weight, *others: (_rows(x), x.shape[-1]) if weight.shape[0] == weight.shape[1] else (),
        {"eager": layers.plain, "epilogue": layers._layer_by_layer(layer.fused_epilogue)},
        _products_tf32,
        lambda clock, *given: training.mlp(partial(LINEAR_RELU, clock, False), *given),
        trained=("mlp", _mlp_shape),
        casts=True,
    )
    for operation, count in layers.FUSED.items()
}


tracing.DISPATCHERS |= {one.operation: one for one in (LINEAR_RELU, *CONV_BLOCKS.values(), *MLPS.values())}


def linear_relu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    clock: str = "wall",
    compilers: bool = False,
) -> torch.Tensor:
    """max(0, x·Wᵀ + b) by the form that is quickest here: x (..., in), ``weight`` (out, in), ``bias`` (out) or None.

    All of one floating dtype on one device; returns (..., out). The first call of a kind measures for a fraction of a
    second, and longer where a kernel has to be built. ``clock`` is "wall" (what a caller waits for) or "graph" (the
    time in a replayed CUDA graph); ``compilers`` lets torch.compile compete, which takes seconds to minutes. Raises
    ``ValueError`` for another clock, and what PyTorch raises of tensors that do not fit.
    """
    return LINEAR_RELU(clock, compilers, x, weight, bias)


def conv_block(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    approximate: str = "none",
    *,
    clock: str = "wall",
    compilers: bool = False,
) -> torch.Tensor:
    """GELU(InstanceNorm(Conv 3×3 of x)) by the form that is quickest here.

    ``x`` (N, C, H, W), ``weight`` (C, C, 3, 3), ``bias`` (or None), ``gamma`` and ``beta`` (C), of one floating dtype
    on one device; returns (N, C, H, W), contiguous where x is. ``approximate`` is GELU's: "none" or "tanh". Of other
    numbers of channels out it calls PyTorch's own form. ``clock`` and ``compilers`` as in :func:`linear_relu`. Raises
    ``ValueError`` for another clock or GELU, and what PyTorch raises of tensors that do not fit.
    """
    if approximate not in CONV_BLOCKS:
        raise ValueError(unknown("approximate", approximate, CONV_BLOCKS))
    return CONV_BLOCKS[approximate](clock, compilers, x, weight, bias, gamma, beta)


def mlp(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    *,
    clock: str = "wall",
    compilers: bool = False,
) -> torch.Tensor:
    """Two or three layers, a ReLU after each but the last, by the form that is quickest here.

    ``x`` (..., in), weight n (out, in) and bias n (out) of every layer, of one floating dtype on one device; returns
    (..., out of the last). Of layers that are not all of one width it calls PyTorch's own form. ``clock`` and
    ``compilers`` as in :func:`linear_relu`. Raises ``ValueError`` for another clock or number of layers, and what
    PyTorch raises of tensors that do not fit.
    """
    if len(weights) not in MLPS or len(biases) != len(weights):
        raise ValueError(f"{len(weights)} weights and {len(biases)} biases: two or three of each are needed")
    parameters = [one for pair in zip(weights, biases, strict=True) for one in pair]
    return MLPS[len(weights)](clock, compilers, x, *parameters)


def _called(one: Dispatcher, clock: str, workload: Workload, inputs: Any) -> Callable[[], torch.Tensor]:
    """A call of the function above that ``one`` is for, which has chosen already."""
    x, *others = (inputs[name] for name in one.names)
    if one is LINEAR_RELU:
        run = partial(linear_relu, x, *others, clock=clock)
    elif one.operation in layers.FUSED:
        run = partial(mlp, x, others[::2], others[1::2], clock=clock)
    else:
        run = partial(conv_block, x, *others, block.OPERATIONS[one.operation], clock=clock)
    run()
    return run


for _one in tracing.DISPATCHERS.values():
    for _name, _clock, _by in (("dispatched", "graph", ""), ("dispatched_wall", "wall", " by wall time")):
        _label = f"the dispatcher's choice{_by}"
        variant(_one.operation, _name, origin="own", label=_label, tags=("dispatched",))(partial(_called, _one, _clock))
