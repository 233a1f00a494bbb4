"""The command that checks, measures and judges a kernel of the reader's own: judge."""

from __future__ import annotations

import gc
import json
import math
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hypatia_lab import claims as ledger
from hypatia_lab import paths, records, variants
from hypatia_lab.bench import relay, sessions
from hypatia_lab.cli import execution, options
from hypatia_lab.cli.reading import told_claims
from hypatia_lab.cli.terminal import show, table, wrap
from hypatia_lab.judged import reading
from hypatia_lab.messages import unknown
from hypatia_lab.tables import claims as claim_tables

if TYPE_CHECKING:
    from hypatia_lab.experiments import Experiment
    from hypatia_lab.strangers.reader_kernel import Own


def _number(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    """``value``, which lies in every range if it is NaN."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is no number", context, option)
    return value


def _share(context: click.Context, option: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """``1/4`` as its two numbers."""
    found = re.fullmatch(r"([1-9]\d{0,4})/([1-9]\d{0,4})", value or "1/1")
    if not found or int(found[1]) > int(found[2]):
        raise click.BadParameter(f"{value} is not a share such as 1/4", context, option)
    return (int(found[1]), int(found[2])) if value else None


@click.command()
@click.argument("file", type=options.FILE)
@click.option(
    "--task",
    nargs=2,
    type=(click.Choice(["kernelbench", "sol-execbench"]), options.FILE),
    metavar="FORMAT PROBLEM",
    help="FILE is a candidate for PROBLEM. kernelbench: PROBLEM is a file with Model, get_inputs and get_init_inputs, "
    "FILE one with ModelNew; or both are folders of such files, each a level or of a folder a level: a whole set. "
    "sol-execbench: PROBLEM is a folder with definition.json and workload.jsonl, FILE a solution.json.",
)
@click.option("--only", metavar="GLOB", help="Of a set, only the problems with such a name, for example 'level1/*'.")
@click.option(
    "--share",
    metavar="I/N",
    callback=_share,
    help="Of a set, every Nth pair beginning with the Ith: N commands, each on a GPU of its own, judge it together.",
)
@click.option("--claims", "claims_file", type=options.FILE, help="YAML file of what you claim of it.")
@click.option("--shapes", default="", help="Sizes instead of the file's own, such as 1024x512,64x64.")
@click.option("--dtypes", default="", help="dtypes instead of the file's own, such as float32,bfloat16.")
@click.option("--preset", type=click.Choice(["quick", "seed", "full"]), default="quick", show_default=True)
@options.device
@click.option("--machine", default="", help="Name for this machine.  [default: from its device's name]")
@click.option(
    "--output",
    type=options.FOLDER,
    help="Folder of your own book; your cache folder keeps compiled code.  [default: my_kernel_book for my_kernel.py]",
)
@click.option("--overwrite", is_flag=True, help="Measure again what is recorded there already.")
@click.option(
    "--time-limit",
    type=click.FloatRange(1, 1e6),
    callback=_number,
    default=300.0,
    show_default=True,
    help="Seconds of silence after which a variant is taken to hang.",
)
@click.option("--no-page", is_flag=True, help="Records and verdicts only: no notebook and no page.")
@click.option(
    "--fail-below",
    type=click.FloatRange(0, 1e6, min_open=True),
    callback=_number,
    help="Lowest speed, as a multiple of that of --against, at which a kernel of yours passes, such as 1.05. Its 95% "
    "interval decides: wholly below the limit it fails, wholly at or above it passes.",
)
@click.option(
    "--against",
    help="Variant that --fail-below is a multiple of: eager, compile or one of the file's.  [default: eager]",
)
@click.option(
    "--undecided",
    type=click.Choice(["fail", "pass"]),
    help="What becomes of a kernel whose interval holds the limit.  [default: fail]",
)
@options.as_json
@execution.resumable()
def judge(
    file: Path,
    task: tuple[str, Path] | None,
    only: str | None,
    share: tuple[int, int] | None,
    claims_file: Path | None,
    shapes: str,
    dtypes: str,
    preset: str,
    device: str,
    machine: str,
    output: Path | None,
    overwrite: bool,
    time_limit: float,
    no_page: bool,
    fail_below: float | None,
    against: str | None,
    undecided: str | None,
    as_json: bool,
) -> None:
    """Check and measure the kernel in FILE, judge its claims, and write a chapter of your own book.

    FILE is a program of yours and runs as such; hypatia-lab new FILE writes one to begin with. The exit status is 1
    when a variant is wrong, too fast to be believed, crashed or hung; a refuted claim is a result.

    With --fail-below it is 1, too, when a variant of yours is slower than that at some shape and dtype, was skipped, or
    cannot be compared. Where the limit lies within the interval nothing is decided: that fails, and the message says
    what would decide; --undecided pass lets it through. --json prints an array with an entry for each variant of yours,
    shape and dtype, and nothing else.

    It is 2 when nothing could be judged, for a fault of FILE or of the problem, or because this machine is too small;
    --json says which.

    Of two folders each pair is judged like that, one after the other: judge --task kernelbench PROBLEMS/ CANDIDATES/.
    A pair whose verdict is kept is not judged again. The exit status is then 1 when a candidate is not right.
    """
    for option, value in (("--against", against), ("--undecided", undecided)):
        if value is not None and fail_below is None:
            raise click.UsageError(f"{option} {value} goes with --fail-below, such as --fail-below 1.05")
    for option, value in (("--shapes", shapes), ("--dtypes", dtypes)):
        if task and value:
            raise click.UsageError(f"{option} is for a file of your own; {task[1]} says its own")
    whole = task is not None and task[0] == "kernelbench" and (file.is_dir() or task[1].is_dir())
    for option, value in (("--only", only), ("--share", share)):
        if value and not whole:
            raise click.UsageError(f"{option} is for a set: judge --task kernelbench PROBLEMS/ CANDIDATES/")
    for one in filter(None, (file, task[1] if task else None)):
        if not one.exists():  # said before the imports, which take seconds
            raise click.UsageError(f"{one}: cannot be read (no such file or folder)")
    click.echo(f"{file.name}: getting ready to read it", err=True)
    from hypatia_lab.book import own as own_book
    from hypatia_lab.pages import own_kernel
    from hypatia_lab.workloads import DTYPES, parse_shape

    sizes = [parse_shape(text.strip()) for text in shapes.split(",") if text.strip()]
    kinds = [text.strip() for text in dtypes.split(",") if text.strip()]
    if wrong := [one for one in kinds if one not in DTYPES]:
        raise click.UsageError(unknown("dtype", wrong[0], DTYPES))
    named = machine and records.machine_name(machine)
    if task and whole:
        for option, value in (("--claims", claims_file), ("--fail-below", fail_below)):
            if value is not None:
                raise click.UsageError(f"{option} is for one kernel, not for a set")
        from hypatia_lab.cli.judge_set import judge_set

        how = {"preset": preset, "device": device, "machine": named, "time-limit": f"{time_limit:g}"}
        folder = (output or Path(f"{file.resolve().name}_book")).resolve()
        judge_set(task[1], file, folder, how, only, share, overwrite=overwrite, no_page=no_page, as_json=as_json)
        return
    claimed = told_claims([claims_file] if claims_file else [])
    folder = (output or Path(f"{file.stem}_book")).resolve()
    own_book.ensure_ours(folder)
    kind, problem = task or ("", None)
    asked: dict[str, Any] = {"problem": problem, "kind": kind, "shapes": sizes, "dtypes": kinds}
    turn = relay.Turn()
    with tempfile.TemporaryDirectory() as scratch, _processes(Path(scratch, "log.txt")) as (reader, early):
        if not turn.awaited:
            reader.tell(reading.plan(file, **asked))
        gc.disable()  # imports make no garbage
        from hypatia_lab.bench import composer
        from hypatia_lab.cli.claim_names import ensure_named
        from hypatia_lab.cli.results import cell_lines
        from hypatia_lab.judged import gate
        from hypatia_lab.machine import choose_device, default_name

        import_module("pandas")  # what is told at the end needs it, and the file is being read meanwhile
        gc.enable()
        if turn.awaited:
            turn.begin([reader, *early])
            reader.tell(reading.plan(file, **asked))
        place = choose_device(device)
        with _refusals(file, problem, as_json=as_json):
            text, experiment, found, left_out = _read(file, asked, time_limit, reader, Path(scratch, "log.txt"))
        ensure_named(claimed, str(claims_file), experiment=found.name)
        peer = against or variants.baseline(found.name)
        gate.ensure_named(peer, variants.variants(found.name), found.name)
        name = named or default_name(place)
        records.ensure_writable(folder)
        own_book.begin(folder, looks=not no_page)
        if not no_page and (told := paths.lacking("the chapter", "run", *execution.RUN)):
            click.echo(f"{told}; everything else is done without it", err=True)
        click.echo(
            f"{found.name}: measuring {', '.join(found.variants)} on {name} ({place}), preset {preset}", err=True
        )
        root = folder / "book" / "records"
        how: dict[str, Any] = {"preset": preset, "device": place, "machine_name": name, "root": root}
        with _refusals(file, problem, as_json=as_json):
            how |= {"overwrite": overwrite, "silence_s": time_limit, "early": early, "alone": turn.alone}
            composer.measure(experiment, **how)
    turn.measured()
    data = own_kernel.read(root, found.name, name)
    rows = data.select(machine=name, experiment=found.name)
    rulings = gate.rulings(rows, data.primary(name), peer, fail_below)

    def lines() -> list[str]:
        told = cell_lines(rows)
        if own := own_kernel.summary(data, name, found.name):
            told += ["", *table(own, "variant", ("error", "against compile", "time", "at"))]
        for row in ledger.judge([data.measured[name]], claimed) if claimed else []:
            told += ["", *wrap(f"{claim_tables.verdict_text(row.verdict)}  {row.id}  {row.claim}", 2)]
            told += wrap(row.reason, 2, 2)
        told += [line for one in rulings for line in wrap(one.beside, 2)]
        passed = [one.message for one in rulings if one.outcome == gate.PASSED and fail_below is not None]
        return [*told, *([""] if passed else []), *(line for one in passed for line in wrap(one, 2))]

    refused = [{"outcome": "refused", "fault": "problem", "message": one} for one in left_out]
    show(lines, lambda: [*(one.entry() for one in rulings), *refused], as_json=as_json)
    if not no_page:
        page = own_book.lay_out(folder, found.name, found.summary, text, claims_file, name)
        _write_page(folder, page, quiet=as_json)
    bad = own_kernel.failures(rows)
    if fail_below is None and bad:
        said = dict.fromkeys(f"{row.variant} ({row.status.replace('_', ' ')})" for row in bad)
        click.echo(f"hypatia-lab: not right: {', '.join(said)}", err=True)
        sys.exit(1)
    stopped = [one for one in rulings if one.stops(let_undecided=undecided == "pass")]
    for one in rulings:
        if one in stopped or one.outcome == gate.UNDECIDED:
            click.echo(f"hypatia-lab: {one.message}{'' if one in stopped else ' (let through)'}", err=True)
    if stopped or (left_out and fail_below is not None):
        sys.exit(1)


@contextmanager
def _processes(log: Path) -> Iterator[tuple[sessions.Fresh, list[sessions.Fresh]]]:
    """The process that reads a file, and some that will measure, where a machine has cores for them: they import what
    they need while this one does."""
    count = sessions.room(relay.EARLY)
    modules = [reading.MODULE, *[sessions.MEASURING[True]] * count]
    with sessions.started(modules, [sessions.scratch(log.parent), *[{}] * count], log) as (reader, *early):
        yield reader, early


def _read(
    file: Path, asked: dict[str, Any], time_limit: float, reader: sessions.Fresh, log: Path
) -> tuple[str, Experiment, Own, list[str]]:
    """The text of ``file``, what measures it, what it declares, and a line for each workload that is left out."""
    from hypatia_lab.judged import rehearsal
    from hypatia_lab.strangers import reader_kernel
    from hypatia_lab.strangers.tasks import FORMATS, experiment

    form, problem, left_out = FORMATS.get(asked["kind"]), asked["problem"], list[str]()
    if form:
        file = form.located(file)
        form.digest(file, problem)  # before it is said what is amiss in it
        left_out = form.left_out(problem)
    else:
        reader_kernel.digest(file)
    found = rehearsal.rehearse(file, log, time_limit, **asked, fresh=reader)
    if not form:
        return reader_kernel.text(file), reader_kernel.experiment(file, found), found, left_out
    click.echo(f"{found.name}: {found.summary}", err=True)
    for one in left_out:
        click.echo(f"left out: {one}", err=True)
    return form.text(file), experiment(asked["kind"], file, problem, found), found, left_out


@contextmanager
def _refusals(file: Path, problem: Path | None, *, as_json: bool) -> Iterator[None]:
    """Tells a program, too, that nothing was judged: whether for the ``problem``, the ``file``, or the machine."""
    from hypatia_lab.strangers.reader_kernel import OwnError, TooLarge

    try:
        yield
    except OwnError as cause:
        theirs = problem is not None and str(cause).startswith(str(problem.resolve()))
        fault = "problem" if theirs and not str(cause).startswith(str(file.resolve())) else "file"
        fault = "machine" if isinstance(cause, TooLarge) else fault
        if as_json:
            click.echo(json.dumps([{"outcome": "refused", "fault": fault, "message": str(cause)}], indent=1))
        raise


def _write_page(folder: Path, notebook: Path, quiet: bool) -> None:
    """Execute the chapter ``notebook`` of the reader's book in ``folder`` and build the book, where it can be built.

    ``quiet``: standard output is a program's.
    """
    if told := paths.lacking("the chapter", "run", *execution.RUN):
        click.echo(f"{notebook}: {told}; what was measured is kept", err=True)
        return
    if not execution.execute(notebook, notebook.parent, {}, f"chapter {notebook.stem}"):
        click.echo(f"the chapter is in {notebook}; what was measured is kept", err=True)
        sys.exit(1)
    execution.build_own(folder, notebook, quiet)
