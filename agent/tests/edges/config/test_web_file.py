"""The web configuration file of /metrics: what it may say, and what is wrong with others."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import bcrypt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iokeel.config.tables import Address
from iokeel.config.web_file import load_web
from iokeel.errors import ConfigError
from testing.fleet.etcd import Certificates

LOOPBACK, OUTSIDE = Address("127.0.0.1", 9632), Address("192.0.2.1", 9632)
# Always the same, because it is in tests' names.
HASH = bcrypt.hashpw(b"secret", b"$2b$04$abcdefghijklmnopqrstuu").decode()
PAIR = "cert_file: server.crt, key_file: server.key"
CLIENTS = "client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.crt"
TLS = f"tls_server_config: {{{PAIR}}}\n"
USERS = f"basic_auth_users: {{prometheus: '{HASH}'}}\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the certificates of a server, a client and a CA, and another's key."""
    made = Certificates(tmp_path_factory.mktemp("web")).folder
    other = Certificates(tmp_path_factory.mktemp("other"))
    shutil.copy(other.of("server")[1], made / "other.key")
    (made / "empty").touch()
    return made


@pytest.fixture
def file(folder: Path) -> Iterator[Path]:
    """The place of a web configuration file among them."""
    path = folder / "web.yml"
    yield path
    path.unlink(missing_ok=True)


def test_an_empty_file_asks_for_nothing(file: Path) -> None:
    file.write_text("")
    found = load_web(file, LOOPBACK)
    assert (found.tls, found.users, found.doubts) == (None, {}, ())


def test_paths_are_relative_to_the_file(file: Path) -> None:
    file.write_text(f"tls_server_config: {{{PAIR}, {CLIENTS}, min_version: TLS13}}\n{USERS}")
    found = load_web(file, OUTSIDE)
    assert found.tls is not None
    assert found.tls.verify_mode is ssl.CERT_REQUIRED
    assert found.tls.minimum_version is ssl.TLSVersion.TLSv1_3
    assert found.users == {"prometheus": HASH.encode()}


@pytest.mark.parametrize("text", [f"tls_server_config: {{{PAIR}, {CLIENTS}}}\n", TLS + USERS])
def test_whoever_may_ask_beyond_loopback_has_to_show_who_he_is(file: Path, text: str) -> None:
    file.write_text(text)
    assert load_web(file, OUTSIDE).tls is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "would serve metrics, and passwords, in the clear beyond loopback; add tls_server"),
        (USERS, "would serve metrics, and passwords, in the clear beyond loopback; add tls_server"),
        (TLS, "would let anybody read metrics beyond loopback; add client_auth_type: RequireAnd"),
        (
            f"tls_server_config: {{{PAIR}, client_auth_type: VerifyClientCertIfGiven,"
            " client_ca_file: ca.crt}",
            "would let anybody read metrics beyond loopback; add client_auth_type: RequireAnd",
        ),
    ],
)
def test_what_lets_anybody_in_is_refused_beyond_loopback(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    load_web(file, LOOPBACK)
    with pytest.raises(ConfigError, match=f"^{re.escape(f'{file}: {said}')}"):
        load_web(file, OUTSIDE)


def tls(more: str) -> str:
    return f"tls_server_config: {{{PAIR}, {more}}}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", ", line 1: not YAML, expected the node content, but found '<stream end>'; see"),
        ("a: b: c", ", line 1: not YAML, mapping values are not allowed here; see"),
        ("\x00", ": not YAML, 'unacceptable character"),
        ("- a", ": is ['a']; it should be a valid dictionary"),
        ("tls_config: {}", ", tls_config: is not supported; did you mean 'tls_server_config'?"),
        ("rate_limit: {burst: 1}", ", rate_limit: is not supported; known: basic_auth_users, tls"),
        ("http_server_config: {http2: false}", ", http_server_config: is not supported; "),
        (tls("cipher_suites: [a]"), ", tls_server_config.cipher_suites: is not supported; known:"),
        (tls("client_ca: x"), "_config.client_ca: is not supported; did you mean 'client_ca_file'"),
        ("tls_server_config: {cert_file: server.crt}", "_config.key_file: is missing; add it"),
        ("tls_server_config: {cert_file: '', key_file: a}", "_config.cert_file: is ''; String"),
        ("tls_server_config: {cert_file: 1, key_file: a}", "is 1; it should be a valid string"),
        (
            tls("client_auth_type: RequireAnyClientCert"),
            "_config.client_auth_type: is 'RequireAnyClientCert'; it should be 'NoClientCert',"
            " 'VerifyClientCertIfGiven' or 'RequireAndVerifyClientCert'",
        ),
        (tls("client_auth_type: yes"), "_config.client_auth_type: is True; it should be 'NoClient"),
        (
            tls("client_auth_type: RequireAndVerifyClientCert"),
            "tls_server_config: lacks a client_ca_file with RequireAndVerifyClientCert; give",
        ),
        (tls("client_ca_file: ca.crt"), "config: has a client_ca_file with NoClientCert; give"),
        (tls("min_version: TLS11"), "min_version: is 'TLS11'; it should be 'TLS12' or 'TLS13'"),
        (tls("min_version: TLS13, max_version: TLS12"), "max_version: is below min_version; raise"),
        ("basic_auth_users: [a]", ", basic_auth_users: is ['a']; it should be a valid dictionary"),
        *(
            (f"basic_auth_users: {{{entry}}}", f", basic_auth_users.{name}: isn't a name with a")
            for name, entry in [
                ("a", "a: secret"),
                ("a", "a: 12345678"),
                ("a", "a:"),
                ("a", "a: $apr1$QkC7kFLA$vGJbeQvLQsqrhGjxZUPIe1"),
                ("a", f"a: '{HASH[:-1]}'"),
                ("a", f"a: '{HASH.replace('$04$', '$03$')}'"),
                ("a", f"a: '{HASH.replace('$04$', '$14$')}'"),
                ("1", f"1: '{HASH}'"),
            ]
        ),
        # Files that it names
        (
            TLS.replace("server.crt", "gone.crt"),
            "/gone.crt: can't be read: no such file or directory; see that it is a server's"
            " certificate and its key, without a password and readable",
        ),
        (TLS.replace("server.key", "gone.key"), "/gone.key: can't be read: no such file or dir"),
        (TLS.replace("server.crt", "."), ": can't be read: is a directory; see that"),
        (TLS.replace("server.key", "other.key"), "/other.key: can't be read: key values mismatch"),
        (TLS.replace("server.crt", "empty"), "server.key: can't be read: not pem; see that"),
        (TLS.replace("server.key", "empty"), "/empty: can't be read: not pem; see that"),
        (
            tls(CLIENTS.replace("ca.crt", "gone.crt")),
            "/gone.crt: can't be read: no such file or directory; see that it is the certificate of"
            " the clients' CA and readable",
        ),
        (tls(CLIENTS.replace("ca.crt", "empty")), "/empty: can't be read: no certificate or crl"),
    ],
)
def test_what_can_not_be_used_is_named(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_web(file, LOOPBACK)
    assert said in str(raised.value)
    assert str(raised.value).startswith(str(file.parent))
    assert str(raised.value).isprintable()
    assert "secret" not in str(raised.value)
    assert "12345678" not in str(raised.value)


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(file: Path) -> None:
    key = file.parent / "locked.key"
    words = f"openssl ec -aes256 -passout pass:x -in {file.parent}/server.key -out {key}"
    subprocess.run(words.split(), check=True, capture_output=True)
    file.write_text(TLS.replace("server.key", "locked.key"))
    with pytest.raises(ConfigError, match=r"locked\.key: can't be read: .*without a password"):
        load_web(file, LOOPBACK)


def test_a_missing_file_is_named(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"web\.yml: can't be read: no such file or directory"):
        load_web(file, LOOPBACK)


def test_secrets_that_others_may_read_are_doubted(file: Path) -> None:
    file.write_text(TLS + USERS)
    for mode, count in ((0o644, 2), (0o600, 0)):
        for secret in (file, file.parent / "server.key"):
            secret.chmod(mode)
        doubts = load_web(file, OUTSIDE).doubts
        assert len(doubts) == count
        assert all("type `chmod 600" in str(doubt) for doubt in doubts)


@pytest.mark.parametrize("name", ["web.yml", "server.crt", "server.key", "ca.crt"])
def test_a_change_of_each_file_is_seen(folder: Path, tmp_path: Path, name: str) -> None:
    for each in ("server.crt", "server.key", "ca.crt"):
        shutil.copy(folder / each, tmp_path)
    (tmp_path / "web.yml").write_text(tls(CLIENTS))
    found = load_web(tmp_path / "web.yml", OUTSIDE)
    assert not found.has_changed()
    shutil.copy(tmp_path / name, tmp_path / "new")
    (tmp_path / "new").rename(tmp_path / name)
    assert found.has_changed()
    (tmp_path / name).unlink()
    assert found.has_changed()


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.sampled_from(
            [*"{}[]:,&*!|>'\"-?#%@\n \0", "\n  ", "tls_server_config: ", "basic_auth_users: ",
             "cert_file: ", "a", "1", "null", "&a ", "*a",
             "<<: ", "2001-99-99", "!!python/name:os "]        ),
        max_size=12,
    ).map("".join) | st.text(max_size=20)
)  # fmt: skip
def test_arbitrary_texts_raise_nothing_but_config_error(file: Path, text: str) -> None:
    file.write_bytes(text.encode(errors="surrogateescape"))
    with suppress(ConfigError):
        load_web(file, LOOPBACK)
