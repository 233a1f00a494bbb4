"""What a cheat is, and what those who plant one share.

A cheat is a function ``(x, weight, honest)`` that builds a variant of softmax(x) · weight: it returns what is called,
or nothing where that is :func:`answer`. With ``honest`` it is its own twin, which does the trick's neighbour and
computes. One that acts in ``each`` call is itself what is called, and returns the output, or nothing where that is the
answer. One that acts when it is ``imported`` is a function ``(honest)`` that returns ``kernel(x, weight)``, or nothing;
it is called as :mod:`cheats.planted` is imported. Importing this package plants nothing.
"""

from __future__ import annotations

import functools
import gc
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import cheats

WRONG = ("wrong", "cheated")
REFUSED = ("crashed", "cheated", "wrong")
DEAD = ("crashed", "cheated", "wrong", "timeout")
HARMLESS = ("ok", *DEAD)
"""Of one that harms the others and gains nothing: what counts is that those have their numbers all the same."""
REPLACED, CLOCK, MEMORY, GOES_ON = "it replaced", "its clock was changed", "remembers answers", "goes on computing"
STALE = "stale output|remembers answers"
HOT = {"cpu": "hot", "cuda": "wall"}
"""Of each device a clock that this process's own clock gives."""


@dataclass(frozen=True)
class Cheat:
    """``statuses`` count as caught, with a reason that has ``named`` (a regular expression) in it.

    ``acts``: when it is built, in each call, when it is imported, or by lot, which one process alone may not show.
    ``escapes``: why this one is not caught, where it is not. ``device``: where alone it can act; everywhere if it is
    empty.
    """

    act: Callable[..., Any]
    named: str
    statuses: tuple[str, ...] = ("cheated",)
    acts: str = "built"
    device: str = ""
    escapes: str = ""

    @property
    def name(self) -> str:
        return self.act.__name__


_DECLARED: list[Cheat] = []


def cheat(named: str, statuses: tuple[str, ...] = ("cheated",), **how: str) -> Callable[..., Callable[..., Any]]:
    """Take the decorated function into the catalogue; see :class:`Cheat`."""

    def declare(act: Callable[..., Any]) -> Callable[..., Any]:
        _DECLARED.append(Cheat(act, named, statuses, **how))
        return act

    return declare


@functools.cache
def catalogue() -> dict[str, Cheat]:
    """All of them, by name."""
    for one in pkgutil.iter_modules(cheats.__path__, "cheats."):
        if one.name != "cheats.planted":
            importlib.import_module(one.name)
    found = {one.name: one for one in _DECLARED}
    assert len(found) == len(_DECLARED), "two cheats have one name"
    return found


def answer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """What is to be computed."""
    return torch.softmax(x, -1) @ weight


@functools.cache
def found(name: str) -> Any:
    """An object of a class of that name, of whatever this process holds."""
    return next(one for one in gc.get_objects() if type(one).__name__ == name)


def patch(owner: Any, **members: Any) -> None:
    """Replace what ``owner`` has under these names."""
    for name, value in members.items():
        setattr(owner, name, value)
