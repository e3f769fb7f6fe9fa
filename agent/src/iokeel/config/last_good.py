"""Tenants and storages that have gone from the configuration stay as they were last.

A name that is no longer there may be a slip of the pen, and each of its drives would lose its
limit. So only an empty table lifts what an earlier one promised. One that has gone is in force for
the drives that still name it. A storage that was only renamed isn't one of them: it has another
table, which comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import msgspec

from iokeel.config.load import storages_of, tenants_of
from iokeel.config.settings import KINDS, Config, StorageConfig
from iokeel.config.validation import validated
from iokeel.core.policy import TenantPolicy
from iokeel.errors import ConfigError, IokeelError, PolicyError
from iokeel.words.quoting import shown_path


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
