"""What a notebook calls: validate its parameters, measure when asked, read the records, say which of them are older."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from hypatia_lab import claims, formats, machine, older, records, results, variants
from hypatia_lab.claims import UNJUDGED, Judgement
from hypatia_lab.messages import unknown
from hypatia_lab.results import Measured, Row, visits

MODES = ("recorded", "measure")
PRESETS = ("quick", "seed", "full")


class ParameterError(ValueError):
    """A notebook parameter that makes no sense: the message names it, its value and what would do."""

    def _render_traceback_(self) -> list[str]:
        """In a notebook: one line instead of a traceback (IPython's hook)."""
        return [f"{type(self).__name__}: {self}"]


@dataclass(frozen=True)
class Parameters:
    """The validated parameters of a notebook. Raises :class:`ParameterError` naming the one that is off.

    ``machine``: in recorded mode the machines to read (comma-separated, empty = all committed; a model's name means
    all its chips, as in :func:`records.load`); in measure mode the name this machine gets (empty = its device's name).
    ``shapes``: comma-separated shapes such as ``1024x784x2048`` to measure instead of the preset's. ``records``: folder
    of this machine's records.
    """

    mode: str = "recorded"
    preset: str = "quick"
    device: str = "auto"
    machine: str = ""
    shapes: str = ""
    records: str = ""
    overwrite: bool = False

    def __post_init__(self) -> None:
        for name, known in {"mode": MODES, "preset": PRESETS, "device": machine.DEVICES}.items():
            if (value := getattr(self, name)) not in known:
                raise ParameterError(unknown(name, value, known))
        if not isinstance(self.machine, str) or not isinstance(self.shapes, str) or not isinstance(self.records, str):
            raise ParameterError("machine, shapes and records are texts")
        for name in filter(None, self.machine.split(",")):
            try:
                records.machine_name(name.strip())
            except records.RecordError as cause:
                raise ParameterError(str(cause)) from None
        if self.mode == "measure" and "," in self.machine:
            raise ParameterError(f"machine {self.machine!r}: one machine is measured at a time")
        self.parsed_shapes()

    def parsed_shapes(self) -> list[tuple[int, ...]]:
        """The shapes as whole numbers, two to five as an operation has extents. Raises :class:`ParameterError`."""
        from hypatia_lab.workloads import WorkloadError, parse_shape

        try:
            found = [parse_shape(text.strip()) for text in self.shapes.split(",") if text.strip()]
        except WorkloadError as cause:
            raise ParameterError(str(cause)) from None
        for shape in found:
            if not 2 <= len(shape) <= 5:
                text = "x".join(map(str, shape))
                raise ParameterError(
                    f"shape {text} must be batch x in x out, slow x fast, batch x channels x height x width, or "
                    "batch x in x hidden x layers x out"
                )
        return found

    @property
    def machines(self) -> list[str]:
        """The machine names given, in order."""
        return [name.strip() for name in self.machine.split(",") if name.strip()]

    @property
    def root(self) -> Path:
        """Folder this machine's records go to."""
        return Path(self.records).resolve() if self.records else records.COMMITTED


NAMELESS = "are too old to say which version of the timing and checking code made them"
EARLIER = "were made by older timing or checking code than today's"
CHANGED = "ran kernels whose source has changed since"


@functools.lru_cache(maxsize=256)  # as many as :mod:`hypatia_lab.records` keeps
def age(record: records.Record) -> str:
    """How ``record``, or a part of it, is older than the lab: one of the words above; empty where it is not.

    Of what the lab no longer has, and of a reader's file, no sources are known.
    """
    if None in older.told(record):
        return NAMELESS
    if any(map(older.behind, older.told(record))):
        return EARLIER
    variants.load()
    ran = {(cell["operation"], cell["variant"], cell.get("sources", "")) for cell in record.cells}
    return CHANGED if any(_sources(*one) not in ("", told) for *one, told in ran) else ""


@functools.cache
def _sources(operation: str, variant: str) -> str:
    """The digest of what a variant of the lab's runs; empty of another."""
    from hypatia_lab.bench import sources

    try:
        return sources.digest(variants.find(operation, variant))
    except KeyError:
        return ""


def age_told(found: Sequence[tuple[str, str]]) -> str:
    """Whose records on a page are older, and how; empty where none is.

    ``found`` has of each record its machine, and what :func:`age` says.
    """
    told = []
    for word in (NAMELESS, EARLIER, CHANGED):
        if machines := dict.fromkeys(f"`{machine}`" for machine, said in found if said == word):
            told.append(f"records of {formats.listing([*machines])} {word}")
    return f"{older.MARK} Some {'; some '.join(told)}." if told else ""


@dataclass(frozen=True)
class Evidence:
    """The records behind a page, their tidy rows as the book tells them (:func:`visits.told`), and details.

    ``here`` names the machine measured now, if any; ``experiments`` are those that the page is about, none: all.
    """

    records: list[records.Record]
    rows: list[Row]
    here: str = ""
    experiments: tuple[str, ...] = ()

    def select(self, **wanted: Any) -> list[Row]:
        """Rows whose columns equal ``wanted``; a tuple or list of values means any of them."""
        return _selected(self.rows, wanted, attrgetter)

    def leading(self, machine: str, **wanted: Any) -> list[Row]:
        """Rows of ``machine`` at its primary clock whose columns equal ``wanted``."""
        return self.select(machine=machine, clock=self.primary(machine), **wanted)

    def timed(self, machine: str, **wanted: Any) -> list[Row]:
        """Those of ``machine`` that have a time, by its primary clock unless told otherwise, least work first.

        Without the A/A control.
        """
        rows = self.select(**{"machine": machine, "clock": self.primary(machine)} | wanted)
        return sorted(
            (row for row in rows if row.timed and not row.is_twin), key=lambda row: (row.flops, row.shape, row.dtype)
        )

    @functools.cached_property
    def machines(self) -> list[str]:
        """Machines that were read, GPUs first, and first of all the one that decides most claims.

        One of which nothing that the page is about is recorded stands on other pages, and in the ledger.
        """
        from hypatia_lab.experiments import EXPERIMENTS

        own = set(self.experiments or EXPERIMENTS) - {"ceilings"}
        found = Counter(record.machine for record in self.records)
        known = {record.machine for record in self.records if record.experiment in own}
        named = [machine for machine in found if machine in known] or list(found)
        decided = Counter(on for said in self.verdicts.values() for on, word in said.items() if word not in UNJUDGED)
        return sorted(named, key=lambda name: (self.primary(name) != "graph", -decided[name], -found[name]))

    @functools.cached_property
    def measured(self) -> dict[str, Measured]:
        """Machine → what it measured on its visit, as verdicts see it."""
        return {own.machine: own for own in results.measured(self.records)}

    def of(self, machine: str) -> list[records.Record]:
        """The records of one machine."""
        return [*self.measured[machine].records] if machine in self.measured else []

    def primary(self, machine: str) -> str:
        """The clock verdicts rest on: ``graph`` on a GPU (no launch overhead), ``hot`` on a CPU."""
        return self.measured[machine].clock

    def details(self, **wanted: Any) -> list[dict[str, Any]]:
        """Detail lines whose keys equal ``wanted`` (a tuple or list: any), with machine, device and experiment."""
        return _selected(self._lines, wanted, itemgetter)

    @functools.cached_property
    def _lines(self) -> list[dict[str, Any]]:
        return [
            line | {"machine": record.machine, "device": record.run["device"], "experiment": record.experiment}
            for record in self.records
            for line in record.details
        ]

    @functools.cached_property
    def judged(self) -> dict[str, dict[str, Judgement]]:
        """What these records make of every claim of the ledger and of its parts: id → machine (or ``any``)
        → judgement."""
        found: dict[str, dict[str, Judgement]] = {}
        for whole in self.stated:
            for row in (*whole.parts, whole):
                found.setdefault(row.id, {})[row.machine] = row
        return found

    @functools.cached_property
    def stated(self) -> list[Judgement]:
        """What these records make of every claim of the ledger as a whole, one judgement a claim and machine."""
        return claims.statements(claims.judge([*self.measured.values()]))

    @property
    def documents(self) -> list[Judgement]:
        """Those of :attr:`stated` that are on the documents' claims, without the lab's own findings and goals."""
        return [row for row in self.stated if row.document != claims.LAB]

    @functools.cached_property
    def verdicts(self) -> dict[str, dict[str, str]]:
        """The verdict of these records on every claim of the ledger and on its parts: id → machine (or ``any``) →
        verdict."""
        return {name: {on: row.verdict for on, row in own.items()} for name, own in self.judged.items()}

    @functools.cached_property
    def _aged(self) -> list[tuple[str, str]]:
        """Machine and what :func:`age` says, of each record that the page is about."""
        own = (record for record in self.records if not self.experiments or record.experiment in self.experiments)
        return [(record.machine, age(record)) for record in own]

    @property
    def older(self) -> set[str]:
        """Machines of which a record that the page is about is older than the lab."""
        return {machine for machine, said in self._aged if said}

    def shown(self) -> Evidence:
        """Itself, once its page has said what of it is older than the lab, if anything is."""
        # In a notebook it is there already; judge does without.
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
        if shell() is not None and (said := age_told(self._aged)):
            from IPython.display import Markdown, display

            display(Markdown(said))
        return self

    def digest(self) -> str:
        """A line a record; any altered record changes it."""
        return records.digests(self.records)


def _selected(rows: list[Any], wanted: dict[str, Any], getter: Callable[[str], Callable[[Any], Any]]) -> list[Any]:
    found = list(rows)
    for key, value in wanted.items():  # key by key: a page asks a thousand times, and most rows fall at the first
        of = getter(key)
        values = value if isinstance(value, (tuple, list)) else (value,)
        found = [row for row in found if of(row) in values]
    return found


def evidence(parameters: Parameters, experiments: Sequence[str] = (), beside: Sequence[str] = ()) -> Evidence:
    """Read the records; in measure mode, measure ``experiments`` on this machine first.

    ``beside`` are experiments, or programs from outside, that the page tells of as well; they are not measured here.

    Recorded mode reads committed records only. Measure mode reads those and this machine's. Raises
    :class:`ParameterError`, or what :func:`hypatia_lab.bench.composer.measure` raises.
    """
    here = ""
    if parameters.mode == "recorded":
        found = records.load(records.COMMITTED, machines=parameters.machines)
    else:
        from hypatia_lab.bench import composer

        device, asked = machine.choose_device(parameters.device), parameters.parsed_shapes()
        here = parameters.machine or machine.default_name(device)
        for name in experiments:
            composer.measure(
                name,
                preset=parameters.preset,
                device=device,
                machine_name=here,
                root=parameters.root,
                shapes=composer.EXPERIMENTS[name].fitting(asked),
                overwrite=parameters.overwrite,
            )
        found = records.load(records.COMMITTED, parameters.root)
    if not found:
        raise ParameterError("there are no records to read; measure first: hypatia-lab run --preset quick")
    found.sort(key=lambda record: record.run["device"] != "cuda")  # GPUs first, on every page
    told = visits.told(results.rows(found), found)
    return Evidence(found, told, here, (*experiments, *beside)).shown()
