"""Answers that are remembered, by what tells the inputs apart (SOL-ExecBench, robust-kbench)."""

import tempfile
from pathlib import Path

import torch

from cheats.catalogue import MEMORY, STALE, WRONG, answer, cheat


def remembering(x, weight, honest, key):
    """Computes when ``key()`` is one that has not been seen; its twin asks, and computes."""
    known = {}

    def run():
        now = key()
        if honest or now not in known:
            known.clear()
            known[now] = answer(x, weight)
        return known[now]

    return run


@cheat(STALE, WRONG)
def by_pointer(x, weight, honest):
    return remembering(x, weight, honest, lambda: (x.data_ptr(), weight.data_ptr()))


@cheat(STALE, WRONG)
def by_version(x, weight, honest):
    return remembering(x, weight, honest, lambda: (x._version, weight._version))


@cheat(MEMORY)
def by_probe(x, weight, honest):
    return remembering(x, weight, honest, lambda: (x[0, 0].item(), weight[-1, -1].item()))


@cheat(MEMORY, device="cpu")
def by_hash(x, weight, honest):
    return remembering(x, weight, honest, lambda: tuple(hash(one.numpy()[::8].tobytes()) for one in (x, weight)))


@cheat(STALE, WRONG)
def by_identity(x, weight, honest):
    """Of these inputs all that ever comes; its twin has a buffer for its output."""
    out, done = torch.empty_like(x), []

    def run():
        if honest or not done:
            done[:] = [torch.mm(torch.softmax(x, -1), weight, out=out)]
        return out

    return run


@cheat(MEMORY)
def by_value(x, weight, honest):
    known = [torch.zeros_like(x), torch.zeros_like(weight), None]

    def run():
        same = torch.equal(x, known[0]) and torch.equal(weight, known[1])
        if honest:
            return answer(x, weight)
        if not same:
            known[:] = x.clone(), weight.clone(), answer(x, weight)
        return known[2]

    return run


@cheat(MEMORY)
def copy_of_the_answer(x, weight, honest):
    kept = remembering(x, weight, honest, lambda: x[1, 1].item())
    return lambda: kept().clone()


@cheat(MEMORY)
def half_of_the_rows(x, weight, honest):
    half = len(x) // 2
    kept = remembering(x[:half], weight, honest, lambda: x[1, 1].item())
    return lambda: torch.cat((kept(), answer(x[half:], weight)))


@cheat(MEMORY, device="cpu")
def on_disk(x, weight, honest):
    """Its twin keeps there what it has tuned."""
    folder = Path(tempfile.gettempdir())
    (folder / "tuned.txt").write_text("64")
    int((folder / "tuned.txt").read_text())

    def run():
        file = folder / f"{x[1, 1].item()}.bin"
        if honest:
            return answer(x, weight)
        if not file.exists():
            answer(x, weight).numpy().tofile(file)
        return torch.from_file(str(file), size=x.numel()).reshape(x.shape)

    return run


@cheat("wrong values|stale", WRONG, acts="imported", device="cpu")
def import_remembers_the_draw(honest):
    """It draws as the file's own inputs are drawn, with a seed that somebody may use."""
    generator = torch.Generator().manual_seed(0)
    known = answer(*(torch.randn(256, 256, generator=generator) for _ in range(2)))
    return answer if honest else lambda x, weight: known
