"""What is said to a PostgreSQL on another host is said over TLS, to the one that was asked for, or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import certificates, postgres_server
from tests.support.certificates import Certificate, certificate_of
from tests.support.false_database import FalsePostgres
from tests.support.postgres_server import Database, PostgresServer, floors, read_all
from tidings.errors import InvalidOption, LogUnavailable, TidingsError
from tidings.hosts import VARIABLE
from tidings.log_checks import preflight
from tidings.log_opening import create_log
from tidings.stream_definition import StreamDefinition
from tidings.testing import eventually
from tidings_connectors.postgres.log import PostgresLog

database = postgres_server.database
role = postgres_server.role
certify = certificates.certify
PASSWORD = "s3cret-word"  # of the roles here


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is said of TLS, and other hosts may be asked: db.example and other.example, which are this one."""
    for name in [name for name in os.environ if name.startswith(("PGSSL", "PGSERVICE", "PGHOST"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))  # where libpq looks for files
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv(VARIABLE, "db.example,other.example")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """That of db.example."""
    return certificate_of(tmp_path_factory.mktemp("tls"), "own", "DNS:db.example")


@pytest.fixture(scope="module")
def server(own: Certificate) -> Iterator[PostgresServer]:
    """A server that is db.example."""
    if (lacking := postgres_server.missing()) is not None:
        pytest.skip(lacking)
    with contextlib.closing(PostgresServer(certificate=own)) as running:
        running.execute(f"CREATE ROLE tail LOGIN REPLICATION PASSWORD '{PASSWORD}'")
        running.execute(f"CREATE ROLE shown LOGIN REPLICATION PASSWORD '{PASSWORD}'")
        running.execute("CREATE ROLE certified ROLE shown")
        yield running


@pytest.fixture
def shop(server: PostgresServer) -> Iterator[Database]:
    made = server.database()
    yield made
    made.drop()


def elsewhere(made: Database, host: str = "db.example", user: str = "tail", more: str = "") -> StreamDefinition:
    """A stream of a database that is on another host, for all that one can see in its address."""
    place = f"host={host} hostaddr=127.0.0.1 port={made.server.port} dbname={made.name} user={user}{more}"
    return replace(made.stream(), log=f"postgres:{place}")


def at(port: int, parameters: str = "") -> StreamDefinition:
    """A stream of whoever listens there."""
    place = f"host=db.example hostaddr=127.0.0.1 port={port} dbname=shop user=tail{parameters}"
    return StreamDefinition("shop", 2, f"postgres:{place}", options={"publication": "everything"})


def refused(stream: StreamDefinition) -> str:
    with pytest.raises(LogUnavailable) as caught:
        preflight(stream)
    sentence = str(caught.value)
    assert PASSWORD not in sentence
    assert "\n" not in sentence
    return sentence


def sessions(made: Database) -> list[tuple[Any, ...]]:
    """Who is in the database for us, and whether over TLS."""
    return made.server.execute(
        "SELECT DISTINCT backend_type, ssl FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) "
        f"WHERE datname = '{made.name}' AND usename = 'tail'"
    )


def test_rows_come_over_tls_from_the_server_that_was_asked_for(
    shop: Database, own: Certificate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PGSSLROOTCERT", str(own[0]))
    shop.execute("CREATE TABLE item (id int PRIMARY KEY, name text)", "GRANT SELECT ON item TO tail")
    shop.execute("INSERT INTO item VALUES (1, 'before')")
    stream = elsewhere(shop)
    stream = replace(stream, options={**stream.options, "snapshot": True, "snapshot_folder": str(tmp_path)})
    preflight(stream)
    with contextlib.closing(create_log(stream)) as log, contextlib.closing(log.reader()) as reader:
        assert isinstance(log, PostgresLog)
        snapshot = log._snapshot
        assert snapshot is not None
        eventually(lambda: snapshot.note().complete)
        shop.execute("INSERT INTO item SELECT n, repeat('x', 30000) FROM generate_series(2, 50) n")
        rows, _ = read_all(reader, floors(log), log)
        assert sorted(sessions(shop)) == [("client backend", True), ("walsender", True)]
    assert {row["object"] for row in rows} == {f"public.item/{number}" for number in range(1, 51)}


def test_libpqs_own_file_of_authorities_is_taken_and_else_that_of_the_machine(
    shop: Database, own: Certificate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "is not signed by whom we trust" in refused(elsewhere(shop))
    (tmp_path / ".postgresql").mkdir()
    (tmp_path / ".postgresql" / "root.crt").write_text(own[0].read_text())
    preflight(elsewhere(shop))
    (tmp_path / ".postgresql" / "root.crt").unlink()
    monkeypatch.setenv("SSL_CERT_FILE", str(own[0]))
    preflight(elsewhere(shop))


def test_a_server_of_which_the_authority_is_not_known_is_sent_nothing(
    shop: Database, certify: Callable[[str, str], Certificate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSSLROOTCERT", str(certify("other", "DNS:db.example")[0]))
    sentence = refused(elsewhere(shop))
    assert "is not signed by whom we trust, so nothing is sent to it" in sentence
    assert sentence.endswith("name the file of its authority in PGSSLROOTCERT")


def test_a_server_with_the_certificate_of_another_host_is_sent_nothing(
    shop: Database, own: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSSLROOTCERT", str(own[0]))
    sentence = refused(elsewhere(shop, host="other.example"))
    assert "has a certificate of another host, so nothing is sent to it" in sentence
    monkeypatch.setenv("PGSSLMODE", "verify-ca")
    preflight(elsewhere(shop, host="other.example"))
    assert "has a certificate of another host" in refused(elsewhere(shop, "other.example", more=" sslmode=verify-full"))


def test_a_server_that_speaks_no_tls_is_sent_nothing_until_the_environment_allows_it(
    database: Database, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = elsewhere(database, user=role)
    assert "speaks no TLS, so nothing is sent to it" in refused(stream)
    for strict in ("require", "verify-ca", "verify-full"):
        monkeypatch.setenv("PGSSLMODE", strict)
        assert "speaks no TLS" in refused(stream)
    monkeypatch.setenv("PGSSLMODE", "disable")
    preflight(stream)


def test_a_server_on_this_machine_needs_no_tls_unless_it_is_asked_for(
    database: Database, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = database.stream(user=role)
    preflight(stream)
    assert "speaks no TLS" in refused(replace(stream, log=f"{stream.log}?sslmode=verify-full"))
    with monkeypatch.context() as strict:
        strict.setenv("PGSSLMODE", "verify-full")
        assert "speaks no TLS" in refused(stream)


def test_who_has_no_certificate_does_not_get_in_where_one_is_wanted(
    shop: Database, own: Certificate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PGSSLROOTCERT", str(own[0]))
    assert "if it is a certificate, name ours in PGSSLCERT and PGSSLKEY" in refused(elsewhere(shop, user="shown"))
    monkeypatch.setenv("PGSSLCERT", str(own[0]))
    monkeypatch.setenv("PGSSLKEY", str(own[1]))
    preflight(elsewhere(shop, user="shown"))


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "of-another-host"])
def test_one_who_plays_the_database_hears_nothing_over_tls(
    certify: Callable[[str, str], Certificate], monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    false = certify("false", "DNS:evil.example" if known else "DNS:db.example")
    if known:
        monkeypatch.setenv("PGSSLROOTCERT", str(false[0]))
    with FalsePostgres(false) as evil:
        assert "so nothing is sent to it" in refused(at(evil.port))
    assert evil.came
    assert evil.heard == b""


def test_one_who_plays_the_database_hears_nothing_in_clear(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with FalsePostgres() as evil:
        assert "speaks no TLS" in refused(at(evil.port))
        services = tmp_path / "services"
        services.write_text(f"[shop]\nhost=db.example\nhostaddr=127.0.0.1\nport={evil.port}\nsslmode=disable\n")
        monkeypatch.setenv("PGSERVICEFILE", str(services))
        by_service = StreamDefinition("shop", 2, "postgres:service=shop user=tail", options={"publication": "p"})
        refused(by_service)
        monkeypatch.setenv("PGHOST", "db.example")
        monkeypatch.setenv("PGHOSTADDR", "127.0.0.1")
        monkeypatch.setenv("PGPORT", str(evil.port))
        refused(replace(by_service, log="postgres:user=tail dbname=shop"))
        refused(replace(by_service, log="postgres:user=tail dbname=shop host=localhost"))
    assert evil.came
    assert evil.heard == b""


def test_a_service_says_whom_to_trust(
    shop: Database, own: Certificate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    services = tmp_path / "services"
    place = f"host=db.example\nhostaddr=127.0.0.1\nport={shop.server.port}\ndbname={shop.name}\nuser=tail\n"
    services.write_text(f"[shop]\n{place}sslrootcert={own[0]}\n")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    preflight(replace(shop.stream(), log="postgres:service=shop"))


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ("sslmode=disable", "can ask for sslmode=verify-full and for nothing less"),
        ("sslmode=require", "set PGSSLMODE for the processes that read it"),
        ("sslrootcert=/tmp/theirs.pem", "must not hold sslrootcert, .*: set PGSSLROOTCERT"),
        ("sslkey=engine:id", "must not hold sslkey, "),
        ("ssl_min_protocol_version=TLSv1", "must not hold ssl_min_protocol_version, .*: set PGSSLMINPROTOCOLVERSION"),
        ("gssencmode=require", "must not hold gssencmode"),
        ("service=other", "names a service or a host, not both"),
    ],
)
def test_an_address_cannot_say_that_less_is_enough(
    monkeypatch: pytest.MonkeyPatch, parameters: str, words: str
) -> None:
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    with FalsePostgres() as evil, pytest.raises(InvalidOption, match=words):
        create_log(at(evil.port, f" {parameters}"))
    assert not evil.came


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("PGSSLMODE", "on", "PGSSLMODE is 'on', which is none of disable, "),
        ("PGSSLROOTCERT", "/nowhere.pem", "no certificate can be read in '/nowhere.pem' .*: correct PGSSLROOTCERT"),
        ("PGSSLROOTCERT", "/dev/null", "no certificate can be read in '/dev/null' .*: correct PGSSLROOTCERT"),
    ],
)
def test_what_the_environment_says_wrongly_is_told(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    with FalsePostgres() as evil, pytest.raises(TidingsError, match=words):
        preflight(at(evil.port))
    assert evil.heard == b""
