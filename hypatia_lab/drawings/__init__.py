"""Drawings of the hard ideas, as SVG made by code: ``drawings.show("tiles")`` in a notebook.

They draw what the kernels do, with the kernels' own sizes; no result stands in them. What was measured is drawn by
:mod:`hypatia_lab.drawings.bars`, of numbers that are given.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from hypatia_lab.drawings import fusion, geometry, memory, tensor_cores
from hypatia_lab.drawings.canvas import Canvas
from hypatia_lab.messages import unknown

__all__ = ["DRAWINGS", "html", "show", "standalone", "svg"]

DRAWINGS: dict[str, Callable[[], Canvas]] = {
    drawing.__name__: drawing
    for drawing in (
        memory.coalescing,
        memory.tiles,
        memory.registers,
        memory.swizzle,
        memory.async_stages,
        tensor_cores.tensor_core,
        tensor_cores.cluster,
        tensor_cores.split_product,
        fusion.fused_mlp,
        fusion.fused_conv_block,
        fusion.e_graph,
        fusion.graph_replay,
        geometry.diffraction,
    )
}
"""Name → what draws it."""


def _drawn(name: str) -> Canvas:
    if name not in DRAWINGS:
        raise ValueError(unknown("drawing", name, DRAWINGS))
    return DRAWINGS[name]()


def svg(name: str) -> str:
    """The drawing ``name``, one of :data:`DRAWINGS`, as an SVG element. Raises ``ValueError`` for another name."""
    return _drawn(name).svg()


def standalone(name: str) -> str:
    """The drawing ``name`` as a file of its own, its lines in a grey that shows on white and on black. Raises as
    :func:`svg`."""
    return svg(name).replace("currentColor", "#7d8590") + "\n"


def html(name: str) -> str:
    """The drawing ``name`` as a figure with its message below. Raises as :func:`svg`."""
    drawing = _drawn(name)
    return f'<figure class="lab-drawing">{drawing.svg()}<figcaption>{escape(drawing.title)}.</figcaption></figure>'


def show(name: str) -> None:
    """Display the drawing ``name`` in a notebook; where no HTML is shown, its description. Raises as :func:`svg`."""
    from IPython.display import display

    drawing = _drawn(name)
    display({"text/html": html(name), "text/plain": f"{drawing.title}. {drawing.description}"}, raw=True)
