"""A publisher's side of the wire, by hand: subscribers come to it, and it says what a test wants said."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pyarrow as pa

from tidings.coordination.zookeeper import Coordination
from tidings.flows import Flow
from tidings.positions import Position
from tidings.testing import eventually
from tidings.wire.bundles import messages_of
from tidings.wire.flight_data import METHOD, pack, pack_schema, unpack, unpack_first
from tidings.wire.handshake import challenge, new_nonce, parties_of
from tidings.wire.protocol import Era, Message, era_of, flow_message, pair

STREAM = "contacts"
NAME = "by-hand"


class Owner:
    """One who sends flows of `STREAM` to the first subscriber of an application, and keeps what it answers.

    `keys` are those by which it proves itself; `schema` is what it says of its rows; `challenged` makes another
    challenge of that which it would give.
    """

    def __init__(
        self,
        application: str,
        *,
        keys: Sequence[str] = (),
        schema: bytes | None = None,
        challenged: Callable[[Message], bytes] = pack,
    ) -> None:
        self.application = application
        self.answers: list[Message] = []
        self.exchanges = 0
        self._keys = keys
        self._schema = schema or pack_schema()
        self._challenged = challenged
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._there = threading.Event()
        handler = grpc.method_handlers_generic_handler(
            METHOD.split("/")[1], {METHOD.split("/")[2]: grpc.stream_stream_rpc_method_handler(self._exchange)}
        )
        self.server = grpc.server(ThreadPoolExecutor(8), handlers=[handler], options=[("grpc.so_reuseport", 0)])
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def record(self, address: str | None = None) -> Message:
        """What ZooKeeper is told of it: it reads no stream, so that nobody leaves a flow to it."""
        return {"address": address or self.address, "applications": [self.application], "streams": [], "draining": True}

    def flow(self, shard: int) -> Flow:
        return Flow(self.application, STREAM, shard)

    def say(self, kind: str, era: Era, shard: int = 0, **more: Any) -> None:
        self.write(pack(flow_message(kind, self.flow(shard), era, **more)))

    def write(self, raw: bytes) -> None:
        """Say anything, once there is somebody to hear it."""
        assert self._there.wait(10)
        self._outgoing.put(raw)

    def send(self, era: Era, rows: pa.Table, shard: int = 0) -> Position:
        """Rows of one shard; returns where the flow stands once they are processed."""
        upto = Position(rows["seq"][-1].as_py())
        part = [shard, *era, len(rows), *pair(upto), None]
        batch = rows.combine_chunks().to_batches()[0]
        self.write(pack({"t": "batch", "stream": STREAM, "parts": [part]}, batch))
        return upto

    def open(self, era: Era, shard: int = 0) -> Message:
        """The answer to an opening."""
        self.say("open", era, shard, after=[-1, 0])
        return self.heard(("opened", "refused"), era, shard)

    def heard(self, kinds: Sequence[str], era: Era, shard: int = 0) -> Message:
        """The first answer of one of these kinds, once it has come; it is not heard a second time."""
        found = eventually(lambda: [one for one in self.answers if _is_about(one, kinds, era, shard)])[0]
        self.answers.remove(found)
        return found

    def hang_up(self) -> None:
        """End the exchange that there is."""
        self._outgoing.put(None)

    def fault(self) -> str:
        """Why the subscriber has ended its exchange with this one; it is not told a second time."""
        found = eventually(lambda: [one for one in self.answers if one["t"] == "bye"])[0]
        self.answers.remove(found)
        return str(found["reason"])

    def _exchange(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        parties, asked = parties_of(unpack_first(next(requests)))
        yield self._challenged(challenge(parties, self._keys, (asked, new_nonce())))
        self.answers.append(unpack(next(requests)).message)
        if self.answers[-1]["t"] == "bye":
            return
        self.answers.pop()
        yield pack({"t": "welcome", "patience": 30.0})
        yield self._schema
        outgoing = self._outgoing = queue.SimpleQueue()
        threading.Thread(target=self._receive, args=(requests, outgoing), daemon=True).start()
        self.exchanges += 1
        self._there.set()
        while (raw := outgoing.get()) is not None:
            yield raw
        if self._outgoing is outgoing:  # nobody else has come meanwhile
            self._there.clear()

    def _receive(self, requests: Iterator[bytes], outgoing: queue.SimpleQueue[bytes | None]) -> None:
        with contextlib.suppress(grpc.RpcError):
            for raw in requests:
                self.answers += messages_of(unpack(raw).message)
        outgoing.put(None)


def _is_about(message: Message, kinds: Sequence[str], era: Era, shard: int) -> bool:
    return message["t"] in kinds and message.get("shard") == shard and era_of(message) == era


@contextlib.contextmanager
def owning(coordination: Coordination, application: str, **options: Any) -> Iterator[Owner]:
    """An owner whom subscribers of an application find."""
    owner = Owner(application, **options)
    coordination.create(owner.record(), "publishers", NAME, ephemeral=True)
    yield owner
    coordination.delete("publishers", NAME)
    owner.server.stop(0)
