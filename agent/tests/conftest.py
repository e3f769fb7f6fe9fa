"""What all tests share."""

import pytest
from hypothesis import HealthCheck, settings

from testing import compiled_law

pytest_plugins = ("testing.skips", "testing.workers")

# No time is judged: on a busy machine any example may be slow.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_configure() -> None:
    """Refuse to test another law than that of the sources."""
    if stale := compiled_law.stale():
        names = ", ".join(file.name for file in stale)
        pytest.exit(f"{names}: changed since the law was compiled: run make setup", returncode=4)
