#!/usr/bin/python3
"""Make a man page of each command from its help.

man_pages.py COMMAND VERSION FOLDER
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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
        ".SH SEE ALSO\niokeel(1), /usr/share/doc/iokeel/configuration.md.gz\n"
    )


def main(program: str, version: str, configuration: str, folder: str) -> None:
    """Write the pages into a folder."""
    file = Path(configuration)
    (Path(folder) / f"{file.name}.5").write_text(file_page(file, version))
    for command, text in commands([program]):
        words = [Path(program).name, *command[1:]]
        name, said = "-".join(words), " ".join(words)
        about = re.split(r"\.(?:\s|$)", text.split("\n\n")[1].strip(), maxsplit=1)[0]
        page = subprocess.run(
            ["help2man", "--no-info", f"--version-string={version}",
             f"--name={' '.join(about.split())}", " ".join(command)],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        page = re.sub(r"^\.TH .*? \"1\"", f'.TH {name.upper()} "1"', page, flags=re.MULTILINE)
        page = page.replace(f"\n{said} \\- ", f"\n{name} \\- ", 1)
        (Path(folder) / f"{name}.1").write_text(page)


if __name__ == "__main__":
    main(*sys.argv[1:])
