"""A stream as a DataFrame: `tidings.read` what is there, `tidings.read_stream` what comes.

import tidings

contacts = tidings.read(spark, "contacts", payload="json", schema="name STRING, phone STRING")
contacts.select("object", "version", "payload.name").show()
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidings.cluster import Cluster, connect
from tidings.coordination.tls import tls_of_environment
from tidings.errors import InvalidOption, InvalidPosition
from tidings.hosts import DEFAULT_ADDRESS
from tidings.identity.environment import credentials_of_environment, is_insecure
from tidings.log_opening import open_log
from tidings.payload_columns import RAW, payload_decoder
from tidings.positions import Position, Positions
from tidings.stream_definition import StreamDefinition
from tidings.streams import Stream
from tidings.updates import TOMBSTONE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

REFUSED_TIMEOUT_S = 1.0  # where nobody listens, somebody who waits for a DataFrame is told soon
EARLIEST, LATEST = "earliest", "latest"

Places = Positions | Mapping[int, int | Position] | str
"""Positions of all shards: as an object, as in `{0: 22, 1: -1}`, or as JSON. Or a word, where there is one."""


def read(
    spark: SparkSession,
    stream: str | Stream,
    *,
    after: Places = EARLIEST,
    upto: Places = LATEST,
    payload: str = RAW,
    schema: StructType | str | None = None,
    table: str | None = None,
    tombstones: bool = False,
    zookeeper: str | None = None,
    cluster: Cluster | None = None,
) -> DataFrame:
    """The updates that a stream holds, as they are now: one row an update, in the columns of the canonical row.

    A Delta log is read by Spark's own Parquet reader, in parallel, and no row passes through Python. The change log of
    a database is read by one task.

    `after` and `upto` say where it begins and ends, as positions of all shards: what a reader has seen that stands
    there is left out by `after`, and is all there is by `upto`. `after={0: 22, 1: -1}` begins with seq 23 of shard 0
    and with the first of shard 1.

    `payload` says what becomes of the column of that name: `"raw"` leaves it bytes; `"json"` makes it a struct by
    `schema`, a `StructType` or text such as `"name STRING, age INT"`, with nulls for what does not fit; `"avro"` makes
    it a struct by the schema that the stream of a database has, of the `table` that is wanted if there are several.

    The stream is found in the cluster at `zookeeper`, else `TIDINGS_ZOOKEEPER`, else the one on this machine; or in a
    `cluster` that you have; or is a `Stream` itself. Rows that stand for collected updates come with `tombstones` only.

    Raises `InvalidOption`, `InvalidPosition`, `UnknownStream` or `PositionsLost` right here, each with one sentence.

        since = tidings.read(spark, "contacts", after={0: 22, 1: -1}, zookeeper="zk1:2181/prod")
    """
    definition = _found(stream, zookeeper, cluster)
    decode = payload_decoder(definition, payload, schema, table)
    start = _places("after", after, definition, (EARLIEST,))
    end = _places("upto", upto, definition, (LATEST,))
    _check_order(start, end)
    with contextlib.closing(open_log(definition)) as log:
        rows = log.scan(
            spark,
            start if isinstance(start, Positions) else None,
            end if isinstance(end, Positions) else None,
        )
    if not tombstones:
        rows = rows.where(rows["kind"] != TOMBSTONE)
    return decode(rows)


def read_stream(
    spark: SparkSession,
    stream: str | Stream,
    *,
    after: Places = EARLIEST,
    payload: str = RAW,
    schema: StructType | str | None = None,
    table: str | None = None,
    tombstones: bool = False,
    max_rows_per_batch: int | None = None,
    fail_on_data_loss: bool = True,
    zookeeper: str | None = None,
    cluster: Cluster | None = None,
) -> DataFrame:
    """The updates of a stream as they come: a streaming DataFrame, with the columns of `read`.

    It begins after the positions of `after`, or with the oldest updates held (`"earliest"`), or with those that come
    from now on (`"latest"`). A query that has a checkpoint goes on from there, whatever `after` says; it neither loses
    nor repeats a row. `fail_on_data_loss=False` has it go on with the oldest updates held when the next ones are gone.

    It is `spark.readStream.format("tidings")`, by which a query keeps positions and not files in its checkpoint: rows
    come through Python, as Arrow and whole batches at a time. A long past is read fastest by `read`, up to positions
    that `read_stream` then begins after.

        new = tidings.read_stream(spark, "contacts", after="latest", payload="json", schema="name STRING")
        new.writeStream.format("console").start()
    """
    if max_rows_per_batch is not None and max_rows_per_batch < 1:
        raise InvalidOption(f"max_rows_per_batch is {max_rows_per_batch!r}, not a number above 0")
    definition = _found(stream, zookeeper, cluster)
    decode = payload_decoder(definition, payload, schema, table)
    start = _places("after", after, definition, (EARLIEST, LATEST))
    if isinstance(start, Positions):  # the source is told the first row that is wanted
        start = str(Positions({shard: Position(at.seq, at.index + 1) for shard, at in start.items()}))
    options: dict[str, Any] = {
        "definition": json.dumps(definition.to_json()),
        "startingPosition": start,
        "tombstones": tombstones,
        "failOnDataLoss": fail_on_data_loss,
        **({} if max_rows_per_batch is None else {"maxRowsPerBatch": max_rows_per_batch}),
    }
    rows: DataFrame = spark.readStream.format("tidings").options(**options).load()
    return decode(rows)


def _found(stream: str | Stream, zookeeper: str | None, cluster: Cluster | None) -> StreamDefinition:
    if zookeeper is not None and cluster is not None:
        raise InvalidOption("both zookeeper and cluster say where the stream is: leave out one")
    if isinstance(stream, Stream):
        return stream.definition
    if cluster is not None:
        return cluster.stream(stream).definition
    address = zookeeper or os.environ.get("TIDINGS_ZOOKEEPER") or DEFAULT_ADDRESS
    with connect(
        address,
        refused_timeout=REFUSED_TIMEOUT_S,
        credentials=credentials_of_environment(),
        tls=tls_of_environment(),
        insecure=is_insecure(),
    ) as own:
        return own.stream(stream).definition


def _places(name: str, given: Places, stream: StreamDefinition, words: tuple[str, ...]) -> Positions | str:
    """The positions that are meant, which must be those of all shards; or the word."""
    if isinstance(given, str):
        if given in words:
            return given
        if not given.lstrip().startswith("{"):
            raise InvalidPosition(
                f"{name} is {given!r}; write {' or '.join(map(repr, words))}, or as in {{0: 22, 1: -1}}"
            )
        positions = Positions.parse(given)
    else:
        positions = Positions.from_json(
            {shard: at.to_json() if isinstance(at, Position) else at for shard, at in given.items()}
            if isinstance(given, Mapping)
            else given
        )
    missing, surplus = set(range(stream.shards)) - set(positions), set(positions) - set(range(stream.shards))
    if missing or surplus:
        wrong = f"leaves out shard {min(missing)}" if missing else f"names shard {min(surplus)}"
        raise InvalidPosition(f"{name} {wrong}: stream {stream.name!r} has shards 0 to {stream.shards - 1}, name each")
    return positions


def _check_order(after: Positions | str, upto: Positions | str) -> None:
    if isinstance(after, Positions) and isinstance(upto, Positions):
        for shard, at in after.items():
            if at > upto[shard]:
                raise InvalidPosition(f"after is {at} in shard {shard}, which is past upto, {upto[shard]}")
