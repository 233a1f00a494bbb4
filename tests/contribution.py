"""What tests of contributed records are made of: a contribution that nothing is wrong with, and what the check says."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from synthetic import cell_line, cells, detail_line, run_line

import hypatia_lab.operations  # noqa: F401  (registers)
from hypatia_lab import records
from hypatia_lab.contributed import checking, manifest, packing
from hypatia_lab.contributed.faults import Fault
from hypatia_lab.records import Record

Files = dict[str, bytes]
UUID = "GPU-8f6a2b1c-1234-5678-9abc-def012345678"
FACTS = {
    "name": "NVIDIA Test",
    "cpu": "A processor",
    "cores": 8,
    "system": "Linux x86_64",
    "capability": "9.0",
    "chip": "c0ffee",
    "driver": "580.159.04",
    "vbios": "94.02.42.00.01",
    "sm_mhz_max": 1980,
    "power_limit_w": 700.0,
    "versions": {"torch": "2.13.0+cu130", "cuda": "13.0", "cuda-core": "1.2.0.1"},
}
TRACE = {"traceEvents": [{"ph": "X", "name": "void at::native::relu<float, 4>(int)", "ts": 1.5, "dur": 2}]}
TRACED = json.dumps(TRACE).encode()


def run(experiment: str, **changes: Any) -> dict[str, Any]:
    """A run line of a GPU that there is not, by a commit of the right form."""
    own = {"experiment": experiment, "device": "cuda", "commit": "0123abc", "dirty": False, "facts": FACTS}
    return run_line(**own | changes)


def lines() -> dict[str, list[dict[str, Any]]]:
    """Cells and details by experiment: a copy and a product for ceilings, and a kernel with its A/A control."""
    size = 2**20
    work = {"dtype": "float32", "math": "ieee", "clock": "graph", "samples_us": [], "max_error": 1e-7}
    copy = cell_line(operation="copy", shape=[size], flops=0, traffic=8 * size, medians_us=[4.0, 4.0], **work)
    product = cells({"eager": 60.0}, "matmul", (1024, 1024, 1024), samples_us=[59.0, 61.0])
    own = cells({"eager": 200.0, "eager@again": 201.0, "naive": 900.0}, samples_us=[], sm_mhz=[1900.0], power_w=[600.0])
    own[1]["medians_us"].reverse()  # a twin that does not differ
    seen = [detail_line(values=[2.5, 3.5]), detail_line(name="launch", unit="us", reason="checked only")]
    return {"ceilings": [copy, *product], "naive_vs_cublas": [*own, *seen]}


def measured(root: Path, **changes: Any) -> Path:
    """The folder of records that a machine called ``box`` has left under ``root``, with one trace."""
    for name, rows in lines().items():
        own, details = ([one for one in rows if one["kind"] == kind] for kind in ("cell", "detail"))
        records.write(root, run(name, **changes), own, details)
    (root / "box" / "traces").mkdir()
    (root / "box" / "traces" / "relu-2x3-eager-trace.json.gz").write_bytes(gzip.compress(TRACED))
    return root / "box"


@pytest.fixture(scope="module", name="clean")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The files of a contribution that nothing is wrong with."""
    scratch = tmp_path_factory.mktemp("clean")
    measured(scratch)
    packed = packing.pack("box", scratch, scratch / "out", known=[])
    assert packed.report.faults == []
    assert (packed.left_out, packed.taken_out) == ([], {})
    return read(packed.folder)


def read(folder: Path) -> Files:
    """Every file below ``folder`` by its name."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


Faults = Callable[..., list[Fault]]


@pytest.fixture(scope="module", name="faults")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    """What the check says of a folder with some files, which ``prepare`` may change, beside ``known`` records."""
    folder = tmp_path_factory.mktemp("desk") / "box"

    def check(files: Files, known: Sequence[Record] = (), prepare: Callable[[Path], Any] = lambda folder: None):
        shutil.rmtree(folder, ignore_errors=True)
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        prepare(folder)
        return checking.check(folder, known).faults

    return check


def names(found: Iterable[Fault]) -> set[str]:
    """The names of some faults."""
    return {one.name for one in found}


def sealed(files: Files) -> Files:
    """``files`` with a manifest that has their digests, as one who knows how it is made would send them."""
    told = json.loads(files[manifest.NAME])
    own = set(files) - {manifest.NAME, manifest.LETTER}
    kinds = {"traces": {one for one in own if one.startswith("traces/")}}
    kinds["records"] = own - kinds["traces"]
    told |= {kind: {name: manifest.digest(files[name]) for name in of} for kind, of in kinds.items()}
    return files | {manifest.NAME: json.dumps(told).encode()}


def edited(files: Files, name: str, number: int, edit: Callable[[dict[str, Any]], Any]) -> Files:
    """``files`` with line ``number`` (from 0) of a record changed by ``edit``, and sealed again."""
    rows = [json.loads(line) for line in files[name].splitlines()]
    edit(rows[number])
    text = "".join(checking.written(row) + "\n" for row in rows)
    return sealed(files | {name: text.encode()})


def set_to(*path: Any, value: Any) -> Callable[[Any], None]:
    """An edit that puts ``value`` at ``path`` of a line."""

    def edit(row: Any) -> None:
        for key in path[:-1]:
            row = row[key]
        row[path[-1]] = value

    return edit
