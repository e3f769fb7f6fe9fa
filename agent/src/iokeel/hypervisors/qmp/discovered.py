"""The VMs of [[discover]]: which there are, what their platform says of them, their policies."""

from __future__ import annotations

import asyncio
import glob
import logging
import os
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from iokeel.config.settings import Config, VmConfig
from iokeel.core.values.policy import LastGood, ToldPolicy
from iokeel.errors import IokeelError, PolicyError
from iokeel.host.threads import beside
from iokeel.hypervisors.policies import Policies
from iokeel.hypervisors.source import SourceNews, VmInfo
from iokeel.libvirt_xml.domain import Disk, DomainXml
from iokeel.libvirt_xml.schema import NAME
from iokeel.rules.compose import ByRules
from iokeel.rules.facts import Facts, drive_texts, known_texts
from iokeel.rules.facts_folder import FactsFolder
from iokeel.rules.proxmox import drives_of, pools_of, proxmox_facts
from iokeel.rules.rule import Rules
from iokeel.words.quoting import few, reason

log = logging.getLogger(__name__)

# More than one host runs. Each VM takes a task and a few files.
_MOST_VMS = 2000
_MOST_BYTES = 1 << 20
# /etc/pve is served by a process, which may hang.
_READ_S = 2.0


class Told(NamedTuple):
    """A VM's policy, what is wrong with it, and what the rules know of it.

    would: the policy, if it is only observed; `policy` is None then.
    """

    policy: ToldPolicy | None
    error: IokeelError | None
    by_rules: ByRules | None
    would: ToldPolicy | None = None


@dataclass(frozen=True, slots=True)
class _File:
    """A VM's file of facts. text: with its pool before it; None if none was ever good.

    fault: what is wrong with it now; "" if nothing is. is_gone: there is no such file.
    """

    text: str | None
    fault: str = ""
    is_gone: bool = False


class Discovered:
    """The VMs whose sockets [[discover]] names. last_good: as in Policies."""

    def __init__(
        self, config: Config, last_good: MutableMapping[str, LastGood], news: SourceNews
    ) -> None:
        self._last_good = last_good
        self._files: Mapping[str, _File] = {}
        self._paths: dict[str, str] = {}  # of facts, by VM
        self._reading: asyncio.Future[Mapping[str, _File]] | None = None
        self._told: dict[str, str] = {}
        self._policies = Policies(config.classes, last_good, news, self._facts, "VM")
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Go on with another configuration."""
        self._config = config
        # QEMU has no metadata of libvirt's.
        self._policies.rules = Rules(config.rules.rules, metadata=False)
        self._policies.classes, self._policies.ceilings = config.classes, config.ceilings
        files = self._policies.files
        if files is None or files.folder != config.facts_dir:
            self._policies.files = FactsFolder(config.facts_dir)

    def vms(self) -> dict[str, VmConfig]:
        """Return the VMs that have a socket now, by name. What can't be one is told once."""
        found: dict[str, VmConfig] = {}
        odd, many = list[str](), 0
        self._paths = {}
        for table in self._config.discover:
            for path in sorted(glob.glob(table.sockets)):
                vm = table.vm(path)
                if vm is None or not NAME.pattern.fullmatch(vm.name) or vm.name in found:
                    odd.append(path)
                elif len(found) >= _MOST_VMS:
                    many += 1
                else:
                    found[vm.name] = vm
                    if table.facts is not None:
                        self._paths[vm.name] = table.facts.replace("{name}", vm.name)
        what = f"{NAME.what}, or another VM's already, so it isn't served; {NAME.mend}"
        self._tell("names", f"{few(odd)}: the name is {what}" if odd else "")
        more = (
            f"[[discover]]: {many} more sockets than {_MOST_VMS}, which aren't served; name fewer"
        )
        self._tell("many", more if many else "")
        return found

    async def read(self) -> set[str]:
        """Read the files of facts again that have changed, and return whose have."""
        if self._reading is None:
            run = partial(_read_all, dict(self._paths), self._files)
            self._reading = beside(run, "facts-of-vms")
        await asyncio.wait([self._reading], timeout=_READ_S)
        if not self._reading.done():
            where = next(iter(self._paths.values()), "")
            what = f"no answer in {_READ_S:g} s; the last facts stay; see what holds its disk up"
            self._tell("hangs", f"{os.path.dirname(where)}: {what}")
            return set()
        before, self._files, self._reading = self._files, self._reading.result(), None
        self._tell("hangs", "")
        for name, file in self._files.items():
            last = file.text is not None and file.fault  # else it has no policy, which is told
            self._tell(name, f"VM {name}: {file.fault}; its last facts stay" if last else "")
        return {name for name, file in self._files.items() if file != before.get(name)}

    def facts_changed(self) -> bool:
        """Return whether files that the operator adds facts by have changed since last asked."""
        files = self._policies.files
        if files is None:
            return False
        version = files.version
        files.read()
        return files.version != version

    def is_no_disk(self, vm: VmConfig, target: str) -> bool:
        """Return whether a drive is a CD-ROM drive, or the like, by what the platform says."""
        file = self._files.get(vm.name)
        drive = drives_of(file.text.partition("\n")[2]).get(target) if file and file.text else None
        return drive is not None and not drive.is_disk

    def policy(self, vm: VmConfig, disks: Iterable[Disk], before: VmInfo | None) -> Told:
        """Return a VM's policy by the rules. before: the VM as it was last."""
        xml = DomainXml(vm.name, tuple(disks), uuid=str(vm.socket))
        file = self._files.get(vm.name)
        text = "" if file is None or file.text is None else file.text
        policy, error = self._policies.read(xml, text, before)
        by_rules = self._policies.by_rules(vm.name)
        if self._policies.observes(policy):
            return Told(None, error, by_rules, policy)
        return Told(policy, error, by_rules)

    def forget(self, vm: VmConfig) -> None:
        """Note that a VM has ended. Its last policy stays while its platform has it."""
        file = self._files.get(vm.name)
        if file is None or file.is_gone:
            self._last_good.pop(str(vm.socket), None)

    def _facts(self, xml: str, domain: DomainXml, where: str, **_: Mapping[str, object]) -> Facts:
        if domain.name not in self._paths:
            drives = {disk.target: known_texts(drive_texts(disk)) for disk in domain.disks}
            return Facts({"name": domain.name}, drives)
        file = self._files.get(domain.name)
        if file is None or file.text is None:
            what = file.fault if file is not None else f"{self._paths[domain.name]}: isn't read yet"
            raise PolicyError(where, what, "see that it is there, or correct facts of [[discover]]")
        return proxmox_facts(xml, domain, where)

    def _tell(self, about: str, line: str) -> None:
        """Log a fault, unless it was the last one about this. "": there is none any more."""
        if line and self._told.get(about) != line:
            log.error("%s", line)
        self._told[about] = line


def _read_all(paths: Mapping[str, str], before: Mapping[str, _File]) -> Mapping[str, _File]:
    pools: dict[Path, Mapping[str, str]] = {}
    found = {}
    for name, path in paths.items():
        # As /etc/pve/qemu-server/VMID.conf has /etc/pve/user.cfg.
        users = Path(path).parent.parent / "user.cfg"
        if users not in pools:
            pools[users] = pools_of(_read(users)[0] or "")
        found[name] = _read_one(Path(path), before.get(name), pools[users].get(name, ""))
    return found


def _read_one(path: Path, before: _File | None, pool: str) -> _File:
    text, fault = _read(path)
    if text is not None and text.strip():
        return _File(f"{pool}\n{text}")
    last = None if before is None else before.text
    return _File(last, f"{path}: {fault or 'is empty'}", not os.path.lexists(path))


def _read(path: Path) -> tuple[str | None, str]:
    """Return a file's text, or what is wrong with it."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
                return None, "others than root may write it; chown root, and chmod go-w"
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            return None, f"more than {_MOST_BYTES >> 20} MiB, so it describes no VM"
        return data.decode(), ""
    except UnicodeDecodeError:
        return None, "not UTF-8, so it describes no VM"
    except OSError as error:
        return None, f"can't be read, {reason(error)}"
