"""How documents write figures: what is a number, what is a unit, and what only looks like a figure.

A figure is a number with a unit, or a bare one in a table whose column or row names the unit. :data:`_UNITS` and
:data:`_SEEN` hold the forms; whatever else is written has no unit, or is not seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Found:
    """A figure on a line (from 1) of a document: its range (low equal to high where it is one number), unit and kind.

    ``kind`` is one of :data:`hypatia_lab.claims.claim.KINDS`, as far as unit and heading tell. ``where`` names row and
    column of a figure in a table, by their headings.
    """

    line: int
    claimed: tuple[float, float]
    unit: str
    kind: str
    where: str = ""


_PREFIX = "[kKMGTP]"
_SI = "(?i:kilo|mega|giga|tera|peta)"
_PER_SECOND = r"(?:/s(?:ec(?:ond)?)?|\sper\ssecond)"
_UNITS: dict[str, tuple[tuple[str, str], ...]] = {
    "time": (
        ("ns", r"ns|nanoseconds?"),
        ("µs", r"[µμu]s|[µμu]sec|microseconds?"),
        ("ms", r"ms|msecs?|milliseconds?"),
        ("min", r"mins?|minutes?"),
        ("s", r"s|secs?|seconds?"),
        ("h", r"h|hrs?|hours?"),
    ),
    "share": (("%", r"%|percent|per cent"),),
    "ratio": (("×", r"[xX×]|-?fold|times"),),
    "rate": (
        ("FLOP/s", rf"(?:{_PREFIX}|{_SI})?(?i:flops?){_PER_SECOND}|[GTP]F"),
        ("FLOP/s", rf"(?:{_PREFIX}|{_SI})?(?i:flops)(?!(?:/|\sper\s)[cbB])"),  # not those of a cycle or of a byte
        ("B/s", rf"(?:{_PREFIX}?i?B|{_SI}bytes?){_PER_SECOND}|{_PREFIX}i?Bps"),
        ("bit/s", rf"{_PREFIX}?bits?{_PER_SECOND}|{_PREFIX}bps"),
        ("Hz", rf"{_PREFIX}?Hz"),
        ("frames/s", r"fps|FPS"),
        ("/", rf"[A-Za-z][\w-]{{0,30}}(?:{_PER_SECOND}|(?:/|\sper\s)(?:clk|clock|cycle))(?:/SM|/GPU)?"),
        ("/", rf"{_PREFIX}?(?i:flops?)(?:/|\sper\s)(?:B|byte)"),
    ),
    "size": (("B", rf"{_PREFIX}i?B|(?:{_SI})?bytes?"),),
}
"""Kind → units, each as it is written here and how documents write it; an SI prefix stays before it."""
# The longest that fits must win, and an alternation takes the first: rates come before times and sizes.
_ORDER = ("rate", "size", "time", "share", "ratio")
_SPELLINGS = [(kind, unit, re.compile(text)) for kind in _ORDER for unit, text in _UNITS[kind]]
# Neither 4096 x 4096 nor 8x H100 is a ratio, nor is what was done so many times; 1.5x and the first of 2x 3x are.
_NO_RATIO = (
    r"(?<=[xX×])(?<!\.\d[xX×])(?<!\.\d\d[xX×])(?!\s+[\d.]+[xX×](?!\w))"
    r"(?:\s*\d|\s+(?!(?i:faster|slower|speed|higher|lower|more|less))[A-Z]|\s+(?:[CG]PU|core|node)s\b)"
    r"|(?<=times)(?!\s+(?:as|faster|slower|more|less|higher|lower|longer|the)\b)"
)
_UNIT = "(?:" + "|".join(text for kind in _ORDER for _, text in _UNITS[kind]) + rf")(?![\w²³^=]|{_NO_RATIO})"
_THIN = "\u00a0\u202f\u2009"
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_GROUPED = rf"\d{{1,3}}(?:,\d{{3}}){{1,5}}(?!\d)|[1-9]\d{{0,2}}(?:[ '{_THIN}]\d{{3}}){{1,5}}(?!\d)"
_DIGITS = rf"(?:{_GROUPED}|\d+)(?:\.\d+)?(?:[eE][-−+⁻]?[\d{_RAISED}]+)?"
_NUMBER = rf"[-−+]?{_DIGITS}"
_PLAIN = str.maketrans(f"−⁻{_RAISED}", "--0123456789", f", '{_THIN}")
_GAP = rf"[ \t{_THIN}-]?"
_SPREAD = ("±", "+/-", "+-")
_MORE_OR_LESS = rf"\s*(?:±|\+/-|\+-)\s*{_DIGITS}"
# Of a sign with a gap before and none behind it is the next number: 0.007 -22.2%.
_TO = r"(?:\s*(?:–|—|…|\.\.\.?)\s*|[-−]|\s+[-−]\s+|\s*\bto\s+)"
_FIGURE = re.compile(
    rf"(?<![\w.,:/#$€£^\-−])(?P<low>{_NUMBER})\+?"
    rf"(?:{_GAP}(?P<own>{_UNIT}))?(?:{_TO}(?P<high>(?:(?<=\bto )[-−+])?{_DIGITS}))?"
    rf"(?:{_MORE_OR_LESS})?"
    rf"(?:{_GAP}(?P<unit>{_UNIT}))?"
)
_BARE = re.compile(rf"[~≈<>≤≥]?\s*({_NUMBER})(?:{_MORE_OR_LESS})?")
_DECADE = re.compile(r"(?:19|20)\d0s")
_IN_BRACKETS = re.compile(rf"[(\[]\s*({_UNIT})\s*[)\]]")
_AS_WORD = re.compile(rf"(?<![\w/])(?!(?:[xX]|s|h|[GTP]F|mins?|fold)\b)({_UNIT})")
_RATIO = re.compile(r"(?i)\b(?:speed[- ]?ups?|slow[- ]?downs?|ratio|relative)\b")

_NOTHING = " \N{BULLET} "
_GAIN = (
    r"(?i:\b(?:speed|slow)[- ]?(?:up|down)s?)(?:\s*[:=]|\s+(?:of|is|was)\b)"
    r"(?:\s+(?:up\s+to|about|around|over|nearly|roughly|approximately)\b)?\s*[~≈]?\s*"
)
_COUNTED = rf"(?=\s[A-Za-z]+{_PER_SECOND})"
_SETTING = r"(?:threshold|tolerance|timeout|[ar]tol|confidence|CI)\b"
_SEEN = [
    (re.compile(pattern), instead)
    for pattern, instead in (
        # What only looks like a figure: code, a command, an option with its value, a picture's size, a setting.
        (r"`[^`]*`|^\s*\$\s.*", _NOTHING),
        (r"(?<![\w-])--?[A-Za-z][\w-]*(?:[= ][\"']?[\w.]+%?)?", _NOTHING),
        (r"(?i)\b(?:width|height)[\"']?\s*[:=]\s*[\"']?[\d.]+\s*(?:%|px|em)?", _NOTHING),
        (rf"(?i:\bdefaults?\s(?:to|is|of)|\b{_SETTING}(?:\s(?:of|is))?)[\s:=]*{_NUMBER}(?:{_GAP}{_UNIT})?", _NOTHING),
        (rf"(?<![\w.,]){_NUMBER}{_GAP}{_UNIT}(?=[\s-]+{_SETTING})", _NOTHING),
        # Formulas. A cross with something behind it is a product, unless that is a power of ten.
        (r"\\times(?=\s*(?:\$|10\^|$))", "×"),
        (r"(?<=\d),?[\s~]*\\(?:text|mathrm)\{\s*([^{}]*)\}", r" \1"),
        (r"\\pm\b", "±"),
        (r"\\%", "%"),
        (r"\$(?=\S)([^$]*\S)\$(?!\d)", r"\1"),
        (r"(?<=\d)\s?[xX×*·]\s?10(?:\^|\*\*)\{?([-−+]?\d+)\}?", r"e\1"),
        (rf"(?<=\d)\s?[xX×*·]\s?10([⁻{_RAISED}]+)", r"e\1"),
        # 12k it/s, (1.9 ± 0.1)x, between 3 and 5 ms, a speedup of 1.7.
        (rf"(?<=\d)[kK]{_COUNTED}", "e3"),
        (rf"(?<=\d)M{_COUNTED}", "e6"),
        (rf"(?<=\d)B{_COUNTED}", "e9"),
        (rf"\(\s*({_NUMBER}(?:{_MORE_OR_LESS}|{_TO}{_DIGITS}))\s*\)(?={_GAP}{_UNIT})", r"\1"),
        (rf"(?i:\bbetween)\s+({_NUMBER}(?:{_GAP}{_UNIT})?)\s+and\s+(?=\d)", r"\1–"),
        (rf"({_GAIN}{_NUMBER}(?:{_TO}{_DIGITS})?)(?![\w.,]*\w|{_GAP}{_UNIT}|{_TO}\d)", r"\1×"),
    )
]
"""What is written → how it is read, one after another, before figures are sought."""


def whole(text: str) -> bool:
    """Whether ``text`` is a figure or a number, and nothing else."""
    return bool(_BARE.fullmatch(text) or _FIGURE.fullmatch(text))


def of_text(text: str, line: int, where: str = "") -> Iterator[Found]:
    """The figures with units in a ``text`` that stands on one ``line``; between backquotes is code."""
    for pattern, instead in _SEEN:
        text = pattern.sub(instead, text)
    for match in _FIGURE.finditer(text):
        own, unit = match["own"], match["unit"]
        if match["high"] and not unit:  # what follows has no unit: "3 ms to 5" says nothing of the 5
            match = re.compile(rf"(?P<low>{_NUMBER})").match(text, match.start("low")) or match
            unit, high = own, None
        else:
            unit, high = unit or own, match["high"]
        if not unit or _DECADE.match(text, match.start("low")):
            continue
        if text[: match.start("low")].rstrip().endswith(_SPREAD):
            continue
        low = _value(match["low"])
        if high is None:
            yield _found(line, (low, low), unit, where)
        elif (own is None or _named(own) == _named(unit)) and low < _value(high):
            yield _found(line, (low, _value(high)), unit, where)
        else:  # from more to less, or in two units
            yield _found(line, (low, low), own or unit, where)
            yield _found(line, (_value(high), _value(high)), unit, where)


def of_cell(cell: str, labels: Sequence[str], line: int, where: str) -> Iterator[Found]:
    """The figures of a table's ``cell``: with units of their own, or with that of the first label that names one."""
    bare = _BARE.fullmatch(cell)
    if not bare:
        yield from of_text(cell, line, where)
        return
    for label in labels:
        unit = _IN_BRACKETS.search(label) or _AS_WORD.search(label)
        if unit or _RATIO.search(label):
            value = _value(bare[1])
            yield _found(line, (value, value), unit[1] if unit else "×", where)
            return


def _value(text: str) -> float:
    return float(text.translate(_PLAIN))


def _named(text: str) -> tuple[str, str]:
    """Kind and unit of what a document writes as ``text``: ``GFLOPs/s`` is a rate in ``GFLOP/s``."""
    kind, unit = next((kind, unit) for kind, unit, pattern in _SPELLINGS if pattern.fullmatch(text))
    if unit == "/":
        return kind, re.sub(r"/s(?:ec(?:ond)?)?(?=/|$)", "/s", re.sub(r"\sper\s", "/", text))
    prefix = ""
    if kind in ("rate", "size"):
        if word := re.match(_SI, text):
            prefix = word[0][0].upper().replace("K", "k")
        elif letter := re.match(rf"{_PREFIX}i?(?=flop|b|Hz|F$)", text, re.IGNORECASE):
            prefix = letter[0]
    return kind, prefix + unit


def _found(line: int, claimed: tuple[float, float], unit: str, where: str) -> Found:
    kind, name = _named(unit)
    return Found(line, claimed, name, kind, where)
