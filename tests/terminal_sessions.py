"""The sessions that pages show of the command, as it answers now: ``python tests/terminal_sessions.py`` writes them.

A session is a block of ``console``: each line that begins with ``$`` is run by bash, in a new folder for each page, in
a terminal of 80 columns, and what it says stands below it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", ROOT / "book" / "terminal.md")
COMMAND = f'hypatia-lab() {{ "{sys.executable}" -m hypatia_lab "$@"; }}; '


def answered(page: str, folder: Path) -> str:
    """The text of ``page`` with what each command of its sessions says now, in ``folder``."""
    return re.sub(r"(?ms)(?<=^```console\n).*?(?=^```$)", lambda found: _session(found[0], folder), page)


def _session(text: str, folder: Path) -> str:
    lines: list[str] = []
    for asked in re.findall(r"(?m)^\$ (.+)$", text):
        lines += [f"$ {asked}", *map(str.rstrip, _said(asked, folder).splitlines())]
    return "".join(f"{line}\n" for line in lines)


def _said(asked: str, folder: Path) -> str:
    """What ``asked`` prints; where that is nothing, why."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(
        ["bash", "-c", COMMAND + asked], cwd=folder, env=environment, capture_output=True, encoding="utf-8"
    )
    return (done.stdout or done.stderr).replace(f"{folder}/", "")


def main() -> None:
    """Write every page anew."""
    for page in PAGES:
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(answered(page.read_text(encoding="utf-8"), Path(folder)), encoding="utf-8")


if __name__ == "__main__":
    main()
