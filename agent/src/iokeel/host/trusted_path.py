"""What a path names, past no link that could lead it elsewhere."""

from __future__ import annotations

import errno
import os
import stat
from collections import deque

_PATH_ONLY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40  # as many as the kernel follows


class WrongLink(OSError):
    """A path ends in a link, or passes one of another user's, who may have it lead anywhere."""


def open_trusted(path: str) -> int:
    """Return a handle (O_PATH) of what an absolute path names. Close it.

    Its folders may be links that belong to root or to the agent's user. Each part is opened in the
    folder before it, so nobody can change the path in between. Raises WrongLink or another OSError.
    """
    own, links, parts = (0, os.geteuid()), 0, deque(path.split("/"))
    here = os.open("/", _PATH_ONLY)
    try:
        while parts:
            part = parts.popleft()
            if part in ("", "."):
                continue
            there = os.open(part, _PATH_ONLY, dir_fd=here)
            try:
                status = os.fstat(there)
                if stat.S_ISLNK(status.st_mode):
                    links += 1
                    if not parts or status.st_uid not in own:
                        raise WrongLink(errno.ELOOP, f"{part} is a link of user {status.st_uid}")
                    if links > _MOST_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                    target = os.readlink("", dir_fd=there)
                    parts.extendleft(reversed(target.split("/")))
                    if not target.startswith("/"):
                        continue
                    os.close(there)
                    there = os.open("/", _PATH_ONLY)
                here, there = there, here
            finally:
                os.close(there)
    except BaseException:
        os.close(here)
        raise
    return here
