"""Holds that what was added is planned, and has its place on the pages."""

from hypatia_lab.experiments import EXPERIMENTS
from hypatia_lab.figures import language
from hypatia_lab.pages import ladder
from hypatia_lab.variants import label, variants

for device in ("cpu", "cuda"):
    timed = [g for g in EXPERIMENTS["aten_fusion"].groups("seed", device) if g.workload.operation == "linear_relu"]
    assert all("by_halves" in group.variants for group in timed), device
assert all("step_by_halves" in group.variants for group in EXPERIMENTS["gemm_ladder"].groups("quick", "cpu"))
assert "step_by_halves" in ladder.order()
assert "by_halves" not in ladder.order()
assert label("linear_relu", "by_halves") == "two products of half the rows"
others = [one for name, one in variants("linear_relu").items() if name != "by_halves"]
look = language.style("by_halves", "own")
taken = [language.style(one.name, one.origin) for one in others]
assert (look.colour, look.symbol) not in [(one.colour, one.symbol) for one in taken]
