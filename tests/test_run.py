"""``hypatia-lab run``: notebooks one after another, and nothing lost when one fails or all are stopped."""

from __future__ import annotations

import errno
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import psutil
import pytest
from command import call, files_below
from nbformat.v4 import new_code_cell, new_notebook
from test_cli import write_record

from hypatia_lab.bench import bytecode, composer
from hypatia_lab.cli import commands, execution, run
from hypatia_lab.fleet import progress_line


def notebook(*sources: str) -> str:
    """A notebook with a parameters cell and one code cell for each source."""
    names = ("mode", "preset", "device", "machine", "shapes", "records")
    parameters = "".join(f"{name} = ''\n" for name in names) + "overwrite = False"
    cells = [new_code_cell(parameters, metadata={"tags": ["parameters"]}), *map(new_code_cell, sources)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.writes(new_notebook(cells=cells, metadata={"kernelspec": kernel}))


@pytest.fixture
def notebooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of the lab's notebooks."""
    home = tmp_path / "pages"
    home.mkdir()
    monkeypatch.setattr(execution, "NOTEBOOKS", home)
    return home


def test_a_notebook_that_fails_or_dies_does_not_stop_the_others_and_the_exit_status_says_so(notebooks, tmp_path):
    (notebooks / "01_bad.ipynb").write_text(notebook("raise RuntimeError('no luck')"))
    (notebooks / "02_dies.ipynb").write_text(notebook("import os; os._exit(1)"))
    told = "import json; print(json.dumps([mode, preset, device, machine, shapes, records, overwrite]))"
    (notebooks / "03_good.ipynb").write_text(notebook(told))
    output = tmp_path / "out"
    arguments = ["--device", "cpu", "--machine", "box", "--shapes", "2x3x4", "--records", tmp_path / "r"]
    found = call("run", *arguments, "--output", str(output))
    assert found.code == 1
    assert "01_bad: RuntimeError: no luck" in found.err
    told = [step for line in found.err if (step := progress_line.read(line))]  # by which a fleet knows of its jobs
    assert told == [progress_line.Step(*step) for step in ((1, 3, "01_bad"), (2, 3, "02_dies"), (3, 3, "03_good"))]
    assert found.err[-1] == f"failed: 01_bad, 02_dies; their outputs are in {output}"
    cells = json.loads((output / "03_good.ipynb").read_text())["cells"]
    (printed,) = [out["text"] for c in cells if c["cell_type"] == "code" for out in c["outputs"] if "text" in out]
    assert json.loads("".join(printed)) == ["measure", "quick", "cpu", "box", "2x3x4", str(tmp_path / "r"), False]


@pytest.fixture
def papermill(notebooks, monkeypatch) -> Callable[..., list[str]]:
    """Replaces papermill: ``papermill(error)`` raises it for the first of two notebooks; returns what was started."""
    for name in ("01_one", "02_two"):
        (notebooks / f"{name}.ipynb").write_text(notebook())

    def use(*error: BaseException) -> list[str]:
        started: list[str] = []

        def execute(source: str, *_: Any, **__: Any) -> None:
            started.append(Path(source).stem)
            if error and len(started) == 1:
                raise error[0]

        monkeypatch.setattr("papermill.execute_notebook", execute)
        return started

    return use


def test_all_notebooks_are_run_in_order_by_default_and_the_named_ones_when_named(papermill, tmp_path):
    output = ["--device", "cpu", "--output", tmp_path / "out"]
    started = papermill()
    assert call("run", *output).code == 0
    assert call("run", "02", *output).code == 0
    assert call("run", "02_two.ipynb", "02", "01_one", *output).code == 0
    assert started == ["01_one", "02_two", "02_two", "01_one", "02_two"]


def test_variants_that_are_named_are_measured_alone_beside_their_baseline(notebooks, tmp_path, monkeypatch):
    (notebooks / "04_gemm_ladder.ipynb").write_text(notebook("raise RuntimeError('no page is made')"))
    asked: list[tuple[Any, dict[str, Any]]] = []

    def measured(spec: Any, **how: Any) -> Any:
        asked.append((spec, how))
        return SimpleNamespace(cells=[], details=[])

    monkeypatch.setattr(composer, "measure", measured)
    where = ["--device", "cpu", "--machine", "box", "--records", tmp_path / "r"]
    found = call("run", "04", "--variants", "blocked, threaded", "--shapes", "16x8x4", *where)
    assert found.code == 0, found.err
    ((spec, how),) = asked
    assert (spec.name, how["shapes"], how["machine_name"]) == ("gemm_ladder", [(16, 8, 4)], "box")
    (group,) = spec.groups("quick", "cpu", how["shapes"])
    assert group.variants == ("eager", "blocked", "threaded")
    assert f"--variant blocked --variant threaded --records {tmp_path / 'r'}" in "".join(found.out)
    found = call("run", "04", "--variants", "blokked", *where)
    assert (found.code, len(asked)) == (2, 1)
    assert re.search("'blokked' of 04_gemm_ladder .*did you mean 'blocked'", found.err[-1])


def test_an_experiment_of_some_variants_keeps_their_probes_and_leaves_out_groups_of_others():
    spec = composer.EXPERIMENTS["tensor_cores"]
    own = spec.only({"step_wgmma"})
    assert own.groups("seed", "cuda") == []
    assert {probe.variant for probe in own.probes("seed", "cuda", ())} == {"step_wgmma"}
    ladder = composer.EXPERIMENTS["gemm_ladder"].only({"step_mma"}).groups("seed", "cuda")
    assert {group.workload.dtype for group in ladder} == {"bfloat16"}
    assert {group.variants for group in ladder} == {("eager", "step_mma")}


def test_within_minutes_what_decides_most_comes_first_and_the_next_run_goes_on(notebooks, tmp_path, monkeypatch):
    names = "00_findings", "01_method", "02_naive_vs_cublas", "09_precision"
    for name in names:
        (notebooks / f"{name}.ipynb").write_text(notebook("pass"))
    clock, started, output = iter(range(0, 10_000, 70)), [], tmp_path / "out"

    def executed(path: Path, folder: Path, *_: Any) -> bool:
        started.append(path.stem)
        folder.mkdir(exist_ok=True)
        cells = [new_code_cell("pass", execution_count=1)]
        (folder / path.name).write_text(nbformat.writes(new_notebook(cells=cells)))
        return True

    monkeypatch.setattr(execution, "execute", executed)
    monkeypatch.setattr(run.time, "monotonic", lambda: next(clock))

    def ran() -> tuple[list[str], list[str]]:
        started.clear()
        found = call("run", "--device", "cpu", "--minutes", "3", "--output", output, "--records", tmp_path / "r")
        assert found.code == 0
        (left,) = [line.partition(": ")[2] for line in found.err if line.startswith("left for the next run")] or [""]
        return list(started), left.split(", ") if left else []

    assert ran() == (["02_naive_vs_cublas", "00_findings"], ["09_precision", "01_method"])
    assert ran() == (["09_precision", "00_findings"], ["01_method"])
    assert ran() == (["01_method", "00_findings"], [])
    assert ran() == (["00_findings"], [])


def test_a_full_disk_is_one_line_and_the_rest_goes_on(papermill, tmp_path):
    started = papermill(OSError(errno.ENOSPC, "disk full"))
    found = call("run", "--device", "cpu", "--output", tmp_path / "out")
    assert (found.code, started) == (1, ["01_one", "02_two"])
    (line,) = [line for line in found.err if line.startswith("01_one: ")]
    assert "disk full" in line


def test_a_file_in_place_of_the_output_folder_is_one_line(papermill, tmp_path):
    started = papermill()
    (tmp_path / "out").write_text("mine")
    found = call("run", "01", "--device", "cpu", "--output", tmp_path / "out")
    assert (found.code, started) == (1, [])
    assert f"01_one: cannot write {tmp_path / 'out'}: File exists" in found.err
    assert (tmp_path / "out").read_text() == "mine"


def test_a_run_ends_with_what_it_found_and_what_comes_next(papermill, notebooks, tmp_path):
    (notebooks / "02_two.ipynb").rename(notebooks / "02_naive_vs_cublas.ipynb")
    write_record(tmp_path / "records", "box", 8.0)
    papermill()
    asked = ["--device", "cpu", "--machine", "box", "--output", tmp_path / "out"]
    found = call("run", "02", *asked, "--records", tmp_path / "records")
    assert found.code == 0
    lines = found.out.splitlines()
    follow = lines[lines.index("next:") + 1 :]
    assert any("8.00×" in line for line in lines[: lines.index("next:")])
    assert follow
    assert all(line.startswith("  hypatia-lab ") and f"--records {tmp_path / 'records'}" in line for line in follow)
    assert "next:" not in call("run", "01", *asked, "--records", tmp_path / "none").out


def test_an_overwrite_that_was_interrupted_goes_on_where_it_stopped(papermill, tmp_path, monkeypatch):
    campaign = composer.campaign(tmp_path / "records" / "box")
    stops = [KeyboardInterrupt]

    def interrupted(source: str, *_: Any, **__: Any) -> None:
        campaign.add(Path(source).stem)
        if stops and source.endswith("02_two.ipynb"):
            raise stops.pop()

    monkeypatch.setattr("papermill.execute_notebook", interrupted)
    where = ["--machine", "box", "--records", tmp_path / "records", "--output", tmp_path / "out"]
    asked = ["run", "--device", "cpu", "--overwrite", *where]
    found = call(*asked)
    assert found.code == 130
    assert re.match("interrupted; .*run the same command again", found.err[-1])
    assert campaign.has("01_one")
    assert any("measured already: 01_one" in line for line in call(*asked).err)
    assert not any("measured already" in line for line in call(*asked).err)


def test_a_run_that_goes_well_tells_its_progress_and_nothing_else(notebooks, monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(bytecode, "environment", dict)  # which tells when it first keeps some
    (notebooks / "01_one.ipynb").write_text(notebook())
    with pytest.raises(SystemExit) as ended:
        commands.main(["run", "--device", "cpu", "--machine", "box", "--output", str(tmp_path / "out")])
    assert not ended.value.code
    told = [line.split(" (")[0] for line in capfd.readouterr().err.splitlines()]
    assert told == ["measuring box", "[1/1] 01_one", f"done; executed notebooks are in {tmp_path / 'out'}"]


@pytest.mark.slow  # test_bench and test_kills interrupt measurements with stand-ins for what is measured
def test_a_real_interrupt_in_mid_measurement_keeps_the_finished_parts_and_stops_every_process(tmp_path):
    store = tmp_path / "records"
    part = store / "box" / ".parts" / "ceilings" / "0.json"
    command = [sys.executable, "-m", "hypatia_lab", "run", "02", "--device", "cpu", "--machine", "box"]
    command += ["--shapes", "8x8x8", "--records", str(store), "--output", tmp_path / "out"]

    def hear_interrupts() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a test run in the background has been told to ignore them

    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=hear_interrupts) as running:
        try:
            end = time.monotonic() + 60
            while not part.exists() and running.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            assert part.exists(), "nothing was measured"
            processes = psutil.Process(running.pid).children(recursive=True)
            assert len(processes) >= 2  # the notebook's kernel and the measuring process
            running.send_signal(signal.SIGINT)
            _, told = running.communicate(timeout=30)
        finally:
            running.kill()
    assert running.returncode == 130
    assert told.splitlines()[-1].startswith("interrupted; every finished measurement is kept")
    assert "Traceback" not in told
    assert json.loads(part.read_text())["what"]["rows"]
    kept = [name for name in files_below(store) if (store / name).is_file()]
    assert kept == ["box/.parts/ceilings/0.json", "box/.parts/ceilings/log.txt"]
    assert not psutil.wait_procs(processes, timeout=5)[1]
