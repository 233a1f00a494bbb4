"""Stands in for a program that somebody has published: a forward pass in two calls, and a benchmark of it."""

import time

import torch


def linear_relu(x, weight, bias):
    """relu(x W' + b), the ReLU in place."""
    return torch.addmm(bias, x, weight.t()).relu_()


def ms_per_iter(call, iterations=100):
    for _ in range(20):
        call()
    start = time.perf_counter()
    for _ in range(iterations):
        call()
    return 1e3 * (time.perf_counter() - start) / iterations


if __name__ == "__main__":
    x, weight, bias = torch.randn(64, 256), torch.randn(512, 256), torch.randn(512)
    eager = ms_per_iter(lambda: torch.relu(torch.nn.functional.linear(x, weight, bias)))
    fused = ms_per_iter(lambda: linear_relu(x, weight, bias))
    print(f"Eager:   {eager:.4f} ms/iter")
    print(f"Fused:   {fused:.4f} ms/iter")
    print(f"Speedup: {eager / fused:.2f}x")
