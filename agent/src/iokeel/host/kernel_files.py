"""The kernel's files (proc, sysfs, cgroups), and its ways to write names and numbers in them."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_MOST_DIGITS = 20  # of 2^64
_ESCAPE = re.compile(r"\\([0-7]{3})")


def read_text(file: Path) -> str | None:
    """Return the text of such a file, stripped; None if it can't be read."""
    with contextlib.suppress(OSError):
        return file.read_bytes().decode(errors="surrogateescape").strip()
    return None


def number_of(text: str) -> int | None:
    """Return a number as the kernel writes it, from 0 to 2^64; None for any other text."""
    return int(text) if len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit() else None


def unescaped(text: str) -> str:
    """Return a name in mountinfo or swaps as it is: a blank is \\040 there."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), text) if "\\" in text else text


def device_number(device: int) -> str:
    """Return st_dev or st_rdev as the kernel writes it: MAJOR:MINOR."""
    return f"{os.major(device)}:{os.minor(device)}"
