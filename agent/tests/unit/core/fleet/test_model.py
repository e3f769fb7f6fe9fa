"""The grant protocol of the fleet, with faults in any order: never above, never below the floor.

A mutant of the protocol has to be caught by the same machine with the same settings.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from testing.sim.shared_budget import TooLittle, TooMuch
from tests.unit.core.fleet.model import FleetModel
from tests.unit.core.fleet.mutants import MUTANTS


def run(machine: type[FleetModel], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_never_above_nor_below_the_floor_whatever_fails() -> None:
    run(FleetModel, 120)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str) -> None:
    machine = type("Mutant", (FleetModel,), {"protocol": MUTANTS[name]})
    with pytest.raises((TooMuch, TooLittle)):
        run(machine, 120)
