"""A blkio cgroup (v1) with groups in it, for a benchmark's processes."""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path("/sys/fs/cgroup/blkio")


@contextlib.contextmanager
def blkio_groups(weights: Mapping[str, int]) -> Iterator[dict[str, str]]:
    """Make a group for each name, with a BFQ weight; remove them at the end.

    What still runs in them then goes to the root group.

    Yields name -> the group's path below the controller's root, as fio's `cgroup` wants it.
    BFQ must have a device, or groups have no weight.
    """
    top = ROOT / f"lab-{os.getpid()}"
    top.mkdir()
    try:
        for name, weight in weights.items():
            (top / name).mkdir()
            (top / name / "blkio.bfq.weight").write_text(str(weight))
        yield {name: f"{top.name}/{name}" for name in weights}
    finally:
        for group in (*(top / name for name in weights), top):
            if group.exists():
                _remove(group)


def _remove(group: Path) -> None:
    # A process that has just ended may still be in it.
    for _ in range(100):
        for process in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (ROOT / "cgroup.procs").write_text(process)
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.02)
    group.rmdir()
