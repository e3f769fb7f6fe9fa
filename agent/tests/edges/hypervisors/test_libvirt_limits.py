"""Limits in force under libvirt, when somebody else changes them while the agent does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

import pytest

from iokeel.core.enforce.bounds import with_bounds
from iokeel.core.enforce.pricing import exact_limits, fallback_of
from iokeel.core.values.counters import DriveId
from iokeel.core.values.curve import DEFAULT_MODEL
from iokeel.core.values.limits import STOCK, UNLIMITED, Abilities, ThrottleLimits
from iokeel.core.values.policy import DomainPolicy, DrivePolicy
from iokeel.errors import ConnectionLost
from iokeel.hypervisors.libvirt.calls import Calls
from iokeel.hypervisors.libvirt.domain import Domain
from iokeel.hypervisors.libvirt.limits import LimitsInForce, fallback_for
from iokeel.hypervisors.source import DriveInfo, SourceNews, VmInfo
from iokeel.libvirt_xml.domain import parse_domain, to_libvirt
from testing.hypervisors.abilities import PATCHED

VDA = DriveId("db1", "vda")
TARGETS = ("vda", "vdb")
OURS = UNLIMITED._replace(iops_total=300, iops_size=16_384)
OTHERS = UNLIMITED._replace(iops_total=200, iops_size=16_384)  # ours, later
THEIRS = UNLIMITED._replace(iops_total=50)
XML = """
<domain type='qemu' id='1'><name>db1</name><uuid>1d8b4c9a-0e0f-4a7e-9d58-2f6b0a3c7e11</uuid>
<devices><disk type='file' device='disk'><source file='/img'/><target dev='vda'/></disk>
</devices></domain>
"""


@pytest.mark.parametrize(
    ("policy", "other"),
    [
        (DrivePolicy(limit=1000, max_bytes=9000), DrivePolicy(limit=1000, max_bytes=8000)),
        (DrivePolicy(limit=1000, max_bytes=9000), DrivePolicy(limit=1000)),
        (
            DrivePolicy(limit=1000, limit_write=500, separate_budgets=True),
            DrivePolicy(limit=1000, limit_write=400, separate_budgets=True),
        ),
    ],
)
def test_libvirt_is_told_a_fallback_with_other_bounds(
    policy: DrivePolicy, other: DrivePolicy
) -> None:
    def limits(of: DrivePolicy) -> ThrottleLimits:
        curve = exact_limits(DEFAULT_MODEL, 1000, separate=of.separate_budgets)
        return with_bounds(curve, of, 1000, 1000)

    first = fallback_for(limits(policy), None)
    assert fallback_for(limits(policy), first) is first
    assert fallback_for(limits(other), first) == fallback_for(limits(other), None) != first


def exact(rate: int) -> ThrottleLimits:
    """Return limits with a curve, which libvirt gets a fallback for."""
    return exact_limits(DEFAULT_MODEL, rate)


class Curves(Calls):
    """libvirtd with a guest whose QEMU has curves. The next call is made only at `go_on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__("test:///default")
        self.go_on: asyncio.Event | None = None
        self.withdraws = False  # the call that waits then
        self.told: list[tuple[ThrottleLimits, ThrottleLimits | None]] = []
        monkeypatch.setattr("iokeel.hypervisors.libvirt.limits.put_limits", self._put)
        monkeypatch.setattr("iokeel.hypervisors.libvirt.limits.is_migrating", lambda _: False)

    def _put(self, *arguments: Any) -> None:
        self.told.append((arguments[4], arguments[7]))

    def lookupByName(self, _name: str) -> None:
        pass

    async def call_domain(self, *arguments: Any, **_: Any) -> Any:
        if self.go_on is not None:
            go_on, withdraws = self.go_on, self.withdraws
            await go_on.wait()
            if withdraws:
                raise ConnectionLost("db1", "no answer in 5 s", "")
        return arguments[1](self)


class Slow(Calls):
    """libvirtd, whose answers come when they are let go."""

    def __init__(self) -> None:
        super().__init__("test:///default")
        self.go_on = asyncio.Event()

    async def call_domain(self, *_: Any, **__: Any) -> Any:
        await self.go_on.wait()
        return STOCK, None, True


def event(limits: ThrottleLimits) -> dict[str, object]:
    """Return the values of the TUNABLE event of somebody who sets limits."""
    values = {f"blkdeviotune.{name}": n for name, n in to_libvirt(limits).items()}
    return {"blkdeviotune.disk": "vda", **values}


def running(abilities: Abilities = STOCK) -> dict[str, Domain]:
    """Return a domain with a drive, by its name."""
    drives = {"vda": DriveInfo("vda", "/img", UNLIMITED, abilities)}
    info = VmInfo("db1", drives, None, None, None, "")
    return {"db1": Domain(parse_domain(XML), info, 1, abilities)}


@pytest.mark.parametrize(
    ("heard", "read_again"),
    [
        ([], False),
        ([OURS], False),
        ([THEIRS], True),
        ([OURS, THEIRS], True),
        ([THEIRS, OURS], True),
    ],
)
async def test_limits_that_somebody_sets_while_the_agent_does_are_read_again(
    heard: list[ThrottleLimits], read_again: bool
) -> None:
    domains, libvirt, changed = running(), Slow(), list[str]()
    limits = LimitsInForce(domains, libvirt, SourceNews(), changed.append)
    setting = asyncio.create_task(limits.set_limits(VDA, OURS, 30.0))
    await asyncio.sleep(0)
    for each in heard:
        limits.tuned("db1", event(each))
    libvirt.go_on.set()
    await setting
    assert domains["db1"].info.drives["vda"].in_force == OURS  # until it is read again
    assert changed == (["db1"] if read_again else [])
    # What the agent's own may have overwritten.
    others = {"vda": {name: value or 0 for name, value in THEIRS.items()}}
    assert limits.by_others("db1") == (others if read_again else {})
    assert limits.by_others("db1") == {}


async def test_an_order_that_failed_and_comes_late_is_nobody_elses() -> None:
    class Silent(Slow):
        async def call_domain(self, *_: Any, **__: Any) -> Any:
            raise ConnectionLost("db1", "no answer in 5 s", "")

    limits = LimitsInForce(running(), Silent(), SourceNews(), lambda _: None)
    with pytest.raises(ConnectionLost):
        await limits.set_limits(VDA, OURS, 30.0)
    limits.tuned("db1", event(OURS))
    assert limits.by_others("db1") == {}


async def test_a_drives_next_limits_may_be_sent_before_the_last_are_in_force() -> None:
    domains, libvirt, changed = running(), Slow(), list[str]()
    limits = LimitsInForce(domains, libvirt, SourceNews(), changed.append)
    first = asyncio.create_task(limits.set_limits(VDA, OURS, 30.0))
    second = asyncio.create_task(limits.set_limits(VDA, OTHERS, 30.0))
    await asyncio.sleep(0)
    limits.tuned("db1", event(OURS))
    libvirt.go_on.set()
    await first
    limits.tuned("db1", event(OTHERS))
    await second
    assert domains["db1"].info.drives["vda"].in_force == OTHERS
    assert changed == []


async def test_an_event_of_the_last_limits_that_comes_late_is_nobody_elses() -> None:
    libvirt = Slow()
    limits = LimitsInForce(running(), libvirt, SourceNews(), lambda _: None)
    libvirt.go_on.set()
    await limits.set_limits(VDA, OURS, 30.0)
    libvirt.go_on.clear()
    setting = asyncio.create_task(limits.set_limits(VDA, OTHERS, 30.0))
    await asyncio.sleep(0)
    limits.tuned("db1", event(OURS))
    libvirt.go_on.set()
    await setting
    assert limits.by_others("db1") == {}


async def test_it_counts_what_somebody_sets_while_a_domain_is_read() -> None:
    limits = LimitsInForce({}, Slow(), SourceNews(), lambda _: None)
    before = limits.changes("db1")
    limits.tuned("db1", event(THEIRS))  # the domain isn't known yet
    assert limits.changes("db1") != before


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (  # libvirt takes a disk's path, too
            event(UNLIMITED) | {"blkdeviotune.disk": "/img"},
            {"/img": {name: 0 for name, _ in UNLIMITED.items()}},
        ),
        (  # the rest stays
            {"blkdeviotune.disk": "vda", "blkdeviotune.total_iops_sec": 50},
            {"vda": {"iops_total": 50}},
        ),
        (event(THEIRS) | {"blkdeviotune.group_name": "other"}, {}),
    ],
    ids=["a path", "some fields", "another group"],
)
async def test_an_event_that_does_not_tell_a_drives_limits_has_the_domain_read_again(
    values: dict[str, object], told: dict[str, dict[str, int]]
) -> None:
    domains, changed = running(), list[str]()
    limits = LimitsInForce(domains, Slow(), SourceNews(), changed.append)
    before = limits.changes("db1")
    limits.tuned("db1", values)
    assert changed == ["db1"]
    assert limits.changes("db1") != before  # a reading from before is too old
    assert domains["db1"].info.drives["vda"].in_force == UNLIMITED  # until it is read again
    assert limits.by_others("db1") == told


async def test_an_event_of_limits_that_are_in_force_has_nothing_read_again() -> None:
    domains, changed = running(), list[str]()
    limits = LimitsInForce(domains, Slow(), SourceNews(), changed.append)
    limits.tuned("db1", event(UNLIMITED))
    assert changed == []


@pytest.mark.parametrize(
    ("told", "vda", "vdb"),
    [(OURS, OURS, OTHERS), (OTHERS, OURS, OTHERS), (THEIRS, THEIRS, THEIRS)],
    ids=["of the first", "of the second", "of nobody"],
)
async def test_limits_of_a_disk_that_shares_its_group_are_not_overwritten_by_the_others(
    told: ThrottleLimits, vda: ThrottleLimits, vdb: ThrottleLimits
) -> None:
    limits, again = shared(DrivePolicy(limit=300), OURS, OTHERS)
    assert again(told) == {"vda": vda, "vdb": vdb}
    setting = asyncio.create_task(limits.set_limits(VDA, THEIRS, 30.0))
    await asyncio.sleep(0)
    assert again(THEIRS) == {"vda": THEIRS, "vdb": OTHERS}, "they are being set"
    setting.cancel()


async def test_a_disk_without_a_policy_has_what_its_group_has() -> None:
    _, again = shared(None, OURS, OTHERS)
    for told in (OURS, OTHERS):
        assert again(told) == {"vda": told, "vdb": told}


async def test_a_disk_has_anothers_limits_from_the_reading_on_in_which_that_has_no_policy() -> None:
    _, again = shared(DrivePolicy(limit=300), OURS, OTHERS)
    only_vdb = DomainPolicy(drives={"vdb": DrivePolicy(limit=300)})
    assert again(OURS, only_vdb) == {"vda": OURS, "vdb": OURS}


async def test_a_disk_without_a_policy_has_unknown_limits_after_a_reading_that_was_overtaken() -> (
    None
):
    limits, again = shared(None, OURS, OTHERS)
    setting = asyncio.create_task(limits.set_limits(VDA, THEIRS, 30.0))
    await asyncio.sleep(0)
    assert again(THEIRS, changes=(-1, -1)) == {"vda": OURS, "vdb": None}
    setting.cancel()


class Again(Protocol):
    """Reads the limits of two disks again, as libvirt tells them."""

    def __call__(
        self,
        told: ThrottleLimits,
        policy: DomainPolicy | None = None,
        changes: tuple[int, int] | None = None,
    ) -> Mapping[str, ThrottleLimits | None]:
        """Return them. policy: if it is another one now. changes: those before, if others."""


def shared(policy: DrivePolicy | None, *in_force: ThrottleLimits) -> tuple[LimitsInForce, Again]:
    """Return the limits of two disks of one group, and what reads them again as libvirt tells them.

    policy: vdb's; vda has one. in_force: as they were set last.
    """
    disk = "<disk><target dev='{}'/><iotune><group_name>both</group_name></iotune></disk>"
    devices = "".join(map(disk.format, TARGETS))
    xml = parse_domain(f"<domain><name>db1</name><devices>{devices}</devices></domain>")
    drives = {t: DriveInfo(t, "/img", each) for t, each in zip(TARGETS, in_force, strict=True)}
    own = {"vda": DrivePolicy(limit=300)} | ({} if policy is None else {"vdb": policy})
    before = DomainPolicy(drives=own)
    info = VmInfo("db1", drives, before, None, None, "")
    limits = LimitsInForce(
        {"db1": Domain(xml, info, 1, STOCK)}, Slow(), SourceNews(), lambda _: None
    )

    def again(
        told: ThrottleLimits,
        policy: DomainPolicy | None = None,
        changes: tuple[int, int] | None = None,
    ) -> Mapping[str, ThrottleLimits | None]:
        return limits.read_again(
            "db1",
            xml.disks,
            policy or before,
            dict.fromkeys(TARGETS, told),
            STOCK,
            changes or limits.changes("db1"),
            same_qemu=True,
        )

    return limits, again


@pytest.mark.parametrize("withdrawn", [True, False])
async def test_what_libvirt_was_told_of_a_curve_is_known_only_once_it_was_told(
    monkeypatch: pytest.MonkeyPatch, withdrawn: bool
) -> None:
    """Or it would keep limits for a higher rate, for the QEMU that the guest migrates to."""
    domains, libvirt = running(PATCHED), Curves(monkeypatch)
    limits = LimitsInForce(domains, libvirt, SourceNews(), lambda _: None)
    await limits.set_limits(VDA, exact(8000), 30.0)
    libvirt.go_on, libvirt.withdraws = asyncio.Event(), withdrawn
    first = asyncio.create_task(limits.set_limits(VDA, exact(1000), 30.0))
    await asyncio.sleep(0)
    libvirt.withdraws = False
    second = asyncio.create_task(limits.set_limits(VDA, exact(1030), 30.0))
    await asyncio.sleep(0)
    libvirt.go_on.set()
    await asyncio.gather(first, second, return_exceptions=True)
    assert libvirt.told[-1] == (exact(1030), fallback_of(exact(1030)))
    assert len(libvirt.told) == 3 - withdrawn
    libvirt.go_on = None
    await limits.set_limits(VDA, exact(1040), 30.0)
    assert libvirt.told[-1][1] is None, "the one before is good for it"


@pytest.mark.parametrize("when", ["meanwhile", "late"])
async def test_the_event_of_a_fallback_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    domains, libvirt, changed = running(PATCHED), Curves(monkeypatch), list[str]()
    limits = LimitsInForce(domains, libvirt, SourceNews(), changed.append)
    libvirt.go_on = asyncio.Event()
    setting = asyncio.create_task(limits.set_limits(VDA, exact(8000), 30.0))
    await asyncio.sleep(0)
    if when == "meanwhile":
        limits.tuned("db1", event(fallback_of(exact(8000))))
    libvirt.go_on.set()
    await setting
    if when == "late":
        limits.tuned("db1", event(fallback_of(exact(8000))))
    assert domains["db1"].info.drives["vda"].in_force == exact(8000)
    assert changed == []
