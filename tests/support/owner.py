"""A publisher's side of the wire, by hand: opens flows with a subscriber and says what a test wants said."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from tidings.flows import Flow
from tidings.positions import Position
from tidings.testing import eventually
from tidings.wire.connection import Connection
from tidings.wire.protocol import PROTOCOL, Era, Message, era_of, flow_message, pair
from tidings.wire.security import OPEN

STREAM = "contacts"


class Owner:
    """One who sends flows of `STREAM` to the subscriber at this address, and keeps what it answers."""

    def __init__(self, application: str, address: str, protocol: int = PROTOCOL) -> None:
        self.application = application
        self.answers: list[Message] = []
        self.broken = ""
        """Why the connection has ended."""
        hello = {"t": "hello", "protocol": protocol, "publisher": "by hand", "application": application}
        self.key = (application, "by hand")
        self.connection = Connection(self.key, address, hello, OPEN, self._on_message, self._on_broken)

    def flow(self, shard: int) -> Flow:
        return Flow(self.application, STREAM, shard)

    def say(self, kind: str, era: Era, shard: int = 0, **more: Any) -> None:
        self.connection.send(flow_message(kind, self.flow(shard), era, **more))

    def send(self, era: Era, rows: pa.Table, shard: int = 0) -> Position:
        """Rows of one shard; returns where the flow stands once they are processed."""
        upto = Position(rows["seq"][-1].as_py())
        part = [shard, *era, len(rows), *pair(upto), None]
        batch = rows.combine_chunks().to_batches()[0]
        self.connection.send({"t": "batch", "stream": STREAM, "parts": [part]}, batch)
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

    def _on_message(self, connection: Connection, message: Message) -> None:
        self.answers.append(message)

    def _on_broken(self, connection: Connection, reason: str) -> None:
        self.broken = reason


def _is_about(message: Message, kinds: Sequence[str], era: Era, shard: int) -> bool:
    return message["t"] in kinds and message["shard"] == shard and era_of(message) == era


@contextlib.contextmanager
def owning(application: str, address: str) -> Iterator[Owner]:
    owner = Owner(application, address)
    yield owner
    owner.connection.close()
