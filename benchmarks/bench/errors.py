"""What goes wrong with a benchmark for a reason that its operator can mend."""

from __future__ import annotations

from iokeel.errors import IokeelError


class BenchError(IokeelError):
    """A benchmark can't run, or its result can't be used."""
