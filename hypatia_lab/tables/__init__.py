"""Tables for pages: tidy rows as tables, and accessible HTML that needs no script."""

from __future__ import annotations

import html as markup
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hypatia_lab import formats, intervals, results
from hypatia_lab.formats import MISSING, absent, number, scaled
from hypatia_lab.records import Record
from hypatia_lab.results import Row


class TableError(ValueError):
    """A table that cannot be made: the message names what is missing."""


class Html(str):
    """Text that is HTML already."""


READINGS = {word: word for word in ("faster", "equal", "slower", "undecided", *formats.DOUBTS)}
READINGS |= {results.LAUNCH: "by the lab's launch path"}
"""What a row may read, in the order in which it is counted → the same in a list of counts."""


def counted(words: Sequence[str]) -> str:
    """``3 faster, 1 slower and 2 too noisy to say``: how often each of :data:`READINGS` occurs among ``words``."""
    return formats.listing([f"{words.count(word)} {text}" for word, text in READINGS.items() if word in words])


def rate_text(row: Row, work: str = "flops", unit: str = "FLOP/s") -> str:
    """The rate of a row as text; none where its time is no figure."""
    untold = row.timed and row.time.width > intervals.UNTOLD
    return formats.UNTOLD if untold else scaled(row.rate(work).value, unit)


def frame(data: Sequence[dict[str, Any]]) -> Any:
    import pandas

    return pandas.DataFrame(list(data), columns=list(data[0]) if data else None)


def html_column(texts: Iterable[str]) -> Any:
    """HTML as a column for a :func:`frame`, whose rows are as many."""
    import pandas

    # As text it would be kept by pyarrow where that is installed, which gives plain strings back.
    return pandas.Series([Html(text) for text in texts], dtype=object)


def _remark(row: Row) -> str:
    said = f"{row.status}: {row.reason}".removesuffix(": ")
    if row.reason.startswith(row.status):  # "wrong values: ...", which need not be called wrong twice
        said = row.reason
    if row.medians_us and row.launch_path:
        said += "; the lab's launch path"
    if row.veto and not absent(row.ratio):
        said += f"; {intervals.VETOED}: {row.veto}"
    return f"{said} (throttled)" if row.throttled else said


def results_table(rows: Sequence[Row]) -> Any:
    """Rows of :func:`hypatia_lab.results.rows` as a DataFrame of text, one line a row, for reading.

    Columns: workload, machine, clock, variant, origin, time (per call, with its 95% interval), ratio
    (baseline time / variant time, with its 95% interval), n (the processes behind the ratio, or else the time), of
    limit (share of what the machine's own ceilings allow), error (‖out − ref‖/‖ref‖), status. Raises
    :class:`TableError` when there is no row.
    """
    if not rows:
        raise TableError("results_table: no rows; nothing was measured, or the filter let nothing through")
    out = []
    for row in rows:
        share, time = row.limit_us / row.median_us, row.time
        out.append(
            {
                "workload": row.text,
                "machine": row.machine,
                "clock": row.clock,
                "variant": row.variant,
                "origin": row.origin,
                "time": formats.told(time, "µs"),
                "ratio": formats.told(row.speed),
                "n": str(row.n or time.n or MISSING),
                "of limit": MISSING if absent(share) or time.width > intervals.UNTOLD else f"{number(100 * share)}%",
                "error": number(row.error),
                "status": _remark(row),
            }
        )
    return frame(out)


_FACTS = {
    "name": ("device", str),
    "cpu": ("processor", str),
    "cores": ("cores", str),
    "threads": ("threads used", str),
    "memory_gib": ("memory", lambda v: f"{number(v)} GiB"),
    "cache_bytes": ("last-level cache", lambda v: f"{number(v / 2**20)} MiB"),
    "multiprocessors": ("multiprocessors", str),
    "capability": ("compute capability", str),
    "chip": ("chip", str),
    "vbios": ("VBIOS", str),
    "driver": ("driver", str),
    "ecc": ("ECC", lambda v: "on" if v else "off"),
    "mig": ("MIG", lambda v: "on" if v else "off"),
    "memory_mhz_max": ("highest memory clock", lambda v: f"{v} MHz"),
    "sm_mhz_max": ("highest SM clock", lambda v: f"{v} MHz"),
    "power_limit_w": ("power limit", lambda v: f"{number(v)} W"),
    "power_default_w": ("default power limit", lambda v: f"{number(v)} W"),
    "system": ("system", str),
}


def _facts(record: Record) -> dict[str, str]:
    """Line title → text, of one record's run line."""
    facts = record.run["facts"]
    named = {label: text(facts[key]) for key, (label, text) in _FACTS.items() if facts.get(key) is not None}
    named |= {name: str(v) for name, v in facts.get("versions", {}).items()}
    if record.run["device"] == "cuda":
        named.setdefault("chip", "not recorded")
    commit = record.run["commit"][:10] + (" (with local changes)" if record.run["dirty"] else "")
    return named | {"commit": commit, "measured": record.run["started"][:10]}


def processes(lines: Iterable[Sequence[float | None]], what: str = "process") -> str:
    """The fewest and the most processes that gave a value of ``lines``, which have one a process, in words."""
    counts = {sum(not absent(value) for value in one) for one in lines} - {0}
    least, most = min(counts, default=0), max(counts, default=0)
    return f"{least if least == most else f'{least} to {most}'} {what}{'' if most == 1 else 'es'}"


def _processes(record: Record) -> str:
    lines = [cell["medians_us"] for cell in record.cells]
    lines += [line["values"] for line in record.details if line["topic"] != "timeline"]  # its values are no processes
    return processes(lines)


def _seconds(record: Record) -> tuple[str, ...]:
    """How long a record took to measure, in words; nothing where it does not say."""
    return (f"{record.run['seconds']:.0f} s",) if "seconds" in record.run else ()


def machines_table(records: Sequence[Record]) -> Any:
    """Hardware, versions and measured ceilings: a line a fact, a column a machine.

    Where a machine's records disagree on a fact every value is shown. A ceiling that was not measured is
    ``unknown``. Raises :class:`TableError` when there is no record.
    """
    if not records:
        raise TableError("machines_table: no records; measure this machine first")
    columns: dict[str, dict[str, str]] = {}
    for own in results.measured(records):
        column: dict[str, list[str]] = {}
        for record in own.records:
            for label, text in _facts(record).items():
                if text not in column.setdefault(label, []):
                    column[label].append(text)
        found = columns[own.machine] = {label: "; ".join(sorted(texts)) for label, texts in column.items()}
        runs = (f"{r.experiment} ({', '.join((r.run['preset'], _processes(r), *_seconds(r)))})" for r in own.records)
        found["experiments"] = "; ".join(runs)
        for (quantity, precision, clock), rate in sorted(own.ceilings.items()):
            label = " ".join(("best", quantity, precision)).strip() + f", {clock} clock"
            found[label] = scaled(rate, "B/s" if quantity == "copy" else "FLOP/s")
    known = [label for label, _ in _FACTS.values()]
    labels = sorted(
        dict.fromkeys(label for column in columns.values() for label in column),
        # hardware first, ceilings last, what lies between (versions, commit, …) in the order found
        key=lambda label: (label.startswith("best "), known.index(label) if label in known else len(known)),
    )
    return frame(
        [
            {"fact": label}
            | {
                m: column.get(label, "unknown" if label.startswith("best ") else MISSING)
                for m, column in columns.items()
            }
            for label in labels
        ]
    )


_UNKNOWN = ("not measured", "unknown", *formats.DOUBTS)
"""What stands in a column of numbers, or begins what stands there, where there is none."""
_NO_BREAK = "\N{NO-BREAK SPACE}"
_LEFT = "<style>.lab-table :is(th,td):is(th,td){text-align:left}</style>"
"""Whatever says nothing else is at the left; JupyterLab would set it to the right."""
_RIGHT, _SHORT = ' style="text-align:right"', 18


def _numeric(cells: Iterable[Any]) -> bool:
    texts = [c for c in map(str, cells) if c != MISSING and not c.startswith(_UNKNOWN)]
    return bool(texts) and all(re.match(r"[-−+]?[0-9]+(?![0-9]|-[0-9]|[a-z]? · )", t) for t in texts)


def _to_the_right(cells: Sequence[Any]) -> str:
    """The style of a column of numbers, which do not break where all are short; empty for one of words."""
    if not _numeric(cells):
        return ""
    breaks = any(re.search(r" [\[(]", str(c)) or len(str(c)) > _SHORT for c in cells)
    return _RIGHT if breaks else ' style="text-align:right;white-space:nowrap"'


def _unbroken(text: str, numeric: str) -> str:
    """``text`` that breaks before an interval and not within it; ``numeric`` text not between number and unit."""
    if numeric:
        text = re.sub(r"(?<=\d) (?![\[(])", _NO_BREAK, text)
    return re.sub(r"\[[^\]]*\]|\(n = \d+\)", lambda found: found[0].replace(" ", _NO_BREAK), text)


def html(
    frame: Any,
    *,
    caption: str = "",
    filterable: bool = False,
    folded: Mapping[str, str] | None = None,
    summary: str = "",
    stacked: bool = False,
) -> str:
    """``frame`` as an HTML table: headers with a scope, first column as row headers, numbers to the right.

    A plain table that needs neither script nor network; ``filterable`` marks it for the book's filter script,
    which adds a search box above it. ``folded`` maps a column to the one whose cells hold it, folded away (for
    long text; nothing where there is none), beneath its column's name. With a ``summary`` the
    whole table is folded away beneath it and the number of rows. ``stacked``: on a telephone a row's cells stand below
    each other, each under its heading. The same frame gives the same text. Floats get 3
    significant digits.
    """
    folded = folded or {}
    columns = [column for column in frame.columns if column not in folded]
    right = [_to_the_right(frame[c]) for c in columns]
    escape = markup.escape
    look = " ".join(["lab-table", *["filterable"] * filterable, *["stacked"] * stacked])
    lines = [f'<table class="{look}">']
    if caption:
        lines.append(f"<caption>{escape(caption)}</caption>")
    aligned = [_RIGHT * bool(style) for style in right]
    heads = "".join(f'<th scope="col"{s}>{escape(str(c))}</th>' for c, s in zip(columns, aligned, strict=True))
    lines += [f"<thead><tr>{heads}</tr></thead>", "<tbody>"]
    for line in frame.to_dict("records"):
        values = [line[column] for column in columns]
        texts = [number(v) if isinstance(v, float) else str(v) for v in values]
        cells = [
            value if isinstance(value, Html) else escape(_unbroken(text, s))
            for value, text, s in zip(values, texts, right, strict=True)
        ]
        for column, under in folded.items():
            text = line[column]
            inside = text if isinstance(text, Html) else escape(str(text))
            title = escape(column)
            if inside:
                cells[columns.index(under)] += f"<details><summary>{title}</summary>{inside}</details>"
        # The ids of claims have a hyphen, at which no line should break.
        single = ' style="white-space:nowrap"' if re.fullmatch(r"[A-Z]+\d*-\d+[a-z]?", cells[0]) else right[0]
        first = f'<th scope="row"{single}>{cells[0]}</th>'
        named = [f' data-label="{escape(str(column))}"' * stacked for column in columns]
        rest = "".join(f"<td{s}{n}>{c}</td>" for c, s, n in zip(cells[1:], right[1:], named[1:], strict=True))
        lines.append(f"<tr>{first}{rest}</tr>")
    lines += ["</tbody>", "</table>"]
    # Wide tables scroll inside their own box, which a keyboard can reach, and not the whole page.
    table = f'<div class="lab-scroll" tabindex="0" style="overflow-x:auto">{_LEFT}\n' + "\n".join(lines) + "\n</div>"
    if not summary:
        return table
    count = f"{len(frame)} row{'' if len(frame) == 1 else 's'}"
    return f'<details class="lab-fold"><summary>{escape(summary)} ({count})</summary>\n{table}\n</details>'


def show(frame: Any, **how: Any) -> None:
    """Display ``frame`` in a notebook as :func:`html`, with plain text beside it for readers without HTML.

    ``how`` is what :func:`html` takes by keyword.
    """
    display(html(frame, **how), frame.to_string(index=False))


def display(form: str, text: str) -> None:
    """Display HTML in a notebook, with plain ``text`` beside it for readers without HTML."""
    from IPython.display import display

    display({"text/html": form, "text/plain": text}, raw=True)
