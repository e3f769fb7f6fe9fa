"""Finds the parts on which a computation fails, so that the others have its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

P = TypeVar("P")
R = TypeVar("R")

# With 1,000 parts and one fault it takes 20. Parts that are still untried then count as faults.
_MOST_TRIES = 64


def isolate(
    compute: Callable[[Sequence[P]], R], parts: Sequence[P], suspects: Sequence[P] = ()
) -> tuple[R, dict[P, Exception]]:
    """Return a result with as many parts as don't make it fail, and the errors of the others.

    compute: returns the result with some parts, or raises. suspects: parts that failed the last
    time; they are tried after the others. Raises what `compute` does without any part.
    """
    good: list[P] = []
    results: list[R] = []
    faults: dict[P, Exception] = {}
    groups = [list(group) for group in (suspects, parts) if group]  # the last is tried first
    tries = 0
    while groups:
        group = groups.pop()
        tries += 1
        try:
            results = [compute([*good, *group])]
            good += group
        except Exception as error:
            half = len(group) // 2
            if half and tries < _MOST_TRIES:
                groups += [group[half:], group[:half]]
            else:
                faults.update(dict.fromkeys(group, error))
    return results[0] if results else compute([]), faults
