"""The device at hand: which one to use, what it is, and what its clock and power read while it works."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import platform
import re
from pathlib import Path
from typing import Any

from hypatia_lab.messages import unknown

DEVICES = ("auto", "cpu", "cuda")


class MachineError(RuntimeError):
    """A device that is not there; the message says what to do instead."""


def choose_device(asked: str) -> str:
    """``"auto"``, ``"cpu"`` or ``"cuda"`` → ``"cpu"`` or ``"cuda"``. Raises :class:`MachineError`."""
    if asked not in DEVICES:
        raise MachineError(unknown("device", asked, DEVICES))
    if asked == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if asked == "cuda":
        raise MachineError(f"device cuda was asked for, but torch sees no GPU ({build()}); use --device cpu")
    return "cpu"


def build() -> str:
    """torch's version and what it was built for: ``torch 2.13.0, a CPU-only build``."""
    import torch

    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU-only build"
    return f"torch {torch.__version__}, {built}"


def cpu_name() -> str:
    """The processor's own name, or ``"unknown"``."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def cores() -> int:
    """Processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict[str, str]:
    """Version of everything that decides a result; what is not installed is absent."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name in ("hypatia-lab", "torch", "triton", "numpy", "cuda-core", "nvidia-ml-py"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    import torch

    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
        if torch.cuda.is_available():
            found["cudnn"] = str(torch.backends.cudnn.version())
    return found


def chip(uuid: str) -> str:
    """Six hex digits that stand for a GPU in every record, worked out from its UUID and a salt that never changes.

    They hide the UUID: 24 bits of it are left, and among 10,000 chips some three pairs share their digits. They do not
    hide that two records are of one chip, which they are there to tell. Nor do they hide from whoever knows a UUID that
    a record is very likely of that chip: the salt is public.
    """
    return hashlib.blake2s(uuid.encode(), digest_size=3, salt=b"hypatia").hexdigest()


def facts(device: str) -> dict[str, Any]:
    """What a reader must know of the machine: name, processor, cores, memory (GiB), caches (bytes), versions.

    Of a GPU besides: multiprocessors, compute capability, and what :meth:`Probe.facts` reads.
    """
    import psutil
    import torch

    from hypatia_lab.clock import last_level_cache

    out: dict[str, Any] = {
        "name": cpu_name(),
        "cpu": cpu_name(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "cache_bytes": last_level_cache(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions(),
    }
    if device == "cuda":
        card = torch.cuda.get_device_properties(0)
        out |= {
            "name": card.name,
            "memory_gib": round(card.total_memory / 2**30, 1),
            "cache_bytes": card.L2_cache_size,
            "multiprocessors": card.multi_processor_count,
            "capability": f"{card.major}.{card.minor}",
        }
        out |= Probe(device).facts()
    return out


def default_name(device: str) -> str:
    """A folder name for this machine, from its device's own name: ``nvidia-h200``, ``amd-epyc-2c``."""
    if device == "cuda":
        import torch

        text = torch.cuda.get_device_name(0)
    else:
        text = (
            re.sub(r"\((R|TM)\)|CPU|Processor|@.*|[0-9]+-Core", " ", cpu_name(), flags=re.IGNORECASE) + f" {cores()}c"
        )
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:64] or "unnamed"


def chip_machine(device: str = "cuda") -> str:
    """A folder name for this very GPU, from its model and its :func:`chip`: ``h200-cb31d3``.

    The model is :func:`default_name` without the maker. Raises :class:`MachineError` on a CPU, or where NVML does not
    tell the GPU's UUID.
    """
    if choose_device("auto" if device == "cuda" else device) == "cpu":
        raise MachineError(f"no GPU whose chip could name this machine ({build()}); name it yourself: --machine NAME")
    named = Probe("cuda").facts().get("chip")
    if not named:
        raise MachineError("NVML does not tell this GPU's UUID, which names its chip; name it yourself: --machine NAME")
    # Together at most the 64 characters that a machine's name may have.
    return f"{default_name('cuda').removeprefix('nvidia-')[:57].strip('-')}-{named}"


def gpu_uuid() -> str:
    """UUID of the GPU that torch uses, as NVML tells it."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"


def gpus() -> int:
    """How many GPUs share this machine's cores, whoever uses them, as NVML tells it; 1 where it does not."""
    with contextlib.suppress(Exception):  # NVML missing or refused
        import pynvml

        pynvml.nvmlInit()
        return max(1, pynvml.nvmlDeviceGetCount())
    return 1


class Probe:
    """Reads SM clock (MHz), power (W) and throttle reasons through NVML; reads nothing where there is none.

    ``uuid``: of the GPU, where this process has to leave CUDA alone.
    """

    def __init__(self, device: str, uuid: str = "") -> None:
        self._nvml: Any = None
        self._handle: Any = None
        if device != "cuda":
            return
        with contextlib.suppress(Exception):  # NVML missing or refused: clock and power are then simply unknown
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID((uuid or gpu_uuid()).encode())
            self._highest = pynvml.nvmlDeviceGetMaxClockInfo(self._handle, pynvml.NVML_CLOCK_SM)
            self._nvml = pynvml

    def facts(self) -> dict[str, Any]:
        """What NVML tells of the GPU: ``chip`` (see :func:`chip`), ``driver``, ``vbios``, ``sm_mhz_max`` and
        ``memory_mhz_max`` (highest clocks, MHz), ``ecc`` and ``mig`` (whether they are on), ``power_limit_w`` and
        ``power_default_w`` (the cap in force and the one it was delivered with, W). What it does not tell is absent.
        """
        nvml, gpu = self._nvml, self._handle
        if nvml is None:
            return {}
        asked = {
            "chip": lambda: chip(nvml.nvmlDeviceGetUUID(gpu)),
            "driver": nvml.nvmlSystemGetDriverVersion,
            "vbios": lambda: nvml.nvmlDeviceGetVbiosVersion(gpu),
            "sm_mhz_max": lambda: self._highest,
            "memory_mhz_max": lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_MEM),
            "ecc": lambda: bool(nvml.nvmlDeviceGetEccMode(gpu)[0]),
            "mig": lambda: bool(nvml.nvmlDeviceGetMigMode(gpu)[0]),
            "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
            "power_default_w": lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu) / 1000,
        }
        found: dict[str, Any] = {}
        for name, ask in asked.items():
            with contextlib.suppress(nvml.NVMLError):  # not every card has ECC or MIG, nor every host a right to ask
                found[name] = ask()
        return found

    def free_bytes(self) -> float:
        """Memory of the GPU that nobody holds; infinitely much where NVML cannot be read."""
        try:
            return float(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).free) if self._nvml else math.inf
        except self._nvml.NVMLError:
            return math.inf

    def busy(self) -> float:
        """Share of the last moments (up to 1 s) in which the GPU computed; 0 where NVML cannot be read."""
        try:
            return self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100 if self._nvml else 0.0
        except self._nvml.NVMLError:
            return 0.0

    def __call__(self) -> dict[str, float] | None:
        """Now: ``{"sm_mhz", "power_w", "throttled"}``; None where NVML cannot be read.

        ``throttled`` is 1.0 when the driver names a thermal, power-brake, hardware or power-cap slowdown,
        or when the SM clock is below 75% of its highest (the share at which NVBench discards a sample).
        """
        nvml = self._nvml
        if nvml is None:
            return None
        try:
            clock = nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM)
            power = nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000
            reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
        except nvml.NVMLError:
            return None
        bad = (
            nvml.nvmlClocksEventReasonSwPowerCap
            | nvml.nvmlClocksThrottleReasonHwSlowdown
            | nvml.nvmlClocksThrottleReasonHwThermalSlowdown
            | nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
            | nvml.nvmlClocksEventReasonSwThermalSlowdown
        )
        throttled = bool(reasons & bad) or clock < 0.75 * self._highest
        return {"sm_mhz": float(clock), "power_w": power, "throttled": float(throttled)}
