"""Constants of the law, by the names of their modules, and how to try other values of them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True)
class Sweep:
    """A constant of a module of the agent, and the values to try. Its own is tried too."""

    module: str
    name: str
    values: Sequence[float]

    @property
    def chosen(self) -> float:
        """The constant's own value. Raises LookupError if the module has no such constant."""
        value = getattr(import_module(self.module), self.name, None)
        if not isinstance(value, int | float):
            raise LookupError(
                f"{self.module} has no constant {self.name}: correct its row in the table of sweeps"
            )
        return value

    def all_values(self) -> list[float]:
        """Return the values to try and the constant's own, ascending."""
        return sorted({*self.values, self.chosen})

    @contextlib.contextmanager
    def at(self, value: float) -> Iterator[None]:
        """Give the constant another value, in its module and in those that import it by name."""
        chosen = self.chosen
        holders = [
            module
            for name, module in sys.modules.items()
            if name.startswith("iokeel.") and vars(module).get(self.name) is chosen
        ]
        for module in holders:
            setattr(module, self.name, value)
        try:
            yield
        finally:
            for module in holders:
                setattr(module, self.name, chosen)
