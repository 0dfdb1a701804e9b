"""A large history, collected by Spark: which updates later ones of their key make obsolete.

Spark reads the columns that matter with its own readers, brings the updates of a key together, and compares positions.
It is worth its start where there is no index yet; from then on a step finds what it needs there.
"""

from __future__ import annotations

import contextlib
import shutil
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidings.collection import EXPLICIT
from tidings.filters.values import PREFIX
from tidings.tombstones import Tombstones
from tidings.updates import TOMBSTONE
from tidings_gc_tombstones.index import KeyPlaces
from tidings_gc_tombstones.keys import OPTIONAL, column_of
from tidings_gc_tombstones.policies import Keyed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HISTORY, LEFT_S = "history-", 86_400.0
LENGTH_DIGITS = 8  # of a part's length in a key, in hexadecimal: four bytes


def obsolete(
    rows: DataFrame, policies: dict[str, Keyed], key: Sequence[str], folder: Path
) -> tuple[dict[str, Tombstones], KeyPlaces]:
    """What is obsolete by each policy, and where the updates are that are not.

    Spark writes it into files below this folder, for a while: a driver has no room for so many rows.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    updates = rows.where((sf.col("kind") != TOMBSTONE) & ~EXPLICIT.column())
    marked = [
        sf.when(policy.collecting.column(), sf.col("seq")).alias(f"by_{at}")
        for at, policy in enumerate(policies.values())
    ]
    keyed = updates.select("shard", "seq", key_column(key).alias("key"), *marked).where(sf.col("key").isNotNull())
    same = Window.partitionBy("shard", "key")
    last = [sf.coalesce(sf.max(f"by_{at}").over(same), sf.lit(-1)) for at in range(len(policies))]
    judged = keyed.select(
        "shard", "seq", "key", *(((sf.col("seq") < one).alias(f"by_{at}")) for at, one in enumerate(last))
    )
    _sweep(folder)
    written = folder / f"{HISTORY}{uuid.uuid4().hex}"
    try:
        judged.write.parquet(str(written))
        found = pq.read_table(written)
    finally:
        shutil.rmtree(written, ignore_errors=True)
    shards, seqs = found["shard"].to_numpy(), found["seq"].to_numpy()
    by_policy = {name: found[f"by_{at}"].to_numpy() for at, name in enumerate(policies)}
    gone = {name: Tombstones.at(shards[mask], seqs[mask]) for name, mask in by_policy.items()}
    alive = ~np.logical_or.reduce([np.zeros(len(found), np.bool_), *by_policy.values()])
    return gone, KeyPlaces.at(shards[alive], seqs[alive], _whole(found["key"].filter(pa.array(alive))))


def _sweep(folder: Path) -> None:
    """Delete what those have left here who died a day ago."""
    for left in folder.glob(f"{HISTORY}*"):
        with contextlib.suppress(FileNotFoundError):  # somebody else deletes it, too
            if left.stat().st_mtime < time.time() - LEFT_S:
                shutil.rmtree(left, ignore_errors=True)


def explicit_rows_of(rows: DataFrame) -> pa.Table:
    """The explicit gc events among these updates."""
    from pyspark.sql import functions as sf

    from tidings.updates import SCHEMA

    return rows.where(EXPLICIT.column()).withColumn("payload", sf.lit(None).cast("binary")).toArrow().cast(SCHEMA)


def key_column(key: Iterable[str]) -> Column:
    """The key of each update as `keys.keys_of` has it, or null."""
    from pyspark.sql import functions as sf

    names = list(key)
    pieces: list[Column] = []
    for at, name in enumerate(names):
        part = _part(name).cast("binary")
        length = sf.unhex(sf.lpad(sf.hex(sf.octet_length(part)), LENGTH_DIGITS, "0"))
        if name.endswith(OPTIONAL):
            pieces += [sf.coalesce(length, sf.unhex(sf.lit("F" * LENGTH_DIGITS)))]
            pieces += [sf.coalesce(part, sf.unhex(sf.lit("")))]
        else:
            pieces += [length, part] if at < len(names) - 1 else [part]
    return sf.concat(*pieces) if len(pieces) > 1 else pieces[0]


def _part(name: str) -> Column:
    from pyspark.sql import functions as sf

    name = column_of(name)
    if name in ("object", "source"):
        return sf.col(name)
    return sf.element_at("attributes", sf.lit(name.removeprefix(PREFIX)))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([pa.array([], pa.binary()), *column.chunks])
