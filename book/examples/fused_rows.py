"""softmax(x + bias) of every row in one Triton kernel: a small fused kernel, its wrapper and a sweep over sizes.

python book/examples/fused_rows.py  # times it on a GPU beside eager PyTorch and torch.compile
"""

from functools import partial

import torch
import triton
import triton.language as tl


@triton.jit
def bias_softmax_rows(x, bias, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # (1)
    at = tl.arange(0, BLOCK)  # (2)
    inside = at < columns
    y = tl.load(x + row * columns + at, mask=inside, other=-float("inf"))  # (3)
    y = y.to(tl.float32) + tl.load(bias + at, mask=inside, other=0.0)
    raised = tl.exp(y - tl.max(y, 0))
    y = raised / tl.sum(raised, 0)  # (4)
    tl.store(out + row * columns + at, y, mask=inside)


def bias_softmax(x, bias):
    rows, columns = x.shape
    if not x.is_contiguous() or not bias.is_contiguous():
        raise ValueError("x and bias must be contiguous")
    out = torch.empty_like(x)
    block = triton.next_power_of_2(columns)
    warps = 4 if block < 4096 else 8
    grid = (rows,)  # (5)
    bias_softmax_rows[grid](x, bias, out, columns, BLOCK=block, num_warps=warps)
    return out


def eager(x, bias):
    return torch.softmax(x + bias, -1)


def sweep(rows=65536, device="cuda"):
    compiled = torch.compile(eager, dynamic=False)
    forms = {"eager": eager, "compiled": compiled, "fused": bias_softmax}
    for columns in (64, 250, 1000, 4096):
        x = torch.randn(rows, columns, device=device)
        bias = torch.randn(columns, device=device)
        exact = eager(x.double(), bias.double()).float()
        for name, form in forms.items():
            torch.testing.assert_close(form(x, bias), exact)
            call = partial(form, x, bias)
            ms = triton.testing.do_bench(call, return_mode="median")
            print(columns, name, f"{2 * x.nbytes / ms / 1e9:.2f} TB/s")


if __name__ == "__main__":
    sweep()
