"""What made a record: the versions of clock, check and plan, and the sources that each cell ran."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from measuring import LARGE, NAMES, SMALL, by_variant, group

from hypatia_lab import check, clock, records, variants
from hypatia_lab.bench import sources
from hypatia_lab.experiments import plan
from hypatia_lab.experiments.instrument import PRESENT

BOTH = (group(SMALL), group(LARGE))
WATCHED = ("diffraction", "conv_block", "linear_relu", "mlp2", "norm_chain", "unet")
READERS = "0123456789ab"


# ---------------------------------------------------------------- versions


@pytest.mark.parametrize("part", [clock, check, plan])
def test_every_version_has_its_line_and_the_last_one_is_the_present(part):
    assert [*part.VERSIONS] == [*range(1, part.VERSION + 1)]
    assert all(line.startswith("20") for line in part.VERSIONS.values())


def test_a_new_record_has_the_numbers_and_one_of_before_is_read_without(lab):
    record = lab.measure()
    assert record.run["instrument"] == {part.__name__.rpartition(".")[2]: part.VERSION for part in (clock, check, plan)}
    (old,) = records.load(lab.root, experiments=["ceilings"])
    assert "instrument" not in old.run


# ---------------------------------------------------------------- sources


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what computes in the package."""
    copy = tmp_path_factory.mktemp("copy")
    for name in sources.COMPUTING:
        if (sources.PACKAGE / name).is_dir():
            shutil.copytree(sources.PACKAGE / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(sources.PACKAGE / f"{name}.py", copy)
    return copy


def digests(package: Path) -> dict[str, str]:
    """``operation/variant`` → digest."""
    variants.load()
    known = [one for operation in WATCHED for one in variants.variants(operation).values()]
    return {f"{one.operation}/{one.name}": sources.digest(one, package) for one in known}


@pytest.fixture(scope="module")
def before(package: Path) -> dict[str, str]:
    """The digests of the package as it is."""
    return digests(package)


@pytest.mark.parametrize(
    ("file", "operations", "alters", "leaves"),
    [
        ("kernels/diffraction/diffraction.cu", {"diffraction"}, "cuda c_openmp", "eager compile"),
        ("kernels/conv_block/conv_block.cu", {"conv_block"}, "naive dispatched", "eager whole jax"),
        ("kernels/ladder/tensor_cores.cuh", {"linear_relu"}, "step_mma dispatched", "eager cuda naive"),
        ("operations/norm_chain.py", {"norm_chain"}, "eager compile", ""),
        ("nn.py", {"unet"}, "egraph", "eager compile"),
    ],
)
def test_a_changed_source_changes_the_digest_of_who_runs_it_and_of_no_other_operation(
    package, before, file, operations, alters, leaves
):
    text = (package / file).read_text()
    (package / file).write_text(text + ("# changed\n" if file.endswith(".py") else "// changed\n"))
    after = digests(package)
    (package / file).write_text(text)
    altered = {key for key in before if after[key] != before[key]}
    assert {key.partition("/")[0] for key in altered} == operations
    (operation,) = operations
    assert {f"{operation}/{name}" for name in alters.split()} <= altered
    assert altered.isdisjoint(f"{operation}/{name}" for name in leaves.split())


def test_who_imports_another_operations_kernels_runs_them_too(package, before):
    shared = package / "kernels/linear_relu/linear_relu_triton.py"
    text = shared.read_text()
    shared.write_text(text + "# changed\n")
    after = digests(package)
    shared.write_text(text)
    assert after["conv_block/triton"] != before["conv_block/triton"]
    assert after["conv_block/naive"] == before["conv_block/naive"]


@pytest.fixture
def mine() -> Iterator[Any]:
    """A variant ``mine`` of Linear+ReLU that a reader's file makes, this one."""
    with variants.restored():
        variants.variant("linear_relu", "mine", origin="own")(lambda work, inputs: lambda: inputs["x"])
        yield


def test_what_a_readers_file_makes_has_that_files_digest_and_the_labs_have_their_own(mine):
    groups = [group(SMALL, ("eager", "mine", "naive@again"))]
    found = sources.of(groups, READERS)
    assert found["linear_relu", "mine"] == {"sources": READERS}
    for name in ("eager", "naive@again"):
        assert found["linear_relu", name] == {"sources": sources.digest(variants.find("linear_relu", name))}
    assert sources.of(groups)["linear_relu", "mine"] == {}


def test_every_cell_says_what_it_ran(lab):
    found = by_variant(lab.measure())
    told = {name: sources.digest(variants.find("linear_relu", name)) for name in NAMES}
    assert {name: cell["sources"] for name, cell in found.items()} == told


# ---------------------------------------------------------------- a record that grows


def test_what_another_instrument_adds_is_told_beside_what_was_there(lab, monkeypatch):
    first = lab.measure(group(SMALL, NAMES[:2]))
    monkeypatch.setitem(PRESENT, "clock", PRESENT["clock"] + 1)
    monkeypatch.setattr(sources, "digest", lambda one: READERS)
    grown = lab.measure(*BOTH)
    assert grown.run["instrument"] == first.run["instrument"] != PRESENT
    assert [since["instrument"] for since in grown.run["grown"]] == [PRESENT]
    found = {(tuple(cell["shape"]), cell["variant"]): cell.get("sources") for cell in grown.cells}
    assert found[SMALL, "eager"] is None, "timed again, of another text, to compare epilogue with"
    assert found[SMALL, "eager@again"] == first.cells[1]["sources"] != READERS
    assert found[SMALL, "epilogue"] == found[LARGE, "eager"] == READERS


def test_what_a_record_of_before_does_not_say_is_not_filled_in(lab):
    new = lab.measure(group(SMALL, NAMES[:2]))
    run = {name: value for name, value in new.run.items() if name != "instrument"}
    cells = [{name: value for name, value in cell.items() if name != "sources"} for cell in new.cells]
    records.write(lab.root, run, cells, overwrite=True, at=new.path)
    grown = lab.measure()
    assert "instrument" not in grown.run
    assert [since["instrument"] for since in grown.run["grown"]] == [PRESENT]
    assert {cell["variant"] for cell in grown.cells if "sources" in cell} == {"epilogue"}
