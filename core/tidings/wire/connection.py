"""A publisher's connection with one subscriber: what is to be said to it, until it comes and while it is there."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import grpc
import pyarrow as pa

from tidings.texts import printable
from tidings.wire.bundles import Outgoing, frames, messages_of
from tidings.wire.flight_data import unpack
from tidings.wire.protocol import MAX_REASON_CHARACTERS, Message, reason_of

MAX_QUEUED_BYTES = 256 * 2**20  # of rows that wait to be taken: beyond it no flow of the subscriber is served
PING_RATIO = 1.2  # of the patience, after which a peer that says nothing is asked for a sign of life


class Connection:
    """Sends to one subscriber in order, hands on what comes back, tells when it ends.

    It is there before the subscriber is: what is said meanwhile waits for the exchange that the subscriber opens, which
    is attached then. `key` is the subscriber's application and its id.
    """

    def __init__(
        self,
        key: tuple[str, str],
        on_message: Callable[[Connection, Message], None],
        on_broken: Callable[[Connection, str], None],
    ) -> None:
        self.key = key
        self.subscriber = "/".join(key)
        self._on_message = on_message
        self._on_broken = on_broken
        self._outgoing: Outgoing = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._cancel: Callable[[], object] | None = None
        self._protocol = 0
        self._ended = False
        self.fault = ""
        """Why it has ended, if not because one of the two wanted it."""
        self._received = self._pinged = self._taken = time.monotonic()
        self._queued_bytes = self._taken_bytes = 0  # each counted by one thread at a time

    @property
    def broken(self) -> bool:
        """Whether it has ended; `on_broken` is called after that."""
        return self._ended

    @property
    def waits(self) -> bool:
        """Whether the subscriber is still to come."""
        return self._cancel is None and not self._ended

    @property
    def full(self) -> bool:
        """Whether so much waits to be taken that nothing more should be sent, whatever the subscriber says it did."""
        return self._queued_bytes - self._taken_bytes >= MAX_QUEUED_BYTES

    def send(self, message: Message, rows: pa.RecordBatch | None = None) -> None:
        """Queue a message; what is queued when the connection ends is gone."""
        if rows is not None:
            with self._lock:
                if self._queued_bytes == self._taken_bytes:
                    self._taken = time.monotonic()  # there was nothing to take before
                self._queued_bytes += rows.nbytes
        self._outgoing.put((message, rows))

    def close(self) -> None:
        """Send what is queued, and end."""
        self._outgoing.put(None)
        if self.waits:
            self._end()

    def heartbeat(self, patience: float) -> None:
        """Ask for a sign of life if none has come for a while; break off if none came for three times `patience`.

        A handler may take its time: it is not the handler that answers.
        """
        now = time.monotonic()
        if self.waits:
            if now - self._received > patience:
                self.break_off(f"it has not connected for {now - self._received:.0f} s")
        elif now - self._received > 3 * patience:
            self.break_off(f"it has not answered for {now - self._received:.0f} s")
        elif now - self._taken > 3 * patience and self._queued_bytes > self._taken_bytes:
            self.break_off(f"it has taken nothing of what it is sent for {now - self._taken:.0f} s")
        elif now - max(self._received, self._pinged) > PING_RATIO * patience:
            self._pinged = now
            self.send({"t": "ping"})

    def break_off(self, reason: str) -> None:
        """End it without waiting for anything: the sender may wait for a peer that reads nothing."""
        with self._lock:
            self.fault = self.fault or reason
            cancel = self._cancel
        if cancel is not None:
            cancel()
        else:
            self._end()

    def attach(self, requests: Iterator[bytes], cancel: Callable[[], object], protocol: int) -> bool:
        """The subscriber has come, says `requests`, and `cancel` ends its exchange; False if it is too late for that.

        From now on what it says is heard, and so is its end.
        """
        with self._lock:
            if not self.waits:
                return False
            self._cancel, self._protocol = cancel, protocol
            self._received = self._taken = time.monotonic()
        name = f"tidings-receive-{self.subscriber}"
        threading.Thread(target=self._receive, args=(requests,), name=name, daemon=True).start()
        return True

    def serve(self) -> Iterator[bytes]:
        """All that is to be sent on the exchange."""
        for frame, size in frames(self._outgoing, self._protocol):
            if self._ended:
                return
            yield frame  # and comes back when the peer has room for more
            self._taken = time.monotonic()
            self._taken_bytes += size

    def _receive(self, requests: Iterator[bytes]) -> None:
        try:
            for raw in requests:
                frame = unpack(raw)
                if len(frame.header) or len(frame.body):
                    raise ValueError("a subscriber that sends rows")  # nobody looks at these
                self._received = time.monotonic()
                if not self._take_in(messages_of(frame.message)):
                    break
        except grpc.RpcError:  # of which gRPC says nothing more here
            self.fault = self.fault or "the connection broke"
        except (KeyError, TypeError):
            self.break_off("a message that makes no sense")
        except Exception as error:  # noqa: BLE001 - whatever a peer can bring about must not leave us deaf
            self.break_off(printable(str(error) or type(error).__name__)[:MAX_REASON_CHARACTERS])
        self._end()

    def _take_in(self, messages: Sequence[Message]) -> bool:
        """Hand on what the subscriber has said; False if it parts."""
        for message in messages:
            if message["t"] == "bye":
                reason = reason_of(message)
                self.fault = self.fault or (f"the subscriber says: {reason}" if reason else "")
                return False
            if message["t"] != "pong":
                self._on_message(self, message)
        return True

    def _end(self) -> None:
        with self._lock:
            ended, self._ended = self._ended, True
        self._outgoing.put(None)
        if not ended:
            self._on_broken(self, self.fault or "closed")
