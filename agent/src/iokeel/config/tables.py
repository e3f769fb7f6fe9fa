"""The tables and keys that may be written in the agent's configuration, and faults of others.

A table named Config is a setting as it is written. In the others, a key that wasn't written is None
if other tables say what it is then (load.py).
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
)

from iokeel.config.paths import DEFAULT_FACTS, DEFAULT_SOCKET
from iokeel.core.values.curve import LEAST_COST, MOST_COST
from iokeel.core.values.policy import LEAST_JOB_BPS, MOST_BPS, MOST_IOPS, MOST_LATENCY_MS
from iokeel.errors import ConfigError
from iokeel.libvirt_xml.schema import NAME, TARGET
from iokeel.rules.by_size import PerGb
from iokeel.rules.tenants import EVERY
from iokeel.words.quoting import did_you_mean, shown, shown_path
from iokeel.words.units import parse_bps, parse_size

# A unix socket's path ends with a NUL in 108 bytes (unix(7)).
_MOST_SOCKET_BYTES = 107
# Larger than any request, and small enough for a curve's arithmetic to be exact.
_MOST_SIZE_BYTES = 1 << 30
_NETWORK_STORAGE = re.compile("[a-z][a-z0-9-]*:.+")
_MOST_WHOLE = 10**15
#: Stands for the name of a VM in a path.
NAME_PLACE = "{name}"
#: Stands for the figure that the platform sells.
PLATFORM = "platform"
# VM/DRIVE; in both names * ? and [...] may stand (fnmatch). libvirt's names may have blanks, and a
# QOM path has slashes.
_PATTERN = re.compile("[^/]+/.+")
Mode = Literal["enforce", "observe"]
JobBps = Annotated[int, Field(ge=LEAST_JOB_BPS, le=MOST_BPS)]
_TYPES = {
    "bool_type": ("not true or false", "write true or false, without quotes"),
    "dict_type": ("not a table", "write it as a [table] of its own"),
    "finite_number": ("not a finite number", "write it like 2.5"),
    "float_type": ("not a number", "write it in digits, without quotes"),
    "int_type": ("not a whole number", "write it like 500, without quotes or fraction"),
    "list_type": (
        "not a list",
        'write a curve as [[size, cost], ...], drives as ["VM/DRIVE", ...], devices as'
        ' ["/dev/NAME", ...], etcd as ["URL", ...], and [[vm]],'
        " [[discover]] and [[rules]] for each",
    ),
    "model_type": ("not a table", "write it as a [table] of its own"),
    "string_type": ("not a string", "write it in quotes"),
}
# The items of lists, by key.
_ITEMS = {"domains": "name", "drives": "drive", "devices": "device", "etcd": "URL", "trust": "fact"}
_BOUNDS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}


class Address(NamedTuple):
    """An IP address and a port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this host reaches it."""
        return ipaddress.ip_address(self.host).is_loopback


class WrongValue(ValueError):
    """A value can't be used. what: its fault. mend: what to write instead."""

    def __init__(self, what: str, mend: str) -> None:
        super().__init__(what, mend)
        self.what = what
        self.mend = mend


def _text(value: object) -> str:
    if isinstance(value, Path):  # as code gives it
        return str(value)
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


def _sockets(value: object) -> str:
    text = str(_socket(value))
    if text.count("*") != 1 or re.search(r"[?\[\]]", text):
        what = f"{shown(text)} doesn't have one *, which stands for the name of a VM"
        raise WrongValue(what, "write it like /run/qemu-server/*.qmp")
    return text


def _facts(value: object) -> str:
    text = str(_path(value))
    if NAME_PLACE not in text:
        what = f"{shown(text)} is the same file for all VMs"
        raise WrongValue(what, f"write {NAME_PLACE} where it has the name of a VM")
    return text


def _address(value: object) -> Address:
    if isinstance(value, Address):
        return value
    text = _text(value)
    match = re.fullmatch(r"(?:\[([^]%]*)\]|([^:]*)):([0-9]{1,5})", text, re.ASCII)
    if match is None or not 1 <= int(match[3]) <= 65535:
        raise WrongValue(
            f"{shown(text)} is not an address and port", "write it like 127.0.0.1:9632"
        )
    address = Address(match[1] or match[2] or "", int(match[3]))
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        raise WrongValue(
            f"{shown(address.host)} is not an IP address", "write 127.0.0.1 or [::1]"
        ) from None
    return address


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


def _tenant(text: str) -> str:
    return text if text == EVERY else _name(text)


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


def _bps(value: object) -> object:
    try:
        return parse_bps(value) if isinstance(value, str) else value
    except ConfigError as error:
        raise WrongValue(f"{error.where} is {error.what}", error.mend) from None


def _point(value: object) -> object:
    if not isinstance(value, list) or len(value) != 2:
        raise WrongValue(
            f"{shown(value)} is not a point", 'write [size, cost], such as ["4k", 1.0]'
        )
    return tuple(value)


def _figure(value: object) -> int | str | PerGb:
    if value == PLATFORM:
        return PLATFORM
    if isinstance(value, dict):
        return _per_gb(value)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _MOST_WHOLE:
        mend = f'write it like 500, or "{PLATFORM}" for what the platform sells'
        raise WrongValue(f"{shown(value)} is not a whole number", mend)
    return value


def _per_gb(value: dict[str, object]) -> PerGb:
    rate, least, most = (value.get(name) for name in ("per_gb", "least", "most"))
    bounds = [each for each in (least, most) if each is not None]
    is_whole = all(type(each) is int and 1 <= each <= MOST_IOPS for each in bounds)
    is_rate = type(rate) in (int, float) and isinstance(rate, int | float)
    if value.keys() - {"per_gb", "least", "most"} or not is_whole or not is_rate:
        what = f"{shown(value)} isn't a figure by size"
        raise WrongValue(what, "write it like {per_gb = 3, least = 300, most = 20000}")
    found = PerGb(float(str(rate)), *(int(str(each)) if each else None for each in (least, most)))
    if not 0 < found.per_gb <= MOST_IOPS:
        raise WrongValue(f"per_gb is {shown(rate)}", f"give more than 0, and at most {MOST_IOPS}")
    if found.least and found.most and found.least > found.most:
        raise WrongValue(f"least {least} is above most {most}", "lower it, or raise the other")
    return found


def _fact_patterns(value: object) -> object:
    patterns = [value] if isinstance(value, str) else value
    if not isinstance(patterns, list) or not all(isinstance(each, str) for each in patterns):
        what = f"{shown(value)} is neither a pattern nor a list of patterns"
        raise WrongValue(what, 'write "io1.*", or ["io1.*", "io2.*"]')
    if not patterns:
        raise WrongValue("an empty list, so it can't ever fit", 'write "*" for any text')
    return patterns


# TOML's whole numbers have no bounds, and those that can be printed do. Whether a figure makes
# sense is for policy.checked to say.
Whole = Annotated[int, Field(ge=-_MOST_WHOLE, le=_MOST_WHOLE)]
Figure = Annotated[int | str | PerGb, PlainValidator(_figure)]
Bytes = Annotated[Whole, BeforeValidator(_bps)]
Size = Annotated[int, Field(gt=0, le=_MOST_SIZE_BYTES), BeforeValidator(_size)]
Cost = Annotated[float, Field(ge=LEAST_COST, le=MOST_COST)]
Point = Annotated[tuple[Size, Cost], BeforeValidator(_point)]
Name = Annotated[str, AfterValidator(_name)]
TenantName = Annotated[str, AfterValidator(_tenant)]
Drive = Annotated[str, AfterValidator(_drive)]
Devices = Annotated[str, AfterValidator(_devices)]
Pattern = Annotated[str, AfterValidator(_pattern)]
FactPatterns = Annotated[list[str], BeforeValidator(_fact_patterns)]
NetworkStorage = Annotated[str, AfterValidator(_network_storage)]
Uri = Annotated[str, AfterValidator(_uri)]
AbsolutePath = Annotated[Path, PlainValidator(_path)]
Socket = Annotated[Path, PlainValidator(_socket)]
Sockets = Annotated[str, PlainValidator(_sockets)]
FactsPath = Annotated[str, PlainValidator(_facts)]
IpAddress = Annotated[Address, PlainValidator(_address)]


class Table(BaseModel):
    """A table. Takes no other key and no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class AgentConfig(Table):
    """[agent]: its socket, its folder of state, its tick, its log, and its metrics.

    metrics_address: where metrics are served besides the socket; None for nowhere.
    metrics_web_config: the file that says how, and to whom (web_file.py); None: to anybody, which
    takes a loopback address.
    """

    socket: Socket = DEFAULT_SOCKET
    state_dir: AbsolutePath = Path("/var/lib/iokeel")
    tick_seconds: Annotated[float, Field(ge=0.2, le=10)] = 1.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    metrics_address: IpAddress | None = None
    metrics_web_config: AbsolutePath | None = None


class LibvirtConfig(Table):
    """[libvirt]: whether to serve the domains of a libvirt connection, and the connection's URI.

    passthrough: whether commands may be sent past libvirt, which marks a domain as tainted.
    """

    enabled: bool = True
    uri: Uri = "qemu:///system"
    passthrough: bool = True


class HookConfig(Table):
    """[hook]: whether a guest with a malformed policy may not start."""

    strict: bool = False


class CurveTable(Table):
    """[curve]."""

    read: list[Point] | None = None
    write: list[Point] | None = None


class VmPromise(Table):
    """What is promised to all drives of a VM together."""

    reservation: Whole | None = None
    limit: Whole | None = None
    burst: Whole | None = None
    burst_seconds: Whole | None = None


class ClassTable(VmPromise):
    """[classes.NAME]: what is promised to a drive."""

    weight: Whole | None = None
    latency_target_ms: float | None = None
    budget: Literal["shared", "separate"] | None = None
    limit_read: Whole | None = None
    limit_write: Whole | None = None
    max_bytes: Bytes | None = None
    start_credit_seconds: Whole | None = None


class DriveTable(ClassTable):
    """[vm.drives.DEVICE]."""

    class_: Name | None = Field(None, alias="class")


class TenantTable(Table):
    """[tenants.NAME], or [tenants."*"] for those without one."""

    reservation: Whole | None = None
    limit: Whole | None = None
    weight: Whole | None = None


class CeilingTable(VmPromise):
    """[ceilings.NAME]."""

    domains: list[str] = ["*"]
    tenant: Name | None = None
    limit: Whole
    weight: Whole | None = None
    latency_target_ms: float | None = None
    job_bps: JobBps | None = None


class PolicyTable(Table):
    """[policy]."""

    metadata: bool = True
    mode: Mode | None = None
    trust: list[str] = []
    facts_dir: AbsolutePath = DEFAULT_FACTS


class RuleDriveTable(ClassTable):
    """[[rules.drives]]: the keys of a class, but that limit and burst may be the platform's.

    class: a template, in place of a name.
    """

    when: dict[str, FactPatterns] = {}
    class_: str | None = Field(None, alias="class")
    limit: Figure | None = None  # type: ignore[assignment]
    burst: Figure | None = None  # type: ignore[assignment]


class RuleTable(VmPromise):
    """[[rules]]."""

    name: Name
    when: dict[str, FactPatterns] = {}
    policy: Literal["none"] | None = None
    mode: Mode | None = None
    tenant: str | None = None
    class_: str | None = Field(None, alias="class")
    job_bps: JobBps | None = None
    drives: list[RuleDriveTable] = []


class StorageTable(Table):
    """[storage.NAME]."""

    device: AbsolutePath | None = None
    devices: list[Devices] = []
    path: AbsolutePath | None = None
    source: NetworkStorage | None = None
    drives: list[Pattern] = []
    capacity: Annotated[int, Field(ge=1, le=MOST_IOPS)] | None = None
    latency_target_ms: Annotated[float, Field(ge=0.001, le=MOST_LATENCY_MS)] | None = None
    least_ratio: Annotated[float, Field(ge=0.01, le=1)] | None = None
    most_ratio: Annotated[float, Field(ge=1, le=100)] | None = None
    curve_read: list[Point] | None = None
    curve_write: list[Point] | None = None


class CgroupConfig(Table):
    """[cgroup]: whether VMs have a backstop in their cgroups, and how far above their share.

    margin: bounds are this many times the share.
    """

    enabled: bool = True
    margin: Annotated[float, Field(ge=1, le=100)] = 1.25


class JobsConfig(Table):
    """[jobs]: the rate of each block job of a VM whose policy gives none.

    bps: in bytes a second; None for no rate.
    """

    bps: JobBps | None = None


class HistoryConfig(Table):
    """[history]: for how many days the history of weeks is kept; 0 records none."""

    keep_days: Annotated[int, Field(ge=0, le=1000)] = 14

    @property
    def keep_hours(self) -> int:
        """The same in hours."""
        return 24 * self.keep_days


class FleetTable(Table):
    """[fleet]."""

    etcd: list[str]
    host: Name | None = None
    prefix: str | None = None
    ca: AbsolutePath | None = None
    certificate: AbsolutePath | None = None
    key: AbsolutePath | None = None
    user: str | None = None
    password_file: AbsolutePath | None = None
    insecure: bool = False


class VmTable(VmPromise):
    """[[vm]]."""

    name: Name
    socket: Socket
    shared: bool = False
    mode: Mode | None = None
    tenant: Name | None = None
    class_: Name | None = Field(None, alias="class")
    job_bps: JobBps | None = None
    drives: dict[Drive, DriveTable] = {}


class DiscoverTable(Table):
    """[[discover]]."""

    sockets: Sockets
    format: Literal["proxmox"] | None = None
    facts: FactsPath | None = None


class Root(Table):
    """The whole file."""

    agent: AgentConfig = AgentConfig()
    libvirt: LibvirtConfig = LibvirtConfig()
    hook: HookConfig = HookConfig()
    curve: CurveTable = CurveTable()
    classes: dict[Name, ClassTable] = {}
    tenants: dict[TenantName, TenantTable] = {}
    ceilings: dict[Name, CeilingTable] = {}
    storage: dict[Name, StorageTable] = {}
    cgroup: CgroupConfig = CgroupConfig()
    jobs: JobsConfig = JobsConfig()
    history: HistoryConfig = HistoryConfig()
    fleet: FleetTable | None = None
    vm: list[VmTable] = []
    discover: list[DiscoverTable] = []
    policy: PolicyTable = PolicyTable()
    rules: list[RuleTable] = []


def validated(values: Mapping[str, object], file: str) -> Root:
    """Return the tables of a TOML file. Raises ConfigError, which names the key."""
    try:
        return Root.model_validate(values)
    except ValidationError as error:
        raise _invalid(error, file) from None


def _invalid(invalid: ValidationError, file: str) -> ConfigError:
    # Unknown keys first: a missing key is often there, but misspelt.
    errors = invalid.errors(include_url=False)
    error = min(errors, key=lambda error: error["type"] != "extra_forbidden")
    kind, context, place = error["type"], error.get("ctx", {}), error["loc"]
    if place[-1] == "[key]" and kind != "extra_forbidden":  # the name of a table is what is wrong
        place = place[:-1]
    where = f"{file}, {_where(place)}"
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
    what, mend = _TYPES.get(kind, (error["msg"], "see agent.toml(5)"))
    return ConfigError(where, f"{value} is {what}", mend)


def _where(place: Sequence[int | str]) -> str:
    """Return a place in TOML's words: [classes.gold] limit."""
    match place:
        case ["vm", int(number), "drives", str(device), *key]:
            table = f"[[vm]] {number + 1}, [vm.drives.{_key(device)}]"
        case ["rules", int(number), "drives", int(drive), *key]:
            table = f"[[rules]] {number + 1}, [[rules.drives]] {drive + 1}"
        case ["vm" | "rules" | "discover" as kind, int(number), *key]:
            table = f"[[{kind}]] {number + 1}"
        case ["classes" | "tenants" | "ceilings" | "storage" as kind, str(name), *key] if key:
            table = f"[{kind}.{_key(name)}]"
        case [str(name), *key] if key:
            table = f"[{_key(name)}]"
        case [*key]:
            table = ""
    if key[:1] == ["when"] and len(key) > 1:
        return f"{table} when {_key(str(key[1]))}"
    name = next((_key(part) for part in key if isinstance(part, str)), "")
    item = _ITEMS.get(name, "point")
    which = next((f" {item} {part + 1}" for part in key if isinstance(part, int)), "")
    return f"{table} {name}{which}".strip()


def _key(name: str) -> str:
    return name if NAME.pattern.fullmatch(name) else shown(name)


def _known(table: Sequence[int | str]) -> list[str]:
    """Return the keys that a table may have."""
    model: type[Table] = Root
    for part in table:  # a key, or the name or number of one of its tables
        if (field := model.model_fields.get(str(part))) is not None:
            model = _table_of(field.annotation) or model
    return [field.alias or name for name, field in model.model_fields.items()]


def _table_of(annotation: object) -> type[Table] | None:
    """Return the table that a type is or holds, if any."""
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return annotation
    return next(filter(None, map(_table_of, get_args(annotation))), None)
