"""A coordinator whose GPU is so full that it holds one variant at a time."""

from hypatia_lab import machine
from hypatia_lab.judged import coordinator

if __name__ == "__main__":
    machine.Probe.free_bytes = lambda self: 0.0
    coordinator.main()
