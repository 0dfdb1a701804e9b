"""Fuzzing the wire: `python -m tests.fuzz.wire SEED SECONDS`, or `make fuzz MINUTES=60`.

A publisher's port and a subscriber's reading are given messages that are almost right. What they may do is to refuse
them: no crash, no error that nobody thought of, no row that cannot be looked at, and no memory that stays.
"""

from __future__ import annotations

import contextlib
import queue
import resource
import sys
import threading
import time
from typing import Any

import grpc
import pyarrow as pa

from tests.fuzz.mutations import Mutator
from tidings.identity.keys import application_key
from tidings.wire.bundles import messages_of
from tidings.wire.channel import open_channel
from tidings.wire.connection import Connection
from tidings.wire.exchange_server import ExchangeServer
from tidings.wire.flight_data import METHOD, pack, pack_first, unpack
from tidings.wire.handshake import HandshakeRefused, Parties, answer, new_nonce, parties_of, verify
from tidings.wire.protocol import Message, era_of, flow_of
from tidings.wire.security import OPEN, Security

SECRET = "the-secret-of-the-cluster"
REFUSALS = (ValueError, KeyError, TypeError, HandshakeRefused)
"""What those who read a peer's words are ready for."""
GROWTH_BYTES = 256 * 2**20
READ_PER_DIALLED = 200  # messages that are only read, for each that is sent through a socket


class Fuzz:
    """One run, from one seed."""

    def __init__(self, seed: int) -> None:
        self._mutator = Mutator(seed)
        self.read = self.dialled = self.taken = 0
        self._looked = queue.SimpleQueue[Message]()

    def run(self, seconds: float) -> None:
        """Go on for so long."""
        security = Security(secret=SECRET)
        server = ExchangeServer("p1", "127.0.0.1:0", security, security.keys, patience_s=10.0)
        server.start(self._on_message, lambda connection, reason: None)
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until:
                for _ in range(READ_PER_DIALLED):
                    self._read()
                self._dial(server, known=self.dialled % 2 == 0)
            self._still_serves(server)
        finally:
            server.close()

    def _read(self) -> None:
        """What a subscriber does with a message, and what a publisher does with a stranger's."""
        self.read += 1
        with contextlib.suppress(*REFUSALS):
            frame = unpack(self._mutator.from_publisher())
            if not frame.is_schema() and (rows := frame.rows()) is not None:
                rows.drop_columns(["time"]).to_pylist()  # reads every byte that they claim to have
                rows["time"].cast(pa.int64()).to_pylist()  # which Python may not have a date for
                self.taken += 1
            for message in messages_of(frame.message):
                flow_of("cache", message)
                era_of(message)
        with contextlib.suppress(*REFUSALS):
            parties, nonce = parties_of(unpack(self._mutator.of_a_stranger()).message)
            verify(parties, ["key"], (nonce, nonce), unpack(self._mutator.of_a_stranger()).message)
        with contextlib.suppress(*REFUSALS):
            said = unpack(self._mutator.of_a_stranger()).message
            answer(Parties("cache", "r1", "p1", "a:1"), ["key"], new_nonce(), said)

    def _dial(self, server: ExchangeServer, *, known: bool) -> None:
        """Say things to a publisher's port, as a stranger or as one who has proved itself."""
        self.dialled += 1
        outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        with open_channel(server.address, OPEN) as channel, contextlib.suppress(grpc.RpcError, StopIteration):
            call = channel.stream_stream(METHOD)(iter(outgoing.get, None))
            if known:
                self._introduce(server, call, outgoing)
            for _ in range(5):
                outgoing.put(self._mutator.from_subscriber() if known else self._mutator.of_a_stranger())
            outgoing.put(None)
            for _ in call:
                pass
        outgoing.put(None)

    @staticmethod
    def _introduce(server: ExchangeServer, call: Any, outgoing: queue.SimpleQueue[bytes | None]) -> None:
        parties, nonce = Parties("cache", "r1", server.name, server.address), new_nonce()
        outgoing.put(pack_first(parties.hello(nonce)))
        challenged = unpack(next(call)).message
        outgoing.put(pack(answer(parties, [application_key(SECRET, "cache")], nonce, challenged)))
        assert unpack(next(call)).message["t"] == "welcome"

    def _on_message(self, connection: Connection, message: Message) -> None:
        flow_of(connection.key[0], message)
        era_of(message)
        self._looked.put(message)

    def _still_serves(self, server: ExchangeServer) -> None:
        """An honest subscriber comes after all that, and is heard."""
        while not self._looked.empty():
            self._looked.get()
        outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        with open_channel(server.address, OPEN) as channel:
            call = channel.stream_stream(METHOD)(iter(outgoing.get, None))
            self._introduce(server, call, outgoing)
            outgoing.put(pack({"t": "done", "stream": "contacts", "shard": 0, "epoch": 1, "turn": 1}))
            assert self._looked.get(timeout=10)["t"] == "done"
            outgoing.put(None)
        assert not len(server._strangers), "everybody who came has gone"
        assert threading.active_count() < 50, "and nobody has left a thread behind"


def main(seed: int, seconds: float) -> None:
    Fuzz(seed).run(min(2.0, seconds / 4))  # what is loaded once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    fuzz = Fuzz(seed)
    fuzz.run(seconds)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    print(f"seed {seed}: {fuzz.read:,} read, {fuzz.taken:,} of them rows; {fuzz.dialled:,} exchanges; {grown:,} bytes")
    assert fuzz.taken > 0, "some are right by chance, or nothing was tried"
    assert grown < GROWTH_BYTES


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
