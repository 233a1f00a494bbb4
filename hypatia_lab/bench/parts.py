"""What finished processes told, on disk until the record is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from hypatia_lab import records


class Parts:
    """Rows of finished processes, one file each beside the record, so that an interruption loses nothing.

    ``chips``: the GPU that measures now, and those of the parts that were taken up again.
    """

    def __init__(self, folder: Path, key: str, chip: str) -> None:
        self.folder, self.key, self.chips = folder, key, {chip}

    def path(self, number: int) -> Path:
        return self.folder / f"{number}.jsonl"

    def load(self, number: int) -> tuple[list[dict[str, Any]], dict[str, tuple[str, str]]]:
        """Rows of whole groups and exclusions so far; empty when there are none or they answer another plan."""
        try:
            lines = self.path(number).read_text(encoding="utf-8").splitlines()
            parsed = [json.loads(line) for line in lines]
        except (OSError, ValueError):
            return [], {}
        if not parsed or not isinstance(parsed[0], dict) or parsed[0].get("key") != self.key:
            return [], {}
        self.chips |= {*parsed[0]["chips"]}
        return parsed[1:], {k: tuple(v) for k, v in parsed[0]["excluded"].items()}

    def save(self, number: int, rows: list[dict[str, Any]], excluded: dict[str, tuple[str, str]]) -> None:
        head = {"key": self.key, "excluded": excluded, "chips": sorted(self.chips)}
        records.write_text(self.path(number), "".join(json.dumps(row) + "\n" for row in (head, *rows)))

    def clear(self) -> None:
        shutil.rmtree(self.folder)
        if not any(self.folder.parent.iterdir()):
            self.folder.parent.rmdir()
