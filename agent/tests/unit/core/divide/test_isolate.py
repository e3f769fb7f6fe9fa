"""A computation that fails on some of its parts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.divide.everything import isolate

PARTS = list("abcdefghij")


class Sum:
    """Joins letters; `bad` ones fail, and all together if there are too `many`."""

    def __init__(self, bad: str = "", many: int = 100) -> None:
        self.bad, self.many, self.tries = bad, many, 0

    def __call__(self, parts: Sequence[str]) -> str:
        self.tries += 1
        if {*self.bad} & {*parts} or len(parts) > self.many:
            raise ValueError(self.bad)
        return "".join(sorted(parts))


@given(st.sets(st.sampled_from(PARTS)))
def test_all_parts_but_the_faulty_ones_are_in_the_result(bad: set[str]) -> None:
    result, faults = isolate(Sum("".join(bad)), PARTS)
    assert faults.keys() == bad
    assert result == "".join(sorted({*PARTS} - bad))


def test_parts_that_only_fail_together_are_divided() -> None:
    result, faults = isolate(Sum(many=6), PARTS)
    assert (len(result), len(faults)) == (6, 4)


def test_a_part_that_failed_before_costs_the_others_one_try() -> None:
    compute = Sum("c")
    result, faults = isolate(compute, [part for part in PARTS if part != "c"], ["c"])
    assert (result, {*faults}, compute.tries) == ("abdefghij", {"c"}, 2)


def test_a_part_that_failed_before_is_in_the_result_once_it_works() -> None:
    assert isolate(Sum(), ["a", "b"], ["c"]) == ("abc", {})


def test_many_faults_end_in_a_bounded_number_of_tries() -> None:
    parts = [f"{number:04}" for number in range(2000)]
    tries = 0

    def compute(some: Sequence[str]) -> int:
        nonlocal tries
        tries += 1
        if any(int(part) % 2 for part in some):
            raise ValueError("odd")
        return len(some)

    result, faults = isolate(compute, parts)
    assert tries < 150
    assert result + len(faults) == len(parts)


def test_what_fails_without_any_part_is_raised() -> None:
    with pytest.raises(ValueError, match="x"):
        isolate(Sum("x", many=-1), PARTS)
