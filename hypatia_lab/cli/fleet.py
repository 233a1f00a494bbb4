"""``hypatia-lab fleet``: measure many GPUs, one job a GPU, see how far they are, and bring their records home."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hypatia_lab import places
from hypatia_lab.cli.execution import RUN, choose, interrupted
from hypatia_lab.cli.reading import as_json_option, print_json
from hypatia_lab.cli.terminal import show, table, wrap

if TYPE_CHECKING:
    from hypatia_lab.fleet.collect import Item
    from hypatia_lab.fleet.job import Work
    from hypatia_lab.fleet.layout import Layout
    from hypatia_lab.fleet.overview import Line

folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=places.BUILD / "fleet",
    help="The fleet's folder, which every job must reach.  [default: _build/fleet]",
)


@click.group()
def fleet() -> None:
    """Measure many GPUs, one job a GPU: on Slurm, or on all GPUs of this machine."""


@fleet.command()
@click.argument("notebooks", nargs=-1)
@click.option(
    "--slurm",
    "parameters",
    multiple=True,
    metavar="NAME=VALUE,...",
    help="Submit to Slurm with these parameters of sbatch, such as partition=gpu,account=x,time=120 (minutes).",
)
@click.option("--box", is_flag=True, help="Measure the GPUs of this machine, and wait for them.")
@click.option("--one-after-the-other", is_flag=True, help="With --box: one GPU at a time, not all side by side.")
@click.option(
    "--gpus", type=click.IntRange(1, 10000), help="How many jobs.  [default: 1; with --box all GPUs of this machine]"
)
@click.option("--preset", default="quick", show_default=True, help="quick, seed or full, as of hypatia-lab run.")
@click.option("--device", default="cuda", show_default=True, help="cuda, or cpu where there is no GPU.")
@click.option("--overwrite", is_flag=True, help="Measure again what this fleet has measured.")
@folder_option
def run(
    notebooks: tuple[str, ...],
    parameters: tuple[str, ...],
    box: bool,
    one_after_the_other: bool,
    gpus: int | None,
    preset: str,
    device: str,
    overwrite: bool,
    folder: Path,
) -> None:
    """Measure NOTEBOOKS (all of them by default) on every GPU that a job gets.

    Each job measures one GPU by hypatia-lab run, into a folder named by the GPU's model and chip. A job that gets a
    chip which another job has says so and ends. The same command again goes on: it starts what failed or was never
    started, and leaves alone what is done or at work.
    """
    if told := places.lacking("a fleet", "fleet", "submitit") or places.lacking("a notebook", "run", *RUN):
        raise click.UsageError(told)
    if bool(parameters) == box:
        raise click.UsageError("name --box, or --slurm with parameters such as partition=gpu")
    if one_after_the_other and not box:
        raise click.UsageError("--one-after-the-other is for --box; Slurm decides itself how many run at a time")
    if device not in ("cpu", "cuda"):
        raise click.UsageError(f"--device of a fleet is cuda or cpu, not {device!r}")
    from hypatia_lab import records
    from hypatia_lab.fleet import submit
    from hypatia_lab.fleet.layout import Asked, Layout
    from hypatia_lab.pages.evidence import Parameters

    Parameters("measure", preset, device)
    stems = tuple(path.stem for path in choose(notebooks)) if notebooks else ()
    layout = Layout(folder.resolve())
    asked = Asked(stems, preset, device, overwrite)
    given = submit.slurm_parameters(parameters, device) if parameters else {}
    visible = submit.visible() if box and device == "cuda" else []
    if box and device == "cuda" and (gpus or 1) > len(visible):
        raise click.UsageError(f"this machine shows {len(visible)} GPUs, not {gpus or 1}; hypatia-lab doctor says more")
    records.ensure_writable(layout.folder)
    with records.held(layout.folder):
        asked, numbers = submit.ask(layout, asked, gpus or len(visible) or None)
        if not numbers and not box:
            click.echo("nothing to start: every job is done, at work or in the queue", err=True)
        where = "box" if box else "slurm"
        works = submit.works(layout, asked, numbers, where, visible)
        if box:
            _wait(layout, works, not one_after_the_other)
        elif works:
            names = submit.slurm(layout, works, given)
            click.echo(f"submitted {_jobs(len(names))}: {' to '.join(dict.fromkeys([names[0], names[-1]]))}", err=True)
    _tell(layout.folder)
    _next(layout.folder)


def _wait(layout: Layout, works: Sequence[Work], together: bool) -> None:
    from hypatia_lab.fleet import overview, submit

    def say(line: Line) -> None:
        at = f"{line.step} {line.notebook}" if line.notebook else ""
        click.echo(
            " ".join(filter(None, (f"job {line.number}", line.machine, line.state, at, line.reason))),
            err=True,
        )

    try:
        submit.box(layout, works, together, say)
    except KeyboardInterrupt:
        interrupted()
    if bad := [str(line.number) for line in overview.lines(layout) if line.state not in ("done", "twice")]:
        _tell(layout.folder)
        click.echo(f"hypatia-lab: job {', '.join(bad)} did not finish; the same command again goes on", err=True)
        sys.exit(1)


def _next(folder: Path) -> None:
    place = "" if folder == (places.BUILD / "fleet").resolve() else f" --folder {folder}"
    click.echo(f"next: hypatia-lab fleet status{place}; hypatia-lab fleet collect{place}", err=True)


@fleet.command()
@folder_option
@as_json_option
def status(folder: Path, as_json: bool) -> None:
    """Tell how each job of a fleet stands: its chip, its state, the notebook it is at, and what failed."""
    _tell(folder.resolve(), as_json)


def _tell(folder: Path, as_json: bool = False) -> None:
    from hypatia_lab.fleet import overview
    from hypatia_lab.fleet.layout import Layout

    layout = Layout(folder)
    asked, lines = overview.wanted(layout), overview.lines(layout)
    if as_json:
        print_json([asdict(line) for line in lines])
        return
    counts = Counter(line.state for line in lines)
    said = ", ".join(f"{counts[state]} {state}" for state in overview.STATES if counts[state])
    pages = " ".join(asked.notebooks) or "all notebooks"
    out = [*wrap(f"{_jobs(len(lines))}: {said or 'none'}."), *wrap(f"{pages}, preset {asked.preset}, {folder}", 2), ""]
    show([*out, *_job_lines(lines)])


def _jobs(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"


def _job_lines(lines: Sequence[Line]) -> list[str]:
    if not lines:
        return []
    rows = [
        {
            "job": str(line.number),
            "chip": line.machine or "–",
            "state": line.state,
            "at": line.step,
            "notebook": line.notebook,
            "what failed, or why": line.reason,
        }
        for line in lines
    ]
    logs = [line for line in lines if line.state == "failed" and line.log]
    more = [text for line in logs for text in ["", *wrap(f"job {line.number} printed: {line.log}", 2)]]
    return [*table(rows, "what failed, or why", ("notebook", "at"), least=30), *more]


@fleet.command()
@folder_option
@click.option(
    "--into",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of records to copy to.  [default: book/records; without a checkout _build/records]",
)
@as_json_option
def collect(folder: Path, into: Path | None, as_json: bool) -> None:
    """Copy the machine folders that are finished to book/records, and say what was taken, what was left and why.

    Every record is read and checked first. A chip that is there under another name is not taken again. A record that
    is there already stays, unless the new one holds all that it holds.
    """
    from hypatia_lab import records
    from hypatia_lab.fleet.collect import OUTCOMES
    from hypatia_lab.fleet.collect import collect as take
    from hypatia_lab.fleet.layout import Layout

    target = (into or (records.COMMITTED if places.CHECKOUT else places.BUILD / "records")).resolve()
    items = take(Layout(folder.resolve()), target)
    if as_json:
        print_json([asdict(item) for item in items])
        return
    counts = Counter(item.outcome for item in items)
    said = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
    show([*wrap(f"Into {target}: {said or 'nothing measured yet'}."), *([""] if items else []), *_item_lines(items)])


def _item_lines(items: Sequence[Item]) -> list[str]:
    return [text for item in items for text in wrap(_item_text(item), 4, 2)]


def _item_text(item: Item) -> str:
    return f"{item.outcome}: {item.what}" + (f" ({item.reason})" if item.reason else "")
