"""What a platform sells as a drive's iops and bytes, and the record of it in the metadata.

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
from iokeel.core.values.policy import MOST_BPS, MOST_BURST_SECONDS, MOST_IOPS, ONE_WAY
from iokeel.errors import PolicyError
from iokeel.libvirt_xml.domain import limits_in, to_libvirt

NAMESPACE = "urn:iokeel:found:1"
#: The record's key in libvirt, its prefix in the XML.
KEY = "iokeel-found"
_QUOTA = "nova.extra.quota:disk_"
_WAYS = ("total", "read", "write")

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
    rates = (f"{_QUOTA}{way}_{unit}_sec" for way in _WAYS for unit in ("iops", "bytes"))
    return "serial" in facts or not any(rate in facts for rate in rates)


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
    given = _iops(facts, prefix, where)
    total, *one_way = (_number(facts, f"{prefix}{way}_bytes_sec", MOST_BPS) for way in _WAYS)
    if total is not None and given.get("separate_budgets"):
        given["max_bytes"] = max(1, total // 2)  # for each
    elif total is not None:
        given |= {"max_bytes": total, "separate_budgets": False}
    elif known := [bps for bps in one_way if bps is not None]:
        given["max_bytes"] = min(known)  # a policy has one figure
    return given


def _iops(facts: Mapping[str, str], prefix: str, where: str) -> dict[str, object]:
    """Return the limit that is sold, and its burst. No direction gets more than is sold of it."""
    sold = {way: _number(facts, f"{prefix}{way}_iops_sec", MOST_IOPS) for way in _WAYS}
    ways = ("total",) if sold["total"] is not None else ("read", "write")
    limits = [limit for way in ways if (limit := sold[way]) is not None]
    if not limits:
        return {}
    if len(limits) < len(ways):
        read, write = (sold[way] or "any" for way in ways)
        what = f"the platform sells {read} reads and {write} writes a second"
        raise PolicyError(where, what, "give it a limit in the rule")
    limit = max(limits)
    given: dict[str, object] = {"limit": limit, "separate_budgets": len(ways) > 1, "burst": None}
    if min(limits) < limit:
        given |= dict(zip(ONE_WAY, limits, strict=True))
    ends = [f"{prefix}{way}_iops_sec_max" for way in ways]
    bursts = [_number(facts, end, MOST_IOPS) or 0 for end in ends]
    burst = min(limit * burst // own for burst, own in zip(bursts, limits, strict=True))
    if burst > limit:
        lengths = [_number(facts, f"{end}_length", MOST_BURST_SECONDS) or 1 for end in ends]
        given |= {"burst": min(burst, MOST_IOPS), "burst_seconds": min(lengths)}
    return given


def _number(facts: Mapping[str, str], fact: str, most: int) -> int | None:
    """Return a figure that is sold; None if there is none."""
    text = facts.get(fact, "")
    return min(int(text), most) or None if text.isascii() and text.isdigit() else None


def only(given: Mapping[str, object], names: Iterable[str]) -> dict[str, object]:
    """Return the limit or the burst of what is sold, with what belongs to each."""
    limit = ("limit", "separate_budgets", *ONE_WAY, "max_bytes")
    parts = {"limit": limit, "burst": ("burst", "burst_seconds")}
    return {key: given[key] for name in names for key in parts[name] if key in given}
