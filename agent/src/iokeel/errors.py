"""The errors of iokeel: one class for each thing a caller does differently."""

from __future__ import annotations


class IokeelError(Exception):
    """Root of all errors that iokeel raises on purpose.

    `where` names the thing at fault (a file and key, a drive, a socket), `what` says what is
    wrong with it, and `mend` what the operator can do.
    """

    def __init__(self, where: str, what: str, mend: str = "") -> None:
        super().__init__(where, what, mend)
        self.where = where
        self.what = what
        self.mend = mend

    def __str__(self) -> str:
        mend = f"; {self.mend}" if self.mend else ""
        return f"{self.where}: {self.what}{mend}"


class ConfigError(IokeelError):
    """The agent's configuration can't be used."""


class CurveError(IokeelError):
    """A cost curve's points make no curve."""


class PolicyError(IokeelError):
    """A domain's policy can't be used; the last good one stays in force."""


class ConnectionLost(IokeelError):
    """libvirtd, a QMP socket or the agent's socket doesn't answer: try again later."""


class DriveGone(IokeelError):
    """A guest or a drive vanished between two calls, which is normal: skip it."""


class LimitsRejected(IokeelError):
    """QEMU or libvirt refused limits; those that held still hold."""


class CgroupRefused(IokeelError):
    """A VM's cgroup is not the VM's alone, so that nothing is set on it."""


class CalibrationError(IokeelError):
    """A storage can't be calibrated."""
