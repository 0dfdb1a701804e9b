"""A publisher's connection with one subscriber: an exchange over Arrow Flight, by two threads."""

from __future__ import annotations

import json
import logging
import queue
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import flight

from tidings.texts import printable
from tidings.updates import SCHEMA
from tidings.wire.protocol import MAX_METADATA_BYTES, MAX_REASON_CHARACTERS, Message, decode, encode
from tidings.wire.security import Security

logger = logging.getLogger(__name__)


class Connection:
    """A publisher's exchange with one subscriber: sends in order, hands on what comes back, tells when it breaks.

    `key` is the subscriber's application and its id.
    """

    def __init__(
        self,
        key: tuple[str, str],
        address: str,
        hello: Message,
        security: Security,
        on_message: Callable[[Connection, Message], None],
        on_broken: Callable[[Connection, str], None],
    ) -> None:
        self.key = key
        self.subscriber = "/".join(key)
        self.address = address
        self._hello = hello
        self._security = security
        self._on_message = on_message
        self._on_broken = on_broken
        self._outgoing: queue.SimpleQueue[tuple[Message, pa.RecordBatch | None] | None] = queue.SimpleQueue()
        self._broken = threading.Event()
        self.fault = ""
        """Why it has ended, if not because one of the two wanted it."""
        self._received = self._pinged = time.monotonic()
        self._reader: Any = None
        self._thread = threading.Thread(target=self._run, name=f"tidings-send-{self.subscriber}", daemon=True)
        self._thread.start()

    @property
    def broken(self) -> bool:
        """Whether it has ended; `on_broken` is called after that."""
        return self._broken.is_set()

    def send(self, message: Message, rows: pa.RecordBatch | None = None) -> None:
        """Queue a message; what is queued when the connection breaks is gone."""
        self._outgoing.put((message, rows))

    def close(self) -> None:
        """Send what is queued, and end."""
        self._outgoing.put(None)

    def heartbeat(self, patience: float) -> None:
        """Ask for a sign of life if none has come for a while; break off if none came for three times `patience`.

        A handler may take its time: it is not the handler that answers.
        """
        now = time.monotonic()
        if self._reader is not None and now - self._received > 3 * patience:
            self._break_off(f"it has not answered for {now - self._received:.0f} s")
        elif now - max(self._received, self._pinged) > patience / 2:
            self._pinged = now
            self.send({"t": "ping"})

    def _run(self) -> None:
        scheme = "grpc+tls" if self._security.authority else "grpc"
        # What a subscriber says is short; more than that is not read into memory to find out.
        options: dict[str, Any] = {"generic_options": [("grpc.max_receive_message_length", 2 * MAX_METADATA_BYTES)]}
        if self._security.authority:
            options["tls_root_certs"] = self._security.authority.read_bytes()
        try:
            with flight.connect(f"{scheme}://{self.address}", **options) as client:
                self._exchange(client)
        except (pa.ArrowException, OSError, ValueError) as error:
            self.fault = self.fault or explain(error)
        self._broken.set()
        self._on_broken(self, self.fault or "closed")

    def _exchange(self, client: flight.FlightClient) -> None:
        headers = [(b"authorization", f"Bearer {self._security.token}".encode())] if self._security.token else []
        descriptor = flight.FlightDescriptor.for_command(json.dumps(self._hello).encode())
        writer, reader = client.do_exchange(descriptor, flight.FlightCallOptions(headers=headers))
        self._received, self._reader = time.monotonic(), reader
        receiver = threading.Thread(
            target=self._receive, args=(reader,), name=f"tidings-receive-{self.subscriber}", daemon=True
        )
        receiver.start()
        with writer:
            writer.begin(SCHEMA)
            while (item := self._outgoing.get()) is not None:
                message, rows = item
                if self._broken.is_set():
                    raise OSError("the subscriber ended the exchange")
                if rows is None:
                    writer.write_metadata(encode(message))
                else:
                    writer.write_with_metadata(rows, encode(message))
            writer.done_writing()
            receiver.join(timeout=5)

    def _receive(self, reader: Any) -> None:
        try:
            while (message := decode(reader.read_chunk().app_metadata))["t"] != "bye":
                self._received = time.monotonic()
                if message["t"] != "pong":
                    self._on_message(self, message)
        except StopIteration:
            pass
        except Exception as error:  # noqa: BLE001 - whatever a peer can bring about must not leave us deaf
            self._break_off(explain(error))
        self._broken.set()
        self._outgoing.put(None)

    def _break_off(self, reason: str) -> None:
        if not self.fault:
            self.fault = reason
            logger.warning("subscriber %s: %s", self.subscriber, reason)
        self._reader.cancel()  # the sender may be waiting for a peer that reads nothing


_REASONS = (
    (re.compile(r"certificate verify failed: ([^.]+)"), r"its certificate is not signed by whom we trust (\1)"),
    (re.compile(r"Peer name (\S+) is not in peer certificate"), r"its certificate is not for \1"),
    (re.compile(r"wrong version number"), "it does not speak TLS, and we do"),
    (re.compile(r"failed to connect.*: Socket closed"), "it hung up at once; perhaps it speaks TLS, and we do not"),
    (re.compile(r"Connection refused"), "nothing listens at its address"),
    (re.compile(r"(?:with message: )?(.*?)(?:\. Detail: .*|\. gRPC client debug.*)?"), r"\1"),
)


def explain(error: Exception) -> str:
    """Why an exchange has failed, in a sentence for operators."""
    if isinstance(error, flight.FlightUnauthenticatedError):
        return "it does not accept our token: both sides need the same one"
    first = (str(error).splitlines() or [type(error).__name__])[0]
    pattern, reason = next(pair for pair in _REASONS if pair[0].search(first))
    found = pattern.fullmatch(first) or pattern.search(first)
    assert found is not None  # the last one matches everything
    return printable(found.expand(reason)[:MAX_REASON_CHARACTERS])
