"""A controller: what it is called, whether it can run, and how it holds a stage's drives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from benchmarks.bench.running.stage import Stage
from benchmarks.bench.scenario import Scenario


class Held(Protocol):
    """A controller at work."""

    def cpu_s(self) -> float | None:
        """Return the processor time that it has used, in seconds; None: it is no process."""


class Kernel:
    """A controller that is no process: QEMU or the kernel does all the work."""

    def cpu_s(self) -> float | None:
        """Return None: its work can't be told from the rest."""
        return None


class Controller(ABC):
    """A way to hold drives.

    exact: it needs the patched QEMU. rule: counts up when it holds drives in another way than
    before, so that its older runs can be told. needs: what else it takes, if any.
    """

    exact = False
    rule = 1
    needs: str | None = None

    def __init__(self, name: str, title: str) -> None:
        self.name, self.title = name, title

    def unfit(self, scenario: Scenario) -> str | None:
        """Return why it can't run a scenario on any machine; None if it can."""
        return None

    def is_for(self, scenario: Scenario) -> bool:
        """Return whether a scenario asks for it at all."""
        return True

    def lacks(self, scenario: Scenario) -> str | None:
        """Return why it can't run a scenario here, and what it would take; None if it can."""
        return self.unfit(scenario)

    def scenario(self, scenario: Scenario, free_rate: float | None) -> Scenario:
        """Return the scenario as this controller runs it.

        free_rate: of all drives together with no control; None: it isn't known.
        """
        return scenario

    @abstractmethod
    def hold(self, stage: Stage) -> AbstractContextManager[Held]:
        """Hold a stage's drives until the end of the block."""


class InKernel(Controller):
    """A controller that only sets something at the beginning."""

    @abstractmethod
    def begin(self, stage: Stage) -> None:
        """Set it. What is set goes with the stage."""

    @contextmanager
    def hold(self, stage: Stage) -> Iterator[Held]:
        """Set it; it goes with the stage."""
        self.begin(stage)
        yield Kernel()
