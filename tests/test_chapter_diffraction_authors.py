"""S003's own program beside its document, from synthetic records: tables, findings, and that they are the ledger's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from synthetic import Lines, cell_line, detail_line, evidence_of, played, run_line, said, write_records
from synthetic import evidence as together

from hypatia_lab import claims, formats, intervals, records
from hypatia_lab.chapters import diffraction_authors, diffraction_findings, front
from hypatia_lab.claims import details
from hypatia_lab.intervals import Interval
from hypatia_lab.pages import findings, phrases
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding

pytestmark = pytest.mark.usefixtures("two_processes")

ROOT = Path(__file__).resolve().parent.parent
SIDES = (256, 512, 1024, 2048, 4096)
IMAGE = {"operation": "diffraction", "dtype": "float64"}
LEDGER = {claim.id: claim for claim in claims.ledger(seeds=["S003"])}


def script(case: str, figures: Mapping[str, tuple[str, Sequence[float | None]]], **changes: Any) -> Lines:
    """Lines of one command at 1024²: figure → its unit and a value a process."""
    own = IMAGE | {"shape": [1024, 1024], "topic": "program", "case": case, "variant": "author_torch"}
    own |= {"origin": "author"} | changes
    return [detail_line(name=name, unit=unit, values=list(v), **own) for name, (unit, v) in figures.items()]


def benchmarked(side: int, c: float, setup: float, simulation: float) -> Lines:
    """What the benchmark leaves of one detector in three processes that differ by 1% (seconds)."""
    steps = (1.0, 1.01, 1.02)
    total = setup + simulation
    lines = script("benchmark_detailed", {"c": ("s", [c * k * k for k in steps])}, variant="author_c")
    lines += script(
        "benchmark_detailed",
        {
            "setup": ("s", [setup * k for k in steps]),
            "simulation": ("s", [simulation * k for k in steps]),
            "total": ("s", [total * k for k in steps]),
            "slowdown": ("1", [total / (c * k) for k in steps]),
            "simulation slowdown": ("1", [simulation / (c * k) for k in steps]),
            "setup share": ("%", [100 * setup / total] * 3),
            "correlation": ("1", [1.0] * 3),
        },
    )
    return [line | {"shape": [side, side]} for line in lines]


def called(side: int, calls: Mapping[int, float]) -> Lines:
    """Twelve calls in two processes: number → ms, 10 ms where none is given."""
    times = {f"call {n}": ("ms", [calls.get(n, 10.0) * k for k in (1.0, 1.01 - n / 1e3)]) for n in range(1, 13)}
    return script("warm", times, shape=[side, side])


def clocked(variant: str, us: float, side: int = 1024, **changes: Any) -> dict[str, Any]:
    """A cell of eight processes that differ by up to 5%, by the wall clock."""
    shape = {"shape": [side, side], "flops": 0, "traffic": 4 * side**2, "max_error": 1e-9, "peak": 1.0}
    origin = "author" if variant.startswith("author") else "own" if variant in ("cuda", "triton") else "peer"
    own = {
        "variant": variant,
        "clock": "wall",
        "origin": origin,
        "medians_us": [us * (1 + n * n / 1e3) for n in range(8)],
    }
    return cell_line(**IMAGE | shape | own | changes)


SECONDS = {256: (0.01, 16.0, 0.04), 512: (0.02, 17.0, 0.03), 1024: (0.1, 0.03, 0.025)}
SECONDS |= {2048: (0.25, 0.04, 0.03), 4096: (1.0, 0.05, 0.03)}
BENCHMARK = [line for side, seconds in SECONDS.items() for line in benchmarked(side, *seconds)]
PROFILE = script(
    "profile",
    {
        "kernel calls": ("1", [905.0, 905.0]),
        "unique kernels": ("1", [55.0, 55.0]),
        "regions": ("1", [3.0, 3.0]),
        "gpu time": ("ms", [1.9, 2.0]),
        "graph launch share": ("%", [35.0, 36.0]),
        "top kernel share": ("%", [20.0, 21.0]),
        "top three share": ("%", [40.0, 41.0]),
        "record share": ("%", [0.0, 86.0]),
    },
)
DTYPE = script(
    "dtype",
    {
        "fp64": ("s", [0.026, 0.027, 0.025]),
        "fp32": ("s", [0.024, 0.026, 0.023]),
        "speedup": ("1", [1.083, 1.038, 1.087]),
        "correlation": ("1", [1.0, 1.0, 1.0]),
        "mean relative error": ("1", [2.1e-4, 2.1e-4, 2.1e-4]),
        "max relative error": ("1", [1.27, 1.27, 1.27]),
        "fp64 minimum": ("s", [0.013, 0.0135, 0.0128]),
        "fp32 minimum": ("s", [0.012, 0.0125, 0.0119]),
    },
)
WARM = called(1024, {1: 30.0, 2: 50.0})
CELLS = [clocked("author_torch", 12500.0, side) for side in SIDES] + [clocked("eager", 1700.0, side) for side in SIDES]
OWN = [clocked("cuda", 60.0), clocked("triton", 75.0)]
ALL = [*CELLS, *BENCHMARK, *PROFILE, *DTYPE, *WARM]


def evidence(*lines: dict[str, Any], device: str = "cuda", own: Sequence[dict[str, Any]] = ()) -> Evidence:
    """Evidence of one machine, ``box``: the author's record, and the lab's kernels in one of the lab's."""

    parts = {diffraction_authors.EXPERIMENT: lines, "precision": own}
    return together({name: found for name, found in parts.items() if found} or {"method": [cell_line()]}, device)


def spelt(found: Interval | None, unit: str = "×") -> str:
    assert found is not None
    return formats.interval(found.value, found.low, found.high, unit)


# ---------------------------------------------------------------- what the document says


@pytest.mark.parametrize(
    ("name", "leads"),
    [
        ("c", ("S003-06",)),
        ("total", ("S003-07",)),
        ("simulation", ("S003-08",)),
        ("setup", ("S003-39",)),
        ("slowdown", ("S003-24",)),
        ("simulation slowdown", ("S003-19",)),
        ("setup share", ("S003-37", "S003-38")),
    ],
)
def test_the_documents_figures_are_those_of_the_ledger(name: str, leads: Sequence[str]) -> None:
    own = [claim for claim in LEDGER.values() if claim.lead in leads]
    numbers = {float(n) for claim in own for n in re.findall(r"\d+(?:\.\d+)?", f"{claim.statement} {claim.claim}")}
    for shape in diffraction_authors.SIZES:
        written = diffraction_authors.SAID[shape][diffraction_authors.NAMES.index(name)]
        assert float(re.findall(r"[\d.]+", written)[0]) in numbers, f"{name} at {shape}"


def test_every_figure_is_one_that_the_program_file_reads() -> None:
    source = (ROOT / "book" / "programs" / "nanobragg.py").read_text(encoding="utf-8")
    wanted = {*diffraction_authors.BENCHMARK, *diffraction_authors.PROFILE, *diffraction_authors.DTYPE, "setup share"}
    assert [name for name in wanted if f'"{name}"' not in source] == []


# ---------------------------------------------------------------- the figures are the ledger's


FIGURES = [
    *(("S003-06a", "benchmark_detailed", "c"), ("S003-07a", "benchmark_detailed", "total")),
    *(("S003-08a", "benchmark_detailed", "simulation"), ("S003-39b", "benchmark_detailed", "setup")),
    *(("S003-19h", "benchmark_detailed", "simulation slowdown"), ("S003-24h", "benchmark_detailed", "slowdown")),
    *(("S003-38a", "benchmark_detailed", "setup share"), ("S003-97a", "benchmark_detailed", "correlation")),
    *(("S003-40a", "profile", "kernel calls"), ("S003-40b", "profile", "unique kernels")),
    *(("S003-42a", "profile", "regions"), ("S003-43a", "profile", "graph launch share")),
    *(("S003-44a", "profile", "top kernel share"), ("S003-86a", "profile", "top three share")),
    *(("S003-44b", "profile", "gpu time"), ("S003-46a", "profile", "record share")),
    *(("S003-49a", "dtype", "speedup"), ("S003-52a", "dtype", "correlation")),
    *(("S003-53a", "dtype", "mean relative error"), ("S003-49c", "dtype", "fp64")),
]


@pytest.fixture(scope="module")
def full() -> Evidence:
    """Everything there is, judged where two runs differ so little that a quotient of both carries a sentence."""
    lab = evidence(*ALL, own=OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(details, "BETWEEN_RUNS_HOST", 0.05)
        assert lab.judged
    return lab


@pytest.mark.parametrize(("part", "case", "name"), FIGURES)
def test_one_figure_has_one_value(part: str, case: str, name: str, full: Evidence) -> None:
    variant = "author_c" if name == "c" else "author_torch"
    way = diffraction_authors.way(full, "box", case, variant=variant)
    found = diffraction_authors.measured(way, name)
    judged = diffraction_authors.judged(full, "box", part, "1024x1024")
    assert found is not None
    assert judged is not None
    # A time is in µs here, in the claim's unit there.
    scale = {"s": 1e6, "ms": 1e3}.get(LEDGER[part].unit, 1.0)
    assert (found.value, found.low, found.high) == pytest.approx(
        (judged.value * scale, judged.low * scale, judged.high * scale)
    )
    assert found.n == judged.n


def test_the_labs_clock_over_c_is_the_ledgers(full: Evidence) -> None:
    ratios = [line for line in diffraction_authors.benchmark(full, "box") if line["figure"] == "simulation / C"]
    column = {line["detector"]: line["warm, by the lab's clock"] for line in ratios}
    for part, where in (("S003-03a", "1024×1024"), ("S003-05a", "4096×4096")):
        assert column[where] == f"{spelt(diffraction_authors.judged(full, 'box', part))}, n = 3"


def test_the_table_of_speeds_has_the_direction_of_the_card(full: Evidence) -> None:
    lines = {line["detector"]: line for line in diffraction_authors.speeds(full, "box")}
    judged = diffraction_authors.judged(full, "box", "S003-67a")
    assert lines["1024×1024"]["warm, by the lab's clock"] == f"{spelt(judged)}, n = 3"
    assert lines["256×256"]["S003"] == "1/37"
    assert lines["1024×1024"]["the script here"].startswith("4.0")
    bare = diffraction_authors.speeds(evidence(*BENCHMARK), "box")
    assert {tuple(line) for line in bare} == {("detector", "S003", "the script here")}


def test_calls_two_to_four_are_the_ledgers(full: Evidence) -> None:
    (line,) = diffraction_authors.warmed(full, "box")
    three = diffraction_authors.judged(full, "box", "S003-57c")
    assert three is not None
    expected = spelt(three.times(1 / 3))
    assert line["mean of calls 2 to 4 / call 12"] == f"{expected}, n = 2"
    assert (line["detector"], line["call 12"][:4]) == ("1024×1024", "9.99")


# ---------------------------------------------------------------- tables


def test_the_benchmark_has_a_line_a_detector_and_figure(full: Evidence) -> None:
    lines = diffraction_authors.benchmark(full, "box")
    assert len(lines) == len(SIDES) * len(diffraction_authors.BENCHMARK)
    simulation = next(line for line in lines if line["figure"] == diffraction_authors.BENCHMARK["simulation"])
    assert simulation["S003"] == "0.449 s"
    assert simulation["the script here"].startswith("40.4 ms [")
    assert simulation["the script here"].endswith("n = 3")
    assert simulation["warm, by the lab's clock"].endswith("n = 8")
    exact = next(line for line in lines if line["figure"] == diffraction_authors.BENCHMARK["correlation"])
    assert exact["the script here"] == "1.000000, n = 3"


def test_where_only_the_clock_was_read_the_script_is_missing() -> None:
    lines = diffraction_authors.benchmark(evidence(*CELLS), "box")
    assert [line["detector"] for line in lines] == [f"{side}×{side}" for side in SIDES]
    assert {line["the script here"] for line in lines} == {"–"}
    assert diffraction_authors.benchmark(evidence(*BENCHMARK[:8]), "box")[0]["warm, by the lab's clock"] == "–"


def test_the_profile_ends_with_the_share_of_a_warm_call(full: Evidence) -> None:
    lines = diffraction_authors.profiled(full, "box")
    assert [line["the script here"] for line in lines[:3]] == ["905, n = 2", "55, n = 2", "3, n = 2"]
    assert spelt(diffraction_authors.judged(full, "box", "S003-62a"), "%") in lines[-1]["the script here"]
    alone = diffraction_authors.profiled(evidence(*PROFILE), "box")
    assert len(alone) == len(lines) - 1


def test_the_dtypes_have_the_quotient_of_the_fastest_calls(full: Evidence) -> None:
    lines = {line["figure"]: line["the script here"] for line in diffraction_authors.dtypes(full, "box")}
    assert f"{spelt(diffraction_authors.judged(full, 'box', 'S003-50c'))}, n = 3" in lines.values()
    assert lines[diffraction_authors.DTYPE["correlation"][0]] == "1.000000, n = 3"
    assert lines[diffraction_authors.DTYPE["max relative error"][0]] == "130%, n = 3"


def test_set_ups_stand_beside_the_documents(full: Evidence) -> None:
    lines = diffraction_authors.setups(full, "box")
    assert [line["set-up, S003"] for line in lines] == ["0.985 s", "6.327 s", "0.019 s", "0.026 s", "0.065 s"]
    assert lines[1]["set-up here"].startswith("17.2 s [")
    assert lines[0]["its share here"] == f"{100 * 16 / 16.04:,.6g}%"


def test_quotients_of_the_warm_state_come_from_the_ledger(full: Evidence) -> None:
    lines = diffraction_authors.steady(full, "box")
    assert len(lines) == len(diffraction_authors.STEADY)
    assert all(re.search(r", n = \d$", line["here"]) for line in lines)
    assert diffraction_authors.steady(evidence(*BENCHMARK), "box") == []


def test_one_process_has_a_figure_and_no_n() -> None:
    once = [line | {"values": line["values"][:1]} for line in (*PROFILE, *DTYPE)]
    lab = evidence(*once)
    assert diffraction_authors.profiled(lab, "box")[0]["the script here"] == "905"
    assert diffraction_authors.dtypes(lab, "box")[0]["the script here"] == "too noisy (n = 1)"


TABLES: list[Callable[[Evidence, str], list[dict[str, str]]]] = [
    diffraction_authors.benchmark,
    diffraction_authors.speeds,
    diffraction_authors.profiled,
    diffraction_authors.dtypes,
    diffraction_authors.setups,
    diffraction_authors.warmed,
    diffraction_authors.steady,
]
FINDINGS: list[Callable[[Evidence, str], Finding | None]] = [
    diffraction_authors.against_c,
    diffraction_authors.by_hand,
    diffraction_authors.launches,
    diffraction_authors.early,
    diffraction_authors.double,
    diffraction_authors.digits,
    diffraction_authors.cold_start,
]


def test_a_machine_without_the_program_is_named() -> None:
    lab = evidence()
    assert [make(lab, "box") for make in TABLES] == [[]] * len(TABLES)
    assert [make(lab, "box") for make in FINDINGS] == [None] * len(FINDINGS)
    assert diffraction_authors.clocked(lab, "box") == []
    for case in ("benchmark_detailed", "profile", "dtype", "warm"):
        assert "`box`" in diffraction_authors.without(lab, ["box"], case)


def test_what_went_wrong_is_said_once() -> None:
    broken = {"status": "crashed", "reason": "the program died (exit status 1)"}
    bad = [line | broken for case in ("benchmark_detailed", "profile", "dtype", "warm") for line in script(case, {})]
    bad += [
        line | broken
        for case in ("benchmark_detailed", "profile", "dtype", "warm")
        for line in script(case, {"program": ("1", [])})
    ]
    lab = evidence(*bad)
    assert [make(lab, "box") for make in TABLES] == [[]] * len(TABLES)
    assert [make(lab, "box") for make in FINDINGS] == [None] * len(FINDINGS)
    told = diffraction_authors.without(lab, ["box"], "dtype")
    assert "crashed: the program died (exit status 1)" in told
    assert "No record" not in told
    assert diffraction_authors.without(evidence(*DTYPE), ["box"], "dtype") == ""


# ---------------------------------------------------------------- findings


def test_every_finding_names_parts_of_the_documents_claims(full: Evidence) -> None:
    own = [said(make(full, "box")) for make in FINDINGS]
    for one in own:
        assert one.claims
        assert set(one.claims) <= set(LEDGER)
        assert "S003" in one.title + one.text
        assert "[" not in one.text
        assert len(re.findall(r"\. |\.$", one.text)) <= 2
        # Whose program a card speaks of is whose the ledger judges by: the author's, or a kernel of our own beside it.
        assert {LEDGER[part].program for part in one.claims} <= {"author", "own"}
        assert (ROOT / "notebooks" / f"{one.page}.ipynb").is_file()
    assert findings.cards(own, full, "box").count("lab-card ") == len(own)


@pytest.mark.parametrize(
    ("make", "part", "unit"),
    [
        (diffraction_authors.against_c, "S003-67a", "×"),
        (diffraction_authors.by_hand, "S003-88a", "×"),
        (diffraction_authors.launches, "S003-62a", "%"),
        (diffraction_authors.early, "S003-57c", ""),
        (diffraction_authors.double, "S003-49a", "×"),
        (diffraction_authors.double, "S003-50c", "×"),
        (diffraction_authors.cold_start, "S003-39a", "×"),
    ],
)
def test_a_card_has_the_figures_of_the_ledger(
    make: Callable[[Evidence, str], Finding | None], part: str, unit: str, full: Evidence
) -> None:
    found, judged = said(make(full, "box")), diffraction_authors.judged(full, "box", part)
    assert part in found.claims
    assert judged is not None
    assert phrases.spoken(judged, unit) in f"{found.figure} {found.text}"


def test_what_is_too_noisy_for_a_figure_names_what_is_hoped_for() -> None:
    lab = evidence(*ALL, own=OWN)
    judged = diffraction_authors.judged(lab, "box", "S003-88a")
    assert judged is not None
    assert judged.doubt == intervals.TOO_NOISY
    found = said(diffraction_authors.by_hand(lab, "box"))
    assert found.figure == intervals.TOO_NOISY
    assert "30 to 50%" in found.title


def test_a_quotient_too_noisy_for_a_figure_may_be_surely_above_one() -> None:
    lines = [*benchmarked(512, 0.02, 17.0, 0.03), *benchmarked(1024, 0.1, 0.03, 0.025)]
    level = said(diffraction_authors.cold_start(evidence(*lines), "box"))
    noisy = {"values": [0.02, 0.03, 0.045]}
    lines = [line | noisy if (line["name"], line["shape"]) == ("setup", [1024, 1024]) else line for line in lines]
    found = said(diffraction_authors.cold_start(evidence(*lines), "box"))
    assert found.figure == intervals.TOO_NOISY
    assert found.title.startswith("How much longer")
    assert "surely less" in found.text
    assert "surely less" not in level.text


def test_against_c_on_a_cpu_is_held_to_what_is_asked_of_a_cpu() -> None:
    found = said(diffraction_authors.against_c(evidence(*ALL, device="cpu"), "box"))
    assert found.claims == ("S003-98a",)
    assert "0.5 times" in found.text
    others = [make for make in FINDINGS if make is not diffraction_authors.against_c]
    for make in others:
        one = make(evidence(*ALL, device="cpu"), "box")
        assert one is None or one.page == "08_profile"


def changed(lines: Lines, name: str, values: Sequence[float]) -> Evidence:
    """Evidence of ``lines`` in which the figure called ``name`` is another."""
    return evidence(*(line | {"values": values} if line["name"] == name else line for line in lines))


@pytest.mark.parametrize(
    ("make", "labs"),
    [
        (
            diffraction_authors.against_c,
            [evidence(clocked("author_torch", us), *BENCHMARK) for us in (12500.0, 200e3, 101e3)],
        ),
        (diffraction_authors.launches, [changed(PROFILE, "kernel calls", [n] * 2) for n in (905.0, 5.0, 2000.0)]),
        (diffraction_authors.early, [evidence(*called(1024, {2: ms})) for ms in (50.0, 10.0, 5.0)]),
        (
            diffraction_authors.double,
            [
                changed([line for line in DTYPE if "minimum" not in line["name"]], "speedup", [0.95 * k, k, 1.05 * k])
                for k in (1.1, 4.0, 2.0)
            ],
        ),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_card_may_go_either_way_or_stay_open(
    make: Callable[[Evidence, str], Finding | None], labs: Sequence[Evidence]
) -> None:
    assert len({said(make(lab, "box")).title for lab in labs}) == len(labs)


def test_too_wide_an_interval_has_no_figure_and_may_still_rule_a_bottleneck_out() -> None:
    def card(*factors: float) -> Finding:
        lines = [line for line in DTYPE if "minimum" not in line["name"]]
        return said(diffraction_authors.double(changed(lines, "speedup", factors), "box"))

    wide, wider = card(1.0, 1.25, 1.45), card(1.0, 2.0, 3.5)
    for one in (wide, wider):
        assert one.open
        assert one.claims == ("S003-49a",)
        assert re.findall(r"[\d.]+×", one.text) == ["1.01×"]
    assert "S003-50a" in wide.text
    assert "S003-50a" not in wider.text


def test_digits_say_what_the_script_says() -> None:
    found = said(diffraction_authors.digits(evidence(*DTYPE), "box"))
    assert found.figure == "1.000000"
    assert "0.021%" in found.text
    assert "130%" in found.text
    worse = said(diffraction_authors.digits(changed(DTYPE, "correlation", [0.999] * 3), "box"))
    assert worse.figure == "0.999000"
    right = said(diffraction_authors.digits(changed(DTYPE, "max relative error", [0.001] * 3), "box"))
    assert len({one.title for one in (found, worse, right)}) == 3


def test_the_program_comes_before_the_labs_forms(full: Evidence) -> None:
    """On the front page too, where its answers leave out what the lab's forms say of the same questions."""
    place = {"operation": "diffraction", "shape": [1024, 1024], "variant": "compile_reduce_overhead", "case": "empty"}
    times = {"call 2": 40.0, "call 3": 0.1, "call 4": 0.1, "call 12": 0.1}
    starts = [detail_line(name=name, values=[ms, 1.01 * ms], **place) for name, ms in times.items()]
    lab = evidence(*ALL, *starts, own=OWN)
    assert diffraction_findings.mean_of_three(lab, "box") is not None
    found = diffraction_findings.findings(lab, "box")
    assert [one.page for one in found] == [
        *("07_diffraction", "08_profile", "10_warm_up", "09_precision", "10_warm_up", "07_diffraction")
    ]
    assert set(found) <= set(front.findings(lab, "box"))
    assert diffraction_findings.findings(evidence(*starts), "box") == [
        diffraction_findings.mean_of_three(evidence(*starts), "box")
    ]


# ---------------------------------------------------------------- the chapters


@pytest.mark.parametrize("name", ["08_profile", "09_precision", "10_warm_up"])
def test_a_chapter_tells_the_program_first(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_line(experiment=diffraction_authors.EXPERIMENT, device="cuda", processes=8)
    records.write(tmp_path, run, *([one for one in ALL if one["kind"] == kind] for kind in ("cell", "detail")))
    own = clocked("cuda", 60.0) | {"medians_us": [60.0, 61.0]}
    write_records(tmp_path, "box", "cuda", {"precision": [own]})
    # A machine that measured what the page is about, and not the program.
    bare = {"precision": [clocked("cpu", 60.0)], "profile": [cell_line()], "warm_up": [cell_line()]}
    write_records(tmp_path, "bare", "cpu", bare)
    text = played(name, tmp_path, monkeypatch)
    lab = evidence_of(tmp_path)
    script = {"08_profile": "profile", "09_precision": "dtype", "10_warm_up": "benchmark_detailed"}[name]
    assert diffraction_authors.without(lab, ["bare"], script) in text
    part = {"08_profile": "S003-40", "09_precision": "S003-49", "10_warm_up": "S003-39"}[name]
    assert part in text
    figure = {"08_profile": "905, n = 2", "09_precision": "130%, n = 3", "10_warm_up": "17.2 s ["}[name]
    assert figure in text
    assert text.index(figure) < text.index(part)
