"""What the page of drawn shapes says of the lab's wins: their arithmetic, and their error over eager's."""

from __future__ import annotations

import pytest
from synthetic import Lines, cells, evidence

import hypatia_lab.experiments  # noqa: F401  (registers the operations of the cells below)
from hypatia_lab.kernels.conv_block import conv_block_direct
from hypatia_lab.pages import untuned

pytestmark = pytest.mark.usefixtures("two_processes")


def drawn(times: dict[str, float], errors: tuple[float, float], *shape: int, **changes: str) -> Lines:
    lines = cells(times, shape=shape, **changes)
    for line, error in zip(lines, errors, strict=True):
        line["error"] = error
    return lines


def test_beside_the_wins_stand_their_arithmetic_and_their_error_over_eagers() -> None:
    lines = [
        *drawn({"eager": 9.0, "*fp16x3": 4.0}, (1e-7, 2e-7), 64, 77, 99),
        *drawn({"eager": 9.0, "*fp16x3": 5.0}, (1e-7, 4e-7), 65, 77, 99),
        *drawn({"eager": 4.0, "*fp16x3": 9.0}, (1e-7, 9e-7), 66, 77, 99),  # behind: no win
        *drawn({"eager": 9.0, "*cuda": 4.0}, (4e-4, 1e-7), 8, 77, 99, math="tf32"),
        *drawn({"eager": 9.0, "*cuda": 4.0}, (4e-4, 4e-4), 9, 77, 99, math="tf32"),
    ]
    heads = ("how the lab multiplies", "ahead", "error over eager's: median", "least", "most")
    found = [tuple(line[head] for head in heads) for line in untuned.wins(evidence({"unseen": lines}), "box")]
    assert found == [
        ("TF32", "1", "1.00×", "1.00×", "1.00×"),
        ("float32", "1", "0.000250×", "0.000250×", "0.000250×"),
        ("3 products of float16 parts", "2", "3.00×", "2.00×", "4.00×"),
    ]


def test_few_channels_are_neither_split_nor_copied() -> None:
    assert untuned.FEW_CHANNELS == conv_block_direct.MOST
    block, times = {"operation": "conv_block"}, ({"eager": 9.0, "*triton_fp16x3": 4.0}, (1e-7, 1e-7))
    lost = {"eager": 4.0, "*triton_fp16x3": 9.0}, (1e-7, 1e-7)
    lines = [line for channels in (25, 33) for line in drawn(*times, 1, channels, 9, 9, **block)]
    lines += [line for channels in (25, 33) for line in drawn(*lost, 2, channels, 9, 9, **block)]
    data = evidence({"unseen": lines})
    wins = {line["how the lab multiplies"]: line["ahead"] for line in untuned.wins(data, "box")}
    assert wins == {"float32": "1", "3 products of float16 parts": "1"}
    reasons = {line["shape"]: line["likely reason"] for line in untuned.where_behind(data, "box")}
    assert sorted(reasons.values()) == ["rows copied first; three products", "uneven rows, not copied"]


def test_the_headline_says_what_is_left_out_and_counts_no_shape_without_an_own_form() -> None:
    lines = [*cells({"eager": 9.0, "*triton": 4.0}, dtype="bfloat16"), *cells({"eager": 9.0}, shape=(7, 7, 7))]
    data = evidence({"unseen": lines})
    drawn_figure = untuned.figure(data, "box")[0]
    assert "at 1 of 1 shapes" in drawn_figure.title
    assert "torch.compile left out" in drawn_figure.alt
    assert [line["shapes"] for line in untuned.by_rows(data, "box")] == ["1"]
