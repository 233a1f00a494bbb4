"""The process that draws inputs and knows the answer. It runs no variant, and of a task from elsewhere no candidate."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from hypatia_lab import check, clock, messages
from hypatia_lab.judged import gpu_memory, tampering
from hypatia_lab.judged.channel import Channel
from hypatia_lab.judged.confine import FULL, hide, out_of_memory
from hypatia_lab.judged.shelf import Shelf, described
from hypatia_lab.judged.worker import kept, key, told
from hypatia_lab.workloads import DTYPES

COMMANDS = ("start", "group", "lay_out", "let_go", "draw", "fill", "judge")
"""What the referee can be asked for, a method each."""
HELD, JUDGING = 4, 3
"""How often a worker holds its outputs on a GPU (on the shelf, of a call, of a graph, and of a call in the making), and
the referee the largest of them in float64 while he judges."""


class Referee:
    """Answers the coordinator's commands, one method each, with a JSON object each."""

    def __init__(self, channel: Channel, load: Callable[[], object], device: str) -> None:
        self.channel, self.load, self.device = channel, load, device
        self.problem: check.Problem | None = None
        self.shelves: dict[str, tuple[Shelf, Shelf]] = {}
        self.place = "cpu"
        self.large = False
        self.lying: list[str] = []
        self.copied: list[str] = []
        self.before = 0

    def serve(self) -> None:
        """Answer until there are no more commands."""
        commands = {name: getattr(self, name) for name in COMMANDS}  # now: before the file can replace one
        while command := self.channel.receive():
            name = command.pop("command")
            try:
                found = commands[name](**command)
            except Exception as cause:
                traceback.print_exc()
                found = {"refused": FULL, "fault": "machine"} if out_of_memory(cause) else {}
                found = found or {"crashed": messages.one_line(cause)}
            check.give_back()
            shelves = self.shelves.get(command["worker"], ()) if name == "lay_out" else ()
            self.channel.send(found, [one.file for one in shelves])

    def start(self) -> dict[str, Any]:
        """Run the file, or the problem."""
        clock.synchronize(self.device)  # CUDA could not begin once it is hidden
        hide()
        if self.device == "cuda" and gpu_memory.shareable():
            self.place = "cuda"
        functions, modes = tampering.functions(), tampering.modes()
        self.load()
        return {"replaced": tampering.replaced(functions), "changed": tampering.changed(modes)}

    def group(self, workload: dict[str, Any]) -> dict[str, Any]:
        """Draw the inputs of ``workload``; what they and an answer look like, and what a call amounts to.

        ``place`` is where shelves lie, and ``lying`` names the inputs that can be those of a shelf there. A worker
        ``holds`` so many bytes of the GPU, and ``judging`` an answer takes so many.
        """
        for shelf in (one for pair in self.shelves.values() for one in pair):
            shelf.close()
        self.shelves, self.problem = {}, None
        own = told(workload)
        self.problem = problem = check.Problem(own, self.device)
        if fault := _degenerate(problem):
            return {"refused": fault, "fault": "problem"}
        parts = {
            name: answer.to(getattr(torch, own.part_dtype(name)))
            for name, answer in zip(own.parts, problem.references(), strict=True)
        }
        judging = JUDGING * 8 * max(one.numel() for one in parts.values())
        self.large = self.device == "cuda" and judging > torch.cuda.mem_get_info()[1] / 4
        inputs, outputs = described(problem.inputs), described(parts)
        plain = [name for name, one in problem.inputs.items() if one.is_contiguous() and not one.requires_grad]
        self.lying = plain if self.place == "cuda" else []
        self.copied = [name for name, *_ in inputs if name not in self.lying]
        read, written = (sum(one.nbytes for one in each.values()) for each in (problem.inputs, parts))
        return {
            "inputs": inputs,
            "outputs": [
                *((key(number), *rest) for number, (_, *rest) in enumerate(outputs)),
                *((kept(name), *rest) for name, *rest in inputs if name in self.copied),
            ],
            "place": self.place,
            "lying": self.lying,
            "holds": read + HELD * written,
            "judging": judging,
            "poison": [answer.numel() * DTYPES[own.dtype] for answer in problem.references()],
            "amount": own.flops or own.traffic,
            "parts": own.parts[1:],
        }

    def lay_out(self, worker: str, inputs: Any, outputs: Any) -> dict[str, Any]:
        """Shelves for ``worker``, whose file descriptors go with the answer."""
        for shelf in self.shelves.pop(worker, ()):
            shelf.close()
        self.shelves[worker] = Shelf(inputs, self.place), Shelf(outputs, self.place)
        for shelf in self.shelves[worker]:
            if self.device == "cuda":
                shelf.pin()
        for name, *_ in inputs:
            self.shelves[worker][0][name].zero_()
        clock.synchronize(self.device)
        return {}

    def let_go(self, worker: str) -> dict[str, Any]:
        """Let go of the shelves of ``worker``, who is no more."""
        for shelf in self.shelves.pop(worker):
            shelf.close()
        return {}

    def draw(self) -> dict[str, Any]:
        """Draw new inputs."""
        assert self.problem is not None
        self.before = self.problem.drawn
        self.problem.draw(secrets.randbelow(2**40) + 2)
        self.problem.forget(*(() if self.large else (self.before,)))
        return {}

    def fill(self, workers: list[str]) -> dict[str, Any]:
        """Put the inputs as drawn now on the shelves of ``workers``."""
        assert self.problem is not None
        for worker in workers:
            inbox, _ = self.shelves[worker]
            for name, tensor in self.problem.inputs.items():
                inbox[name].copy_(tensor)
        clock.synchronize(self.device)
        return {}

    def judge(self, worker: str, looks: Any, beside: bool) -> dict[str, Any]:
        """Judge what ``worker`` has left on its shelf, and its inputs, for the inputs as drawn now.

        With ``beside``, what a rule of the task's own says of it goes with that.
        """
        assert self.problem is not None
        found = self._judge(worker, looks)
        # Of large answers a GPU does not hold two: who gives the one before is wrong there, and nothing more is told.
        if not found.ok and not self.large and self.before != self.problem.drawn:
            now = self.problem.drawn
            self.problem.draw(self.before)
            self.problem.references()  # whoever gives the answer to the inputs before is told so
            self.problem.draw(now)
            found = self._judge(worker, looks)
        told = asdict(found)
        if beside:
            tensors = tuple(one for one in self._parts(worker, looks) if isinstance(one, torch.Tensor))
            told["beside"] = self.problem.workload.spec.beside(self.problem.inputs, tensors)
        return told

    def _judge(self, worker: str, looks: Any) -> check.Check:
        assert self.problem is not None
        inbox, outbox = self.shelves[worker]
        for name, tensor in self.problem.inputs.items():
            now = outbox[kept(name)] if name in self.copied else inbox[name]
            if not check.same_bits(now.to(tensor.device), tensor):
                return check.Check(f"input changed: the call wrote into {name!r}")
        parts = self._parts(worker, looks)
        return check.judge(tuple(parts) if looks["tuple"] else parts[0], self.problem)

    def _parts(self, worker: str, looks: Any) -> list[object]:
        return [self._part(self.shelves[worker][1], key(n), look) for n, look in enumerate(looks["looks"])]

    def _part(self, shelf: Shelf, name: str, look: Any) -> object:
        if not look["tensor"]:
            return type(str(look["type"]), (), {})()
        kind = getattr(torch, look["dtype"])
        if shelf.holds(name, kind, look["shape"]) and look["device"] in ("cpu", self.device):
            return shelf[name].to(look["device"])
        return torch.empty(look["shape"], dtype=kind, device="meta")


def _degenerate(problem: check.Problem) -> str:
    """Why nothing would show whether answers are computed: other draws have the same inputs, or the same answer."""
    before = {name: tensor.clone() for name, tensor in problem.inputs.items()}
    wanted = [getattr(torch, problem.workload.part_dtype(part)) for part in problem.workload.parts]
    known = [one.to(dtype) for one, dtype in zip(problem.references(), wanted, strict=True)]
    problem.draw(1)
    problem.forget()
    if all(check.same_bits(tensor, before.pop(name)) for name, tensor in problem.inputs.items()):
        return "its inputs are the same in every draw, so nothing would show whether an answer is computed"
    before.clear()
    same = check.judge(tuple(known) if len(known) > 1 else known[0], problem).ok
    problem.draw(0)
    return "its answer is the same in every draw, so nothing would show whether it is computed" if same else ""
