"""An agent that releases the drives of a bad policy, to show that a run of chaos finds it.

`make chaos BROKEN=1` runs it. Nothing of this is in the agent's own package: this file runs the
agent's command with one function replaced.
"""

from __future__ import annotations

from typing import Any

from iokeel.cli.main import main
from iokeel.errors import TargetsMissing
from iokeel.hypervisors.policies import Policies


def release_on_a_bad_policy() -> None:
    """Have the agent of this process take a bad policy for none."""
    read = Policies.read

    def read_or_release(self: Policies, *words: Any) -> Any:
        policy, bad = read(self, *words)
        in_part = isinstance(bad, TargetsMissing)
        return (policy, bad) if bad is None or in_part else (None, bad)

    Policies.read = read_or_release  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    release_on_a_bad_policy()
    main()
