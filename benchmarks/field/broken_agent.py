"""An agent that breaks a promise to ordinary hosts, to show that a run of field finds it."""

from __future__ import annotations

from typing import Literal, get_args

Break = Literal["strangers", "waits", "bounds", "jobs"]
BREAKS: tuple[Break, ...] = get_args(Break)
