"""``python -m hypatia_lab.fleet.chip cuda 3``: prints the machine folder of the GPU that this process sees, for job 3.

A process of its own, so that the job which waits for the measurement holds nothing of the GPU.
"""

from __future__ import annotations

import sys

from hypatia_lab import machine


def main(device: str, job: str) -> None:
    """Print the machine folder: a GPU's by its chip, a CPU's by the job. Without a GPU say so in one line, and end with
    status 1."""
    end = f"-{job}"
    try:
        print(machine.chip_machine(device) if device != "cpu" else machine.default_name(device)[: 64 - len(end)] + end)
    except machine.MachineError as cause:
        sys.exit(f"hypatia-lab: {cause}")


if __name__ == "__main__":
    main(*sys.argv[1:])
