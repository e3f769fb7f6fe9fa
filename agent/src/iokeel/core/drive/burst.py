"""Burst credit, by SolidFire's rule: a second of credit for each second under the limit."""

from __future__ import annotations

from typing import NamedTuple

from iokeel.core.policy import DrivePolicy

# A drive held to its limit measures a few percent to either side of it. Only what is clearly
# below earns credit, and only what is clearly above spends it.
_BAND_RATIO = 0.05
# Once credit is used up, this much has to be saved before the burst opens again, so that each
# opening (two changes of limits, each a tenth of a second for nothing) serves some seconds.
REOPEN_S = 5.0


class Credit(NamedTuple):
    """Seconds of burst saved, and whether the burst is open."""

    seconds: float = 0.0
    open: bool = False

    def after(self, policy: DrivePolicy, rate: float | None, elapsed_s: float) -> Credit:
        """Return the credit after a drive did `rate` normalized I/O a second for `elapsed_s`.

        An unknown rate (None) changes nothing. The burst closes while less is left than the
        next interval could spend, so that credit is never overdrawn.
        """
        if policy.limit is None or policy.burst is None or policy.burst <= policy.limit:
            return NO_CREDIT
        most = float(policy.burst_seconds)
        seconds = min(self.seconds, most)
        if rate is not None and rate < (1 - _BAND_RATIO) * policy.limit:
            seconds = min(seconds + elapsed_s, most)
        elif rate is not None and rate > (1 + _BAND_RATIO) * policy.limit:
            seconds = max(seconds - elapsed_s, 0.0)
        threshold = elapsed_s if self.open else max(min(REOPEN_S, most), elapsed_s)
        return Credit(seconds, most > 0 and seconds >= threshold)


NO_CREDIT = Credit()
