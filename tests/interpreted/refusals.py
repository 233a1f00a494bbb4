"""What checks of interpreted kernels share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial


def refuses(function: Callable[..., object], *cases: tuple[Iterable[object], str], **how: object) -> None:
    """Fails unless ``function`` refuses each case: what it is given, and what its message holds."""
    for given, message in cases:
        refused(partial(function, *given, **how), message)


def refused(call: Callable[[], object], message: str, error: type[Exception] = ValueError) -> None:
    """Fails unless ``call`` raises ``error`` with ``message`` in it."""
    try:
        call()
    except error as complaint:
        told = str(complaint)
    else:
        raise AssertionError(message)
    assert message in told, told
