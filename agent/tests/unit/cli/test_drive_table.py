"""The sums of a VM in `iokeel stats`."""

from __future__ import annotations

from rich.console import Console

from iokeel.cli.drive_tables import DrivesByVm
from iokeel.core.decide import decide
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId
from iokeel.core.values.limits import STOCK
from iokeel.core.values.observation import DriveSeen, Observation
from iokeel.core.values.policy import DomainPolicy, DrivePolicy, VmPolicy
from iokeel.core.values.state import State
from iokeel.hypervisors.source import DriveInfo, VmInfo
from iokeel.report.snapshot import Known, snapshot_of


def shown(vm: VmPolicy | None, *targets: str, seconds: int = 3) -> list[list[str]]:
    """Return the rows of a VM whose drives do 300 reads of 4 KiB a second each."""
    state = State()
    for second in range(1, seconds + 1):
        reads = 300 * second
        counters = Counters(second * NS_PER_S, reads, 4096 * reads, 0, 0, 0, 0)
        seen = {
            DriveId("db1", target): DriveSeen(
                DrivePolicy(limit=1000), counters, None, abilities=STOCK, vm=vm
            )
            for target in targets
        }
        state, _ = decide(state, Observation(seen), second * NS_PER_S)
    info = VmInfo("db1", {t: DriveInfo(t) for t in targets}, DomainPolicy({}, vm=vm))
    console = Console(width=200)
    with console.capture() as captured:
        console.print(
            DrivesByVm(snapshot_of(Known(state, {"db1": info}, {}, {}, {}, {}, 0)).vm_reports())
        )
    return [line.split() for line in captured.get().splitlines()[1:]]


def test_the_sum_of_a_vm_with_a_limit_shows_that_and_how_much_of_it_is_used() -> None:
    *_, total = shown(VmPolicy(limit=1200), "vda", "vdb")
    assert total[:4] == ["sum", "600", "1200", "50"]


def test_a_vm_with_a_limit_has_a_sum_also_if_it_has_one_drive() -> None:
    drive, total = shown(VmPolicy(limit=500, burst=900), "vda", seconds=12)
    assert drive[:2] == ["db1", "vda"]
    assert total[:4] == ["sum", "300", "900", "burst"]
    assert "11" in total  # seconds of credit
    assert len(shown(None, "vda")) == 1


def test_without_a_limit_of_the_vm_the_sum_is_what_its_drives_may_do() -> None:
    *_, total = shown(None, "vda", "vdb")
    assert total[:3] == ["sum", "600", "2000"]
