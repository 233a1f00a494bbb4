"""Judging a whole set of problems: each pair in a process of its own, one after the other, and what came out of all."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click

from hypatia_lab import formats
from hypatia_lab.bench import relay
from hypatia_lab.book import own as own_book
from hypatia_lab.book import readers
from hypatia_lab.cli import execution
from hypatia_lab.cli.terminal import show, table, wrap
from hypatia_lab.intervals import NOTHING
from hypatia_lab.judged import gate
from hypatia_lab.machine import choose_device
from hypatia_lab.pages import own_kernel
from hypatia_lab.records import ensure_writable, write_text
from hypatia_lab.strangers import problem_set, source_file
from hypatia_lab.strangers.problem_set import THRESHOLDS, Verdict, level
from hypatia_lab.strangers.reader_kernel import OwnError

AGAINST = ("eager", "compile")
BAD = (*own_kernel.FAILED, "candidate refused", "not judged")
"""What becomes of a candidate that the exit status tells."""
NO_PROBLEM = ("problem refused", "too large here")
"""What tells nothing of a candidate: ``fast_p`` leaves those out."""
PENDING = "not judged yet"
UNSAID = ("candidate", "against compile")
"""What the line of a pair leaves to the page."""
Verdicts = Mapping[str, Verdict | None]
"""Problem → what was judged of its candidate; None where there is no verdict yet."""


def judge_set(
    problems: Path,
    candidates: Path,
    folder: Path,
    how: Mapping[str, str],
    only: str | None,
    share: tuple[int, int] | None,
    *,
    overwrite: bool,
    no_page: bool,
    as_json: bool,
) -> None:
    """Judge the candidates of a folder for the problems of another one, as far as no verdict is kept in ``folder``.

    ``how`` are further options of each :command:`judge`. Of the pairs whose problem's name fits ``only`` (all
    without), every so many-th is judged, from which one on, as ``share`` says; what is told is of all of them. There is
    a page of them unless ``no_page``, or a ``share`` of them alone is judged. Exits with status 1 when a
    candidate is not right or could not be judged. Raises :class:`click.UsageError` where there is no pair.
    """
    for one in (problems, candidates):
        if not one.is_dir():
            raise click.UsageError(f"{one} is not a folder; a set is judge --task kernelbench PROBLEMS/ CANDIDATES/")
    there, given = problem_set.listed(problems), problem_set.listed(candidates)
    matched, left = problem_set.matched(list(there), given)
    asked = [name for name in there if any(fnmatchcase(text, only or "*") for text in (name, _bare(name), level(name)))]
    pairs = {name: given[matched[name]] for name in asked if name in matched}
    for name, why in left.items():
        click.echo(f"{name}: not judged: {why}", err=True)
    alone = [name for name in asked if name not in matched]
    if not pairs:
        raise click.UsageError(f"no pair to judge: {problems} has {len(asked)} problems, none with a candidate")
    click.echo(f"pairs: {len(pairs)}; problems without a candidate: {len(alone)}", err=True)
    own_book.ensure_ours(folder)
    ensure_writable(folder)
    page = not no_page and not share
    own_book.begin(folder, looks=page)
    how = {**how, "device": choose_device(how["device"])}
    asked_for = [how[name] for name in ("preset", "device", "machine")]
    keys = {  # what a verdict is of
        name: [*(source_file.digest(one, OwnError) for one in (there[name], path)), *asked_for]
        for name, path in pairs.items()
    }
    first, step = share or (1, 1)
    mine = list(pairs)[first - 1 :: step]
    kept = {} if overwrite else {name: problem_set.kept(_file(folder, name), keys[name]) for name in mine}
    said = {name: one for name, one in kept.items() if one}
    for name, one in said.items():
        click.echo(_line(name, pairs[name], one), err=as_json)
    due = [name for name in mine if name not in said]
    asked = (_asked(there[name], pairs[name], _file(folder, name), how, overwrite) for name in due)
    begun = time.monotonic()
    with closing(relay.run(asked)) as told:
        for name, (output, complaint) in zip(due, told, strict=True):
            file, now = _file(folder, name), time.monotonic()
            said[name] = _verdict(output, complaint, file.with_suffix(""), round(now - begun, 1))
            begun = now
            if said[name].entry["outcome"] != "not judged":
                problem_set.keep(file, keys[name], said[name])
            click.echo(_line(name, pairs[name], said[name]), err=as_json)
    verdicts = {name: said.get(name) or problem_set.kept(_file(folder, name), keys[name]) for name in pairs}
    summary = ["", *wrap(_counted(verdicts, alone)), "", *table(_fast(verdicts, alone), "against")]
    show(summary, lambda: _entries(verdicts, pairs), as_json=as_json)
    if page:
        path = folder / "notebooks" / f"{own_book.SET}.md"
        write_text(path, _page(verdicts, pairs, alone))
        own_book.begin(folder)
        execution.build_own(folder, path, quiet=as_json)
    if bad := [name for name, one in verdicts.items() if one and one.word in BAD]:
        click.echo(f"hypatia-lab: not right: {formats.listing(bad)}", err=True)
        sys.exit(1)


def _bare(name: str) -> str:
    return name.removesuffix(".py")


def _file(folder: Path, name: str) -> Path:
    """Where the verdict of problem ``name`` is kept; its records lie in a folder beside."""
    return folder / "pairs" / f"{_bare(name)}.json"


def _asked(
    problem: Path, candidate: Path, file: Path, how: Mapping[str, str], overwrite: bool
) -> tuple[Sequence[str], Path]:
    """What is asked of a process that judges a pair whose verdict is to be kept in ``file``, and its log.

    One that was interrupted goes on.
    """
    output = file.with_suffix("")
    if overwrite or file.exists():  # what is there is of other files, or is to be measured again
        shutil.rmtree(output, ignore_errors=True)
        file.unlink(missing_ok=True)
    asked = ["judge", str(candidate), "--task", "kernelbench", str(problem), "--output", str(output)]
    asked += ["--no-page", "--json", *(part for name, value in how.items() for part in (f"--{name}", value))]
    return asked, output.with_name(f"{output.name}.log")


def _verdict(output: str, complaint: str, folder: Path, seconds: float) -> Verdict:
    """What a judge told by its ``output``, whose records are in ``folder``, or why it told nothing."""
    try:
        (entry,) = json.loads(output)
    except ValueError:  # it has told nothing
        return Verdict({"outcome": "not judged", "message": complaint}, {}, seconds)
    return Verdict(entry, {} if entry["outcome"] == "refused" else _speeds(entry, folder), seconds)


def _speeds(entry: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The candidate's speed against each of :data:`AGAINST`, as far as it was measured, from the record in ``folder``.

    By the clock that verdicts rest on.
    """
    operation, machine = entry["workload"].partition("/")[0], entry["machine"]
    data = own_kernel.read(folder / "book" / "records", operation, machine)
    rows = data.select(machine=machine, experiment=operation)
    ruled = {peer: gate.rulings(rows, data.primary(machine), peer, None)[0].row.speed for peer in AGAINST}
    return {peer: speed for peer, speed in ruled.items() if speed.n}


# ---------------------------------------------------------------- what is told


def _line(name: str, candidate: Path, one: Verdict) -> str:
    """A pair, as it is told once it is judged."""
    told = [text for column, text in _row(name, candidate, one).items() if column not in UNSAID]
    return "\n".join(wrap("  ".join(filter(None, told)), 4))


def _row(name: str, candidate: Path, one: Verdict | None) -> dict[str, str]:
    """A pair, told: why what is not right is not, too."""
    against = {
        f"against {peer}": formats.told(one.speeds[peer]) if one and peer in one.speeds else "" for peer in AGAINST
    }
    told = {"problem": _bare(name), "candidate": candidate.name}
    told |= {"verdict": one.word.replace("_", " ") if one else PENDING, **against}
    why = formats.cut(one.why, 300) if one and one.word != "ok" else ""
    return told | {"seconds": f"{one.seconds:.0f} s" if one else "", "reason": why}


def _entries(verdicts: Verdicts, pairs: Mapping[str, Path]) -> list[dict[str, Any]]:
    """For a program: what ``judge --json`` says of each pair, and whose it is."""
    found = []
    for name, one in verdicts.items():
        whose = {"level": level(name), "problem": name, "candidate": str(pairs[name])}
        if one is None:
            found.append(whose | {"outcome": "pending"})
            continue
        speed = one.speeds.get("compile", NOTHING)
        beside = {"ratio": speed.value, "ratio_low": speed.low, "ratio_high": speed.high, "n": speed.n}
        found.append(whose | one.entry | {"compile": beside, "seconds": one.seconds})
    return found


def _counted(verdicts: Verdicts, alone: Sequence[str]) -> str:
    """How many pairs ended how, in a sentence."""
    words = Counter(one.word if one else PENDING for one in verdicts.values())
    told = [f"{count} {word.replace('_', ' ')}" for word, count in words.most_common()]
    return f"Pairs: {len(verdicts)}, of which {', '.join(told)}. Problems without a candidate: {len(alone)}."


def _fast(verdicts: Verdicts, alone: Sequence[str]) -> list[dict[str, str]]:
    """``fast_p`` of each level, and of all, against each of :data:`AGAINST`.

    Of all problems but those refused: how many candidates are right and significantly faster than *p* times that, up
    to how many may be. What is not judged yet may be anything.
    """
    names = [name for name in (*verdicts, *alone) if not (one := verdicts.get(name)) or one.word not in NO_PROBLEM]
    levels = list(dict.fromkeys(map(level, names)))
    found = []
    for scope in (*levels, "all") if len(levels) > 1 else ("all",):
        within = [name for name in names if scope in ("all", level(name))]
        told = [verdicts[name] for name in within if name in verdicts]
        right = [one for one in told if one and one.word == "ok"]
        open_ = sum(one is None or one.word == "not judged" for one in told)
        for peer in AGAINST:
            speeds = [one.speeds.get(peer, NOTHING) for one in right]
            if peer != AGAINST[0] and not any(one.n for one in speeds):
                continue
            row = {"level": scope, "against": peer, "problems": str(len(within))}
            for p in THRESHOLDS:
                low, high = problem_set.fast(speeds, p)
                row[f"fast_{p:g}"] = str(low) if low == high + open_ else f"{low} to {high + open_}"
            found.append(row)
    return found


def _page(verdicts: Verdicts, pairs: Mapping[str, Path], alone: Sequence[str]) -> str:
    """The page of a set in Markdown."""
    rows = [_row(name, pairs[name], one) for name, one in verdicts.items()]
    said = (
        "`fast_p` counts the candidates that are right and more than *p* times as fast, of all problems but those "
        "refused: those whose whole interval lies above *p*, up to those whose interval reaches above it."
    )
    parts = ("# A set of problems", _counted(verdicts, alone), _grid(_fast(verdicts, alone)), said, _grid(rows))
    return "\n\n".join(parts) + "\n"


def _grid(rows: Sequence[Mapping[str, str]]) -> str:
    """``rows`` as a table of Markdown, in which texts are no markup; a column that holds nothing is left out."""
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    lines = [columns, ["---"] * len(columns), *([readers.escaped(row[name]) for name in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
