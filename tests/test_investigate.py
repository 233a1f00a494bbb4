"""``hypatia-lab investigate``: from documents of others to a report with drafts, verdicts and a book of its own."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

pytest.importorskip("nbformat")
import nbformat
from command import call, files_below, refused, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import detail_line, displayed, run_line
from tabled import tabled

from hypatia_lab import claims, paths, records
from hypatia_lab.book import report as report_book
from hypatia_lab.book.build import BookError
from hypatia_lab.claims import documents
from hypatia_lab.claims.claim import KINDS
from hypatia_lab.pages.report import NOTHING
from hypatia_lab.probes.probe import Ended
from hypatia_lab.probes.program import Output, Shell
from hypatia_lab.strangers import programs

pytestmark = pytest.mark.usefixtures("two_processes")

ZEBRA = Path(__file__).parent / "documents" / "zebra.md"
DOCUMENT = ZEBRA.read_text(encoding="utf-8")
EXPECTED = [
    *[(4, 29.19, "ms", "time"), (4, 3.8, "ms", "time"), (4, 7.67, "×", "ratio"), (4, (3.0, 5.0), "ms", "time")],
    *[(4, 40.0, "s", "time"), (4, 12.0, "s", "time")],
    *[(5, (10.0, 20.0), "%", "share"), (5, 1234.5, "GB/s", "rate"), (5, 12.0, "×", "ratio"), (5, 80.0, "GB", "size")],
    *[(6, 120.0, "tok/s", "rate"), (6, 1.4, "GHz", "rate"), (6, 5.0, "µs", "time"), (6, 2.0, "×", "ratio")],
    (13, 0.25, "ms", "time"),
    *[(20, 309.0, "GFLOP/s", "rate"), (20, 1.3, "%", "share"), (20, 4.5, "ms", "time")],
    *[(21, 1986.5, "GFLOP/s", "rate"), (21, 8.5, "%", "share"), (21, 4.0, "ms", "time")],
    (22, 2.5, "×", "ratio"),
]
"""Line, figure, unit and kind of each figure of the document."""


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A report that has just begun."""
    made_of(tmp_path / "stripes", ZEBRA)
    return tmp_path / "stripes"


def made_of(folder: Path, *documents: str | Path) -> dict[str, str]:
    """The files of a report on ``documents`` that begins in ``folder``, with their text."""
    done = call("investigate", folder, *(word for path in documents for word in ("--document", path)))
    assert (done.code, done.err) == (0, [])
    return {str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*") if path.is_file()}


def test_the_figures_of_a_document_and_nothing_that_only_looks_like_one():
    found = documents.figures(DOCUMENT)
    plain = [(one.line, one.claimed[0] if one.claimed[0] == one.claimed[1] else one.claimed) for one in found]
    assert [(*at, one.unit, one.kind) for at, one in zip(plain, found, strict=True)] == EXPECTED
    assert {kind for *_, kind in EXPECTED} == set(KINDS)
    assert [one.line for one in documents.figures("    set in, 13 ms", markdown=False)] == [1]


def written(found: documents.Found) -> str:
    """Figure and unit, as the table of cases writes them."""
    low, high = (f"{end:.12g}" for end in found.claimed)
    return f"{low if low == high else f'{low}–{high}'} {found.unit}"


@tabled("figures", "forms")
def test_a_figure_is_read_however_it_is_written(text, told):
    assert [*map(written, documents.figures(text))] == told


@tabled("figures", "nothing")
def test_what_only_looks_like_a_figure_is_none(text):
    assert documents.figures(text) == []


@tabled("figures", "places")
def test_a_figure_has_its_line_and_in_a_table_its_row_and_column(text, told):
    found = documents.figures(text)
    assert [f"{one.line}: {written(one)} {one.where}".rstrip() for one in found] == told


@settings(max_examples=30, derandomize=True, deadline=None)
@given(st.text(max_size=120) | st.text("0123456789.,-–±x×%msGB/s |`*<>trdh$^\\\n", max_size=120))
def test_whatever_a_document_holds_its_drafts_load(text):
    found = tuple(documents.figures(text))
    lines = len(re.split(r"\r\n|\r|\n", text))
    assert all(1 <= one.line <= lines and one.claimed[0] <= one.claimed[1] and one.unit for one in found)


@pytest.mark.parametrize("name", ["zebra.md", "12 a, b}: 'c'.md", "S001.md", "größe.txt", "- !!x.md"])
def test_a_made_folder_has_every_figure_and_no_sentence(tmp_path, name):
    path = tmp_path / name
    path.write_text(DOCUMENT, encoding="utf-8")
    folder = tmp_path / "stripes"
    made, without = made_of(folder, path), made_of(tmp_path / "none" / "stripes")
    assert len(made["README.md"].splitlines()) <= 10
    (ledger,) = [file for file in made if file.startswith("claims/")]
    assert made.pop(ledger) != without.pop("claims/document.yaml")
    assert made == without, "what a document says must not reach any other file"
    held = claims.gather([folder / ledger])
    assert held.claims == ()
    assert held.documents == ((name, hashlib.sha256(path.read_bytes()).hexdigest()),)
    for draft, one in zip(held.drafts, documents.figures(DOCUMENT, markdown=path.suffix == ".md"), strict=True):
        assert draft.section == ", ".join(filter(None, (f"line {one.line}", one.where)))
        assert (draft.claimed, draft.unit, draft.kind) == (one.claimed, one.unit, one.kind)
    for entry in yaml.safe_load((folder / ledger).read_text("utf-8"))["claims"]:
        assert set(entry) == {"id", "section", "claim", "claimed", "unit", "kind"}
        assert entry["claim"] is None
    nbformat.validate(nbformat.reads(made["notebooks/report.ipynb"], 4))
    compile(made["experiments.py"], "experiments.py", "exec")


def test_two_documents_of_one_name_and_none_at_all(tmp_path):
    other = shutil.copy(ZEBRA, tmp_path)
    made_of(tmp_path / "two", ZEBRA, other)
    files = sorted((tmp_path / "two" / "claims").iterdir())
    assert [path.name for path in files] == ["zebra.yaml", "zebra2.yaml"]
    assert len(claims.gather(files).drafts) == 2 * len(EXPECTED)
    made_of(tmp_path / "none")
    assert len(claims.gather((tmp_path / "none" / "claims").iterdir()).drafts) == 1


def test_a_document_without_figures_is_named_and_the_others_are_read(tmp_path):
    (tmp_path / "empty.md").write_text("Nothing.\n")
    done = call("investigate", tmp_path / "one", "--document", tmp_path / "empty.md", "--document", ZEBRA)
    assert (done.code, len(done.err)) == (0, 1)
    assert f"{tmp_path / 'empty.md'}: holds no figure" in done.err[0]
    assert [path.name for path in (tmp_path / "one" / "claims").iterdir()] == ["zebra.yaml"]


@pytest.mark.parametrize(
    ("folder", "document"),
    [("taken", "zebra.md"), ("file", "zebra.md"), ("new", "image.md"), ("new", "empty.md"), ("new", "gone.md")],
)
def test_what_will_not_do_is_one_line_and_leaves_nothing(tmp_path, folder, document):
    shutil.copy(ZEBRA, tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "image.md").write_bytes(b"\x89PNG\r\n\x1a\n\0")
    (tmp_path / "empty.md").write_text("# 3 ms\n\nNo figure in 2024.\n")
    before = files_below(tmp_path)
    named = document if folder == "new" else folder
    given = ("--document", tmp_path / document, *(() if document == "empty.md" else ("--document", ZEBRA)))
    assert f"{tmp_path / named}" in refused("investigate", tmp_path / folder, *given)
    for command in (["book", tmp_path / "taken"], ["claims", "--report", tmp_path / "taken"]):
        assert f"{tmp_path / 'taken'}" in refused(*command)
    assert files_below(tmp_path) == before


def test_a_seeds_entry_is_never_a_draft_and_a_drafts_slips_are_told(tmp_path):
    path = tmp_path / "zebra.yaml"
    good = documents.draft(documents.Document("a", "a" * 64, (documents.Found(7, (1e-6, 1e-6), "s", "time"),)), "ZEBRA")
    path.write_text(good)
    (draft,) = claims.gather([path]).drafts
    assert draft == claims.Draft("ZEBRA-1", "line 7", (1e-6, 1e-6), "s", "time")
    for old, new, told in (
        ("kind: time", "kind: hue", "'hue'"),
        ("unit: s", "colour: s", "'colour'"),
        ("section: line 7", "section:", "section"),
        ("a" * 64, "b", "sha256 'b'"),
        ("claim:\n", "claim: Stripes.\n", "'quantity'"),
    ):
        path.write_text(good.replace(old, new))
        with pytest.raises(claims.ClaimError, match=told):
            claims.gather([path])
    seed = tmp_path / "s001.yaml"
    seed.write_text(good.replace("ZEBRA-1", "S001-01"))
    with pytest.raises(claims.ClaimError, match="claim"):
        claims.gather([seed])


def filled(report: Path) -> None:
    """Put one draft into words, and record what its program printed: 29.19 against 3.80 ms, five times over."""
    path = report / "claims" / "zebra.yaml"
    said = yaml.safe_load(path.read_text())
    entry = next(one for one in said["claims"] if one["claimed"] == 7.67)
    figure = {"topic": "program", "case": "benchmark", "variant": "author_stripes"}
    entry |= {"claim": "A gallop is slower than it was.", "quantity": "quotient", "why": "Both are printed."}
    entry |= {"workloads": ["linear_relu/2x3x4/float32/ieee/forward"]}
    entry |= {"over": figure | {"name": "after"}, "under": figure | {"name": "before"}}
    path.write_text(yaml.safe_dump(said, sort_keys=False))
    details = [
        detail_line(variant="author_stripes", topic="program", case="benchmark", name=name, values=[1.01 * ms, ms] * 2)
        for name, ms in (("after", 29.19), ("before", 3.80))
    ]
    run = run_line(experiment="author_stripes", processes=4)
    records.write(report / "records", run, [], details)


def test_a_claim_in_words_is_judged_by_the_reports_own_records(report):
    done = call("claims", "--report", report, "--json")
    assert (done.code, json.loads(done.out), len(done.err)) == (0, [], 1)
    assert f"{len(EXPECTED)} are drafts" in done.err[0]
    filled(report)
    done = call("claims", "--report", report, "--json")
    (row,) = json.loads(done.out)
    assert (done.code, row["verdict"], row["machine"], row["program"]) == (0, "confirmed", "box", "author")
    assert row["measured"] == pytest.approx(29.19 / 3.80)
    assert f"{len(EXPECTED) - 1} are drafts" in done.err[0]


def shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the page of the report in ``folder`` displays as text."""
    monkeypatch.chdir(folder / "notebooks")
    return displayed(Path("report.ipynb"), monkeypatch)


def test_the_page_of_a_report_has_ledger_drafts_and_records(report, monkeypatch):
    before = shown(report, monkeypatch)
    assert NOTHING in before
    assert before.count("ZEBRA-") == len(EXPECTED)
    filled(report)
    after = shown(report, monkeypatch)
    (record,) = records.load(report / "records")
    assert NOTHING not in after
    assert set(re.findall(r"ZEBRA-\d+", after)) == set(re.findall(r"ZEBRA-\d+", before))
    figures = ("7.68×", "7.67×", "29.3")
    for told in (*figures, "✓\N{NO-BREAK SPACE}confirmed", "1 claim in 1 part", "Measured on box", record.digest):
        assert told in after, told


def test_settings_of_a_report_go_over_the_labs_and_a_broken_file_is_named(report, tmp_path):
    path = report / "_config.yml"
    path.write_text("title: Other\nsphinx: {config: {numfig: true}}\n")
    report_book.lay_out(report, tmp_path / "source")
    own = yaml.safe_load((paths.HOME / "_config.yml").read_text())
    own["title"], own["sphinx"]["config"]["numfig"] = "Other", True
    assert yaml.safe_load((tmp_path / "source" / "_config.yml").read_text()) == own
    for number, text in enumerate(("title: [", "- title", "")):
        path.write_text(text)
        with pytest.raises(BookError, match=re.escape(str(path))):
            report_book.lay_out(report, tmp_path / f"broken{number}")


def test_the_program_file_that_a_report_begins_with_says_what_it_lacks(report):
    with pytest.raises(programs.ProgramError, match=r"experiments\.pins"):
        programs.load(report / "experiments.py")


# ---------------------------------------------------------------- the worked one

SGEMM = paths.HOME / "reports" / "sgemm"
PRINTED = "Average elapsed time: ({:7.6f}) s, performance: ({:7.1f}) GFLOPS. size: ({})."


@pytest.fixture
def sgemm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> programs.Program:
    """The program of the worked report, whose upstream is not on this machine."""
    monkeypatch.setattr(programs, "_DECLARED", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(programs.Provenance, "verify", lambda self: None)
    monkeypatch.setenv("SGEMM_BIN", str(tmp_path / "sgemm"))
    return programs.load(SGEMM / "experiments.py")


def test_the_figures_of_the_worked_report_go_together():
    found = claims.load(SGEMM / "claims" / "sgemm.yaml")
    rates = {claim.of[0].variant: claim.claimed[0] for claim in found if claim.unit == "GFLOP/s"}
    shares = {claim.over[0].variant: claim.claimed[0] for claim in found if claim.unit == "%"}
    told = {name: round(100 * rate / rates["author_cublas"], 1) for name, rate in rates.items()}
    assert shares | {"author_cublas": 100.0} == told
    order = [(claim.under[0].variant, claim.over[0].variant) for claim in found if claim.sense == "at_least"]
    by_rate = sorted(rates, key=lambda name: rates[name])
    assert order == list(zip(by_rate, by_rate[1:], strict=False))
    assert all(claim.elsewhere for claim in found if claim.unit == "GFLOP/s")


def test_the_worked_report_claims_what_its_program_measures(sgemm):
    found = claims.load(SGEMM / "claims" / "sgemm.yaml")
    named = {(figure.case, figure.variant) for claim in found for figure in claim.figures}
    assert named == {(name, command.variant) for name, command in sgemm.commands.items()}
    assert {claim.experiment for claim in found} == {sgemm.name}
    for command in sgemm.commands.values():
        assert command.needs(command.workload, "cpu")
        assert "not built" in command.needs(command.workload, "cuda")


def figures_of(monkeypatch: pytest.MonkeyPatch, command: programs.Command, folder: Path, text: str) -> list[dict]:
    """What ``command`` takes from ``text``, printed by its program."""
    monkeypatch.setattr(Shell, "run", Mock(return_value=Output(text, 1.0, folder)))
    shell = Shell(command.workload, command.variant, "cuda", 0, folder, 1e9, (), lambda *given, **more: None)
    return list(command.figures(shell))


def test_the_worked_reports_program_reads_what_the_upstream_prints(sgemm, tmp_path, monkeypatch):
    sizes = (128, 256, 512, 1024, 2048, 4096)
    lines = [PRINTED.format(n * 1e-6, 1.5 * n, n) for n in sizes]
    figures = figures_of(monkeypatch, sgemm.commands["warp_tiles"], tmp_path, "\n".join(["Running kernel 10.", *lines]))
    assert Shell.run.call_args.args == ([(tmp_path / "sgemm").resolve(), "10"],)
    rates = {tuple(one["shape"]): one["value"] for one in figures if one["name"] == "rate"}
    assert rates == {(n, n, n): 1.5 * n for n in sizes}
    assert {one["shape"][0]: one["value"] for one in figures if one["unit"] == "s"}[4096] == 0.004096
    with pytest.raises(Ended, match="5 of 6 sizes"):
        figures_of(monkeypatch, sgemm.commands["warp_tiles"], tmp_path, "\n".join(lines[1:]))


def test_the_worked_report_is_judged_from_records(tmp_path):
    folder = tmp_path / "sgemm"
    shutil.copytree(SGEMM, folder, ignore=shutil.ignore_patterns("_build", "records"))
    rates = {"naive": 13.0, "coalesced": 60.0, "cublas": 1000.0}
    square = {"operation": "matmul", "shape": [4096] * 3, "topic": "program", "name": "rate", "unit": "1"}
    details = [
        detail_line(**square, variant=f"author_{name}", case=name, values=[rate, 1.001 * rate])
        for name, rate in rates.items()
    ]
    records.write(folder / "records", run_line(experiment="author_sgemm", device="cuda"), [], details)
    rows = {row["id"]: row for row in rows_of("claims", "--report", folder)}
    told = [rows[f"SGEMM-{name}"]["verdict"] for name in ("01", "02", "03", "12", "13")]
    assert told == ["confirmed", "refuted", "not_testable", "confirmed_in_part", "not_testable"]


def test_the_book_of_the_worked_report_is_built_from_its_folder(tmp_path):
    done = call("book", SGEMM, "--output", tmp_path / "html")
    assert done.code == 0, done.err
    page = (tmp_path / "html" / "notebooks" / "report.html").read_text(encoding="utf-8")
    held = records.load(SGEMM / "records")
    assert all(record.digest in page for record in held)
    assert (NOTHING in page) is not bool(held)
    assert all(f"SGEMM-{number:02d}" in page for number in range(1, 14))


def test_fast_cus_claims_are_of_what_its_programs_print(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "_DECLARED", [])
    monkeypatch.setattr(programs.Provenance, "verify", lambda self: None)
    fast = programs.load(paths.HOME / "reports" / "fast_cu" / "experiments.py").commands
    timed = "Average elapsed time: (0.001361) s, performance: (  780.0) TFLOPS. size: ({}).\n\n"
    said = {"product_11": 2 * timed.format(8192), "product_11_4096": 2 * timed.format(4096)}
    block = "<-----| {} |----->\nBandwidth: 3193.5 GB/s\nTime taken: 1.3 ms\nSum: 160\n\n"
    said["sum"] = "".join(map(block.format, ("kernel1", "kernel2", "kernel3", "kernel4", "cub")))
    told = {name: figures_of(monkeypatch, fast[name], tmp_path, text) for name, text in said.items()}
    measured = {(name, one["name"], one["variant"]): one["value"] for name, lines in told.items() for one in lines}
    asked = claims.load(paths.HOME / "reports" / "fast_cu" / "claims" / "fast_cu.yaml")
    assert {(one.case, one.name, one.variant) for claim in asked for one in claim.figures} <= measured.keys()
    assert measured["product_11", "rate", "author_kernel11"] == 7.8e5
    assert measured["sum", "bandwidth", "author_sum3"] == 3193.5e9
    check = "Divergence! Should 65.00, Is 64.25 (Diff  0.{}) at 5\n" + timed.format(8192)
    assert figures_of(monkeypatch, fast["product_12"], tmp_path, check.format(50))[0]["name"] == "first difference"
    with pytest.raises(Ended, match=r"off by 0\.75"):
        figures_of(monkeypatch, fast["product_12"], tmp_path, check.format(75))
