"""The command that measures this machine: run."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hypatia_lab import claims as ledger
from hypatia_lab import paths, records, results
from hypatia_lab.book.build import fault
from hypatia_lab.cli import execution, options
from hypatia_lab.cli.claims import figures
from hypatia_lab.cli.terminal import show, wrap
from hypatia_lab.fleet.progress_line import Step
from hypatia_lab.messages import unknown
from hypatia_lab.tables import claims as claim_tables


@click.command()
@click.argument("notebooks", nargs=-1)
@click.option(
    "--preset",
    default="quick",
    show_default=True,
    help="quick (small sizes), seed (the documents' sizes) or full (the same and sweeps).",
)
@options.device
@click.option(
    "--machine", default="", help="Name for this machine in records and figures.  [default: from its device's name]"
)
@click.option(
    "--shapes",
    default="",
    help="Sizes to measure instead of the preset's, such as 1024x784x2048,64x64x64 (batch x in x out); an experiment "
    "takes those that have its number of extents.",
)
@click.option(
    "--variants",
    default="",
    help="Measure these alone, such as step_shared,step_mma, beside their baseline; no notebook is executed then.",
)
@click.option("--records", default="", help="Folder for this machine's records.  [default: book/records]")
@click.option("--output", default="", help="Folder for the executed notebooks.  [default: _build/notebooks]")
@click.option("--overwrite", is_flag=True, help="Measure again what is recorded already.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0),
    help="Begin no notebook that would end much later: what decides most claims comes first, what is executed already "
    "is left as it is, and the next such run goes on.",
)
@options.several(
    "--program", "programs", options.FILE, "Program file to measure first, and alone where no notebook is named"
)
@execution.resumable()
def run(
    notebooks: tuple[str, ...],
    variants: str,
    output: str,
    programs: tuple[Path, ...],
    minutes: float | None,
    **asked: Any,
) -> None:
    """Measure this machine: run NOTEBOOKS, or all of them, in measure mode.

    A notebook is named by its number or name: 02, 02_naive_vs_cublas. An interrupted run goes on where it
    stopped when it is started again; finished records are kept. A notebook that fails does not stop the
    others; the exit status is then 1. So it is when a program, or a part of one, fails. A program file
    (see the page on programs from outside) is a program of yours and runs as such.
    """
    from hypatia_lab.pages.evidence import Parameters

    chosen = execution.choose(notebooks) if notebooks or not programs else []
    if chosen:
        execution.require("a notebook", "run", *execution.RUN)
    asked["records"] = asked["records"] or ("" if paths.CHECKOUT else str(paths.BUILD / "records"))
    if asked["shapes"] and not chosen:
        raise click.UsageError("--shapes is for notebooks; a program file says its own")
    parameters = Parameters("measure", **asked)
    from hypatia_lab.bench import composer
    from hypatia_lab.machine import choose_device, default_name

    root, preset, device = parameters.root, parameters.preset, choose_device(parameters.device)
    specs = _programs(programs, preset, device)
    shapes, names = parameters.parsed_shapes(), [name.strip() for name in variants.split(",") if name.strip()]
    _plan(chosen, shapes, preset, device)
    if names:
        specs += _only(names, chosen, shapes, preset, device)
        chosen = []
    records.ensure_writable(root)
    machine, told = parameters.machine or default_name(device), parameters.records
    given = asdict(parameters) | {"device": device, "machine": machine, "records": str(root) if told else ""}
    folder = Path(output).resolve() if output else paths.BUILD / "notebooks"
    # Pages that only read what the others measured come last.
    measuring = {experiment.notebook for experiment in composer.EXPERIMENTS.values()}
    chosen.sort(key=lambda path: (path.stem not in measuring, path.stem))
    if minutes is not None:
        chosen = _quick_first(
            [path for path in chosen if path.stem not in measuring or fault(folder / path.name)], given
        )
    click.echo(f"measuring {machine} ({device}) with preset {preset}; records: {told or 'book/records'}", err=True)
    if not sys.stderr.isatty():  # a line a notebook will do, in a log
        os.environ.setdefault("TQDM_DISABLE", "1")
    campaign = composer.campaign(root / machine)
    if parameters.overwrite and (done := campaign.begin()):
        click.echo(f"going on with what was interrupted; measured already: {', '.join(done)}", err=True)
    failed = [spec.name for spec in specs if not _measure(spec, given, root, shapes)]
    begun, left = time.monotonic(), []
    for number, path in enumerate(chosen, 1):
        spent = time.monotonic() - begun
        # A notebook takes as long as those before it did, as far as anybody knows.
        if minutes is not None and path.stem in measuring and spent * number / max(1, number - 1) > 60 * minutes:
            left.append(path.stem)
            continue
        if not execution.execute(path, folder, given, str(Step(number, len(chosen), path.stem))):
            failed.append(path.stem)
    if parameters.overwrite and not failed:
        campaign.end()
    if names and not failed:
        filters = "".join(f" --variant {name}" for name in names) + (f" --records {told}" if told else "")
        show(["next:", f"  hypatia-lab results --machine {machine}{filters}"])
    if found := _found(chosen, root, machine, folder, told):
        show(found)
    if left:
        click.echo(f"left for the next run, for lack of time: {', '.join(left)}", err=True)
    if failed:
        click.echo(f"failed: {', '.join(failed)}; their outputs are in {folder if chosen else root}", err=True)
        sys.exit(1)
    click.echo(f"done; executed notebooks are in {folder}" if chosen else f"done: {root}", err=True)


def _quick_first(notebooks: list[Path], given: dict[str, Any]) -> list[Path]:
    """``notebooks`` by how many claims each shows for what it measures, those that only read last."""
    from hypatia_lab.bench import composer

    shown = Counter(page for claim in {claim.lead: claim for claim in ledger.ledger()}.values() for page in claim.pages)
    cells: Counter[str] = Counter()
    for one in composer.EXPERIMENTS.values():
        groups = composer.plan(one, given["preset"], given["device"])
        cells[one.notebook] += sum(len(group.variants) * max(1, len(group.clocks)) for group in groups)
    return sorted(notebooks, key=lambda path: -shown[path.stem] / cells[path.stem] if cells[path.stem] else 1.0)


def _found(notebooks: list[Path], root: Path, machine: str, executed: Path, given: str) -> list[str]:
    """What became of the claims that ``notebooks`` show on ``machine``, and the commands that come next; empty where
    nothing is recorded.

    The lab's own findings have a line each, the documents' claims are counted. ``given`` is what was said of ``root``.
    """
    if not notebooks or machine not in {records.place(path)[0] for path in records.files(root)}:
        return []
    pages = {path.stem for path in notebooks}
    shown = {claim.lead for claim in ledger.ledger() if pages.intersection(claim.pages)}
    measured = results.measured(records.load(root, machines=[machine]))
    stated = ledger.statements(ledger.judge(measured, beside=results.measured(records.load())))
    rows = [row for row in stated if row.id in shown and row.machine == machine and row.verdict != "not_testable"]
    lines = []
    for row in rows:
        if row.document == ledger.LAB:
            lines += wrap(f"{claim_tables.word(row)}  {row.claim} ({row.id}: {figures(row)})", 2)
    words = [row.verdict for row in rows if row.document != ledger.LAB]
    if counts := [
        f"{words.count(word)} {claim_tables.verdict_text(word)}" for word in ledger.VERDICTS if word in words
    ]:
        lines += wrap(f"Claims of the documents: {', '.join(counts)}.", 2)
    more = [f"results --machine {machine}", f"claims --machine {machine}", f"book --notebooks {executed}"]
    option = f" --records {given}" if given else ""
    return [*lines, *([""] if lines else []), "next:", *(f"  hypatia-lab {command}{option}" for command in more)]


def _plan(notebooks: list[Path], shapes: list[tuple[int, ...]], preset: str, device: str) -> None:
    """Plan what ``notebooks`` measure: what is wrong with a size, a plan or a claim is said before anything runs."""
    from hypatia_lab.bench import composer
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
    ensure_named(ledger.ledger())


def _only(
    names: list[str], notebooks: list[Path], shapes: list[tuple[int, ...]], preset: str, device: str
) -> list[Any]:
    """The experiments of ``notebooks`` that have any of the variants ``names``, of these alone.

    Raises :class:`click.UsageError` for a name that none of them plans.
    """
    from hypatia_lab.bench import composer

    pages, planned, found = {path.stem for path in notebooks}, set[str](), []
    for one in composer.EXPERIMENTS.values():
        if one.notebook in pages:
            own, fitting = one.only(names), one.fitting(shapes)
            planned |= {name for group in composer.plan(one, preset, device, fitting) for name in group.variants}
            planned |= {probe.variant for probe in one.probes(preset, device, fitting)}
            if composer.plan(own, preset, device, fitting) or own.probes(preset, device, fitting):
                found.append(own)
    for name in names:
        if name not in planned:
            where = f"{', '.join(sorted(pages))} with preset {preset} on {device}"
            raise click.UsageError(unknown("variant", name, sorted(planned), where))
    return found


def _programs(paths: tuple[Path, ...], preset: str, device: str) -> list[Any]:
    """The experiments of program files, each planned once: what is wrong with one is said before anything runs."""
    from hypatia_lab.bench import composer
    from hypatia_lab.strangers import programs

    specs = [programs.experiment(path, programs.load(path)) for path in dict.fromkeys(map(Path.resolve, paths))]
    for spec in specs:
        composer.plan(spec, preset, device)
    return specs


def _measure(spec: Any, given: dict[str, Any], root: Path, shapes: list[tuple[int, ...]]) -> bool:
    """Measure an experiment without its page, and tell what programs printed; False when it, or a part of it, fails."""
    from hypatia_lab.bench import composer
    from hypatia_lab.intervals import estimate

    click.echo(f"{spec.name}: {spec.summary}", err=True)
    how = {name: given[name] for name in ("preset", "device", "overwrite")}
    try:
        found = composer.measure(spec, **how, machine_name=given["machine"], root=root, shapes=spec.fitting(shapes))
    except (ValueError, RuntimeError) as cause:
        if not execution.ours(cause):
            raise
        click.echo(f"{spec.name}: {cause}", err=True)
        return False
    for line in found.details:
        if values := [value for value in line["values"] if value is not None]:
            unit = line["unit"].removesuffix("1")
            what = f"{line['case']} at {'x'.join(map(str, line['shape']))}: {line['name']}"
            click.echo(f"{what}: {estimate(values).value:.5g} {unit} (n = {len(values)})")
    # Why, which status, of what: a line is told once, however many processes and shapes it was so in.
    told = dict.fromkeys(
        (line["reason"], line["status"], line.get("case") or line["variant"])
        for line in (*found.cells, *found.details)
        if line["status"] != "ok"
    )
    bad = [one for one in told if one[1] != "skipped"]
    for reason, own in results.grouped((one for one in told if one[1] == "skipped"), lambda one: one[0]).items():
        click.echo(f"{spec.name}: skipped {', '.join(name for *_, name in own)}: {reason}", err=True)
    for reason, status, name in bad:
        click.echo(f"{spec.name}: {name}: {status.replace('_', ' ')}: {reason}", err=True)
    return not bad
