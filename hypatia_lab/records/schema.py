"""The one schema of a record's lines: its run, its cells and its details."""

from __future__ import annotations

SCHEMA = 1
MAX_SAMPLES = 20
STATUSES = ("ok", "cheated", "wrong", "too_fast", "crashed", "timeout", "skipped")
CLOCKS = ("hot", "cold", "graph", "wall", "profiler", "none")
"""``none``: checked for correctness, not timed."""

_us = {"type": "number", "minimum": 1e-6, "maximum": 1e12}  # from a picosecond to eleven days
_us_or_null = {"anyOf": [_us, {"type": "null"}]}
_amount = {"type": "integer", "minimum": 0, "maximum": 10**24}
# JSON has whole numbers without end, which no float holds.
_any_number = {"type": "number", "minimum": -1e300, "maximum": 1e300}
_number_or_null = {"anyOf": [_any_number | {"minimum": 0}, {"type": "null"}]}
_name = {"type": "string", "pattern": r"^[a-z0-9][a-z0-9_.-]{0,63}$"}
_origin = {"enum": ["author", "rebuilt", "seed", "peer", "own"]}  # rebuilt was called seed

_WORKLOAD = {
    "operation": _name,
    "shape": {"type": "array", "minItems": 1, "items": _amount | {"minimum": 1}},
    "dtype": {"enum": ["float64", "float32", "bfloat16", "float16"]},
    "math": _name,
}

_hash = {"type": "string", "pattern": "^[0-9a-f]{40}$"}
_PROVENANCE = {
    "type": "object",
    "required": ["repository", "commit", "licence", "files"],
    "additionalProperties": False,
    "properties": {
        "repository": {"type": "string", "pattern": r"^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$"},
        "commit": _hash,
        "licence": {"type": "string"},
        "files": {"type": "object", "additionalProperties": _hash},  # path → git blob id
    },
}

RUN = {
    "type": "object",
    "required": [
        "kind",
        "schema",
        "machine",
        "experiment",
        "preset",
        "device",
        "started",
        "commit",
        "dirty",
        "processes",
        "cells",
        "facts",
    ],
    "additionalProperties": False,
    "properties": {
        "kind": {"const": "run"},
        "schema": {"const": SCHEMA},
        "machine": _name,
        "experiment": _name,
        "preset": {"enum": ["quick", "seed", "full"]},
        "device": {"enum": ["cpu", "cuda"]},
        "started": {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}T[0-9:]+Z$"},
        "commit": {"type": "string"},
        "dirty": {"type": "boolean"},
        "processes": {"type": "integer", "minimum": 1},
        "seconds": {"type": "number", "minimum": 0},  # that measuring took, where it was not interrupted
        "cells": {"type": "integer", "minimum": 0},
        "details": {"type": "integer", "minimum": 0},
        "source": {"type": "string", "pattern": "^[0-9a-f]{12}$"},  # digest of the reader's file that was measured
        "provenance": {"type": "array", "minItems": 1, "items": _PROVENANCE},  # of the programs that it ran
        "facts": {"type": "object"},
        # What was added when the plan had grown: when, by which code, in how many of the processes.
        "grown": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["started", "commit", "dirty", "processes"],
                "additionalProperties": False,
                "properties": {
                    "started": {"type": "string"},
                    "commit": {"type": "string"},
                    "dirty": {"type": "boolean"},
                    "processes": {"type": "integer", "minimum": 0},
                },
            },
        },
    },
}

CELL = {
    "type": "object",
    "required": [
        "kind",
        "operation",
        "shape",
        "dtype",
        "math",
        "direction",
        "seed",
        "clock",
        "variant",
        "origin",
        "baseline",
        "status",
        "reason",
        "error",
        "max_error",
        "flops",
        "traffic",
        "medians_us",
        "samples_us",
        "calls",
        "outliers",
        "sm_mhz",
        "power_w",
        "throttled",
    ],
    "additionalProperties": False,
    "properties": {
        "kind": {"const": "cell"},
        **_WORKLOAD,
        "direction": {"enum": ["forward", "forward_backward"]},
        "seed": {"type": "integer"},
        "clock": {"enum": list(CLOCKS)},
        "variant": {"type": "string", "pattern": r"^[a-z][a-z0-9_]{0,63}(@again)?$"},
        "origin": _origin,
        "baseline": {"type": "string"},
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
        "outliers": {
            "type": "object",
            "required": ["mild", "severe", "of"],
            "additionalProperties": _amount,
        },
        "sm_mhz": {"type": "array", "items": _any_number},
        "power_w": {"type": "array", "items": _any_number},
        "throttled": {"type": "boolean"},
        "peak": _number_or_null,  # largest |reference|, where errors are judged against it
        # Of a variant that splits float32's operands: the arithmetic of its products, and how many it makes of one.
        "splits": {"anyOf": [{"type": "array", "minItems": 2, "maxItems": 2}, {"type": "null"}]},
        "operator": {"type": "boolean"},  # called through an operator that the lab registers
        # What shows that it cheated, in numbers: times (us), shares and how many were seen.
        "evidence": {"type": "object", "maxProperties": 8, "additionalProperties": _any_number},
    },
}

DETAIL = {
    "type": "object",
    "required": [
        "kind",
        "operation",
        "shape",
        "dtype",
        "math",
        "variant",
        "topic",
        "case",
        "name",
        "unit",
        "count",
        "values",
        "status",
        "reason",
    ],
    "additionalProperties": False,
    "properties": {
        "kind": {"const": "detail"},
        **_WORKLOAD,
        "variant": {"type": "string", "pattern": r"^[a-z][a-z0-9_]{0,63}$"},
        "topic": _name,
        "case": {"type": "string", "maxLength": 64},  # which of several ways, "" when there is one
        "name": {"type": "string", "minLength": 1, "maxLength": 200},
        "unit": {"enum": ["s", "ms", "us", "%", "1", "B", "B/s"]},
        "count": _amount | {"minimum": 1},  # how often it occurred in one call
        "values": {"type": "array", "items": {"anyOf": [_any_number, {"type": "null"}]}},  # one a process
        "direction": {"enum": ["forward", "forward_backward"]},  # forward where it is not there
        "origin": _origin,  # author, where a program from outside said it
        "status": {"enum": list(STATUSES)},
        "reason": {"type": "string"},
    },
}
