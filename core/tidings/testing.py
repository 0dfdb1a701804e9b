"""Helpers for tests, of tidings itself and of plugins and connectors.

>>> from tidings.testing import make_updates
>>> make_updates(3).column_names[:2]
['object', 'version']
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pyarrow as pa

from tidings.logs import Log
from tidings.positions import Positions
from tidings.updates import from_rows, shard_of, timed

T = TypeVar("T")


def make_updates(count: int, *, seed: int = 0, objects: int = 100, payload_bytes: int = 32) -> pa.Table:
    """Updates as a producer gives them: a few objects, changed again and again, with versions that grow."""
    rng = random.Random(seed)
    versions: dict[str, int] = {}
    rows = []
    for _ in range(count):
        name = f"object-{rng.randrange(objects)}"
        versions[name] = versions.get(name, 0) + 1
        attributes = {"region": rng.choice(["eu", "us"])}
        payload = rng.randbytes(payload_bytes)
        rows.append({"object": name, "version": versions[name], "attributes": attributes, "payload": payload})
    return timed(from_rows(rows))


def held(log: Log) -> pa.Table:
    """All that a log holds, in the order of shards and positions."""
    floors = Positions({shard: bounds.floor for shard, bounds in log.bounds().items()})
    rows = log.tail(floors, 2**40)
    return rows.sort_by([("shard", "ascending"), ("seq", "ascending"), ("index", "ascending")])


def check_log(log: Log, shards: int) -> None:
    """Raise AssertionError unless the log is whole: dense offsets in every shard, each object where it belongs."""
    rows = held(log)
    seqs = {shard: rows.filter(np.equal(rows["shard"], shard))["seq"].to_pylist() for shard in range(shards)}
    for shard, bounds in log.bounds().items():
        expected = list(range(bounds.floor.seq + 1, bounds.head.seq + 1))
        assert seqs[shard] == expected, f"shard {shard} holds {seqs[shard][:9]}…, not {expected[:9]}…"
    for name, shard in zip(rows["object"].to_pylist(), rows["shard"].to_pylist(), strict=True):
        assert shard_of(name, shards) == shard, f"{name!r} is in shard {shard}"


def eventually(condition: Callable[[], T], timeout: float = 30.0, every: float = 0.01) -> T:
    """Wait until the condition holds and return its value; AssertionError if it does not in time."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"still not true after {timeout:g} s; the last value was {value!r}")
        time.sleep(every)
