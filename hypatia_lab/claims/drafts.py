"""Drafts: figures of a document that nobody has put into words yet, and the ledger file that begins with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hypatia_lab.claims.documents import Document


@dataclass(frozen=True)
class Draft:
    """An entry of a ledger file without wording: where its figure stands, and as much of it as the file says.

    ``claimed`` is (low, high), or None; ``unit`` and ``kind`` are ``""`` where they are not given. Nothing judges it.
    """

    id: str
    section: str
    claimed: tuple[float, float] | None = None
    unit: str = ""
    kind: str = ""


_HOW = """\
# Say under `claim`, in your own words, what the document claims; until then an entry is a draft, which is counted and
# not judged. With the words goes how it is tested: quantity, workloads, what is measured (of, or over and under), and
# why. `kind` is what the figure seemed to be by its unit; it says nothing once there are words. Delete what claims
# nothing, and put the figures of one statement together, as parts of one entry.
"""


def text(document: Document | None, prefix: str) -> str:
    """A ledger file in which every figure of ``document`` is a draft, ids ``<prefix>-1`` and so on.

    Without a document there is one draft, to be copied. Of the document it has its name and digest, figures with their
    units, lines, and headings of row and column where they stand in a table.
    """
    import yaml

    def said(what: Any) -> str:
        return yaml.safe_dump(what, allow_unicode=True, sort_keys=False, width=1000)

    head, entries = said({"defaults": {"program": "author"}}), [{"section": "where it stands", "claim": None}]
    if document is not None:
        head = said({"document": {"file": document.file, "sha256": document.sha256}}) + head
        entries = [
            {
                "section": f"line {found.line}" + f", {found.where}" * bool(found.where),
                "claim": None,
                "claimed": _claimed(found.claimed),
            }
            | {"unit": found.unit, "kind": found.kind}
            for found in document.figures
        ]
    listed = [said([{"id": f"{prefix}-{number}"} | entry]) for number, entry in enumerate(entries, 1)]
    body = "\n".join(listed).replace("  claim: null\n", "  claim:\n")
    return f"{_HOW}{head}claims:\n\n{body}"


def _claimed(ends: tuple[float, float]) -> Any:
    low, high = (int(end) if end.is_integer() and abs(end) < 1e15 else end for end in ends)
    return low if low == high else [low, high]
