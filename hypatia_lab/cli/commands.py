"""The command ``hypatia-lab``. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hypatia_lab.cli.execution import execute, interrupted
from hypatia_lab.cli.simulate import simulate
from hypatia_lab.names import unknown
from hypatia_lab.tables import claims as claim_tables

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"


class _Clear(click.Group):
    """Turns the lab's own errors, and misuse of the command, into one clear line and exit status 2."""

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


_records = click.option(
    "--records",
    "folders",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of more records, such as the --output of judge, beside the committed ones; may be given again.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, one array, for other programs.")


def _load(folders: tuple[Path, ...], machines: tuple[str, ...] = ()) -> list[Any]:
    from hypatia_lab import records

    names = [records.machine_name(name) for name in machines]
    return records.load(records.COMMITTED, *map(_root, folders), machines=names)


def _root(folder: Path) -> Path:
    """Where the records of ``folder`` lie: in the reader's book that it is, or at once below it."""
    from hypatia_lab import records

    for root in (folder / "book" / "records", folder):
        if records.files(root):
            return root
    raise click.UsageError(f"{folder} holds no records")


def _print_json(rows: list[dict[str, Any]]) -> None:
    click.echo(json.dumps(_clean(rows), indent=1, ensure_ascii=False))


def _clean(value: Any) -> Any:
    """``value`` with null for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _clean(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_clean(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@main.command()
@click.argument("notebooks", nargs=-1)
@click.option(
    "--preset",
    default="quick",
    show_default=True,
    help="quick (5 processes, small sizes), seed (8, the documents' sizes), full (12, sweeps).",
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

    chosen = _choose(notebooks) if notebooks or not programs else []
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
    folder = Path(output).resolve() if output else ROOT / "_build" / "notebooks"
    # Pages that only read what the others measured come last.
    measuring = {experiment.notebook for experiment in composer.EXPERIMENTS.values()}
    chosen.sort(key=lambda path: (path.stem not in measuring, path.stem))
    click.echo(
        f"measuring {given['machine']} ({place}) with preset {preset}; records: {records or 'book/records'}", err=True
    )
    campaign = composer.campaign(parameters.root / given["machine"])
    if overwrite and (done := campaign.begin()):
        click.echo(f"going on with what was interrupted; measured already: {', '.join(done)}", err=True)
    failed = _measure_programs(specs, given, parameters.root)
    for number, path in enumerate(chosen, 1):
        try:
            if not execute(path, folder, given, f"[{number}/{len(chosen)}]"):
                failed.append(path.stem)
        except KeyboardInterrupt:
            interrupted()
    if overwrite and not failed:
        campaign.end()
    if failed:
        click.echo(
            f"failed: {', '.join(failed)}; their outputs are in {folder if chosen else parameters.root}", err=True
        )
        sys.exit(1)
    click.echo(f"done; executed notebooks are in {folder}" if chosen else f"done: {parameters.root}", err=True)


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
    from hypatia_lab.figures.probe_rows import rare

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
                click.echo(f"{line['case']}: {line['name']}: {rare(values).value:.5g} {unit} (n = {len(values)})")
        bad = [line for line in (*found.cells, *found.details) if line["status"] not in ("ok", "skipped")]
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


def _choose(names: tuple[str, ...]) -> list[Path]:
    known = sorted(NOTEBOOKS.glob("*.ipynb"))
    if not names:
        return known
    chosen = []
    for name in names:
        found = [path for path in known if path.stem == name.removesuffix(".ipynb") or path.stem.split("_")[0] == name]
        if not found:
            raise click.UsageError(unknown("notebook", name, [path.stem for path in known]))
        chosen += [path for path in found if path not in chosen]
    return chosen


@main.command()
@_records
@click.option("--machine", "machines", multiple=True, help="Only this machine; may be given again.")
@_json
def results(folders: tuple[Path, ...], machines: tuple[str, ...], as_json: bool) -> None:
    """Print every measured cell: time, ratio to its baseline with a 95% interval, limit, error, status."""
    from hypatia_lab import results as tidy
    from hypatia_lab import tables

    rows = tidy.rows(_load(folders, machines))
    if as_json:
        _print_json([{key: getattr(row, key) for key in tidy.COLUMNS} for row in rows])
    else:
        click.echo(tables.results_table(rows).to_string(index=False))


@main.command()
@_records
@click.option("--machine", "machines", multiple=True, help="Only this machine; may be given again.")
@click.option("--parts", "as_parts", is_flag=True, help="Every part by itself: each way in which a claim is tested.")
@_json
def claims(folders: tuple[Path, ...], machines: tuple[str, ...], as_parts: bool, as_json: bool) -> None:
    """Print every claim of the ledger with what was measured, the verdict and the reason.

    A claim is what a document says once; it may be tested in several ways, its parts. With --json each claim has them.
    """
    from hypatia_lab.claims import COLUMNS, judge, statements

    rows = judge(_load(folders, machines))
    stated = [] if as_parts else statements(rows)
    if not as_json:
        click.echo(claim_tables.claims_table(stated or rows).to_string(index=False))
        return
    whole = [{key: row[key] for key in COLUMNS} for row in stated or rows]
    for line, row in zip(whole, stated, strict=False):
        line["parts"] = [{key: part[key] for key in COLUMNS} for part in row["parts"]]
    _print_json(whole)


@main.command()
@click.argument("machine_a")
@click.argument("machine_b")
@_records
@_json
def compare(machine_a: str, machine_b: str, folders: tuple[Path, ...], as_json: bool) -> None:
    """Set MACHINE_A beside MACHINE_B: the same ratios with their intervals, and the verdicts that differ.

    Verdicts are those on the parts of claims, for each has figures of its own.

    Either is the name of a recorded machine or a folder: one machine's records, or a folder above them, such as the
    --output of judge. Two folders may hold records of one machine. Verdicts where both sides have one come first.
    With --json: the verdicts that differ.
    """
    from hypatia_lab import records, tables
    from hypatia_lab import results as tidy
    from hypatia_lab.claims import differences, judge

    sides = [_side(text, folders) for text in (machine_a, machine_b)]
    if sides[0] == sides[1]:
        raise click.UsageError(f"{machine_a} and {machine_b} are the same records; name two machines or folders")
    names = [side[0].machine for side in sides]
    if names[0] == names[1]:
        names = [machine_a, machine_b]
    loaded = [
        replace(record, run=record.run | {"machine": name})
        for name, side in zip(names, sides, strict=True)
        for record in side
    ]
    ledger = _own_ledger(machine_a, machine_b)
    found = differences(judge(loaded, ledger, beside=records.load()), *names)
    if as_json:
        _print_json(found)
        return
    try:
        click.echo(tables.compare_table(tidy.rows(loaded), *names).to_string(index=False))
    except tables.TableError as cause:  # nothing in common, and still verdicts may differ
        click.echo(str(cause))
    leads = {claim.id: claim.lead for claim in ledger}
    stated = len({leads[row["id"]] for row in found})
    click.echo(
        f"\nverdicts that differ (claims: {stated}, parts: {len(found)}):" if found else "\nverdicts that differ: none"
    )
    for row in found:
        click.echo(f"  {row['id']}  {row['claim']}")
        for side in "ab":
            verdict = claim_tables.verdict_text(row[f"verdict_{side}"])
            click.echo(f"    {row[f'machine_{side}']}: {verdict}. {row[f'reason_{side}']}")


def _side(text: str, folders: tuple[Path, ...]) -> list[Any]:
    """The records of one side of a comparison: a machine's, by its name or by a folder that holds no other's."""
    from hypatia_lab import records

    place = Path(text)
    if not place.is_dir() or any(path.name == text for path in records.COMMITTED.glob("*/")):
        return _load(folders, (text,))
    found = records.load(_root(place))
    machines = sorted({record.machine for record in found})
    if len(machines) > 1:
        raise click.UsageError(f"{text} holds records of {', '.join(machines)}; name one of its folders")
    return found


def _own_ledger(*places: str) -> list[Any]:
    """The lab's ledger, and the claims in the readers' books among ``places``; of an id twice the last one counts."""
    from hypatia_lab.claims import ledger, load

    claims = {claim.id: claim for claim in ledger()}
    for place in places:
        for path in sorted((Path(place) / "book" / "claims").glob("*.yaml")):
            claims |= {claim.id: claim for claim in load(path)}
    return list(claims.values())


@main.command()
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@_json
def doctor(device: str, as_json: bool) -> None:
    """Say what this machine can do, what it lacks and what would help, and which variants run here."""
    from hypatia_lab.cli.doctor import examine, rows, text

    report = examine(device)
    if as_json:
        _print_json(rows(report))
    else:
        click.echo(text(report))


@main.command()
@click.option(
    "--notebooks",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of executed notebooks that replace the committed ones.",
)
@click.option("--records", type=click.Path(path_type=Path, file_okay=False), help="Folder of more records.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=ROOT / "_build" / "html",
    help="Folder for the pages.  [default: _build/html]",
)
def book(notebooks: Path | None, records: Path | None, output: Path) -> None:
    """Build the book as HTML that needs no network: _build/html/index.html."""
    from hypatia_lab.book import build as pages

    click.echo(pages.build(notebooks=notebooks, records=records, output=output))


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
def new(file: Path) -> None:
    """Write a template for a kernel of your own to FILE, such as my_kernel.py."""
    from hypatia_lab.book.own import write_template

    write_template(file)
    click.echo(f"{file}: now hypatia-lab judge {file}")


def _number(context: click.Context, option: click.Parameter, value: float) -> float:
    """``value``, which lies in every range if it is NaN."""
    if math.isnan(value):
        raise click.BadParameter("nan is no number", context, option)
    return value


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--claims", "claims_file", type=click.Path(path_type=Path), help="YAML file of what you claim of it.")
@click.option("--shapes", default="", help="Sizes instead of the file's own, such as 1024x512,64x64.")
@click.option("--dtypes", default="", help="dtypes instead of the file's own, such as float32,bfloat16.")
@click.option("--preset", default="quick", show_default=True, help="quick (5 processes), seed (8) or full (12).")
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
def judge(
    file: Path,
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
) -> None:
    """Check and measure the kernel in FILE, judge its claims, and write a chapter of your own book.

    FILE is a program of yours and runs as such; hypatia-lab new FILE writes one to begin with. The exit status is 1
    when a variant is wrong, too fast to be believed, crashed or hung; a refuted claim is a result.
    """
    import tempfile

    from hypatia_lab import claims as ledger
    from hypatia_lab import records
    from hypatia_lab.book import own as own_book
    from hypatia_lab.chapters import own_kernel
    from hypatia_lab.pages.evidence import PRESETS
    from hypatia_lab.workloads import parse_shape

    if preset not in PRESETS:
        raise click.UsageError(unknown("preset", preset, PRESETS))
    sizes = [parse_shape(text.strip()) for text in shapes.split(",") if text.strip()]
    kinds = [text.strip() for text in dtypes.split(",") if text.strip()]
    named = machine and records.machine_name(machine)
    claimed = ledger.load(claims_file) if claims_file else []
    folder = (output or Path(f"{file.stem}_book")).resolve()
    from hypatia_lab import reader_kernel
    from hypatia_lab.bench import composer
    from hypatia_lab.cli.claim_names import ensure_named
    from hypatia_lab.machine import choose_device, default_name

    place = choose_device(device)
    reader_kernel.digest(file)  # before anything is started
    own_book.ensure_ours(folder)
    with tempfile.TemporaryDirectory() as scratch:
        reader_kernel.rehearse(file, Path(scratch) / "log.txt", time_limit)
    text = reader_kernel.text(file)
    found = reader_kernel.load(file)
    experiment = reader_kernel.experiment(file, found, sizes, kinds)
    ensure_named(claimed, str(claims_file), experiment=found.name)
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
    data = own_kernel.read(root, found.name)
    click.echo(own_kernel.every_cell(data, name, found.name).to_string(index=False))
    for finding in own_kernel.findings(data, name, found.name):
        click.echo(f"\n{finding.title}. {finding.text}")
    for row in ledger.judge(data.of(name), claimed) if claimed else []:
        click.echo(f"\n{claim_tables.verdict_text(row['verdict'])}  {row['id']}  {row['claim']}\n  {row['reason']}")
    if not no_page:
        _write_page(folder, own_book.lay_out(folder, found.name, found.summary, text, claims_file))
    bad = own_kernel.failures(data.select(machine=name, experiment=found.name))
    if bad:
        said = dict.fromkeys(f"{row.variant} ({row.status.replace('_', ' ')})" for row in bad)
        click.echo(f"hypatia-lab: not right: {', '.join(said)}", err=True)
        sys.exit(1)


def _write_page(folder: Path, notebook: Path) -> None:
    """Execute the chapter ``notebook`` of the reader's book in ``folder`` and build the book, where it can be built."""
    from importlib.util import find_spec

    from hypatia_lab.book import build as pages

    try:
        executed = execute(notebook, notebook.parent, {}, "chapter")
    except KeyboardInterrupt:
        interrupted()
    if not executed:
        click.echo(f"the chapter is in {notebook}; what was measured is kept", err=True)
        sys.exit(1)
    if find_spec("jupyter_book") is None:
        click.echo(f"{notebook}: the page needs jupyter-book (pip install 'hypatia-lab[book]')", err=True)
        return
    click.echo(f"\n{pages.build(repository=folder, output=folder / '_build' / 'html')}")


main.add_command(simulate)
