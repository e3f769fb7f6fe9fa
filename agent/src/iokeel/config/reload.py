"""How a running agent takes over a new configuration."""

from __future__ import annotations

from dataclasses import fields, replace

from iokeel.config.settings import Config
from iokeel.core.curve import CostModel
from iokeel.core.state import Pricing, State


def for_running(old: Config, new: Config) -> tuple[Config, list[str]]:
    """Return a new configuration for an agent that runs with an old one.

    Sockets, ports, folders, the tick, libvirt's connection and the fleet stay the old ones. The
    keys of those that differ are returned too: they wait for a restart.
    """
    agent = replace(old.agent, log_level=new.agent.log_level)
    waiting = [
        f"[{table}] {field.name}"
        for table, kept, wanted in (
            ("agent", agent, new.agent),
            ("libvirt", old.libvirt, new.libvirt),
        )
        for field in fields(kept)
        if getattr(kept, field.name) != getattr(wanted, field.name)
    ]
    if new.fleet != old.fleet:
        waiting.append("[fleet]")
    return replace(new, agent=agent, libvirt=old.libvirt, fleet=old.fleet), waiting


def carried_over(state: State, old: Config, new: Config) -> State:
    """Return the law's memory for a new configuration.

    A drive whose cost curves are others is priced anew, as after a restart.
    """
    drives = {
        drive: known
        if _model(old, known.storage) == _model(new, known.storage)
        else known._replace(pricing=Pricing(mix=known.pricing.mix))
        for drive, known in state.drives.items()
    }
    return replace(state, model=new.model, tenants=new.tenants, drives=drives)


def _model(config: Config, storage: str | None) -> CostModel:
    configured = config.storages.get(storage or "")
    return (configured and configured.policy.model) or config.model
