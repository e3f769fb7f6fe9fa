"""What a platform sells as a drive's iops, and the record of it in the domain's metadata.

A platform writes a drive's limits into <iotune>, where the agent's own take their place, and live
migration carries those on. So what the agent found is written into the live domain's metadata, in a
namespace of its own, for each drive that it holds. The record shares the fate of <iotune>: both go
with the QEMU, and both come along at a migration. With a record, <iotune> is an agent's; without
one, it is the platform's, unless this agent holds the drive. Then the agent's own state has what
was found, and the record is still to be written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from lxml import etree

from iokeel.core.values.limits import ThrottleLimits
from iokeel.core.values.policy import MOST_BURST_SECONDS, MOST_IOPS
from iokeel.errors import PolicyError
from iokeel.libvirt_xml.domain import limits_in, to_libvirt

NAMESPACE = "urn:iokeel:found:1"
#: The record's key in libvirt, its prefix in the XML.
KEY = "iokeel-found"
_QUOTA = "nova.extra.quota:disk_"
_RATES = ("total_iops_sec", "read_iops_sec", "write_iops_sec")

#: A drive's limits before the agent's. None: nobody knows them.
Found = ThrottleLimits | None


def recorded(about: etree._Element | None) -> dict[str, Found]:
    """Return what a domain's record says was found, by target. about: its <metadata>."""
    found: dict[str, Found] = {}
    for drive in about.iterfind(f"{{{NAMESPACE}}}found/*") if about is not None else ():
        texts = {str(name): str(value) for name, value in drive.attrib.items()}
        found[drive.get("target", "")] = None if "unknown" in texts else limits_in(texts)
    return found


def record_text(found: Mapping[str, Found]) -> str:
    """Return the record as an element without a namespace, which libvirt adds; "" for none."""
    if not found:
        return ""
    root = etree.Element("found")
    for target, limits in found.items():
        values = {"unknown": "yes"} if limits is None else _texts(limits)
        etree.SubElement(root, "drive", {"target": target, **values})
    return etree.tostring(root, encoding="unicode")


def iotune_facts(limits: Found) -> Iterator[tuple[str, str]]:
    """Yield the facts of limits that a platform gave."""
    if limits is not None:
        yield "iotune", "no" if limits.unlimited else "yes"
        yield from ((f"iotune.{name}", text) for name, text in _texts(limits).items())


def _texts(limits: ThrottleLimits) -> dict[str, str]:
    """Return limits as texts by libvirt's names, without zeros."""
    return {name: str(value) for name, value in to_libvirt(limits).items() if value}


def follows_iotune(facts: Mapping[str, str]) -> bool:
    """Return whether what a platform sells of a drive is in <iotune>.

    The flavor's quota comes first for a drive without a serial, which is no volume.
    """
    return "serial" in facts or not any(f"{_QUOTA}{name}" in facts for name in _RATES)


def sold(facts: Mapping[str, str], where: str) -> dict[str, object]:
    """Return what a platform sells of a drive, as fields of DrivePolicy: iops count as normalized.

    Empty if nothing is sold. Raises PolicyError if that isn't known, or if no policy can say it.
    """
    prefix = "iotune." if follows_iotune(facts) else _QUOTA
    if (
        prefix != _QUOTA and "iotune" not in facts and "readonly" in facts
    ):  # libvirt knows the drive
        what = "what the platform sells isn't known, as limits in force may be an agent's"
        raise PolicyError(where, what, "start the guest anew, or give it a limit in the rule")
    total = _number(facts, f"{prefix}total_iops_sec", MOST_IOPS)
    read, write = (_number(facts, f"{prefix}{name}", MOST_IOPS) for name in _RATES[1:])
    if total is None and read is None and write is None:
        return {}
    if total is None and read != write:
        what = f"the platform sells {read or 'any'} reads and {write or 'any'} writes a second"
        mend = "give it a limit in the rule; a policy has one figure for both"
        raise PolicyError(where, what, mend)
    limit = total if total is not None else read
    which = "total" if total is not None else "read"
    given: dict[str, object] = {"limit": limit, "separate_budgets": total is None, "burst": None}
    burst = _number(facts, f"{prefix}{which}_iops_sec_max", MOST_IOPS)
    if burst is not None and burst > (limit or 0):
        seconds = _number(facts, f"{prefix}{which}_iops_sec_max_length", MOST_BURST_SECONDS)
        given |= {"burst": burst, "burst_seconds": seconds or 1}
    return given


def _number(facts: Mapping[str, str], fact: str, most: int) -> int | None:
    """Return a figure that is sold; None if there is none."""
    text = facts.get(fact, "")
    return min(int(text), most) or None if text.isascii() and text.isdigit() else None


def only(given: Mapping[str, object], names: Iterable[str]) -> dict[str, object]:
    """Return the limit or the burst of what is sold, with what belongs to each."""
    parts = {"limit": ("limit", "separate_budgets"), "burst": ("burst", "burst_seconds")}
    return {key: given[key] for name in names for key in parts[name] if key in given}
