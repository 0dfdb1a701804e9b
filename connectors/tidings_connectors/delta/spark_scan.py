"""A scan of segments by Spark's own Parquet reader, with the tombstones of overlays put over their rows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tidings.updates import SCHEMA, TOMBSTONE
from tidings_connectors.delta.segments import Offsets, Selection

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CHECKS_PAGES = "parquet.page.verify-checksum.enabled"
BLOCK_POSITIONS = 4096  # a tombstone is joined with the rows of each block that it reaches into


def scan(spark: SparkSession, files: Selection, between: tuple[Offsets, Offsets] | None) -> DataFrame:
    """The rows of these files; with `between`, those that lie after the one and up to the other."""
    from pyspark.sql import functions as sf

    from tidings.updates import spark_schema

    if not files.paths:
        return spark.createDataFrame([], spark_schema())
    rows = _read(spark, files.paths)
    if files.sparse:
        tombstones = _read(spark, files.overlays)
        if not files.in_order:  # another engine takes overlays for rows like any
            is_tombstone = sf.col("kind") == TOMBSTONE
            rows, tombstones = rows.where(~is_tombstone), tombstones.union(rows.where(is_tombstone))
        rows = _uncovered(rows, tombstones).union(tombstones) if files.overlays or not files.in_order else rows
    return rows if between is None else _between(rows, *between, sparse=files.sparse)


def _read(spark: SparkSession, paths: Iterable[Path]) -> DataFrame:
    from tidings.updates import spark_schema

    found = [str(path) for path in paths]
    if not found:
        return spark.createDataFrame([], spark_schema())
    return spark.read.option(CHECKS_PAGES, True).schema(spark_schema()).parquet(*found)


def _uncovered(rows: DataFrame, tombstones: DataFrame) -> DataFrame:
    """The rows that no tombstone stands for."""
    from pyspark.sql import functions as sf

    first, last = sf.col("seq") - sf.col("range") + 1, sf.col("seq")
    blocks = sf.sequence(_block(first), _block(last))
    gone = tombstones.select(
        sf.col("shard").alias("its_shard"), first.alias("first"), last.alias("last"), sf.explode(blocks).alias("block")
    )
    covered = (
        (sf.col("shard") == sf.col("its_shard"))
        & (_block(sf.col("seq")) == sf.col("block"))
        & sf.col("seq").between(sf.col("first"), sf.col("last"))
    )
    return rows.join(gone, covered, "left_anti")


def _block(seq: Column) -> Column:
    from pyspark.sql import functions as sf

    return sf.floor(seq / BLOCK_POSITIONS)


def _between(rows: DataFrame, start: Offsets, end: Offsets, *, sparse: bool) -> DataFrame:
    from pyspark.sql import functions as sf

    low, high = (sf.array(*map(sf.lit, each.tolist()))[sf.col("shard")] for each in (start, end))
    rows = rows.where((sf.col("seq") > int(start.min())) & (sf.col("seq") > low))
    if not sparse:
        return rows.where((sf.col("seq") <= int(end.max())) & (sf.col("seq") <= high))
    before, seq = sf.greatest(sf.col("seq") - sf.col("range"), low), sf.least(sf.col("seq"), high)
    cut = {"seq": seq, "range": seq - before}
    return rows.where(sf.col("seq") - sf.col("range") < high).select(
        *(cut[name].alias(name) if name in cut else name for name in SCHEMA.names)
    )
