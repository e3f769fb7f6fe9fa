"""Text from outside, shown safely; the word that it was meant to be; why a system call failed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

# Characters of a value from outside: enough to know it again, and the line stays one.
_MOST_SHOWN = 60
_MOST_PATH = 4096  # PATH_MAX of Linux
# Known words that a mend lists: more than there are columns or attributes, fewer than VMs.
_MOST_KNOWN = 20
# Names that a sentence lists.
_MOST_NAMES = 4


def shown(value: object) -> str:
    """Return a value from outside, quoted for one line of text: printable ASCII, and short."""
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # an int of thousands of digits; lists in lists in lists
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 4]}...{text[-1]}"


def shown_path(value: object) -> str:
    """Return a path or name from outside for one line of text, in full if it is printable.

    A shortened path is of no use.
    """
    text = str(value)
    return text if text.isprintable() and len(text) <= _MOST_PATH else shown(text)[1:-1]


def escaped(text: str) -> str:
    """Return a whole text with escapes for the characters that a terminal would act upon."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def few(names: Sequence[str], most: int = _MOST_NAMES) -> str:
    """Return names for one line of text, only the first of many: a, b and 7 more."""
    listed = ", ".join(map(shown_path, names[:most]))
    return f"{listed} and {len(names) - most} more" if len(names) > most else listed


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the mend for an unknown word: the nearest known one, or the first few."""
    names = {name.lower(): name for name in sorted(known)}
    near = get_close_matches(word[:100].lower(), names, n=1)
    if near:
        return f"did you mean '{shown_path(names[near[0]])}'?"
    return f"known: {few([*names.values()], _MOST_KNOWN) or 'none'}"


def reason(error: OSError | ValueError) -> str:
    """Return an error's reason for use within a sentence: "no such file or directory".

    A ValueError is Python's own, as for a path with a NUL. The words of an errno are preferred to
    the error's text, to which asyncio adds addresses. A resolver's errors have a negative errno.
    """
    number = getattr(error, "errno", None)
    if number is not None and number > 0:
        text = os.strerror(number)
    else:
        text = getattr(error, "strerror", None) or str(error)
    return text[:1].lower() + text[1:]
