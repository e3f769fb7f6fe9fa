"""The policy of a guest, made of its own and of the rules that fit it.

For each value the first source counts that gives it: the domain's own policy, then the rules from
top to bottom. A class gives all values of a drive, so below it nothing is left to give. Limit and
burst of all drives together are one value, because a burst means nothing without its limit.

What a rule gave stays as it was if that rule doesn't fit any more and none gives the value now: a
slip in the rules, or metadata that a platform left out, lifts no limit. A rule that still fits the
VM or the drive may give less than before, and policy = "none" lifts all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import fields, replace
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from iokeel.core.values.policy import (
    ENFORCE,
    ONE_WAY,
    DomainPolicy,
    DrivePolicy,
    LastGood,
    VmPolicy,
    override,
    vm_policy,
)
from iokeel.errors import PolicyError
from iokeel.libvirt_xml.written import Written, WrittenDrive
from iokeel.rules.facts import Facts
from iokeel.rules.rule import OWN, Fit, Layer

#: Stands for a drive that the guest doesn't have yet.
ANY = ""
T = TypeVar("T")
# A limit of all drives together and what belongs to it.
_RATE = ("limit", "burst", "burst_seconds")
_DRIVE = sorted((field.name for field in fields(DrivePolicy)), key=lambda name: name != "limit")


class Composed(NamedTuple):
    """A guest's policy, and where it comes from.

    policy: None if nothing gives it one. sources: the rule that gives a value, or OWN. Values are
    named "tenant", "job_bps", "mode", and "limit" and the like of a VM; with a drive's target and a
    blank before it they are the drive's ("vda limit"). kept: those that no rule gives any more,
    with the rule that did. errors: of what rules can't give. named: the drives that its own policy
    names; None if that is all of it.
    """

    policy: DomainPolicy | None
    sources: Mapping[str, str] = MappingProxyType({})
    kept: Mapping[str, str] = MappingProxyType({})
    errors: tuple[PolicyError, ...] = ()
    named: Set[str] | None = None


class ByRules(NamedTuple):
    """What the rules know of a guest, and make of it.

    own: its own policy, as far as it can be read and counts; None if it has none.
    """

    facts: Facts
    fit: Fit = Fit()
    own: Written | None = None
    made: Composed = Composed(None)


def compose(
    own: Written | None,
    fit: Fit,
    targets: Iterable[str],
    classes: Mapping[str, DrivePolicy],
    last: LastGood | None = None,
    *,
    metadata: bool = True,
) -> Composed:
    """Return the policy that a guest's own and the rules that fit it make together.

    own: None if it has none. targets: its drives. classes: all that are named in these. last: its
    last good policy; None if none is to be kept. metadata: whether its own policy counts.
    """
    layers = [Layer(OWN, own)] if own is not None else []
    layers += fit.layers
    speak = {layer.rule: layer.written for layer in fit.layers if layer.rule in fit.holds}
    if metadata:
        speak[OWN] = Written(class_name=OWN)  # it says what it says, of any drive
    if last is not None and fit.leaves_alone is None:
        layers += _kept(last, speak)
    named = own.drives if own is not None else {}
    sources: dict[str, str] = {}
    others = _drive(layers, ANY, classes, sources)
    drives = {}
    for target in dict.fromkeys([*targets, *named]):
        drive = _drive(layers, target, classes, sources)
        if drive is not None and (drive != others or target in named):
            drives[target] = drive
    policy = DomainPolicy(
        drives,
        others,
        _first(((layer.rule, layer.written.tenant) for layer in layers), "tenant", sources),
        _vm(layers, sources),
        _first(((layer.rule, layer.written.job_bps) for layer in layers), "job_bps", sources),
        None if own is None else own.serial,
        mode=_first(((layer.rule, layer.written.mode) for layer in layers), "mode", sources),
    )
    if own is None and replace(policy, mode=None) == DomainPolicy({}):
        return Composed(None, errors=fit.errors, named=frozenset())
    now = {OWN} | {layer.rule for layer in fit.layers}
    kept = {value: rule for value, rule in sources.items() if rule not in now}
    return Composed(policy, sources, kept, fit.errors, frozenset(named))


def _first(given: Iterable[tuple[str, T | None]], name: str, sources: dict[str, str]) -> T | None:
    """Return the first value that is given, and note where it comes from."""
    for rule, value in given:
        if value is not None:
            sources[name] = rule
            return value
    return None


def _vm(layers: Iterable[Layer], sources: dict[str, str]) -> VmPolicy | None:
    """Return the promise to all drives together. A limit brings its burst along."""
    found: dict[str, object] = {}
    for rule, written, _ in layers:
        for names in (_RATE, ("reservation",)):
            given = {name: written.vm[name] for name in names if name in written.vm}
            if names[0] in given and names[0] not in found:
                found |= given
                sources |= dict.fromkeys(given, rule)
    limit, reservation = found.get("limit"), found.get("reservation")
    if isinstance(limit, int) and isinstance(reservation, int):
        found["reservation"] = min(limit, reservation)
    return vm_policy(found, "")


def _drive(
    layers: Iterable[Layer],
    target: str,
    classes: Mapping[str, DrivePolicy],
    sources: dict[str, str],
) -> DrivePolicy | None:
    """Return a drive's policy, and note where it comes from; None if nothing gives it one."""
    upper: list[tuple[str, Mapping[str, object]]] = []
    policy, origin = None, dict[str, str]()
    for rule, written, _ in layers:
        drive = written.drives.get(target) or written.drives.get(ANY)
        if drive is not None:
            upper.append((rule, drive.given))
        class_name = (drive and drive.class_name) or written.class_name
        if class_name is not None:
            policy = classes[class_name]
            origin = dict.fromkeys(differing(policy), rule)
            break
    if policy is None and not upper:
        return None
    policy = policy or DrivePolicy()
    for rule, given in reversed(upper):
        policy = override(policy, _fitting(given, policy.limit), target)
        origin |= dict.fromkeys(given, rule)
    sources |= {f"{target} {name}": rule for name, rule in origin.items()}
    return policy


def _fitting(given: Mapping[str, object], limit: int | None) -> Mapping[str, object]:
    """Return what is given, so that it fits the limit of another source."""
    if "limit" in given:
        return given
    fitting = dict(given)
    match given:
        case {"reservation": int(reservation)} if limit is not None:
            fitting["reservation"] = min(reservation, limit)
    match given:
        case {"burst": int(burst)}:
            fitting["burst"] = None if limit is None else max(burst, limit)
    for name in ONE_WAY:
        if isinstance(own := given.get(name), int):
            fitting[name] = None if limit is None else min(own, limit)
    return fitting


def _kept(last: LastGood, speak: Mapping[str, Written]) -> Iterator[Layer]:
    """Yield what the last good policy has of rules that say nothing of it any more, by rule.

    speak: what those say that fit. One that has nothing for a drive says nothing of it.
    """
    of_rules: dict[str, list[str]] = {}
    for value, rule in _sources(last).items():
        target, blank, _ = value.rpartition(" ")
        says = speak.get(rule)
        if says is None or (blank and says.class_name is None and target not in says.drives):
            of_rules.setdefault(rule, []).append(value)
    return (Layer(rule, _written(last.policy, values)) for rule, values in of_rules.items())


def last_of(last: LastGood, rule: str) -> Written:
    """Return what the last good policy has of a rule, or of the domain's own."""
    return _written(last.policy, [v for v, source in _sources(last).items() if source == rule])


def with_rest_of(sources: Mapping[str, str], last: LastGood, named: Set[str]) -> Mapping[str, str]:
    """Return sources of values, but the last ones of drives that a policy doesn't name.

    So it is while the policy names drives that aren't there. Empty while there are no rules.
    """
    if not sources and not last.sources:
        return sources
    rest = {
        value: rule
        for value, rule in _sources(last).items()
        if value.rpartition(" ")[0] not in named and value not in sources
    }
    return {**rest, **sources}


def _sources(last: LastGood) -> Mapping[str, str]:
    """Return the source of each value. Of a policy of before there were rules all is its own."""
    return last.sources or dict.fromkeys(given_values(last.policy), OWN)


def _written(policy: DomainPolicy, values: Iterable[str]) -> Written:
    """Return some values of a policy as they could be written."""
    drives: dict[str, dict[str, object]] = {}
    vm = {}
    tenant, job_bps, mode = None, None, None
    for value in values:
        target, blank, name = value.rpartition(" ")
        if blank and (drive := policy.drives.get(target, policy.default)) is not None:
            drives.setdefault(target, {})[name] = getattr(drive, name)
        elif name == "tenant":
            tenant = policy.tenant
        elif name == "job_bps":
            job_bps = policy.job_bps
        elif name == "mode":  # only observed is less than held, and isn't kept
            mode = ENFORCE if policy.mode == ENFORCE else None
        elif policy.vm is not None:
            vm[name] = getattr(policy.vm, name)
    written = {target: WrittenDrive(given) for target, given in drives.items()}
    return Written(written, None, tenant, vm, job_bps, policy.serial, mode=mode)


def subject_of(value: str) -> str:
    """Return what a value is of, in words."""
    target, blank, _ = value.rpartition(" ")
    if blank:
        return f"a policy of {target}" if target else "a policy of its drives"
    words = {"tenant": "the tenant", "job_bps": "the rate of block jobs", "mode": "the mode"}
    return words.get(value, "the limit of the VM")


def given_values(policy: DomainPolicy) -> Iterator[str]:
    """Yield the names of the values that a policy has, but for those that are the default."""
    if policy.tenant is not None:
        yield "tenant"
    if policy.job_bps is not None:
        yield "job_bps"
    if policy.mode is not None:
        yield "mode"
    if policy.vm is not None:
        yield from differing(policy.vm)
    for target, drive in (*policy.drives.items(), (ANY, policy.default)):
        if drive is not None:
            yield from (f"{target} {name}" for name in differing(drive))


def differing(promise: DrivePolicy | VmPolicy) -> Iterator[str]:
    """Return the fields of a promise that aren't the default."""
    return (f.name for f in fields(promise) if getattr(promise, f.name) != f.default)


def rules_of_drive(known: ByRules, target: str) -> list[str]:
    """Return the rules that give a drive something, the one of its limit first."""
    return [rule for rule in dict.fromkeys(_of(known, target)) if rule != OWN]


def _of(known: ByRules, target: str) -> Iterator[str]:
    """Yield the sources of a drive's values, that of its limit first."""
    for name in _DRIVE:
        if (rule := known.made.sources.get(f"{target} {name}")) is not None:
            yield rule


def follows_platform(known: ByRules, target: str) -> bool:
    """Return whether a drive's limit is the one that its platform sets in <iotune>, if it does."""
    for rule, written, _ in _layers(known):
        if (rule, target) in known.fit.sold:
            return True
        drive = written.drives.get(target) or written.drives.get(ANY)
        if written.class_name or (drive and (drive.class_name or "limit" in drive.given)):
            return False
    return False


def class_of_drive(known: ByRules, target: str) -> str | None:
    """Return the class that a drive's policy names; None if it names none."""
    for _, written, _ in _layers(known):
        drive = written.drives.get(target) or written.drives.get(ANY)
        if name := (drive and drive.class_name) or written.class_name:
            return name
    return None


def _layers(known: ByRules) -> list[Layer]:
    own = [] if known.own is None else [Layer(OWN, known.own)]
    return [*own, *known.fit.layers]


def has_own(known: ByRules, target: str) -> bool:
    """Return whether the domain's own policy gives a drive something."""
    return OWN in _of(known, target)


def because_of(known: ByRules, rules: Iterable[str]) -> str:
    """Return why rules give what they do, as a clause: because nova.flavor is io1.large."""
    reasons = {layer.rule: layer.because for layer in known.fit.layers}
    given = [reasons[rule] for rule in rules if reasons.get(rule)]
    return f", because {' and '.join(dict.fromkeys(given))}" if given else ""
