"""Logs changes of the control law's state that an operator has to know."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from iokeel.core.values.counters import DriveId
from iokeel.core.values.state import State
from iokeel.core.values.storage import StorageId
from iokeel.errors import IokeelError
from iokeel.words.log_lines import Sparing
from iokeel.words.units import iops

log = logging.getLogger(__name__)

_AGAIN_S = 3600.0


class Notices:
    """Logs each change once, when it begins; what an attacker may cause, again each hour.

    gone: tables that have gone from the configuration, with their errors (Config.gone), and that
    nobody was told of yet.
    """

    def __init__(self, gone: Mapping[tuple[str, str], IokeelError]) -> None:
        self.gone = dict(gone)
        self._oversold: set[StorageId] = set()
        self._set_aside: set[DriveId | str | None] = set()
        self._failed, self._absurd = Sparing(1, _AGAIN_S), Sparing(1, _AGAIN_S)
        self._namesakes: set[str] = set()
        self._unsaved = self._uncounted = False

    def tell(self, state: State) -> int:
        """Log the changes since the last state; return how many new errors the law had."""
        self._tell_oversold(state)
        return self._tell_failures(state)

    def tell_gone(self, state: State) -> int:
        """Log the gone tables that drives name, once; return how many are new."""
        if not self.gone:
            return 0
        named = {("tenants", drive.tenant) for drive in state.drives.values()}
        named |= {("storage", drive.storage) for drive in state.drives.values()}
        new = [table for table in self.gone if table in named]
        for table in new:
            log.error("%s", self.gone.pop(table))
        return len(new)

    def tell_namesakes(self, names: Collection[str]) -> int:
        """Log the names that a VM of libvirt's and a [[vm]] have, once; return how many are new."""
        new = set(names) - self._namesakes
        for name in sorted(new):
            log.error(
                "VM %s: libvirt has a VM of this name, too, which isn't served; rename one of them,"
                " or remove the [[vm]] if it is the same VM",
                name,
            )
        self._namesakes = set(names)
        return len(new)

    def tell_saved(self, error: Exception | None) -> None:
        """Log that the state can't be saved, or that it could be again."""
        if isinstance(error, IokeelError) and not self._unsaved:
            log.error("%s", error)
        elif error is not None and not self._unsaved:
            log.error("the state can't be saved, please report it", exc_info=error)
        elif error is None and self._unsaved:
            log.info("the state is saved again")
        self._unsaved = error is not None

    def tell_uncounted(self, error: Exception | None) -> None:
        """Log that what drives do can't be counted, or that it could be again."""
        if error is not None and not self._uncounted:
            log.error("what drives do can't be counted, please report it", exc_info=error)
        elif error is None and self._uncounted:
            log.info("what drives do is counted again")
        self._uncounted = error is not None

    def tell_absurd(self, drives: Collection[DriveId]) -> int:
        """Log the VMs whose counters were dropped; return how many drives have such ones."""
        for drive in drives:
            if self._absurd.may(drive.domain):
                log.error(
                    "%s: its QEMU tells of more than any drive can do, so that counts for nothing,"
                    " and its limits stay; see whether its guest has taken it over",
                    drive,
                )
        return len(drives)

    def _tell_oversold(self, state: State) -> None:
        sold = {name: storage for name, storage in state.storages.items() if storage.oversold}
        for name in sold.keys() - self._oversold:
            log.warning(
                "storage %s: %s are reserved of a capacity of %s, so reservations are scaled down"
                " together when all ask; lower some or move a drive",
                name,
                iops(sold[name].promised),
                iops(sold[name].policy.capacity or 0),
            )
        self._oversold = set(sold)

    def _tell_failures(self, state: State) -> int:
        new = state.failures.keys() - self._set_aside
        for place, error in state.failures.items():
            where = place if isinstance(place, DriveId) else f"storage {place}"
            # With a new text, or a part of it, it is another failure.
            if self._failed.may((place, repr(error)[:200])):
                log.error(
                    "%s: the control law failed, please report it; the limits stay as they are",
                    "shares of storages and tenants" if place is None else where,
                    exc_info=error,
                )
        self._set_aside = set(state.failures)
        return len(new)
