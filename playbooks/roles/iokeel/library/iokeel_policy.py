#!/usr/bin/python
"""Ansible module: a guest's iokeel policy, in the metadata of its domain."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: iokeel_policy
short_description: A guest's iokeel policy, in the metadata of its libvirt domain
description:
  - Has `iokeel policy check` check the policy against the guest's disks, then sets it with virsh,
    in the running domain and in its definition.
  - Warns if a class covers a disk that can't be limited.
  - In check mode it checks the policy too, and changes nothing.
options:
  guest:
    description:
      - The domain's name.
      - Without it nothing is checked or set.
    type: str
  policy:
    description:
      - Attributes of the policy, with underscores for hyphens, and `drives`, the attributes of each
        drive by its target.
      - Without it the guest has no policy.
    type: dict
  uri:
    description: libvirt's connection.
    type: str
    default: qemu:///system
author: iokeel maintainers
"""

EXAMPLES = r"""
- name: Limit a guest's first disk
  iokeel_policy:
    guest: db1
    policy:
      tenant: acme
      drives:
        vda: {limit: 1500, burst: 3000, burst_seconds: 30}
"""

RETURN = r"""
running:
  description: Whether the guest runs.
  returned: with a guest
  type: bool
guests:
  description: The names of all guests, whether they run or not.
  returned: without a guest
  type: list
  elements: str
"""

URN = "urn:iokeel:policy:1"
C_LOCALE = {"LC_ALL": "C.UTF-8"}
TIMEOUT_S = 30
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def refuse(module: AnsibleModule, why: str) -> None:
    """End the module with an error."""
    module.fail_json(msg=escaped(why))


def escaped(text: str) -> str:
    """Return a text with escapes for the characters that a terminal would act upon."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def virsh(module: AnsibleModule, *words: str) -> str:
    """Run virsh and return its output. A failure ends the module with virsh's words."""
    uri, guest = module.params["uri"], module.params["guest"]
    where = f"{guest}: " if guest else ""
    command = ["timeout", str(TIMEOUT_S), "virsh", "--connect", uri, *words]
    status, out, err = module.run_command(command, environ_update=C_LOCALE)
    if status == 124:  # timeout's own
        why = f"libvirt doesn't answer at {uri} (it said nothing for {TIMEOUT_S} s)"
        refuse(module, f"{where}{why}")
    if status:
        refuse(module, f"{where}virsh {words[0]}: {err.strip()}")
    return str(out)


def guests(module: AnsibleModule, *which: str) -> dict[str, str]:
    """Return guests' UUIDs by name: those that run, or as virsh's words say.

    A name is all that stands after the UUID and a blank: `db1 ` isn't `db1`, and what str takes for
    the end of a line may be in one.
    """
    rows = virsh(module, "list", "--uuid", "--name", *which).split("\n")
    return {name: uuid for uuid, _, name in (row.partition(" ") for row in rows if row)}


class Guest:
    """A libvirt domain, by virsh."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.name = module.params["guest"]
        running, defined = guests(module), guests(module, "--persistent", "--all")
        there = running | defined
        if self.name not in there:
            known = ", ".join(sorted(there)) or "none"
            why = (
                "not on this host, and not on exactly one other host of this run; this one has"
                f" {known}"
            )
            refuse(module, f"{self.name}: {why}")
        self.uuid = there[self.name]  # virsh would take a name in digits for an id
        self.running = self.name in running
        self.flags = ["--live"] * self.running + ["--config"] * (self.name in defined)

    def definition(self, flag: str) -> ET.Element:
        """Return the domain's XML: of the running domain, or as it is defined."""
        inactive = ["--inactive"] if flag == "--config" else []
        return ET.fromstring(virsh(self.module, "dumpxml", self.uuid, *inactive))

    def policy(self, flag: str) -> ET.Element | None:
        """Return the policy in force, or of the definition."""
        return self.definition(flag).find(f"metadata/{{{URN}}}policy")


def fault(policy: Mapping[str, Any]) -> str | None:
    """Return what keeps a policy from being written as an element, and the mend."""
    drives = policy.get("drives") or {}
    if not isinstance(drives, Mapping):
        return f"drives is a {type(drives).__name__}: write each as TARGET: {{limit: 500}}"
    for target, drive in drives.items():
        if not isinstance(drive or {}, Mapping):
            return f"drive {target} is {drive}: write it as {{limit: {drive}}}"
    for values in (policy, *drives.values()):
        for name, value in (values or {}).items():
            if not NAME.fullmatch(str(name)):
                return f"{name!r} is not a name: write it like burst_seconds"
            if name in ("tenant", "class") and (value is None or isinstance(value, bool)):
                return f"{name} is {json.dumps(value)} in YAML: quote its name, or leave it out"
    return None


def element(policy: Mapping[str, Any]) -> ET.Element:
    """Return a policy as an element without a namespace, which virsh adds."""
    made = ET.Element("policy", attributes({k: v for k, v in policy.items() if k != "drives"}))
    for target, drive in (policy.get("drives") or {}).items():
        ET.SubElement(made, "drive", {"target": str(target), **attributes(drive or {})})
    return made


def attributes(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as attributes. One that is None isn't written."""
    return {
        name.replace("_", "-"): str(value) for name, value in values.items() if value is not None
    }


def text(policy: ET.Element | None) -> str:
    """Return a policy as text that is the same for all ways to write it; "" for none."""
    if policy is None:
        return ""
    plain = ET.Element(policy.tag.rpartition("}")[2], dict(sorted(policy.attrib.items())))
    for drive in policy:
        ET.SubElement(plain, drive.tag.rpartition("}")[2], dict(sorted(drive.attrib.items())))
    ET.indent(plain)
    return ET.tostring(plain, encoding="unicode") + "\n"


def check(guest: Guest, policy: ET.Element) -> None:
    """End the module if the agent can't use a policy."""
    domain = guest.definition(guest.flags[0])
    metadata = domain.find("metadata")
    if metadata is None:
        metadata = ET.SubElement(domain, "metadata")
    for old in metadata.findall(f"{{{URN}}}policy"):
        metadata.remove(old)
    ours = ET.fromstring(
        ET.tostring(policy, encoding="unicode").replace("<policy", f'<policy xmlns="{URN}"', 1)
    )
    metadata.append(ours)
    iokeel = guest.module.get_bin_path("iokeel")
    if iokeel is None:
        refuse(guest.module, "iokeel isn't installed on this host: run deploy.yml first")
    command = [iokeel, "policy", "check", "-"]
    status, _, err = guest.module.run_command(command, data=ET.tostring(domain, encoding="unicode"))
    # The place is one in the domain's XML, which nobody has written.
    said = re.sub(r"^iokeel: standard input(, line \d+)?: ", "", err.strip())
    if status:
        refuse(guest.module, f"policy of {guest.name}: {said}")
    if said:
        guest.module.warn(escaped(f"policy of {guest.name}: {said}"))


def main() -> None:
    """Check a guest's policy, compare it with the one that it has, and set it."""
    module = AnsibleModule(
        argument_spec={
            "guest": {"type": "str"},
            "policy": {"type": "dict"},
            "uri": {"type": "str", "default": "qemu:///system"},
        },
        supports_check_mode=True,
    )
    if module.params["guest"] is None:
        module.exit_json(changed=False, guests=sorted(guests(module) | guests(module, "--all")))
    guest = Guest(module)
    if (wrong := fault(module.params["policy"] or {})) is not None:
        refuse(module, f"policy of {guest.name}: {wrong}")
    wanted = None if module.params["policy"] is None else element(module.params["policy"])
    if wanted is not None:
        check(guest, wanted)
    names = {"--live": "running", "--config": "defined"}
    before = {flag: text(guest.policy(flag)) for flag in guest.flags}
    differ = [flag for flag in guest.flags if before[flag] != text(wanted)]
    if differ and not module.check_mode:
        change = (
            ["--remove"] if wanted is None else ["--set", ET.tostring(wanted, encoding="unicode")]
        )
        virsh(module, "metadata", guest.uuid, "--uri", URN, "--key", "iokeel", *change, *differ)
    diff = [
        {
            "before_header": f"{guest.name}, {names[flag]}",
            "after_header": f"{guest.name}, {names[flag]}",
            "before": before[flag],
            "after": text(wanted),
        }
        for flag in differ
    ]
    module.exit_json(changed=bool(differ), diff=diff, running=guest.running)


if __name__ == "__main__":
    main()
