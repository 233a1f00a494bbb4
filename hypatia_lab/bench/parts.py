"""What finished processes told, on disk until the record is written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hypatia_lab.bench.kept import keep, kept


class Parts:
    """Rows of finished processes, one file each beside the record, so that an interruption loses nothing.

    ``chips``: the GPU that measures now, and those of the parts that were taken up again.
    """

    def __init__(self, folder: Path, key: str, chip: str) -> None:
        self.folder, self.key, self.chips = folder, key, {chip}

    def path(self, number: int) -> Path:
        return self.folder / f"{number}.json"

    def load(self, number: int) -> tuple[list[dict[str, Any]], dict[str, tuple[str, str]]]:
        """Rows of whole groups and exclusions so far; empty when there are none or they answer another plan."""
        found = kept(self.path(number), self.key)
        if found is None:
            return [], {}
        self.chips |= {*found["chips"]}
        return found["rows"], {k: tuple(v) for k, v in found["excluded"].items()}

    def save(self, number: int, rows: list[dict[str, Any]], excluded: dict[str, tuple[str, str]]) -> None:
        keep(self.path(number), self.key, {"rows": rows, "excluded": excluded, "chips": sorted(self.chips)})

    def clear(self) -> None:
        shutil.rmtree(self.folder)
        if not any(self.folder.parent.iterdir()):
            self.folder.parent.rmdir()
