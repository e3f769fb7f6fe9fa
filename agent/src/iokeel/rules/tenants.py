"""Tenants without a table of their own: a cloud has thousands, and rules name them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from iokeel.core.values.policy import TenantPolicy
from iokeel.core.values.state import State

#: The name of the table of all tenants that have none of their own.
EVERY = "*"


def with_every_tenant(
    state: State, tenants: Mapping[str, TenantPolicy], named: Iterable[str | None]
) -> State:
    """Return the law's memory with a promise to each tenant that some drive belongs to.

    tenants: the configuration's, by name, perhaps with EVERY. named: the tenants of drives that are
    looked at; those of drives that are known count, too.
    """
    if (promise := tenants.get(EVERY)) is None:
        return state
    owners = {*named, *(drive.tenant for drive in state.drives.values())}
    new = {name for name in owners if name is not None and name not in state.tenants}
    if not new:
        return state
    return replace(state, tenants={**state.tenants, **dict.fromkeys(new, promise)})
