"""Sets bounds, weights and latency targets on VMs' cgroups, and puts back what was there before.

The values found in a group are saved before they are changed, also across a crash of the agent.
They are put back when the agent stops or a VM has no order any more, except those that somebody
else has changed since. Calls block for a little, and are made one after another.
"""

from __future__ import annotations

import errno
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from iokeel.core.enforce.backstop import CgroupOrder, Io, IoMax, fits
from iokeel.errors import CgroupRefused, IokeelError, StateNotWritten
from iokeel.host.cgroup.files import (
    Setting,
    bounded,
    counter_files,
    read,
    read_counters,
    tighter,
    wanted,
    write,
)
from iokeel.host.cgroup.place import Hierarchy, group_of, has_processes, io_hierarchy
from iokeel.host.process import Process
from iokeel.words.quoting import shown_path

log = logging.getLogger(__name__)

# A group that isn't a VM's own seldom becomes one. Look again this often.
_REFUSED_S = 30.0
# How often settings that haven't changed here are read, in case somebody else has changed them,
# and groups are checked for others that have joined.
_CHECK_S = 60.0
# A write into memory that takes longer is left to itself: VMs wait for their bounds.
_SAVE_S = 2.0
_HANGS = StateNotWritten(
    "the cgroups' former values",
    "the state folder's disk doesn't answer",
    "a restart can't put cgroups back as they were",
    "see what holds the disk up",
)
_NO_RIGHTS = {errno.EACCES, errno.EPERM, errno.EROFS}


class Memory(Protocol):
    """Keeps a text for each group across the agent's restarts."""

    def load_cgroups(self) -> dict[str, str]:
        """Return the saved texts, by group."""

    def save_cgroups(self, changed: Mapping[str, str | None]) -> None:
        """Save texts, and forget the groups with None. Raises IokeelError."""


@dataclass
class _Group:
    """A group that was changed. Settings are by `str(Setting)`.

    inode: tells it from a later group of that name. vm: the VM that is in it; "" if an older
    version saved it. found: the values that were there before. ours: the last value that the agent
    set, and the one before, since a crash may have come between saving and writing the last.
    """

    inode: int
    vm: str = ""
    found: dict[str, str] = field(default_factory=dict)
    ours: dict[str, list[str]] = field(default_factory=dict)


class Counted(NamedTuple):
    """A VM's group: its I/O so far, and the bounds on it, by device.

    io: None if the kernel's counters can't be read. at_ns: when, by the monotonic clock.
    """

    at_ns: int
    io: Mapping[str, Io] | None
    bounds: Mapping[str, IoMax | None]


# A file, and perhaps a device.
_KEY = re.compile(r"[a-z._]+( [0-9:]+)?")


class Cgroups:
    """The groups of this host's VMs. Only `held` and `weighted` are for several threads at once."""

    def __init__(
        self, memory: Memory, proc: Path = Path("/proc"), sys: Path = Path("/sys")
    ) -> None:
        self.errors: Counter[str] = Counter()
        #: The values that hold in VMs' groups now, by VM, then by file and device.
        self.held: Mapping[str, Mapping[str, str]] = {}
        #: Whether a VM's group has its weight for BFQ, which knows none above 1000. A VM that there
        #: was no order for yet isn't in it.
        self.weighted: Mapping[str, bool] = {}
        #: The VMs in the configuration. While one of them can't be reached, nothing but its group
        #: tells whether it runs.
        self.configured: Collection[str] = ()
        self._memory = memory
        self._proc = proc
        self._sys = sys
        self._hierarchy = io_hierarchy(proc)
        self._places: dict[tuple[str, Process], tuple[Path, int]] = {}
        self._refused: dict[tuple[str, Process], float] = {}
        self._limits: dict[Path, Mapping[str, IoMax | None]] = {}
        self._done: dict[Path, dict[Setting, str]] = {}
        self._checked_at = time.monotonic()
        self._told: set[object] = set()
        self._unusable: set[str] = set()  # groups whose saved text makes no sense
        self._groups = dict(self._loaded())
        self._unsaved: set[Path] = set()
        self._saver = ThreadPoolExecutor(1)
        self._saving: Future[None] | None = None

    def apply(
        self,
        orders: Mapping[str, CgroupOrder | None],
        processes: Mapping[str, Process],
        *,
        unread: Collection[str] | None = (),
    ) -> None:
        """Carry out the orders for VMs' groups, and put all other groups back.

        orders: by VM; a group with None stays as it is. processes: the QEMUs by VM; the group of a
        VM with an order, but without one, stays as it is. unread: VMs that can't be read but may
        run; None if any may. Their groups stay as they are, and those of `configured` VMs while
        they have processes. Raises nothing: a failure is logged
        once, counted, and tried again with the next call.
        """
        if self._hierarchy is None:
            self.weighted = dict.fromkeys(orders, False)
            if orders:
                self._tell(
                    "none", "cgroup: no io or blkio controller is mounted, so no VM has a backstop"
                )
            return
        is_due = time.monotonic() >= self._checked_at + _CHECK_S
        if is_due:
            self._checked_at = time.monotonic()
            self._done = {}
        groups = dict(self._found(orders, processes, self._hierarchy, again=is_due))
        steady = {
            path: self._steady(path, order)
            for path, vm in groups.items()
            if (order := orders[vm]) is not None
        }
        self._limits = {path: order.limits for path, order in steady.items()}
        self._set(steady, groups, self._hierarchy)
        self.weighted = self._weights_that_hold(orders, processes, groups, steady)
        for path in self._groups.keys() - groups.keys():
            vm = self._groups[path].vm
            may_run = (
                vm in orders
                or _may_run(vm, unread)
                or (vm in self.configured and has_processes(path))
            )
            if vm in processes or not may_run:
                self._put_back(path)
        self._save()
        self.held = {
            group.vm: {key: ours[-1] for key, ours in group.ours.items()}
            for group in self._groups.values()
        }

    def counted(self, vms: Collection[str]) -> dict[str, Counted]:
        """Return the I/O of some VMs' groups, without those that are gone. A fault is told once."""
        found: dict[str, Counted] = {}
        if self._hierarchy is None:
            return found
        for (vm, _), (path, inode) in self._places.items():
            if vm not in vms:
                continue
            io = read_counters(path, self._hierarchy)
            if io is None and _inode(path) != inode:  # the VM has ended, which is normal
                continue
            if io is None:
                self.errors["cgroup"] += 1
                names = " or ".join(counter_files(self._hierarchy))
                self._tell(
                    ("counters", vm),
                    f"{path}: {names} can't be read, so it isn't known what the images of {vm} add,"
                    " and its cgroup has no bounds; QEMU's limits hold; see that the agent may read"
                    " it",
                )
            else:
                self._told.discard(("counters", vm))
            found[vm] = Counted(time.monotonic_ns(), io, self._limits.get(path, {}))
        return found

    def restore(self) -> None:
        """Put every group back as it was."""
        for path in [*self._groups]:
            self._put_back(path)
        self._save()
        self._done, self.held, self.weighted = {}, {}, {}

    # Groups

    def _found(
        self,
        orders: Mapping[str, CgroupOrder | None],
        processes: Mapping[str, Process],
        hierarchy: Hierarchy,
        *,
        again: bool,
    ) -> Iterator[tuple[Path, str]]:
        """Yield the groups that exist, and the VM of each. again: see _look_for."""
        known = {(vm, processes[vm]): None for vm in orders if vm in processes}
        self._places = {key: place for key, place in self._places.items() if key in known}
        self._refused = {key: until for key, until in self._refused.items() if key in known}
        refused = len(self._refused)
        pids = {qemu.pid for qemu in processes.values()}
        for vm, qemu in known:
            self._look_for(vm, qemu, hierarchy, pids, again=again)
        if len(self._refused) > refused and not again:  # it may be in another's
            for vm, qemu in known:
                self._look_for(vm, qemu, hierarchy, pids, again=True)
        for (vm, _), (path, _) in self._places.items():
            yield path, vm

    def _look_for(
        self, vm: str, qemu: Process, hierarchy: Hierarchy, pids: Collection[int], *, again: bool
    ) -> None:
        """Note a VM's group, and forget it if it is no longer the one it was.

        pids: of all VMs' QEMUs. again: look at one that is known too, because others may be in it
        by now.
        """
        known = self._places.get((vm, qemu))
        if known is not None and _inode(known[0]) != known[1]:
            del self._places[vm, qemu]
            known = None
        is_refused = time.monotonic() < self._refused.get((vm, qemu), 0.0)
        if is_refused or (known is not None and not again):
            return

        def was_its(path: Path) -> bool:
            group = self._groups.get(path)
            bounded = group is not None and (group.vm, group.inode) == (vm, _inode(path))
            return bounded or (known is not None and known[0] == path)

        try:
            path = group_of(vm, qemu, hierarchy, self._proc, pids, was_its)
        except CgroupRefused as error:
            self._places.pop((vm, qemu), None)
            self._refused[vm, qemu] = time.monotonic() + _REFUSED_S
            self.errors["shared"] += 1
            self._tell(vm, str(error))
            return
        self._refused.pop((vm, qemu), None)
        inode = _inode(path) if path is not None else None
        if path is None or inode is None:  # the VM has ended, which is normal
            return
        if (path, inode) == known:
            return
        self._places[vm, qemu] = path, inode
        self._done.pop(path, None)
        self._limits.pop(path, None)
        if path in self._groups and self._groups[path].inode != inode:
            self._forget(path)

    def _steady(self, path: Path, order: CgroupOrder) -> CgroupOrder:
        """Return an order with the bounds that hold already, if they fit it."""
        held = self._limits.get(path, {})
        limits = {
            device: old if (old := held.get(device)) and bounds and fits(old, bounds) else bounds
            for device, bounds in order.limits.items()
        }
        return replace(order, limits=limits)

    def _weights_that_hold(
        self,
        orders: Mapping[str, CgroupOrder | None],
        processes: Mapping[str, Process],
        groups: Mapping[Path, str],
        steady: Mapping[Path, CgroupOrder],
    ) -> dict[str, bool]:
        """Return `weighted` after the orders. A VM whose group stays as it is keeps what it has."""
        stay = {vm for vm in groups.values() if orders[vm] is None} | orders.keys() - processes
        kept = {vm for vm in stay if self.weighted.get(vm)}
        new = {
            vm
            for path, vm in groups.items()
            if any(
                setting.is_bfq_weight and value == str(steady[path].weight)
                for setting, value in self._done.get(path, {}).items()
            )
        }
        return {vm: vm in kept | new for vm in orders}

    # Settings

    def _set(
        self, orders: Mapping[Path, CgroupOrder], groups: Mapping[Path, str], hierarchy: Hierarchy
    ) -> None:
        """Write the settings that groups don't have yet, and what was there before into memory."""
        values = {
            path: dict(wanted(order, path, hierarchy, self._sys)) for path, order in orders.items()
        }
        changes = [
            change
            for path, settings in values.items()
            if settings != self._done.get(path)
            for change in self._plan(path, groups[path], settings, orders[path].unsure)
        ]
        self._save()
        failed = {path for path, setting, value in changes if not self._write(path, setting, value)}
        self._done = {path: done for path, done in values.items() if path not in failed}

    def _plan(
        self, path: Path, vm: str, values: Mapping[Setting, str], unsure: Collection[str]
    ) -> Iterator[tuple[Path, Setting, str]]:
        """Note the values that a group has and will have, and yield those to write.

        unsure: the devices whose settings stay as they are.
        """
        inode = _inode(path)
        if inode is None:
            return
        group = self._groups.setdefault(path, _Group(inode))
        group.vm = vm
        for setting, value in values.items():
            key = str(setting)
            now = read(path, setting)
            if now is None:
                self._lacks(path, setting)
                continue
            ours = group.ours.get(key, [])
            found = group.found[key] if now in ours else now
            new = tighter(setting, found, value)
            if new != now or ours:
                self._unsaved.add(path)
                group.found[key] = found
                group.ours[key] = [*[old for old in ours if old != new][-1:], new]
            if new != now:
                yield path, setting, new
        for key in group.found.keys() - {str(setting) for setting in values}:
            if key.partition(" ")[2] not in unsure:
                self._put_setting_back(path, group, key)
        if not group.found:
            self._forget(path)

    def _forget(self, path: Path) -> None:
        del self._groups[path]
        self._done.pop(path, None)
        self._unsaved.add(path)

    def _lacks(self, path: Path, setting: Setting) -> None:
        """Say once that a group has no io controller."""
        if setting.is_limit and path.exists():
            switch = path.parent / "cgroup.subtree_control"
            v2 = setting.file == "io.max"
            mend = f"; echo +io >{switch} turns it on" if v2 else ""
            self.errors["controller"] += 1
            self._tell("controller", f"{path}: has no {setting.file}, so no backstop{mend}")

    def _put_back(self, path: Path) -> None:
        group = self._groups[path]
        there = _inode(path) == group.inode
        for key in [*group.found] if there else []:
            self._put_setting_back(path, group, key)
        if not there or not group.found:
            self._forget(path)

    def _put_setting_back(self, path: Path, group: _Group, key: str) -> None:
        setting = Setting(*key.split(" "))
        now = read(path, setting)
        if now is None and _inode(path / setting.file) is not None:
            return  # it may be ours still
        is_ours = now in group.ours.get(key, [])
        if not is_ours or self._write(path, setting, group.found[key]):
            self._unsaved.add(path)
            del group.found[key]
            group.ours.pop(key, None)

    def _write(self, path: Path, setting: Setting, value: str) -> bool:
        """Write a setting. Return False if that has to be tried again."""
        try:
            write(path, setting, value)
        except OSError as error:
            if not path.exists():  # the VM has just ended
                return True
            if error.errno in _NO_RIGHTS:
                self.errors["permission"] += 1
                what = "the agent may not write it, so VMs have no backstop"
                mend = "run it as root, or set enabled = false in [cgroup]"
                self._tell("rights", f"{path / setting.file}: {what}; {mend}")
            else:
                self.errors["cgroup"] += 1
                what = f"{setting.device} {value} was refused: {error.strerror}".strip()
                self._tell((setting, error.errno), f"{path / setting.file}: {what}")
            return False
        return True

    def _tell(self, about: object, what: str) -> None:
        if about not in self._told:
            self._told.add(about)
            log.warning("%s", what)

    # Memory

    def _loaded(self) -> Iterator[tuple[Path, _Group]]:
        for path, text in self._memory.load_cgroups().items():
            try:
                group = _saved(text)
            except (ValueError, RecursionError) as error:
                log.warning(
                    "cgroup %s: its saved values can't be used (%s)",
                    shown_path(path),
                    shown_path(error),
                )
                self._unusable.add(path)
            else:
                yield Path(path), group

    def _save(self) -> None:
        changed = {
            str(path): json.dumps(asdict(self._groups[path])) if path in self._groups else None
            for path in self._unsaved
        }
        # One that bounds its group may be all that tells of the bound: `--release` names it.
        useless = {path for path in self._unusable if not bounded(Path(path))}
        changed = {**dict.fromkeys(useless - {*map(str, self._groups)}), **changed}
        if not changed:
            return
        if self._saving is not None and not self._saving.done():
            self.errors["store"] += 1
            return
        self._saving = self._saver.submit(self._memory.save_cgroups, changed)
        try:
            self._saving.result(_SAVE_S)
        except (TimeoutError, IokeelError) as error:
            self.errors["store"] += 1
            self._tell("store", str(_HANGS if isinstance(error, TimeoutError) else error))
        else:
            self._unsaved.clear()
            self._unusable -= useless


def _saved(text: str) -> _Group:
    """Return a group by its saved text. Raises ValueError or RecursionError."""
    match json.loads(text):
        case {"inode": int(inode), "found": dict(found), "ours": dict(ours), **rest} if (
            isinstance(vm := rest.get("vm", ""), str)
            and found.keys() == ours.keys()
            and all(_KEY.fullmatch(key) and isinstance(value, str) for key, value in found.items())
            and all(isinstance(values, list) for values in ours.values())
            and all(isinstance(value, str) for values in ours.values() for value in values)
        ):
            return _Group(inode, vm, found, ours)
    raise ValueError("not what the agent saves")


def _may_run(vm: str, unread: Collection[str] | None) -> bool:
    """Return whether a VM may be one of those that can't be read. vm: "" for any."""
    return unread is None or (vm in unread if vm else bool(unread))


def _inode(folder: Path) -> int | None:
    try:
        return folder.stat().st_ino
    except OSError:
        return None
