"""What a fleet's job starts in tests in place of the lab: ``chip cuda 3`` names a chip, ``run 01 02 --machine …``
measures nothing and writes records. What it is to do is in the file that ``HYPATIA_STAND_IN`` names.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from hypatia_lab import records
from hypatia_lab.fleet.progress_line import Step


def chip(told: dict[str, Any], job: str) -> None:
    """Print the machine folder of ``job``."""
    if job not in told["chips"]:
        sys.exit("hypatia-lab: device cuda was asked for, but torch sees no GPU")
    print(told["chips"][job])


def run(told: dict[str, Any], home: Path, arguments: list[str]) -> None:
    """Write a record a notebook, but those that are there; note each that is made, and what makes it.

    At a notebook for which a file ``pause-MACHINE-NOTEBOOK`` lies in ``home`` it waits until that is gone; one that is
    to fail fails for as long as a file ``fail-MACHINE-NOTEBOOK`` lies there; at ``kill-MACHINE-NOTEBOOK`` it is killed.
    """
    given = dict(zip(arguments, arguments[1:], strict=False))
    machine, root = given["--machine"], Path(given["--records"])
    notebooks = arguments[: arguments.index("--preset")]
    failed = []
    with records.held(root / machine):
        for number, name in enumerate(notebooks, 1):
            print(Step(number, len(notebooks), name), file=sys.stderr, flush=True)
            path = records.leading(root / machine, name)
            if path is not None and "--overwrite" not in arguments:
                continue
            seen = home / f"at-{machine}-{name}"
            seen.write_text(f"{os.getppid()} {os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES', '')}")
            while (home / f"pause-{machine}-{name}").exists():
                time.sleep(0.02)
            if (kill := home / f"kill-{machine}-{name}").exists():
                kill.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            if (home / f"fail-{machine}-{name}").exists():
                print(f"{name}: RuntimeError: no luck", file=sys.stderr)
                failed.append(name)
                continue
            own = {"machine": machine, "experiment": name, "preset": given["--preset"]}
            facts = {"name": "GPU", "chip": machine.rpartition("-")[2]}
            try:
                records.write(root, told["run"] | own | {"facts": facts}, told["cells"], overwrite=True)
            except records.RecordError as cause:
                sys.exit(f"hypatia-lab: {cause}")
            with (home / "measured").open("a") as stream:
                stream.write(f"{machine} {name}\n")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; their outputs are in nowhere")


if __name__ == "__main__":
    config = Path(os.environ["HYPATIA_STAND_IN"])
    said = json.loads(config.read_text())
    if sys.argv[1] == "chip":
        chip(said, sys.argv[3])
    else:
        run(said, config.parent, sys.argv[2:])
