"""The form of a contribution: JSON schemas of its manifest, and of the facts of a machine that it tells."""

from __future__ import annotations

from typing import Any

from hypatia_lab.contributed import manifest, private
from hypatia_lab.records.schema import mistakes, whole


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
            "schema": {"const": manifest.SCHEMA},
            "date": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
            "records": _files(manifest.RECORD_FILE),
            "traces": _files(manifest.TRACE_FILE),
            "left_out": _texts,
        }
    )
)
"""What is wrong with a manifest; empty where nothing is."""
of_facts = mistakes(whole(private.FACTS, optional=private.FACTS.keys() - {"name"}))
"""The same of a machine's facts."""
