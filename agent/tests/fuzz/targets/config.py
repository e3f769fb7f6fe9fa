"""The agent's configuration, and sizes as people write them."""

from __future__ import annotations

from iokeel.config.load import parse
from iokeel.core.values.policy import checked
from iokeel.errors import ConfigError
from iokeel.words.units import parse_size
from tests.fuzz.budget import only
from tests.fuzz.targets.target import Target

_WORDS = [
    *(b"agent socket state_dir tick_seconds log_level metrics_address libvirt enabled uri".split()),
    b"metrics_web_config",
    *(b"hook strict curve read write classes reservation limit burst burst_seconds weight".split()),
    *(b"latency_target_ms budget shared separate tenants storage device path source".split()),
    *(b"drives capacity least_ratio most_ratio curve_read curve_write cgroup margin".split()),
    *(b"limit_read limit_write max_bytes start_credit_seconds 200M".split()),
    *(b"vm", b"name"),
    *(b"[[vm]] [vm.drives.vda] [storage.a] [classes.gold] [tenants.acme] [agent]".split()),
    *(b"'''", b'"""', b"#", b"1e6", b"inf", b"nan", b"2020-01-01", b"[[4096, 1.0]]", b'"4k"'),
    *(b'"127.0.0.1:9632"', b'"rbd:pool"', b'"web*/vd?"', b'"/dev/sda"', b"true", b"false", b"="),
]


def config(data: bytes) -> None:
    """A configuration makes sense as a whole."""
    with only(ConfigError):
        found = parse(data, "/etc/iokeel/agent.toml")
        for vm in found.vms:
            for drive in vm.policy.drives.values():
                checked(drive, "")
        for tenant in found.tenants.values():
            checked(tenant, "")
        assert 0.2 <= found.agent.tick_seconds <= 10
        assert len({vm.name for vm in found.vms}) == len(found.vms)


def size(data: bytes) -> None:
    """A size is not negative."""
    with only(ConfigError):
        assert parse_size(data.decode(errors="surrogateescape")) >= 0


TARGETS = [
    Target("config", config, 1 << 14, _WORDS),
    Target("size", size, 1 << 10, [b"k", b"m", b"GiB", b"KB", b" ", b"4096"]),
]
