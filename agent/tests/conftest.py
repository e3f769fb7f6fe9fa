"""What all tests share."""

from hypothesis import HealthCheck, settings

pytest_plugins = ("testing.levels", "testing.skips", "testing.workers")

# No time is judged: on a busy machine any example may be slow.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
