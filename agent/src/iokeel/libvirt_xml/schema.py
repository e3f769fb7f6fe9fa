"""The form of the <policy> element, and words for the faults of one that breaks it.

libvirt-hooks/policy.rng says the same for other programs. libxml2 isn't asked at run time, because
its findings name neither the attribute nor the mend.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import get_type_hints

from lxml import etree

from iokeel.core.values.policy import (
    ENFORCE,
    FIGURES,
    MOST_IOPS,
    OBSERVE,
    DrivePolicy,
    VmPolicy,
)
from iokeel.errors import PolicyError
from iokeel.libvirt_xml.xml import at, attributes, elements, local, namespace_of, split
from iokeel.words.quoting import did_you_mean, shown

NAMESPACE = "urn:iokeel:policy:1"

_XML_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Kind:
    """The form of an attribute's value, and words for a value of another form."""

    pattern: re.Pattern[str]
    what: str
    mend: str


NAME = Kind(
    re.compile(r"[A-Za-z0-9_.-]{1,64}"),
    "not a name",
    "give 1 to 64 of the characters A-Z a-z 0-9 _ . -",
)
TARGET = Kind(
    re.compile(r"[!-~]{1,255}"),
    "not a drive's name",
    "give the name that `iokeel stats` shows",
)
WHOLE = Kind(
    re.compile(r"[0-9]{1,12}"),
    "not a whole number in plain digits",
    f"write it like 500, at most {MOST_IOPS}",
)
BYTES = Kind(
    re.compile(r"[0-9]{1,13}[kMG]?"),
    "not a rate in bytes",
    "write it like 200M or 200000000, in bytes a second",
)
POSITIVE = Kind(
    re.compile(r"(?=.{1,16}\Z)(?:0*[1-9][0-9]*(?:\.[0-9]+)?|0+\.0*[1-9][0-9]*)"),
    "not a positive number in plain digits",
    "write it like 5 or 2.5",
)
MODE = Kind(re.compile(f"{ENFORCE}|{OBSERVE}"), "not known", f"give '{ENFORCE}' or '{OBSERVE}'")
BUDGET = Kind(re.compile("shared|separate"), "not known", "give 'shared' or 'separate'")

_KINDS = {int: WHOLE, int | None: WHOLE, float | None: POSITIVE, bool: BUDGET}


def _promise(of: type[DrivePolicy | VmPolicy]) -> dict[str, Kind]:
    """Return the attributes that set a promise's fields, by their types."""
    types = get_type_hints(of)
    in_bytes = {name for name, figure in FIGURES.items() if figure.unit == "B/s"}
    return {
        attribute_of(field.name): BYTES if field.name in in_bytes else _KINDS[types[field.name]]
        for field in fields(of)
    }


def attribute_of(field: str) -> str:
    """Return the attribute that sets a field of DrivePolicy or VmPolicy."""
    return "budget" if field == "separate_budgets" else field.replace("_", "-")


def field_of(attribute: str) -> str:
    """Return the field of DrivePolicy or VmPolicy that an attribute sets."""
    return "separate_budgets" if attribute == "budget" else attribute.replace("-", "_")


POLICY_ATTRIBUTES = {
    "tenant": NAME,
    "class": NAME,
    **_promise(VmPolicy),
    "job-bps": WHOLE,
    "serial": WHOLE,
    "mode": MODE,
}
DRIVE_ATTRIBUTES = {"target": TARGET, "class": NAME, **_promise(DrivePolicy)}


def validate(policy: etree._Element, where: str) -> None:
    """Raise PolicyError for the first thing in a <policy> that is wrong; return if none is.

    where: the document's name in errors, such as "domain db1"; the line is put after it.
    """
    _explain_attributes(policy, POLICY_ATTRIBUTES, where)
    _explain_text(policy, where)
    for element in elements(policy):
        line = at(element, where)
        if element.tag != f"{{{NAMESPACE}}}drive":
            _explain_element(policy, element, line)
        _explain_attributes(element, DRIVE_ATTRIBUTES, where)
        if element.get("target") is None:
            raise PolicyError(line, "<drive> has no target", "name its disk, like target='vda'")
        _explain_text(element, where)
        for child in elements(element):
            raise PolicyError(
                at(child, where),
                f"element {shown(local(child))} is inside <drive>",
                "end the <drive> before it; a <drive> has attributes only",
            )


def _explain_element(policy: etree._Element, element: etree._Element, line: str) -> None:
    name, namespace = local(element), namespace_of(element)
    if name != "drive":
        raise PolicyError(
            line, f"element {shown(name)} is not known", did_you_mean(name, ["drive"])
        )
    if namespace:
        what = f"<drive> is in namespace {shown(namespace)}"
        raise PolicyError(line, what, "put it into that of its <policy>")
    if policy.prefix is None:
        mend = "write <drive> without xmlns=''"
    else:
        mend = f"write <{shown(policy.prefix)[1:-1]}:drive>"
    raise PolicyError(line, "<drive> is in no namespace", mend)


def _explain_attributes(element: etree._Element, known: Mapping[str, Kind], where: str) -> None:
    line = at(element, where)
    for name, value in attributes(element):
        namespace, rest = split(name)
        if namespace:
            raise PolicyError(
                line,
                f"attribute {shown(rest)} is in namespace {shown(namespace)}",
                "write it without a prefix" if rest in known else "remove it",
            )
        kind = known.get(name)
        if kind is None:
            raise PolicyError(
                line, f"attribute {shown(name)} is not known", did_you_mean(name, known)
            )
        if not kind.pattern.fullmatch(value):
            raise PolicyError(line, f"{name} is {shown(value)}, {kind.what}", kind.mend)


def _explain_text(element: etree._Element, where: str) -> None:
    for text in (element.text, *(child.tail for child in element)):
        found = (text or "").strip(_XML_SPACE)
        if found:
            raise PolicyError(
                at(element, where),
                f"text {shown(found)} in <{local(element)}>",
                "remove it; a policy has attributes only",
            )
