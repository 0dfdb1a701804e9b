from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import tidings
from tidings.cluster import Cluster
from tidings.controls import resume, stop
from tidings.errors import InvalidOption, LogMismatch, LogRestored, LogUnavailable, PositionsLost
from tidings.flow_reset import ResetTarget, execute_reset, plan_reset, to_csv
from tidings.flow_skip import execute_skip, plan_skip
from tidings.flow_status import status
from tidings.flows import Flow
from tidings.log_reading import positions_at
from tidings.logs import Log, TailedLog
from tidings.positions import Position, Positions
from tidings.stream_definition import StreamDefinition
from tidings.testing import eventually
from tidings.updates import shard_of
from tidings_connectors.delta_cdf.log import DeltaCdfLog
from tidings_connectors.delta_cdf.table import FedTable

FEED = {"delta.enableChangeDataFeed": "true"}
Row = dict[str, Any]


def people(**names: str) -> pa.Table:
    return pa.table({"id": pa.array([int(key[1:]) for key in names], pa.int64()), "name": list(names.values())})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "shop" / "people"
    write_deltalake(folder, people(_1="alva", _2="bo"), configuration=FEED)
    return folder


def opened(place: Path, shards: int = 2, **options: Any) -> DeltaCdfLog:
    return DeltaCdfLog.open(str(place), StreamDefinition("people", shards, f"delta-cdf:{place}", options=options))


@pytest.fixture
def log(place: Path) -> DeltaCdfLog:
    return opened(place, key=["id"])


def merge(place: Path, rows: pa.Table, on: str = "new.id = old.id") -> None:
    merger = DeltaTable(place).merge(rows, on, "new", "old")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def told(rows: pa.Table) -> list[tuple[Any, ...]]:
    found = rows.sort_by([("seq", "ascending"), ("index", "ascending")]).to_pylist(maps_as_pydicts="lossy")
    return [
        (row["seq"], row["index"], row["object"], row["attributes"]["operation"], json.loads(row["payload"]))
        for row in found
    ]


def start(log: Log) -> Positions:
    return Positions({shard: held.floor for shard, held in log.bounds().items()})


def test_changes_of_a_table_are_updates(log: DeltaCdfLog, place: Path) -> None:
    merge(place, people(_2="bo b.", _3="cecilia"))
    DeltaTable(place).delete("id = 1")
    assert isinstance(log, TailedLog)
    eventually(lambda: log.bounds()[0].head == Position(3, -1))
    assert told(log.tail(start(log), 100)) == [
        (0, 0, "shop.people/1", "insert", {"id": 1, "name": "alva"}),
        (0, 1, "shop.people/2", "insert", {"id": 2, "name": "bo"}),
        (1, 0, "shop.people/2", "update", {"id": 2, "name": "bo b."}),
        (1, 1, "shop.people/3", "insert", {"id": 3, "name": "cecilia"}),
        (2, 0, "shop.people/1", "delete", {"id": 1, "name": "alva"}),
    ]


def test_an_object_whose_key_has_changed_has_ended(log: DeltaCdfLog, place: Path) -> None:
    DeltaTable(place).update({"id": "9"}, predicate="id = 2")
    eventually(lambda: log.bounds()[0].head == Position(2, -1))
    assert told(log.tail(start(log), 100))[2:] == [
        (1, 0, "shop.people/2", "delete", {"id": 2, "name": "bo"}),
        (1, 1, "shop.people/9", "update", {"id": 9, "name": "bo"}),
    ]


def test_a_reader_goes_on_in_the_midst_of_a_version_and_gives_the_same_rows_again(place: Path) -> None:
    write_deltalake(place, people(**{f"_{number}": "x" for number in range(10, 60)}), mode="append")
    log = opened(place, key=["id"], shards=3)
    whole = told(log.tail(start(log), 1000))
    for limit in (1, 7, 50):
        reader, at, found = log.reader(), start(log), []
        while any(at[shard] < held.head for shard, held in log.bounds().items()):
            rows, at = reader.read(at, limit)
            assert len(rows) <= limit
            found += told(rows)
            reader = opened(place, key=["id"], shards=3).reader()  # another process
        assert found == whole


def test_shards_are_read_apart_and_their_positions_move_without_rows(place: Path) -> None:
    log = opened(place, key=["id"], shards=8)
    full = {row[2] for row in told(log.tail(start(log), 100))}
    found: set[str] = set()
    for shard in range(8):
        rows, upto = log.reader().read(Positions({shard: Position(0, -1)}), 100)
        assert set(rows["shard"].to_pylist()) <= {shard}
        assert upto == Positions({shard: Position(1, -1)})
        found |= set(rows["object"].to_pylist())
    assert found == full


def test_without_a_key_the_table_is_one_object(place: Path) -> None:
    merge(place, people(_2="bo b."))
    rows = opened(place, payload="none").tail(Positions({0: Position(0, -1), 1: Position(0, -1)}), 100)
    assert set(rows["object"].to_pylist()) == {"shop.people"}


def test_types_come_through(tmp_path: Path) -> None:
    row = {
        "id": pa.array([1], pa.int16()),
        "price": pa.array([Decimal("10.50")], pa.decimal128(10, 2)),
        "share": pa.array([0.25]),
        "good": pa.array([True]),
        "at": pa.array([dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC)], pa.timestamp("us", "UTC")),
        "on": pa.array([dt.date(2026, 1, 2)]),
        "raw": pa.array([b"\x00\xff"]),
        "tags": pa.array([["a", 'b "c"']]),
        "where": pa.array([{"x": 1, "y": None}]),
        "nothing": pa.array([None], pa.string()),
        "word": pa.array(['say "𝄞"\n']),
    }
    write_deltalake(tmp_path / "t", pa.table(row), configuration=FEED)
    (found,) = told(opened(tmp_path / "t", key=["id"]).tail(Positions({0: Position(0, -1), 1: Position(0, -1)}), 10))
    assert found[4] == {
        "id": 1,
        "price": "10.50",
        "share": 0.25,
        "good": True,
        "at": "2026-01-02 03:04:05.000006Z",
        "on": "2026-01-02",
        "raw": "\\x00ff",
        "tags": ["a", 'b "c"'],
        "where": {"x": 1, "y": None},
        "nothing": None,
        "word": 'say "𝄞"\n',
    }


def test_values_that_json_does_not_have_are_texts_and_change_nothing_beside_them(tmp_path: Path) -> None:
    rows = {
        "id": [1, 2],
        "share": [0.5, float("nan")],
        "deep": pa.array([[1.5, float("inf")], None], pa.list_(pa.float64())),
        "raws": pa.array([[b"\x01"], []], pa.list_(pa.binary())),
        "named": pa.array([[("a", 1), ("b", 2)], None], pa.map_(pa.string(), pa.int64())),
    }
    write_deltalake(tmp_path / "t", pa.table(rows), configuration=FEED)
    found = told(opened(tmp_path / "t", key=["id"]).tail(Positions({0: Position(0, -1), 1: Position(0, -1)}), 10))
    assert sorted((row[4] for row in found), key=lambda row: row["id"]) == [
        {"id": 1, "share": 0.5, "deep": [1.5, "Infinity"], "raws": ["\\x01"], "named": {"a": 1, "b": 2}},
        {"id": 2, "share": "NaN", "deep": None, "raws": [], "named": None},
    ]


def test_partitions_may_be_called_anything(tmp_path: Path) -> None:
    names = ["plain", "a b", "c/d", "e%f", "ü=1", None]
    rows = pa.table({"id": range(6), "name": names, "day": pa.array([dt.date(2026, 1, 2)] * 6)})
    write_deltalake(tmp_path / "t", rows, partition_by=["name", "day"], configuration=FEED)
    table = DeltaTable(tmp_path / "t")
    table.update(updates={"id": "id + 10"}, predicate="name = 'c/d'")
    table.delete("name = 'a b'")
    start = Positions({0: Position(0, -1), 1: Position(0, -1)})
    found = told(opened(tmp_path / "t", key=["name"]).tail(start, 100))
    assert sorted((row[4]["name"] or "", row[4]["id"], row[4]["day"]) for row in found) == sorted(
        [(name or "", at, "2026-01-02") for at, name in enumerate(names)]
        + [("c/d", 12, "2026-01-02"), ("a b", 1, "2026-01-02")]
    )


def test_a_row_that_comes_to_another_shard_ends_in_its_old_one(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"id": [1], "shop": ["west"]}), configuration=FEED)
    log = opened(tmp_path / "t", key=["id"], shard="shop")
    elsewhere = next(f"shop{n}" for n in range(100) if shard_of(f"shop{n}", 2) != shard_of("west", 2))
    DeltaTable(tmp_path / "t").update(updates={"shop": f"'{elsewhere}'"})
    rows = log.tail(Positions({0: Position(0, -1), 1: Position(0, -1)}), 10).to_pylist(maps_as_pydicts="lossy")
    assert [(row["shard"], row["attributes"]["operation"]) for row in rows] == [
        (shard_of("west", 2), "insert"),
        (shard_of("west", 2), "delete"),
        (shard_of(elsewhere, 2), "update"),
    ]


def test_a_table_that_cannot_be_tailed_says_what_mends_it(tmp_path: Path, place: Path, spark: SparkSession) -> None:
    with pytest.raises(LogUnavailable, match="there is no Delta table in"):
        opened(tmp_path / "nowhere")
    with pytest.raises(InvalidOption, match="has no column 'nr' to be its key"):
        opened(place, key=["nr"])
    with pytest.raises(InvalidOption, match="option 'keys'"):
        opened(place, keys=["id"])
    plain = tmp_path / "plain"
    write_deltalake(plain, people(_1="alva"))
    with pytest.raises(LogMismatch, match="has no change data feed") as caught:
        opened(plain)
    spark.sql(str(caught.value).partition(": ")[2])
    write_deltalake(plain, people(_2="bo"), mode="append")
    log = opened(plain, key=["id"])
    # What was there before has no changes to be read.
    assert log.bounds()[0].floor == Position(1, -1)
    assert [row[2] for row in told(log.tail(start(log), 10))] == [f"{tmp_path.name}.plain/2"]
    with pytest.raises(PositionsLost) as lost:
        log.tail(Positions({0: Position(0, 0), 1: Position(1, -1)}), 10)
    assert lost.value.lost == {0: (Position(0, 1), Position(1, -1))}


def test_a_table_that_was_made_anew_is_noticed(log: DeltaCdfLog, place: Path) -> None:
    for number in range(3):
        write_deltalake(place, people(**{f"_{number + 5}": "x"}), mode="append")
    eventually(lambda: log.bounds()[0].head == Position(4, -1))
    at = Positions(dict.fromkeys(range(2), Position(4, -1)))
    for path in sorted((place / "_delta_log").glob("*.json"))[1:]:
        path.unlink()
    with pytest.raises(LogRestored, match="ends at version 0"):
        eventually(lambda: log.check(at), timeout=2)


def test_spark_reads_the_feed(spark: SparkSession, cluster: Cluster, place: Path) -> None:
    stream = cluster.create_stream("people", 2, f"delta-cdf:{place}", options={"key": ["id"]})
    merge(place, people(_3="cecilia"))
    rows = stream.log.scan(spark).orderBy("seq", "index").toArrow()
    assert [row[2] for row in told(rows)] == ["shop.people/1", "shop.people/2", "shop.people/3"]
    assert stream.log.scan(spark, Positions(dict.fromkeys(range(2), Position(1, -1)))).count() == 1


class Names(tidings.Handler):
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def on_update(self, update: tidings.Update) -> None:
        assert update.attributes is not None
        self.told.append((update.object, update.attributes["operation"]))


def test_subscribers_hear_of_changes_in_a_table_and_go_on_after_a_restart(cluster: Cluster, place: Path) -> None:
    cluster.create_stream("people", 2, f"delta-cdf:{place}", options={"key": ["id"]})
    cluster.create_application("cache", ["people"], start="earliest")
    names = Names()

    def marked() -> bool:
        places = [("flows", "cache", "people", str(shard), "datamarker") for shard in range(2)]
        found = [cluster.coordination.read(*one) for one in places]
        heads = Position(DeltaTable(place).version() + 1, -1)
        return all(one and Position.from_json(one["position"]) == heads for one in found)

    with cluster.subscribe("cache", names):
        with cluster.publisher(token_interval=0.2):
            eventually(lambda: sorted(names.told) == [("shop.people/1", "insert"), ("shop.people/2", "insert")])
            merge(place, people(_2="bo b."))
            eventually(lambda: ("shop.people/2", "update") in names.told)
            # The markers of both shards are where the table is, though only one of them had rows.
            eventually(marked)
        DeltaTable(place).delete("id = 1")
        with cluster.publisher(token_interval=0.2):
            eventually(lambda: ("shop.people/1", "delete") in names.told)
            eventually(marked)
    assert len(names.told) == 4


class Picky(Names):
    """Fails at one object."""

    def on_update(self, update: tidings.Update) -> None:
        if update.object == "shop.people/4":
            raise ValueError("no good")
        super().on_update(update)


def test_flows_of_a_table_are_reset_and_an_update_in_the_midst_of_a_version_is_skipped(
    cluster: Cluster, place: Path
) -> None:
    cluster.create_stream("people", 1, f"delta-cdf:{place}", options={"key": ["id"]})
    cluster.create_application("cache", ["people"], start="earliest")
    flow, picky = Flow("cache", "people", 0), Picky()
    write_deltalake(place, people(_3="c", _4="d", _5="e"), mode="append")

    def reset(kind: str, value: str | None = None) -> Position | None:
        plan = plan_reset(cluster, [flow], ResetTarget.parse(kind, value))
        plan = plan_reset(cluster, [], ResetTarget.from_file(to_csv(plan)))  # as an operator keeps it
        (done,) = execute_reset(cluster, plan)
        assert done.error is None
        return done.after

    with cluster.publisher(token_interval=0.1), cluster.subscribe("cache", picky, retries=0):
        (failed,) = eventually(lambda: [one for one in status(cluster) if one.state == "failed"])
        plan = plan_skip(cluster, flow)
        assert (plan.position, plan.update.object) == (failed.failed_at, "shop.people/4")
        with pytest.raises(InvalidOption, match=r"there is no update at 1\.9 in shard 0"):
            plan_skip(cluster, flow, Position(1, 9))
        execute_skip(cluster, plan)
        head = eventually(lambda: [one.head for one in status(cluster) if one.lag == 0])[0]
        assert sorted({name for name, _ in picky.told}) == [f"shop.people/{number}" for number in (1, 2, 3, 5)]
        stop(cluster, [flow])
        eventually(lambda: status(cluster)[0].state == "stopped")
        with pytest.raises(InvalidOption, match="cannot be counted"):
            reset("shift-by", "-1")
        assert reset("earliest") == Position(0, -1)
        assert reset("latest") == head
        assert reset("position", "1.0") == Position(1)
        picky.told.clear()
        resume(cluster, [flow])
        eventually(lambda: status(cluster)[0].lag == 0)
        assert picky.told == [("shop.people/5", "insert")], "after the one at 1.0, but for the one that is skipped"


def test_a_place_is_found_by_its_time(place: Path) -> None:
    log = opened(place, key=["id"])
    between = dt.datetime.now(dt.UTC)
    write_deltalake(place, people(_3="cecilia"), mode="append")
    eventually(lambda: log.bounds()[0].head == Position(2, -1))
    (third,) = told(log.tail(Positions(dict.fromkeys(range(2), Position(1, -1))), 10))
    shard = next(shard for shard in range(2) if len(log.reader().read(Positions({shard: Position(1, -1)}), 9).rows))
    assert positions_at(log, shard, between) == Position(*third[:2]).before
    assert positions_at(log, 1 - shard, between) == Position(2, -1)
    assert positions_at(log, shard, dt.datetime.now(dt.UTC)) == Position(2, -1)


class Losses(Names):
    def __init__(self) -> None:
        super().__init__()
        self.lost: list[tuple[Position, Position]] = []

    def on_data_loss(self, flow: Any, first: Position, last: Position) -> None:
        self.lost.append((first, last))


def test_a_restored_table_is_told_as_a_loss_and_read_again(cluster: Cluster, place: Path) -> None:
    cluster.create_stream("people", 1, f"delta-cdf:{place}", options={"key": ["id"]})
    cluster.create_application("cache", ["people"], start="earliest")
    losses = Losses()
    for number in (3, 4, 5):
        write_deltalake(place, people(**{f"_{number}": "x"}), mode="append")
    with cluster.subscribe("cache", losses), cluster.publisher(token_interval=0.2):
        eventually(lambda: len(losses.told) == 5)
        eventually(lambda: status(cluster)[0].datamarker.position == Position(4, -1))  # type: ignore[union-attr]
        for path in sorted((place / "_delta_log").glob("*.json"))[2:]:
            path.unlink()  # as an older copy has it
        eventually(lambda: losses.lost == [(Position(2), Position(4, -1))])
        losses.told.clear()
        write_deltalake(place, people(_9="y"), mode="append")
        eventually(lambda: ("shop.people/9", "insert") in losses.told)
        eventually(lambda: status(cluster)[0].datamarker.position == Position(3, -1))  # type: ignore[union-attr]
        (flow,) = status(cluster)
        assert (flow.state, flow.lag) == ("running", 0)
    assert len(losses.told) == 4
    assert len(losses.lost) == 1


def test_what_delta_rs_says_of_a_damaged_table_is_one_sentence(place: Path) -> None:
    (place / "_delta_log" / f"{0:020}.json").write_text("junk\n{")
    with pytest.raises(LogUnavailable) as caught:
        FedTable(place).open()
    assert str(caught.value).startswith(f"no Delta table can be read in {place}: ")
    assert str(caught.value).isprintable()
    assert "<unknown>" not in str(caught.value)
