"""Facts that the operator adds by files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from iokeel.config.load import parse
from iokeel.core.values.policy import BUILTIN_CLASSES, DomainPolicy
from iokeel.hypervisors.policies import Policies
from iokeel.hypervisors.source import SourceNews
from iokeel.libvirt_xml.domain import parse_domain
from iokeel.rules.facts import Facts, facts_of
from iokeel.rules.facts_folder import FactsFolder
from tests.unit.rules import platforms
from tests.unit.rules.platforms import UUID, VOLUME

GOOD = {
    UUID: {"panel.plan": "gold", "vda": {"panel.tier": "fast"}, "vdz": {"panel.tier": "x"}},
    f"volume:{VOLUME}": {"cinder.type": "ssd"},
}


def facts() -> Facts:
    xml = platforms.nova()
    return facts_of(xml, parse_domain(xml), "x")


def write(folder: Path, text: str, name: str = "a.json") -> None:
    new = folder / "new"
    new.write_text(text)
    new.chmod(0o644)
    new.rename(folder / name)


def test_a_guest_its_drives_and_a_volume_have_the_facts_of_a_file(tmp_path: Path) -> None:
    write(tmp_path, json.dumps(GOOD))
    files = FactsFolder(tmp_path)
    files.read()
    found = files.added(facts())
    assert found.vm["panel.plan"] == "gold"
    assert found.drives["vda"]["panel.tier"] == "fast"
    assert found.drives["vdb"]["cinder.type"] == "ssd"
    assert found.drives.keys() == {"vda", "vdb"}


def test_no_file_replaces_what_the_platform_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, json.dumps({UUID: {"nova.flavor": "huge", "nova.x": "y", "name": "z"}}))
    files = FactsFolder(tmp_path)
    files.read()
    assert files.added(facts()) == facts()
    assert "nova.flavor can't be added by a file; give it a name with a prefix" in caplog.text


@pytest.mark.parametrize(
    "bad", ["", '{"a": {"b.c": "d"', "[]", '{"a": 5}', '{"a": {"b.c": 5}}', "\x00", "[" * 9999]
)
def test_a_file_that_is_half_written_leaves_its_last_facts_and_is_told_once(
    tmp_path: Path, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, json.dumps(GOOD))
    files = FactsFolder(tmp_path)
    files.read()
    (tmp_path / "a.json").write_text(bad)
    for _ in range(3):
        files.read()
    assert files.added(facts()).vm["panel.plan"] == "gold"
    (record,) = caplog.records
    assert "its last facts stay; write another file, and rename it" in record.getMessage()
    write(tmp_path, json.dumps({UUID: {"panel.plan": "silver"}}))
    files.read()
    assert files.added(facts()).vm["panel.plan"] == "silver"


def test_a_file_that_others_may_write_counts_for_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, json.dumps(GOOD))
    (tmp_path / "a.json").chmod(0o666)
    files = FactsFolder(tmp_path)
    files.read()
    assert files.added(facts()) == facts()
    assert "others than root may write it; its last facts stay; chown root" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_a_file_of_somebody_elses_counts_for_nothing(tmp_path: Path) -> None:
    write(tmp_path, json.dumps(GOOD))
    os.chown(tmp_path / "a.json", 1000, 1000)
    files = FactsFolder(tmp_path)
    files.read()
    assert files.added(facts()) == facts()


def test_rules_go_by_them_and_a_file_that_goes_lifts_nothing(tmp_path: Path) -> None:
    text = b'[[rules]]\nname = "a"\nwhen = {"panel.plan" = "*"}\nclass = "{panel.plan}"'
    policies = Policies(BUILTIN_CLASSES, {}, SourceNews())
    policies.rules, policies.files = parse(text, "agent.toml").rules, FactsFolder(tmp_path)
    xml = platforms.nova()

    def policy() -> object:
        return policies.read(parse_domain(xml), xml, None)[0]

    assert policy() is None
    write(tmp_path, json.dumps(GOOD))
    assert policy() == DomainPolicy({}, BUILTIN_CLASSES["gold"])
    write(tmp_path, json.dumps({UUID: {"panel.plan": "silver"}}))
    assert policy() == DomainPolicy({}, BUILTIN_CLASSES["silver"])
    (tmp_path / "a.json").unlink()
    assert policy() == DomainPolicy({}, BUILTIN_CLASSES["silver"])
