"""A host whose drives draw on a tenant's limit and on a shared storage, and whose agent restarts.

VMs have limits of their own at times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from iokeel.core.divide.tenant_sums import by_storage, storage_sums
from iokeel.core.values.counters import DriveId
from iokeel.core.values.observation import DriveSeen, StorageSeen
from iokeel.core.values.policy import TenantPolicy, VmPolicy
from iokeel.core.values.state import State
from iokeel.core.values.storage import StoragePolicy
from iokeel.store.rows import drive_text, kept_of, state_of
from tests.unit.core.divide import test_tenant_parts as of_tenant
from tests.unit.core.divide.test_tenant_parts import DRIVES, SETTINGS, rate

DISK = "nbd:10.0.0.1:10809"


class Host(of_tenant.Host):
    """The tenant's host, with a storage that others use too."""

    place: Mapping[str, Any] = {"tenant": "acme", "storage": DISK}
    of_storage: int | None = 500
    charged_of_storage = 500
    vm: VmPolicy | None = None

    def granted(self, *, partial: bool) -> dict[str, Any]:
        storages = {DISK: StorageSeen(StoragePolicy())}
        return {
            "granted": {"acme": TenantPolicy(limit=self.grant)},
            "granted_storages": {DISK: self.of_storage},
            "storages": {} if partial else storages,
        }

    def seen(self, drive: DriveId) -> DriveSeen:
        return super().seen(drive)._replace(vm=self.vm)

    @rule(limit=st.sampled_from([None, 100, 600]))
    def limit_vms(self, limit: int | None) -> None:
        self.vm = None if limit is None else VmPolicy(limit=limit)

    @rule(grant=st.sampled_from([None, 20, 300, 900]))
    def grant_other_of_storage(self, grant: int | None) -> None:
        self.of_storage = grant
        self.charged_of_storage = max(self.charged_of_storage, grant or 0)

    @rule()
    def tell_of_storage(self) -> None:
        drives = by_storage(self.state.drives).get(DISK, ())
        held = storage_sums(drives, self.state.storages.get(DISK)).held
        if self.of_storage is not None and held <= self.of_storage:
            self.charged_of_storage = self.of_storage

    @rule()
    def restart(self) -> None:
        """Start another agent with what the last one has saved, before etcd answers."""
        self.deliver_all()
        known = self.state.drives.items()
        saved = {drive: drive_text(kept_of(now)) for drive, now in known if now.sent.limits}
        self.state = State(drives={drive: state_of(text) for drive, text in saved.items()})
        grants, self.grant, self.of_storage = (self.grant, self.of_storage), None, None
        self.look(None)
        self.grant, self.of_storage = grants

    @invariant()
    def never_above_the_storages_charge(self) -> None:
        total = sum(map(rate, self.in_force.values()))
        assert total <= self.charged_of_storage + 2 * len(DRIVES)


TestHost = Host.TestCase
TestHost.settings = SETTINGS
