"""Keeps the configuration file that was in force last, for a start with one that can't be used.

Guests that start need limits, whatever has become of the file since.
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
from pathlib import Path
from urllib.parse import quote

from iokeel.config.load import load, parse
from iokeel.config.paths import DEFAULT_CONFIG
from iokeel.config.settings import AgentConfig, Config
from iokeel.errors import ConfigError
from iokeel.words.os_errors import reason

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
