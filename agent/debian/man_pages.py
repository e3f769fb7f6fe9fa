#!/usr/bin/python3
"""Make a man page of each command from its help, that of the configuration, and completions.

man_pages.py COMMAND VERSION CONFIGURATION FOLDER
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

SHELLS = ("bash", "zsh", "fish")
# Says what a command's help was found to be, so that help2man need not start the program again.
_SAYS = '#!/bin/sh\nprintf %s "$HELP"\n'
_COMMANDS = re.compile(r"^Commands:\n((?: +\S.*\n)+)", re.MULTILINE)


def commands(command: list[str]) -> Iterator[tuple[list[str], str]]:
    """Yield a command and the subcommands that its help names, each with its help."""
    text = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    yield command, text
    listed = _COMMANDS.search(text)
    for name in re.findall(r"^  ([a-z]+)", listed[1], re.MULTILINE) if listed else ():
        yield from commands([*command, name])


def file_page(file: Path, version: str) -> str:
    """Return the page of a configuration file whose comments explain it."""
    text = file.read_text().replace("\\", "\\\\").replace("-", "\\-").replace("\n.", "\n\\&.")
    return (
        f'.TH {file.name.upper()} "5" "" "iokeel {version}" "File Formats"\n'
        f".SH NAME\n{file.name} \\- the configuration of iokeel's agent\n"
        f".SH FILE\n/etc/iokeel/{file.name}\n"
        f".SH CONTENT\nThis is the file as it is installed.\n.P\n.nf\n{text}.fi\n"
        ".SH SEE ALSO\niokeel(1), configuration.md in /usr/share/doc/iokeel\n"
    )


def page(command: list[str], text: str, version: str) -> str:
    """Return the page of a command by its help. command: prints the environment's HELP."""
    words = [Path(command[0]).name, *command[1:]]
    name, said = "-".join(words), " ".join(words)
    about = re.split(r"\.(?:\s|$)", text.split("\n\n")[1].strip(), maxsplit=1)[0]
    made = subprocess.run(
        ["help2man", "--no-info", f"--version-string={version}",
         f"--name={' '.join(about.split())}", " ".join(command)],
        capture_output=True, text=True, check=True, env={**os.environ, "HELP": text},
    ).stdout  # fmt: skip
    made = re.sub(r"^\.TH .*? \"1\"", f'.TH {name.upper()} "1"', made, flags=re.MULTILINE)
    return made.replace(f"\n{said} \\- ", f"\n{name} \\- ", 1)


def main(program: str, version: str, configuration: str, folder: str) -> None:
    """Write the pages into a folder, and completion.SHELL for each shell."""
    os.environ["TYPER_USE_RICH"] = "0"  # no boxes in its help
    file = Path(configuration)
    (Path(folder) / f"{file.name}.5").write_text(file_page(file, version))
    with tempfile.TemporaryDirectory() as scratch:
        stand_in = Path(scratch) / Path(program).name
        stand_in.write_text(_SAYS)
        stand_in.chmod(0o755)
        for command, text in commands([program]):
            (Path(folder) / f"{'-'.join([stand_in.name, *command[1:]])}.1").write_text(
                page([str(stand_in), *command[1:]], text, version)
            )
    for shell in SHELLS:
        environment = {**os.environ, "_IOKEEL_COMPLETE": f"source_{shell}"}
        script = subprocess.run([program], env=environment, stdout=subprocess.PIPE, check=True)
        (Path(folder) / f"completion.{shell}").write_bytes(script.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
