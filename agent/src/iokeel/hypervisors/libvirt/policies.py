"""The policies in domains' XML, and the last good one of each."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace

from iokeel.core.values.policy import (
    UNKNOWN,
    DomainPolicy,
    DrivePolicy,
    LastGood,
    PolicyInPart,
    ToldPolicy,
)
from iokeel.errors import IokeelError, PolicyError, TargetsMissing
from iokeel.hypervisors.source import SourceNews, VmInfo
from iokeel.libvirt_xml.ceiling import Ceiling, ceiling_of
from iokeel.libvirt_xml.domain import DomainXml
from iokeel.libvirt_xml.policy import (
    check_groups,
    check_serial,
    check_targets,
    check_throttled,
    parse_policy,
    with_lowest,
)
from iokeel.libvirt_xml.schema import NAMESPACE

log = logging.getLogger(__name__)


class Policies:
    """Reads domains' policies.

    classes: those that a policy can name. ceilings: this host's. last_good: the last good policy of
    each domain that runs or is defined, by its UUID: a name may pass to another domain. One that an
    older version saved without a UUID is by name until its domain is read.
    """

    def __init__(
        self,
        classes: Mapping[str, DrivePolicy],
        last_good: MutableMapping[str, LastGood],
        news: SourceNews,
    ) -> None:
        self.classes = classes
        self.ceilings: Sequence[Ceiling] = ()
        self._last_good = last_good
        self._news = news

    def others(self, there: Mapping[str, str]) -> set[str]:
        """Return what last good policies are kept of other domains. there: UUIDs by name."""
        return self._last_good.keys() - {*there, *there.values()}

    def forget_others(self, there: Mapping[str, str]) -> None:
        """Drop the last good policies of domains that neither run nor are defined.

        there: the UUIDs of those that do or are, by name.
        """
        for gone in self.others(there):
            del self._last_good[gone]

    def may_have(self, xml: DomainXml, text: str) -> bool:
        """Return whether a domain may have a policy, had one, or is below a ceiling.

        text: the domain's XML.
        """
        had = (xml.uuid or xml.name) in self._last_good
        return had or NAMESPACE in text or ceiling_of(self.ceilings, xml.name) is not None

    def read(
        self, xml: DomainXml, text: str, last: VmInfo | None
    ) -> tuple[ToldPolicy | None, IokeelError | None]:
        """Return a domain's policy, or its last good one, and what is wrong with the new one.

        It is held to the host's ceiling. text: the domain's XML. last: the domain as last read. A
        fault is counted and logged unless that one had it too.
        """
        where = f"domain {xml.name}"
        ceiling = ceiling_of(self.ceilings, xml.name)
        bad: PolicyError | None = None
        key = xml.uuid or xml.name
        last_good = self._last_good.get(key) or self._of_older_version(xml.name)
        try:
            policy = parse_policy(text, self.classes, where)
            if last_good is not None:
                check_serial(policy, last_good.policy, where)
        except PolicyError as error:
            bad = error
            if last_good is None:
                self._complain(bad, last, "; there is no last good one, so its limits stay")
                if ceiling is not None:  # drives that are new have no more
                    return PolicyInPart(ceiling.hold(None, None, where)[0]), bad
                return UNKNOWN, bad
            self._complain(bad, last, "; the last good policy stays")
            policy = last_good.policy
        if policy is None:
            if last_good is not None:
                self._last_good.pop(key, None)
                log.info("%s: it has no policy any more", where)
            return (None if ceiling is None else ceiling.hold(None, xml.targets, where)[0]), None
        named = policy.drives.keys()
        if last_good is not None and named - set(xml.targets):
            policy = _with_rest(policy, last_good.policy, xml.targets)
        if last_good != (policy, xml.uuid):
            self._last_good[key] = LastGood(policy, xml.uuid)
        if ceiling is not None:
            may_have_more = xml.has_arguments or named - set(xml.targets)
            targets = None if may_have_more else xml.targets
            policy, more = ceiling.hold(policy, targets, where)
            if more is not None and bad is None:
                self._complain(more, last, "; the ceiling holds")
            bad = bad or more
        said, policy = policy, with_lowest(policy, xml.disks)
        try:
            check_targets(policy, xml.targets, where)
            check_throttled(policy, xml.disks, where)
        except PolicyError as error:
            if bad is None:
                self._complain(error, last, "; the other drives are served")
            if isinstance(error, TargetsMissing):
                return PolicyInPart(policy, policy.drives.keys() - named), bad or error
            return policy, bad or error
        try:
            check_groups(said, xml.disks, where)
        except PolicyError as error:
            if bad is None:
                self._complain(error, last, "; all are served")
            return policy, bad or error
        return policy, bad

    def _of_older_version(self, name: str) -> LastGood | None:
        """Take out a policy that was saved without a UUID."""
        last = self._last_good.get(name)
        return self._last_good.pop(name) if last is not None and last.uuid is None else None

    def _complain(self, error: PolicyError, last: VmInfo | None, more: str) -> None:
        """Count and log a fault of a policy, once and not at each reading."""
        if last is None or last.policy_error != error:
            self._news.errors["policy"] += 1
            log.error("%s%s", error, more)


def _with_rest(
    policy: DomainPolicy, last_good: DomainPolicy, targets: Iterable[str]
) -> DomainPolicy:
    """Return a policy that names drives that aren't there, with what the last one said of the rest.

    Any of these may be the drive that was meant. Their tenant and the promise to the VM stay, too,
    if the policy gives no others. targets: those of the drives that are there.
    """
    tenant, vm = policy.tenant or last_good.tenant, policy.vm or last_good.vm
    policy = replace(policy, tenant=tenant, vm=vm)
    had = {target: last_good.for_drive(target) for target in targets}
    rest = {
        target: drive
        for target, drive in had.items()
        if drive is not None and drive != policy.for_others
    }
    return replace(policy, drives={**rest, **policy.drives})
