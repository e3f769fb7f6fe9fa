"""The grant protocol of the fleet, with faults in any order: never above, never below the floor.

A mutant of the protocol has to be caught by the same machine. It gets more examples, because which
ones hypothesis tries also depends on the modules that the process has loaded; the first catch ends
its run.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from testing.sim.shared_budget import TooLittle, TooMuch
from tests.unit.core.fleet.model import FleetModel, StorageModel
from tests.unit.core.fleet.mutants import GRANTS_WHAT_LATENCY_HAS_TAKEN, MUTANTS


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


EXAMPLES, MOST_FOR_A_MUTANT = 120, 1200


@pytest.mark.parametrize("machine", [FleetModel, StorageModel])
def test_never_above_nor_below_the_floor_whatever_fails(machine: type[FleetModel]) -> None:
    run(machine, EXAMPLES)


def test_a_mutant_that_grants_what_latency_has_taken_is_caught() -> None:
    # It also divides unfairly, which would end the run before the sum is too much.
    changed = {"protocol": GRANTS_WHAT_LATENCY_HAS_TAKEN, "check_division": lambda _: None}
    machine = type("Mutant", (StorageModel,), changed)
    with pytest.raises(TooMuch):
        run(machine, MOST_FOR_A_MUTANT)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str) -> None:
    machine = type("Mutant", (FleetModel,), {"protocol": MUTANTS[name]})
    with pytest.raises((TooMuch, TooLittle)):
        run(machine, MOST_FOR_A_MUTANT)
