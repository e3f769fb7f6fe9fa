"""What a running agent takes over of a new configuration."""

from __future__ import annotations

from dataclasses import fields

import pytest

from iokeel.config.load import carried_over, for_running, parse
from iokeel.config.settings import Config
from iokeel.config.tables import AgentConfig, LibvirtConfig
from iokeel.core.values.counters import DriveId, Flow, Mix
from iokeel.core.values.state import DriveState, Pricing, State

OTHER = parse(
    b"""
[agent]
socket = "/other"
state_dir = "/other"
tick_seconds = 2.0
log_level = "debug"
metrics_address = "127.0.0.1:1"
metrics_web_config = "/other"
[libvirt]
enabled = false
uri = "test:///default"
passthrough = false
[hook]
strict = true
[curve]
read = [["4k", 2.0]]
[classes.new]
limit = 5
[tenants.acme]
limit = 6
[storage.sda]
capacity = 7
[cgroup]
margin = 2.0
[jobs]
bps = 100000
[history]
keep_days = 3
[fleet]
etcd = ["http://127.0.0.1:2379"]
host = "kvm7"
[[vm]]
name = "a"
socket = "/a"
""",
    "other.toml",
)


def test_every_setting_is_taken_over_or_said_to_wait() -> None:
    config, waiting = for_running(Config(), OTHER)
    kept = {
        *(f"[agent] {name}" for name in AgentConfig.model_fields if name != "log_level"),
        *(f"[libvirt] {name}" for name in LibvirtConfig.model_fields),
        "[fleet]",
    }
    assert {*waiting} == kept
    assert config.agent == AgentConfig(log_level="debug")
    assert config.libvirt == LibvirtConfig()
    assert config.fleet is None
    for field in fields(Config):
        if field.name not in ("agent", "libvirt", "fleet"):
            assert getattr(config, field.name) == getattr(OTHER, field.name)


def test_same_configuration_leaves_nothing_waiting() -> None:
    assert for_running(OTHER, OTHER) == (OTHER, [])


@pytest.mark.parametrize(
    ("old", "new", "repriced"),
    [
        ("", "[curve]\nread = [['4k', 2.0]]", {"sda", None}),
        ("", "[storage.sda]\ncurve_read = [['4k', 2.0]]", {"sda"}),
        ("[storage.sda]\ncurve_read = [['4k', 2.0]]", "", {"sda"}),
        ("", "[storage.sda]\ncapacity = 5", set()),
        ("", "[tenants.acme]\nlimit = 5", set()),
    ],
)
def test_only_drives_with_another_curve_are_priced_anew(
    old: str, new: str, repriced: set[str | None]
) -> None:
    pricing = Pricing(rate=100.0, base_rate=100.0, mix=Mix(Flow(50, 204800), Flow(0, 0)))
    before = State(
        drives={
            DriveId("a", str(storage)): DriveState(storage=storage, pricing=pricing)
            for storage in ("sda", None)
        }
    )
    configs = [parse(text.encode(), "agent.toml") for text in (old, new)]
    after = carried_over(before, *configs)
    assert (after.model, after.tenants) == (configs[1].model, configs[1].tenants)
    changed = {known.storage for known in after.drives.values() if known.pricing != pricing}
    assert changed == repriced
    assert all(known.pricing.mix == pricing.mix for known in after.drives.values())
