"""The types of configuration values, and words for the fault of a value that doesn't fit."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from iokeel.config.settings import Address
from iokeel.core.curve import LEAST_COST, MOST_COST
from iokeel.errors import ConfigError
from iokeel.policy_xml.schema import NAME, TARGET
from iokeel.words.quoting import shown, shown_path
from iokeel.words.units import parse_size

# A unix socket's path ends with a NUL in 108 bytes (unix(7)).
_MOST_SOCKET_BYTES = 107
# Larger than any request, and small enough for a curve's arithmetic to be exact.
_MOST_SIZE_BYTES = 1 << 30
_NETWORK_STORAGE = re.compile("[a-z][a-z0-9-]*:.+")
# VM/DRIVE; in both names * ? and [...] may stand (fnmatch). libvirt's names may have blanks, and a
# QOM path has slashes.
_PATTERN = re.compile("[^/]+/.+")


class WrongValue(ValueError):
    """A value can't be used. what: its fault. mend: what to write instead."""

    def __init__(self, what: str, mend: str) -> None:
        super().__init__(what, mend)
        self.what = what
        self.mend = mend


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise WrongValue(f"{shown(value)} is not a string", "write it in quotes")
    return value


def _path(value: object) -> Path:
    text = _text(value)
    if not text.startswith("/") or "\0" in text:
        raise WrongValue(f"{shown(text)} is not an absolute path", "write it from / on")
    return Path(text)


def _socket(value: object) -> Path:
    text = _text(value)
    if len(os.fsencode(text)) > _MOST_SOCKET_BYTES:
        what = f"{len(os.fsencode(text))} bytes are too many for a unix socket's path"
        raise WrongValue(what, f"give a path of at most {_MOST_SOCKET_BYTES} bytes")
    return _path(text)


def _address(value: object) -> Address:
    text = _text(value)
    match = re.fullmatch(r"(?:\[([^]%]*)\]|([^:]*)):([0-9]{1,5})", text, re.ASCII)
    if match is None or not 1 <= int(match[3]) <= 65535:
        raise WrongValue(
            f"{shown(text)} is not an address and port", "write it like 127.0.0.1:9632"
        )
    host = match[1] or match[2] or ""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise WrongValue(
            f"{shown(host)} is not an IP address", "write 127.0.0.1 or [::1]"
        ) from None
    if not loopback:
        raise WrongValue(
            f"{host} is not a loopback address, and anybody may read metrics there",
            "write 127.0.0.1 or [::1], and put a proxy with a login in front of it",
        )
    return Address(host, int(match[3]))


def _uri(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9+]*://[!-~]*", text):
        raise WrongValue(f"{shown(text)} is not a libvirt URI", "write it like qemu:///system")
    if host := urlsplit(text).netloc:
        raise WrongValue(
            f"{shown(text)} names a host, but iokeel looks at the disks, processes and cgroups of"
            " the host that it runs on",
            f"run the agent on {shown_path(host)}, and write it like qemu:///system there",
        )
    return text


def _name(text: str) -> str:
    if not NAME.pattern.fullmatch(text):
        raise WrongValue(f"{shown(text)} is {NAME.what}", NAME.mend)
    return text


def _drive(text: str) -> str:
    if not TARGET.pattern.fullmatch(text):
        raise WrongValue(f"{shown(text)} is {TARGET.what}", TARGET.mend)
    return text


def _network_storage(text: str) -> str:
    if not (_NETWORK_STORAGE.fullmatch(text) and text.isprintable()):
        mend = "write it like rbd:pool, nbd:host:10809 or iscsi:host:3260/iqn.2001-01.com.example:t"
        raise WrongValue(f"{shown(text)} is not a network storage", mend)
    return text


def _pattern(text: str) -> str:
    if not (_PATTERN.fullmatch(text) and text.isprintable()):
        raise WrongValue(f"{shown(text)} is not a drive", 'write VM/DRIVE, such as "web*/vdb"')
    return text


def _devices(text: str) -> str:
    _path(text)
    return text


def _size(value: object) -> object:
    try:
        return parse_size(value) if isinstance(value, str) else value
    except ConfigError as error:
        raise WrongValue(f"size {error.where} is {error.what}", error.mend) from None


def _point(value: object) -> object:
    if not isinstance(value, list) or len(value) != 2:
        raise WrongValue(
            f"{shown(value)} is not a point", 'write [size, cost], such as ["4k", 1.0]'
        )
    return tuple(value)


# TOML's whole numbers have no bounds, and those that can be printed do. Whether a figure makes
# sense is for policy.checked to say.
Whole = Annotated[int, Field(ge=-(10**15), le=10**15)]
Size = Annotated[int, Field(gt=0, le=_MOST_SIZE_BYTES), BeforeValidator(_size)]
Cost = Annotated[float, Field(ge=LEAST_COST, le=MOST_COST)]
Point = Annotated[tuple[Size, Cost], BeforeValidator(_point)]
Name = Annotated[str, AfterValidator(_name)]
Drive = Annotated[str, AfterValidator(_drive)]
Devices = Annotated[str, AfterValidator(_devices)]
Pattern = Annotated[str, AfterValidator(_pattern)]
NetworkStorage = Annotated[str, AfterValidator(_network_storage)]
Uri = Annotated[str, AfterValidator(_uri)]
AbsolutePath = Annotated[Path, PlainValidator(_path)]
Socket = Annotated[Path, PlainValidator(_socket)]
LoopbackAddress = Annotated[Address, PlainValidator(_address)]
