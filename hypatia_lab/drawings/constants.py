"""The numbers that drawings show, read from the kernels: a drawing says what the code says."""

from __future__ import annotations

import re
from functools import cache

from hypatia_lab.kernels.loader import SOURCES


@cache
def constants(kernel: str) -> dict[str, int]:
    """Name → value of the whole numbers that ``kernels/<kernel>`` states as constants (none that it computes)."""
    text = (SOURCES / kernel).read_text(encoding="utf-8")
    stated = re.findall(r"^constexpr (?:int|unsigned) ([^;{]*);", text, re.MULTILINE)
    return {name: int(value) for line in stated for name, value in re.findall(r"(\w+) = (\d+)(?:,|$)", line)}
