"""How well figures repeat: every visit to the models of a page, and one sentence on a machine's own model."""

from __future__ import annotations

import itertools
import math

from hypatia_lab import formats, records
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.records import Record
from hypatia_lab.results import visits


def others() -> list[Record]:
    """The committed records that do not lead: other visits, by machine, experiment and day, and a fleet's."""
    found = {path for root in (records.COMMITTED, records.FLEET) for path in records.visits(root)}
    return [records.load_file(path) for path in sorted(found.difference(records.files(records.COMMITTED)))]


def digests() -> str:
    """One line for each of :func:`others`: ``machine/experiment/visit digest``; any altered record changes it."""
    return "\n".join(f"{r.machine}/{r.experiment}/{r.path.stem}  {r.digest}" for r in others())


def visited(data: Evidence) -> list[Record]:
    """The records of ``data``, and those of other visits to its models."""
    models = {record.device_name for record in data.records}
    return [*data.records, *(record for record in others() if record.device_name in models)]


def sentence(data: Evidence, machine: str) -> str:
    """How far ratios lay apart that were measured twice on the model of ``machine``; empty where none was.

    By the clock that verdicts rest on. Nineteen of twenty pairs of visits differ by no more.
    """
    model, clock = data.of(machine)[0].device_name, data.primary(machine)
    found = [own for own in visits.visits(visited(data)) if (own[0].model, own[0].clock) == (model, clock)]
    pairs = [pair for own in found for pair in itertools.combinations([one.found.value for one in own], 2)]
    apart = sorted(max(pair) / min(pair) - 1 for pair in pairs)
    if not apart:
        return ""
    most = formats.number(100 * apart[math.ceil(0.95 * len(apart)) - 1])
    return (
        f"How well do such figures repeat? {len(found)} ratios by the {clock} clock were measured again, at another "
        f"time or on another chip of this model: 95% of them changed by less than {most}%. The intervals allow for "
        "that. Ratios of the time that a caller waits vary more."
    )
