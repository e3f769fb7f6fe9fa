"""An agent that keeps its old limits after its grant was lowered, and says that they are lower.

`make fleet BROKEN=1` runs it, to show that a run of the fleet finds it. Nothing of this is in the
agent's own package: this file runs the agent's command with two functions replaced.
"""

from __future__ import annotations

from dataclasses import replace

from iokeel.cli.main import main
from iokeel.core.fleet.claims import HostClaim
from iokeel.core.fleet.host import allowance
from iokeel.fleet.etcd import now_ns
from iokeel.fleet.participant import Participant


def keep_what_was_granted() -> None:
    """Have the agent of this process never lower what it has of a budget, and claim that it did."""
    most: dict[Participant, int] = {}
    claim_of = Participant._new_claim

    def kept(self: Participant) -> int:
        now = allowance(self.part, self._store.me, now_ns())
        most[self] = max(now, most.get(self, 0))
        return most[self]

    def claim(self: Participant) -> HostClaim:
        made, entry = claim_of(self), self.entry
        if entry is None:
            return made
        return replace(made, held=min(made.held, entry.amount), applied=entry.stamp)

    Participant.allowance = property(kept)  # type: ignore[method-assign, assignment]
    Participant._new_claim = claim  # type: ignore[method-assign]


if __name__ == "__main__":
    keep_what_was_granted()
    main()
