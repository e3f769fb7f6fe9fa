"""The simulated disk: its devices' parameters, and its programs, which are built at first use."""

import os
import subprocess
from pathlib import Path

from testing.lab.cache import cached

SOURCE = Path(__file__).resolve().parents[4] / "benchmarks/disksim"
DEVICES = {path.stem: path for path in sorted(SOURCE.glob("*.conf"))}
"""Name -> the file of its parameters."""


def built(sanitize: bool = False) -> Path:
    """Return the folder with nbdkit's plugin `disksim.so` and the program `replay`.

    They are compiled at first use, in a second or two. sanitize: with the sanitizers for addresses
    and undefined behaviour. Raises RuntimeError with the compiler's words.
    """
    options = ["SANITIZE=1"] if sanitize else []
    sources = [path for path in sorted(SOURCE.iterdir()) if path.suffix in (".c", ".h", "")]
    parts = [path.read_bytes() for path in sources if path.is_file()]

    def build(folder: Path) -> None:
        make = ["make", "--silent", "-C", str(SOURCE), f"OUT={folder}", *options]
        run = subprocess.run(make, capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(f"disksim doesn't compile: {run.stderr.strip()}")

    return cached("disksim", [*options, os.environ.get("CC", ""), *parts], build)


def params(name: str) -> dict[str, float]:
    """Return a device's parameters without `kind`; sizes are in bytes."""
    values = {}
    for line in DEVICES[name].read_text().splitlines():
        key, _, value = line.partition("#")[0].partition("=")
        if value and key.strip() != "kind":
            number, scale = value.strip(), 1
            if number[-1] in "KMGT":
                number, scale = number[:-1], 1024 ** (1 + "KMGT".index(number[-1]))
            values[key.strip()] = float(number) * scale
    return values
