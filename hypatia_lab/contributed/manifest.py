"""The manifest of a contribution: what it holds, worked out from its records, the digest of every file, its form."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from hypatia_lab.contributed import private
from hypatia_lab.records import Record
from hypatia_lab.records.schema import mistakes, whole

NAME = "manifest.json"
LETTER = "PULL_REQUEST.md"
"""The text of the pull request; it is no part of what is merged, and the manifest does not list it."""
SCHEMA = 1
RECORD_FILE = r"^[a-z0-9][a-z0-9_.-]{0,63}\.jsonl$"
TRACE_FILE = r"^traces/[A-Za-z0-9][A-Za-z0-9_@-]{0,150}\.json\.gz$"
LISTED = re.compile(rf"{RECORD_FILE}|{TRACE_FILE}")
"""Names of the files that it lists."""


def begun(record: Record) -> list[dict[str, Any]]:
    """When ``record`` was begun, and each time that it was added to: ``started``, ``commit`` and ``dirty`` of each."""
    return [record.run, *record.run.get("grown", [])]


def described(records: Sequence[Record], control: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a manifest tells of ``records``, of one machine: machine, device, model (of GPU or processor), chips (their
    short hashes), commits, dirty (whether the lab's code was changed anywhere), presets, versions (of torch, CUDA and
    driver), measured (first and last start) and control (its A/A pairs; None without).

    ``control`` is what :func:`hypatia_lab.results.agreement` has of them.
    """
    runs = [record.run for record in records]
    own = [one for record in records for one in begun(record)]
    versions = [run["facts"].get("versions", {}) | {"driver": run["facts"].get("driver", "")} for run in runs]
    # Other versions of the libraries may differ in the last digit.
    pairs = [
        {key: round(row[key], 6) for key in ("pairs", "differences", "rate", "rate_low", "rate_high")}
        for row in control
    ]
    return {
        "machine": runs[0]["machine"],
        "device": runs[0]["device"],
        "model": runs[0]["facts"].get("name", ""),
        "chips": _each(record.chip for record in records),
        "commits": _each(one["commit"] for one in own),
        "dirty": any(one["dirty"] for one in own),
        "presets": _each(run["preset"] for run in runs),
        "versions": {name: _each(of.get(name, "") for of in versions) for name in ("torch", "cuda", "driver")},
        "measured": [min(one["started"] for one in own), max(one["started"] for one in own)],
        "control": pairs[0] if pairs else None,
    }


def _each(texts: Iterable[str]) -> list[str]:
    return sorted({text for text in texts if text})


def digest(data: bytes) -> dict[str, Any]:
    """What a manifest says of a file that holds ``data``."""
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


# ---------------------------------------------------------------- its form, as a JSON schema


def _files(pattern: str) -> dict[str, Any]:
    return {"type": "object", "propertyNames": {"pattern": pattern}, "additionalProperties": _file}


_texts = {"type": "array", "items": {"type": "string", "maxLength": 300}, "maxItems": 1000}
_file = whole({"sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"}, "bytes": {"type": "integer", "minimum": 1}})
of_manifest = mistakes(
    whole(
        {
            "machine": {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]{0,63}$"},
            "device": {"enum": ["cpu", "cuda"]},
            "model": {"type": "string"},
            "chips": _texts,
            "commits": _texts,
            "dirty": {"type": "boolean"},
            "presets": _texts,
            "versions": {"type": "object", "additionalProperties": _texts},
            "measured": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
            "control": {"anyOf": [{"type": "null"}, {"type": "object", "additionalProperties": {"type": "number"}}]},
            "schema": {"const": SCHEMA},
            "date": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
            "records": _files(RECORD_FILE),
            "traces": _files(TRACE_FILE),
            "left_out": _texts,
        }
    )
)
"""What is wrong with a manifest; empty where nothing is."""
of_facts = mistakes(whole(private.FACTS, optional=private.FACTS.keys() - {"name"}))
"""The same of a machine's facts."""
