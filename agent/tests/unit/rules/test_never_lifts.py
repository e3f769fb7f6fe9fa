"""No order of reloads, restarts, migrations, redefinitions and broken files lifts a limit.

Two hosts read the policies of one guest, with rules that come and go. The limit in force on a drive
is the one of the policy that is told; one that isn't known leaves it as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from iokeel.config.load import parse
from iokeel.core.values.policy import BUILTIN_CLASSES, LastGood, PolicyInPart, UnknownPolicy
from iokeel.errors import ConfigError
from iokeel.hypervisors.policies import Policies
from iokeel.hypervisors.source import SourceNews, VmInfo
from iokeel.libvirt_xml.domain import parse_domain
from iokeel.rules.rule import Rules
from iokeel.store.rows import policy_of, policy_text
from tests.unit.rules import platforms

OWN = 50
FLAVORS = ("io1.large", "m1.small", "other")
#: Tables by their names, which say what they give: never less under the same name.
TABLES = {
    "io1": 'when = {"nova.flavor" = "io1.*"}\nclass = "gold"',
    "small": 'when = {"nova.flavor" = "*.small"}\n[[rules.drives]]\nlimit = 600',
    "volumes": '[[rules.drives]]\nwhen = {target = "vdb", "nova.project" = "*"}\nlimit = 70',
    "weight": "[[rules.drives]]\nweight = 7",
    "tenant": 'tenant = "{nova.project}"',
    "by-flavor": 'class = "{nova.extra.class}"',
    "free": 'when = {"nova.flavor" = "other"}\npolicy = "none"',
}
BROKEN = ("[[rules]", '[[rules]]\nname = "io1"\nclass = "golld"', '[[rules]]\nwhen = "x"')


@dataclass(frozen=True)
class Guest:
    """What its XML says. own: the limit of vda in its own policy; 0 for a bad one."""

    flavor: str | None = "io1.large"
    own: int | None = None
    extra: str | None = None
    targets: tuple[str, ...] = ("vda", "vdb")
    huge: bool = False

    @property
    def xml(self) -> str:
        disks = "".join(f"<disk><target dev='{name}'/></disk>" for name in self.targets)
        about = ""
        if self.flavor is not None:
            extra = {} if self.extra is None else {"class": self.extra}
            nova = platforms.nova(self.flavor, **extra)
            about = nova.split("<metadata>")[1].split("</metadata>")[0]
        if self.own is not None:
            limit = self.own or "5OO"
            about += (
                "<i:policy xmlns:i='urn:iokeel:policy:1'>"
                f"<i:drive target='vda' limit='{limit}'/></i:policy>"
            )
        about += "<x:a xmlns:x='urn:x'>" + "<x:b/>" * 20_000 + "</x:a>" if self.huge else ""
        return platforms.domain("web", about, disks)


@dataclass
class Host:
    """An agent's policies, what it has saved, and the limits in force here."""

    names: list[str] = field(default_factory=list)
    metadata: bool = True
    saved: dict[str, str] = field(default_factory=dict)
    kept: dict[str, LastGood] = field(default_factory=dict)
    told: VmInfo | None = None
    in_force: dict[str, int | None] = field(default_factory=dict)
    by_own: bool = False  # its own policy said of vda what is in force

    def __post_init__(self) -> None:
        self.start()

    @property
    def rules(self) -> Rules:
        tables = "".join(f'[[rules]]\nname = "{name}"\n{TABLES[name]}\n' for name in self.names)
        text = f"[policy]\nmetadata = {'true' if self.metadata else 'false'}\n{tables}"
        return parse(text.encode(), "agent.toml").rules

    def start(self) -> None:
        self.kept = {uuid: policy_of(text) for uuid, text in self.saved.items()}
        self.policies = Policies(BUILTIN_CLASSES, self.kept, SourceNews())
        self.policies.rules, self.told = self.rules, None

    def read(self, guest: Guest) -> None:
        xml = parse_domain(guest.xml)
        plugged = {name: self.in_force.get(name) for name in guest.targets}
        self.in_force = plugged
        policy, error = self.policies.read(xml, guest.xml, self.told)
        self.told = VmInfo("web", {}, policy, error)
        for target in guest.targets:
            drive = None if policy is None else policy.for_drive(target)
            if isinstance(drive, UnknownPolicy):
                if isinstance(policy, PolicyInPart) and not self.in_force.get(target):
                    new = policy.for_new(target)
                    self.in_force[target] = None if new is None else new.limit
                continue
            self.in_force[target] = None if drive is None else drive.limit
        if self.metadata and not guest.huge and guest.own != 0:
            stays = self.by_own and self.in_force.get("vda") == OWN  # a rule can't tell its class
            self.by_own = guest.own is not None or stays
        self.saved = {uuid: policy_text(last) for uuid, last in self.kept.items()}


class NeverLifts(RuleBasedStateMachine):
    """Rules, guests and hosts in any order."""

    @initialize(names=st.permutations(list(TABLES)))
    def start(self, names: list[str]) -> None:
        self.guest = Guest()
        self.here, self.there = Host([n for n in names if n != "free"]), Host(names[:2])
        self.read()

    def read(self) -> None:
        """Have the guest read where it is, and hold what was in force to what is now."""
        host, guest = self.here, self.guest
        before, was_own = dict(host.in_force), host.by_own
        host.read(guest)
        if self.is_left_alone:
            return
        for target, had in before.items():
            goes = was_own and target == "vda" and host.metadata and not guest.own
            if had is not None and target in guest.targets and not goes:
                assert host.in_force[target] is not None, (target, had, host.names, guest)
        names_another = guest.own is not None and "vda" not in guest.targets and host.metadata
        if not guest.huge and not names_another:
            for target, limit in self.expected():
                if target == "vda" and guest.own == 0:
                    continue  # its last own policy, if it had one
                assert host.in_force[target] == limit, (target, host.names, guest)

    @property
    def is_left_alone(self) -> bool:
        return "free" in self.here.names and self.guest.flavor == "other"

    def expected(self) -> Iterator[tuple[str, int]]:
        """Yield the limits that a source gives now, by the first of them."""
        for target in self.guest.targets:
            gives = [self.guest.own] if target == "vda" and self.here.metadata else []
            for name in self.here.names:
                flavor = self.guest.flavor or ""
                if name == "io1" and flavor.startswith("io1."):
                    gives.append(BUILTIN_CLASSES["gold"].limit)
                elif name == "small" and flavor.endswith(".small"):
                    gives.append(600)
                elif name == "volumes" and self.guest.flavor is not None and target == "vdb":
                    gives.append(70)
                elif name == "by-flavor" and flavor and self.guest.extra == "silver":
                    gives.append(BUILTIN_CLASSES["silver"].limit)
            first = next((limit for limit in gives if limit is not None), None)
            if first is not None:
                yield target, first

    @rule(names=st.lists(st.sampled_from(list(TABLES)), unique=True), metadata=st.booleans())
    def reload(self, names: list[str], metadata: bool) -> None:
        self.here.names, self.here.metadata = names, metadata
        self.here.policies.rules = self.here.rules
        self.read()

    @rule(text=st.sampled_from(BROKEN))
    def reload_a_broken_file(self, text: str) -> None:
        with suppress(ConfigError):
            self.here.policies.rules = parse(text.encode(), "agent.toml").rules
            raise AssertionError("it was taken")
        self.read()

    @rule(names=st.lists(st.sampled_from(list(TABLES)), unique=True))
    def restart(self, names: list[str]) -> None:
        self.here.names = names
        self.here.start()
        self.read()

    @rule(
        flavor=st.sampled_from([*FLAVORS, None]),
        extra=st.sampled_from([None, "silver", "golld", "a b"]),
        own=st.sampled_from([None, None, 0, OWN]),
        drives=st.sampled_from([("vda",), ("vdb",), ("vda", "vdb")]),
        huge=st.sampled_from([False, False, False, True]),
    )
    def redefine(
        self,
        flavor: str | None,
        extra: str | None,
        own: int | None,
        drives: tuple[str, ...],
        huge: bool,
    ) -> None:
        self.guest = Guest(flavor, own, extra, drives, huge)
        self.read()

    @rule()
    def migrate(self) -> None:
        """Its last policy stays behind, and goes there with it. Limits that came along stay."""
        self.here.policies.forget_others({})
        self.here.saved, self.here.in_force, self.here.by_own = {}, {}, False
        self.here, self.there = self.there, self.here
        self.read()

    @rule()
    def read_again(self) -> None:
        before = dict(self.here.in_force)
        self.read()
        assert self.here.in_force == before


NeverLifts.TestCase.settings = settings(max_examples=200, stateful_step_count=20, deadline=None)
TestNeverLifts = NeverLifts.TestCase
