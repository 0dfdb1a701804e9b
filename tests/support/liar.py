"""A subscriber that speaks the protocol and lies: it takes flows in good order, then says what it was made to say."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

from tidings.cluster import Cluster
from tidings.coordination.zookeeper import Coordination

Message = dict[str, Any]
Lie = Callable[[Message], list[bytes]]


def about(message: Message, kind: str, **more: Any) -> bytes:
    """An answer about the flow of a message."""
    same = {key: message[key] for key in ("stream", "shard", "epoch", "turn")}
    return json.dumps({"t": kind, **same, **more}).encode()


LIES: dict[str, Lie] = {
    "acknowledges what it was not sent": lambda open: [about(open, "ack", position=[10_000, 0])],
    "acknowledges what it was not asked": lambda open: [about(open, "ack", position=[0, 0])],
    "says that it did what it was not sent": lambda open: [about(open, "done", position=[10_000, 0])],
    "gives a position that is none": lambda open: [about(open, "done", position={"seq": "seven"})],
    "gives a position that is not a number": lambda open: [about(open, "ack", position=[float("nan"), 0])],
    "sends what is not JSON": lambda open: [b"\xff\xfe\x00 garbage"],
    "sends JSON that is no message": lambda open: [b"[1, 2, 3]"],
    "sends a message without a flow": lambda open: [b'{"t": "ack"}'],
    "speaks of a stream that is no name": lambda open: [b'{"t": "ack", "stream": ["contacts"], "shard": 0}'],
    "nests deeper than a parser goes": lambda open: [b'{"t": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"],
    "sends more than fits": lambda open: [json.dumps({"t": "x" * 5_000_000}).encode()],
    "sends far more than fits": lambda open: [b" " * 100_000_000],
}


class Liar(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no hints
    """Opens the flows that it is offered; then tells the next of its lies, one for each exchange."""

    def __init__(self, lies: list[Lie]) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._lies = itertools.cycle(lies)
        self._lock = threading.Lock()
        self.told = 0

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        writer.begin(pa.schema([]))
        with self._lock:
            lie = next(self._lies)
        with contextlib.suppress(StopIteration, pa.ArrowException, OSError):
            while True:
                message = json.loads(reader.read_chunk().app_metadata.to_pybytes())
                if message["t"] == "open":
                    writer.write_metadata(pa.py_buffer(about(message, "opened")))
                    for said in lie(message):
                        writer.write_metadata(pa.py_buffer(said))
                    with self._lock:
                        self.told += 1


@contextlib.contextmanager
def lying(address: str, application: str, id: str, lies: list[Lie]) -> Iterator[Liar]:
    """A liar, registered as a subscriber of an application."""
    with Liar(lies) as server, Cluster(Coordination(address)) as own:
        record = {"address": f"127.0.0.1:{server.port}", "capacity": 1.0, "pid": 0}
        own.coordination.create(record, "applications", application, "subscribers", id, ephemeral=True)
        yield server
