"""Every page, whatever was recorded: nothing, one machine, few processes, noise, failed controls; and its cards."""

from __future__ import annotations

import functools
import hashlib
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from synthetic import WIDEST, ceilings, cell_line, detail_line, played, widths, write_records

from hypatia_lab import claims, planted, results, variants
from hypatia_lab.bench import composer
from hypatia_lab.experiments import EXPERIMENTS
from hypatia_lab.operations import safety
from hypatia_lab.pages import cards, numbers
from hypatia_lab.tables import claims as claim_tables

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


def calm(name: str) -> list[float]:
    """Five processes within 1%."""
    us = 90.0 + int(hashlib.sha256(name.rpartition("/")[2].encode()).hexdigest(), 16) % 20
    return [us, 1.01 * us, 1.005 * us, us, 1.01 * us]


def noisy(name: str) -> list[float]:
    """Five processes that scatter by a factor of some four."""
    draw = random.Random(name)
    return [100.0 * math.exp(draw.gauss(0, 1.4)) for _ in range(5)]


def few(name: str) -> list[float]:
    """Two processes."""
    return calm(name)[:2]


def vetoed(name: str) -> list[float]:
    """Processes of which identical code takes half as long again under its other name."""
    return [us * (1.5 if name.endswith(variants.AGAIN) else 1.0) for us in calm("/".join(name.split("/")[:-1]))]


@functools.cache
def planned(
    name: str, medians_of: Callable[[str], list[float]], preset: str = "quick", device: str = "cpu"
) -> list[dict[str, Any]]:
    """A cell for each that the experiment plans; of probes a line that says they failed."""
    lines = []
    for group in composer.plan(name, preset, device):
        work = group.workload
        own = {"operation": work.operation, "shape": list(work.shape), "dtype": work.dtype, "math": work.math}
        own |= {"direction": work.direction, "flops": work.flops, "traffic": work.traffic}
        for variant in group.variants:
            spec = variants.find(work.operation, variant)
            base = spec.name if variant.endswith(variants.AGAIN) else variants.baseline(work.operation)
            for clock in group.clocks or ("none",):
                medians = medians_of(f"{name}/{own}/{clock}/{variant}") if group.clocks else []
                who = {"variant": variant, "origin": spec.origin, "baseline": base}
                lines.append(cell_line(**own, **who, clock=clock, medians_us=medians, samples_us=medians))
    for probe in EXPERIMENTS[name].probes(preset, device, ()):
        work = probe.workload
        own = {"operation": work.operation, "shape": list(work.shape), "dtype": work.dtype, "math": work.math}
        said = {"values": [], "status": "crashed", "reason": "a test", "name": probe.topic, "unit": "1"}
        lines.append(detail_line(**own, variant=probe.variant, topic=probe.topic, case=probe.case, **said))
    return lines


RATES = {"ieee": 1.0, "tf32": 4.0, "float16": 8.0, "bfloat16": 8.0}
STATES: dict[str, dict[str, tuple[Callable[[str], list[float]], str]]] = {
    "none": {},
    "one": {"card": (calm, "cuda")},
    "few": {"card": (few, "cuda"), "box": (few, "cpu")},
    "noisy": {"card": (noisy, "cuda"), "box": (noisy, "cpu")},
    "vetoed": {"card": (vetoed, "cuda"), "box": (vetoed, "cpu")},
    "mixed": {"card": (calm, "cuda"), "fever": (noisy, "cuda"), "box": (vetoed, "cpu")},
}
"""What may be recorded: state → machine → how its processes scatter, and its device."""


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """State → records of it; beside the machines a CPU, ``idle``, that was asked for ceilings alone."""
    found = {}
    for state, machines in STATES.items():
        root = found[state] = tmp_path_factory.mktemp(state)
        for machine, (medians_of, device) in machines.items():
            preset, clock = {"cuda": ("seed", "graph"), "cpu": ("quick", "hot")}[device]
            parts = {name: planned(name, medians_of, preset, device) for name in EXPERIMENTS if name != "ceilings"}
            write_records(root, machine, device, parts | {"ceilings": ceilings(RATES, clock)})
        write_records(root, "idle", "cpu", {"ceilings": ceilings({"ieee": 1.0}, "hot")})
    return found


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pages work out of no record has tests of its own, and takes half of the time here."""
    monkeypatch.setattr(planted, "tried", lambda: iter([{"planted": "x", "operation": "y", "named": "x"}]))
    monkeypatch.setattr(safety, "passed", lambda place: "all passed")
    monkeypatch.setattr(safety, "isolated", lambda place: "all passed")


@pytest.fixture(scope="module", autouse=True)
def judged_once() -> Iterator[None]:
    """The records of a state are judged for its first page; the others are told the same."""
    judge, known = claims.judge, dict[tuple[str, ...], list[claims.Judgement]]()

    def judged(evidence: Sequence[results.Measured], *asked: Any) -> list[claims.Judgement]:
        if asked:
            return judge(evidence, *asked)
        key = tuple(record.digest for own in evidence for record in own.records)
        if key not in known:
            known[key] = judge(evidence)
        return [*known[key]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "judge", judged)
        yield


# Each takes a second or two: a third of them, another one of each page, is left to the quick tests. State by state,
# for what was read of one is kept as long as others are few.
@pytest.mark.parametrize(
    ("page", "state"),
    [
        pytest.param(page, state, marks=[pytest.mark.slow] * bool((number + place) % 3))
        for place, state in enumerate(STATES)
        for number, page in enumerate(NOTEBOOKS)
    ],
)
def test_a_page_reads_well_whatever_was_recorded(
    roots: dict[str, Path], page: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []
    told: list[numbers.Number] = []
    plain, write = cards.cards, numbers.Number.__str__
    monkeypatch.setattr(cards, "cards", lambda rows: shown.extend(rows) or plain(rows))
    monkeypatch.setattr(numbers.Number, "__str__", lambda number: told.append(number) or write(number))
    text = played(page, roots[state], monkeypatch)
    assert text
    assert not re.search(r"\bnan\b|\x00", text)
    assert {where: width for where, width in widths(text).items() if width > WIDEST} == {}
    for row in shown:
        assert row.verdict in claims.VERDICTS
        assert claim_tables.word(row) in text
    for number in told:
        assert "[" in write(number) or number.found.doubt or number.found.low == number.found.high or not number.found.n
    if state == "mixed" and "(card)" in text:
        assert text.index("(card)") < text.index("(box)"), "GPUs first"
