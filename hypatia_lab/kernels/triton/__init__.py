"""Kernels written in Triton; importing one of the modules needs the package triton."""
