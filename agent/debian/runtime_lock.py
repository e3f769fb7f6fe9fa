#!/usr/bin/python3
"""Print those lines of the lock file that the agent needs to run, or that some tools need.

    runtime_lock.py AGENT_FOLDER [TOOL...]

The lock's comments ("# via") say which libraries need each one. Tools for tests are left out, and
libvirt-python unless it is named, because the distribution's own fits its libvirt.
"""

import re
import sys
import tomllib
from pathlib import Path

FROM_DISTRIBUTION = {"libvirt-python"}
# A library: its name, its hashes, and the comment on who needs it.
ENTRY = re.compile(r"^([a-z0-9-]+)==.*(?:\n +--hash.*)*\n((?: +#.*\n)+)", re.MULTILINE)


def runtime_lock(lock: str, direct: set[str]) -> str:
    """Return the entries of `direct` libraries and of those that these need."""
    entries = {found[1]: found for found in ENTRY.finditer(lock)}
    if missing := direct - entries.keys():
        raise SystemExit(f"runtime-lock: not in the lock file: {', '.join(sorted(missing))}")
    wanted = direct
    while (
        more := {
            name
            for name, found in entries.items()
            if wanted & set(re.findall(r"[a-z0-9-]+", found[2]))
        }
        - wanted
    ):
        wanted = wanted | more
    return "".join(entries[name][0] for name in sorted(wanted))


if __name__ == "__main__":
    folder, *tools = Path(sys.argv[1]), *sys.argv[2:]
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^a-z0-9-]", wanted)[0] for wanted in project["dependencies"]}
    wanted = {*tools} or names - FROM_DISTRIBUTION
    print(runtime_lock((folder / "requirements.lock").read_text(), wanted), end="")
