"""The storage of each drive, as found on the host or as configured.

Looking at a path blocks while its filesystem doesn't answer, such as an NFS server that is down.
So paths are looked at in threads, one for each mount point. Nothing waits for a thread that is
stuck; if it ends after all, its findings are used. A folder may be a link to another filesystem, so
stuck threads count for their folder, and the others below the mount point are still looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import translate

from iokeel.config.settings import StorageConfig
from iokeel.core.counters import DriveId
from iokeel.core.storage import Place, StorageId
from iokeel.host.block_devices import StoragePaths
from iokeel.hypervisors.source import VmInfo

log = logging.getLogger(__name__)

Found = dict[str, tuple[Place, ...]]

#: Look this often at all paths: the file may come, the server may come back, a volume may move.
RECHECK_S = 60.0
# A path that takes longer is stuck. So many stuck threads a folder, and no more.
_PATIENCE_S = 2.0
_MOST_STUCK = 2


class DriveStorages:
    """Finds the storage of each drive. Not for several event loops."""

    def __init__(
        self,
        configured: Mapping[StorageId, StorageConfig],
        finder: Callable[[], StoragePaths] = StoragePaths,
    ) -> None:
        #: The block device below each storage that has one.
        self.devices: dict[StorageId, Place] = {}
        self._finder = finder
        self._vms: dict[str, VmInfo] = {}
        # Or URLs, "" if unknown. A drive's storage is that of the first.
        self._paths: dict[DriveId, tuple[str, ...]] = {}
        self._places: Found = {}
        self._storages: dict[DriveId, StorageId] = {}
        self._stuck: Counter[tuple[str, str]] = Counter()  # threads, by mount point and folder
        self._looking: set[asyncio.Task[None]] = set()
        self._recheck_at = 0.0
        self._take_over(configured)

    def of(self, drive: DriveId) -> StorageId | None:
        """Return the storage of a drive; None if unknown."""
        return self._storages.get(drive)

    def devices_of(self, drive: DriveId) -> tuple[str, ...] | None:
        """Return the devices of this host (MAJOR:MINOR) that a drive's requests reach.

        They are those of all its images. One that is reached over a network has none. None if
        unknown.
        """
        found = [self._places.get(path) for path in self._paths.get(drive, ("",))]
        numbers = [place.number for places in found for place in places or ()]
        return tuple(dict.fromkeys(filter(None, numbers))) if all(found) else None

    async def configure(
        self, configured: Mapping[StorageId, StorageConfig], timeout_s: float
    ) -> None:
        """Go on with other configured storages, and find them as `follow` finds drives'."""
        self._take_over(configured)
        await self._find(set(self._configured_paths()), timeout_s)
        self._decide()

    def _take_over(self, configured: Mapping[StorageId, StorageConfig]) -> None:
        self._configured = configured
        self._patterns = {
            name: re.compile("|".join(map(translate, config.drives)))
            for name, config in configured.items()
            if config.drives
        }

    async def follow(self, vms: Mapping[str, VmInfo], timeout_s: float) -> None:
        """Find the storages of the drives that are new or have changed, and now and then of all.

        Returns when they are found, at once if nothing has changed. After the timeout it returns
        and the search goes on. Until then a drive's storage is the last one known, or None.
        """
        changed = [name for name, vm in vms.items() if self._vms.get(name) is not vm]
        gone = self._vms.keys() - vms.keys()
        wanted = self._take(vms, changed, gone) if changed or gone else set()
        if time.monotonic() >= self._recheck_at:
            self._recheck_at = time.monotonic() + RECHECK_S
            used = _all(self._paths)
            found = {path for path in used if self._places.get(path)}
            wanted |= used - found
            wanted |= set(self._configured_paths())
            await self._find(found - wanted, 0.0, known=True)  # nothing waits for these
        await self._find(wanted, timeout_s)

    def _take(
        self, vms: Mapping[str, VmInfo], changed: Iterable[str], gone: Iterable[str]
    ) -> set[str]:
        """Note which VMs there are, and return the paths to look at."""
        wanted: set[str] = set()
        moved = False
        for name in (*changed, *gone):
            old, new = _paths_of(self._vms.get(name)), _paths_of(vms.get(name))
            if new != old:  # limits that have changed make a new VmInfo too
                moved = True
                wanted |= _all(new)
                for drive in old:
                    del self._paths[drive]
                self._paths |= new
        self._vms = dict(vms)
        if moved:
            used = {*_all(self._paths), *self._configured_paths()}
            self._places = {path: found for path, found in self._places.items() if path in used}
            self._decide()
        return wanted

    def _configured_paths(self) -> Iterable[str]:
        for config in self._configured.values():
            yield from (str(path) for path in (config.device, config.path) if path is not None)

    # Looking

    async def _find(self, paths: Collection[str], timeout_s: float, *, known: bool = False) -> None:
        """Look at paths. After the timeout it returns and the search goes on.

        known: they were found before, so a mount point that hangs isn't worth a second thread.
        """
        if paths:
            task = asyncio.create_task(self._look(paths, known=known))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)
            done, _ = await asyncio.wait({task}, timeout=timeout_s)
            for task in done:
                task.result()

    async def _look(self, paths: Iterable[str], *, known: bool) -> None:
        finder = await asyncio.to_thread(self._finder)
        by_mount = await asyncio.to_thread(_by_mount, finder, paths)
        if known:
            for point, _ in +self._stuck:
                by_mount.pop(point, None)
        await asyncio.gather(
            *(
                self._look_below(finder, point, below, known=known)
                for point, below in by_mount.items()
            )
        )

    async def _look_below(
        self, finder: StoragePaths, point: str, paths: list[str], *, known: bool
    ) -> None:
        """Look at the paths under a mount point. After one that is stuck, go on with the next."""
        left = paths
        while left := [p for p in left if self._stuck[_folder(point, p)] < _MOST_STUCK]:
            found: Found = {}
            enough = threading.Event()
            done = _in_thread(finder, left, found, enough)
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
            log.warning("%s: doesn't answer; a new drive there has no storage until it does", stuck)
            enough.set()
            self._leave(done, _folder(point, stuck), found)
            if known:
                return

    def _leave(self, done: asyncio.Event, folder: tuple[str, str], found: Found) -> None:
        """Leave a thread that is stuck to itself, and use its findings if it ends."""

        async def wait() -> None:
            await done.wait()
            self._stuck[folder] -= 1
            self._found(found)

        self._stuck[folder] += 1
        task = asyncio.create_task(wait())
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    def _found(self, found: Found) -> None:
        """Take over findings. A path that is gone keeps its storages: a QEMU may have it open."""
        new = {
            path: got
            for path, got in found.items()
            if (known := self._places.get(path)) != got and (got or not known)
        }
        if new:
            self._places |= new
            self._decide()

    # Which storage

    def _decide(self) -> None:
        """Decide the storage of each drive, and the device below each storage."""
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
        configured = set(devices)
        self._storages = {}
        for drive, (path, *_) in self._paths.items():
            found = self._of(drive, self._places.get(path, ()), by_place)
            if found is not None:
                storage, place = found
                self._storages[drive] = storage
                if place is not None and storage not in configured:
                    devices.setdefault(storage, set()).add(place)
        self.devices = {
            name: place
            for name, places in devices.items()
            if len(places) == 1 and (place := next(iter(places))).number
        }

    def _own(self, name: StorageId, config: StorageConfig) -> Iterable[Place]:
        """Yield the places that configuration gives to a storage."""
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
        """Return a drive's storage and the place that it was told by; None if unknown."""
        for name, pattern in self._patterns.items():
            if pattern.fullmatch(str(drive)):
                return name, places[-1] if places else None
        for place in places:
            if place.name in by_place:
                return by_place[place.name], place
        if not places:
            return None
        last = places[-1]
        taken = last.name in self._configured  # by a storage that is configured to be elsewhere
        return f"/dev/{last.name}" if taken else last.name, last


def _paths_of(vm: VmInfo | None) -> dict[DriveId, tuple[str, ...]]:
    """Return the paths or URLs of the images of a VM's drives, the topmost first; "" if unknown."""
    if vm is None:
        return {}
    return {
        DriveId(vm.name, target): (drive.path or "", *drive.beneath)
        for target, drive in vm.drives.items()
    }


def _all(paths: Mapping[DriveId, tuple[str, ...]]) -> set[str]:
    """Return the paths of all drives together."""
    return {path for images in paths.values() for path in images} - {""}


def _folder(point: str, path: str) -> tuple[str, str]:
    return point, os.path.dirname(path)


def _by_mount(finder: StoragePaths, paths: Iterable[str]) -> dict[str, list[str]]:
    """Return paths by the mount point that their names tell."""
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(finder.mount_point(path), []).append(path)
    return found


def _in_thread(
    finder: StoragePaths, paths: list[str], found: Found, enough: threading.Event
) -> asyncio.Event:
    """Look at paths one after another in a thread, and return an event that its end sets.

    enough: it ends after the path that it is at. The thread is no executor's, because one that
    hangs would keep that from shutting down.
    """
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def look() -> None:
        try:
            for path in paths:
                found[path] = finder.places(path)
                if enough.is_set():
                    break
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=look, name="storage-paths", daemon=True).start()
    return done
