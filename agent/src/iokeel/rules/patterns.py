"""What a rule asks of facts, and the names that it makes of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase, translate
from functools import cached_property

from iokeel.errors import PolicyError
from iokeel.libvirt_xml.schema import NAME
from iokeel.rules.known import is_number, platform_of
from iokeel.words.quoting import shown

_WILD = re.compile(r"[*?\[]")
_FACT = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class Patterns:
    """What a rule asks of a fact: it fits one of the patterns, and none of those after an `!`.

    written: at least one, with the wildcards * ? [ab] (fnmatch). If all have an `!`, any other text
    fits. A fact that isn't known fits nothing.
    """

    written: tuple[str, ...]

    def fit(self, text: str | None) -> bool:
        """Return whether a fact fits; None: it isn't known."""
        if text is None:
            return False
        one_of, none_of = self._compiled
        return (one_of is None or one_of.match(text) is not None) and (
            none_of is None or none_of.match(text) is None
        )

    @property
    def texts(self) -> tuple[str, ...] | None:
        """The only texts that fit; None if there are others."""
        wild = any(each.startswith("!") or _WILD.search(each) for each in self.written)
        return None if wild else self.written

    @property
    def beginnings(self) -> tuple[str, ...]:
        """What a text begins with that fits: one of these."""
        one_of = [each for each in self.written if not each.startswith("!")]
        return tuple(_WILD.split(each, maxsplit=1)[0] for each in one_of) or ("",)

    def can_fit(self, texts: tuple[str, ...]) -> bool:
        """Return whether one of these texts fits."""
        return any(map(self.fit, texts))

    @cached_property
    def _compiled(self) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
        none_of = [each[1:] for each in self.written if each.startswith("!")]
        return _any([each for each in self.written if not each.startswith("!")]), _any(none_of)


def _any(patterns: list[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(translate, patterns))) if patterns else None


When = Mapping[str, Patterns]


def fits(when: When, facts: Mapping[str, str]) -> bool:
    """Return whether all that is asked for fits."""
    return all(patterns.fit(facts.get(fact)) for fact, patterns in when.items())


def because(when: When, facts: Mapping[str, str]) -> str:
    """Return why it fits, as a clause: nova.flavor is io1.large; "" if nothing is asked for."""
    return " and ".join(f"{fact} is {shown(facts[fact])[1:-1]}" for fact in when)


@dataclass(frozen=True, slots=True)
class Template:
    """A name with facts in braces: {nova.project}."""

    text: str

    @property
    def facts(self) -> list[str]:
        """The facts that it is made of."""
        return _FACT.findall(self.text)

    def with_facts(self, text: str) -> str:
        """Return the name with a text in place of each fact."""
        return _FACT.sub(lambda _: text, self.text)

    def name(self, facts: Mapping[str, str], where: str) -> str:
        """Return the name for a guest. Raises PolicyError if it makes none."""
        for fact in self.facts:
            if fact not in facts:
                mend = f"ask for it in the rule's when: {{{fact!r} = '*'}}"
                raise PolicyError(
                    where, f"{shown(self.text)} needs {fact}, which isn't known", mend
                )
        name = _FACT.sub(lambda found: facts[found[1]], self.text)
        if not NAME.pattern.fullmatch(name):
            what = f"{shown(self.text)} makes {shown(name)}, {NAME.what}"
            raise PolicyError(where, what, NAME.mend)
        return name


def why_never(when: When, above: When | None = None) -> str | None:
    """Return why no guest or drive ever fits, as a clause; None if one may.

    Each reason is sure, but not all that fits nothing is found.

    above: what the rule itself asks for, if this is one of its tables of drives.
    """
    above = above or {}
    for fact, patterns in when.items():
        if (why := _why_no_text(fact, patterns)) is not None:
            return why
        asked = above.get(fact)
        if asked is not None and _exclude(patterns, asked):
            rule, own = shown(asked.written[0]), shown(patterns.written[0])
            return f"the rule asks for {rule} as {fact}, and this table for {own}"
    platforms = {each: fact for fact in (*above, *when) if (each := platform_of(fact)) is not None}
    if len(platforms) > 1:
        one, other = sorted(platforms.values())[:2]
        return f"{one} and {other} are facts of two platforms, and no guest has both"
    return None


def _why_no_text(fact: str, patterns: Patterns) -> str | None:
    """Return why no text fits patterns; None if one may."""
    one_of = [each for each in patterns.written if not each.startswith("!")]
    none_of = [each[1:] for each in patterns.written if each.startswith("!")]
    by = {each: _excluder(each, none_of) for each in one_of or ["*"]}
    if None not in by.values():
        first, excluder = next(iter(by.items()))
        return f"{fact} fits {shown(first)} only where {shown(f'!{excluder}')} excludes it"
    if is_number(fact) and one_of and not any(map(_may_be_number, one_of)):
        return f"{fact} is a number, and {shown(one_of[0])} is none"
    return None


def _excluder(pattern: str, none_of: Collection[str]) -> str | None:
    """Return one of some patterns that fits all that a pattern does; None if none surely does."""
    begins = Patterns((pattern,)).beginnings[0]
    for other in none_of:
        start = other.rstrip("*")
        is_start = start != other and Patterns((start,)).texts is not None
        if other == pattern or (is_start and begins.startswith(start)):
            return other
        if begins == pattern and fnmatchcase(pattern, other):  # a text
            return other
    return None


def _exclude(one: Patterns, other: Patterns) -> bool:
    """Return whether no text surely fits both."""
    for texts, rest in ((one.texts, other), (other.texts, one)):
        if texts is not None:
            return not rest.can_fit(texts)
    return not any(
        mine.startswith(theirs) or theirs.startswith(mine)
        for mine in one.beginnings
        for theirs in other.beginnings
    )


def _may_be_number(pattern: str) -> bool:
    return "[" in pattern or not pattern.strip("*?") or _without_wildcards(pattern).isdecimal()


def _without_wildcards(pattern: str) -> str:
    return pattern.replace("*", "").replace("?", "")


def mistyped(facts: Iterable[str], prefixes: Collection[str]) -> str | None:
    """Return a fact whose prefix is nearly a platform's, so that no file was meant to have it."""
    for fact in facts:
        prefix = fact.partition(".")[0]
        if "." in fact and prefix not in prefixes and get_close_matches(prefix, prefixes, 1, 0.75):
            return fact
    return None
