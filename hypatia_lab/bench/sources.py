"""Which sources of the lab's a variant runs: the module that makes it, what this imports, and the kernels they name."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from hypatia_lab import variants, workloads
from hypatia_lab.bench import source_tree
from hypatia_lab.experiments import Group
from hypatia_lab.kernels import loader
from hypatia_lab.variants import Variant

PACKAGE = source_tree.ROOT / "hypatia_lab"
COMPUTING = ("kernels", "operations", "diffraction", "egraph", "training", "tracing", "races", "dispatch", "runs", "nn")
"""Parts of the package that compute; what plans, checks and times them has a version."""


def of(groups: Sequence[Group], source: str = "") -> dict[tuple[str, str], dict[str, str]]:
    """(operation, variant) → what its cells say of its sources, for all of ``groups``.

    ``source`` is the digest of the reader's file that is measured: what no module of the lab's makes is made there.
    Without one its cells say nothing.
    """
    found = {}
    for operation, name in {(group.workload.operation, name) for group in groups for name in group.variants}:
        told = digest(variants.find(operation, name)) or source
        found[operation, name] = {"sources": told} if told else {}
    return found


def digest(one: Variant, package: Path = PACKAGE) -> str:
    """12 hex digits for the text of what ``one`` runs, as ``package`` has it; empty where it is not the lab's.

    Of a library's variant that is the module that calls it, and its operation's: what these import is of other
    variants. One on the host is C of the lab's. What is dispatched may be any of its operation's.
    """
    likely = variants.variants(one.operation).values() if "dispatched" in one.tags else ()
    modules = {
        workloads.operations()[one.operation].reference.__module__,
        one.module,
        *(other.module for other in likely),
    }
    if not all(map(_computes, modules)):
        return ""
    paths = {path for module in modules for path in _file(module, package)}
    if one.origin != "peer" or one.host:
        paths = _reached(paths, package)
    text = hashlib.sha256()
    for path in sorted(paths):
        text.update(f"{path.relative_to(package)}\0{path.read_text(encoding='utf-8')}\0".encode())
    return text.hexdigest()[:12]


def _computes(module: str) -> bool:
    home, _, rest = module.partition(".")
    return home == "hypatia_lab" and rest.partition(".")[0] in COMPUTING


def _file(module: str, package: Path) -> list[Path]:
    """The file of ``module``; none where it is a name within one."""
    path = package.joinpath(*module.split(".")[1:])
    return [one for one in (path.with_suffix(".py"), path / "__init__.py") if one.is_file()]


def _reached(paths: Iterable[Path], package: Path) -> set[Path]:
    """``paths``, and all that they lead to."""
    kernels = [path for kind in ("*.cu", "*.cpp") for path in (package / "kernels").rglob(kind)]
    called = {path: path.relative_to(package / "kernels").with_suffix("").as_posix() for path in kernels}
    found: set[Path] = set()
    due = [*paths]
    while due:
        path = due.pop()
        if path in found:
            continue
        found.add(path)
        if path.suffix == ".py":
            modules, whole, begun = _named(path.read_text(encoding="utf-8"))
            due += (file for module in modules for file in _file(module, package))
            due += (file for file, name in called.items() if name in whole or name.startswith(begun))
        else:
            due += loader.included(path, package / "kernels")
    return found


@lru_cache(maxsize=256)  # by its text: a file that is edited while the lab runs is read anew
def _named(text: str) -> tuple[set[str], set[str], tuple[str, ...]]:
    """The computing modules that a module imports anywhere, all texts in it, and with which folder and name those with
    gaps begin, such as ``ladder/step_``: kernels are called by their file's name."""
    nodes = [*ast.walk(ast.parse(text))]
    modules, whole, begun = set[str](), set[str](), set[str]()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            whole.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            begun |= {str(first.value) for first in node.values[:1] if isinstance(first, ast.Constant)}
    begun = {name for name in begun if "/" in name}
    return {*filter(_computes, modules)}, whole, tuple(begun)
