"""GELU in Triton, u·Φ(u), by the error function or by tanh."""

# Triton's language is not Python to a type checker, and triton need not be installed.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def normal_integral(u, SHORT: tl.constexpr):
    """Φ(u), the normal distribution function; ``SHORT``: off by at most 1e-7, in half as many instructions."""
    if SHORT:
        # Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 7.1.26.
        z = tl.abs(u) * 0.7071067811865476
        t = 1.0 / (1.0 + 0.3275911 * z)
        series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
        half = 0.5 * series * tl.exp(-z * z)
        integral = tl.where(u < 0, half, 1.0 - half)
    else:
        integral = 0.5 + 0.5 * tl.erf(u * 0.7071067811865476)
    return integral


@triton.jit
def tanh_sigmoid(u):
    """Φ(u) as GELU's tanh form has it: (1 + tanh(√(2/π)·(u + 0.044715·u³)))/2."""
    return 1.0 / (1.0 + tl.exp(-1.5957691216057308 * u * (1.0 + 0.044715 * u * u)))


@triton.jit
def gelu(u, TANH: tl.constexpr, SHORT: tl.constexpr):
    """u·Φ(u) in float32."""
    return u * (tanh_sigmoid(u) if TANH else normal_integral(u, SHORT))
