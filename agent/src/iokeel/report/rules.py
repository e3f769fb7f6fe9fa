"""The API's records of rules, and of guests as rules see them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from iokeel.config.settings import Config
from iokeel.core.values.policy import (
    OBSERVE,
    DomainPolicy,
    PolicyInPart,
    ToldPolicy,
    UnknownPolicy,
)
from iokeel.errors import PolicyError
from iokeel.libvirt_xml.ceiling import ceiling_of
from iokeel.libvirt_xml.domain import parse_domain
from iokeel.libvirt_xml.policy import written_policy
from iokeel.libvirt_xml.written import Written
from iokeel.report.promises import policy_report
from iokeel.report.records import (
    ChangeReport,
    GuestReport,
    PolicyReport,
    PromiseReport,
    RuleReport,
    RulesReport,
    ValueReport,
)
from iokeel.report.snapshot import Snapshot
from iokeel.rules.compose import ANY, ByRules, compose, differing, given_values
from iokeel.rules.facts import Facts, facts_of
from iokeel.rules.facts_folder import FactsFolder
from iokeel.rules.rule import OWN, Rules
from iokeel.words.quoting import escaped


def rules_report(rules: Rules, snapshot: Snapshot) -> RulesReport:
    """Return the rules, and the guests of a snapshot of all."""
    guests = [
        guest_report(name, vm.by_rules, None if vm.report.observed else vm.told)
        for name, vm in snapshot.vms.items()
        if vm.by_rules is not None
    ]
    unknown = [
        name for name, vm in snapshot.vms.items() if vm.report.from_libvirt and vm.by_rules is None
    ]
    return RulesReport(
        rules=[
            RuleReport(
                name=rule.name,
                when={fact: list(patterns.written) for fact, patterns in rule.when.items()},
                tenant=None if rule.tenant is None else rule.tenant.text,
                class_name=None if rule.class_name is None else rule.class_name.text,
                vm={name: value for name, value in rule.vm.items() if isinstance(value, int)},
                job_bps=rule.job_bps,
                drives=len(rule.drives),
                leaves_alone=rule.leaves_alone,
                mode=rule.mode,
            )
            for rule in rules.rules
        ],
        guests=guests,
        unknown=unknown,
    )


def guest_report(domain: str, known: ByRules, told: ToldPolicy | None) -> GuestReport:
    """Return a guest as rules see it. told: its policy in force."""
    facts, fit, own, made = known
    in_force = told.policy if isinstance(told, PolicyInPart) else told
    if isinstance(in_force, UnknownPolicy):
        in_force = None
    promised = policy_report(in_force, facts.drives)
    return GuestReport(
        domain=domain,
        facts=dict(facts.vm),
        drives={target: dict(texts) for target, texts in facts.drives.items()},
        fits=[layer.rule for layer in fit.layers],
        leaves_alone=fit.leaves_alone,
        values=list(_values(known)),
        errors=[str(error) for error in made.errors],
        promised={target: promised.drives.get(target) for target in facts.drives},
        vm=promised.vm,
        tenant=promised.tenant,
        own=None if own is None else msgspec.to_builtins(own),
    )


def written_of(guest: GuestReport) -> Written | None:
    """Return a guest's own policy as it is written. Raises msgspec.ValidationError."""
    return None if guest.own is None else msgspec.convert(guest.own, Written)


def _values(known: ByRules) -> Iterator[ValueReport]:
    policy, made = known.made.policy, known.made
    if policy is None:
        return
    because = {layer.rule: layer.because for layer in known.fit.layers}
    drives = [*known.facts.drives, *(policy.drives.keys() - known.facts.drives.keys())]
    values = [value for value in given_values(policy) if " " not in value]
    for target in [*drives, ANY]:
        drive = policy.for_drive(target)
        if drive is not None and (target != ANY or not drives):
            values += (f"{target} {name}" for name in differing(drive))
    for value in values:
        target, blank, name = value.rpartition(" ")
        rule = made.sources.get(value, OWN)
        yield ValueReport(
            of=target if blank else None,
            name=name.replace("_", "-"),
            value=escaped(str(_value(policy, value))),
            rule=rule or None,
            because=because.get(rule, ""),
            kept=value in made.kept,
        )


def _value(policy: DomainPolicy, value: str) -> object:
    target, blank, name = value.rpartition(" ")
    if blank:
        return getattr(policy.for_drive(target), name)
    return getattr(policy if name in ("tenant", "job_bps", "mode") else policy.vm, name)


def guest_of_file(xml: bytes, config: Config, where: str) -> GuestReport:
    """Return a domain in a file as a configuration's rules see it.

    where: the file's name in errors. Raises PolicyError if it can't be read.
    """
    domain, rules = parse_domain(xml, where), config.rules
    own = written_policy(xml, where) if rules.metadata else None
    if own is not None:
        own.resolved(config.classes)
    files = FactsFolder(config.facts_dir)
    files.read()
    facts = files.added(facts_of(xml, domain, where))
    fit = rules.fit(facts, config.classes, where)
    made = compose(own, fit, domain.targets, config.classes)
    held, _ = _held(config, domain.name, made.policy, domain.targets)
    return guest_report(domain.name, ByRules(facts, fit, own, made), held)


def changes_of(report: RulesReport, config: Config) -> tuple[list[ChangeReport], list[str]]:
    """Return what another configuration would change, and what is wrong with it for some guest.

    Nothing is kept of what a guest was given last.
    """
    changes: list[ChangeReport] = []
    bad: list[str] = []
    for guest in report.guests:
        facts = Facts(guest.facts, guest.drives)
        where = f"domain {guest.domain}"
        fit = config.rules.fit(facts, config.classes, where)
        own = written_of(guest) if config.rules.metadata else None
        try:
            if own is not None:
                own.resolved(config.classes)
        except PolicyError as error:
            bad.append(f"{error}; its last good policy stays")
            continue
        bad += map(str, fit.errors)
        targets = list(guest.promised)
        made = compose(own, fit, targets, config.classes)
        held, more = _held(config, guest.domain, made.policy, targets)
        bad += [] if more is None else [str(more)]
        if held is not None and (held.mode or config.rules.mode) == OBSERVE:
            held = None  # nothing of it is enforced
        changes += _changes(guest, policy_report(held, targets))
    return changes, bad


def _changes(guest: GuestReport, after: PolicyReport) -> Iterator[ChangeReport]:
    """Yield the promises to a guest that change."""
    tenants = guest.tenant, after.tenant
    together = _limit(guest.vm), _limit(after.vm)
    promises: list[tuple[str | None, PromiseReport | None, PromiseReport | None]]
    promises = [(None, guest.vm, after.vm)]
    promises += [(target, had, after.drives.get(target)) for target, had in guest.promised.items()]
    for target, had, has in promises:
        if had == has and (target is None or tenants[0] == tenants[1]):
            continue
        limited = _limit(had) or together[0], _limit(has) or together[1]
        loses = target is not None and limited[0] is not None and limited[1] is None
        loses |= _bytes(had) is not None and _bytes(has) is None
        yield ChangeReport(
            domain=guest.domain,
            target=target,
            before=had,
            after=has,
            before_tenant=tenants[0],
            after_tenant=tenants[1],
            loses_limit=loses,
        )


def _limit(promise: PromiseReport | None) -> int | None:
    return None if promise is None else promise.limit_iops


def _bytes(promise: PromiseReport | None) -> int | None:
    return None if promise is None else promise.max_bytes


def _held(
    config: Config, name: str, policy: DomainPolicy | None, targets: Collection[str]
) -> tuple[DomainPolicy | None, PolicyError | None]:
    """Return a policy as the host's ceiling leaves it, and the error if it asks for more."""
    ceiling = ceiling_of(config.ceilings, name)
    return (policy, None) if ceiling is None else ceiling.hold(policy, targets, f"domain {name}")
