"""S003's own program by its author's scripts: what the document says, what they print here, and the lab's clock on it.

Figures are those of the ledger: a mean over processes with its interval, and what several figures make together is
taken from the ledger itself; a machine without a record is named.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypatia_lab import formats
from hypatia_lab.chapters import scripts
from hypatia_lab.chapters.scripts import judged, measured
from hypatia_lab.figures.probe_rows import Configuration, rare
from hypatia_lab.formats import listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, unsaid
from hypatia_lab.pages.phrases import probed, quotient, quotients, spoken
from hypatia_lab.results import Row

EXPERIMENT = "author_nanobragg"
TORCH, C = "author_torch", "author_c"
"""The author's simulator in PyTorch, and the C program that it ports."""
LABELS = {TORCH: "S003's simulator"}
"""Variant of the author → what a figure calls it."""
SIZES = ("256x256", "512x512", "1024x1024", "2048x2048", "4096x4096")
BLIND = 0.1
"""A pixel that is off by more than this share of its value is wrong, whatever the correlation says."""
MAIN = "1024x1024"
"""The detector that the document speaks of."""
NAMES = ("c", "setup", "simulation", "total", "simulation slowdown", "slowdown", "setup share", "correlation")
SAID = {
    "256x256": ("0.012 s", "0.985 s", "0.449 s", "1.435 s", "37×", "117×", "69%", "1.0"),
    "512x512": ("0.018 s", "6.327 s", "0.531 s", "6.860 s", "29×", "373×", "92%", "1.0"),
    "1024x1024": ("0.048 s", "0.019 s", "0.553 s", "0.580 s", "11.5×", "12×", "3%", "1.0"),
    "2048x2048": ("0.145 s", "0.026 s", "0.507 s", "0.564 s", "3.5×", "3.9×", "5%", "1.0"),
    "4096x4096": ("0.539 s", "0.065 s", "0.615 s", "0.799 s", "1.14×", "1.48×", "10%", "1.0"),
}
"""Detector → what S003 gives for it, as it writes it, in the order of :data:`NAMES`."""
BENCHMARK = {
    "c": "C, from its start to its exit",
    "simulation": "simulation, the second run",
    "total": "total: set-up, simulation, writing",
    "simulation slowdown": "simulation / C",
    "slowdown": "total / C",
    "correlation": "correlation with C's image",
}
"""Figure of the benchmark script → what it is."""
PROFILE = {
    "kernel calls": ("kernel calls, annotations included", "907"),
    "unique kernels": ("kinds of kernels", "55"),
    "regions": ("compiled regions", "3"),
    "graph launch share": ("of the GPU's time, launched by CUDA graphs", "51.59%"),
    "top kernel share": ("of the GPU's time, the top kernel", "22.51%"),
    "top three share": ("of the GPU's time, the top three", "67%"),
    "gpu time": ("the GPU's time", "4.58 ms, if 1.032 ms are 22.51%"),
    "record share": ("of the processor's time, recording CUDA graphs", "90.42%"),
}
"""Figure of the profile → what it is, and what S003 has."""
DTYPE = {
    "fp64": ("float64, mean of three calls", "134 ms"),
    "fp32": ("float32, mean of three calls", "133 ms"),
    "speedup": ("float64 / float32, by these means", "1.01×"),
    "fp64 minimum": ("float64, the fastest of the three", formats.MISSING),
    "fp32 minimum": ("float32, the fastest of the three", formats.MISSING),
    "correlation": ("correlation of the two images", "1.000000"),
    "mean relative error": ("mean relative error of a pixel", "0.02%"),
    "max relative error": ("largest relative error of a pixel", formats.MISSING),
}
"""Figure of the comparison of dtypes → what it is, and what S003 has, in the units of the other column."""
SHARES = ("mean relative error", "max relative error")
"""Figures of that which are shares."""
QUICKLY = "it amortizes quickly"
STEADY = (
    ("S003-57d", "", "×", "mean of the three calls timed warm / the fastest of the three", "steady, so 1×"),
    ("S003-55a", "", "×", "simulation, the second run / that mean", "4.1×"),
    ("S003-69a", "", "×", "simulation, the second run / a warm call", "about 3×"),
    ("S003-57a", "", "×", "that mean / C", "2.8×"),
    ("S003-03a", "", "×", "a warm call / C", "2.7×"),
    ("S003-05a", "", "×", "a warm call / C at 4096×4096", "1.14×"),
    ("S003-89a", "256x256", "", "warm calls in the time of set-up and simulation at 256×256", QUICKLY),
    ("S003-89a", "512x512", "", "the same at 512×512", QUICKLY),
)
"""Part of the ledger, detector where it is judged at several, unit, what its figure is, and what S003 has."""
HOPED = {"exceeded": "gains more than", "confirmed": "gains what", "not_reproduced": "gains less than"}
"""Verdict on a forecast → how the outcome compares with it."""
CALLS = (1, 2, 12)
TIMES = ("slowdown", "simulation slowdown", "speedup")
"""Figures that are a multiple."""
PARITY = {"cuda": ("S003-67a", 10.0), "cpu": ("S003-98a", 0.5)}
"""Device → the part of the ledger on the multiple of C's throughput that the specification asks for, and that."""


# ---------------------------------------------------------------- reading


def way(lab: Evidence, machine: str, case: str, shape: str = MAIN, variant: str = TORCH) -> Configuration | None:
    """The figures that command ``case`` gave of ``variant`` at ``shape``; None without a record of them."""
    return scripts.way(lab, machine, EXPERIMENT, case, variant, shape)


def clocked(lab: Evidence, machine: str) -> list[Row]:
    """Timed rows of the simulator by the lab's wall clock, beside other forms in float64, smallest detector first."""
    rows = lab.select(machine=machine, experiment=EXPERIMENT, operation="diffraction", clock="wall", status="ok")
    rows = [row for row in rows if row.timed]
    return sorted(rows, key=lambda row: SIZES.index(row.shape) if row.shape in SIZES else len(SIZES))


def _warm(lab: Evidence, machine: str, shape: str = MAIN) -> Row | None:
    """The row of warm calls of the author's simulator."""
    return next((row for row in clocked(lab, machine) if (row.variant, row.shape) == (TORCH, shape)), None)


def _text(found: Configuration | None, name: str) -> str:
    return scripts.text(found, name, TIMES)


# ---------------------------------------------------------------- tables


def benchmark(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Its benchmark: a line a detector and figure, with the document's, the script's here and the lab's clock."""
    out = []
    for shape in SIZES:
        torch, c = (way(lab, machine, "benchmark_detailed", shape, variant) for variant in (TORCH, C))
        clock = {}
        if row := _warm(lab, machine, shape):
            clock["simulation"] = scripts.estimated(row.time, "us")
            ratio = None if c is None else quotient(row.medians_us, c.per_process("c"))
            clock["simulation slowdown"] = scripts.estimated(ratio, "×")
        said: dict[str, str] = dict(zip(NAMES, SAID[shape], strict=True))
        for name, what in BENCHMARK.items():
            here, warm = scripts.shown(c if name == "c" else torch, name, TIMES), clock.get(name, formats.MISSING)
            if (here, warm) != (formats.MISSING, formats.MISSING):
                line = {"detector": formats.shape(shape), "figure": what, "S003": said[name]}
                out.append(line | {"the script here": here, "warm, by the lab's clock": warm})
    return out


def speeds(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """The time of C over that of a simulation, a line a detector: by the document, by its script here, and warm.

    Without the columns of which nothing was measured.
    """
    out = []
    for shape in SIZES:
        torch, c = (way(lab, machine, "benchmark_detailed", shape, variant) for variant in (TORCH, C))
        row, script = _warm(lab, machine, shape), measured(torch, "simulation slowdown")
        warm = None if c is None or row is None else quotient(c.per_process("c"), row.medians_us)
        if script or warm:
            line = {"detector": formats.shape(shape)}
            line["S003"] = f"1/{dict(zip(NAMES, SAID[shape], strict=True))['simulation slowdown'].removesuffix('×')}"
            line["the script here"] = scripts.estimated(script.inverse() if script else None, "×")
            out.append(line | {"warm, by the lab's clock": scripts.estimated(warm, "×")})
    bare = [name for name in out[0] if all(line[name] == formats.MISSING for line in out)] if out else []
    return [{name: text for name, text in line.items() if name not in bare} for line in out]


def _lines(found: Configuration | None, figures: dict[str, tuple[str, str]]) -> list[dict[str, str]]:
    return scripts.lines(found, "S003", figures, TIMES)


def profiled(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Its profile of the second run: a line a figure; last, how much of a warm call the GPU works."""
    lines = _lines(way(lab, machine, "profile"), PROFILE)
    if lines and (busy := judged(lab, machine, "S003-62a")):
        what = "the GPU's time as a share of a warm call by the lab's clock"
        lines.append({"figure": what, "S003": formats.MISSING, "the script here": scripts.estimated(busy, "%")})
    return lines


def dtypes(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Its comparison of float64 and float32: a line a figure, with the quotient of the fastest calls."""
    found = way(lab, machine, "dtype")
    lines = _lines(found, DTYPE)
    for name, line in zip(DTYPE, lines, strict=False):
        if name in SHARES and (share := measured(found, name)):
            line["the script here"] = scripts.counted(percent(share), share)
    if lines and (fastest := judged(lab, machine, "S003-50c")):
        line = {"figure": "float64 / float32, by these", "S003": formats.MISSING}
        lines.insert(list(DTYPE).index("correlation"), line | {"the script here": scripts.estimated(fastest, "×")})
    return lines


def setups(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Set-up and its share of set-up and simulation, by detector, in the order in which its process meets them."""
    out = []
    for shape in SIZES:
        found = way(lab, machine, "benchmark_detailed", shape)
        if found is not None and not found.fault:
            said = dict(zip(NAMES, SAID[shape], strict=True))
            line = {"detector": formats.shape(shape), "set-up, S003": said["setup"]}
            line |= {"set-up here": _text(found, "setup"), "its share, S003": said["setup share"]}
            out.append(line | {"its share here": _text(found, "setup share")})
    return out


def warmed(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Call by call, a line a detector; last, the mean of the three after the first over the twelfth."""
    out = []
    for shape in SIZES:
        found = way(lab, machine, "warm", shape)
        if found is None or found.fault:
            continue
        line = {"detector": formats.shape(shape)}
        line |= {f"call {number}": _text(found, f"call {number}") for number in CALLS}
        three = quotients(found.per_process("call 2", "call 3", "call 4"), found.per_process("call 12"))
        ratio = rare(three).times(1 / 3) if three else None
        out.append(line | {"mean of calls 2 to 4 / call 12": scripts.estimated(ratio, "×")})
    return out


def steady(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """What S003 says of the warm state beside what the ledger makes of the same quotients here: a line each."""
    found = [(judged(lab, machine, part, shape), unit, what, said) for part, shape, unit, what, said in STEADY]
    return [
        {"figure": what, "S003": said, "here": scripts.estimated(value, unit)}
        for value, unit, what, said in found
        if value
    ]


def without(lab: Evidence, machines: Sequence[str], case: str) -> str:
    """Those of ``machines`` on which command ``case`` gave no figures, and why, in a line; empty where all have."""
    bare, told = [], []
    for name in machines:
        found = probed(lab, name, "program", experiment=EXPERIMENT, case=case)
        fault = next((own.fault for own in found if own.fault), "")
        if not found:
            bare.append(f"`{name}`")
        elif fault:
            told.append(f"On `{name}` the script gave no figures ({fault}).")
    if bare:
        told.insert(0, f"No record of S003's own program is there on {listing(bare)}.")
    return " ".join(told)


# ---------------------------------------------------------------- findings


def reads(found: Interval, above: str, below: str, between: str, edge: float = 1.0) -> str:
    """The title for where an interval lies."""
    return above if found.above(edge) else below if found.below(edge) else between


def place(lab: Evidence, machine: str) -> str:
    """Whose time a call of torch takes there: ``the GPU`` or ``the CPU``."""
    return "the GPU" if lab.primary(machine) == "graph" else "the CPU"


def cores(lab: Evidence, machine: str) -> str:
    """What C has there: ``16 CPU cores``."""
    count = lab.of(machine)[0].run["facts"].get("cores", "all")
    return f"{count} CPU cores"


def percent(share: Interval) -> str:
    """A share for a table, as a card says it: what is the same in every process has no interval."""
    found = share.times(100)
    return spoken(found, "%") if found.low == found.high else formats.told(found, "%")


def lasts(found: Interval | None) -> str:
    """A time as one says it, or in words that it says nothing."""
    if found is None or found.doubt:
        return f"a time {formats.DOUBTS[found.doubt] if found else 'nobody measured'}"
    return spoken(found, "µs")


def against_c(lab: Evidence, machine: str) -> Finding | None:
    """A warm call of the author's simulator against the author's C program, and against what is asked of it."""
    part, asked = PARITY["cuda" if lab.primary(machine) == "graph" else "cpu"]
    found, row = judged(lab, machine, part), _warm(lab, machine)
    c = measured(way(lab, machine, "benchmark_detailed", variant=C), "c")
    if found is None or row is None or c is None:
        return None
    facts = f"At {row.at} a warm call takes {lasts(row.time)} on {place(lab, machine)}; the C program, start and files "
    facts += f"included, takes {lasts(c)} on {cores(lab, machine)}."
    if found.doubt:
        question = "Whether S003's simulator, warm, is as fast as its C program"
        return unsaid(lab, machine, question, "07_diffraction", [found], (part,), facts)
    goal = f"the {asked:g} times that S003 asks for"
    outcome = reads(found, f", reaching {goal}", f", missing {goal}", "", asked)
    than = reads(found, "outruns", "trails", "keeps pace with")
    text = f"{facts} The ratio is the mean over {found.n} pairs of processes; S003's specification asks for {asked:g} "
    # The document measured a GPU alone.
    text += "times C's throughput, and S003 measured 1/2.8." if part == PARITY["cuda"][0] else "times C's throughput."
    title = f"Warm, S003's simulator on {place(lab, machine)} {than} its C{outcome}"
    return Finding(spoken(found), title, text, "07_diffraction", claims=(part,))


def by_hand(lab: Evidence, machine: str) -> Finding | None:
    """A kernel of our own for the whole image against the author's simulator, both warm and in float64."""
    found, row = judged(lab, machine, "S003-88a"), _warm(lab, machine)
    if found is None or row is None:
        return None
    text = f"A warm call of S003's simulator takes {lasts(row.time)} on {place(lab, machine)}, by the wall clock. "
    text += "One CUDA kernel of the lab makes the same image; S003 hopes to gain 30 to 50% by such kernels."
    if found.doubt:
        question = "Whether a kernel by hand gains the 30 to 50% that S003 hopes for"
        return unsaid(lab, machine, question, "07_diffraction", [found], ("S003-88a",), text)
    title = f"A kernel by hand {HOPED.get(lab.verdicts['S003-88a'][machine], 'may gain what')} S003 hopes"
    return Finding(spoken(found), title, text, "07_diffraction", claims=("S003-88a",))


def launches(lab: Evidence, machine: str) -> Finding | None:
    """How many kernel calls the author's own profile counts, and how much of a warm call the GPU works."""
    calls = measured(way(lab, machine, "profile"), "kernel calls")
    if calls is None:
        return None
    parts = ["S003-40a"]
    if calls.doubt:
        question = "How many kernel calls S003's simulator makes"
        return unsaid(lab, machine, question, "08_profile", [calls], tuple(parts))
    text = f"S003's own script counts {scripts.number(calls, '')} kernel calls for an image, annotations included; the "
    text += "document has 907."
    if (busy := judged(lab, machine, "S003-62a")) and not busy.doubt:
        text += f" The GPU works {spoken(busy, '%')} of a warm call's time and else waits for the host."
        parts.append("S003-62a")
    fewer = "fewer" if calls.value < 907 else "more"
    titles = {"confirmed": "makes about as many kernel calls as it says"}
    titles["refuted"] = f"makes {fewer} kernel calls than it says"
    title = titles.get(lab.verdicts["S003-40a"][machine], "makes how many kernel calls? Undecided")
    return Finding(scripts.number(calls, ""), f"S003's simulator {title}", text, "08_profile", claims=tuple(parts))


def early(lab: Evidence, machine: str) -> Finding | None:
    """What the three calls after the first say of the steady state, in the author's simulator."""
    found = judged(lab, machine, "S003-57c")
    if found is None:
        return None
    parts = ("S003-57c",)
    text = "S003 takes calls 2 to 4 for warm; on a GPU call 2 records CUDA graphs."
    if found.doubt:
        question = "Whether three early calls speak for the later ones"
        return unsaid(lab, machine, question, "10_warm_up", [found], parts, text)
    verdict = lab.verdicts["S003-57c"][machine]
    mean = spoken(found.times(1 / 3))
    return Finding(
        mean,
        "Three early calls do speak for the later ones"
        if verdict == "confirmed"
        else "The calls that S003 calls warm are slower than later ones"
        if verdict == "refuted" and found.value > 3
        else "Early calls of S003's simulator are uneven",
        f"{text} In its own simulator the three last as long as {spoken(found, '')} later calls: {mean} as long.",
        "10_warm_up",
        claims=parts,
    )


def double(lab: Evidence, machine: str) -> Finding | None:
    """float64 against float32 in the author's simulator: by its own script, and by the fastest calls of that."""
    found, fastest = (judged(lab, machine, part) for part in ("S003-49a", "S003-50c"))
    if found is None:
        return None
    if found.doubt:
        facts = "S003's script gave its author 1.01×."
        if lab.verdicts["S003-50a"][machine] == "confirmed":
            facts += " That float64 is the bottleneck is ruled out here (S003-50a)."
        question = "How much longer S003's simulator takes in float64"
        return unsaid(lab, machine, question, "09_precision", [found], ("S003-49a",), facts)
    parts = ["S003-49a", "S003-50a"]
    text = f"By S003's own script an image takes {spoken(found)} as long in float64; the document has 1.01."
    if fastest and not fastest.doubt:
        text += f" By the fastest of its three calls it is {spoken(fastest)}."
        parts.append("S003-50c")
    seen = {lab.verdicts[part][machine] for part in parts[1:]}
    titles = {"confirmed": "float64 is not the bottleneck", "refuted": "float64 is the bottleneck"}
    title = titles.get(seen.pop(), "") if len(seen) == 1 else ""
    title = f"{title} of S003's simulator" if title else "Whether float64 slows S003's simulator is undecided"
    return Finding(spoken(found), title, text, "09_precision", claims=tuple(parts))


def digits(lab: Evidence, machine: str) -> Finding | None:
    """How far float32 is from float64 in the author's simulator, by the author's measures."""
    found, correlation = (judged(lab, machine, part) for part in ("S003-53a", "S003-52a"))
    if found is None or correlation is None:
        return None
    parts = "S003-52a", "S003-53a"
    if found.doubt or correlation.doubt:
        question = "How far float32 is from float64 in S003's simulator"
        return unsaid(lab, machine, question, "09_precision", [found, correlation], parts)
    written = f"{correlation.value:.6f}"  # as S003 writes it
    text = "S003's script correlates its float32 image so with float64. The relative error of a pixel is "
    text += f"{spoken(found.times(100), '%')} on average (the document has 0.02%)"
    worst = measured(way(lab, machine, "dtype"), "max relative error")
    text += f", at worst {spoken(worst.times(100), '%')}." if worst and not worst.doubt else "."
    title = "S003's float32 image does not correlate perfectly with float64"
    if written == "1.000000":
        blind = worst is not None and worst.above(BLIND)
        title = "A perfect correlation does not see the worst relative error" if blind else "The correlation is perfect"
    return Finding(written, title, text, "09_precision", claims=parts)


def cold_start(lab: Evidence, machine: str) -> Finding | None:
    """Set-up by detector in the author's benchmark, whose sizes share a process."""
    found = judged(lab, machine, "S003-39a")
    if found is None:
        return None
    ways = [way(lab, machine, "benchmark_detailed", shape) for shape in SIZES[1:3]]
    spent = [lasts(measured(own, "setup")) for own in ways]
    text = f"In S003's benchmark {formats.shape(SIZES[1])} is set up in {spent[0]} and compiles. "
    less = found.doubt and not found.flaw and found.low > 1
    spent[1] = "surely less; how much less is too noisy to say" if less else spent[1]
    text += f"{formats.shape(SIZES[2])} finds all compiled and takes {spent[1]}."
    if found.doubt:
        question = "Whether set-up depends on who compiles first"
        # What is sure needs no figure.
        question = "How much longer the set-up takes that compiles" if less else question
        return unsaid(lab, machine, question, "10_warm_up", [found], ("S003-39a",), text)
    title = "What S003 lays to the size is who compiles first"
    title = title if found.above(1) else "Set-up is not seen to depend on who compiles first"
    return Finding(spoken(found), title, text, "10_warm_up", claims=("S003-39a",))
