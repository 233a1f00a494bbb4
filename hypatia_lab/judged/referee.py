"""The process that draws inputs and knows the answer. It runs no variant, and of a task from elsewhere no candidate."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from hypatia_lab import check, clock, messages
from hypatia_lab.judged import tampering
from hypatia_lab.judged.channel import Channel, Shelf, described
from hypatia_lab.judged.confine import FULL, hide, out_of_memory
from hypatia_lab.judged.worker import PLACES, WRITTEN, key, told
from hypatia_lab.workloads import DTYPES


class Referee:
    """Answers the coordinator's commands, one method each, with a JSON object each."""

    def __init__(self, channel: Channel, load: Callable[[], object], device: str) -> None:
        self.channel, self.load, self.device = channel, load, device
        self.problem: check.Problem | None = None
        self.shelves: dict[str, Shelf] = {}
        self.before = 0

    def serve(self) -> None:
        """Answer until there are no more commands."""
        commands = {"start": self.start, "group": self.group, "draw": self.draw, "judge": self.judge}
        while command := self.channel.receive():
            name = command.pop("command")
            try:
                found = commands[name](**command)
            except Exception as cause:
                traceback.print_exc()
                found = {"refused": FULL, "fault": "machine"} if out_of_memory(cause) else {}
                found = found or {"crashed": messages.one_line(cause)}
            self.channel.send(found)

    def start(self) -> dict[str, Any]:
        """Run the file, or the problem."""
        clock.synchronize(self.device)  # CUDA could not begin once it is hidden
        hide()
        functions, modes = tampering.functions(), tampering.modes()
        self.load()
        return {"replaced": tampering.replaced(functions), "changed": tampering.changed(modes)}

    def group(self, workload: dict[str, Any]) -> dict[str, Any]:
        """Draw the inputs of ``workload``; what they and an answer look like, and what a call amounts to."""
        for shelf in self.shelves.values():
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
        inputs = described(problem.inputs)
        outputs = [(key(n, place), *rest) for place in PLACES for n, (_, *rest) in enumerate(described(parts))]
        return {
            "inputs": inputs,
            "outputs": [*outputs, *((f"input {name}", *rest) for name, *rest in inputs), (WRITTEN, "uint8", [])],
            "poison": [answer.numel() * DTYPES[own.dtype] for answer in problem.references()],
            "amount": own.flops or own.traffic,
            "parts": own.parts[1:],
        }

    def _shelf(self, name: str, layout: Any) -> Shelf:
        if name not in self.shelves:
            self.shelves[name] = Shelf(layout, *self.channel.files(1))
            if self.device == "cuda":
                self.shelves[name].pin()
        return self.shelves[name]

    def draw(self, layout: Any) -> dict[str, Any]:
        """Draw new inputs, and leave them on the shelf, which comes with the first such command."""
        assert self.problem is not None
        self.before = self.problem.drawn
        self.problem.draw(secrets.randbelow(2**40) + 2)
        self.problem.forget(self.before)
        shelf = self._shelf("inputs", layout)
        for name, tensor in self.problem.inputs.items():
            shelf[name].copy_(tensor)
        return {}

    def judge(self, worker: str, layout: Any, place: str, looks: Any, beside: bool) -> dict[str, Any]:
        """Judge what ``worker`` has left at ``place`` of its shelf, and its inputs, for the inputs as drawn now.

        With ``beside``, what a rule of the task's own says of it goes with that.
        """
        assert self.problem is not None
        shelf = self._shelf(worker, layout)
        found = self._judge(shelf, place, looks)
        if not found.ok and self.before != self.problem.drawn:
            now = self.problem.drawn
            self.problem.draw(self.before)
            self.problem.references()  # whoever gives the answer to the inputs before is told so
            self.problem.draw(now)
            found = self._judge(shelf, place, looks)
        told = asdict(found)
        if beside:
            parts = [self._part(shelf, key(number, place), look) for number, look in enumerate(looks["looks"])]
            tensors = tuple(one for one in parts if isinstance(one, torch.Tensor))
            told["beside"] = self.problem.workload.spec.beside(self.problem.inputs, tensors)
        return told

    def _judge(self, shelf: Shelf, place: str, looks: Any) -> check.Check:
        assert self.problem is not None
        for name, tensor in self.problem.inputs.items():
            if not check.same_bits(shelf[f"input {name}"].to(tensor.device), tensor):
                return check.Check(f"input changed: the call wrote into {name!r}")
        parts = [self._part(shelf, key(number, place), look) for number, look in enumerate(looks["looks"])]
        return check.judge(tuple(parts) if looks["tuple"] else parts[0], self.problem)

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
    first = problem.references()
    problem.draw(1)
    if all(check.same_bits(tensor, before[name]) for name, tensor in problem.inputs.items()):
        return "its inputs are the same in every draw, so nothing would show whether an answer is computed"
    wanted = [getattr(torch, problem.workload.part_dtype(part)) for part in problem.workload.parts]
    known = [one.to(dtype) for one, dtype in zip(first, wanted, strict=True)]
    same = check.judge(tuple(known) if len(known) > 1 else known[0], problem).ok
    problem.draw(0)
    return "its answer is the same in every draw, so nothing would show whether it is computed" if same else ""
