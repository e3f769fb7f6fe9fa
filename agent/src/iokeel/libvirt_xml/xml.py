"""XML from libvirt, an operator or a tenant: parsed with nothing that could reach further."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import cast

from lxml import etree

from iokeel.errors import PolicyError
from iokeel.words.quoting import shown

# A DOCTYPE stands before the root element, or nowhere.
_DOCTYPE = re.compile(r"(?:\s|<\?.*?\?>|<!--.*?-->)*+<!DOCTYPE", re.DOTALL)
_BACKING_STORE = re.compile(r"(</?backingStore(?=[\s/>])[^<>]*>)")
_TAB = "\t"
_SOURCE = re.compile(r"<source\s([^<>]*)>")
_LOCAL_PATH = re.compile(r"""\b(?:file|dev|dir)=(?:'([^']*)'|"([^"]*)")""")
_NETWORK = re.compile(r"\bprotocol=")


# These bound the time that a text can take, which is the event loop's.
MOST_BYTES = 2 << 20
_MOST_TAGS = 20_000
_MOST_ATTRIBUTES = 30_000
# A domain without its metadata is all libvirt's own. It may have as many bytes as libvirt sends at
# most, and so much more for each disk: one of Ceph's with limits and bursts has 32 tags and 35
# attributes.
_MOST_DOMAIN_BYTES = 4 << 20
_DISK = re.compile(r"<disk[\s/>]")
_DISK_TAGS, _DISK_ATTRIBUTES = 100, 150


class TooLarge(PolicyError):
    """An XML text is larger than it may be."""


def parsed(xml: str | bytes, where: str, *, has_metadata: bool = True) -> etree._Element:
    """Return the root of an XML text that may come from anybody.

    Entities, DOCTYPEs and the network are off. Of a domain's <backingStore>s it has what
    `images_beneath` tells. where: the text's name in errors. has_metadata: False for a domain's
    without it, which may have as many disks as there are. Raises PolicyError; TooLarge for more
    than 2 MiB, 20,000 tags or 30,000 attributes.
    """
    try:
        # libvirt speaks UTF-8 only. One encoding leaves no other for a DOCTYPE to hide in.
        text = xml.decode() if isinstance(xml, bytes) else xml
        text = _with_short_backing_stores(text.removeprefix("\ufeff"))
        data = text.encode()
    except UnicodeError:
        raise PolicyError(where, "the XML is not UTF-8", "save it as UTF-8") from None
    disks = 0 if has_metadata else len(_DISK.findall(text))
    for what, count, most in (
        ("bytes", len(data), MOST_BYTES if has_metadata else _MOST_DOMAIN_BYTES),
        ("tags", data.count(b"<"), _MOST_TAGS + disks * _DISK_TAGS),
        ("attributes", data.count(b"="), _MOST_ATTRIBUTES + disks * _DISK_ATTRIBUTES),
    ):
        if count > most:
            raise TooLarge(where, f"more than {most} {what}", "shorten its metadata")
    doctype = _DOCTYPE.match(text)
    if doctype:
        line = doctype[0].count("\n") + 1
        what = "a DOCTYPE, which may define entities, is refused"
        raise PolicyError(f"{where}, line {line}", what, "remove it")
    parser = etree.XMLParser(
        encoding="utf-8",
        resolve_entities=False,
        no_network=True,
        huge_tree=False,
        load_dtd=False,
        dtd_validation=False,
        attribute_defaults=False,
    )
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        # "Opening and ending tag mismatch: drive line 2 and policy, line 3, column 10 (<string>..."
        said = re.sub(r", line \d+, column \d+.*", "", str(error.msg), flags=re.DOTALL)
        raise PolicyError(
            f"{where}, line {error.lineno or 1}",
            f"not well-formed XML, {shown(said)[1:-1]}",
            "`xmllint --noout` shows the place",
        ) from None
    if root.getroottree().docinfo.internalDTD is not None:
        raise PolicyError(where, "a DOCTYPE is refused", "remove it")
    return root


def metadata_of(xml: str | bytes) -> tuple[str, str]:
    """Return a domain's <metadata> on its own lines, "" for none, and the XML without it.

    In libvirt's XML the first such tag begins it and the last one ends it: nothing but metadata has
    names or comments of other programs.
    """
    text = xml.decode(errors="surrogateescape") if isinstance(xml, bytes) else xml
    begin, tag, end = text.find("<metadata"), "</metadata>", text.rfind("</metadata>")
    if begin < 0 or end < begin:
        return "", text
    end += len(tag)
    return "\n" * text.count("\n", 0, begin) + text[begin:end], text[:begin] + text[end:]


def images_beneath(disk: etree._Element) -> tuple[str, ...]:
    """Return the local paths of the images beneath a disk's own; "" for one that isn't known.

    Those that are reached over a network are left out.
    """
    found = disk.findtext("backingStore")
    return () if found is None else tuple(dict.fromkeys(found.strip("\n").split(_TAB)))


def _with_short_backing_stores(text: str) -> str:
    """Return a domain's XML with each chain of images beneath a disk's own as one element.

    It has the paths of the images, with tabs between them, as it takes several tags for each, and a
    disk may have 200. Each line stays where it was. Metadata comes before and stays as it is: it
    may have such names too, or comments.
    """
    metadata, tag, rest = text.rpartition("</metadata>")
    depth, kept, chain = 0, [metadata, tag], list[str]()
    for part in _BACKING_STORE.split(rest):
        if part.startswith("</backingStore"):
            depth -= 1
            if not depth:
                kept.append(_short(chain))
                chain = []
        elif part.startswith("<backingStore"):
            depth += not part.endswith("/>")
        else:
            (chain if depth else kept).append(part)
    return text if depth else "".join(kept)


def _short(chain: Sequence[str]) -> str:
    """Return a <backingStore> for `images_beneath`. chain: the text in the one that libvirt has."""
    text = "".join(chain)
    paths = []
    for source in _SOURCE.findall(text):
        if (path := _LOCAL_PATH.search(source)) is not None:
            paths.append(path[1] or path[2] or "")
        elif _NETWORK.search(source) is None:
            paths.append("")
    lines = "\n" * text.count("\n")
    return f"<backingStore>{_TAB.join(paths)}{lines}</backingStore>" if paths else lines


def elements(parent: etree._Element) -> Iterator[etree._Element]:
    """Yield the child elements of a parent, without comments and processing instructions."""
    return (child for child in parent if isinstance(child.tag, str))


def attributes(element: etree._Element) -> Iterator[tuple[str, str]]:
    """Yield an element's attributes in their order.

    Each takes libxml2 a search among all of them, so read no more than needed.
    """
    return ((name, element.get(name, "")) for name in cast(list[str], element.keys()))


def local(element: etree._Element) -> str:
    """Return an element's name without its namespace."""
    return split(element.tag)[1]


def namespace_of(element: etree._Element) -> str:
    """Return an element's namespace; "" for none."""
    return split(element.tag)[0]


def split(name: str) -> tuple[str, str]:
    """Return the namespace ("" for none) and the rest of an element's or attribute's name.

    etree.QName refuses names that libxml2's parser takes, such as a:b:c.
    """
    namespace, _, rest = name.rpartition("}")
    return namespace.removeprefix("{"), rest


def line_of(element: etree._Element) -> int:
    """Return the line that an element begins in."""
    return cast(int, element.sourceline) or 1


def at(element: etree._Element, where: str) -> str:
    """Return an element's name in errors: the document and the line."""
    return f"{where}, line {line_of(element)}"
