"""Rows that PostgreSQL has in its log and cannot send: they are told to be lost, and nothing else is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import postgres_server
from tests.support.postgres_server import Database, floors, read_all, read_on
from tests.support.subscribers import Copy
from tidings.cluster import Cluster
from tidings.flow_status import status
from tidings.log_opening import create_log
from tidings.positions import Position
from tidings.testing import eventually
from tidings_connectors.postgres.connections import Error
from tidings_connectors.postgres.log import PostgresLog
from tidings_connectors.postgres.reader import PostgresReader
from tidings_connectors.postgres.unsendable import refused_change

database = postgres_server.database
NOT_IN_UTF8 = r"convert_from('\x81', 'WIN1252')"  # the server takes any byte, and this one is no character


@pytest.fixture
def odd(database: Database) -> Iterator[Database]:
    """A database that can hold a text which cannot be sent."""
    server = database.server
    own = Database(server, f"{database.name}_odd")
    server.execute(f"CREATE DATABASE {own.name} ENCODING 'WIN1252' TEMPLATE template0")
    own.execute("CREATE PUBLICATION everything FOR ALL TABLES", "CREATE TABLE item (id int PRIMARY KEY, name text)")
    yield own
    own.drop()


def test_it_is_lost_with_what_follows_in_its_transaction_and_all_else_comes(odd: Database) -> None:
    with contextlib.closing(create_log(odd.stream())) as log, contextlib.closing(log.reader()) as reader:
        assert isinstance(log, PostgresLog)
        start = floors(log)
        odd.execute("INSERT INTO item VALUES (1, 'a')")
        with odd.transaction() as cursor:
            cursor.execute("INSERT INTO item VALUES (2, 'b'), (3, 'c')")
            cursor.execute(f"INSERT INTO item VALUES (4, {NOT_IN_UTF8}), (5, 'd')")
        odd.execute("INSERT INTO item VALUES (6, 'e')", f"UPDATE item SET name = {NOT_IN_UTF8} WHERE id = 6")
        odd.execute("DELETE FROM item WHERE id = 6")
        told = [f"public.item/{n}" for n in (1, 2, 3)] + ["loss", "public.item/6", "loss", "public.item/6"]
        for limit in 100, 1:
            objects, losses, stand = read_on(log, reader, start, limit)
            assert objects == told
            for loss, before in zip(losses, (2, 0), strict=True):
                assert set(loss) == {0, 1, 2, 3}
                ((first, last),) = set(loss.values())
                assert (first.index, last) == (before, Position(first.seq + 1, -1))
        log.confirm(stand)
        eventually(lambda: log.bounds()[0].floor == stand[0])


def test_a_condition_of_the_publication_that_fails_loses_that_transaction_alone(database: Database) -> None:
    if int(database.execute("SELECT current_setting('server_version_num')::int")[0][0]) < 150_000:
        pytest.skip("publications have conditions from version 15 on")
    database.execute(
        "CREATE TABLE item (id int PRIMARY KEY)", "CREATE PUBLICATION chosen FOR TABLE item WHERE (1 / id < 2)"
    )
    stream = database.stream(publication="chosen")
    with contextlib.closing(create_log(stream)) as log, contextlib.closing(log.reader()) as reader:
        start = floors(log)
        for n in (1, 0, 2):
            database.execute(f"INSERT INTO item VALUES ({n})")
        database.execute("DELETE FROM item WHERE id = 0", "INSERT INTO item VALUES (3)")
        told = ["public.item/1", "loss", "public.item/2", "loss", "public.item/3"]
        for limit in 100, 1:
            assert read_on(log, reader, start, limit)[0] == told


@pytest.mark.slow
def test_a_value_of_more_than_a_gigabyte_as_text_is_lost(database: Database) -> None:
    database.execute("CREATE TABLE item (id int PRIMARY KEY, large bytea)")
    with contextlib.closing(create_log(database.stream())) as log, contextlib.closing(log.reader()) as reader:
        database.execute(
            "INSERT INTO item VALUES (1)",
            "INSERT INTO item VALUES (2, repeat('a', 513 * 1024 * 1024)::bytea)",
            "INSERT INTO item VALUES (3)",
        )
        objects, _, _ = read_on(log, reader, floors(log))
    assert objects == ["public.item/1", "loss", "public.item/3"]


class Refused(Error):  # type: ignore[misc]
    """What the server says when it cannot send a change to the reader of a slot."""

    pgcode = "XX000"

    def __init__(self, slot: str) -> None:
        super().__init__("it cannot be sent")
        self.slot = slot

    @property
    def diag(self) -> Any:
        return SimpleNamespace(context=f'slot "{self.slot}", associated LSN 0/19246B8', message_primary=str(self))


def test_what_fails_once_and_then_goes_well_is_no_loss(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    collect = PostgresReader._collect
    failed: list[str] = []

    def fails_once(reader: PostgresReader, limit: int) -> tuple[list[bytes], bool]:
        if not failed:
            failed.append(reader._copy)
            raise Refused(reader._copy)
        return collect(reader, limit)

    monkeypatch.setattr(PostgresReader, "_collect", fails_once)
    database.execute("CREATE TABLE item (id int PRIMARY KEY)")
    with contextlib.closing(create_log(database.stream())) as log, contextlib.closing(log.reader()) as reader:
        database.execute("INSERT INTO item VALUES (1), (2)")
        rows, _ = read_all(reader, floors(log), log)
    assert [row["object"] for row in rows] == ["public.item/1", "public.item/2"]
    assert failed


@pytest.mark.parametrize(
    ("state", "context", "place"),
    [
        (
            "XX000",
            'slot "s_1", output plugin "pgoutput", in the change callback, associated LSN 1/19246B8',
            0x1019246B8,
        ),
        ("54000", "Slot »s_1«, Ausgabe-Plugin »pgoutput«, im Callback change, zugehörige LSN 0/FF", 0xFF),
        (
            "22P05",
            'in a function\nスロット"s_1", 出力プラグイン"pgoutput", changeコールバックの処理中, 関連LSN 0/FF',
            0xFF,
        ),
        ("22P05", 'slot "s_2", output plugin "pgoutput", in the change callback, associated LSN 0/FF', None),
        ("22P05", 'slot "s_1", output plugin "pgoutput", in the startup callback', None),
        ("22P05", None, None),
        ("53200", 'slot "s_1", output plugin "pgoutput", in the change callback, associated LSN 0/FF', None),
        ("57P01", 'slot "s_1", output plugin "pgoutput", in the change callback, associated LSN 0/FF', None),
        ("58030", 'slot "s_1", output plugin "pgoutput", in the change callback, associated LSN 0/FF', None),
        (None, None, None),
    ],
)
def test_a_change_that_cannot_be_sent_is_known_by_its_place_and_no_passing_trouble_is_taken_for_it(
    state: str | None, context: str | None, place: int | None
) -> None:
    assert refused_change(SimpleNamespace(pgcode=state, diag=SimpleNamespace(context=context)), "s_1") == place


def test_a_subscriber_hears_of_it_and_operators_are_told_why(cluster: Cluster, odd: Database) -> None:
    cluster.create_stream("shop", 2, odd.address(), options=odd.options())
    cluster.create_application("cache", ["shop"], start="earliest")
    copy = Copy()
    with cluster.subscribe("cache", copy), cluster.publisher(token_interval=0.2):
        odd.execute(f"INSERT INTO item VALUES (1, {NOT_IN_UTF8})", "INSERT INTO item VALUES (2, 'b')")
        eventually(lambda: sorted(shard for shard, _, _ in copy.lost) == [0, 1])
        eventually(lambda: list(copy.rows) == ["public.item/2"])
        eventually(lambda: all("cannot be sent" in (one.reason or "") for one in status(cluster)))
    assert len(copy.lost) == 2


def test_with_a_snapshot_after_a_loss_all_rows_follow_when_that_one_is_gone(odd: Database, tmp_path: Path) -> None:
    stream = odd.stream(on_data_loss="snapshot", snapshot_folder=str(tmp_path))
    with contextlib.closing(create_log(stream)) as log, contextlib.closing(log.reader()) as reader:
        assert isinstance(log, PostgresLog)
        after = floors(log)
        odd.execute("INSERT INTO item VALUES (1, 'a')", f"INSERT INTO item VALUES (2, {NOT_IN_UTF8})")
        odd.execute("UPDATE item SET name = 'mended' WHERE id = 2")
        objects, losses, after = read_on(log, reader, after)
        assert len(losses) == 1
        objects += read_on(log, reader, after)[0]
    assert objects == ["public.item/1", "loss", "public.item/2", "public.item/1", "public.item/2"]
