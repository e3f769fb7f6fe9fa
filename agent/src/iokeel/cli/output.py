"""What the command prints: lines, JSON and complaints. No other file of it calls print.

Names and messages come from guests, QEMU, libvirt and etcd. What a terminal would act upon is
printed as an escape. Tables see to that themselves (cells.py).
"""

from __future__ import annotations

import json
import sys
from typing import TextIO

from iokeel.words.quoting import escaped


def say(*lines: str) -> None:
    """Print lines."""
    for line in lines:
        print(escaped(line))


def say_json(values: object, *, indent: int | None = 2, file: TextIO | None = None) -> None:
    """Print values as JSON, in ASCII. file: None for stdout."""
    print(json.dumps(values, indent=indent), file=file)


def complain(text: str) -> None:
    """Print a line to stderr, after the command's name."""
    print(f"iokeel: {escaped(text)}", file=sys.stderr)
