"""libvirt's limits of a drive: what they let through, and how others tell them."""

from __future__ import annotations

from collections.abc import Mapping

TOLERANCE = 1.08 * 1.03
"""What a shift may cost on stock QEMU, and the error of `cost`."""


def cost(kib: float) -> float:
    """Return the published cost of a request; a line that is within 2.2 % of its table."""
    return 0.39 + 0.1475 * kib


def highest_rate(limits: Mapping[str, int]) -> float:
    """Return the highest normalized rate that limits let through, by libvirt's names of them."""
    iops, iops_size = limits.get("total_iops_sec", 0), limits.get("size_iops_sec", 0)
    bps = limits.get("total_bytes_sec", 0)
    rates = []
    for kib in (4, 5, 6, 7, 8, 16, 64, 128, 256, 1024):
        units = max(1.0, kib * 1024 / iops_size) if iops_size else 1.0
        requests = [iops / units] * bool(iops) + [bps / (kib * 1024)] * bool(bps)
        rates.append(min(requests, default=float("inf")) * cost(kib))
    return max(rates)


def iotune(limits: Mapping[str, int]) -> str:
    """Return limits as libvirt has them in a domain's XML."""
    return f"<iotune>{''.join(f'<{k}>{v}</{k}>' for k, v in limits.items())}</iotune>"


def inserted(limits: Mapping[str, int]) -> dict[str, int]:
    """Return limits as QEMU has them in query-block."""
    return {_block_name(name): value for name, value in limits.items()}


def _block_name(name: str) -> str:
    if name == "size_iops_sec":
        return "iops_size"
    direction, unit, _, *rest = name.split("_")
    short = {"total": [], "read": ["rd"], "write": ["wr"]}[direction]
    return "_".join(["bps" if unit == "bytes" else unit, *short, *rest])
