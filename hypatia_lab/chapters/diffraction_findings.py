"""What the records say about the diffraction simulator: findings for the front page, sentences and tables for chapters.

Here are the lab's own forms of it, which are other programs than S003's. So what is said of them names no claim of that
document, unless the claim itself is about a library or a kernel of one's own; S003's program has
:mod:`hypatia_lab.chapters.diffraction_authors`. As in :mod:`hypatia_lab.pages.findings` every figure is taken from the
records when a page is made, and what a machine has not measured is left out: such a function returns None or an empty
list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hypatia_lab import formats, intervals
from hypatia_lab.chapters import diffraction_authors as authors
from hypatia_lab.figures.probe_rows import Way, rare
from hypatia_lab.formats import absent, listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, unsaid
from hypatia_lab.pages.phrases import (
    fastest,
    lasted,
    only,
    probed,
    quotients,
    say,
    times,
    waited,
)
from hypatia_lab.results import Row

SEED_SIZE = "1024x1024"
"""The detector that S003 speaks of, where a machine has measured it."""
TORCH = ("compile_reduce_overhead", "compile", "compile_max_autotune", "compile_anchored", "eager")
OWN = ("cuda", "triton")
C = ("c_pixelwise", "c_openmp")
HOPED = (10, 100)
"""What S003 hopes that a batch gains over one simulation at a time."""
BATCHES = {"compile": "S003-82a", "triton": "S003-82b", "cuda": "S003-82c"}
"""Form of a batch → the part of the ledger on it."""
STORED = {"disk": "S003-71b", "mega": "S003-71c", "aoti_package": "S003-71d", "aoti_raw": "S003-71e"}
"""Way of keeping compiled code on disk → the part of the ledger on it."""


# ---------------------------------------------------------------- reading


def simulations(lab: Evidence, machine: str, clock: str, **wanted: Any) -> list[Row]:
    """Timed rows of S003's benchmark in float32 by ``clock``, smallest detector first."""
    wanted = {"experiment": "diffraction", "operation": "diffraction", "dtype": "float32", "status": "ok"} | wanted
    found = [row for row in lab.select(machine=machine, clock=clock, **wanted) if row.timed]
    return sorted(found, key=pixels)


def pixels(row: Row) -> int:
    """How many pixels a row's workload has, over all its images."""
    return math.prod(map(int, row.shape.split("x")))


def seed_sized(rows: Sequence[Row]) -> list[Row]:
    """The rows of the detector that S003 speaks of, or of the largest one measured."""
    shapes = [row.shape for row in sorted(rows, key=pixels)]
    chosen = SEED_SIZE if SEED_SIZE in shapes else shapes[-1] if shapes else ""
    return [row for row in rows if row.shape == chosen]


def main_size(found: Sequence[Way]) -> list[Way]:
    """The ways at the size that most ways were looked at (the others are there to compare sizes)."""
    sizes = [way.pixels for way in found]
    chosen = max(dict.fromkeys(sizes), key=sizes.count, default=0)
    return [way for way in found if way.pixels == chosen]


def _reads(found: Interval, above: str, below: str, between: str) -> str:
    return above if found.above(1) else below if found.below(1) else between


# ---------------------------------------------------------------- findings


def against_c(lab: Evidence, machine: str) -> Finding | None:
    """The lab's compiled form, warm, against the lab's C on the same machine, by the clock that a caller waits by."""
    rows = seed_sized(simulations(lab, machine, waited(lab, machine)))
    plain, peer = (fastest(rows, [name]) for name in C)
    torch = fastest(rows, TORCH)
    if plain is None or torch is None:
        return None
    found = plain.over(torch)
    cores = lab.of(machine)[0].run["facts"].get("cores", "all")
    text = f"Of the lab's forms in float32, by the {torch.clock} clock, a warm call of {torch.variant} at "
    text += f"{torch.at} takes {torch.takes}, C on {cores} cores takes {plain.takes} pixel by pixel"
    if found.doubt:
        question = "Whether the lab's form in PyTorch, warm, is as fast as C"
        return unsaid(lab, machine, question, "07_diffraction", [found], facts=f"{text}.")
    text += f": PyTorch is {times(found)} as fast. "
    if peer is not None:
        text += f"Against C that the compiler can vectorise ({peer.takes}) it is {say(peer.over(torch))}. "
    if (own := fastest(rows, OWN)) is not None:
        text += f"One kernel of our own ({own.variant}) is {say(plain.over(own))} as fast as C pixel by pixel. "
    title = _reads(found, "is faster than C", "is slower than C", "is as fast as C, as far as it can be told")
    figure = f"{formats.number(found.value)}×"
    return Finding(figure, f"Warm, the lab's form in PyTorch {title}", text.strip(), "07_diffraction")


def near_limit(lab: Evidence, machine: str) -> Finding | None:
    """The best kernel of our own at the largest detector, against the write limit and the compiled form."""
    rows = [row for row in simulations(lab, machine, lab.primary(machine)) if not absent(row.limit_us)]
    rows = [row for row in rows if row.shape == rows[-1].shape]
    own, torch = fastest(rows, OWN), fastest(rows, ("compile", "compile_max_autotune"))
    if own is None or torch is None:
        return None
    gain = torch.over(own)
    text = f"At {own.at} the {own.variant} kernel takes {own.takes}, with an error of "
    text += f"{formats.number(own.off)} of the peak. Writing the image alone takes "
    text += f"{formats.duration(own.limit_us)} here"
    text += f": the kernel reaches {reach} of that limit. " if (reach := own.attained) else ". "
    if gain.doubt:
        question = "Whether a kernel by hand is faster than what the compiler makes"
        return unsaid(lab, machine, question, "07_diffraction", [gain], facts=text.strip())
    text += f"It is {times(gain)} as fast as the best that the compiler makes of the formulae ({torch.variant}, "
    text += f"{torch.takes}). "
    title = _reads(gain, "is faster than", "is slower than", "is no faster, as far as it can be told, than")
    title = f"A kernel by hand {title} what the compiler makes"
    return Finding(f"{formats.number(gain.value)}×", title, text.strip(), "07_diffraction")


def batch(lab: Evidence, machine: str) -> Finding | None:
    """Many crystals in one call against one warm compiled image after the other."""
    wanted = {"machine": machine, "operation": "diffraction_batch", "clock": waited(lab, machine), "status": "ok"}
    rows = [row for row in lab.select(**wanted) if not absent(row.ratio_low) and row.variant != "one_by_one"]
    if not rows:
        return None
    seen = {row.variant for row in rows}
    # The document speaks of a GPU.
    parts = tuple(part for name, part in BATCHES.items() if name in seen and lab.primary(machine) == "graph")
    decided = [row for row in rows if intervals.decided(row.speed)]
    if not decided:
        return unsaid(
            lab, machine, "Whether a batch in one call pays", "07_diffraction", [row.speed for row in rows], parts
        )
    best = max(decided, key=lambda row: row.ratio)
    crystals, slow, fast = best.shape.split("x")
    others = [f"{row.variant} {say(row.speed)}" for row in rows if row is not best]
    text = f"{crystals} crystals at {slow}×{fast} in one call of {best.variant} have "
    text += f"{times(best.speed)} the throughput of one warm compiled image after the other. "
    text += f"Others: {', '.join(others)}. " if others else ""
    return Finding(
        f"{formats.number(best.ratio)}×",
        "A batch in one call pays more than was hoped"
        if best.speed.above(HOPED[1])
        else "A batch in one call pays"
        if best.speed.above(1)
        else "A batch in one call gains nothing that shows",
        text + f"S003 hopes for {HOPED[0]} to {HOPED[1]} times.",
        "07_diffraction",
        claims=parts,
    )


def early(way: Way) -> list[float]:
    """Mean of calls 2 to 4 over call 12 of the same process, one a process."""
    early = [None if total is None else total / 3 for total in way.per_process("call 2", "call 3", "call 4")]
    return quotients(early, way.per_process("call 12"))


def compiled_start(lab: Evidence, machine: str) -> Way | None:
    """The start of the lab's form that replays CUDA graphs, as S003's simulator does, or on a CPU of the compiled one.

    Caches are empty.
    """
    found = main_size(probed(lab, machine, "start", operation="diffraction"))
    return only(found, "compile_reduce_overhead", "empty") or only(found, "compile", "empty")


def mean_of_three(lab: Evidence, machine: str) -> Finding | None:
    """What the mean of the three calls after the first says of the steady state, in the lab's compiled form."""
    way = compiled_start(lab, machine)
    values = [] if way is None else early(way)
    if way is None or not values:
        return None
    found = rare(values)
    calls = [lasted(way, f"call {number}") for number in (2, 3, 4, 12)]
    second = "records a CUDA graph and takes" if way.variant == "compile_reduce_overhead" else "takes"
    text = f"In the lab's form {way.variant} call 2 {second} {calls[0]}; calls 3 and 4 take {calls[1]} and {calls[2]}, "
    text += f"call 12 {calls[3]}."
    if found.doubt:
        question = "Whether three early calls speak for the later ones in the lab's form"
        return unsaid(lab, machine, question, "10_warm_up", [found], facts=text)
    text += f" The mean of calls 2 to 4 is {times(found)} the time of call 12."
    title = "A mean of the three calls after the first is mostly one call that is not warm"
    apart, near = found.above(1.1), found.below(1.1)
    return Finding(
        f"{formats.number(found.value)}×",
        title if apart else "Here three early calls do speak for the later ones" if near else "Early calls are uneven",
        text,
        "10_warm_up",
    )


def first_image(lab: Evidence, machine: str) -> Finding | None:
    """The quickest way to a first correct image by compiled code that was kept, by none, and without a compiler."""
    found = [way for way in main_size(probed(lab, machine, "start", operation="diffraction")) if not way.fault]
    reached = [(way, took) for way in found if (took := way.measured("first image")).n]
    kept = [pair for pair in reached if pair[0].variant.startswith("compile") and pair[0].case != "empty"]
    if not kept:
        return None
    way, stored = min(kept, key=lambda pair: pair[1].value)
    # What a library keeps; a kernel of one's own is no compiled graph, so it is told and not judged.
    parts = [STORED[one.case] for one, _ in kept if one.variant == "compile" and one.case in STORED]
    # The document speaks of a GPU.
    judged = tuple(dict.fromkeys(parts)) if lab.primary(machine) == "graph" else ()
    text = "From the end of the imports (and of the CUDA context) to the first correct image, compiled torch takes "
    text += f"{lasted(way, 'first image')} at best ({way.text([])})"
    empty = only(found, way.variant, "empty")
    text += "" if empty is None else f", and {lasted(empty, 'first image')} when nothing is stored"
    share = authors.judged(lab, machine, STORED.get(way.case, "")) if way.variant == "compile" else None
    text += f": {say(share, '%')} of that." if share and not share.doubt else "."
    if own := min((pair for pair in reached if pair[0].variant in OWN), key=lambda pair: pair[1].value, default=None):
        text += f" Our own kernel takes {lasted(own[0], 'first image')} ({own[0].text([])})."
    text += " S003 wishes for less than 50 ms."
    if stored.doubt:
        return unsaid(lab, machine, "Whether a fresh process need compile", "10_warm_up", [stored], judged, text)
    return Finding(
        formats.duration(stored.value),
        "A fresh process need not compile"
        if stored.below(50e3)
        else "Stored code shortens a start"
        if empty is not None and _apart(stored, empty.measured("first image"))
        else "Whether stored code shortens a start is undecided",
        text,
        "10_warm_up",
        claims=judged,
    )


def _apart(short: Interval, long: Interval) -> bool:
    """Whether one time is surely shorter than another."""
    return short.below(long.low) and long.above(short.high)


def stored(lab: Evidence, machine: str) -> tuple[str, str]:
    """What stored code saves of set-up and call 1, and what the loader of packages costs: a title and its sentences."""
    ways = main_size(probed(lab, machine, "start", operation="diffraction"))
    found = {way.case: way for way in ways if way.variant == "compile" and not way.fault}
    seen = {case: took for case, way in found.items() if (took := way.measured("first image")).n}
    title = "What stored code saves of set-up and call 1"
    if "empty" not in seen or len(seen) < 2:
        return title, ""
    empty, best = seen["empty"], min(seen, key=lambda case: seen[case].value)
    text = f"On `{machine}` set-up and call 1 take {lasted(found['empty'], 'first image')} with nothing stored, and "
    text += f"{lasted(found[best], 'first image')} at best (*{best}*). "
    if _apart(seen[best], empty):
        title = f"Stored code saves up to {formats.duration(empty.value - seen[best].value)} of set-up and call 1"
    if not {"aoti_package", "aoti_raw"} <= set(seen):
        return title, text.strip()
    package, raw = seen["aoti_package"], seen["aoti_raw"]
    if _apart(raw, package):
        title += f"; PyTorch's package loader costs {formats.duration(package.value - raw.value)}"
    text += f"Through PyTorch's Python loader the same package takes {lasted(found['aoti_package'], 'first image')}, "
    return title, f"{text}and {lasted(found['aoti_raw'], 'first image')} through the bare one."


def whole_numbers(lab: Evidence, machine: str) -> Finding | None:
    """What it costs to multiply by π before the whole number is removed, in float32, over sizes."""
    found = [way for way in probed(lab, machine, "accuracy", case="") if way.variant in ("eager_direct", "eager")]
    if not found:
        return None
    largest = [way for way in found if way.pixels == found[-1].pixels]
    direct, plain = (only(largest, name) for name in ("eager_direct", "eager"))
    if direct is None or plain is None:
        return None
    bad, good = (way.measured("largest error over peak").value for way in (direct, plain))
    correlation = f"{direct.measured('correlation').value:.6f}"  # written as S003 writes it
    return Finding(
        f"{formats.number(100 * bad)}%",
        "Perfect correlation, wrong pixels" if correlation == "1.000000" else "Subtract before you multiply by π",
        f"In float32 the direct form is wrong by up to {formats.number(100 * bad)}% of the peak at "
        f"{direct.where['shape']}; its correlation with float64 is {correlation}. Subtracting the whole number before "
        f"multiplying by π, as S003's simulator does, leaves {formats.number(100 * good)}%.",
        "09_precision",
    )


def dtype_pairs(lab: Evidence, machine: str) -> list[tuple[Row, Row, Interval]]:
    """Each form of the simulator in float32 and float64 and its largest detector, with float64 / float32.

    By the primary clock, or by the wall what has no other time on a GPU (graphs of its own, C on the host).
    """
    rows = lab.select(machine=machine, experiment="precision", operation="diffraction", status="ok")
    rows = [row for row in rows if row.timed and not row.is_twin]
    primary = lab.primary(machine)
    out = []
    for name in dict.fromkeys(row.variant for row in rows):
        own = [row for row in rows if row.variant == name]
        own = [row for row in own if row.clock == primary] or own
        largest = max(map(pixels, own))
        found = {row.dtype: row for row in own if pixels(row) == largest}
        if {"float32", "float64"} <= set(found):
            out.append((found["float32"], found["float64"], found["float64"].over(found["float32"])))
    return out


def product_pair(lab: Evidence, machine: str) -> Interval | None:
    """float64 over float32 of the largest matrix product in the precision experiment."""
    rows = lab.leading(machine, experiment="precision", operation="matmul", math="ieee", variant="eager", status="ok")
    largest = max(map(pixels, rows), default=0)
    found = {row.dtype: row for row in rows if pixels(row) == largest}
    return found["float64"].over(found["float32"]) if {"float32", "float64"} <= set(found) else None


def double(lab: Evidence, machine: str) -> Finding | None:
    """float64 against float32 in the lab's forms of the simulator and in a matrix product."""
    found = {row.variant: factor for row, _, factor in dtype_pairs(lab, machine)}
    forms = {name: found[name] for name in ("compile", *OWN) if name in found}
    product = product_pair(lab, machine)
    if "compile" not in forms or product is None:
        return None
    value = forms["compile"]
    if value.doubt:
        return unsaid(lab, machine, "What float64 costs the lab's forms", "09_precision", [value])
    costs = listing([f"{say(factor)} ({name})" for name, factor in forms.items()])
    quicker = product.below(1) and lab.primary(machine) == "graph"
    units = ", since a GPU may have tensor cores for float64 and has none for IEEE float32" if quicker else ""
    return Finding(
        f"{formats.number(value.value)}×",
        "float64 is not free in the lab's forms"
        if value.above(1.02)
        else "float64 costs the lab's forms nothing"
        if value.below(1.02)
        else "What float64 costs the lab's forms is undecided",
        f"In the lab's forms an image in float64 takes {costs} as long as in float32, a matrix product "
        f"{say(product)}{units}.",
        "09_precision",
    )


def launches(lab: Evidence, machine: str) -> Finding | None:
    """How many kernels one image takes in the lab's forms, eager and compiled."""
    found = main_size(probed(lab, machine, "trace", operation="diffraction"))
    counts = {way.variant: way.triple("kernel launches", logarithms=False)[0] for way in found}
    counts = {name: round(count) for name, count in counts.items() if not absent(count)}
    if not {"eager", "compile"} <= set(counts):
        return None
    gpu = lab.primary(machine) == "graph"
    what, whats = ("kernel launches", "kernels") if gpu else ("operator calls", "operators")
    rest = [f"{name} {count}" for name, count in counts.items() if name not in ("eager", "compile")]
    text = f"One image at {found[0].where['shape']} takes {counts['eager']} {what} in the lab's eager form and "
    text += f"{counts['compile']} when that is compiled whole. " + (f"Others: {', '.join(rest)}. " if rest else "")
    return Finding(
        f"{counts['eager']} → {counts['compile']}",
        f"Compiled whole, the formulae leave few {whats} to fuse"
        if 10 * counts["compile"] <= counts["eager"]
        else f"Compiling fuses {whats}",
        text.strip(),
        "08_profile",
    )


def findings(lab: Evidence, machine: str) -> list[Finding]:
    """What the records of ``machine`` say of S003, most important first; what was not measured is left out.

    S003's own program comes first; where the lab's forms answer the same question, they stand in only without it.
    """
    candidates = (
        authors.against_c(lab, machine),
        authors.launches(lab, machine),
        authors.early(lab, machine) or mean_of_three(lab, machine),
        authors.double(lab, machine) or double(lab, machine),
        authors.cold_start(lab, machine),
        authors.by_hand(lab, machine),
        against_c(lab, machine),
        near_limit(lab, machine),
        whole_numbers(lab, machine),
        first_image(lab, machine),
    )
    return [finding for finding in candidates if finding is not None]
