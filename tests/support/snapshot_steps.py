"""Steps that the tests of snapshots share, whatever the datastore is."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tidings.positions import Positions
from tidings.stream_definition import StreamDefinition
from tidings.testing import eventually
from tidings_connectors.cdc import snapshot
from tidings_connectors.cdc.base import TailedLogBase

ROWS = 100  # in a chunk

CHILD = """
import json, sys
from tidings.logs import create_log
from tidings.stream_definition import StreamDefinition
from tidings_connectors.cdc import snapshot

snapshot.CHUNK_ROWS = int(sys.argv[2])
create_log(StreamDefinition.from_json(json.loads(sys.argv[1])))
"""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "CHUNK_ROWS", ROWS)


def kill_midway(stream: StreamDefinition, note: Path) -> int:
    """Have a process go on with a snapshot, and kill it after some chunks more; how many there are then."""
    target = count_chunks(note) + 3
    with subprocess.Popen([sys.executable, "-c", CHILD, json.dumps(stream.to_json()), str(ROWS)]) as child:
        eventually(lambda: child.poll() is not None or count_chunks(note) > target)
        assert child.poll() is None
        child.send_signal(signal.SIGKILL)
    return count_chunks(note)


def count_chunks(note: Path) -> int:
    return sum(len(run["chunks"]) for run in json.loads(note.read_text())["runs"]) if note.exists() else 0


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
