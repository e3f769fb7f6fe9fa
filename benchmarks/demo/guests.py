"""The demo's guests: booting them, their policies, and the load that fio makes in each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks.demo.scenario import BENCHMARKS, STREAM_BYTES, Guest, Phase, Scenario
from iokeel.libvirt_xml.schema import NAMESPACE
from testing.lab.guests.domain import DiskSpec, folder_in_memory, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import Host

# A phase ends that long after the first completion, so fio runs a little longer.
_TAIL_S = 1


def boot(
    host: Host, scenario: Scenario, stack: ExitStack, emulator: Path | None
) -> Iterator[tuple[Guest, Vm]]:
    """Boot the guests one after another. They end with `host`, their images with `stack`."""
    disks = stack.enter_context(folder_in_memory("demo"))
    for guest in scenario.guests:
        disk = make_disk(disks / f"{guest.name}.raw", scenario.disk_mib)
        spec = DiskSpec("vda", disk, cache="writeback", io="threads")
        policy = _policy_element(guest)
        vm = Vm.boot(host, guest.name, [spec], policy=policy, emulator=emulator)
        yield guest, vm


def _policy_element(guest: Guest) -> str:
    return (
        f'<iokeel:policy xmlns:iokeel="{NAMESPACE}" tenant="{guest.tenant}">'
        f'<iokeel:drive target="vda" limit="{guest.limit}"/></iokeel:policy>'
    )


def set_policy(vm: Vm, guest: Guest, limit: int) -> None:
    """Give a running guest's drive another limit in its policy, as an operator would."""
    policy = f'<policy tenant="{guest.tenant}"><drive target="vda" limit="{limit}"/></policy>'
    vm.host.virsh(
        "metadata",
        vm.name,
        "--uri",
        NAMESPACE,
        "--key",
        "iokeel",
        "--set",
        policy,
        "--live",
        "--config",
    )


def set_static_limit(vm: Vm, guest: Guest, limit: int) -> None:
    """Give a running guest's drive a static limit on requests, of whatever size."""
    # With an iops-size that no request reaches, each counts as one. A cost curve goes.
    values = {"total-bytes-sec": 0, "total-iops-sec": limit, "size-iops-sec": 1 << 30}
    options = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    vm.host.virsh("blkdeviotune", vm.name, "vda", *options, "--live")


def fio_job(scenario: Scenario, guest: Guest) -> str:
    """Return a fio job with a section for each stretch of phases in which a stream runs."""
    sections = []
    *phases, last = scenario.phases
    phases += [
        Phase(last.name, last.end_s + _TAIL_S, last.streams),
        Phase("end", 0, frozenset()),
    ]
    for stream, size in STREAM_BYTES.items():
        start = begun = 0.0
        running = False
        for phase in phases:
            runs = stream in phase.streams
            if runs and not running:
                begun = start
            if running and not runs:
                sections.append(
                    f"[{stream}-{begun:g}]\nbs={size}\n"
                    f"startdelay={begun:g}\nruntime={start - begun:g}"
                )
            running, start = runs, phase.end_s
    return shift_job(guest.read_percent, guest.depth, sections)


def shift_job(read_percent: int, depth: int, sections: Iterable[str]) -> str:
    """Return jobs/shift.fio with its sections."""
    text = (BENCHMARKS / "jobs/shift.fio").read_text()
    for name, value in (("READ_PERCENT", read_percent), ("DEPTH", depth)):
        text = text.replace(f"@{name}@", str(value))
    return text.replace("@STREAMS@", "\n".join(sections))
