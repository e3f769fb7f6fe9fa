"""What the agent set, kept over its restarts, so that it knows its own limits again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

from iokeel.controller import DriveState, State
from iokeel.credit import Credit
from iokeel.envelope import Mix
from iokeel.errors import ConfigError, IokeelError
from iokeel.limits import ThrottleLimits
from iokeel.workload import DriveId, Flow

log = logging.getLogger(__name__)


class Store:
    """The agent's state folder: `state.json`, and `lock` that one agent holds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "state.json"
        self._saved = ""

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for one agent. Raises ConfigError where another has it."""
        path = self._folder / "lock"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = path.open("w")
        except OSError as error:
            raise ConfigError(
                str(path), error.strerror or str(error), "give the agent a state_dir of its own"
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    str(path), "another agent runs with this state_dir", "stop it first"
                ) from None
            yield

    def load(self) -> dict[DriveId, DriveState]:
        """Return what was saved; nothing, and a line in the log, where it can't be used."""
        try:
            saved = json.loads(self._file.read_text())
            return {DriveId(d["domain"], d["target"]): _state(d) for d in saved["drives"]}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning(
                "%s: can't be used (%r); limits now in force count as set by hand",
                self._file,
                error,
            )
            return {}

    def save(self, state: State, override: Mapping[DriveId, ThrottleLimits]) -> None:
        """Write the state, `override` in place of what was sent to those drives.

        Written beside and renamed, so that a full disk or a crash leaves the last one whole.
        Raises IokeelError.
        """
        drives = [
            _values(drive, known, override.get(drive, known.sent))
            for drive, known in state.drives.items()
            if known.sent is not None
        ]
        text = json.dumps({"drives": drives})
        if text == self._saved:
            return
        beside = self._file.with_suffix(".new")
        try:
            with beside.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            beside.rename(self._file)
        except OSError as error:
            raise IokeelError(
                str(self._file),
                f"can't be written: {error.strerror}",
                "free some space; until then a restart forgets credit and what was set",
            ) from None
        self._saved = text


def _values(drive: DriveId, known: DriveState, sent: ThrottleLimits | None) -> dict[str, Any]:
    return {
        "domain": drive.domain,
        "target": drive.target,
        "sent": _set(sent),
        "found": _set(known.found),
        "credit_seconds": known.credit.seconds,
        "credit_open": known.credit.open,
        "granted_seconds": known.granted_s,
        "priced_for": known.priced_for
        and [astuple(known.priced_for.read), astuple(known.priced_for.write)],
    }


def _set(limits: ThrottleLimits | None) -> dict[str, int] | None:
    if limits is None:
        return None
    return {name: value for name, value in limits.items() if value is not None}


def _state(saved: Mapping[str, Any]) -> DriveState:
    mix = saved["priced_for"]
    return DriveState(
        sent=ThrottleLimits(**saved["sent"]),
        found=saved["found"] and ThrottleLimits(**saved["found"]),
        credit=Credit(float(saved["credit_seconds"]), bool(saved["credit_open"])),
        granted_s=float(saved["granted_seconds"]),
        priced_for=mix and Mix(Flow(*mix[0]), Flow(*mix[1])),
    )
