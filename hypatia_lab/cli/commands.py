"""The command ``hypatia-lab``. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import math
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from hypatia_lab import places
from hypatia_lab.cli import execution
from hypatia_lab.cli.contributing import check_records, contribute
from hypatia_lab.cli.execution import RUN, execute, interrupted
from hypatia_lab.cli.fleet import fleet
from hypatia_lab.cli.reading import as_json_option, claims, compare, paged_option, print_json, results, tell_drafts
from hypatia_lab.cli.report import build_book, investigate
from hypatia_lab.cli.simulate import simulate
from hypatia_lab.cli.terminal import show, table, wrap
from hypatia_lab.fleet.steps import Step
from hypatia_lab.names import unknown
from hypatia_lab.tables import claims as claim_tables


class _Clear(click.Group):
    """Turns the lab's own errors, and misuse of the command, into one clear line and exit status 2.

    Its help tells each command's first sentence whole.
    """

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.commands[name].get_short_help_str(1000)) for name in sorted(self.commands)])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.exceptions.Exit:
            raise
        except click.UsageError as cause:
            click.echo(f"hypatia-lab: {cause.format_message()}", err=True)
            ctx.exit(2)
        except PermissionError as cause:
            if cause.filename is None:
                raise
            click.echo(f"hypatia-lab: {_closed(Path(os.fsdecode(cause.filename)))}", err=True)
            ctx.exit(2)
        except (ValueError, RuntimeError, OSError) as cause:
            if not type(cause).__module__.startswith("hypatia_lab"):
                raise
            click.echo(f"hypatia-lab: {cause}", err=True)
            ctx.exit(2)


def _closed(path: Path) -> str:
    """Why ``path`` may not be reached, and what would do: the first folder on the way that may not be searched."""
    for folder in reversed(path.absolute().parents):
        if not os.access(folder, os.X_OK):
            return f"folder {folder} may not be searched by you (it needs chmod u+x); choose another folder"
    return f"{path}: permission denied; choose another file or folder"


@click.group(cls=_Clear, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hypatia-lab")
def main() -> None:
    """Re-run GPU performance experiments, judge the claims made of them, and build the book."""


@main.command()
@click.argument("notebooks", nargs=-1)
@click.option(
    "--preset",
    default="quick",
    show_default=True,
    help="quick (small sizes), seed (the documents' sizes) or full (the same and sweeps).",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option(
    "--machine", default="", help="Name for this machine in records and figures.  [default: from its device's name]"
)
@click.option(
    "--shapes",
    default="",
    help="Sizes to measure instead of the preset's, such as 1024x784x2048,64x64x64 (batch x in x out); an experiment "
    "takes those that have its number of extents.",
)
@click.option("--records", default="", help="Folder for this machine's records.  [default: book/records]")
@click.option("--output", default="", help="Folder for the executed notebooks.  [default: _build/notebooks]")
@click.option("--overwrite", is_flag=True, help="Measure again what is recorded already.")
@click.option(
    "--program",
    "programs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Program file to measure first, and alone where no notebook is named; may be given again.",
)
def run(
    notebooks: tuple[str, ...],
    preset: str,
    device: str,
    machine: str,
    shapes: str,
    records: str,
    output: str,
    overwrite: bool,
    programs: tuple[Path, ...],
) -> None:
    """Measure this machine: execute NOTEBOOKS (all of them by default) in measure mode.

    A notebook is named by its number or name: 02, 02_naive_vs_cublas. An interrupted run goes on where it
    stopped when it is started again; finished records are kept. A notebook that fails does not stop the
    others; the exit status is then 1. So it is when a program, or a part of one, fails. A program file
    (see the page on programs from outside) is a program of yours and runs as such.
    """
    from hypatia_lab.pages.evidence import Parameters
    from hypatia_lab.records import ensure_writable

    chosen = execution.choose(notebooks) if notebooks or not programs else []
    if chosen and (told := places.lacking("a notebook", "run", *RUN)):
        raise click.UsageError(told)
    records = records or ("" if places.CHECKOUT else str(places.BUILD / "records"))
    if shapes and not chosen:
        raise click.UsageError("--shapes is for notebooks; a program file says its own")
    parameters = Parameters("measure", preset, device, machine, shapes, records)
    from hypatia_lab.bench import composer
    from hypatia_lab.machine import choose_device, default_name

    place = choose_device(device)
    specs = _programs(programs, preset, place)
    _plan(chosen, parameters.parsed_shapes(), preset, place)
    ensure_writable(parameters.root)
    given = {
        "mode": "measure",
        "preset": preset,
        "device": place,
        "machine": machine or default_name(place),
        "shapes": shapes,
        "records": str(Path(records).resolve()) if records else "",
        "overwrite": overwrite,
    }
    folder = Path(output).resolve() if output else places.BUILD / "notebooks"
    # Pages that only read what the others measured come last.
    measuring = {experiment.notebook for experiment in composer.EXPERIMENTS.values()}
    chosen.sort(key=lambda path: (path.stem not in measuring, path.stem))
    click.echo(
        f"measuring {given['machine']} ({place}) with preset {preset}; records: {records or 'book/records'}", err=True
    )
    if not sys.stderr.isatty():  # a line a notebook will do, in a log
        os.environ.setdefault("TQDM_DISABLE", "1")
    campaign = composer.campaign(parameters.root / given["machine"])
    if overwrite and (done := campaign.begin()):
        click.echo(f"going on with what was interrupted; measured already: {', '.join(done)}", err=True)
    failed = _measure_programs(specs, given, parameters.root)
    for number, path in enumerate(chosen, 1):
        try:
            if not execute(path, folder, given, str(Step(number, len(chosen), path.stem))):
                failed.append(path.stem)
        except KeyboardInterrupt:
            interrupted()
    if overwrite and not failed:
        campaign.end()
    if found := _found(chosen, parameters.root, given["machine"], folder, records):
        show(found)
    if failed:
        click.echo(
            f"failed: {', '.join(failed)}; their outputs are in {folder if chosen else parameters.root}", err=True
        )
        sys.exit(1)
    click.echo(f"done; executed notebooks are in {folder}" if chosen else f"done: {parameters.root}", err=True)


def _found(notebooks: list[Path], root: Path, machine: str, executed: Path, records: str) -> list[str]:
    """What became of the claims that ``notebooks`` show on ``machine``, and the commands that come next; empty where
    nothing is recorded.

    The lab's own findings have a line each, the documents' claims are counted.
    """
    from hypatia_lab.claims import LAB, VERDICTS, judge, ledger, statements
    from hypatia_lab.records import files, load, place

    if not notebooks or machine not in {place(path)[0] for path in files(root)}:
        return []
    pages = {path.stem for path in notebooks}
    shown = {claim.lead for claim in ledger() if pages.intersection(claim.pages)}
    stated = statements(judge(load(root, machines=[machine]), beside=load()))
    rows = [row for row in stated if row.id in shown and row.machine == machine and row.verdict != "not_testable"]
    lines = []
    for row in rows:
        if row.seed == LAB:
            told = f"asked {claim_tables.asked(row)}, measured {claim_tables.judged(row)}"
            lines += wrap(f"{claim_tables.word(row)}  {row.claim} ({row.id}: {told})", 2)
    words = [row.verdict for row in rows if row.seed != LAB]
    if counts := [f"{words.count(word)} {claim_tables.verdict_text(word)}" for word in VERDICTS if word in words]:
        lines += wrap(f"Claims of the documents: {', '.join(counts)}.", 2)
    option = f" --records {records}" if records else ""
    more = [f"results --machine {machine}{option}", f"claims --machine {machine}{option}"]
    more.append(f"book --notebooks {executed}{option}")
    return [*lines, *([""] if lines else []), "next:", *(f"  hypatia-lab {command}" for command in more)]


def _plan(notebooks: list[Path], shapes: list[tuple[int, ...]], preset: str, device: str) -> None:
    """Plan what ``notebooks`` measure: what is wrong with a size, a plan or a claim is said before anything runs."""
    from hypatia_lab.bench import composer
    from hypatia_lab.claims import ledger
    from hypatia_lab.cli.claim_names import ensure_named

    names = {path.stem for path in notebooks}
    measured = [one for one in composer.EXPERIMENTS.values() if one.notebook in names]
    for shape in shapes:
        if measured and not any(one.fitting([shape]) for one in measured):
            extents = dict.fromkeys(" x ".join(one.dims) for one in measured)
            told = f"shape {'x'.join(map(str, shape))} fits no experiment of {', '.join(sorted(names))}"
            raise click.UsageError(f"{told}; their shapes are {', '.join(extents)}")
    for one in measured:
        composer.plan(one, preset, device, one.fitting(shapes))
    ensure_named(ledger())


def _measure_programs(specs: list[Any], given: dict[str, Any], root: Path) -> list[str]:
    """Measure the experiments of program files; the names of those that fail, or of which a part does."""
    from hypatia_lab.bench import composer
    from hypatia_lab.intervals import estimate

    failed = []
    for spec in specs:
        click.echo(f"{spec.name}: {spec.summary}", err=True)
        place = {"preset": given["preset"], "device": given["device"], "machine_name": given["machine"], "root": root}
        try:
            found = composer.measure(spec, **place, overwrite=given["overwrite"])
        except KeyboardInterrupt:
            interrupted()
        except (ValueError, RuntimeError) as cause:
            if not type(cause).__module__.startswith("hypatia_lab"):
                raise
            click.echo(f"{spec.name}: {cause}", err=True)
            failed.append(spec.name)
            continue
        for line in found.details:
            if values := [value for value in line["values"] if value is not None]:
                unit = line["unit"].removesuffix("1")
                what = f"{line['case']} at {'x'.join(map(str, line['shape']))}: {line['name']}"
                click.echo(f"{what}: {estimate(values).value:.5g} {unit} (n = {len(values)})")
        told = (*found.cells, *found.details)
        skipped: dict[str, dict[str, None]] = {}
        for line in told:
            if line["status"] == "skipped":
                skipped.setdefault(line["reason"], {})[line.get("case") or line["variant"]] = None
        for reason, names in skipped.items():
            click.echo(f"{spec.name}: skipped {', '.join(names)}: {reason}", err=True)
        bad = [line for line in told if line["status"] not in ("ok", "skipped")]
        for line in {(line.get("case") or line["variant"], line["reason"]): line for line in bad}.values():
            what = line.get("case") or line["variant"]
            click.echo(f"{spec.name}: {what}: {line['status'].replace('_', ' ')}: {line['reason']}", err=True)
        failed += [spec.name] if bad else []
    return failed


def _programs(paths: tuple[Path, ...], preset: str, device: str) -> list[Any]:
    """The experiments of program files, each planned once: what is wrong with one is said before anything runs."""
    if not paths:
        return []
    from hypatia_lab import programs
    from hypatia_lab.bench import composer

    specs = [programs.experiment(path, programs.load(path)) for path in dict.fromkeys(map(Path.resolve, paths))]
    for spec in specs:
        composer.plan(spec, preset, device)
    return specs


@main.command()
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@paged_option
@as_json_option
def doctor(device: str, paged: bool, as_json: bool) -> None:
    """Say what this machine can do, what it lacks and what would help, and which variants run here."""
    from hypatia_lab.cli.doctor import examine, rows, text

    report = examine(device)
    if as_json:
        print_json(rows(report))
    else:
        show(text(report), paged)


@main.command()
@click.argument("report", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--notebooks",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of executed notebooks that replace the committed ones.",
)
@click.option("--records", type=click.Path(path_type=Path, file_okay=False), help="Folder of more records.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the pages.  [default: _build/html, of DIR where it is given]",
)
@click.option("--pdf", is_flag=True, help="Print the whole book as PDF too, by Chromium: book.pdf among the pages.")
def book(report: Path | None, notebooks: Path | None, records: Path | None, output: Path | None, pdf: bool) -> None:
    """Build the book as HTML that needs no network: _build/html/index.html.

    With DIR, a report that hypatia-lab investigate began, the book of that: its claims and its records.
    """
    from hypatia_lab.book import build as pages

    if report is not None:
        if notebooks or records:
            raise click.UsageError("a report's book is made of its own folder; leave --notebooks and --records out")
        click.echo(build_book(report, output or report / "_build" / "html", pdf=pdf))
        return
    click.echo(pages.build(notebooks=notebooks, records=records, output=output or places.BUILD / "html", pdf=pdf))


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
def new(file: Path) -> None:
    """Write a template for a kernel of your own to FILE, such as my_kernel.py."""
    from hypatia_lab.book.own import write_template

    write_template(file)
    click.echo(f"{file}: now hypatia-lab judge {file}")


def _number(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    """``value``, which lies in every range if it is NaN."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is no number", context, option)
    return value


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--task",
    nargs=2,
    type=(click.Choice(["kernelbench"]), click.Path(path_type=Path)),
    metavar="kernelbench PROBLEM",
    help="FILE is a candidate (ModelNew) for PROBLEM, a file in the format of KernelBench (Model, get_inputs, "
    "get_init_inputs).",
)
@click.option("--claims", "claims_file", type=click.Path(path_type=Path), help="YAML file of what you claim of it.")
@click.option("--shapes", default="", help="Sizes instead of the file's own, such as 1024x512,64x64.")
@click.option("--dtypes", default="", help="dtypes instead of the file's own, such as float32,bfloat16.")
@click.option("--preset", default="quick", show_default=True, help="quick, seed or full.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--machine", default="", help="Name for this machine.  [default: from its device's name]")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of your own book; nothing is written elsewhere.  [default: my_kernel_book for my_kernel.py]",
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
@as_json_option
def judge(
    file: Path,
    task: tuple[str, Path] | None,
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
    """
    import tempfile

    from hypatia_lab import claims as ledger
    from hypatia_lab import records
    from hypatia_lab.book import own as own_book
    from hypatia_lab.pages import own_kernel
    from hypatia_lab.pages.evidence import PRESETS
    from hypatia_lab.workloads import parse_shape

    if preset not in PRESETS:
        raise click.UsageError(unknown("preset", preset, PRESETS))
    for option, value in (("--against", against), ("--undecided", undecided)):
        if value is not None and fail_below is None:
            raise click.UsageError(f"{option} {value} goes with --fail-below, such as --fail-below 1.05")
    if task and (shapes or dtypes):
        raise click.UsageError(
            f"{'--shapes' if shapes else '--dtypes'} is for a file of your own; {task[1]} says its own"
        )
    sizes = [parse_shape(text.strip()) for text in shapes.split(",") if text.strip()]
    kinds = [text.strip() for text in dtypes.split(",") if text.strip()]
    named = machine and records.machine_name(machine)
    held = ledger.gather([claims_file] if claims_file else [])
    claimed = list(held.claims)
    folder = (output or Path(f"{file.stem}_book")).resolve()
    from hypatia_lab import reader_kernel, variants
    from hypatia_lab.bench import composer
    from hypatia_lab.cli import gate
    from hypatia_lab.cli.claim_names import ensure_named
    from hypatia_lab.cli.printing import cell_lines
    from hypatia_lab.judged import rehearsal
    from hypatia_lab.machine import choose_device, default_name
    from hypatia_lab.tasks import kernelbench

    tell_drafts(held)
    place = choose_device(device)
    problem = task[1] if task else None
    for one in filter(None, (file, problem)):
        reader_kernel.digest(one)  # before anything is started
    own_book.ensure_ours(folder)
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log.txt"
        found = rehearsal.rehearse(file, log, time_limit, problem=problem, shapes=sizes, dtypes=kinds)
    text = reader_kernel.text(file)
    if problem:
        experiment = kernelbench.experiment(file, problem, found)
        click.echo(f"{found.name}: {found.summary}", err=True)
    else:
        experiment = reader_kernel.experiment(file, found)
    ensure_named(claimed, str(claims_file), experiment=found.name)
    peer = against or variants.baseline(found.name)
    gate.ensure_named(peer, variants.variants(found.name), found.name)
    name = named or default_name(place)
    records.ensure_writable(folder)
    own_book.begin(folder)
    click.echo(f"{found.name}: measuring {', '.join(found.variants)} on {name} ({place}), preset {preset}", err=True)
    root = folder / "book" / "records"
    try:
        composer.measure(
            experiment,
            preset=preset,
            device=place,
            machine_name=name,
            root=root,
            overwrite=overwrite,
            silence_s=time_limit,
        )
    except KeyboardInterrupt:
        interrupted()
    data = own_kernel.read(root, found.name, name)
    rows = data.select(machine=name, experiment=found.name)
    rulings = gate.rulings(rows, data.primary(name), peer, fail_below)
    if as_json:
        print_json([one.entry() for one in rulings])
    else:
        lines = cell_lines(rows)
        if own := own_kernel.summary(data, name, found.name):
            lines += ["", *table(own, "variant", ("error", "against compile", "time", "at"))]
        for row in ledger.judge(data.of(name), claimed) if claimed else []:
            lines += ["", *wrap(f"{claim_tables.verdict_text(row.verdict)}  {row.id}  {row.claim}", 2)]
            lines += wrap(row.reason, 2, 2)
        passed = [one.message for one in rulings if one.outcome == gate.PASSED and fail_below is not None]
        show([*lines, *([""] if passed else []), *(line for text in passed for line in wrap(text, 2))])
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
    if stopped:
        sys.exit(1)


def _write_page(folder: Path, notebook: Path, quiet: bool) -> None:
    """Execute the chapter ``notebook`` of the reader's book in ``folder`` and build the book, where it can be built.

    ``quiet``: standard output is a program's.
    """
    from hypatia_lab.book import build as pages

    if told := places.lacking("the chapter", "run", *RUN):
        click.echo(f"{notebook}: {told}; what was measured is kept", err=True)
        return
    try:
        executed = execute(notebook, notebook.parent, {}, f"chapter {notebook.stem}")
    except KeyboardInterrupt:
        interrupted()
    if not executed:
        click.echo(f"the chapter is in {notebook}; what was measured is kept", err=True)
        sys.exit(1)
    if told := places.lacking("the page", "book", "jupyter_book"):
        click.echo(f"{notebook}: {told}", err=True)
        return
    say = partial(click.echo, err=quiet)
    say(f"\n{pages.build(repository=folder, output=folder / '_build' / 'html', say=say)}")


for command in (results, claims, compare, simulate, contribute, check_records, fleet, investigate):
    main.add_command(command)
