"""The parsers that are fuzzed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from tests.fuzz.targets.target import Target

# Their modules, of which only one is imported.
_MODULES = {
    "xml": ("policy", "domain", "pool", "url"),
    "qmp": ("qmp",),
    "libvirt": ("passthrough", "tunable"),
    "state": ("state-row", "storage-row", "state-file", "tables"),
    "host": ("proc", "cgroup"),
    "hook": ("arriving",),
    "http": ("http", "message", "client", "hook"),
    "config": ("config", "size"),
    "fio": ("fio",),
    "fleet": ("ledger", "claim", "memory"),
    "etcd": ("etcd", "watch"),
}
TARGETS = {name: module for module, names in _MODULES.items() for name in names}


def load(name: str) -> Target:
    """Return a target by its name."""
    targets: Sequence[Target] = import_module(f"{__name__}.{TARGETS[name]}").TARGETS
    return next(each for each in targets if each.name == name)
