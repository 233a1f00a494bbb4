"""``python -m hypatia_lab.fleet.chip cuda 3``: prints the machine folder of the GPU that this process sees, for job 3.

A process of its own, so that the job which waits for the measurement holds nothing of the GPU.
"""

from __future__ import annotations

import sys


def name(device: str, job: int) -> str:
    """The machine folder of job number ``job``: a GPU's by its chip, a CPU's by the job.

    Raises :class:`hypatia_lab.machine.MachineError` without a GPU.
    """
    from hypatia_lab import machine

    if device == "cpu":
        end = f"-{job}"
        return machine.default_name(device)[: 64 - len(end)] + end
    return machine.chip_machine(device)


def main(device: str, job: str) -> None:
    """Print it, or say in one line why not and end with status 2."""
    from hypatia_lab.machine import MachineError

    try:
        print(name(device, int(job)))
    except MachineError as cause:
        sys.exit(f"hypatia-lab: {cause}")


if __name__ == "__main__":
    main(*sys.argv[1:])
