"""The one schema of a record's lines: its run, its cells and its details."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import Any

SCHEMA = 1
MAX_SAMPLES = 20
STATUSES = ("ok", "cheated", "wrong", "too_fast", "crashed", "timeout", "skipped")
CLOCKS = ("hot", "cold", "graph", "wall", "profiler", "none")
"""``none``: checked for correctness, not timed."""


def mistakes(schema: dict[str, Any]) -> Callable[[Any], str]:
    """What says of a value, from JSON, why it does not have the form of ``schema``; empty where it does."""

    @cache
    def compiled() -> Callable[[Any], Any]:
        import fastjsonschema

        return fastjsonschema.compile(schema)

    def mistake(value: Any) -> str:
        try:
            compiled()(value)
        except ValueError as cause:
            return str(cause)
        return ""

    return mistake


def whole(properties: dict[str, Any], optional: Collection[str] = ()) -> dict[str, Any]:
    """The schema of an object that has all ``properties``, but perhaps for ``optional`` ones, and no other."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "required": required, "additionalProperties": False, "properties": properties}


_us = {"type": "number", "minimum": 1e-6, "maximum": 1e12}  # from a picosecond to eleven days
_us_or_null = {"anyOf": [_us, {"type": "null"}]}
_amount = {"type": "integer", "minimum": 0, "maximum": 10**24}
# JSON has whole numbers without end, which no float holds.
_any_number = {"type": "number", "minimum": -1e300, "maximum": 1e300}
_number_or_null = {"anyOf": [_any_number | {"minimum": 0}, {"type": "null"}]}
_name = {"type": "string", "pattern": r"^[a-z0-9][a-z0-9_-]{0,63}$"}
_variant = {"type": "string", "pattern": r"^[a-z][a-z0-9_]{0,63}$"}
_origin = {"enum": ["author", "rebuilt", "seed", "peer", "own"]}  # rebuilt was called seed

_WORKLOAD = {
    "operation": _name,
    "shape": {"type": "array", "minItems": 1, "items": _amount | {"minimum": 1}},
    "dtype": {"enum": ["float64", "float32", "bfloat16", "float16"]},
    "math": _name,
}

_hash = {"type": "string", "pattern": "^[0-9a-f]{40}$"}
_PROVENANCE = whole(
    {
        "repository": {"type": "string", "pattern": r"^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$"},
        "commit": _hash,
        "licence": {"type": "string"},
        "files": {"type": "object", "additionalProperties": _hash},  # path → git blob id
    }
)
_digest = {"type": "string", "pattern": "^[0-9a-f]{12}$"}
_version = {"type": "integer", "minimum": 1, "maximum": 10**6}
# Which versions made it; what was measured before there were numbers has none.
_INSTRUMENT = whole({"clock": _version, "check": _version, "plan": _version})
_started = {"type": "string", "pattern": r"^20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"}
# What was added when the plan had grown: when, by which code and instrument, in how many of the processes.
_GROWN = whole(
    {
        "started": _started,
        "commit": {"type": "string"},
        "dirty": {"type": "boolean"},
        "processes": {"type": "integer", "minimum": 0},
        "instrument": _INSTRUMENT,
    },
    optional=("instrument",),
)
# Of a variant that splits float32's operands: the arithmetic of its products, and how many it makes of one.
_splits = {
    "type": "array",
    "items": [{"type": "string", "maxLength": 40}, {"type": "integer", "minimum": 1, "maximum": 9}],
    "minItems": 2,
    "maxItems": 2,
}

RUN = whole(
    {
        "kind": {"const": "run"},
        "schema": {"const": SCHEMA},
        "machine": _name,
        "experiment": _name,
        "preset": {"enum": ["quick", "seed", "full"]},
        "device": {"enum": ["cpu", "cuda"]},
        "started": _started,
        "commit": {"type": "string"},
        "dirty": {"type": "boolean"},
        "processes": {"type": "integer", "minimum": 1},
        "seconds": {"type": "number", "minimum": 0},  # that measuring took, where it was not interrupted
        "cells": {"type": "integer", "minimum": 0},
        "details": {"type": "integer", "minimum": 0},
        "instrument": _INSTRUMENT,
        "source": _digest,  # digest of the reader's file that was measured
        "provenance": {"type": "array", "minItems": 1, "items": _PROVENANCE},  # of the programs that it ran
        "facts": {"type": "object"},
        "grown": {"type": "array", "items": _GROWN},
    },
    optional=("seconds", "details", "instrument", "source", "provenance", "grown"),
)

CELL = whole(
    {
        "kind": {"const": "cell"},
        **_WORKLOAD,
        "direction": {"enum": ["forward", "forward_backward"]},
        "seed": {"type": "integer"},
        "clock": {"enum": list(CLOCKS)},
        "variant": {"type": "string", "pattern": r"^[a-z][a-z0-9_]{0,63}(@again)?$"},
        "origin": _origin,
        "baseline": _variant,
        "status": {"enum": list(STATUSES)},
        "reason": {"type": "string"},
        "error": _number_or_null,
        "max_error": _number_or_null,
        "flops": _amount,
        "traffic": _amount,
        "fewest_flops": _amount,  # of the cheapest known method, where those are fewer
        "medians_us": {"type": "array", "items": _us_or_null},
        "samples_us": {"type": "array", "maxItems": MAX_SAMPLES, "items": _us},
        "calls": _amount,
        "outliers": {"type": "object", "required": ["mild", "severe", "of"], "additionalProperties": _amount},
        "sm_mhz": {"type": "array", "items": _any_number},
        "power_w": {"type": "array", "items": _any_number},
        "throttled": {"type": "boolean"},
        "peak": _number_or_null,  # largest |reference|, where errors are judged against it
        "splits": {"anyOf": [_splits, {"type": "null"}]},
        "sources": _digest,  # of what the variant ran; none where parts that came later ran other text
        "operator": {"type": "boolean"},  # called through an operator that the lab registers
        # What shows that it cheated, in numbers: times (us), shares and how many were seen.
        "evidence": {"type": "object", "maxProperties": 8, "additionalProperties": _any_number},
        # What a rule of the task's own says of its answers: ``failed`` is 1 or 0, the rest is why.
        "beside": {"type": "object", "maxProperties": 8, "additionalProperties": _any_number},
    },
    optional=("fewest_flops", "peak", "splits", "sources", "operator", "evidence", "beside"),
)

DETAIL = whole(
    {
        "kind": {"const": "detail"},
        **_WORKLOAD,
        "variant": _variant,
        "topic": _name,
        "case": {"type": "string", "maxLength": 64},  # which of several ways, "" when there is one
        "name": {"type": "string", "minLength": 1, "maxLength": 200},
        "unit": {"enum": ["s", "ms", "us", "%", "1", "B", "B/s"]},
        "count": _amount | {"minimum": 1},  # how often it occurred in one call
        "values": {"type": "array", "items": {"anyOf": [_any_number, {"type": "null"}]}},  # one a process
        "direction": {"enum": ["forward", "forward_backward"]},  # forward where it is not there
        "origin": _origin,  # author, where a program from outside said it
        "switches": {  # of a library's behaviour, by what in the environment that was changed
            "type": "object",
            "minProperties": 1,
            "maxProperties": 8,
            "additionalProperties": {"type": "string", "maxLength": 64},
        },
        "status": {"enum": list(STATUSES)},
        "reason": {"type": "string"},
    },
    optional=("direction", "origin", "switches"),
)
