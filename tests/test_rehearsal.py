"""What a reader's file declares is told by a fresh process, and the one that judges never runs the file."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import command
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_own_book import give_ceilings

from hypatia_lab import records, variants, workloads
from hypatia_lab.bench import composer, sessions
from hypatia_lab.bench.sessions import Casualty
from hypatia_lab.judged import rehearsal
from hypatia_lab.strangers import reader_kernel
from hypatia_lab.strangers.reader_kernel import OwnError
from hypatia_lab.workloads import Workload

PATH = Path("tiny.py")
STRANGERS = Path(__file__).resolve().parent / "strangers"
EXAMPLES = int(os.environ.get("HYPATIA_EXAMPLES", "100"))
"""How many cases each property is tried on; the environment may ask for more."""
REPEATED = "HYPATIA_EXAMPLES" not in os.environ

TOLD: dict[str, Any] = {
    "name": "tiny",
    "summary": "y = silu(gate) * x",
    "dims": ["rows", "columns"],
    "shapes": [[8, 4], [16, 4]],
    "dtypes": ["float32", "bfloat16"],
    "flops": [160, 320],
    "traffic": [[384, 192], [768, 384]],
    "variants": [
        {"name": "mine", "origin": "own", "label": "mine", "splits": None, "operator": False},
        {"name": "yours", "origin": "own", "label": "yours", "splits": None, "operator": False},
        {"name": "split", "origin": "peer", "label": "by parts", "splits": ["bfloat16/ieee", 3], "operator": True},
    ],
}
"""What the file tells at two shapes and in two dtypes."""

pytestmark = pytest.mark.usefixtures("registry")


# ---------------------------------------------------------------- what is told


@pytest.mark.usefixtures("rehearsed_here")
def test_what_is_declared_is_what_is_registered(tmp_path, monkeypatch):
    path, told = STRANGERS / "tiny.py", []
    real = rehearsal.adopt
    monkeypatch.setattr(rehearsal, "adopt", lambda path, found, *asked: told.append(found) or real(path, found, *asked))
    own = rehearsal.rehearse(path, tmp_path / "log", 60.0, shapes=[(8, 4), (16, 4)], dtypes=["float32", "bfloat16"])
    assert told == [TOLD]
    assert (own.name, own.shapes, own.dtypes) == ("tiny", ((8, 4), (16, 4)), ("float32", "bfloat16"))
    assert own.variants == ("mine", "yours", "split")
    assert variants.baseline("tiny") == "eager"
    origins = {name: one.origin for name, one in variants.variants("tiny").items()}
    assert origins == {"eager": "peer", "compile": "peer", "mine": "own", "yours": "own", "split": "peer"}
    split = variants.find("tiny", "split")
    assert (split.label, split.splits, split.operator) == ("by parts", ("bfloat16/ieee", 3), True)
    groups = composer.plan(reader_kernel.experiment(path, own), "quick", "cpu")
    assert [(g.workload.shape_text, g.workload.dtype, g.workload.flops, g.workload.traffic) for g in groups] == [
        ("8x4", "bfloat16", 160, 192),
        ("8x4", "float32", 160, 384),
        ("16x4", "bfloat16", 320, 384),
        ("16x4", "float32", 320, 768),
    ]


def test_what_is_registered_has_nothing_to_run():
    rehearsal.adopt(PATH, TOLD)
    work = Workload("tiny", (8, 4))
    for call in (
        lambda: work.inputs("cpu"),
        lambda: work.spec.reference({}),
        *(lambda name=name: variants.find("tiny", name).factory(work, {}) for name in ("eager", "compile", "mine")),
    ):
        with pytest.raises(OwnError, match=r"tiny\.py: is not run in this process"):
            call()


@pytest.mark.usefixtures("rehearsed_here")
@pytest.mark.parametrize(
    ("shapes", "dtypes", "named"),
    [
        ([(4,)], (), "shape 4 of tiny must be rowsxcolumns"),
        ([], ("int8",), "'int8' of tiny"),
        ([(8, 4), (7, 4)], (), "flops of tiny fails at 7x4: ZeroDivisionError: "),
        ([], ("float32", "float16"), "traffic of tiny at 256x1024 is None"),
    ],
)
def test_shapes_and_dtypes_from_outside_are_checked_too(tmp_path, shapes, dtypes, named):
    path = Path(shutil.copy(STRANGERS / "tiny.py", tmp_path))
    amounts = "flops=lambda shape: 5 // (shape[0] - 7), traffic=lambda shape, size: 9 if size == 4 else None,"
    path.write_text(re.sub(r"flops=.*", amounts, path.read_text()))
    with pytest.raises(OwnError, match=named):
        rehearsal.rehearse(path, tmp_path / "log", 60.0, shapes=shapes, dtypes=dtypes)


# ---------------------------------------------------------------- what is not believed


NOT_AS_IT_MUST_BE: dict[str, list[Any]] = {
    "name": ["../up", "Tiny", ["tiny"]],
    "summary": ["", "\x1b[2J", "\ud800", "y" * 1001],
    "dims": [[], "rows", ["rows", 2]],
    "shapes": [[], [[8, 4], [16, 0]], [[8, 4], [16, True]], [[8, 4]] * 1001],
    "dtypes": [["float32", "float8"], [["float32"], "bfloat16"]],
    "flops": [[160], [160, 320.0], [160, -1], [160, 2**63]],
    "traffic": [[[384, 192], [768]], [[384, 192], [768, 0]], [384, 192]],
    "variants": [[], TOLD["variants"][2:], TOLD["variants"][:1] * 2],
}
NO_VARIANTS: list[dict[str, Any]] = [
    {"name": "eager"},
    {"name": "mine@again"},
    {"origin": "mine"},
    {"label": None},
    {"splits": ["bfloat16/ieee"]},
    {"operator": 1},
    {"baseline": True},
]
NOT_AS_IT_MUST_BE["variants"] += [[TOLD["variants"][0] | changed] for changed in NO_VARIANTS]


@pytest.mark.parametrize(("part", "found"), [(part, one) for part, all_ in NOT_AS_IT_MUST_BE.items() for one in all_])
def test_a_part_that_is_not_as_it_must_be_is_named(part, found):
    with pytest.raises(OwnError) as caught:
        rehearsal.adopt(PATH, TOLD | {part: found})
    assert str(caught.value) == f"tiny.py: what its process told of it is not as it must be: {part}"
    assert "tiny" not in {*workloads.operations(), *variants.registered()}


def test_what_was_not_asked_for_is_not_measured():
    with pytest.raises(OwnError, match="not as it must be: shapes"):
        rehearsal.adopt(PATH, TOLD, shapes=[(8, 4)])
    with pytest.raises(OwnError, match="not as it must be: dtypes"):
        rehearsal.adopt(PATH, TOLD, dtypes=["float32"])
    with pytest.raises(OwnError, match="shape 8x4 of tiny must be rows: it has 2 of 1"):
        rehearsal.adopt(PATH, TOLD | {"dims": ["rows"]})


@pytest.mark.parametrize("name", ["ceilings", "linear_relu", "method"])
def test_the_name_of_an_experiment_or_operation_is_not_taken_over(name):
    known = {*composer.EXPERIMENTS, *workloads.operations()}
    if name not in known:
        variants.variant(name, "mine", origin="own")(lambda workload, inputs: lambda: None)
    with pytest.raises(OwnError, match=f"operation name '{name}' is taken; choose another"):
        rehearsal.adopt(PATH, TOLD | {"name": name})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
HOSTILE = st.sampled_from(
    ["eager", "eager@again", "ceilings", "own", 10**30, 0, -1, True, 1.0, "\x1b]0;", "\u202e", []]
)


def places(found: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The keys that lead to every part of ``found``."""
    keys = found if isinstance(found, dict) else range(len(found)) if isinstance(found, list) else ()
    return [place for key in keys for place in ((*here, key), *places(found[key], (*here, key)))]


def holder(told: Any, place: tuple[Any, ...]) -> Any:
    """What holds the part of ``told`` to which the keys ``place`` lead."""
    for key in place[:-1]:
        told = told[key]
    return told


def adopted(told: Any) -> Any:
    """What is registered of ``told``; None where it is refused, in one line, and nothing is registered."""
    before = (workloads.operations(), {*variants.registered()})
    try:
        return rehearsal.adopt(PATH, told)
    except OwnError as cause:
        said = str(cause)
    assert said.isprintable()
    assert before == (workloads.operations(), {*variants.registered()})
    return None


@settings(max_examples=EXAMPLES, derandomize=REPEATED, deadline=None)
@given(JSON | st.fixed_dictionaries(dict.fromkeys(TOLD, JSON)))
def test_what_is_no_description_is_refused(told):
    assert adopted(told) is None


@settings(max_examples=EXAMPLES, derandomize=REPEATED, deadline=None)
@given(st.sampled_from(places(TOLD)), JSON | HOSTILE)
def test_a_description_that_was_meddled_with_is_refused_or_is_one(place, found):
    told = copy.deepcopy(TOLD)
    holder(told, place)[place[-1]] = found
    with variants.restored():
        own = adopted(told)
        if own is None:
            return
        assert re.fullmatch(reader_kernel.NAME, own.name)
        assert own.summary.isprintable()
        known = variants.variants(own.name)
        assert [name for name, one in known.items() if one.baseline] == ["eager"]
        assert (known["eager"].origin, known["compile"].origin) == ("peer", "peer")
        assert any(known[name].origin == "own" for name in own.variants)
        assert all(one.origin in variants.ORIGINS and one.label.isprintable() for one in known.values())
        for shape in own.shapes:
            for dtype in own.dtypes:
                work = Workload(own.name, shape, dtype)
                assert (type(work.flops), type(work.traffic)) == (int, int)
                assert work.flops >= 0
                assert work.traffic > 0


@settings(max_examples=EXAMPLES, derandomize=REPEATED, deadline=None)
@given(
    st.sampled_from([place for place in places(TOLD) if isinstance(place[-1], str)]), st.text(max_size=8), st.booleans()
)
def test_a_description_lacks_nothing_and_has_nothing_more(place, key, lacks):
    told, last = copy.deepcopy(TOLD), place[-1]
    own = holder(told, place)
    if lacks:
        del own[last]
    elif key in own:
        return
    else:
        own[key] = own[last]
    assert adopted(told) is None


# ---------------------------------------------------------------- the process


def stand_in(monkeypatch: pytest.MonkeyPatch, *events: dict[str, Any], ends: Casualty | None = None) -> None:
    """A process that says ``events`` and ``ends`` so; well, by default."""

    def run_session(*_: Any, on_event: Any, **__: Any) -> Casualty | None:
        for event in events:
            on_event(event)
        return ends

    monkeypatch.setattr(sessions, "run_session", run_session)


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([], "tiny.py: "),
        ([{"event": "declared"}], "tiny.py: what its process told of it is not as it must be: its parts"),
        ([{"event": "refused", "reason": "no\x1b[2J\ngood"}], "no [2J good"),
        ([{"event": "refused"}], "None"),
        ([{"event": "declared", "operation": TOLD}, {"event": "refused", "reason": "no"}], "no"),
        ([{"event": "declared", "operation": 7}, {"event": "declared", "operation": TOLD}], "tiny.py: "),
    ],
)
def test_a_process_that_does_not_tell_as_it_should_is_refused_in_one_line(monkeypatch, events, told):
    stand_in(monkeypatch, *events)
    with pytest.raises(OwnError) as caught:
        rehearsal.rehearse(PATH, Path("log"), 1.0)
    assert str(caught.value).startswith(told)
    assert str(caught.value).isprintable()


def test_a_file_whose_process_dies_is_refused(monkeypatch):
    stand_in(monkeypatch, {"event": "declared", "operation": TOLD}, ends=Casualty("tiny.py", "crashed", "it died so"))
    with pytest.raises(OwnError, match=r"^tiny\.py: .*it died so$"):
        rehearsal.rehearse(PATH, Path("log"), 1.0)


@pytest.mark.slow
def test_a_file_that_kills_whoever_imports_it_kills_another_process(tmp_path):
    with pytest.raises(OwnError, match=r"dies\.py: .* \(signal SIGSEGV\)"):
        rehearsal.rehearse(STRANGERS / "dies.py", tmp_path / "log.txt", 60.0)


def ran_elsewhere(folder: Path) -> bool:
    return int((folder / "scratch" / "pids").read_text()) != os.getpid()


def test_a_candidate_has_no_say_in_what_its_problem_declares(tmp_path):
    problem = STRANGERS / "exp_linear.py"
    own = rehearsal.rehearse(STRANGERS / "forger.py", tmp_path / "log.txt", 60.0, problem=problem)
    assert (own.name, own.variants) == ("kernelbench_exp_linear", ("model_new",))
    assert variants.find(own.name, "model_new").label == "ModelNew"
    assert ran_elsewhere(tmp_path)


@pytest.mark.usefixtures("two_processes", "timed_alike")
def test_a_file_that_changes_whoever_runs_it_does_not_change_the_record(tmp_path, monkeypatch):
    monkeypatch.setattr(json, "dumps", json.dumps)
    monkeypatch.setattr(records, "write", records.write)
    book = tmp_path / "book"
    # What the file's process may write to outlives the command here.
    monkeypatch.setattr(tempfile, "TemporaryDirectory", lambda: contextlib.nullcontext(str(tmp_path)))
    give_ceilings(book)
    given = f"--device cpu --machine box --shapes 8x4,16x4 --output {book} --no-page"
    found = command.call("judge", STRANGERS / "meddler.py", *given.split())
    assert found.code == 0, found.err
    (record,) = records.load(book / "book" / "records", experiments=["tiny"])
    names = ("eager", "eager@again", "compile", "mine", "yours", "split")
    assert [(cell["shape"], cell["variant"]) for cell in record.cells] == [
        ([rows, 4], name) for rows in (8, 16) for name in names
    ]
    assert {(cell["status"], *cell["medians_us"]) for cell in record.cells} == {("ok", *[50.0] * 5)}
    assert [cell["traffic"] for cell in record.cells] == [384] * 6 + [768] * 6
    assert ran_elsewhere(tmp_path)
