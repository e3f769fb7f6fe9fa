"""The cache folder: things that take long to make, each under a hash of its ingredients."""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path


def cache_dir() -> Path:
    """Return the cache folder: $IOKEEL_CACHE, else $XDG_CACHE_HOME/iokeel, else ~/.cache/iokeel.

    It is made if it isn't there. All of it can be deleted while no lab runs.
    """
    if own := os.environ.get("IOKEEL_CACHE"):
        folder = Path(own)
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "iokeel"
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def cached(name: str, key_parts: Iterable[str | bytes], build: Callable[[Path], None]) -> Path:
    """Return the folder made by `build` from `key_parts`, building it only if it isn't there.

    name: for people; a plain file name.
    key_parts: everything that the result depends on (versions, checksums, texts).
    build: fills the empty folder that it is given, and does not remember its path: the folder gets
        its final name when `build` returns, so half a build never counts.

    If two processes want the same thing, the second waits for the first. Errors of `build` pass
    through, and leave nothing behind.
    """
    digest = hashlib.sha256()
    for part in key_parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "big") + raw)
    final = cache_dir() / f"{name}-{digest.hexdigest()[:16]}"
    if final.is_dir():
        return final
    with _locked(final.with_name(f".{final.name}.lock")):
        if final.is_dir():
            return final
        unfinished = final.with_name(f".{final.name}.building")
        if unfinished.exists():  # left by a build that was killed
            shutil.rmtree(unfinished)
        unfinished.mkdir()
        try:
            build(unfinished)
            unfinished.rename(final)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    return final


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The lock file stays: removing it would let two builders hold two different files.
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
