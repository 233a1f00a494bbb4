"""Measures what it is told, and prints what became of it and what a page shows of it."""

import json
import sys
from pathlib import Path
from typing import Any

from hypatia_lab import results, tables
from hypatia_lab.bench import composer
from hypatia_lab.experiments.plan import MOST, PROCESSES
from hypatia_lab.figures import comparisons, over_size
from hypatia_lab.pages import ladder

PROCESSES["quick"] = MOST["quick"] = 2
how: dict[str, Any] = {"preset": "quick", "device": "cpu", "machine_name": "box", "shapes": [(8, 16, 12)]}
records = [composer.measure(name, root=Path("out"), progress=False, **how) for name in sys.argv[1:]]
rows = {record.experiment: results.rows([record]) for record in records}
fusion, climbed = rows["aten_fusion"], rows["gemm_ladder"]
both = comparisons.speedups([row for row in fusion if row.operation == "linear_relu"])
climb = over_size.rungs(climbed, ladder.order(), "Ladder")
found = {
    "status": [(row.variant, row.status) for row in fusion + climbed if row.clock != "none"],
    "figure": both[0].to_json(),
    "table": tables.results_table(fusion).to_csv(),
    "climb": climb[1].to_csv(),
}
print(json.dumps(found))
