"""The agent against real libvirt: this machine's 9.0 with QEMU 7.2, and 11.3 with QEMU 10.0."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from iokeel.core.enforce.envelope import limits_for, limits_for_any_size
from iokeel.core.values.curve import DEFAULT_MODEL
from testing.agents import HostAgent
from testing.hypervisors.iotune import highest_rate
from testing.lab.guests.domain import DiskSpec, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.waiting import eventually
from testing.workers import Alone
from tests.system.rig import blkdeviotune, policy, set_metadata

pytestmark = pytest.mark.timeout(600)  # the first run makes a Debian 13


def envelope(limit: int) -> dict[str, int]:
    """Return the limits that virsh must show for a drive without any I/O yet."""
    limits = limits_for(DEFAULT_MODEL, limit)
    assert limits.iops_total is not None
    assert limits.iops_size is not None
    return {"total_iops_sec": limits.iops_total, "size_iops_sec": limits.iops_size}


def limited(host: Host, limit: int, domain: str = "db1", target: str = "vda") -> bool:
    return envelope(limit).items() <= blkdeviotune(host, domain, target).items()


def held(host: Host, limit: int) -> bool:
    """Return whether limits, an earlier agent's perhaps, hold db1 for requests of any size."""
    shown = blkdeviotune(host, "db1")
    return highest_rate(shown) <= 1.2 * limit and "total_iops_sec_max" not in shown


def in_charge(agent: HostAgent) -> None:
    """Wait until this agent knows the drive; limits of an earlier one may still hold."""
    eventually(lambda: agent.drive("db1")["limit_iops"] == 2000)
    eventually(lambda: limited(agent.host, 2000))


def test_a_defined_policy_is_in_force_and_virsh_shows_it(guest: Vm, agent: HostAgent) -> None:
    set_metadata(agent.host, "db1", '<policy><drive target="vda" limit="2000"/></policy>')
    in_charge(agent)
    assert agent.drive("db1")["limit_iops"] == 2000
    assert "a limit of 2000 iops" in agent.why("db1")


@pytest.mark.alone
def test_a_policy_changed_live_is_in_force_at_once(guest: Vm, agent: HostAgent) -> None:
    host = agent.host
    for limit in (700, 1200):
        set_metadata(host, "db1", f'<policy><drive target="vda" limit="{limit}"/></policy>')
        eventually(lambda limit=limit: limited(host, limit))  # type: ignore[misc]


def test_a_bad_policy_changes_nothing_and_is_told(guest: Vm, agent: HostAgent) -> None:
    host = agent.host
    set_metadata(host, "db1", '<policy><drive target="vda" limit="900"/></policy>')
    eventually(lambda: limited(host, 900))
    set_metadata(host, "db1", '<policy><drive target="vda" limit="-5"/></policy>')
    key = 'iokeel_domain_policy_valid{domain="db1"}'
    eventually(lambda: agent.metrics()[key] == 0)
    assert limited(host, 900)
    assert agent.says("limit")
    assert "limit" in agent.stats("db1")[0]["policy_error"]["what"]
    set_metadata(host, "db1", '<policy><drive target="vda" limit="2000"/></policy>')
    eventually(lambda: agent.metrics()[key] == 1)
    eventually(lambda: limited(host, 2000))


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize(
    "bad",
    [
        '<policy><drive target="vda" limit="-5"/></policy>',
        '<policy class="nowhere"><drive target="vda"/></policy>',
    ],
)
def test_a_bad_policy_lifts_no_limit_when_the_agent_restarts(
    guest: Vm, agent: HostAgent, bad: str, end: signal.Signals
) -> None:
    host = agent.host
    set_metadata(host, "db1", '<policy><drive target="vda" limit="900"/></policy>')
    eventually(lambda: limited(host, 900))
    set_metadata(host, "db1", bad)
    key = 'iokeel_domain_policy_valid{domain="db1"}'
    eventually(lambda: agent.metrics()[key] == 0)
    agent.stop(end)
    assert held(host, 900)
    agent.start()
    eventually(lambda: agent.metrics()[key] == 0)
    eventually(lambda: agent.drive("db1")["limit_iops"] == 900)
    eventually(lambda: limited(host, 900))
    assert agent.stop() == 0
    assert held(host, 900)
    agent.start()
    set_metadata(host, "db1", '<policy><drive target="vda" limit="2000"/></policy>')
    eventually(lambda: limited(host, 2000))


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_tenant_that_goes_from_the_configuration_lifts_no_limit(
    guest: Vm, host: Host, end: signal.Signals
) -> None:
    set_metadata(host, "db1", '<policy tenant="acme"><drive target="vda"/></policy>')
    with HostAgent(host, "[tenants.acme]\nlimit = 800\n") as agent:
        eventually(lambda: limited(host, 800))
        agent.stop(end)
    for _ in range(2):
        with HostAgent(host) as agent:
            eventually(lambda: limited(host, 800))
            told = eventually(lambda: agent.drive("db1")["error"])
            assert told["where"] == "[tenants.acme]"
            assert agent.says("write an empty [tenants.acme]")
            assert agent.metrics()['iokeel_agent_errors_total{kind="config"}'] == 1
            assert limited(host, 800)
    with HostAgent(host, "[tenants.acme]\n") as agent:
        eventually(lambda: blkdeviotune(host, "db1") == {})
        assert agent.drive("db1")["error"] is None
    set_metadata(host, "db1", '<policy><drive target="vda" limit="2000"/></policy>')


def test_limits_changed_by_hand_are_put_back_and_counted(guest: Vm, agent: HostAgent) -> None:
    host = agent.host
    in_charge(agent)
    host.virsh("blkdeviotune", "db1", "vda", "--total-iops-sec", "55", "--live")
    eventually(lambda: agent.drive("db1")["overwritten"] == 1)
    eventually(lambda: limited(host, 2000))


def test_a_removed_policy_takes_its_limits_with_it(guest: Vm, agent: HostAgent) -> None:
    host = agent.host
    in_charge(agent)
    host.virsh("metadata", "db1", "--uri", "urn:iokeel:policy:1", "--remove", "--live", "--config")
    eventually(lambda: blkdeviotune(host, "db1") == {})
    host.virsh("blkdeviotune", "db1", "vda", "--total-iops-sec", "77", "--live")
    eventually(lambda: agent.drive("db1")["verdict"].startswith("it has no policy"))
    assert blkdeviotune(host, "db1")["total_iops_sec"] == 77
    host.virsh("blkdeviotune", "db1", "vda", "--total-iops-sec", "0", "--live")
    set_metadata(host, "db1", '<policy><drive target="vda" limit="2000"/></policy>')
    eventually(lambda: limited(host, 2000))


@pytest.mark.alone
def test_a_class_covers_a_disk_that_is_plugged_in(
    guest: Vm, agent: HostAgent, alone: Alone
) -> None:
    host = agent.host
    set_metadata(host, "db1", '<policy class="bronze"><drive target="vda" limit="2000"/></policy>')
    second = DiskSpec("vdb", make_disk(host.dir / "second.raw", 8))
    with alone():
        guest.attach(second)
        eventually(lambda: limited(host, 1000, target="vdb"))
    guest.detach("vdb")
    set_metadata(host, "db1", '<policy class="nowhere"><drive target="vda" limit="2000"/></policy>')
    key = 'iokeel_domain_policy_valid{domain="db1"}'
    eventually(lambda: agent.metrics()[key] == 0)
    agent.stop(signal.SIGKILL)
    agent.start()
    guest.attach(second)
    eventually(lambda: limited(host, 1000, target="vdb"))
    guest.detach("vdb")
    eventually(lambda: [d["target"] for d in agent.stats("db1")[0]["drives"]] == ["vda"])
    set_metadata(host, "db1", '<policy><drive target="vda" limit="2000"/></policy>')


def test_a_burst_opens_with_credit_and_goes_with_the_policy(guest: Vm, agent: HostAgent) -> None:
    host = agent.host
    burst = '<policy><drive target="vda" limit="1000" burst="3000" burst-seconds="9"/></policy>'
    set_metadata(host, "db1", burst)
    eventually(lambda: blkdeviotune(host, "db1").get("total_iops_sec_max_length", 0) >= 2, 20)
    shown = blkdeviotune(host, "db1")
    assert shown["total_iops_sec_max"] == pytest.approx(3 * shown["total_iops_sec"], rel=0.01)
    # QEMU ends the burst by itself: max * length units fill at max - average.
    rise = shown["total_iops_sec_max"] - shown["total_iops_sec"]
    assert shown["total_iops_sec_max"] * shown["total_iops_sec_max_length"] <= 9.01 * rise
    set_metadata(host, "db1", '<policy><drive target="vda" limit="2000"/></policy>')
    eventually(lambda: limited(host, 2000))
    assert "total_iops_sec_max" not in blkdeviotune(host, "db1")


@pytest.mark.alone
def test_a_restarted_guest_is_limited_again(guest: Vm, agent: HostAgent, alone: Alone) -> None:
    in_charge(agent)
    guest.destroy()
    eventually(lambda: agent.stats() == [])
    with alone():
        guest.launch()
        eventually(lambda: limited(agent.host, 2000))
    guest.wait_ready()


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_libvirtd_restarts_and_limits_hold(guest: Vm, agent: HostAgent, how: str) -> None:
    host = agent.host
    in_charge(agent)
    if how == "kill":
        host.kill_libvirtd()
        host.start_libvirtd()
    else:
        host.restart_libvirtd()
    eventually(lambda: agent.metrics()["iokeel_agent_reconnects_total"] >= 1, 40)
    assert limited(host, 2000)
    set_metadata(host, "db1", '<policy><drive target="vda" limit="1500"/></policy>')
    eventually(lambda: limited(host, 1500))
    set_metadata(host, "db1", '<policy><drive target="vda" limit="2000"/></policy>')
    eventually(lambda: limited(host, 2000))


def test_a_killed_agent_finds_its_own_limits_again(guest: Vm, agent: HostAgent) -> None:
    host = agent.host
    in_charge(agent)
    agent.end()
    assert limited(host, 2000)
    agent.log_file.write_text("")
    agent.start()
    eventually(lambda: agent.drive("db1")["limits_in_force"])
    ticks = agent.metrics()["iokeel_agent_tick_seconds_count"]
    eventually(lambda: agent.metrics()["iokeel_agent_tick_seconds_count"] >= ticks + 2)
    assert not agent.says("limits set")
    # It remembers that they are its own: without a policy it removes them.
    host.virsh("metadata", "db1", "--uri", "urn:iokeel:policy:1", "--remove", "--live")
    eventually(lambda: blkdeviotune(host, "db1") == {})
    set_metadata(host, "db1", '<policy><drive target="vda" limit="2000"/></policy>')
    eventually(lambda: limited(host, 2000))


def test_a_stopped_agent_leaves_static_limits(guest: Vm, agent: HostAgent) -> None:
    in_charge(agent)
    assert agent.stop() == 0
    static = limits_for_any_size(DEFAULT_MODEL, 2000)
    assert blkdeviotune(agent.host, "db1")["total_iops_sec"] == static.iops_total
    assert not agent.socket.exists()


def test_a_second_agent_is_refused(guest: Vm, agent: HostAgent) -> None:
    host = agent.host
    command = [*host.iokeel, "agent", "--config", str(agent.config)]
    second = host.run(command, check=False)
    assert second.returncode == 2
    assert "another agent" in second.stderr
    assert len(second.stderr.splitlines()) == 1
    assert agent.stats()


def test_a_full_disk_stops_nothing(guest: Vm, host: Host, tmp_path: Path) -> None:
    state = host.dir / "full"
    state.mkdir(exist_ok=True)
    host.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", state])
    host.run(["sh", "-c", f"head -c 8192 /dev/zero > {state}/filler || true"])
    with HostAgent(host, state=state) as agent:
        set_metadata(host, "db1", '<policy><drive target="vda" limit="1100"/></policy>')
        eventually(lambda: limited(host, 1100))
        key = 'iokeel_agent_errors_total{kind="store"}'
        eventually(lambda: agent.metrics().get(key, 0) > 0)
        assert agent.log().count("a restart forgets credit") == 1
        host.run(["sh", "-c", f"rm {state}/filler; mount -o remount,size=2m {state}"])
        set_metadata(host, "db1", '<policy><drive target="vda" limit="1200"/></policy>')
        eventually(lambda: agent.says("the state is saved again"))
        agent.stop()
    set_metadata(host, "db1", '<policy><drive target="vda" limit="2000"/></policy>')


@pytest.fixture
def web(host: Host, agent: HostAgent) -> Iterator[Vm]:
    """A second guest, which the agent serves."""
    drives = [DiskSpec("vda", make_disk(host.dir / "other.raw", 8))]
    try:
        with Vm.boot(host, "web1", drives, policy=policy(class_="bronze")) as vm:
            eventually(lambda: limited(host, 1000, "web1"))
            yield vm
    finally:
        host.run(["virsh", "undefine", "web1"], check=False)  # a second run has its name


@pytest.mark.alone
def test_a_guest_that_hangs_delays_no_other(guest: Vm, agent: HostAgent, web: Vm) -> None:
    host = agent.host
    pid = (host.dir / "run/libvirt/qemu/db1.pid").read_text().strip()
    host.run(["sh", "-c", f"kill -STOP {pid}"])
    try:
        eventually(lambda: agent.metrics()['iokeel_agent_errors_total{kind="timeout"}'] >= 1)
        set_metadata(host, "web1", '<policy><drive target="vda" limit="650"/></policy>')
        eventually(lambda: limited(host, 650, "web1"))
        web.exec("dd if=/dev/vda of=/dev/null bs=64k count=20 iflag=direct")
        eventually(lambda: agent.drive("web1")["raw_read_iops"])
    finally:
        host.run(["sh", "-c", f"kill -CONT {pid}"])
    eventually(lambda: agent.drive("db1")["normalized_iops"] is not None)
    assert limited(host, 2000)


@pytest.mark.alone
def test_fio_is_held_to_the_policy(guest: Vm, agent: HostAgent) -> None:
    """By fio's own log: never a quarter over the limit in any second, and not far below."""
    from benchmarks.demo.fio_log import Completions

    in_charge(agent)
    common = "--filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=8 --rw=randread"
    for size in ("8k", "64k"):
        guest.exec(
            f"fio --name=a --bs={size} --time_based --runtime=8 {common} --norandommap"
            " --write_iops_log=/tmp/a --log_unix_epoch=1 --output=/dev/null",
            timeout=90,
        )
        done = Completions.parse(guest.read("/tmp/a_iops.1.log"))
        assert done.worst_window(0, 8) <= 1.25 * 2000
        assert done.rate(3, 8) <= 1.05 * 2000
        # The machine that emulates the guest may be slow, but the agent held nothing back.
        assert done.rate(3, 8) >= 0.5 * 2000
