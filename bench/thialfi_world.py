"""The state of a Thialfi service with very many clients, made without going through operations."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from tidings.stages.state import State
from tidings_thialfi.server.stage import Thialfi
from tidings_thialfi.server.tables import ACKNOWLEDGEMENTS, CLIENTS, FANOUTS, OBJECTS, REGISTRATIONS

AUDIENCE = 5  # registrations of an object, and objects of a client
PART = 1_000_000  # clients whose rows are made at once


def preload(folder: Path, clients: int) -> None:
    """Write the tables of so many clients, each registered for `AUDIENCE` of as many objects."""
    stage = Thialfi(service="bench")
    for number, first in enumerate(range(0, clients, PART)):
        state = State(folder, "preload", number)
        index = stage.opened(state)
        index.write(state, world(min(PART, clients - first), first))
        state.commit()
    index.close()


def world(clients: int, first: int = 0) -> dict[str, pa.Table]:
    """The rows of the tables, for clients and objects with the numbers from `first` on."""
    rng = np.random.default_rng(first)
    names = pa.array([f"object-{number}" for number in range(first, first + clients)])
    keys = np.fromiter((_key(name) for name in names.to_pylist()), np.uint64, clients).view(np.int64)
    at = np.tile(np.arange(clients), AUDIENCE)
    ids = np.arange(first + 1, first + clients + 1)
    none, count = np.zeros(clients, np.int64), len(at)
    registrations = {
        "client": np.concatenate([rng.permutation(ids) for _ in range(AUDIENCE)]),
        "key": keys[at],
        "rank": np.full(count, 20),
        "number": np.full(count, 10),
        "registered": np.ones(count, bool),
        "since": np.full(count, 10),
        "object": names.take(pa.array(at)),
        "application": pa.repeat(pa.scalar("web"), count),
        "time": np.zeros(count, np.int64),
    }
    facts = {
        "client": np.tile(ids, 2),
        "fact": np.repeat([0, 1], clients),
        "number": np.zeros(2 * clients, np.int64),
        "holds": np.ones(2 * clients, bool),
        "time": np.full(2 * clients, time.time_ns() // 1000),
        "application": pa.nulls(2 * clients, pa.string()),
        "gateway": pa.nulls(2 * clients, pa.string()),
    }
    objects = {
        "key": keys,
        "unknown": none,
        "number": none,
        "base": none,
        "object": names,
        "source": pa.nulls(clients, pa.string()),
        "payload": pa.nulls(clients, pa.binary()),
        "time": none,
    }
    return {
        "objects": pa.table(objects, OBJECTS),
        "registrations": pa.table(registrations, REGISTRATIONS),
        "acknowledgements": ACKNOWLEDGEMENTS.empty_table(),
        "clients": pa.table(facts, CLIENTS),
        "fanouts": FANOUTS.empty_table(),
    }


def _key(name: str) -> int:
    return xxhash.xxh64_intdigest(name.encode(), 42)
