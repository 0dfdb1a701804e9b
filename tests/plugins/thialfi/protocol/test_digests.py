"""Digests: the same in Spark, in numpy and in the client; and free of order."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from tidings_thialfi.protocol.digests import Digest, item_of, items, key_of

clients = st.integers(0, 2**63 - 1)
objects = st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20), unique=True, max_size=30)


def test_items_are_what_spark_computes(spark: SparkSession) -> None:
    rng = random.Random(42)
    names = ["alice", "Zoë", "数据", "🐝", "\u0000", "x" * 1024, *(f"object-{n}" for n in range(500))]
    edges = [0, 1, 4711, 2**63 - 1]
    rows = [(edges[at] if at < 4 else rng.getrandbits(63), name) for at, name in enumerate(names)]
    frame = spark.createDataFrame(rows, "client long, object string")
    keyed = frame.select("client", "object", F.xxhash64("object").alias("key"))
    found = keyed.select("client", "object", "key", F.xxhash64("client", "key").alias("item")).collect()
    assert [row.key for row in found] == [key_of(row.object) for row in found]
    assert [row.item % 2**64 for row in found] == [item_of(row.client, row.object) for row in found]
    of_numpy = items(np.array([row.client for row in found]), np.array([row.key for row in found]))
    assert of_numpy.tolist() == [row.item % 2**64 for row in found]


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.text(min_size=1, max_size=9)), max_size=50))
def test_items_of_many_are_the_items_of_each(pairs: list[tuple[int, str]]) -> None:
    pairs = [(client, name) for client, name in pairs if name.isprintable()]
    numbers = np.array([client for client, _ in pairs], np.int64)
    keys = np.array([key_of(name) for _, name in pairs], np.int64)
    assert items(numbers, keys).tolist() == [item_of(client, name) for client, name in pairs]


@given(clients, objects, st.randoms())
def test_a_digest_does_not_depend_on_the_way_to_it(client: int, names: list[str], rng: random.Random) -> None:
    whole = Digest.of(client, names)
    digest = Digest()
    for name in rng.sample(names, len(names)):
        digest = digest.plus(client, name).plus(client, "another").minus(client, "another")
    assert digest == whole
    for name in rng.sample(names, len(names)):
        digest = digest.minus(client, name)
    assert digest == Digest()


@given(clients, clients, objects)
def test_clients_with_the_same_objects_have_digests_of_their_own(one: int, other: int, names: list[str]) -> None:
    if one != other and names:
        assert Digest.of(one, names) != Digest.of(other, names)
