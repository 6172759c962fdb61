"""What a node is made of."""

import resource
from collections import namedtuple
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from megatron_tlm.doctor import machine
from megatron_tlm.doctor.machine import limits, machine_findings, requirement, shared_memory

Usage = namedtuple("Usage", "total used free")


def test_this_machine_can_train() -> None:
    found = {item.check: item for item in machine_findings()}
    assert {"megatron_tlm", "python", "torch", "deepspeed", "host", "devices", "open files"} <= found.keys()
    assert not [item for item in found.values() if item.status == "fail"]


def test_a_package_that_is_absent_or_of_another_version_is_told() -> None:
    wanted = Requirement("numpy<1")
    outside = requirement("numpy", wanted)
    assert (outside.status, outside.remedy) == ("fail", "pip install 'numpy<1'")
    assert "is outside <1" in outside.text
    assert requirement("numpy", Requirement("numpy>=1")).status == "pass"
    assert requirement("no-such-package", None).text == "absent"


def test_little_shared_memory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shared_memory(tmp_path / "absent").status == "warn"
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda place: Usage(1, 1, 64 << 20))
    told = shared_memory(tmp_path)
    assert (told.status, told.text) == ("warn", "64.00 MiB free, below 1.00 GiB")
    assert "--shm-size" in told.remedy


def test_few_open_files_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.resource, "getrlimit", lambda kind: (256, resource.RLIM_INFINITY))
    assert next(iter(limits())).text == "256 allowed, below 4096"
