"""Payloads as columns of a DataFrame: what they say, in Spark's types, in place of their bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from tidings.errors import InvalidOption
from tidings.log_opening import payload_form
from tidings.logs import PayloadColumn
from tidings.stream_definition import StreamDefinition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Decoder = Callable[["DataFrame"], "DataFrame"]

RAW, JSON, AVRO = "raw", "json", "avro"
FORMS = (RAW, JSON, AVRO)


def payload_decoder(
    stream: StreamDefinition, payload: str, schema: StructType | str | None = None, table: str | None = None
) -> Decoder:
    """What puts into the rows of a stream, as the column `payload`, what the payloads say in this form.

    `InvalidOption` if the stream has no such payloads, or these do not go together.
    """
    if payload not in FORMS:
        raise InvalidOption(f"payload is {payload!r}; write one of {', '.join(map(repr, FORMS))}")
    if payload == JSON and schema is None:
        raise InvalidOption("payload='json' needs the schema of the payloads, as in schema='name STRING, age INT'")
    if payload != JSON and schema is not None:
        raise InvalidOption(f"a schema is for payload='json', and payload={payload!r} has no use for it")
    if payload != AVRO and table is not None:
        raise InvalidOption(f"a table is for payload='avro', and payload={payload!r} has no use for it")
    if payload == AVRO:
        return functools.partial(_from_avro, stream, table, _table_of(stream, table))
    return (lambda rows: rows) if schema is None else functools.partial(_from_json, schema)


def _from_json(schema: StructType | str, rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sf

    return rows.withColumn("payload", sf.from_json(sf.col("payload").cast("string"), schema))


def _from_avro(stream: StreamDefinition, wanted: str | None, table: str, rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sf
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import from_arrow_type

    def decode(payloads: pa.Array) -> pa.Array:
        return _columns(stream)[table].read(payloads)

    if wanted is not None:
        schema, _, name = wanted.rpartition(".")
        attributes = sf.col("attributes")
        rows = rows.where((attributes["schema"] == schema) & (attributes["table"] == name))
    # Spark's own `from_avro` is in a jar of its own. Of a row this column alone goes through Python, as Arrow.
    form = from_arrow_type(_columns(stream)[table].type)
    decoded = arrow_udf(decode, form)  # type: ignore[call-overload]  # which kind it is, it finds by itself
    return rows.withColumn("payload", decoded("payload"))


def _table_of(stream: StreamDefinition, wanted: str | None) -> str:
    """The table whose rows are wanted, if the stream says how its payloads are written."""
    tables = list(_columns(stream))
    if not tables:
        raise InvalidOption(
            f"stream {stream.name!r} does not say that its payloads are Avro: payload='avro' is for streams of "
            "databases that have the options 'payload' and 'schemas'"
        )
    if wanted is None and len(tables) > 1:
        raise InvalidOption(
            f"stream {stream.name!r} has rows of {', '.join(tables)}: say which you want, as in table={tables[0]!r}"
        )
    if wanted is not None and wanted not in tables:
        raise InvalidOption(f"stream {stream.name!r} has no table {wanted!r}; it has {', '.join(tables)}")
    return wanted or tables[0]


@functools.lru_cache(maxsize=16)
def _columns(stream: StreamDefinition) -> Mapping[str, PayloadColumn]:
    form = payload_form(stream)
    return {} if form is None or form.columns is None or form.name.lower() != AVRO else form.columns()
