"""Hands the burst credit of guests over to the host that they migrate to.

It lies in etcd under the guest's UUID until a host takes it, or for KEPT_S. A host takes it by
deleting it, and has it only once etcd says that this succeeded. So it is lost if an answer is lost,
and never taken twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated

import msgspec

from iokeel.core.fleet.handover import GuestCredit, credit_left
from iokeel.core.values.counters import DriveId
from iokeel.core.values.policy import MOST_BURST_SECONDS
from iokeel.core.values.state import DriveState
from iokeel.errors import ConnectionLost, IokeelError, OutcomeUnknown
from iokeel.fleet.etcd import Etcd
from iokeel.fleet.keys import Keys
from iokeel.fleet.messages import Delete, Is, Put
from iokeel.fleet.records import Record, decoded, encoded
from iokeel.hypervisors.pace import delays
from iokeel.hypervisors.source import VmInfo

log = logging.getLogger(__name__)

#: How long credit waits in etcd for a host that takes it, and how long that host asks for it.
KEPT_S = 60
# How long a host tries to hand credit over if etcd fails. Later, the guest may have moved again.
_TRY_S = 10.0

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=MOST_BURST_SECONDS)]


class CreditRecord(Record, kw_only=True):
    """A guest's credit: of its drives by target, and of the VM as a whole."""

    drives: dict[str, _Seconds]
    vm: _Seconds = 0.0


async def leave(etcd: Etcd, key: str, credit: GuestCredit) -> None:
    """Leave a guest's credit for another host, in place of any older one.

    Raises OutcomeUnknown, ConnectionLost if nothing was written, or FleetRefused.
    """
    value = encoded(CreditRecord(drives=dict(credit.drives), vm=credit.vm_s))
    try:
        older = (await etcd.read([key])).values.get(key)
        lease = await etcd.grant_lease(KEPT_S)
    except OutcomeUnknown as error:
        raise ConnectionLost(error.where, error.what, error.mend) from None
    await etcd.write([Is(key, older)], [Put(key, value, lease)])


async def take(etcd: Etcd, key: str) -> GuestCredit | None:
    """Take a guest's credit; None if there is none. Raises ConnectionLost or FleetRefused."""
    found = (await etcd.read([key])).values.get(key)
    if found is None or not await etcd.write([Is(key, found)], [Delete(key)]):
        return None
    record = decoded(CreditRecord, key, found)
    return GuestCredit(record.drives, record.vm)


class Handovers:
    """The credit of guests that come to this host and leave it.

    etcd: returns the connection; None while there is none. on_credit: called with a guest and the
    credit that came after it. errors: how often something went wrong.
    """

    def __init__(self, keys: Keys, etcd: Callable[[], Etcd | None]) -> None:
        self.on_credit: Callable[[str, GuestCredit], None] = lambda *_: None
        self.errors = 0
        self._keys = keys
        self._etcd = etcd
        self._uuids: dict[str, str] = {}
        self._known: set[str] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def looked(
        self,
        before: Mapping[DriveId, DriveState],
        after: Mapping[DriveId, DriveState],
        vms: Mapping[str, VmInfo],
        now_ns: int,
    ) -> None:
        """Go on after a look at all drives: see which guests have come and gone."""
        gone: dict[str, dict[str, DriveState]] = {}
        for drive in before.keys() - after.keys():
            if drive.domain not in vms:
                gone.setdefault(drive.domain, {})[drive.target] = before[drive]
        for domain, drives in gone.items():
            uuid, credit = self._uuids.get(domain), credit_left(drives, now_ns)
            if uuid is not None and credit is not None:
                self._spawn(self._leave(domain, uuid, credit))
        # A guest that has just come may have been seen in a look at it alone before this one.
        known = {drive.domain for drive in before} if self._known is None else self._known
        self._known = {drive.domain for drive in after}
        came = self._known - known
        self._uuids = {name: vm.uuid for name, vm in vms.items() if vm.uuid is not None}
        for domain in came & self._uuids.keys():
            if any(known.saves_credit for d, known in after.items() if d.domain == domain):
                self._spawn(self._take(domain, self._uuids[domain]))

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _leave(self, domain: str, uuid: str, credit: GuestCredit) -> None:
        end, waits = time.monotonic() + _TRY_S, delays()
        while time.monotonic() < end:
            try:
                if (etcd := self._etcd()) is not None:
                    await leave(etcd, self._keys.credit(uuid), credit)
                    log.info("%s: has left; its burst credit waits for it in etcd", domain)
                    return
            except OutcomeUnknown as error:  # another try could come after it was taken
                self._tell(domain, error)
                return
            except ConnectionLost:
                pass
            except IokeelError as error:
                self._tell(domain, error)
                return
            await asyncio.sleep(next(waits))

    async def _take(self, domain: str, uuid: str) -> None:
        end, waits = time.monotonic() + KEPT_S, delays()
        while time.monotonic() < end and self._uuids.get(domain) == uuid:
            try:
                etcd = self._etcd()
                credit = await take(etcd, self._keys.credit(uuid)) if etcd is not None else None
            except ConnectionLost:
                credit = None
            except IokeelError as error:
                self._tell(domain, error)
                return
            if credit is not None:
                log.info("%s: its burst credit has come after it", domain)
                self.on_credit(domain, credit)
                return
            await asyncio.sleep(next(waits))

    def _tell(self, domain: str, error: IokeelError) -> None:
        self.errors += 1
        log.error("%s: its burst credit is lost: %s", domain, error)
