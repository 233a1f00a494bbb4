"""S003's own program by its author's scripts: what the document says, what they print here, and the lab's clock on it.

Figures are those of the ledger: a mean over processes with its interval, and what several figures make together is
taken from the ledger itself. All of them come from the record when a page is made; a machine without one is named.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypatia_lab import formats, intervals
from hypatia_lab.figures.probe_rows import Way, rare
from hypatia_lab.formats import listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, unsaid
from hypatia_lab.pages.phrases import lasted, probed, quotient, quotients, say, times
from hypatia_lab.results import Row

EXPERIMENT = "author_nanobragg"
TORCH, C = "author_torch", "author_c"
"""The author's simulator in PyTorch, and the C program that it ports."""
SIZES = ("256x256", "512x512", "1024x1024", "2048x2048", "4096x4096")
MAIN = "1024x1024"
"""The detector that the document speaks of."""
SAID = {
    "256x256": {"c": "0.012 s", "setup": "0.985 s", "simulation": "0.449 s", "total": "1.435 s"},
    "512x512": {"c": "0.018 s", "setup": "6.327 s", "simulation": "0.531 s", "total": "6.860 s"},
    "1024x1024": {"c": "0.048 s", "setup": "0.019 s", "simulation": "0.553 s", "total": "0.580 s"},
    "2048x2048": {"c": "0.145 s", "setup": "0.026 s", "simulation": "0.507 s", "total": "0.564 s"},
    "4096x4096": {"c": "0.539 s", "setup": "0.065 s", "simulation": "0.615 s", "total": "0.799 s"},
}
"""Detector → the seconds that S003 gives for it, as it writes them."""
FACTORS = {
    "256x256": {"simulation slowdown": "37×", "slowdown": "117×", "setup share": "69%"},
    "512x512": {"simulation slowdown": "29×", "slowdown": "373×", "setup share": "92%"},
    "1024x1024": {"simulation slowdown": "11.5×", "slowdown": "12×", "setup share": "3%"},
    "2048x2048": {"simulation slowdown": "3.5×", "slowdown": "3.9×", "setup share": "5%"},
    "4096x4096": {"simulation slowdown": "1.14×", "slowdown": "1.48×", "setup share": "10%"},
}
"""Detector → what S003 makes of them."""
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
    "fp64": ("float64, mean of three calls", "0.134 s"),
    "fp32": ("float32, mean of three calls", "0.133 s"),
    "speedup": ("float64 / float32, by these means", "1.01×"),
    "fp64 minimum": ("float64, the fastest of the three", formats.MISSING),
    "fp32 minimum": ("float32, the fastest of the three", formats.MISSING),
    "correlation": ("correlation of the two images", "1.000000"),
    "mean relative error": ("mean relative difference, over every pixel", "0.0002"),
    "max relative error": ("largest relative difference of a pixel", formats.MISSING),
}
"""Figure of the comparison of dtypes → what it is, and what S003 has."""
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
CALLS = (1, 2, 3, 4, 12)
TIMES = ("slowdown", "simulation slowdown", "speedup")
"""Figures that are a multiple."""
PARITY = {"cuda": ("S003-67a", 10.0), "cpu": ("S003-98a", 0.5)}
"""Device → the part of the ledger on the multiple of C's throughput that the specification asks for, and that."""


# ---------------------------------------------------------------- reading


def way(lab: Evidence, machine: str, case: str, shape: str = MAIN, variant: str = TORCH) -> Way | None:
    """The figures that command ``case`` gave of ``variant`` at ``shape``; None without a record of them."""
    found = probed(lab, machine, "program", experiment=EXPERIMENT, case=case, variant=variant)
    return next((own for own in found if own.where["shape"] == formats.shape(shape)), None)


def measured(found: Way | None, name: str) -> Interval | None:
    """The figure called ``name`` (times in µs) over its processes, as the ledger has it; None where there is none."""
    value = intervals.NOTHING if found is None else found.measured(name)
    return value if value.n else None


def judged(lab: Evidence, machine: str, part: str, shape: str = "", *, rewrite: bool = False) -> Interval | None:
    """What the ledger's ``part`` measured on ``machine``, where several sizes were judged that of ``shape``.

    None where nothing was measured, or, unless ``rewrite``, where a rewrite stood in for the author's program.
    """
    row = lab.judged.get(part, {}).get(machine)
    if row is None or (row["program"] == "rewrite") != rewrite:
        return None
    for case in row["cases"]:
        if shape in ("", case["workload"].split("/")[1]):
            return case["found"]
    return None


def clocked(lab: Evidence, machine: str) -> list[Row]:
    """Timed rows of the simulator by the lab's wall clock, beside other forms in float64, smallest detector first."""
    rows = lab.select(machine=machine, experiment=EXPERIMENT, operation="diffraction", clock="wall", status="ok")
    rows = [row for row in rows if row.timed]
    return sorted(rows, key=lambda row: SIZES.index(row.shape) if row.shape in SIZES else len(SIZES))


def _warm(lab: Evidence, machine: str, shape: str = MAIN) -> Row | None:
    """The row of warm calls of the author's simulator."""
    return next((row for row in clocked(lab, machine) if (row.variant, row.shape) == (TORCH, shape)), None)


def _unit(found: Way | None, name: str) -> str:
    lines = [] if found is None else found.lines
    return next((line["unit"] for line in lines if line["name"] == name), "1")


def _number(found: Interval, unit: str) -> str:
    """A figure with its interval; times are in µs, what is the same in all processes has none."""
    return formats.time(found) if unit in ("s", "ms", "us") else formats.figure(found, unit.replace("1", ""))


def _text(found: Way | None, name: str) -> str:
    """The figure called ``name`` for a reader, without n; ``–`` where there is none."""
    value = measured(found, name)
    if value is None:
        return formats.MISSING
    if name == "correlation":
        return f"{value.value:.6f}"  # written as S003 writes it
    return _number(value, "×" if name in TIMES else _unit(found, name))


def _counted(text: str, found: Interval | None) -> str:
    """``text`` with the number of processes behind it, where there are several and it does not say so itself."""
    return text if found is None or found.n < 2 or text.startswith(formats.UNTOLD) else f"{text}, n = {found.n}"


def _shown(found: Way | None, name: str) -> str:
    return _counted(_text(found, name), measured(found, name))


def _said(found: Interval | None, unit: str) -> str:
    """A figure of the ledger with n; ``–`` where there is none."""
    return formats.MISSING if found is None else _counted(_number(found, unit), found)


# ---------------------------------------------------------------- tables


def benchmark(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Its benchmark: a line a detector and figure, with the document's, the script's here and the lab's clock."""
    out = []
    for shape in SIZES:
        torch, c = (way(lab, machine, "benchmark_detailed", shape, variant) for variant in (TORCH, C))
        clock = {}
        if row := _warm(lab, machine, shape):
            clock["simulation"] = _said(row.time, "us")
            ratio = None if c is None else quotient(row.medians_us, c.per_process("c"))
            clock["simulation slowdown"] = _said(ratio, "×")
        said = SAID[shape] | FACTORS[shape] | {"correlation": "1.0"}
        for name, what in BENCHMARK.items():
            here, warm = _shown(c if name == "c" else torch, name), clock.get(name, formats.MISSING)
            if (here, warm) != (formats.MISSING, formats.MISSING):
                line = {"detector": formats.shape(shape), "figure": what, "S003": said[name]}
                out.append(line | {"the script here": here, "warm, by the lab's clock": warm})
    return out


def _lines(found: Way | None, figures: dict[str, tuple[str, str]]) -> list[dict[str, str]]:
    if found is None or found.fault:
        return []
    return [
        {"figure": what, "S003": said, "the script here": _shown(found, name)} for name, (what, said) in figures.items()
    ]


def profiled(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Its profile of the second run: a line a figure; last, how much of a warm call the GPU works."""
    lines = _lines(way(lab, machine, "profile"), PROFILE)
    if lines and (busy := judged(lab, machine, "S003-62a")):
        what = "the GPU's time as a share of a warm call by the lab's clock"
        lines.append({"figure": what, "S003": formats.MISSING, "the script here": _said(busy, "%")})
    return lines


def dtypes(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Its comparison of float64 and float32: a line a figure, with the quotient of the fastest calls."""
    lines = _lines(way(lab, machine, "dtype"), DTYPE)
    if lines and (fastest := judged(lab, machine, "S003-50c")):
        line = {"figure": "float64 / float32, by these", "S003": formats.MISSING}
        lines.insert(list(DTYPE).index("correlation"), line | {"the script here": _said(fastest, "×")})
    return lines


def setups(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Set-up and its share of set-up and simulation, by detector, in the order in which its process meets them."""
    out = []
    for shape in SIZES:
        found = way(lab, machine, "benchmark_detailed", shape)
        if found is not None and not found.fault:
            line = {"detector": formats.shape(shape), "set-up, S003": SAID[shape]["setup"]}
            line |= {"set-up here": _shown(found, "setup"), "its share, S003": FACTORS[shape]["setup share"]}
            out.append(line | {"its share here": _shown(found, "setup share")})
    return out


def warmed(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """Call by call, a line a detector; last, how many calls like the twelfth the three after the first are worth."""
    out = []
    for shape in SIZES:
        found = way(lab, machine, "warm", shape)
        if found is None or found.fault:
            continue
        line = {"detector": formats.shape(shape)}
        line |= {f"call {number}": _text(found, f"call {number}") for number in CALLS}
        three = quotients(found.per_process("call 2", "call 3", "call 4"), found.per_process("call 12"))
        ratio = rare(three) if three else None
        out.append(line | {"calls 2 to 4 together / call 12": _said(ratio, "×")})
    return out


def steady(lab: Evidence, machine: str) -> list[dict[str, str]]:
    """What S003 says of the warm state beside what the ledger makes of the same quotients here: a line each."""
    found = [(judged(lab, machine, part, shape), unit, what, said) for part, shape, unit, what, said in STEADY]
    return [{"figure": what, "S003": said, "here": _said(value, unit)} for value, unit, what, said in found if value]


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


def against_c(lab: Evidence, machine: str) -> Finding | None:
    """A warm call of the author's simulator against the author's C program, and against what is asked of it."""
    part, asked = PARITY["cuda" if lab.primary(machine) == "graph" else "cpu"]
    found, row = judged(lab, machine, part), _warm(lab, machine)
    c = way(lab, machine, "benchmark_detailed", variant=C)
    if found is None or row is None or c is None:
        return None
    text = f"A warm call of S003's own simulator at {formats.shape(MAIN)} takes {row.takes} by the wall clock, and "
    text += f"its author's C program {lasted(c, 'c')} with start and files"
    if found.doubt:
        question = "Whether S003's simulator, warm, is as fast as its C program"
        return unsaid(lab, machine, question, "07_diffraction", [found], (part,), f"{text}.")
    text += f": PyTorch has {times(found)} the throughput. "
    parts = [part]
    if mean := judged(lab, machine, "S003-57a"):
        text += f"The mean that the document calls warm is {say(mean)} C's time here, 2.8 times there. "
        parts.insert(0, "S003-57a")
    title = "as fast as its C program, as far as it can be told"
    title = "faster than its C program" if found.above(1) else "slower than its C program" if found.below(1) else title
    return Finding(
        f"{formats.number(found.value)}×",
        f"Warm, S003's simulator is {title}",
        f"{text}Its specification asks for {asked:g} times C's throughput, which is "
        f"{'reached' if found.above(asked) else 'not reached' if found.below(asked) else 'undecided'}.",
        "07_diffraction",
        claims=tuple(parts),
    )


def by_hand(lab: Evidence, machine: str) -> Finding | None:
    """Kernels of our own for the whole image against the author's simulator, both warm and in float64."""
    cuda, triton = (judged(lab, machine, part) for part in ("S003-88a", "S003-80c"))
    row, parts = _warm(lab, machine), ("S003-88a", "S003-80c")
    if cuda is None or row is None:
        return None
    parts = parts if triton else parts[:1]
    text = f"Where a warm call of S003's simulator takes {row.takes} by the wall clock, our CUDA kernel for the whole "
    text += f"image in float64 is {say(cuda)} as fast"
    text += f", our Triton kernel {say(triton)}. " if triton else ". "
    if busy := judged(lab, machine, "S003-62a"):
        text += f"Of the simulator's call the GPU works {say(busy, '%')}. "
    if cuda.doubt:
        facts = f"A warm call of S003's simulator takes {row.takes} by the wall clock."
        question = "Whether a kernel by hand gains what S003 hopes"
        return unsaid(lab, machine, question, "07_diffraction", [cuda], parts, facts)
    return Finding(
        f"{formats.number(cuda.value)}×",
        f"A kernel by hand {HOPED.get(lab.verdicts['S003-88a'][machine], 'may gain what')} S003 hopes",
        f"{text}S003 hopes for 30 to 50% from CUDA, and for 1.4 times from Triton.",
        "07_diffraction",
        claims=parts,
    )


def launches(lab: Evidence, machine: str) -> Finding | None:
    """How many kernel calls the author's own profile counts, and how much of a warm call the GPU works."""
    found = way(lab, machine, "profile")
    calls, kinds = measured(found, "kernel calls"), measured(found, "unique kernels")
    if found is None or calls is None or kinds is None:
        return None
    text = f"S003's own script counts {say(calls, '')} kernel calls of {say(kinds, '')} kinds at "
    text += f"{formats.shape(MAIN)}, annotations included; the document has 907 of 55. "
    parts = ["S003-40a", "S003-40b"]
    if calls.doubt:
        question = "How many kernel calls S003's simulator makes"
        return unsaid(lab, machine, question, "08_profile", [calls], tuple(parts))
    busy = judged(lab, machine, "S003-62a")
    if busy and not busy.doubt:
        text += f"For all of them the GPU works {lasted(found, 'gpu time')}, which is {_number(busy, '%')} of a warm "
        text += "call's time: where that call runs the same kernels, the GPU mostly waits for the host."
        parts.append("S003-62a")
    verdict = lab.verdicts["S003-40a"][machine]
    return Finding(
        _number(calls, ""),
        "S003's simulator makes about as many kernel calls as it says"
        if verdict == "confirmed"
        else f"S003's simulator makes {'fewer' if calls.value < 907 else 'more'} kernel calls than it says"
        if verdict == "refuted"
        else "How many kernel calls S003's simulator makes is undecided",
        text.strip(),
        "08_profile",
        claims=tuple(parts),
    )


def early(lab: Evidence, machine: str) -> Finding | None:
    """What the three calls after the first say of the steady state, in the author's simulator."""
    found, fastest = (judged(lab, machine, part) for part in ("S003-57c", "S003-57d"))
    calls = way(lab, machine, "warm")
    if found is None or calls is None:
        return None
    spent = [lasted(calls, f"call {number}") for number in (2, 3, 4, 12)]
    text = "S003 takes the mean of three calls after one warm-up for the steady state. In its own simulator call 2 "
    text += (
        f"records CUDA graphs and takes {spent[0]}; calls 3 and 4 take {spent[1]} and {spent[2]}, call 12 {spent[3]}."
    )
    parts = ["S003-57c"]
    if found.doubt:
        question = "Whether three early calls speak for the later ones"
        return unsaid(lab, machine, question, "10_warm_up", [found], tuple(parts), text)
    text += f" Calls 2 to 4 take as long as {_number(found, '')} later ones."
    if fastest:
        text += f" By its own script the mean of the three is {say(fastest)} the fastest of them."
        parts.append("S003-57d")
    verdict = lab.verdicts["S003-57c"][machine]
    return Finding(
        f"{formats.number(found.value)} for 3",
        "Three early calls do speak for the later ones"
        if verdict == "confirmed"
        else "Three calls that S003 calls warm are worth more than three"
        if verdict == "refuted" and found.value > 3
        else "Early calls of S003's simulator are uneven",
        text,
        "10_warm_up",
        claims=tuple(parts),
    )


def double(lab: Evidence, machine: str) -> Finding | None:
    """float64 against float32 in the author's simulator: by its own script, and by the fastest calls of that."""
    found, fastest = (judged(lab, machine, part) for part in ("S003-49a", "S003-50c"))
    script = way(lab, machine, "dtype")
    if found is None or script is None:
        return None
    parts = ["S003-49a", "S003-50a"]
    if found.doubt:
        facts = f"By S003's own script an image takes {lasted(script, 'fp64')} in float64 and {lasted(script, 'fp32')} "
        question, page = "Whether float64 is the bottleneck of S003's simulator", "09_precision"
        return unsaid(lab, machine, question, page, [found], tuple(parts), f"{facts}in float32.")
    text = f"By S003's own script an image in float64 takes {times(found)} as long as in float32, where the document "
    text += "has 1.01; either time is a mean of three calls, one of which records CUDA graphs. "
    if fastest:
        text += f"By the fastest of the three it is {say(fastest)}. "
        parts.append("S003-50c")
    if alone := judged(lab, machine, "S003-50b", rewrite=True):
        text += f"On the GPU alone the lab's compiled form takes {say(alone)} as long."
    seen = {lab.verdicts[part][machine] for part in parts[1:]}
    return Finding(
        f"{formats.number(found.value)}×",
        "float64 is not the bottleneck of S003's simulator"
        if seen == {"confirmed"}
        else "float64 is the bottleneck of S003's simulator"
        if seen == {"refuted"}
        else "Whether float64 is the bottleneck of S003's simulator is undecided",
        text.strip(),
        "09_precision",
        claims=tuple(parts),
    )


def digits(lab: Evidence, machine: str) -> Finding | None:
    """How far float32 is from float64 in the author's simulator, by the author's measures."""
    found, correlation = (judged(lab, machine, part) for part in ("S003-53a", "S003-52a"))
    if found is None or correlation is None:
        return None
    parts = "S003-52a", "S003-53a"
    if found.doubt or correlation.doubt:
        question = "How far float32 is from float64 in S003's simulator"
        return unsaid(lab, machine, question, "09_precision", [found, correlation], parts)
    text = f"By S003's own script its images in float32 and float64 differ by {_number(found, '')} on average, "
    text += "relative to each pixel, where the document has 0.0002"
    if worst := measured(way(lab, machine, "dtype"), "max relative error"):
        text += f", and by {say(worst, '')} at most"
    said = f"{correlation.value:.6f}"  # written as S003 writes it
    return Finding(
        _number(found, ""),
        f"S003's float32 image {'correlates' if said == '1.000000' else 'does not correlate'} perfectly",
        f"{text}. Their correlation is {said}.",
        "09_precision",
        claims=parts,
    )


def cold_start(lab: Evidence, machine: str) -> Finding | None:
    """Set-up by detector in the author's benchmark, and how many warm calls it takes to make up for it."""
    found = judged(lab, machine, "S003-39a")
    if found is None:
        return None
    ways = [way(lab, machine, "benchmark_detailed", shape) for shape in SIZES[:3]]
    spent = [formats.MISSING if own is None else lasted(own, "setup") for own in ways]
    first, second, third = map(formats.shape, SIZES[:3])
    text = f"S003's benchmark meets its sizes in one process. With empty caches set-up takes {spent[0]} at {first} and "
    text += f"{spent[1]} at {second}, which compile, and {spent[2]} at {third}, which finds all compiled"
    parts = ["S003-39a"]
    if found.doubt:
        question = "Whether set-up depends on who compiles first"
        return unsaid(lab, machine, question, "10_warm_up", [found], tuple(parts), f"{text}.")
    text += f": {times(found)} from one size to the next, where the document has 333. "
    calls = [value for shape in SIZES[:2] if (value := judged(lab, machine, "S003-89a", shape))]
    if len(calls) == 2:
        text += f"Getting warm takes as long as {say(calls[0], '')} and {say(calls[1], '')} warm calls."
        parts.append("S003-89a")
    return Finding(
        f"{formats.number(found.value)}×",
        "What S003 lays to the size is who compiles first"
        if found.above(1)
        else "Set-up is not seen to depend on who compiles first",
        text.strip(),
        "10_warm_up",
        claims=tuple(parts),
    )
