"""What sysfs says of a device's scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest

from iokeel.host.kernel import has_bfq, is_hard_disk_with_bfq


@pytest.mark.parametrize(
    ("scheduler", "rotational", "bfq", "both"),
    [
        ("mq-deadline kyber [bfq] none", "1", True, True),
        ("mq-deadline kyber [bfq] none", "0", True, False),
        ("[none] mq-deadline kyber bfq", "1", False, False),
        ("none", "1", False, False),
        (None, "1", None, None),
        ("none [bfq]", None, True, None),
        (None, None, None, None),
    ],
)
def test_bfq_is_seen_and_what_is_not_known_is_none(
    tmp_path: Path, scheduler: str | None, rotational: str | None, bfq: bool, both: bool
) -> None:
    queue = tmp_path / "dev/block/8:16/queue"
    queue.mkdir(parents=True)
    for name, text in {"scheduler": scheduler, "rotational": rotational}.items():
        if text is not None:
            (queue / name).write_text(f"{text}\n")
    assert has_bfq("8:16", tmp_path) is bfq
    assert is_hard_disk_with_bfq("8:16", tmp_path) is both
