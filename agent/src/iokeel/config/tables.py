"""What may be written in the agent's configuration, by table and key, and what is wrong with it.

Defaults are not here: None is what was not written.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from iokeel.core.policy import MOST_IOPS, MOST_LATENCY_MS
from iokeel.errors import ConfigError
from iokeel.policy_xml.schema import NAME
from iokeel.words.quoting import did_you_mean, shown
from iokeel.words.units import parse_size

# A unix socket's path ends with a NUL in 108 bytes (unix(7)).
_MOST_SOCKET_BYTES = 107
# Larger than any request, and small enough for a curve's arithmetic to be exact.
_MOST_SIZE_BYTES = 1 << 30
_MOST_COST = 1e9
_SOURCE = re.compile("[a-z][a-z0-9-]*:[!-~]+")
# A name on either side, in which * ? and [...] may stand (fnmatch).
_PATTERN = re.compile(r"[A-Za-z0-9_.*?!\[\]-]+/[A-Za-z0-9_.*?!\[\]-]+")


class Address(NamedTuple):
    """A loopback address and a port."""

    host: str
    port: int


def validated(values: Mapping[str, Any], file: str) -> Root:
    """Return what a TOML file holds, of the right types. Raises ConfigError, naming the key."""
    try:
        return Root.model_validate(values)
    except ValidationError as error:
        raise _invalid(error, file) from None


class _Wrong(ValueError):
    """What is wrong with a value, and the mend."""

    def __init__(self, what: str, mend: str) -> None:
        super().__init__(what, mend)
        self.what = what
        self.mend = mend


def _path(text: str) -> Path:
    if not text.startswith("/") or "\0" in text:
        raise _Wrong(f"{shown(text)} is not an absolute path", "write it from / on")
    return Path(text)


def _socket(text: str) -> Path:
    if len(os.fsencode(text)) > _MOST_SOCKET_BYTES:
        what = f"{len(os.fsencode(text))} bytes are too long for a unix socket"
        raise _Wrong(what, f"give a path of at most {_MOST_SOCKET_BYTES} bytes")
    return _path(text)


def _address(text: str) -> Address:
    match = re.fullmatch(r"(?:\[([^]%]*)\]|([^:]*)):([0-9]{1,5})", text, re.ASCII)
    if match is None or not 1 <= int(match[3]) <= 65535:
        raise _Wrong(f"{shown(text)} is not an address and port", "write it like 127.0.0.1:9632")
    host = match[1] or match[2] or ""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise _Wrong(f"{shown(host)} is not an IP address", "write 127.0.0.1 or [::1]") from None
    if not loopback:
        raise _Wrong(
            f"{host} is not a loopback address, and metrics are shown to all who ask",
            "write 127.0.0.1 or [::1], and a proxy that asks who it is before it",
        )
    return Address(host, int(match[3]))


def _uri(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9+]*://[!-~]*", text):
        raise _Wrong(f"{shown(text)} is not a libvirt URI", "write it like qemu:///system")
    return text


def _name(text: str) -> str:
    if not NAME.pattern.fullmatch(text):
        raise _Wrong(f"{shown(text)} is {NAME.what}", NAME.mend)
    return text


def _source(text: str) -> str:
    if not _SOURCE.fullmatch(text):
        mend = "write it like rbd:pool, nbd:host:10809 or iscsi:host:3260/iqn.2001-01.com.example:t"
        raise _Wrong(f"{shown(text)} is not a network storage", mend)
    return text


def _pattern(text: str) -> str:
    if not _PATTERN.fullmatch(text):
        raise _Wrong(f"{shown(text)} is not a drive", 'write VM/DRIVE, such as "web*/vdb"')
    return text


def _size(value: object) -> object:
    try:
        return parse_size(value) if isinstance(value, str) else value
    except ConfigError as error:
        raise _Wrong(f"size {error.where} is {error.what}", error.mend) from None


def _point(value: object) -> object:
    if not isinstance(value, list) or len(value) != 2:
        raise _Wrong(f"{shown(value)} is not a point", 'write [size, cost], such as ["4k", 1.0]')
    return tuple(value)


# TOML's whole numbers have no bounds, and those that can be printed have. What a figure may be
# is for policy.checked to say.
_Whole = Annotated[int, Field(ge=-(10**15), le=10**15)]
_Name = Annotated[str, AfterValidator(_name)]
_Socket = Annotated[str, AfterValidator(_socket)]
_Size = Annotated[int, Field(gt=0, le=_MOST_SIZE_BYTES), BeforeValidator(_size)]
_Cost = Annotated[float, Field(gt=0, le=_MOST_COST)]
_Pattern = Annotated[str, AfterValidator(_pattern)]
_Point = Annotated[tuple[_Size, _Cost], BeforeValidator(_point)]


class Table(BaseModel):
    """A table: no key but its own, and no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class AgentTable(Table):
    """[agent]."""

    socket: _Socket | None = None
    state_dir: Annotated[str, AfterValidator(_path)] | None = None
    tick_seconds: Annotated[float, Field(ge=0.2, le=10)] | None = None
    log_level: Literal["debug", "info", "warning", "error"] | None = None
    metrics_address: Annotated[str, AfterValidator(_address)] | None = None


class LibvirtTable(Table):
    """[libvirt]."""

    enabled: bool | None = None
    uri: Annotated[str, AfterValidator(_uri)] | None = None


class HookTable(Table):
    """[hook]."""

    strict: bool | None = None


class CurveTable(Table):
    """[curve]."""

    read: list[_Point] | None = None
    write: list[_Point] | None = None


class ClassTable(Table):
    """[classes.NAME]."""

    reservation: _Whole | None = None
    limit: _Whole | None = None
    burst: _Whole | None = None
    burst_seconds: _Whole | None = None
    weight: _Whole | None = None
    latency_target_ms: float | None = None
    budget: Literal["shared", "separate"] | None = None


class DriveTable(ClassTable):
    """[vm.drives.DEVICE]."""

    class_: _Name | None = Field(None, alias="class")


class TenantTable(Table):
    """[tenants.NAME]."""

    reservation: _Whole | None = None
    limit: _Whole | None = None
    weight: _Whole | None = None


class StorageTable(Table):
    """[storage.NAME]."""

    device: Annotated[str, AfterValidator(_path)] | None = None
    path: Annotated[str, AfterValidator(_path)] | None = None
    source: Annotated[str, AfterValidator(_source)] | None = None
    drives: list[_Pattern] | None = None
    capacity: Annotated[int, Field(ge=1, le=MOST_IOPS)] | None = None
    latency_target_ms: Annotated[float, Field(ge=0.001, le=MOST_LATENCY_MS)] | None = None
    least_ratio: Annotated[float, Field(ge=0.01, le=1)] | None = None
    most_ratio: Annotated[float, Field(ge=1, le=100)] | None = None
    curve_read: list[_Point] | None = None
    curve_write: list[_Point] | None = None


class CgroupTable(Table):
    """[cgroup]."""

    enabled: bool | None = None
    margin: Annotated[float, Field(ge=1, le=100)] | None = None


class VmTable(Table):
    """[[vm]]."""

    name: _Name
    socket: _Socket
    tenant: _Name | None = None
    class_: _Name | None = Field(None, alias="class")
    drives: dict[_Name, DriveTable] = {}


class Root(Table):
    """The whole file."""

    agent: AgentTable = AgentTable()
    libvirt: LibvirtTable = LibvirtTable()
    hook: HookTable = HookTable()
    curve: CurveTable = CurveTable()
    classes: dict[_Name, ClassTable] = {}
    tenants: dict[_Name, TenantTable] = {}
    storage: dict[_Name, StorageTable] = {}
    cgroup: CgroupTable = CgroupTable()
    vm: list[VmTable] = []


# What is wrong, in words

_TYPES = {
    "bool_type": ("not true or false", "write true or false, without quotes"),
    "dict_type": ("not a table", "write it as a [table] of its own"),
    "finite_number": ("not a number to reckon with", "write it like 2.5"),
    "float_type": ("not a number", "write it in digits, without quotes"),
    "int_type": ("not a whole number", "write it like 500, without quotes or fraction"),
    "list_type": (
        "not a list",
        'write a curve as [[size, cost], ...], drives as ["VM/DRIVE", ...], and [[vm]] for each VM',
    ),
    "model_type": ("not a table", "write it as a [table] of its own"),
    "string_type": ("not a text", "write it in quotes"),
}
_BOUNDS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}


def _invalid(invalid: ValidationError, file: str) -> ConfigError:
    # A key that is missing is often one that is there, with a slip of the pen.
    errors = invalid.errors(include_url=False)
    error = min(errors, key=lambda error: error["type"] != "extra_forbidden")
    place = tuple(part for part in error["loc"] if part != "[key]")
    where = f"{file}, {_where(place)}"
    kind, context = error["type"], error.get("ctx", {})
    value = shown(error["input"])
    if kind == "extra_forbidden":
        return ConfigError(where, "not known", did_you_mean(str(place[-1]), _known(place[:-1])))
    if kind == "missing":
        return ConfigError(where, "is missing", "add it")
    if kind == "value_error":
        wrong = context["error"]
        return ConfigError(where, wrong.what, wrong.mend)
    if kind == "literal_error":
        return ConfigError(where, f"{value} is not known", f"give {context['expected']}")
    for bound, words in _BOUNDS.items():
        if bound in context:
            number = context[bound]
            figure = f"{number:g}" if isinstance(number, float) else number
            return ConfigError(where, f"is {value}", f"give {words} {figure}")
    what, mend = _TYPES.get(kind, (error["msg"], "see docs/operations.md"))
    return ConfigError(where, f"{value} is {what}", mend)


def _where(place: Sequence[int | str]) -> str:
    """Return a place as TOML has it: [classes.gold] limit."""
    match place:
        case ["vm", int(number), "drives", str(device), *key]:
            table = f"[[vm]] {number + 1}, [vm.drives.{_key(device)}]"
        case ["vm", int(number), *key]:
            table = f"[[vm]] {number + 1}"
        case ["classes" | "tenants" | "storage" as kind, str(name), *key] if key:
            table = f"[{kind}.{_key(name)}]"
        case [str(name), *key] if key:
            table = f"[{_key(name)}]"
        case [*key]:
            table = ""
    name = next((_key(part) for part in key if isinstance(part, str)), "")
    item = "drive" if name == "drives" else "point"
    which = next((f" {item} {part + 1}" for part in key if isinstance(part, int)), "")
    return f"{table} {name}{which}".strip()


def _key(name: str) -> str:
    return name if NAME.pattern.fullmatch(name) else shown(name)


def _known(table: Sequence[int | str]) -> list[str]:
    """Return the keys that a table may have."""
    model: type[Table]
    match table:
        case []:
            model = Root
        case ["vm", _]:
            model = VmTable
        case ["vm", *_]:
            model = DriveTable
        case ["classes", _]:
            model = ClassTable
        case ["tenants", _]:
            model = TenantTable
        case ["storage", _]:
            model = StorageTable
        case ["cgroup"]:
            model = CgroupTable
        case ["agent"]:
            model = AgentTable
        case ["libvirt"]:
            model = LibvirtTable
        case ["hook"]:
            model = HookTable
        case _:
            model = CurveTable
    return [field.alias or name for name, field in model.model_fields.items()]
