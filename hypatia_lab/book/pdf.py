"""The book as one PDF: Sphinx's single page of all chapters, drawn and printed by Chromium."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

SECONDS = 600
"""A browser that has not printed the book after so long will not."""
TALLEST = 940
"""Pixels that a figure may be high, for the paper is 1000; a higher one is drawn smaller."""
LOOK = """
@page { size: A4; margin: 16mm 14mm; }
html { font-size: 13px; }
[id^="document-"] + section { break-before: page; }
h1, h2, h3, h4 { break-after: avoid; }
.lab-figure, .lab-card, tr, img { break-inside: avoid; }
.bd-article-container, .bd-article { max-width: none; padding: 0; }
.lab-scroll, .cell_output .output, pre { overflow: visible; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.lab-table { font-size: 0.75rem; }
.lab-table th, .lab-table td { padding: 0.2rem 0.4rem; overflow-wrap: anywhere; }
.figure-data, .lab-filter, .headerlink { display: none !important; }
"""
"""On top of how the pages print: paper, smaller type, and without what only a screen can unfold."""


class PrintError(RuntimeError):
    """A page that was not printed: the message names the cause."""


def chromium() -> str:
    """The browser that prints the book and that it is tested in; empty where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next(filter(None, map(shutil.which, names)), "")


def single_page(built: Path) -> Path:
    """The one page of a book that Sphinx's ``singlehtml`` laid out in folder ``built``, ready to be printed.

    Sphinx writes it where the first chapter lies and gives addresses as seen from the top; so it is put there.
    """
    (link,) = re.findall(r'url=([^"]+)"', (built / "index.html").read_text(encoding="utf-8"))
    text = (built / link).read_text(encoding="utf-8")
    page = built / "book.html"
    text = re.sub(r'<figure class="lab-figure">(?=<div [^>]*style="min-height:(\d+)px")', _fitting, text)
    page.write_text(text.replace("</head>", f"<style>{LOOK}</style></head>", 1), encoding="utf-8")
    return page


def _fitting(figure: re.Match[str]) -> str:
    """The start of a figure, drawn smaller where it is higher than the paper."""
    height = int(figure[1])
    return figure[0] if height <= TALLEST else f'<figure class="lab-figure" style="zoom:{TALLEST / height:.3f}">'


def write(page: Path, target: Path, profile: Path) -> None:
    """Print ``page`` as PDF to ``target`` once its figures are drawn; ``profile``: a new folder for the browser.

    Raises :class:`PrintError` when it is not printed.
    """
    command = [
        browser := chromium(),
        "--headless",
        "--no-sandbox",  # a page of our own, which asks nothing of any network
        "--disable-gpu",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={profile}",
        f"--virtual-time-budget={SECONDS * 1000}",  # scripts are through with every figure, however long that takes
        "--window-size=720,1000",  # about as wide as the paper: figures are drawn for it
        "--no-pdf-header-footer",
        "--generate-pdf-document-outline",
        f"--print-to-pdf={target}",
        page.as_uri(),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise PrintError(f"{browser} had not printed the book after {SECONDS} s") from None
    if done.returncode or not target.is_file():
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise PrintError(f"{browser} did not print the book (exit status {done.returncode}): {last[0]}")
