"""Payloads that are not small are read late, and only those that somebody wants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support.thialfi_stage import Service, op, register
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.protocol.constants import MAX_PAYLOAD_BYTES
from tidings_thialfi.server import payloads, stage
from tidings_thialfi.server.payloads import INLINE_BYTES

LARGE = b"l" * (INLINE_BYTES + 1)
LARGEST = b"m" * MAX_PAYLOAD_BYTES


class Reads:
    """What the stage reads of payloads: with the updates, and late."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.early: list[Any] = []
        self.late: list[Any] = []
        step = stage.Thialfi.step

        def watched(self_: Any, rows: pa.Table, index: Any, state: Any, read_late: payloads.ReadLate) -> Any:
            assert "late" not in rows.column_names
            self.early += [one for one in rows["payload"].to_pylist() if one is not None]
            return step(self_, rows, index, state, lambda places: self._noted(read_late(places)))

        monkeypatch.setattr(stage.Thialfi, "step", watched)

    def _noted(self, found: pa.Table) -> pa.Table:
        self.late += found["late"].to_pylist()
        return found


@pytest.mark.parametrize("engine", ["spark", "python"])
def test_only_what_somebody_wants_is_read(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    spark: SparkSession | None = request.getfixturevalue("spark") if engine == "spark" else None
    service = Service(tmp_path, spark=spark, repeat=True)
    service.batch(ops=[op(1, stream_schema.CREATED), *(register(1, name, 10) for name in ("a", "b", "c", "d"))])
    reads = Reads(monkeypatch)
    told = service.batch(
        updates=[
            {"object": "a", "version": 1, "payload": b"old" + LARGE},
            {"object": "a", "version": 2, "payload": LARGE},
            {"object": "a", "version": 2, "payload": b"again" + LARGE},
            {"object": "b", "version": 1, "payload": LARGEST},
            {"object": "c", "version": 1, "payload": LARGEST + b"!"},
            {"object": "d", "version": 1, "payload": b"small"},
            *({"object": f"nobody's {number}", "version": 1, "payload": LARGEST} for number in range(20)),
        ],
    )
    assert told == [
        (1, "notify", "a", 2, LARGE),
        (1, "notify", "b", 1, LARGEST),
        (1, "notify", "c", 1),
        (1, "notify", "d", 1, b"small"),
    ]
    assert reads.early == [b"small"] * 3, "of each attempt"
    assert sorted(reads.late) == sorted([LARGE, LARGEST] * 3)


def test_who_registers_in_the_same_batch_gets_the_payload_and_who_does_so_later_does_not(tmp_path: Path) -> None:
    service = Service(tmp_path, repeat=True)
    ops = [op(1, stream_schema.CREATED), op(2, stream_schema.CREATED), register(1, "a", 10)]
    told = service.batch(ops=ops, updates=[{"object": "a", "version": 1, "payload": LARGE}])
    assert (1, "notify", "a", 1, LARGE) in told
    assert (2, "notify", "a", 1) in service.batch(ops=[register(2, "a", 10)])


def test_what_is_kept_is_read_though_nobody_wants_it_yet(tmp_path: Path) -> None:
    service = Service(tmp_path, payload_bytes=len(LARGE))
    service.batch(ops=[op(1, stream_schema.CREATED)], updates=[{"object": "a", "version": 1, "payload": LARGE}])
    assert (1, "notify", "a", 1, LARGE) in service.batch(ops=[register(1, "a", 10)])


@pytest.mark.parametrize("limit", ["LATE_BYTES", "LATE_UPDATES"])
def test_beyond_so_many_clients_are_told_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(payloads, limit, 2 * len(LARGE) if limit == "LATE_BYTES" else 2)
    service = Service(tmp_path)
    names = ("a", "b", "c", "d")
    service.batch(ops=[op(1, stream_schema.CREATED), *(register(1, name, 10) for name in names)])
    told = service.batch(updates=[{"object": name, "version": 1, "payload": LARGE} for name in names])
    assert [len(row) for row in told] == [5, 5, 4, 4]
