"""What tells whose machine it is: found in any text, and taken out of it. One list of patterns for both."""

from __future__ import annotations

import contextlib
import getpass
import ipaddress
import re
import socket
from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from typing import Any

from hypatia_lab import machine

_PUBLIC = r"(?:[\w-]+\.)*(?:pytorch\.org|github\.com|nvidia\.com|python\.org)(?![\w.-]*\w)"
"""Addresses that torch's own messages name."""
_HEX = "[0-9a-fA-F]"
_UUID = rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
_ENDS = "local|localdomain|lan|internal|intranet|intra|corp|cluster|home|private|edu|gov|com|org|net|io|ai|cloud|dev"
_ENDS += "|de|fr|uk|us|ch|at|nl|it|es|pl|cz|se|no|fi|dk|eu|cn|jp|kr|in|au|ca|br|ru"

_PATTERNS: tuple[tuple[str, str], ...] = (
    ("GPU UUID", rf"(?:GPU|MIG)-{_UUID}"),
    ("UUID", rf"(?<![\w-]){_UUID}(?![\w-])|(?<!\w){_HEX}{{32}}(?!\w)"),
    # eager@again is the lab's own name of the A/A control.
    ("address", r"[\w.+-]+@(?!again(?![\w.-]))[\w-]+(?:\.[\w-]+)*"),
    ("URL", rf"(?<![a-zA-Z])[a-zA-Z][a-zA-Z0-9+.-]*://(?!{_PUBLIC})[^\s\"'<>]+"),
    ("path", r"(?<![a-zA-Z])[A-Za-z]:\\[^\s\"'<>|]+|\\\\[\w.-]+\\[^\s\"'<>|]*"),
    ("path", r"/(?:home|Users)/[^\s\"'<>:,;()]+|/root(?![\w-])[^\s\"'<>:,;()]*"),
    ("path", r"(?<![\w/)\]>])/[\w.+@~%-]+(?:/[\w.+@~%-]+)+/?"),
    ("path", r"~(?:[A-Za-z_][\w.-]*)?/[\w./-]+"),
    ("IP address", r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\.?\w)"),
    ("hardware address", rf"(?<![\w:])(?:{_HEX}{{2}}:){{5}}{_HEX}{{2}}(?![\w:])"),
    ("IP address", r"(?<![\w:])(?=[0-9a-fA-F:.]*:[0-9a-fA-F:.]*:)[0-9a-fA-F:.]{3,}(?![\w:])"),
    ("host name", r"(?<![\w-])ip(?:-\d{1,3}){4}(?!\w)"),
    ("host name", rf"(?<![\w.-])(?!{_PUBLIC})(?:[A-Za-z0-9][\w-]*\.)+(?:{_ENDS})(?![\w-])"),
)
_COMMON = ("root", "user", "admin", "ubuntu", "debian", "nvidia", "runner", "jovyan", "docker", "guest", "localhost")
"""Names of so many users and hosts that they tell nobody."""

NOBODY: frozenset[str] = frozenset()
_text = {"type": "string", "maxLength": 100, "pattern": r"^[^\x00-\x1f\x7f-\x9f]*$"}
_version = {"type": "string", "pattern": r"^[0-9][\w.+!-]{0,59}$"}
_count = {"type": "integer", "minimum": 0, "maximum": 2**50}
_amount = {"type": "number", "minimum": 0, "maximum": 1e9}
FACTS: dict[str, Any] = {
    "name": _text,
    "cpu": _text,
    "cores": _count | {"minimum": 1, "maximum": 2**16},
    "threads": _count | {"minimum": 1, "maximum": 2**16},
    "memory_gib": {"anyOf": [_amount, {"type": "null"}]},
    "cache_bytes": _count,
    "system": {"type": "string", "pattern": r"^\w{1,20} \w{1,20}$"},
    "versions": {
        "type": "object",
        "propertyNames": {"pattern": r"^[a-z0-9][a-z0-9_.-]{0,39}$"},
        "additionalProperties": _version,
    },
    "multiprocessors": _count,
    "capability": {"type": "string", "pattern": r"^[0-9]{1,2}\.[0-9]$"},
    "chip": {"type": "string", "pattern": "^[0-9a-f]{6}$"},
    "driver": _version,
    "vbios": {"type": "string", "pattern": r"^[0-9A-Fa-f]{2}(\.[0-9A-Fa-f]{2}){4}$"},
    "sm_mhz_max": _amount,
    "memory_mhz_max": _amount,
    "ecc": {"type": "boolean"},
    "mig": {"type": "boolean"},
    "power_limit_w": _amount,
    "power_default_w": _amount,
}
"""The facts of a machine that a contribution tells, with their schemas: those of ``machine.facts`` and no other."""
_VERSIONS = ("versions", "driver", "vbios")
"""Keys of what may have four numbers with dots between."""


def own_names() -> frozenset[str]:
    """Names of this computer and of who is logged in, but for those that many have."""
    names = {socket.gethostname(), socket.gethostname().partition(".")[0]}
    with contextlib.suppress(OSError, KeyError, ImportError):  # a user that the system has no name for
        names.add(getpass.getuser())
    return frozenset(name for name in names if len(name) > 2 and name.lower() not in _COMMON)


def _address(text: str) -> bool:
    """Whether ``text``, digits with dots or colons, is an address of the Internet Protocol and no C++ name or time."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return False
    return found.version == 4 or len([part for part in text.split(":") if part]) > 2 or found.is_link_local


_Kind = tuple[str, re.Pattern[str], Callable[[str], bool]]
"""What something is, how it is found, and whether a text that looks like it is meant."""
_COMPILED: list[_Kind] = [
    (name, re.compile(pattern), _address if name == "IP address" else bool) for name, pattern in _PATTERNS
]


@cache
def _kinds(names: frozenset[str]) -> list[_Kind]:
    """All that is looked for: what tells of anybody, and ``names``."""
    if not names:
        return _COMPILED
    words = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return [
        *_COMPILED,
        ("name of host or user", re.compile(rf"(?<![\w-])(?:{words})(?![\w-])", re.IGNORECASE), bool),
    ]


@lru_cache(maxsize=2**15)  # records say the same words again and again
def found(text: str, names: frozenset[str] = NOBODY) -> list[tuple[str, str]]:
    """What ``text`` tells of its owner: (what it is, the words). ``names`` are words that do so besides."""
    hits = [
        (what, match[0])
        for what, pattern, meant in _kinds(names)
        for match in pattern.finditer(text)
        if meant(match[0])
    ]
    return list(dict.fromkeys(hits))


def scrubbed(text: str, names: frozenset[str] = NOBODY) -> tuple[str, list[str]]:
    """``text`` without what :func:`found` finds, and what that was, such as ``["path"]``.

    A GPU's UUID becomes the short hash that stands for it in every record (:func:`hypatia_lab.machine.chip`), so that
    two mentions of one chip still tell that they are; anything else becomes ``<path>``, ``<address>`` and so on.
    """
    gone: list[str] = []

    def instead(match: re.Match[str], what: str, meant: Callable[[str], bool]) -> str:
        if not meant(match[0]):
            return match[0]
        gone.append(what)
        return f"<chip {machine.chip(match[0])}>" if what == "GPU UUID" else f"<{what}>"

    while found(text, names):  # again, for without its neighbour something may be what it was not with it
        for what, pattern, meant in _kinds(names):
            text = pattern.sub(partial(instead, what=what, meant=meant), text)
    return text, gone


def strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in ``value``, from JSON, and every key, each with the key it stands under."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield key, name
            yield from strings(inner, name if key not in _VERSIONS else key)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner, key)


def told(value: Any, names: frozenset[str] = NOBODY) -> list[tuple[str, str, str]]:
    """What ``value``, from JSON, tells of its owner: (key, what it is, the words).

    A version is no address, and the repository of a program is public.
    """
    return [
        (key, what, words)
        for key, text in strings(value)
        if key != "repository"
        for what, words in found(text, names)
        if not (key in _VERSIONS and what == "IP address" and words == text)
    ]


def without(value: Any, names: frozenset[str] = NOBODY) -> tuple[Any, list[str]]:
    """``value``, from JSON, with every text and key in it :func:`scrubbed`, and what that took out.

    Keys that become alike are numbered.
    """
    gone: list[str] = []

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            value, lost = scrubbed(value, names)
            gone.extend(lost)
        elif isinstance(value, list):
            value = [clean(inner) for inner in value]
        elif isinstance(value, dict):
            pairs, value = value.items(), {}
            for key, inner in pairs:
                name = clean(key)
                value[name if name not in value else f"{name} {len(value)}"] = clean(inner)
        return value

    return clean(value), gone
