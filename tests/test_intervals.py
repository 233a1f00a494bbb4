"""The statistics: intervals against known answers, ceilings and limits, and who counts in the A/A control."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtrit
from synthetic import cell_line

from hypatia_lab import intervals, records, results
from hypatia_lab.intervals import Interval

# ---------------------------------------------------------------- intervals


def test_the_mean_has_the_interval_of_the_textbook():
    # Student's t for 4 degrees of freedom at 97.5% is 2.776445 (any printed table).
    found = intervals.mean([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.776445 * math.sqrt(2.5) / math.sqrt(5)
    assert (found.value, found.low, found.high) == pytest.approx((3, 3 - half, 3 + half), rel=1e-6)
    assert found.n == 5


def test_the_geometric_interval_is_the_mean_interval_of_the_logarithms():
    values = [0.5, 1.0, 2.0, 8.0]
    logs = intervals.mean([math.log(v) for v in values])
    found = intervals.geometric(values)
    assert found.value == pytest.approx(statistics.geometric_mean(values))
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((logs.low, logs.high))


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (1.011, 1.013, "equal"),
        (1.01, 1.03, "faster"),
        (0.97, 0.999, "slower"),
        (0.97, 1.01, "undecided"),
        (1.2, 2.3, "faster"),
        (1.2, 25.0, "faster"),  # which way is known, how far is not
        (0.04, 0.7, "slower"),
        (0.4, 2.5, "too noisy to say"),
        (math.nan, math.nan, "too noisy to say"),
    ],
)
def test_an_interval_of_speeds_is_equal_before_it_is_faster(low: float, high: float, word: str):
    assert intervals.reading(Interval(1.0, low, high, 8)) == word
    assert intervals.reading(Interval(1.0, low, high, intervals.FEW - 1)) == "too few to tell"
    assert intervals.reading(Interval(1.0, low, high, 8, vetoed=True)) == "A/A failed"


@pytest.mark.parametrize(
    ("low", "high", "width"),
    [(2.0, 5.0, 2.5), (-5.0, -2.0, 2.5), (3.0, 3.0, 1.0), (math.nan, math.nan, math.inf), (-0.75, 0.75, 4.0)],
)
def test_the_width_is_the_factor_between_the_bounds(low: float, high: float, width: float):
    assert Interval(1.0 if low * high < 0 else (low + high) / 2, low, high, 8).width == pytest.approx(width)


def test_what_carries_no_sentence_lies_nowhere():
    sure = Interval(3.0, 2.9, 3.1, 8)
    assert all((sure.above(2), sure.within(2, 4), sure.inverse().below(1), sure.times(10).above(20)))
    assert not Interval(3.0, 3.0, 3.0, 1).doubt  # exact
    assert not replace(sure, n=intervals.FEW).doubt
    few, vetoed = replace(sure, n=intervals.FEW - 1), replace(sure, vetoed=True)
    assert (few.flaw, vetoed.flaw) == (intervals.TOO_FEW, intervals.VETOED)
    for mute in (few, vetoed):
        assert mute.doubt == mute.flaw
        assert not any((mute.above(1), mute.below(99), mute.within(0, 99), mute.outside(0, 1)))


def test_a_wide_interval_lies_on_a_side_and_its_value_is_not_told():
    wide = Interval(30.0, 15.0, 60.0, 8)
    assert (wide.flaw, wide.doubt) == ("", intervals.TOO_NOISY)
    assert (wide.above(14), wide.within(10, 100), wide.outside(1, 2), wide.above(16)) == (True, True, True, False)
    assert intervals.NOTHING.flaw == intervals.TOO_FEW


def test_the_p_value_is_that_of_the_textbook():
    from scipy.stats import ttest_1samp

    values = [1.02, 1.05, 0.99, 1.04, 1.03]
    expected = ttest_1samp([math.log(value) for value in values], 0)[1]
    assert intervals.same_p(intervals.geometric(values)) == pytest.approx(expected, rel=1e-9)
    assert intervals.same_p(intervals.geometric([1.1, 1.1])) == 0
    assert intervals.same_p(intervals.geometric([1.0, 1.0])) == 1


@pytest.mark.parametrize(
    ("estimate", "given"),
    [
        *(
            (intervals.geometric, [values])
            for values in ([], [1.0, 0.0], [1.0, -2.0], [1.0, math.nan], [1.0, math.inf])
        ),
        (intervals.mean, [[]]),
        (intervals.prediction, [[]]),
        (intervals.ratio, [[1.0, None], [None, 1.0]]),  # no pair
        (intervals.ratio, [[1.0, 2.0], [1.0]]),
        *((intervals.share, given) for given in ([-1, 3], [4, 3], [0, 0])),
    ],
)
def test_what_has_no_interval_is_refused(estimate, given):
    with pytest.raises(ValueError):  # noqa: PT011
        estimate(*given)


def test_a_quotient_of_two_estimates_holds_the_truth_as_often_as_it_says():
    luck, kept = random.Random(3), 0
    for _ in range(2000):
        above, below = (intervals.geometric([math.exp(luck.gauss(0, s)) for _ in range(8)]) for s in (0.02, 0.05))
        found = intervals.quotient(above, below)
        kept += found.low <= 1 <= found.high
    assert 0.94 < kept / 2000 < 0.98
    exact = Interval(2.0, 2.0, 2.0, 5)
    assert intervals.quotient(exact, Interval(4.0, 2.0, 8.0, 7)) == Interval(0.5, 0.25, 1.0, 5)
    assert math.isnan(intervals.quotient(exact, intervals.mean([1.0])).value)


def test_an_estimate_is_geometric_unless_something_is_not_positive():
    assert intervals.estimate([1.0, 4.0, 16.0]) == intervals.geometric([1.0, 4.0, 16.0])
    assert intervals.estimate([0.0, 4.0, -1.0]) == intervals.mean([0.0, 4.0, -1.0])


def test_independent_samples_have_the_interval_of_welch():
    draws = [[0.01, 0.03, -0.02, 0.05], [1.2, 0.8, 1.1, 0.9, 1.3, 0.7]]
    found = intervals.welch(draws, 0.0)
    means, errors = zip(*((statistics.fmean(x), statistics.variance(x) / len(x)) for x in draws), strict=True)
    freedom = sum(errors) ** 2 / sum(e**2 / (len(x) - 1) for e, x in zip(errors, draws, strict=True))
    assert math.log(found.value) == pytest.approx(sum(means))
    assert math.log(found.high / found.value) == pytest.approx(stdtrit(freedom, 0.975) * math.sqrt(sum(errors)))
    assert found.n == 4
    (alone,) = draws[:1]
    usual = intervals.mean(alone)
    one = intervals.welch([alone], 7.0)  # beside which a single sample lies is of no account
    assert (math.log(one.low), math.log(one.high)) == pytest.approx((usual.low, usual.high))
    assert intervals.welch([[0.5, 0.5], [1.0, 1.0]], 0.0).width == 1
    assert math.isnan(intervals.welch([alone, [1.0]], 0.0).low)


@pytest.mark.parametrize(
    ("a", "b", "n"),
    [
        # Both drift tenfold from process to process; their ratio does not, and only pairing sees that.
        ([2.0, 20.0, 200.0], [1.0, 10.0, 100.0], 3),
        ([2.0, None, 8.0, 3.0], [1.0, 5.0, 4.0, None], 2),
    ],
)
def test_a_ratio_is_paired_by_process(a, b, n):
    found = intervals.ratio(a, b)
    assert (found.value, found.width, found.n) == (pytest.approx(2.0), pytest.approx(1), n)


@pytest.mark.parametrize(
    ("low", "high", "equal", "outside"),
    [
        (0.981, 1.019, True, False),
        (0.979, 1.0, False, False),
        (1.0, 1.021, False, False),
        (1.03, 1.04, False, True),
        (0.95, 0.96, False, True),
        (0.9, 1.1, False, False),
        (0.9, 0.99, False, False),
        (math.nan, math.nan, False, False),
    ],
)
def test_the_whole_interval_lies_within_two_per_cent_or_outside(low, high, equal, outside):
    found = Interval(1.0, low, high, 8)
    assert (intervals.equal(found), found.outside(0.97, 1.02)) == (equal, outside)


def test_outliers_are_counted_by_tukeys_fences():
    # Quartiles 2 and 4 of the eleven, IQR 2: mild beyond 7 or -1, severe beyond 10 or -4.
    samples = [1.0, 2, 2, 2, 3, 3, 3, 4, 4, 8, 10.5]
    assert intervals.outliers(samples) == {"mild": 1, "severe": 1, "of": 11}
    assert intervals.outliers([1.0, 1.0, 100.0]) == {"mild": 0, "severe": 0, "of": 3}


def test_so_many_processes_clear_an_edge():
    def like(n: int) -> Interval:
        """The textbook's interval of n values about 10 that scatter by 2."""
        half = float(stdtrit(n - 1, 0.975)) * 2 / math.sqrt(n)
        return Interval(-10, -10 - half, -10 + half, n)

    for n in (2, 4, 8):
        edge = -10 + 0.4 * (like(n).high + 10)
        needed = intervals.processes_to_clear(like(n), edge, 1000)
        assert needed > n
        assert like(needed).high < edge <= like(needed - 1).high
    assert intervals.processes_to_clear(like(8), -10 - 1e-9, 1000) == 1001
    assert intervals.processes_to_clear(like(8), -10, 1000) == 1001
    positive = intervals.geometric([9.0, 10.0, 12.0])
    turned = Interval(1 / positive.value, 1 / positive.high, 1 / positive.low, 3)
    assert intervals.processes_to_clear(positive, 9.5, 99) == intervals.processes_to_clear(turned, 1 / 9.5, 99) < 100


def test_what_no_process_narrows_counts_towards_clearing_an_edge():
    found, edge = intervals.geometric([9.0, 10.0, 12.0]), 9.5
    needed = [intervals.processes_to_clear(found, edge, 999, spread) for spread in (0.0, 0.01, 0.02)]
    assert needed == sorted(set(needed))
    assert needed[-1] <= 999
    assert intervals.processes_to_clear(found, edge, 999, math.log(found.value / edge) / 1.9) == 1000


@pytest.mark.parametrize(
    ("count", "total"), [(0, 1), (1, 1), (0, 40), (2, 40), (5, 100), (7, 40), (12, 239), (60, 70), (70, 70), (55, 1500)]
)
def test_counts_are_judged_as_scipy_does(count, total):
    from scipy.stats import binomtest

    found = binomtest(count, total, 0.05)
    assert intervals.false_rate_p(count, total) == pytest.approx(found.pvalue, rel=1e-6)
    ends = found.proportion_ci(0.95)
    share = intervals.share(count, total)
    assert (share.value, share.n) == (count / total, total)
    assert (share.low, share.high) == pytest.approx((ends.low, ends.high), rel=1e-9)


def test_independent_series_have_no_correlation_and_shared_ones_have_theirs():
    draw = random.Random(4)
    alone = [[draw.gauss(0, 1) for _ in range(8)] for _ in range(200)]
    assert abs(intervals.together(alone)) < 0.02
    shared = [draw.gauss(0, 1) for _ in range(8)]
    half = [[a + b for a, b in zip(one, shared, strict=True)] for one in alone]
    assert 0.3 < intervals.together(half) < 0.7
    assert intervals.together([shared, [2 * x + 5 for x in shared]]) == pytest.approx(1)
    assert intervals.together([shared, [-x for x in shared], [1.0] * 8]) == pytest.approx(-1)
    assert math.isnan(intervals.together([shared, [1.0] * 8]))


# ---------------------------------------------------------------- results


def cell(shape: tuple[int, ...], medians: Sequence[float | None], variant: str = "eager", **changes: Any) -> dict:
    """One cell with medians (µs, one a process); 2·m·k·n FLOPs and a thousand bytes unless told otherwise."""
    own = {"shape": list(shape), "variant": variant, "flops": 2 * math.prod(shape), "traffic": 1000}
    return cell_line(**own | {"medians_us": list(medians), "samples_us": []} | changes)


def record(*cells: dict, machine: str = "box", experiment: str = "method", device: str = "cpu") -> records.Record:
    """A record in memory, with as many processes as its longest cell has medians."""
    processes = max(len(one["medians_us"]) for one in cells)
    run = {"machine": machine, "experiment": experiment, "device": device, "processes": processes}
    return records.Record(Path("nowhere"), run, tuple(cells), "")


def row_of(name: str, *cells: dict) -> results.Row:
    """The row of variant ``name`` among those of one record."""
    return next(row for row in results.rows([record(*cells)]) if row.variant == name)


def product(n: int, us: Sequence[float | None], **changes: Any) -> dict:
    """A cell of the ceilings: an n×n×n matrix product."""
    return cell((n, n, n), us, operation="matmul", **changes)


def copied(n: int, us: Sequence[float | None], **changes: Any) -> dict:
    """A cell of the ceilings: n numbers copied, 8 bytes of traffic each."""
    return cell((n,), us, operation="copy", flops=0, traffic=8 * n, **changes)


BASE = [10.0, 10.0]


@pytest.mark.parametrize(
    "base",
    [
        cell((2, 3, 5), BASE),
        cell((2, 3, 4), BASE, clock="cold"),
        cell((2, 3, 4), BASE, dtype="bfloat16"),
        cell((2, 3, 4), BASE, math="tf32"),
        cell((2, 3, 4), BASE, status="too_fast"),
    ],
)
def test_a_baseline_is_sound_and_of_the_same_workload_clock_and_experiment(base):
    lonely = cell((2, 3, 4), [40.0, 42.0], "naive")
    row, *_ = results.rows([record(lonely, base), record(cell((2, 3, 4), [1.0, 1.0]), experiment="other")])
    assert row.median_us == pytest.approx(math.sqrt(40 * 42))
    assert (math.isnan(row.ratio), row.n) == (True, 0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(1, 1e6)), min_size=1, max_size=8))
def test_a_ratio_is_the_quotient_of_the_two_times_where_all_processes_pair(pairs):
    base, own = zip(*pairs, strict=True)
    one, other = results.rows([record(cell((2, 3, 4), base), cell((2, 3, 4), own, "naive"))])
    assert other.workload == "linear_relu/2x3x4/float32/ieee/forward"
    assert other.n == len(pairs)
    assert other.median_us == pytest.approx(statistics.geometric_mean(own))
    assert other.ratio == pytest.approx(one.median_us / other.median_us, rel=1e-9)
    assert one.over(other).value == other.speed.value
    assert other.time.value == other.median_us
    assert one.against(other).ratio == pytest.approx(1 / other.ratio)


def test_what_no_process_timed_both_of_goes_by_way_of_the_baseline():
    """A variant that was added later was measured beside the baseline alone, in processes of its own."""
    eager = cell((2, 3, 4), [10.0, 10.1, 9.9, 20.0, 20.2, 19.8], "eager")  # the later visit's chip is slower
    earlier = cell((2, 3, 4), [5.0, 5.0, 5.0, None, None, None], "naive")
    later = cell((2, 3, 4), [None, None, None, 5.0, 5.1, 5.0], "triton")
    rows = {row.variant: row for row in results.rows([record(eager, earlier, later)])}
    found = rows["naive"].over(rows["triton"])
    assert found.value == pytest.approx(rows["triton"].ratio / rows["naive"].ratio)
    assert found.value == pytest.approx(2, rel=0.02)
    assert found.n == 3
    halves = [math.log(row.ratio_high / row.ratio_low) / 2 for row in (rows["naive"], rows["triton"])]
    assert math.log(found.high / found.low) / 2 == pytest.approx(math.hypot(*halves))
    assert rows["triton"].against(rows["naive"]).speed == found
    other = results.rows([record(eager, earlier), record(eager, later, experiment="other")])
    assert math.isnan(next(row for row in other if row.variant == "naive").over(other[-1]).value)


@pytest.mark.parametrize("status", [status for status in records.STATUSES if status != "ok"])
def test_a_cell_that_is_not_ok_carries_no_time_and_no_ratio(status):
    bad = cell((2, 3, 4), [5.0, 5.0], "naive", status=status, reason="told")
    row = row_of("naive", cell((2, 3, 4), BASE), bad)
    assert all(math.isnan(getattr(row, key)) for key in ("median_us", "ratio", "ratio_low", "ratio_high"))
    assert row.medians_us == []
    assert (row.status, row.reason) == (status, "told")


@pytest.mark.parametrize("reached_us", [2.0, 1.0, None])
def test_what_was_too_fast_is_believed_once_the_ceilings_allow_it(reached_us):
    # 125 numbers are the 1000 bytes of the cell: what a copy of them takes is the limit.
    known = [record(copied(125, [reached_us]), product(99, [1e-3]), experiment="ceilings")] if reached_us else []
    fast = cell((2, 3, 4), [1.0, 1.0], "naive", status="too_fast", reason="not believed")
    row = results.rows([*known, record(cell((2, 3, 4), [4.0, 4.0]), fast)])[-1]
    believed = reached_us == 1.0
    assert (row.status, row.reason) == (("ok", "") if believed else ("too_fast", "not believed"))
    assert [row.median_us, row.ratio] == pytest.approx([1.0, 4.0] if believed else [math.nan] * 2, nan_ok=True)


def test_fewer_products_than_the_definition_has_are_no_reason_for_doubt():
    best = {("matmul", "float32/ieee", "hot"): 48e6, ("copy", "", "hot"): 1e12}
    slow = cell((2, 3, 4), [2.0], flops=480)
    fewer = slow | {"fewest_flops": 48}
    assert [results.limit_us(one, best) for one in (slow, fewer)] == pytest.approx([10.0, 10.0])
    assert [results.least_us(one, best) for one in (slow, fewer)] == pytest.approx([10.0, 1.0])


def test_a_process_that_failed_is_left_out_of_median_and_ratio():
    row = row_of("naive", cell((2, 3, 4), [10.0, 20.0, None]), cell((2, 3, 4), [5.0, None, 7.0], "naive"))
    assert (row.median_us, row.ratio, row.n) == (pytest.approx(math.sqrt(35)), 2.0, 1)
    assert all(map(math.isnan, (row.ratio_low, row.ratio_high)))  # one pair is left


def test_the_best_size_and_process_is_the_ceiling():
    own = record(
        product(100, [50.0, 40.0]),  # 2e6 FLOP in 40 µs
        product(200, [100.0, None]),  # 16e6 FLOP in 100 µs: the best
        product(100, [1.0, 1.0], clock="cold", status="wrong", reason="no"),
        product(100, [2.0, 2.0], dtype="bfloat16"),
        copied(1000, [4.0, 2.0]),
        copied(10, [1.0, 1.0]),
        experiment="ceilings",
    )
    others = record(copied(10**6, [0.001, 0.001]), experiment="method")
    rates = {("matmul", "float32/ieee", "hot"): 16e6 / 100e-6, ("matmul", "bfloat16/ieee", "hot"): 2e6 / 2e-6}
    assert results.ceilings([own, others]) == pytest.approx(rates | {("copy", "", "hot"): 8000 / 2e-6})


BEST = {
    ("matmul", "float32/ieee", "hot"): 1e12,
    ("matmul", "float32/ieee", "cold"): 5e11,
    ("copy", "", "hot"): 1e10,
    ("copy", "", "cold"): 1e9,
}


SPLIT = {("matmul", "float32/tf32", "hot"): 4e12, ("matmul", "float16/ieee", "hot"): 8e12}
GRAPH = {("matmul", "float32/ieee", "graph"): 2e12, ("copy", "", "graph"): 2e10}
MANY, BYTES = {"flops": 10**9, "traffic": 1000}, {"flops": 10**6, "traffic": 10**6}


@pytest.mark.parametrize(
    ("best", "changes", "limit"),
    [
        ({}, MANY, 1000.0),  # arithmetic: 1e9 / 1e12 s
        ({}, BYTES, 100.0),  # bytes: 1e6 / 1e10 s
        ({}, MANY | {"clock": "cold"}, 2000.0),
        ({}, BYTES | {"clock": "cold"}, 1000.0),
        ({}, MANY | {"clock": "wall"}, 1000.0),  # launching is no physical limit
        ({}, BYTES | {"flops": 0, "dtype": "float64"}, 100.0),  # no arithmetic: no matrix rate needed
        ({}, MANY | {"dtype": "float64"}, math.nan),  # no ceiling was measured
        (GRAPH, MANY | {"clock": "graph"}, 500.0),  # a GPU is held to what its graph clock measured
        (GRAPH, MANY | {"clock": "hot"}, 500.0),
        (GRAPH, MANY | {"clock": "wall"}, 500.0),
        # Split operands are held to the arithmetic they use.
        (SPLIT, MANY | {"splits": ["float32/tf32", 3]}, 750.0),  # three products at four times float32's rate
        (SPLIT, MANY | {"splits": ["float16/ieee", 3]}, 375.0),
        (SPLIT, MANY | {"variant": "dispatched"}, 375.0),  # it may have chosen those
        (SPLIT, MANY | {"variant": "modules"}, 375.0),
        (SPLIT, MANY | {"variant": "egraph", "direction": "forward_backward"}, 375.0),  # made of modules
        (SPLIT, MANY | {"variant": "egraph"}, 1000.0),
        (SPLIT, MANY, 1000.0),
        (SPLIT, MANY | {"splits": ["float16/ieee", 3], "dtype": "bfloat16"}, math.nan),  # there is nothing to split
        ({("matmul", "float16/ieee", "hot"): 1e10}, MANY | {"variant": "dispatched"}, 1000.0),  # slow in half precision
    ],
)
def test_the_limit_is_the_larger_of_arithmetic_and_bytes(best, changes, limit):
    one = cell((2, 3, 4), [1.0], **changes)
    assert results.limit_us(one, BEST | best) == pytest.approx(limit, nan_ok=True)
    for some in ({}, {("matmul", "float32/ieee", "hot"): 1e12}):  # there is none where not all was measured
        assert math.isnan(results.limit_us(one, some)) or not one["traffic"]


@pytest.mark.parametrize(
    ("moved", "limit"), [(400, 1.0), (800, 2.0), (801, 0.801), (8000, 8.0), (80000, 20.0), (160000, 40.0)]
)
def test_bytes_are_held_to_the_smallest_copy_that_moves_as_many(moved, limit):
    swept = [copied(100, [2.0]), copied(1000, [9.0, 8.0]), copied(10000, [20.0]), copied(10**6, [1.0], clock="cold")]
    top = record(product(100, [1.0]), *swept, experiment="ceilings")
    found = results.rows([top, record(cell((2, 3, 4), [10.0], flops=0, traffic=moved))])[-1]
    assert found.limit_us == pytest.approx(limit)
    # What is too fast is still told by the best rate of any size: 80,000 bytes in 20 µs.
    least = results.least_us(cell((2, 3, 4), [10.0], flops=0, traffic=moved), results.ceilings([top]))
    assert least == pytest.approx(moved / 4000)


def test_ceilings_bound_neither_another_machine_nor_what_is_not_timed():
    here = record(product(100, [1.0]), copied(100, [1.0]), experiment="ceilings", machine="here")
    own = [record(cell((2, 3, 4), [1.0], clock=clock), machine="here") for clock in ("hot", "none")]
    rows = results.rows([here, *own, record(cell((2, 3, 4), [1.0]), machine="there")])
    assert [math.isnan(row.limit_us) for row in rows] == [False, False, False, True, True]
    assert rows[2].limit_us == pytest.approx(1.25)  # 1000 bytes at the copy's 800 bytes/µs


def test_the_table_has_the_columns_of_the_contract():
    table = results.table([record(cell((2, 3, 4), [1.0, 2.0]))])
    # Written out: other programs rely on these names and this order.
    assert " ".join(table.columns) == (
        "machine experiment operation workload shape dtype math clock direction variant origin baseline median_us "
        "ratio ratio_low ratio_high n limit_us error max_error status reason"
    )
    assert len(table) == 1


def pair(shape: tuple[int, ...], again: Sequence[float | None], clock: str, **changes: Any) -> list[dict]:
    """An A/A pair: the baseline takes 10 µs in every process."""
    base = cell(shape, [10.0] * len(again), clock=clock, **changes)
    return [base, cell(shape, again, "eager@again", clock=clock, **changes)]


SAME, OFF = (9.9, 10.1, 10.0, 10.0), (12.0, 12.1, 11.9, 12.0)


@pytest.mark.parametrize(("device", "primary", "other"), [("cuda", "graph", "hot"), ("cpu", "hot", "cold")])
def test_agreement_counts_one_pair_a_workload_at_the_primary_clock(device, primary, other):
    cells = [
        *pair((2, 3, 4), SAME, primary),
        *pair((2, 3, 4), OFF, other),
        *pair((2, 3, 4), OFF, "wall"),
        *pair((2, 3, 5), SAME, primary),
        *pair((2, 3, 6), SAME, primary, dtype="bfloat16"),
        cell((2, 3, 4), OFF, "naive", clock=primary),
    ]
    other = record(*pair((2, 3, 4), OFF, primary), machine="other", device=device)
    found, apart = results.agreement([record(*cells, device=device), other])
    assert (found["machine"], found["pairs"], found["differences"], found["rate"]) == ("box", 3, 0, 0.0)
    assert (apart["machine"], apart["pairs"], apart["differences"]) == ("other", 1, 1)


WIDE = (8.0, 12.5, 10.0, 10.0)


@pytest.mark.parametrize(
    ("pairs", "differences"),
    [((SAME, OFF, SAME), 1), ((SAME, SAME, WIDE), 0), ((SAME, (10.0,), None), 0), (((10.0,),), 0)],
)
def test_agreement_counts_each_false_difference_among_pairs_with_an_interval(pairs, differences):
    cells = [one for number, again in enumerate(pairs) for one in pair((2, 3, 4 + number), again or SAME, "hot")]
    cells[-1] |= {"status": "crashed"} if pairs[-1] is None else {}
    found = results.agreement([record(*cells)])
    counted = [again for again in pairs if again in (SAME, OFF, WIDE)]
    assert len(found) == bool(counted)
    for row in found:
        assert (row["pairs"], row["differences"]) == (len(counted), differences)
        assert row["rate"] == pytest.approx(differences / len(counted))
        assert row["p"] == pytest.approx(intervals.false_rate_p(differences, len(counted)))


def test_agreement_says_how_far_pairs_of_the_same_processes_go_together():
    draw = random.Random(2)
    shift = [1 + draw.gauss(0, 0.01) for _ in range(8)]

    def drawn(common: float, experiment: str = "agreement") -> records.Record:
        again = [[10 * (1 + draw.gauss(0, 0.01)) * s**common for s in shift] for _ in range(40)]
        works = [pair((2, 3, n), us, "hot") for n, us in enumerate(again, 1)]
        return record(*(one for work in works for one in work), experiment=experiment)

    def together(*found: records.Record) -> float:
        (row,) = results.agreement(found)
        return row["together"]

    assert abs(together(drawn(0.0))) < 0.06
    assert together(drawn(1.0)) > 0.3
    assert together(drawn(1.0), drawn(1.0, "method")) > 0.3
    (lone,) = results.agreement([record(*pair((2, 3, 4), SAME, "hot"))])
    assert math.isnan(lone["together"])
    assert lone["rate_low"] == 0 < lone["rate_high"] <= 1


def test_agreement_says_what_difference_it_could_have_detected():
    half = {us: intervals.ratio([10.0] * 4, us) for us in (SAME, WIDE)}
    of = (one for n, again in enumerate((SAME, SAME, WIDE)) for one in pair((2, 3, 4 + n), again, "hot"))
    (few,) = results.agreement([record(*of)])
    assert few["detectable"] == pytest.approx(half[SAME].high / half[SAME].value - 1)
    assert few["detectable"] < few["detectable_90"] < half[WIDE].high / half[WIDE].value - 1


# ---------------------------------------------------------------- what a control that failed takes away


@pytest.mark.parametrize(
    ("again", "fails"),
    [
        ((9.9, 10.1, 10.0, 10.0, 10.05), False),
        ((10.04, 10.05, 10.04, 10.05, 10.04), True),  # by 0.4%, p < 0.001
        ((10.5, 10.9, 10.2, 10.8, 11.0), True),  # by 6.6%, p = 0.01
        ((10.3, 10.5, 10.0, 10.5, 10.6), False),  # by 3.8%, p = 0.02
        ((9.0, 15.0, 10.0, 14.0, 8.0), False),  # by 9%, and the interval holds 1
        ((12.0, None, None, None, None), False),  # one process has no interval
    ],
)
def test_a_control_that_is_told_apart_takes_every_reading_of_its_workload(again, fails):
    works = [*pair((2, 3, 4), again, "hot"), cell((2, 3, 4), [5.0] * 5, "naive", clock="hot")]
    apart = [cell((2, 3, 4), [5.0] * 5, "naive", clock="cold"), cell((2, 3, 4), [10.0] * 5, clock="cold")]
    other = record(cell((2, 3, 4), [10.0] * 5), cell((2, 3, 4), [5.0] * 5, "naive"), experiment="other")
    rows = results.rows([record(*works, *apart), other])
    failed = {(row.experiment, row.clock) for row in rows if row.veto}
    assert failed == ({("method", "hot")} if fails else set())
    for row in rows:
        if row.variant == "naive":
            assert intervals.reading(row.speed) == ("A/A failed" if row.veto else "faster")
    assert results.agreement([record(*works)]) == results.agreement([record(*works[:2])])  # the control of the machine
