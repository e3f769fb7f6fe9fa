"""Which domain the form reads and writes: the page's own module, and real virsh with odd names."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from iokeel.libvirt_xml.schema import NAMESPACE
from testing.lab.host import PROJECT

PAGE = PROJECT / "agent/cockpit"
# Stands in for Cockpit's bridge: it runs virsh with libvirt's driver for tests in place of QEMU's.
RUN = """
import { execFileSync } from "node:child_process";
const [uri, libvirt, domain] = process.argv.slice(2);
globalThis.cockpit = {
    spawn: async (words) => {
        const [virsh, connect, given, ...rest] = words;
        console.error(given);
        const options = { encoding: "utf8", stdio: "pipe" };
        return execFileSync(virsh, [connect, libvirt, ...rest], options);
    },
};
const { read } = await import("./metadata.mjs");
try {
    console.log(JSON.stringify({ live: (await read(uri, domain)).live }));
} catch (error) {
    console.log(JSON.stringify({ error: error.message }));
}
"""
NAMES = ("db1", "db1 ", " db1", "db1\u00a0", "db1\u2028", "db 1", "7")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module as the browser has it, and libvirt's domains, each with a tenant of its own."""
    made = tmp_path_factory.mktemp("names")
    (made / "run.mjs").write_text(RUN)
    bundle: list[str | Path] = [
        PAGE / "node_modules/.bin/esbuild",
        PAGE / "src/policy/metadata.ts",
        "--format=esm",
    ]
    subprocess.run([*bundle, f"--outfile={made / 'metadata.mjs'}"], check=True, capture_output=True)
    domains = [domain(number, name) for number, name in enumerate(NAMES)]
    (made / "node.xml").write_text(f"<node>{''.join(reversed(domains))}</node>")
    return made


def domain(number: int, name: str) -> str:
    policy = f"<policy xmlns='{NAMESPACE}' tenant='t{number}'/>"
    uuid = f"00000000-0000-0000-0000-{number:012}"
    return (
        f"<domain type='test'><name>{name}</name><uuid>{uuid}</uuid><memory>1024</memory>"
        f"<os><type>hvm</type></os><metadata>{policy}</metadata></domain>"
    )


def asked(folder: Path, name: str, uri: str = "qemu:///system") -> tuple[dict[str, str], str]:
    """Return what the form gets of a domain, or its error, and the URIs that virsh was given."""
    words: list[str | Path] = [
        "node",
        folder / "run.mjs",
        uri,
        f"test://{folder / 'node.xml'}",
        name,
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_the_form_has_the_policy_of_the_domain_of_exactly_this_name(
    folder: Path, name: str
) -> None:
    told, _ = asked(folder, name)
    assert f'tenant="t{NAMES.index(name)}"' in told["live"]


@pytest.mark.parametrize("name", ["db1  ", "\tdb1", "\u2028db1", "DB1"])
def test_a_name_that_no_domain_has_exactly_is_refused(folder: Path, name: str) -> None:
    told, _ = asked(folder, name)
    assert told["error"].startswith(f"{name}: libvirt has ")


@pytest.mark.parametrize(
    "uri",
    [
        "qemu+ext:///system?command=/bin/true",
        "qemu+libssh2://host/system",
        "qemu+ssh://root@host/system",
        "qemu://host/system",
        "qemu:///system?command=/bin/true",
        "qemu+unix:///system?socket=/x&command=/bin/true",
        "qemu+unix:///system?mode=legacy",
        "test:///default",
        "--help",
        "",
    ],
)
def test_virsh_is_given_no_uri_that_leaves_the_host_or_runs_a_command(
    folder: Path, uri: str
) -> None:
    told, given = asked(folder, "db1", uri)
    assert told["error"].startswith(f"{uri}: not this host's QEMU by libvirt; ")
    assert given == ""


@pytest.mark.parametrize(
    "uri", ["qemu:///session", "qemu+unix:///system?socket=/run/my/libvirt-sock"]
)
def test_a_local_uri_is_taken(folder: Path, uri: str) -> None:
    told, given = asked(folder, "db1", uri)
    assert "live" in told
    assert {*given.split()} == {uri}
