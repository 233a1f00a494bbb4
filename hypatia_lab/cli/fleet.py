"""``hypatia-lab fleet``: measure many GPUs, one job a GPU, see how far they are, and bring their records home."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from hypatia_lab import paths, records
from hypatia_lab.cli import options
from hypatia_lab.cli.execution import RUN, choose, require, resumable
from hypatia_lab.cli.terminal import several, show, table, wrap
from hypatia_lab.fleet import collect as collecting
from hypatia_lab.fleet import overview, submit
from hypatia_lab.fleet.job import Work
from hypatia_lab.fleet.layout import Asked, Layout
from hypatia_lab.fleet.overview import Line

folder_option = click.option(
    "--folder",
    type=options.FOLDER,
    default=paths.BUILD / "fleet",
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
@click.option("--preset", default="quick", show_default=True, help="quick, seed or full, as for hypatia-lab run.")
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
    require("a fleet", "fleet", "submitit")
    require("a notebook", "run", *RUN)
    if bool(parameters) == box:
        raise click.UsageError("name --box, or --slurm with parameters such as partition=gpu")
    if one_after_the_other and not box:
        raise click.UsageError("--one-after-the-other is for --box; Slurm decides itself how many run at a time")
    if device not in ("cpu", "cuda"):
        raise click.UsageError(f"--device of a fleet is cuda or cpu, not {device!r}")
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
        works = submit.works(layout, asked, numbers, "box" if box else "slurm", visible)
        if box:
            _wait(layout, works, not one_after_the_other)
        elif works:
            names = submit.slurm(layout, works, given)
            click.echo(
                f"submitted {several(len(names), 'job')}: {' to '.join(dict.fromkeys([names[0], names[-1]]))}", err=True
            )
    _tell(layout.folder)
    place = "" if layout.folder == (paths.BUILD / "fleet").resolve() else f" --folder {layout.folder}"
    click.echo(f"next: hypatia-lab fleet status{place}; hypatia-lab fleet collect{place}", err=True)


@resumable()
def _wait(layout: Layout, works: Sequence[Work], together: bool) -> None:
    def say(line: Line) -> None:
        at = f"{line.step} {line.notebook}" if line.notebook else ""
        click.echo(" ".join(filter(None, (f"job {line.number}", line.machine, line.state, at, line.reason))), err=True)

    submit.box(layout, works, together, say)
    if bad := [str(line.number) for line in overview.lines(layout) if line.state not in ("done", "twice")]:
        _tell(layout.folder)
        raise click.ClickException(f"job {', '.join(bad)} did not finish; the same command again goes on")


@fleet.command()
@folder_option
@options.as_json
def status(folder: Path, as_json: bool) -> None:
    """Show how each job of a fleet is doing: its chip, its state, the notebook it is at, and what failed."""
    _tell(folder.resolve(), as_json)


def _tell(folder: Path, as_json: bool = False) -> None:
    layout = Layout(folder)
    asked, lines = overview.wanted(layout), overview.lines(layout)
    pages = " ".join(asked.notebooks) or "all notebooks"
    said = f"{several(len(lines), 'job')}: {_counted(overview.STATES, [line.state for line in lines]) or 'none'}."
    out = [*wrap(said), *wrap(f"{pages}, preset {asked.preset}, {folder}", 2), "", *_job_lines(lines)]
    show(out, lambda: [asdict(line) for line in lines], as_json=as_json)


def _counted(known: Sequence[str], found: Sequence[str]) -> str:
    """How many of ``found`` are which of the ``known`` words, in the order of those."""
    return ", ".join(f"{found.count(word)} {word}" for word in known if word in found)


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
    type=options.FOLDER,
    help="Folder of records to copy to.  [default: book/records; without a checkout _build/records]",
)
@options.as_json
def collect(folder: Path, into: Path | None, as_json: bool) -> None:
    """Copy the machine folders that are finished to book/records, and say what was taken, what was left and why.

    Every record is read and checked first. A chip that is there under another name is not taken again. A record that
    is there already stays, unless the new one holds all that it holds.
    """
    target = (into or (records.COMMITTED if paths.CHECKOUT else paths.BUILD / "records")).resolve()
    items = collecting.collect(Layout(folder.resolve()), target)
    counts = _counted(collecting.OUTCOMES, [item.outcome for item in items]) or "nothing measured yet"
    lines = [*wrap(f"Into {target}: {counts}."), *[""] * bool(items)]
    for item in items:
        lines += wrap(f"{item.outcome}: {item.what}" + (f" ({item.reason})" if item.reason else ""), 4, 2)
    show(lines, lambda: [asdict(item) for item in items], as_json=as_json)
