"""Reading the ledger: one YAML file a seed, one entry a claim. Data in, checked :class:`Claim` objects out.

What a document says once is one entry, however many ways there are to test it: those are its ``parts``, which stand
under it and are called S001-05a, S001-05b and so on in their order. An entry with one way to test it has that part's
keys itself; the part is S001-05a all the same.

Each fact stands once. A part takes what it does not say from its claim, and a claim from the ``defaults`` of its file,
as far as that goes with the part's quantity; ``key: ~`` takes nothing. Keys may be grouped on one line under ``test``.
A file may give ``workloads`` short names. A unit is the quantity's, a band follows from what is claimed
(:func:`hypatia_lab.claims.claim.usual_band`), and a contradiction is said by one of both parts.

An entry of a reader's file whose ``claim`` is empty is a :class:`Draft`: it has an id and the place of a figure, and
nothing else of it is read but ``claimed``, ``unit`` and ``kind``. Such a file may say of which ``document`` its claims
are, by the name and sha256 of that.

Only text and numbers are ever built from the YAML, so a ledger file can name nothing that runs; every fault is
one :class:`ClaimError` that names the file and the line.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import yaml

from hypatia_lab import files
from hypatia_lab.claims.claim import (
    ALWAYS,
    AUTHOR,
    HARDWARE,
    KINDS,
    PROGRAMS,
    QUANTITIES,
    SENSES,
    UNITS,
    Claim,
    Figure,
    arithmetic,
    goes_with,
    usual_band,
)
from hypatia_lab.messages import unknown

HERE = Path(__file__).resolve().parent


class ClaimError(ValueError):
    """A ledger file that cannot be read: the message names file, line, cause and remedy."""


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


_WHOLE = ("id", "section", "claim")
"""What a claim has of its own; each of its parts may have a section or wording instead."""

_STRICT = ("clock", "untestable")
"""Keys that a claim may not have for parts that do not take them: what decides would change in silence."""

_CHOICES = {
    "quantity": tuple(QUANTITIES),
    "bound": ("roofline", "free_relu"),
    "device": ("cpu", "cuda"),
    "clock": ("hot", "cold", "graph", "wall", "profiler"),
    "part": ("relu", "linear"),
    "topic": ("start", "trace", "kernels", "accuracy", "process", "counters", "graph", "program", "training"),
    "program": PROGRAMS[:-1],
    "sense": SENSES,
    "kind": KINDS,
}
_SEED = r"S[0-9]{3}"
LAB = "LAB"
"""How the ids of the lab's own findings and goals begin."""
_ID = r"S[0-9]{3}-[0-9]{2,3}|(?!S[0-9]{3}-)[A-Z][A-Z0-9]{0,31}-[0-9]{1,4}"
"""Of a seed, which has a file of its own; or of a claim of the lab's or a reader's, in a file of any name."""
_NAME = r"[a-z][a-z0-9_]*"
_WORKLOAD = (
    r"[a-z0-9_]+/[0-9]+(x[0-9]+)*/[a-z0-9]+/[a-z0-9]+/(forward|forward_backward)",
    "linear_relu/1024x784x2048/float32/ieee/forward",
)
_PATTERNS = {
    "id": (_ID, "S001-01 or MINE-1"),
    **dict.fromkeys(("workloads", "workload"), _WORKLOAD),
    **dict.fromkeys(("variant", "baseline", "rewrites"), (_NAME, "naive")),
    "experiment": (_NAME, "aten_fusion"),
    "made_of": (_NAME, "linear_relu"),
    "conflicts": (f"({_ID})[a-z]", "S001-01a or MINE-1a"),
    "about": (f"({_ID})[a-z]?", "S001-01"),
    "page": (r"[0-9]{2}_[a-z_]+", "02_naive_vs_cublas"),
    "band_set": (r"[0-9]{4}-[0-9]{2}-[0-9]{2} (before|after)", "2026-11-21 before"),
    "sha256": (r"[0-9a-f]{64}", "the 64 hexadecimal digits that sha256sum prints"),
}


# libyaml's is several times as fast, where PyYAML was built with it. It is for the lab's own files: text from elsewhere
# may be nested so deep that it would overflow the stack, where Python's raises an error.
_FAST: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Fault(Exception):
    """Something wrong at a node; becomes a :class:`ClaimError` once file and line are known."""

    def __init__(self, node: yaml.Node, message: str) -> None:
        super().__init__(message)
        self.line = node.start_mark.line + 1


Nodes = dict[str, tuple[yaml.Node, yaml.Node]]
"""Key → its own node and its value's."""


@dataclass(frozen=True)
class _File:
    """What a ledger file says once for all of its claims: its name, defaults, and short names of workloads."""

    name: str
    loader: yaml.SafeLoader
    defaults: Nodes
    workloads: dict[str, str]


_Reader = Callable[[_File, yaml.Node, str], Any]
"""What a node says under a key. Raises :class:`_Fault`."""
_TAG = "tag:yaml.org,2002:"


def _text(file: _File, node: yaml.Node, key: str) -> str:
    if not isinstance(node, yaml.ScalarNode) or node.tag != f"{_TAG}str" or not node.value.strip():
        raise _Fault(node, f"{key} must be text; put it in quotes if it looks like a number")
    value = " ".join(node.value.split())
    if key in ("workload", "workloads") and "/" not in value and file.workloads:
        if value not in file.workloads:
            raise _Fault(node, unknown("workload", value, file.workloads))
        value = file.workloads[value]
    if key in _CHOICES and value not in _CHOICES[key]:
        raise _Fault(node, unknown(key, value, _CHOICES[key]))
    if key in _PATTERNS and not re.fullmatch(_PATTERNS[key][0], value):
        raise _Fault(node, f"{key} {value!r} is not of the form {_PATTERNS[key][1]}")
    return value


def _list(file: _File, node: yaml.Node, key: str, *, item: _Reader = _text, or_one: bool = False) -> tuple[Any, ...]:
    """What a list says, none of it twice; ``or_one``: its only item may stand there itself."""
    listed = node.value if isinstance(node, yaml.SequenceNode) else [node] if or_one else []
    values = tuple(item(file, one, key) for one in listed)
    if not values:
        raise _Fault(node, f"{key} must be a list of at least one")
    if len(set(values)) < len(values):
        raise _Fault(node, f"{key} names something twice")
    return values


def _number(file: _File, node: yaml.Node, key: str) -> float:
    kind = node.tag.removeprefix(_TAG)
    try:
        value = float(getattr(file.loader, f"construct_yaml_{kind}")(node)) if kind in ("int", "float") else math.nan
    except (ValueError, OverflowError, IndexError):
        value = math.nan
    if not math.isfinite(value):
        raise _Fault(node, f"{key} must be a finite number (YAML wants 1.0e-6, not 1e-6)")
    return value


def _pair(file: _File, node: yaml.Node, key: str) -> tuple[float, ...]:
    ends = [_number(file, item, key) for item in node.value] if isinstance(node, yaml.SequenceNode) else []
    if len(ends) != 2 or not ends[0] < ends[1]:
        raise _Fault(node, f"{key} must be [low, high] with low below high")
    return tuple(ends)


def _claimed(file: _File, node: yaml.Node, key: str) -> tuple[float, ...]:
    return _pair(file, node, key) if isinstance(node, yaml.SequenceNode) else (_number(file, node, key),) * 2


def _figure(file: _File, node: yaml.Node, key: str) -> Figure:
    """One figure of a record, ``{topic: start, name: call 2, variant: eager}`` or ``{clock: wall, variant: eager}``."""
    known = [field.name for field in fields(Figure)]
    nodes = _mapping(node, known, key, "{topic: start, name: call 2, variant: eager}, or a list of them")
    found = {name: _text(file, value, name) for name, (_, value) in nodes.items()}
    if "variant" not in found:
        raise _Fault(node, f"a figure of {key} lacks its variant")
    if ("topic" in found) != ("name" in found) or ("topic" not in found and "case" in found):
        raise _Fault(node, f"a figure of {key} has topic and name (and maybe case), or none of them")
    if "topic" in found and "clock" in found:
        raise _Fault(node, f"a figure of {key} has a topic or a clock, not both")
    return Figure(**found)


def _pairs(file: _File, node: yaml.Node, key: str) -> tuple[tuple[str, str], ...]:
    """Variant of the author's → variant that stands in for it, ``{author_v1: naive}``."""
    if not isinstance(node, yaml.MappingNode) or not node.value:
        raise _Fault(node, f"{key} must say which variant stands in for which, such as {{author_v1: naive}}")
    found = [(_text(file, own, key), _text(file, stand_in, key)) for own, stand_in in node.value]
    if len(dict(found)) < len(found):
        raise _Fault(node, f"{key} names a variant twice")
    return tuple(found)


def _flag(file: _File, node: yaml.Node, key: str) -> bool:
    value = file.loader.bool_values.get(str(node.value).lower()) if node.tag == f"{_TAG}bool" else None
    if value is None:
        raise _Fault(node, f"{key} must be true or false")
    return value


_READERS: dict[str, _Reader] = {
    "rewrites": _pairs,
    **dict.fromkeys(("forecast", "gain"), _flag),
    **dict.fromkeys(("workloads", "conflicts", "models", "about"), _list),
    "page": partial(_list, or_one=True),
    **dict.fromkeys(("of", "over", "under"), partial(_list, item=_figure, or_one=True)),
    "claimed": _claimed,
    "band": _pair,
}
"""How keys are read that are not text."""
_PART = tuple(dict.fromkeys(key for quantity in QUANTITIES for key in goes_with(quantity)))
_ENTRY = ("id", *_PART, "parts", "kind")
"""The keys of a part and of an entry; ``kind`` is that of a draft."""


def _mapping(node: yaml.Node, known: Collection[str], what: str, such: str = "'- id: …'") -> Nodes:
    """The keys of ``node``, of an entry or part also those that it groups under ``test``. Raises :class:`_Fault`."""
    if not isinstance(node, yaml.MappingNode):
        raise _Fault(node, f"{what} must be a mapping such as {such}")
    nodes: Nodes = {}
    groups = "quantity" in known
    for key, value in node.value:
        grouped = groups and key.value == "test" and isinstance(value, yaml.MappingNode)
        for own, inner in value.value if grouped else [(key, value)]:
            name = own.value if isinstance(own, yaml.ScalarNode) else "?"
            if name not in known:
                raise _Fault(own, unknown("key", name, known, "" if groups else what))
            if name in nodes:
                raise _Fault(own, f"key {name!r} stands twice in {what}")
            nodes[name] = own, inner
    return nodes


def _values(file: _File, nodes: Nodes) -> dict[str, Any]:
    """Key → what its node says, of the keys that say something. Raises :class:`_Fault`."""
    said = {name: value for name, (_, value) in nodes.items() if value.tag != f"{_TAG}null"}
    return {name: _READERS.get(name, _text)(file, value, name) for name, value in said.items()}


def _entry(file: _File, node: yaml.Node, shared: Nodes) -> list[tuple[yaml.Node, Claim]]:
    """The parts of the entry whose keys are ``shared``, each with its node. Raises :class:`_Fault`."""
    shared.pop("kind", None)  # of its time as a draft
    for name in _WHOLE:
        if name not in shared:
            raise _Fault(node, f"key {name!r} is missing")
    whole = {name: _text(file, shared[name][1], name) for name in _WHOLE}
    seed = whole["id"].partition("-")[0]
    if seed.lower() != file.name and any(re.fullmatch(_SEED, name.upper()) for name in (seed, file.name)):
        raise _Fault(node, f"{whole['id']} belongs in {seed.lower()}.yaml")
    lead = {"lead": whole["id"], "statement": whole["claim"]}
    del shared["id"]
    if "parts" not in shared:
        return [(node, _one(file, node, shared, {}, lead | {"id": f"{whole['id']}a"}))]
    listed = shared.pop("parts")[1]
    if not isinstance(listed, yaml.SequenceNode) or not 1 < len(listed.value) <= len(string.ascii_lowercase):
        raise _Fault(listed, "parts must be a list of two to 26; a single part's keys stand in the entry itself")
    _values(file, shared)  # what every part says otherwise may not be wrong either
    found = []
    for letter, inner in zip(string.ascii_lowercase, listed.value, strict=False):
        own = _mapping(inner, _PART, "a part")
        found.append((inner, _one(file, inner, own, shared, lead | {"id": f"{whole['id']}{letter}"})))
    taken = {name for _, claim in found for name in goes_with(claim.quantity)}
    for name, (key, _) in shared.items():
        if name not in taken:
            raise _Fault(key, f"key {name!r} goes with none of the parts")
    return found


def _draft(file: _File, node: yaml.Node, nodes: Nodes) -> Draft | None:
    """The entry as a draft, where a reader has left its wording empty. Raises :class:`_Fault`."""
    wording = nodes["claim"][1] if nodes.keys() >= {"id", "claim"} else node
    if not isinstance(wording, yaml.ScalarNode) or (wording.tag != f"{_TAG}null" and wording.value.strip()):
        return None
    if re.match(f"{_SEED}-", _text(file, nodes["id"][1], "id")):
        return None
    if "section" not in nodes:
        raise _Fault(node, "key 'section' is missing")
    told = [key for key in ("id", "section", "unit", "kind", "claimed") if key in nodes]
    return Draft(**{key: _READERS.get(key, _text)(file, nodes[key][1], key) for key in told})


def _one(file: _File, node: yaml.Node, own: Nodes, shared: Nodes, given: dict[str, Any]) -> Claim:
    """One part, which says ``own`` and takes from its claim what is ``shared``. Raises :class:`_Fault`."""
    nodes = file.defaults | shared | own
    if "quantity" not in nodes:
        raise _Fault(node, "key 'quantity' is missing")
    quantity = _text(file, nodes["quantity"][1], "quantity")
    goes = goes_with(quantity)
    measured = quantity not in ("arithmetic", "none")
    for name, (key, _) in (own | {name: node for name, node in shared.items() if name in _STRICT and measured}).items():
        if name not in goes:
            raise _Fault(key, f"key {name!r} does not go with quantity {quantity}")
    if quantity in UNITS and "unit" not in own:
        nodes.pop("unit", None)
        given["unit"] = UNITS[quantity]
    named = {name: (key, value) for name, (key, value) in nodes.items() if name in goes}
    fields = given | _values(file, named)
    if "band" in goes and quantity != "arithmetic" and fields.keys() >= {"claimed", "unit"}:
        fields.setdefault("band", usual_band(fields["claimed"], fields["unit"]))
    for name in (*ALWAYS, *QUANTITIES[quantity][0]):
        if name not in fields:
            raise _Fault(node, f"key {name!r} is missing (quantity {quantity})")
    document = re.fullmatch(f"{_SEED}|{LAB}", fields["id"].partition("-")[0])
    if quantity == "arithmetic":
        fields["program"] = "arithmetic"
    elif "band" in goes and "program" not in fields:
        if document:
            raise _Fault(node, f"key 'program' is missing: one of {', '.join(PROGRAMS[:-1])}")
        fields["program"] = "own"  # a reader judges his own kernel
    fields["pages"] = fields.pop("page", ())
    claim = Claim(**fields)
    if "rewrites" not in own:  # those of the file, as far as they stand in for what the part names
        pairs = claim.rewrites if claim.program == "author" and not claim.printed else ()
        claim = replace(claim, rewrites=tuple(pair for pair in pairs if pair[0] in claim.programs))
    for key, message in (*_faults(claim), *(_faults_of_document(claim, named) if document else ())):
        raise _Fault(named[key][1] if key in named else node, message)
    return claim


def _faults_of_document(claim: Claim, said: Collection[str]) -> Iterator[tuple[str, str]]:
    """What is wrong with a document's claim, which ``said`` these keys, as :func:`_faults` has it; a reader's own may
    do without."""
    if "band" not in QUANTITIES[claim.quantity][0] or claim.quantity == "arithmetic":
        return
    if not claim.band_set:
        yield "", "key 'band_set' is missing: the day, and before or after its first record"
    if claim.program == "author" and not any(name.startswith(AUTHOR) for name in claim.programs):
        yield "", f"program author, but no variant of the author's ({AUTHOR}…) is named"
    if claim.quantity in ("time", "saving", "rate", "bandwidth") and "elsewhere" not in said and not claim.models:
        told = f"a {claim.quantity} holds on the document's own machine only: say so in elsewhere"
        yield "", f"{told}, or write 'elsewhere: ~' where it is said of any machine"
    equal = claim.quantity == "ratio" and claim.claimed == (1.0, 1.0) and claim.sense == "about"
    if equal and claim.band != (usual := usual_band(claim.claimed, claim.unit)):
        told = f"1× is equal, which is the band {list(usual)}"
        yield "band", f"{told}; leave band out, or write 'sense: at_least' or 'at_most'"


def _faults(claim: Claim) -> Iterator[tuple[str, str]]:
    """What no single key shows: the key at fault (empty: the part itself), and what is wrong."""
    unit = UNITS.get(claim.quantity, claim.unit)
    if claim.unit != unit:
        told = f"unit {claim.unit!r} does not go with quantity {claim.quantity}, which is worked out in {unit}"
        yield "unit", f"{told}; write unit, claimed and band so"
    if claim.expression:
        try:
            arithmetic(claim.expression)
        except ValueError as cause:
            yield "expression", str(cause)
    low, high = claim.band
    if low > claim.claimed[0] or claim.claimed[1] > high:
        yield "band", "the band must contain what is claimed"
    if claim.rewrites and claim.program != "author":
        yield "rewrites", "rewrites stand in for a program of the author's (program: author)"
    for own, _ in claim.rewrites:
        if own not in claim.programs:
            yield "rewrites", f"rewrites names {own}, which the part does not"
    if claim.gain and claim.sense != "about":
        yield "gain", f"what is claimed {claim.sense.replace('_', ' ')} cannot be understated: no gain"
    if claim.elsewhere and claim.unit not in HARDWARE:
        told = f"elsewhere is for what depends on the hardware ({', '.join(HARDWARE)}), not for {claim.unit}"
        yield "elsewhere", f"{told}; a figure of the claimed quantity is judged"
    if claim.bound == "free_relu" and claim.quantity != "ratio":
        yield "bound", "bound free_relu goes with quantity ratio only"
    if claim.quantity == "constant" and len(claim.workloads) < 2:
        yield "workloads", "quantity constant needs at least two workloads"
    needs_relu = claim.quantity in ("share", "launch") or claim.bound == "free_relu"
    if needs_relu and not all(re.match(r"linear_relu/\d+x\d+x\d+/", name) for name in claim.workloads):
        yield "workloads", "share, launch and free_relu are about linear_relu workloads"


def _short_names(file: _File, node: yaml.Node) -> dict[str, str]:
    """Short name → workload, ``{medium: linear_relu/1024x784x2048/float32/ieee/forward}``."""
    if not isinstance(node, yaml.MappingNode):
        raise _Fault(node, "workloads must give each a short name, such as {medium: linear_relu/…}")
    return {_text(file, name, "name"): _text(file, value, "workload") for name, value in node.value}


def _document(plain: _File, node: yaml.Node) -> tuple[str, str]:
    """Name and sha256 of the file that the claims are of."""
    nodes = _mapping(node, ("file", "sha256"), "document", "{file: README.md, sha256: …}")
    if len(nodes) != 2:
        raise _Fault(node, "document must say file and sha256 of the file that the claims are of")
    return _text(plain, nodes["file"][1], "file"), _text(plain, nodes["sha256"][1], "sha256")


def _header(plain: _File, root: yaml.Node) -> tuple[_File, tuple[tuple[str, str], ...], list[yaml.Node]]:
    """What a file says once, its document and its entries: a list of them, or a mapping that has them as ``claims``."""
    document: tuple[tuple[str, str], ...] = ()
    if isinstance(root, yaml.MappingNode):
        nodes = _mapping(root, ("document", "workloads", "defaults", "claims"), "a ledger file")
        if "claims" not in nodes:
            raise _Fault(root, "key 'claims' is missing: the list of entries")
        root = nodes["claims"][1]
        names = _short_names(plain, nodes["workloads"][1]) if "workloads" in nodes else {}
        if "document" in nodes:
            document = (_document(plain, nodes["document"][1]),)
        known = [name for name in _PART if name not in (*_WHOLE, "band_set")]  # each band has its own day
        defaults = _mapping(nodes["defaults"][1], known, "defaults") if "defaults" in nodes else {}
        plain = replace(plain, defaults=defaults, workloads=names)
        _values(plain, defaults)
    if not isinstance(root, yaml.SequenceNode) or not root.value:
        raise _Fault(root, "a ledger file is a list of entries, each starting with '- id: …'")
    return plain, document, root.value


@dataclass(frozen=True)
class Contents:
    """What ledger files hold: parts of claims, drafts, and the documents that they name (name and sha256 of a file)."""

    claims: tuple[Claim, ...]
    drafts: tuple[Draft, ...]
    documents: tuple[tuple[str, str], ...]

    @property
    def drafted(self) -> str:
        """How many drafts there are, as a sentence; empty where there are none."""
        if len(self.drafts) == 1:
            return "1 is a draft without words and is not judged."
        return f"{len(self.drafts)} are drafts without words and are not judged." if self.drafts else ""


_Read = tuple[tuple[tuple[int, Claim], ...], tuple[Draft, ...], tuple[tuple[str, str], ...]]
"""Parts of claims, each with the line it starts on, drafts and documents of one file."""


def load_file(path: Path) -> tuple[tuple[int, Claim], ...]:
    """The parts of the claims of one ledger file, each with the line it starts on; drafts are left out.

    Raises :class:`ClaimError` naming file and line of the first fault: not YAML, not a list of entries, an
    unknown, missing, doubled or misplaced key, a value of the wrong type, a unit that the quantity does not have, an
    expression that cannot be worked out, a band without its claim, an id that is used twice or belongs to another seed.
    """
    return _read(path)[0]


def _read(path: Path) -> _Read:
    return _parsed(path, files.text(path, ClaimError))


@lru_cache(maxsize=64)  # a page asks for the ledger again and again
def _parsed(path: Path, text: str) -> _Read:
    loader = None
    try:
        loader = (_FAST if path.parent == HERE else yaml.SafeLoader)(text)
        root = loader.get_single_node()
        if root is None:
            raise ClaimError(f"{path}:1: empty; a ledger file is a list of entries")
        return _contents(_File(path.stem, loader, {}, {}), root)
    except _Fault as fault:
        raise ClaimError(f"{path}:{fault.line}: {fault}") from None
    except yaml.reader.ReaderError as cause:
        line = text.count("\n", 0, int(cause.position)) + 1
        raise ClaimError(f"{path}:{line}: not YAML (character {cause.character!r} may not stand here)") from None
    except yaml.MarkedYAMLError as cause:
        marks = [mark.line + 1 for mark in (cause.problem_mark, cause.context_mark) if mark is not None]
        inside = [line for line in marks if line <= text.count("\n")]  # what never ends is best named by its beginning
        raise ClaimError(f"{path}:{(inside or marks or [1])[0]}: not YAML ({cause.problem})") from None
    except (ValueError, OverflowError, RecursionError) as cause:  # PyYAML lets these escape on odd input
        if isinstance(cause, ClaimError):
            raise
        line = loader.get_mark().line + 1 if loader is not None else 1
        raise ClaimError(f"{path}:{line}: not YAML ({' '.join(str(cause).split())})") from None


def _contents(plain: _File, root: yaml.Node) -> _Read:
    """What a file holds. Raises :class:`_Fault`."""
    file, documents, listed = _header(plain, root)
    claims: list[tuple[int, Claim]] = []
    drafts: list[Draft] = []
    lines: dict[str, int] = {}
    for node in listed:
        nodes = _mapping(node, _ENTRY, "an entry")
        if draft := _draft(file, node, nodes):
            drafts.append(draft)
            lead = draft.id
        else:
            parts = _entry(file, node, nodes)
            claims += [(inner.start_mark.line + 1, claim) for inner, claim in parts]
            lead = parts[0][1].lead
        if lead in lines:
            raise _Fault(node, f"id {lead} is used twice (first on line {lines[lead]})")
        lines[lead] = node.start_mark.line + 1
    return tuple(claims), tuple(drafts), documents


def _linked(claims: Sequence[Claim], places: dict[str, str]) -> list[Claim]:
    """The claims, each with all parts that it conflicts with, whichever of both says so, in their order.

    Raises :class:`ClaimError` for ids that lead nowhere.
    """
    order = {claim.id: number for number, claim in enumerate(claims)}
    conflicts: dict[str, set[str]] = {name: set() for name in order}
    for claim in claims:
        for other in claim.conflicts:
            if other not in order or other == claim.id:
                raise ClaimError(f"{places[claim.id]}: {claim.id} conflicts with {other}, which is no other part")
            conflicts[claim.id].add(other)
            conflicts[other].add(claim.id)
    return [replace(claim, conflicts=tuple(sorted(conflicts[claim.id], key=order.__getitem__))) for claim in claims]


def load(path: Path) -> list[Claim]:
    """The claims of one file, a reader's own, in order of line.

    Raises :class:`ClaimError` for a malformed file (see :func:`load_file`) or a ``conflicts`` id that no part has.
    """
    return list(gather([path]).claims)


def gather(paths: Iterable[Path]) -> Contents:
    """What ledger files hold together, in order of file and line.

    Raises :class:`ClaimError` as :func:`load` does, and for an id that two files use.
    """
    claims: list[Claim] = []
    places: dict[str, str] = {}
    drafts: list[Draft] = []
    documents: list[tuple[str, str]] = []
    taken: dict[str, Path] = {}
    for path in paths:
        own, more, named = _read(path)
        for lead in dict.fromkeys([*(claim.lead for _, claim in own), *(draft.id for draft in more)]):
            if lead in taken:
                raise ClaimError(f"{path}: id {lead} is used in {taken[lead].name} already")
            taken[lead] = path
        claims += [claim for _, claim in own]
        places |= {claim.id: f"{path}:{line}" for line, claim in own}
        drafts += more
        documents += named
    return Contents(tuple(_linked(claims, places)), tuple(drafts), tuple(documents))


def ledger(folder: Path = HERE) -> list[Claim]:
    """All claims of the ledger files in ``folder``, those of documents first.

    Raises :class:`ClaimError` for a malformed file (see :func:`load_file`), for a ``conflicts`` id that no part has,
    and for a folder without ledger files.
    """
    claims = gather((*sorted(folder.glob("s[0-9][0-9][0-9].yaml")), *sorted(folder.glob("lab.yaml")))).claims
    if not claims:
        raise ClaimError(f"{folder}: no ledger files (s001.yaml and so on)")
    return list(claims)


def claimed(name: str) -> float:
    """The figure that the claim or part of a claim ``name`` claims; of a range its lower end.

    Raises :class:`ClaimError` where the ledger has no such claim.
    """
    for claim in ledger():
        if name in (claim.id, claim.lead):
            return min(claim.claimed)
    raise ClaimError(f"no claim {name} in the ledger")
