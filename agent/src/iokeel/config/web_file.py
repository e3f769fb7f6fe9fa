"""Prometheus' web configuration file: how /metrics is served by TLS, and who may ask for it.

Exporters that use Prometheus' exporter-toolkit read the same file:
https://prometheus.io/docs/prometheus/latest/configuration/https/
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, Field, ValidationError

from iokeel.config.pem_files import doubt_of, load_pair, stamp_of, unusable
from iokeel.config.tables import Address, Table
from iokeel.errors import ConfigError
from iokeel.words.quoting import did_you_mean, shown, shown_path

_HASH = re.compile(r"\$2[aby]\$([0-3][0-9])\$[./A-Za-z0-9]{53}")
# A check of a password takes twice as long for each more; with this one it is half a second.
_MOST_COST = 13
_SEE = "see /usr/share/doc/iokeel/metrics.md.gz"
_Version = Literal["TLS12", "TLS13"]
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_MODES = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}


def _hash(text: str) -> str:
    found = _HASH.fullmatch(text)
    if found is None or not 4 <= int(found[1]) <= _MOST_COST:
        raise ValueError
    return text


class _Tls(Table):
    cert_file: Annotated[str, Field(min_length=1)]
    key_file: Annotated[str, Field(min_length=1)]
    client_auth_type: Literal[
        "NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"
    ] = "NoClientCert"
    client_ca_file: Annotated[str, Field(min_length=1)] | None = None
    min_version: _Version = "TLS12"
    max_version: _Version = "TLS13"


class _Root(Table):
    tls_server_config: _Tls | None = None
    basic_auth_users: dict[str, Annotated[str, AfterValidator(_hash)]] | None = None


@dataclass(frozen=True)
class Web:
    """How /metrics is served, and to whom.

    tls: None without. users: bcrypt hashes of their passwords, by name; empty: nobody is asked for
    one. doubts: what works, but gives others more than they should have.
    """

    tls: ssl.SSLContext | None
    users: Mapping[str, bytes]
    doubts: tuple[ConfigError, ...]
    _stamps: Mapping[Path, object]

    def has_changed(self) -> bool:
        """Return whether a file that it was read from has changed. Does no more than stat."""
        return any(stamp_of(file) != stamp for file, stamp in self._stamps.items())


def load_web(file: Path, address: Address) -> Web:
    """Return what a web configuration file says of an address.

    Raises ConfigError if it or a file that it names can't be used, or if it lets anybody read
    metrics beyond loopback.
    """
    stamps = {file: stamp_of(file)}
    root = _read(file)
    table, users = root.tls_server_config, root.basic_auth_users or {}
    if not address.is_loopback:
        if table is None:
            what = "would serve metrics, and passwords, in the clear beyond loopback"
            raise ConfigError(str(file), what, "add tls_server_config")
        if table.client_auth_type != "RequireAndVerifyClientCert" and not users:
            what = "would let anybody read metrics beyond loopback"
            mend = "add client_auth_type: RequireAndVerifyClientCert, or basic_auth_users"
            raise ConfigError(str(file), what, mend)
    secrets, tls = [file] if users else [], None
    if table is not None:
        certificate, key = file.parent / table.cert_file, file.parent / table.key_file
        ca = None if table.client_ca_file is None else file.parent / table.client_ca_file
        stamps |= {each: stamp_of(each) for each in (certificate, key, ca) if each is not None}
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.minimum_version = _VERSIONS[table.min_version]
        tls.maximum_version = _VERSIONS[table.max_version]
        load_pair(tls, certificate, key, "a server's")
        _ask_clients(tls, table, ca, f"{file}, tls_server_config")
        secrets.append(key)
    doubts = tuple(filter(None, map(doubt_of, secrets)))
    return Web(tls, {user: text.encode() for user, text in users.items()}, doubts, stamps)


def _ask_clients(tls: ssl.SSLContext, table: _Tls, ca: Path | None, where: str) -> None:
    if table.max_version < table.min_version:
        raise ConfigError(f"{where}.max_version", "is below min_version", "raise it")
    tls.verify_mode = _MODES[table.client_auth_type]
    if (ca is None) != (tls.verify_mode == ssl.CERT_NONE):
        what = f"{'lacks' if ca is None else 'has'} a client_ca_file with {table.client_auth_type}"
        mend = "give the CA that signs clients' certificates, with RequireAndVerifyClientCert"
        raise ConfigError(where, what, mend)
    if ca is not None:
        try:
            tls.load_verify_locations(ca)
        except (OSError, ValueError) as error:
            raise unusable(ca, error, "the certificate of the clients' CA") from None


def _read(file: Path) -> _Root:
    try:
        values = yaml.safe_load(file.read_bytes())
    except OSError as error:
        raise unusable(file, error, "a web configuration file") from None
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        what = f"not YAML, {shown_path(error.problem or error.context)}"
        raise ConfigError(f"{file}{line}", what, _SEE) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what = f"not YAML, {shown(str(error))}"
        raise ConfigError(str(file), what, _SEE) from None
    try:
        return _Root.model_validate({} if values is None else values)
    except ValidationError as error:
        raise _invalid(error, file) from None


def _invalid(invalid: ValidationError, file: Path) -> ConfigError:
    # Unknown keys first: a missing key is often there, but misspelt.
    errors = invalid.errors(include_url=False, include_context=False)
    error = min(errors, key=lambda error: error["type"] != "extra_forbidden")
    place = [str(part) for part in error["loc"] if part != "[key]"]
    where = f"{file}, {shown_path('.'.join(place))}" if place else str(file)
    if error["type"] == "extra_forbidden":
        known = (_Tls if place[:-1] else _Root).model_fields
        return ConfigError(where, "is not supported", did_you_mean(place[-1], known))
    if error["type"] == "missing":
        return ConfigError(where, "is missing", "add it")
    if place[:1] == ["basic_auth_users"] and len(place) > 1:  # no password is told
        mend = f"make one by `htpasswd -nBC 10 ''`, of a cost of at most {_MOST_COST}, in quotes"
        return ConfigError(where, "isn't a name with a bcrypt hash", mend)
    wanted = error["msg"].replace("Input should", "it should").partition(" or instance")[0]
    return ConfigError(where, f"is {shown(error['input'])}", wanted)
