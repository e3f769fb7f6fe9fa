"""Loads the agent's configuration, one TOML file, and takes over a new one while it runs."""

from __future__ import annotations

import re
import socket
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from iokeel.config.paths import DEFAULT_CONFIG, PROXMOX_FACTS
from iokeel.config.rules import rules_of
from iokeel.config.settings import (
    KINDS,
    Config,
    DiscoverConfig,
    FleetConfig,
    StorageConfig,
    VmConfig,
)
from iokeel.config.tables import (
    AgentConfig,
    ClassTable,
    CurveTable,
    Root,
    StorageTable,
    Table,
    validated,
)
from iokeel.core.values.curve import DEFAULT_CURVE, CostCurve, CostModel
from iokeel.core.values.policy import (
    BUILTIN_CLASSES,
    DomainPolicy,
    DrivePolicy,
    TenantPolicy,
    VmPolicy,
    checked,
    override,
    vm_policy,
    with_implied,
)
from iokeel.core.values.state import Pricing, State
from iokeel.core.values.storage import StorageId, StoragePolicy
from iokeel.errors import ConfigError, CurveError, PolicyError
from iokeel.libvirt_xml.ceiling import Ceiling
from iokeel.libvirt_xml.written import class_of
from iokeel.words.quoting import shown, shown_path

# A tick, and the time in which QEMUs take limits, have to fit in GUARD_S (core/fleet/host.py).
_MOST_FLEET_TICK_S = 2.0


def load(path: Path | None = None, *, default_missing: bool = False) -> Config:
    """Return the configuration in a file; None for DEFAULT_CONFIG.

    default_missing: if no path is given and there is no DEFAULT_CONFIG, return the defaults.
    Raises ConfigError, which names file and key, if anything in it can't be used.
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
    """Return the configuration in a TOML text.

    file: its name in errors. Raises ConfigError, and nothing else, if anything can't be used.
    """
    try:
        values = tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}, line {line}", "not UTF-8", "save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(error, data, file) from None
    except (ValueError, RecursionError):  # thousands of digits; lists in lists in lists
        mend = "shorten the numbers and flatten the lists"
        raise ConfigError(file, "can't be read as TOML", mend) from None
    raw = validated(values, file)
    model = _model(raw.curve, file)
    try:
        classes = {**BUILTIN_CLASSES, **dict(_classes(raw, file))}
        tenants = dict(tenants_of(raw, file))
        ceilings = tuple(_ceilings(raw, file))
        vms = tuple(_vms(raw, classes, file))
        rules = rules_of(raw, classes, file)
    except PolicyError as error:
        raise ConfigError.of(error, error.where) from None
    return Config(
        _checked(raw.agent, file),
        raw.libvirt,
        raw.hook,
        model,
        classes,
        tenants,
        vms,
        tuple(_discover(raw, file)),
        dict(storages_of(raw, model, file)),
        raw.cgroup,
        raw.jobs,
        raw.history,
        _fleet(raw, file),
        ceilings,
        rules,
        raw.policy.facts_dir,
        {kind: values[kind] for kind in KINDS if kind in values},
        text=data,
    )


def _not_toml(error: tomllib.TOMLDecodeError, data: bytes, file: str) -> ConfigError:
    # "Expected '=' after a key in a key/value pair (at line 3, column 5)"
    said = re.fullmatch(r"(.*) \(at (?:(line \d+, column \d+)|end of document)\)", str(error))
    end = data.rstrip().count(b"\n") + 1
    place = said[2] if said and said[2] else f"line {end}"
    what = shown(said[1] if said else str(error))[1:-1]
    mend = "write each key = value on a line of its own, and strings in quotes"
    return ConfigError(f"{file}, {place}", f"not TOML, {what}", mend)


def _checked(agent: AgentConfig, file: str) -> AgentConfig:
    address, web = agent.metrics_address, agent.metrics_web_config
    if address is None and web is not None:
        where = f"{file}, [agent] metrics_web_config"
        raise ConfigError(where, "is of no use without metrics_address", "give that, too")
    if address is not None and web is None and not address.is_loopback:
        raise ConfigError(
            f"{file}, [agent] metrics_address",
            f"{address.host} is not a loopback address, and anybody may read metrics there",
            "write 127.0.0.1 or [::1], or say by metrics_web_config who may read them",
        )
    return agent


def _fleet(raw: Root, file: str) -> FleetConfig | None:
    """Return [fleet]; None if it isn't written."""
    table = raw.fleet
    if table is None:
        return None
    from iokeel.config.etcd_access import Access

    where = f"{file}, [fleet]"
    host = table.host or socket.gethostname()
    if table.host is None and (not host or host.startswith("localhost")):
        raise ConfigError(
            f"{where} host", "is missing, and this machine has no host name", "name it: host ="
        )
    if (tick_s := raw.agent.tick_seconds) > _MOST_FLEET_TICK_S:
        what = f"is {tick_s:g}, but a host of the fleet has to lower limits in time"
        raise ConfigError(
            f"{file}, [agent] tick_seconds", what, f"give at most {_MOST_FLEET_TICK_S:g}"
        )
    try:
        given = table.model_dump(exclude={"etcd", "host"}, exclude_unset=True)
        access = Access(tuple(table.etcd), **given)
    except ConfigError as error:
        raise ConfigError.of(error, f"{file}, {error.where}") from None
    return FleetConfig(access, host)


def _storage(table: StorageTable, model: CostModel | None) -> StorageConfig:
    names = {"capacity", "latency_target_ms", "least_ratio", "most_ratio"}
    policy = replace(StoragePolicy(model=model), **_written(table, names))
    drives, devices = tuple(table.drives), tuple(table.devices)
    return StorageConfig(policy, table.device, table.path, table.source, drives, devices)


def _written(table: Table, names: set[str]) -> dict[str, Any]:
    """Return those of some keys that were written."""
    return table.model_dump(include=names, exclude_unset=True)


def _given(table: ClassTable) -> dict[str, object]:
    """Return the keys written for a drive or class, as fields of DrivePolicy."""
    given = _written(table, table.model_fields_set - {"class_", "budget"})
    if table.budget is not None:
        given["separate_budgets"] = table.budget == "separate"
    return with_implied(given)


def _model(curve: CurveTable, file: str) -> CostModel:
    read = _cost_curve(curve.read, DEFAULT_CURVE, f"{file}, [curve] read")
    return CostModel(read, _cost_curve(curve.write, read, f"{file}, [curve] write"))


def _cost_curve(
    points: list[tuple[int, float]] | None, default: CostCurve, where: str
) -> CostCurve:
    try:
        return default if points is None else CostCurve(tuple(points))
    except CurveError as error:
        raise ConfigError.of(error, where) from None


def _classes(raw: Root, file: str) -> Iterator[tuple[str, DrivePolicy]]:
    for name, table in raw.classes.items():
        where = f"{file}, [classes.{name}]"
        yield name, override(DrivePolicy(), _given(table), where, str)


def tenants_of(raw: Root, file: str) -> Iterator[tuple[str, TenantPolicy]]:
    """Yield the tenants by name. Raises PolicyError."""
    for name, table in raw.tenants.items():
        tenant = replace(TenantPolicy(), **table.model_dump(exclude_unset=True))
        checked(tenant, f"{file}, [tenants.{name}]", str)
        yield name, tenant


def _ceilings(raw: Root, file: str) -> Iterator[Ceiling]:
    for name, table in raw.ceilings.items():
        where = f"{file}, [ceilings.{name}]"
        most = vm_policy(_written(table, {field.name for field in fields(VmPolicy)}), where, str)
        given = _written(table, {"weight", "latency_target_ms"})
        drive = override(DrivePolicy(), given, where, str)
        job_bps = table.job_bps or raw.jobs.bps
        yield Ceiling(name, most or VmPolicy(), drive, job_bps, table.tenant, tuple(table.domains))


def storages_of(
    raw: Root, model: CostModel, file: str
) -> Iterator[tuple[StorageId, StorageConfig]]:
    """Yield the storages by name. model: for those without curves. Raises ConfigError."""
    taken: dict[object, str] = {}
    for name, table in raw.storage.items():
        where = f"{file}, [storage.{name}]"
        for key in ("device", "path", "source"):
            value = getattr(table, key)
            if value is not None and taken.setdefault(value, name) != name:
                what = f"{shown(str(value))} already belongs to [storage.{taken[value]}]"
                raise ConfigError(f"{where} {key}", what, "give each storage its own")
        own = None
        if table.curve_read is not None or table.curve_write is not None:
            reads = _cost_curve(table.curve_read, model.read, f"{where} curve_read")
            own = CostModel(reads, _cost_curve(table.curve_write, reads, f"{where} curve_write"))
        yield name, _storage(table, own)


def _vms(raw: Root, classes: Mapping[str, DrivePolicy], file: str) -> Iterator[VmConfig]:
    taken: set[object] = set()
    for number, vm in enumerate(raw.vm, 1):
        where = f"{file}, [[vm]] {number}"
        for key, value in (("name", vm.name), ("socket", vm.socket)):
            if value in taken:
                what = f"{shown(str(value))} is another VM's {key} already"
                raise ConfigError(f"{where} {key}", what, "give each VM its own")
            taken.add(value)
        default = class_of(vm.class_, classes, where)
        drives = {}
        for device, table in vm.drives.items():
            at = f"{where}, [vm.drives.{device}]"
            base = class_of(table.class_, classes, at) or default or DrivePolicy()
            drives[device] = override(base, _given(table), at, str)
        given = _written(vm, {field.name for field in fields(VmPolicy)})
        together = vm_policy(given, where, str)
        mode = vm.mode or raw.policy.mode
        policy = DomainPolicy(drives, default, vm.tenant, together, vm.job_bps, mode=mode)
        yield VmConfig(vm.name, vm.socket, policy, vm.shared)


def _discover(raw: Root, file: str) -> Iterator[DiscoverConfig]:
    for number, table in enumerate(raw.discover, 1):
        facts = table.facts
        if table.format is not None:
            facts = facts or PROXMOX_FACTS
        elif facts is not None:
            mend = 'write format = "proxmox", or remove it'
            raise ConfigError(f"{file}, [[discover]] {number} facts", "lacks its format", mend)
        yield DiscoverConfig(table.sockets, facts)


def for_running(old: Config, new: Config) -> tuple[Config, list[str]]:
    """Return a new configuration for an agent that runs with an old one.

    Sockets, ports, folders, the tick, libvirt's connection and the fleet stay the old ones. The
    keys of those that differ are returned too: they wait for a restart.
    """
    agent = old.agent.model_copy(update={"log_level": new.agent.log_level})
    tables: tuple[tuple[str, Table, Table], ...] = (
        ("agent", agent, new.agent),
        ("libvirt", old.libvirt, new.libvirt),
    )
    waiting = [
        f"[{table}] {name}"
        for table, kept, wanted in tables
        for name in type(kept).model_fields
        if getattr(kept, name) != getattr(wanted, name)
    ]
    if new.fleet != old.fleet:
        waiting.append("[fleet]")
    return replace(new, agent=agent, libvirt=old.libvirt, fleet=old.fleet), waiting


def carried_over(state: State, old: Config, new: Config) -> State:
    """Return the law's memory for a new configuration.

    A drive whose cost curves are others is priced anew, as after a restart.
    """
    drives = {
        drive: known
        if _model_of(old, known.storage) == _model_of(new, known.storage)
        else known._replace(pricing=Pricing(mix=known.pricing.mix))
        for drive, known in state.drives.items()
    }
    return replace(state, model=new.model, tenants=new.tenants, drives=drives)


def _model_of(config: Config, storage: str | None) -> CostModel:
    configured = config.storages.get(storage or "")
    return (configured and configured.policy.model) or config.model
