"""What several tests share: the committed book, built once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypatia_lab import book


@pytest.fixture(scope="session")
def committed_book() -> Path:
    """Folder of the book built from the committed notebooks and records, as a reader gets it."""
    return book.build(output=book.REPOSITORY / "_build" / "committed" / "html", say=print).parent
