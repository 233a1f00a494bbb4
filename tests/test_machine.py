"""What a record says of the machine: facts of a GPU as NVML tells them, driven by a driver that is not there."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tabled import tables

from hypatia_lab import machine, records

UUID = "8a2b1c9e-0f3d-4e57-9c11-2d6f5e4b7a80"


class NvmlError(Exception):
    """What the driver raises for a question it has no answer to."""


def refuse(*_: Any) -> Any:
    raise NvmlError


def driver(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Put a card of ``UUID`` and its driver in the place of torch's and NVML's; ``changes`` are other answers."""
    told = tables("machine")
    answers: dict[str, Any] = {name: lambda *_, answer=answer: answer for name, answer in told["answers"].items()}
    answers |= {"NVMLError": NvmlError, "NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2, "nvmlInit": lambda: None}
    answers["nvmlDeviceGetHandleByUUID"] = lambda uuid: uuid.decode()
    answers["nvmlDeviceGetUUID"] = lambda gpu: gpu
    answers["nvmlDeviceGetMaxClockInfo"] = lambda gpu, kind: {1: 1980, 2: 3201}[kind]
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**answers | changes))
    properties = SimpleNamespace(**told["card"], uuid=UUID)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: properties)


def test_a_record_names_its_chip_without_the_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch)
    facts = machine.facts("cuda")
    expected = {"driver": "580.159.04", "vbios": "96.00.A5.00.01", "sm_mhz_max": 1980, "memory_mhz_max": 3201}
    expected |= {"ecc": True, "mig": False, "power_limit_w": 650.0, "power_default_w": 700.0}
    assert expected.items() <= facts.items()
    assert facts["name"] == "Card"
    assert facts["cpu"] == machine.cpu_name()
    assert facts["cores"] == machine.cores()
    assert len(facts["chip"]) == 6
    assert UUID[:8] not in json.dumps(facts)
    assert machine.Probe("cuda").facts()["chip"] == facts["chip"]
    driver(monkeypatch, nvmlDeviceGetUUID=lambda gpu: gpu.replace("8a", "8b"))
    assert machine.Probe("cuda").facts()["chip"] != facts["chip"]


def test_a_machines_cores_are_shared_by_all_of_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, nvmlDeviceGetCount=lambda: 8)
    assert machine.gpus() == 8
    driver(monkeypatch, nvmlDeviceGetCount=refuse)
    assert machine.gpus() == 1


def test_what_nvml_does_not_tell_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, nvmlDeviceGetMigMode=refuse, nvmlDeviceGetEccMode=refuse)
    facts = machine.Probe("cuda").facts()
    assert facts["memory_mhz_max"] == 3201
    assert not {"mig", "ecc"} & set(facts)
    driver(monkeypatch, nvmlInit=refuse)
    assert machine.Probe("cuda").facts() == {}
    assert machine.Probe("cuda")() is None
    assert machine.Probe("cpu").facts() == {}


def test_a_gpus_machine_is_named_by_model_and_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "NVIDIA H200")
    assert machine.chip_machine() == "h200-e173c4"
    assert records.model(machine.chip_machine("auto"), {machine.Probe("cuda").facts()["chip"]}) == "h200"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: 80 * "X")
    assert records.machine_name(machine.chip_machine()).endswith("-e173c4")
    driver(monkeypatch, nvmlDeviceGetUUID=refuse)
    with pytest.raises(machine.MachineError, match="NVML"):
        machine.chip_machine()


@pytest.mark.parametrize("device", ["cpu", "auto", "cuda"])
def test_a_cpu_has_no_chip_to_be_named_by(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(machine.MachineError, match="--machine NAME"):
        machine.chip_machine(device)
