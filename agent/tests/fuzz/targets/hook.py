"""The libvirt hook: the XML of a guest that arrives."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import re
from pathlib import Path

import atheris
from lxml import etree

from iokeel.errors import PolicyError
from iokeel.libvirt_xml.xml import parsed
from tests.fuzz.targets.target import Target

_FILE = Path(__file__).parents[4] / "libvirt-hooks/qemu.d/50-iokeel"
_LOADER = importlib.machinery.SourceFileLoader("hook", str(_FILE))
_SPEC = importlib.util.spec_from_loader("hook", _LOADER)
assert _SPEC is not None
HOOK = importlib.util.module_from_spec(_SPEC)
_LOADER.exec_module(HOOK)
for name, function in inspect.getmembers(HOOK, inspect.isfunction):
    setattr(HOOK, name, atheris.instrument_func(function))
_WORDS = [
    *(b"<iotune> </iotune> <throttlegroup> </throttlegroup> <throttlegroups>".split()),
    *(b"<total_iops_sec_max>5</total_iops_sec_max> total_iops_sec read_bytes_sec_max".split()),
    *(b"write_iops_sec_max_length group_name urn:iokeel:policy:1 <!-- --> - <![CDATA[ ]]>".split()),
    *(b"urn:iokeel:found:1", b" mode='observe'"),
]
# What the checks take is no part of the hook's budget.
_MOST_CHECKED_BYTES = 1 << 14
_BURST = re.compile(r"(total|read|write)_(bytes|iops)_sec_max(_length)?")


def arriving(data: bytes) -> None:
    """XML loses bursts and no other element, and what isn't XML costs no more."""
    HOOK.is_held(data)
    calm = HOOK.without_bursts(data)
    if len(data) <= _MOST_CHECKED_BYTES:
        assert HOOK.without_bursts(calm) == calm
        try:
            before = parsed(data, "")
        except PolicyError:
            return
        assert _without_bursts(parsed(calm, "")) == _without_bursts(before)


def _without_bursts(root: etree._Element) -> list[tuple[str, int]]:
    """Return the names of elements that are no bursts, and how many attributes they have."""
    return [(e.tag, len(e.attrib)) for e in root.iter(etree.Element) if not _BURST.fullmatch(e.tag)]


TARGETS = [Target("arriving", arriving, 1 << 18, _WORDS)]
