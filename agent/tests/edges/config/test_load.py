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

from iokeel.config import load as config
from iokeel.config.load import load, parse
from iokeel.config.settings import (
    Address,
    AgentConfig,
    CgroupConfig,
    Config,
    HookConfig,
    LibvirtConfig,
    StorageConfig,
    VmConfig,
)
from iokeel.config.validation import validated
from iokeel.core.curve import DEFAULT_CURVE, DEFAULT_MODEL, CostCurve, CostModel
from iokeel.core.policy import BUILTIN_CLASSES, DomainPolicy, DrivePolicy, TenantPolicy
from iokeel.core.sharing.storage import StoragePolicy
from iokeel.errors import ConfigError
from iokeel.words.units import parse_size

EVERYTHING = """
[agent]
socket = "/run/x/agent.sock"
state_dir = "/var/lib/x"
tick_seconds = 2
log_level = "debug"
metrics_address = "[::1]:9632"

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

[tenants.acme]
reservation = 1000
limit = 9000
weight = 300
[tenants.other]

[storage.fast]
device = "/dev/nvme0n1"
path = "/var/lib/libvirt/images"
source = "rbd:pool"
drives = ["db1/vda", "web*/vd[bc]"]
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

[[vm]]
name = "db1"
socket = "/run/db1.qmp"
tenant = "acme"
class = "gold"
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
"""


def said(text: str | bytes) -> str:
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(ConfigError) as caught:
        parse(data, "agent.toml")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert caught.value.mend
    return str(caught.value)


# Good ones


def test_every_key_is_read_into_the_cores_types() -> None:
    found = parse(EVERYTHING.encode(), "agent.toml")
    gold = DrivePolicy(limit=5000)
    assert found.agent == AgentConfig(
        Path("/run/x/agent.sock"), Path("/var/lib/x"), 2.0, "debug", Address("::1", 9632)
    )
    assert found.libvirt == LibvirtConfig(False, "qemu:///session")
    assert found.hook == HookConfig(True)
    assert found.model.read.points == ((4096, 1.0), (65536, 10.0), (1048576, 150.5))
    assert found.model.write.points == ((4096, 2.0),)
    assert found.classes == {
        **BUILTIN_CLASSES,
        "gold": gold,
        "x.y-1": DrivePolicy(10, 20, 40, 30, 50, 5.0, True),
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
            ),
        ),
        VmConfig("web1", Path("/run/web1.qmp"), DomainPolicy({"vda": DrivePolicy(limit=400)})),
    )
    own = CostModel(CostCurve(((4096, 1.0),)), CostCurve(((4096, 3.0),)))
    assert found.storages == {
        "fast": StorageConfig(
            StoragePolicy(90000, 2.0, 0.5, 2.0, own),
            Path("/dev/nvme0n1"),
            Path("/var/lib/libvirt/images"),
            "rbd:pool",
            ("db1/vda", "web*/vd[bc]"),
        ),
        "sda": StorageConfig(StoragePolicy()),
    }
    assert found.cgroup == CgroupConfig(False, 1.5)


@pytest.mark.parametrize("text", ["", "# nothing\n", "[agent]\n[libvirt]\n[hook]\n[curve]\n"])
def test_what_is_not_written_has_its_default(text: str) -> None:
    found = parse(text.encode(), "agent.toml")
    assert found == Config()
    assert found.agent.socket == Path("/run/iokeel/agent.sock")
    assert found.agent.state_dir == Path("/var/lib/iokeel")
    assert found.agent.tick_seconds == 1.0
    assert found.agent.metrics_address is None
    assert found.libvirt == LibvirtConfig(True, "qemu:///system")
    assert found.hook.strict is False
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


def test_a_configuration_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().hook = HookConfig(True)  # type: ignore[misc]


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
    example, daemon = re.findall("```toml\n(.*?)```", text, re.DOTALL)
    assert parse(daemon.encode(), "agent.toml").vms[0].policy.drives["alice"].limit == 5_000
    found = parse(example.encode(), "agent.toml")
    assert found.storages["fast"].policy.capacity == 90_000
    assert found.vms[0].policy.drives["disk0"].limit == 2_000


# Bad ones, with the error of each

VM = '[[vm]]\nname = "a"\nsocket = "/a"\n'
OUTSIDE = (
    "is not a loopback address, and anybody may read metrics there; "
    "write 127.0.0.1 or [::1], and put a proxy with a login before it"
)
SYNTAX = "write each key = value on a line of its own, and texts in quotes"
NAME = "is not a name; give 1 to 64 of the characters A-Z a-z 0-9 _ . -"
MESSAGES = [
    # Unknown keys
    ("[agent]\ntick_second = 1", ", [agent] tick_second: not known; did you mean 'tick_seconds'?"),
    ("[agnet]\nsocket = '/a'", ", agnet: not known; did you mean 'agent'?"),
    ("[[vms]]", ", vms: not known; did you mean 'vm'?"),
    ("[libvirt]\nurl = 'x'", ", [libvirt] url: not known; did you mean 'uri'?"),
    ("[hook]\nqqq = 1", ", [hook] qqq: not known; known: strict"),
    ("[curve]\nreads = []", ", [curve] reads: not known; did you mean 'read'?"),
    ("[classes.gold]\nlimt = 1", ", [classes.gold] limt: not known; did you mean 'limit'?"),
    (
        "[classes.gold]\nburst-seconds = 1",
        ", [classes.gold] burst-seconds: not known; did you mean 'burst_seconds'?",
    ),
    ("[tenants.a]\nwieght = 1", ", [tenants.a] wieght: not known; did you mean 'weight'?"),
    # The typing error, and not the key that is missing for it.
    ('[[vm]]\nname = "a"\nsockt = "/a"', ", [[vm]] 1 sockt: not known; did you mean 'socket'?"),
    (VM + "clas = 'gold'", ", [[vm]] 1 clas: not known; did you mean 'class'?"),
    (
        VM + "[vm.drives.vda]\nlimitt = 1",
        ", [[vm]] 1, [vm.drives.vda] limitt: not known; did you mean 'limit'?",
    ),
    (
        '["a b"]\nx = 1',
        ", 'a b': not known; known: agent, cgroup, classes, curve, hook, libvirt, storage, "
        "tenants, vm",
    ),
    # Wrong types
    ("agent = 1", ", agent: 1 is not a table; write it as a [table] of its own"),
    ("[[agent]]", ", agent: [{}] is not a table; write it as a [table] of its own"),
    ("[agent]\nsocket = 5", ", [agent] socket: 5 is not a text; write it in quotes"),
    (
        "[agent]\ntick_seconds = '1'",
        ", [agent] tick_seconds: '1' is not a number; write it in digits, without quotes",
    ),
    (
        "[agent]\ntick_seconds = true",
        ", [agent] tick_seconds: True is not a number; write it in digits, without quotes",
    ),
    (
        "[agent]\ntick_seconds = nan",
        ", [agent] tick_seconds: nan is not a number to reckon with; write it like 2.5",
    ),
    (
        "[hook]\nstrict = 'yes'",
        ", [hook] strict: 'yes' is not true or false; write true or false, without quotes",
    ),
    (
        "[libvirt]\nenabled = 1",
        ", [libvirt] enabled: 1 is not true or false; write true or false, without quotes",
    ),
    (
        "[classes.gold]\nlimit = '5'",
        ", [classes.gold] limit: '5' is not a whole number; "
        "write it like 500, without quotes or fraction",
    ),
    (
        "[classes.gold]\nlimit = 5.0",
        ", [classes.gold] limit: 5.0 is not a whole number; "
        "write it like 500, without quotes or fraction",
    ),
    (
        "[classes.gold]\nlimit = true",
        ", [classes.gold] limit: True is not a whole number; "
        "write it like 500, without quotes or fraction",
    ),
    ("classes.gold = 5", ", [classes] gold: 5 is not a table; write it as a [table] of its own"),
    (
        "[vm]\nname = 'a'",
        ", vm: {'name': 'a'} is not a list; write a curve as [[size, cost], ...], "
        'drives as ["VM/DRIVE", ...], and [[vm]] for each VM',
    ),
    ("vm = [5]", ", [[vm]] 1: 5 is not a table; write it as a [table] of its own"),
    (VM + "drives = 5", ", [[vm]] 1 drives: 5 is not a table; write it as a [table] of its own"),
    # Values
    ("[agent]\ntick_seconds = 0.1", ", [agent] tick_seconds: is 0.1; give at least 0.2"),
    ("[agent]\ntick_seconds = 11", ", [agent] tick_seconds: is 11; give at most 10"),
    (
        "[agent]\nlog_level = 'loud'",
        ", [agent] log_level: 'loud' is not known; give 'debug', 'info', 'warning' or 'error'",
    ),
    (
        "[agent]\nsocket = 'agent.sock'",
        ", [agent] socket: 'agent.sock' is not an absolute path; write it from / on",
    ),
    (
        f"[agent]\nsocket = '/{'x' * 107}'",
        ", [agent] socket: 108 bytes are too long for a unix socket; "
        "give a path of at most 107 bytes",
    ),
    (
        '[agent]\nstate_dir = "/a\\u0000"',
        ", [agent] state_dir: '/a\\x00' is not an absolute path; write it from / on",
    ),
    (
        "[libvirt]\nuri = 'x'",
        ", [libvirt] uri: 'x' is not a libvirt URI; write it like qemu:///system",
    ),
    *(
        (f"[agent]\nmetrics_address = '{address}'", f", [agent] metrics_address: {message}")
        for address, message in [
            ("0.0.0.0:9632", f"0.0.0.0 {OUTSIDE}"),
            ("[::]:9632", f":: {OUTSIDE}"),
            ("192.0.2.1:9632", f"192.0.2.1 {OUTSIDE}"),
            ("localhost:1", "'localhost' is not an IP address; write 127.0.0.1 or [::1]"),
            ("127.0.0.1", "'127.0.0.1' is not an address and port; write it like 127.0.0.1:9632"),
            ("::1:9632", "'::1:9632' is not an address and port; write it like 127.0.0.1:9632"),
            (":9632", "'' is not an IP address; write 127.0.0.1 or [::1]"),
            (
                "127.0.0.1:0",
                "'127.0.0.1:0' is not an address and port; write it like 127.0.0.1:9632",
            ),
            (
                "127.0.0.1:65536",
                "'127.0.0.1:65536' is not an address and port; write it like 127.0.0.1:9632",
            ),
        ]
    ),
    # Policies
    (
        "[classes.gold]\nlimit = 5\nreservation = 6",
        ", [classes.gold]: limit 5 is below reservation 6; "
        "raise the limit or lower the reservation",
    ),
    (
        "[classes.gold]\nlimit = 5\nburst = 4",
        ", [classes.gold]: burst 4 is below limit 5; raise the burst or leave it out",
    ),
    ("[classes.gold]\nburst = 4", ", [classes.gold]: burst 4 without a limit; give a limit"),
    (
        "[classes.gold]\nlimit = 0",
        ", [classes.gold]: limit is 0; give 1 to 100000000, or leave it out",
    ),
    (
        "[classes.gold]\nburst_seconds = -1",
        ", [classes.gold]: burst_seconds is -1; give 0 to 3600",
    ),
    (
        "[classes.gold]\nlatency_target_ms = -1",
        ", [classes.gold]: latency_target_ms is -1.0; give 0.001 to 60000, or leave it out",
    ),
    (
        f"[classes.gold]\nlimit = {10**16}",
        ", [classes.gold] limit: is 10000000000000000; give at most 1000000000000000",
    ),
    (
        f"[classes.gold]\nlimit = 0x{'f' * 9000}",
        ", [classes.gold] limit: is <int>; give at most 1000000000000000",
    ),
    (
        "[classes.gold]\nbudget = 'both'",
        ", [classes.gold] budget: 'both' is not known; give 'shared' or 'separate'",
    ),
    ('[classes."a b"]', f", [classes] 'a b': 'a b' {NAME}"),
    ("[tenants.a]\nweight = 0", ", [tenants.a]: weight is 0; give 1 to 10000"),
    # Storage and cgroups
    (
        "[storage.a]\ncapcity = 5",
        ", [storage.a] capcity: not known; did you mean 'capacity'?",
    ),
    ("[cgroup]\nmargn = 5", ", [cgroup] margn: not known; did you mean 'margin'?"),
    ("[storage.a]\ncapacity = 0", ", [storage.a] capacity: is 0; give at least 1"),
    ("[storage.a]\ncapacity = -5", ", [storage.a] capacity: is -5; give at least 1"),
    (
        "[storage.a]\ncapacity = 1.5",
        ", [storage.a] capacity: 1.5 is not a whole number; "
        "write it like 500, without quotes or fraction",
    ),
    (
        f"[storage.a]\ncapacity = {10**9}",
        ", [storage.a] capacity: is 1000000000; give at most 100000000",
    ),
    (
        "[storage.a]\nlatency_target_ms = 0",
        ", [storage.a] latency_target_ms: is 0; give at least 0.001",
    ),
    ("[storage.a]\nleast_ratio = 2", ", [storage.a] least_ratio: is 2; give at most 1"),
    ("[storage.a]\nleast_ratio = 0", ", [storage.a] least_ratio: is 0; give at least 0.01"),
    ("[storage.a]\nmost_ratio = 0.5", ", [storage.a] most_ratio: is 0.5; give at least 1"),
    (
        "[storage.a]\ndevice = 'sda'",
        ", [storage.a] device: 'sda' is not an absolute path; write it from / on",
    ),
    (
        "[storage.a]\nsource = '/dev/sda'",
        ", [storage.a] source: '/dev/sda' is not a network storage; write it like rbd:pool, "
        "nbd:host:10809 or iscsi:host:3260/iqn.2001-01.com.example:t",
    ),
    (
        "[storage.a]\ndrives = ['db1']",
        ", [storage.a] drives drive 1: 'db1' is not a drive; write VM/DRIVE, such as \"web*/vdb\"",
    ),
    (
        "[storage.a]\ndrives = 'db1/vda'",
        ", [storage.a] drives: 'db1/vda' is not a list; write a curve as [[size, cost], ...], "
        'drives as ["VM/DRIVE", ...], and [[vm]] for each VM',
    ),
    (
        "[storage.a]\ncurve_read = []",
        ", [storage.a] curve_read: 0 points; give 1 to 32",
    ),
    (
        "[storage.a]\ncurve_write = [['4k', 0]]",
        ", [storage.a] curve_write point 1: is 0; give more than 0",
    ),
    (
        "[storage.a]\ndevice = '/dev/sda'\n[storage.b]\ndevice = '/dev/sda'",
        ", [storage.b] device: '/dev/sda' is [storage.a]'s already; give each storage its own",
    ),
    ('[storage."a b"]', f", [storage] 'a b': 'a b' {NAME}"),
    ("[cgroup]\nmargin = 0.9", ", [cgroup] margin: is 0.9; give at least 1"),
    # VMs
    ("[[vm]]\nname = 'a'", ", [[vm]] 1 socket: is missing; add it"),
    ("[[vm]]\nname = 'a/b'\nsocket = '/a'", f", [[vm]] 1 name: 'a/b' {NAME}"),
    (
        VM + "class = 'gld'",
        ", [[vm]] 1: class 'gld' is not known; give one that is: bronze, gold, silver",
    ),
    (
        VM + "[vm.drives.vda]\nclass = 'gld'",
        ", [[vm]] 1, [vm.drives.vda]: class 'gld' is not known; "
        "give one that is: bronze, gold, silver",
    ),
    (
        VM + "class = 'silver'\n[vm.drives.vda]\nreservation = 5000",
        ", [[vm]] 1, [vm.drives.vda]: limit 4000 is below reservation 5000; "
        "raise the limit or lower the reservation",
    ),
    (
        VM + VM.replace("/a", "/b"),
        ", [[vm]] 2 name: 'a' is another VM's name already; give each VM its own",
    ),
    (
        VM + VM.replace('"a"', '"b"').replace("/a", "/./a"),
        ", [[vm]] 2 socket: '/a' is another VM's socket already; give each VM its own",
    ),
    # Curves
    (
        "[curve]\nread = [['4q', 1]]",
        ", [curve] read point 1: size '4q' is not a size; give bytes, or write it like 4k or 1m",
    ),
    (
        "[curve]\nread = [['4k', 1], 5]",
        ', [curve] read point 2: 5 is not a point; write [size, cost], such as ["4k", 1.0]',
    ),
    ("[curve]\nread = [['4k', 0]]", ", [curve] read point 1: is 0; give more than 0"),
    ("[curve]\nread = [['0k', 1]]", ", [curve] read point 1: is 0; give more than 0"),
    (
        "[curve]\nread = [['2g', 1]]",
        ", [curve] read point 1: is 2147483648; give at most 1073741824",
    ),
    (
        "[curve]\nread = [['4k', inf]]",
        ", [curve] read point 1: inf is not a number to reckon with; write it like 2.5",
    ),
    ("[curve]\nread = []", ", [curve] read: 0 points; give 1 to 32"),
    (
        "[curve]\nwrite = [['8k', 1], ['4k', 2]]",
        ", [curve] write: size 4096 after 8192; give sizes in ascending order",
    ),
    (
        "[curve]\nwrite = [['4k', 2], ['8k', 1]]",
        ", [curve] write: cost falls from 2 at 4096 to 1 at 8192; costs must not fall",
    ),
    # Not TOML
    (
        "[agent]\nsocket",
        f", line 2: not TOML, Expected '=' after a key in a key/value pair; {SYNTAX}",
    ),
    ("\n\nx = = 1", f", line 3, column 5: not TOML, Invalid value; {SYNTAX}"),
    (
        "[hook]\nstrict = true\nstrict = true\n",
        f", line 3, column 14: not TOML, Cannot overwrite a value; {SYNTAX}",
    ),
    (
        f"x = {'9' * 5000}",
        ": can't be read as TOML; no number here is that long and no list that deep",
    ),
    (
        f"x = {'[' * 5000}",
        ": can't be read as TOML; no number here is that long and no list that deep",
    ),
    (b"[hook]\nx = '\xff'", ", line 2: not UTF-8; save it as UTF-8"),
]


@pytest.mark.parametrize(("text", "message"), MESSAGES, ids=[m[:60] for _, m in MESSAGES])
def test_what_is_wrong_is_said_in_a_line_with_the_mend(text: str | bytes, message: str) -> None:
    assert said(text) == f"agent.toml{message}"


# Files


def test_a_file_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("[hook]\nstrict = true")
    assert load(file).hook.strict


def test_a_file_that_is_named_has_to_be_there(tmp_path: Path) -> None:
    for default_missing in (False, True):
        with pytest.raises(ConfigError, match="no such file; write it or give --config FILE"):
            load(tmp_path / "agent.toml", default_missing=default_missing)


@pytest.mark.skipif(config.DEFAULT_CONFIG.exists(), reason="this host has an agent.toml")
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
    "metrics_address enabled uri strict read write gold acme reservation limit burst "
    "burst_seconds weight latency_target_ms budget name tenant class drives vda".split()
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
        "reservation limit burst burst_seconds weight latency_target_ms budget".split()
    ),
    st.integers(-1, 10_000) | st.floats() | st.sampled_from(["shared", "separate"]),
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
    for key, value in drive.items():
        if key == "budget":
            assert found.vms[0].policy.for_drive("vda").separate_budgets == (value == "separate")
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
