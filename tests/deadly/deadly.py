"""Variants that go wrong, and one that does not."""

import ctypes

import torch

from hypatia_lab.variants import variant


@variant("linear_relu", "right", origin="own")
def right(workload, inputs):
    """Does what is asked of it."""
    return lambda: torch.relu(torch.nn.functional.linear(*inputs.values()))


@variant("linear_relu", "segfaults", origin="own")
def segfaults(workload, inputs):
    """Reads address zero."""
    return lambda: ctypes.string_at(0)


@variant("linear_relu", "zeros", origin="own")
def zeros(workload, inputs):
    """Forgets to compute anything."""
    return lambda: torch.zeros(workload.shape[0], workload.shape[2])


class Late:
    """Eager for three calls (two to check, one to see the pace), then whatever ``then`` does."""

    def __init__(self, inputs, then):
        self.inputs, self.then, self.calls = inputs, then, 0

    def __call__(self):
        self.calls += 1
        right = torch.relu(torch.nn.functional.linear(*self.inputs.values()))
        return right if self.calls <= 3 else self.then(right)


@variant("linear_relu", "zeros_late", origin="own")
def zeros_late(workload, inputs):
    """Right when checked, wrong when timed."""
    return Late(inputs, torch.zeros_like)


def stop(right):
    raise SystemExit(3)


@variant("linear_relu", "dies_late", origin="own")
def dies_late(workload, inputs):
    """Right when checked; ends the process when timed."""
    return Late(inputs, stop)


@variant("linear_relu", "raises", origin="own")
def raises(workload, inputs):
    """Cannot be built."""
    raise RuntimeError("no such tile\nand a long story")


@variant("linear_relu", "too_large", origin="own")
def too_large(workload, inputs):
    """Asks for more than there is: 4 EiB on a CPU, 1 PiB on a GPU."""
    x = inputs["x"]
    return lambda: torch.empty(2**60 if x.device.type == "cpu" else 2**48, device=x.device)


def no_room(right):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation")


@variant("linear_relu", "too_large_late", origin="own")
def too_large_late(workload, inputs):
    """Right when checked; finds no memory when timed."""
    return Late(inputs, no_room)


@variant("linear_relu", "elsewhere", origin="own", needs=lambda workload, device: f"not on a {device}")
def elsewhere(workload, inputs):
    """Runs on no machine."""
    raise AssertionError("was built")
