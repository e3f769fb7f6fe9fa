"""The agent's API and its start and stop, as a process of its own on a real socket."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from iokeel.cli import client
from iokeel.config.load import parse
from iokeel.config.settings import Config
from iokeel.config.tables import AgentConfig
from iokeel.core.values.state import State
from iokeel.errors import ConfigError, IokeelError
from iokeel.report.history import History
from iokeel.report.http import HOOK_MESSAGE, Api, check_socket, serve
from iokeel.report.metrics.prometheus import Metrics
from iokeel.report.metrics.table import DESCRIPTIONS
from iokeel.report.promises import settings_report
from iokeel.report.records import SERIES
from iokeel.report.snapshot import Known, Snapshot, snapshot_of
from testing.agents import (
    NOBODY,
    Agent,
    Done,
    as_nobody,
    free_port,
    http,
    iokeel,
    start_qemu,
)
from testing.hypervisors.qmp_server import QmpServer
from testing.waiting import eventually, until
from tests.edges.conftest import VM

POLICY = '<policy xmlns="urn:iokeel:policy:1" class="gold"/>'
DOMAIN = f"<domain><name>db1</name><metadata>{POLICY}</metadata></domain>"
LABELS = {"domain": "db1", "target_device": "vda"}
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def fresh(short_folder: Path, tmp_path: Path) -> Iterator[Agent]:
    """An agent without VMs, not started yet."""
    folder = short_folder / tmp_path.name
    folder.mkdir()
    folder.chmod(0o755)
    agent = Agent(folder)
    yield agent
    agent.end()


def refused(agent: Agent) -> str:
    """Start an agent that must not start, and return its complaint."""
    done: Done = iokeel("agent", "--config", agent.config)
    assert (done.status, done.out) == (2, "")
    return done.complaint


# Answers


def test_vms_are_shown_with_their_drives(agent: Agent) -> None:
    eventually(lambda: bool(agent.ask("/v1/vms")), what="the VM is found")
    eventually(lambda: bool(drive(agent, "vda")["limits_in_force"]), what="limits are set")
    (vm,) = agent.ask("/v1/vms")
    assert (vm["domain"], vm["tenant"], vm["policy_error"]) == ("db1", "acme", None)
    assert [d["target"] for d in vm["drives"]] == ["vda", "vdb"]
    assert (drive(agent, "vda")["limit_iops"], drive(agent, "vda")["reservation_iops"]) == (
        400,
        100,
    )
    assert (drive(agent, "vdb")["limit_iops"], drive(agent, "vdb")["limits_in_force"]) == (None, {})


def drive(agent: Agent, target: str) -> Any:
    return next(d for vm in agent.ask("/v1/vms") for d in vm["drives"] if d["target"] == target)


def test_the_host_is_told_in_one_answer(agent: Agent) -> None:
    eventually(lambda: bool(drive(agent, "vda")["limits_in_force"]), what="limits are set")
    host = agent.ask("/v1/host")
    assert [[d["target"] for d in vm["drives"]] for vm in host["vms"]] == [["vda", "vdb"]]
    assert host["vms"][0].keys() == agent.ask("/v1/vms")[0].keys()
    assert host["fleet"] is None
    eventually(  # two answers may be of two ticks
        lambda: agent.ask("/v1/host")["storages"] == agent.ask("/v1/storages"),
        what="its storages are the storages",
    )


def test_why_explains_all_drives_or_one(agent: Agent) -> None:
    eventually(lambda: bool(agent.ask("/v1/vms")), what="the VM is found")
    assert set(agent.ask("/v1/why?domain=db1")) == {"vda", "vdb"}
    one = agent.ask("/v1/why?domain=db1&target=vda")
    assert set(one) == {"vda"}
    eventually(
        lambda: "a limit of 400 iops" in agent.ask("/v1/why?domain=db1&target=vda")["vda"][0],
        what="its limit is what holds it",
    )
    assert any("no policy" in line for line in agent.ask("/v1/why?domain=db1")["vdb"])


@pytest.mark.parametrize(
    ("query", "where", "what", "mend"),
    [
        ("domain=db2", "db2", "no such running VM", "see `iokeel stats`"),
        ("", "", "no such running VM", "see `iokeel stats`"),
        ("domain=db1&target=vdx", "db1", "has no drive vdx", "it has vda, vdb"),
        ("domain=db1&target=", "db1", "has no drive ", "it has vda, vdb"),
        ("domain=db%C2%A01", r"db\xa01", "no such running VM", "see `iokeel stats`"),
        ("domain=db1&target=v%0Aa", "db1", r"has no drive v\na", "it has vda, vdb"),
    ],
)
def test_why_of_what_is_not_there_is_not_found(
    agent: Agent, query: str, where: str, what: str, mend: str
) -> None:
    eventually(lambda: bool(agent.ask("/v1/vms")), what="the VM is found")
    status, _, body = http(agent.socket, "GET", f"/v1/why?{query}")
    error = {"where": where, "what": what, "mend": mend}
    assert (status, json.loads(body)) == (404, {"error": error})


def test_the_history_is_of_all_drives_or_one(agent: Agent) -> None:
    eventually(lambda: bool(agent.ask("/v1/history")["drives"]), what="a sample is there")
    found = agent.ask("/v1/history?seconds=600")
    assert [(d["domain"], d["target"]) for d in found["drives"]] == [("db1", "vda"), ("db1", "vdb")]
    assert found["ages_s"] == sorted(found["ages_s"], reverse=True)
    for one in found["drives"]:
        assert list(one["series"]) == list(SERIES)
        assert {len(column) for column in one["series"].values()} == {len(found["ages_s"])}


def test_the_history_of_one_drive_has_the_series_that_are_asked_for(agent: Agent) -> None:
    def vda() -> dict[str, Any]:
        one = agent.ask("/v1/history?domain=db1&target=vda&series=allowed_iops&series=credit_s")
        (drive,) = one["drives"]
        return dict(drive)

    assert (vda()["target"], list(vda()["series"])) == ("vda", ["allowed_iops", "credit_s"])
    eventually(lambda: vda()["series"]["allowed_iops"][-1] == 400.0)
    assert set(vda()["series"]["allowed_iops"]) <= {None, 400.0}


def test_the_history_grows(agent: Agent) -> None:
    before = len(agent.ask("/v1/history")["ages_s"])
    eventually(lambda: len(agent.ask("/v1/history")["ages_s"]) > before, what="a sample is added")


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("domain=db2", 404, "db2: no such running VM; see `iokeel stats`"),
        ("domain=db1&target=vdx", 404, "db1: has no drive vdx; it has vda, vdb"),
        ("seconds=0", 400, "seconds: is '0'; give a number from 1 to 600"),
        ("seconds=nan", 400, "seconds: is 'nan'; give a number from 1 to 600"),
        ("seconds=601", 400, "seconds: is '601'; give a number from 1 to 600"),
        ("seconds=x%0a", 400, "seconds: is 'x\\n'; give a number from 1 to 600"),
        ("series=latency", 400, "series: 'latency' is not known; did you mean 'latency_s'?"),
    ],
)
def test_what_the_history_has_not_is_said(agent: Agent, query: str, status: int, said: str) -> None:
    eventually(lambda: bool(agent.ask("/v1/vms")), what="the VM is found")
    answer, _, body = http(agent.socket, "GET", f"/v1/history?{query}")
    error = json.loads(body)["error"]
    assert (answer, f"{error['where']}: {error['what']}; {error['mend']}") == (status, said)


@pytest.mark.parametrize("method", ["DELETE", "POST"])
def test_what_is_read_can_not_be_written(agent: Agent, method: str) -> None:
    assert http(agent.socket, method, "/v1/vms")[0] == 405


def test_the_history_of_one_vm_tells_when_and_why_limits_changed(agent: Agent) -> None:
    eventually(lambda: bool(drives_of(agent)), what="a sample is there")
    vda, vdb = drives_of(agent)
    assert [order["reason"] for order in vda["orders"]][:1] == ["the policy has changed"]
    assert vda["orders"][0]["age_s"] >= 0
    assert vdb["orders"] == []
    assert all(one["orders"] == [] for one in agent.ask("/v1/history")["drives"])


def drives_of(agent: Agent) -> Any:
    found = agent.ask("/v1/vms") and agent.ask("/v1/history?domain=db1")["drives"]
    return found if found and found[0]["orders"] else None


async def test_a_fault_of_the_agents_own_is_said_and_counted(short_folder: Path) -> None:
    def fail(domains: Collection[str] | None = None) -> Snapshot:
        raise RuntimeError

    path = short_folder / "fault.sock"
    api = Api(Config, fail, lambda _: None, Metrics(), History(), lambda: 0)
    async with serve(api, AgentConfig(socket=path)):
        with pytest.raises(IokeelError, match="a fault; report what `journalctl -u iokeel` says"):
            await asyncio.to_thread(client.vms, path)
    assert api.metrics.errors == {"internal": 1}


# Settings, and policies that somebody may write


def test_the_settings_have_the_curves_of_storages_with_curves_of_their_own() -> None:
    text = "[storage.pool]\npath = '/dev/b'\ncurve_write = [['4k', 1], ['1m', 24]]\n"
    text += "[storage.plain]\npath = '/dev/a'\n"
    settings = settings_report(parse(text.encode(), "agent.toml"))
    (own,) = settings.storages.items()
    assert own[0] == "pool"
    assert own[1].write_curve == [(4096, 1), (1 << 20, 24)]
    assert own[1].read_curve == settings.read_curve


def test_the_settings_give_a_policy_its_meaning(agent: Agent) -> None:
    settings = agent.ask("/v1/settings")
    assert settings["libvirt_uri"] is None
    assert dict(settings["read_curve"])[64 << 10] == 10
    assert settings["write_curve"] == settings["read_curve"]
    assert settings["classes"]["gold"] == {
        "reservation_iops": 1000,
        "limit_iops": 10_000,
        "burst_iops": 20_000,
        "burst_seconds": 60,
        "weight": 200,
        "latency_target_ms": None,
        "separate_budgets": False,
        "limit_read_iops": None,
        "limit_write_iops": None,
        "max_bytes": None,
        "start_credit_seconds": 0,
    }


def policy(agent: Agent, domain: str, xml: str) -> tuple[int, Any]:
    status, _, answer = http(agent.socket, "POST", f"/v1/policy?domain={domain}", xml.encode())
    return status, json.loads(answer)


def test_a_policy_is_told_by_its_promises(agent: Agent) -> None:
    eventually(lambda: bool(agent.ask("/v1/vms")), what="the VM is found")
    before = agent.ask("/v1/vms")[0]["limit_iops"]
    xml = '<policy tenant="t" limit="900"><drive target="vdb" class="gold" limit="70"/></policy>'
    status, told = policy(agent, "db1", xml)
    assert (status, told["error"], told["tenant"]) == (200, None, "t")
    assert told["vm"]["limit_iops"] == 900
    assert (told["drives"]["vdb"]["limit_iops"], told["drives"]["vdb"]["weight"]) == (70, 200)
    assert told["drives"]["vda"]["limit_iops"] is None
    assert agent.ask("/v1/vms")[0]["limit_iops"] == before


@pytest.mark.parametrize(
    ("xml", "said"),
    [
        (
            '<policy><drive target="vda" limit="4k"/></policy>',
            "domain db1, line 1: limit is '4k', not a whole number in plain digits;"
            " write it like 500, at most 100000000",
        ),
        (
            '<policy><drive target="vdz" limit="4k"/></policy>',
            "domain db1, line 1: limit is '4k', not a whole number in plain digits;"
            " write it like 500, at most 100000000",
        ),
    ],
)
def test_a_bad_policy_is_refused_in_the_words_of_its_schema(
    agent: Agent, xml: str, said: str
) -> None:
    eventually(lambda: bool(agent.ask("/v1/vms")), what="the VM is found")
    status, told = policy(agent, "db1", xml)
    error = told["error"]
    assert (status, f"{error['where']}: {error['what']}; {error['mend']}") == (200, said)


def test_a_policy_of_a_drive_that_is_missing_is_told_with_a_warning(agent: Agent) -> None:
    """The drive may be there from the next start on, or not any more: the rest can be changed."""
    eventually(lambda: bool(agent.ask("/v1/vms")), what="the VM is found")
    xml = '<policy><drive target="vdz" limit="4"/><drive target="vda" limit="5"/></policy>'
    status, told = policy(agent, "db1", xml)
    assert (status, told["error"], told["drives"]["vda"]["limit_iops"]) == (200, None, 5)
    assert told["drives"].keys() == {"vda", "vdb"}
    assert told["warning"] == {
        "where": "domain db1",
        "what": "the policy names vdz, but there is no such drive, or it can't be limited",
        "mend": "correct the target or plug the drive in; the domain has vda, vdb",
    }


async def test_a_policy_is_told_as_the_ceiling_leaves_it(short_folder: Path) -> None:
    server = await QmpServer(short_folder / "c.qmp").start()
    tables = f"[ceilings.all]\nlimit = 300\n[[vm]]\nname = 'db1'\nsocket = '{server.path}'\n"
    agent = Agent(short_folder, tables)
    try:
        await asyncio.to_thread(agent.start)
        await until(lambda: bool(agent.ask("/v1/vms")))
        xml = '<policy tenant="t"><drive target="vda" limit="400"/></policy>'
        _, told = await asyncio.to_thread(policy, agent, "db1", xml)
        assert (told["error"], told["drives"]["vda"]["limit_iops"]) == (None, 300)
        assert told["warning"]["what"] == (
            "the policy asks for more than [ceilings.all] gives: vda limit 400 -> 300"
        )
    finally:
        await asyncio.to_thread(agent.end)
        await server.stop()


def test_a_policy_is_told_with_how_long_large_requests_wait(agent: Agent) -> None:
    eventually(lambda: bool(agent.ask("/v1/vms")), what="the VM is found")
    xml = '<policy limit="300"><drive target="vda" limit="2"/></policy>'
    _, told = policy(agent, "db1", xml)
    assert told["large_waits_s"] == {"vda": 75, "vdb": 0.5}  # 150 by the published table
    (said,) = told["long_waits"]
    assert said.startswith("at the limit of vda, 2, one request of 1 MiB waits 75 s")
    _, told = policy(agent, "db1", '<policy><drive target="vda" limit="1000"/></policy>')
    assert (told["large_waits_s"], told["long_waits"]) == ({"vda": 0.15}, [])


def test_a_policy_of_no_vm_is_not_found(agent: Agent) -> None:
    assert policy(agent, "db2", "<policy/>")[0] == 404


# The hook


def hook(agent: Agent, message: Any) -> tuple[int, Any]:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    status, _, answer = http(agent.socket, "POST", "/v1/hook", body)
    return status, json.loads(answer)


@pytest.mark.parametrize("xml", [None, DOMAIN, "<domain><name>db1</name></domain>"])
def test_a_good_hook_message_is_taken(agent: Agent, xml: str | None) -> None:
    message = {"domain": "db1", "operation": "prepare"} | ({"xml": xml} if xml else {})
    assert hook(agent, message) == (200, {"ok": True})


@root_only
def test_a_hook_of_another_user_changes_nothing(agent: Agent) -> None:
    told, policy_errors = agent.log(), _policy_errors(agent)
    send = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        " s.sendall(sys.stdin.buffer.read()); print(s.makefile().read())"
    )
    body = json.dumps({"domain": "db1\n", "operation": "started", "xml": "<domain"})
    request = f"POST /v1/hook HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    agent.socket.chmod(0o666)  # for the group, in its place
    try:
        done = subprocess.run(
            as_nobody(sys.executable, "-c", send, agent.socket),
            input=request.encode(),
            stdout=subprocess.PIPE,
            check=True,
        )
    finally:
        agent.socket.chmod(0o660)
    assert done.stdout.startswith(b"HTTP/1.0 403 ")
    assert b"from user 65534, who isn't root" in done.stdout
    assert agent.log() == told
    assert _policy_errors(agent) == policy_errors


def test_a_hook_writes_no_second_line_to_the_log(agent: Agent) -> None:
    message = {"domain": "db1\nforged", "operation": "prepare", "xml": "<domain"}
    status, answer = hook(agent, message)
    assert (status, answer["ok"]) == (200, False)
    assert answer["error"].isprintable()
    assert "forged" in agent.log()
    assert not any(line.startswith("forged") for line in agent.log().splitlines())


def _policy_errors(agent: Agent) -> float:
    return value(families(agent.socket), "iokeel_agent_errors_total", kind="policy") or 0.0


def test_a_bad_policy_is_told_to_the_hook_and_counted(agent: Agent) -> None:
    before = _policy_errors(agent)
    bad = DOMAIN.replace("class=", "clas=")
    status, answer = hook(agent, {"domain": "db1", "operation": "prepare", "xml": bad})
    assert (status, answer["ok"]) == (200, False)
    assert answer["error"].endswith("attribute 'clas' is not known; did you mean 'class'?")
    assert _policy_errors(agent) == before + 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "truncated"),
        (b'{"domain": "db1"', "truncated"),
        (b"[]", "Expected `object`"),
        (b"\xff", "malformed"),
        (b'{"domain": "\xff", "operation": "x"}', "utf-8"),
        (b'{"domain": "db1"}', "`operation`"),
        (b'{"domain": 1, "operation": "x"}', "$.domain"),
        (b"[" * 100_000, "Expected `object`"),
        (b'{"x": ' + b"[" * 100_000, "recursion"),
    ],
)
def test_what_is_no_hook_message_is_a_bad_request(agent: Agent, body: bytes, said: str) -> None:
    status, answer = hook(agent, body)
    assert status == 400
    assert answer["error"]["where"] == "hook message"
    assert said in answer["error"]["what"]


def test_a_body_beyond_all_bounds_is_refused(agent: Agent) -> None:
    assert http(agent.socket, "POST", "/v1/hook", bytes(5 << 20))[0] == 413


def test_a_message_of_another_type_takes_no_memory() -> None:
    body = b'{"domain": [' + b"{}," * 300_000 + b'{}], "operation": "x"}'
    tracemalloc.start()
    try:
        with pytest.raises(msgspec.ValidationError, match=r"\$.domain"):
            HOOK_MESSAGE.decode(body)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


# Metrics


def families(where: Path | tuple[str, int]) -> dict[str, Any]:
    status, kind, text = http(where, "GET", "/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(found: dict[str, Any], name: str, **labels: str) -> float | None:
    samples = [s for family in found.values() for s in family.samples]
    return next((float(s.value) for s in samples if s.name == name and s.labels == labels), None)


def test_every_metric_is_as_documented(agent: Agent) -> None:
    eventually(lambda: bool(drive(agent, "vda")["limits_in_force"]), what="limits are set")
    found = families(agent.socket)
    documented = {d.name.removesuffix("_total"): d for d in DESCRIPTIONS}
    own = {name: family for name, family in found.items() if name.startswith("iokeel_")}
    assert own.keys() == documented.keys()
    for name, family in own.items():
        described = documented[name]
        assert (family.type, family.documentation) == (described.kind, described.help)
        labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        assert labels <= {frozenset(described.labels)}
    assert {"process_cpu_seconds", "process_resident_memory_bytes"} <= found.keys()
    assert not [name for name in found if name.endswith("_created")]


def test_metrics_show_how_the_host_waits_for_its_io(agent: Agent) -> None:
    found = families(agent.socket)
    kinds = {s.labels["kind"]: s.value for s in found["iokeel_host_io_pressure_ratio"].samples}
    assert set(kinds) == ({"some", "full"} if Path("/proc/pressure/io").exists() else set())
    assert all(0 <= ratio <= 1 for ratio in kinds.values())


def test_metrics_show_a_drive(agent: Agent) -> None:
    eventually(lambda: bool(drive(agent, "vda")["limits_in_force"]), what="limits are set")
    found = families(agent.socket)
    assert value(found, "iokeel_drive_limit_iops", **LABELS) == 400
    assert value(found, "iokeel_drive_allowed_iops", **LABELS) == 400
    assert value(found, "iokeel_agent_domains") == 1
    assert value(found, "iokeel_agent_drives") == 2
    assert value(found, "iokeel_domain_policy_valid", domain="db1") == 1
    assert value(found, "iokeel_domain_has_policy", domain="db1") == 1
    assert value(found, "iokeel_agent_domains_without_policy") == 0
    assert value(found, "iokeel_agent_drives_without_policy") == 1  # vdb
    # vdb has no policy, so there is no limit to show, least of all 0
    assert value(found, "iokeel_drive_limit_iops", **LABELS | {"target_device": "vdb"}) is None


def test_metrics_and_nothing_else_are_on_the_port(agent: Agent) -> None:
    match = re.search(r":(\d+)\"", agent.config.read_text())
    assert match is not None
    port = int(match[1])
    assert families(("127.0.0.1", port)).keys() == families(agent.socket).keys()
    assert http(("127.0.0.1", port), "GET", "/v1/vms")[0] == 404
    assert http(("127.0.0.1", port), "POST", "/v1/hook", b"{}")[0] == 404


# The socket


def test_the_socket_is_for_its_group_only(agent: Agent) -> None:
    assert stat.S_IMODE(agent.socket.stat().st_mode) == 0o660


def test_a_stale_socket_is_replaced(fresh: Agent) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(fresh.socket))
    fresh.start()
    assert fresh.ask("/v1/vms") == []


def test_a_socket_is_served_again_after_a_kill(fresh: Agent) -> None:
    fresh.start().end()
    assert fresh.socket.exists()
    fresh.start()


def test_a_socket_that_another_process_serves_is_left_to_it(fresh: Agent) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(fresh.socket))
        other.listen(1)
        said = refused(fresh)
        assert said == f"{fresh.socket}: another process serves it; stop that agent first"
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(fresh.socket))


def test_a_socket_whose_server_lets_nobody_in_is_left_to_it(fresh: Agent) -> None:
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as waiting:
        other.bind(str(fresh.socket))
        other.listen(0)
        waiting.connect(str(fresh.socket))
        assert "another process serves it" in refused(fresh)


@pytest.fixture
def api() -> Api:
    """What the API of an agent without VMs needs."""

    def nothing(domains: Collection[str] | None = None) -> Snapshot:
        return snapshot_of(Known(State(), {}, {}, {}, {}, {}, 0), domains)

    return Api(Config, nothing, lambda _: None, Metrics(), History(), lambda: 0)


async def test_a_file_in_the_sockets_place_is_never_removed(
    short_folder: Path, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    path = short_folder / "precious"
    path.write_text("precious")
    async with serve(api, AgentConfig(socket=path)):
        assert f"{path}: exists and is not a socket; set another" in caplog.text
    assert path.read_text() == "precious"
    assert api.metrics.errors == {"config": 1}
    with pytest.raises(ConfigError, match="exists and is not a socket"):
        check_socket(path)


@root_only
async def test_a_socket_of_another_user_is_left_alone(
    short_folder: Path, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    path = short_folder / "nobodys.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    os.chown(path, NOBODY, NOBODY)
    async with serve(api, AgentConfig(socket=path)):
        assert f"{path}: belongs to another user; remove it" in caplog.text
    assert path.exists()


async def test_a_socket_that_cannot_be_served_is_served_once_it_can(
    short_folder: Path,
    api: Api,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("iokeel.report.http._SERVE_AGAIN_S", 0.01)
    folder = short_folder / "file"
    folder.touch()
    path = folder / "agent.sock"
    with pytest.raises(ConfigError, match=f"{folder} is not a folder; set "):
        check_socket(path)
    async with serve(api, AgentConfig(socket=path)):
        await until(lambda: api.metrics.errors["config"] > 2)
        folder.unlink()
        await until(path.exists)
        assert await asyncio.to_thread(client.vms, path) == []
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert not path.exists()
    assert caplog.text.count("can't be served") == 1
    check_socket(path)


class Unserved(Agent):
    """An agent whose socket can't be served."""

    def answers(self) -> bool:
        return self.says(f"{self.socket}: can't be served")


def test_an_agent_ticks_on_without_its_socket(fresh: Agent) -> None:
    agent = Unserved(fresh.folder)
    agent.socket = agent.config / "agent.sock"
    agent.config.write_text(agent.config.read_text().replace(str(fresh.socket), str(agent.socket)))
    kept = agent.state / "agent.toml"
    with agent:
        eventually(lambda: kept.read_text().endswith(agent.config.read_text()), what="a tick")
        assert agent.stop() == 0
    done = iokeel("agent", "--check", "--config", agent.config)
    assert (done.status, "is not a folder" in done.complaint) == (2, True)


def test_a_file_is_the_last_good_one_only_once_it_has_been_in_force(fresh: Agent) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(fresh.socket))
        other.listen(1)
        refused(fresh)
    assert not (fresh.state / "agent.toml").exists()


def test_a_port_in_use_is_told_and_ends_nothing(fresh: Agent) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        text = fresh.config.read_text()
        fresh.config.write_text(
            text.replace("[agent]", f'[agent]\nmetrics_address = "127.0.0.1:{port}"')
        )
        with fresh as agent:
            assert agent.says(
                f"[agent] metrics_address: 127.0.0.1 port {port} can't be served, address already"
                " in use; free the port or give another"
            )
            assert agent.metrics()['iokeel_agent_errors_total{kind="config"}'] == 1


def test_whoever_connects_to_the_port_does_not_use_up_the_agents_files(fresh: Agent) -> None:
    port = free_port()
    text = fresh.config.read_text()
    fresh.config.write_text(
        text.replace("[agent]", f'[agent]\nmetrics_address = "127.0.0.1:{port}"')
    )
    with fresh as agent, ExitStack() as idle:
        assert agent.process is not None
        resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (128, 128))
        for _ in range(200):
            with suppress(OSError):
                idle.enter_context(socket.create_connection(("127.0.0.1", port), 10))
        assert agent.ask("/v1/vms") == []
        idle.close()
        eventually(lambda: "iokeel_agent_domains" in families(("127.0.0.1", port)), what="metrics")


def test_whoever_holds_connections_to_the_port_keeps_nobody_out(fresh: Agent) -> None:
    port = free_port()
    text = fresh.config.read_text()
    fresh.config.write_text(
        text.replace("[agent]", f'[agent]\nmetrics_address = "127.0.0.1:{port}"')
    )
    with fresh as agent, ExitStack() as held:
        for number in range(40):
            half = held.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            half.sendall(
                b"GET /metr" if number % 2 else b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
            )
        for _ in range(40):
            assert "iokeel_agent_domains" in families(("127.0.0.1", port))
        assert agent.ask("/v1/vms") == []


# The state folder and the configuration


def test_a_state_dir_that_is_a_file_is_refused(fresh: Agent) -> None:
    fresh.state.touch()
    assert refused(fresh).startswith(f"{fresh.state}")


@root_only
def test_a_state_dir_that_can_not_be_written_is_refused(fresh: Agent) -> None:
    fresh.state.mkdir(mode=0o755)
    done = iokeel("agent", "--config", fresh.config, nobody=True)
    assert done.status == 2
    assert done.complaint == (
        f"{fresh.state}/lock: Permission denied; let the agent write it, or set another state_dir"
    )


def test_two_agents_never_share_a_state_dir(fresh: Agent) -> None:
    fresh.start()
    said = refused(fresh)
    assert said == f"{fresh.state}/lock: another agent runs with this state_dir; stop it first"
    assert fresh.answers()


def test_a_missing_configuration_is_named(fresh: Agent) -> None:
    fresh.config.unlink()
    assert refused(fresh) == f"{fresh.config}: no such file; write it or give --config FILE"


def test_a_configuration_that_is_a_folder_is_named(fresh: Agent) -> None:
    fresh.config.unlink()
    fresh.config.mkdir()
    assert refused(fresh).startswith(f"{fresh.config}: can't be read, Is a directory; ")


@root_only
def test_a_configuration_that_may_not_be_read_is_named(fresh: Agent) -> None:
    fresh.config.chmod(0o600)
    done = iokeel("agent", "--config", fresh.config, nobody=True)
    assert done.status == 2
    assert done.complaint.startswith(f"{fresh.config}: can't be read, Permission denied; ")


def test_a_slip_of_the_pen_is_named_with_what_was_meant(fresh: Agent) -> None:
    fresh.config.write_text(fresh.config.read_text().replace("state_dir", "state_dri"))
    assert refused(fresh) == (
        f"{fresh.config}, [agent] state_dri: not known; did you mean 'state_dir'?"
    )


# The end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(fresh: Agent, number: signal.Signals) -> None:
    fresh.start()
    assert fresh.stop(number) == 0
    assert not fresh.socket.exists()
    assert "Traceback" not in fresh.log()


def test_more_signals_while_it_stops_do_no_harm(fresh: Agent) -> None:
    qemu, path = start_qemu(fresh.folder)
    try:
        fresh.config.write_text(fresh.config.read_text() + VM.format(path))
        fresh.start()
        eventually(lambda: "limits set" in fresh.log(), what="limits are set")
        assert fresh.process is not None
        until = time.monotonic() + 60
        while fresh.process.poll() is None and time.monotonic() < until:
            fresh.process.send_signal(signal.SIGTERM)
            time.sleep(0.0003)
        assert fresh.process.returncode == 0
    finally:
        qemu.kill()
        qemu.communicate()
    assert not fresh.socket.exists()
    assert "stopped: 1 drives are at their static limits" in fresh.log()
    assert "Traceback" not in fresh.log()
