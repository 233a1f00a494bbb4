"""A reader's file that cheats: its variants are the names that ``PLANTED`` of the environment lists.

Each is a cheat's, or that with ``_twin`` at its end, which is honest. Its operation has the shape ``PLANTED_SHAPE``.
"""

import functools
import os

import torch

from cheats.catalogue import answer, catalogue
from hypatia_lab import operation, variant


def draw(shape, dtype, device, generator):
    rows, columns = shape
    return {
        "x": torch.randn(rows, columns, device=device, generator=generator).to(dtype),
        "weight": torch.randn(columns, columns, device=device, generator=generator).to(dtype),
    }


@operation("planted", dims=("rows", "columns"), shapes=(os.environ["PLANTED_SHAPE"],), inputs=draw)
def reference(x, weight):
    """y = softmax(x) · weight"""
    return torch.softmax(x, -1) @ weight


def plant(name):
    """Register the variant ``name``; whoever acts when imported does so now."""
    one = catalogue()[name.removesuffix("_twin")]
    honest = name.endswith("_twin")
    kernel = (one.act(honest) if one.acts == "imported" else None) or answer

    def each(x, weight):
        found = one.act(x, weight, honest)
        return answer(x, weight) if found is None else found

    @variant("planted", name, origin="own")
    def build(workload, inputs):
        """Planted."""
        run = one.act(**inputs, honest=honest) if one.acts in ("built", "by lot") else None
        return run or functools.partial(each if one.acts == "each" else kernel, **inputs)


for planted in os.environ["PLANTED"].split():
    plant(planted)
