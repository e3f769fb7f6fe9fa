"""Files of certificates, keys and secrets: read for TLS, and known again once they have changed."""

from __future__ import annotations

import contextlib
import os
import ssl
import stat
from pathlib import Path

from iokeel.errors import ConfigError
from iokeel.words.quoting import reason

# A secret's group may read it, as for services that share one.
_OTHERS = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP


def load_pair(context: ssl.SSLContext, certificate: Path, key: Path, whose: str) -> None:
    """Load a certificate and its key. whose: "a client's". Raises ConfigError."""
    what = f"{whose} certificate and its key, without a password"
    for file in (certificate, key):
        try:
            file.read_bytes()
        except (OSError, ValueError) as error:
            raise unusable(file, error, what) from None
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except OSError as error:
        raise unusable(f"{certificate}, {key}", error, what) from None


def stamp_of(file: Path | str) -> tuple[int, int] | None:
    """Return what differs once a file has changed; None if it isn't there."""
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_ino


def doubt_of(secret: Path) -> ConfigError | None:
    """Return the error if others than its owner and its group's readers may use a secret."""
    with contextlib.suppress(OSError):  # told when it is read
        if (mode := secret.stat().st_mode) & _OTHERS:
            what = f"may be read or written by others ({stat.filemode(mode)})"
            return ConfigError(str(secret), what, f"type `chmod 600 {secret}`")
    return None


def unusable(file: object, error: OSError | ValueError, what: str) -> ConfigError:
    """Return the error of a file that should be `what`."""
    said = reason(error)
    if isinstance(error, ssl.SSLError):  # its number is OpenSSL's, and no errno
        said = (error.reason or "not PEM").replace("_", " ").lower()
    return ConfigError(str(file), f"can't be read: {said}", f"see that it is {what} and readable")


def _no_password() -> str:
    return ""  # or OpenSSL would ask on the terminal
