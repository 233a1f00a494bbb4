"""The form of a contribution: JSON schemas of its manifest, and of what its records say more narrowly than others."""

from __future__ import annotations

from functools import cache
from typing import Any

import fastjsonschema

from hypatia_lab.contributed import manifest, private


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object that has all ``properties`` and no other."""
    return {"type": "object", "required": [*properties], "additionalProperties": False, "properties": properties}


def _files(pattern: str) -> dict[str, Any]:
    return {"type": "object", "propertyNames": {"pattern": pattern}, "additionalProperties": _file}


_texts = {"type": "array", "items": {"type": "string", "maxLength": 300}, "maxItems": 1000}
_file = _object({"sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"}, "bytes": {"type": "integer", "minimum": 1}})
_started = {"type": "string", "pattern": r"^20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"}
_facts = {"type": "object", "additionalProperties": False, "properties": private.FACTS}
_splits = {
    "type": "array",
    "items": [{"type": "string", "maxLength": 40}, {"type": "integer", "minimum": 1, "maximum": 9}],
    "minItems": 2,
    "maxItems": 2,
}

FORMS: dict[str, dict[str, Any]] = {
    "manifest": _object(
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
    ),
    "facts": _facts,
    # Lines of records, by their kind.
    "run": {
        "properties": {
            "started": _started,
            "facts": _facts | {"required": ["name"]},
            "grown": {"items": {"properties": {"started": _started}}},
        }
    },
    "cell": {
        "properties": {
            "baseline": {"type": "string", "pattern": "^[a-z][a-z0-9_]{0,63}$"},
            "splits": {"anyOf": [{"type": "null"}, _splits]},
        }
    },
    "detail": {},
}


@cache
def _validator(name: str) -> Any:
    return fastjsonschema.compile(FORMS[name])


def mistake(name: str, value: Any) -> str:
    """What keeps ``value``, from JSON, from having the form ``name`` of :data:`FORMS`; empty where nothing does."""
    try:
        _validator(name)(value)
    except fastjsonschema.JsonSchemaException as cause:
        return str(cause)
    return ""
