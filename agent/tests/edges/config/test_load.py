"""The agent's configuration, good and bad."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iokeel.config.load import load, parse
from iokeel.config.paths import DEFAULT_CONFIG, PROXMOX_FACTS
from iokeel.config.settings import Config, StorageConfig, VmConfig
from iokeel.config.tables import (
    Address,
    AgentConfig,
    CgroupConfig,
    HookConfig,
    JobsConfig,
    LibvirtConfig,
    validated,
)
from iokeel.core.values.curve import DEFAULT_CURVE, DEFAULT_MODEL, CostCurve, CostModel
from iokeel.core.values.policy import (
    BUILTIN_CLASSES,
    DomainPolicy,
    DrivePolicy,
    TenantPolicy,
    VmPolicy,
)
from iokeel.core.values.storage import StoragePolicy
from iokeel.errors import ConfigError
from iokeel.host.network_storage import network_place
from iokeel.libvirt_xml.ceiling import Ceiling
from iokeel.words.units import parse_size

EVERYTHING = """
[agent]
socket = "/run/x/agent.sock"
state_dir = "/var/lib/x"
tick_seconds = 2
log_level = "debug"
metrics_address = "[::1]:9632"
metrics_web_config = "/etc/x/web.yml"

[libvirt]
enabled = false
uri = "qemu:///session"

[hook]
strict = true

[curve]
read = [["4k", 1.0], ["64KiB", 10], [1048576, 150.5]]
write = [["4K", 2.0]]

[classes.gold]
limit = 5000
[classes."x.y-1"]
reservation = 10
limit = 20
burst = 40
burst_seconds = 30
weight = 50
latency_target_ms = 5
budget = "separate"
limit_write = 15
max_bytes = "20M"
start_credit_seconds = 10

[tenants.acme]
reservation = 1000
limit = 9000
weight = 300
[tenants.other]

[ceilings."a-1"]
domains = ["acme-*", "Windows 10"]
tenant = "acme"
limit = 20000
burst = 40000
burst_seconds = 30
reservation = 1000
weight = 200
latency_target_ms = 5
job_bps = 10_000_000
[ceilings.all]
limit = 500

[storage.fast]
device = "/dev/nvme0n1"
path = "/var/lib/libvirt/images"
source = "rbd:pool"
drives = ["db1/vda", "web*/vd[bc]", "Windows 10/vda", "n/device[0]", "n//machine/x/device[0]"]
devices = ["/dev/zvol/tank/*", "/dev/nvme0n1"]
capacity = 90000
latency_target_ms = 2
least_ratio = 0.5
most_ratio = 2
curve_read = [["4k", 1]]
curve_write = [["4k", 3]]
[storage.sda]

[cgroup]
enabled = false
margin = 1.5

[jobs]
bps = 50_000_000

[[vm]]
name = "db1"
socket = "/run/db1.qmp"
tenant = "acme"
class = "gold"
reservation = 100
limit = 6000
burst = 9000
burst_seconds = 30
job_bps = 20_000_000
[vm.drives.virtio-disk0]
class = "silver"
weight = 7
[vm.drives.virtio-disk1]
limit = 100

[[vm]]
name = "web1"
socket = "/run/web1.qmp"
[vm.drives.vda]
limit = 400
[vm.drives."/machine/x/device[0]"]
limit = 500
"""


# Good ones


def test_every_key_is_read_into_the_cores_types() -> None:
    found = parse(EVERYTHING.encode(), "agent.toml")
    gold = DrivePolicy(limit=5000)
    assert found.agent == AgentConfig(
        socket=Path("/run/x/agent.sock"),
        state_dir=Path("/var/lib/x"),
        tick_seconds=2.0,
        log_level="debug",
        metrics_address=Address("::1", 9632),
        metrics_web_config=Path("/etc/x/web.yml"),
    )
    assert found.libvirt == LibvirtConfig(enabled=False, uri="qemu:///session")
    assert found.hook == HookConfig(strict=True)
    assert found.model.read.points == ((4096, 1.0), (65536, 10.0), (1048576, 150.5))
    assert found.model.write.points == ((4096, 2.0),)
    assert found.classes == {
        **BUILTIN_CLASSES,
        "gold": gold,
        "x.y-1": DrivePolicy(10, 20, 40, 30, 50, 5.0, True, None, 15, 20_000_000, 10),
    }
    assert found.tenants == {"acme": TenantPolicy(1000, 9000, 300), "other": TenantPolicy()}
    assert found.vms == (
        VmConfig(
            "db1",
            Path("/run/db1.qmp"),
            DomainPolicy(
                {
                    "virtio-disk0": DrivePolicy(0, 4000, 8000, 60, 7),
                    "virtio-disk1": DrivePolicy(limit=100),
                },
                gold,
                "acme",
                VmPolicy(100, 6000, 9000, 30),
                20_000_000,
            ),
        ),
        VmConfig(
            "web1",
            Path("/run/web1.qmp"),
            DomainPolicy(
                {
                    "vda": DrivePolicy(limit=400),
                    "/machine/x/device[0]": DrivePolicy(limit=500),
                }
            ),
        ),
    )
    own = CostModel(CostCurve(((4096, 1.0),)), CostCurve(((4096, 3.0),)))
    assert found.storages == {
        "fast": StorageConfig(
            StoragePolicy(90000, 2.0, 0.5, 2.0, own),
            Path("/dev/nvme0n1"),
            Path("/var/lib/libvirt/images"),
            "rbd:pool",
            ("db1/vda", "web*/vd[bc]", "Windows 10/vda", "n/device[0]", "n//machine/x/device[0]"),
            ("/dev/zvol/tank/*", "/dev/nvme0n1"),
        ),
        "sda": StorageConfig(StoragePolicy()),
    }
    assert found.cgroup == CgroupConfig(enabled=False, margin=1.5)
    assert found.jobs == JobsConfig(bps=50_000_000)
    assert found.ceilings == (
        Ceiling(
            "a-1",
            VmPolicy(1000, 20_000, 40_000, 30),
            DrivePolicy(weight=200, latency_target_ms=5.0),
            10_000_000,
            "acme",
            ("acme-*", "Windows 10"),
        ),
        Ceiling("all", VmPolicy(limit=500), job_bps=50_000_000),
    )
    assert found.vms[0].policy.job_bps == 20_000_000


@pytest.mark.parametrize("text", ["", "# nothing\n", "[agent]\n[libvirt]\n[hook]\n[curve]\n"])
def test_what_is_not_written_has_its_default(text: str) -> None:
    found = parse(text.encode(), "agent.toml")
    assert found == Config()
    assert found.agent.socket == Path("/run/iokeel/agent.sock")
    assert found.agent.state_dir == Path("/var/lib/iokeel")
    assert found.agent.tick_seconds == 1.0
    assert found.agent.metrics_address is None
    assert found.libvirt == LibvirtConfig(enabled=True, uri="qemu:///system")
    assert found.hook.strict is False
    assert found.jobs.bps is None
    assert found.model == DEFAULT_MODEL
    assert found.classes == BUILTIN_CLASSES


def test_writes_cost_what_reads_cost_unless_they_have_a_curve() -> None:
    read = parse(b'[curve]\nread = [["4k", 2], ["8k", 3]]', "f").model
    assert read.same
    assert read.write == CostCurve(((4096, 2.0), (8192, 3.0)))
    write = parse(b'[curve]\nwrite = [["4k", 2]]', "f").model
    assert (write.read, write.write) == (DEFAULT_CURVE, CostCurve(((4096, 2.0),)))


def test_a_storages_curves_lack_what_the_agents_have() -> None:
    agent = '[curve]\nread = [["4k", 2]]\nwrite = [["4k", 5]]\n'
    two, three, five = (CostCurve(((4096, float(cost)),)) for cost in (2, 3, 5))
    for written, expected in (
        ("capacity = 1", None),
        ('curve_read = [["4k", 3]]', CostModel(three, three)),  # as in [curve]
        ('curve_write = [["4k", 3]]', CostModel(two, three)),
        ('curve_read = [["4k", 3]]\ncurve_write = [["4k", 5]]', CostModel(three, five)),
    ):
        found = parse(f"{agent}[storage.a]\n{written}".encode(), "f")
        assert found.storages["a"].policy.model == expected


@pytest.mark.parametrize(
    "uri", ["nbd+unix:///?socket=/run/my%20disk.sock", "nbd+unix:///?socket=/run/%C3%BC.sock"]
)
def test_a_network_storage_has_the_name_that_its_uri_says(uri: str) -> None:
    place = network_place(uri)
    assert place is not None
    (storage,) = parse(f"[storage.nbd]\nsource = '{place.name}'".encode(), "f").storages.values()
    assert storage.source == place.name


def test_a_configuration_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().hook = HookConfig(strict=True)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9632", ("127.0.0.1", 9632)),
        ("127.9.9.9:1", ("127.9.9.9", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_metrics_are_served_on_loopback(text: str, address: tuple[str, int]) -> None:
    found = parse(f'[agent]\nmetrics_address = "{text}"'.encode(), "f")
    assert found.agent.metrics_address == address


def test_metrics_are_served_beyond_loopback_with_a_web_configuration() -> None:
    text = '[agent]\nmetrics_address = "0.0.0.0:9632"\nmetrics_web_config = "/web.yml"'
    agent = parse(text.encode(), "f").agent
    assert (agent.metrics_address, agent.metrics_web_config) == (
        ("0.0.0.0", 9632),
        Path("/web.yml"),
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4k", 4096),
        ("4K", 4096),
        ("64KiB", 65536),
        ("1 MiB", 1 << 20),
        ("1g", 1 << 30),
        ("512", 512),
    ],
)
def test_sizes_are_binary(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "k", "4q", "-4k", "+4k", "4.5k", "4kk", "\u0664k", " 4k", "4k\n"]
)
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a size; give bytes, or write it like 4k or 1m"):
        parse_size(text)


def test_the_documented_examples_are_configurations() -> None:
    text = (Path(__file__).parents[4] / "docs/configuration.md").read_text()
    example, daemon, site, sold = re.findall("```toml\n(.*?)```", text, re.DOTALL)
    assert parse(daemon.encode(), "agent.toml").vms[0].policy.drives["alice"].limit == 5_000
    found = parse(example.encode(), "agent.toml")
    assert found.storages["fast"].policy.capacity == 90_000
    assert found.vms[0].policy.drives["disk0"].limit == 2_000
    (discover,) = found.discover
    assert discover.facts == PROXMOX_FACTS
    assert discover.vm("/run/qemu-server/100.qmp") == VmConfig(
        "100", Path("/run/qemu-server/100.qmp"), shared=True, by_rules=True
    )
    for other in ("/run/qemu-server/.qmp", "/run/qemu-server/a/b.qmp", "/run/qemu-server/100.qga"):
        assert discover.vm(other) is None
    assert [rule.name for rule in found.rules.rules] == ["io1"]
    rules = parse(site.encode(), "agent.toml").rules
    assert [rule.name for rule in rules.rules] == ["flavors", "projects", "rest"]
    assert [*rules.never()] == []
    assert parse(sold.encode(), "agent.toml").rules.rules[0].drives[0].sold == ("burst", "limit")


# Files


def test_a_file_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("[hook]\nstrict = true")
    assert load(file).hook.strict


def test_a_file_that_is_named_has_to_be_there(tmp_path: Path) -> None:
    for default_missing in (False, True):
        with pytest.raises(ConfigError, match="no such file; write it or give --config FILE"):
            load(tmp_path / "agent.toml", default_missing=default_missing)


@pytest.mark.skipif(DEFAULT_CONFIG.exists(), reason="this host has an agent.toml")
def test_without_a_file_defaults_hold_where_that_is_asked_for() -> None:
    assert load(default_missing=True) == Config()
    with pytest.raises(ConfigError, match=r"/etc/iokeel/agent\.toml: no such file"):
        load()


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read, Is a directory; see that it is a file"):
        load(tmp_path)
    with pytest.raises(ConfigError, match=r"/a\\x00: can't be read"):
        load(Path("/a\0"))


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.touch(mode=0)
    me = os.geteuid()
    if me == 0:  # who may read everything
        os.seteuid(65534)
    try:
        with pytest.raises(ConfigError, match="can't be read, Permission denied; see that it is"):
            load(file)
    finally:
        os.seteuid(me)


# Properties


def toml(value: object) -> str:
    """Return a value as TOML has it, in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value) if isinstance(value, bool) else repr(value)


WORDS = st.sampled_from(
    "agent libvirt hook curve classes tenants vm socket state_dir tick_seconds log_level "
    "metrics_address metrics_web_config enabled uri strict read write gold acme reservation limit "
    "burst burst_seconds weight latency_target_ms budget limit_read limit_write max_bytes "
    "start_credit_seconds name tenant class drives vda".split()
)
KEYS = WORDS | st.text(st.characters(codec="utf-8"), max_size=6)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.sampled_from(["/run/x", "gold", "4k", "separate", "info", "127.0.0.1:1", "qemu:///system"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def outcome(function: Callable[[], Any]) -> Any:
    """Return a function's result, or its ConfigError, which must be one line."""
    try:
        return function()
    except ConfigError as error:
        raised = error
    assert "\n" not in str(raised)
    assert raised.mend
    return raised


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_arbitrary_tables_raise_nothing_but_config_error(values: dict[str, Any]) -> None:
    outcome(lambda: validated(values, "f"))
    text = "\n".join(f"{json.dumps(k, ensure_ascii=False)} = {toml(v)}" for k, v in values.items())
    outcome(lambda: parse(text.encode(), "f"))


DRIVES = st.dictionaries(
    st.sampled_from(
        "reservation limit burst burst_seconds weight latency_target_ms budget limit_read"
        " limit_write max_bytes start_credit_seconds".split()
    ),
    st.integers(-1, 10_000) | st.floats() | st.sampled_from(["shared", "separate", "3k"]),
)


@settings(max_examples=300, deadline=None)
@given(DRIVES, DRIVES)
def test_what_is_accepted_holds_together(gold: dict[str, Any], drive: dict[str, Any]) -> None:
    vm = {"name": "a", "socket": "/a", "class": "gold", "drives": {"vda": drive}}
    text = f"classes = {toml({'gold': gold})}\nvm = {toml([vm])}"
    found = outcome(lambda: parse(text.encode(), "f"))
    if isinstance(found, ConfigError):
        return
    for policy in (found.classes["gold"], found.vms[0].policy.for_drive("vda")):
        assert policy.limit is None or policy.limit >= max(policy.reservation, 1)
        assert policy.burst is None or (policy.limit is not None and policy.burst >= policy.limit)
        assert 1 <= policy.weight <= 10_000
        for own in (policy.limit_read, policy.limit_write):
            assert own is None or (policy.limit is not None and own <= policy.limit)
            assert own is None or policy.separate_budgets
    for key, value in drive.items():
        if key == "budget":
            assert found.vms[0].policy.for_drive("vda").separate_budgets == (value == "separate")
        elif value == "3k":
            assert found.vms[0].policy.for_drive("vda").max_bytes == 3000
        else:
            assert getattr(found.vms[0].policy.for_drive("vda"), key) == value


@given(st.binary() | st.text(st.sampled_from("[]{}=\"'\n\\#.,0x1-T:aé\r\t ")).map(str.encode))
def test_arbitrary_bytes_raise_nothing_but_config_error(data: bytes) -> None:
    outcome(lambda: parse(data, "f"))


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 1 << 18), st.floats(0.01, 1e6)),
        min_size=1,
        max_size=32,
        unique_by=lambda point: point[0],
    )
)
def test_a_valid_curve_is_read_as_written(points: list[tuple[int, float]]) -> None:
    sizes, costs = sorted(size for size, _ in points), sorted(cost for _, cost in points)
    written = [
        [f"{size}k" if size % 2 else size * 1024, cost]
        for size, cost in zip(sizes, costs, strict=True)
    ]
    found = parse(f"[curve]\nread = {toml(written)}".encode(), "f").model
    assert found.same
    assert found.read.points == tuple(
        (size * 1024, cost) for size, cost in zip(sizes, costs, strict=True)
    )
