"""Steps that the tests of snapshots share, whatever the datastore is."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.subscribers import Seen
from tidings.cluster import Cluster
from tidings.positions import Positions
from tidings.stream_definition import StreamDefinition
from tidings.testing import eventually
from tidings_connectors.cdc import snapshot
from tidings_connectors.cdc.base import TailedLogBase

ROWS = 100  # in a chunk

CHILD = """
import json, sys
from tidings.log_opening import create_log
from tidings.stream_definition import StreamDefinition
from tidings_connectors.cdc import snapshot

snapshot.CHUNK_ROWS = int(sys.argv[2])
create_log(StreamDefinition.from_json(json.loads(sys.argv[1])))
"""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "CHUNK_ROWS", ROWS)
    monkeypatch.setattr(snapshot, "RELEASE_DELAY_S", 0)


def kill_midway(stream: StreamDefinition, note: Path) -> int:
    """Have a process go on with a snapshot, and kill it after some chunks more; how many there are then."""
    target = count_chunks(note) + 3
    with subprocess.Popen([sys.executable, "-c", CHILD, json.dumps(stream.to_json()), str(ROWS)]) as child:
        eventually(lambda: child.poll() is not None or count_chunks(note) > target)
        assert child.poll() is None
        child.send_signal(signal.SIGKILL)
    return count_chunks(note)


def count_chunks(note: Path) -> int:
    return sum(len(run["chunks"]) for run in noted(note)["runs"]) if note.exists() else 0


def noted(note: Path) -> Any:
    """What a note says, whose last line is its checksum."""
    return json.loads(note.read_bytes().rpartition(b"\n")[0])


def rows_reach_who_comes_later(
    cluster: Cluster, stream: str, folder: Path, rows: int, change: Callable[[int], object]
) -> None:
    """Of a stream with so many rows: an application that comes when its snapshot is gone gets them, and no other does.

    `change` makes one row more, with this number as its key.
    """

    def operations(seen: Seen) -> Counter[str]:
        return Counter((update.attributes or {})["operation"] for update in seen.updates)

    first, late = Seen(), Seen()
    cluster.create_application("first", [stream], start="earliest")
    with cluster.publisher(token_interval=0.2), cluster.subscribe("first", first):
        eventually(lambda: operations(first)["snapshot"] == rows)
        change(1_000_001)
        eventually(lambda: operations(first)["insert"] == 1)
        eventually(lambda: not list(folder.rglob("*.parquet")), timeout=60)
        cluster.create_application("late", [stream], start="earliest")
        with cluster.subscribe("late", late):
            eventually(lambda: operations(late)["snapshot"] == rows + 1, timeout=60)
            change(1_000_002)
            eventually(lambda: operations(first)["insert"] == 2 and operations(late)["insert"] == 1)
            eventually(lambda: not list(folder.rglob("*.parquet")), timeout=60)
    assert operations(first) == {"snapshot": rows, "insert": 2}
    assert operations(late) == {"snapshot": rows + 1, "insert": 1}
    assert len({update.object for update in late.updates}) == rows + 2
    for shard in {update.shard for update in late.updates}:
        places = [update.position for update in late.updates if update.shard == shard]
        assert places == sorted(set(places))


def read_past(log: TailedLogBase, reader: Any, after: Positions, error: type[Exception]) -> Any:
    """The loss that a reader is told when there is a snapshot that it can go on with; nothing before."""
    told: list[Any] = []

    def tried() -> bool:
        try:
            read = reader.read(after, 100)
        except error as loss:
            told.append(loss)
            return True
        assert (len(read.rows), read.upto) == (0, after)
        return False

    eventually(tried)
    assert log._snapshot is not None
    assert log._snapshot.covers()
    return told[0]
