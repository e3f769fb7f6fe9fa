"""An attribute of a policy is declared in several places, and they agree.

DrivePolicy, VmPolicy and their checks are the source. The other places are the schema that
libvirt's XML is checked by, the words for what the schema refuses, the configuration's tables, the
role's arguments, the pages of the documentation, the output of `iokeel policy check`, and the API's
record of a promise.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import asdict, fields
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml

from iokeel.cli.commands.policy import policy_table, policy_values
from iokeel.config.tables import ClassTable, DriveTable, TenantTable, VmTable
from iokeel.core.values.policy import (
    FIGURES,
    DomainPolicy,
    DrivePolicy,
    TenantPolicy,
    VmPolicy,
    checked,
)
from iokeel.errors import PolicyError
from iokeel.libvirt_xml.schema import (
    BUDGET,
    BYTES,
    DRIVE_ATTRIBUTES,
    POLICY_ATTRIBUTES,
    POSITIVE,
    WHOLE,
    Kind,
    field_of,
)
from iokeel.report.promises import policy_report
from iokeel.report.records import PromiseReport
from testing.policy_schema import SCHEMA, schema

ROOT = Path(__file__).parents[3]
FIELDS = {field.name: field for field in fields(DrivePolicy)}
VM_FIELDS = {field.name: field for field in fields(VmPolicy)}
TYPES = get_type_hints(DrivePolicy)
# A class at the limit, so that burst and reservation have something to be compared with.
LIMIT = 1000


def kind_of(field: str) -> Kind:
    """How a field's value is written in XML, by its type."""
    if TYPES[field] is bool:
        return BUDGET
    if field == "max_bytes":
        return BYTES
    return POSITIVE if TYPES[field] == float | None else WHOLE


def documented() -> dict[str, tuple[str, str]]:
    """The rows of the table in docs/policy.md, by attribute: values and default."""
    rows = re.findall(
        r"^\| `([a-z-]+)` \|.*\|([^|]*)\|([^|]*)\|$",
        (ROOT / "docs/policy.md").read_text(),
        re.MULTILINE,
    )
    return {name: (values.strip(), default.strip()) for name, values, default in rows}


def accepted(**values: float) -> bool:
    try:
        checked(DrivePolicy(**values), "here")  # type: ignore[arg-type]
    except PolicyError:
        return False
    return True


def test_what_a_vm_is_promised_a_drive_can_be_promised_alike() -> None:
    assert {name: field.default for name, field in VM_FIELDS.items()} == {
        name: FIELDS[name].default for name in VM_FIELDS
    }
    types = get_type_hints(VmPolicy)
    assert types == {name: TYPES[name] for name in VM_FIELDS}


def test_every_figure_has_a_range() -> None:
    assert set(FIGURES) == {field for field in FIELDS if TYPES[field] is not bool}


def test_the_schema_is_made_from_the_attributes() -> None:
    assert SCHEMA.read_text() == schema(), "make policy-schema"


def test_the_configuration_has_every_attribute_of_a_drive_a_vm_and_a_tenant() -> None:
    keys = {"separate_budgets": "budget"}
    assert set(ClassTable.model_fields) == {keys.get(field, field) for field in FIELDS}
    assert set(DriveTable.model_fields) == set(ClassTable.model_fields) | {"class_"}
    assert set(TenantTable.model_fields) == {field.name for field in fields(TenantPolicy)}
    assert set(VmTable.model_fields) == {
        "name",
        "socket",
        "shared",
        "tenant",
        "class_",
        "drives",
        "job_bps",
        "mode",
        *VM_FIELDS,
    }


def test_the_role_takes_every_key_of_a_vm() -> None:
    specs = yaml.safe_load((ROOT / "playbooks/roles/iokeel/meta/argument_specs.yml").read_text())
    keys = specs["argument_specs"]["main"]["options"]["iokeel_vms"]["options"]
    assert {name: key.get("required", False) for name, key in keys.items()} == {
        key.alias or name: key.is_required() for name, key in VmTable.model_fields.items()
    }


def test_the_page_on_configuration_shows_every_key_of_a_class() -> None:
    blocks = re.findall(
        r"^```toml\n(.*?)^```", (ROOT / "docs/configuration.md").read_text(), re.M | re.S
    )
    classes = [c for block in blocks for c in tomllib.loads(block).get("classes", {}).values()]
    shown = {key for table in classes for key in table}
    assert shown == set(ClassTable.model_fields)


@pytest.mark.parametrize("field", FIELDS)
def test_the_page_on_policies_has_every_attribute_with_its_default(field: str) -> None:
    (name,) = [name for name in DRIVE_ATTRIBUTES if field_of(name) == field]
    _, default = documented()[name]
    value = FIELDS[field].default
    if value is None:
        assert default.startswith("no")
    elif value is False:
        assert default == "`shared`"
    else:
        assert default == str(value)


def test_the_page_on_policies_has_no_other_attribute() -> None:
    assert documented().keys() == DRIVE_ATTRIBUTES.keys()


def test_the_page_on_policies_names_every_attribute_of_a_vm() -> None:
    page = (ROOT / "docs/policy.md").read_text()
    (said,) = re.findall(r"^\*\*All drives of a VM together\*\*.*?\n\n", page, re.M | re.S)
    names = {name for name in POLICY_ATTRIBUTES if field_of(name) in VM_FIELDS}
    assert names <= set(re.findall("`([a-z-]+)`", said))


def number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.mark.parametrize("field", [field for field in FIELDS if TYPES[field] is not bool])
def test_the_range_on_the_page_is_the_one_that_is_checked(field: str) -> None:
    (name,) = [name for name in DRIVE_ATTRIBUTES if field_of(name) == field]
    values, _ = documented()[name]
    if values in ("at least `limit`", "at most `limit`"):
        beyond = -1 if values == "at least `limit`" else 1
        assert accepted(limit=LIMIT, separate_budgets=True, **{field: LIMIT})
        assert not accepted(limit=LIMIT, separate_budgets=True, **{field: LIMIT + beyond})
        return
    span = re.fullmatch(r"([0-9,.]+) to ([0-9,]+)", values)
    assert span, values
    low: float = float(span[1]) if "." in span[1] else number(span[1])
    high = number(span[2])
    assert accepted(**{field: high})
    assert not accepted(**{field: high + 1})
    assert accepted(**{field: low})
    assert not accepted(**{field: low / 2 if "." in span[1] else low - 1})
    assert kind_of(field).pattern.fullmatch(str(high)), "it can be written in XML"


def test_policy_check_prints_every_attribute() -> None:
    drive = DrivePolicy(100, 1000, 2000, 30, 50, 5.0, True, 900, 800, 200_000_000, 20)
    vm = VmPolicy(300, 3000, 6000, 40)
    policy = DomainPolicy({"vda": drive}, None, "acme", vm, 20_000_000)
    assert policy_values(policy, ["vda"]) == {
        "job_bps": 20_000_000,
        "mode": None,
        "tenant": "acme",
        "vm": asdict(vm),
        "drives": {"vda": asdict(drive)},
    }
    table = policy_table(policy, ["vda"], {"vda": 0.15})
    assert len(table.headings) == len({"target", *FIELDS, "1 MiB waits"})
    assert table.rows == [
        (
            *("vda", "100", "1000", "2000", "30 s", "50", "5 ms", "separate"),
            *("900", "800", "200 MB/s", "20 s", "150 ms"),
        ),
        ("all together", "300", "3000", "6000", "40 s", *7 * [""], ""),
    ]


def test_the_api_reports_every_attribute() -> None:
    drive = DrivePolicy(100, 1000, 2000, 30, 50, 5.0, True, 900, 800, 200_000_000, 20)
    vm = VmPolicy(300, 3000, 6000, 40)
    report = policy_report(DomainPolicy({"vda": drive}, None, "acme", vm), ["vda"])
    in_iops = [name for name, figure in FIGURES.items() if figure.unit == "iops"]
    rates = {name: f"{name}_iops" for name in in_iops}
    assert {*PromiseReport.__struct_fields__} == {rates.get(name, name) for name in FIELDS}
    for promised, reported in ((drive, report.drives["vda"]), (vm, report.vm)):
        for name, value in asdict(promised).items():
            assert getattr(reported, rates.get(name, name)) == value, name


def test_policy_check_has_no_column_that_no_drive_needs() -> None:
    table = policy_table(DomainPolicy({"vda": DrivePolicy(limit=1000)}), ["vda"])
    assert not {"limit of reads", "limit of writes", "max bytes", "start credit"} & {
        *table.headings
    }


def test_policy_check_names_the_drives_that_only_the_vms_limit_holds() -> None:
    table = policy_table(DomainPolicy({}, vm=VmPolicy(limit=3000)), None)
    assert [row[0] for row in table.rows] == ["every other", "all together"]
