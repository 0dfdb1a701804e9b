"""The stage `latest`: a Delta table of the newest state of every object of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import pyarrow as pa
from pydantic import Field

from tidings.filters import parse
from tidings.stages import Stage
from tidings.stages.filter import FilterText
from tidings.updates import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidings.stages.state import State

COLUMNS = ("object", "version", "payload", "attributes", "time")
TABLE = pa.schema(
    [*(SCHEMA.field(name) for name in COLUMNS), pa.field("deleted", pa.bool_()), pa.field("bucket", pa.int32())]
)
"""The columns of the table. `bucket` is how it is partitioned."""

NEWER = "coalesce(new.version, -1) > coalesce(old.version, -1) or (new.version is null and old.version is null)"


class LatestStage(Stage):
    """Keeps the newest version of each object in the table `latest`, and writes no stream.

    A version that is older than the one that is there, or the same, changes nothing, however late it comes. An update
    without a version counts as older than any that has one; of two such updates the later counts.

    An update that passes the filter `deletes` marks its object as `deleted`, and takes its payload and attributes away.
    The row stays: without it, an older version that comes late would bring the object back.

    The table is partitioned by a hash of the object into `buckets`. A batch reads and writes only the buckets of the
    objects in it, so more buckets make small batches cheaper, and the table's files smaller.
    """

    deletes: FilterText = "kind = gc"
    buckets: Annotated[int, Field(ge=1, le=1024)] = 16

    max_inputs: ClassVar[int | None] = 1
    writes: ClassVar[bool] = False

    def prepare(self, rows: DataFrame) -> DataFrame:
        """The rows of the table, each with what ranks it among those of its object."""
        from pyspark.sql import functions as sf

        version, seq, index = sf.col("version"), sf.col("seq"), sf.col("index")
        # Among equal versions the first, as between batches; among unknown ones the last.
        known = sf.struct(version.alias("version"), (-seq).alias("seq"), (-index).alias("index"))
        unknown = sf.struct(sf.lit(-1).cast("long").alias("version"), seq.alias("seq"), index.alias("index"))
        rank = sf.when(version.isNull(), unknown).otherwise(known)

        deleted = parse(self.deletes).column()
        return rows.select(
            "object",
            "version",
            sf.when(~deleted, sf.col("payload")).alias("payload"),
            sf.when(~deleted, sf.col("attributes")).alias("attributes"),
            "time",
            deleted.alias("deleted"),
            sf.pmod(sf.xxhash64("object"), sf.lit(self.buckets)).cast("int").alias("bucket"),
            rank.alias("rank"),
        )

    def apply(self, batch: DataFrame, state: State) -> None:
        """Merge the batch's newest row of each object into the table."""
        from pyspark.sql import functions as sf

        newest = batch.groupBy("object").agg(sf.max_by(sf.struct(*TABLE.names), "rank").alias("row"))
        table = state.table("latest", TABLE, partition_by=["bucket"], fixed={"buckets": self.buckets})
        table.merge(newest.select("row.*"), ["object", "bucket"], update_if=NEWER)
