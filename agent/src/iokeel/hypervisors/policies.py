"""The policies in domains' XML, and the last good one of each."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, Protocol

from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import ThrottleLimits
from iokeel.core.values.policy import (
    OBSERVE,
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
    with_lowest,
    written_policy,
)
from iokeel.libvirt_xml.schema import NAMESPACE
from iokeel.libvirt_xml.written import Written
from iokeel.rules.compose import (
    ByRules,
    Composed,
    compose,
    follows_platform,
    last_of,
    subject_of,
    with_rest_of,
)
from iokeel.rules.facts import Facts, facts_of
from iokeel.rules.facts_folder import FactsFolder
from iokeel.rules.platform import Found, record_text
from iokeel.rules.rule import OWN, Fit, Rules
from iokeel.words.quoting import few

log = logging.getLogger(__name__)


class FactsOf(Protocol):
    """Returns the facts of a VM. The arguments are those of iokeel.rules.facts.facts_of."""

    def __call__(
        self,
        xml: str,
        domain: DomainXml,
        where: str,
        *,
        held: Mapping[str, Found],
        adopted: Mapping[str, Found],
        sizes: Mapping[str, int],
    ) -> Facts: ...


class _Seen(NamedTuple):
    """What the rules know of a domain. digest: of its XML and drives. rules: this is by them."""

    digest: int
    rules: Rules
    by_rules: ByRules


class Policies:
    """Reads the policies of domains, or of the VMs of [[discover]].

    classes: those that a policy can name. ceilings, rules: this host's. files: of facts that the
    operator adds; None if there are none. sizes: of domains' drives, by name and target, in bytes,
    if rules go by them. held: what drives with limits of this agent's had before these, in the same
    way. adopted: what their platform has set since, which isn't on record yet. last_good: the last
    good policy of each domain that runs or is defined, by its UUID: a name may pass to another
    domain. One that an older version saved without a UUID is by name until its domain is read.
    One of [[discover]] is by its socket. facts: reads a VM's facts. kind: what a VM is called in
    errors.
    """

    def __init__(
        self,
        classes: Mapping[str, DrivePolicy],
        last_good: MutableMapping[str, LastGood],
        news: SourceNews,
        facts: FactsOf = facts_of,
        kind: str = "domain",
    ) -> None:
        self._facts_of, self._kind = facts, kind
        self.classes = classes
        self.ceilings: Sequence[Ceiling] = ()
        self.rules = Rules()
        self.files: FactsFolder | None = None
        self.sizes: dict[str, Mapping[str, int]] = {}
        self.held: dict[str, Mapping[str, Found]] = {}
        self.adopted: dict[str, Mapping[str, ThrottleLimits]] = {}
        self._seen: dict[str, _Seen] = {}
        self._last_good = last_good
        self._news = news

    def others(self, there: Mapping[str, str]) -> set[str]:
        """Return what last good policies are kept of other domains. there: UUIDs by name."""
        kept = {key for key in self._last_good if not key.startswith("/")}
        return kept - {*there, *there.values()}

    def forget_others(self, there: Mapping[str, str]) -> None:
        """Drop the last good policies of domains that neither run nor are defined.

        there: the UUIDs of those that do or are, by name.
        """
        self._seen = {name: seen for name, seen in self._seen.items() if name in there}
        self.sizes = {name: sizes for name, sizes in self.sizes.items() if name in there}
        self.held = {name: held for name, held in self.held.items() if name in there}
        self.adopted = {name: each for name, each in self.adopted.items() if name in there}
        for gone in self.others(there):
            del self._last_good[gone]

    def by_rules(self, name: str) -> ByRules | None:
        """Return what the rules make of a domain; None if they know nothing of it."""
        seen = self._seen.get(name)
        return None if seen is None else seen.by_rules

    def record(self, name: str, free: Collection[str]) -> str | None:
        """Return what is to be on record of a domain's limits from before the agent's; "" for none.

        None if it is. free: the targets of drives that certainly have no limits of an agent's.
        """
        if (known := self.by_rules(name)) is None:
            return None
        facts, held = known.facts, self.held.get(name, {})
        found = {
            target: limits
            for target, limits in facts.given.items()
            if (target in held or (target in facts.found and target not in free))
            and (limits != facts.told[target] or target in self.adopted.get(name, ()))
        }
        return None if found == facts.found else record_text(found)

    def changes_record(self, drive: DriveId, limits: ThrottleLimits) -> bool:
        """Return whether a drive's record has to follow, now that it has these limits."""
        if (known := self.by_rules(drive.domain)) is None:
            return False
        found, target = known.facts.found, drive.target
        return found[target] == limits if target in found else target in known.facts.told

    def found(self, name: str) -> Mapping[str, Found]:
        """Return the limits of a domain's drives that are on record, by target."""
        known = self.by_rules(name)
        return {} if known is None else {**known.facts.found, **self.adopted.get(name, {})}

    def given(self, name: str) -> Mapping[str, Found]:
        """Return the limits that a domain's platform gave its drives, by target."""
        known = self.by_rules(name)
        return {} if known is None else known.facts.given

    def follows_platform(self, drive: DriveId) -> bool:
        """Return whether a drive's limit is the one that its platform sets, if it does."""
        known = self.by_rules(drive.domain)
        return known is not None and follows_platform(known, drive.target)

    def adopt(self, name: str, limits: Mapping[str, ThrottleLimits]) -> bool:
        """Take limits that drives have for their platform's, of those that follow it.

        Return whether there are any that are news.
        """
        if (known := self.by_rules(name)) is None:
            return False
        given = known.facts.given
        new = {
            target: found
            for target, found in limits.items()
            if follows_platform(known, target) and given.get(target) != found
        }
        if new:
            log.info("%s: its platform has set other limits for %s", name, few(sorted(new)))
            self.adopted[name] = {**self.adopted.get(name, {}), **new}
        return bool(new)

    def observes(self, policy: ToldPolicy | None) -> bool:
        """Return whether a guest with this policy is only observed."""
        mode = None if policy is None else policy.mode
        return (mode or self.rules.mode) == OBSERVE

    def may_have(self, xml: DomainXml, text: str) -> bool:
        """Return whether a domain may have a policy, had one, or is below a ceiling.

        text: the domain's XML.
        """
        had = (xml.uuid or xml.name) in self._last_good
        if had or NAMESPACE in text or ceiling_of(self.ceilings, xml.name) is not None:
            return True
        with suppress(PolicyError):
            return bool(self.rules and self._fit(xml, text).layers)
        return False

    def read(
        self, xml: DomainXml, text: str, last: VmInfo | None
    ) -> tuple[ToldPolicy | None, IokeelError | None]:
        """Return a domain's policy, or its last good one, and what is wrong with the new one.

        It is held to the host's ceiling. text: the domain's XML. last: the domain as last read. A
        fault is counted and logged unless that one had it too.
        """
        where = self._where(xml)
        ceiling = ceiling_of(self.ceilings, xml.name)
        bad: PolicyError | None = None
        key = xml.uuid or xml.name
        last_good = self._last_good.get(key) or self._of_older_version(xml.name)
        try:
            made = self._composed(xml, text, last_good)
        except PolicyError as error:
            bad = error
            made = self._by_rules(xml, text, last_good)
            if last_good is not None:
                self._complain(bad, last, "; the last good policy stays")
            elif made.policy is not None:
                self._complain(bad, last, "; there is no last good one, so its rules alone count")
            else:
                self._complain(bad, last, "; there is no last good one, so its limits stay")
                if ceiling is not None:  # drives that are new have no more
                    return PolicyInPart(ceiling.hold(None, None, where)[0]), bad
                return UNKNOWN, bad
        policy = made.policy
        if policy is None:
            if last_good is not None:
                self._last_good.pop(key, None)
                log.info("%s: it has no policy any more%s", where, self._said_none(xml))
            return (None if ceiling is None else ceiling.hold(None, xml.targets, where)[0]), None
        named = policy.drives.keys() if made.named is None else made.named
        if last_good is not None and named - set(xml.targets):
            policy = _with_rest(policy, last_good.policy, xml.targets, named)
            made = made._replace(sources=with_rest_of(made.sources, last_good, named))
        if last_good != (new := LastGood(policy, xml.uuid, made.sources)):
            self._last_good[key] = new
        bad = bad or self._about_rules(made, where, last)
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

    def _fit(self, xml: DomainXml, text: str) -> Fit:
        """Return the rules that fit a domain, as last seen if it is as it was.

        Raises PolicyError; then no facts are known.
        """
        if self.files is not None:
            self.files.read()
        version = 0 if self.files is None else self.files.version
        sizes, held = self.sizes.get(xml.name, {}), self.held.get(xml.name, {})
        adopted = self.adopted.get(xml.name, {})
        digest = hash((text, xml.targets, version, *sizes.items(), *held.items(), *adopted.items()))
        seen = self._seen.get(xml.name)
        if seen is None or seen.digest != digest or seen.rules is not self.rules:
            known = seen is not None and seen.digest == digest
            self._seen.pop(xml.name, None)
            facts = seen.by_rules.facts if seen and known else None
            if facts is None:
                facts = self._facts_of(
                    text, xml, self._where(xml), held=held, adopted=adopted, sizes=sizes
                )
                kept = {t: each for t, each in adopted.items() if facts.found.get(t) != each}
                self.adopted[xml.name] = kept
                facts = facts if self.files is None else self.files.added(facts)
            fit = self.rules.fit(facts, self.classes, self._where(xml))
            seen = self._seen[xml.name] = _Seen(digest, self.rules, ByRules(facts, fit))
        return seen.by_rules.fit

    def _note(self, name: str, own: Written | None, made: Composed) -> Composed:
        """Note what the rules make of a domain that they know, and return it."""
        seen = self._seen[name]
        self._seen[name] = seen._replace(by_rules=seen.by_rules._replace(own=own, made=made))
        return made

    def _composed(self, xml: DomainXml, text: str, last: LastGood | None) -> Composed:
        """Return a domain's policy, by its own and by the rules. Raises PolicyError."""
        metadata, where = self.rules.metadata, self._where(xml)
        own = written_policy(text, where) if metadata else None
        if own is not None and ceiling_of(self.ceilings, xml.name) is not None:
            own = replace(own, mode=None)  # whom a ceiling holds doesn't choose that
        resolved = None if own is None else own.resolved(self.classes)
        if last is not None and metadata:
            check_serial(resolved, last.policy, where)
        if not self.rules and (last is None or not last.sources):
            with suppress(PolicyError):  # `iokeel rules diff` asks what rules would make of it
                self._fit(xml, text)
                self._note(xml.name, own, Composed(resolved))
            return Composed(resolved)
        fit = self._fit(xml, text)
        made = compose(own, fit, xml.targets, self.classes, last, metadata=metadata)
        self._note(xml.name, own, made)
        if made.policy is None and fit.errors and fit.leaves_alone is None:
            raise fit.errors[0]
        return made

    def _by_rules(self, xml: DomainXml, text: str, last: LastGood | None) -> Composed:
        """Return the policy of a domain whose own can't be read: the last good one, and the rules.

        If the rules can't tell either whether they fit, it is the last good one as it was.
        """
        if not self.rules and (last is None or not last.sources):
            return Composed(None if last is None else last.policy)
        own = None if last is None else last_of(last, OWN)
        try:
            made = compose(own, self._fit(xml, text), xml.targets, self.classes, last)
        except PolicyError:
            return Composed(None) if last is None else Composed(last.policy, last.sources)
        return self._note(xml.name, own, made)

    def _said_none(self, xml: DomainXml) -> str:
        """Return which rule says that a domain has no policy; "" if none does."""
        by_rules = self.by_rules(xml.name)
        rule = None if by_rules is None else by_rules.fit.leaves_alone
        return "" if rule is None else f", because rule {rule} leaves it alone"

    def _about_rules(self, made: Composed, where: str, last: VmInfo | None) -> PolicyError | None:
        """Return what is wrong with what rules give a domain; None if nothing is."""
        if made.errors:
            for error in made.errors:
                self._complain(error, last, "; the next rule counts")
            return made.errors[0]
        if not made.kept:
            return None
        rules = few(sorted({*made.kept.values()}))
        values = [value for value in made.kept if not value.startswith(" ")] or made.kept
        what = few(sorted({*map(subject_of, values)}))
        error = PolicyError(
            where,
            f"no rule gives {what} any more, as rule {rules} did",
            "see `iokeel rules explain`; let a rule give it, or lift it by one of policy = 'none'",
        )
        self._complain(error, last, "; it stays as it was last")
        return error

    def _where(self, xml: DomainXml) -> str:
        return f"{self._kind} {xml.name}"

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
    policy: DomainPolicy,
    last_good: DomainPolicy,
    targets: Iterable[str],
    named: Collection[str],
) -> DomainPolicy:
    """Return a policy that names drives that aren't there, with what the last one said of the rest.

    Any of these may be the drive that was meant. Their tenant and the promise to the VM stay, too,
    if the policy gives no others. targets: those of the drives that are there. named: those that
    the domain's own policy names; what rules say of others waits, too.
    """
    tenant, vm = policy.tenant or last_good.tenant, policy.vm or last_good.vm
    policy = replace(policy, tenant=tenant, vm=vm)
    had = {target: last_good.for_drive(target) for target in targets}
    rest = {
        target: drive
        for target, drive in had.items()
        if target not in named and drive is not None and drive != policy.for_others
    }
    return replace(policy, drives={**policy.drives, **rest})
