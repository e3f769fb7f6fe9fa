"""From a noisy neighbour to its new policy: real Cockpit, libvirt, agent and guest."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from iokeel.libvirt_xml.schema import DRIVE_ATTRIBUTES, NAMESPACE, POLICY_ATTRIBUTES
from testing.agents import HostAgent
from testing.cockpit import Cockpit
from testing.lab.guests.domain import DiskSpec, domain_xml, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.lab.image import image
from testing.waiting import eventually
from tests.page.conftest import BUILT, Open, picture, violations, wider_than_the_window
from tests.system.rig import policy, set_metadata

GIVEN = (
    '<policy tenant="acme"><!-- by hand --><drive target="vda" limit="400" burst="800"/></policy>'
)
# What the page promises: the guest follows within so many seconds.
FOLLOWS_S = 3.0
LOGGED_S = 15.0
FIO = (
    "fio --name=x --filename=/dev/vda --rw=randread --bs=4k --ioengine=libaio --direct=1"
    " --iodepth=8 --time_based"
)
# It runs until it is told to end: on a busy machine, a page takes its time.
LOG = " --runtime=240 --write_iops_log=/tmp/x --log_avg_msec=250 --log_unix_epoch=1"

# A virsh one of whose `metadata` fails: that which the file beside it counts down to.
REFUSED = "error: Timed out during operation: cannot acquire state change lock"
VIRSH = f"""#!/bin/sh
count=${{0%/*}}/failing
case " $* " in *" metadata "*)
    if left=$(cat "$count" 2>/dev/null); then
        echo $((left - 1)) >"$count"
        [ "$left" -ne 1 ] || {{ echo "{REFUSED}" >&2; exit 1; }}
    fi
esac
exec /usr/bin/virsh "$@"
"""


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """A host with libvirtd: this machine's own."""
    with Host.bookworm() as made:
        made.start_libvirtd()
        yield made


@pytest.fixture(scope="module")
def guest(host: Host) -> Iterator[Vm]:
    """A guest that reads all it can from one of its two drives."""
    drives = [DiskSpec(name, make_disk(host.dir / name, 32)) for name in ("vda", "vdb")]
    with Vm.boot(host, "db1", drives, policy=policy('target="vda" limit="400"')) as vm:
        vm.start_program(f"{FIO} --runtime=900")
        yield vm


@pytest.fixture
def agent(host: Host, guest: Vm) -> Iterator[HostAgent]:
    """A running agent, and the policy that each test begins with."""
    set_metadata(host, "db1", GIVEN)
    storage = (
        f'[storage.pool]\npath = "{host.dir}"\ncapacity = 2000\n'
        'curve_read = [["4k", 1], ["64k", 10], ["1m", 120]]\n'  # its own from 1M on
        'curve_write = [["4k", 1], ["64k", 10], ["1m", 120]]\n'
    )
    # It remembers the highest serial of a policy.
    state = Path(tempfile.mkdtemp(dir=host.dir))
    with HostAgent(host, storage, state=state) as running:
        eventually(lambda: running.drive("db1")["limit_iops"] == 400, what="the policy is read")
        yield running


@pytest.fixture
def cockpit(host: Host, agent: HostAgent) -> Iterator[Cockpit]:
    count = len(list(host.dir.glob("cockpit*")))
    folder = host.dir / f"cockpit{count}"
    with Cockpit(folder, BUILT, agent.socket, popen=host.popen, programs=folder) as running:
        yield running


@pytest.fixture
def failing(cockpit: Cockpit) -> Path:
    """The file that says which of the page's next `virsh metadata` fails; 1: the next."""
    program = cockpit.programs / "virsh"
    program.write_text(VIRSH)
    program.chmod(0o755)
    return program.with_name("failing")


@pytest.fixture
def page(cockpit: Cockpit, opened: Open) -> Page:
    return opened(cockpit.url)


def form(page: Page) -> Locator:
    """Open the form for the noisy drive, as a person finds it."""
    page.locator("table[aria-label=Drives] tbody a").first.click()
    expect(page.get_by_role("heading", name="db1 vda")).to_be_visible()
    page.get_by_role("button", name="Change its policy").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Limit", exact=True)).to_be_enabled()
    return dialog


def metadata(host: Host, which: str) -> str:
    return host.virsh("metadata", "db1", "--uri", NAMESPACE, which)


def test_a_noisy_neighbour_is_found_understood_and_limited(
    page: Page, host: Host, guest: Vm, agent: HostAgent
) -> None:
    # Any machine, however busy, fills this.
    set_metadata(host, "db1", GIVEN.replace('limit="400" burst="800"', 'limit="100" burst="120"'))
    row = page.locator("table[aria-label=Drives] tbody tr").first
    expect(row).to_contain_text("db1 vda")
    expect(row).to_contain_text("held")
    dialog = form(page)
    dialog.get_by_label("Limit", exact=True).fill("4")
    expect(dialog).to_contain_text(  # 120 by its storage's curve, at 4 a second
        "At the limit of vda, 4, one request of 1 MiB waits 30 s, and all others behind it"
    )
    dialog.get_by_label("Limit", exact=True).fill("60")
    expect(dialog.get_by_text("one request of 1 MiB waits")).to_have_count(0)
    row = dialog.locator("table[aria-label='What is then promised'] tbody tr").first
    expect(row).to_contain_text("2 s")
    expect(dialog).to_contain_text("4K reads 60 a second, 64K reads 6, 1M reads 0.5")
    dialog.get_by_label("Burst", exact=True).fill("")
    dialog.get_by_label("Reservation", exact=True).fill("30")
    expect(dialog).to_contain_text("pool then promises 30 of the")
    assert violations(page) == []
    picture(page, "policy")
    logging = guest.start_program(f"exec {FIO}{LOG}")
    eventually(lambda: (agent.drive("db1")["raw_read_iops"] or 0) > 1, what="the guest reads")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The policy is saved.")).to_be_visible()
    saved_s = clock(guest)
    for which in ("--live", "--config"):
        text = metadata(host, which)
        assert 'limit="60"' in text
        assert "burst" not in text
        assert 'tenant="acme"' in text
        assert "<!-- by hand -->" in text
    changes = page.get_by_role("list", name="Changes of its limits")
    expect(changes).to_contain_text("the policy has changed")
    why = page.get_by_role("list", name="The last decision")
    expect(why).to_contain_text("a limit of 60 iops")
    picture(page, "policy-saved")
    time.sleep(LOGGED_S)
    guest.exec(f"kill -INT {logging}")
    guest.wait(logging)
    settled = [rate for after_s, rate in rates_since(guest, saved_s) if after_s >= FOLLOWS_S]
    assert len(settled) > 10
    # Two fios share the drive, a request in turn.
    assert sum(settled) / len(settled) == pytest.approx(30, rel=0.1)


def test_a_change_raises_the_serials_of_both_policies_above_all(
    page: Page, host: Host, agent: HostAgent
) -> None:
    for serial, which in ((7, "--live"), (9, "--config")):
        given = GIVEN.replace("tenant", f'serial="{serial}" tenant')
        key = ("--uri", NAMESPACE, "--key", "iokeel")
        host.virsh("metadata", "db1", *key, which, "--set", given)
    dialog = form(page)
    dialog.get_by_label("Limit", exact=True).fill("500")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The policy is saved.")).to_be_visible()
    for which in ("--live", "--config"):
        assert 'serial="10"' in metadata(host, which)
    eventually(lambda: agent.drive("db1")["limit_iops"] == 500, what="the agent takes it")


def clock(guest: Vm) -> float:
    """Return the time of the guest's clock, in seconds."""
    text = guest.exec("touch /tmp/now; stat -c %y /tmp/now; date +%s").stdout.decode()
    fraction = re.search(r":\d\d(\.\d+)", text)
    assert fraction, text
    return int(text.split()[-1]) + float(fraction[1])


def rates_since(guest: Vm, since_s: float) -> list[tuple[float, float]]:
    """Return the rates of fio's log in the guest, by seconds since a time of the guest's clock."""
    rows = [
        line.split(",") for line in guest.exec("cat /tmp/x_iops.1.log").stdout.decode().split("\n")
    ]
    times = [(int(row[0]) / 1000 - since_s, float(row[1])) for row in rows if len(row) > 2]
    return [(second, rate) for second, rate in times if second > 0]


def test_a_malformed_value_is_refused_in_the_words_of_the_schema(
    page: Page, host: Host, agent: HostAgent
) -> None:
    before = metadata(host, "--live")
    dialog = form(page)
    dialog.get_by_label("Limit", exact=True).fill("4k")
    said = "limit is '4k', not a whole number in plain digits; write it like 500"
    expect(dialog.get_by_role("alert")).to_contain_text(said)
    picture(page, "policy-refused")
    assert violations(page) == []
    page.set_viewport_size({"width": 390, "height": 2400})
    assert wider_than_the_window(page) == 0
    assert violations(page) == []
    picture(page, "policy-refused-phone")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text(said)
    dialog.get_by_label("Limit", exact=True).fill("900")
    expect(dialog.get_by_role("alert")).to_contain_text(
        "burst 800 is below limit 900; raise the burst or leave it out"
    )
    assert metadata(host, "--live") == before


def test_the_form_has_all_that_the_schema_knows(page: Page, host: Host, agent: HostAgent) -> None:
    dialog = form(page)
    ids = dialog.locator("input, select").evaluate_all("all => all.map(one => one.id)")
    of_drive = {f"drive-{name}" for name in DRIVE_ATTRIBUTES.keys() - {"target"}}
    assert sorted(ids) == sorted(
        of_drive | {f"policy-{name}" for name in POLICY_ATTRIBUTES.keys() - {"serial"}}
    )


def test_the_limit_of_a_vm_and_the_budgets_of_a_drive_are_set(
    page: Page, host: Host, agent: HostAgent
) -> None:
    dialog = form(page)
    dialog.get_by_label("Limit of all together").fill("600")
    dialog.get_by_label("Reservation of all together").fill("250")
    dialog.get_by_label("Class of each drive").select_option("bronze")
    dialog.get_by_label("Reads and writes").select_option("separate")
    expect(dialog).to_contain_text("4K reads 600 a second, 64K reads 60, 1M reads")
    expect(dialog).to_contain_text("pool then promises 250 of the")
    promised = dialog.get_by_role("grid", name="What is then promised")
    rows = promised.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(0).locator("td")).to_have_text(
        ["vda", "400", "800", "60 s", "\u2013", "50", "\u2013", "each", "300 ms"]
    )
    assert rows.nth(1).locator("td").all_inner_texts() == (
        ["vdb", "1,000", "2,000", "60 s", "\u2013", "50", "\u2013", "together", "200 ms"]
    )
    assert rows.nth(2).locator("td").all_inner_texts() == (
        ["all together", "600", "\u2013", "\u2013", "250", "\u2013", "\u2013", "\u2013", "\u2013"]
    )
    assert violations(page) == []
    picture(page, "policy-vm")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The policy is saved.")).to_be_visible()
    for which in ("--live", "--config"):
        text = metadata(host, which)
        assert '<policy tenant="acme" class="bronze" limit="600" reservation="250">' in text
        assert '<drive target="vda" limit="400" burst="800" budget="separate"/>' in text
    eventually(lambda: of_vm(agent) == (600, 250), what="the agent has the VM's limit")
    why = page.get_by_role("list", name="The last decision")
    expect(why).to_contain_text("600 iops")


def of_vm(agent: HostAgent) -> tuple[int, int]:
    """Return what the agent has promised the VM."""
    (vm,) = agent.ask("/v1/vms")
    return vm["limit_iops"], vm["reservation_iops"]


def test_a_vms_burst_without_its_limit_is_refused(page: Page, host: Host, agent: HostAgent) -> None:
    dialog = form(page)
    dialog.get_by_label("Burst of all together", exact=True).fill("900")
    expect(dialog.get_by_role("alert")).to_contain_text("burst 900 without a limit; give a limit")


def test_nothing_is_lost_when_two_edit(page: Page, host: Host, agent: HostAgent) -> None:
    dialog = form(page)
    dialog.get_by_label("Limit", exact=True).fill("300")
    theirs = (
        '<policy tenant="acme"><drive target="vda" limit="350" burst="900" weight="7"/>'
        '<drive target="vdb" limit="50"/></policy>'
    )
    theirs = theirs.replace("<policy", '<policy limit="5000"')
    set_metadata(host, "db1", theirs)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_contain_text("Somebody else has changed this policy. Nothing is saved yet.")
    expect(dialog).to_contain_text("limit: 400 before, 350 now")
    expect(dialog).to_contain_text("limit of the VM: not given before, 5000 now")
    expect(dialog.get_by_label("Limit", exact=True)).to_have_value("300")
    expect(dialog.get_by_label("Weight", exact=True)).to_have_value("7")
    assert 'limit="350"' in metadata(host, "--live")
    picture(page, "policy-two")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The policy is saved.")).to_be_visible()
    text = metadata(host, "--live")
    for word in (
        'policy limit="5000"',
        'limit="300"',
        'burst="900"',
        'weight="7"',
        'target="vdb" limit="50"',
    ):
        assert word in text


def test_what_another_wrote_for_another_drive_stays(
    page: Page, host: Host, agent: HostAgent
) -> None:
    dialog = form(page)
    dialog.get_by_label("Limit", exact=True).fill("300")
    theirs = GIVEN.replace("</policy>", '<drive target="vdb" limit="60"/></policy>')
    set_metadata(host, "db1", theirs)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_contain_text("It is another part of it, which stays.")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The policy is saved.")).to_be_visible()
    for which in ("--live", "--config"):
        assert 'target="vdb" limit="60"' in metadata(host, which)
        assert 'target="vda" limit="300"' in metadata(host, which)


def test_that_anothers_change_can_not_be_read_is_told(
    page: Page, host: Host, agent: HostAgent, failing: Path
) -> None:
    dialog = form(page)
    dialog.get_by_label("Limit", exact=True).fill("300")
    set_metadata(host, "db1", GIVEN.replace("400", "350"))
    failing.write_text("2")  # the first compares
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text(REFUSED)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_contain_text("limit: 400 before, 350 now")
    assert 'limit="350"' in metadata(host, "--live")


def test_a_policy_that_can_not_be_compared_is_told_in_virshs_words(
    page: Page, host: Host, agent: HostAgent, failing: Path
) -> None:
    dialog = form(page)
    dialog.get_by_label("Limit", exact=True).fill("300")
    failing.write_text("1")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text(REFUSED)
    assert 'limit="400"' in metadata(host, "--live")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The policy is saved.")).to_be_visible()
    assert 'limit="300"' in metadata(host, "--live")


def test_a_domain_that_has_lost_its_next_start_meanwhile(
    page: Page, host: Host, agent: HostAgent
) -> None:
    dialog = form(page)
    dialog.get_by_label("Limit", exact=True).fill("300")
    defined = host.virsh("dumpxml", "db1", "--inactive")
    host.virsh("undefine", "db1")
    try:
        dialog.get_by_role("button", name="Save").click()
        expect(dialog).to_contain_text("libvirt forgets this domain")
        dialog.get_by_role("button", name="Save").click()
        expect(page.get_by_text("The policy is saved.")).to_be_visible()
        assert 'limit="300"' in metadata(host, "--live")
    finally:
        host.virsh("define", "/dev/stdin", input=defined)


def test_the_policy_of_the_next_start_keeps_what_else_is_in_it(
    page: Page, host: Host, agent: HostAgent
) -> None:
    later = '<policy tenant="acme"><drive target="vda" limit="700" weight="9"/></policy>'
    host.virsh("metadata", "db1", "--uri", NAMESPACE, "--key", "iokeel", "--set", later, "--config")
    dialog = form(page)
    expect(dialog).to_contain_text("Another policy is written for the guest's next start.")
    dialog.get_by_label("Latency target", exact=True).fill("2.5")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The policy is saved.")).to_be_visible()
    assert 'limit="400" burst="800" latency-target-ms="2.5"' in metadata(host, "--live")
    assert 'limit="700" weight="9" latency-target-ms="2.5"' in metadata(host, "--config")


def test_a_drive_that_only_the_next_start_has_blocks_no_change(
    page: Page, host: Host, agent: HostAgent
) -> None:
    later = GIVEN.replace("</policy>", '<drive target="vdc" limit="60"/></policy>')
    host.virsh("metadata", "db1", "--uri", NAMESPACE, "--key", "iokeel", "--set", later, "--config")
    dialog = form(page)
    dialog.get_by_label("Limit", exact=True).fill("300")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The policy is saved.")).to_be_visible()
    assert 'target="vda" limit="300"' in metadata(host, "--live")
    text = metadata(host, "--config")
    assert 'target="vda" limit="300"' in text
    assert 'target="vdc" limit="60"' in text


def test_a_drive_that_has_gone_is_a_warning(page: Page, host: Host, agent: HostAgent) -> None:
    set_metadata(
        host, "db1", GIVEN.replace("</policy>", '<drive target="vdc" limit="60"/></policy>')
    )
    dialog = form(page)
    expect(dialog).to_contain_text("the policy names vdc, but there is no such drive")
    dialog.get_by_label("Limit", exact=True).fill("300")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The policy is saved.")).to_be_visible()
    assert 'target="vda" limit="300"' in metadata(host, "--live")


def test_a_guest_named_like_anothers_number_is_not_taken_for_it(
    page: Page, cockpit: Cockpit, host: Host, guest: Vm, agent: HostAgent
) -> None:
    number = host.virsh("domid", "db1").strip()
    drive = DiskSpec("vda", make_disk(host.dir / "other", 1))
    other = Vm(host, number)
    other.define(domain_xml(number, [drive], image=image(), folder=host.dir))
    rows = host.virsh("list", "--all", "--uuid", "--name").split("\n")
    (uuid,) = (row.split()[0] for row in rows if row.split()[1:] == [number])
    before = metadata(host, "--live")
    host.virsh("start", uuid)
    try:
        page.goto(f"{cockpit.url}#/drive/{number}/vda")
        page.get_by_role("button", name="Change its policy").click()
        page.get_by_role("dialog").get_by_label("Limit", exact=True).fill("77")
        page.get_by_role("dialog").get_by_role("button", name="Save").click()
        expect(page.get_by_text("The policy is saved.")).to_be_visible()
        assert 'limit="77"' in host.virsh("metadata", uuid, "--uri", NAMESPACE, "--live")
        assert metadata(host, "--live") == before
    finally:
        host.virsh("destroy", uuid)
        host.virsh("undefine", uuid)


def test_a_drive_gets_its_first_policy(
    page: Page, cockpit: Cockpit, host: Host, agent: HostAgent
) -> None:
    host.virsh("metadata", "db1", "--uri", NAMESPACE, "--remove", "--live", "--config")
    eventually(lambda: agent.drive("db1")["limit_iops"] is None, what="the policy is gone")
    page.goto(f"{cockpit.url}#/drive/db1/vdb")
    page.get_by_role("button", name="Change its policy").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Class", exact=True).select_option("gold")
    expect(dialog).to_contain_text("4K reads 10,000 a second, 64K reads 1,000, 1M reads 83")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The policy is saved.")).to_be_visible()
    eventually(lambda: agent.drive("db1", "vdb")["limit_iops"] == 10_000, what="the agent has it")
    assert re.search(r'<drive target="vdb" class="gold"/>', metadata(host, "--config"))


def test_an_agent_that_is_killed_and_comes_back(page: Page, agent: HostAgent) -> None:
    page.locator("table[aria-label=Drives] tbody a").first.click()
    expect(page.get_by_text("The policy gives a limit of 400 iops")).to_be_visible()
    agent.end()
    expect(page.get_by_role("alert")).to_contain_text("Limits that were in force stay in force.")
    picture(page, "agent-killed")
    agent.start()
    expect(page.get_by_text("What is shown is from")).to_have_count(0)
    expect(page.get_by_text("The policy gives a limit of 400 iops")).to_be_visible()


def test_libvirtd_that_is_away_is_told_in_its_own_words(
    page: Page, host: Host, agent: HostAgent
) -> None:
    page.locator("table[aria-label=Drives] tbody a").first.click()
    expect(page.get_by_text("The policy gives a limit of 400 iops")).to_be_visible()
    host.kill_libvirtd()
    try:
        page.get_by_role("button", name="Change its policy").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("alert")).to_contain_text("failed to connect to the hypervisor")
        expect(dialog.get_by_role("button", name="Save")).to_be_disabled()
    finally:
        host.start_libvirtd()
