"""A step of the ladder that was put in later, between the sixth and the seventh, to tell two changes apart.

Step 7 copies ahead, and for that keeps its tiles in memory's order. This step changes the order alone.

A record rests on the text of what it ran. Of a step that is all of :mod:`ladder` and all ``kernels/ladder/step_*.cu``,
so what came later has files of its own, and what was measured before is still of the text that is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hypatia_lab.kernels import loader
from hypatia_lab.operations import linear_relu as plain
from hypatia_lab.operations.linear_relu.ladder import STEPS, Cores, Step, ladder
from hypatia_lab.operations.torch_forms import bind
from hypatia_lab.variants import variant

if TYPE_CHECKING:
    import torch

    from hypatia_lab.operations.linear_relu.ladder import Sizes
    from hypatia_lab.variants import Run
    from hypatia_lab.workloads import Inputs, Workload

NAME, BEFORE, SOURCE = "step_along_k", "step_async", "ladder/substep_6b_along_k"
"""Its variant, the step that it stands before, and its file of ``kernels/``."""


@dataclass(frozen=True)
class OwnFile(Cores):
    """A step's kernel whose file is :data:`SOURCE`, and not one that its place in the ladder's order names."""

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, sizes: Sizes
    ) -> None:
        scalars = loader.SCALARS[loader.dtype_name(x.dtype)]
        grid = (-(-sizes[0] // self.rows) * -(-sizes[2] // self.columns),)
        launch = loader.cuda_launcher(SOURCE, f"linear_relu_{self.kernel}", *scalars)
        launch(grid, self.block, x, weight, bias, out, *sizes)


STEPS[NAME] = Step("cuda", OwnFile("along_k", (256,), 128, 128), "tiles in memory's order", capability=(8, 0))


@variant(
    "linear_relu",
    NAME,
    origin="own",
    maths=("ieee",),
    needs=lambda workload, device: STEPS[NAME].missing(workload.dtype, device),
    label=STEPS[NAME].label,
    tags=(STEPS[NAME].tag,),
)
def along_k(workload: Workload, inputs: Inputs) -> Run:
    """Step 6 with tiles in memory's order, as step 7 needs them; nothing is copied ahead."""
    return bind(partial(ladder, NAME), inputs, plain.OPERANDS)
