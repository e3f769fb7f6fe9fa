"""A host whose drives' rates are given, recorded by the agent's own recorder in virtual time."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path

from iokeel.core.values.counters import NS_PER_S, DriveId
from iokeel.core.values.state import DriveState, Measured, State, StorageState
from iokeel.report.metrics.prometheus import Metrics
from iokeel.report.records import Above
from iokeel.report.snapshot import series_values
from iokeel.running.minutes import Accounts, Seen
from iokeel.running.recorder import Recorder
from iokeel.store.weeks import HOUR_S

#: The hour that a recording begins with unless another is given.
FIRST = 480_000


class Recording:
    """An agent's recorder in a folder, and both clocks. What is over is recorded at once.

    now_s: the wall clock; a test may set it. uuids: of VMs; the others have none.
    """

    def __init__(self, folder: Path, hour: int = FIRST, *, keep_hours: int = 336) -> None:
        self.metrics = Metrics()
        socket = folder / "agent.sock"
        self.recorder = Recorder(folder / "history.db", socket, self.metrics, keep_hours)
        self.now_s = float(hour * HOUR_S)
        self.uuids: dict[str, str] = {}
        self._accounts = Accounts()
        self._at_ns = 0

    def sample(
        self,
        drives: Mapping[DriveId, DriveState],
        step_s: float = 2.0,
        storages: Mapping[str, StorageState] | None = None,
        above: Mapping[DriveId, Above] | None = None,
    ) -> None:
        """Take one sample, so long after the last one. It is the agent's only look in that time."""
        drives = {drive: _over(known, step_s) for drive, known in drives.items()}
        self._at_ns += round(step_s * NS_PER_S)
        self.now_s += step_s
        values = array("f", series_values(State(drives=drives)))
        before = {drive: known._replace(measured=Measured()) for drive, known in drives.items()}
        after = State(drives=drives, storages=dict(storages or {}))
        self._accounts.look(State(drives=before), after, drives, self._at_ns)
        seen = Seen(drives, storages or {}, values, self.uuids, above or {}, self._accounts)
        if self.recorder.sample(self._at_ns, self.now_s, seen):
            self.recorder.record_now()

    def run(self, seconds: float, rates: Mapping[DriveId, float], step_s: float = 2.0) -> None:
        """Let drives without a policy, on the storage "ssd", do these rates."""
        drives = {
            drive: DriveState(storage="ssd", measured=Measured(rate=rate))
            for drive, rate in rates.items()
        }
        for _ in range(round(seconds / step_s)):
            self.sample(drives, step_s)

    def stop(self) -> None:
        """Record the rest, as a clean stop of the agent does."""
        self.recorder.finish()
        self.recorder.record_now(ends=True)


def _over(known: DriveState, seconds: float) -> DriveState:
    """Return the state of a drive whose last interval was so long, and had only reads."""
    measured = known.measured
    if measured.rates is None:
        return known
    rates = measured.rates._replace(elapsed_s=seconds)
    return known._replace(measured=measured._replace(rates=rates, read_rate=measured.rate))
