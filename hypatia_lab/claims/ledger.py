"""Reading the ledger: one YAML file a seed, one entry a claim. Data in, checked :class:`Claim` objects out.

What a document says once is one entry, however many ways there are to test it: those are its ``parts``, which stand
under it and are called S001-05a, S001-05b and so on in their order. An entry with one way to test it has that part's
keys itself; the part is S001-05a all the same.

Only text and numbers are ever built from the YAML, so a ledger file can name nothing that runs; every fault is
one :class:`ClaimError` that names the file and the line.
"""

from __future__ import annotations

import ast
import math
import re
import string
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from hypatia_lab.names import unknown

HERE = Path(__file__).resolve().parent

NAMES = {"kilo": 1e3, "mega": 1e6, "giga": 1e9, "micro": 1e-6, "milli": 1e-3, "float32": 4}
"""What an ``expression`` may name besides numbers; ``float32`` is its size in bytes."""


_UNREADABLE = (SyntaxError, RecursionError, MemoryError, Warning)
"""What Python's parser may make of text that is no expression."""


class ClaimError(ValueError):
    """A ledger file that cannot be read: the message names file, line, cause and remedy."""


@dataclass(frozen=True)
class Figure:
    """One figure of a record: what probe ``topic`` says of ``name`` (in ``case``), or without a topic a cell's time.

    A cell is timed at ``clock`` (``""``: the one that verdicts rest on). ``workload`` is ``""`` where it is the one
    that is being judged.
    """

    variant: str
    topic: str = ""
    name: str = ""
    case: str = ""
    clock: str = ""
    workload: str = ""


PROGRAMS = ("author", "rewrite", "library", "own", "arithmetic")
"""Whose program a part is judged by: the document's author's; the lab's rewrite of that; a library's; one of the lab's
own; or none, because the document's own figures decide."""
SENSES = ("about", "at_least", "at_most")
"""What a claimed figure means: about so much, at least, at most."""


@dataclass(frozen=True)
class Claim:
    """One part of a claim of one seed, with the band that decides it.

    ``claimed`` and ``band`` are (low, high) in ``unit``; a single claimed figure has low equal to high. ``band_set``
    is the day on which the band was written down and whether that was before the first record that bears on it or
    after, such as ``2026-11-21 before``. ``sense`` is one of :data:`SENSES`: what is claimed at least has no upper end
    to its band, what is claimed at most no lower one. ``favour`` (``high`` or ``low``) is the side of an "about" on
    which a figure exceeds what is claimed instead of refuting it.

    ``program`` is one of :data:`PROGRAMS`. Where it is the author's, ``variant``, ``baseline`` and the figures name
    his, and ``rewrites`` says for each which variant of the lab's stands in where his was not measured: as the thing
    itself where a record shows both equal by that clock, else as a finding. A ``forecast`` is what the document expects
    of something that its author has not built: a program of the lab's or a library's may confirm or exceed it, and
    refutes it only where it says that something cannot be (``at_most``).

    ``workloads`` are names as in the results table. ``bound``: ``roofline`` (the machine's measured ceilings),
    ``free_relu`` (the ReLU costs nothing) or ``""``. ``device`` and ``clock`` are ``""`` when the claim leaves them
    open. ``untestable`` says why no verdict is possible, whatever is measured. ``of`` are the figures that quantity
    ``figure`` adds; ``over`` and ``under`` those that ``quotient`` adds above and below the line. ``experiment`` is the
    one that measures what decides; a verdict takes its figures from where they have most processes, and where several
    have as many, from there. ``lead`` is the id of the whole claim, such as ``S001-05`` of part ``S001-05a``, and
    ``statement`` its wording.
    """

    id: str
    section: str
    claim: str
    claimed: tuple[float, float]
    unit: str
    quantity: str
    why: str
    program: str = ""
    sense: str = "about"
    favour: str = ""
    forecast: bool = False
    rewrites: tuple[tuple[str, str], ...] = ()
    workloads: tuple[str, ...] = ()
    variant: str = ""
    baseline: str = "eager"
    part: str = ""
    band: tuple[float, float] = (math.nan, math.nan)
    band_set: str = ""
    bound: str = ""
    device: str = ""
    clock: str = ""
    of: tuple[Figure, ...] = ()
    over: tuple[Figure, ...] = ()
    under: tuple[Figure, ...] = ()
    experiment: str = ""
    expression: str = ""
    untestable: str = ""
    conflicts: tuple[str, ...] = ()
    lead: str = ""
    statement: str = ""

    @property
    def seed(self) -> str:
        """The document that makes the claim, such as ``S001``."""
        return self.id.partition("-")[0]

    @property
    def testable(self) -> bool:
        """Whether a measurement can decide it; arithmetic, and what no lab can test, is the same on any machine."""
        return self.quantity != "arithmetic" and not self.untestable

    @property
    def adds_up(self) -> bool:
        """Whether its own figures give what it says; True of a claim without an expression."""
        return not self.expression or self.band[0] <= arithmetic(self.expression) <= self.band[1]

    @property
    def limits(self) -> tuple[float, float]:
        """The band as it decides: open above for ``at_least``, below for ``at_most``."""
        low, high = self.band
        return -math.inf if self.sense == "at_most" else low, math.inf if self.sense == "at_least" else high

    def rewritten(self) -> Claim:
        """The same part with every program of the author's replaced by the rewrite that stands in for it."""
        known = dict(self.rewrites)

        def own(figures: tuple[Figure, ...]) -> tuple[Figure, ...]:
            return tuple(replace(figure, variant=known.get(figure.variant, figure.variant)) for figure in figures)

        return replace(
            self,
            variant=known.get(self.variant, self.variant),
            baseline=known.get(self.baseline, self.baseline),
            of=own(self.of),
            over=own(self.over),
            under=own(self.under),
        )


_COMMON = ("section", "claim", "claimed", "unit", "quantity", "why")
_ANY = ("conflicts", "sense")
_WHOLE = ("id", "section", "claim")
"""What a claim has of its own; each of its parts may have a section or wording instead."""
_MEASURED = ("workloads", "band")
_JUDGED = ("program", "band_set", "favour", "forecast", "rewrites")
_NAMED = ("device", "experiment", "untestable")
_MAY = (*_NAMED, "clock")

QUANTITIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ratio": ((*_MEASURED, "variant"), (*_JUDGED, *_MAY, "baseline", "bound")),
    "slowdown": ((*_MEASURED, "variant"), (*_JUDGED, *_MAY, "baseline")),
    "constant": ((*_MEASURED, "variant"), (*_JUDGED, *_MAY, "baseline")),
    "saving": ((*_MEASURED, "variant"), (*_JUDGED, *_MAY, "baseline")),
    "time": ((*_MEASURED, "variant"), (*_JUDGED, *_MAY, "bound")),
    "rate": ((*_MEASURED, "variant"), (*_JUDGED, *_MAY, "bound")),
    "bandwidth": ((*_MEASURED, "variant"), (*_JUDGED, *_MAY, "bound")),
    "attained": ((*_MEASURED, "variant"), (*_JUDGED, *_MAY)),
    "share": ((*_MEASURED, "part"), (*_JUDGED, *_MAY)),
    "launch": (_MEASURED, (*_JUDGED, *_NAMED)),
    "max_error": ((*_MEASURED, "variant"), (*_JUDGED, *_MAY)),
    "figure": ((*_MEASURED, "of"), (*_JUDGED, *_NAMED)),
    "quotient": ((*_MEASURED, "over", "under"), (*_JUDGED, *_NAMED)),
    "arithmetic": (("expression", "band"), ()),
    "none": (("untestable",), ()),
}
"""Quantity → (keys its entries must have, keys they may have), besides those that every entry must or may have."""

UNITS = {
    **dict.fromkeys(("ratio", "slowdown", "constant"), "×"),
    **dict.fromkeys(("time", "saving"), "ms"),
    "launch": "µs",
    "rate": "GFLOP/s",
    "bandwidth": "GB/s",
    **dict.fromkeys(("share", "attained"), "%"),
    "max_error": "absolute",
}
"""Quantity → the unit in which a verdict works it out, and so the only one that its band may be in.

Not here: the unit of quantity ``figure`` is converted to, a ``quotient`` is in % or a plain number, and ``arithmetic``
and ``none`` are in whatever the document says.
"""

_CHOICES = {
    "quantity": tuple(QUANTITIES),
    "bound": ("roofline", "free_relu"),
    "device": ("cpu", "cuda"),
    "clock": ("hot", "cold", "graph", "wall", "profiler"),
    "part": ("relu", "linear"),
    "topic": ("start", "trace", "kernels", "accuracy", "process", "counters", "graph", "program"),
    "program": PROGRAMS[:-1],
    "sense": SENSES,
    "favour": ("high", "low"),
}
_SEED = r"S[0-9]{3}"
_ID = r"S[0-9]{3}-[0-9]{2,3}|(?!S[0-9]{3}-)[A-Z][A-Z0-9]{0,31}-[0-9]{1,3}"
"""Of a seed, which has a file of its own; or of a reader's claim, in a file of any name."""
_PATTERNS = {
    "id": (_ID, "S001-01 or MINE-1"),
    **dict.fromkeys(
        ("workloads", "workload"),
        (
            r"[a-z0-9_]+/[0-9]+(x[0-9]+)*/[a-z0-9]+/[a-z0-9]+/(forward|forward_backward)",
            "linear_relu/1024x784x2048/float32/ieee/forward",
        ),
    ),
    "variant": (r"[a-z][a-z0-9_]*", "naive"),
    "baseline": (r"[a-z][a-z0-9_]*", "eager"),
    "experiment": (r"[a-z][a-z0-9_]*", "aten_fusion"),
    "conflicts": (f"({_ID})[a-z]", "S001-01a or MINE-1a"),
    "band_set": (r"[0-9]{4}-[0-9]{2}-[0-9]{2} (before|after)", "2026-11-21 before"),
    "rewrites": (r"[a-z][a-z0-9_]*", "naive"),
}


# libyaml's is several times as fast, where PyYAML was built with it. It is for the lab's own files: text from elsewhere
# may be nested so deep that it would overflow the stack, where Python's raises an error.
_FAST: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Fault(Exception):
    """Something wrong at a node; becomes a :class:`ClaimError` once file and line are known."""

    def __init__(self, node: yaml.Node, message: str) -> None:
        super().__init__(message)
        self.line = node.start_mark.line + 1


def arithmetic(expression: str) -> float:
    """The value of an arithmetic ``expression``: numbers, + - * / ** and parentheses, and :data:`NAMES`.

    Raises ``ValueError`` for anything else and for a result that is not a finite number.
    """
    import simpleeval

    operators = {
        ast.Add: simpleeval.safe_add,
        ast.Sub: lambda a, b: a - b,
        ast.Mult: simpleeval.safe_mult,
        ast.Div: lambda a, b: a / b,
        ast.Pow: simpleeval.safe_power,
        ast.USub: lambda a: -a,
        ast.UAdd: lambda a: +a,
    }
    evaluator = simpleeval.SimpleEval(operators=operators, functions={}, names=dict(NAMES))
    allowed = (ast.Expr, ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp)
    evaluator.nodes = {node: handle for node, handle in (evaluator.nodes or {}).items() if node in allowed}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Python's parser warns about text such as "1if": refuse it
            value = evaluator.eval(expression)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"it gives {value!r}, not a finite number")
        return float(value)
    except (simpleeval.InvalidExpression, ArithmeticError, ValueError, TypeError, *_UNREADABLE) as cause:
        detail = " ".join(str(cause).split())
        raise ValueError(
            f"expression {expression!r} cannot be worked out ({detail}); "
            f"use numbers, + - * / ** ( ) and {', '.join(NAMES)}"
        ) from None


def _text(loader: yaml.SafeLoader, node: yaml.Node, key: str) -> str:
    if not isinstance(node, yaml.ScalarNode) or node.tag != "tag:yaml.org,2002:str" or not node.value.strip():
        raise _Fault(node, f"{key} must be text; put it in quotes if it looks like a number")
    value = " ".join(node.value.split())
    if key in _CHOICES and value not in _CHOICES[key]:
        raise _Fault(node, unknown(key, value, _CHOICES[key]))
    if key in _PATTERNS and not re.fullmatch(_PATTERNS[key][0], value):
        raise _Fault(node, f"{key} {value!r} is not of the form {_PATTERNS[key][1]}")
    return value


def _texts(loader: yaml.SafeLoader, node: yaml.Node, key: str) -> tuple[str, ...]:
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise _Fault(node, f"{key} must be a list of texts")
    values = tuple(_text(loader, item, key) for item in node.value)
    if len(set(values)) < len(values):
        raise _Fault(node, f"{key} names something twice")
    return values


def _number(loader: yaml.SafeLoader, node: yaml.Node, key: str) -> float:
    read = {"tag:yaml.org,2002:int": loader.construct_yaml_int, "tag:yaml.org,2002:float": loader.construct_yaml_float}
    if not isinstance(node, yaml.ScalarNode) or node.tag not in read:
        raise _Fault(node, f"{key} must be a number (YAML wants 1.0e-6, not 1e-6)")
    try:
        value = float(read[node.tag](node))
    except (ValueError, OverflowError, IndexError) as cause:
        raise _Fault(node, f"{key} must be a number ({cause})") from None
    if not math.isfinite(value):
        raise _Fault(node, f"{key} must be finite")
    return value


def _pair(loader: yaml.SafeLoader, node: yaml.Node, key: str) -> tuple[float, float]:
    if not isinstance(node, yaml.SequenceNode) or len(node.value) != 2:
        raise _Fault(node, f"{key} must be [low, high]")
    low, high = (_number(loader, item, key) for item in node.value)
    if not low < high:
        raise _Fault(node, f"{key} must be [low, high] with low below high")
    return low, high


def _figure(loader: yaml.SafeLoader, node: yaml.Node, key: str) -> tuple[float, float]:
    if isinstance(node, yaml.SequenceNode):
        return _pair(loader, node, key)
    value = _number(loader, node, key)
    return value, value


def _named(loader: yaml.SafeLoader, node: yaml.Node, key: str) -> Figure:
    """One figure of a record, ``{topic: start, name: call 2, variant: eager}`` or ``{clock: wall, variant: eager}``."""
    if not isinstance(node, yaml.MappingNode):
        raise _Fault(node, f"{key} must be a figure such as {{topic: start, name: call 2, variant: eager}}, or a list")
    known = [field.name for field in fields(Figure)]
    found: dict[str, str] = {}
    for name, value in node.value:
        inner = name.value if isinstance(name, yaml.ScalarNode) else "?"
        if inner not in known:
            raise _Fault(name, unknown("key", inner, known, key))
        if inner in found:
            raise _Fault(name, f"key {inner!r} stands twice in one figure of {key}")
        found[inner] = _text(loader, value, inner)
    if "variant" not in found:
        raise _Fault(node, f"a figure of {key} lacks its variant")
    if ("topic" in found) != ("name" in found) or ("topic" not in found and "case" in found):
        raise _Fault(node, f"a figure of {key} has topic and name (and maybe case), or none of them")
    if "topic" in found and "clock" in found:
        raise _Fault(node, f"a figure of {key} has a topic or a clock, not both")
    return Figure(**found)


def _all_named(loader: yaml.SafeLoader, node: yaml.Node, key: str) -> tuple[Figure, ...]:
    """The figures that are added up: one, or a list of them."""
    found = tuple(_named(loader, item, key) for item in (node.value if isinstance(node, yaml.SequenceNode) else [node]))
    if not found or len(set(found)) < len(found):
        raise _Fault(node, f"{key} must name at least one figure, and none twice")
    return found


def _pairs(loader: yaml.SafeLoader, node: yaml.Node, key: str) -> tuple[tuple[str, str], ...]:
    """Variant of the author's → variant that stands in for it, ``{author_v1: naive}``."""
    if not isinstance(node, yaml.MappingNode) or not node.value:
        raise _Fault(node, f"{key} must say which variant stands in for which, such as {{author_v1: naive}}")
    found = [(_text(loader, own, key), _text(loader, stand_in, key)) for own, stand_in in node.value]
    if len(dict(found)) < len(found):
        raise _Fault(node, f"{key} names a variant twice")
    return tuple(found)


def _flag(loader: yaml.SafeLoader, node: yaml.Node, key: str) -> bool:
    if not isinstance(node, yaml.ScalarNode) or node.tag != "tag:yaml.org,2002:bool":
        raise _Fault(node, f"{key} must be true or false")
    return loader.construct_yaml_bool(node)


_READERS: dict[str, Callable[[yaml.SafeLoader, yaml.Node, str], Any]] = {
    **dict.fromkeys(("id", "section", "claim", "unit", "quantity", "why", "variant", "baseline"), _text),
    **dict.fromkeys(("part", "bound", "device", "clock", "experiment", "expression", "untestable"), _text),
    **dict.fromkeys(("program", "sense", "favour", "band_set"), _text),
    "rewrites": _pairs,
    "forecast": _flag,
    **dict.fromkeys(("workloads", "conflicts"), _texts),
    **dict.fromkeys(("of", "over", "under"), _all_named),
    "claimed": _figure,
    "band": _pair,
}


def _mapping(node: yaml.Node, known: Sequence[str], what: str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """Key → its own node and its value's. Raises :class:`_Fault` for anything else, and unknown keys."""
    if not isinstance(node, yaml.MappingNode):
        raise _Fault(node, f"{what} must be a mapping that starts with '- id: …'")
    nodes: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else "?"
        if name not in known:
            raise _Fault(key, unknown("key", name, known))
        if name in nodes:
            raise _Fault(key, f"key {name!r} stands twice in one entry")
        nodes[name] = key, value
    return nodes


def _entry(loader: yaml.SafeLoader, node: yaml.Node) -> list[tuple[yaml.Node, Claim]]:
    """The parts of one entry, each with its node. Raises :class:`_Fault` at the node that is wrong."""
    nodes = _mapping(node, (*_READERS, "parts"), "an entry")
    for name in _WHOLE:
        if name not in nodes:
            raise _Fault(node, f"key {name!r} is missing")
    whole = {name: _READERS[name](loader, nodes[name][1], name) for name in _WHOLE}
    lead = whole.pop("id")
    inherited = {"lead": lead, "statement": whole["claim"]}
    if "parts" not in nodes:
        own = {name: value for name, value in nodes.items() if name not in _WHOLE}
        return [(node, _one(loader, node, own, whole | inherited | {"id": f"{lead}a"}))]
    for name, (key, _) in nodes.items():
        if name not in (*_WHOLE, "parts"):
            raise _Fault(key, f"key {name!r} belongs to one of the parts, or the claim has no parts")
    listed = nodes["parts"][1]
    if not isinstance(listed, yaml.SequenceNode) or not 1 < len(listed.value) <= len(string.ascii_lowercase):
        raise _Fault(listed, "parts must be a list of two to 26; a single part's keys stand in the entry itself")
    found = []
    for letter, inner in zip(string.ascii_lowercase, listed.value, strict=False):
        own = _mapping(inner, [name for name in _READERS if name != "id"], "a part")
        found.append((inner, _one(loader, inner, own, whole | inherited | {"id": f"{lead}{letter}"})))
    return found


def _one(
    loader: yaml.SafeLoader, node: yaml.Node, nodes: dict[str, tuple[yaml.Node, yaml.Node]], given: dict[str, Any]
) -> Claim:
    """One part, whose keys are ``nodes`` and what it has of the whole claim ``given``. Raises :class:`_Fault`."""
    fields = given | {name: _READERS[name](loader, value, name) for name, (_, value) in nodes.items()}
    if "quantity" not in fields:
        raise _Fault(node, "key 'quantity' is missing")
    must, may = QUANTITIES[fields["quantity"]]
    for name in (*_COMMON, *must):
        if name not in fields:
            raise _Fault(node, f"key {name!r} is missing (quantity {fields['quantity']})")
    for name, (key, _) in nodes.items():
        if name not in (*_COMMON, *_ANY, *must, *may):
            raise _Fault(key, f"key {name!r} does not go with quantity {fields['quantity']}")
    measured = "band" in must and fields["quantity"] != "arithmetic"
    if fields["quantity"] == "arithmetic":
        fields["program"] = "arithmetic"
    elif measured and "program" not in fields:
        if re.fullmatch(_SEED, fields["id"].partition("-")[0]):
            raise _Fault(node, f"key 'program' is missing: one of {', '.join(PROGRAMS[:-1])}")
        fields["program"] = "own"  # a reader judges his own kernel
    claim = Claim(**fields)
    _check(claim, {name: value for name, (_, value) in nodes.items()})
    return claim


def _check(claim: Claim, nodes: dict[str, yaml.Node]) -> None:
    """What no single key shows: each raise names the key at fault."""
    unit = UNITS.get(claim.quantity, claim.unit)
    if claim.unit != unit:
        told = f"unit {claim.unit!r} does not go with quantity {claim.quantity}, which is worked out in {unit}"
        raise _Fault(nodes["unit"], f"{told}; write unit, claimed and band so")
    if claim.expression:
        try:
            arithmetic(claim.expression)
        except ValueError as cause:
            raise _Fault(nodes["expression"], str(cause)) from None
    if "band" in nodes and not claim.band[0] <= claim.claimed[0] <= claim.claimed[1] <= claim.band[1]:
        raise _Fault(nodes["band"], "the band must contain what is claimed")
    if claim.rewrites and claim.program != "author":
        raise _Fault(nodes["rewrites"], "rewrites stand in for a program of the author's (program: author)")
    named = {claim.variant, claim.baseline} | {figure.variant for figure in (*claim.of, *claim.over, *claim.under)}
    for own, _ in claim.rewrites:
        if own not in named:
            raise _Fault(nodes["rewrites"], f"rewrites names {own}, which the part does not")
    if claim.favour and claim.sense != "about":
        raise _Fault(nodes["favour"], f"what is claimed {claim.sense.replace('_', ' ')} cannot be exceeded: no favour")
    if claim.forecast and claim.program not in ("own", "library"):
        raise _Fault(nodes["forecast"], "a forecast is judged by a program of the lab's own or a library's")
    if claim.bound == "free_relu" and claim.quantity != "ratio":
        raise _Fault(nodes["bound"], "bound free_relu goes with quantity ratio only")
    if claim.quantity == "constant" and len(claim.workloads) < 2:
        raise _Fault(nodes["workloads"], "quantity constant needs at least two workloads")
    needs_relu = claim.quantity in ("share", "launch") or claim.bound == "free_relu"
    if needs_relu and not all(re.match(r"linear_relu/\d+x\d+x\d+/", name) for name in claim.workloads):
        raise _Fault(nodes["workloads"], "share, launch and free_relu are about linear_relu workloads")


def load_file(path: Path) -> list[tuple[int, Claim]]:
    """The parts of the claims of one ledger file, each with the line it starts on.

    Raises :class:`ClaimError` naming file and line of the first fault: not YAML, not a list of entries, an
    unknown, missing, doubled or misplaced key, a value of the wrong type, a unit that the quantity does not have, an
    expression that cannot be worked out, a band without its claim, an id that is used twice or belongs to another seed.
    """
    try:
        raw = path.read_bytes()
    except OSError as cause:
        raise ClaimError(f"{path}: cannot be read ({cause.strerror})") from None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as cause:
        raise ClaimError(f"{path}:{raw[: cause.start].count(10) + 1}: not UTF-8; restore the file") from None
    loader = None
    try:
        loader = (_FAST if path.parent == HERE else yaml.SafeLoader)(text)
        root = loader.get_single_node()
        if root is None:
            raise ClaimError(f"{path}:1: empty; a ledger file is a list of entries")
        if not isinstance(root, yaml.SequenceNode) or not root.value:
            raise _Fault(root, "a ledger file is a list of entries, each starting with '- id: …'")
        claims: list[tuple[int, Claim]] = []
        lines: dict[str, int] = {}
        for node in root.value:
            entry = _entry(loader, node)
            lead = entry[0][1]
            seeds = [re.fullmatch(_SEED, name.upper()) for name in (lead.seed, path.stem)]
            if any(seeds) and lead.seed.lower() != path.stem:
                raise _Fault(node, f"{lead.lead} belongs in {lead.seed.lower()}.yaml")
            if lead.lead in lines:
                raise _Fault(node, f"id {lead.lead} is used twice (first on line {lines[lead.lead]})")
            lines[lead.lead] = node.start_mark.line + 1
            claims += [(inner.start_mark.line + 1, claim) for inner, claim in entry]
        return claims
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


def _ensure_linked(claims: Sequence[Claim], places: dict[str, str]) -> None:
    """Refuse ids of other parts that lead nowhere."""
    for claim in claims:
        for other in claim.conflicts:
            if other not in places or other == claim.id:
                raise ClaimError(f"{places[claim.id]}: {claim.id} conflicts with {other}, which is no other part")


def load(path: Path) -> list[Claim]:
    """The claims of one file, a reader's own, in order of line.

    Raises :class:`ClaimError` for a malformed file (see :func:`load_file`) or a ``conflicts`` id that no part has.
    """
    found = load_file(path)
    _ensure_linked([claim for _, claim in found], {claim.id: f"{path}:{line}" for line, claim in found})
    return [claim for _, claim in found]


def ledger(folder: Path = HERE, seeds: Sequence[str] = ()) -> list[Claim]:
    """All claims of the ledger files in ``folder``, in order of file and line; ``seeds`` restricts them.

    Raises :class:`ClaimError` for a malformed file (see :func:`load_file`), for a ``conflicts`` id that no part has,
    for a folder without ledger files and for a seed that has none.
    """
    claims: list[Claim] = []
    places: dict[str, str] = {}
    for path in sorted(folder.glob("s[0-9][0-9][0-9].yaml")):
        for line, claim in load_file(path):
            places[claim.id] = f"{path}:{line}"
            claims.append(claim)
    if not claims:
        raise ClaimError(f"{folder}: no ledger files (s001.yaml and so on)")
    _ensure_linked(claims, places)
    known = {claim.seed for claim in claims}
    for seed in seeds:
        if seed not in known:
            raise ClaimError(unknown("seed", seed, sorted(known)))
    return [claim for claim in claims if not seeds or claim.seed in seeds]
