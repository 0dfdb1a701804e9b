"""`format("tidings")` for Spark, which finds it here by itself: it looks for `DefaultSource` in packages so named.

Reading, `spark.readStream.format("tidings")` and `spark.read.format("tidings")`:

| option | default | meaning |
| --- | --- | --- |
| `stream` | | the stream's name; required |
| `zookeeper` | `$TIDINGS_ZOOKEEPER` | the cluster, `host:port[,host:port…][/root]` |
| `startingPosition` | `earliest` | `earliest`, `latest`, or the first seq wanted of each shard: `{"0": 23, "1": 0}` |
| `endingPosition` | `latest` | batch reads only: `latest`, or the last seq wanted of each shard |
| `maxRowsPerBatch` | no limit | streaming reads only: rows in one micro-batch |
| `shards` | all | the shards to read: `0,3,5-7` |
| `failOnDataLoss` | `true` | `false`: go on with the oldest updates held when the log no longer holds the next ones |

Writing, `df.writeStream.format("tidings")` and `df.write.format("tidings")`: `stream`, `zookeeper`, and

| option | default | meaning |
| --- | --- | --- |
| `txnAppId` | the query's id | who writes: a micro-batch that this writer repeats is appended once |

The rows need a column `object`; `version`, `source`, `attributes`, `payload`, `time`, `kind` and `range` are optional;
`shard`, `seq` and `index` are given by the log, whatever the rows say.

    spark.readStream.format("tidings").option("stream", "contacts").load().groupBy("shard").count()
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pyspark_tidings.options import ReadOptions, WriteOptions
from pyspark_tidings.sink import BatchWriter, StreamWriter
from pyspark_tidings.source import BatchReader, StreamReader
from tidings.updates import spark_schema

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The data source `tidings`."""

    @classmethod
    def name(cls) -> str:
        return "tidings"

    def schema(self) -> StructType:
        return spark_schema()

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(ReadOptions.parse(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        return StreamReader(ReadOptions.parse(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(WriteOptions.parse(self.options, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        return StreamWriter(WriteOptions.parse(self.options, overwrite=False))
