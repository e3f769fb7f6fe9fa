"""What a rule asks for that no guest and no drive can ever fit.

Each test is sure: what it tells of fits nothing. Not all that fits nothing is found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase

from iokeel.rules.known import is_number, platform_of
from iokeel.rules.patterns import Patterns, When
from iokeel.words.quoting import shown


def why_never(when: When, above: When | None = None) -> str | None:
    """Return why no guest or drive fits, as a clause; None if one may.

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
