"""Burst credit, which the agent saves as JSON.

state.py is compiled, and this isn't (agent/compile_law.py). The name is in state.py, too.
"""

from __future__ import annotations

from typing import NamedTuple


class Credit(NamedTuple):
    """Burst credit: seconds of burst saved, and whether the burst is open (measure/burst.py)."""

    seconds: float = 0.0
    open: bool = False
