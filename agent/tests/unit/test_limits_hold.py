"""No fault lifts a limit: the agent, on a libvirt that is made up, with faults in any order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import libvirt
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from iokeel.config.load import for_running, parse
from iokeel.config.settings import Config
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId
from iokeel.core.values.policy import DrivePolicy
from iokeel.daemon import Agent
from iokeel.errors import IokeelError
from iokeel.hypervisors.libvirt.source import LibvirtSource
from iokeel.report.metrics.prometheus import Metrics
from iokeel.store.store import StateStore
from testing.hypervisors.iotune import TOLERANCE, highest_rate, inserted, iotune
from testing.hypervisors.libvirt_error import refusal
from testing.hypervisors.qmp_server import qdev
from testing.waiting import until

NAMES = ("db1", "db2")
PATCHED = "db2"  # its QEMU has cost curves
FAULTS = (
    "hang",
    "question hangs",
    "question is late",
    "refuse",
    "libvirtd",
    "disk full",
    "plug",
    "guest stops",
    "guest starts again",
)
# Limits that hold with any QEMU let no size through above the limit, but for the error of `cost`.
TIGHT = 1.03
# An idle drive doesn't follow smaller moves of its share (docs/design/control-law.md).
LOOSE_RATIO = 0.25
SCHEMA = [
    {"name": "device_add", "meta-type": "command"},
    {
        "name": "17",
        "meta-type": "object",
        "members": [
            {"name": name}
            for name in ("iops-total", "cost-read", "cost-write", "idle-credit-ms", "split-size")
        ],
    },
]
CLASS_LIMIT = 500
BYTES = 700_000


@dataclass(frozen=True)
class Policy:
    """A policy's attributes and its drive; valid: to an agent that has all classes.

    limit: of vda, and of every other drive too if it is from a class. in_part: it names a drive
    that isn't there, so that its class is only for a drive that had no limits. max_bytes: of vda.
    """

    text: str
    limit: int | None = None
    tenant: bool = False
    valid: bool = True
    needs_class: bool = False
    in_part: bool = False
    max_bytes: int | None = None

    def covers(self, target: str) -> bool:
        """Return whether a drive has a policy. One that has none draws on no tenant's limit."""
        return target == "vda" or self.needs_class

    def limit_of(self, target: str) -> int | None:
        return self.limit if self.covers(target) else None


MISSPELT = Policy(
    ' class="small"><iokeel:drive target="vdz" limit="9"/>',
    CLASS_LIMIT,
    valid=False,
    needs_class=True,
    in_part=True,
)


def policies() -> st.SearchStrategy[Policy | None]:
    limits = st.sampled_from([300, 1000, 5000])
    drive = '<iokeel:drive target="vda" limit="{}"/>'
    bounded = f'<iokeel:drive target="vda" max-bytes="{BYTES}"'
    return st.one_of(
        st.none(),
        limits.map(lambda n: Policy(f">{drive.format(n)}", n)),
        limits.map(lambda n: Policy(f' tenant="acme">{drive.format(n)}', n, tenant=True)),
        st.just(Policy(' tenant="acme"><iokeel:drive target="vda"/>', tenant=True)),
        st.just(Policy('><iokeel:drive target="vda"/>')),
        limits.map(lambda n: Policy(f'>{bounded} limit="{n}"/>', n, max_bytes=BYTES)),
        st.just(Policy(f">{bounded}/>", max_bytes=BYTES)),
        st.just(Policy(' class="small">', CLASS_LIMIT, needs_class=True)),
        st.just(Policy(f">{drive.format(-5)}", valid=False)),
        st.just(Policy(' class="nowhere">', valid=False)),
        st.just(Policy('><iokeel:drive target="vdz" limit="9"/>', valid=False)),
        st.just(Policy('><iokeel:drive target="vda" limt="9"/>', valid=False)),
        st.just(MISSPELT),
    )


@dataclass
class Domain:
    """A domain with a drive, and a second one if it is plugged in, as a handle of libvirt's.

    tells: its QEMU answers if it is asked for its abilities; late: but not at the next time.
    curves: the rates of drives that have one. bps: the bytes a second of those. locked: libvirt's
    error for those that can't be set. demands: of drives that count, in 4 KiB reads a second.
    is_stock: its QEMU has no curves, or the agent takes it for such a one for a minute, because it
    was refused.
    """

    host: LimitsHold
    title: str
    number: int = 1
    policy: Policy | None = None
    limits: dict[str, dict[str, int]] = field(default_factory=dict)
    targets: tuple[str, ...] = ("vda",)
    runs: bool = True
    readable: bool = True
    tells: bool = True
    late: bool = False
    curves: dict[str, float] = field(default_factory=dict)
    bps: dict[str, int] = field(default_factory=dict)
    locked: dict[str, int] = field(default_factory=dict)
    demands: dict[str, int] = field(default_factory=dict)
    reads: dict[str, int] = field(default_factory=dict)
    is_stock: bool = True
    refuses: bool = False
    breaks: bool = False
    record: str = ""

    def name(self) -> str:
        return self.title

    def UUIDString(self) -> str:
        return f"uuid of {self.title}"

    def isActive(self) -> int:
        return int(self.runs)

    def ID(self) -> int:
        return self.number

    def XMLDesc(self, _flags: int) -> str:
        if not self.readable:
            raise refusal(libvirt.VIR_ERR_OPERATION_TIMEOUT)
        metadata = self.record
        if self.policy is not None:
            start = '<iokeel:policy xmlns:iokeel="urn:iokeel:policy:1"'
            metadata += f"{start}{self.policy.text}</iokeel:policy>"
        metadata = f"<metadata>{metadata}</metadata>"
        disks = "".join(
            f'<disk><target dev="{target}"/>{iotune(self.limits.get(target, {}))}'
            f'<alias name="{target}"/></disk>'
            for target in self.targets
        )
        return f"<domain><name>{self.title}</name>{metadata}<devices>{disks}</devices></domain>"

    def jobStats(self) -> dict[str, int]:
        return {"type": libvirt.VIR_DOMAIN_JOB_NONE}

    def setBlockIoTune(self, target: str, values: dict[str, int], _flags: int) -> None:
        if not self.readable:
            raise refusal(libvirt.VIR_ERR_OPERATION_TIMEOUT)
        if target in self.locked:
            raise refusal(self.locked[target])
        if self.breaks:
            raise AttributeError("an error that nobody foresaw")
        self.host.on_order(self.title)
        if self.refuses or (target in self.curves and values["size_iops_sec"]):
            self.refuses, self.host.refused = False, True
            raise refusal(libvirt.VIR_ERR_OPERATION_FAILED)
        self.host.check(self, target, values)
        self.limits[target] = {name: value for name, value in values.items() if value}
        if target in self.curves:
            self.curves[target] = values["total_iops_sec"] or inf

    def setMetadata(self, _kind: int, text: str | None, _key: str, uri: str, _flags: int) -> None:
        if not self.readable:
            raise refusal(libvirt.VIR_ERR_OPERATION_TIMEOUT)
        self.record = (text or "").replace("<found", f'<found xmlns="{uri}"', 1)

    def held(self, target: str) -> float:
        if target in self.curves:
            return self.curves[target]
        return highest_rate(self.limits.get(target, {}))

    def in_qemu(self, target: str) -> Mapping[str, int]:
        """Return the limits that QEMU has, by libvirt's names: with a curve, not libvirt's own."""
        rate = self.curves.get(target, inf)
        if rate == inf:
            return self.limits.get(target, {})
        return {"total_iops_sec": int(rate), "total_bytes_sec": self.bps.get(target, 0)}

    def counters(self) -> Iterator[tuple[DriveId, Counters]]:
        """Yield those of its drives after another second."""
        for target in self.targets:
            did = int(min(self.demands.get(target, 1), self.held(target)))
            count = self.reads[target] = self.reads.get(target, 0) + did
            took_ns = 2 * count * NS_PER_S  # the storage is full
            counters = Counters(time.monotonic_ns(), count, 4096 * count, 0, 0, took_ns, 0)
            yield DriveId(self.title, target), counters

    def monitor(self, command: str) -> str:
        """Answer a command that libvirt passes on to QEMU."""
        request = json.loads(command)
        name, arguments = request["execute"], request.get("arguments", {})
        if not self.readable or (name == "query-qmp-schema" and (self.late or not self.tells)):
            self.late = False
            raise refusal(libvirt.VIR_ERR_OPERATION_TIMEOUT)
        answer: Any = {}
        if name == "query-qmp-schema":
            answer = SCHEMA if self.title == self.host.patched else []
        elif name == "query-block":
            answer = [
                {
                    "device": "",
                    "qdev": qdev(target),
                    "inserted": {"file": "/a", "group": target} | inserted(self.in_qemu(target)),
                }
                for target in self.targets
            ]
        elif name == "query-block-jobs":
            answer = []
        else:
            assert name == "block_set_io_throttle"
            (target,) = (target for target in self.targets if qdev(target) == arguments["id"])
            self.curves.pop(target, None)
            if arguments["cost-read"]:
                self.curves[target] = arguments["iops"] or inf
                self.bps[target] = arguments["bps"]
                self.host.check_rate(self, target, self.curves[target])
                self.host.check_bytes(self, target, self.bps[target])
        return json.dumps({"return": answer})


class CountedSource(LibvirtSource):
    """libvirt with counters of a storage that is always full."""

    machine: LimitsHold

    async def sample(
        self, domains: Collection[str] | None, timeout_s: float
    ) -> Mapping[DriveId, Counters]:
        there = [
            domain
            for name, domain in self.machine.domains.items()
            if domain.runs and domain.readable and (domains is None or name in domains)
        ]
        if not self.machine.libvirtd:
            return {}
        return dict(reading for domain in there for reading in domain.counters())


class LimitsHold(RuleBasedStateMachine):
    """Holds that no order is above what the last valid policy and configuration allow.

    patched: the domain whose QEMU has cost curves; None for no domain.
    """

    source_type = CountedSource
    in_use: ClassVar[list[LimitsHold]] = []

    def __init__(self, patched: str | None = PATCHED) -> None:
        super().__init__()
        self.in_use.append(self)
        self.patched = patched
        self.loop = asyncio.new_event_loop()
        self.exits = contextlib.ExitStack()
        self.exits.enter_context(patch("libvirt.open", lambda _uri: self))
        monitor = patch("libvirt_qemu.qemuMonitorCommand", lambda d, text, _: d.monitor(text))
        self.exits.enter_context(monitor)
        # A domain that hung may be called again at once: no sample tells that it answers.
        self.exits.enter_context(patch("iokeel.hypervisors.libvirt.calls._SILENT_S", 0.0))
        # Nothing here takes long, but a busy machine may.
        for timeout in (
            "hypervisors.libvirt.source._CALL_TIMEOUT_S",
            *("running.enforcer._SET_TIMEOUT_S", "daemon._SAVE_S", "daemon._STOP_S"),
        ):
            self.exits.enter_context(patch(f"iokeel.{timeout}", 120.0))
        self.folder = Path(self.exits.enter_context(TemporaryDirectory()))
        self.domains = {name: Domain(self, name, is_stock=name != patched) for name in NAMES}
        self.good: dict[str, Policy | None] = dict.fromkeys(NAMES)
        self.in_part: dict[str, Policy] = {}  # those that were read since
        self.tables: dict[str, int | None] = {}  # acme's limit and the storage's capacity
        self.saved: dict[str, int | None] = {}  # the same as the agent could save it
        self.has_class = True
        self.is_full = False
        self.is_late = False  # a policy has been seen that couldn't be saved
        self.forgets = False  # the agent may not know what it has set, or the last good policies
        self.refused = False  # an order of the last look
        self.libvirtd = True
        self.bounds = "all"
        self.lifted: list[object] = []
        self.outcomes_later_s = 0
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + self.outcomes_later_s)
        self.exits.enter_context(patch("iokeel.running.outcomes.time", clock))
        self.on_order: Callable[[str], object] = lambda _: None
        CountedSource.machine = self
        self.passed_s = 0
        for name, unit in (("monotonic", 1), ("monotonic_ns", 10**9)):
            now: Callable[[], Any] = getattr(time, name)
            later = patch(f"time.{name}", lambda now=now, unit=unit: now() + self.passed_s * unit)
            self.exits.enter_context(later)

    # libvirt's connection

    def listAllDomains(self, flags: int) -> list[Domain]:
        if not self.libvirtd:
            raise refusal(libvirt.VIR_ERR_RPC)
        return [domain for domain in self.domains.values() if domain.runs or not flags]

    def lookupByName(self, name: str) -> Domain:
        if not self.libvirtd:
            raise refusal(libvirt.VIR_ERR_RPC)
        return self.domains[name]

    def close(self) -> None:
        pass

    # What holds

    def check(self, domain: Domain, target: str, values: dict[str, int]) -> None:
        """Note libvirt's limits if they are above what is allowed."""
        self.check_rate(domain, target, highest_rate(values))
        self.check_bytes(domain, target, values["total_bytes_sec"])

    def check_bytes(self, domain: Domain, target: str, bps: int) -> None:
        """Note bytes a second that are above what is allowed; 0 is without an end."""
        good = self.last_good(domain, target)
        most = None if good is None or target != "vda" else good.max_bytes
        if most is not None and not 0 < bps <= most:
            self.lifted.append((domain.title, target, bps, most))

    def check_rate(self, domain: Domain, target: str, rate: float) -> None:
        """Note a rate that is above what is allowed. It can't fail in one of the agent's tasks."""
        good = self.last_good(domain, target)
        if good is None:
            return
        # A drive that is new to the agent has no share before the first look at all.
        is_new = not domain.limits.get(target) or self.forgets
        is_shared = self.bounds == "all" or (self.bounds == "one look" and not is_new)
        if rate > (most := self.most(domain, target, good, is_shared=is_shared)):
            self.lifted.append((domain.title, target, rate, most))

    def last_good(self, domain: Domain, target: str) -> Policy | None:
        """Return a drive's last good policy; one in part counts if it never had another."""
        good = self.good[domain.title]
        has_one = good is not None and good.covers(target)
        return good if has_one else self.in_part.get(domain.title, good)

    @property
    def is_divided(self) -> bool:
        """Whether the storage has shown that it is full, with two drives there."""
        storage = self.agent.state.storages.get("fast")
        return storage is not None and storage.division.usable is not None

    def most(self, domain: Domain, target: str, good: Policy, *, is_shared: bool) -> float:
        """Return the highest rate that a drive's limits may have; inf without a limit.

        is_shared: its tenant's limit and its storage's capacity count too.
        """
        bounds = [good.limit_of(target)]
        if is_shared:
            bounds += [self.tables.get("fast")] * (target == "vda" and self.is_divided)
            bounds += [self.tables.get("acme")] * (good.tenant and good.covers(target))
        least = min((bound for bound in bounds if bound is not None), default=inf)
        return (TOLERANCE if domain.is_stock else TIGHT) * least

    # The agent

    @contextlib.contextmanager
    def disk(self) -> Iterator[None]:
        """Let the agent write its state only if the disk isn't full."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        if self.is_full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def do(self, work: Any) -> None:
        async def wait() -> None:
            await work
            while others := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(others)

        with self.disk():
            self.loop.run_until_complete(wait())
        assert not self.lifted

    @initialize(policies=st.tuples(*[policies()] * len(NAMES)))
    def first_start(self, policies: tuple[Policy | None, ...]) -> None:
        for name, policy in zip(NAMES, policies, strict=True):
            self.domains[name].policy = policy
        self.start(acme=600, fast=4000, has_class=True)
        self.look()

    @rule(
        killed=st.booleans(),
        damaged=st.sampled_from([False, False, False, True]),
        acme=st.sampled_from([600, None, "gone"]),
        fast=st.sampled_from([4000, None, "gone"]),
        has_class=st.booleans(),
        first=st.sampled_from([None, *NAMES]),
    )
    def restart(
        self,
        killed: bool,
        damaged: bool,
        acme: Any,
        fast: Any,
        has_class: bool,
        first: str | None,
    ) -> None:
        if not killed:
            self.do(self.agent.stop())
            self.is_late &= self.is_full
        self.lock.__exit__(None, None, None)
        if self.is_late:  # what couldn't be saved is forgotten
            read = {
                name for name, domain in self.domains.items() if domain.policy == self.good[name]
            }
            self.good.update(dict.fromkeys(self.good.keys() - read))
        if damaged:
            for file in self.folder.glob("state.db*"):
                file.unlink()
            (self.folder / "state.db").write_bytes(b"not a database" * 99)
            self.saved.clear()
            self.forgets = True
            for name, domain in self.domains.items():
                if domain.policy is not None and domain.policy.needs_class and not has_class:
                    self.good[name] = None
        self.start(acme, fast, has_class)
        if first is not None:
            self.look_at_one(first)
        self.resync()
        self.do(self.agent.look(None))  # a new agent sets new limits at its second look
        self.look()

    def written(self, known: Mapping[str, int | None], acme: Any, fast: Any, cls: bool) -> Config:
        """Write a configuration for an agent that knows the tables of earlier ones."""
        text = f"[classes.small]\nlimit = {CLASS_LIMIT}\n" * cls
        if acme != "gone":
            text += "[tenants.acme]\n" + (f"limit = {acme}\n" if acme else "")
        if fast != "gone":
            text += "[storage.fast]\n"
            text += f'drives = ["*/vda"]\ncapacity = {fast}\n' if fast else ""
        written = {"acme": acme, "fast": fast}
        self.tables = {**known, **{name: n for name, n in written.items() if n != "gone"}}
        if not self.is_full:
            self.saved = dict(self.tables)
        self.has_class = cls
        return parse(text.encode(), "agent.toml")

    def start(self, acme: Any, fast: Any, has_class: bool) -> None:
        written = self.written(self.saved, acme, fast, has_class)
        with self.disk():
            store = StateStore(self.folder)
            self.lock = store.lock()
            self.lock.__enter__()
            self.do(self._begin(store.keep_tables(written), store))

    async def _begin(self, config: Any, store: StateStore) -> None:
        self.source = self.source_type("test://host/", config.classes, store.policies)
        self.agent = Agent(config, [self.source], store, Metrics())
        self.agent.remember()

    @rule(
        acme=st.sampled_from([600, None, "gone"]),
        fast=st.sampled_from([4000, None, "gone"]),
        has_class=st.booleans(),
    )
    def reload(self, acme: Any, fast: Any, has_class: bool) -> None:
        written = self.written(self.tables, acme, fast, has_class)
        config, waiting = for_running(self.agent.config, written)
        assert waiting == []
        self.do(self.agent.reconfigure(config))
        self.look()

    def resync(self) -> None:
        """Have the agent read all domains, and note the policies that it can go by."""
        with contextlib.suppress(IokeelError):
            self.do(self.source.resync())
        for name, domain in self.domains.items():
            policy = domain.policy
            if not (self.libvirtd and domain.readable and domain.runs):
                continue
            if policy is None or (policy.valid and (self.has_class or not policy.needs_class)):
                self.is_late |= self.is_full and self.good[name] != policy
                self.good[name] = policy
                self.in_part.pop(name, None)
            elif policy.in_part and self.has_class:
                self.in_part[name] = policy

    @rule()
    def look(self) -> None:
        self.passed_s += 1
        self.refused = False
        self.resync()
        self.do(self.agent.look(None))
        self.check_tenant()

    def check_tenant(self) -> None:
        """Find the tenant's drives within its limit together, unless a fault is on."""
        limit = self.tables.get("acme")
        running = [domain for domain in self.domains.values() if domain.runs]
        quiet = self.libvirtd and all(d.readable and d.tells and not d.late for d in running)
        unsure = self.is_full or self.is_late or self.forgets
        if limit is None or not quiet or unsure or self.refused:
            return
        owned = [
            domain.held(target)
            for domain in running
            for target in domain.targets
            if (good := self.last_good(domain, target)) and good.tenant and good.covers(target)
        ]
        assert sum(owned) <= TOLERANCE * 1.25 * limit

    @rule()
    def settle(self) -> None:
        """Look until all is set that can be, and find each limit in force."""
        for domain in self.domains.values():
            domain.refuses = False
        self.source._calls.heard_of(NAMES)  # as a sample would tell it of those that answer
        self.outcomes_later_s += 60  # the time to try a refused order again
        for _ in range(2):
            self.look()
        for name, domain in self.domains.items():
            if not (self.libvirtd and domain.readable and domain.runs):
                continue
            if self.forgets or self.is_late:
                continue
            for target in domain.targets:
                good = self.last_good(domain, target)
                # A QEMU with a curve refuses other limits until it is known that it has curves.
                refuses = domain.curves.get(target) == inf and not domain.tells
                if good is not None and not refuses:
                    own = self.most(domain, target, good, is_shared=False)
                    shared = self.most(domain, target, good, is_shared=True)
                    most = min(own, shared / (1 - LOOSE_RATIO))
                    assert domain.held(target) <= most, (name, target)
        self.check_division()
        read = all(
            self.libvirtd and domain.readable and domain.runs and self.good[name] == domain.policy
            for name, domain in self.domains.items()
        )
        self.forgets &= self.is_full or not read

    def check_division(self) -> None:
        """Find the storage divided, unless a fault is on: its two drives wait for it all the time.

        So no limit above its capacity passes because the agent doesn't see that it is full.
        """
        running = [domain for domain in self.domains.values() if domain.runs]
        quiet = self.libvirtd and all(d.readable and d.tells and not d.late for d in running)
        with_policy = [d for d in running if self.last_good(d, "vda")]
        knows = quiet and not self.forgets and len(with_policy) == len(NAMES)
        if knows and self.tables.get("fast") is not None:
            self.look()
            assert self.is_divided

    @rule(name=st.sampled_from(NAMES))
    def look_at_one(self, name: str) -> None:
        self.resync()
        self.bounds = "one look"
        self.do(self.agent.look({name}))
        self.bounds = "all"

    # Faults

    @rule(name=st.sampled_from(NAMES), policy=policies())
    def change_policy(self, name: str, policy: Policy | None) -> None:
        self.domains[name].policy = policy
        self.look()

    @rule(name=st.sampled_from(NAMES), kind=st.sampled_from(FAULTS))
    def fault(self, name: str, kind: str) -> None:
        """Begin or end a fault of a guest, or of the host."""
        domain = self.domains[name]
        match kind:
            case "hang":
                domain.readable = not domain.readable
            case "question hangs":
                domain.tells = not domain.tells
            case "question is late":
                domain.late = True
            case "refuse":
                domain.refuses = domain.is_stock = True
            case "libvirtd":
                self.libvirtd = not self.libvirtd
            case "disk full":
                self.is_full = not self.is_full
                self.forgets = True
                if not self.is_full:  # it saves every 5 s
                    self.do(self.agent.save(self.agent.state.drives, whole=True))
                    self.saved = dict(self.tables)
            case "plug" if "vdb" in domain.targets:
                domain.targets = ("vda",)
                domain.limits.pop("vdb", None)
                domain.curves.pop("vdb", None)
            case "plug":
                domain.targets = ("vda", "vdb")
            case "guest stops" | "guest starts again" if not self.is_late:
                policy, targets = domain.policy, domain.targets
                new = Domain(self, name, domain.number + 1, policy, targets=targets)
                new.is_stock, new.tells = domain.is_stock, domain.tells
                new.runs = kind == "guest starts again" or not domain.runs
                self.domains[name] = new
        self.look()

    def teardown(self) -> None:
        self.in_use.remove(self)
        self.lock.__exit__(None, None, None)
        self.loop.close()
        self.exits.close()


@pytest.fixture(autouse=True)
def real_clock() -> Iterator[None]:
    """Give the clock and libvirt back that a test's own hosts have replaced, though it fails."""
    yield
    for machine in reversed([*LimitsHold.in_use]):
        machine.teardown()


LimitsHold.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[*HealthCheck],
)
TestLimitsHold = pytest.mark.timeout(300)(LimitsHold.TestCase)


@pytest.mark.parametrize("restarted", [False, True])
def test_an_agent_that_stops_without_libvirtd_says_that_limits_stay(
    restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    machine = LimitsHold()
    machine.first_start((Policy(' class="small">', CLASS_LIMIT, needs_class=True), None))
    machine.settle()
    machine.fault("db1", "libvirtd")
    if restarted:
        machine.restart(True, False, 600, 4000, True, None)
    machine.do(machine.agent.stop())
    assert "1 drives couldn't be set, and keep the limits that they have" in caplog.text


def test_a_lower_limit_that_was_refused_is_in_force_after_the_next_try() -> None:
    machine = LimitsHold(patched=None)
    policy = Policy('><iokeel:drive target="vda" limit="1000"/>', 1000)
    machine.first_start((policy, None))
    machine.settle()
    domain = machine.domains["db1"]
    domain.locked = {"vda": libvirt.VIR_ERR_OPERATION_FAILED}
    machine.change_policy("db1", Policy('><iokeel:drive target="vda" limit="300"/>', 300))
    domain.locked = {}
    machine.look()
    assert domain.held("vda") > TOLERANCE * 300, "QEMU isn't asked every second"
    machine.settle()
    assert domain.held("vda") <= TOLERANCE * 300


def test_a_policy_in_part_gives_its_class_to_no_drive_that_has_had_a_policy() -> None:
    """Not even if no limit was in force on it."""
    machine = LimitsHold(patched=None)
    machine.first_start((Policy('><iokeel:drive target="vda"/>'), None))
    machine.reload(600, None, True)
    machine.change_policy("db1", MISSPELT)
    machine.fault("db1", "plug")
    machine.reload(600, 4000, True)
    assert machine.domains["db1"].held("vda") > TOLERANCE * CLASS_LIMIT
    machine.settle()
    assert machine.domains["db1"].held("vdb") <= TOLERANCE * CLASS_LIMIT


@pytest.mark.parametrize("starts_again", [False, True])
@pytest.mark.parametrize("question", ["question is late", "question hangs"])
def test_a_qemu_that_is_late_to_tell_of_its_curves_gets_no_looser_limits(
    question: str, starts_again: bool
) -> None:
    machine = LimitsHold()
    policy = Policy('><iokeel:drive target="vda" limit="1000"/>', 1000)
    machine.first_start((None, policy))
    machine.settle()
    assert machine.domains[PATCHED].curves.keys() == {"vda"}
    machine.fault(PATCHED, question)
    if starts_again:
        machine.fault(PATCHED, "guest starts again")
    machine.restart(True, False, 600, 4000, True, None)
    machine.settle()
    assert starts_again or machine.domains[PATCHED].curves.keys() == {"vda"}, "it stays in force"
    machine.domains[PATCHED].tells = True
    machine.settle()
    assert machine.domains[PATCHED].curves.keys() == {"vda"}


@pytest.fixture
def two_limited() -> LimitsHold:
    """A host whose two guests have limits of an agent's."""
    machine = LimitsHold(patched=None)
    policy = Policy('><iokeel:drive target="vda" limit="300"/>', 300)
    machine.first_start((policy, policy))
    machine.settle()
    for domain in machine.domains.values():
        domain.limits["vda"] = {"total_iops_sec": 1}  # a stop has to set them
    return machine


@pytest.mark.parametrize("fails", ["law", "call"])
def test_a_guest_that_no_code_foresaw_keeps_no_other_from_its_static_limit(
    two_limited: LimitsHold, fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    machine, bad = two_limited, DriveId("db1", "vda")
    if fails == "law":
        drives = machine.agent.state.drives
        nonsense: Any = "nonsense"
        policy = replace(drives[bad].policy or DrivePolicy(), limit=nonsense)
        drives = {**drives, bad: drives[bad]._replace(policy=policy)}
        machine.agent.state = replace(machine.agent.state, drives=drives)
    else:
        machine.domains["db1"].breaks = True
    machine.do(machine.agent.stop())
    assert "please report it" in caplog.text
    assert machine.domains["db1"].limits["vda"] == {"total_iops_sec": 1}
    assert highest_rate(machine.domains["db2"].limits["vda"]) > 200


def test_a_state_that_no_code_foresaw_keeps_no_limits_from_being_set(
    two_limited: LimitsHold, caplog: pytest.LogCaptureFixture
) -> None:
    """It can't be saved."""
    machine = two_limited
    agent, vda = machine.agent, DriveId("db1", "vda")

    def move(storage: str) -> None:
        drives = agent.state.drives
        drives = {**drives, vda: drives[vda]._replace(storage=storage)}
        agent.state = replace(agent.state, drives=drives)

    machine.reload(600, None, True)  # no storage is configured
    move("/mnt/\udce9")  # no UTF-8
    for limit in (200, 100):
        policy = Policy(f'><iokeel:drive target="vda" limit="{limit}"/>', limit)
        machine.change_policy("db1", policy)
        assert highest_rate(machine.domains["db1"].limits["vda"]) <= TOLERANCE * limit
    assert caplog.text.count("the state can't be saved, please report it") == 1
    assert agent.metrics.errors["internal"] == 2
    move("/mnt")
    machine.change_policy("db1", Policy('><iokeel:drive target="vda" limit="300"/>', 300))
    assert agent.metrics.errors["internal"] == 2


def test_what_can_not_be_counted_keeps_no_limits_from_being_set(
    two_limited: LimitsHold, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reading is known that its code can't count. An error there is still only of the counts."""
    machine = two_limited
    agent = machine.agent

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(agent.accounts, "look", fail)
    for limit in (200, 100):
        policy = Policy(f'><iokeel:drive target="vda" limit="{limit}"/>', limit)
        machine.change_policy("db1", policy)
        assert highest_rate(machine.domains["db1"].limits["vda"]) <= TOLERANCE * limit
    assert caplog.text.count("what drives do can't be counted, please report it") == 1
    assert agent.metrics.errors["internal"] >= 2


def test_a_stop_sends_no_order_but_the_last(two_limited: LimitsHold) -> None:
    machine = two_limited
    orders: list[str] = []
    machine.on_order = orders.append
    machine.resync()

    async def stop() -> None:
        machine.agent.tasks.spawn(
            machine.agent.look({"db1"})
        )  # such as the second one after a shift
        await machine.agent.stop()

    machine.do(stop())
    assert sorted(orders) == ["db1", "db2"]


@pytest.mark.parametrize("first", NAMES)
def test_limits_of_an_agent_that_is_killed_as_it_stops_are_known_as_its_own(
    two_limited: LimitsHold, first: str
) -> None:
    """Only the first guest has its static limits by then."""
    machine, killed = two_limited, two_limited.folder / "killed"

    def kill(name: str) -> None:
        if name == first:
            shutil.copytree(machine.folder, killed)
        else:
            raise refusal(libvirt.VIR_ERR_OPERATION_TIMEOUT)

    machine.settle()
    machine.on_order = kill
    before = machine.domains[first].limits["vda"]
    machine.do(machine.agent.stop())
    assert machine.domains[first].limits["vda"] != before
    machine.on_order = lambda _: None
    machine.folder = killed
    for domain in machine.domains.values():
        domain.policy = None
    machine.restart(True, False, 600, 4000, True, None)
    assert [domain.limits["vda"] for domain in machine.domains.values()] == [{}, {}]


def test_of_two_readings_the_later_one_counts(two_limited: LimitsHold) -> None:
    machine, begun, go_on = two_limited, threading.Event(), threading.Event()
    domain = machine.domains["db1"]
    describe = domain.XMLDesc

    def slowly(flags: int) -> str:
        text = describe(flags)
        if not begun.is_set():
            begun.set()
            go_on.wait(30)
        return text

    async def read_twice() -> None:
        first = asyncio.create_task(machine.source.resync())
        await until(begun.is_set)
        domain.policy = Policy('><iokeel:drive target="vda" limit="1000"/>', 1000)
        second = asyncio.create_task(machine.source.resync())
        await asyncio.wait({second}, timeout=0.2)
        go_on.set()
        await asyncio.gather(first, second)

    with patch.object(domain, "XMLDesc", slowly):
        machine.do(read_twice())
    policy = machine.source.vms()["db1"].policy
    assert policy is not None
    assert policy.for_drive("vda") == DrivePolicy(limit=1000)


def test_a_class_beside_a_misspelt_target_lifts_no_limit_that_holds() -> None:
    machine = LimitsHold()
    machine.first_start((Policy('><iokeel:drive target="vda" limit="300"/>', 300), None))
    machine.settle()
    machine.change_policy("db1", MISSPELT)
    machine.settle()
    machine.restart(True, False, 600, 4000, True, None)
    machine.restart(True, True, 600, 4000, True, None)  # without its state
    machine.settle()
    machine.fault("db1", "plug")
    machine.settle()
    assert highest_rate(machine.domains["db1"].limits["vda"]) <= TOLERANCE * 300
    assert machine.domains["db1"].limits["vdb"], "it is new, and has the class"


@pytest.fixture
def machine() -> LimitsHold:
    """A host whose guest db1 had a class's policy, now has a bad one, and lost its agent."""
    machine = LimitsHold()
    machine.first_start((Policy(' class="small">', CLASS_LIMIT, needs_class=True), None))
    machine.settle()
    machine.change_policy("db1", Policy(' class="nowhere">', valid=False))
    machine.restart(True, False, 600, 4000, True, None)
    return machine


def test_an_agent_that_starts_on_a_full_disk_knows_what_was_saved() -> None:
    machine = LimitsHold()
    machine.first_start((Policy(' tenant="acme"><iokeel:drive target="vda"/>', tenant=True), None))
    machine.settle()
    machine.fault("db1", "disk full")
    machine.restart(True, False, "gone", 4000, True, None)
    assert machine.agent.config.tenants["acme"].limit == 600


def test_a_disk_plugged_in_under_a_bad_policy_gets_the_last_good_one(machine: LimitsHold) -> None:
    machine.fault("db1", "plug")
    machine.settle()
    assert machine.domains["db1"].limits["vdb"]


def test_a_guest_started_under_a_bad_policy_gets_the_last_good_one(machine: LimitsHold) -> None:
    for _ in range(2):
        machine.fault("db1", "guest stops")
        machine.settle()
    assert machine.domains["db1"].limits["vda"]


class Counted(LimitsHold):
    """A host whose drives do what their limits allow."""

    def __init__(self) -> None:
        super().__init__(patched=None)
        self.bounds = "none"

    def seconds(self, count: int) -> list[float]:
        """Return the sums of all limits in force after each of some seconds."""
        sums = []
        for _ in range(count):
            self.look()
            sums.append(sum(self.held.values()))
        return sums

    @property
    def held(self) -> dict[tuple[str, str], float]:
        return {
            (name, target): domain.held(target)
            for name, domain in self.domains.items()
            for target in domain.limits
        }


TOGETHER = {
    "tenant": (
        ' tenant="acme"><iokeel:drive target="vda" weight="{}"/>',
        1.2,
        libvirt.VIR_ERR_OPERATION_TIMEOUT,  # as while it migrates
    ),
    "VM": (
        ' limit="600"><iokeel:drive target="vda" weight="100"/>'
        '<iokeel:drive target="vdb" weight="900"/>',
        1.0,
        libvirt.VIR_ERR_OPERATION_FAILED,
    ),
}


@pytest.mark.parametrize("owner", TOGETHER)
def test_what_a_drive_is_to_give_up_is_raised_nowhere_while_it_cant_be_set(owner: str) -> None:
    machine = Counted()
    text, most, error = TOGETHER[owner]
    if owner == "tenant":
        machine.first_start((Policy(text.format(100)), Policy(text.format(900))))
        waking, target = machine.domains["db2"], "vda"
    else:
        machine.domains["db1"].targets = ("vda", "vdb")
        machine.first_start((Policy(text), None))
        waking, target = machine.domains["db1"], "vdb"
    busy = machine.domains["db1"]
    busy.demands["vda"] = 10**4
    machine.seconds(8)
    assert busy.held("vda") > 450
    machine.look()

    before = busy.limits["vda"]
    busy.locked = {"vda": error}
    waking.demands[target] = 10**4
    sums = machine.seconds(20)
    assert busy.limits["vda"] == before
    over = [total for total in sums if total > TOLERANCE * most * 600]
    assert len(over) <= 1, "until the agent knows that the first order has failed"
    assert waking.held(target) > 20

    busy.locked = {}
    sums = machine.seconds(40)
    assert max(sums) <= TOLERANCE * most * 600
    assert waking.held(target) > 400
