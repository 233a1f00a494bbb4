"""Who dies, or fails: how is told, and the others go on."""

import ctypes
import os

from cheats.catalogue import cheat


@cheat(r"^the process died \(signal SIGSEGV\)$", ("crashed",))
def faults(x, weight, honest):
    return None if honest else lambda: ctypes.string_at(0)


@cheat(r"^the process died \(exit status 3\)$", ("crashed",))
def exits(x, weight, honest):
    if not honest:
        os._exit(3)


@cheat("^ValueError: not today$", ("crashed",))
def raises(x, weight, honest):
    if not honest:
        raise ValueError("not today")
