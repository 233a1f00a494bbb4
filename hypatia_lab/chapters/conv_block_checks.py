"""The convolution block: what was checked at which shapes, and mistakes tried out as the page is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypatia_lab import check, formats
from hypatia_lab.chapters.conv_block import CLAIMED_ERROR, EXPERIMENT, PAGE
from hypatia_lab.formats import listing
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding
from hypatia_lab.results import Row
from hypatia_lab.workloads import Workload


def planted() -> list[dict[str, str]]:
    """What the check says of the block with statistics by tile and by plane: a line a size, tried out here and now."""
    import torch.nn.functional as functional

    from hypatia_lab.operations import conv_block

    out = []
    for height, width in ((16, 16), (33, 29), (48, 64)):
        problem = check.Problem(Workload("conv_block", (2, 4, height, width)), "cpu")
        line = {"plane": f"{height}×{width}"}
        for name, normal in (
            ("by tile", conv_block.normalised_by_tile),
            ("by plane", lambda z: conv_block.normalised(z)[0]),
        ):

            def block(i: Any = problem.inputs, normal: Any = normal) -> Any:
                z = functional.conv2d(i["x"], i["weight"], i["bias"], padding=1)
                return functional.gelu(normal(z) * i["gamma"].view(1, -1, 1, 1) + i["beta"].view(1, -1, 1, 1))

            found = check.check(block, problem)
            line[name] = "right" if found.ok else f"rejected: {found.reason.partition(':')[0]}"
        out.append(line)
    return out


def fault(lines: Sequence[dict[str, str]]) -> Finding:
    """The mistake that S000 mended, planted and caught as :func:`planted` saw it; the same on any machine."""
    caught = [line["plane"] for line in lines if line["by tile"].startswith("rejected")]
    unseen = [line["plane"] for line in lines if line["by tile"] == "right"]
    if not caught or not unseen or any(line["by plane"] != "right" for line in lines):
        text = "The check does not tell statistics by tile from statistics by plane as it should; see the table."
        return Finding(f"{len(caught)} of {len(lines)}", "The planted mistake is not told apart", text, PAGE)
    return Finding(
        f"{len(caught)} of {len(lines)}",
        "Statistics by tile are caught wherever a plane has more than one",
        f"The mistake that S000 mended, planted here by tiles of 16×16, is caught at planes of {listing(caught)}. "
        f"At {listing(unseen)} a tile is the plane: a test of that size would have passed.",
        PAGE,
    )


def gelus() -> Finding:
    """How far the two GELUs lie apart, against S000's error; the same on any machine."""
    import torch
    import torch.nn.functional as functional

    u = torch.linspace(-8, 8, 160_001, dtype=torch.float64)
    apart = float((functional.gelu(u) - functional.gelu(u, approximate="tanh")).abs().max())
    return Finding(
        formats.number(apart),
        "An error of 1.36e-3 cannot tell the two GELUs apart",
        f"GELU by tanh and by erf lie at most {formats.spoken(100 * apart / CLAIMED_ERROR)}% of that error apart. "
        "A test that allows it accepts either for the other.",
        PAGE,
    )


def checked(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """How many variants were right at every shape, in every dtype and direction; who was not is named."""
    rows = lab.select(machine=machine, experiment=EXPERIMENT)
    places: dict[tuple[str, str], dict[tuple[str, ...], Row]] = {}
    for row in rows:
        key = tuple(getattr(row, name) for name in ("operation", "dtype", "math", "direction", "variant"))
        places.setdefault((row.shape, row.direction), {})[key] = row
    out = []
    for (_, direction), found in places.items():
        ran = [row for row in found.values() if row.status != "skipped"]
        bad = dict.fromkeys(f"{row.variant} {row.dtype}: {row.status}" for row in ran if row.status != "ok")
        out.append(
            {
                "shape": next(iter(found.values())).at,
                "direction": direction.replace("_", " and "),
                "right": f"{sum(row.status == 'ok' for row in ran)} of {len(ran)}",
                "not right": listing(list(bad)) if bad else formats.MISSING,
            }
        )
    return out
