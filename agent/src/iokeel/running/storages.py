"""The storage of each drive, as found on the host or as configured.

A path is looked at as the VM's QEMU sees it, which may run in a container.

Looking at a path blocks while its filesystem doesn't answer, such as an NFS server that is down.
So paths are looked at in threads, one for each mount point. Nothing waits for a thread that is
stuck; if it ends after all, its findings are used. A folder may be a link to another filesystem, so
stuck threads count for their folder, and the others below the mount point are still looked at. A
QEMU may name any number of folders, so they count for the QEMU, too.
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
from typing import NamedTuple

from iokeel.config.settings import StorageConfig
from iokeel.core.values.counters import DriveId
from iokeel.core.values.storage import Place, StorageId
from iokeel.host.block_devices import StoragePaths
from iokeel.host.process import Process
from iokeel.hypervisors.source import VmInfo
from iokeel.words.quoting import shown_path

log = logging.getLogger(__name__)


class Image(NamedTuple):
    """A path or URL; "" if unknown. by: the process whose path it is; None for this one."""

    path: str
    by: Process | None = None


Found = dict[Image, tuple[Place, ...]]

#: Look this often at all paths: the file may come, the server may come back, a volume may move.
RECHECK_S = 60.0
# A path that takes longer is stuck. So many stuck threads a folder, a QEMU and in all, and no more.
_PATIENCE_S = 2.0
_MOST_STUCK, _MOST_STUCK_BY, _MOST_STUCK_IN_ALL = 2, 8, 64


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
        # A drive's storage is that of the first.
        self._images: dict[DriveId, tuple[Image, ...]] = {}
        self._places: Found = {}
        self._storages: dict[DriveId, StorageId] = {}
        self._told: set[Image] = set()  # those that weren't found
        # Threads, by mount point and folder, and by whose path it was.
        self._stuck: Counter[tuple[str, str]] = Counter()
        self._stuck_by: Counter[Process | None] = Counter()
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
        found = [self._places.get(image) for image in self._images.get(drive, (Image(""),))]
        numbers = [place.number for places in found for place in places or ()]
        return tuple(dict.fromkeys(filter(None, numbers))) if all(found) else None

    async def configure(
        self, configured: Mapping[StorageId, StorageConfig], timeout_s: float
    ) -> None:
        """Go on with other configured storages, and find them as `follow` finds drives'."""
        self._take_over(configured)
        await self._find(set(self._configured_images()), timeout_s)
        self._decide()

    def _take_over(self, configured: Mapping[StorageId, StorageConfig]) -> None:
        self._configured = configured
        self._drives = {
            name: _pattern(config.drives) for name, config in configured.items() if config.drives
        }
        self._devices = {
            name: _pattern(config.devices) for name, config in configured.items() if config.devices
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
            used = _all(self._images)
            found = {image for image in used if self._places.get(image)}
            wanted |= used - found
            wanted |= set(self._configured_images())
            await self._find(found - wanted, 0.0, known=True)  # nothing waits for these
        await self._find(wanted, timeout_s)

    def _take(
        self, vms: Mapping[str, VmInfo], changed: Iterable[str], gone: Iterable[str]
    ) -> set[Image]:
        """Note which VMs there are, and return the images to look at."""
        wanted: set[Image] = set()
        moved = False
        for name in (*changed, *gone):
            old, new = _images_of(self._vms.get(name)), _images_of(vms.get(name))
            if new != old:  # limits that have changed make a new VmInfo too
                moved = True
                wanted |= _all(new)
                for drive in old:
                    del self._images[drive]
                self._images |= new
        self._vms = dict(vms)
        if moved:
            used = {*_all(self._images), *self._configured_images()}
            self._places = {image: found for image, found in self._places.items() if image in used}
            self._told &= used
            self._decide()
        return wanted

    def _configured_images(self) -> Iterable[Image]:
        for config in self._configured.values():
            paths = (config.device, config.path, *config.devices)
            yield from (Image(str(path)) for path in paths if path is not None)

    # Looking

    async def _find(
        self, images: Collection[Image], timeout_s: float, *, known: bool = False
    ) -> None:
        """Look at images. After the timeout it returns and the search goes on.

        known: they were found before, so a mount point that hangs isn't worth a second thread.
        """
        if images:
            task = asyncio.create_task(self._look(images, known=known))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)
            done, _ = await asyncio.wait({task}, timeout=timeout_s)
            for task in done:
                task.result()

    async def _look(self, images: Iterable[Image], *, known: bool) -> None:
        finder = await asyncio.to_thread(self._finder)
        by_mount = await asyncio.to_thread(_by_mount, finder, images)
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
        self, finder: StoragePaths, point: str, images: list[Image], *, known: bool
    ) -> None:
        """Look at the images under a mount point. After one that is stuck, go on with the next."""
        left = images
        while left := [image for image in left if self._may_look(point, image)]:
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
            log.warning(
                "%s: doesn't answer; a new drive there has no storage until it does", stuck.path
            )
            enough.set()
            self._leave(done, point, stuck, found)
            if known:
                return

    def _may_look(self, point: str, image: Image) -> bool:
        """Return whether another thread may get stuck at an image."""
        if self._stuck[_folder(point, image)] >= _MOST_STUCK:
            return False
        if (
            self._stuck_by.total() >= _MOST_STUCK_IN_ALL
        ):  # one mount keeps no other from being tried
            return point not in {stuck for stuck, _ in +self._stuck}
        return self._stuck_by[image.by] < _MOST_STUCK_BY

    def _leave(self, done: asyncio.Event, point: str, stuck: Image, found: Found) -> None:
        """Leave a thread that is stuck to itself, and use its findings if it ends."""
        folder = _folder(point, stuck)

        async def wait() -> None:
            await done.wait()
            self._stuck[folder] -= 1
            self._stuck_by[stuck.by] -= 1
            self._found(found)

        self._stuck[folder] += 1
        self._stuck_by[stuck.by] += 1
        task = asyncio.create_task(wait())
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    def _found(self, found: Found) -> None:
        """Take over findings. A path that is gone keeps its storages: a QEMU may have it open."""
        for image, got in found.items():
            if got or self._places.get(image):
                self._told.discard(image)
            elif image.by is not None and image not in self._told:
                self._told.add(image)
                log.warning(
                    "%s: isn't found as its QEMU (process %d) sees it, so its drives have no"
                    " storage, their shares are unknown, and their VM's cgroup gets no bounds",
                    *(shown_path(image.path), image.by.pid),
                )
        new = {
            image: got
            for image, got in found.items()
            if (known := self._places.get(image)) != got and (got or not known)
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
        for drive, (image, *_) in self._images.items():
            found = self._of(drive, image.path, self._places.get(image, ()), by_place)
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
            yield from self._places.get(Image(str(config.device)), ())[:1]
        for device in config.devices:
            yield from self._places.get(Image(device), ())[:1]
        if config.path is not None:
            yield from self._places.get(Image(str(config.path)), ())[-1:]
        if config.source is not None:
            yield Place(config.source)
        if not config.places:
            yield Place(name)

    def _of(
        self,
        drive: DriveId,
        path: str,
        places: tuple[Place, ...],
        by_place: Mapping[str, StorageId],
    ) -> tuple[StorageId, Place | None] | None:
        """Return a drive's storage and the place that it was told by; None if unknown."""
        for name, pattern in self._drives.items():
            if pattern.fullmatch(str(drive)):
                return name, places[-1] if places else None
        for place in places:
            if place.name in by_place:
                return by_place[place.name], place
            for name, pattern in self._devices.items():
                if pattern.fullmatch(path) or pattern.fullmatch(f"/dev/{place.name}"):
                    return name, place
        if not places:
            return None
        last = places[-1]
        taken = last.name in self._configured  # by a storage that is configured to be elsewhere
        return f"/dev/{last.name}" if taken else last.name, last


def _pattern(names: Collection[str]) -> re.Pattern[str]:
    """Return a pattern of names that may have wildcards. A name may look like one: device[0]."""
    return re.compile("|".join((*map(translate, names), *map(re.escape, names))))


def _images_of(vm: VmInfo | None) -> dict[DriveId, tuple[Image, ...]]:
    """Return the images of a VM's drives, the topmost first."""
    if vm is None:
        return {}
    return {
        DriveId(vm.name, target): tuple(
            Image(path, vm.process if path.startswith("/") else None)
            for path in (drive.path or "", *drive.beneath)
        )
        for target, drive in vm.drives.items()
    }


def _all(images: Mapping[DriveId, tuple[Image, ...]]) -> set[Image]:
    """Return the images of all drives together, without those that aren't known."""
    return {image for each in images.values() for image in each if image.path}


def _folder(point: str, image: Image) -> tuple[str, str]:
    return point, os.path.dirname(image.path)


def _by_mount(finder: StoragePaths, images: Iterable[Image]) -> dict[str, list[Image]]:
    """Return images by the mount point that their names tell."""
    found: dict[str, list[Image]] = {}
    for image in images:
        found.setdefault(finder.mount_point(image.path), []).append(image)
    return found


def _in_thread(
    finder: StoragePaths, images: list[Image], found: Found, enough: threading.Event
) -> asyncio.Event:
    """Look at images one after another in a thread, and return an event that its end sets.

    enough: it ends after the path that it is at. The thread is no executor's, because one that
    hangs would keep that from shutting down.
    """
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def look() -> None:
        try:
            for image in images:
                found[image] = finder.places(*image)
                if enough.is_set():
                    break
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=look, name="storage-paths", daemon=True).start()
    return done
