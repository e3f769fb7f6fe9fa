"""The libvirt hook, run as libvirt runs it: against an agent that is good, slow, absent, a liar."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import iokeel
from tests.edges.hook_host import (
    GOOD,
    HOOK,
    LIES,
    POLICY,
    TRIES,
    Host,
    in_time,
    says,
    silent,
)

OTHERS = ["start", "started", "stopped", "release", "reconnect"]
BAD = GOOD.replace(b"class=", b"clas=")
WRONG = "domain db1, line 1: attribute 'clas' is not known; did you mean 'class'?"
REFUSED = f"iokeel: guest db1 refused: {WRONG} ([hook] strict in "
# A hook without a deadline would take for ever here, so any bound tells. This one holds on a busy
# machine too, where most of a call is waiting for a processor.
DEADLINE_S = 60.0

pytestmark = pytest.mark.skipif(
    not os.access("/usr/bin/python3", os.X_OK), reason="/usr/bin/python3 is not there"
)


@pytest.fixture(params=[False, True], ids=["lenient", "strict"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    host = Host(tmp_path, request.param)
    host.configure(strict=host.strict)
    return host


@pytest.fixture
def strict(tmp_path: Path) -> Host:
    host = Host(tmp_path, True)
    host.configure(strict=True)
    return host


# With an agent that answers


def test_the_agent_is_told_of_a_guest_and_of_its_policy(host: Host) -> None:
    with host.agent():
        done = host.answered("prepare")
    assert (done.returncode, done.stderr) == (0, b"")
    assert host.told == [{"domain": "db1", "operation": "prepare", "xml": GOOD.decode()}]


@pytest.mark.parametrize("operation", OTHERS)
def test_the_agent_is_told_of_guests_that_come_and_go(host: Host, operation: str) -> None:
    with host.agent(lambda _: {"ok": False, "error": "no"}):
        done = host.answered(operation, BAD)
    assert (done.returncode, done.stderr) == (0, b"")
    assert host.told == [{"domain": "db1", "operation": operation}]


def test_a_malformed_policy_refuses_a_guest_only_when_that_is_asked_for(host: Host) -> None:
    with host.agent():
        done = host.answered("prepare", BAD)
    if host.strict:
        assert done.returncode == 1
        assert done.stderr.decode() == f"{REFUSED}{host.config})\n"
    else:
        assert done.returncode == 0
        assert (
            done.stderr.decode()
            == f"iokeel: guest db1 starts with a policy that can't be used: {WRONG}\n"
        )


def test_what_the_agent_says_is_shown_in_one_short_line(strict: Host) -> None:
    with strict.agent(lambda _: {"ok": False, "error": "a\nb\x1b[31m\u202e" + "x" * 10_000}):
        done = strict.answered("prepare", BAD)
    assert done.returncode == 1
    text = done.stderr.decode()
    assert text.startswith("iokeel: guest db1 refused: a b [31m xxx")
    assert text.count("\n") == 1
    assert len(text) < 600


def test_a_domain_of_a_megabyte_is_sent_whole(host: Host) -> None:
    xml = GOOD.replace(b"<name>", b"<!--" + b"x" * (1 << 20) + b"--><name>")
    with host.agent():
        done = host.answered("prepare", xml)
    assert (done.returncode, done.stderr) == (0, b"")
    assert host.told[0]["xml"] == xml.decode()


def test_names_and_xml_that_are_not_utf_8_are_told_as_they_can_be(host: Host) -> None:
    with host.agent(lambda _: {"ok": True}):
        done = in_time(
            lambda: subprocess.run(
                [HOOK, b"d\xffb", "prepare", "begin", "-"],
                env=host.environment,
                input=b"<a>\xff</a>",
                capture_output=True,
                check=False,
            )
        )
    assert done.returncode == 0
    assert host.told[-1:] == [
        {"domain": "d\ufffdb", "operation": "prepare", "xml": "<a>\ufffd</a>"}
    ]


# Without one


@pytest.mark.parametrize("operation", OTHERS)
def test_an_absent_agent_is_no_news_when_guests_come_and_go(host: Host, operation: str) -> None:
    done = host.answered(operation)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("stale", [False, True])
def test_a_guest_starts_with_a_warning_when_there_is_no_agent(host: Host, stale: bool) -> None:
    if stale:
        with socket.socket(socket.AF_UNIX) as nobody:
            nobody.bind(str(host.served))
    done = host.answered("prepare", GOOD.replace(b"iokeel", b"other"))
    reason = "Connection refused" if stale else "No such file or directory"
    assert done.returncode == 0
    assert done.stderr.decode() == (
        f"iokeel: guest db1: {host.served}: no answer from the agent: {reason}; "
        "it takes over once the guest runs\n"
    )


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("operation", ["prepare", "reconnect"])
def test_a_liar_stops_no_guest_and_holds_none_up(strict: Host, lie: str, operation: str) -> None:
    started = time.monotonic()
    with strict.liar(LIES[lie]):
        done = strict.hook(operation)
        took_s = time.monotonic() - started
    assert done.returncode == 0
    assert took_s < DEADLINE_S
    assert str(strict.served) in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


@pytest.mark.parametrize("operation", OTHERS)
def test_a_hanging_agent_holds_a_guest_up_for_a_second(strict: Host, operation: str) -> None:
    started = time.monotonic()
    with strict.liar(silent):
        done = strict.hook(operation)
        took_s = time.monotonic() - started
    assert done.returncode == 0
    assert 0.9 < took_s < DEADLINE_S
    assert done.stderr.decode() == (
        f"iokeel: {operation} of guest db1: {strict.served}: no answer from the agent in 1 s\n"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_socket_that_another_user_serves_is_not_believed(strict: Host) -> None:
    server = subprocess.Popen(
        [
            "/usr/bin/python3",
            "-c",
            "import os, socket, sys, time; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]);"
            "os.setuid(65534); s.listen(); print(flush=True); time.sleep(60)",
            strict.served,
        ],
        stdout=subprocess.PIPE,
    )
    try:
        assert server.stdout is not None
        server.stdout.readline()
        done = strict.answered("prepare", BAD)
    finally:
        server.kill()
        server.communicate()
    assert done.returncode == 0
    assert "served by user 65534, who is not root: not asked" in done.stderr.decode()


# Strict, without an agent: the command decides


def test_the_command_decides_in_the_agents_place(strict: Host) -> None:
    strict.install_check(
        f'echo "$@" > {strict.folder}/called; cat > {strict.folder}/given\n'
        f'echo "iokeel: {WRONG}" >&2; exit 1'
    )
    done = strict.answered("prepare", BAD)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[-1] == f"{REFUSED}{strict.config})"
    assert (strict.folder / "called").read_text() == f"policy check --config {strict.config} -\n"
    given = (strict.folder / "given").read_bytes()
    assert given == b"<metadata>" + POLICY.replace("class=", "clas=").encode() + b"</metadata>"


@pytest.mark.parametrize("declared", ["", ' xmlns:iokeel="urn:iokeel:policy:1"'])
@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        ('class="gold"/>', None),
        ('class="gold">\n<drive target="plugged-in-later"/></policy>', None),
        ('class="golden"/>', "line 3: class 'golden' is not known; give one that is: bronze, "),
        (
            '\n><drive target="vda" limt="5"/></policy>',
            "line 4: attribute 'limt' is not known; did ",
        ),
    ],
)
def test_the_command_and_the_agent_judge_alike(
    strict: Host, policy: str, refused: str | None, declared: str
) -> None:
    pytest.importorskip("typer", reason="the command needs typer")
    xml = (
        f"<domain><name>db1</name>\n\n<metadata{declared}>"
        f'<policy xmlns="urn:iokeel:policy:1" {policy}'
        '</metadata><devices><disk><target dev="vda"/></disk></devices></domain>'
    ).encode()
    strict.install_check(
        f'PYTHONPATH="{Path(iokeel.__file__).parents[1]}" exec {sys.executable} -m iokeel "$@"'
    )
    with strict.agent():
        of_agent = strict.answered("prepare", xml)
    of_command = strict.hook("prepare", xml)
    for _ in range(TRIES):  # a machine that is busy for the 5 s that the command has
        if b"timed out" in of_command.stderr:
            of_command = strict.hook("prepare", xml)
    for done in (of_agent, of_command):
        assert done.returncode == (refused is not None), done.stderr
        if refused is not None:
            assert refused in done.stderr.decode().splitlines()[-1]


@pytest.mark.parametrize(
    ("script", "warning"),
    [
        ("exit 0", None),
        ("echo 'iokeel: agent.toml: bad' >&2; exit 2", "failed (2): iokeel: agent.toml: bad"),
        ("echo 'ImportError: no module' >&2; exit 1", "failed (1): ImportError: no module"),
        ("exit 1", "failed (1)"),
        ("kill -9 $$", "failed (-9)"),
        ("exec sleep 60", "timed out after 5.0 seconds"),
        (None, "the command iokeel is not on PATH, so the policy is not checked"),
    ],
)
def test_a_guest_starts_unless_the_command_finds_its_policy_malformed(
    strict: Host, script: str | None, warning: str | None
) -> None:
    if script is not None:
        strict.install_check(script)
    started = time.monotonic()
    done = strict.answered("prepare", BAD)
    assert done.returncode == 0
    assert time.monotonic() - started < 5 + DEADLINE_S
    lines = done.stderr.decode().splitlines()
    assert "no answer from the agent" in lines[0]
    assert (warning or "") in "".join(lines[1:])
    assert len(lines) == 1 + (warning is not None)


def test_the_command_is_not_asked_without_need(tmp_path: Path) -> None:
    for strict, xml in ((False, BAD), (True, BAD.replace(b"iokeel", b"other"))):
        host = Host(tmp_path)
        host.configure(strict=strict)
        host.install_check(f"touch {tmp_path}/called; exit 1")
        assert host.hook("prepare", xml).returncode == 0
    assert not (tmp_path / "called").exists()


# Whatever else may be broken

CONFIGS = {
    "no TOML": b"[agent",
    "no UTF-8": b"\xff",
    "wrong types": b"[agent]\nsocket = 5\n[hook]\nstrict = 'yes'",
    "no tables": b"agent = 5",
    "deep": b"x = " + b"[" * 50_000,
    "long": b"x = " + b"9" * 50_000,
}


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("operation", ["prepare", *OTHERS])
def test_a_broken_configuration_is_not_strict(tmp_path: Path, config: str, operation: str) -> None:
    host = Host(tmp_path)
    host.config.write_bytes(CONFIGS[config])
    done = host.answered(operation, BAD)
    assert done.returncode == 0
    if operation == "prepare":
        warning = f"iokeel: {host.config}: can't be used, so strict is off: "
        assert done.stderr.decode().startswith(warning)


@pytest.mark.parametrize("operation", ["prepare", "reconnect"])
def test_a_configuration_that_is_not_there_or_no_file_is_not_strict(
    tmp_path: Path, operation: str
) -> None:
    host = Host(tmp_path)
    assert host.hook(operation, BAD).returncode == 0
    host.config.mkdir()
    assert host.hook(operation, BAD).returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["db1"],
        ["db1", "migrate", "begin", "-"],
        ["db1", "restore", "begin", "-"],
        ["db1", "attach", "begin", "-"],
        ["db1", "prepared", "begin", "-"],
        ["", "", "", ""],
    ],
)
def test_an_operation_that_means_nothing_to_the_agent_is_not_told(
    strict: Host, arguments: list[str]
) -> None:
    calls: list[socket.socket] = []
    with strict.liar(calls.append):
        done = subprocess.run(
            [HOOK, *arguments], env=strict.environment, input=BAD, capture_output=True, check=False
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert calls == []


# A guest that arrives

ARRIVED = """<domain><name>db1</name><metadata>
<p:policy xmlns:p="urn:iokeel:policy:1" class="gold"/>
<other xmlns="urn:other"><total_iops_sec_max>1</total_iops_sec_max></other></metadata>
<throttlegroups><throttlegroup>
  <total_iops_sec>300</total_iops_sec>
  <total_iops_sec_max>700</total_iops_sec_max>
</throttlegroup></throttlegroups>
<devices><disk><iotune>
  <read_bytes_sec>1000</read_bytes_sec>
  <read_bytes_sec_max>2000</read_bytes_sec_max>
  <read_bytes_sec_max_length>60</read_bytes_sec_max_length>
  <size_iops_sec>4096</size_iops_sec>
</iotune></disk></devices></domain>
"""
CALM = """<domain><name>db1</name><metadata>
<p:policy xmlns:p="urn:iokeel:policy:1" class="gold"/>
<other xmlns="urn:other"><total_iops_sec_max>1</total_iops_sec_max></other></metadata>
<throttlegroups><throttlegroup>
  <total_iops_sec>300</total_iops_sec>
</throttlegroup></throttlegroups>
<devices><disk><iotune>
  <read_bytes_sec>1000</read_bytes_sec>
  <size_iops_sec>4096</size_iops_sec>
</iotune></disk></devices></domain>
"""

OWN = '<p:policy xmlns:p="urn:iokeel:policy:1" class="gold"/>'
RECORD = (
    '<f:found xmlns:f="urn:iokeel:found:1"><f:drive target="vda" total_iops_sec="7"/></f:found>'
)
RECORDED, RECORDED_CALM = (xml.replace(OWN, RECORD) for xml in (ARRIVED, CALM))
SEEN = OWN.replace('class="gold"', 'mode="observe"')
OBSERVED = ARRIVED.replace(OWN, SEEN)
LET_GO, LET_GO_CALM = (xml.replace(OWN, RECORD + SEEN) for xml in (ARRIVED, CALM))


@pytest.mark.parametrize("operation", ["migrate", "restore"])
@pytest.mark.parametrize(
    ("xml", "printed"),
    [
        pytest.param(ARRIVED, CALM, id="its bursts go, its limits stay"),
        pytest.param(RECORDED, RECORDED_CALM, id="held by a rule, and on record"),
        pytest.param(OBSERVED, "", id="only observed, so its bursts are its own"),
        pytest.param(LET_GO, LET_GO_CALM, id="observed, and held where it was before"),
        pytest.param(CALM, "", id="without bursts, libvirt keeps its own XML"),
        pytest.param(ARRIVED.replace("urn:iokeel", "urn:x"), "", id="without a policy"),
    ],
)
def test_a_guest_that_arrives_brings_no_burst(
    strict: Host, operation: str, xml: str, printed: str
) -> None:
    done = in_time(
        lambda: subprocess.run(
            [HOOK, "db1", operation, "begin", "-"],
            env=strict.environment,
            input=xml.encode(),
            capture_output=True,
            check=False,
        )
    )
    assert (done.returncode, done.stderr) == (0, b"")
    # A space is left where a burst was.
    lines = [line for line in done.stdout.decode().splitlines() if line.strip()]
    assert lines == printed.splitlines()


@pytest.mark.parametrize(
    "comment",
    [
        pytest.param("<iotune>" * 20_000, id="limits that don't end"),
        pytest.param("<throttlegroup>" * 20_000, id="groups that don't end"),
        pytest.param(f"<iotune>{' ' * 300_000}</iotune>", id="spaces without a burst"),
        pytest.param(f"<iotune>{'<total_iops_sec_max>1' * 10_000}", id="bursts that don't end"),
    ],
)
def test_no_comment_in_the_metadata_holds_a_guest_up(strict: Host, comment: str) -> None:
    xml = GOOD.replace(b"</metadata>", f"<!--{comment}--></metadata>".encode())
    before_s = 0.0

    def run() -> subprocess.CompletedProcess[bytes]:
        nonlocal before_s
        before_s = cpu_of_children_s()
        return subprocess.run(
            [HOOK, "db1", "migrate", "begin", "-"],
            env=strict.environment,
            input=xml,
            capture_output=True,
            check=False,
        )

    done = in_time(run)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert cpu_of_children_s() - before_s < 1


def test_what_takes_too_long_with_a_guest_that_arrives_ends(strict: Host) -> None:
    reading, writing = os.pipe()  # nothing comes, and it doesn't end
    try:
        done = subprocess.run(
            [HOOK, "db1", "migrate", "begin", "-"],
            env=strict.environment,
            stdin=reading,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
    finally:
        os.close(reading)
        os.close(writing)
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"not done in 1 s" in done.stderr


def cpu_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("operation", ["prepare", "migrate", *OTHERS])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "</dev/null"])
def test_closed_files_are_no_failure(strict: Host, operation: str, closed: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" db1 {operation} begin - {closed}', HOOK],
        env=strict.environment,
        input=GOOD,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"")


def test_a_refusal_that_nobody_hears_is_one(strict: Host) -> None:
    with strict.agent():
        for closed in ("2>&-", ">&- 2>&-", "2>/dev/full"):
            command: list[str | Path] = [
                "/bin/sh",
                "-c",
                f'exec "$0" db1 prepare begin - {closed}',
                HOOK,
            ]
            assert 1 in (
                subprocess.run(command, env=strict.environment, input=BAD, check=False).returncode
                for _ in range(TRIES)
            )


@pytest.mark.parametrize("operation", ["prepare", "reconnect"])
def test_a_pipe_that_nobody_reads_is_no_failure(strict: Host, operation: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        with strict.liar(says(b"lie")):
            done = strict.hook(operation, stderr=writing)
    finally:
        os.close(writing)
    assert done.returncode == 0


@pytest.mark.parametrize("operation", ["prepare", "reconnect"])
def test_stdin_that_never_ends_holds_nothing_up(strict: Host, operation: str) -> None:
    reading, writing = os.pipe()
    started = time.monotonic()
    try:
        with os.fdopen(reading, "rb") as stdin:
            done = strict.hook(operation, stdin)
    finally:
        os.close(writing)
    assert done.returncode == 0
    assert time.monotonic() - started < DEADLINE_S


@pytest.mark.parametrize("is_full", [False, True])
def test_a_warning_goes_to_the_log_unless_that_is_full(strict: Host, is_full: bool) -> None:
    at = strict.folder / "log"
    hook = strict.folder / "50-iokeel"
    hook.write_text(HOOK.read_text().replace('LOG = "/dev/log"', f'LOG = "{at}"'))
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filling,
        strict.liar(says(b"lie")),
    ):
        log.bind(str(at))
        log.setblocking(False)
        filling.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while is_full:
                filling.sendto(b"full", str(at))
        done = subprocess.run(
            ["/usr/bin/python3", "-IS", hook, "db1", "start", "begin", "-"],
            env=strict.environment, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(log.recv(65536))
    assert (done.returncode, done.stdout) == (0, b"")
    warning = b"<28>iokeel-hook: " + done.stderr.removeprefix(b"iokeel: ").rstrip()
    assert b"start of guest db1: " in warning
    assert (found[-1] == b"full") if is_full else (found == [warning])


@pytest.mark.parametrize("operation", ["prepare", *OTHERS])
@pytest.mark.parametrize(
    "modules", ["tomllib", "http.client", "json", "socket", "signal", "tomllib json socket"]
)
def test_missing_modules_are_no_failure(strict: Host, operation: str, modules: str) -> None:
    program = (
        "import runpy, sys\n"
        f"sys.modules.update(dict.fromkeys({modules.split()!r}))\n"
        f"sys.argv = ['50-iokeel', 'db1', {operation!r}, 'begin', '-']\n"
        f"runpy.run_path({str(HOOK)!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        ["/usr/bin/python3", "-IS", "-c", program],
        env=strict.environment,
        input=BAD,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"Traceback" not in done.stderr


def test_it_never_calls_libvirt_and_needs_nothing_installed() -> None:
    text = HOOK.read_text()
    assert text.startswith("#!/usr/bin/python3 -IS\n")
    imported = {line.split()[1] for line in text.splitlines() if line.strip().startswith("import ")}
    assert "libvirt" not in imported
    assert "virsh" not in text
    assert os.access(HOOK, os.X_OK)


@pytest.mark.alone
def test_it_takes_little_cpu(host: Host) -> None:
    # 45 ms on an idle machine; time of other processes doesn't count.
    took_s = []
    with host.agent(lambda _: {"ok": True}):
        for _ in range(10):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            host.hook("prepare")
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            took_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(took_s) < 0.15
