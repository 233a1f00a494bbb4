"""The picture that a diffraction simulation is for, drawn as a person would want to see it."""

from __future__ import annotations

import math
from typing import Any

from hypatia_lab import formats, tables
from hypatia_lab.figures.axes import plain
from hypatia_lab.figures.language import FigureError
from hypatia_lab.figures.plots import plotted
from hypatia_lab.formats import significant

DRAWN, FELT = 384, 128
"""Most pixels along an edge of an image that are drawn, and that answer to the pointer."""
LEVELS = 255
PANEL = 370
"""Most height in px: a square image fills it on a desk, and leaves room below it on a telephone."""


def _reduced(values: Any, most: int) -> tuple[Any, int]:
    """``values`` by the largest of each block, at most ``most`` along an edge; and the block's edge in pixels."""
    import numpy

    block = math.ceil(max(values.shape) / most)
    edges = [(0, -extent % block) for extent in values.shape]
    padded = numpy.pad(values, edges)
    slow, fast = (extent // block for extent in padded.shape)
    return padded.reshape(slow, block, fast, block).max(axis=(1, 3)), block


def _spots(values: Any, count: int) -> list[tuple[int, int]]:
    """Pixels (slow, fast) of the ``count`` brightest spots; neighbours of equal brightness count once.

    Compared in float32, so that the last bits of a float64 image decide nothing.
    """
    import numpy
    from scipy.ndimage import maximum_filter

    rounded = values.astype("float32")
    places = numpy.argwhere((rounded >= maximum_filter(rounded, 3, mode="constant")) & (rounded > 0))
    order = numpy.lexsort((places[:, 1], places[:, 0], -rounded[places[:, 0], places[:, 1]]))
    reach, chosen = max(2, max(values.shape) // 100), []
    for s, f in places[order].tolist():
        if all(max(abs(s - a), abs(f - b)) > reach for a, b in chosen):
            chosen.append((s, f))
        if len(chosen) == count:
            break
    return chosen


def image(values: Any, title: str, *, pixel: float, centre: tuple[float, float]) -> tuple[Any, Any]:
    """A diffraction image on a log scale of 2 to 5 decades, so that weak spots show too; axes in mm from the beam.

    ``values``: intensities, shape (slow, fast), array or CPU tensor of any real dtype; ``pixel`` (mm) and ``centre``
    (slow, fast, mm from the first pixel's corner) as in ``scene.Detector``. What is drawn has 8 bits, and a large
    image is reduced by the largest value of each block, so that no spot is lost; intensities under the pointer have
    3 digits and are the largest of at most 128 blocks along an edge. The table lists the ten brightest spots.
    Raises :class:`FigureError` for another rank, for NaN or negative intensities, and when no pixel is lit.
    """
    import numpy

    array = numpy.asarray(values, dtype="float64")
    if array.ndim != 2 or not array.size:
        raise FigureError(f"image: shape {array.shape} is not an image of slow × fast pixels")
    if not numpy.isfinite(array).all() or array.min() < 0:
        raise FigureError("image: it holds NaN, infinite or negative intensities, which no log scale can show")
    slow, fast = array.shape
    panel = round(min(PANEL, max(110, 700 * slow / fast)))
    peak = float(array.max())
    if not peak:
        raise FigureError("image: every pixel is dark; there is nothing to draw")
    shown, block = _reduced(array, DRAWN)
    dim = float(numpy.quantile(shown[shown > 0], 0.25))
    decades = min(5, max(2, math.ceil(math.log10(peak / dim))))
    floor = peak / 10**decades
    levels = numpy.rint(LEVELS * (1 + numpy.log10(numpy.maximum(shown, floor) / peak) / decades)).astype("uint8")
    felt, coarse = _reduced(array, FELT)
    places = 2 - numpy.floor(numpy.log10(numpy.maximum(felt, floor)))
    rounded = numpy.where(felt < floor, 0, numpy.rint(felt * 10.0**places) / 10.0**places).astype("float32")
    powers = range(math.ceil(math.log10(floor)), math.floor(math.log10(peak)) + 1)
    ticks = [10.0**e for e in powers if e < math.log10(peak) - 0.4] + [peak]
    colourbar = {
        "orientation": "h",
        "thickness": 10,
        "len": 1,
        "x": 0,
        "xanchor": "left",
        "y": 1,
        "yanchor": "bottom",
        "outlinewidth": 0,
        "tickvals": [round(LEVELS * (1 + math.log10(t / peak) / decades), 1) for t in ticks],
        "ticktext": [*(plain(significant(t)) for t in ticks[:-1]), formats.number(peak)],
        "tickfont": {"size": 11},
        "title": {"text": "intensity (log scale)", "side": "top", "font": {"size": 12}},
    }

    def grid(step: int) -> dict[str, float]:
        first = {"y0": 0.5 * step * pixel - centre[0], "x0": 0.5 * step * pixel - centre[1]}
        return {k: round(v, 4) for k, v in (first | {"dx": step * pixel, "dy": step * pixel}).items()}

    scale = {"colorscale": "Inferno", "zmin": 0, "zmax": LEVELS, "zsmooth": "fast", "colorbar": colourbar}
    hover = "%{x:.2f} mm fast, %{y:.2f} mm slow<br>intensity %{z:.3~g}<extra></extra>"
    data = [
        {"type": "heatmap", "z": levels, "hoverinfo": "skip"} | grid(block) | scale,
        # What the pointer feels: coarser than the eye, and in intensities, which 8 bits cannot hold.
        {"type": "heatmap", "z": rounded, "opacity": 0, "showscale": False, "hovertemplate": hover} | grid(coarse),
    ]
    size = f"{slow}×{fast} pixels"
    below = f"{decades} decades, black below {formats.number(floor)}"
    frame = {"showgrid": False, "mirror": True, "showline": True, "ticks": "outside", "constrain": "domain"}
    ends = [[-c, round(n * pixel - c, 4)] for n, c in zip(array.shape, centre, strict=True)]
    across = frame | {
        "range": ends[1],
        "constraintoward": "left",
        "nticks": 6,
        "title": {"text": "fast, mm from the beam"},
    }
    down = frame | {"constraintoward": "top", "scaleanchor": "x", "range": ends[0][::-1], "nticks": 7}
    down |= {"title": {"text": "slow, mm from the beam"}}
    layout = {"height": panel + 110, "xaxis": across, "yaxis": down}

    def at(place: tuple[int, int]) -> list[float]:
        return [round((n + 0.5) * pixel - c, 3) for n, c in zip(place, centre, strict=True)]

    brightest = [(at(place), float(array[place])) for place in _spots(array, 10)]
    table = tables.frame(
        [
            {
                "spot": number,
                "mm slow": formats.number(place[0]),
                "mm fast": formats.number(place[1]),
                "intensity": formats.number(value),
                "of the peak": f"{formats.number(100 * value / peak)}%",
            }
            for number, (place, value) in enumerate(brightest, 1)
        ]
    )
    under = [size, below, f"drawn: largest of {block}×{block} pixels" if block > 1 else ""]
    under += [f"brightest spot {formats.number(peak)}", f"mean {formats.number(float(array.mean()))}"]
    return plotted(data, layout, title, under, table, ["spot", "mm slow", "mm fast", "intensity"]), table
