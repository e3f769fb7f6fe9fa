"""How etcd is reached: addresses, certificates, user and password."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from iokeel.config.pem_files import doubt_of, load_pair, stamp_of, unusable
from iokeel.errors import ConfigError
from iokeel.words.quoting import shown

DEFAULT_PREFIX = "/iokeel/"


@dataclass(frozen=True)
class Access:
    """How etcd is reached.

    urls: of its members, as http://HOST:PORT or https://. ca, certificate, key: PEM files; ca is
    None for the system's. user: None without one; its password is the only line of password_file.
    prefix: begins all keys. insecure: the operator knows that http is read and changed on the way.
    """

    urls: tuple[str, ...]
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    prefix: str = DEFAULT_PREFIX
    insecure: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigError for what can't be."""
        if not self.urls:
            raise ConfigError("[fleet] etcd", "is empty", "give the URLs of etcd's members")
        for url in self.urls:
            _check_url(url)
        if len({urlsplit(url).scheme for url in self.urls}) > 1:
            raise ConfigError("[fleet] etcd", "has http and https", "give one or the other")
        if not self.is_tls and (self.ca or self.certificate or self.key):
            raise ConfigError("[fleet] etcd", "has certificates, but no https", "write https://")
        if (self.certificate is None) != (self.key is None):
            raise ConfigError(
                "[fleet]", "has a certificate or a key without the other", "give both or neither"
            )
        if (self.user is None) != (self.password_file is None):
            raise ConfigError(
                "[fleet]", "has a user or a password_file without the other", "give both or neither"
            )
        if self.user == "":
            raise ConfigError("[fleet] user", "is empty", "give a name, or leave it out")
        if self.user is not None and not self.is_tls and not self._is_local:
            raise ConfigError(
                "[fleet] etcd", "would get the password in the clear", "write https://"
            )
        if not re.fullmatch("/.*[^/].*/", self.prefix, re.DOTALL):
            raise ConfigError(
                f"[fleet] prefix {shown(self.prefix)}",
                "is not a prefix",
                "write one that begins and ends with a slash, such as /iokeel/",
            )

    @property
    def is_tls(self) -> bool:
        return self.urls[0].startswith("https:")

    @property
    def _is_local(self) -> bool:
        hosts = {urlsplit(url).hostname for url in self.urls}
        return hosts <= {"127.0.0.1", "::1", "localhost"}

    def doubts(self) -> list[ConfigError]:
        """Return what works, but gives others more than they should have."""
        found = []
        if not (self.is_tls or self._is_local or self.insecure):
            found.append(
                ConfigError(
                    "[fleet] etcd",
                    f"is asked in the clear ({self.urls[0]}), so whoever is on the way there may"
                    " set all limits",
                    "write https://, or insecure = true if nobody else can be there",
                )
            )
        secrets = (file for file in (self.password_file, self.key) if file is not None)
        found += filter(None, map(doubt_of, secrets))
        return found

    def tls(self) -> ssl.SSLContext | None:
        """Return the context for TLS; None without. Raises ConfigError."""
        if not self.is_tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise unusable(self.ca, error, "a CA's certificate") from None
        if self.certificate is not None and self.key is not None:
            load_pair(context, self.certificate, self.key, "a client's")
        return context

    def stamp(self) -> tuple[object, ...]:
        """Return what differs once a file that `tls` reads has changed. Does no more than stat."""
        system = ssl.get_default_verify_paths()
        ca = self.ca or system.cafile or system.capath
        files = (ca, self.certificate, self.key)
        return tuple(stamp_of(file) for file in files if file is not None)

    def password(self) -> str:
        """Return the user's password. Raises ConfigError."""
        assert self.password_file is not None
        try:
            text = self.password_file.read_text()
        except (OSError, ValueError) as error:
            raise unusable(self.password_file, error, "the user's password") from None
        if not text.strip() or "\n" in text.strip():
            raise ConfigError(
                str(self.password_file), "is not one line", "write the user's password, and no more"
            )
        return text.strip()


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        right = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and bool(parts.port)
            and not (parts.username or parts.path.strip("/") or parts.query or parts.fragment)
        )
    except ValueError:
        right = False
    if not right:
        raise ConfigError(
            f"[fleet] etcd {shown(url)}", "is not a member's URL", "write https://HOST:2379"
        )
