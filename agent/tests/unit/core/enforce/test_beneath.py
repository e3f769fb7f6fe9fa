"""What images add below QEMU's throttle: learned by the kernel's count, within an end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.enforce.backstop import NOTHING, Io, IoMax, backstop
from iokeel.core.enforce.beneath import (
    MOST_BYTES,
    MOST_REQUESTS,
    Beneath,
    Reading,
    Work,
    seen,
    work_of,
)
from iokeel.core.values.counters import NS_PER_S, Counters
from iokeel.core.values.curve import DEFAULT_MODEL

KIB = 1024
# The default curve's bounds for 1000 normalized operations: 8.85 MB/s and 1,250 requests a second.
BOUNDS = backstop(DEFAULT_MODEL, 1000.0, 1.25)


def look(
    before: Beneath,
    did: Io,
    work: Work | None,
    *,
    bounds: IoMax = BOUNDS,
    jobs: Io = NOTHING,
    seconds: int = 1,
) -> Beneath:
    """Return what is known after some seconds of `did`, a second."""
    last = before.last or Reading(NS_PER_S, NOTHING)
    now = Reading(last.at_ns + seconds * NS_PER_S, last.total.plus(did.times(seconds)))
    return seen(before, now, work, bounds, jobs)


FIRST = seen(Beneath(), Reading(NS_PER_S, NOTHING), None, BOUNDS, NOTHING)
# 4K writes to a fresh qcow2 overlay: each reads 60 KiB and writes a cluster.
WRITES = Work(135.0, Io(wbps=135 * 4 * KIB, wiops=135))
COPIES = Io(135 * 60 * KIB, 135 * 64 * KIB, 135, 135)


def test_what_the_kernel_counts_beyond_the_drives_is_added_for_each_operation() -> None:
    known = look(FIRST, COPIES, WRITES)
    assert known.added.rbps == pytest.approx(60 * KIB)
    assert known.added.wbps == pytest.approx(60 * KIB)


def test_bounds_that_held_copies_leave_room_for_the_whole_share_at_once() -> None:
    known = look(FIRST, COPIES, WRITES)
    wider = BOUNDS.wider(known.added.times(1000 * 1.25))
    for _, bound in wider.items():
        assert bound is not None
    assert (wider.rbps or 0) > 1000 * 60 * KIB
    assert (wider.wbps or 0) > 1000 * 64 * KIB


def test_a_bound_that_is_used_up_is_named() -> None:
    assert look(FIRST, COPIES, WRITES).full == ("wbps",)
    assert look(FIRST, COPIES.times(1.1), WRITES).full == ("rbps", "wbps")
    assert look(FIRST, COPIES.times(0.5), WRITES).full == ()


def test_a_group_far_below_its_bounds_teaches_nothing() -> None:
    # One request of a guest, and a table of 64 KiB beside it.
    known = look(FIRST, Io(rbps=64 * KIB, riops=2), Work(1.0, Io(4 * KIB, 0, 1, 0)))
    assert known.added == NOTHING


def test_a_bound_that_is_not_there_teaches_nothing() -> None:
    known = look(FIRST, COPIES, WRITES, bounds=IoMax())
    assert (known.added, known.full) == (NOTHING, ())


def test_drives_alone_add_nothing() -> None:
    did = Io(8_000_000, 0, 1000, 0)
    assert look(FIRST, did, Work(1000.0, did)).added == NOTHING


def test_requests_from_the_hosts_cache_take_nothing_off() -> None:
    work = Work(1000.0, Io(rbps=4_000_000, riops=1000))
    known = look(look(FIRST, COPIES, WRITES), Io(wbps=8_000_000), work)
    assert known.added.rbps == pytest.approx(60 * KIB, rel=0.01)


def test_a_higher_value_counts_at_once_and_a_lower_one_after_hours() -> None:
    known = look(FIRST, COPIES, WRITES)
    higher = look(known, COPIES.times(2), WRITES)
    assert higher.added.wbps == pytest.approx(124 * KIB, rel=0.01)
    idle = look(higher, NOTHING, Work())
    assert idle.added.wbps == pytest.approx(higher.added.wbps, rel=0.001)
    hour = look(higher, NOTHING, Work(), seconds=3600)
    assert hour.added.wbps == pytest.approx(higher.added.wbps / 2)


def test_the_room_of_block_jobs_is_not_taken_for_what_images_add() -> None:
    assert look(FIRST, COPIES, WRITES, jobs=COPIES).added == NOTHING


def test_nothing_is_learned_while_it_is_not_known_what_the_drives_did() -> None:
    did = COPIES.times(0.9)
    known = look(FIRST, did, None)
    assert (known.added, known.did) == (NOTHING, did)


def test_a_bound_that_is_used_up_is_widened_though_qemu_tells_nothing() -> None:
    """libvirt tells nothing either while the kernel zeroes a block device."""
    known = look(FIRST, Io(wbps=float(BOUNDS.wbps or 0)), None)
    assert known.full == ("wbps",)
    assert known.added.wbps == 4 << 20, "as much as an operation may add"
    reads = Io(rbps=float(BOUNDS.rbps or 0))
    assert look(FIRST, reads, None).added == NOTHING, "they may be those of a reset"
    assert look(FIRST, reads.plus(Io(wbps=float(BOUNDS.wbps or 0))), None).added.rbps == 0


def test_a_request_that_a_bound_holds_up_for_seconds_teaches_before_it_ends() -> None:
    tiny = backstop(DEFAULT_MODEL, 10.0, 1.25)
    known = look(FIRST, Io(2 << 20, 2 << 20, 16, 16), Work(), bounds=tiny)
    assert known.added.rbps == 2 << 20


@pytest.mark.parametrize("total", [NOTHING, Io(10, 0, 0, 0)])
def test_counters_that_stand_still_or_go_backwards_teach_nothing(total: Io) -> None:
    known = look(look(FIRST, COPIES, WRITES), COPIES, WRITES)
    assert known.last is not None
    back = seen(known, Reading(known.last.at_ns + NS_PER_S, total), WRITES, BOUNDS, NOTHING)
    assert (back.did, back.full, back.added) == (None, (), known.added)
    again = seen(known, known.last, WRITES, BOUNDS, NOTHING)  # no time has passed
    assert (again.did, again.added) == (None, known.added)


amounts = st.floats(0, 1e15)


@given(
    st.lists(
        st.tuples(st.builds(Io, amounts, amounts, amounts, amounts), st.floats(0, 1e9)),
        min_size=1,
        max_size=5,
    )
)
def test_whatever_a_qemu_does_an_operation_adds_no_more_than_the_most(
    looks: list[tuple[Io, float]],
) -> None:
    known = FIRST
    for did, rate in looks:
        before, known = known.added, look(known, did, Work(rate))
        added = known.added
        assert max(added.rbps, added.wbps) <= MOST_BYTES
        assert max(added.riops, added.wiops) <= MOST_REQUESTS
        assert min(added) >= 0
        assert all(new >= 0.99 * old for new, old in zip(added, before, strict=True))


def reading(at_s: int, reads: int, writes: int, size: int = 4 * KIB) -> Counters:
    return Counters(at_s * NS_PER_S, reads, reads * size, writes, writes * size, 0, 0)


def test_the_work_of_drives_is_what_all_of_them_did() -> None:
    drives = [
        (reading(1, 0, 0), reading(3, 200, 0), DEFAULT_MODEL),
        (reading(1, 5, 5), reading(2, 5, 105), DEFAULT_MODEL),
    ]
    assert work_of(drives) == Work(200.0, Io(100 * 4 * KIB, 100 * 4 * KIB, 100, 100))
    assert work_of([]) == Work()


def test_the_work_is_not_known_if_one_drives_counters_went_backwards() -> None:
    drives = [
        (reading(1, 0, 0), reading(3, 200, 0), DEFAULT_MODEL),
        (reading(1, 5, 5), reading(2, 0, 0), DEFAULT_MODEL),
    ]
    assert work_of(drives) is None
