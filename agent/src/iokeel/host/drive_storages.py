"""Which storage each drive is on: found by itself, or by configuration.

Looking at a path blocks where its filesystem doesn't answer, an NFS server's that is down say. So
it is looked at in threads, those under one mount point in one, and a thread that is stuck is left
alone: nothing waits for it, and what it finds in the end is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from fnmatch import translate

from iokeel.config.settings import StorageConfig
from iokeel.core.counters import DriveId
from iokeel.core.sharing.storage import Place, StorageId
from iokeel.host.block_devices import StoragePaths
from iokeel.hypervisors.source import VmInfo

log = logging.getLogger(__name__)

Found = dict[str, tuple[Place, ...]]

#: What wasn't found (a file that isn't there yet, a server that was down): look again this often.
RECHECK_S = 60.0
# A path that takes longer is stuck. More than so many stuck threads a mount point don't help.
_PATIENCE_S = 2.0
_MOST_STUCK = 2


class Storages:
    """Which storage each drive is on. Not for several event loops."""

    def __init__(
        self,
        configured: Mapping[StorageId, StorageConfig],
        paths: Callable[[], StoragePaths] = StoragePaths,
    ) -> None:
        #: The block device below each storage that has one.
        self.devices: dict[StorageId, Place] = {}
        self._configured = configured
        self._paths = paths
        self._vms: dict[str, VmInfo] = {}
        self._sources: dict[DriveId, str] = {}
        self._places: Found = {}
        self._storages: dict[DriveId, StorageId] = {}
        self._stuck: dict[str, int] = {}
        self._looking: set[asyncio.Task[None]] = set()
        self._recheck_at = 0.0
        self._patterns = {
            name: re.compile("|".join(map(translate, config.drives)))
            for name, config in configured.items()
            if config.drives
        }

    def of(self, drive: DriveId) -> StorageId | None:
        """Return the storage of a drive, or None where it isn't known."""
        return self._storages.get(drive)

    def devices_of(self, drive: DriveId) -> tuple[str, ...] | None:
        """Return the devices of this host (MAJOR:MINOR) that a drive's requests come to.

        There are none for one that is reached over a network; None where it isn't known.
        """
        places = self._places.get(self._sources.get(drive, ""))
        return tuple(place.number for place in places if place.number) if places else None

    async def follow(self, vms: Mapping[str, VmInfo], timeout_s: float) -> None:
        """Find what the drives of VMs are on that are new or have changed.

        Returns when that is done, or after a timeout, when it goes on beside. Where nothing has
        changed that takes no time. Until a drive's storage is found, it is as it was, or None.
        """
        changed = [name for name, vm in vms.items() if self._vms.get(name) is not vm]
        gone = self._vms.keys() - vms.keys()
        wanted = self._take(vms, changed, gone) if changed or gone else set()
        if time.monotonic() >= self._recheck_at:
            self._recheck_at = time.monotonic() + RECHECK_S
            wanted |= {s for s in self._sources.values() if s and not self._places.get(s)}
            wanted |= set(self._configured_paths())
        if wanted:
            task = asyncio.create_task(self._look(wanted))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)
            done, _ = await asyncio.wait({task}, timeout=timeout_s)
            for task in done:
                task.result()

    def _take(
        self, vms: Mapping[str, VmInfo], changed: Iterable[str], gone: Iterable[str]
    ) -> set[str]:
        """Take note of what VMs there are, and return the sources to look at."""
        wanted: set[str] = set()
        moved = False
        for name in (*changed, *gone):
            old, new = _sources(self._vms.get(name)), _sources(vms.get(name))
            if new != old:  # limits that have changed make a new VmInfo too
                moved = True
                wanted |= set(new.values()) - {""}
                for drive in old:
                    del self._sources[drive]
                self._sources |= new
        self._vms = dict(vms)
        if moved:
            used = {*self._sources.values(), *self._configured_paths()}
            self._places = {s: places for s, places in self._places.items() if s in used}
            self._decide()
        return wanted

    def _configured_paths(self) -> Iterable[str]:
        for config in self._configured.values():
            yield from (str(path) for path in (config.device, config.path) if path is not None)

    # Looking

    async def _look(self, sources: Iterable[str]) -> None:
        paths = await asyncio.to_thread(self._paths)
        by_mount: dict[str, list[str]] = {}
        for source in sources:
            by_mount.setdefault(paths.mount_point(source), []).append(source)
        await asyncio.gather(
            *(self._look_below(paths, point, found) for point, found in by_mount.items())
        )

    async def _look_below(self, paths: StoragePaths, point: str, sources: list[str]) -> None:
        """Look at what is under a mount point, past what is stuck."""
        left = sources
        while left:
            if self._stuck.get(point, 0) >= _MOST_STUCK:
                return
            found: Found = {}
            done = _in_thread(paths, left, found)
            while not done.is_set():
                before = len(found)
                try:
                    async with asyncio.timeout(_PATIENCE_S):
                        await done.wait()
                except TimeoutError:
                    if len(found) == before:
                        break
            so_far = dict(found)
            self._found(so_far)
            if done.is_set():
                return
            stuck, *left = left[len(so_far) :]
            log.warning("%s: doesn't answer; its storage isn't known until it does", stuck)
            self._leave(done, point, found)

    def _leave(self, done: asyncio.Event, point: str, found: Found) -> None:
        """Wait beside everything else for a thread that is stuck."""

        async def wait() -> None:
            await done.wait()
            self._stuck[point] -= 1
            self._found(found)

        self._stuck[point] = self._stuck.get(point, 0) + 1
        task = asyncio.create_task(wait())
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    def _found(self, found: Found) -> None:
        new = {s: places for s, places in found.items() if self._places.get(s) != places}
        if new:
            self._places |= new
            self._decide()

    # Which storage

    def _decide(self) -> None:
        """Say of each drive which storage it is on, and of each storage which device is below."""
        by_place = {
            place.name: name
            for name, config in reversed([*self._configured.items()])
            for place in self._own(name, config)
        }
        devices: dict[StorageId, set[Place]] = {
            name: set(self._own(name, config))
            for name, config in self._configured.items()
            if config.device or config.path
        }
        said = set(devices)
        self._storages = {}
        for drive, source in self._sources.items():
            found = self._of(drive, self._places.get(source, ()), by_place)
            if found is not None:
                storage, place = found
                self._storages[drive] = storage
                if place is not None and storage not in said:
                    devices.setdefault(storage, set()).add(place)
        self.devices = {
            name: place
            for name, places in devices.items()
            if len(places) == 1 and (place := next(iter(places))).number
        }

    def _own(self, name: StorageId, config: StorageConfig) -> Iterable[Place]:
        """Return the places that configuration says are a storage."""
        if config.device is not None:
            yield from self._places.get(str(config.device), ())[:1]
        if config.path is not None:
            yield from self._places.get(str(config.path), ())[-1:]
        if config.source is not None:
            yield Place(config.source)
        if not (config.device or config.path or config.source or config.drives):
            yield Place(name)

    def _of(
        self, drive: DriveId, places: tuple[Place, ...], by_place: Mapping[str, StorageId]
    ) -> tuple[StorageId, Place | None] | None:
        for name, pattern in self._patterns.items():
            if pattern.fullmatch(str(drive)):
                return name, places[-1] if places else None
        for place in places:
            if place.name in by_place:
                return by_place[place.name], place
        if not places:
            return None
        last = places[-1]
        taken = last.name in self._configured  # by a storage that is said to be elsewhere
        return f"/dev/{last.name}" if taken else last.name, last


def _sources(vm: VmInfo | None) -> dict[DriveId, str]:
    """Return what a VM's drives are on, by path; "" where that isn't known."""
    if vm is None:
        return {}
    return {DriveId(vm.name, target): drive.path or "" for target, drive in vm.drives.items()}


def _in_thread(paths: StoragePaths, sources: list[str], found: Found) -> asyncio.Event:
    """Look at sources one after another in a thread, and return what is set when that is done.

    A thread of its own, for one that hangs would keep an executor from shutting down.
    """
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def look() -> None:
        try:
            for source in sources:
                found[source] = paths.places(source)
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=look, name="storage-paths", daemon=True).start()
    return done
