"""Contributed records: what is packed tells nobody's name and is taken; what was tampered with is refused by name."""

from __future__ import annotations

import gzip
import json
import math
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import call, files_below, refused
from contribution import (  # noqa: F401  (the fixtures faults and clean)
    FACTS,
    TRACE,
    TRACED,
    UUID,
    Faults,
    Files,
    checked,
    edited,
    lines,
    measured,
    names,
    read,
    run,
    sealed,
    set_to,
    sound,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from synthetic import cells, said

import hypatia_lab.operations  # noqa: F401  (registers)
from hypatia_lab import claims, formats, machine, older, records, results
from hypatia_lab.contributed import bounded, checking, manifest, packing, plausible, private
from hypatia_lab.contributed.faults import NAMES
from hypatia_lab.records import COMMITTED, Record
from hypatia_lab.tables.claims import verdict_text


@pytest.fixture(scope="module", autouse=True)
def no_history() -> Iterator[None]:
    """Commits are checked by their form, unless a test says otherwise."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checking, "history", lambda: None)
        yield


# ---------------------------------------------------------------- round trips


@pytest.mark.parametrize("name", ["epyc-2c", "h200"])
def test_committed_records_come_out_whole_and_are_taken(tmp_path: Path, committed_records: list[Record], name: str):
    packed = packing.pack(name, COMMITTED, tmp_path, known=committed_records)
    assert packed.report.faults == []
    assert packed.taken_out == {}
    before = {one.experiment: one for one in committed_records if one.machine == name}
    after = {one.experiment: one for one in records.load(packed.folder)}
    dropped = [text for text in packed.left_out if text.startswith("the records of")]
    assert set(after) <= set(before)
    assert len(before) - len(after) <= len(dropped)  # one at most, of the largest machine there is
    for experiment, found in after.items():
        own = [cell | {"samples_us": []} for cell in found.cells]
        assert own == [cell | {"samples_us": []} for cell in before[experiment].cells]
        assert (found.run, found.details) == (before[experiment].run, before[experiment].details)
        assert found.digest == before[experiment].digest or any("raw samples" in text for text in packed.left_out)
    assert sum(map(len, read(packed.folder).values())) <= bounded.MAX_BYTES
    if name == "epyc-2c":
        letter = (packed.folder / manifest.LETTER).read_text(encoding="utf-8")
        ensure_said(letter, list(after.values()), committed_records)


def ensure_said(text: str, own: list[Record], known: list[Record]) -> None:
    """The ``text`` of a pull request says what its ``own`` records say."""
    (control,) = results.agreement(own)
    assert f"{control['differences']} of {control['pairs']} pairs" in text
    assert all(f"| {record.experiment} | {record.run['preset']} |" in text for record in own)
    judged = claims.statements(claims.judge(results.measured(own), beside=results.measured(known)))
    counts = Counter(row.verdict for row in judged if row.machine == own[0].machine)
    table = dict(line.strip("| ").split(" | ")[:2] for line in text.splitlines() if line.startswith("| "))
    assert {verdict_text(name): str(count) for name, count in counts.items()}.items() <= table.items()
    assert formats.scaled(results.ceilings(own)["copy", "", "cold"], "B/s") in text


def test_a_synthetic_contribution_is_clean_and_its_manifest_is_that_of_its_records(clean: Files, faults: Faults):
    assert faults(clean) == []
    told = json.loads(clean[manifest.NAME])
    assert (told["machine"], told["model"]) == ("box", "NVIDIA Test")
    assert told["versions"] == {"torch": ["2.13.0+cu130"], "cuda": ["13.0"], "driver": ["580.159.04"]}
    assert told["control"]["pairs"] == 1
    assert {*told["records"], *told["traces"]} == set(clean) - {manifest.NAME, manifest.LETTER}


def test_what_does_not_fit_is_left_out_traces_first_and_ceilings_last(
    clean: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    measured(tmp_path / "mine")
    sizes = {name: 200 + len(data) for name, data in clean.items() if name not in (manifest.NAME, manifest.LETTER)}
    samples = clean["ceilings.jsonl"].count(b"59.0,61.0") * len("59.0,61.0")
    steps = {
        "1 of 1 traces": sizes[TRACE_FILE],
        "raw samples of 1 of 2 records": samples,
        "the records of naive_vs_cublas": sizes[RECORD],
    }
    room = 10_000 + sum(sizes.values())
    for number, (told, spared) in enumerate(steps.items(), start=1):
        monkeypatch.setattr(bounded, "MAX_BYTES", room - 1)
        packed = packing.pack("box", tmp_path / "mine", tmp_path / told, known=[])
        assert (packed.left_out, packed.report.faults) == ([*steps][:number], [])
        room -= spared
    monkeypatch.setattr(bounded, "MAX_BYTES", room - 1)
    with pytest.raises(packing.ContributionError, match="not even one"):
        packing.pack("box", tmp_path / "mine", tmp_path / "none", known=[])


# ---------------------------------------------------------------- private


PRIVATE = {
    "path": ["/home/ann/src/kernel.cu", "C:\\Users\\ann\\k.cu", "~/k.cu", "/scratch/ann/k.cu", "/root/k.cu"],
    "address": ["ann@example.org", "ann@gpu01"],
    "UUID": ["8f6a2b1c-1234-5678-9abc-def012345678", "0123456789abcdef0123456789abcdef"],
    "GPU UUID": [UUID],
    "IP address": ["192.168.1.17", "2001:db8::17", "fe80::1"],
    "hardware address": ["0a:1b:2c:3d:4e:5f"],
    "host name": ["gpu01.corp.example.com", "ip-10-0-0-12", "node7.cluster"],
    "URL": ["http://git.example/ann/x"],
}
PLAIN = [
    "void at::native::vectorized_elementwise_kernel<4, c10::Add, std::array<char*, 3ul> >(int, c10::add)",
    "wrong values: off by 5.6e-05 of the peak, at most 5.0e-05 is right; 1 of 65536 elements (rows 66–66 of 256)",
    "linear_relu/1024x784x2048/float32/ieee eager@again 580.159.04 2026-11-23T15:53:14Z 835 GB/s and/or 1/2 ~ 3/4",
    "please file an issue at https://github.com/pytorch/pytorch/issues",
    "torch.nn.functional, triton_poi_fused__to_copy_add_0, nvjet_sm90_tst_64x8_64x16_2x4_h_bz_bias_TNT",
]


@pytest.mark.parametrize("text", PLAIN)
def test_what_records_say_is_not_private(text: str):
    assert private.found(text) == []
    assert private.scrubbed(text) == (text, [])


def test_every_fact_that_the_lab_writes_of_a_processor_may_be_told():
    assert set(machine.facts("cpu")) <= set(private.FACTS)


secrets = st.sampled_from([(what, text) for what, texts in PRIVATE.items() for text in texts])
sentences = st.lists(
    st.one_of(st.text(max_size=5), secrets.map(lambda one: one[1]), st.sampled_from(PLAIN)), max_size=5
)


@settings(max_examples=250, deadline=None)
@given(sentences, st.sampled_from(["", " ", "'", ", ", ": "]))
@example(["fe80::1", "gpu01.corp.example.com"], "")
def test_nothing_private_is_left_in_a_text_that_was_scrubbed(words: list[str], gap: str):
    text, gone = private.scrubbed(gap.join(words), frozenset(["ann-desktop"]))
    assert private.found(text, frozenset(["ann-desktop"])) == []
    assert bool(gone) == (text != gap.join(words))


RECORD, TRACE_FILE = "naive_vs_cublas.jsonl", "traces/relu-2x3-eager-trace.json.gz"
Told = Callable[[str], Any]


def record_with(*path: Any, line: int = 4, made: Told = lambda told: told) -> Callable[[Files, str], tuple[str, Files]]:
    """Puts what is ``made`` of a text at ``path`` of a ``line`` of a record; gives the file's name and all files."""
    return lambda files, told: (RECORD, edited(files, RECORD, line, set_to(*path, value=made(told))))


def file_with(name: str, change: Callable[[bytes, str], bytes]) -> Callable[[Files, str], tuple[str, Files]]:
    """Changes a file's bytes by a text, in a contribution that is not sealed anew but for a trace."""
    seal = sealed if name == TRACE_FILE else lambda files: files
    return lambda files, told: (name, seal(files | {name: change(files[name], told)}))


PROGRAM = {"repository": "a/b", "commit": "0" * 40, "files": {}}


PLACES = [
    *(record_with(key) for key in ("reason", "case", "name")),
    record_with("facts", "cpu", line=0),
    record_with("facts", "versions", "torch", line=0),
    record_with("provenance", line=0, made=lambda told: [PROGRAM | {"licence": told}]),
    file_with(TRACE_FILE, lambda data, told: gzip.compress(json.dumps(TRACE | {"host": [told]}).encode())),
    file_with(manifest.NAME, lambda data, told: json.dumps(json.loads(data) | {"left_out": [told]}).encode()),
    file_with(manifest.LETTER, lambda data, told: data + told.encode()),
]


@settings(max_examples=150, deadline=None)
@given(secrets, st.sampled_from(PLACES))
def test_a_private_fact_is_found_wherever_it_stands(clean: Files, faults: Faults, secret: tuple[str, str], put: Any):
    what, words = secret
    file, files = put(clean, f"failed: {words} is there")
    found = [one for one in faults(files) if one.file == file and one.name == "private"]
    assert any(one.told.startswith(what) and words.split("/")[0] in one.told for one in found)


def test_what_is_private_is_taken_out_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(private, "own_names", lambda: frozenset({"annsbox"}))
    facts = FACTS | {"chip": UUID, "hostname": "annsbox", "user": "ann", "cpu": "A processor of annsbox"}
    own_files = {"/home/ann/a.cu": "1" * 40, "/home/ann/b.cu": "2" * 40, "src/c.cu": "3" * 40}
    program = PROGRAM | {"licence": "see /home/ann/LICENSE", "files": own_files}
    folder = measured(tmp_path, facts=facts, provenance=[program])
    path = said(records.leading(folder, "naive_vs_cublas"))
    path.write_text(path.read_text().replace("checked only", f"by ann@example.org on {UUID}, annsbox"))
    trace = next((folder / "traces").iterdir())
    trace.write_bytes(gzip.compress(json.dumps(TRACE | {"where": "/home/ann/trace"}).encode()))
    packed = packing.pack("box", tmp_path, tmp_path / "out", known=[])
    assert packed.report.faults == []
    (found,) = records.load(packed.folder, experiments=["naive_vs_cublas"])
    told = {"chip": machine.chip(UUID), "cpu": "A processor of <name of host or user>"}
    assert found.run["facts"] == FACTS | told
    assert found.details[1]["reason"] == f"by <address> on <chip {machine.chip(UUID)}>, <name of host or user>"
    (own,) = found.run["provenance"]
    assert own["licence"] == "see <path>"
    assert sorted(own["files"].values()) == sorted(own_files.values())
    whole = [gzip.decompress(data) if name.endswith(".gz") else data for name, data in read(packed.folder).items()]
    for word in (b"ann@", b"annsbox", b"/home", UUID.encode(), b"hostname"):
        assert word not in b"".join(whole)
    kinds = {"path", "address", "GPU UUID", "name of host or user", "fact hostname", "fact user"}
    assert set(packed.taken_out) == kinds
    assert b"annsbox" in path.read_bytes()  # the owner's own stay as they are


def test_who_is_called_as_the_lab_calls_something_can_contribute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(private, "own_names", lambda: frozenset({"matmul"}))
    measured(tmp_path)
    packed = packing.pack("box", tmp_path, tmp_path / "out", known=of_model("NVIDIA Test"))
    assert (packed.report.faults, packed.taken_out) == ([], {})


# ---------------------------------------------------------------- refused by name


CELLS, DETAILS, RUN = (1, 2, 3), (4, 5), (0,)
ABSURD: list[tuple[tuple[Any, ...], st.SearchStrategy[Any] | list[Any], tuple[int, ...], set[str]]] = [
    (("medians_us",), st.floats(1e-3, 0.1).map(lambda us: [us, us]), CELLS, {"rate"}),
    (("medians_us", 0), [0, 0.0, -1.0, 1e30, float("nan"), float("inf"), "1", True, []], CELLS, {"schema"}),
    (("samples_us",), (st.floats(5e3, 1e9) | st.floats(1e-3, 10)).map(lambda us: [us]), CELLS, {"time"}),
    (("flops",), st.integers(10**11, 10**12), CELLS, {"work"}),
    (("traffic",), st.integers(0, 10**6), CELLS, {"work"}),
    (("shape", 0), st.integers(2**21, 10**20), CELLS, {"work"}),
    (("shape",), [[7]], CELLS, {"work"}),
    (("sm_mhz", 0), st.one_of(st.floats(-1e9, -1e-3), st.floats(2100, 1e12)), CELLS, {"time"}),
    (("power_w", 0), st.one_of(st.floats(-1e9, -1e-3), st.floats(1051, 1e12)), CELLS, {"time"}),
    (("outliers", "severe"), [3], CELLS, {"time"}),
    (("splits",), [["a", 0], [[], {}], ["a", "b"], [1, 2]], CELLS, {"schema"}),
    (("values", 0), st.floats(-1e12, -1e-9), DETAILS, {"time"}),
    (("commit",), ["unknown", "main", "", "0123", "-h", "HEAD", "0" * 41], RUN, {"commit"}),
    (("started",), ["2099-01-01T00:00:00Z", "2098-12-31T23:59:59Z"], RUN, {"date"}),
    (("started",), ["yesterday", "", "2025-01-01", "9999", "2025-01-01T00:00Z"], RUN, {"schema"}),
    (("facts", "name"), ["NVIDIA Other"], RUN, {"machine"}),
    (("machine",), ["other"], RUN, {"schema"}),
    *((("facts", key), ["x"], RUN, {"schema"}) for key in ("hostname", "serial", "uuid")),
    (("facts", "cpu"), ["\x1b[2J"], RUN, {"schema"}),
    (("facts", "chip"), [UUID], RUN, {"schema", "private"}),
    (("preset",), ["seed"], RUN, {"manifest"}),
    (("dirty",), [True], RUN, {"manifest"}),
    (("cells",), st.integers(4, 10**9), RUN, {"schema"}),
]
"""Where in which lines of a record, what stands there, and the names of the faults of which each must be told."""


@settings(max_examples=250, deadline=None)
@given(st.data(), st.sampled_from(ABSURD))
def test_an_absurd_contribution_is_refused_by_name_though_its_digests_are_right(
    clean: Files, faults: Faults, data: st.DataObject, case: Any
):
    path, values, at, expected = case
    value = data.draw(st.sampled_from(values) if isinstance(values, list) else values)
    line = data.draw(st.sampled_from(at))
    found = faults(edited(clean, RECORD, line, set_to(*path, value=value)))
    assert expected <= names(found)
    assert {one.file for one in found} <= {RECORD, manifest.NAME, "."}
    assert all(str(one).isprintable() for one in found)
    assert line in RUN or any(one.file == RECORD and one.line == line + 1 for one in found)


CHANGES: dict[str, Callable[[bytes, int, Any], bytes]] = {
    "cut": lambda whole, at, draw: whole[:at],
    "flip": lambda whole, at, draw: whole[:at] + bytes([whole[at] ^ draw(st.integers(1, 255))]) + whole[at + 1 :],
    "insert": lambda whole, at, draw: whole[:at] + draw(st.binary(min_size=1, max_size=3)) + whole[at:],
    "drop": lambda whole, at, draw: whole[:at] + whole[at + 1 :],
}


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_change_of_bytes_is_refused(clean: Files, faults: Faults, data: st.DataObject):
    name = data.draw(st.sampled_from(sorted(set(clean) - {manifest.LETTER})))
    whole = clean[name]
    at = data.draw(st.integers(0, len(whole) - 1))
    new = data.draw(st.sampled_from([*CHANGES.values()]))(whole, at, data.draw)
    found = faults(clean | {name: new})
    if name != manifest.NAME:
        assert (name, "digest") in {(one.file, one.name) for one in found}
    elif not found:  # another layout, or another day
        own = dict.fromkeys(("date", "left_out"))
        assert json.loads(whole) | own == json.loads(new) | own


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.floats(), st.text(max_size=9)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=9), inner, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), anything)
def test_whatever_a_line_holds_the_check_ends_in_a_report(
    clean: Files, faults: Faults, data: st.DataObject, value: Any
):
    file = data.draw(st.sampled_from(["ceilings.jsonl", RECORD, manifest.NAME]))
    whole = [clean[file]] if file == manifest.NAME else clean[file].splitlines()
    number = data.draw(st.integers(0, len(whole) - 1))
    row = json.loads(whole[number])
    path = [data.draw(st.sampled_from(sorted(row)))]
    if (inner := row[path[0]]) and isinstance(inner, dict | list) and data.draw(st.booleans()):
        path.append(data.draw(st.sampled_from(sorted(inner))) if isinstance(inner, dict) else 0)
    change = set_to(*path, value=value)
    change(row)
    told = clean | {file: json.dumps(row).encode()} if file == manifest.NAME else edited(clean, file, number, change)
    assert names(faults(told)) <= NAMES.keys()


def test_a_copy_of_nothing_is_no_ceiling(clean: Files, faults: Faults) -> None:
    found = faults(edited(clean, "ceilings.jsonl", 1, set_to("traffic", value=0)))
    assert found
    assert names(found) <= NAMES.keys()


DEEP = b"[" * 10**5


@pytest.mark.parametrize(
    ("name", "file", "changes"),
    [
        *(("missing", name, {name: None}) for name in ("ceilings.jsonl", manifest.NAME)),
        *(("stray", name, {name: b"{}"}) for name in ("more.jsonl", "\x1b[2J.jsonl")),
        ("link", "deep", {"deep/er/x.jsonl": b"{}"}),
        ("size", ".", {f"traces/{n}.json.gz": b"x" for n in range(500)}),
        ("size", ".", {f"{n}.jsonl": b"0" * 10**6 for n in range(3)}),
        *(("depth", manifest.NAME, {manifest.NAME: text}) for text in (DEEP, b'["\\"",' + DEEP)),
        *(("manifest", manifest.NAME, {manifest.NAME: text}) for text in (b'{"schema": NaN}', b"\xff")),
        ("size", "ceilings.jsonl", {"ceilings.jsonl": b"0" * (bounded.MAX_BYTES + 1)}),
        ("depth", "ceilings.jsonl", {"ceilings.jsonl": b'{"kind":' + DEEP + b"\n"}),
        *(("schema", "ceilings.jsonl", {"ceilings.jsonl": text}) for text in (b"\xff\n", b"")),
        ("size", TRACE_FILE, {TRACE_FILE: gzip.compress(b" " * 10**7)}),
        ("depth", TRACE_FILE, {TRACE_FILE: gzip.compress(DEEP)}),
        ("schema", TRACE_FILE, {TRACE_FILE: gzip.compress(b"[]")}),
        ("schema", TRACE_FILE, {TRACE_FILE: gzip.compress(TRACED)[:-5]}),
        ("schema", TRACE_FILE, {TRACE_FILE: b"\x80\x04."}),
    ],
)
def test_a_folder_that_is_no_contribution_is_refused_by_file_and_name(
    clean: Files, faults: Faults, name: str, file: str, changes: dict[str, bytes | None]
):
    files = {name: data for name, data in (clean | changes).items() if data is not None}
    assert (file, name) in {(one.file, one.name) for one in faults(files)}


def test_a_file_that_no_manifest_can_list_is_not_read(clean: Files, faults: Faults):
    for name in (".x.jsonl", ".hidden", "x.jsonl.sh", "run.sh", "traces/.x.json.gz", "traces/x.pt"):
        assert {(one.file, one.name) for one in faults(clean | {name: b"["})} == {(name, "stray")}


@pytest.mark.parametrize("target", ["/etc/passwd", "../box/ceilings.jsonl", "nowhere", "."])
def test_no_link_is_followed(clean: Files, faults: Faults, target: str):
    def link(folder: Path) -> None:
        (folder / "ceilings.jsonl").unlink()
        (folder / "ceilings.jsonl").symlink_to(target)

    assert {"link", "missing"} <= names(faults(clean, prepare=link))
    for change in (lambda at: (at / "traces" / "more").symlink_to(target), lambda at: os.mkfifo(at / "pipe.jsonl")):
        assert "link" in names(faults(clean, prepare=change))


def test_the_folder_itself_may_be_no_link_and_no_file(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").write_text("")
    for name in ("link", "file", "nothing"):
        assert [one.name for one in checking.check(tmp_path / name, []).faults] == ["link"]


def test_lines_in_another_order_or_written_otherwise_are_refused(clean: Files, faults: Faults):
    whole = clean[RECORD]
    first, *others = whole.splitlines(keepends=True)
    ended = (whole.replace(b"\n", b"\r\n"), whole.replace(b"\n", b"\r", 2))
    for text in (b"".join([first, *reversed(others)]), *ended, whole.replace(b",", b", ")):
        assert {(one.file, one.name) for one in faults(sealed(clean | {RECORD: text}))} == {(RECORD, "schema")}


def test_a_manifest_cannot_name_a_file_outside(clean: Files, faults: Faults):
    for name in ("../x.jsonl", "/etc/passwd", "traces/../../x.json.gz"):
        told = json.loads(clean[manifest.NAME])
        told["records"][name] = manifest.digest(b"x")
        assert names(faults(clean | {manifest.NAME: json.dumps(told).encode()})) == {"manifest"}


@pytest.mark.parametrize(("apart", "told"), [(12, True), (1, False)])
def test_identical_code_that_seems_different_too_often_is_refused(clean: Files, faults: Faults, apart: int, told: bool):
    """Twenty A/A pairs, so many of them three parts in a hundred apart."""
    own = []
    for number in range(20):
        times = {"eager": 200.0, "eager@again": 206.0 if number < apart else 200.0}
        own += cells(times, shape=(1024, 784, 2048 + number), samples_us=[])
    rows = (run("naive_vs_cublas", cells=len(own)), *own)
    text = "".join(checking.written(row) + "\n" for row in rows)
    found = names(faults(sealed(clean | {RECORD: text.encode()})))
    assert "schema" not in found
    assert ("control" in found) == told


# ---------------------------------------------------------------- what a machine can do


def of_model(name: str, **facts: Any) -> list[Record]:
    """Records, of a machine that is called ``known``, of GPU model ``name``."""
    own = FACTS | {"name": name} | facts
    rows = tuple(lines()["ceilings"])
    line = run("ceilings", machine="known", preset="seed", facts=own, cells=2)
    return [Record(Path("known/ceilings.jsonl"), line, rows, "")]


def test_rates_are_held_against_the_model_then_published_peaks_then_a_bound_of_any_gpu():
    mine, key = of_model("NVIDIA Test"), ("matmul", "float32/ieee", "graph")
    reached = 2**31 / 60e-6
    for known, best, said_of in ((mine, reached, "(known)"), (of_model("NVIDIA Other"), 67e12, "9.0")):
        most, source = plausible.possible(mine, known)
        assert most[key] == pytest.approx(plausible.MARGIN * best)
        assert said_of in source
    assert most["copy", "", "cold"] == pytest.approx(plausible.MARGIN * plausible.CACHED["cold"] * 4.9e12)
    most, source = plausible.possible(of_model("Some GPU", capability="99.0"), mine)
    assert most[key] == plausible.GPU_BOUND[0]
    assert "Some GPU" in source


def test_the_committed_gpus_reach_what_is_published_of_them_and_no_more(committed_records: list[Record]):
    for name in ("h100", "h200"):
        mine = [one for one in committed_records if one.machine == name]
        most, source = plausible.possible(mine, [])
        assert "9.0" in source
        reached = results.ceilings(mine)
        assert [key for key in reached if reached[key] >= most.get(key, math.inf)] == []


@pytest.mark.parametrize(("factor", "told"), [(1.2, False), (1.6, True)])
def test_faster_than_the_model_is_refused_and_within_the_margin_is_not(
    clean: Files, faults: Faults, factor: float, told: bool
):
    """The lab's own record of the model has ceilings that are ``factor`` times lower."""
    (known,) = of_model("NVIDIA Test")
    slow = tuple(row | {"medians_us": [us * factor for us in row["medians_us"]]} for row in known.cells)
    assert ("rate" in names(faults(clean, [replace(known, cells=slow)]))) == told


# ---------------------------------------------------------------- names, commits, commands


@pytest.mark.parametrize(
    ("facts", "told"), [({}, set()), ({"chip": "123abc"}, {"machine"}), ({"name": "NVIDIA Other"}, {"machine"})]
)
def test_another_machines_name_is_refused_and_ones_own_is_not(clean: Files, faults: Faults, facts: Any, told: Any):
    assert names(faults(clean, [Record(Path("x"), run("method", facts=FACTS | facts), (), "")])) == told


def test_a_commit_that_the_repository_lacks_is_refused(
    clean: Files, faults: Faults, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def git(*asked: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a", "-C", str(tmp_path), *asked]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "x")
    head, tree = git("rev-parse", "HEAD"), git("rev-parse", "HEAD^{tree}")
    monkeypatch.setattr(checking, "history", lambda: tmp_path)
    assert checking.missing((head, head[:7], tree, "0" * 40), tmp_path) == [tree, "0" * 40]
    assert names(faults(clean)) == {"commit"}  # 0123abc


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of own records below the one in which a lab is called whose only committed machine is ``h100``."""
    committed = run("method", machine="h100", facts=FACTS | {"chip": "123abc"})
    records.write(tmp_path / "committed", committed, cells({"eager": 200.0}))
    monkeypatch.setattr(records, "COMMITTED", tmp_path / "committed")
    monkeypatch.chdir(tmp_path)
    measured(tmp_path / "mine")
    return tmp_path / "mine"


def test_contribute_and_check_records_agree(mine: Path):
    done = call("contribute", "box", "--records", mine, "--output", "out", "--name", "test-gpu")
    assert (done.code, "book/records" in done.out) == (0, True)
    assert {one.machine for one in records.load(Path("out"))} == {"test-gpu"}
    done = call("check-records", "out/test-gpu")
    assert (done.code, f"ceilings.jsonl {older.NAMELESS}" in " ".join(done.out.split())) == (0, True)
    Path("out/test-gpu/ceilings.jsonl").write_text("nonsense")
    Path("out/test-gpu/more.txt").touch()
    said_of, rows = call("check-records", "out/test-gpu"), call("check-records", "out/test-gpu", "--json")
    assert said_of.code == rows.code == 1
    found = {(row["file"], row["name"]) for row in json.loads(rows.out) if row["refused"]}
    assert {("ceilings.jsonl", "digest"), ("ceilings.jsonl", "schema"), ("more.txt", "stray")} <= found
    for file, name in found:
        assert any(line.startswith(file) and f" {name}: " in line for line in said_of.out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["contribute", "bx", "--records", "mine"], "'box'"),
        (["contribute", "../box", "--records", "mine"], "'../box'"),
        (["contribute", "box", "--records", "mine", "--name", "h100"], "h100"),
        (["contribute", "box", "--records", "mine", "--output", "there"], "there/box"),
        (["contribute", "box", "--records", "empty"], "empty"),
        (["check-records", "nothing"], "nothing"),
    ],
)
def test_what_cannot_be_contributed_is_said_in_one_line(mine: Path, tmp_path: Path, arguments: list[str], named: str):
    (tmp_path / "there" / "box").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    before = files_below(tmp_path)
    assert named in refused(*arguments)
    assert files_below(tmp_path) == before
