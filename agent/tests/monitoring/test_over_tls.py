"""A real Prometheus scrapes an agent beyond loopback, as docs/metrics.md has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import yaml

from testing.agents import Agent, free_port
from testing.fleet.etcd import Certificates
from testing.metrics_doc import page
from testing.waiting import eventually
from tests.monitoring.prometheus import Prometheus

BY_CERTIFICATE, BY_PASSWORD = (
    yaml.safe_load(block.split("```")[0]) for block in page().split("```yaml\n")[1:3]
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A server's, a client's and the CA's, under the names that the page gives them."""
    made = Certificates(tmp_path_factory.mktemp("tls"))
    server = BY_CERTIFICATE["tls_server_config"]
    for name, key in (("server.crt", "cert_file"), ("server.key", "key_file")):
        (made.folder / name).rename(made.folder / server[key])
    (made.folder / server["client_ca_file"]).write_bytes(made.ca.read_bytes())
    return made


@contextmanager
def scraped(
    folder: Path, certificates: Certificates, web: dict[str, Any], job: dict[str, Any]
) -> Iterator[tuple[Prometheus, Agent]]:
    """Have a Prometheus scrape an agent with a web configuration."""
    file = certificates.folder / "web.yml"
    file.write_text(yaml.safe_dump(web))
    port = free_port()
    settings = f'metrics_address = "0.0.0.0:{port}"\nmetrics_web_config = "{file}"'
    more = {"scheme": "https", "tls_config": {"ca_file": str(certificates.ca)}} | job
    with Agent(folder, "", settings) as agent:
        prometheus = Prometheus(folder, {"hv1": port}, more)
        try:
            yield prometheus, agent
        finally:
            prometheus.end()


def by_password() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the page's second web configuration, and the job that goes with it."""
    tls = {**BY_CERTIFICATE["tls_server_config"]}
    del tls["client_auth_type"], tls["client_ca_file"]
    (user,) = BY_PASSWORD["basic_auth_users"]
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(10)).decode()
    web = {"tls_server_config": tls, "basic_auth_users": {user: hashed}}
    return web, {"basic_auth": {"username": user, "password": "secret"}}


def test_prometheus_is_let_in_by_its_certificate(
    tmp_path: Path, certificates: Certificates
) -> None:
    certificate, key = map(str, certificates.of("client"))
    tls = {"ca_file": str(certificates.ca), "cert_file": certificate, "key_file": key}
    job = {"tls_config": tls}
    with scraped(tmp_path, certificates, BY_CERTIFICATE, job) as (prometheus, _):
        eventually(lambda: prometheus.values("iokeel_agent_domains") == [0])


def test_prometheus_is_let_in_by_its_password(tmp_path: Path, certificates: Certificates) -> None:
    with scraped(tmp_path, certificates, *by_password()) as (prometheus, _):
        eventually(lambda: prometheus.values("iokeel_agent_domains") == [0])


def test_a_prometheus_without_a_certificate_is_told_of_in_the_log(
    tmp_path: Path, certificates: Certificates
) -> None:
    said = "127.0.0.1 was refused, peer did not return a certificate; told once an hour"
    with scraped(tmp_path, certificates, BY_CERTIFICATE, {}) as (prometheus, agent):
        eventually(lambda: agent.says(said))
        eventually(prometheus.scrape_error)
        assert prometheus.values("iokeel_agent_domains") == []


def test_a_prometheus_without_a_password_is_told_so(
    tmp_path: Path, certificates: Certificates
) -> None:
    with scraped(tmp_path, certificates, by_password()[0], {}) as (prometheus, agent):
        eventually(lambda: "401 Unauthorized" in prometheus.scrape_error())
        assert agent.says("127.0.0.1 was refused, no known user and password; told once an hour")
        assert prometheus.values("iokeel_agent_domains") == []
