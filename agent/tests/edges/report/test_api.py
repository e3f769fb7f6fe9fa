"""Each answer of a real agent, and each --json of the command, is what docs/openapi.json says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iokeel.report.records import API_VERSION
from testing.agents import Agent, http, iokeel
from testing.api_doc import PARAMETERS, SCHEMA, answer_faults, command_faults
from testing.waiting import eventually

DOCUMENT = json.loads(SCHEMA.read_text())
POLICY = '<policy xmlns="urn:iokeel:policy:1"><drive target="vda" limit="500"/></policy>'
DISK = "<disk type='file'><source file='/a'/><target dev='vda'/></disk>"
DOMAIN = f"<domain><name>db1</name><metadata>{POLICY}</metadata><devices>{DISK}</devices></domain>"
BODIES = {"/v1/policy": POLICY, "/v1/hook": '{"domain": "db1", "operation": "started"}'}
QUERIES = {"/v1/why": "?domain=db1", "/v1/policy": "?domain=db1"}
PATHS = [(method.upper(), path) for path, each in DOCUMENT["paths"].items() for method in each]


@pytest.fixture(scope="module")
def busy(agent: Agent) -> Agent:
    """An agent that has found its VM, and has set its limits."""
    eventually(lambda: bool(agent.drive("db1")["limits_in_force"]), what="limits are set")
    eventually(lambda: bool(agent.ask("/v1/history")["ages_s"]), what="a sample is there")
    return agent


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_each_path_answers_what_is_documented(busy: Agent, method: str, path: str) -> None:
    body = BODIES.get(path, "").encode()
    status, kind, answer = http(busy.socket, method, path + QUERIES.get(path, ""), body)
    documented = DOCUMENT["paths"][path][method.lower()]["responses"]["200"]["content"]
    assert status == 200
    assert kind.partition(";")[0] in documented
    if kind.startswith("application/json"):
        assert answer_faults(path, json.loads(answer), method=method.lower()) == []


def test_what_is_not_documented_is_not_there(busy: Agent) -> None:
    for path in ("/", "/v1", "/v1/", "/v2/vms", "/v1/vms/db1", "/openapi.json"):
        assert http(busy.socket, "GET", path)[0] == 404
    for method, path in PATHS:
        other = "POST" if method == "GET" else "GET"
        assert http(busy.socket, other, path)[0] == 405


def test_the_version_is_told(busy: Agent) -> None:
    assert busy.ask("/v1/settings")["api_version"] == API_VERSION
    assert DOCUMENT["info"]["version"] == str(API_VERSION)


@pytest.mark.parametrize("query", ["domain=db1", "domain=db1&target=vda", "series=credit_s"])
def test_the_history_of_some_is_as_documented(busy: Agent, query: str) -> None:
    assert answer_faults("/v1/history", busy.ask(f"/v1/history?{query}")) == []
    names = {parameter.name for parameter in PARAMETERS["/v1/history"]}
    assert {word.partition("=")[0] for word in query.split("&")} <= names


@pytest.mark.parametrize(
    ("method", "path", "query", "body", "status"),
    [
        ("get", "/v1/why", "?domain=db2", "", 404),
        ("get", "/v1/history", "?domain=db2", "", 404),
        ("get", "/v1/history", "?seconds=0", "", 400),
        ("post", "/v1/policy", "?domain=db2", "", 404),
        ("post", "/v1/hook", "", "[]", 400),
    ],
)
def test_a_refusal_is_as_documented(
    busy: Agent, method: str, path: str, query: str, body: str, status: int
) -> None:
    found, _, answer = http(busy.socket, method.upper(), path + query, body.encode())
    assert found == status
    assert answer_faults(path, json.loads(answer), status, method) == []


def test_a_bad_policy_is_told_as_documented(busy: Agent) -> None:
    for path, body in (
        ("/v1/policy", POLICY.replace("500", "x")),
        ("/v1/policy", POLICY.replace("vda", "vdz")),
        ("/v1/policy", POLICY.replace("<drive", "<drive class='gold'")),
        (
            "/v1/hook",
            json.dumps({"domain": "a", "operation": "prepare", "xml": DOMAIN.replace("500", "x")}),
        ),
    ):
        status, _, answer = http(busy.socket, "POST", f"{path}?domain=db1", body.encode())
        assert (status, answer_faults(path, json.loads(answer), method="post")) == (200, [])


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Files that commands read, by name."""
    made = {name: tmp_path / name for name in ("policy.xml", "vm.xml", "new.toml")}
    made["policy.xml"].write_text(POLICY)
    made["vm.xml"].write_text(DOMAIN)
    made["new.toml"].write_text("[classes.gold]\nlimit = 7\n")
    return made


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("curve table", "--min 100"),
        ("history", "db1 vda"),
        ("policy check", "db1"),
        ("policy check", "policy.xml"),
        ("policy check", "vm.xml"),
        ("rules", ""),
        ("rules diff", "new.toml"),
        ("rules explain", "vm.xml"),
        ("stats", ""),
        ("stats", "db1"),
        ("stats", "--sort rate"),
        ("stats", "--storage"),
        ("stats", "--tenant"),
        ("stats", "--tenant acme"),
        ("why", "db1"),
        ("why", "db1 vda"),
    ],
)
def test_each_subcommand_prints_what_is_documented(
    busy: Agent, files: dict[str, Path], name: str, words: str
) -> None:
    given = [files.get(word, word) for word in words.split()]
    environment = {"IOKEEL_SOCKET": str(busy.socket)}
    done = iokeel(*name.split(), *given, "--json", environment=environment)
    assert (done.status, done.err) == (0, "")
    assert command_faults(name, json.loads(done.out)) == []
