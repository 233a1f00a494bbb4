"""The Triton kernel of the worked example of a reader's own kernel, against its reference."""

from __future__ import annotations

from hypatia_lab import check, places, reader_kernel, variants
from hypatia_lab.workloads import Workload


def check_scaled_softmax() -> None:
    """Rows of which a block is not filled, filled, and filled but for one."""
    found = reader_kernel.load(places.HOME / "book" / "examples" / "scaled_softmax.py")
    for shape in ((3, 5), (4, 64), (2, 129)):
        for dtype in ("float32", "bfloat16", "float16"):
            problem = check.Problem(Workload(found.name, shape, dtype), "cpu")
            run = variants.find(found.name, "triton").factory(problem.workload, problem.inputs)
            seen = check.check(run, problem)
            assert seen.ok, (shape, dtype, seen.reason)
