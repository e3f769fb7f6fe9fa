"""Makes the rules of [[rules]], and says what is wrong with one."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Any

from iokeel.config.settings import Config
from iokeel.config.tables import PLATFORM, Root, RuleDriveTable, RuleTable
from iokeel.core.values.policy import (
    ENFORCE,
    MOST_IOPS,
    DrivePolicy,
    VmPolicy,
    checked_job_bps,
    override,
    vm_policy,
    with_implied,
)
from iokeel.errors import ConfigError
from iokeel.libvirt_xml.schema import NAME
from iokeel.rules.by_size import PerGb
from iokeel.rules.known import EITHER, PREFIXES, is_of_drive, is_trusted, names, who_controls
from iokeel.rules.patterns import Patterns, Template, When, mistyped, why_never
from iokeel.rules.rule import DriveRule, Rule, Rules
from iokeel.words.quoting import did_you_mean, shown

_VM = {field.name for field in fields(VmPolicy)}
_PLACE = "{fact}"


def rules_of(raw: Root, classes: Mapping[str, DrivePolicy], file: str) -> Rules:
    """Return the rules of a file. Raises ConfigError or PolicyError, which names rule and key."""
    trust = raw.policy.trust
    for fact in trust:
        if not any(fnmatchcase(name, fact) for name in names()):
            raise _unknown(f"{file}, [policy] trust", fact)
    made, taken = [], set[str]()
    for number, table in enumerate(raw.rules, 1):
        where = f"{file}, [[rules]] {number} ({table.name})"
        if table.name in taken:
            raise ConfigError(where, "another rule has this name", "give each its own")
        taken.add(table.name)
        made.append(_Reader(where, classes, trust).rule(table))
    digest = _digest(raw) if made or not raw.policy.metadata else ""
    return Rules(tuple(made), raw.policy.metadata, raw.policy.mode or ENFORCE, digest)


def _digest(raw: Root) -> str:
    """Return a digest of what a file's rules give, as written, so that versions don't matter."""
    given = raw.model_dump(
        mode="json",
        include={"policy", "rules", "classes"},
        exclude_unset=True,
        by_alias=True,
        warnings=False,  # of figures by size, which pydantic knows only as they are written
    )
    return blake2b(json.dumps(given, sort_keys=True).encode(), digest_size=6).hexdigest()


def rule_complaints(config: Config) -> Iterator[ConfigError]:
    """Yield the rules that no guest can have anything of, and what never fits in others."""
    for rule in config.rules.rules:
        tables: list[tuple[str, When, When | None]] = [(f"rule {rule.name}", rule.when, None)]
        tables += [
            (f"rule {rule.name}, [[rules.drives]] {number}", table.when, rule.when)
            for number, table in enumerate(rule.drives, 1)
        ]
        for where, when, above in tables:
            if (why := why_never(when, above)) is not None:
                yield ConfigError(where, f"never fits: {why}", "correct when, or remove the table")
                if above is None:
                    break  # nor do its tables
            elif (fact := mistyped(when, PREFIXES)) is not None:
                what = f"{fact} is a fact of your own files"
                yield ConfigError(where, what, did_you_mean(fact, names()))
    for rule, before in config.rules.never():
        what = f"never counts, because rule {before.name} before it leaves nothing to give"
        yield ConfigError(f"rule {rule.name}", what, f"put it before {before.name}, or remove it")


class _Reader:
    """Reads a rule. where: its place in errors. trust: patterns of tenants' facts it may go by."""

    def __init__(
        self, where: str, classes: Mapping[str, DrivePolicy], trust: Collection[str]
    ) -> None:
        self._where, self._classes, self._trust = where, classes, trust

    def rule(self, table: RuleTable) -> Rule:
        where = self._where
        vm = {name: getattr(table, name) for name in _VM & table.model_fields_set}
        rule = Rule(
            table.name,
            self._when(table.when, where, of_drive=False),
            self._template(table.tenant, f"{where} tenant"),
            self._class(table.class_, f"{where} class", of_drive=False),
            vm,
            checked_job_bps(table.job_bps, where),
            tuple(
                self._drive(drive, number, table.class_)
                for number, drive in enumerate(table.drives, 1)
            ),
            table.policy == "none",
            table.mode,
        )
        vm_policy(vm, where, str)
        if vm and "limit" not in vm and "reservation" not in vm:
            raise ConfigError(where, "burst_seconds without a limit", "give a limit, too")
        gives = rule.tenant or rule.class_name or vm or rule.drives or rule.mode
        if rule.leaves_alone and gives:
            mend = "remove what it gives, or policy"
            raise ConfigError(where, 'policy = "none" leaves guests alone, but it gives more', mend)
        return rule

    def _drive(self, table: RuleDriveTable, number: int, class_name: str | None) -> DriveRule:
        where = f"{self._where}, [[rules.drives]] {number}"
        written = {
            name: getattr(table, name)
            for name in sorted(table.model_fields_set - {"when", "class_", "budget"})
        }
        sold = tuple(name for name, value in written.items() if value == PLATFORM)
        if sold == ("burst",):
            raise ConfigError(where, f"burst is {PLATFORM}, and limit isn't", "let both be it")
        given: dict[str, Any] = {n: value for n, value in written.items() if n not in sold}
        if table.budget is not None:
            given["separate_budgets"] = table.budget == "separate"
        if "limit" not in sold:
            given = with_implied(given)
        # A burst, or a limit of one direction, without a limit is for that of the class.
        by_size = [name for name, value in given.items() if isinstance(value, PerGb)]
        has_class = table.class_ is not None or class_name is not None or bool(sold or by_size)
        plain = {name: value for name, value in given.items() if name not in by_size}
        of_class = plain.get("burst") or MOST_IOPS if has_class else None
        override(DrivePolicy(limit=of_class), plain, where, str)
        return DriveRule(
            self._when(table.when, where, of_drive=True),
            given,
            self._class(table.class_, f"{where} class", of_drive=True),
            sold,
        )

    def _when(self, asked: Mapping[str, list[str]], where: str, *, of_drive: bool) -> When:
        when = {}
        for fact, patterns in asked.items():
            at = f"{where} when"
            self._check_fact(fact, at, of_drive=of_drive)
            when[fact] = Patterns(tuple(patterns))
            if fact in EITHER and not when[fact].can_fit(EITHER[fact]):
                texts = " or ".join(EITHER[fact])
                what = f"{fact} is {texts}, so {shown(patterns[0])} can't ever fit"
                raise ConfigError(at, what, f"write {texts}")
        return when

    def _check_fact(self, fact: str, where: str, *, of_drive: bool) -> None:
        who = who_controls(fact)
        if who is None:
            raise _unknown(where, fact)
        if is_of_drive(fact) and not of_drive:
            mend = "put it into [[rules.drives]] of this rule"
            raise ConfigError(where, f"{fact} is a fact of a drive, so it can't ever fit", mend)
        if not is_trusted(fact, self._trust):
            what = f"the tenant decides on {fact}, and could choose a policy by it"
            mend = f"go by another fact, or write trust = [{fact!r}] under [policy]"
            raise ConfigError(where, what, mend.replace("'", '"'))

    def _template(self, text: str | None, where: str, *, of_drive: bool = False) -> Template | None:
        if text is None:
            return None
        template = Template(text)
        for fact in template.facts:
            self._check_fact(fact, where, of_drive=of_drive)
        # Facts may make any part of it, and nothing else may stand there but what a name has.
        if not NAME.pattern.fullmatch(template.with_facts("x")):
            raise ConfigError(where, f"{shown(text)} is {NAME.what}", f"{NAME.mend}, and {_PLACE}")
        return template

    def _class(self, text: str | None, where: str, *, of_drive: bool) -> Template | None:
        template = self._template(text, where, of_drive=of_drive)
        if template is not None and not template.facts and text not in self._classes:
            mend = did_you_mean(template.text, self._classes)
            raise ConfigError(where, f"class {shown(text)} is not known", mend)
        return template


def _unknown(where: str, fact: str) -> ConfigError:
    what = f"{shown(fact)} is no fact, so it can't ever fit"
    return ConfigError(where, what, did_you_mean(fact, names()))
