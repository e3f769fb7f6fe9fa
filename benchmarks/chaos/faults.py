"""How each kind of fault is made and undone: a context manager each, which yields in between."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

from benchmarks.chaos.host import ChaosHost, Guest
from benchmarks.chaos.journal import RECONNECT_S
from benchmarks.chaos.schedule import Fault, lanes_of
from iokeel.libvirt_xml.schema import NAMESPACE
from testing.host.clock import STEPS_S
from testing.lab.guests.domain import DiskSpec, domain_xml, make_disk
from testing.lab.image import image
from testing.waiting import eventually

_LIMITS = (300, 450, 600, 800, 1000)  # normalized iops
_LIKE = (" {}", "{} ", "{}\u00a0", "{}\u202e", "\u200b{}", "{}'\"<&", "-{}", "{}\u2028x")
_OTHER_POLICY = f'<policy xmlns="{NAMESPACE}"><drive target="vda" limit="9"/></policy>'
T = TypeVar("T")

Make = Callable[[ChaosHost, Guest, float], AbstractContextManager[None]]


def carry_out(chaos: ChaosHost, faults: Sequence[Fault], say: Callable[[str], None]) -> None:
    """Make all faults at their time, or as soon as those before them in their lanes are undone.

    Raises what went wrong with the first that couldn't be made or undone.
    """
    lanes = {lane: threading.Lock() for fault in faults for lane in lanes_of(fault)}
    begun_s = time.monotonic()
    running: list[Future[None]] = []

    def run(fault: Fault) -> None:
        with ExitStack() as stack:
            for lane in lanes_of(fault):
                stack.enter_context(lanes[lane])
            say(f"{time.monotonic() - begun_s:7.1f} s  {fault.kind}")
            guest = chaos.guests[fault.guest]
            with KINDS[fault.kind](chaos, guest, fault.draw):
                time.sleep(fault.hold_s)

    with ThreadPoolExecutor(max(1, len(faults))) as threads:
        for fault in faults:
            time.sleep(max(0.0, begun_s + fault.at_s - time.monotonic()))
            if any(done.done() and done.exception() for done in running):
                break
            running.append(threads.submit(run, fault))
    for done in running:
        done.result()


# The agent and libvirtd


def _out(
    begin: Callable[[ChaosHost], object], end: Callable[[ChaosHost], object], settles_s: float
) -> Make:
    """Return a fault in which the agent or libvirtd is out of service.

    settles_s: how long the agent takes to find its guests again.
    """

    @contextmanager
    def make(chaos: ChaosHost, guest: Guest, draw: float) -> Iterator[None]:
        with chaos.journal.during(chaos.journal.out, settles_s):
            begin(chaos)
            yield
            end(chaos)

    return make


@contextmanager
def _class_gone(chaos: ChaosHost, guest: Guest, draw: float) -> Iterator[None]:
    number = signal.SIGTERM if draw < 0.5 else signal.SIGKILL
    with chaos.journal.during(chaos.journal.unreadable):
        _start_again(chaos, number, with_class=False)
        yield
        _start_again(chaos, number, with_class=True)


def _start_again(chaos: ChaosHost, number: signal.Signals, *, with_class: bool) -> None:
    with chaos.journal.during(chaos.journal.out, RECONNECT_S):
        chaos.agent.stop(number)
        chaos.agent.set_class(there=with_class)
        chaos.agent.start()


@contextmanager
def _state_read_only(chaos: ChaosHost, guest: Guest, draw: float) -> Iterator[None]:
    # While the agent has its files open, the kernel doesn't let a mount become read-only.
    with chaos.journal.during(chaos.journal.out, RECONNECT_S):
        chaos.agent.stop(signal.SIGKILL)
        chaos.host.run(["mount", "-o", "remount,ro", chaos.agent.state])
        chaos.agent.start()
        yield
        chaos.agent.end()
        chaos.host.run(["mount", "-o", "remount,rw", chaos.agent.state])
        chaos.agent.start()


@contextmanager
def _state_full(chaos: ChaosHost, guest: Guest, draw: float) -> Iterator[None]:
    filler = chaos.agent.state / "filler"
    chaos.host.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4k"], check=False)
    yield
    chaos.host.run(["rm", filler])


@contextmanager
def _clock_steps(chaos: ChaosHost, guest: Guest, draw: float) -> Iterator[None]:
    chaos.agent.clock.step(_pick(STEPS_S, draw))
    yield
    chaos.agent.clock.step(0)


@contextmanager
def _limits_by_hand(chaos: ChaosHost, guest: Guest, draw: float) -> Iterator[None]:
    iops = _pick((0, 50, 5000), draw)
    values = {"total-bytes-sec": 0, "total-iops-sec": iops, "size-iops-sec": 0}
    options = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    with chaos.journal.during(chaos.journal.unsettled[guest.name, "vda"]):
        chaos.host.virsh("blkdeviotune", guest.name, "vda", *options, "--live")
    yield


@contextmanager
def _disk_plugged(chaos: ChaosHost, guest: Guest, draw: float) -> Iterator[None]:
    journal, drained = chaos.journal, chaos.journal.drained[guest.name]
    with journal.during(journal.unsettled[guest.name, "vdb"]), journal.during(drained):
        guest.vm.attach(guest.spare)
    yield
    with journal.during(drained):
        guest.vm.detach("vdb")
        eventually(lambda: "vdb" not in chaos.host.virsh("domblklist", guest.name))


@contextmanager
def _guest_suspended(chaos: ChaosHost, guest: Guest, draw: float) -> Iterator[None]:
    guest.read_clock()
    with _away(chaos, guest):
        chaos.host.virsh("suspend", guest.name)
        yield
        chaos.host.virsh("resume", guest.name)
    guest.read_clock()


@contextmanager
def _guest_saved(chaos: ChaosHost, guest: Guest, draw: float) -> Iterator[None]:
    guest.read_clock()
    with _away(chaos, guest), guest.vm.saved():
        yield
    guest.read_clock()


@contextmanager
def _snapshot(chaos: ChaosHost, guest: Guest, draw: float) -> Iterator[None]:
    overlay = guest.folder / f"{guest.name}.overlay"
    options = ("--disk-only", "--atomic", "--no-metadata", "--diskspec", f"vda,file={overlay}")
    with chaos.journal.during(chaos.journal.drained[guest.name]):
        chaos.host.virsh("snapshot-create-as", guest.name, "overlay", *options)
    yield
    drained = chaos.journal.drained[guest.name]
    with chaos.journal.during(drained), chaos.journal.during(drained):  # its begin, and its end
        chaos.host.virsh("blockcommit", guest.name, "vda", "--active", "--pivot", "--wait")
    overlay.unlink()


@contextmanager
def _away(chaos: ChaosHost, guest: Guest) -> Iterator[None]:
    """Note that a guest is stopped. When that begins, QEMU lets waiting requests through."""
    away, drained = chaos.journal.away[guest.name], chaos.journal.drained[guest.name]
    with chaos.journal.during(away), chaos.journal.during(drained):
        yield


# Policies


@contextmanager
def _new_limit(chaos: ChaosHost, guest: Guest, draw: float) -> Iterator[None]:
    chaos.set_limit(guest, _pick(_LIMITS, draw))
    yield


def _instead_of_the_policy(wrong: Callable[[Guest], str]) -> Make:
    """Return a fault that sets a wrong policy, and the good one again."""

    @contextmanager
    def make(chaos: ChaosHost, guest: Guest, draw: float) -> Iterator[None]:
        with chaos.journal.during(chaos.journal.unreadable):
            chaos.set_policy(guest, wrong(guest))
            yield
            chaos.set_policy(guest, guest.policy(guest.limit))

    return make


@contextmanager
def _name_like_anothers(chaos: ChaosHost, guest: Guest, draw: float) -> Iterator[None]:
    """Start a domain whose name looks like a guest's, with a limit and a disk of its own."""
    name = _pick(_LIKE, draw).format(guest.name)
    disk = DiskSpec("vda", make_disk(guest.folder / "like", 1))
    text = domain_xml(
        name, [disk], image=image(), folder=chaos.host.dir, policy=_OTHER_POLICY, memory_mib=64
    )
    file = chaos.host.dir / "like.xml"
    file.write_text(text)
    chaos.insist("create", file, "--paused")
    yield
    chaos.insist("destroy", name)


def _pick(of: Sequence[T], draw: float) -> T:
    return of[int(draw * len(of))]


KINDS: dict[str, Make] = {
    "agent killed": _out(
        lambda chaos: chaos.agent.stop(signal.SIGKILL),
        lambda chaos: chaos.agent.start(),
        RECONNECT_S,
    ),
    "agent ended": _out(
        lambda chaos: chaos.agent.stop(), lambda chaos: chaos.agent.start(), RECONNECT_S
    ),
    "agent hangs": _out(
        lambda chaos: chaos.agent.send(signal.SIGSTOP),
        lambda chaos: chaos.agent.send(signal.SIGCONT),
        0.0,
    ),
    "class gone": _class_gone,
    "state read-only": _state_read_only,
    "state full": _state_full,
    "clock steps": _clock_steps,
    "libvirtd killed": _out(
        lambda chaos: chaos.host.kill_libvirtd(),
        lambda chaos: chaos.host.start_libvirtd(),
        RECONNECT_S,
    ),
    "libvirtd hangs": _out(
        lambda chaos: chaos.host.signal_libvirtd(signal.SIGSTOP),
        lambda chaos: chaos.host.signal_libvirtd(signal.SIGCONT),
        RECONNECT_S,
    ),
    "limits by hand": _limits_by_hand,
    "disk plugged": _disk_plugged,
    "guest suspended": _guest_suspended,
    "guest saved": _guest_saved,
    "snapshot": _snapshot,
    "name like another's": _name_like_anothers,
    "new limit": _new_limit,
    "bad limit": _instead_of_the_policy(lambda guest: guest.policy("-5")),
    "bad policy": _instead_of_the_policy(lambda guest: "<policy><drives/>x</policy>"),
    "unknown class": _instead_of_the_policy(lambda guest: guest.policy(500, "nobodys")),
}
