"""`iokeel rules`, of an agent's API and of files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from iokeel.config.load import parse
from iokeel.config.settings import Config
from iokeel.config.tables import AgentConfig
from iokeel.core.values.policy import LastGood
from iokeel.core.values.state import State
from iokeel.hypervisors.policies import Policies
from iokeel.hypervisors.source import DriveInfo, SourceNews, VmInfo
from iokeel.libvirt_xml.domain import parse_domain
from iokeel.report.history import History
from iokeel.report.http import Api, serve
from iokeel.report.metrics.prometheus import Metrics
from iokeel.report.snapshot import Known, snapshot_of
from testing.agents import Done, iokeel
from testing.api_doc import command_faults
from tests.unit.rules import platforms

RULES = """
[[rules]]
name = "free"
when = {name = "infra-*"}
policy = "none"
[[rules]]
name = "io1"
when = {"nova.flavor" = "io1.*"}
class = "gold"
[[rules]]
name = "projects"
when = {"nova.project" = "*"}
tenant = "{nova.project.name}"
limit = 12000
"""
OWN = (
    "<metadata><i:policy xmlns:i='urn:iokeel:policy:1'><i:drive target='vda' limit='50'/>"
    "</i:policy></metadata>"
)
GUESTS = {
    "instance-0000002a": platforms.nova(),
    "infra-1": platforms.domain("infra-1"),
    "db1": platforms.domain("db1", OWN.removeprefix("<metadata>").removesuffix("</metadata>")),
}


@dataclass
class Host:
    """An agent's API with guests whose policies it has read."""

    socket: Path
    config: Config
    last_good: dict[str, LastGood] = field(default_factory=dict)
    guests: Mapping[str, str] = field(default_factory=lambda: GUESTS)

    def read(self) -> dict[str, VmInfo]:
        policies = Policies(self.config.classes, self.last_good, SourceNews())
        policies.rules, policies.ceilings = self.config.rules, self.config.ceilings
        found = {}
        for name, text in self.guests.items():
            xml = parse_domain(text.replace(platforms.UUID, name))
            policy, error = policies.read(xml, text, None)
            drives = {target: DriveInfo(target) for target in xml.targets}
            by_rules = policies.by_rules(name)
            found[name] = VmInfo(name, drives, policy, error, by_rules=by_rules)
        return found

    async def run(self, *words: str | Path) -> Done:
        async with self.serves():
            done = await asyncio.to_thread(iokeel, "rules", *words, "--socket", self.socket)
        if "--json" in words:
            name = "rules" if words[0] == "--json" else f"rules {words[0]}"
            assert command_faults(name, json.loads(done.out)) == []
        return done

    @asynccontextmanager
    async def serves(self) -> AsyncIterator[None]:
        """Serve the API with what its rules make of the guests now."""
        vms = self.read()
        api = Api(
            lambda: self.config,
            lambda domains=None: snapshot_of(Known(State(), vms, {}, {}, {}, {}, 0), domains),
            lambda name: None,
            Metrics(),
            History(),
            lambda: 1,
        )
        async with serve(api, AgentConfig(socket=self.socket)):
            yield


@pytest.fixture
async def host(short_folder: Path) -> Host:
    return Host(short_folder / "agent.sock", parse(RULES.encode(), "agent.toml"))


def rows(text: str) -> list[list[str]]:
    """Return a table's cells."""
    return [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()
    ]


async def test_each_rule_is_shown_with_its_guests_drives_and_sum_of_limits(host: Host) -> None:
    done = await host.run()
    assert (done.status, done.err) == (0, "")
    assert rows(done.out) == [
        ["rule", "guests", "drives", "sum of limits", "asks for"],
        ["free", "1", "0", "-", "name infra-*"],
        ["io1", "1", "2", "20k", "nova.flavor io1.*"],
        ["projects", "1", "0", "12k", "nova.project *"],
    ]


async def test_without_rules_it_says_so(host: Host) -> None:
    host.config = Config()
    done = await host.run()
    assert "There are no rules" in done.out


async def test_a_guest_is_explained_by_its_facts_and_by_the_source_of_each_value(
    host: Host,
) -> None:
    done = await host.run("explain", "instance-0000002a")
    assert (done.status, done.err) == (0, "")
    facts, values = done.out.split("\n\n")
    assert ["nova.name", "web-1", "tenant"] in rows(facts)
    assert ["vdb", "storage", "rbd:volumes-ssd", "platform"] in rows(facts)
    io1, projects = "nova.flavor is io1.large", f"nova.project is {platforms.PROJECT}"
    assert ["tenant", "acme", f"rule projects, because {projects}"] in rows(values)
    assert ["limit", "12000", f"rule projects, because {projects}"] in rows(values)
    assert ["vdb", "limit", "10000", f"rule io1, because {io1}"] in rows(values)


async def test_a_value_of_the_domains_own_policy_and_one_that_stays_say_so(host: Host) -> None:
    assert ["vda", "limit", "50", "its own policy"] in rows((await host.run("explain", "db1")).out)
    host.config = Config()
    done = await host.run("explain", "instance-0000002a")
    stays = "rule io1, which doesn't fit any more; it stays as it was"
    assert ["vda", "limit", "10000", stays] in rows(done.out)


async def test_a_guest_that_is_left_alone_says_by_which_rule(host: Host) -> None:
    done = await host.run("explain", "infra-1")
    assert done.out.endswith("Rule free leaves it alone.\n")


async def test_json_has_what_the_tables_have(host: Host) -> None:
    listed = json.loads((await host.run("--json")).out)
    assert [rule["name"] for rule in listed["rules"]] == ["free", "io1", "projects"]
    guest = json.loads((await host.run("explain", "instance-0000002a", "--json")).out)
    assert guest in listed["guests"]


async def test_a_word_that_is_neither_file_nor_vm_is_not_so(host: Host) -> None:
    done = await host.run("explain", "instance-0000002b")
    assert (done.status, done.complaint) == (
        1,
        "'instance-0000002b': no such file and no such running VM of libvirt's; did you mean"
        " 'instance-0000002a'?",
    )


async def changed(host: Host, tmp_path: Path, text: str, *words: str) -> Done:
    file = tmp_path / "new.toml"
    file.write_text(text)
    return await host.run("diff", file, *words)


async def test_a_file_that_changes_nothing_says_so(host: Host, tmp_path: Path) -> None:
    done = await changed(host, tmp_path, RULES)
    assert (done.status, done.out, done.err) == (0, "No promise would change.\n", "")


async def test_what_a_file_changes_is_shown_before_and_after(host: Host, tmp_path: Path) -> None:
    text = RULES.replace("gold", "silver").replace("12000", "9000")
    done = await changed(host, tmp_path, text)
    assert (done.status, done.err) == (0, "")
    tenant, gold = "tenant acme, ", "reservation 1000, limit 10000, burst 20000, burst-seconds 60"
    silver = "limit 4000, burst 8000, burst-seconds 60, weight 100"
    assert rows(done.out) == [
        ["drive", "now", "then"],
        ["instance-0000002a (all drives)", f"{tenant}limit 12000", "->", f"{tenant}limit 9000"],
        *(
            [f"instance-0000002a/{target}", f"{tenant}{gold}, weight 200", "->", tenant + silver]
            for target in ("vda", "vdb")
        ),
    ]


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("", ["instance-0000002a/vda", "instance-0000002a/vdb"]),
        ('[[rules]]\nname = "none"\npolicy = "none"', ["instance-0000002a/vda"]),
        ("[policy]\nmetadata = false" + RULES, ["db1/vda"]),
    ],
)
async def test_a_file_that_lifts_a_limit_is_a_failure(
    host: Host, tmp_path: Path, text: str, lost: list[str]
) -> None:
    """Though it stays in force unless a rule says none."""
    done = await changed(host, tmp_path, text)
    assert done.status == 1
    assert "no limit any more; add a rule that gives one" in done.complaint
    found = [row[0] for row in rows(done.out) if row[-1] == "loses its limit"]
    assert {*lost} <= {*found}
    json_lines = json.loads((await changed(host, tmp_path, text, "--json")).out)
    assert [f"{c['domain']}/{c['target']}" for c in json_lines if c["loses_limit"]] == found


async def test_a_host_without_rules_is_told_what_the_first_ones_would_do(
    host: Host, tmp_path: Path
) -> None:
    host.config = Config()
    done = await changed(host, tmp_path, RULES)
    assert done.status == 0
    assert [row[0] for row in rows(done.out)[1:]] == [
        "instance-0000002a (all drives)",
        "instance-0000002a/vda",
        "instance-0000002a/vdb",
    ]


async def test_a_bad_file_and_a_template_that_makes_no_name_are_told(
    host: Host, tmp_path: Path
) -> None:
    done = await changed(host, tmp_path, RULES.replace("gold", "golld"))
    assert done.status == 2
    assert "class 'golld' is not known; did you mean 'gold'?" in done.complaint
    text = RULES.replace('"gold"', '"{nova.extra.class}"').replace("limit = 12000", "limit = 5")
    done = await changed(host, tmp_path, text)
    assert "domain instance-0000002a, rule io1: '{nova.extra.class}' needs" in done.err


async def test_a_ceiling_of_the_file_counts(host: Host, tmp_path: Path) -> None:
    done = await changed(host, tmp_path, f"[ceilings.all]\nlimit = 30\n{RULES}")
    assert "db1/vda                         limit 50, weight 100" in done.out
    assert "limit 30, weight 100" in done.out


@pytest.mark.parametrize(
    ("xml", "rule"),
    [
        (platforms.nova(), 'when = {"nova.flavor" = "io1.*"}'),
        (platforms.ovirt(), 'when = {"ovirt.custom.tier" = "gold"}'),
        (platforms.opennebula(), 'when = {"one.gname" = "acme"}'),
        (platforms.kubevirt(), 'when = {"kubevirt.namespace" = "my*"}'),
        (platforms.cloudstack(), 'when = {"cloudstack.account" = "7"}'),
    ],
    ids=["nova", "ovirt", "opennebula", "kubevirt", "cloudstack"],
)
def test_the_xml_of_a_platform_in_a_file_is_explained(tmp_path: Path, xml: str, rule: str) -> None:
    (tmp_path / "agent.toml").write_text(f'[[rules]]\nname = "a"\n{rule}\nclass = "gold"\n')
    (tmp_path / "vm.xml").write_text(xml)
    done = iokeel("rules", "explain", tmp_path / "vm.xml", "--config", tmp_path / "agent.toml")
    assert (done.status, done.err) == (0, "")
    assert "10000  rule a, because" in " ".join(done.out.split("\n"))


def test_a_file_that_no_rule_fits_and_one_that_is_no_domain(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(RULES)
    (tmp_path / "vm.xml").write_text(platforms.domain("x"))
    words = ("--config", tmp_path / "agent.toml")
    done = iokeel("rules", "explain", tmp_path / "vm.xml", *words)
    assert "No rule gives it anything, so it is left alone." in done.out
    done = iokeel("rules", "explain", "-", *words, stdin=b"<pool/>")
    assert (done.status, done.complaint) == (
        1,
        "standard input, line 1: not a domain with a name; give what virsh dumpxml prints",
    )
