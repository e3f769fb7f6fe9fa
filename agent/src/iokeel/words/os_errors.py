"""Why a call to the operating system failed, in words."""

from __future__ import annotations

import os


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
