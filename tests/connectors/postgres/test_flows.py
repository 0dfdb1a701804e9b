"""From a statement in PostgreSQL to the callback of a subscriber."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import postgres_server, snapshot_steps
from tests.support.made_anew import Datastore, flows_are_told
from tests.support.places import ROOT
from tests.support.postgres_server import Database, PostgresServer, floors, read_all
from tests.support.snapshot_steps import rows_reach_who_comes_later
from tests.support.subscribers import Copy, hearing
from tidings.cli import main
from tidings.cluster import Cluster, connect
from tidings.errors import InvalidOption, LogMismatch, LogUnavailable
from tidings.flow_status import status
from tidings.logs import Read
from tidings.positions import Positions
from tidings.publisher import reports
from tidings.testing import eventually
from tidings.updates import SCHEMA
from tidings_connectors.cdc import snapshot
from tidings_connectors.postgres.reader import PostgresReader

database, own_server, small_chunks = postgres_server.database, postgres_server.own_server, snapshot_steps.small_chunks


def test_rows_arrive_at_a_subscriber_and_the_slot_moves_on(cluster: Cluster, database: Database) -> None:
    database.execute("CREATE TABLE item (id int PRIMARY KEY, name text)")
    cluster.create_stream("shop", 4, database.address(), options=database.options())
    with hearing(cluster, "shop") as (everything, deletes):
        database.execute("INSERT INTO item SELECT n, 'item ' || n FROM generate_series(1, 100) n")
        database.execute("UPDATE item SET name = 'x' WHERE id = 7", "DELETE FROM item WHERE id > 90")
        eventually(lambda: len(everything) >= 111 and len(deletes) >= 10)
        seen = {(update.shard, update.position): update for update in everything}
        assert len(seen) == 111
        assert {update.object for update in deletes} == {f"public.item/{n}" for n in range(91, 101)}
        newest = [update for update in everything if update.object == "public.item/7"][-1]
        assert json.loads(newest.payload or b"") == {"id": 7, "name": "x"}
        last = max(update.seq for update in everything)
        confirmed = (
            "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots "
            f"WHERE slot_name = '{database.options()['slot']}'"
        )
        eventually(lambda: database.execute(confirmed)[0][0] > last, timeout=60)


def test_a_command_tells_how_far_the_snapshot_is_that_it_takes(
    cluster: Cluster,
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TIDINGS_ZOOKEEPER", cluster.address)
    monkeypatch.setattr(snapshot, "CHUNK_ROWS", 100)
    monkeypatch.setattr(snapshot, "PROGRESS_INTERVAL_S", 0)
    database.execute("CREATE TABLE item AS SELECT generate_series(1, 250) id")
    options = database.options() | {"snapshot": "true", "snapshot_folder": str(tmp_path)}
    given = [part for key, value in options.items() for part in ("--option", f"{key}={value}")]
    assert main(["streams", "create", "shop", "--log", database.address(), *given]) == 0
    told = capsys.readouterr().err
    assert "snapshot of stream 'shop': public.item, 200 rows so far" in told
    assert "snapshot of stream 'shop': public.item, 250 rows\n" in told


def test_a_dropped_stream_leaves_nothing_behind_that_keeps_the_wal(
    cluster: Cluster, database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE item AS SELECT generate_series(1, 250) id")
    options = database.options() | {"snapshot": True, "snapshot_folder": str(tmp_path / "rows")}
    slots = f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{options['slot']}'"
    cluster.create_stream("shop", 4, database.address(), options=options)
    with pytest.raises(InvalidOption, match="are its datastore's own, and cannot be purged"):
        cluster.drop_stream("shop", purge=True)
    assert database.execute(slots) == [(1,)]
    assert list((tmp_path / "rows").rglob("*.parquet"))
    with hearing(cluster, "shop") as (everything, _):
        eventually(lambda: len(everything) == 250)
        cluster.drop_stream("shop")
        assert database.execute(slots) == [(0,)]
        assert not list((tmp_path / "rows").iterdir())


def test_a_slot_of_another_stream_or_cluster_is_not_taken_for_one_of_ours(
    cluster: Cluster, database: Database, tmp_path: Path
) -> None:
    cluster.create_stream("shop", 4, database.address(), options=database.options())
    cluster.create_stream("shop", 4, database.address(), options=database.options())  # the very same
    elsewhere = f"{cluster.address}-other"
    with connect(elsewhere) as other, pytest.raises(LogMismatch, match="already, which may be another stream's"):
        other.create_stream("shop", 4, database.address(), options=database.options())
    with pytest.raises(LogMismatch, match="belongs to stream 'shop' already: each stream has its own"):
        cluster.create_stream("store", 4, database.address(), options=database.options())
    assert [stream.name for stream in cluster.streams()] == ["shop"]


def test_one_that_could_not_be_made_leaves_no_slot(
    cluster: Cluster, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise LogUnavailable("no more")

    database.execute("CREATE TABLE item AS SELECT generate_series(1, 250) id")
    options = database.options() | {"snapshot": True, "snapshot_folder": str(tmp_path)}
    with monkeypatch.context() as patched:
        patched.setattr(snapshot.StreamSnapshot, "_write_chunk", fails)
        with pytest.raises(LogUnavailable, match="no more"):
            cluster.create_stream("shop", 4, database.address(), options=options)
    assert database.execute("SELECT 1 FROM pg_replication_slots WHERE database = current_database()") == []
    cluster.create_stream("shop", 4, database.address(), options=options)


def test_a_stream_is_dropped_though_its_database_is_away_and_what_is_left_is_told(cluster: Cluster) -> None:
    with contextlib.closing(postgres_server.PostgresServer()) as server:
        database = server.database()
        cluster.create_stream("shop", 4, database.address(), options=database.options())
        server.stop()
        with pytest.raises(LogUnavailable, match="stream 'shop' is dropped, but its datastore was not told") as caught:
            cluster.drop_stream("shop")
        assert cluster.streams() == []
        server.start()
        database.execute(str(caught.value).rpartition(": ")[2])
        assert database.execute("SELECT 1 FROM pg_replication_slots") == []


@pytest.mark.parametrize("policy", ["gaps", "single"])
def test_who_comes_later_gets_the_rows_too_and_nobody_else_does(
    cluster: Cluster, database: Database, tmp_path: Path, policy: str
) -> None:
    database.execute("CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item SELECT generate_series(1, 250)")
    options = database.options() | {"snapshot": True, "snapshot_folder": str(tmp_path)}
    cluster.create_stream("shop", 4, database.address(), options=options, caravans={"policy": policy})
    rows_reach_who_comes_later(
        cluster, "shop", tmp_path, 250, lambda number: database.execute(f"INSERT INTO item VALUES ({number})")
    )


def test_why_a_log_cannot_be_read_is_told_until_something_is_read_though_it_can_be_opened(
    cluster: Cluster, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, opened, damaged = PostgresReader.read, set[PostgresReader](), True

    def failing_each_second_time(self: PostgresReader, after: Positions, limit: int) -> Read:
        """As where the server takes its time to come to a place, and then fails."""
        if not damaged:
            return read(self, after, limit)
        if self not in opened:
            opened.add(self)
            return Read(SCHEMA.empty_table(), after)
        opened.remove(self)
        raise LogUnavailable("there is a hole")

    def told() -> set[tuple[str, str | None]]:
        return {(one.state, one.reason) for one in status(cluster)}

    monkeypatch.setattr(PostgresReader, "read", failing_each_second_time)
    monkeypatch.setattr(reports, "REPORT_INTERVAL_S", 0.1)
    cluster.create_stream("shop", 2, database.address(), options=database.options())
    cluster.create_application("cache", ["shop"], start="earliest")
    database.execute("CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item VALUES (1)")
    copy = Copy()
    with cluster.subscribe("cache", copy), cluster.publisher(patience=2):
        eventually(lambda: told() == {("failed", "there is a hole")})
        epochs = {one.flow: one.epoch for one in status(cluster)}
        found = eventually(lambda: [one for one in status(cluster) if one.epoch != epochs[one.flow]])  # taken again
        assert {one.reason for one in found} == {"there is a hole"}
        damaged = False
        eventually(lambda: list(copy.rows) == ["public.item/1"] and told() == {("running", None)})


@pytest.mark.slow
def test_the_example_empties_its_cache(database: Database) -> None:
    command = [sys.executable, str(ROOT / "examples" / "tail_postgres.py"), database.address().partition(":")[2]]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    assert "public.tidings_item/1: update" in told
    assert "the cache is empty" in told


def test_flows_of_a_stream_that_was_made_anew_over_another_server_are_told(
    cluster: Cluster, database: Database, own_server: PostgresServer, tmp_path: Path
) -> None:
    def server(one: Database) -> Datastore:
        one.execute("CREATE TABLE item (id int PRIMARY KEY)")
        return Datastore(
            one.address(),
            {
                "publication": "everything",
                "slot": f"tail_{tmp_path.name}",
                "snapshot": True,
                "snapshot_folder": str(tmp_path),
            },
            lambda number: one.execute(f"INSERT INTO item VALUES ({number})", "SELECT pg_switch_wal()"),
        )

    flows_are_told(cluster, server(own_server.database()), server(database))


def test_streams_that_share_a_folder_and_the_name_of_a_slot_have_each_its_own_rows(
    cluster: Cluster, database: Database, own_server: PostgresServer, tmp_path: Path
) -> None:
    options = {"publication": "everything", "slot": "tail", "snapshot": True, "snapshot_folder": str(tmp_path)}
    logs = []
    for number, one in enumerate((database, own_server.database())):
        one.execute(f"CREATE TABLE item AS SELECT {number} AS id")
        logs.append(cluster.create_stream(f"shop-{number}", 1, one.address(), options=options).log)
    for number, log in enumerate(logs):
        with contextlib.closing(log), contextlib.closing(log.reader()) as reader:
            rows = read_all(reader, floors(log), log)[0]
        assert [json.loads(row["payload"]) for row in rows] == [{"id": number}]
    cluster.drop_stream("shop-0")


@pytest.mark.parametrize(("ending", "snapshot"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_a_command_that_waits_for_open_transactions_ends_when_it_is_told_to(
    cluster: Cluster, database: Database, tmp_path: Path, ending: signal.Signals, snapshot: bool
) -> None:
    database.execute("CREATE TABLE item (id int PRIMARY KEY)")
    options = database.options() | {"snapshot": str(snapshot).lower(), "snapshot_folder": str(tmp_path)}
    given = [part for key, value in options.items() for part in ("--option", f"{key}={value}")]
    command = ["streams", "create", "shop", "--zookeeper", cluster.address, "--log", database.address(), *given]
    slots = "SELECT 1 FROM pg_replication_slots WHERE database = current_database()"
    with database.transaction() as open_one:
        open_one.execute("INSERT INTO item VALUES (1)")
        code = f"import sys; from tidings.cli import main; sys.exit(main({command!r}))"
        with subprocess.Popen([sys.executable, "-c", code]) as waiting:
            eventually(lambda: database.execute(slots))
            waiting.send_signal(ending)
            assert waiting.wait(30) != 0
        eventually(lambda: not database.execute(slots))
    assert cluster.streams() == []
