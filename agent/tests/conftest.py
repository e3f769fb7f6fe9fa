"""What all tests share."""

pytest_plugins = ("testing.workers",)
