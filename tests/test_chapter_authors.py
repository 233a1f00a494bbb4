"""The authors' programs beside the lab's rewrites, and where the lab's launch path is told: from synthetic records."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from synthetic import Lines, cell_line, evidence, row, said

from hypatia_lab import claims, records, results, tables
from hypatia_lab.chapters import (
    authors,
    backward,
    claims_shown,
    front,
    fused_mlp,
    gemm_ladder,
    linear_relu,
    method,
)
from hypatia_lab.claims import Claim
from hypatia_lab.experiments import EXPERIMENTS
from hypatia_lab.figures import comparisons
from hypatia_lab.operations.mlp import MODELS
from hypatia_lab.pages import findings
from hypatia_lab.variants import AGAIN, variants
from hypatia_lab.workloads import Workload

pytestmark = pytest.mark.usefixtures("two_processes")

SMALL, MEDIUM = [256, 256, 512], [1024, 784, 2048]
SEEDS = ("naive", "cublas_relu", "aten")


def origin(variant: str) -> str:
    return "author" if variant.startswith("author") else "seed" if variant in SEEDS else "peer"


def cells(times: Mapping[str, float], clock: str, shape: Sequence[int] = SMALL, **changes: Any) -> Lines:
    """Timed cells of three processes that differ by 1%, of which ratios are exact."""
    work = Workload(changes.get("operation", "linear_relu"), tuple(shape), changes.get("dtype", "float32"))
    own = {"operation": work.operation, "shape": list(shape), "clock": clock, "flops": work.flops}
    own |= {"traffic": work.traffic, "max_error": 1e-6}
    return [
        cell_line(**own | {"variant": name, "origin": origin(name), "medians_us": [us, 1.01 * us, 1.02 * us]} | changes)
        for name, us in times.items()
    ]


HOMES_OF_S003 = sorted({"07_diffraction", *claims_shown.DIFFRACTION.values()})
GRAPH = {"eager": 8.6, "author_v1": 77.0, "naive": 77.1, "author_v2": 8.5, "cublas_relu": 8.52}
WALL = {"eager": 25.4, "author_v1": 95.0, "naive": 150.0, "author_v2": 26.5, "cublas_relu": 73.0}
BOTH = [*cells(WALL, "wall"), *cells(GRAPH, "graph")]


@pytest.fixture(scope="module")
def shown() -> dict[str, list[Claim]]:
    """Page → the claims that it shows."""
    return {page: claims_shown.claims_of(page) for page in (*claims_shown.PAGES, *HOMES_OF_S003)}


def test_every_part_that_a_record_can_decide_stands_on_a_page(shown: dict[str, list[Claim]]) -> None:
    every = {claim.id for own in shown.values() for claim in own}
    assert {claim.id for claim in claims.ledger() if claim.workloads or claim.seed == "S003"} <= every
    naive, others = ({claim.id for claim in shown[page]} for page in ("02_naive_vs_cublas", "03_aten_fusion"))
    assert naive.isdisjoint(others)
    for one, other in itertools.combinations(HOMES_OF_S003, 2):  # all parts of a claim stand on one page
        assert {claim.lead for claim in shown[one]}.isdisjoint(claim.lead for claim in shown[other])


def test_a_page_shows_the_claims_on_its_own_experiments_and_those_set_apart(shown: dict[str, list[Claim]]) -> None:
    for page, own in shown.items():
        experiments = {name for name, one in EXPERIMENTS.items() if one.notebook == page} - {"library_defaults"}
        ids = {claim.id for claim in own}
        if page not in HOMES_OF_S003:
            assert {claim.id for claim in claims.ledger() if claim.experiment in experiments} <= ids, page
        assert {*claims_shown.APART.get(page, ())} <= {claim.lead for claim in own}


# ---------------------------------------------------------------- the authors' programs


def test_every_rewrite_is_a_variant_of_the_lab_that_was_rebuilt_from_a_document() -> None:
    known = variants("linear_relu")
    assert {known[name].origin for name in authors.REWRITES.values()} == {"seed"}
    assert set(authors.REWRITES) <= set(authors.NAMES)


def test_programs_stand_beside_their_rewrites_by_size_and_clock() -> None:
    lines = authors.table(evidence({authors.EXPERIMENT: [*cells(GRAPH, "graph", MEDIUM), *BOTH]}), "box")
    assert [(line["size"], line["clock"], line["program"]) for line in lines] == [
        ("256×256×512", "graph", "v1"),
        ("256×256×512", "graph", "v2"),
        ("256×256×512", "wall", "v1"),
        ("256×256×512", "wall", "v2"),
        ("1024×784×2048", "graph", "v1"),
        ("1024×784×2048", "graph", "v2"),
    ]
    second = lines[3]
    assert second["rewrite / author's"].startswith("2.75")
    assert [line["equal within ±2%"] for line in lines] == ["yes", "yes", "no", "no", "yes", "yes"]


def test_a_difference_that_may_be_within_two_percent_is_undecided() -> None:
    lines = cells({"eager": 8.6, "author_v2": 8.5, "cublas_relu": 8.6}, "graph")
    lines[-1]["medians_us"] = [8.4, 9.0, 8.7]
    lab = evidence({authors.EXPERIMENT: lines})
    assert [pair.equal for pair in authors.pairs(lab, "box")] == ["undecided"]
    assert said(authors.finding(lab, "box")).figure == "0 of 1"


def test_the_finding_counts_clock_by_clock() -> None:
    found = said(authors.finding(evidence({authors.EXPERIMENT: BOTH}), "box"))
    assert found.figure == "2 of 2"
    assert "0 of 2 cases by the wall clock" in found.text
    assert found.page in {experiment.notebook for experiment in EXPERIMENTS.values()}
    assert found.claims == ()


@pytest.mark.parametrize(("rewrite", "figure"), [(8.51, "1 of 1"), (10.0, "0 of 1")])
def test_the_finding_of_the_graph_clock_alone(rewrite: float, figure: str) -> None:
    times = {"eager": 8.6, "author_v2": 8.5, "cublas_relu": rewrite}
    assert said(authors.finding(evidence({authors.EXPERIMENT: cells(times, "graph")}), "box")).figure == figure


def test_what_failed_says_why_and_what_is_missing_stays_empty() -> None:
    lines = cells({"eager": 8.6, "author_v0": 8.5, "author_v2": 8.5}, "graph")
    lines[-1] |= {"status": "skipped", "reason": "no extension", "medians_us": []}
    lab = evidence({authors.EXPERIMENT: lines})
    first, second = authors.table(lab, "box")
    assert (first["program"], first["the lab's rewrite"], first["equal within ±2%"]) == ("v0", "–", "–")
    assert second["the author's"] == "skipped: no extension"
    assert second["rewrite / author's"] == "–"
    assert authors.finding(lab, "box") is None


def test_a_machine_without_such_a_record_has_no_table() -> None:
    lab = evidence({"aten_fusion": cells({"eager": 8.6, "aten": 8.6}, "graph")})
    assert authors.table(lab, "box") == []
    assert authors.finding(lab, "box") is None


# ---------------------------------------------------------------- the lab's launch path


LAUNCHED = {"origin": "seed", "operator": True, "clock": "wall", "device": "cuda"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"clock": "hot"}, True),
        ({"clock": "graph"}, False),
        ({"clock": "cold"}, False),
        ({"clock": "cold", "device": "cpu"}, True),
        ({"clock": "none", "device": "cpu"}, False),
        ({"origin": "author"}, False),
        ({"origin": "peer"}, False),
        ({"origin": "own"}, False),
        ({"operator": False}, False),
    ],
)
def test_whose_time_includes_the_labs_launch_path(changes: dict[str, Any], expected: bool) -> None:
    assert row(**LAUNCHED | changes).launch_path is expected


def test_what_older_records_leave_unsaid_is_what_their_variants_say() -> None:
    unsaid = {
        (cell["operation"], cell["variant"]): cell
        for record in records.load()
        for cell in record.cells
        if "splits" not in cell and cell["origin"] != "author"
    }
    assert len(unsaid) > 100
    for (operation, name), cell in unsaid.items():
        one, said = variants(operation)[name.removesuffix(AGAIN)], results._said(cell)
        assert (said["splits"], said["operator"]) == (one.splits, one.operator), (operation, name)


def test_every_row_tells_whether_it_has_the_launch_path() -> None:
    lab = evidence({"aten_fusion": [*cells({"eager": 9.0, "aten": 12.0}, "wall"), *cells({"aten": 9.0}, "graph")]})
    assert [row.clock for row in lab.rows if row.launch_path] == ["wall"]


FUSED = {"eager": 100.0, "cublas_relu": 130.0, "aten": 101.0, "epilogue": 90.0}


@pytest.mark.parametrize(("device", "clock", "judged"), [("cuda", "graph", True), ("cpu", "hot", False)])
def test_a_rewrite_timed_with_the_labs_way_in_judges_no_document(device: str, clock: str, judged: bool) -> None:
    step = cells({"eager": 300.0, "cublas_relu": 330.0}, clock, MEDIUM, direction="forward_backward")
    models = [line for shape in MODELS for line in cells({"eager": 9.0, "aten": 12.0}, clock, shape, operation="mlp")]
    ladder = cells({"naive": 800.0, "eager": 20.0}, clock)
    steps = {"step_coalesced": 400.0} if device == "cuda" else {"blocked": 400.0}
    ladder += cells(steps, clock, origin="own")
    naive = cells({"eager": 20.0, "naive": 800.0}, clock)
    parts = {"aten_fusion": cells(FUSED, clock), "naive_vs_cublas": naive, "backward": step}
    lab = evidence(parts | {"mlp_models": models, "gemm_ladder": ladder}, device)
    assert bool(said(gemm_ladder.reasons(lab, "box")).claims) is judged
    for chapter in (linear_relu, backward, fused_mlp):
        found = chapter.findings(lab, "box")
        assert found
        assert any(one.claims for one in found) is judged, chapter.__name__
    for one in (linear_relu.naive(lab, "box"), linear_relu.equivalents(lab, "box", "cublas_relu")):
        assert ("launch path" in said(one).text) is not judged


def test_what_a_launch_path_is_stands_once_beneath_the_cards() -> None:
    naive = cells({"eager": 20.0, "naive": 800.0}, "hot")
    lab = evidence({"aten_fusion": cells(FUSED, "hot"), "naive_vs_cublas": naive}, "cpu")
    found = linear_relu.findings(lab, "box")
    marked = [one for one in found if findings.WAY_IN in one.text]
    assert len(marked) > 1
    for form in (findings.cards(found, lab, "box"), findings.sentences(found)):
        assert form.count(html.escape(findings.EXPLAINED)) == 1
    plain = [one for one in found if one not in marked]
    assert html.escape(findings.EXPLAINED) not in findings.cards(plain, lab, "box")


def test_the_relus_rate_is_a_share_of_a_copys() -> None:
    work = Workload("relu", (1024, 2048), "float32")
    alone = cells({"eager": 4.0}, "graph", [1024, 2048], operation="relu", traffic=work.traffic, flops=work.flops)
    linear = cells({"eager": 70.0}, "graph", MEDIUM, operation="linear")
    both = cells({"eager": 74.0, "cublas_relu": 78.0}, "graph", MEDIUM)
    copy = cells({"eager": 8.0}, "graph", [4096], operation="copy", traffic=4 * work.traffic, flops=0)
    lab = evidence({"aten_fusion": [*alone, *linear, *both], "ceilings": copy})
    (line,) = linear_relu.relu_rates(lab, "box")
    shares = [re.findall(r"(\d+)% of a copy", text) for text in line.values()]
    assert [share for share in shares if share] == [["50"], ["25"]]  # 4 and 8 µs where a copy would take 2
    assert linear_relu.relu_rates(evidence({"aten_fusion": [*alone, *linear, *both]}), "box") == []
    hot = [line | {"clock": "hot"} for line in (*alone, *linear, *both, *copy)]
    (line,) = linear_relu.relu_rates(evidence({"aten_fusion": hot[:4], "ceilings": hot[4:]}, "cpu"), "box")
    assert sum("of a copy" in text for text in line.values()) == 1  # v2's would have the lab's launch path in it


def test_no_clock_of_a_rewrite_opens_the_book() -> None:
    times = [*cells({"eager": 20.0, "cublas_relu": 70.0}, "wall"), *cells({"eager": 9.0, "cublas_relu": 9.0}, "graph")]
    lab = evidence({"method": times, "aten_fusion": cells(FUSED, "graph")})
    assert not [found for found in front.findings(lab, "box") if "wall" in found.text or "0.286×" in found.figure]


def test_tables_and_figures_mark_the_launch_path() -> None:
    times = [*cells(FUSED, "wall"), *cells(FUSED | {"cublas_relu": 100.0}, "graph")]
    rows = evidence({"method": times}).select(experiment="method")
    frame = tables.results_table(rows)
    marked = frame[frame["status"].str.contains("launch path")]
    assert set(zip(marked["variant"], marked["clock"], strict=True)) == {("cublas_relu", "wall"), ("aten", "wall")}
    figure, table = comparisons.ladder(rows)
    assert "launch path" in figure.layout.title.text
    reads = table.set_index(["variant", "clock"])["reads"]
    assert reads["cublas_relu", "wall"] == results.LAUNCH
    assert reads["cublas_relu", "graph"] == "equal"
    alone, _ = comparisons.ladder([row for row in rows if not row.launch_path])
    assert figure.layout.meta["title"] == alone.layout.meta["title"], "read apart by the way in, not by the clock"
    figure, table = comparisons.speedups([row for row in rows if row.clock == "wall"])
    assert figure.layout.title.text.count("1 faster") == 1
    assert "slower" not in figure.layout.title.text
    for draw in (comparisons.slowdowns, comparisons.times_against_limit):
        assert "launch path" in draw([row for row in rows if row.clock == "wall"])[0].layout.title.text
        assert "launch path" not in draw([row for row in rows if row.clock == "graph"])[0].layout.title.text


def test_a_ladder_of_rewrites_alone_can_be_drawn() -> None:
    rows = evidence({"method": cells({"eager": 9.0, "aten": 12.0}, "hot")}, "cpu").select(experiment="method")
    figure, _ = comparisons.ladder(rows)
    assert "aten" not in figure.layout.meta["title"]


def test_the_models_and_the_backward_pass_mark_it_too() -> None:
    times = {"eager": 9.0, "aten": 12.0}
    models = [line for clock in ("graph", "wall") for line in cells(times, clock, MODELS[0], operation="mlp")]
    (line,) = fused_mlp.nine(evidence({"mlp_models": models}), "box")
    assert [name for name in line if results.LAUNCH in name] == ["Plan C, wall (launch path)"]
    step = cells({"eager": 300.0, "cublas_relu": 330.0}, "hot", MEDIUM, direction="forward_backward")
    parts = {"backward": step, "aten_fusion": cells({"eager": 90.0, "cublas_relu": 99.0}, "hot", MEDIUM)}
    lines = backward.passes(evidence(parts, "cpu"), "box")
    assert ["launch path" in line["variant"] for line in lines] == [False, True]


# ---------------------------------------------------------------- one call by every clock


def test_the_clocks_are_told_of_one_eager_call() -> None:
    times = [*cells({"eager": 30.0, "aten": 90.0}, "wall"), *cells({"eager": 5.0, "aten": 5.0}, "graph")]
    lab = evidence({"method": times})
    (workload,) = {row.workload for row in lab.rows}
    text = method.clocks(lab, "box", workload)
    assert "5.0 µs by the graph clock" in text
    assert "6.0 times" in text
    once = evidence({"method": cells({"eager": 30.0}, "wall")})
    assert method.clocks(once, "box", workload) == ""


def test_a_card_says_whose_program_it_times_and_by_which_clock() -> None:
    large = [8192, 4096, 4096]
    times = [
        *cells({"eager": 20.0, "naive": 800.0}, "graph", large),
        *cells({"eager": 20.0, "naive": 500.0}, "graph", MEDIUM),
    ]
    lab = evidence({"naive_vs_cublas": times, "aten_fusion": cells(FUSED, "graph")})
    text = said(linear_relu.naive(lab, "box")).text
    assert "At 1024×784×2048 it takes 25 times as long." in text
    assert "the lab's rewrite" in text
    assert "graph clock" in text
    wall = cells({"eager": 100.0, "epilogue": 80.0}, "wall")
    assert "Called from" not in said(linear_relu.epilogue(lab, "box")).text
    lab = evidence({"aten_fusion": [*cells(FUSED, "graph"), *wall]})
    assert "Called from Python it runs at 1.25× of eager's speed." in said(linear_relu.epilogue(lab, "box")).text
    lab = evidence({"author_hypatia": cells({"eager": 20.0, "author_v1": 500.0}, "graph")})
    assert "the author's own program, in float32" in said(linear_relu.naive(lab, "box")).text
