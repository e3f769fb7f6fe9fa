"""VMs that an earlier agent couldn't leave."""

from __future__ import annotations

from pathlib import Path

from iokeel.config.settings import Config, VmConfig
from iokeel.core.policy import DomainPolicy
from iokeel.daemon import Agent
from iokeel.hypervisors.qmp.source import QmpSource
from iokeel.report.prometheus import Metrics
from iokeel.state_store import StateStore


async def test_an_agent_goes_on_leaving_those_vms_that_it_does_not_serve_again(
    tmp_path: Path,
) -> None:
    def vm(name: str, socket: str) -> VmConfig:
        return VmConfig(name, tmp_path / socket, DomainPolicy({}))

    before = StateStore(tmp_path)
    before.leaving |= {name: vm(name, name) for name in ("db1", "db2", "db3")}
    before.save({})
    config = Config(vms=(vm("db1", "elsewhere"), vm("renamed", "db2")))
    source = QmpSource(config.vms)
    agent = Agent(config, [source], StateStore(tmp_path), Metrics())
    agent.remember()
    assert agent.observer.leaving == {"db3": vm("db3", "db3")}
    assert source.leaves(config) == {"db3"}
    assert source.unread() == {"db1", "renamed", "db3"}
