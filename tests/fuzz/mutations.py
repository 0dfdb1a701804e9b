"""Messages that are almost right: what publishers and subscribers say, changed here and there by a seed."""

from __future__ import annotations

import copy
import json
import random
import struct
from typing import Any

import pyarrow as pa

from tidings.flows import Flow
from tidings.testing import make_updates
from tidings.updates import SCHEMA
from tidings.wire.flight_data import _field, pack, pack_first, pack_schema
from tidings.wire.handshake import Parties
from tidings.wire.protocol import Era, Message, flow_message

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**300, 1e300, -0.0, float("nan"), float("inf"),
    "", "0", "..", "a/../b", "\0", "\ud800", "\u202e", "x" * 2_000, [], [[]], {}, {"t": "open"}, [0] * 500,
)  # fmt: skip
INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


class Mutator:
    """Makes one message after the other, all from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        flow, era = Flow("cache", "contacts", 0), Era(1, 1)
        about = [
            flow_message("open", flow, era, after=[-1, 0]),
            flow_message("token", flow, era, position=[3, 0]),
            flow_message("loss", flow, era, first=[0, 0], last=[3, 0]),
            flow_message("skipped", flow, era, count=3),
            flow_message("close", flow, era),
            {"t": "ping"},
            {"t": "fetch", "publisher": "job-1", "address": "127.0.0.1:1"},
        ]
        answers = [
            flow_message(kind, flow, era, position=[3, 0], reason="r")
            for kind in ("opened", "refused", "closed", "done", "ack", "parked", "bye", "pong")
        ]
        for said in (about, answers):
            said.append({"t": "several", "messages": said[:3]})
        handshake: list[Message] = [
            Parties("cache", "r1", "p1", "127.0.0.1:1").hello("0" * 32),
            {"t": "challenge", "nonce": "0" * 32, "proofs": ["0" * 64]},
            {"t": "proof", "proof": "0" * 64},
            {"t": "offer", "job": "job-1", "address": "127.0.0.1:1", "application": "cache", "subscriber": "r1"},
        ]
        self._batches = [rows for size in (1, 3, 50) for rows in make_batches(size)]
        self._from_publisher, self._from_subscriber, self._handshake = about, answers, handshake

    def from_publisher(self) -> bytes:
        """What a subscriber is told."""
        if self._random.random() < 0.5:
            rows = self._random.choice(self._batches)
            part = [0, 1, 1, rows.num_rows, int(rows["seq"][-1].as_py()), 0, -1]
            raw = pack(self._message({"t": "batch", "stream": "contacts", "parts": [part]}), rows)
        elif self._random.random() < 0.1:
            raw = pack_schema()
        else:
            raw = pack(self._message(self._random.choice(self._from_publisher)))
        return self._bytes(raw)

    def from_subscriber(self) -> bytes:
        """What a publisher is answered."""
        return self._bytes(pack(self._message(self._random.choice(self._from_subscriber))))

    def of_a_stranger(self) -> bytes:
        """What comes first."""
        said = self._message(self._random.choice(self._handshake))
        return self._bytes(self._random.choice((pack_first, pack))(said))

    def _message(self, message: Message) -> Message:
        """The message with a few of its values changed, now and then."""
        message = json.loads(json.dumps(message))
        while message and self._random.random() < 0.5:
            key = self._random.choice(list(message))
            if self._random.random() < 0.2:
                del message[key]
            elif isinstance(message[key], list) and message[key] and self._random.random() < 0.7:
                inner = message[key]
                while isinstance(inner[0], list) and inner[0]:
                    inner = inner[0]
                inner[self._random.randrange(len(inner))] = self._odd()
            else:
                message[key] = self._odd() if self._random.random() < 0.9 else dict(message)
        message.setdefault("t", "batch")
        return message

    def _odd(self) -> Any:
        return copy.deepcopy(self._random.choice(ODD))

    def _bytes(self, raw: bytes) -> bytes:
        """The bytes with a few of them changed, cut or said twice, now and then."""
        data = bytearray(raw)
        while data and self._random.random() < 0.6:
            at, kind = self._random.randrange(len(data)), self._random.random()
            if kind < 0.4:
                data[at] ^= 1 << self._random.randrange(8)
            elif kind < 0.7:
                word = struct.pack("<I", self._random.choice(INTERESTING))
                data[at : at + 4] = word
            elif kind < 0.8:
                del data[at : at + self._random.randrange(1, 64)]
            elif kind < 0.9:
                data += b"".join(_field(self._random.choice((1, 2, 3, 4, 1000)), bytes(data[at : at + 64])))
            else:
                data[at:at] = data[: self._random.randrange(64)]
        return bytes(data)


def make_batches(size: int) -> list[pa.RecordBatch]:
    """Rows of ours."""
    rows = make_updates(size)
    columns = {name: rows[name] if name in rows.column_names else pa.nulls(size) for name in SCHEMA.names}
    columns["shard"], columns["seq"] = pa.array([0] * size), pa.array(range(size))
    columns["index"], columns["range"] = pa.array([0] * size), pa.array([1] * size)
    batches: list[pa.RecordBatch] = pa.table(columns).cast(SCHEMA).combine_chunks().to_batches()
    return batches
