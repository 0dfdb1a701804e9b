from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.places import SUPPORT
from tidings.stream_definition import StreamDefinition
from tidings.testing import check_log, eventually, make_updates
from tidings_connectors.delta import turns
from tidings_connectors.delta.log import DeltaLog
from tidings_connectors.delta.turns import Turns

WRITER = SUPPORT / "log_writer.py"
MANY_ROWS = 300_000


@pytest.fixture
def small_writer(log: DeltaLog, definition: StreamDefinition, tmp_path: Path) -> Iterator[Path]:
    """What a process that appends one row after the other has been told is in the log."""
    note = tmp_path / "acknowledged"
    arguments = [str(log.folder), str(definition.shards), "0", "0", note]
    writer = subprocess.Popen([sys.executable, WRITER, *map(str, arguments)])
    try:
        eventually(lambda: note.exists() and note.stat().st_size > 100, timeout=60)
        yield note
    finally:
        writer.kill()
        writer.wait()
    check_log(log, definition.shards)


def attempts(log: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each commit that is tried from now on, whether it was made."""
    made: list[bool] = []
    commit = DeltaLog._commit

    def counted(self: DeltaLog, *arguments: Any) -> bool:
        made.append(commit(self, *arguments))
        return made[-1]

    monkeypatch.setattr(DeltaLog, "_commit", counted)
    return made


@pytest.mark.slow
def test_a_large_append_does_not_starve_beside_a_small_writer_nor_the_small_writer_after_it(
    log: DeltaLog, small_writer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = attempts(log, monkeypatch)
    log.append(make_updates(MANY_ROWS))
    assert len(made) <= 5
    before = small_writer.stat().st_size
    eventually(lambda: small_writer.stat().st_size > before + 100, timeout=30)


def test_nobody_waits_for_long_for_a_turn_whose_writer_is_dead_or_stopped(log: DeltaLog) -> None:
    folder = log.folder / "_turns"
    folder.mkdir()
    (folder / "00000000000000000000-dead").touch()
    began = time.monotonic()
    assert log.append(make_updates(3)) is not None
    assert 1 < time.monotonic() - began < 10, "it is waited for, some 2 s"
    began = time.monotonic()
    assert log.append(make_updates(3)) is not None
    assert time.monotonic() - began < 1, "and not again"
    log.maintenance.vacuum(grace_hours=0)
    assert list(folder.iterdir()) == []


def test_turns_come_in_the_order_in_which_they_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "ASKED_AFTER_S", 0.0)
    shared = Turns(tmp_path / "turns")
    done: list[int] = []

    def append(number: int) -> None:
        with shared.place() as place:
            place.wait()
            done.append(number)

    with shared.place() as first:
        first.wait()
        others = []
        for number in range(5):
            others.append(threading.Thread(target=append, args=(number,)))
            others[-1].start()
            eventually(lambda: len(list(shared.folder.iterdir())) == number + 2)  # noqa: B023
        assert done == []
    for other in others:
        other.join()
    assert done == [0, 1, 2, 3, 4]
