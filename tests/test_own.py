"""A reader's own kernel: what a file may declare, what is said of one that does not work, and what is measured."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from synthetic import ceilings, run_line
from tabled import tabled

from hypatia_lab import check, records, variants
from hypatia_lab.bench import composer, joining
from hypatia_lab.book import own as own_book
from hypatia_lab.experiments import Experiment, Source
from hypatia_lab.strangers import reader_kernel
from hypatia_lab.strangers.reader_kernel import OwnError
from hypatia_lab.workloads import Workload

pytestmark = pytest.mark.usefixtures("registry")


def write(folder: Path, *changes: tuple[str, str], name: str = "tiny.py") -> Path:
    """The template in ``folder``, with texts replaced."""
    text = own_book.template(name)
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refused(path: Path) -> str:
    """What is said of a file that is no good; always one line that names it."""
    with pytest.raises(OwnError) as caught:
        reader_kernel.load(path)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{path}:")
    return line.removeprefix(str(path))


# ---------------------------------------------------------------- what a file declares


def test_the_template_runs_as_it_stands(tmp_path):
    found = reader_kernel.load(write(tmp_path))
    assert (found.name, found.variants, found.dtypes) == ("tiny", ("mine",), ("float32",))
    assert found.summary == "y = silu(gate) * x"
    for dtype in ("float64", "float32", "bfloat16", "float16"):
        problem = check.Problem(Workload("tiny", (33, 77), dtype), "cpu")
        for name in ("eager", "mine"):
            run = variants.find("tiny", name).factory(problem.workload, problem.inputs)
            assert check.check(run, problem).reason == "", (name, dtype)


def test_the_reference_is_computed_in_float64_and_integers_stay_integers(tmp_path):
    path = write(
        tmp_path,
        ('{"gate": normal(), "x": normal()}', '{"x": normal(), "at": torch.arange(rows, device=device)}'),
        ("def tiny(gate, x):", "def tiny(x, at, extra=1.0):"),
        ("return torch.nn.functional.silu(gate) * x", "return extra * x[at.flip(0)]"),
    )
    reader_kernel.load(path)
    workload = Workload("tiny", (4, 6), "bfloat16")
    problem = check.Problem(workload, "cpu")
    assert problem.reference().dtype == torch.float64
    assert torch.equal(problem.reference(), problem.inputs["x"].flip(0).double())
    # 24 numbers of 2 bytes read and written, and 4 whole numbers of 8.
    assert workload.traffic == 2 * 24 * 2 + 4 * 8
    assert replace(workload, dtype="float32").traffic == 2 * 24 * 4 + 4 * 8


def test_bytes_and_tolerance_have_defaults_that_the_file_may_replace(tmp_path):
    left_out = write(
        tmp_path,
        ("    depth=1,  # terms summed up into one output; left out: the largest extent\n", ""),
        ("    flops=lambda shape: 5 * shape[0] * shape[1],", "    roundings=9,"),
    )
    reader_kernel.load(left_out)
    free = Workload("tiny", (16, 64))
    assert (free.flops, free.traffic) == (0, 3 * 16 * 64 * 4)
    assert free.tolerance() == pytest.approx(2 * 2**-24 * (64**0.5 + 9**0.5))
    given = write(tmp_path, ("inputs=draw,", "inputs=draw, traffic=lambda shape, size: 7 * size,"), name="other.py")
    reader_kernel.load(given)
    told = Workload("other", (16, 64))
    assert (told.flops, told.traffic) == (5 * 16 * 64, 7 * 4)
    assert told.tolerance() == pytest.approx(2 * 2**-24 * (1 + reader_kernel.ROUNDINGS**0.5))


def test_a_file_may_import_its_neighbours_and_nothing_is_written_beside_it(tmp_path):
    (tmp_path / "beside.py").write_text("SCALE = 1.0\n")
    (tmp_path / "colorsys.py").write_text("raise RuntimeError('what is installed comes first')\n")
    sys.modules.pop("colorsys", None)
    reader_kernel.load(write(tmp_path, ("import torch\n", "import colorsys\nimport torch\nfrom beside import SCALE\n")))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beside.py", "colorsys.py", "tiny.py"]


def test_a_file_is_shown_in_the_encoding_that_it_declares(tmp_path):
    path = write(tmp_path)
    path.write_bytes(b"# -*- coding: latin-1 -*-\n# gr\xfcn\n" + path.read_bytes())
    assert reader_kernel.load(path).name == "tiny"
    assert reader_kernel.text(path).splitlines()[1] == "# grün"
    path.write_bytes(b"# -*- coding: ascii -*-\n# gr\xfcn\n")
    for read in (reader_kernel.load, reader_kernel.text):
        with pytest.raises(OwnError, match=f"{path}:1: "):
            read(path)


def test_every_group_has_the_baselines_a_control_and_the_readers_variants(tmp_path):
    path = write(tmp_path)
    own = replace(reader_kernel.load(path), dtypes=("float32", "bfloat16"))
    spec = reader_kernel.experiment(path, own)
    groups = composer.plan(spec, "quick", "cpu")
    assert [(g.workload.shape_text, g.workload.dtype) for g in groups] == [
        (shape, dtype) for shape in ("256x1024", "2048x1024") for dtype in ("bfloat16", "float32")
    ]
    assert {g.variants for g in groups} == {("eager", "eager@again", "compile", "mine")}
    assert {g.clocks for g in groups} == {("hot",)}
    assert {g.clocks for g in composer.plan(spec, "quick", "cuda")} == {("graph", "wall")}
    assert spec.source == Source(str(path), reader_kernel.digest(path))


# ---------------------------------------------------------------- what is said of a file that is no good


@tabled("own", "no_good")
def test_a_file_that_is_no_good_is_told_why_in_one_line(tmp_path, old, new, named):
    assert named in refused(write(tmp_path, (old, new)))


def test_a_fault_of_the_file_names_the_line_of_the_file(tmp_path):
    line = refused(write(tmp_path, ('"mine", origin', '"eager", origin')))
    text = (tmp_path / "tiny.py").read_text().splitlines()
    assert '"eager", origin' in text[int(line.split(":")[1]) - 1]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"x = '\xff'\n", ":1: SyntaxError: "),
        (b"\x00", ":1: "),
        (b"x = 1\n", "@hypatia_lab.operation"),
        ((own_book.template("one.py") + own_book.template("two.py")).encode(), "one and two"),
    ],
)
def test_what_is_no_program_or_not_one_operation_is_told_so(tmp_path, content, named):
    (tmp_path / "tiny.py").write_bytes(content)
    assert named in refused(tmp_path / "tiny.py")
    for path, cause in (("none.py", errno.ENOENT), (".", errno.EISDIR)):
        assert os.strerror(cause) in refused(tmp_path / path)


# ---------------------------------------------------------------- while it is measured


def test_a_file_that_was_changed_meanwhile_is_not_measured(tmp_path):
    path = write(tmp_path)
    before = reader_kernel.digest(path)
    path.write_text(path.read_text() + "\n")
    with pytest.raises(OwnError, match=r"tiny\.py: was changed"):
        reader_kernel.load(path, before)


@pytest.fixture
def measure(tmp_path: Path, timed_alike: list[dict[str, Any]]) -> Callable[[Experiment], records.Record]:
    """Measures on machine ``box``, of which ceilings are known."""
    records.write(tmp_path, run_line(experiment="ceilings"), ceilings({"ieee": 1e6}, "hot"))
    return lambda spec: composer.measure(spec, machine_name="box", root=tmp_path, progress=False)


def test_a_record_of_the_same_text_is_kept_and_of_another_one_is_not_taken_for_it(tmp_path, measure, timed_alike):
    path = write(tmp_path)
    found = reader_kernel.load(path)
    spec = reader_kernel.experiment(path, found)
    record = measure(spec)
    assert {record.run["source"], *(cell["sources"] for cell in record.cells)} == {reader_kernel.digest(path)}
    processes = len(timed_alike)
    assert measure(spec).run["source"] == reader_kernel.digest(path)
    for other, named in (
        (reader_kernel.experiment(path, replace(found, shapes=((8, 8),))), "shapes"),
        (reader_kernel.experiment(path, replace(found, dtypes=("float64",))), "dtypes"),
        (replace(spec, source=Source(str(path), "0" * 12)), r"tiny\.py"),
    ):
        with pytest.raises(composer.BenchError, match=f"tiny of box .*{named}.* --overwrite"):
            measure(other)
    assert len(timed_alike) == processes


def test_parts_of_another_text_are_not_mixed_in(tmp_path, measure, timed_alike, monkeypatch):
    path = write(tmp_path)
    spec = reader_kernel.experiment(path, replace(reader_kernel.load(path), shapes=((4, 4),)))
    other = replace(spec, source=Source(str(path), "0" * 12))
    monkeypatch.setattr(joining, "cells", lambda *_: 1 / 0)  # all was measured then, and no record is written
    numbers = []
    for one in (spec, spec, other):
        with pytest.raises(ZeroDivisionError):
            measure(one)
        numbers.append(len(timed_alike))
    assert numbers[0] == numbers[1] < numbers[2]
