"""What checks of interpreted kernels share."""

from __future__ import annotations

from collections.abc import Callable


def refused(call: Callable[[], object], message: str, error: type[Exception] = ValueError) -> None:
    """Fails unless ``call`` raises ``error`` with ``message`` in it."""
    try:
        call()
    except error as complaint:
        told = str(complaint)
    else:
        raise AssertionError(message)
    assert message in told, told
