#!/usr/bin/env python3
"""Compile the control law with mypyc, which halves `decide`'s own CPU time.

    compile_law.py SOURCES FOLDER

SOURCES and FOLDER both have the package iokeel, as sources and compiled. Python loads a compiled
module instead of a source beside it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Distribution

#: What `decide` spends its time in. What the agent saves as JSON is in other modules of the core:
#: mypyc doesn't keep the types of fields, which msgspec goes by.
LAW = (
    "decide.py",
    "fitting.py",
    "promises.py",
    "values/claimant.py",
    "values/curve.py",
    "values/mix.py",
    "values/state.py",
    "measure/*.py",
    "correct/*.py",
    "divide/*.py",
    "enforce/envelope.py",
    "enforce/in_flight.py",
    "enforce/in_force.py",
    "enforce/look.py",
    "enforce/pricing.py",
    "enforce/retune.py",
    "enforce/shared_group.py",
)


def modules(package: Path) -> list[Path]:
    """Return the modules to compile of the package iokeel."""
    found = {file for pattern in LAW for file in (package / "core").glob(pattern)}
    return sorted(file for file in found if file.name != "__init__.py")


def main() -> None:
    """Compile the law."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sources", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    to = options.folder.resolve()
    os.chdir(options.sources)
    with tempfile.TemporaryDirectory() as build:
        extensions = mypycify(
            [f"--cache-dir={build}", *map(str, modules(Path("iokeel")))],
            group_name="iokeel",
            opt_level="1",  # as fast as 3, in half the time
            debug_level="0",
            target_dir=build,
        )
        command = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(to), build
        command.ensure_finalized()
        command.run()


if __name__ == "__main__":
    main()
