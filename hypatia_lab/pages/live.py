"""What a reader asks in a cell and asks again: times as recorded, times here, a kernel's text that is edited."""

from __future__ import annotations

import html
import itertools
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from hypatia_lab import formats, intervals, records, results, tables
from hypatia_lab.bench import here as this_process
from hypatia_lab.experiments import EXPERIMENTS
from hypatia_lab.machine import choose_device
from hypatia_lab.messages import FEW, unknown
from hypatia_lab.pages.evidence import Evidence, ParameterError, Parameters
from hypatia_lab.results import Row, visits
from hypatia_lab.strangers import kernel_text
from hypatia_lab.variants import baseline, find, load, restored, variant
from hypatia_lab.workloads import Workload, WorkloadError, parse_shape

YOURS = "yours"
"""The variant that a text is while it is tried."""
RECORDED = "Ratio: {}'s time over its own, so that above 1 is faster. Brackets: 95% intervals over n processes."
HERE = (
    "Here: in one process, so that brackets hold what varies within it; the next process may lie outside. "
    "hypatia-lab run measures in several."
)


class LiveError(ParameterError):
    """What cannot be told, or not be run here: the message says what there is, or what to do instead."""


BLOCK = ("machine", "clock", "experiment")
"""What lines have in common that stand beneath each other in a terminal."""
WIDTH = 76
"""Columns of a sentence. Not the terminal's: a stored notebook has the same text everywhere."""


@dataclass(frozen=True)
class Told:
    """A ``title``, a table of ``lines``, which map a column to its text, and a ``note``.

    In a terminal the lines of a block (:data:`BLOCK`) stand beneath its name, and what column ``remark`` says of a
    ``variant`` beneath them. A column in which nothing stands is left out.
    """

    title: str
    lines: tuple[Mapping[str, str], ...]
    note: str = ""

    @property
    def _columns(self) -> list[str]:
        return [*dict.fromkeys(name for line in self.lines for name in line if line[name])]

    def __repr__(self) -> str:
        told = [self.title]
        for block, own in itertools.groupby(self.lines, lambda line: [line.get(name, "") for name in BLOCK]):
            rows = list(own)
            shown = [name for name in self._columns if name not in (*BLOCK, "remark")]
            frame = tables.frame([{name: row.get(name, "") for name in shown} for row in rows])
            told += ["", *filter(None, [", ".join(filter(None, block))]), frame.to_string(index=False)]
            told += [_wrapped(f"{row['variant']}: {row['remark']}", 4) for row in rows if row.get("remark")]
        return "\n".join([*told, *(["", _wrapped(self.note)] if self.note else [])])

    def _repr_html_(self) -> str:
        experiments = dict.fromkeys(line["experiment"] for line in self.lines if line.get("experiment"))
        found = f"Recorded by {', '.join(experiments)}." if experiments else ""
        said = " ".join(filter(None, (found, self.note)))
        note = f"<p>{html.escape(said)}</p>" if said else ""
        if not self.lines:
            return f"<p>{html.escape(self.title)}</p>{note}"
        # A page is narrow: the machine and its clock are one column, and the experiment stands below.
        shown = [name for name in self._columns if name not in BLOCK]
        where = [", ".join(filter(None, (line.get("machine"), line.get("clock")))) for line in self.lines]
        frame = tables.frame(
            [
                ({"machine": place} if any(where) else {}) | {name: line.get(name, "") for name in shown}
                for place, line in zip(where, self.lines, strict=True)
            ]
        )
        return tables.html(frame, caption=self.title, stacked=True) + note


def _wrapped(text: str, hang: int = 0) -> str:
    return "\n".join(textwrap.wrap(text, WIDTH, initial_indent=" " * (hang // 2), subsequent_indent=" " * hang))


def time(
    operation: str,
    variants: str | Sequence[str],
    size: str,
    *,
    dtype: str = "float32",
    math: str = "ieee",
    direction: str = "forward",
    machine: str = "",
    here: bool = False,
) -> Told:
    """Times of ``variants`` of ``operation`` at ``size``, such as ``256x256x512``, each with its ratio to eager.

    From the committed records: a line a variant and machine by the clock that verdicts rest on, with the time of a call
    (ns to s) and its 95% interval, the ratio (the baseline's time over its own: above 1 is faster) with its, and ``n``,
    the fresh processes behind it. Of several experiments that of most of ``variants`` is told, by the order of the
    chapters. ``machine``: those to read, comma-separated; empty means all.

    ``here``: each is held against float64 and timed on this machine, too, on the GPU where there is one, in this very
    process, which takes seconds. What is not recorded can be timed so; without ``here`` the answer says what is.

    Raises :class:`LiveError` for an unknown operation or variant, for one that cannot run here, for what is no
    workload, and for a machine without records.
    """
    names = tuple(dict.fromkeys([variants] if isinstance(variants, str) else variants))
    if not names:
        raise LiveError(f"which variants of {operation}? Name one, such as 'eager'")
    try:
        size = "x".join(map(str, parse_shape(size.replace("×", "x") if isinstance(size, str) else size)))
        data = _evidence(tuple(records.load(machines=Parameters(machine=machine).machines)))
    except (WorkloadError, records.RecordError) as cause:
        raise LiveError(str(cause)) from None
    recorded = {row.variant for row in data.rows if row.operation == operation}
    asked = tuple(name for name in names if name in recorded or not here) or names  # a reader's own is recorded nowhere
    wanted = {"operation": operation, "variant": asked, "dtype": dtype, "math": math, "direction": direction}
    rows, notes = [], []
    try:
        rows = _recorded(data, wanted | {"shape": size})
        notes.append(RECORDED.format(formats.listing(sorted({row.baseline for row in rows}))))
    except LiveError as cause:
        notes.append(f"{cause}.")
        if not here:
            _ensure_known(wanted | {"shape": size}, cause)
            notes.append("With here=True it is timed on this machine.")
    lines = [line for name in data.machines for line in _told(data, name, names, rows)]
    if here:
        lines += _timed_here(_workload(operation, size, dtype, math, direction), names)
        notes.append(HERE)
    title = formats.workload("/".join((operation, size, dtype, math, direction)))
    return Told(title, tuple(lines), " ".join(notes))


@lru_cache(maxsize=1)  # to judge which machine comes first takes a second, and records seldom change
def _evidence(found: tuple[records.Record, ...]) -> Evidence:
    return Evidence([*found], visits.told(results.rows(found), found))


def _recorded(data: Evidence, wanted: dict[str, str | tuple[str, ...]]) -> list[Row]:
    """Rows whose columns are as ``wanted``, by each machine's leading clock. Raises :class:`LiveError`."""
    rows = [row for row in data.rows if row.clock == data.primary(row.machine)]
    for column, value in wanted.items():
        known = [name for name, _ in Counter(getattr(row, column) for row in rows).most_common()]
        values = value if isinstance(value, tuple) else (value,)
        for one in values:
            if one not in known:
                of = "" if column == "operation" else str(wanted["operation"])
                called = "size" if column == "shape" else column
                more = f" and {len(known) - FEW} more" if len(known) > FEW else ""
                raise LiveError(f"Not recorded: {unknown(called, one, known[:FEW], of)}{more}")
        rows = [row for row in rows if getattr(row, column) in values]
    there, where = {row.variant for row in rows}, f"{wanted['operation']} {wanted['shape']}"
    for name in wanted["variant"]:
        if name not in there:
            raise LiveError(f"Not recorded: {unknown('variant', name, sorted(there), where)}")
    return rows


def _ensure_known(wanted: dict[str, str | tuple[str, ...]], cause: LiveError) -> None:
    """Raise ``cause`` where the lab itself does not know what is wanted either: the answer to a slip is an error."""
    operation, size, *rest = (str(wanted[name]) for name in ("operation", "shape", "dtype", "math", "direction"))
    try:
        _workload(operation, size, *rest)
        for name in wanted["variant"]:
            find(operation, name)
    except KeyError:
        raise cause from None


def _told(data: Evidence, machine: str, names: Sequence[str], rows: Sequence[Row]) -> list[dict[str, str]]:
    """A line for each of ``names`` that ``machine`` recorded, all of one experiment where one has all."""
    # Times are compared within one experiment; the lab's tests of itself come last but for others' programs.
    order = sorted(EXPERIMENTS, key=lambda name: EXPERIMENTS[name].notebook == "01_method")
    left, lines = list(names), []
    own = [row for row in rows if row.machine == machine]
    while there := Counter(row.experiment for row in own if row.variant in left):
        most = max(there, key=lambda name: (there[name], -order.index(name) if name in order else -len(order)))
        shown = sorted(
            (r for r in own if r.experiment == most and r.variant in left), key=lambda r: left.index(r.variant)
        )
        for row, text in zip(shown, tables.results_table(shown).to_dict("records"), strict=True):
            line = {"machine": machine, "clock": f"{row.clock} clock", "experiment": most, "variant": row.variant}
            line |= {"time": row.took if row.timed else formats.MISSING, "ratio": text["ratio"], "n": text["n"]}
            lines.append(line | {"remark": text["status"].removeprefix("ok").lstrip(":; ")})
        left = [name for name in left if name not in {row.variant for row in shown}]
    return lines


def _workload(operation: str, size: str, dtype: str, math: str, direction: str) -> Workload:
    """What is asked for, of the lab's own operations. Raises :class:`LiveError`."""
    load()
    try:
        return Workload(operation, parse_shape(size), dtype, math, direction)
    except WorkloadError as cause:
        raise LiveError(str(cause)) from None


def _timed_here(work: Workload, names: Sequence[str]) -> list[dict[str, str]]:
    """A line for each of ``names``, held against float64 and timed beside the baseline in this process."""
    device = choose_device("auto")
    clock = results.primary_clock(device)
    try:
        missing = {name: find(work.operation, name).needs(work, device) for name in names}
    except KeyError as cause:
        raise LiveError(f"{cause.args[0]}: it cannot be timed here") from None
    able = [name for name in names if not missing[name]]
    if not able:
        why = missing[names[0]]
        raise LiveError(f"{names[0]} cannot run on this machine: {why}; name another, or ask without here=True")
    left = {"machine": "here", "clock": f"{clock} clock", "time": formats.MISSING}
    told = [left | {"variant": name, "remark": f"left out: {missing[name]}"} for name in names if missing[name]]
    return _tried(work, able, device, clock) + told


def _tried(work: Workload, names: Sequence[str], device: str, clock: str) -> list[dict[str, str]]:
    """A line for each of ``names``, right or not, with its time by ``clock`` and its ratio to the baseline's."""
    base = baseline(work.operation)
    cases = this_process.cases(work, [*dict.fromkeys((*names, base))], device, [clock])
    found = {case.name: case.row(0, clock) for case in cases}
    lines = []
    for name in names:
        row, pairs = found[name], zip(found[base]["samples_us"], found[name]["samples_us"], strict=False)
        ratios = [slow / quick for slow, quick in pairs]
        line = {"machine": "here", "clock": f"{clock} clock", "experiment": "", "variant": name}
        line["time"] = formats.time(intervals.geometric(row["samples_us"])) if row["samples_us"] else formats.MISSING
        line["ratio"] = formats.told(intervals.geometric(ratios)) if ratios else formats.MISSING
        right = f"right, off by {formats.number(row['error'])} of the answer's norm"
        lines.append(
            line | {"n": "1", "remark": right if row["status"] == "ok" else f"{row['status']}: {row['reason']}"}
        )
    return lines


def kernel(
    operation: str, size: str, *, cpp: str, cuda: str = "", tile: int = 16, dtype: str = "float32", here: bool = False
) -> Told:
    """Whether a kernel whose text is ``cpp`` is right: it is compiled, and held against float64 at ``size``.

    The text has a function ``extern "C" void <operation>``. It takes pointers to the inputs of the operation, in their
    order (of linear_relu: x, weight, bias), and to the output, then the extents of the shape as ``int64_t``. Where
    there is a GPU ``cuda`` is taken, if there is such a text: the same as ``__global__ void``, launched with
    a block of ``tile`` × ``tile`` threads for each square of as many elements of the output (``x`` counts its columns,
    ``y`` its rows). Arrays are of ``dtype``, row after row.

    ``here``: a kernel that is right is timed, too, as by :func:`time`. It runs in this process, so one that writes
    beside its arrays may end it.

    A machine that cannot build it is told what is missing. Raises :class:`LiveError` for a text that does not compile,
    with the compiler's first complaints, and for what is no workload.
    """
    work = _workload(operation, size, dtype, "ieee", "forward")
    title = formats.workload("/".join((operation, work.shape_text, dtype, "ieee", "forward")))
    place, missing = kernel_text.device(cuda)
    if missing:
        return Told(title, ({"variant": YOURS, "against float64": f"not run: {missing}"},))
    try:
        made = kernel_text.factory(operation, place, cpp, cuda, tile)
    except kernel_text.TextError as cause:
        raise LiveError(str(cause)) from None
    with restored():
        variant(operation, YOURS, origin="own")(made)
        if here:
            names = (YOURS, baseline(operation))
            return Told(title, tuple(_tried(work, names, place, results.primary_clock(place))), HERE)
        (case,) = this_process.cases(work, [YOURS], place, [])
    said = "right" if case.status == "ok" else f"{case.status}: {case.reason}"
    return Told(title, ({"variant": YOURS, "against float64": said},))
