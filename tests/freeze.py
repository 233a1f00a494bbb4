"""What the lab says now, as files that a later commit is held against: ``python tests/freeze.py FOLDER``.

Written are the claims (``claims.json``), the results of every committed machine (``results-NAME.json``), which claims
each page shows (``pages.json``), and the points of every figure that is stored in a notebook (``figures.json``).
``python tests/freeze.py OLD NEW`` compares two such folders: it counts what differs, file by file and key by key, and
exits with 1 where a median, ratio or error does.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from hypatia_lab.formats import significant

ROOT = Path(__file__).resolve().parent.parent
STAYS = ("median_us", "ratio", "n", "error", "max_error", "status")
"""What of a row of results may not change while words and verdicts do."""
KEYS = {
    "claims.json": ("id", "machine"),
    "results": ("experiment", "workload", "clock", "variant"),
    "figures.json": ("page", "figure"),
}


def _figures() -> list[dict[str, Any]]:
    """Every figure stored in a notebook: its measured points, each with its low and high end, smallest first."""
    found = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        outputs = [
            output.get("data", {})
            for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
            for output in cell.get("outputs", [])
        ]
        drawn = [points for data in outputs if (points := _points(data)) is not None]
        found += [{"page": path.stem, "figure": number, "points": sorted(own)} for number, own in enumerate(drawn)]
    return found


def _points(data: dict[str, Any]) -> list[list[float]] | None:
    """The points of a figure of plotly's or of rows of marks, to the digits that are drawn; None of other output."""
    if plot := data.get("application/vnd.plotly.v1+json"):
        bars = [(trace, along) for trace in plot["data"] for along in "xy" if f"error_{along}" in trace]
        return [
            [significant(end) for end in (value, value - down, value + up)]
            for trace, along in bars
            for value, down, up in zip(
                trace[along], *(trace[f"error_{along}"][key] for key in ("arrayminus", "array")), strict=True
            )
        ]
    text = "".join(data.get("text/html", ""))
    if 'class="lab-rows"' not in text:
        return None
    marks = re.findall(r'data-value="([^"]+)"(?: data-low="([^"]+)" data-high="([^"]+)")?', text)
    return [[float(end or value) for end in (value, low, high)] for value, low, high in marks]


def _pages() -> dict[str, list[str]]:
    """Page → the claims that it shows, as its stored outputs name them."""
    found = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text = path.read_text(encoding="utf-8")
        found[path.stem] = sorted(set(re.findall(r"\b(?:S\d{3}|LAB)-\d{2,3}\b", text)))
    return found


def freeze(folder: Path) -> None:
    """Write what the lab says now into ``folder``."""
    from hypatia_lab import claims, records, results

    folder.mkdir(parents=True, exist_ok=True)
    loaded = records.load(records.COMMITTED)
    parts = claims.judge(results.measured(loaded))
    said = [row.row() for row in (*parts, *claims.statements(parts))]
    written: dict[str, Any] = {"claims.json": said, "pages.json": _pages(), "figures.json": _figures()}
    rows = results.rows(loaded)
    for machine in dict.fromkeys(row.machine for row in rows):
        own = [{name: getattr(row, name) for name in results.COLUMNS} for row in rows if row.machine == machine]
        written[f"results-{machine}.json"] = own
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content, indent=0, sort_keys=True) + "\n", encoding="utf-8")


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    return a == b


def compare(old: Path, new: Path) -> int:
    """Print what differs between two folders; 1 where something of :data:`STAYS` does, else 0."""
    status = 0
    for path in sorted(old.glob("*.json")):
        before, after = (json.loads((folder / path.name).read_text(encoding="utf-8")) for folder in (old, new))
        if isinstance(before, dict):
            changed = [name for name in before | after if before.get(name) != after.get(name)]
            print(f"{path.name}: {len(changed)} of {len(before)} differ {' '.join(changed)}".rstrip())
            continue
        keys = KEYS["results" if path.name.startswith("results") else path.name]
        olds, news = ({tuple(row[key] for key in keys): row for row in rows} for rows in (before, after))
        counts: Counter[str] = Counter(gone=len(olds.keys() - news.keys()), new=len(news.keys() - olds.keys()))
        for name in olds.keys() & news.keys():
            for key in olds[name].keys() | news[name].keys():
                counts[key] += not _same(olds[name].get(key), news[name].get(key))
        print(
            f"{path.name}: {len(olds)} rows;", ", ".join(f"{key} {number}" for key, number in counts.items() if number)
        )
        if path.name.startswith("results") and (counts["gone"] or any(counts[key] for key in STAYS)):
            status = 1
    return status


if __name__ == "__main__":
    given = [Path(text) for text in sys.argv[1:]]
    sys.exit(compare(*given) if len(given) == 2 else freeze(*given))
