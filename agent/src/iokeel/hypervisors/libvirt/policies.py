"""The policies in domains' XML, and the last good one of each."""

from __future__ import annotations

import logging
from collections.abc import Collection, KeysView, Mapping, MutableMapping

from iokeel.core.policy import UNKNOWN, DomainPolicy, DrivePolicy, PolicyInPart, ToldPolicy
from iokeel.errors import IokeelError, PolicyError, TargetsMissing
from iokeel.hypervisors.source import SourceNews, VmInfo
from iokeel.policy_xml.domain import DomainXml
from iokeel.policy_xml.policy import check_targets, parse_policy

log = logging.getLogger(__name__)


class Policies:
    """Reads domains' policies.

    classes: those that a policy can name. last_good: the last good policy of each domain that runs
    or is defined, by its name.
    """

    def __init__(
        self,
        classes: Mapping[str, DrivePolicy],
        last_good: MutableMapping[str, DomainPolicy],
        news: SourceNews,
    ) -> None:
        self.classes = classes
        self._last_good = last_good
        self._news = news

    def names(self) -> KeysView[str]:
        """Return the names of the domains whose last good policy is kept."""
        return self._last_good.keys()

    def forget(self, names: Collection[str]) -> None:
        """Drop the last good policies of domains that neither run nor are defined."""
        for name in names:
            del self._last_good[name]

    def read(
        self, xml: DomainXml, text: str, last: VmInfo | None
    ) -> tuple[ToldPolicy | None, IokeelError | None]:
        """Return a domain's policy, or its last good one, and what is wrong with the new one.

        text: the domain's XML. last: the domain as last read. A fault is counted and logged unless
        that one had it too.
        """
        where = f"domain {xml.name}"
        bad: PolicyError | None = None
        try:
            policy = parse_policy(text, self.classes, where)
        except PolicyError as error:
            bad = error
            self._complain(bad, last, "; the last good policy stays")
            policy = self._last_good.get(xml.name)
            if policy is None:
                return UNKNOWN, bad
        if policy is None:
            self._last_good.pop(xml.name, None)
            return None, None
        if self._last_good.get(xml.name) != policy:
            self._last_good[xml.name] = policy
        try:
            check_targets(policy, xml.targets, where)
            _check_throttled(policy, xml, where)
        except PolicyError as error:
            if bad is None:
                self._complain(error, last, "; the other drives are served")
            in_part = isinstance(error, TargetsMissing)
            return PolicyInPart(policy) if in_part else policy, bad or error
        return policy, bad

    def _complain(self, error: PolicyError, last: VmInfo | None, more: str) -> None:
        """Count and log a fault of a policy, once and not at each reading."""
        if last is None or last.policy_error != error:
            self._news.errors["policy"] += 1
            log.error("%s%s", error, more)


def _check_throttled(policy: DomainPolicy, xml: DomainXml, where: str) -> None:
    """Raise PolicyError if a policy covers disks that QEMU doesn't throttle."""
    in_vain = [
        f"{disk.target} can't be limited ({disk.unthrottled})"
        for disk in xml.disks
        if disk.unthrottled is not None and policy.for_drive(disk.target) is not None
    ]
    if in_vain:
        mend = "attach another kind of disk if it has to be limited"
        raise PolicyError(where, ", ".join(in_vain), mend)
