"""Empty stand-ins for shared libraries that a program loads, but never calls.

Debian's fio loads the clients of Ceph, Gluster, RDMA and NBD. Those and what they load in turn
would be seven eighths of a guest's image. An emulated processor unpacks the image at each boot, and
links the libraries at each start of fio.
"""

import os
import re
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

_NEEDED = re.compile(r"^\s*NEEDED\s+(\S+)", re.MULTILINE)


def stubs(program: Path, kept: Collection[str], folder: Path) -> None:
    """Make stand-ins for the libraries that a program is linked with.

    kept: the names of those that it calls, up to ".so". folder: where the stand-ins go. A call of a
    function in one of them kills the program.
    """
    wanted = [name.partition("@") for name in _names(program, "--undefined-only")]
    paths = {path.name: path for path in libraries(program)}
    for name in _NEEDED.findall(_output("objdump", "-p", program)):
        if name.partition(".so")[0] not in kept:
            has = {each.partition("@")[0] for each in _names(paths[name], "--defined-only")}
            _make(folder / name, [(each, version) for each, _, version in wanted if each in has])


def _make(library: Path, functions: Sequence[tuple[str, str]]) -> None:
    """Make a library of functions, each with its version or ""."""
    code = "".join(f"void {name}(void) {{ __builtin_trap(); }}\n" for name, _ in functions)
    by_version: dict[str, list[str]] = {}
    for name, version in functions:
        by_version.setdefault(version, []).append(name)
    versions = library.with_suffix(".versions")
    tags = [f"{v} {{ {'; '.join(names)}; }};\n" for v, names in by_version.items() if v]
    versions.write_text("".join(tags) or "{ global: *; };\n")
    subprocess.run(
        ["gcc", "-w", "-shared", "-nostdlib", "-fPIC", f"-Wl,-soname,{library.name}",
         f"-Wl,--version-script,{versions}", "-o", library, "-x", "c", "-"],
        input=code, text=True, check=True,
    )  # fmt: skip
    versions.unlink()


def libraries(*programs: Path, first: Path | None = None) -> set[Path]:
    """Return the shared libraries that programs load, and the loader.

    first: a folder whose libraries come before others of their name.
    """
    env = os.environ | ({"LD_LIBRARY_PATH": str(first)} if first else {})
    # ldd says "name => /path (address)", for the loader "/path (address)".
    lines = _output("ldd", *programs, env=env).splitlines()
    if missing := [line.split()[0] for line in lines if "not found" in line]:
        raise RuntimeError(f"shared libraries not on this machine: {', '.join(missing)}")
    words = (word for line in lines if line.startswith("\t") for word in line.split())
    return {Path(word) for word in words if word.startswith("/")}


def _names(library: Path, which: str) -> list[str]:
    lines = _output("nm", "--dynamic", which, library).splitlines()
    return [line.split()[-1] for line in lines]


def _output(*argv: str | Path, env: dict[str, str] | None = None) -> str:
    return subprocess.check_output([str(word) for word in argv], text=True, env=env)
