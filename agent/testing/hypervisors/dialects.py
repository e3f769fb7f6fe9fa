"""The words of patched QEMUs, of today's series and of the former one, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from iokeel.hypervisors.qemu.limits import DIALECTS
from testing.hypervisors.qmp_client import QmpError

TODAYS, FORMER = DIALECTS.values()


def plain(limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return limits as the former series has them: those that stock QEMU lacks beside its own."""
    own = {name: value for name, value in limits.items() if name != TODAYS.extra}
    return {**own, **limits.get(TODAYS.extra, {})}


def throttle_groups(ask: Callable[[str], Any]) -> list[dict[str, Any]]:
    """Return a QEMU's throttle groups with plain limits; none if it doesn't tell.

    A curve that there is none of is left out, as the former series does. ask: returns the answer to
    a command, and raises QmpError if there is no such command.
    """
    for dialect in DIALECTS.values():
        with suppress(QmpError):
            return [
                group | {"limits": {n: v for n, v in plain(group["limits"]).items() if v != []}}
                for group in ask(dialect.query_groups)
            ]
    return []
