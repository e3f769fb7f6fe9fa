"""Waits of large requests at a policy's limits: 1 MiB costs 150 by the published table."""

from __future__ import annotations

from pathlib import Path

import pytest

from iokeel.config.settings import Config, StorageConfig, VmConfig
from iokeel.core.values.curve import DEFAULT_CURVE, CostCurve, CostModel
from iokeel.core.values.policy import DomainPolicy, DrivePolicy, TenantPolicy, VmPolicy
from iokeel.core.values.storage import StoragePolicy
from iokeel.libvirt_xml.ceiling import Ceiling
from iokeel.report.promises import config_complaints, drive_complaints, waits_of
from tests.unit.cli import reports

LIMITS = {"vda": DrivePolicy(limit=1), "vdb": DrivePolicy(limit=300), "vdc": DrivePolicy()}


def test_a_low_max_bytes_is_told_as_a_low_limit_is() -> None:
    policy = DomainPolicy({"vda": DrivePolicy(limit=10_000, max_bytes=100_000)})
    waits, complaints = waits_of(policy, ["vda"], Config(), {})
    assert waits == {"vda": pytest.approx(10.48576)}
    assert complaints == [
        "at the max-bytes of vda, 100 kB/s, one request of 1 MiB waits 10.5 s, and all others"
        " behind it; give 210 kB/s or more"
    ]
    lower = DrivePolicy(limit=10_000, limit_write=15, separate_budgets=True)
    waits, complaints = waits_of(DomainPolicy({"vda": lower}), ["vda"], Config(), {})
    assert waits == {"vda": pytest.approx(10)}
    assert complaints == [
        "at the limit of vda, 15, one request of 1 MiB waits 10 s, and all others behind it; give"
        " 31 or more"
    ]


def test_each_limit_is_complained_of_by_its_own_name() -> None:
    policy = DomainPolicy(LIMITS, tenant="acme", vm=VmPolicy(limit=10))
    config = Config(tenants={"acme": TenantPolicy(limit=20)})
    waits, complaints = waits_of(policy, LIMITS, config, {})
    assert waits == {"vda": 150, "vdb": 15, "vdc": 15}  # the VM's, if it is lower
    behind = "and all others behind it; give 31 or more"
    assert complaints == [
        f"at the limit of vda, 1, one request of 1 MiB waits 2 min, {behind}",
        f"at the limit of all drives together, 10, one request of 1 MiB waits 15 s, {behind}",
        f"at the limit of tenant acme, 20, one request of 1 MiB waits 7.5 s, {behind}",
    ]


def test_ordinary_limits_are_not_complained_of() -> None:
    policy = DomainPolicy({"vda": DrivePolicy(limit=31)}, default=DrivePolicy(limit=1000))
    waits, complaints = waits_of(policy, ["vda", "vdb", "every other"], Config(), {})
    assert complaints == []
    assert waits["vdb"] == waits["every other"] == 0.15
    assert waits_of(DomainPolicy(LIMITS), ["vdc", "vdz"], Config(), {}) == ({}, [])


def test_a_known_storages_curve_counts() -> None:
    dear = CostModel(DEFAULT_CURVE, CostCurve(((4096, 1.0), (1 << 20, 3000.0))))
    config = Config(storages={"pool": StorageConfig(StoragePolicy(model=dear))})
    policy = DomainPolicy({"vda": DrivePolicy(limit=300)})
    assert waits_of(policy, ["vda"], config, {"vda": "pool"})[0] == {"vda": 10}
    assert waits_of(policy, ["vda"], config, {"vda": "gone"})[0] == {"vda": 0.5}
    assert waits_of(policy, ["vda"], config, {"vda": None})[0] == {"vda": 0.5}


def test_limits_in_the_configuration_are_complained_of() -> None:
    vm = VmConfig(
        "db1", Path("/s"), DomainPolicy({"vda": DrivePolicy(limit=2)}, vm=VmPolicy(limit=3))
    )
    config = Config(
        classes={"tiny": DrivePolicy(limit=1), "bronze": DrivePolicy(limit=1000)},
        tenants={"acme": TenantPolicy(limit=4), "big": TenantPolicy()},
        vms=(vm,),
        ceilings=(Ceiling("all", VmPolicy(limit=5)),),
    )
    assert [error.where for error in config_complaints(config)] == [
        "classes.tiny", "tenants.acme", "ceilings.all", "vm db1, drive vda", "vm db1",
    ]  # fmt: skip
    assert [*config_complaints(Config())] == [], "the built-in classes are fine"


def test_running_drives_are_complained_of_from_five_seconds_on() -> None:
    drives = [reports.drive("vda", large_wait_s=5.0), reports.drive("vdb", large_wait_s=4.9),
              reports.drive("vdc", large_wait_s=None)]  # fmt: skip
    (line,) = drive_complaints(drives)
    assert line.startswith("vda: at its lowest limit")
    assert "one request of 1 MiB waits 5 s" in line
