"""A cgroup with groups in it, for a benchmark's processes: blkio's (v1), or else one of v2.

A loop device has one worker for each group, and a flush blocks it. So processes of one group wait
for each other's flushes, which a real disk would serve side by side.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from testing.waiting import eventually


def root(cgroups: Path = Path("/sys/fs/cgroup")) -> Path:
    """Return the folder for groups: blkio's; on a host that has only cgroup v2, that one's."""
    blkio = cgroups / "blkio"
    return blkio if (blkio / "blkio.throttle.io_serviced").exists() else cgroups


ROOT = root()
_PREFIX = "lab-"
_EMPTY_S = 2.0  # a process that has just ended may still be in its group


@contextlib.contextmanager
def blkio_groups(
    names: Iterable[str], weights: Mapping[str, int] | None = None
) -> Iterator[dict[str, str]]:
    """Make a group for each name, with a BFQ weight if `weights` has one; remove them at the end.

    Processes that still run in them move to the root group.

    Yields name -> the group's path below the controller's root, in the form of fio's `cgroup`.
    Groups have weights only if BFQ schedules a device.
    """
    top = ROOT / f"{_PREFIX}{os.getpid()}"
    groups = {name: top / name for name in names}
    top.mkdir()
    try:
        for name, group in groups.items():
            group.mkdir()
            if weights is not None:
                (group / "blkio.bfq.weight").write_text(str(weights[name]))
        yield {name: str(group.relative_to(ROOT)) for name, group in groups.items()}
    finally:
        for group in (*groups.values(), top):
            if group.exists():
                _remove(group)


def remove_stale() -> None:
    """Remove the groups of owners that were killed."""
    for top in ROOT.glob(f"{_PREFIX}*"):
        owner = top.name.removeprefix(_PREFIX)
        if owner.isdigit() and not Path("/proc", owner).exists():
            for group in (*(each for each in top.iterdir() if each.is_dir()), top):
                _remove(group)


def _remove(group: Path) -> None:
    def removed() -> bool:
        for process in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (ROOT / "cgroup.procs").write_text(process)
        group.rmdir()
        return True

    eventually(removed, _EMPTY_S)
