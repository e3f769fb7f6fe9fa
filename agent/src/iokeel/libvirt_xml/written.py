"""A policy as it is written, before its classes are looked up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from iokeel.core.values.policy import DomainPolicy, DrivePolicy, override, vm_policy
from iokeel.errors import PolicyError
from iokeel.words.quoting import shown


@dataclass(frozen=True, slots=True)
class WrittenDrive:
    """What is written of a drive: fields of DrivePolicy, the name of its class, and where."""

    given: Mapping[str, object] = field(default_factory=dict)
    class_name: str | None = None
    line: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """What is written of a VM. None: nothing.

    drives: by target. class_name: the class of all drives. vm: fields of VmPolicy. job_bps, serial,
    mode: as in DomainPolicy. line: where it is written.
    """

    drives: Mapping[str, WrittenDrive] = field(default_factory=dict)
    class_name: str | None = None
    tenant: str | None = None
    vm: Mapping[str, object] = field(default_factory=dict)
    job_bps: int | None = None
    serial: int | None = None
    line: str = ""
    mode: str | None = None

    def resolved(self, classes: Mapping[str, DrivePolicy]) -> DomainPolicy:
        """Return the policy that this is by itself. Raises PolicyError."""
        default = class_of(self.class_name, classes, self.line)
        drives = {
            target: override(
                class_of(drive.class_name, classes, drive.line) or default or DrivePolicy(),
                drive.given,
                f"{drive.line}, drive {target}",
            )
            for target, drive in self.drives.items()
        }
        vm = vm_policy(self.vm, f"{self.line}, <policy>")
        return DomainPolicy(
            drives, default, self.tenant, vm, self.job_bps, self.serial, mode=self.mode
        )


def class_of(name: str | None, classes: Mapping[str, DrivePolicy], line: str) -> DrivePolicy | None:
    """Return a class by its name; None for no name. Raises PolicyError if it isn't known."""
    if name is None or name in classes:
        return None if name is None else classes[name]
    known = ", ".join(sorted(classes)) or "none"
    mend = f"give one that is: {known}"
    raise PolicyError(line, f"class {shown(name)} is not known", mend)
