"""A rule, and all of them in their order: which of them fit a guest, and what they give it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from iokeel.core.values.policy import ENFORCE, DrivePolicy
from iokeel.errors import PolicyError
from iokeel.libvirt_xml.written import Written, WrittenDrive, class_of
from iokeel.rules.by_size import SIZE, PerGb, fitting, sized
from iokeel.rules.facts import Facts
from iokeel.rules.patterns import Template, When, because, fits
from iokeel.rules.platform import follows_iotune, only, sold


@dataclass(frozen=True, slots=True)
class DriveRule:
    """[[rules.drives]]: what the drives that fit are given, as fields of DrivePolicy.

    sold: "limit" and "burst" if these are what the platform sells.
    """

    when: When = field(default_factory=dict)
    given: Mapping[str, object] = field(default_factory=dict)
    class_name: Template | None = None
    sold: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """[[rules]]: what the guests that fit are given.

    name: its own. tenant, class_name: None for none. vm: fields of VmPolicy, for all drives of a
    guest together. leaves_alone: policy = "none", so that no later rule counts. mode: as in
    DomainPolicy.
    """

    name: str
    when: When = field(default_factory=dict)
    tenant: Template | None = None
    class_name: Template | None = None
    vm: Mapping[str, object] = field(default_factory=dict)
    job_bps: int | None = None
    drives: tuple[DriveRule, ...] = ()
    leaves_alone: bool = False
    mode: str | None = None

    @property
    def ends(self) -> bool:
        """Whether it certainly leaves no value to later rules, but those for all drives together.

        A class fills all values of each drive.
        """
        sure = self.class_name is not None and not self.class_name.facts
        return self.leaves_alone or sure


class Layer(NamedTuple):
    """What one source gives a guest. rule: its name; OWN for the domain's own policy.

    because: why the rule fits; "" if it fits all.
    """

    rule: str
    written: Written
    because: str = ""


#: Stands for the domain's own policy among the names of rules.
OWN = ""


class Fit(NamedTuple):
    """The rules that fit a guest. layers: in their order. errors: of what they can't give.

    holds: the names of those that give all that they say. leaves_alone: that of the rule that ends
    the search by policy = "none"; None if none does. sold: each rule with a drive that it gives the
    limit in <iotune>, whether there is one now or not.
    """

    layers: tuple[Layer, ...] = ()
    errors: tuple[PolicyError, ...] = ()
    holds: frozenset[str] = frozenset()
    leaves_alone: str | None = None
    sold: frozenset[tuple[str, str]] = frozenset()


class _Index(NamedTuple):
    """The numbers of rules by a fact and its text that they ask for.

    others: those of other rules, with a fact and what it has to begin with; None if they ask for
    none. So 10,000 rules cost a guest a millisecond.
    """

    by_text: Mapping[str, Mapping[str, Sequence[int]]]
    others: Sequence[tuple[int, str | None, tuple[str, ...]]]


@dataclass(frozen=True)
class Rules:
    """All rules. metadata: whether a domain's own policy counts, and first.

    mode: of guests whose policy and rules don't say.
    digest: another one for other rules or classes, on whichever host; "" without rules.
    """

    rules: tuple[Rule, ...] = ()
    metadata: bool = True
    mode: str = ENFORCE
    digest: str = ""

    def __bool__(self) -> bool:
        """Return whether policies may come from elsewhere than metadata."""
        return bool(self.rules) or not self.metadata

    @cached_property
    def ask_sizes(self) -> bool:
        """Whether a rule goes by the size of drives."""
        return any(
            SIZE in table.when or any(isinstance(each, PerGb) for each in table.given.values())
            for rule in self.rules
            for table in rule.drives
        )

    def fit(self, facts: Facts, classes: Mapping[str, DrivePolicy], where: str) -> Fit:
        """Return the rules that fit a guest, from the top to one that ends the search.

        classes: the known ones by name. where: the guest's name in errors.
        """
        layers: list[Layer] = []
        errors: list[PolicyError] = []
        holds: set[str] = set()
        sold: set[tuple[str, str]] = set()
        ends = None
        for rule in self._candidates(facts.vm):
            if not fits(rule.when, facts.vm):
                continue
            made = _Made(rule, facts, classes, f"{where}, rule {rule.name}")
            if rule.leaves_alone:
                ends = rule.name
                break
            layers.append(Layer(rule.name, made.written(), because(rule.when, facts.vm)))
            errors += made.errors
            sold |= {(rule.name, target) for target in made.sold}
            if not made.errors:
                holds.add(rule.name)
        return Fit(tuple(layers), tuple(errors), frozenset(holds), ends, frozenset(sold))

    def never(self) -> Iterator[tuple[Rule, Rule]]:
        """Yield rules that no guest can have anything of, each with the one before it."""
        ended: dict[tuple[object, ...], Rule] = {}
        for rule in self.rules:
            asked = _asked(rule.when)
            before = ended.get(()) or ended.get(asked)
            if before is not None and not (rule.tenant or rule.vm or rule.job_bps or rule.mode):
                yield rule, before
            elif before is not None and before.leaves_alone:
                yield rule, before
            if rule.ends:
                ended.setdefault(asked, rule)

    def _candidates(self, facts: Mapping[str, str]) -> Iterator[Rule]:
        """Yield the rules that may fit, in their order."""
        found = [
            number
            for number, fact, beginnings in self._index.others
            if fact is None or (fact in facts and facts[fact].startswith(beginnings))
        ]
        for fact, by_text in self._index.by_text.items():
            found += by_text.get(facts.get(fact, ""), ())
        return (self.rules[number] for number in sorted(found))

    @cached_property
    def _index(self) -> _Index:
        by_text: dict[str, dict[str, list[int]]] = {}
        others: list[tuple[int, str | None, tuple[str, ...]]] = []
        for number, rule in enumerate(self.rules):
            exact = next(((f, p.texts) for f, p in rule.when.items() if p.texts is not None), None)
            if exact is None:
                asked = next(iter(rule.when.items()), None)
                fact, begins = (None, ()) if asked is None else (asked[0], asked[1].beginnings)
                others.append((number, fact, begins))
                continue
            for text in dict.fromkeys(exact[1] or ()):
                by_text.setdefault(exact[0], {}).setdefault(text, []).append(number)
        return _Index(by_text, others)


def _asked(when: When) -> tuple[object, ...]:
    return tuple(sorted((fact, tuple(sorted(each.written))) for fact, each in when.items()))


class _Made:
    """What a rule gives a guest: the names that it makes are looked up. errors: of those.

    sold: the drives that it gives the limit in <iotune>.
    """

    def __init__(
        self, rule: Rule, facts: Facts, classes: Mapping[str, DrivePolicy], where: str
    ) -> None:
        self.errors: list[PolicyError] = []
        self.sold: set[str] = set()
        self._rule, self._facts, self._classes, self._where = rule, facts, classes, where

    def written(self) -> Written:
        rule, facts = self._rule, self._facts
        drives = {
            target: drive
            for target in facts.drives
            if (drive := self._drive(facts.of_drive(target))) is not None
        }
        return Written(
            drives,
            self._name(rule.class_name, facts.vm, is_class=True),
            self._name(rule.tenant, facts.vm),
            rule.vm,
            rule.job_bps,
            mode=rule.mode,
        )

    def _drive(self, facts: Mapping[str, str]) -> WrittenDrive | None:
        """Return what the rule's tables of drives give one; None if none fits."""
        given: dict[str, object] = {}
        some = False
        for table in self._rule.drives:
            if not fits(table.when, facts):
                continue
            some = True
            if "limit" in table.sold and "limit" not in given and follows_iotune(facts):
                self.sold.add(facts.get("target", ""))
            given = fitting({**self._given(table, facts), **given})
            name = self._name(table.class_name, facts, is_class=True)
            if name is not None:
                return WrittenDrive(given, name, self._where)
        return WrittenDrive(given, None, self._where) if some else None

    def _given(self, table: DriveRule, facts: Mapping[str, str]) -> Mapping[str, object]:
        """Return what a table gives a drive, by its size and by what the platform sells."""
        try:
            given = sized(table.given, facts, self._where)
            found = only(sold(facts, self._where), table.sold) if table.sold else {}
            if "max_bytes" in given:  # the operator's own word
                found.pop("max_bytes", None)
            return {**given, **found}
        except PolicyError as error:
            self._note(error)
            return {n: value for n, value in table.given.items() if not isinstance(value, PerGb)}

    def _note(self, error: PolicyError) -> None:
        if error not in self.errors:  # one of many drives
            self.errors.append(error)

    def _name(
        self, template: Template | None, facts: Mapping[str, str], *, is_class: bool = False
    ) -> str | None:
        if template is None:
            return None
        try:
            name = template.name(facts, self._where)
            if is_class:
                class_of(name, self._classes, self._where)
        except PolicyError as error:
            self._note(error)
            return None
        return name
