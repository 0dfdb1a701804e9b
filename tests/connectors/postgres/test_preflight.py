"""What is wrong with a server is one sentence, and the statement at its end mends it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from concurrent import futures
from pathlib import Path

import pytest

from tests.support import postgres_server
from tests.support.postgres_server import Database, PostgresServer, read_on
from tidings.errors import InvalidOption, LogMismatch, LogUnavailable, PositionsLost
from tidings.log_opening import create_log, open_log
from tidings.positions import Position, Positions
from tidings.stream_definition import StreamDefinition
from tidings.testing import eventually

database, own_server = postgres_server.database, postgres_server.own_server


def refused(stream: StreamDefinition, make: bool = True) -> str:
    """The sentence with which a stream is refused."""
    with pytest.raises(LogUnavailable) as caught:
        (create_log if make else open_log)(stream).close()
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert not sentence.endswith(".")
    return sentence


def cure(sentence: str, beginning: str) -> str:
    """The statement at the end of a sentence."""
    return sentence[sentence.index(beginning) :].removesuffix("; and restart the server")


role = postgres_server.role


def test_a_role_that_may_log_in_and_replicate_is_enough(database: Database, role: str) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with contextlib.closing(create_log(database.stream(user=role))) as log, contextlib.closing(log.reader()) as reader:
        database.execute("INSERT INTO t VALUES (1)")
        rows, upto = postgres_server.read_all(reader, postgres_server.floors(log), log)
        assert len(rows) == 1
        log.confirm(upto)  # type: ignore[attr-defined]
    open_log(database.stream(user=role)).close()


def test_a_wrong_password(database: Database, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "wrong")
    sentence = refused(database.stream(user=role))
    assert "wrong" not in sentence
    statement = cure(sentence, "ALTER ROLE")
    assert statement == f"ALTER ROLE \"{role}\" LOGIN CONNECTION LIMIT -1 PASSWORD '...'"
    database.execute(statement.replace("...", "wrong"))
    create_log(database.stream(user=role)).close()


def test_a_server_that_is_not_there(database: Database) -> None:
    place = f"postgres:postgresql://nobody@127.0.0.1:1/{database.name}"
    sentence = refused(StreamDefinition("shop", 4, place, options={"publication": "everything"}))
    assert "does not answer" in sentence
    assert sentence.endswith("start it, or correct the address")


def test_a_role_that_may_not_replicate(database: Database, role: str) -> None:
    database.execute(f"ALTER ROLE {role} NOREPLICATION")
    sentence = refused(database.stream(user=role))
    assert "may not replicate" in sentence
    database.execute(cure(sentence, "ALTER ROLE"))
    create_log(database.stream(user=role)).close()


def test_a_publication_that_is_missing(database: Database) -> None:
    database.execute("DROP PUBLICATION everything")
    sentence = refused(database.stream())
    assert "has no publication 'everything'" in sentence
    database.execute(cure(sentence, "CREATE PUBLICATION"))
    create_log(database.stream()).close()


def test_a_slot_that_is_missing(database: Database) -> None:
    sentence = refused(database.stream(), make=False)
    assert f"has no replication slot 'tidings_{database.name}'" in sentence
    database.execute(cure(sentence, "SELECT pg_create"))
    open_log(database.stream()).close()


def test_a_slot_that_goes_while_it_is_used(database: Database) -> None:
    with contextlib.closing(create_log(database.stream())) as log:
        after = postgres_server.floors(log)
        database.execute(f"SELECT pg_drop_replication_slot('tidings_{database.name}')")
        with pytest.raises(LogUnavailable, match="SELECT pg_create_logical_replication_slot"):
            log.reader().read(after, 10)


def test_a_publication_that_goes_while_it_is_used(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with contextlib.closing(create_log(database.stream())) as log, contextlib.closing(log.reader()) as reader:
        database.execute("INSERT INTO t VALUES (1)")
        rows, after = postgres_server.read_all(reader, postgres_server.floors(log), log)
        database.execute("DROP PUBLICATION everything", "INSERT INTO t VALUES (2)")
        with pytest.raises(LogUnavailable, match="has no publication 'everything' any more") as caught:
            postgres_server.read_all(reader, after, log)
        slots = "SELECT slot_name, restart_lsn FROM pg_replication_slots WHERE NOT temporary"
        before = database.execute(slots)
        database.execute("INSERT INTO t VALUES (3)", cure(str(caught.value), "CREATE PUBLICATION"))
        database.execute("INSERT INTO t VALUES (4)", "INSERT INTO t VALUES (5)")
        with pytest.raises(PositionsLost, match="was made at") as lost:
            postgres_server.read_all(reader, after, log)
        assert {first for first, _ in lost.value.lost.values()} == {Position(after[0].seq, after[0].index + 1)}
        stands = Positions({shard: last for shard, (_, last) in lost.value.lost.items()})
        more, _ = postgres_server.read_all(reader, stands, log)
        assert database.execute(slots) == before
    assert [row["object"] for row in rows + more] == ["public.t/1", "public.t/4", "public.t/5"]


def test_what_was_published_before_a_publication_was_made_again_is_not_lost_with_the_rest(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with contextlib.closing(create_log(database.stream())) as log:
        database.execute("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)", "DROP PUBLICATION everything")
        database.execute("INSERT INTO t VALUES (3)", "CREATE PUBLICATION everything FOR ALL TABLES")
        database.execute("INSERT INTO t VALUES (4)")
        with contextlib.closing(log.reader()) as reader:
            objects, losses, _ = read_on(log, reader, postgres_server.floors(log))
    assert objects == ["public.t/1", "public.t/2", "loss", "public.t/4"]
    assert [set(lost) for lost in losses] == [{0, 1, 2, 3}]


def test_what_a_server_says_besides_is_no_sign_of_a_missing_publication(database: Database) -> None:
    """Its messages may hold the name of the publication, as a part of another name."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE PUBLICATION shop FOR ALL TABLES",
        f"ALTER DATABASE {database.name} SET client_min_messages = 'log'",
        f"UPDATE pg_database SET datcollversion = '1' WHERE datname = '{database.name}'",  # a warning to who connects
    )
    with contextlib.closing(create_log(database.stream(publication="shop"))) as log:
        database.execute("INSERT INTO t VALUES (1)")
        with contextlib.closing(log.reader()) as reader:
            rows, _ = postgres_server.read_all(reader, postgres_server.floors(log), log)
    assert [row["object"] for row in rows] == ["public.t/1"]


def test_a_slot_of_another_database_or_plugin_is_not_taken(database: Database) -> None:
    create_log(database.stream()).close()
    other = StreamDefinition(
        "shop", 4, database.address().replace(database.name, "postgres"), options=database.options()
    )
    with pytest.raises(LogMismatch, match="another by its option 'slot'"):
        create_log(other)
    database.execute(f"SELECT pg_create_logical_replication_slot('test_{database.name}', 'test_decoding')")
    with pytest.raises(LogMismatch, match="with plugin 'test_decoding'"):
        open_log(database.stream(slot=f"test_{database.name}"))


def test_a_password_in_the_address_is_refused_and_not_repeated(database: Database) -> None:
    for place in ("postgresql://tail:hunter2@127.0.0.1/shop", "host=127.0.0.1 password=hunter2", "=hunter2"):
        with pytest.raises(InvalidOption) as caught:
            create_log(StreamDefinition("shop", 4, f"postgres:{place}", options={"publication": "everything"}))
        assert "hunter2" not in str(caught.value)


def test_no_psycopg2_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['psycopg2'] = None; from tidings.plugins import load; load('tidings.logs', 'postgres')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ})
    assert done.stderr.strip().endswith(
        "PluginMissing: a PostgreSQL log needs psycopg2: pip install 'tidings[postgres]'"
    )


@pytest.mark.slow
def test_a_server_that_is_set_up_for_something_else(own_server: PostgresServer) -> None:
    own = own_server.database()
    for setting, value, words in (
        ("wal_level", "replica", "has wal_level 'replica'"),
        ("max_replication_slots", "1", "all of the 1 replication slots"),
        ("max_wal_senders", "0", "all of the 0 WAL senders"),
    ):
        own.execute(f"ALTER SYSTEM SET {setting} = {value}")
        own_server.restart()
        sentence = refused(own.stream())
        assert words in sentence
        assert sentence.endswith("; and restart the server")
        own.execute(cure(sentence, "ALTER SYSTEM"))
        own_server.restart()
        create_log(own.stream()).close()
        own.execute(f"SELECT pg_drop_replication_slot('tidings_{own.name}')")


@pytest.mark.slow
def test_a_server_whose_slots_are_all_taken_by_readers(own_server: PostgresServer) -> None:
    own = own_server.database()
    own.execute("ALTER SYSTEM SET max_replication_slots = 2")
    own_server.restart()
    with contextlib.closing(create_log(own.stream())) as log:
        after = postgres_server.floors(log)
        with contextlib.closing(log.reader()) as first:
            first.read(after, 10)
            with pytest.raises(LogUnavailable, match="all of the 2 replication slots") as caught:
                log.reader().read(after, 10)
        assert re.search(r"max_replication_slots = 12; and restart the server$", str(caught.value))
        log.reader().read(after, 10)


@pytest.mark.parametrize("snapshot", [False, True])
def test_who_waits_for_an_open_transaction_says_so(
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    snapshot: bool,
) -> None:
    monkeypatch.setattr("tidings_connectors.postgres.slots.PATIENCE_S", 0.1)
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    with futures.ThreadPoolExecutor(1) as pool:
        with database.transaction() as cursor:
            cursor.execute("INSERT INTO t VALUES (1)")
            stream = database.stream(publication="p", snapshot=snapshot, snapshot_folder=str(tmp_path))
            making = pool.submit(create_log, stream)
            eventually(lambda: "waits for transactions that are open" in caplog.text)
            assert not making.done()
        making.result(30).close()
