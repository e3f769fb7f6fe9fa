"""Policies in a domain's XML, good and bad."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from iokeel.core.values.policy import BUILTIN_CLASSES, DomainPolicy, DrivePolicy, VmPolicy
from iokeel.errors import PolicyError, TargetsMissing
from iokeel.libvirt_xml.domain import Disk, domain_in, parse_domain
from iokeel.libvirt_xml.policy import check_groups, check_targets, parse_policy, with_lowest
from iokeel.libvirt_xml.schema import NAMESPACE, validate
from iokeel.libvirt_xml.xml import attributes

SCHEMA = Path(__file__).parents[4] / "libvirt-hooks/policy.rng"
NS = f'xmlns:iokeel="{NAMESPACE}"'
GOLD = BUILTIN_CLASSES["gold"]


def whole(policies: str) -> str:
    """Return a domain with this in its metadata, which begins in line 4."""
    return f"""<domain type="kvm">
  <name>db1</name>
  <metadata>
    {policies}
  </metadata>
  <devices>
    <disk type="file" device="disk"><source file="/a.qcow2"/><target dev="vda"/></disk>
  </devices>
</domain>
"""


def parse(xml: str | bytes) -> DomainPolicy | None:
    return parse_policy(xml, BUILTIN_CLASSES, "domain db1")


def refused(xml: str | bytes) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        parse(xml)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert caught.value.mend
    return caught.value


def outcome(function: Callable[[str | bytes], object], xml: str | bytes) -> object:
    """Return what a function gives, or the PolicyError that it raises, which is in one line."""
    try:
        return function(xml)
    except PolicyError as error:
        said = error
    assert "\n" not in str(said)
    return said


# Good ones


def test_a_policy_is_read_from_a_domain() -> None:
    xml = whole(
        f'<iokeel:policy {NS} tenant="acme" class="gold">\n'
        '  <iokeel:drive target="vdb" reservation="500" limit="4000" burst="8000"'
        ' burst-seconds="30" weight="300" latency-target-ms="2.5" budget="separate"/>\n'
        "</iokeel:policy>"
    )
    assert parse(xml) == DomainPolicy(
        {"vdb": DrivePolicy(500, 4000, 8000, 30, 300, 2.5, True)}, GOLD, "acme"
    )


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ('max-bytes="200M"', DrivePolicy(max_bytes=200_000_000)),
        ('max-bytes="65536"', DrivePolicy(max_bytes=65536)),
        ('max-bytes="1G" limit="9"', DrivePolicy(limit=9, max_bytes=10**9)),
        (
            'limit="500" limit-write="200"',
            DrivePolicy(limit=500, limit_write=200, separate_budgets=True),
        ),
        (
            'limit-read="500" limit-write="200"',
            DrivePolicy(limit=500, limit_read=500, limit_write=200, separate_budgets=True),
        ),
        (
            'limit="500" burst="900" start-credit-seconds="30"',
            DrivePolicy(limit=500, burst=900, start_credit_seconds=30),
        ),
    ],
)
def test_bounds_beside_the_limit_are_read(attributes: str, expected: DrivePolicy) -> None:
    policy = parse(f'<policy><drive target="vda" {attributes}/></policy>')
    assert policy is not None
    assert policy.for_drive("vda") == expected


def test_a_policy_is_read_as_virsh_metadata_prints_it() -> None:
    xml = '<policy tenant="acme">\n  <drive target="vdb" limit="400"/>\n</policy>\n\n'
    assert parse(xml) == DomainPolicy({"vdb": DrivePolicy(limit=400)}, None, "acme")


@pytest.mark.parametrize(
    "xml",
    [
        f'<policy xmlns="{NAMESPACE}" class="gold"/>',
        f'<x:policy xmlns:x="{NAMESPACE}" class="gold"/>',
        f'<?xml version="1.0" encoding="UTF-16"?><policy xmlns="{NAMESPACE}" class="gold"/>',
        f'\ufeff<policy xmlns="{NAMESPACE}" class="gold"/>',
        '<!-- <!DOCTYPE not="one"> --><?pi <!DOCTYPE?>\n'
        '<policy class="gold"><!-- x --><?y z?></policy>',
        '<policy class="gold"> <!-- <drive/> --> \n <![CDATA[ ]]> </policy>',
        "<metadata><policy xmlns='urn:iokeel:policy:1' class='gold'/></metadata>",
    ],
)
def test_spelling_that_means_the_same_is_the_same(xml: str) -> None:
    assert parse(xml) == parse(xml.encode()) == DomainPolicy({}, GOLD)


@pytest.mark.parametrize(
    "xml",
    [
        "<domain><name>db1</name></domain>",
        whole(""),
        whole('<nova:instance xmlns:nova="http://openstack.org/nova/1.1"/>'),
        # Somebody else's policy is none of ours.
        whole('<policy xmlns="http://example.org/backup/policy"/>'),
        whole(f"<!-- <iokeel:policy {NS}/> -->"),
    ],
)
def test_a_domain_without_a_policy_has_none(xml: str) -> None:
    assert parse(xml) is None


def test_a_drive_overrides_the_domains_class_or_has_its_own() -> None:
    policy = parse(
        '<policy class="gold"><drive target="vda" weight="7"/>'
        '<drive target="vdb" class="silver" limit="5000"/></policy>'
    )
    assert policy is not None
    assert policy.for_drive("vda") == DrivePolicy(1000, 10_000, 20_000, 60, 7)
    assert policy.for_drive("vdb") == DrivePolicy(0, 5000, 8000)
    assert policy.for_drive("plugged-in-later") == GOLD


def test_a_vm_has_a_limit_of_its_own_and_then_every_drive_a_policy() -> None:
    policy = parse(
        '<policy reservation="100" limit="4000" burst="8000" burst-seconds="30">'
        '<drive target="vda" limit="500"/></policy>'
    )
    assert policy is not None
    assert policy.vm == VmPolicy(100, 4000, 8000, 30)
    assert policy.for_drive("vda") == DrivePolicy(limit=500)
    assert policy.for_drive("plugged-in-later") == DrivePolicy()
    with_class = parse('<policy class="gold" limit="4000"/>')
    assert with_class is not None
    assert with_class.for_drive("vda") == GOLD


def test_a_vm_that_is_promised_nothing_leaves_its_drives_alone() -> None:
    policy = parse('<policy burst-seconds="30"/>')
    assert policy is not None
    assert policy.vm is None
    assert policy.for_drive("vda") is None


def test_without_a_class_only_named_drives_have_a_policy() -> None:
    policy = parse('<policy><drive target="vda"/></policy>')
    assert policy is not None
    assert policy.for_drive("vda") == DrivePolicy()
    assert policy.for_drive("vdb") is None


# Bad ones: what is said of each


def drive(attributes: str) -> str:
    return f'<policy>\n\n<drive target="vda" {attributes}/></policy>'


PLAIN = "not a whole number in plain digits; write it like 500, at most 100000000"
MESSAGES = [
    # Unknown names
    (drive('limt="5"'), "line 3: attribute 'limt' is not known; did you mean 'limit'?"),
    (
        drive('burst_seconds="5"'),
        "line 3: attribute 'burst_seconds' is not known; did you mean 'burst-seconds'?",
    ),
    (drive('Limit="5"'), "line 3: attribute 'Limit' is not known; did you mean 'limit'?"),
    (
        drive('qqq="5"'),
        "line 3: attribute 'qqq' is not known; known: budget, burst, burst-seconds, class, "
        "latency-target-ms, limit, limit-read, limit-write, max-bytes, "
        "reservation, start-credit-seconds, target, weight",
    ),
    ('<policy clas="gold"/>', "line 1: attribute 'clas' is not known; did you mean 'class'?"),
    (
        "<policy><driv target='vda'/></policy>",
        "line 1: element 'driv' is not known; did you mean 'drive'?",
    ),
    ("<policy>\n<disk/></policy>", "line 2: element 'disk' is not known; known: drive"),
    (
        "<policy><drive target='vda'><limit/></drive></policy>",
        "line 1: element 'limit' is inside <drive>; end the <drive> before it; a <drive> has "
        "attributes only",
    ),
    (
        "<policy><drive/></policy>",
        "line 1: <drive> has no target; name its disk, like target='vda'",
    ),
    # Text
    (
        "<policy>gold</policy>",
        "line 1: text 'gold' in <policy>; remove it; a policy has attributes only",
    ),
    (
        "<policy><drive target='vda'>400</drive></policy>",
        "line 1: text '400' in <drive>; remove it; a policy has attributes only",
    ),
    (
        "<policy><!-- a -->x<drive target='vda'/></policy>",
        "line 1: text 'x' in <policy>; remove it; a policy has attributes only",
    ),
    # Numbers
    (drive('limit="-5"'), f"line 3: limit is '-5', {PLAIN}"),
    (drive('limit="+5"'), f"line 3: limit is '+5', {PLAIN}"),
    (drive('limit="1e3"'), f"line 3: limit is '1e3', {PLAIN}"),
    (drive('limit="1.5"'), f"line 3: limit is '1.5', {PLAIN}"),
    (drive('limit=""'), f"line 3: limit is '', {PLAIN}"),
    (drive('limit=" 5"'), f"line 3: limit is ' 5', {PLAIN}"),
    (drive('limit="5&#10;"'), f"line 3: limit is '5\\n', {PLAIN}"),
    (drive('limit="1_000"'), f"line 3: limit is '1_000', {PLAIN}"),
    (drive('limit="0x10"'), f"line 3: limit is '0x10', {PLAIN}"),
    (drive('limit="4k"'), f"line 3: limit is '4k', {PLAIN}"),
    (drive('limit="\uff15\uff10\uff10"'), f"line 3: limit is '\\uff15\\uff10\\uff10', {PLAIN}"),
    (drive('limit="\u0663"'), f"line 3: limit is '\\u0663', {PLAIN}"),
    (drive(f'limit="{"9" * 5000}"'), f"line 3: limit is '{'9' * 55}...', {PLAIN}"),
    (
        drive('limit="999999999999"'),
        "line 3, drive vda: limit is 999999999999; give 1 to 100000000, or leave it out",
    ),
    (
        drive('limit="0"'),
        "line 3, drive vda: limit is 0; give 1 to 100000000, or leave it out",
    ),
    (drive('weight="0"'), "line 3, drive vda: weight is 0; give 1 to 10000"),
    (
        drive('burst-seconds="3601"'),
        "line 3, drive vda: burst-seconds is 3601; give 0 to 3600",
    ),
    (
        drive('latency-target-ms="0"'),
        "line 3: latency-target-ms is '0', not a positive number in plain digits; write it like 5 "
        "or 2.5",
    ),
    (
        drive('latency-target-ms="1e3"'),
        "line 3: latency-target-ms is '1e3', not a positive number in plain digits; write it like "
        "5 or 2.5",
    ),
    (
        drive('latency-target-ms="99999"'),
        "line 3, drive vda: latency-target-ms is 99999.0; give 0.001 to 60000, or leave it out",
    ),
    # Other values
    (
        drive('budget="both"'),
        "line 3: budget is 'both', not known; give 'shared' or 'separate'",
    ),
    (
        drive('max-bytes="200MB"'),
        "line 3: max-bytes is '200MB', not a rate in bytes; write it like 200M or 200000000, in"
        " bytes a second",
    ),
    (
        drive('max-bytes="2000G"'),
        "line 3, drive vda: max-bytes is 2000000000000; give 1 to 1000000000000, or leave it out",
    ),
    (
        drive('limit="500" limit-write="600"'),
        "line 3, drive vda: limit-write 600 is above limit 500; raise the limit or lower it",
    ),
    (
        drive('limit-read="500"'),
        "line 3, drive vda: limit-read without a limit; give a limit, or limit-write, too",
    ),
    (
        drive('limit="500" limit-read="400" budget="shared"'),
        "line 3, drive vda: limit-read with a shared budget; let the budget be separate",
    ),
    (
        '<policy limit="4k"/>',
        "line 1: limit is '4k', not a whole number in plain digits; write it like 500, at most "
        "100000000",
    ),
    (
        '<policy limit="0"/>',
        "line 1, <policy>: limit is 0; give 1 to 100000000, or leave it out",
    ),
    (
        '<policy limit="4000" burst="3000"/>',
        "line 1, <policy>: burst 3000 is below limit 4000; raise the burst or leave it out",
    ),
    (
        '<policy limit="4000" reservation="5000"/>',
        "line 1, <policy>: limit 4000 is below reservation 5000; raise the limit or lower the "
        "reservation",
    ),
    (
        '<policy weight="5"/>',
        "line 1: attribute 'weight' is not known; known: burst, burst-seconds, class, "
        "job-bps, limit, mode, reservation, serial, tenant",
    ),
    (
        '<policy tenant="ac me"/>',
        "line 1: tenant is 'ac me', not a name; give 1 to 64 of the characters A-Z a-z 0-9 _ . -",
    ),
    (
        f'<policy tenant="{"a" * 65}"/>',
        f"line 1: tenant is '{'a' * 55}...', not a name; give 1 to 64 of the characters A-Z a-z "
        "0-9 _ . -",
    ),
    # Together
    (
        drive('limit="300" reservation="400"'),
        "line 3, drive vda: limit 300 is below reservation 400; raise the limit or lower the "
        "reservation",
    ),
    (
        drive('limit="300" burst="200"'),
        "line 3, drive vda: burst 200 is below limit 300; raise the burst or leave it out",
    ),
    (drive('burst="200"'), "line 3, drive vda: burst 200 without a limit; give a limit"),
    (
        '<policy class="golden"/>',
        "line 1: class 'golden' is not known; give one that is: bronze, gold, silver",
    ),
    (
        drive('class="Gold"'),
        "line 3: class 'Gold' is not known; give one that is: bronze, gold, silver",
    ),
    (
        '<policy>\n<drive target="vda"/>\n<drive target="vdb"/>\n<drive target="vda"/></policy>',
        "line 4: drive vda is named twice, first in line 2; keep one",
    ),
    # Namespaces
    (
        whole(f"<iokeel:policy {NS}/>\n<x:policy xmlns:x='{NAMESPACE}'/>"),
        "line 5: a second policy, after the one in line 4; keep one",
    ),
    (
        whole("<policy class='gold'/>"),
        "line 4: <policy> is in no namespace, and libvirt drops it; write <iokeel:policy "
        "xmlns:iokeel='urn:iokeel:policy:1'>",
    ),
    *(
        (xml, f"line {line}: namespace '{near}' is not known; write 'urn:iokeel:policy:1'")
        for near in (
            "urn:iokeel:policy:2",
            "urn:iokeel:policy",
            "urn:iokeel/policy/1",
            "urn:iokeal:policy:1",
            "URN:IOKEEL:POLICY:1",
            "http://iokeel.example/policy",
        )
        for line, xml in (
            (4, whole(f'<i:policy xmlns:i="{near}"/>')),
            (1, f'<i:policy xmlns:i="{near}"/>'),
        )
    ),
    (
        whole(f"<iokeel:polcy {NS}/>"),
        "line 4: element 'polcy' is not known; write 'policy'",
    ),
    (
        f"<policy xmlns='{NAMESPACE}'><drive xmlns='' target='vda'/></policy>",
        "line 1: <drive> is in no namespace; write <drive> without xmlns=''",
    ),
    (
        f"<iokeel:policy {NS}><drive target='vda'/></iokeel:policy>",
        "line 1: <drive> is in no namespace; write <iokeel:drive>",
    ),
    (
        "<policy><x:drive xmlns:x='urn:other' target='vda'/></policy>",
        "line 1: <drive> is in namespace 'urn:other'; put it into that of its <policy>",
    ),
    (
        f"<iokeel:policy {NS}><iokeel:drive iokeel:target='vda'/></iokeel:policy>",
        "line 1: attribute 'target' is in namespace 'urn:iokeel:policy:1'; write it without a "
        "prefix",
    ),
    (
        '<policy xml:space="preserve"/>',
        "line 1: attribute 'space' is in namespace 'http://www.w3.org/XML/1998/namespace'; "
        "remove it",
    ),
    (
        f"<domain><metadata/><metadata><iokeel:policy {NS}/></metadata></domain>",
        "line 1: a second <metadata>, which libvirt drops; keep one",
    ),
    # Not a policy at all
    (
        "<network/>",
        "line 1: element 'network' is neither a domain nor a policy; give what virsh dumpxml or "
        "virsh metadata prints",
    ),
    (
        "<policy>\n<drive></policy>",
        "line 2: not well-formed XML, Opening and ending tag mismatch: drive line 2 and policy; "
        "`xmllint --noout` shows the place",
    ),
    (
        "",
        "line 1: not well-formed XML, Document is empty; `xmllint --noout` shows the place",
    ),
    (
        "<policy>&bomb;</policy>",
        "line 1: not well-formed XML, Entity 'bomb' not defined; `xmllint --noout` shows the place",
    ),
]


@pytest.mark.parametrize(("xml", "message"), MESSAGES, ids=[m[:60] for _, m in MESSAGES])
def test_what_is_wrong_is_said_in_a_line_with_the_mend(xml: str, message: str) -> None:
    assert str(refused(xml)) == f"domain db1, {message}"


LAUGHS = "".join(
    f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' if i else '<!ENTITY l0 "ha">' for i in range(20)
)
BOMBS = [
    f"<!DOCTYPE policy [{LAUGHS}]><policy>&l19;</policy>",
    f"<!DOCTYPE policy [{LAUGHS}]><policy tenant='&l19;'/>",
    f"<!-- a --><?b c?>\n<!DOCTYPE policy [{LAUGHS}]><policy tenant='&l19;'/>",
    f'<?xml version="1.0"?>\n<!DOCTYPE policy [{LAUGHS}]><policy tenant="&l19;"/>',
    '<!DOCTYPE policy [<!ENTITY f SYSTEM "file:///etc/passwd">]><policy>&f;</policy>',
    '<!DOCTYPE policy SYSTEM "http://127.0.0.1:1/x.dtd"><policy/>',
    '<!DOCTYPE policy [<!ATTLIST policy class CDATA "gold">]><policy/>',
    "<!DOCTYPE policy><policy/>",
]


@pytest.mark.alone
@pytest.mark.parametrize("xml", BOMBS, ids=range(len(BOMBS)))
def test_a_doctype_is_refused_before_it_means_anything(xml: str) -> None:
    started = time.process_time()
    assert "DOCTYPE, which may define entities, is refused; remove it" in str(refused(xml))
    for encoding in ("utf-16", "utf-16-le", "utf-32", "utf-7"):
        refused(xml.encode(encoding))
    assert time.process_time() - started < 2


@pytest.mark.alone
def test_depth_and_length_have_bounds() -> None:
    started = time.monotonic()
    refused("<policy>" + "<a>" * 100_000)
    refused("<policy>" + "<a>" * 3_000 + "</a>" * 3_000 + "</policy>")
    refused(f'<policy tenant="{"x" * 20_000_000}"/>')
    refused(b"<" + b"\0" * 1_000_000)
    refused(" " * 1_000_000 + "<!--" * 100_000)
    assert time.monotonic() - started < 20


def test_no_file_is_included(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    error = refused(
        '<policy><xi:include xmlns:xi="http://www.w3.org/2001/XInclude" parse="text" '
        f'href="{secret}"/></policy>'
    )
    assert "element 'include' is not known" in str(error)


# Against independent judges


VALID = [
    '<i:policy xmlns:i="urn:iokeel:policy:1"/>',
    '<policy xmlns="urn:iokeel:policy:1" tenant="a" class="b"><!-- c --><?p i?>'
    '<drive target="vda"/> <drive target="sdb" class="x" reservation="0" limit="999999999999" '
    'burst="007" burst-seconds="1" weight="2" latency-target-ms="0.5" budget="separate"/>'
    "</policy>",
    '<policy xmlns="urn:iokeel:policy:1"><drive target="a.b-D" budget="shared"> </drive></policy>',
    '<policy xmlns="urn:iokeel:policy:1"><drive target="/machine/x/device[0]"/></policy>',
]
# Messages of the schema, not of what figures mean together, which is no schema's business.
UNSCHEMATIC = ("drive vda: ", "<policy>: ", "class '", "named twice", "second", "neither")


@pytest.mark.skipif(not shutil.which("xmllint"), reason="xmllint (libxml2-utils) is not installed")
def test_xmllint_judges_the_same(tmp_path: Path) -> None:
    bare = [
        xml.replace("<policy", f'<policy xmlns="{NAMESPACE}"', 1)
        for xml, message in MESSAGES
        if xml.startswith("<policy") and not any(word in message for word in UNSCHEMATIC)
    ]
    assert len(bare) > 30
    for number, xml in enumerate([*VALID, *bare]):
        (tmp_path / f"{number:03}.xml").write_text(xml)
    done = subprocess.run(
        ["xmllint", "--noout", "--relaxng", SCHEMA, *sorted(tmp_path.iterdir())],
        capture_output=True,
        text=True,
        check=False,
    )
    good = [line for line in done.stderr.splitlines() if line.endswith(" validates")]
    assert [Path(line.split()[0]).name for line in good] == [
        f"{number:03}.xml" for number in range(len(VALID))
    ]


@pytest.mark.skipif(not shutil.which("virsh"), reason="virsh (libvirt-clients) is not installed")
def test_what_virsh_sets_is_read_from_the_domain_and_from_metadata(tmp_path: Path) -> None:
    policy = '<policy tenant="acme" class="gold"><drive target="vda" limit="400"/></policy>'
    commands = (
        f"metadata test --uri {NAMESPACE} --key iokeel --set '{policy}' --live; "
        f"echo ==; dumpxml test; echo ==; metadata test {NAMESPACE}"
    )
    said = subprocess.run(
        ["virsh", "-q", "-c", "test:///default", commands],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    _, domain, bare = said.split("==")
    expected = DomainPolicy({"vda": DrivePolicy(400, 400, 20_000, 60, 200)}, GOLD, "acme")
    assert parse(domain.strip()) == parse(bare.strip()) == expected
    found = domain_in(domain.strip())
    assert found is not None
    assert found.targets == ("vda",)


# Properties

NAMES = st.sampled_from(["policy", "drive", "drives", "disk", "é"])
SPACES = st.sampled_from([NAMESPACE, NAMESPACE, NAMESPACE, "", "urn:iokeel:policy:2", "urn:x"])
KEYS = st.sampled_from(
    "tenant class target reservation limit burst burst-seconds weight latency-target-ms budget "
    f"limt {{{NAMESPACE}}}limit {{urn:x}}y".split()
)
VALUES = st.one_of(
    st.sampled_from(
        ["vda", "gold", "shared", "separate", "5", "0", "2.5", "0.0", ".5", "5.", "1e3"]
    ),
    st.from_regex(r"[0-9 +.\-]{0,18}", fullmatch=True),
    st.text(
        st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"),
        max_size=8,
    ),
)
TEXTS = st.sampled_from(["", "", "", " ", "\n", "x", "\u00a0"])


@st.composite
def policies(draw: st.DrawFn, depth: int = 0) -> etree._Element:
    """Policy elements, mostly nearly right."""
    usual = ["policy", "drive"][min(depth, 1)]
    name = draw(st.sampled_from([usual] * 5) if depth == 0 else st.one_of(st.just(usual), NAMES))
    space = NAMESPACE if depth == 0 else draw(SPACES)
    element = etree.Element(f"{{{space}}}{name}" if space else name)
    element.text = draw(TEXTS)
    for key, value in draw(st.dictionaries(KEYS, VALUES, max_size=5)).items():
        element.set(key, value)
    if depth and draw(st.booleans()):
        element.set("target", "vda")
    for _ in range(draw(st.integers(0, 2 if depth == 0 else depth < 2 and draw(st.booleans())))):
        child = draw(policies(depth=depth + 1))
        child.tail = draw(TEXTS)
        element.append(child)
    if draw(st.booleans()):
        comment = etree.Comment("c")
        comment.tail = draw(TEXTS)
        element.append(comment)
    return element


@settings(max_examples=500, deadline=None)
@given(policies())
def test_the_words_and_the_schema_agree_on_what_is_valid(policy: etree._Element) -> None:
    valid = etree.RelaxNG(etree.parse(str(SCHEMA))).validate(policy)
    try:
        validate(policy, "here")
    except PolicyError:
        assert not valid
    else:
        assert valid


@settings(max_examples=300, deadline=None)
@given(policies())
def test_any_policy_element_parses_or_is_refused_in_a_line(policy: etree._Element) -> None:
    found = outcome(parse, etree.tostring(policy))
    if isinstance(found, PolicyError):
        assert found.mend
        return
    assert isinstance(found, DomainPolicy)
    for each in (*found.drives.values(), *([found.default] if found.default else [])):
        assert each.limit is None or each.limit >= max(each.reservation, 1)
        assert each.burst is None or (each.limit is not None and each.burst >= each.limit)


@given(st.one_of(st.binary(), st.text(), st.text(st.sampled_from('<>/!?&;="[]- policydrvet\n\0'))))
def test_arbitrary_input_raises_nothing_but_policy_error(xml: str | bytes) -> None:
    for function in (parse, parse_domain, domain_in):
        outcome(function, xml)


@given(st.data())
def test_a_damaged_domain_raises_nothing_but_policy_error(data: st.DataObject) -> None:
    xml = whole(f'<iokeel:policy {NS} class="gold"><iokeel:drive target="vda"/></iokeel:policy>')
    start = data.draw(st.integers(0, len(xml)))
    end = data.draw(st.integers(start, min(len(xml), start + 20)))
    damaged = xml[:start] + data.draw(st.text(max_size=5)) + xml[end:]
    for function in (parse, parse_domain):
        outcome(function, damaged)


TARGET = st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True)


@st.composite
def valid_drives(draw: st.DrawFn) -> tuple[dict[str, str], DrivePolicy]:
    """Attributes, and what they say."""
    reservation = draw(st.none() | st.integers(0, 10**8))
    limit = draw(st.none() | st.integers(max(reservation or 0, 1), 10**8))
    burst = draw(st.none() | st.integers(limit, 10**8)) if limit else None
    seconds = draw(st.none() | st.integers(0, 3600))
    weight = draw(st.none() | st.integers(1, 10_000))
    latency = draw(st.none() | st.integers(1, 60_000_000))
    separate = draw(st.none() | st.booleans())
    written = {
        "reservation": reservation,
        "limit": limit,
        "burst": burst,
        "burst-seconds": seconds,
        "weight": weight,
        "latency-target-ms": latency and f"{latency // 1000}.{latency % 1000:03}",
        "budget": None if separate is None else ["shared", "separate"][separate],
    }
    says = DrivePolicy(
        reservation or 0,
        limit,
        burst,
        60 if seconds is None else seconds,
        100 if weight is None else weight,
        latency and float(f"{latency}e-3"),
        bool(separate),
    )
    return {key: str(value) for key, value in written.items() if value is not None}, says


@settings(deadline=None)
@given(
    st.dictionaries(TARGET, valid_drives(), max_size=4),
    st.none() | TARGET,
    st.booleans(),
)
def test_a_valid_policy_parses_to_what_it_says(
    drives: dict[str, tuple[dict[str, str], DrivePolicy]], tenant: str | None, bare: bool
) -> None:
    prefix = "" if bare else "iokeel:"
    lines = [
        f"<{prefix}drive target={quoteattr(target)} "
        + " ".join(f"{key}={quoteattr(value)}" for key, value in attributes.items())
        + "/>"
        for target, (attributes, _) in drives.items()
    ]
    named = "" if tenant is None else f"tenant={quoteattr(tenant)}"
    space = "" if bare else NS
    xml = f"<{prefix}policy {space} {named}>\n" + "\n".join(lines) + f"</{prefix}policy>"
    expected = DomainPolicy({target: says for target, (_, says) in drives.items()}, None, tenant)
    assert parse(xml if bare else whole(xml)) == expected


def test_targets_that_the_domain_lacks_are_named() -> None:
    policy = DomainPolicy({"vdb": GOLD, "vda": GOLD, "sdz": GOLD})
    with pytest.raises(TargetsMissing) as caught:
        check_targets(policy, ("vda", "vdc"), "domain db1")
    assert (caught.value.missing, caught.value.present) == (("sdz", "vdb"), ("vda", "vdc"))
    assert str(caught.value) == (
        "domain db1: the policy names sdz, vdb, but there is no such drive;"
        " correct the target or plug the drive in; the domain has vda, vdc"
    )
    check_targets(policy, ("vda", "vdb", "sdz"), "domain db1")


def test_only_disks_of_one_group_with_a_policy_each_need_the_same() -> None:
    disks = [
        *(Disk(target, iotune_group="a") for target in ("vda", "vdb", "vdc")),
        Disk("vdd", iotune_group="b"),
        Disk("vde"),
        Disk("vdf", throttle_groups=("a",)),
    ]
    other = DrivePolicy(limit=9)
    apart = {"vda": GOLD, "vdd": other, "vde": other, "vdf": other}
    check_groups(DomainPolicy(apart), disks, "domain db1")
    check_groups(DomainPolicy(apart | {"vdb": GOLD}), disks, "domain db1")
    with pytest.raises(PolicyError) as caught:
        check_groups(DomainPolicy(apart | {"vdc": other}), disks, "domain db1")
    assert str(caught.value) == (
        "domain db1: vda and vdc share the <iotune> group 'a', but their policies differ, and a"
        " limit holds all of them together, so the lowest counts for each; give these disks the"
        " same policy, or each a group_name of its own"
    )


def test_of_two_policies_in_one_group_that_with_the_lowest_limit_counts() -> None:
    both = [Disk(target, iotune_group="a") for target in ("vda", "vdb", "vdc")]
    disks = [*both, Disk("vdd", iotune_group="b"), Disk("vde")]
    free, low, high = DrivePolicy(weight=7), DrivePolicy(limit=9), DrivePolicy(limit=90)
    bursts = DrivePolicy(limit=9, burst=99)
    policy = DomainPolicy({"vda": high, "vdb": bursts, "vdd": high}, free, "acme")
    assert with_lowest(policy, disks) == DomainPolicy(
        {"vda": bursts, "vdb": bursts, "vdc": bursts, "vdd": high}, free, "acme"
    )
    policy = DomainPolicy({"vda": free, "vdb": bursts, "vdc": low, "vde": free})
    assert with_lowest(policy, disks).drives == {
        **dict.fromkeys(("vda", "vdb", "vdc"), low),
        "vde": free,
    }
    for same in (DomainPolicy({"vda": high, "vde": low}), DomainPolicy({}, low)):
        assert with_lowest(same, disks) is same


DRIVES = "".join(f"<drive target='a{i}'/>" for i in range(200))
FOREIGN = "".join(f"<policy xmlns='http://example.com/{i}'/>" for i in range(101))


@pytest.mark.parametrize(
    ("xml", "wrong"),
    [
        (f"<policy tenant='{'a' * (2 << 20)}'/>", "x: more than 2097152 bytes; shorten its meta"),
        (f"<policy>{'<!---->' * 20_000}</policy>", "x: more than 20000 tags; shorten its meta"),
        (f"<policy {'a=' * 30_001}/>", "x: more than 30000 attributes; shorten its metadata"),
        (f"<policy>{DRIVES}</policy>", "line 1: a policy of more than 200 elements; give"),
        (
            f"<policy xmlns='{NAMESPACE}'>{DRIVES}</policy>",
            "line 1: a policy of more than 200 elements; give",
        ),
        (f"<metadata>{FOREIGN}</metadata>", "line 1: more than 100 policies; keep one"),
    ],
)
def test_a_text_that_would_take_long_is_refused(xml: str, wrong: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(xml, BUILTIN_CLASSES, "x")
    assert wrong in str(caught.value)


@pytest.mark.parametrize(
    "xml",
    [
        "<policy><a:b:c/></policy>",
        "<policy><a:drive:c xmlns:a='b'/></policy>",
        "<policy><drive target='vda' a:b:c=''/></policy>",
        f"<policy xmlns='{NAMESPACE}'><a:b:c xmlns='d'/></policy>",
        "<a:b:policy xmlns='d'/>",
    ],
)
def test_a_name_with_several_colons_is_refused(xml: str) -> None:
    with pytest.raises(PolicyError):
        parse_policy(xml, BUILTIN_CLASSES, "x")


def test_foreign_metadata_with_several_colons_hides_no_policy() -> None:
    foreign = "<metadata><urn:x:policy:2 xmlns='d'/>"
    xml = whole(f"<policy xmlns='{NAMESPACE}' class='gold'/>").replace("<metadata>", foreign)
    assert parse_policy(xml, BUILTIN_CLASSES, "x") == DomainPolicy({}, GOLD)


def test_many_attributes_are_not_read_beyond_the_first_unknown_one() -> None:
    reads = []

    class Element:
        def keys(self) -> list[str]:
            return [f"a{i}" for i in range(1000)]

        def get(self, name: str, default: str) -> str:
            reads.append(name)
            return ""

    assert next(iter(attributes(Element()))) == ("a0", "")  # type: ignore[arg-type]
    assert reads == ["a0"]


def test_the_rate_of_block_jobs_is_the_domains() -> None:
    found = parse(whole(f"<iokeel:policy {NS} job-bps='20000000'/>"))
    assert found == DomainPolicy({}, job_bps=20_000_000)


@pytest.mark.parametrize("bps", ["0", "65535", "fast", "-1", "1000000000001"])
def test_a_rate_of_block_jobs_that_makes_no_sense_is_refused(bps: str) -> None:
    error = refused(whole(f"<iokeel:policy {NS} class='gold' job-bps='{bps}'/>"))
    assert "job-bps is " in str(error)


def test_a_drive_has_no_rate_of_block_jobs_of_its_own() -> None:
    error = refused(
        whole(f"<iokeel:policy {NS}><iokeel:drive target='vda' job-bps='1'/></iokeel:policy>")
    )
    assert "job-bps" in str(error)
