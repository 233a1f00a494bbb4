"""Which code measures: the commit of the source tree, and the digest of a tree that has changes."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def commit(root: Path = ROOT) -> tuple[str, bool]:
    """Commit of the source tree at ``root``, and whether the package differs from it; ("unknown", True) where it is in
    none.

    A copy that was sent to a machine without its history says where it came from in ``HYPATIA_COMMIT``.
    """
    told = os.environ.get("HYPATIA_COMMIT", "")
    if re.fullmatch(r"[0-9a-f]{7,40}", told):
        return told, False
    try:
        tree, head = _git(root, "rev-parse", "--show-toplevel", "HEAD").splitlines()
        # Records and executed notebooks are what a run leaves behind; they do not change what it measures.
        changed = _git(root, "status", "--porcelain", "--", "hypatia_lab")
    except (OSError, subprocess.CalledProcessError):
        return "unknown", True
    # A copy within a repository of something else: that one's commit says nothing of it.
    return (head, bool(changed.strip())) if Path(tree).resolve() == root else ("unknown", True)


def _git(root: Path, *asked: str) -> str:
    return subprocess.run(["git", *asked], cwd=root, capture_output=True, text=True, check=True).stdout


def digest(package: Path = ROOT / "hypatia_lab") -> str:
    """Digest of the files of ``package``, of which no commit tells."""
    found = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(f"{path.relative_to(package)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()
