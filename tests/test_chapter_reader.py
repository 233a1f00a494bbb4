"""What the reader's pages say, from synthetic records and claims: decisions, machines, errata, the front page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import ceilings, cell_line, evidence_of, played, row, write_records

import hypatia_lab.experiments  # noqa: F401  (registers the operations of the cells below)
from hypatia_lab import claims, tables
from hypatia_lab.chapters import decisions, errata, front, machines
from hypatia_lab.claims import Claim
from hypatia_lab.figures import ceilings as ceiling_figures
from hypatia_lab.figures import verdicts as verdict_figure
from hypatia_lab.figures.language import FigureError
from hypatia_lab.pages import evidence as lab_evidence
from hypatia_lab.pages import findings
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding
from hypatia_lab.tables import claims as claim_tables
from hypatia_lab.workloads import Workload

pytestmark = pytest.mark.usefixtures("two_processes")

Lines = list[dict[str, Any]]
ROOT = Path(__file__).resolve().parent.parent
SMALL, LARGE = [256, 256, 512], [8192, 4096, 4096]
RATES = {"ieee": 50.0, "tf32": 400.0, "bfloat16": 760.0}


def cells(times: dict[str, float], **changes: Any) -> Lines:
    """Timed cells of two processes 1% apart; ``*name`` is a kernel of our own."""
    own = {"shape": SMALL, "dtype": "float32", "clock": "graph", "operation": "linear_relu"} | changes
    work = Workload(own["operation"], tuple(own["shape"]), own["dtype"], own.get("math", "ieee"))
    own |= {"flops": work.flops, "traffic": work.traffic}
    return [
        cell_line(
            variant=name.lstrip("*"), origin="own" if name[0] == "*" else "peer", medians_us=[us, 1.01 * us], **own
        )
        for name, us in times.items()
    ]


TENSOR = [
    *cells({"eager": 5.0, "epilogue": 3.0, "*triton": 4.0}, dtype="bfloat16"),
    *cells({"eager": 9.0, "epilogue": 8.0, "*fp16x3": 4.0}),
    *cells({"eager": 5500.0, "epilogue": 5490.0, "*fp16x3": 1500.0}, shape=LARGE),
]
MLP = cells({"eager": 30.0, "epilogue": 20.0, "*fused": 6.0}, operation="mlp3", shape=[65536, 64], dtype="bfloat16")
ATEN = [
    *cells({"eager": 9.0}),
    *cells({"eager": 27.0}, clock="wall"),
    *cells({"eager": 5500.0}, shape=LARGE),
    *cells({"eager": 5520.0}, shape=LARGE, clock="wall"),
]
CPU = cells({"eager": 360.0, "*threaded": 500.0}, clock="hot")


@pytest.fixture
def lab(tmp_path: Path) -> Evidence:
    gpu = {"ceilings": ceilings(RATES), "aten_fusion": ATEN, "tensor_cores": TENSOR, "fused_mlp": MLP}
    write_records(tmp_path, "gpu", "cuda", gpu)
    write_records(tmp_path, "cpu", "cpu", {"ceilings": ceilings({"ieee": 0.2}, "hot"), "gemm_ladder": CPU})
    found = evidence_of(tmp_path)
    found.records.sort(key=lambda record: record.run["device"] != "cuda")
    return found


def said(found: Finding | None) -> Finding:
    assert found is not None
    return found


# ---------------------------------------------------------------- decisions


def test_launching_is_told_from_computing(lab: Evidence) -> None:
    found = said(decisions.launches(lab, "gpu"))
    assert found.figure == "1 of 2"
    assert "linear_relu of 9.04 µs" in found.text
    assert "In 1 it is surely less than a tenth: linear_relu of 5.53 ms" in found.text
    assert decisions.launches(lab, "cpu") is None


def test_the_balance_is_the_quotient_of_two_ceilings(lab: Evidence) -> None:
    assert decisions.balance(lab, "gpu") == pytest.approx(
        {"float32/ieee": 12.5, "float32/tf32": 100.0, "bfloat16/ieee": 190.0}
    )
    assert (
        "12.5 in float32/ieee, 100 in float32/tf32 and 190 in bfloat16/ieee" in said(decisions.ceiling(lab, "gpu")).text
    )
    assert [machine for machine, _, _ in decisions.balances(lab)] == ["gpu"] * 3 + ["cpu"]


def test_fusing_is_held_against_the_balance(lab: Evidence) -> None:
    points = {(point.kind, point.name): point for point in decisions.fused(lab, "gpu")}
    near = points["mlp3", "65536×64 bfloat16, fused"]
    assert near.across[0] == pytest.approx(5.0)
    assert near.along == pytest.approx(0.505, rel=0.01)
    assert points["linear_relu", "256×256×512 float32, epilogue"].origin == "peer"
    found = said(decisions.fusing(lab, "gpu"))
    assert found.title == "Fusing pays less the more arithmetic binds"
    assert found.figure == "3.33× → 1.12× → 1.00×"
    assert decisions.fusing(lab, "cpu") is None


def test_the_plain_fusion_counts_where_no_other_experiment_has_the_workload(tmp_path: Path) -> None:
    plain = [*cells({"eager": 5500.0, "epilogue": 5000.0}, shape=LARGE), *cells({"eager": 30.0, "epilogue": 15.0})]
    write_records(
        tmp_path,
        "gpu",
        "cuda",
        {
            "ceilings": ceilings(RATES),
            "tensor_cores": cells({"eager": 30.0, "epilogue": 30.0}),
            "aten_fusion": plain,
        },
    )
    lab = evidence_of(tmp_path)
    assert sorted(round(point.across[0], 2) for point in decisions.fused(lab, "gpu")) == [1.0, 1.1]
    found = said(decisions.fusing(lab, "gpu"))
    assert "split operands left out" in found.text


def test_gains_that_grow_with_arithmetic_are_not_said_to_fall(tmp_path: Path) -> None:
    slow = cells({"eager": 30.0, "*fused": 29.0}, operation="mlp3", shape=[65536, 64], dtype="bfloat16")
    fast = cells({"eager": 5500.0, "epilogue": 1000.0}, shape=LARGE)
    write_records(tmp_path, "gpu", "cuda", {"ceilings": ceilings(RATES), "tensor_cores": fast, "fused_mlp": slow})
    assert said(decisions.fusing(evidence_of(tmp_path), "gpu")).title == "Fusing pays in 2 of 2 cases"


def test_own_kernels_meet_their_best_peer(lab: Evidence) -> None:
    rows = {row.workload: row for row in decisions.contests(lab, "gpu")}
    small = rows["linear_relu/256x256x512/bfloat16/ieee/forward"]
    assert (small.variant, small.baseline) == ("triton", "epilogue")
    assert small.ratio == pytest.approx(0.75)
    found = said(decisions.library(lab, "gpu"))
    assert (found.figure, found.title) == (
        "3 of 4",
        "Kernels of our own beat the library and the compiler in most cases",
    )
    assert "A single call of the library is the quickest form in linear_relu at 256×256×512 bfloat16." in found.text
    assert said(decisions.library(lab, "cpu")).title == "No kernel of our own surely beats the library or the compiler"
    figure, table = decisions.opponents(list(rows.values()))
    assert "ahead of their best peer in 3 of 4 forward passes" in figure.layout.title.text.replace("<br>", " ").replace(
        "</b> <b>", " "
    )
    assert sorted(table["best peer"]) == ["epilogue"] * 4
    assert [shown.split("×")[0] for shown in table["ratio"]] == ["0.750", "2.00", "3.6600", "3.3333"]


def test_what_was_not_measured_is_said(lab: Evidence) -> None:
    cpu, gpu = (decisions.overview(lab, name) for name in ("cpu", "gpu"))
    assert [line["question"] for line in cpu] == [question for question, _ in decisions.QUESTIONS]
    assert cpu[0]["answer"] == "does not arise: a CPU launches no kernels"
    assert cpu[2]["answer"] == gpu[-1]["answer"] == "not measured"
    titles = [found.title for found in decisions.findings(lab, "cpu")]
    assert [title.split("?")[0] for title in titles] == [
        "What binds the call: bytes or operations",
        *["Is there a library call that is as fast"],
    ]


def test_experiments_without_a_record_are_named(lab: Evidence) -> None:
    wanted = ("tensor_cores", "conv_block", "diffraction")
    assert decisions.lacking(lab, "gpu", wanted).endswith("not in the figure: conv_block and diffraction.")
    assert decisions.lacking(lab, "gpu", wanted[:1]) == ""


def test_crossovers_are_drawn(lab: Evidence) -> None:
    points = decisions.fused(lab, "gpu")
    figure, table = ceiling_figures.crossover(points, "t", ["gpu"], along="FLOP/B", across="speed, ×", at=1.0)
    assert len(table) == len(points)
    names = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert names == ["linear_relu (peer)", "mlp3 (own)"]
    drawn = sum(len(trace.x) for trace in figure.data if trace.mode == "markers")
    assert drawn == len(points)
    assert "A dashed line stands at 1" in figure.layout.meta["alt"]
    with pytest.raises(FigureError, match="no points"):
        ceiling_figures.crossover([], "t", [], along="", across="")


# ---------------------------------------------------------------- machines


def test_ceilings_stand_side_by_side(lab: Evidence) -> None:
    lines = {line["ceiling"]: line for line in machines.rates(lab)}
    assert lines["copy"]["gpu / cpu"] == "1.00×"
    assert lines["product, float32/ieee"] == {
        "ceiling": "product, float32/ieee",
        "gpu": "50.0 TFLOP/s",
        "cpu": "200 GFLOP/s",
        "gpu / cpu": "250×",
    }
    assert lines["product, bfloat16/ieee"]["cpu"] == "not measured"
    figure, table = ceiling_figures.balances(decisions.balances(lab), machines.turning(lab))
    assert list(table["cpu"]) == ["0.0500 FLOP/B", "–", "–"]
    assert "12.5 on gpu and 0.0500 on cpu" in machines.turning(lab)
    assert "cpu, float32/ieee: 0.0500" in figure.layout.meta["alt"]
    with pytest.raises(FigureError, match="no machine"):
        ceiling_figures.balances([], "t")


def verdict(
    machine: str, word: str, cases: dict[str, tuple[float, float, str]], name: str = "S001-01"
) -> dict[str, Any]:
    """A row of the judge with ``cases``: workload → low, high, verdict."""
    shown = [
        {
            "workload": work,
            "measured": (low + high) / 2,
            "low": low,
            "high": high,
            "n": 8,
            "bound": float("nan"),
            "verdict": own,
        }
        for work, (low, high, own) in cases.items()
    ]
    low, high = min(low for low, _, _ in cases.values()), max(high for _, high, _ in cases.values())
    row = {"id": name, "seed": name[:4], "claim": "c", "unit": "×", "machine": machine, "verdict": word, "cases": shown}
    row |= {"workload": ", ".join(cases), "measured": (low + high) / 2, "low": low, "high": high, "n": 8}
    return row | {"quantity": "ratio", "parts": [row | {"quantity": "ratio"}]}


ONE, TWO = "linear_relu/256x256x512/float32/ieee/forward", "linear_relu/8192x4096x4096/float32/ieee/forward"


@pytest.mark.parametrize(
    ("gpu", "cpu", "kind"),
    [
        ({ONE: (1.0, 1.1, "confirmed")}, {ONE: (2.0, 2.1, "refuted")}, "hardware"),
        ({ONE: (1.0, 1.1, "confirmed")}, {ONE: (1.05, 2.1, "undecided")}, "certainty"),
        ({ONE: (1.0, 1.1, "confirmed")}, {TWO: (2.0, 2.1, "refuted")}, "workloads"),
        # Apart, but not what makes the verdicts differ: both intervals of ONE say the same.
        (
            {ONE: (1.0, 1.1, "confirmed"), TWO: (3.0, 3.1, "refuted")},
            {ONE: (1.2, 1.3, "confirmed")},
            "workloads",
        ),
    ],
)
def test_why_verdicts_differ(lab: Evidence, gpu: Any, cpu: Any, kind: str) -> None:
    rows = [verdict("gpu", "conditional" if len(gpu) > 1 else "confirmed", gpu), verdict("cpu", "refuted", cpu)]
    (line,) = machines.reasons(lab, rows)
    assert line["the difference is"] == kind
    assert ("lie apart" in line["why"]) == (kind == "hardware")
    assert machines.summary([line]) == f"Parts of claims whose verdicts differ: 1 of {kind}"


def test_a_verdict_that_is_the_same_everywhere_is_not_listed(lab: Evidence) -> None:
    same = [verdict(name, "confirmed", {ONE: (1.0, 1.1, "confirmed")}) for name in ("gpu", "cpu")]
    untested = verdict("gpu", "not_testable", {ONE: (1.0, 1.1, "confirmed")}, "S001-02")
    other = verdict("cpu", "refuted", {ONE: (1.0, 1.1, "refuted")}, "S001-02")
    assert machines.reasons(lab, [*same, untested, other]) == []
    assert machines.summary([]) == "No verdict differs"


def test_ceilings_say_what_binds(lab: Evidence) -> None:
    binds, relative, share = said_binding(machines.binding(lab, "gpu", TWO))
    assert (binds, round(relative, 1)) == ("arithmetic", 65.5)
    assert share == pytest.approx(1.0, rel=0.01)
    assert said_binding(machines.binding(lab, "gpu", "mlp3/65536x64/bfloat16/ieee/forward"))[0] == "memory"
    idle = said_binding(machines.binding(lab, "gpu", "linear_relu/256x256x512/bfloat16/ieee/forward"))
    assert idle[0] == "neither ceiling"
    assert machines.binding(lab, "gpu", "linear_relu/1x1x1/float32/ieee/forward") is None
    relu = 2 * 8192 * 4096 * 4 / 4e12
    assert machines.relu_share(lab, "gpu", TWO) == pytest.approx(relu / (relu + 2 * 8192 * 4096 * 4096 / 50e12))


def said_binding(found: tuple[str, float, float] | None) -> tuple[str, float, float]:
    assert found is not None
    return found


# ---------------------------------------------------------------- errata


def claim(number: int, claimed: float, expression: str = "", conflicts: tuple[str, ...] = ()) -> Claim:
    """A claim with a band of ±0.1 around its one figure."""
    own = f"S001-{number:02d}", "section", f"claim {number}", (claimed, claimed), "×", "arithmetic", "why"
    band = claimed - 0.1, claimed + 0.1
    return Claim(*own, band=band, expression=expression, conflicts=conflicts, lead=own[0])


LEDGER = [
    claim(1, 4.0, "2 + 2"),
    claim(2, 5.0, "2 + 2", conflicts=("S001-01",)),
    claim(3, 40.0, "2 * 2"),
    claim(4, 0.0, "1 + 1"),
    claim(5, 1.0, conflicts=("S001-02", "S009-99")),
]


def test_arithmetic_is_worked_out_and_sorted_by_how_far_off_it_is() -> None:
    assert [one.id for one in errata.sound(LEDGER)] == ["S001-01"]
    lines = errata.corrections(LEDGER)
    assert [line["id"] for line in lines] == ["S001-04", "S001-03", "S001-02"]
    assert [line["off by"] for line in lines] == ["–", "10.0×", "1.25×"]
    assert [line["its own figures give"] for line in lines] == ["2×", "4×", "4×"]
    parts = [replace(one, lead="S001-02") if one.id == "S001-03" else one for one in LEDGER]
    assert errata.counts(parts) == [
        {
            "document": "S001",
            "claims": "4",
            "parts": "5",
            "with arithmetic": "3",
            "claims that fail": "2",
            "parts that fail": "3",
            "contradictions within": "2",
            "with another document": "0",
        }
    ]


def test_a_pair_of_claims_is_listed_once() -> None:
    assert [(a.id, b.id) for a, b in errata.pairs(LEDGER)] == [("S001-01", "S001-02"), ("S001-02", "S001-05")]
    both = [*LEDGER, claim(6, 2.0, conflicts=("S001-05",)), claim(7, 2.0, conflicts=("S001-06",))]
    assert len(errata.contradictions(both)) == 4
    least = replace(claim(8, 2.0), claimed=(2.0, 1e6))
    assert (
        errata.contradictions([least, claim(9, 1.0, conflicts=("S001-08",))])[0]["one says"] == "claim 8 (2× or more)"
    )


def test_the_errata_are_those_that_the_judge_calls_inconsistent() -> None:
    judged = claims.judge([])
    assert {row["id"] for row in judged if row["verdict"] == "inconsistent"} == {one.id for one in errata.wrong()}


# ---------------------------------------------------------------- verdicts, the front page


def test_verdicts_are_counted_by_document(lab: Evidence) -> None:
    rows = [
        verdict("gpu", "confirmed", {ONE: (1.0, 1.1, "confirmed")}),
        verdict("gpu", "refuted", {ONE: (1.0, 1.1, "refuted")}, "S002-01"),
        verdict("any", "inconsistent", {ONE: (1.0, 1.1, "inconsistent")}, "S002-02"),
        verdict("cpu", "undecided", {ONE: (1.0, 1.1, "undecided")}),
    ]
    table = claim_tables.verdicts_by_seed(rows, "gpu").set_index("document")
    assert list(table.index) == ["S001", "S002", "all"]
    assert list(table["all"]) == [1, 2, 3]
    assert list(table[claim_tables.verdict_text("refuted")]) == [0, 1, 1]
    figure, _ = verdict_figure.verdicts(rows, "gpu")
    assert "Of 3 claims 1 hold and 2 fall" in figure.layout.title.text
    assert [list(trace.x) for trace in figure.data] == [[100.0, 0.0], [0.0, 50.0], [0.0, 50.0]]
    assert list(verdict_figure.LOOKS) == list(claim_tables.VERDICTS)
    told = front.ledger(rows, "gpu", "an H200")
    assert told.startswith("Of 3 claims in 2 documents, **1 hold and 2 fall** on an H200: ")
    with pytest.raises(FigureError, match="no claims judged on 'gpu'"):
        verdict_figure.verdicts(rows[3:], "gpu")
    with pytest.raises(tables.TableError, match="no claims judged on 'gpu'"):
        claim_tables.verdicts_by_seed(rows[3:], "gpu")


def test_a_list_links_each_headline_to_its_place_and_escapes_it() -> None:
    found = Finding("2×", "a < b", "Because.", "02_x#how-much")
    line = '<li><a href="02_x.html#how-much">a &lt; b</a>: <strong>2×</strong>. Because.</li>'
    assert findings.sentences([found]) == f'<ul class="lab-list">\n{line}\n</ul>'
    card = findings.cards([found])
    assert 'href="02_x.html#how-much"' in card
    assert '<div class="lab-card finding"><p class="lab-word">finding</p>' in card


def test_a_card_has_the_ledgers_verdict_on_the_claims_it_names(lab: Evidence) -> None:
    both = Finding("2×", "a", "b", "02_x", claims=("S001-66", "S003-01"))
    card = findings.cards([both], lab, "gpu")  # both fail their own arithmetic, on any machine
    assert '<div class="lab-card inconsistent">' in card
    assert "claims.html\">S001's and S003's claims</a> (S001-66, S003-01): ≠" in card.replace("&#x27;", "'")
    one = Finding("2×", "a", "b", "02_x", claims=("S000-36",))
    assert "S000's claim</a> (S000-36): ○" in findings.cards([one], lab, "gpu").replace("&#x27;", "'")
    with pytest.raises(ValueError, match="give the evidence"):
        findings.cards([both])
    with pytest.raises(ValueError, match="no claim S001-999 in the ledger"):
        findings.cards([Finding("2×", "a", "b", "02_x", claims=("S001-999",))], lab, "gpu")


@pytest.fixture(scope="module")
def committed() -> Evidence:
    """All committed records."""
    return lab_evidence.evidence(lab_evidence.Parameters())


def test_every_card_agrees_with_the_ledger(committed: Evidence) -> None:
    """The card's word is what the judge's rows of its claims or parts make together, each of them a document's."""
    parts = claims.judge(committed.records)
    judged = [*parts, *claims.statements(parts)]
    for machine in committed.machines:
        for finding in front.findings(committed, machine):
            own = [
                row for row in judged if row["id"] in finding.claims and row["machine"] in (machine, claim_tables.ANY)
            ]
            assert {row["id"] for row in own} == set(finding.claims)
            word = claims.together(row["verdict"] for row in own) if own else "finding"
            assert f'<div class="lab-card {word}">' in findings.cards([finding], committed, machine)
            assert all(row["seed"] in finding.text for row in own), f"{finding.title} names no document"


@pytest.mark.parametrize(("page", "place"), front.HEADLINES)
def test_every_headline_leads_to_a_heading(page: str, place: str) -> None:
    cells = json.loads((ROOT / "notebooks" / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    slugs = [re.sub(r"[^\w\s-]", "", title.lower()).replace(" ", "-") for title in re.findall(r"(?m)^##+ (.*)$", text)]
    assert place in slugs


@pytest.mark.parametrize("name", ["18_decisions", "13_machines", "12_claims"])
def test_the_pages_take_whatever_records_there_are(
    name: str, lab: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = played(name, tmp_path, monkeypatch)
    assert "gpu/tensor_cores" in text


@pytest.mark.parametrize("name", ["18_decisions", "13_machines"])
def test_the_pages_do_without_ceilings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_records(tmp_path, "gpu", "cuda", {"tensor_cores": TENSOR})
    text = played(name, tmp_path, monkeypatch)
    assert "gpu/tensor_cores" in text
    assert "FLOP/B" not in text


def test_split_operands_name_their_error_and_its_bound() -> None:
    own, peer = row(variant="whole_bf16x3", max_error=6e-6), row(variant="eager", max_error=5e-7)
    text = decisions._errors(Evidence([], [own, peer]), own)
    assert text == ", at a largest absolute error of 6.00e-06 where that has 5.00e-07 (the goal allows 0.0001)"
    assert decisions._errors(Evidence([], [peer]), replace(own, variant="whole")) == ""


def test_a_contradiction_says_what_the_arithmetic_gives() -> None:
    for line in errata.contradictions():
        assert line["one says"].endswith(")")
    failing = {claim.id for claim in errata.wrong()}
    lines = [line for line in errata.contradictions() if line["id"] in failing]
    assert lines
    assert all("; worked out: " in line["one says"] for line in lines)
