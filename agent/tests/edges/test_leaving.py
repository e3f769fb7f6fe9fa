"""VMs that an earlier agent hasn't left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from iokeel.config.settings import Config, VmConfig
from iokeel.config.tables import LibvirtConfig
from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import ThrottleLimits
from iokeel.core.values.policy import DomainPolicy, DrivePolicy
from iokeel.core.values.state import DriveState, Sent
from iokeel.daemon import Agent
from iokeel.hypervisors.libvirt.domain import Domain
from iokeel.hypervisors.libvirt.source import LibvirtSource
from iokeel.hypervisors.qmp.source import QmpSource
from iokeel.hypervisors.source import VmInfo
from iokeel.libvirt_xml.domain import DomainXml
from iokeel.report.metrics.prometheus import Metrics
from iokeel.service import sources_of
from iokeel.store.store import StateStore


async def test_an_agent_goes_on_leaving_those_vms_that_it_does_not_serve_again(
    tmp_path: Path,
) -> None:
    def vm(name: str, socket: str) -> VmConfig:
        return VmConfig(name, tmp_path / socket, DomainPolicy({}))

    before = StateStore(tmp_path)
    before.leaving |= {name: vm(name, name) for name in ("db1", "db2")}
    before.sockets |= {name: str(tmp_path / name) for name in ("db3", "without limits")}
    limited = DriveState(sent=Sent(ThrottleLimits(iops_total=400)))
    before.save({DriveId(name, "vda"): limited for name in ("db1", "db2", "db3")})
    config = Config(vms=(vm("db1", "elsewhere"), vm("renamed", "db2")))
    source = QmpSource(config.vms)
    agent = Agent(config, [source], StateStore(tmp_path), Metrics())
    agent.remember()
    assert agent.observer.leaving == {"db3": replace(vm("db3", "db3"), shared=True)}
    assert [*source.leaves(config)] == ["db3"]
    assert source.unread() == {"db1", "renamed", "db3"}


async def test_a_domain_of_libvirts_with_a_vms_name_takes_nothing_from_it(tmp_path: Path) -> None:
    vms = tuple(VmConfig(n, tmp_path / n, DomainPolicy({})) for n in ("db1", "db2"))
    config, store = Config(vms=vms), StateStore(tmp_path)
    sources = sources_of(config, store)
    agent = Agent(config, sources, store, Metrics())
    agent.remember()
    own, libvirts = sources
    assert isinstance(own, QmpSource)
    assert isinstance(libvirts, LibvirtSource)
    theirs = {name: VmInfo(name, {}, uuid=name) for name in ("db1", "web")}
    libvirts._domains |= {name: Domain(DomainXml(name, ()), vm, 1) for name, vm in theirs.items()}
    assert agent.observer.source_of("db1") is libvirts  # as long as the other doesn't run
    own._known["db1"] = VmInfo("db1", {}, from_libvirt=False)
    assert agent.observer.source_of("db1") is own
    assert not agent.observer.vms()["db1"].from_libvirt
    assert agent.observer.source_of("web") is libvirts
    await agent.save({}, whole=True)
    after = StateStore(tmp_path)
    after.load()
    assert after.leaving.keys() == {"db1", "db2"}


@pytest.mark.parametrize("enabled", [False, True])
async def test_what_libvirts_guests_had_is_remembered_while_libvirt_is_disabled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, enabled: bool
) -> None:
    before = StateStore(tmp_path)
    before.sockets |= {name: str(tmp_path / name) for name in ("db3", "db4")}
    limits, found = ThrottleLimits(iops_total=400), ThrottleLimits(iops_total=7777)
    limited = DriveState(DrivePolicy(limit=500), sent=Sent(limits, found=found))
    before.save({DriveId(name, "vda"): limited for name in ("db1", "db2", "db3", "db4")})
    vms = tuple(VmConfig(n, tmp_path / n, DomainPolicy({})) for n in ("db2", "db3"))
    config = Config(libvirt=LibvirtConfig(enabled=enabled), vms=vms)
    for _ in range(2):
        caplog.clear()
        agent = Agent(config, [QmpSource(vms)], StateStore(tmp_path), Metrics())
        agent.remember()
        await agent.look(None)
        await agent.stop()
        told = [line for line in caplog.messages if line.startswith("VMs db1: [libvirt] is dis")]
        assert len(told) == (not enabled)
    after = StateStore(tmp_path).load()
    assert (DriveId("db1", "vda") in after) is not enabled
    if not enabled:
        assert after[DriveId("db1", "vda")].sent == limited.sent
        vms = (*vms, VmConfig("db1", tmp_path / "db1", DomainPolicy({})))
        await agent.reconfigure(Config(libvirt=config.libvirt, vms=vms))
        assert agent.observer.unserved == set()
