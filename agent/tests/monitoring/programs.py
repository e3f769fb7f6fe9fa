"""The files that an operator gives Prometheus, and Debian's own build of it."""

from __future__ import annotations

from pathlib import Path

from testing.lab import apt
from testing.lab.cache import cached
from testing.lab.host import PROJECT

MONITORING = PROJECT / "playbooks/monitoring"


def program(name: str) -> Path:
    """Return `prometheus` or `promtool`, from Debian's package, which isn't installed."""
    (package,) = apt.candidates("prometheus")
    return cached("prometheus", [package.sha256], package.unpack) / "usr/bin" / name
