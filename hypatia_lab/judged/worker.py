"""The process of one judged variant: it runs a stranger's file, and does what the coordinator says.

Nothing that it says is believed without having been seen from outside. It never holds the answer, and of the inputs
only those of the call that comes next.
"""

from __future__ import annotations

import contextlib
import secrets
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from hypatia_lab import check, clock, messages, variants
from hypatia_lab.judged import tampering
from hypatia_lab.judged.channel import Channel
from hypatia_lab.judged.confine import FENCED, FULL, out_of_memory
from hypatia_lab.judged.shelf import Described, Shelf
from hypatia_lab.kernels.loader import driver
from hypatia_lab.workloads import Workload

if TYPE_CHECKING:
    from hypatia_lab.workloads import Inputs

COMMANDS = ("start", "build", "call", "settle", "pace", "prepare", "visit", "amid", "spoil")
"""What a worker can be asked for, a method each."""
CALLS = FRESH, TIMED, AGAIN = "fresh", "timed", "again"
"""The calls of a visit: the first one on new inputs, a sample, and one after it."""
WARM_S, MOST_WARM = 2e-3, 5
"""So long it is called before anything is timed, and so often at most."""
AHEAD = 16
"""So many of those others a GPU has before it at most. It would take a thousand, and after them see what changes."""
CALLS_AFTER = 3
"""Calls after the inputs have changed amid others. One may have begun before."""
WRITTEN: Described = (("written", "uint8", ()),)
"""A byte on a shelf of its own: whether the coordinator has changed the inputs, in place or on their shelf."""
IN_PLACE, LEFT = 1, 2
KEPT = 2**25 - 2**14
"""Bytes. Source: mallopt(3), M_MMAP_THRESHOLD: DEFAULT_MMAP_THRESHOLD_MAX on 64 bits, less what surrounds a piece."""
HELD_UP = 2_000_000
"""Cycles of a GPU, about a millisecond: so long a checked call is held up there. Its output is taken before work that
nobody waits for is done."""
SETTLE_S = 5.0
"""So long whoever compiles in the background is waited for."""


def key(number: int) -> str:
    """What part ``number`` of an output is called on the shelf."""
    return f"output {number}"


def kept(name: str) -> str:
    """What the input ``name``, as a call left it, is called on the shelf of outputs."""
    return f"input {name}"


def told(workload: dict[str, Any]) -> Workload:
    """The workload that a plan tells of."""
    return Workload(**{**workload, "shape": tuple(workload["shape"])})


class Worker:
    """Answers the coordinator's commands, one method each, with a JSON object each."""

    def __init__(self, channel: Channel, load: Callable[[], object], device: str, variant: str) -> None:
        self.channel, self.load, self.device, self.variant = channel, load, device, variant
        self.functions: tampering.Seen = {}
        self.modes: dict[str, str] = {}
        self._left = contextlib.ExitStack()
        self._wait: Callable[[], object] = lambda: None
        self._forget()

    def _forget(self) -> None:
        self.inputs: Inputs = {}
        self.apart: list[torch.Tensor] = []
        self.run: Callable[[], Any] = lambda: None
        self.samplers: dict[str, tuple[clock.Sampler, clock.Sampler]] = {}
        self.out: Any = None
        self._left.close()

    def serve(self) -> None:
        """Answer until there are no more commands."""
        commands = {name: getattr(self, name) for name in COMMANDS}  # now: before the file can replace one
        while command := self.channel.receive():
            name = command.pop("command")
            try:
                found = commands[name](**command)
            except clock.ClockError as cause:
                found = {"untimed": str(cause)}
            except Exception as cause:
                traceback.print_exc()
                full = out_of_memory(cause)
                fenced = FENCED if isinstance(cause, PermissionError) else ""
                found = {"crashed": FULL if full else messages.one_line(cause) + fenced, "full": full}
                clock.synchronize(self.device)  # a device left in error ends this process here
            check.give_back()
            # To look at every function takes longer than a sample; what a visit leaves behind is there after it, too.
            self.channel.send(found | (self._tampered() if name in ("start", "build", "call") else {}))

    def _tampered(self) -> dict[str, Any]:
        replaced, changed = tampering.replaced(self.functions), tampering.changed(self.modes)
        replaced += [f"{type(self).__qualname__}.{name}" for name in vars(self).keys() & vars(type(self)).keys()]
        if changed:
            self.modes = tampering.modes()  # it is told once
        self.functions = {name: seen for name, seen in self.functions.items() if name not in replaced}
        return {"replaced": replaced, "changed": changed}

    def start(self) -> dict[str, Any]:
        """Run the file."""
        if self.device == "cuda":
            clock.synchronize(self.device)
            self._wait = driver().cuCtxSynchronize  # by no name that a file could replace
        self.modes, self.functions = tampering.modes(), tampering.functions()
        self.load()
        return {}

    def build(
        self, workload: dict[str, Any], inputs: Described, outputs: Described, place: str, lying: list[str]
    ) -> dict[str, Any]:
        """Build the variant for ``workload``. The shelves of inputs and outputs, in memory of ``place``, come with this
        and one of a byte; the inputs ``lying`` are those on the shelf, and the others copies."""
        self._forget()
        own = told(workload)
        inbox, outbox, written = self.channel.files(3)
        self.inbox, self.outbox = Shelf(inputs, place, inbox), Shelf(outputs, place, outbox)
        self.written = Shelf(WRITTEN, file=written)
        for shelf in (self.inbox, self.outbox, self.written):
            self._left.callback(shelf.close)
            if self.device == "cuda":
                shelf.pin()
        self._left.enter_context(own.precision())
        self.modes = tampering.modes()
        variant = variants.find(own.operation, self.variant)
        if missing := variant.needs(own, self.device):
            return {"skipped": missing}
        if self.device == "cpu":
            # The C library keeps memory of sizes up to what was once given back, and of larger ones than this never.
            # The second piece is such memory. On a virtual machine what nobody has written to yet is slow at first.
            for _ in range(2):
                torch.empty(KEPT, dtype=torch.uint8).zero_()
        # Forks have their memory laid out alike: where buffers lie would be the same one's luck in every process.
        self.apart = [torch.empty(64 * (1 + secrets.randbelow(512))) for _ in range(4)]
        apart = own.inputs(self.device) if len(lying) < len(inputs) else {}
        self.inputs = {name: self.inbox[name] if name in lying else apart[name] for name, *_ in inputs}
        self.copied = [name for name in self.inputs if name not in lying]
        self._take()
        self.run = variant.factory(own, self.inputs)
        flat = self.device == "cpu" and all(one.is_contiguous() for one in self.inputs.values())
        return {"addresses": {name: one.data_ptr() for name, one in self.inputs.items()} if flat else {}}

    def _take(self) -> None:
        """The inputs become those of the shelf: other numbers in the same memory, of which no version counter tells."""
        for name in self.copied:
            self.inputs[name].data.copy_(self.inbox[name])

    def _give(self, out: Any) -> dict[str, Any]:
        """Leave ``out`` on the shelf, and the inputs as they are now; what it looks like."""
        parts = out if isinstance(out, tuple) else (out,)
        looks = []
        for number, part in enumerate(parts):
            looks.append(_looks(part))
            name = key(number)
            if looks[-1]["tensor"] and self.outbox.holds(name, part.dtype, part.shape):
                # At once: on a GPU what is given to another stream may not be there yet.
                self.outbox[name].copy_(part.detach())
        for name in self.copied:
            self.outbox[kept(name)].copy_(self.inputs[name])
        self._wait()
        owners = {tensor.untyped_storage().data_ptr(): name for name, tensor in self.inputs.items()}
        found = [owners.get(part.untyped_storage().data_ptr(), "") for part in parts if type(part) is torch.Tensor]
        return {"looks": looks, "tuple": isinstance(out, tuple), "aliased": [name for name in found if name]}

    def call(self, poison: list[int]) -> dict[str, Any]:
        """Call it once on what lies on the shelf, with fresh memory of ``poison`` bytes each poisoned."""
        self._take()
        with check.poisoned(self.device, *poison):
            if self.device == "cuda":
                torch.cuda._sleep(HELD_UP)
            out = self.run()
        return self._give(out)

    def spoil(self) -> dict[str, Any]:
        """Spoil the output that was left last."""
        self.outbox.spoil(key(0))
        self._wait()
        return {}

    def settle(self) -> dict[str, Any]:
        """Wait for whoever compiles in the background."""
        clock.settle(SETTLE_S)
        return {}

    def pace(self) -> dict[str, Any]:
        """One call, which the coordinator times, and how long the GPU goes on when its stream is done."""
        if self.device != "cuda":
            clock.once_s(self.run, self.device)
            return {}
        self._wait()
        self.run()
        torch.cuda.current_stream().synchronize()
        done = time.perf_counter()
        self._wait()
        return {"left_s": time.perf_counter() - done}

    def prepare(self, word: str) -> dict[str, Any]:
        """Get ready to be timed by the clock ``word``; how many calls a sample has."""
        clock.settle(SETTLE_S)
        calls, _ = clock.sized(self.run, word, self.device)
        many = clock.sampler(word, self.run, self.device, calls)
        once = clock.sampler(word, self.run, self.device, 1) if calls > 1 else many  # each graph has memory of its own
        many()
        _, self.out = once()
        self.samplers[word] = many, once
        return {"calls": calls}

    def visit(self, word: str) -> dict[str, Any]:
        """A call on new inputs, a sample, and a call on the same inputs: each between two marks, and timed here too.

        What is to be shown of it is said after each.
        """
        many, once = self.samplers[word]
        shown: dict[str, Any] = {}
        took, spent = dict[str, float](), 0.0
        while spent < WARM_S:  # threads and caches sleep while others have their turn
            seconds, self.out = once()
            spent += max(seconds, WARM_S / MOST_WARM)
        for name, sample in (("new_s", once), ("sample_s", many), ("again_s", once)):
            if sample is many:
                self._end_persisting()  # now: a sample begins after another process's turn, and nothing else
            self.channel.mark()
            self.channel.receive()
            if sample is once:  # the shelf is filled again, both times
                self._take()
                self._end_persisting()
            self.out = None
            self.channel.mark()
            took[name], self.out = sample()
            self._wait()  # for all that was given to the device, on whatever stream
            self.channel.mark()
            if self.channel.receive().get("show"):
                shown["shown"] = self._give(self.out)
        return took | shown

    def _end_persisting(self) -> None:
        if self.device == "cuda":
            clock.end_persisting()

    def amid(self) -> dict[str, Any]:
        """Calls without a pause, amid which the coordinator writes other inputs into this process's memory.

        Where it cannot, it leaves them on the shelf.
        """
        written = self.written["written"]
        written.zero_()
        self.channel.mark()
        calls = 0
        while not (how := int(written)):
            self.run()
            calls += 1
            if calls % AHEAD == 0:
                self._wait()
        if how == LEFT:
            self._take()
        for _ in range(CALLS_AFTER):
            self.out = self.run()
        return self._give(self.out)


def _looks(part: Any) -> dict[str, Any]:
    if not isinstance(part, torch.Tensor):
        return {"tensor": False, "type": type(part).__name__}
    plain = type(part) in (torch.Tensor, torch.nn.Parameter)
    return {
        "tensor": True,
        "plain": plain,
        "type": type(part).__name__,
        "shape": list(part.shape),
        "dtype": str(part.dtype).removeprefix("torch."),
        "device": part.device.type,
    }
