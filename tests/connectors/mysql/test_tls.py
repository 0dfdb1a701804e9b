"""What is said to a MariaDB on another host is said over TLS, to the one that was asked for, or not at all."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import certificates, mysql_server
from tests.support.certificates import Certificate, certificate_of
from tests.support.false_database import FalseMariadb
from tests.support.mysql_server import PASSWORD, Scene, Server, ids, inserts, needs_mariadb, running
from tests.support.mysql_snapshots import opened, whole
from tidings.errors import InvalidOption, LogUnavailable
from tidings.hosts import VARIABLE
from tidings.log_checks import preflight
from tidings.stream_definition import StreamDefinition

pytestmark = needs_mariadb
password = mysql_server.password
shared_server = mysql_server.shared_server
scene = mysql_server.scene
certify = certificates.certify


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said of TLS, and other hosts may be asked: db.example and other.example, which are this one."""
    for name in [name for name in os.environ if name.startswith("MYSQL_SSL")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(VARIABLE, "db.example,other.example")
    resolve = socket.getaddrinfo

    def resolved(host: Any, *more: Any, **named: Any) -> Any:
        return resolve("127.0.0.1" if str(host).endswith(".example") else host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """That of db.example."""
    return certificate_of(tmp_path_factory.mktemp("tls"), "own", "DNS:db.example")


@pytest.fixture(scope="module")
def server(own: Certificate) -> Iterator[Server]:
    """A server that is db.example, and lets nobody in without TLS."""
    with running(certificate=own) as secured:
        secured.sql("SET SESSION sql_log_bin = 0", "ALTER USER tidings REQUIRE SSL")
        yield secured


def elsewhere(of: Scene, host: str = "db.example", **options: Any) -> StreamDefinition:
    """A stream of a database that is on another host, for all that one can see in its address."""
    stream: StreamDefinition = of.definition("items", **options)
    return replace(stream, log=stream.log.replace("127.0.0.1", host))


def at(port: int, **options: Any) -> StreamDefinition:
    """A stream of whoever listens there."""
    options["tables"] = ["shop.items"]
    return StreamDefinition("shop", 2, f"mysql:mysql://tail@db.example:{port}/shop", options=options)


def refused(stream: StreamDefinition) -> str:
    with pytest.raises(LogUnavailable) as caught:
        preflight(stream)
    sentence = str(caught.value)
    assert PASSWORD not in sentence
    assert "\n" not in sentence
    return sentence


def test_rows_come_over_tls_from_the_server_that_was_asked_for(
    scene: Scene, own: Certificate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MYSQL_SSL_CA", str(own[0]))
    scene.may_read()
    scene.sql(*inserts(range(1)))
    stream = elsewhere(scene, snapshot=True, snapshot_folder=str(tmp_path))
    preflight(stream)
    with opened(stream):
        scene.sql(*inserts(range(1, 50)))
    assert ids(whole(stream, make=False)) == list(range(50))


def test_the_authorities_are_those_of_the_environment_then_of_the_option_file_then_of_the_machine(
    scene: Scene,
    own: Certificate,
    certify: Callable[[str, str], Certificate],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    assert "is not signed by whom we trust" in refused(elsewhere(scene))
    monkeypatch.setenv("SSL_CERT_FILE", str(own[0]))
    preflight(elsewhere(scene))
    assert "has a certificate of another host" in refused(elsewhere(scene, host="other.example"))
    monkeypatch.delenv("SSL_CERT_FILE")
    file = tmp_path / "my.cnf"
    file.write_text(f"[client]\nssl_ca = '{own[0]}'\nssl-capath = {own[0].parent}\n")
    preflight(elsewhere(scene, defaults_file=str(file)))
    monkeypatch.setenv("MYSQL_SSL_CA", str(certify("other", "DNS:db.example")[0]))
    assert "is not signed by whom we trust" in refused(elsewhere(scene, defaults_file=str(file)))


def test_a_server_of_which_the_authority_is_not_known_is_sent_nothing(
    scene: Scene, certify: Callable[[str, str], Certificate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYSQL_SSL_CA", str(certify("other", "DNS:db.example")[0]))
    sentence = refused(elsewhere(scene))
    assert "is not signed by whom we trust, so nothing is sent to it" in sentence
    assert sentence.endswith("name the file of its authority in MYSQL_SSL_CA")


def test_a_server_with_the_certificate_of_another_host_is_sent_nothing(
    scene: Scene, own: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYSQL_SSL_CA", str(own[0]))
    assert "has a certificate of another host, so nothing is sent" in refused(elsewhere(scene, host="other.example"))
    monkeypatch.setenv("MYSQL_SSL_MODE", "VERIFY_CA")
    preflight(elsewhere(scene, host="other.example"))
    monkeypatch.delenv("MYSQL_SSL_CA")
    assert "is not signed by whom we trust" in refused(elsewhere(scene))
    monkeypatch.setenv("MYSQL_SSL_MODE", "REQUIRED")
    preflight(elsewhere(scene, host="other.example"))


def test_a_server_that_speaks_no_tls_is_sent_nothing_until_the_environment_allows_it(
    shared_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Scene(shared_server)
    plain.sql(mysql_server.ITEMS)
    assert "speaks no TLS, so nothing is sent to it" in refused(elsewhere(plain))
    preflight(elsewhere(plain, host="localhost"))
    for strict in ("required", "VERIFY_CA", "VERIFY_IDENTITY"):
        monkeypatch.setenv("MYSQL_SSL_MODE", strict)
        assert "speaks no TLS" in refused(elsewhere(plain))
        assert "speaks no TLS" in refused(elsewhere(plain, host="localhost"))
    for enough in ("DISABLED", "PREFERRED"):
        monkeypatch.setenv("MYSQL_SSL_MODE", enough)
        preflight(elsewhere(plain))


def test_who_has_no_certificate_does_not_get_in_where_one_is_wanted(
    scene: Scene, own: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.server.sql("SET SESSION sql_log_bin = 0", "ALTER USER tidings REQUIRE X509")
    try:
        monkeypatch.setenv("MYSQL_SSL_CA", str(own[0]))
        assert "if it wants a certificate, name one in MYSQL_SSL_CERT and MYSQL_SSL_KEY" in refused(elsewhere(scene))
        monkeypatch.setenv("MYSQL_SSL_CERT", str(own[0]))
        monkeypatch.setenv("MYSQL_SSL_KEY", str(own[1]))
        preflight(elsewhere(scene))
    finally:
        scene.server.sql("SET SESSION sql_log_bin = 0", "ALTER USER tidings REQUIRE SSL")


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "of-another-host"])
def test_one_who_plays_the_database_hears_nothing_over_tls(
    certify: Callable[[str, str], Certificate], monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    false = certify("false", "DNS:evil.example" if known else "DNS:db.example")
    if known:
        monkeypatch.setenv("MYSQL_SSL_CA", str(false[0]))
    with FalseMariadb(false) as evil:
        assert "so nothing is sent to it" in refused(at(evil.port))
    assert evil.came
    assert len(evil.heard) == 32, "the question for TLS, in which nobody has a name"
    assert b"tail" not in evil.heard


def test_one_who_plays_the_database_hears_nothing_in_clear_whatever_the_option_file_says(tmp_path: Path) -> None:
    file = tmp_path / "my.cnf"
    file.write_text("[client]\nssl-mode = DISABLED\nskip-ssl\nssl = 0\nssl-verify-server-cert = 0\n")
    with FalseMariadb() as evil:
        assert "speaks no TLS" in refused(at(evil.port))
        assert "speaks no TLS" in refused(at(evil.port, defaults_file=str(file)))
    assert evil.came
    assert evil.heard == b""


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MYSQL_SSL_MODE", "on", "MYSQL_SSL_MODE is 'ON', which is none of DISABLED, "),
        (
            "MYSQL_SSL_CA",
            "/nowhere.pem",
            r"what is needed for TLS cannot be read \(No such file .*\): correct MYSQL_SSL_CA",
        ),
        (
            "MYSQL_SSL_CERT",
            "/dev/null",
            r"what is needed for TLS cannot be read \(.*\): correct MYSQL_SSL_CA, MYSQL_SSL_CERT",
        ),
    ],
)
def test_what_the_environment_says_wrongly_is_told(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    with FalseMariadb() as evil, pytest.raises(InvalidOption, match=words):
        preflight(at(evil.port))
    assert not evil.came
