"""What an interrupted measurement goes on with: files that count only for the plan, or the code, that wrote them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypatia_lab import records


def keep(path: Path, key: str, what: Any) -> None:
    """Write ``what``, of JSON's kinds, to ``path`` under ``key``. Raises :class:`records.RecordError`."""
    records.write_text(path, json.dumps({"key": key, "what": what}))


def kept(path: Path, key: str) -> Any:
    """What ``path`` holds under ``key``; None where it is not there, damaged, or of another key."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found["what"] if found["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
