"""Programs from outside: what others have published, run as it is, and its figures beside the lab's own.

A *program file* is a Python file of the reader's that says which files it rests on, and how they are run::

    upstream = Provenance.pinned(HERE / "example.pins", root=HERE / "upstream", licence="MIT")
    example = program("author_example", "one line: what it is", [upstream])

    @variant("linear_relu", "author_v1", origin="author")
    def author_v1(workload, inputs): ...

    @example.cells
    def cells(preset, device):
        return [Group(Workload("linear_relu", (1024, 784, 2048)), ("eager", "author_v1"), ("wall",), 0.5)]

    @example.command("kernel_only", Workload("linear_relu", (1024, 784, 2048)), variant="author_v1")
    def kernel_only(shell):
        "Their benchmark, 100 calls."
        out = shell.run([sys.executable, upstream.root / "benchmark.py"])
        yield shell.figure("fused", out.number(r"fused: ([0-9.]+) ms", "fused time"), unit="ms")

``cells`` are checked and timed like any experiment's; a ``command`` is the whole program, and its figures become
detail lines. Nothing runs unless every file is the one that was pinned.
"""

from __future__ import annotations

import hashlib
import re
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hypatia_lab import variants
from hypatia_lab.experiments import EXPERIMENTS, Experiment, Group, Probe, Source
from hypatia_lab.messages import unknown
from hypatia_lab.probes.probe import Emit, Ended, probe
from hypatia_lab.probes.program import Shell
from hypatia_lab.strangers import source_file
from hypatia_lab.workloads import Workload, operations

NAME = r"[a-z][a-z0-9_]{0,63}"
"""What a program, a command or a variant may be called."""
HASH = r"[0-9a-f]{40}"
REPOSITORY = r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+"
LIMIT_S, PROCESSES = 120.0, 3
"""How long a command may take, and in how many fresh processes it is run, unless it says otherwise."""
ORIGIN = "author"
"""Origin of every variant of a program file, and of its figures."""

Figures = Iterable[dict[str, Any]]


class ProgramError(ValueError):
    """A program file, or a file it rests on, that will not do: the message names the file and the cause."""


@dataclass(frozen=True)
class Provenance:
    """Where a program comes from: ``files`` (path → git blob id) of ``repository`` (owner/name) at ``commit``.

    They lie below ``root`` on this machine and stay under their authors' ``licence``. Raises :class:`ProgramError` for
    what is no repository, commit, blob id or path below ``root``.
    """

    repository: str
    commit: str
    licence: str
    root: Path
    files: Mapping[str, str]

    def __post_init__(self) -> None:
        if not re.fullmatch(REPOSITORY, self.repository) or not re.fullmatch(HASH, self.commit):
            raise ProgramError(f"{self.repository!r} {self.commit!r} is not owner/name and a commit of 40 hex digits")
        if not self.files or not self.licence.strip():
            raise ProgramError(f"{self.repository} needs at least one pinned file, and the name of its licence")
        for name, blob in self.files.items():
            if not re.fullmatch(HASH, blob) or Path(name).is_absolute() or ".." in Path(name).parts:
                raise ProgramError(f"{self.repository}: {blob!r} {name!r} is not a git blob id and a path below root")
        object.__setattr__(self, "root", Path(self.root).absolute())  # commands run in another folder

    @classmethod
    def pinned(cls, pins: Path, *, root: Path, licence: str) -> Provenance:
        """What the file ``pins`` says: first ``owner/name <commit>``, then a line ``<git blob id>  <path>`` each.

        Raises :class:`ProgramError` naming the file, and what of it says something else.
        """
        try:
            head, *lines = [line.split(None, 1) for line in Path(pins).read_text(encoding="utf-8").splitlines()]
            (repository, commit), files = head, {name.rstrip(): blob for blob, name in lines}
        except OSError as cause:
            raise ProgramError(f"{pins}: cannot be read ({cause.strerror})") from None
        except ValueError:  # not UTF-8, no line, or a line that is no pair
            said = "must hold owner/name and commit on its first line, then a git blob id and a path on each"
            raise ProgramError(f"{pins}: {said}") from None
        try:
            return cls(repository, commit.strip(), licence, root, files)
        except ProgramError as cause:
            raise ProgramError(f"{pins}: {cause}") from None

    def verify(self) -> None:
        """Raise :class:`ProgramError` naming the first file that is missing or not the one that was pinned."""
        for name, wanted in self.files.items():
            path = self.root / name
            try:
                content = path.read_bytes()
            except OSError as cause:
                place = f"{self.repository} at {self.commit[:12]}"
                raise ProgramError(f"{path}: cannot be read ({cause.strerror}); fetch it from {place}") from None
            found = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
            if found != wanted:
                raise ProgramError(f"{path}: is not the file that was pinned: its git blob id is {found}, not {wanted}")

    def record(self) -> dict[str, Any]:
        """What a record says of it: everything but where the files lie on this machine."""
        said = {"repository": self.repository, "commit": self.commit, "licence": self.licence}
        return said | {"files": dict(self.files)}


@dataclass(frozen=True)
class Command:
    """A command of a program: ``figures(shell)`` runs it and yields what it printed, ``processes`` times."""

    workload: Workload
    variant: str
    processes: int
    limit_s: float
    needs: Callable[[Workload, str], str]
    figures: Callable[[Shell], Figures]
    switches: Mapping[str, str]


@dataclass
class Program:
    """What a program file declares: sources, groups of cells, and commands by name. See :func:`program`."""

    name: str
    summary: str
    provenance: tuple[Provenance, ...]
    commands: dict[str, Command] = field(default_factory=dict)
    groups: Callable[[str, str], Sequence[Group]] | None = None
    looks: Callable[[str, str], Sequence[Probe]] | None = None

    def cells(self, plan: Callable[[str, str], Sequence[Group]]) -> Callable[[str, str], Sequence[Group]]:
        """Decorate ``plan(preset, device)``, which lists the groups to check and time. At most once a program."""
        if self.groups is not None:
            raise ProgramError(f"{self.name} declares its cells twice")
        self.groups = plan
        return plan

    def probes(self, plan: Callable[[str, str], Sequence[Probe]]) -> Callable[[str, str], Sequence[Probe]]:
        """Decorate ``plan(preset, device)``, which lists probes of its variants, such as traces. At most once."""
        if self.looks is not None:
            raise ProgramError(f"{self.name} declares its probes twice")
        self.looks = plan
        return plan

    def command(
        self,
        name: str,
        workload: Workload,
        *,
        variant: str,
        processes: int = PROCESSES,
        limit_s: float = LIMIT_S,
        needs: Callable[[Workload, str], str] = variants.anywhere,
        switches: Mapping[str, str] | None = None,
    ) -> Callable[[Callable[[Shell], Figures]], Callable[[Shell], Figures]]:
        """Declare the decorated function as command ``name``: given a :class:`Shell`, it yields ``shell.figure(...)``.

        ``workload`` and ``variant`` say what the figures are of: a registered variant, whose ``needs`` hold here too,
        or a name ``author_...`` for what the lab cannot run by itself. It runs in ``processes`` fresh processes, for at
        most ``limit_s`` seconds each, unless ``needs(workload, device)`` gives a reason why not. ``switches``
        are what it changes of a library's behaviour, names in the environment with values; records tell them.
        Raises :class:`ProgramError` for a name that is taken or none, a function without docstring, no workload, no
        process or no time.
        """

        def declare(figures: Callable[[Shell], Figures]) -> Callable[[Shell], Figures]:
            if not isinstance(name, str) or not re.fullmatch(NAME, name) or name in self.commands:
                raise ProgramError(f"command name {name!r} is taken, or not lower-case letters, digits and _")
            if not figures.__doc__ or not figures.__doc__.strip():
                raise ProgramError(f"command {name} needs a docstring: its first line describes it")
            if not isinstance(workload, Workload):
                raise ProgramError(f"command {name} needs a hypatia_lab.Workload, not {workload!r}")
            if type(processes) is not int or processes < 1 or not limit_s > 0:
                raise ProgramError(f"command {name} needs at least one process and a time limit above 0")
            self.commands[name] = Command(workload, variant, processes, limit_s, needs, figures, dict(switches or {}))
            return figures

        return declare


_DECLARED: list[Program] = []


def program(name: str, summary: str, provenance: Sequence[Provenance]) -> Program:
    """Declare program ``name``: one line on what it is, and where it comes from, which is verified at once.

    Raises :class:`ProgramError` for a name that is taken or none, no provenance, and what :meth:`Provenance.verify`
    finds.
    """
    taken = {*EXPERIMENTS, *(one.name for one in _DECLARED)}
    if not isinstance(name, str) or not re.fullmatch(NAME, name) or name in taken:
        raise ProgramError(f"program name {name!r} is taken, or not lower-case letters, digits and _")
    if not provenance:
        raise ProgramError(f"program {name} needs to say where it comes from: at least one Provenance")
    for one in provenance:
        one.verify()
    _DECLARED.append(Program(name, summary, tuple(provenance)))
    return _DECLARED[-1]


# ---------------------------------------------------------------- from a file


def load(path: Path, expected: str = "") -> Program:
    """Run the program file ``path`` and return what it declares; its variants are then registered.

    The file is the reader's own program and runs as such. ``expected`` is the digest that it must have.

    Raises :class:`ProgramError` naming file and line: a file that cannot be read or fails, that declares no program or
    several, one that has nothing to run, a variant that is not of origin author or of no operation, a command of a
    variant that there is not; a file that the program rests on that is missing or differs.
    """
    path = path.resolve()
    if expected and source_file.digest(path, ProgramError) != expected:
        raise ProgramError(f"{path}: was changed while it was being measured; run it again")
    known = {(operation, name) for operation in variants.registered() for name in variants.variants(operation)}
    before = len(_DECLARED)
    source_file.run(path, ProgramError)
    names = [one.name for one in _DECLARED[before:]]
    if len(names) != 1:
        said = f"declares {' and '.join(names)}; one file, one program" if names else "declares no program"
        raise ProgramError(f"{path}: {said}; say name = hypatia_lab.program(...) once")
    one = _DECLARED[before]
    if one.groups is None and not one.commands:
        raise ProgramError(f"{path}: {one.name} has nothing to run; decorate a function with @{one.name}.command(...)")
    for operation in variants.registered():
        for name, added in variants.variants(operation).items():
            if (operation, name) in known:
                continue
            if operation not in operations():
                raise ProgramError(f"{path}: variant {name} is of {unknown('operation', operation, operations())}")
            if added.origin != ORIGIN:
                raise ProgramError(f"{path}: variant {name} has origin {added.origin!r}, not {ORIGIN!r}")
    for name, command in one.commands.items():
        there = variants.variants(command.workload.operation)
        if command.variant not in there and not re.fullmatch(f"{ORIGIN}_[a-z0-9_]{{1,57}}", command.variant):
            raise ProgramError(f"{path}: command {name} is of {unknown('variant', command.variant, there)}")
    return one


def experiment(path: Path, found: Program) -> Experiment:
    """The experiment that measures program ``found``, of the file ``path``.

    Its plan raises :class:`ProgramError` for cells that are no groups.
    """
    path = path.resolve()

    def plan(preset: str, device: str, shapes: Any = ()) -> list[Group]:
        if found.groups is None:
            return []
        with source_file.telling(ProgramError, str(path), path):
            groups = list(found.groups(preset, device))
        for group in groups:
            if not isinstance(group, Group):
                raise ProgramError(f"{path}: the cells of {found.name} must be a list of hypatia_lab.Group")
        return groups

    def probes(preset: str, device: str, shapes: Any = ()) -> list[Probe]:
        looks = list(found.looks(preset, device)) if found.looks else []
        return looks + [
            Probe("program", command.workload, command.variant, name, command.processes)
            for name, command in found.commands.items()
        ]

    rests_on = tuple(one.record() for one in found.provenance)
    source = Source(str(path), source_file.digest(path, ProgramError), "program", rests_on)
    return Experiment(found.name, "", found.summary, "", plan, probes, source)


# ---------------------------------------------------------------- in a fresh process


@cache
def _loaded(path: str, digest: str) -> Program | str:
    """The program of the file, or why it cannot be loaded: a second try would find its variants registered."""
    try:
        return load(Path(path), digest)
    except ProgramError as cause:
        return str(cause)


@dataclass(frozen=True)
class _Job:
    """One run of a command, of the file at ``path``."""

    path: Path
    program: Program
    command: Command
    plan: dict[str, Any]

    @property
    def workload(self) -> Workload:
        return self.command.workload


def _job(plan: dict[str, Any]) -> _Job:
    """The run that ``plan`` asks for. Raises :class:`Ended` for one that cannot be here."""
    source = plan["source"]
    found = _loaded(source["path"], source["digest"])
    if isinstance(found, str):
        raise Ended("wrong", found)
    command = found.commands[plan["case"]]
    known = variants.variants(command.workload.operation).get(command.variant)
    needs = [command.needs, *([known.needs] if known else [])]
    for missing in filter(None, (need(command.workload, plan["device"]) for need in needs)):
        raise Ended("skipped", missing)
    return _Job(Path(source["path"]), found, command, plan)


def _look(job: _Job, emit: Emit) -> None:
    """Run the command and emit its figures as they come. Raises :class:`Ended` when it fails."""
    command, plan, seen = job.command, job.plan, set()
    roots = (str(one.root.resolve()) for one in job.program.provenance)
    shell = Shell(
        command.workload,
        command.variant,
        plan["device"],
        plan["number"],
        Path(plan["folder"]),
        time.monotonic() + command.limit_s,
        (*roots, str(Path.cwd())),
        emit,
        command.switches,
    )
    try:
        for figure in command.figures(shell):
            if (what := str({**figure, "value": None})) in seen:
                raise ValueError(f"yields {figure['name']!r} twice")
            seen.add(what)
            emit("detail", **figure)
    except Ended:
        raise
    except Exception as cause:
        traceback.print_exc()
        raise Ended("crashed", f"{job.path.name}{source_file.said(cause, job.path)}") from None
    finally:
        shell.close()
    if not seen:
        raise Ended("wrong", f"{job.path.name}: command {plan['case']} yields no figure")


def main() -> None:
    """Entry of the process of the probe ``program``."""
    probe(_look, _job)


if __name__ == "__main__":
    # This module under its own name: the program file registers with that one.
    from hypatia_lab.strangers.programs import main as commands

    commands()
