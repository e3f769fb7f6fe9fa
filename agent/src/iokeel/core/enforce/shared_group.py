"""Drives of a VM that share a throttle group: QEMU's limits are the group's, not each drive's.

So the limits from before the agent are the group's too. They are given back when the last drive is
released that is held there. If a drive with limits of ours leaves its group, that group keeps them.
Then a drive that is still in there takes over the record of them, and is released. And each drive
knows the limits of the others as ours, so that the last one can tell what it may take back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from iokeel.core.enforce.look import is_ours
from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Reason, SetLimits
from iokeel.core.values.state import NEW, DriveState, Sent


def with_moves(
    before: Mapping[DriveId, DriveState],
    now: Mapping[DriveId, DriveState],
    seen: Mapping[DriveId, DriveSeen],
    failures: dict[DriveId | str | None, Exception],
) -> dict[DriveId, DriveState]:
    """Return the drives whose records change because of others in their groups, or a move.

    before, now: all drives before and after their reading; those that are gone aren't in `now`.
    failures: by drive, to which errors are added.
    """
    changed: dict[DriveId, DriveState] = {}
    for drive, sees in seen.items():
        sent, group = now[drive].sent, sees.group
        if group is None or sent.limits is None or (not group and sent.group == group):
            continue
        try:
            _follow_group(drive, before, now, seen, changed)
        except Exception as error:
            failures[drive] = error
    if gone := before.keys() - now.keys():
        run_on = {drive.domain for drive in seen}
        for drive in gone:
            if drive.domain in run_on:
                try:
                    changed.update(_heirs(drive, before[drive].sent, now, seen))
                except Exception as error:
                    failures[None] = error
    return changed


def _follow_group(
    drive: DriveId,
    before: Mapping[DriveId, DriveState],
    now: Mapping[DriveId, DriveState],
    seen: Mapping[DriveId, DriveSeen],
    changed: dict[DriveId, DriveState],
) -> None:
    """Change the record of a drive that shares its group or has moved, and those of its heirs."""
    known, group, in_force = now[drive], seen[drive].group, seen[drive].in_force
    if group is None or in_force is None:
        return
    sent = known.sent
    if group and in_force not in sent.ours and _is_anothers(drive, group, in_force, before):
        sent = sent._replace(carried_out=in_force)
    if sent.group != group:
        if sent.group is not None:  # else it only wasn't known
            changed.update(_heirs(drive, sent, now, seen))
            sent = sent._replace(found=_found_there(drive, sent, group, in_force, now))
        sent = sent._replace(group=group)
    if sent is not known.sent:
        changed[drive] = known._replace(sent=sent)


def with_first(
    before: Mapping[DriveId, DriveState],
    now: Mapping[DriveId, DriveState],
    seen: Mapping[DriveId, DriveSeen],
) -> dict[DriveId, DriveState]:
    """Return the drives that get their first limits in a group that has some of ours already.

    What they found are those. before, now: drives before and after a look at them.
    """
    first = [
        (drive, sees.group)
        for drive, sees in seen.items()
        if sees.group
        and now[drive].sent.limits is not None
        and before.get(drive, NEW).sent.limits is None
    ]
    records = _records(before) if first else {}
    return {
        drive: now[drive]._replace(sent=now[drive].sent._replace(found=record.found))
        for drive, group in first
        if (record := records.get((drive.domain, group))) is not None
    }


def without_release(
    now: Mapping[DriveId, DriveState],
    seen: Mapping[DriveId, DriveSeen],
    orders: Iterable[SetLimits],
) -> dict[DriveId, DriveState]:
    """Return the released drives whose groups are held for others; their orders aren't to be sent.

    The last one that is held gives the limits back. An order for no limits is always sent: it takes
    its drive out of the group.
    """
    released = [
        order.drive
        for order in orders
        if order.reason is Reason.RELEASED and not order.limits.unlimited
    ]
    if not released:
        return {}
    held = {(d.domain, sees.group) for d, sees in seen.items() if sees.group and now[d].is_held}
    changed = {}
    for drive in released:
        if (drive.domain, seen[drive].group) in held:
            sent = now[drive].sent
            bare = Sent(retunes=sent.retunes, overwritten=sent.overwritten)
            changed[drive] = now[drive]._replace(sent=bare)
    return changed


def _heirs(
    drive: DriveId,
    sent: Sent,
    now: Mapping[DriveId, DriveState],
    seen: Mapping[DriveId, DriveSeen],
) -> dict[DriveId, DriveState]:
    """Return the drives that take over the record of one that has left its group.

    None if others of it have limits of ours: the last of these gives back what the group had.
    """
    if sent.limits is None or not sent.group:
        return {}
    others = [
        other
        for other, sees in seen.items()
        if sees.group == sent.group and other.domain == drive.domain and other != drive
    ]
    if any(now[other].sent.limits is not None for other in others):
        return {}
    record = Sent(sent.limits, sent.replaced, sent.found, carried_out=sent.carried_out)
    return {
        other: now[other]._replace(sent=record._replace(group=sent.group))
        for other in others
        if is_ours(seen[other].in_force, sent)
    }


def _is_anothers(
    drive: DriveId, group: str, in_force: ThrottleLimits, before: Mapping[DriveId, DriveState]
) -> bool:
    """Return whether limits in force on a drive's group may be ours for another drive there."""
    return any(
        known.sent.group == group
        and known.sent.limits is not None
        and other.domain == drive.domain
        and other != drive
        and is_ours(in_force, known.sent)
        for other, known in before.items()
    )


def _found_there(
    drive: DriveId,
    sent: Sent,
    group: str,
    in_force: ThrottleLimits,
    now: Mapping[DriveId, DriveState],
) -> ThrottleLimits | None:
    """Return the limits to give back to the group that a drive has moved to.

    A new group has what came along with the drive: limits of ours, maybe those of another drive of
    the former group. A group without limits is the drive's own.
    """
    record = _records(now).get((drive.domain, group)) if group else None
    if record is not None:
        return record.found
    came_along = any(
        is_ours(in_force, known.sent)
        for other, known in now.items()
        if other.domain == drive.domain and known.sent.limits is not None
    )
    return sent.found if in_force.unlimited or came_along else in_force


def _records(drives: Mapping[DriveId, DriveState]) -> dict[tuple[str, str], Sent]:
    """Return a record of limits of ours by VM and group: those of all drives there are the same."""
    return {
        (drive.domain, known.sent.group): known.sent
        for drive, known in drives.items()
        if known.sent.group and known.sent.limits is not None
    }
