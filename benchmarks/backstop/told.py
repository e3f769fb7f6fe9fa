"""The results of one guest (guest.py), as result files hold them."""

from __future__ import annotations

import msgspec

TRAFFIC = ("reads", "writes", "large reads", "large writes")
#: The settings of the VM's group by file, as the kernel shows them.
Settings = dict[str, str]
#: The kernel's counts by name, a second.
Rates = dict[str, float]


class Told(
    msgspec.Struct,
    frozen=True,
    rename={
        "large_reads": "large reads",
        "large_writes": "large writes",
        "set_over_anothers": "set over another's",
        "anothers_restored": "another's restored",
        "bfq_restored": "bfq restored",
        "iocost_restored": "iocost restored",
    },
):
    """Settings and rates by their moment.

    disk: its name and number. limits: the bounds by their names in io.max. free: reads without a
    bound. within: reads that keep to the share. errors, saved: of the agent, at the end.
    """

    disk: tuple[str, str]
    limits: dict[str, int]
    share: int
    margin: float
    before: Settings
    free: Rates
    set: Settings
    reads: Rates
    writes: Rates
    large_reads: Rates
    large_writes: Rates
    within: Rates
    restored: Settings
    set_over_anothers: Settings
    anothers_restored: Settings
    bfq: Settings
    bfq_restored: Settings
    iocost: Settings
    iocost_restored: Settings
    errors: dict[str, int]
    saved: dict[str, object]
    kernel: str
    log: str

    @property
    def held(self) -> dict[str, float]:
        """Each traffic's rate over its bound."""
        limits = self.limits
        ratios = (
            self.reads["rios"] / limits["riops"],
            self.writes["wios"] / limits["wiops"],
            self.large_reads["rbytes"] / limits["rbps"],
            self.large_writes["wbytes"] / limits["wbps"],
        )
        return dict(zip(TRAFFIC, ratios, strict=True))
