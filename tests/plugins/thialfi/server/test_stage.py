from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.thialfi_stage import Service, op, register, unregister
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.protocol.digests import Digest

CREATED = [op(1, stream_schema.CREATED), op(2, stream_schema.CREATED), op(3, stream_schema.CREATED)]


@pytest.fixture
def service(tmp_path: Path) -> Service:
    own = Service(tmp_path, repeat=True)
    assert own.batch(ops=CREATED) == []
    return own


def update(
    name: str, version: int | None, payload: bytes | None = None, source: str | None = None
) -> dict[str, object]:
    return {"object": name, "version": version, "payload": payload, "source": source}


def without_digests(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return [row for row in rows if row[1] != "digest"]


# Registrations and updates, in every order


def test_a_client_that_registered_before_is_told_of_each_new_version(service: Service) -> None:
    service.batch(ops=[register(1, "alice", 10), register(2, "alice", 11), register(2, "bob", 12)])
    assert service.batch(updates=[update("alice", 5, b"five")]) == [
        (1, "notify", "alice", 5, b"five"),
        (2, "notify", "alice", 5, b"five"),
    ]
    assert service.batch(updates=[update("bob", 1), update("carol", 1)]) == [(2, "notify", "bob", 1)]


def test_older_and_repeated_versions_are_ignored_also_within_a_batch(service: Service) -> None:
    service.batch(ops=[register(1, "alice", 10)])
    told = service.batch(updates=[update("alice", 3, b"3"), update("alice", 5, b"5"), update("alice", 4, b"4")])
    assert told == [(1, "notify", "alice", 5, b"5")]
    assert service.batch(updates=[update("alice", 5, b"again"), update("alice", 4)]) == []
    assert service.batch(updates=[update("alice", 4)]) == []
    assert service.batch(updates=[update("alice", 6)]) == [(1, "notify", "alice", 6)]


def test_a_client_that_registers_after_a_publish_is_told_the_latest_version(service: Service) -> None:
    service.batch(updates=[update("alice", 5, b"five")])
    told = service.batch(ops=[register(1, "alice", 10)])
    assert told == [
        (1, "digest", 10, 1),
        (1, "notify", "alice", 5, b"five"),
        (1, "registered", "alice", 10),
    ]


def test_a_registration_and_an_update_in_one_batch_find_each_other(service: Service) -> None:
    told = service.batch(updates=[update("alice", 5, b"five")], ops=[register(1, "alice", 10)])
    assert without_digests(told) == [(1, "notify", "alice", 5, b"five"), (1, "registered", "alice", 10)]
    told = service.batch(updates=[update("alice", 6)], ops=[register(1, "alice", 10), register(2, "alice", 20)])
    assert without_digests(told) == [
        (1, "notify", "alice", 6),
        (1, "registered", "alice", 10),
        (2, "notify", "alice", 6),
        (2, "registered", "alice", 20),
    ]


def test_a_registration_for_an_object_that_nobody_has_published_is_told_of_an_unknown_version(service: Service) -> None:
    told = service.batch(ops=[register(1, "alice", 10)])
    assert without_digests(told) == [(1, "registered", "alice", 10), (1, "unknown", "alice", 10)]
    again = service.batch(ops=[op(1, stream_schema.ONLINE)])
    assert without_digests(again) == [(1, "unknown", "alice", 10)]
    service.batch(ops=[op(1, stream_schema.ACKNOWLEDGE_UNKNOWN, 10, object="alice")])
    assert without_digests(service.batch(ops=[op(1, stream_schema.ONLINE)])) == []


def test_who_unregisters_is_told_no_more_even_in_the_batch_of_the_update(service: Service) -> None:
    service.batch(ops=[register(1, "alice", 10), register(2, "alice", 10), register(3, "alice", 10)])
    told = service.batch(updates=[update("alice", 1)], ops=[unregister(1, "alice", 11)])
    assert without_digests(told) == [
        (1, "unregistered", "alice", 11),
        (2, "notify", "alice", 1),
        (3, "notify", "alice", 1),
    ]
    service.batch(ops=[unregister(2, "alice", 11)])
    assert service.batch(updates=[update("alice", 2)]) == [(3, "notify", "alice", 2)]


def test_the_largest_number_wins_in_whichever_order_operations_come(service: Service) -> None:
    told = service.batch(ops=[unregister(1, "alice", 12), register(1, "alice", 11)])
    assert told == [(1, "digest", 12, 0), (1, "unregistered", "alice", 12)]
    told = service.batch(ops=[register(1, "alice", 10)])
    assert told == [(1, "digest", 12, 0), (1, "unregistered", "alice", 12)]
    told = service.batch(ops=[register(1, "alice", 13)])
    assert without_digests(told) == [(1, "registered", "alice", 13), (1, "unknown", "alice", 13)]
    told = service.batch(ops=[unregister(1, "alice", 12)])
    assert without_digests(told)[:1] == [(1, "registered", "alice", 13)]


def test_the_client_that_made_a_change_is_not_told_of_it(service: Service) -> None:
    service.batch(ops=[register(1, "alice", 10), register(2, "alice", 10)])
    assert service.batch(updates=[update("alice", 1, source="app-1")]) == [(2, "notify", "alice", 1)]
    assert without_digests(service.batch(ops=[op(1, stream_schema.ONLINE), op(2, stream_schema.ONLINE)])) == [
        (2, "notify", "alice", 1),
    ]


def test_an_update_without_a_version_is_told_as_unknown_each_time(service: Service) -> None:
    service.batch(ops=[register(1, "alice", 10)], updates=[update("alice", 5)])
    [(_, say, _, first)] = service.batch(updates=[update("alice", None)])
    [(_, _, _, second)] = service.batch(updates=[update("alice", None)])
    assert say == "unknown"
    assert 10 < first < second
    service.batch(ops=[op(1, stream_schema.ACKNOWLEDGE, 5, object="alice")])
    assert without_digests(service.batch(ops=[op(1, stream_schema.ONLINE)])) == [(1, "unknown", "alice", second)]
    assert service.batch(updates=[update("alice", 6)]) == [(1, "notify", "alice", 6)]
    assert without_digests(service.batch(ops=[op(1, stream_schema.ONLINE)])) == [(1, "notify", "alice", 6)]
    told = service.batch(updates=[update("alice", 7), update("alice", None)])
    assert [row[1] for row in told] == ["notify", "unknown"]
    assert service.batch(updates=[update("alice", None), update("alice", 8)]) == [(1, "notify", "alice", 8)]


# What is pending


def test_who_comes_online_is_told_all_that_is_pending_and_the_digest(service: Service) -> None:
    service.batch(ops=[register(1, name, 10) for name in ("a", "b", "c")] + [register(2, "a", 10)])
    service.batch(updates=[update("a", 1, b"A"), update("b", 1, b"B")])
    service.batch(
        ops=[op(1, stream_schema.ACKNOWLEDGE, 1, object="a"), op(1, stream_schema.ACKNOWLEDGE_UNKNOWN, 10, object="c")]
    )
    told = service.batch(ops=[op(1, stream_schema.ONLINE, gateway="g1")])
    assert told == [(1, "digest", 10, 3), (1, "notify", "b", 1, b"B")]
    told = service.batch(ops=[op(1, stream_schema.ONLINE)], updates=[update("a", 2), update("c", 9)])
    assert without_digests(told) == [
        (1, "notify", "a", 2),
        (1, "notify", "b", 1, b"B"),
        (1, "notify", "c", 9),
        (2, "notify", "a", 2),
    ]
    service.batch(
        ops=[op(1, stream_schema.ACKNOWLEDGE, 2, object="a"), op(1, stream_schema.ACKNOWLEDGE, 1, object="a")]
    )
    told = service.batch(ops=[op(1, stream_schema.ONLINE), op(1, stream_schema.ACKNOWLEDGE, 1, object="b")])
    assert without_digests(told) == [(1, "notify", "c", 9)]


def test_a_payload_that_is_too_large_to_keep_is_told_only_when_it_comes(tmp_path: Path) -> None:
    service = Service(tmp_path, payload_bytes=3)
    service.batch(ops=[*CREATED, register(1, "a", 10)])
    assert service.batch(updates=[update("a", 1, b"1234")]) == [(1, "notify", "a", 1, b"1234")]
    assert without_digests(service.batch(ops=[op(1, stream_schema.ONLINE)])) == [(1, "notify", "a", 1)]


def test_the_digest_is_that_of_the_registrations(service: Service) -> None:
    names = [f"object-{number}" for number in range(20)]
    service.batch(ops=[register(1, name, 10 + number) for number, name in enumerate(names)])
    table = service.table(ops=[unregister(1, names[0], 50), op(2, stream_schema.ONLINE)])
    found = {
        row["object"]: row for row in table.to_pylist(maps_as_pydicts="lossy") if row["attributes"]["say"] == "digest"
    }
    expected = Digest.of(1, names[1:])
    assert (found["1"]["attributes"]["count"], found["1"]["attributes"]["sum"]) == tuple(expected.to_json())
    assert found["1"]["version"] == 50
    assert (found["2"]["attributes"]["count"], found["2"]["attributes"]["sum"]) == ("0", "0")


# Many


def test_one_client_with_thousands_of_objects(tmp_path: Path) -> None:
    service = Service(tmp_path)
    names = [f"object-{number}" for number in range(5000)]
    service.batch(ops=[*CREATED, *(register(1, name, 10) for name in names)])
    told = service.batch(updates=[update(name, 7) for name in names])
    assert len(told) == 5000
    service.batch(ops=[op(1, stream_schema.ACKNOWLEDGE, 7, object=name) for name in names[:4000]])
    told = service.batch(ops=[op(1, stream_schema.ONLINE)])
    assert without_digests(told) == sorted(((1, "notify", name, 7) for name in names[4000:]), key=repr)


def test_a_sync_of_ten_thousand_voids_what_it_leaves_out_and_tells_nothing_twice(tmp_path: Path) -> None:
    service = Service(tmp_path)
    names = [f"object-{number}" for number in range(10_000)]
    service.batch(ops=[*CREATED, *(register(1, name, 10) for name in names), register(1, "left out", 11)])
    service.batch(ops=[op(1, stream_schema.ACKNOWLEDGE_UNKNOWN, 10, object=name) for name in names])
    wanted = [*names[1:], "new"]
    told = service.batch(ops=[*(register(1, name, 20) for name in wanted), op(1, stream_schema.SYNC, 20)])
    assert [row for row in told if row[1] != "registered"] == [(1, "digest", 20, 10_000), (1, "unknown", "new", 20)]
    assert len(told) == 10_002
    for name in (names[0], "left out"):
        assert service.batch(updates=[update(name, 1)]) == []
    assert service.batch(updates=[update(names[1], 1)]) == [(1, "notify", names[1], 1)]


def test_what_is_below_a_sync_is_void_however_late_it_comes(service: Service) -> None:
    service.batch(ops=[register(1, "a", 10), op(1, stream_schema.SYNC, 20), register(1, "b", 20)])
    told = service.batch(ops=[register(1, "a", 15), register(1, "c", 19)])
    assert told == [(1, "digest", 20, 1), (1, "unregistered", "a", 19), (1, "unregistered", "c", 19)]
    told = service.batch(ops=[register(1, "c", 20), register(1, "a", 21)])
    assert told[0] == (1, "digest", 21, 3)


# Clients that are not there


def test_an_operation_of_a_client_that_nobody_created_makes_nothing(service: Service) -> None:
    told = service.batch(ops=[register(9, "alice", 10), op(9, stream_schema.ONLINE), op(9, stream_schema.SYNC, 12)])
    assert told == [(9, "invalid")]
    assert service.batch(updates=[update("alice", 1)]) == []
    assert service.batch(ops=[op(9, stream_schema.ACKNOWLEDGE, 1, object="alice")]) == [(9, "invalid")]
    told = service.batch(ops=[op(9, stream_schema.CREATED), register(9, "alice", 10)])
    assert without_digests(told) == [(9, "notify", "alice", 1), (9, "registered", "alice", 10)]


def test_a_client_that_stays_away_is_forgotten_and_told_to_start_afresh(tmp_path: Path) -> None:
    service = Service(tmp_path, repeat=True, away_days=1, collect_every=1, parts=1)
    service.batch(ops=[*CREATED, register(1, "a", 10), register(2, "a", 10)])
    service.now += dt.timedelta(hours=20)
    service.batch(ops=[op(2, stream_schema.ONLINE)])
    service.now += dt.timedelta(hours=20)
    told = service.batch(updates=[update("a", 1)], ops=[op(2, stream_schema.ACKNOWLEDGE, 0, object="a")])
    assert told == [(1, "invalid"), (2, "notify", "a", 1), (3, "invalid")]
    assert service.batch(updates=[update("a", 2)]) == [(2, "notify", "a", 2)]
    assert service.batch(ops=[op(1, stream_schema.ONLINE), op(1, stream_schema.ACKNOWLEDGE, 1, object="a")]) == [
        (1, "invalid")
    ]
    assert service.batch(updates=[update("a", 3)]) == [(2, "notify", "a", 3)]
    told = service.batch(ops=[op(1, stream_schema.CREATED), op(1, stream_schema.ONLINE)])
    assert told == [(1, "digest", 10, 0)]
    assert service.batch(ops=[op(1, stream_schema.ONLINE)]) == [(1, "digest", 10, 0)]


# What is lost


def test_runs_that_are_lost_are_made_again_from_the_tables(tmp_path: Path) -> None:
    service = Service(tmp_path)
    service.batch(ops=[*CREATED, register(1, "a", 10), register(2, "a", 10), unregister(2, "a", 11)])
    service.batch(updates=[update("a", 1, b"one")])
    for lose in ("nothing", "all", "objects", "damage"):
        service.restart()
        if lose == "all":
            shutil.rmtree(tmp_path / "runs")
        elif lose == "objects":
            shutil.rmtree(tmp_path / "runs" / "objects")
        elif lose == "damage":
            [run, *_] = (tmp_path / "runs" / "registrations_of").glob("*.arrow")
            run.write_bytes(b"")
        told = service.batch(ops=[op(1, stream_schema.ONLINE), op(2, stream_schema.ONLINE)])
        assert told == [(1, "digest", 10, 1), (1, "notify", "a", 1, b"one"), (2, "digest", 11, 0)], lose


def test_state_that_is_dropped_is_built_again_by_the_clients(tmp_path: Path) -> None:
    service = Service(tmp_path / "one")
    service.batch(ops=[*CREATED, register(1, "a", 10)], updates=[update("a", 1)])
    service = Service(tmp_path / "another")
    assert service.batch(ops=[op(1, stream_schema.ONLINE)]) == [(1, "invalid")]
    assert service.batch(ops=[op(1, stream_schema.CREATED), op(1, stream_schema.ONLINE)]) == [(1, "digest", 0, 0)]
    told = service.batch(ops=[register(1, "a", 20), op(1, stream_schema.SYNC, 20)])
    assert told == [(1, "digest", 20, 1), (1, "registered", "a", 20), (1, "unknown", "a", 20)]


def test_spark_makes_the_columns_that_the_stage_wants(spark: SparkSession, tmp_path: Path) -> None:
    service = Service(tmp_path, spark=spark, repeat=True)
    nonsense: list[Any] = [{"object": "no number", "attributes": {"op": "register"}}, {"object": "7"}, op(1, "dance")]
    told = service.batch(
        ops=[*CREATED, *nonsense, register(1, "ålice", 10), op(1, stream_schema.REGISTER, 11)],
        updates=[update("ålice", 2, b"two")],
    )
    assert without_digests(told) == [
        (1, "notify", "ålice", 2, b"two"),
        (1, "registered", "ålice", 10),
        (7, "invalid"),
    ]
