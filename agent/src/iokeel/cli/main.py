"""The command `iokeel`: finds the subcommand, and says what went wrong in one line."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from io import TextIOWrapper
from pkgutil import iter_modules
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from iokeel import __version__
from iokeel.cli import commands
from iokeel.cli.output import complain, say
from iokeel.errors import ConfigError, IokeelError
from iokeel.words.quoting import reason

_FAILURE, _USAGE = 1, 2
# Why output can't be written.
_NO_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class _Commands(MutableMapping[str, Any]):
    """The subcommands by name. A file is imported when its command is asked for.

    So `iokeel stats` doesn't wait for the control law, lxml or matplotlib, which others need.
    """

    def __init__(self) -> None:
        self._found: dict[str, Any] = {
            module.name: None for module in iter_modules(commands.__path__)
        }

    def __getitem__(self, name: str) -> Any:
        if self._found[name] is None:
            module = import_module(f"{commands.__name__}.{name}")
            command = typer.main.get_command(module.app)
            command.name = name
            self._found[name] = command
        return self._found[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._found[name] = command

    def __delitem__(self, name: str) -> None:
        del self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class _Group(TyperGroup):
    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands()


app = typer.Typer(
    cls=_Group,
    help="Keep every guest's disk on an even keel.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        say(f"iokeel {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command. An error is one line on stderr and an exit status of 1 or 2."""
    _ready_standard_files()
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()
    except IokeelError as error:
        complain(str(error))
        status = _USAGE if isinstance(error, ConfigError) else _FAILURE
    except typer.TyperException as error:
        status = _usage(error)
    except typer.Abort:
        status = _FAILURE
    except BrokenPipeError:  # as in `iokeel stats | head`: the reader has enough
        status = _without_output()
    except OSError as error:
        if error.filename is not None or error.errno not in _NO_OUTPUT:
            raise
        complain(f"standard output: can't be written, {reason(error)}")
        status = _without_output()
    sys.exit(status)


def _ready_standard_files() -> None:
    """Open /dev/null for those that are closed, and escape characters that can't be encoded."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _without_output() -> int:
    """Drop the rest of the output, and return the exit status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _FAILURE


def _usage(error: typer.TyperException) -> int:
    """Say what is wrong with the command line, and return the exit status."""
    what = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    see = f"; see `{context.command_path} --help`" if context else ""
    if what:  # empty if the help was printed instead
        complain(f"{what}{see}")
    return error.exit_code
