"""Readers far ahead of the slowest flow: the server does not go through all that it has not read."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.connectors.postgres.test_log import in_use
from tests.support import postgres_server
from tests.support.postgres_server import Database, PostgresServer, places, read_all
from tests.support.subscribers import Seen
from tidings.cluster import Cluster
from tidings.errors import LogUnavailable, PositionsLost
from tidings.log_opening import create_log, open_log
from tidings.logs import FollowedLog
from tidings.positions import Position, Positions
from tidings.publisher import reports
from tidings.testing import eventually
from tidings_connectors.postgres import lead
from tidings_connectors.postgres.lead import best_place, lead_name
from tidings_connectors.postgres.log import PostgresLog

database, log, own_server = postgres_server.database, postgres_server.log, postgres_server.own_server

GAP = 60_000


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lead, "GAP_BYTES", GAP)
    monkeypatch.setattr(lead, "MOVE_BYTES", GAP // 4)


@pytest.fixture
def items(database: Database) -> Database:
    database.execute("CREATE TABLE item (id int, note text)")
    return database


def write(items: Database, first: int = 1) -> None:
    """Some rows, with much more WAL than counts as far, and a point from which the server can decode."""
    for number in range(first, first + 3):
        items.execute(f"INSERT INTO item SELECT {number}, repeat('x', 1000) FROM generate_series(1, 50)", "CHECKPOINT")


def slots(items: Database) -> dict[str, int]:
    """The slots of a database that stay, and where they are."""
    return dict(
        items.execute(
            "SELECT slot_name, (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots "
            "WHERE database = current_database() AND NOT temporary"
        )
    )


def names(items: Database) -> tuple[str, str]:
    return f"tidings_{items.name}", lead_name(f"tidings_{items.name}")


def head(log: PostgresLog) -> Position:
    return log._slot.state().head


def at(place: Position) -> Positions:
    return Positions(dict.fromkeys(range(4), place))


def settle(log: PostgresLog, *stands: Position) -> None:
    """Say it as often as it takes the slot to come there: once, and once more for where decoding begins."""
    for _ in range(3):
        log.followers_at(stands)


def decoded_from(items: Database) -> int:
    """From where on in the WAL the server reads for the newest reader, by what it says in its own log."""
    said = (items.server._folder / "log").read_text()
    copy = rf'starting logical decoding for slot "{names(items)[0]}_[0-9a-f]{{16}}"\n.*reading WAL from (\w+)/(\w+)\.'
    high, low = re.findall(copy, said)[-1]
    return (int(high, 16) << 32) + int(low, 16)


def first_rows(log: PostgresLog, after: Position) -> list[dict[str, Any]]:
    """What a new reader gets."""
    with contextlib.closing(log.reader()) as reader:
        read = reader.read(at(after), 10_000)
        first: list[dict[str, Any]] = read.rows.to_pylist(maps_as_pydicts="strict")
        return first + read_all(reader, read.upto, log)[0]


def test_a_reader_that_is_far_ahead_has_the_server_read_from_there(log: PostgresLog, items: Database) -> None:
    slowest = head(log)
    write(items)
    ahead = head(log)
    items.execute("INSERT INTO item VALUES (77)")
    whole = first_rows(log, slowest)
    late = first_rows(log, ahead)
    assert decoded_from(items) <= slowest.seq
    assert isinstance(log, FollowedLog)
    settle(log, slowest, ahead, ahead)
    main, leading = names(items)
    assert slots(items) == {main: slots(items)[main], leading: ahead.seq}
    assert first_rows(log, ahead) == late == whole[-1:]
    assert decoded_from(items) > ahead.seq - GAP
    # Who stands before it reads the slot that is further back, and gets the same.
    assert first_rows(log, slowest) == whole
    assert decoded_from(items) <= slowest.seq
    assert first_rows(log, Position(ahead.seq - 1, -1)) == late


def test_it_follows_the_flows_and_goes_before_the_slot_would_pass_it(log: PostgresLog, items: Database) -> None:
    main, leading = names(items)
    slowest, place = head(log), head(log)
    for number in range(1, 10, 3):
        write(items, number)
        place = head(log)
        settle(log, slowest, place)
        assert slots(items)[leading] == place.seq
    write(items, 20)
    settle(log, place, head(log))  # the slowest has come to where it is
    log.confirm(at(place))
    assert slots(items)[main] == place.seq
    assert slots(items)[leading] == head(log).seq
    log.followers_at([head(log), head(log)])
    assert list(slots(items)) == [main]
    log.confirm(at(head(log)))
    assert not first_rows(log, head(log))


def test_flows_that_are_near_each_other_have_one_slot(log: PostgresLog, items: Database) -> None:
    slowest = head(log)
    items.execute("INSERT INTO item VALUES (1)")
    settle(log, slowest, head(log))
    write(items)
    settle(log, head(log), head(log))
    settle(log, slowest)
    assert list(slots(items)) == [names(items)[0]]


def test_one_that_nobody_comes_to_is_made_anew_where_somebody_is(log: PostgresLog, items: Database) -> None:
    slowest = head(log)
    write(items)
    middle = head(log)
    write(items, 10)
    settle(log, slowest, head(log))
    settle(log, slowest, middle)
    assert slots(items)[names(items)[1]] == middle.seq


def test_one_that_a_fellow_has_moved_on_stays(log: PostgresLog, items: Database) -> None:
    slowest = head(log)
    write(items)
    before = head(log)
    items.execute("INSERT INTO item VALUES (1)")
    with contextlib.closing(open_log(items.stream())) as other:
        assert isinstance(other, PostgresLog)
        settle(other, slowest, head(other))
        ahead = slots(items)[names(items)[1]]
        settle(log, slowest, before)
    assert slots(items)[names(items)[1]] == ahead > before.seq


def test_many_who_move_it_at_once_lose_nothing_and_leave_nothing(log: PostgresLog, items: Database) -> None:
    main = names(items)[0]
    start, stop, troubles = head(log), threading.Event(), []
    expected = set()

    def publish(own: PostgresLog) -> None:
        try:
            while not stop.is_set():
                place = head(own)
                own.followers_at([start, place])
                if own is log:
                    own.followers_at([place, place])
                first_rows(own, place)
        except Exception as error:  # noqa: BLE001 - of a thread, told below
            troubles.append(error)

    with contextlib.ExitStack() as stack:
        logs = [log, *(stack.enter_context(contextlib.closing(open_log(items.stream()))) for _ in range(2))]
        threads = [threading.Thread(target=publish, args=(one,)) for one in logs]
        for thread in threads:
            thread.start()
        for number in range(1, 10, 3):
            write(items, number)
            expected |= {number, number + 1, number + 2}
        stop.set()
        for thread in threads:
            thread.join(60)
        assert troubles == []
        rows = first_rows(log, start)
        assert len(places(rows)) == len(expected) * 50
        end = head(log)
        for one in logs:
            assert isinstance(one, PostgresLog)
            one.followers_at([end])
            one.confirm(at(end))
        assert slots(items) == {main: end.seq}


@contextlib.contextmanager
def with_lead(items: Database) -> Iterator[tuple[PostgresLog, Position, Position]]:
    """A log with a second slot, and where both are."""
    with contextlib.closing(create_log(items.stream())) as log:
        assert isinstance(log, PostgresLog)
        slowest = head(log)
        write(items)
        ahead = head(log)
        settle(log, slowest, ahead)
        assert set(slots(items)) == set(names(items))
        yield log, slowest, ahead


def test_one_that_somebody_else_has_just_now_is_moved_the_next_time(items: Database) -> None:
    main, leading = names(items)
    with with_lead(items) as (log, slowest, ahead):
        write(items, 10)
        with in_use(items, leading), in_use(items, main):
            settle(log, slowest, head(log))
            settle(log, head(log))
            log.confirm(at(head(log)))
            assert slots(items) == {main: slowest.seq, leading: ahead.seq}
        end = head(log)
        settle(log, slowest, end)
        assert slots(items) == {main: slowest.seq, leading: end.seq}
        log.followers_at([end])
        log.confirm(at(end))
        assert slots(items) == {main: end.seq}


def test_it_goes_with_the_stream(items: Database) -> None:
    with with_lead(items):
        pass
    PostgresLog.abandon(items.address().removeprefix("postgres:"), items.stream())
    assert slots(items) == {}


def test_who_cannot_drop_both_is_told_how(items: Database) -> None:
    main, leading = names(items)
    with with_lead(items) as (log, _, _), in_use(items, leading):
        with pytest.raises(LogUnavailable) as caught:
            log._abandon()
        assert slots(items).keys() == {leading}
    items.execute(str(caught.value).partition(": ")[2].partition(": ")[2])
    assert slots(items) == {}
    assert main in str(caught.value)


def test_it_does_not_stay_without_the_slot_that_it_is_ahead_of(items: Database) -> None:
    main = names(items)[0]
    with with_lead(items) as (log, _, _):
        items.execute(f"SELECT pg_drop_replication_slot('{main}')")
        with pytest.raises(LogUnavailable, match="has no replication slot"):
            log._slot.state()
        assert slots(items) == {}
    with with_lead(items):
        items.execute(f"SELECT pg_drop_replication_slot('{main}')")
    create_log(items.stream()).close()
    assert list(slots(items)) == [main]


def test_what_a_crashed_publisher_has_left_is_found_by_the_next(items: Database) -> None:
    main = names(items)[0]
    with with_lead(items):
        pass
    with contextlib.closing(open_log(items.stream())) as log:
        assert isinstance(log, PostgresLog)
        first_rows(log, head(log))
        assert decoded_from(items) > slots(items)[main] + GAP
        log.followers_at([head(log)])
        assert list(slots(items)) == [main]


def test_a_slot_of_somebody_else_is_let_alone(log: PostgresLog, items: Database) -> None:
    leading = names(items)[1]
    slowest = head(log)
    write(items)
    items.execute(f"SELECT pg_create_physical_replication_slot('{leading}')")
    try:
        settle(log, slowest, head(log))
        assert not first_rows(log, head(log))
        log._abandon()
        assert items.execute(f"SELECT slot_type FROM pg_replication_slots WHERE slot_name = '{leading}'") == [
            ("physical",)
        ]
    finally:
        items.execute(f"SELECT pg_drop_replication_slot('{leading}')")


def test_where_slots_are_few_readers_come_first(caplog: pytest.LogCaptureFixture) -> None:
    if (lacking := postgres_server.missing()) is not None:
        pytest.skip(lacking)
    with contextlib.closing(PostgresServer(max_replication_slots="3")) as server:
        items = server.database()
        items.execute("CREATE TABLE item (id int, note text)")
        main, leading = names(items)
        with contextlib.closing(create_log(items.stream())) as log, contextlib.ExitStack() as stack:
            assert isinstance(log, PostgresLog)
            slowest = head(log)
            write(items)
            readers = [stack.enter_context(contextlib.closing(log.reader())) for _ in range(3)]
            readers[0].read(at(head(log)), 10)
            settle(log, slowest, head(log))
            assert list(slots(items)) == [main]
            assert caplog.text.count("has no replication slot to spare") == 1
            readers[0].close()
            temporary = "SELECT 1 FROM pg_replication_slots WHERE temporary"
            eventually(lambda: not items.execute(temporary))
            settle(log, slowest, head(log))
            assert set(slots(items)) == {main, leading}
            readers[1].read(at(head(log)), 10)
            assert set(slots(items)) == {main, leading}
            open_log(items.stream()).close()  # there is room for one more reader, so nobody says that there is none
            readers[2].read(at(head(log)), 10)
            assert list(slots(items)) == [main]
            with pytest.raises(LogUnavailable, match="all of the 3 replication slots"):
                stack.enter_context(contextlib.closing(log.reader())).read(at(head(log)), 10)


@pytest.mark.slow
def test_who_is_ahead_loses_nothing_when_the_server_removes_what_the_slowest_needs(own_server: PostgresServer) -> None:
    items = own_server.database()
    items.execute("CREATE TABLE item (id int, note text)")
    main = names(items)[0]
    with with_lead(items) as (log, slowest, _):
        items.execute("SELECT pg_switch_wal()")
        write(items, 10)
        ahead = head(log)
        settle(log, slowest, ahead)
        items.execute("INSERT INTO item VALUES (77)")
        own_server.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        own_server.execute("SELECT pg_reload_conf()")
        status = f"SELECT slot_name FROM pg_replication_slots WHERE wal_status = 'lost' AND slot_name = '{main}'"
        eventually(lambda: bool(items.execute("CHECKPOINT", status)))
        assert [row["payload"] for row in first_rows(log, ahead)] == [b'{"id":77,"note":null}']
        assert slots(items) == {main: ahead.seq}
        with pytest.raises(PositionsLost) as caught:
            first_rows(log, slowest)
        assert {last for _, last in caught.value.lost.values()} == {ahead}


@pytest.mark.slow
def test_a_server_that_is_killed_has_it_where_it_does_no_harm(own_server: PostgresServer) -> None:
    items = own_server.database()
    items.execute("CREATE TABLE item (id int, note text)")
    main, leading = names(items)
    with with_lead(items) as (log, slowest, _):
        write(items, 10)
        ahead = head(log)
        settle(log, slowest, ahead)
        own_server.kill()
        own_server.start()
        assert slots(items)[leading] >= slots(items)[main]
        settle(log, slowest, ahead)
        assert slots(items) == {main: slowest.seq, leading: ahead.seq}
        items.execute("INSERT INTO item VALUES (77)")
        assert len(first_rows(log, ahead)) == 1
        assert len(first_rows(log, slowest)) == 301
        log.followers_at([ahead])
        log.confirm(at(ahead))
        assert slots(items) == {main: ahead.seq}


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=30))
def test_no_other_place_would_save_more(stands: list[int]) -> None:
    def saved(place: int) -> int:
        return sum(place - min(stands) for stand in stands if stand >= place)

    assert saved(best_place(stands)) == max(map(saved, stands))


def test_a_publisher_that_restarts_does_not_wait_for_what_a_dead_application_has_not_read(
    cluster: Cluster, items: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "REPORT_INTERVAL_S", 0.2)
    main, leading = names(items)
    restart = f"SELECT (restart_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = '{leading}'"
    cluster.create_stream("shop", 2, items.address(), options=items.options())
    for name in "dead", "well":
        cluster.create_application(name, ["shop"], start="earliest")
    seen = Seen()
    with cluster.subscribe("well", seen):
        with cluster.publisher():
            with cluster.subscribe("dead", Seen()):
                items.execute("INSERT INTO item VALUES (0)")
                eventually(lambda: seen.updates)
            write(items)
            end = slots(items)[main] + GAP
            eventually(lambda: any(at > end for (at,) in items.execute(restart)), timeout=60)
        with cluster.publisher():
            items.execute("INSERT INTO item VALUES (77)")
            eventually(lambda: len(seen.updates) == 152)
            assert decoded_from(items) > end
            cluster.drop_application("dead")
            eventually(lambda: list(slots(items)) == [main] and slots(items)[main] > seen.updates[-1].seq, timeout=60)
    cluster.drop_stream("shop")
    assert slots(items) == {}


def test_what_goes_wrong_with_it_keeps_the_other_from_nothing(
    log: PostgresLog, items: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lead, "MAKE", "SELECT pg_sleep(1) WHERE %s <> %s")
    items.execute(f"ALTER DATABASE {items.name} SET statement_timeout = '100ms'")
    slowest = head(log)
    write(items)
    with contextlib.closing(open_log(items.stream())) as other:
        assert isinstance(other, PostgresLog)
        settle(other, slowest, head(log))
        other.confirm(at(head(log)))
    assert caplog.text.count("have to wait for the server") == 1
    assert slots(items) == {names(items)[0]: head(log).seq}
