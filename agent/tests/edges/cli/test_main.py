"""The command as its operator types it: a process of its own, its output and its exit status."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from iokeel import __version__
from testing.agents import IOKEEL, Agent, Done, iokeel
from testing.waiting import eventually
from tests.unit.cli.reports import drive, vm

KIB = 1024
KEYS = [
    "size_bytes",
    "cost",
    *("min_iops", "max_iops", "burst_iops"),
    *("min_bps", "max_bps", "burst_bps"),
]
GOOD = '<policy xmlns="urn:iokeel:policy:1" class="gold"><drive target="vda" limit="500"/></policy>'
TEN_MINUTES = "the agent keeps ten minutes; give a time from 1s to 10m"
START = "start the agent (systemctl start iokeel)"
NONE_THERE = f"is not there; {START}, or give its socket by --socket"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.xml"
    file.write_text(GOOD)
    return file


def table(*words: str) -> list[dict[str, Any]]:
    done = iokeel("curve", "table", "--json", *words)
    assert (done.status, done.err) == (0, "")
    rows: list[dict[str, Any]] = json.loads(done.out)
    return rows


def refused(status: int, *words: str | Path, **more: Any) -> str:
    """Run a command that has to fail, with one line and nothing else, and return the line."""
    done = iokeel(*words, **more)
    assert (done.status, done.out) == (status, "")
    return done.complaint


# curve table


def test_costs_are_those_published() -> None:
    rows = table("--sizes", "512,4k,5k,8k,12k,24k,40K,64 KiB,1m")
    costs = {row["size_bytes"]: row["cost"] for row in rows}
    published = {4: 100, 5: 115, 8: 160, 12: 215, 24: 385, 40: 625, 64: 1000, 1024: 15000}
    assert costs == {512: 100} | {kib * KIB: cost for kib, cost in published.items()}


def test_rates_are_those_published() -> None:
    rows = {row["size_bytes"] // KIB: row for row in table("--max", "15000")}
    assert [rows[kib]["max_iops"] for kib in (4, 8, 16, 256)] == [15000, 9375, 5556, 385]
    (row,) = table("--min", "20000", "--max", "40000", "--burst", "50000", "--sizes", "8k")
    assert list(row) == KEYS
    assert [row[f"{name}_iops"] for name in ("min", "max", "burst")] == [12500, 25000, 31250]
    mib_s = [round(row[f"{name}_bps"] / KIB**2) for name in ("min", "max", "burst")]
    assert mib_s == [98, 195, 244]


def test_default_sizes_are_whole_kib_and_then_powers_of_two() -> None:
    sizes = [row["size_bytes"] for row in table()]
    assert sizes == [kib * KIB for kib in [*range(4, 257), 512, 1024]]
    assert all(row["max_iops"] is None for row in table())


def test_the_table_is_for_people() -> None:
    done = iokeel("curve", "table", "--max", "40000", "--sizes", "8k,1m")
    assert done.out.splitlines() == [
        " size  cost (1/100)  max iops   max rate",
        "8 KiB           160     25000  195 MiB/s",
        "1 MiB         15000       267  267 MiB/s",
        "",
        "Zeroes cost what data of their size does; stock QEMU forgives what takes over 3 s.",
        "Flushes cost nothing. Discards cost nothing by iotune or block_set_io_throttle;",
        "at a throttle filter, stock QEMU charges them as data, and a patched one at most",
        "as the largest size of the curve.",
    ]


@pytest.mark.parametrize("sizes", ["0", "-1", "4x", "", "4k,,8k", "4k;8k", "4.5k", "\u0661k"])
def test_what_is_no_size_is_named(sizes: str) -> None:
    assert refused(2, "curve", "table", f"--sizes={sizes}").startswith("--sizes")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--min 5 --max 3", "--max: 3 is below --min 5"),
        ("--max 5 --burst 3", "--burst: 3 is below --max 5"),
        ("--min 5 --burst 3", "--burst: 3 is below --min 5"),
    ],
)
def test_rates_out_of_order_are_a_slip(words: str, said: str) -> None:
    mend = "give --min, --max and --burst in ascending order"
    assert refused(2, "curve", "table", *words.split()) == f"{said}; {mend}"


def test_equal_rates_are_in_order() -> None:
    assert table("--min", "5", "--max", "5", "--burst", "5", "--sizes", "4k")[0]["min_iops"] == 5


@pytest.mark.parametrize("rate", ["0", "-5", "x", "1.5", "1" + "0" * 400])
def test_what_is_no_rate_is_named(rate: str) -> None:
    assert "--max" in refused(2, "curve", "table", "--max", rate)


def test_a_curve_comes_from_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text("[curve]\nread = [['4k', 2.0]]\nwrite = [['4k', 3.5]]\n")
    row = table("--sizes", "4k", "--config", str(config))[0]
    assert row["cost"] == 200
    assert table("--sizes", "4k", "--config", str(config), "--writes")[0]["cost"] == 350


def test_a_storages_curve_is_its_own_or_that_of_all(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(
        "[curve]\nread = [['4k', 2.0]]\n[storage.plain]\npath = '/dev/a'\n"
        "[storage.pool]\npath = '/dev/b'\ncurve_read = [['4k', 1], ['64k', 2.2], ['1m', 24]]\n"
    )
    given = ("--config", str(config), "--max", "4000", "--sizes", "4k,64k,1m")
    rows = table("--storage", "pool", *given)
    assert [row["max_iops"] for row in rows] == [4000, 1818, 167]
    assert {row["cost"] for row in table("--storage", "plain", *given)} == {200}
    said = "--storage: 'poll' is not in the configuration; did you mean 'pool'?"
    assert refused(2, "curve", "table", "--storage", "poll", *given) == said


# policy check


def test_a_good_policy_is_shown(policy: Path) -> None:
    done = iokeel("policy", "check", policy)
    assert (done.status, done.err) == (0, "")
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[1][:4] == ["vda", "500", "500", "20k"]
    assert lines[2][:2] == ["every", "other"]


def test_limits_at_which_large_requests_wait_for_long_are_warned_of(
    policy: Path, tmp_path: Path
) -> None:
    config = tmp_path / "agent.toml"
    config.write_text("[classes.tiny]\nlimit = 3\n[tenants.acme]\nlimit = 20\n")
    policy.write_text(
        GOOD.replace('limit="500"', 'limit="1"').replace('"gold"', '"tiny" tenant="acme"')
    )
    done = iokeel("policy", "check", policy, "--config", config)
    assert done.status == 0
    assert [line.split()[-2:] for line in done.out.splitlines()[1:]] == [["2", "min"], ["50", "s"]]
    whats = ("limit of vda, 1", "limit of every other, 3", "limit of tenant acme, 20")
    waits = ("2 min", "50 s", "7.5 s")  # 150 by the published table
    assert done.err.splitlines() == [
        f"iokeel: {policy}: at the {what}, one request of 1 MiB waits {wait}, and all others behind"
        " it; give 31 or more"
        for what, wait in zip(whats, waits, strict=True)
    ]
    done = iokeel("policy", "check", policy, "--config", config, "--json")
    assert json.loads(done.out)["large_waits_s"] == {"vda": 150, "every other": 50}
    assert len(json.loads(done.out)["warnings"]) == 3


@pytest.mark.parametrize("name", ["acme-1", "db1"])
def test_a_policy_that_asks_for_more_than_the_ceiling_is_shown_as_it_will_be(
    policy: Path, tmp_path: Path, name: str
) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(
        "[ceilings.small]\ndomains = ['acme-*']\nlimit = 300\n[ceilings.all]\nlimit = 400\n"
    )
    disks = "<devices><disk type='file' device='disk'><target dev='vda'/></disk></devices>"
    domain = f"<domain><name>{name}</name><metadata>{GOOD}</metadata>{disks}</domain>"
    policy.write_text(domain.replace("class", 'tenant="t" class'))
    done = iokeel("policy", "check", policy, "--config", config, "--json")
    ceiling, most = ("small", 300) if name == "acme-1" else ("all", 400)
    told = json.loads(done.out)
    assert (done.status, told["drives"]["vda"]["limit"]) == (0, most)
    assert f"the policy asks for more than [ceilings.{ceiling}] gives: " in done.err
    assert f"vda limit 500 -> {most}, " in done.err
    policy.write_text("<domain><name>acme-1</name><metadata/></domain>")
    assert "has no policy" in refused(1, "policy", "check", policy, "--config", config)


def test_a_policy_is_read_from_standard_input() -> None:
    done = iokeel("policy", "check", "-", "--json", stdin=GOOD.encode())
    assert done.status == 0
    assert json.loads(done.out)["drives"]["vda"]["limit"] == 500


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("limit", "limt"), "did you mean 'limit'?"),
        (GOOD.replace("500", "-500"), "-500"),
        (GOOD.replace("gold", "golden"), "golden"),
        ("<policy", "line 1"),
        ("", "standard input"),
        ("\0", "standard input"),
        ("<domain><name>a</name></domain>", "has no policy"),
    ],
)
def test_a_bad_policy_is_not_so(text: str, said: str) -> None:
    assert said in refused(1, "policy", "check", "-", stdin=text.encode())


def test_a_target_that_the_domain_lacks_is_named(policy: Path) -> None:
    disk = "<devices><disk type='file' device='disk'><target dev='vdb'/></disk></devices>"
    policy.write_text(f"<domain><name>a</name><metadata>{GOOD}</metadata>{disk}</domain>")
    said = refused(1, "policy", "check", policy)
    assert "the policy names vda, but there is no such drive; correct" in said
    assert said.endswith("the domain has vdb")


def test_a_target_that_may_be_from_qemus_command_line_is_taken_with_a_word(policy: Path) -> None:
    disk = "<devices><disk type='file' device='disk'><target dev='vdb'/></disk></devices>"
    arguments = "<q:commandline xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0'/>"
    text = f"<domain><name>a</name><metadata>{GOOD}</metadata>{disk}{arguments}</domain>"
    policy.write_text(text)
    done = iokeel("policy", "check", policy, "--json")
    assert done.status == 0
    assert done.complaint.endswith(
        "vda: no disk of libvirt's, so the agent looks for it among the drives of QEMU's command"
        " line once the domain runs"
    )
    assert '"vda"' in done.out


def test_a_disk_that_cant_be_limited_is_not_promised_a_limit(policy: Path) -> None:
    disks = """<devices><disk type="file" device="disk"><target dev="vda"/></disk>
        <disk type="vhostuser"><target dev="vdb"/></disk></devices>"""
    xml = f"<domain><name>a</name><metadata>{GOOD}</metadata>{disks}</domain>"
    said = (
        f"{policy}: vdb can't be limited (the I/O of a vhost-user disk doesn't pass QEMU); attach"
        " another kind of disk if it has to be limited"
    )
    policy.write_text(xml)  # by its class
    for words, promised in ((("--json",), '"vda"'), ((), "vda ")):
        done = iokeel("policy", "check", policy, *words)
        assert (done.status, done.complaint) == (0, said)
        assert promised in done.out
        assert "vdb" not in done.out
    policy.write_text(xml.replace("</policy>", '<drive target="vdb" limit="9"/></policy>'))
    assert refused(1, "policy", "check", policy) == said


@pytest.mark.parametrize("disks", ["", "<disk device='cdrom'><target dev='sda'/></disk>"])
def test_a_domain_without_disks_is_promised_nothing(policy: Path, disks: str) -> None:
    domain = f"<domain><name>a</name><metadata>{{}}</metadata><devices>{disks}</devices></domain>"
    policy.write_text(domain.format(GOOD))
    said = refused(1, "policy", "check", policy)
    assert "the policy names vda, but there is no such drive; correct" in said
    policy.write_text(domain.format(GOOD.replace('<drive target="vda" limit="500"/>', "")))
    done = iokeel("policy", "check", policy)
    assert (done.status, len(done.out.splitlines())) == (0, 1)


def test_a_disk_whose_throttle_group_has_others_is_not_promised_a_limit(policy: Path) -> None:
    filters = "<throttlefilters><throttlefilter group='a'/></throttlefilters>"
    disks = "".join(f"<disk><target dev='{name}'/>{filters}</disk>" for name in ("vdb", "vdc"))
    disks += "<disk><target dev='vda'/></disk>"
    domain = f"<domain><name>a</name><metadata>{GOOD}</metadata><devices>{disks}</devices></domain>"
    policy.write_text(domain)
    done = iokeel("policy", "check", policy)
    why = "each of its throttle groups, 'a', has other disks"
    said = (
        f"{policy}: vdb can't be limited ({why}), vdc can't be limited ({why}); give each a"
        " throttlefilter with a group of its own"
    )
    assert (done.status, done.complaint) == (0, said)
    assert [line.split()[0] for line in done.out.splitlines()[1:]] == ["vda"]
    policy.write_text(domain.replace("</policy>", '<drive target="vdb" limit="9"/></policy>'))
    assert refused(1, "policy", "check", policy) == said


def test_two_policies_in_one_group_are_refused_with_the_mend(policy: Path) -> None:
    group = "<iotune><total_iops_sec>9</total_iops_sec><group_name>a</group_name></iotune>"
    disks = "".join(f"<disk><target dev='{name}'/>{group}</disk>" for name in ("vda", "vdb", "vdc"))
    domain = f"<domain><name>a</name><metadata>{GOOD}</metadata><devices>{disks}</devices></domain>"
    policy.write_text(domain.replace("</policy>", '<drive target="vdb" limit="9"/></policy>'))
    assert refused(1, "policy", "check", policy) == (
        f"{policy}: vda, vdb and vdc share the <iotune> group 'a', but their policies differ, and"
        " a limit holds all of them together, so the lowest counts for each; give these disks the"
        " same policy, or each a group_name of its own"
    )


def test_classes_come_from_the_configuration(tmp_path: Path, policy: Path) -> None:
    policy.write_text(GOOD.replace("gold", "platinum"))
    assert "platinum" in refused(1, "policy", "check", policy)
    config = tmp_path / "agent.toml"
    config.write_text("[classes.platinum]\nlimit = 90000\n")
    assert iokeel("policy", "check", policy, "--config", config).status == 0
    config.write_text("[classes.platinum]\nlimt = 90000\n")
    assert "did you mean 'limit'?" in refused(2, "policy", "check", policy, "--config", config)
    assert "no such file" in refused(2, "policy", "check", policy, "--config", tmp_path / "none")


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    mend = "give a readable file, - or a VM"
    said = refused(2, "policy", "check", tmp_path)
    assert said == f"{tmp_path}: can't be read, is a directory; {mend}"
    said = refused(2, "policy", "check", tmp_path / "none.xml")
    assert said == f"{tmp_path}/none.xml: no such file; give a file, - or a VM"
    assert "too long" in refused(2, "policy", "check", "x" * 5000)


def test_a_word_that_is_neither_file_nor_vm_is_not_so(tmp_path: Path) -> None:
    path = tmp_path / "s"
    said = refused(1, "policy", "check", "db1", "--socket", path)
    assert said == f"'db1': no such file, and {path}: {NONE_THERE}"


def test_a_folder_hides_no_vm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "db1").mkdir()
    said = refused(1, "policy", "check", "db1", "--socket", tmp_path / "s")
    assert said.startswith("'db1': no such file, and ")


def test_a_disk_is_not_read_whole(tmp_path: Path, policy: Path) -> None:
    disk = tmp_path / "db1"
    with disk.open("wb") as file:
        file.truncate(1 << 40)
    assert refused(1, "policy", "check", disk).startswith(f"{disk}: more than 2097152 bytes")
    assert "more than" in refused(1, "policy", "check", "-", stdin=bytes((2 << 20) + 1))
    policy.write_bytes(policy.read_bytes().ljust(2 << 20))
    assert iokeel("policy", "check", policy).status == 0


# Questions to the agent


ASKING = [
    ["stats"],
    ["stats", "db1", "--json"],
    ["why", "db1"],
    ["top"],
    ["history", "db1", "vda"],
    ["recommend"],
    ["report"],
]


@pytest.mark.parametrize("words", ASKING)
def test_without_an_agent_the_mend_is_said(words: list[str], short_folder: Path) -> None:
    path = short_folder / "none.sock"
    assert refused(1, *words, "--socket", path) == f"{path}: {NONE_THERE}"
    assert refused(1, *words, environment={"IOKEEL_SOCKET": str(path)}) == f"{path}: {NONE_THERE}"


def test_a_stale_socket_is_told_from_none(short_folder: Path) -> None:
    path = short_folder / "stale.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    said = refused(1, "stats", "--socket", path)
    assert said == f"{path}: no agent serves it; {START}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_without_permission_the_mend_is_said(agent: Agent) -> None:
    said = refused(1, "stats", "--socket", agent.socket, nobody=True)
    mend = "run as root or as a member of the socket's group"
    assert said == f"{agent.socket}: permission denied; {mend}"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "the agent ended before it had answered"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n[", "not from an agent of this version"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "not from an agent of this version"),
        (
            b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops",
            "not from an agent of this version",
        ),
        (b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\n{}", "not from an agent of this version"),
        (b"SSH-2.0-x\r\n", "not from an agent of this version"),
        *(
            (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length, "not from an agent")
            for length in (1 << 60, 1 << 64)
        ),
        (
            b'HTTP/1.1 404 No\r\n\r\n{"error": {"where": "a", "what": "\x7f", "mend": ""}}',
            "not from an agent of this version",
        ),
    ],
)
def test_an_answer_that_is_none_is_one_line(short_folder: Path, answer: bytes, said: str) -> None:
    path = short_folder / "odd.sock"
    with answering(path, lambda _: answer):
        assert said in refused(1, "stats", "--socket", path)


@contextlib.contextmanager
def answering(path: Path, answer: Callable[[bytes], bytes]) -> Iterator[None]:
    """Serve a socket. answer: the answer to a request."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client:
                        client.sendall(answer(client.recv(4096)))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            path.unlink()


def test_a_vm_without_a_policy_is_not_one_with_a_valid_one(short_folder: Path) -> None:
    vms = msgspec.json.encode([vm(drive(), has_policy=False)])

    def answer(request: bytes) -> bytes:
        body = vms if b"/v1/vms" in request else b"[]"
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    path = short_folder / "s"
    with answering(path, answer):
        said = refused(1, "policy", "check", "db1", "--socket", path)
        done = iokeel("policy", "check", "db1", "--json", "--socket", path)
    assert said.startswith("db1: has no policy; set one by virsh metadata with --live too")
    assert done.status == 1
    assert json.loads(done.out)["error"]["what"] == "has no policy"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("stats db", "'db': no such running VM; did you mean 'db1'?"),
        ("why db2", "db2: no such running VM; see `iokeel stats`"),
        ("why db1 vdx", "db1: has no drive vdx; it has vda, vdb"),
        ("why db1 v\x9ba", r"db1: has no drive v\x9ba; it has vda, vdb"),
        (
            "policy check bd1",
            "'bd1': no such file and no such running VM; did you mean 'db1'?",
        ),
    ],
)
def test_what_is_not_there_is_said_with_what_is(agent: Agent, words: str, said: str) -> None:
    eventually(lambda: bool(agent.ask("/v1/vms")), what="the VM is found")
    assert refused(1, *words.split(), "--socket", agent.socket) == said


def test_stats_show_a_vm(agent: Agent) -> None:
    eventually(lambda: bool(agent.ask("/v1/vms")), what="the VM is found")
    done = iokeel("stats", "--socket", agent.socket)
    assert (done.status, done.err) == (0, "")
    first = [line.split()[:2] for line in done.out.splitlines()]
    assert first[:2] == [["VM", "drive"], ["db1", "vda"]]
    *rows, last = done.out.splitlines()[2:]
    assert [line.split()[0] for line in rows] == ["vdb", "sum"]
    assert last == "no policy: 1 of 2 drives, in db1"
    (vm,) = json.loads(iokeel("stats", "db1", "--json", "--socket", agent.socket).out)
    assert vm["drives"][0]["limit_iops"] == 400


def test_why_and_check_of_a_vm(agent: Agent) -> None:
    eventually(lambda: bool(agent.ask("/v1/vms")), what="the VM is found")
    done = iokeel("why", "db1", "vda", "--socket", agent.socket)
    assert done.out.startswith("db1/vda\n  1. The policy gives a limit of 400 iops")
    none = iokeel("why", "db1", "vda", "--socket", agent.socket, environment={"COLUMNS": "0"})
    assert none.out.splitlines()[1] == done.out.splitlines()[1]
    done = iokeel("why", "db1", "--json", "--socket", agent.socket)
    assert set(json.loads(done.out)) == {"vda", "vdb"}
    done = iokeel("policy", "check", "db1", "--socket", agent.socket)
    valid, warning = done.out.splitlines()
    assert (done.status, valid) == (0, "db1: its policy is valid")
    assert "reservations are not guaranteed, because its capacity is not known" in warning


def test_stats_show_storages(agent: Agent) -> None:
    eventually(lambda: bool(agent.ask("/v1/storages")), what="a storage is found")
    (storage,) = json.loads(iokeel("stats", "--storage", "--json", "--socket", agent.socket).out)
    done = iokeel("stats", "--storage", "--socket", agent.socket)
    assert done.out.splitlines()[1].split()[:2] == [storage["storage"], str(storage["drives"])]
    assert refused(2, "stats", "--tenant", "--storage", "--socket", agent.socket) == (
        "stats: --storage and --tenant exclude each other; give one of them"
    )


def test_stats_show_the_drives_of_a_storage_or_tenant(agent: Agent) -> None:
    eventually(lambda: bool(agent.ask("/v1/storages")), what="a storage is found")
    (storage,) = agent.ask("/v1/storages")
    name = storage["storage"]
    for words in (["--storage", name], [name, "--storage"], ["--tenant", "acme"]):
        done = iokeel("stats", *words, "--json", "--socket", agent.socket)
        assert [d["target"] for d in json.loads(done.out)] == ["vda", "vdb"]
    said = refused(1, "stats", "--storage", "sdx", "--socket", agent.socket)
    assert said.startswith("'sdx': no drive is on this storage; ")
    said = refused(1, "stats", "--tenant", "acm", "--socket", agent.socket)
    assert said == "'acm': no drive has this tenant; did you mean 'acme'?"


def test_stats_sum_tenants(agent: Agent) -> None:
    eventually(lambda: bool(agent.ask("/v1/vms")), what="the VM is found")
    done = iokeel("stats", "--tenant", "--socket", agent.socket)
    assert done.out.splitlines()[1].split()[:3] == ["acme", "1", "2"]
    (sums,) = json.loads(iokeel("stats", "--tenant", "--json", "--socket", agent.socket).out)
    assert (sums["tenant"], sums["drives"], sums["allowed_iops"]) == ("acme", 2, None)


def test_stats_are_sorted_and_cut(agent: Agent) -> None:
    eventually(lambda: bool(drives(agent, "--sort", "allowed")), what="the VM is found")
    eventually(lambda: drives(agent, "--sort", "allowed") == ["vda", "vdb"], what="a limit is set")
    assert drives(agent, "--sort", "drive", "--top", "1") == ["vda"]
    assert len(drives(agent, "--top", "1")) == 1
    said = refused(2, "stats", "--sort", "latncy", "--socket", agent.socket)
    assert said == "--sort: 'latncy' is not a column; did you mean 'latency'?"
    said = refused(2, "stats", "--storage", "--sort", "credit", "--socket", agent.socket)
    assert said.startswith("--sort: 'credit' is not a column; ")


def drives(agent: Agent, *words: str) -> list[str]:
    done = iokeel("stats", *words, "--json", "--socket", agent.socket)
    return [drive["target"] for drive in json.loads(done.out)]


# The history


def test_the_history_of_a_drive(agent: Agent, tmp_path: Path) -> None:
    words = ["history", "db1", "vda", "--socket", str(agent.socket)]

    def allowed() -> Any:
        return json.loads(iokeel(*words, "--json").out)["series"]["allowed_iops"][-1]

    eventually(lambda: allowed() == 400, what="its limit is in the history")
    heading, *rows = iokeel(*words).out.splitlines()
    assert heading.split() == [*("ago", "norm.", "iops", "allowed", "used", "ms", "ms", "wait"),
                               "credit"]  # fmt: skip
    assert rows[-1].split()[2] == "400"
    found = json.loads(iokeel(*words, "--last", "5m", "--json").out)
    assert (found["domain"], found["target"]) == ("db1", "vda")
    assert len(found["ages_s"]) == len(found["series"]["credit_s"])
    assert all(age_s <= 300 for age_s in found["ages_s"])
    plot = tmp_path / "vda.png"
    assert iokeel(*words, "--plot", plot) == Done(0, "", "")
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("db2 vda", 1, "db2: no such running VM; see `iokeel stats`"),
        ("db1 vdx", 1, "db1: has no drive vdx; it has vda, vdb"),
        ("db1 vda --last 11m", 2, f"--last 11m: {TEN_MINUTES}"),
        ("db1 vda --last 0", 2, f"--last 0: {TEN_MINUTES}"),
        (
            "db1 vda --last x",
            2,
            "--last 'x': not a time; give seconds, or write it like 90s or 10m",
        ),
        (
            "db1 vda --plot a.png --json",
            2,
            "--json: would print nothing beside --plot; give one of them",
        ),
        ("db1 vda --plot a.txt", 2, "--plot: a.txt is not a picture; end it in .png, .svg or .pdf"),
    ],
)
def test_what_the_history_has_not_is_said(agent: Agent, words: str, status: int, said: str) -> None:
    eventually(lambda: bool(agent.ask("/v1/vms")), what="the VM is found")
    assert refused(status, "history", *words.split(), "--socket", agent.socket) == said


WEEKS_FROM = "give a time from 1h to 1000d"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("--last 0", 2, f"--last 0: no history is so long; {WEEKS_FROM}"),
        ("--last 1001d", 2, f"--last 1001d: no history is so long; {WEEKS_FROM}"),
        ("--last 2w", 2, "--last '2w': not a time; give seconds, or write it like 90s or 10m"),
        (
            "db2",
            1,
            "db2: nothing is recorded of it in that time; see `iokeel recommend` for those that"
            " are",
        ),
        ("--limit 999999999", 1, "limit: is '999999999'; give a whole number from 1 to 100000000"),
    ],
)
def test_what_can_not_be_recommended_is_said(
    agent: Agent, words: str, status: int, said: str
) -> None:
    assert refused(status, "recommend", *words.split(), "--socket", agent.socket) == said


def test_limits_are_recommended_by_what_was_recorded(agent: Agent) -> None:
    words = ["recommend", "--socket", str(agent.socket)]

    def found() -> Any:
        return json.loads(iokeel(*words, "--json", "--limit", "77", "db1").out)

    eventually(lambda: found()["drives"], 200, what="a minute is recorded")
    told = found()
    assert told["limits"] == {"77": 77}
    assert [(one["domain"], one["target"]) for one in told["drives"]] == [
        ("db1", "vda"),
        ("db1", "vdb"),
    ]
    assert told["drives"][0]["would_hold"] == {"77": 0.0}
    assert told["drives"][0]["limit_iops"] == 400
    heading, vda, *_ = iokeel(*words).out.splitlines()
    assert heading.split()[:8] == ["VM", "drive", "p50", "p95", "p99", "peak", "limit", "held"]
    assert "bronze 1000" in heading
    assert vda.split()[:7] == ["db1", "vda", "0", "0", "0", "0", "400"]
    assert "usable" in iokeel(*words).out
    assert "usable" not in iokeel(*words, "db1").out
    told = iokeel("report", *words[1:]).out
    assert "1 of 1 drive with a limit never did half of it." in told
    assert "; recorded: " in told


# As a command


@pytest.mark.parametrize(
    "words",
    [
        ["frob"],
        ["--frob"],
        ["stats", "--frob"],
        ["stats", "a", "b"],
        ["why"],
        ["curve", "tabel"],
        ["policy", "check"],
        ["agent", "--config"],
    ],
)
def test_a_usage_error_is_one_line(words: list[str]) -> None:
    refused(2, *words)


@pytest.mark.parametrize("words", [[], ["policy"], ["curve"]])
def test_no_word_shows_the_help(words: list[str]) -> None:
    done = iokeel(*words)
    assert done.status == 2
    assert "Commands" in done.out + done.err


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["stats", "-h"], ["curve", "table", "-h"]])
def test_help_is_no_error(words: list[str]) -> None:
    done = iokeel(*words)
    assert (done.status, done.err) == (0, "")
    assert "Usage: iokeel" in done.out


def test_version() -> None:
    assert iokeel("--version") == Done(0, f"iokeel {__version__}\n", "")


@pytest.fixture
def bash_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # typer would take the shell of the process that runs the tests, make's say.
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    script = tmp_path / "completion"
    script.write_text(iokeel("--show-completion", "bash").out)
    return script


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("iokeel cur", ["curve"]),
        ("iokeel curve ", ["table"]),
        ("iokeel curve table --bu", ["--burst"]),
        ("iokeel stats ", ["db1"]),
        ("iokeel stats --tenant ", ["acme"]),
        ("iokeel history db1 v", ["vda", "vdb"]),
        ("iokeel why db1 v", ["vda", "vdb"]),
    ],
)
def test_bash_completes(
    agent: Agent, bash_completion: Path, typed: str, expected: list[str]
) -> None:
    eventually(lambda: bool(agent.ask("/v1/vms")), what="the VM is found")
    words = [*typed.split(), *([""] if typed.endswith(" ") else [])]
    script = (
        f'source {bash_completion}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1));'
        " $(complete -p iokeel | sed -E 's/.*-F ([^ ]+) .*/\\1/') iokeel;"
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = os.environ | {
        "PATH": f"{IOKEEL.parent}:{os.environ['PATH']}",
        "IOKEEL_SOCKET": str(agent.socket),
    }
    done = subprocess.run(
        ["bash", "-c", script, "bash", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == expected


@pytest.mark.parametrize("words", [["curve", "table"], ["curve", "table", "--json"], ["--help"]])
def test_a_reader_that_leaves_is_no_error(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [IOKEEL, *words], stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("words", [["curve", "table"], ["curve", "table", "--json"], ["--help"]])
def test_output_that_cant_be_written_is_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [IOKEEL, *words], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
        )
    said = b"iokeel: standard output: can't be written, no space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("policy check - <&-", "standard input, line 1: not well-formed XML"),
        ("fleet import - <&-", "has no [fleet]; write it there"),
        ("curve table >&-", None),
    ],
)
def test_a_closed_file_is_an_empty_one(words: str, said: str | None, tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text("")
    done = subprocess.run(
        ["bash", "-c", f'"$0" {words} --config "$1"', IOKEEL, config],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == ""
    if said is None:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert said in Done(done.returncode, "", done.stderr).complaint


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_an_encoding_lacks_is_an_escape(encoding: str, policy: Path) -> None:
    disk = "<devices><disk><target dev='vd\N{GREEK SMALL LETTER ALPHA}'/></disk></devices>"
    gold = "<policy xmlns='urn:iokeel:policy:1' class='gold'/>"
    policy.write_text(f"<domain><metadata>{gold}</metadata>{disk}</domain>", "utf-8")
    done = iokeel("policy", "check", policy, environment={"PYTHONIOENCODING": encoding})
    assert (done.status, done.err) == (0, "")
    assert "vd\\u03b1 " in done.out
