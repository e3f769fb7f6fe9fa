"""The errors of iokeel: one class for each thing that a caller does differently."""

from __future__ import annotations

from collections.abc import Sequence


class IokeelError(Exception):
    """Root of all errors that iokeel raises on purpose.

    where: the thing at fault (a file and key, a drive, a socket). what: the fault. mend: what the
    operator can do; "" if nothing. Two errors of one class that say the same are equal.
    """

    def __init__(self, where: str, what: str, mend: str = "") -> None:
        super().__init__(where, what, mend)
        self.where = where
        self.what = what
        self.mend = mend

    def __str__(self) -> str:
        mend = f"; {self.mend}" if self.mend else ""
        return f"{self.where}: {self.what}{mend}"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, IokeelError) and type(other) is type(self) and other.args == self.args
        )

    def __hash__(self) -> int:
        return hash((type(self), self.args))


class ConfigError(IokeelError):
    """The agent's configuration, or an option of the command, can't be used."""

    @classmethod
    def of(cls, error: IokeelError, where: str) -> ConfigError:
        """Return the error that says the same of a place in the configuration or an option."""
        return cls(where, error.what, error.mend)


class CurveError(IokeelError):
    """A cost curve's points make no curve."""


class PolicyError(IokeelError):
    """A domain's policy can't be used; the last good one stays in force."""


class TargetsMissing(PolicyError):
    """A policy names drives that its domain lacks; it holds for the others.

    missing: the targets that it names in vain. present: the domain's own.
    """

    def __init__(self, where: str, missing: Sequence[str], present: Sequence[str]) -> None:
        super().__init__(
            where,
            f"the policy names {', '.join(missing)}, but there is no such drive",
            "correct the target or plug the drive in; the domain has "
            + (", ".join(present) or "none"),
        )
        self.missing = tuple(missing)
        self.present = tuple(present)


class ConnectionLost(IokeelError):
    """libvirtd, a QMP socket or the agent's socket doesn't answer: try again later."""


class OutcomeUnknown(ConnectionLost):
    """The connection was lost after something was asked, which may have been done or not."""


class FleetRefused(IokeelError):
    """etcd answers, but can't be used: credentials, rights, or what is stored there."""


class NewerSchema(FleetRefused):
    """A newer iokeel has written what is stored there; the host keeps to its floor.

    version: the schema that it is in. known: the newest that this iokeel knows.
    """

    def __init__(self, where: str, version: int, known: int) -> None:
        super().__init__(
            where,
            f"was written by a newer iokeel, schema {version}",
            f"upgrade this agent, which knows schema {known}",
        )
        self.version = version
        self.known = known


class HostReports(FleetRefused):
    """An operator answers for a host that reports, which nobody has to answer for.

    host: its name. budget: the one that it reports on.
    """

    def __init__(self, host: str, budget: str, mend: str) -> None:
        super().__init__(f"host {host}", f"reports on {budget}", mend)
        self.host = host
        self.budget = budget


class DriveGone(IokeelError):
    """A guest or a drive vanished between two calls, which is normal: skip it."""


class LimitsRejected(IokeelError):
    """QEMU or libvirt refused limits; the old ones still hold.

    said: QEMU's or libvirt's own words; "" if the agent refused them itself.
    """

    def __init__(self, where: str, what: str, mend: str = "", *, said: str = "") -> None:
        super().__init__(where, what, mend)
        self.said = said


class CgroupRefused(IokeelError):
    """A VM's cgroup isn't the VM's alone, so nothing is set on it.

    vm: its name. group: the path of its group. why: the reason, as a clause about the group.
    """

    def __init__(self, vm: str, group: str, why: str) -> None:
        super().__init__(
            f"VM {vm}",
            f"is in cgroup {group}, {why}, so it has no backstop",
            "start each VM in a group of its own, as libvirt or a systemd unit does",
        )
        self.vm = vm
        self.group = group
        self.why = why


class StateNotWritten(IokeelError):
    """A file in the state folder can't be written; what was saved before is still there.

    file: its path. reason: SQLite's words. without: what is lost until it can; "" if nothing is.
    """

    def __init__(
        self,
        file: str,
        reason: str,
        without: str = "",
        mend: str = "free some space, or let the agent write it",
    ) -> None:
        if without:
            mend += f"; until then {without}"
        super().__init__(file, f"can't be written: {reason}", mend)
        self.file = file
        self.reason = reason
        self.without = without


class CalibrationError(IokeelError):
    """A storage can't be calibrated."""
