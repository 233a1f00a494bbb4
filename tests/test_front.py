"""The front page: findings with a picture each, and a claim of each document with its verdict."""

from __future__ import annotations

from typing import Any

import pytest
from synthetic import cells, detail_line, evidence, judgement

import hypatia_lab.experiments  # noqa: F401  (registers the operations of the cells below)
from hypatia_lab import claims
from hypatia_lab.claims import ANY
from hypatia_lab.pages import front
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.tables import claims as claim_tables

pytestmark = pytest.mark.usefixtures("two_processes")

WIDE = {"operation": "mlp3", "shape": [65536, 64], "dtype": "bfloat16"}
IMAGE = {"operation": "diffraction", "shape": [1024, 1024]}
TIMES = {"eager": 30.0, "epilogue": 20.0, "compile": 21.0, "*fused": 6.0}
NAIVE = {
    "naive_vs_cublas": [
        *cells({"eager": 10.0, "naive": 90.0}, shape=[256, 256, 512]),
        *cells({"eager": 100.0, "naive": 2800.0}),
    ]
}
PROGRAM = detail_line(
    operation="diffraction", shape=[1024, 1024], topic="program", case="benchmark_detailed", variant="author_c"
)
SIMULATOR = {
    "author_nanobragg": [
        *cells({"c_openmp": 2000.0, "author_torch": 9000.0}, **IMAGE, clock="wall"),
        PROGRAM | {"name": "c", "unit": "ms", "values": [30.0, 31.0]},
    ],
}


def judged(lab: Evidence, ids: list[str], **changes: Any) -> Evidence:
    """``lab`` with a judgement on each of ``ids`` on its machine."""
    rows = {name: judgement(id=name, machine="box", claim=f"{name} < 1", **changes) for name in ids}
    lab.__dict__["judged"] = {name: {"box": row} for name, row in rows.items()}
    return lab


def one_kernel(times: dict[str, float], processes: int = 2) -> str:
    """What the picture of ``times`` says; empty without one."""
    own = [line | {"medians_us": line["medians_us"][:processes]} for line in cells(times, **WIDE)]
    picture = front.one_kernel(evidence({"fused_mlp": own}), "box")
    return picture.description if picture else ""


def test_a_changed_record_changes_the_picture_and_one_of_too_few_processes_has_none() -> None:
    first = one_kernel(TIMES)
    assert [time in first for time in ("30.1 µs", "20.1 µs", "21.1 µs", "6.03 µs")] == [True, True, False, True]
    assert one_kernel(TIMES | {"*fused": 9.0}) not in ("", first)
    assert one_kernel(TIMES, processes=1) == one_kernel({"eager": 30.0}) == ""


def test_the_naive_kernel_is_drawn_by_size_beside_what_was_claimed() -> None:
    picture = front.one_thread(evidence(NAIVE), "box")
    assert picture is not None
    order = [picture.description.index(text) for text in ("256×256×512", "9.00×", "1024×784×2048", "28.0×")]
    assert order == sorted(order)
    assert f"{claims.claimed('S004-01'):g}×" in picture.description


def test_an_image_is_drawn_by_what_there_is_of_it() -> None:
    picture = front.against_c(evidence(SIMULATOR), "box")
    assert picture is not None
    assert all(time in picture.description for time in ("2.01 ms", "9.04 ms", "30.5 ms"))
    assert front.against_c(evidence({"author_nanobragg": [PROGRAM]}), "box") is None


def test_a_lead_stands_with_its_picture_its_verdict_and_figures(shown: list[dict[str, str]]) -> None:
    lab = judged(evidence(NAIVE | {"fused_mlp": cells(TIMES, **WIDE)}), [lead.id for lead in front.LEADS])
    front.show(lab, "box")
    (form, text) = shown[0]["text/html"], shown[0]["text/plain"]
    drawn = [lead for lead in front.LEADS if lead.draw(lab, "box")]
    assert form.count("<svg") == len(drawn) == 2
    for lead in front.LEADS:
        assert (f'<a href="{lead.page}.html">{lead.id} &lt; 1</a>' in form) is (lead in drawn)
    for row in (lab.judged[lead.id]["box"] for lead in drawn):
        for part in (claim_tables.word(row), claim_tables.asked(row), claim_tables.judged(row)):
            assert part in form
            assert part in text


def test_a_machine_without_a_record_has_no_picture(shown: list[dict[str, str]]) -> None:
    lab = judged(evidence({"ceilings": cells({"eager": 1.0})}), [lead.id for lead in front.LEADS])
    front.show(lab, "box")
    assert [lead.draw(lab, "box") for lead in front.LEADS] == [None] * len(front.LEADS)
    assert shown == []


def test_each_document_stands_with_a_claim_and_its_verdict() -> None:
    ids = [one.claim for one in front.DOCUMENTS.values()]
    lab = judged(evidence(NAIVE), ids[1:])
    lab.judged[ids[0]] = {ANY: judgement(id=ids[0], machine=ANY, verdict="inconsistent")}
    lines = front.documents(lab, "box").to_dict("records")
    assert list(front.DOCUMENTS) == sorted({one.document for one in claims.ledger()} - {claims.LAB})
    for line, (seed, one) in zip(lines, front.DOCUMENTS.items(), strict=True):
        (row,) = lab.judged[one.claim].values()
        assert one.claim.startswith(f"{seed}-")
        assert line["verdict"] == claim_tables.word(row)
        assert (line["claimed"], line["measured"]) == (claim_tables.asked(row), claim_tables.judged(row))
        assert line["document"].startswith(seed)
        assert f'<a href="https://github.com/{one.repository}">' in line["document"]
