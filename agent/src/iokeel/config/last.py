"""Keeps what was in force last, for a configuration that can't be used or lacks what it had.

Guests that start need limits, whatever has become of the file since.

A name that is no longer there may be a slip of the pen, and each of its drives would lose its
limit. So only an empty table lifts what an earlier one promised. One that has gone is in force for
the drives that still name it. A storage that was only renamed isn't one of them: it has another
table, which comes first.
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from iokeel.config.load import load, parse, storages_of, tenants_of
from iokeel.config.paths import DEFAULT_CONFIG
from iokeel.config.settings import KINDS, Config, StorageConfig
from iokeel.config.tables import AgentConfig, validated
from iokeel.core.values.policy import TenantPolicy
from iokeel.errors import ConfigError, IokeelError, PolicyError
from iokeel.words.quoting import reason, shown_path

log = logging.getLogger(__name__)

_NAME = "agent.toml"  # in the state folder
# In a text that isn't TOML any more.
_STATE_DIR = re.compile(
    rb"""^[^#\n]*\bstate_dir["']?[ \t]*=[ \t]*("{3}|'{3}|["'])\n?(.+?)\1""", re.MULTILINE
)


def keep(config: Config, path: Path | None) -> None:
    """Write a file's text into the state folder, or a line into the log if that fails.

    path: of the file; None for DEFAULT_CONFIG.
    """
    kept = config.agent.state_dir / _NAME
    new = kept.with_name(f"{_NAME}.new")
    try:
        new.write_bytes(_header(path) + config.text)
        new.replace(kept)
    except OSError as error:
        log.warning(
            "%s: %s; an agent that starts with a bad configuration wouldn't have this one",
            kept,
            reason(error),
        )


def load_or_last(path: Path | None = None) -> tuple[Config, ConfigError | None]:
    """Return the configuration in a file, or the last one in force and what is wrong with the file.

    path: None for DEFAULT_CONFIG. Raises ConfigError if there is no last one.
    """
    try:
        return load(path), None
    except ConfigError as error:
        kept = _state_dir(path) / _NAME
        try:
            text = kept.read_bytes()
            if text.startswith(_header(path)):  # and isn't another agent's
                return parse(text, str(kept)), error
        except (OSError, ValueError, ConfigError):
            pass
        raise


def _header(path: Path | None) -> bytes:
    file = os.path.abspath(path or DEFAULT_CONFIG)
    return f"# {quote(file)} as it was in force last\n".encode()


def _state_dir(path: Path | None) -> Path:
    """Return the state folder that a file names, as far as it can be read; else the default."""
    default = AgentConfig().state_dir
    try:
        data = (path or DEFAULT_CONFIG).read_bytes()
    except (OSError, ValueError):
        return default
    try:
        match tomllib.loads(data.decode()):
            case {"agent": {"state_dir": str(folder)}}:
                return Path(folder)
        return default
    except (ValueError, RecursionError):
        found = _STATE_DIR.search(data)
        return Path(os.fsdecode(found[2])) if found else default


class TableId(NamedTuple):
    """A table by its kind (KINDS) and its name."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"[{self.kind}.{self.name}]"


def tables_to_save(config: Config) -> dict[TableId, str | None]:
    """Return the tables that are written in a configuration, as texts; None for an empty one."""
    return {
        TableId(kind, name): msgspec.json.encode(table).decode() if table else None
        for kind in KINDS
        for name, table in config.tables.get(kind, {}).items()
    }


def with_last_good(config: Config, saved: Mapping[TableId, str]) -> tuple[Config, list[str]]:
    """Return a configuration with the saved tables that it lacks, and which of those are no use.

    Its `gone` has both. saved: texts of tables_to_save, from earlier configurations, the latest
    last.
    """
    unusable = []
    kept: list[tuple[TableId, dict[str, TenantPolicy], dict[str, StorageConfig]]] = []
    taken = {place for each in config.storages.values() for place in each.places}
    for table, text in reversed([*saved.items()]):
        if table.name in config.tables.get(table.kind, {}):
            continue
        try:
            written = {table.kind: {table.name: msgspec.json.decode(text)}}
            raw = validated(written, "the saved tables")
            tenants = dict(tenants_of(raw, "the saved tables"))
            storages = dict(storages_of(raw, config.model, "the saved tables"))
        except (ConfigError, PolicyError, ValueError, RecursionError) as error:
            unusable.append(f"{table}: {error}")
            what, mend = "can't be read any more, so it holds no longer", "write it anew"
            gone = IokeelError(shown_path(table), what, mend)
            config = replace(config, gone={**config.gone, table: gone})
            continue
        if any(taken.intersection(each.places) for each in storages.values()):
            continue
        taken.update(place for each in storages.values() for place in each.places)
        kept.append((table, tenants, storages))
    # In their order in the file, because of several that fit a drive the first one is taken.
    for table, tenants, storages in reversed(kept):
        what = "has gone from the configuration, so what it said last stays in force"
        mend = f"put it back, or write an empty {table} to lift its limits"
        config = replace(
            config,
            tenants={**config.tenants, **tenants},
            storages={**config.storages, **storages},
            gone={**config.gone, table: IokeelError(str(table), what, mend)},
        )
    return config, unusable
