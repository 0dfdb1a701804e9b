"""`format("tidings")` for Spark, which finds it here by itself: it looks for `DefaultSource` in packages so named.

    spark.readStream.format("tidings").option("stream", "contacts").load().groupBy("shard").count()

Its options are in `pyspark_tidings.options`, and docs/spark.md has them in tables. Rows that are written need a column
`object`; `version`, `source`, `attributes`, `payload`, `time`, `kind` and `range` are optional; `shard`, `seq` and
`index` are given by the log, whatever the rows say.

A mistake in an option is Spark's `AnalysisException`, at `load()` already, with a sentence that says what is wrong.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pyspark_tidings.options import ReadOptions, WriteOptions
from pyspark_tidings.plain_errors import plain_errors
from pyspark_tidings.sink import BatchWriter, StreamWriter
from pyspark_tidings.source import BatchReader, RefusedReader, StreamReader
from tidings.errors import InvalidOption, TidingsError
from tidings.updates import spark_schema

__all__ = ["DefaultSource"]

TABLE = "provider"  # a property that tables have, and views and DataFrames do not
NO_TABLES = (
    "Spark cannot read a table that is in a log of tidings: make it a view, by "
    "CREATE TEMPORARY VIEW … USING tidings OPTIONS (stream '…', zookeeper '…')"
)


class DefaultSource(DataSource):
    """The data source `tidings`."""

    @classmethod
    def name(cls) -> str:
        return "tidings"

    @plain_errors()
    def schema(self) -> StructType:
        if TABLE in self.options:
            raise InvalidOption(NO_TABLES)
        # Spark asks for it at `load()`, and before it reads. What is looked up here is not kept: by the time that
        # somebody reads, the stream may have moved.
        ReadOptions.parse(self.options, streaming=None)
        return spark_schema()

    @plain_errors()
    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(ReadOptions.parse(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        try:
            return StreamReader(ReadOptions.parse(self.options, streaming=True))
        except TidingsError as error:
            return RefusedReader(error)

    @plain_errors()
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(WriteOptions.parse(self.options, overwrite))

    @plain_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        return StreamWriter(WriteOptions.parse(self.options, overwrite=False))
