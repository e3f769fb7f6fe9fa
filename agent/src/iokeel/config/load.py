"""The edge to the agent's configuration: one TOML file, parsed once into the core's types."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iokeel.config.paths import DEFAULT_CONFIG, DEFAULT_SOCKET
from iokeel.config.tables import Address, ClassTable, CurveTable, Root, Table, validated
from iokeel.core.curve import DEFAULT_CURVE, DEFAULT_MODEL, CostCurve, CostModel
from iokeel.core.policy import (
    BUILTIN_CLASSES,
    DomainPolicy,
    DrivePolicy,
    TenantPolicy,
    checked,
    override,
)
from iokeel.core.sharing.storage import StorageId, StoragePolicy
from iokeel.errors import ConfigError, CurveError, PolicyError
from iokeel.words.quoting import shown, shown_path

_PLACES = ("device", "path", "source", "drives")


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """[agent]: where its socket and state are, its tick, its log, and where metrics are served.

    metrics_address: None where only the socket serves them.
    """

    socket: Path = DEFAULT_SOCKET
    state_dir: Path = Path("/var/lib/iokeel")
    tick_seconds: float = 1.0
    log_level: str = "info"
    metrics_address: Address | None = None


@dataclass(frozen=True, slots=True)
class LibvirtConfig:
    """[libvirt]: whether to look after the domains of a libvirt connection, and of which."""

    enabled: bool = True
    uri: str = "qemu:///system"


@dataclass(frozen=True, slots=True)
class HookConfig:
    """[hook]: whether a guest with a malformed policy is refused when it starts."""

    strict: bool = False


@dataclass(frozen=True, slots=True)
class Vm:
    """[[vm]]: a QEMU that libvirt doesn't run: its QMP socket, and what its drives are promised."""

    name: str
    socket: Path
    policy: DomainPolicy


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """[storage.NAME]: which storage it is, and what is said of it.

    device: a block device. path: whatever that file or folder is on. source: a network storage
    as iokeel calls it (rbd:pool). drives: patterns of VM/DRIVE (fnmatch). Where none is given,
    it is the one that iokeel calls by that name by itself.
    """

    policy: StoragePolicy
    device: Path | None = None
    path: Path | None = None
    source: StorageId | None = None
    drives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CgroupConfig:
    """[cgroup]: whether VMs have a backstop below QEMU, and how far above their share it is."""

    enabled: bool = True
    margin: float = 1.25


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration. classes holds the built-in ones too."""

    agent: AgentConfig = AgentConfig()
    libvirt: LibvirtConfig = LibvirtConfig()
    hook: HookConfig = HookConfig()
    model: CostModel = DEFAULT_MODEL
    classes: Mapping[str, DrivePolicy] = field(default_factory=lambda: BUILTIN_CLASSES)
    tenants: Mapping[str, TenantPolicy] = field(default_factory=dict)
    vms: tuple[Vm, ...] = ()
    storages: Mapping[StorageId, StorageConfig] = field(default_factory=dict)
    cgroup: CgroupConfig = CgroupConfig()


def load(path: Path | None = None, *, default_missing: bool = False) -> Config:
    """Return the configuration in a file, or in DEFAULT_CONFIG for None.

    default_missing: where no path is given and DEFAULT_CONFIG is not there, return what holds
    without a file. Raises ConfigError, naming file and key, for all that can't be used.
    """
    file = path or DEFAULT_CONFIG
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        if path is None and default_missing:
            return Config()
        raise ConfigError(str(file), "no such file", "write it or give --config FILE") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = getattr(error, "strerror", None) or str(error)
        mend = "see that it is a file that the agent's user may read"
        raise ConfigError(shown_path(file), f"can't be read, {reason}", mend) from None
    return parse(data, str(file))


def parse(data: bytes, file: str) -> Config:
    """Return the configuration that a TOML text holds; `file` is what errors call it.

    Raises ConfigError, and nothing else, for all that can't be used.
    """
    try:
        values = tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}, line {line}", "not UTF-8", "save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(error, data, file) from None
    except (ValueError, RecursionError):  # thousands of digits; lists in lists in lists
        mend = "no number here is that long and no list that deep"
        raise ConfigError(file, "can't be read as TOML", mend) from None
    raw = validated(values, file)
    model = _model(raw.curve, file)
    try:
        classes = {**BUILTIN_CLASSES, **dict(_classes(raw, file))}
        tenants = dict(_tenants(raw, file))
        vms = tuple(_vms(raw, classes, file))
    except PolicyError as error:
        raise ConfigError(error.where, error.what, error.mend) from None
    return Config(
        AgentConfig(**_written(raw.agent)),
        LibvirtConfig(**_written(raw.libvirt)),
        HookConfig(**_written(raw.hook)),
        model,
        classes,
        tenants,
        vms,
        dict(_storages(raw, model, file)),
        CgroupConfig(**_written(raw.cgroup)),
    )


def _not_toml(error: tomllib.TOMLDecodeError, data: bytes, file: str) -> ConfigError:
    # "Expected '=' after a key in a key/value pair (at line 3, column 5)"
    said = re.fullmatch(r"(.*) \(at (?:(line \d+, column \d+)|end of document)\)", str(error))
    end = data.rstrip().count(b"\n") + 1
    place = said[2] if said and said[2] else f"line {end}"
    what = shown(said[1] if said else str(error))[1:-1]
    mend = "write each key = value on a line of its own, and texts in quotes"
    return ConfigError(f"{file}, {place}", f"not TOML, {what}", mend)


def _written(table: Table) -> dict[str, Any]:
    return {name: getattr(table, name) for name in table.model_fields_set}


def _given(table: ClassTable) -> dict[str, object]:
    """Return what was written of a drive or class, as fields of DrivePolicy."""
    given: dict[str, object] = _written(table)
    given.pop("class_", None)
    if "budget" in given:
        given["separate_budgets"] = given.pop("budget") == "separate"
    return given


def _model(curve: CurveTable, file: str) -> CostModel:
    read = _cost_curve(curve.read, DEFAULT_CURVE, f"{file}, [curve] read")
    return CostModel(read, _cost_curve(curve.write, read, f"{file}, [curve] write"))


def _cost_curve(
    points: list[tuple[int, float]] | None, default: CostCurve, where: str
) -> CostCurve:
    try:
        return default if points is None else CostCurve(tuple(points))
    except CurveError as error:
        raise ConfigError(where, error.what, error.mend) from None


def _classes(raw: Root, file: str) -> Iterator[tuple[str, DrivePolicy]]:
    for name, table in raw.classes.items():
        where = f"{file}, [classes.{name}]"
        yield name, override(DrivePolicy(), _given(table), where, str)


def _tenants(raw: Root, file: str) -> Iterator[tuple[str, TenantPolicy]]:
    for name, table in raw.tenants.items():
        tenant = TenantPolicy(**_written(table))
        checked(tenant, f"{file}, [tenants.{name}]", str)
        yield name, tenant


def _storages(raw: Root, model: CostModel, file: str) -> Iterator[tuple[StorageId, StorageConfig]]:
    taken: dict[object, str] = {}
    for name, table in raw.storage.items():
        where = f"{file}, [storage.{name}]"
        for key in ("device", "path", "source"):
            value = getattr(table, key)
            if value is not None and taken.setdefault(value, name) != name:
                what = f"{shown(str(value))} is [storage.{taken[value]}]'s already"
                raise ConfigError(f"{where} {key}", what, "give each storage its own")
        policy = _written(table)
        place = {key: policy.pop(key) for key in _PLACES if key in policy}
        place["drives"] = tuple(place.get("drives", ()))
        read, write = policy.pop("curve_read", None), policy.pop("curve_write", None)
        if read is not None or write is not None:
            reads = _cost_curve(read, model.read, f"{where} curve_read")
            writes = _cost_curve(write, reads, f"{where} curve_write")
            policy["model"] = CostModel(reads, writes)
        yield name, StorageConfig(StoragePolicy(**policy), **place)


def _vms(raw: Root, classes: Mapping[str, DrivePolicy], file: str) -> Iterator[Vm]:
    taken: set[object] = set()
    for number, vm in enumerate(raw.vm, 1):
        where = f"{file}, [[vm]] {number}"
        for key, value in (("name", vm.name), ("socket", Path(vm.socket))):
            if value in taken:
                what = f"{shown(str(value))} is another VM's {key} already"
                raise ConfigError(f"{where} {key}", what, "give each VM its own")
            taken.add(value)
        default = _class(vm.class_, classes, where)
        drives = {}
        for device, table in vm.drives.items():
            at = f"{where}, [vm.drives.{device}]"
            base = _class(table.class_, classes, at) or default or DrivePolicy()
            drives[device] = override(base, _given(table), at, str)
        yield Vm(vm.name, Path(vm.socket), DomainPolicy(drives, default, vm.tenant))


def _class(name: str | None, classes: Mapping[str, DrivePolicy], where: str) -> DrivePolicy | None:
    if name is None or name in classes:
        return None if name is None else classes[name]
    known = ", ".join(sorted(classes))
    raise ConfigError(where, f"class {shown(name)} is not known", f"give one that is: {known}")
