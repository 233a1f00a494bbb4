"""What a worker says, held against the form it must have: it has been in a stranger's hands."""

from __future__ import annotations

from typing import Any, TypeGuard


def names(found: Any) -> list[str]:
    """What a process lists of itself, as text."""
    return [str(one)[:120] for one in found[:20]] if isinstance(found, list) else []


def positive(found: Any) -> TypeGuard[float]:
    """Whether ``found`` is a number that a time or a size can be."""
    return type(found) in (int, float) and 0 < found < float("inf")


def output(looks: Any) -> TypeGuard[dict[str, Any]]:
    """Whether ``looks`` describes an output as a worker does."""
    if not isinstance(looks, dict):
        return False
    parts = looks.get("looks")
    if not isinstance(parts, list) or not parts or not isinstance(looks.get("tuple"), bool):
        return False
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            return False
        if part.get("tensor") is True:
            shape, dtype = part.get("shape"), part.get("dtype")
            if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
                return False
            if not isinstance(dtype, str) or not isinstance(part.get("device"), str) or not dtype.isidentifier():
                return False
    return True
