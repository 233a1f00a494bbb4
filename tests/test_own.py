"""A reader's own kernel: what a file may declare, what is said of one that does not work, and what is measured."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hypatia_lab import check, reader_kernel, records, variants
from hypatia_lab.bench import composer, joining
from hypatia_lab.book import own as own_book
from hypatia_lab.experiments import Source
from hypatia_lab.reader_kernel import OwnError
from hypatia_lab.workloads import Workload


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is forgotten when it ends."""
    monkeypatch.setattr(reader_kernel, "_DECLARED", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    with variants.restored():
        yield


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
        ("    depth=lambda shape: 1,  # terms summed up into one output; left out: the largest extent\n", ""),
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
    reader_kernel.load(write(tmp_path, ("import torch\n", "import torch\nfrom beside import SCALE\n")))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beside.py", "tiny.py"]


def test_what_is_installed_is_not_shadowed_by_a_neighbour(tmp_path):
    (tmp_path / "colorsys.py").write_text("raise RuntimeError('the wrong one')\n")
    sys.modules.pop("colorsys", None)
    reader_kernel.load(write(tmp_path, ("import torch\n", "import colorsys\n\nimport torch\n")))


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

OPERATION, VARIANT = '@operation(\n    "tiny",', '@variant("tiny", "mine", origin="own")'
RETURN = "return torch.nn.functional.silu(gate) * x"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("def draw(shape,", "def draw(shape,,", ":11: SyntaxError: invalid syntax"),
        ("import torch\n", "import torch\nimport no_such_thing\n", ":7: ModuleNotFoundError: No module named"),
        ("import torch\n", "import torch\nraise SystemExit(3)\n", ":7: SystemExit: 3"),
        ("import torch\n", "import torch\n1 / 0\n", ":7: ZeroDivisionError: division by zero"),
        (OPERATION, '@operation(\n    "linear_relu",', ": operation name 'linear_relu' is taken; choose another"),
        (OPERATION, '@operation(\n    "ceilings",', ": operation name 'ceilings' is taken; choose another"),
        (OPERATION, '@operation(\n    "../up",', ": operation name '../up' must be lower-case letters"),
        (OPERATION, "@operation(\n    7,", ": operation name 7 must be lower-case letters"),
        ('("rows", "columns")', '"rows"', ": dims of tiny must name the extents"),
        ('"256x1024"', '"256"', ": shape 256 of tiny must be rowsxcolumns: it has 1 of 2"),
        ('"256x1024"', '"wide"', ": shape 'wide' is not of the form"),
        ('"256x1024", "2048x1024"', "", ": tiny needs at least one shape"),
        ('("float32",)', '("float8",)', ": unknown dtype 'float8' of tiny; did you mean 'float64'?"),
        ("    inputs=draw,\n", "", ": TypeError: operation() missing 1 required keyword-only argument: 'inputs'"),
        ("inputs=draw,", "inputs=draw, roundings=0,", ": roundings of tiny must be a whole number of at least 1"),
        ('    """y = silu(gate) * x"""\n', "", ": the reference of tiny must be a function with a docstring"),
        ('{"gate": normal(), "x": normal()}', "normal()", ": inputs of tiny must return a dict of tensors"),
        ("def normal():", "shape[7]\n\n    def normal():", ": inputs of tiny fail at 256x1024: IndexError"),
        ("(gate, x):", "(gate):", ": the reference of tiny does not take its inputs gate, x: got an unexpected"),
        (RETURN, "return gate @ x", ": the reference of tiny fails at 256x1024 in float32: "),
        (RETURN, "return gate, x", ": the reference of tiny must return one tensor of floating-point numbers, not tup"),
        (RETURN, "return gate.argmax()", ": the reference of tiny must return one tensor of floating-point numbers"),
        ("5 * shape[0]", "0.5 * shape[0]", ": flops of tiny at 256x1024 is 131072.0, not a whole number from 0 on"),
        ("5 * shape[0]", "5 * shape[2]", ": flops of tiny fails at 256x1024: IndexError: tuple index out of range"),
        ("depth=lambda shape: 1,", "depth=lambda shape: 0,", ": depth of tiny at 256x1024 is 0, not a whole number"),
        (VARIANT, "", ": tiny has no variant of yours; decorate one with @hypatia_lab.variant('tiny', 'mine'"),
        (VARIANT, VARIANT.replace("own", "peer"), ": tiny has no variant of yours"),
        (VARIANT, VARIANT.replace("own", "mine"), ": unknown origin 'mine' of tiny/mine; known: author, seed, peer"),
        (VARIANT, VARIANT.replace("tiny", "tinny"), "unknown operation 'tinny'; did you mean 'tiny'"),
        (VARIANT, VARIANT.replace('"mine"', '"eager"'), ": variant name tiny/eager is taken or reserved"),
        (VARIANT, VARIANT.replace('"mine"', '"Mine!"'), ": variant name 'Mine!' must be lower-case letters"),
        (VARIANT, VARIANT.replace("tiny", "linear_relu"), ": variant 'mine' is of linear_relu, which is not this"),
    ],
)
def test_a_file_that_is_no_good_is_told_why_in_one_line(tmp_path, old, new, told):
    assert told in refused(write(tmp_path, (old, new)))


def test_a_fault_of_the_file_names_the_line_of_the_file(tmp_path):
    line = refused(write(tmp_path, (VARIANT, VARIANT.replace('"mine"', '"eager"'))))
    text = (tmp_path / "tiny.py").read_text().splitlines()
    number = int(line.split(":")[1])
    assert '"eager", origin' in text[number - 1]


def test_a_file_declares_one_operation_and_no_more(tmp_path):
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1\n")
    assert "declares no operation; decorate one reference with @hypatia_lab.operation" in refused(empty)
    both = tmp_path / "both.py"
    both.write_text(own_book.template("one.py") + own_book.template("two.py"))
    assert "declares one and two; one file, one operation" in refused(both)


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"x = '\xff'\n", ":1: SyntaxError: "), (b"\x00", ":1: "), (None, ": cannot be read (No such file or directory)")],
)
def test_what_is_no_program_is_told_so(tmp_path, content, told):
    path = tmp_path / "tiny.py"
    if content is not None:
        path.write_bytes(content)
    assert refused(path).startswith(told)


def test_a_folder_is_no_file(tmp_path):
    assert refused(tmp_path).startswith(": cannot be read (Is a directory)")


# ---------------------------------------------------------------- while it is measured


def test_a_file_that_was_changed_meanwhile_is_not_measured(tmp_path):
    path = write(tmp_path)
    before = reader_kernel.digest(path)
    path.write_text(path.read_text() + "\n")
    with pytest.raises(OwnError, match="was changed while it was being measured"):
        reader_kernel.load(path, before)


def kept(root: Path, spec: Any, **changes: Any) -> None:
    """A record of ``spec`` as it stands, which lacks nothing that would be measured."""
    run = {"kind": "run", "schema": records.SCHEMA, "machine": "box", "experiment": spec.name, "preset": "quick"}
    run |= {"device": "cpu", "started": "2025-01-01T00:00:00Z", "commit": "x", "dirty": False, "processes": 1}
    cells = []
    for group in composer.plan(spec, "quick", "cpu"):
        row = {"group": 0, "clock": "hot", "status": "ok", "reason": "", "error": 0.0}
        row |= {"max_error": 0.0, "median_us": 1e9, "samples_us": [], "calls": 1, "sm_mhz": [], "power_w": []}
        for name in group.variants:
            rows = [[row | {"variant": name, "throttled": False}]]
            cells.append(joining.cell(group, name, "hot", rows, 0, {}))
    records.write(root, run | {"facts": {}, "source": spec.source.digest} | changes, cells, overwrite=True)


def test_a_record_of_the_same_text_is_kept_and_of_another_one_is_not_taken_for_it(tmp_path):
    path = write(tmp_path)
    found = reader_kernel.load(path)
    spec = reader_kernel.experiment(path, found)

    def measure(spec: Any) -> records.Record:
        return composer.measure(spec, machine_name="box", root=tmp_path / "records", progress=False)

    kept(tmp_path / "records", spec)
    assert measure(spec).run["source"] == reader_kernel.digest(path)
    for other, told in (
        (reader_kernel.experiment(path, replace(found, shapes=((8, 8),))), "other shapes"),
        (reader_kernel.experiment(path, replace(found, dtypes=("float64",))), "other dtypes"),
        (replace(spec, source=Source(str(path), "0" * 12)), r"another version of tiny\.py"),
    ):
        with pytest.raises(
            composer.BenchError, match=f"tiny of box is recorded with {told}; measure again with --overw"
        ):
            measure(other)


def test_parts_of_another_text_are_not_mixed_in(tmp_path, monkeypatch):
    path = write(tmp_path)
    spec = reader_kernel.experiment(path, replace(reader_kernel.load(path), shapes=((4, 4),)))
    keys = []
    monkeypatch.setattr(composer, "Parts", lambda folder, key, chip: keys.append(key) or 1 / 0)
    monkeypatch.setattr(composer, "_own_ceilings", lambda *_: None)
    (tmp_path / "box" / "ceilings").mkdir(parents=True)
    (tmp_path / "box" / "ceilings" / "2025-01-01-cpu.jsonl").write_text("")
    for one in (spec, spec, replace(spec, source=Source(str(path), "0" * 12))):
        with pytest.raises(ZeroDivisionError):
            composer.measure(one, machine_name="box", root=tmp_path, progress=False)
    assert keys[0] == keys[1] != keys[2]
