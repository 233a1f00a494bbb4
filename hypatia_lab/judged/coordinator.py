"""One fresh process of a measurement of a stranger's kernel: it asks, times and compares, and runs none of the file."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypatia_lab.bench.cells import Case, Session, serve
from hypatia_lab.judged import evidence
from hypatia_lab.judged.processes import REFEREE, Processes
from hypatia_lab.judged.trial import LOADED, Trial
from hypatia_lab.probes.probe import Ended


class Coordinator(Session):
    """Of variants that are not trusted: each has a process of its own, and the referee who knows the answer another."""

    def __init__(self, plan: dict[str, Any], emit: Callable[..., None]) -> None:
        # It may have been made before there was a folder for what it prints.
        with open(Path(plan["folder"]) / "log.txt", "ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        super().__init__(plan, emit)
        self.number: int = plan["number"]
        self.processes = Processes(plan, lambda: emit("alive"))
        self.started: dict[str, Any] = {}
        """What each process said when it had run its file, or how it ended."""
        self.tampered: dict[str, str] = {}
        """What a judged one was seen to have made of its process, which stays so on the next workload."""

    @contextmanager
    def opened(self, index: int, data: dict[str, Any]) -> Iterator[tuple[Sequence[Case], Callable[[], None]]]:
        trial = Trial(self, index, data, self._described(data))
        try:
            yield trial.cases, trial.run
        finally:
            trial.close()

    def _described(self, data: dict[str, Any]) -> dict[str, Any]:
        """What the referee tells of the workload of ``data``, of which it draws inputs. Raises :class:`Ended`.

        Whoever has no process yet gets one, and all run their files at the same time.
        """
        new = [who for who in (REFEREE, *data["variants"]) if who not in self.processes]
        for who in new:
            self.processes.fork(who)
        self.started |= self.processes.ask_all(new, "start", {})
        found = self.started[REFEREE]
        if isinstance(found, Ended):
            raise found
        if "crashed" in found:
            raise Ended("crashed", found["crashed"])
        if told := evidence.tampering(found["replaced"], found["changed"], LOADED):
            raise Ended("cheated", told)
        found = self.processes.ask(REFEREE, "group", workload=data["workload"])
        self.ensure_taken(found)
        if told := found.get("crashed"):
            raise Ended("crashed", told)
        return found

    def ensure_taken(self, found: dict[str, Any]) -> None:
        """Tell, and raise :class:`Ended`, where ``found`` says that nothing can be judged, and whose fault it is."""
        if told := found.get("refused"):
            self.emit("refused", reason=told, fault=found["fault"])
            raise Ended("crashed", told)

    def close(self) -> None:
        self.processes.close()


def main() -> None:
    """Entry of a fresh process; see :mod:`hypatia_lab.bench.sessions`."""
    # Headers compiled in advance take 150 MB and nine seconds, and each variant would have its own.
    os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"
    # A pool of compilers takes seconds to start, and somebody would have to wait until it is at rest.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    # Whoever has asked CUDA for its devices cannot fork any more; NVML may be asked.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch._inductor.compile_fx  # noqa: F401  # torch.compile needs it, and a fork has it already

    del os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"]
    gc.freeze()  # else each fork would copy the memory of all objects as soon as it looks for garbage among them
    gc.enable()
    serve(Coordinator)
    sys.stdout.flush()
    os._exit(0)  # all is said, and the next process waits for the end of this one


if __name__ == "__main__":
    main()
