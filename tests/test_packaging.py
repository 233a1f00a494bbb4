"""One set of versions: pyproject's ranges, the exact versions that were tried, and the conda environment agree."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, entry_points, requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _pins(lines: list[str]) -> dict[str, str]:
    found = [re.fullmatch(r"([\w.-]+)==([\w.!+]+)", line.strip()) for line in lines]
    return {canonicalize_name(match[1]): match[2] for match in found if match}


_LINES = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
CONSTRAINTS = _pins(_LINES)


def _direct() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"]
    named = [text for extra in ("run", "egraph", "book", "fleet", "test") for text in extras[extra]]
    found = [Requirement(text) for text in (*PROJECT["dependencies"], *named)]
    return [one for one in found if one.name != PROJECT["name"]]  # an extra may ask for another


def test_environment_yml_has_the_versions_of_constraints() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    (packages,) = [entry["pip"] for entry in environment if isinstance(entry, dict)]
    pins = _pins(packages)
    assert len(pins) == len(packages)
    assert len(CONSTRAINTS) == len([line for line in _LINES if line.strip() and not line.startswith("#")])
    assert pins.items() <= CONSTRAINTS.items()
    assert set(pins) == {canonicalize_name(requirement.name) for requirement in _direct()}
    (python,) = [entry for entry in environment if str(entry).startswith("python=")]
    assert SpecifierSet(PROJECT["requires-python"]).contains(python.removeprefix("python="))


def test_every_constraint_lies_in_its_range() -> None:
    pinned = [(one, CONSTRAINTS[canonicalize_name(one.name)]) for one in _direct()]
    assert [(one, version) for one, version in pinned if not one.specifier.contains(version)] == []


def _needed(*names: str) -> set[str]:
    """Packages and all that they need with Python 3.12, of which the page on boxes without a registry speaks."""
    box = {"python_version": "3.12", "python_full_version": "3.12.0", "extra": ""}
    found, todo = set[str](), list(names)
    while todo:
        if (name := canonicalize_name(todo.pop())) not in found:
            found.add(name)
            with suppress(PackageNotFoundError):  # not installed with this version of Python
                wanted = [Requirement(text) for text in requires(name) or []]
                todo += [one.name for one in wanted if one.marker is None or one.marker.evaluate(box)]
    return found


def test_what_a_box_without_a_registry_is_brought_is_pinned_and_egglog_comes_with_all_it_needs() -> None:
    page = (ROOT / "book" / "rerun.md").read_text(encoding="utf-8")
    (fetched,) = re.findall(r"-c constraints.txt \\\n +(.*)\n", page)
    (listed,) = re.findall(r"```text\n(egglog .*?)```", page, re.DOTALL)
    assert "egglog" in fetched.split()
    own = _needed("egglog") - _needed(*(name for name in fetched.split() if name != "egglog"))
    assert {canonicalize_name(name) for name in listed.split()} == own
    assert own | {canonicalize_name(name) for name in fetched.split()} <= set(CONSTRAINTS)


def test_the_renderer_and_the_command_are_registered() -> None:
    (renderer,) = [e for e in entry_points(group="myst_nb.mime_renderers") if e.name == "hypatia_lab_plotly"]
    assert renderer.load().__name__ == "PlotlyRenderer"
    (command,) = [e for e in entry_points(group="console_scripts") if e.name == "hypatia-lab"]
    assert command.value == "hypatia_lab.cli.commands:main"


EXTRAS = ["papermill", "nbclient", "nbformat", "ipykernel", "IPython", "plotly", "pygments", "egglog", "sphinx"]
EXTRAS += ["jupyter_book"]
"""What the core of the package does without."""


Bare = Callable[..., subprocess.CompletedProcess[str]]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout."""
    home = tmp_path_factory.mktemp("wheel")
    built = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(home), str(ROOT)]
    subprocess.run([*PIP, *built], check=True, capture_output=True)
    return next(home.glob("*.whl"))


def _files(*asked: str) -> dict[str, int]:
    """What git lists of the checkout, and its size."""
    listed = subprocess.run(["git", "ls-files", *asked], cwd=ROOT, capture_output=True, text=True, check=True)
    found = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    return {name: (ROOT / name).stat().st_size for name in found}


def test_a_wheel_holds_every_file_of_the_package_and_of_the_book(wheel: Path) -> None:
    files = _files("hypatia_lab", "book", "notebooks", "_config.yml", "_toc.yml")
    wanted = {name if name.startswith("hypatia_lab/") else f"hypatia_lab/share/{name}" for name in files}
    assert len(wanted) > 100
    assert wanted <= set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="session")
def bare(wheel: Path) -> Bare:
    """Calls the command of an installed wheel, in an empty folder and where no extra is installed."""
    home = wheel.parent
    site, empty = home / "site", home / "empty"
    empty.mkdir()
    subprocess.run([*PIP, "install", "-q", "--no-deps", "--target", str(site), str(wheel)], check=True)
    hide = f"import sys\nsys.modules |= dict.fromkeys({EXTRAS!r})\n"
    (site / "sitecustomize.py").write_text(hide, encoding="utf-8")

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "hypatia_lab", *arguments]
        environment = os.environ | {"PYTHONPATH": str(site), "XDG_CACHE_HOME": str(home / "cache")}
        return subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True)

    return call


def test_a_wheel_knows_the_records_and_the_claims(bare: Bare) -> None:
    done = bare("claims", "--json", "--machine", "h200", "S001-01")
    assert (done.returncode, done.stderr) == (0, "")
    assert {claim["machine"] for claim in json.loads(done.stdout)} == {"h200"}
    assert {part["verdict"] for claim in json.loads(done.stdout) for part in claim["parts"]} != {"not_testable"}


@pytest.mark.parametrize(("command", "extra"), [("run 02", "[run]"), ("book", "[book]")])
def test_a_wheel_says_which_extra_a_command_needs(command: str, extra: str, bare: Bare) -> None:
    done = bare(*command.split())
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert f"pip install 'hypatia-lab{extra}'" in done.stderr


@pytest.mark.slow
def test_a_wheel_judges_a_kernel_without_notebooks(bare: Bare) -> None:
    assert bare("new", "mine.py").returncode == 0
    done = bare("judge", "mine.py", "--device", "cpu", "--shapes", "64x64")
    assert done.returncode == 0, done.stderr
    assert "hypatia-lab[run]" in done.stderr.splitlines()[-1]
    assert bare("results", "--records", "mine_book").returncode == 0


def test_no_file_is_over_two_megabytes() -> None:
    sizes = _files("--cached", "--others", "--exclude-standard")
    assert sizes
    assert {name: size for name, size in sizes.items() if size > 2_000_000} == {}
