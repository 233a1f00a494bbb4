"""What the records say about the diffraction simulator: findings for the front page, sentences and tables for chapters.

Here are the lab's own forms of it, which are other programs than S003's. So what is said of them names no claim of that
document, unless the claim itself is about a library or a kernel of one's own; S003's program has
:mod:`hypatia_lab.chapters.diffraction_authors`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hypatia_lab import formats, intervals, variants
from hypatia_lab.chapters import diffraction_authors as authors
from hypatia_lab.chapters.diffraction_authors import cores, lasts, place, reads
from hypatia_lab.figures.probe_rows import Configuration, rare
from hypatia_lab.formats import absent, listing
from hypatia_lab.intervals import Interval
from hypatia_lab.pages.evidence import Evidence
from hypatia_lab.pages.findings import Finding, unsaid
from hypatia_lab.pages.phrases import fastest, lasted, only, probed, quotients, spoken, waited
from hypatia_lab.results import Row

SEED_SIZE = "1024x1024"
"""The detector that S003 speaks of, where a machine has measured it."""
TORCH = ("compile_reduce_overhead", "compile", "compile_max_autotune", "compile_anchored", "eager")
OWN = ("cuda", "triton")
C = ("c_pixelwise", "c_openmp")
FORMS = (*TORCH, *OWN, *C)
HOPED = 100
"""The most that S003 hopes a batch to gain over one simulation at a time."""
BATCHES = {"compile": "S003-82a", "triton": "S003-82b", "cuda": "S003-82c"}
"""Form of a batch → the part of the ledger on it."""
STORED = {"disk": "S003-71b", "mega": "S003-71c", "aoti_disk": "S003-71d", "aoti_raw": "S003-71e"}
"""Way of keeping compiled code on disk → the part of the ledger on it."""
KEPT = {
    "disk": "Inductor's caches",
    "mega": "a Mega-Cache file",
    "aoti_package": "an AOTInductor package",
    "aoti_disk": "an AOTInductor package beside Inductor's caches",
    "aoti_raw": "an AOTInductor package and its C++ loader",
}
"""Way of keeping compiled code on disk → what a person calls it."""


STARTED = ("eager", "compile", "compile_reduce_overhead", "c_openmp", "cuda")
"""Forms whose start is shown from end to end, compilers with nothing stored."""
SOON_MS, LAST_CALL = 50, 12
"""The longer of the goals for a first image; the last call of a start, which counts as warm."""


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


def main_size(found: Sequence[Configuration]) -> list[Configuration]:
    """The ways at the size that most ways were looked at (the others are there to compare sizes)."""
    sizes = [config.size for config in found]
    chosen = max(dict.fromkeys(sizes), key=sizes.count, default=0)
    return [config for config in found if config.size == chosen]


def called(name: str, operation: str = "diffraction") -> str:
    """What a person calls a form of the simulator."""
    return variants.label(operation, name)


# ---------------------------------------------------------------- sentences and titles


def race(rows: Sequence[Row], ours: Sequence[str], theirs: Sequence[str], otherwise: str) -> str:
    """Which is faster at the largest size, the quickest of ``ours`` or of ``theirs``: a title.

    ``otherwise`` where the records leave that open.
    """
    for shape in reversed(list(dict.fromkeys(row.shape for row in sorted(rows, key=pixels)))):
        pair = [fastest([row for row in rows if row.shape == shape], names) for names in (ours, theirs)]
        if (own := pair[0]) is None or (other := pair[1]) is None:
            continue
        ratio = other.over(own)
        for quick, slow, found in ((own, other, ratio), (other, own, ratio.inverse())):
            if found.above(1):
                names = [authors.LABELS.get(row.variant) or called(row.variant, row.operation) for row in (quick, slow)]
                return f"At {own.at} {names[0]} is {spoken(found)} as fast as {names[1]}"
        return otherwise
    return otherwise


def over_limit(rows: Sequence[Row], otherwise: str) -> str:
    """How much longer the quickest form takes than the limit at the largest size: a title; else ``otherwise``."""
    best = min((row for row in rows if row.shape == rows[-1].shape), key=lambda row: row.median_us, default=None)
    if best is None or absent(best.limit_us) or best.time.doubt:
        return otherwise
    factor = spoken(best.time.times(1 / best.limit_us))
    return f"At {best.at} {called(best.variant)} takes {factor} the time of writing the image"


def write_rate(rows: Sequence[Row]) -> str:
    """The rate behind the limit of ``rows``, in a sentence; empty without a limit."""
    row = next((row for row in reversed(rows) if not absent(row.limit_us)), None)
    if row is None:
        return ""
    rate = formats.scaled(row.traffic * 1e6 / row.limit_us, "B/s")
    return f"The limit is the image's bytes at {rate}, the best rate of a copy on this machine."


def anchored_time(lab: Evidence, machine: str) -> str:
    """What anchoring does to the compiled form's time, and how many kernels either launches, in a sentence or none."""
    rows = simulations(lab, machine, lab.primary(machine))
    names = ("compile_anchored", "compile")
    for shape in reversed(list(dict.fromkeys(row.shape for row in rows))):
        own, plain = (fastest([row for row in rows if row.shape == shape], [name]) for name in names)
        if own is None or plain is None:
            continue
        ratio = own.over(plain)
        if ratio.doubt:
            return ""
        traced = main_size(probed(lab, machine, "trace", operation="diffraction"))
        found = {one.variant: one.triple("kernel launches", logarithms=False)[0] for one in traced}
        counts = [found.get(name) for name in names]
        text = f"At {own.at} {called(own.variant)} takes {spoken(ratio)} the time of {called(plain.variant)}"
        if lab.primary(machine) == "graph" and not any(map(absent, counts)):
            text += f"; it launches {counts[0]:.0f} kernels in place of {counts[1]:.0f}"
        return f"{text}."
    return ""


# ---------------------------------------------------------------- findings


def against_c(lab: Evidence, machine: str) -> Finding | None:
    """The lab's compiled form, warm, against the lab's C beside it, by the clock that a caller waits by."""
    rows = seed_sized(simulations(lab, machine, waited(lab, machine)))
    plain, peer = (fastest(rows, [name]) for name in C)
    torch = fastest(rows, TORCH)
    if plain is None or torch is None:
        return None
    found, on = plain.over(torch), place(lab, machine)
    text = f"At {torch.at} a warm call of {called(torch.variant)} takes {lasts(torch.time)} on {on}; "
    text += f"C, pixel by pixel, takes {lasts(plain.time)} on {cores(lab, machine)}."
    if found.doubt:
        question = "Whether the lab's form in PyTorch, warm, is as fast as C"
        return unsaid(lab, machine, question, "07_diffraction", [found], facts=text)
    if peer is not None:
        text += f" Vectorised C takes {lasts(peer.time)} there."
    than = reads(found, "outruns", "trails", "keeps pace with")
    title = f"The lab's PyTorch on {on} {than} C on {cores(lab, machine)}"
    return Finding(spoken(found), title, text, "07_diffraction")


def near_limit(lab: Evidence, machine: str) -> Finding | None:
    """The best kernel of our own at the largest detector, against the write limit and the compiled form."""
    rows = [row for row in simulations(lab, machine, lab.primary(machine)) if not absent(row.limit_us)]
    rows = [row for row in rows if row.shape == rows[-1].shape]
    own, torch = fastest(rows, OWN), fastest(rows, ("compile", "compile_max_autotune"))
    if own is None or torch is None:
        return None
    gain = torch.over(own)
    text = f"At {own.at} {called(own.variant)} takes {lasts(own.time)} on {place(lab, machine)}, "
    text += f"{called(torch.variant)} {lasts(torch.time)}."
    if gain.doubt:
        question = "Whether a kernel by hand is faster than what the compiler makes"
        return unsaid(lab, machine, question, "07_diffraction", [gain], facts=text)
    text += (
        f" Writing the image alone would take {formats.spoken(100 * own.limit_us / own.median_us)}% of the kernel's."
    )
    than = reads(gain, "is faster than", "is slower than", "is about as fast as")
    return Finding(spoken(gain), f"A kernel by hand {than} what the compiler makes", text, "07_diffraction")


def batch(lab: Evidence, machine: str) -> Finding | None:
    """Many crystals in one compiled call against one warm compiled image after the other; apart, what a kernel adds.

    Where no compiled batch was timed the best other form stands in, whose gain is both in one.
    """
    wanted = {"machine": machine, "operation": "diffraction_batch", "clock": waited(lab, machine), "status": "ok"}
    rows = [row for row in lab.select(**wanted) if not absent(row.ratio_low) and row.variant != "one_by_one"]
    if not rows:
        return None
    alone = [row for row in rows if row.variant == "compile"] or rows
    decided = [row for row in alone if intervals.decided(row.speed)]
    best = max(decided or alone, key=lambda row: row.ratio)
    # The document speaks of a GPU.
    parts = (BATCHES[best.variant],) if best.variant in BATCHES and lab.primary(machine) == "graph" else ()
    crystals, slow, fast = best.shape.split("x")
    text = f"In one call on {place(lab, machine)} {called(best.variant, best.operation)} makes {crystals} images of "
    text += f"{slow}×{fast}, against {crystals} warm calls of torch.compile; S003 hopes for 10 to {HOPED} times."
    if not decided:
        return unsaid(lab, machine, "Whether a batch in one call pays", "07_diffraction", [best.speed], parts, text)
    own = fastest(rows, OWN) if best.variant == "compile" else None
    if own is not None and not (gain := best.over(own)).doubt:
        name = called(own.variant, own.operation)
        text += f" {name[0].upper()}{name[1:]} in its place is {spoken(gain)} as fast again."
    low, high = best.speed.low, best.speed.high
    outcomes = {
        "pays more than S003 hopes": low > HOPED,
        "pays what S003 hopes": low >= 10 and high <= HOPED,
        "pays less than S003 hopes": low > 1 and high < 10,
        "pays": low > 1,
    }
    pays = next((words for words, holds in outcomes.items() if holds), "gains nothing")
    return Finding(spoken(best.speed), f"A batch in one call {pays}", text, "07_diffraction", claims=parts)


def compiled_start(lab: Evidence, machine: str) -> Configuration | None:
    """The start of the lab's form that replays CUDA graphs, as S003's simulator does, or on a CPU of the compiled one.

    Caches are empty.
    """
    found = main_size(probed(lab, machine, "start", operation="diffraction"))
    return only(found, "compile_reduce_overhead", "empty") or only(found, "compile", "empty")


def mean_of_three(lab: Evidence, machine: str) -> Finding | None:
    """The mean of calls 2 to 4 over call 12 of the same process, in the lab's compiled form."""
    config = compiled_start(lab, machine)
    if config is None:
        return None
    three = [None if total is None else total / 3 for total in config.per_process("call 2", "call 3", "call 4")]
    values = quotients(three, config.per_process("call 12"))
    if not values:
        return None
    found = rare(values)
    text = f"With {called(config.variant)} on {place(lab, machine)} it is {spoken(found)} the time of call 12."
    if config.variant == "compile_reduce_overhead":
        text += " Call 2 records a CUDA graph."
    if found.doubt:
        question = "Whether three early calls speak for the later ones in the lab's form"
        return unsaid(lab, machine, question, "10_warm_up", [found])
    title = reads(found, "The mean of calls 2 to 4 is no warm time", "", "Early calls are uneven", 1.1)
    title = title or "Here three early calls do speak for the later ones"
    return Finding(spoken(found), title, text, "10_warm_up")


def first_image(lab: Evidence, machine: str) -> Finding | None:
    """The quickest config to a first correct image by compiled code that was kept, against compiling."""
    found = [config for config in main_size(probed(lab, machine, "start", operation="diffraction")) if not config.fault]
    reached = [(config, took) for config in found if (took := config.estimate("first image")).n]
    kept = [pair for pair in reached if pair[0].variant.startswith("compile") and pair[0].case != "empty"]
    if not kept:
        return None
    config, stored = min(kept, key=lambda pair: pair[1].value)
    # What a library keeps. The document speaks of a GPU.
    parts = [STORED[one.case] for one, _ in kept if one.variant == "compile" and one.case in STORED]
    judged = tuple(dict.fromkeys(parts)) if lab.primary(machine) == "graph" else ()
    empty = only(found, config.variant, "empty")
    long = None if empty is None else empty.estimate("first image")
    kept = KEPT.get(config.case, config.case)
    if stored.doubt:
        facts = f"From {kept} the first image takes {lasted(config, 'first image')}."
        if stored.flaw or stored.high >= 1e3 * SOON_MS:
            return unsaid(lab, machine, "Whether a fresh process has to compile", "10_warm_up", [stored], judged, facts)
        # What is sure needs no figure.
        if any(lab.verdicts[part][machine] == "undecided" for part in judged):
            facts += " S003 expects a start from stored code to take at most a tenth of compiling. That is undecided"
            few = long is not None and long.n < intervals.FEW_RARE
            facts += f": compiling was tried in {long.n} processes, too few." if long is not None and few else "."
        return Finding(f"under {SOON_MS} ms", "A fresh process need not compile", facts, "10_warm_up", claims=judged)
    text = f"From the end of the imports to the first image on {place(lab, machine)}, from {kept}."
    if long is not None and long.n:
        text += f" Compiling takes {lasts(long)}."
    shortened = long is not None and stored.below(long.low) and long.above(stored.high)
    title = "A fresh process need not compile" if stored.below(50e3) else "Stored code shortens a start"
    title = title if stored.below(50e3) or shortened else "Whether stored code shortens a start is undecided"
    return Finding(spoken(stored, "µs"), title, text, "10_warm_up", claims=judged)


def starts(lab: Evidence, machine: str) -> list[Configuration]:
    """Starts at the size that most were looked at, of those that went well."""
    return [config for config in main_size(probed(lab, machine, "start", operation="diffraction")) if not config.fault]


def unsteady(lab: Evidence, machine: str) -> str:
    """What not to read into the calls of a start: forms of too few processes or too noisy, and calls that fall back."""
    own = [
        config for config in starts(lab, machine) if config.variant in STARTED and config.case in ("", "empty", "cubin")
    ]
    calls = range(2, LAST_CALL + 1)
    doubts = {config.variant: [config.estimate(f"call {n}").doubt for n in calls] for config in own}
    few = [called(name) for name, words in doubts.items() if intervals.TOO_FEW in words]
    noisy = [called(name) for name, words in doubts.items() if 2 * words.count(intervals.TOO_NOISY) > len(words)]
    said = [f"Too few processes were started to compare the calls of {listing(few)}."] if few else []
    said += (
        [f"Most later calls of {listing(noisy)} differ too much from process to process to compare."] if noisy else []
    )
    for config in own:
        jumps = {n: quotients(config.per_process(f"call {n}"), config.per_process(f"call {n - 1}")) for n in calls[1:]}
        over, n = max(((sum(one > 2 for one in found), n) for n, found in jumps.items()), default=(0, 0))
        if 2 * over > len(jumps.get(n, ())) >= intervals.FEW_RARE:
            said.append(
                f"Warm is not steady: in {over} of {len(jumps[n])} processes call {n} of {called(config.variant)} "
                f"takes over twice as long as call {n - 1}. The records do not say why."
            )
    return " ".join(said)


def advice(lab: Evidence, machine: str) -> list[str]:
    """Which form to take for a first image soon, which for many calls, and what not for a few: a sentence each.

    What says nothing is not named; a form that is surely soon enough, but too noisy for a figure, is named without.
    """
    found, said = starts(lab, machine), []

    def named(config: Configuration, took: Interval) -> str:
        stored = f" from {KEPT[config.case]}" if config.case in KEPT else ""
        return f"{called(config.variant)}{stored}" + ("" if took.doubt else f" ({spoken(took, 'µs')})")

    def ranked(name: str) -> list[tuple[Configuration, Interval]]:
        pairs = [(config, took) for config in found if (took := config.estimate(name)).n and not took.flaw]
        return sorted(pairs, key=lambda pair: pair[1].value)

    first = ranked("first image")
    if soon := [named(*pair) for pair in first if pair[1].high < 1e3 * SOON_MS]:
        said.append(f"A first image within {SOON_MS} ms of the imports comes from: {'; '.join(soon)}.")
    elif first:
        said.append(f"No form is sure to make its first image within {SOON_MS} ms of the imports.")
    if warm := [pair for pair in ranked(f"call {LAST_CALL}") if not pair[1].doubt]:
        level = [named(config, took) for config, took in warm if took.low <= warm[0][1].high]
        said.append(f"For many calls take what is quickest at call {LAST_CALL}: {'; '.join(level)}.")
    empty, eager = compiled_start(lab, machine), only(found, "eager")
    took, plain = (config.estimate("first image") if config else intervals.NOTHING for config in (empty, eager))
    if empty is not None and not took.flaw and not plain.flaw and took.low > plain.high:
        least = formats.spoken(took.low / plain.high)
        said.append(
            f"For a few calls do not compile: with nothing stored {called(empty.variant)} takes at least {least} times "
            "as long to its first image as eager PyTorch."
        )
    return said


def whole_numbers(lab: Evidence, machine: str) -> Finding | None:
    """What it costs to multiply by π before the whole number is removed, in float32, at the largest detector."""
    found = [
        config for config in probed(lab, machine, "accuracy", case="") if config.variant in ("eager_direct", "eager")
    ]
    largest = [config for config in found if config.size == found[-1].size]
    direct, plain = (only(largest, name) for name in ("eager_direct", "eager"))
    if direct is None or plain is None:
        return None
    bad, good = (formats.spoken(100 * config.estimate("largest error over peak").value) for config in (direct, plain))
    correlation = f"{direct.estimate('correlation').value:.6f}"  # written as S003 writes it
    title = "Perfect correlation, wrong pixels" if correlation == "1.000000" else "Subtract before you multiply by π"
    text = f"Multiplied by π first, a float32 image of {direct.shape} has an error over the peak of {bad}%; its "
    text += f"correlation is {correlation}. "
    text += f"With whole numbers taken off first, as in S003's simulator, the error is {good}%."
    return Finding(f"{bad}%", title, text, "09_precision")


def dtype_pairs(lab: Evidence, machine: str) -> list[tuple[Row, Row, Interval]]:
    """Each form of the simulator in float32 and float64 at its largest detector, with float64 / float32.

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


def double(lab: Evidence, machine: str) -> Finding | None:
    """float64 against float32 in the lab's compiled form, and in a matrix product."""
    compiled = next((pair for pair in dtype_pairs(lab, machine) if pair[0].variant == "compile"), None)
    rows = lab.leading(machine, experiment="precision", operation="matmul", math="ieee", variant="eager", status="ok")
    pair = {row.dtype: row for row in rows if row.shape == max(rows, key=pixels).shape}
    if compiled is None or not {"float32", "float64"} <= set(pair):
        return None
    single, twice, found = compiled
    if found.doubt:
        return unsaid(lab, machine, "What float64 costs the lab's forms", "09_precision", [found])
    text = f"At {twice.at} {called('compile')} takes {lasts(twice.time)} in float64 on {place(lab, machine)} and "
    text += f"{lasts(single.time)} in float32, by the {twice.clock} clock."
    product = pair["float64"].over(pair["float32"])
    if not product.doubt:
        text += f" A matrix product of {pair['float64'].at} takes {spoken(product)} as long in float64"
        units = lab.primary(machine) == "graph" and product.below(1)
        text += ": the matrix units have that, and no IEEE float32." if units else "."
    title = reads(found, "takes longer in float64", "takes no longer in float64", "may take longer in float64", 1.02)
    return Finding(spoken(found), f"An image of the lab's compiled form {title}", text, "09_precision")


def prices(lab: Evidence, machine: str) -> str:
    """Which form pays most for float64 and which least at the largest detector, in a sentence.

    Empty without two that say something.
    """
    own = [(factor, row) for row, _, factor in dtype_pairs(lab, machine) if not factor.doubt]
    own = [(factor, row) for factor, row in own if row.clock == lab.primary(machine)]
    largest = max((pixels(row) for _, row in own), default=0)
    own = [(factor, row) for factor, row in own if pixels(row) == largest]
    if len(own) < 2:
        return ""
    (least, cheap), (most, dear) = (end(own, key=lambda pair: pair[0].value) for end in (min, max))
    text = f"At {dear.at} {called(dear.variant)} pays most ({spoken(most)}) and {called(cheap.variant)} least"
    return f"{text} ({spoken(least)})."


def launches(lab: Evidence, machine: str) -> Finding | None:
    """How many kernels one image takes in the lab's forms, eager and compiled."""
    found = main_size(probed(lab, machine, "trace", operation="diffraction"))
    counts = {config.variant: config.triple("kernel launches", logarithms=False)[0] for config in found}
    eager, whole = (counts.get(name) for name in ("eager", "compile"))
    if eager is None or whole is None or absent(eager) or absent(whole):
        return None
    what = "kernels" if lab.primary(machine) == "graph" else "operators"
    title = f"Compiled whole, the formulae leave few {what} to fuse" if 10 * whole <= eager else f"It fuses {what}"
    text = f"At {found[0].shape} the lab's eager form takes {eager:.0f} {what} an image; compiled whole it takes "
    text += f"{whole:.0f}."
    return Finding(f"{eager:.0f} → {whole:.0f}", title, text, "08_profile")


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
