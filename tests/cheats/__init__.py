"""Kernels that win by other means than computing, a small file for each kind of trick; see :mod:`cheats.catalogue`.

Published: gpu-mode/reference-kernels#162 (patched timers), ScalingIntelligence/KernelBench#165 (zeros pass),
NVIDIA/nvbench#458 (persisting L2); remembered answers, streams, threads, lazy tensors and read references as
SOL-ExecBench and robust-kbench list them.
"""
