"""The schema of a policy, made from the attributes that one may have: `make policy-schema`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from iokeel.libvirt_xml.schema import (
    BUDGET,
    BYTES,
    DRIVE_ATTRIBUTES,
    MODE,
    NAME,
    NAMESPACE,
    POLICY_ATTRIBUTES,
    POSITIVE,
    TARGET,
    WHOLE,
    Kind,
)

SCHEMA = Path(__file__).parents[2] / "libvirt-hooks/policy.rng"
_NAMES = {
    NAME: "name",
    TARGET: "target",
    WHOLE: "whole",
    BYTES: "bytes",
    POSITIVE: "positive",
    BUDGET: "budget",
    MODE: "mode",
}
_TEXT = """\
<?xml version="1.0" encoding="UTF-8"?>
<!--
  The iokeel policy that a libvirt domain carries in its <metadata>, version 1.

  It says what may be written; docs/policy.md says what it means. `iokeel policy check` also checks
  that figures make sense together (a limit not below its reservation, and so on).

  `virsh metadata` prints a policy without its namespace, so its output does not match this
  schema. A policy cut out of `virsh dumpxml` does.
-->
<grammar xmlns="http://relaxng.org/ns/structure/1.0" ns="{namespace}"
         datatypeLibrary="http://www.w3.org/2001/XMLSchema-datatypes">

  <start>
    <element name="policy">
{policy}
      <zeroOrMore>
        <ref name="drive"/>
      </zeroOrMore>
    </element>
  </start>

  <define name="drive">
    <element name="drive">
{drive}
      <empty/>
    </element>
  </define>

  <!-- All are `string`, because `integer` and `decimal` drop white space and take a sign. -->
  <define name="name">
    <data type="string"><param name="pattern">[A-Za-z0-9_.\\-]{{1,64}}</param></data>
  </define>
  <define name="target">
    <data type="string"><param name="pattern">[!-~]{{1,255}}</param></data>
  </define>
  <define name="whole">
    <data type="string"><param name="pattern">[0-9]{{1,12}}</param></data>
  </define>
  <define name="bytes">
    <data type="string"><param name="pattern">[0-9]{{1,13}}[kMG]?</param></data>
  </define>
  <define name="positive">
    <data type="string">
      <param name="pattern">0*[1-9][0-9]*(\\.[0-9]+)?|0+\\.0*[1-9][0-9]*</param>
      <param name="maxLength">16</param>
    </data>
  </define>
  <define name="budget">
    <choice>
      <value type="string">shared</value>
      <value type="string">separate</value>
    </choice>
  </define>
  <define name="mode">
    <choice>
      <value type="string">enforce</value>
      <value type="string">observe</value>
    </choice>
  </define>
</grammar>
"""


def schema() -> str:
    """Return the RELAX NG schema of a policy."""
    return _TEXT.format(
        namespace=NAMESPACE,
        policy=_attributes(POLICY_ATTRIBUTES),
        drive=_attributes(DRIVE_ATTRIBUTES),
    )


def _attributes(known: Mapping[str, Kind]) -> str:
    return "\n".join(_attribute(name, kind) for name, kind in known.items())


def _attribute(name: str, kind: Kind) -> str:
    made = f'<attribute name="{name}" ns=""><ref name="{_NAMES[kind]}"/></attribute>'
    if kind is TARGET:  # no <drive> without
        return f"      {made}"
    return f"      <optional>\n        {made}\n      </optional>"


if __name__ == "__main__":
    SCHEMA.write_text(schema())
