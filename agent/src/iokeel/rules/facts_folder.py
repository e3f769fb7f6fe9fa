"""Facts that the operator adds by files: what a platform's XML doesn't say.

Each file NAME.json has facts by the UUID of a guest, or by the name of one without, and by the
serial of a volume:

    {"4c3b2f0a-...": {"panel.plan": "gold", "vda": {"panel.tier": "fast"}},
     "volume:0d9c2a4e-...": {"cinder.type": "ssd"}}

A file that can't be read, such as one that is half written, leaves its last good facts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import MappingProxyType

import msgspec

from iokeel.rules.facts import Facts
from iokeel.rules.known import OPERATOR, who_controls
from iokeel.words.quoting import reason, shown, shown_path

log = logging.getLogger(__name__)

_VERSIONS = count(1)
_VOLUME = "volume:"
# A million facts; one that is larger was hardly meant.
_MOST_BYTES = 64 << 20
_Guest = dict[str, str | dict[str, str]]
_FILE = msgspec.json.Decoder(dict[str, _Guest])


class FactsFolder:
    """The facts in a folder's files. version: another one after each change, and in each folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[Path, tuple[object, Mapping[str, _Guest]]] = {}
        self.version = next(_VERSIONS)

    def read(self) -> None:
        """Read the files again that have changed."""
        there = sorted(self.folder.glob("*.json"))
        for gone in self._files.keys() - {*there}:
            del self._files[gone]
            self.version = next(_VERSIONS)
        for file in there:
            try:
                status = file.stat()
                stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
                if file in self._files and self._files[file][0] == stamp:
                    continue
                had = self._files[file][1] if file in self._files else MappingProxyType({})
                self._files[file] = stamp, _read(file, status) or had
                self.version = next(_VERSIONS)
            except OSError as error:
                log.error("%s: can't be read, %s; its last facts stay", file, reason(error))

    def added(self, facts: Facts) -> Facts:
        """Return the facts of a guest with those of the files. The XML's own are never replaced."""
        vm = dict(facts.vm)
        drives = {target: dict(texts) for target, texts in facts.drives.items()}
        guest = vm.get("uuid") or vm.get("name", "")
        for _, guests in self._files.values():
            for key, value in guests.get(guest, {}).items():
                if isinstance(value, str):
                    _add(vm, key, value)
                elif key in drives:
                    for fact, text in value.items():
                        _add(drives[key], fact, text)
            for texts in drives.values():
                for fact, value in guests.get(f"{_VOLUME}{texts.get('serial')}", {}).items():
                    if isinstance(value, str):
                        _add(texts, fact, value)
        return replace(facts, vm=vm, drives=drives)


def _add(facts: dict[str, str], fact: str, text: str) -> None:
    if who_controls(fact) == OPERATOR:
        facts.setdefault(fact, text)


def _read(file: Path, status: os.stat_result) -> Mapping[str, _Guest] | None:
    """Return a file's facts; None, and a line in the log, if it can't be used."""
    stays, mend = "its last facts stay", ""
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        what, mend = "others than root may write it", "chown root, and chmod 644"
    elif status.st_size > _MOST_BYTES:
        what, mend = f"more than {_MOST_BYTES >> 20} MiB", "split it"
    else:
        try:
            found = _FILE.decode(file.read_bytes())
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            what = f"isn't JSON of facts, {shown(str(error))[1:-1]}"
            mend = "write another file, and rename it to this"
        else:
            for fact in {name for guest in found.values() for name, text in guest.items()
                         if isinstance(text, str) and who_controls(name) != OPERATOR}:  # fmt: skip
                log.error(
                    "%s: %s can't be added by a file; give it a name with a prefix of your own",
                    file,
                    shown_path(fact),
                )
            return found
    log.error("%s: %s; %s; %s", file, what, stays, mend)
    return None
