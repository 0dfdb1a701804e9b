"""A subscriber that speaks the protocol and lies: it takes flows in good order, then says what it was made to say."""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from tidings.cluster import Cluster
from tidings.coordination.zookeeper import Coordination
from tidings.wire.bundles import messages_of
from tidings.wire.channel import open_channel
from tidings.wire.flight_data import METHOD, _field, pack, pack_first, unpack
from tidings.wire.handshake import Parties, answer, new_nonce
from tidings.wire.security import OPEN

Message = dict[str, Any]
Lie = Callable[[Message], list[bytes]]


def about(message: Message, kind: str, **more: Any) -> bytes:
    """An answer about the flow of a message."""
    same = {key: message[key] for key in ("stream", "shard", "epoch", "turn")}
    return metadata(json.dumps({"t": kind, **same, **more}).encode())


def metadata(said: bytes) -> bytes:
    """Anything, in the place of a message."""
    return b"".join(_field(3, said))


LIES: dict[str, Lie] = {
    "acknowledges what it was not sent": lambda open: [about(open, "ack", position=[10_000, 0])],
    "acknowledges what it was not asked": lambda open: [about(open, "ack", position=[0, 0])],
    "says that it did what it was not sent": lambda open: [about(open, "done", position=[10_000, 0])],
    "gives a position that is none": lambda open: [about(open, "done", position={"seq": "seven"})],
    "gives a position that is not a number": lambda open: [about(open, "ack", position=[float("nan"), 0])],
    "sends what is not JSON": lambda open: [metadata(b"\xff\xfe\x00 garbage")],
    "sends JSON that is no message": lambda open: [metadata(b"[1, 2, 3]")],
    "sends a message without a flow": lambda open: [metadata(b'{"t": "ack"}')],
    "speaks of a stream that is no name": lambda open: [metadata(b'{"t": "ack", "stream": ["contacts"], "shard": 0}')],
    "nests deeper than a parser goes": lambda open: [metadata(b'{"t": ' + b"[" * 10_000 + b"]" * 10_000 + b"}")],
    "sends what is no message of Flight's": lambda open: [b"\xff" * 100],
    "sends rows": lambda open: [about(open, "done", position=[0, 0]) + b"".join(_field(1000, b"rows"))],
    "sends more than fits": lambda open: [metadata(json.dumps({"t": "x" * 5_000_000}).encode())],
    "sends far more than fits": lambda open: [metadata(b" " * 100_000_000)],
}


class Liar:
    """Opens the flows that it is offered; then tells the next of its lies, one for each exchange."""

    def __init__(self, own: Cluster, application: str, id: str, lies: list[Lie]) -> None:
        self._own = own
        self._names = (application, id)
        self._lies = itertools.cycle(lies)
        self._ended = threading.Event()
        self.told = 0
        self._thread = threading.Thread(target=self._run, name="liar", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.01):
            publishers = self._own.coordination.children("publishers")
            records = {name: self._own.coordination.read("publishers", name) for name in publishers}
            for name, record in records.items():
                if record is not None and self._names[0] in record["applications"]:
                    self._lie(name, record["address"])

    def _lie(self, publisher: str, address: str) -> None:
        outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        lie, nonce, parties = next(self._lies), new_nonce(), Parties(*self._names, publisher, address)
        with open_channel(address, OPEN) as channel, contextlib.suppress(grpc.RpcError, StopIteration):
            call = channel.stream_stream(METHOD)(iter(outgoing.get, None))
            alarm = threading.Timer(5, call.cancel)
            alarm.start()
            outgoing.put(pack_first(parties.hello(nonce)))
            outgoing.put(pack(answer(parties, [], nonce, unpack(next(call)).message)))
            for raw in call:
                for message in [one for one in messages_of(unpack(raw).message) if one["t"] == "open"]:
                    outgoing.put(about(message, "opened"))
                    for said in lie(message):
                        outgoing.put(said)
                    self.told += 1
                if self._ended.is_set():
                    call.cancel()
            alarm.cancel()
        outgoing.put(None)


@contextlib.contextmanager
def lying(address: str, application: str, id: str, lies: list[Lie]) -> Iterator[Liar]:
    """A liar, registered as a subscriber of an application."""
    with Cluster(Coordination(address)) as own:
        record = {"capacity": 1.0, "pid": 0}
        own.coordination.create(record, "applications", application, "subscribers", id, ephemeral=True)
        liar = Liar(own, application, id, lies)
        yield liar
        liar.close()
