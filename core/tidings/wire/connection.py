"""Delivery: what publishers and subscribers say to each other, over Arrow Flight.

A subscriber runs a Flight server. A publisher opens one exchange with each subscriber and multiplexes flows on it. Each
message is JSON in the metadata of a Flight message; a batch carries its rows beside it. Every message about a flow
names the owner's epoch, and the turn: how often the owner has opened the flow. A subscriber refuses a message that is
not of the flow's newest epoch and turn, and a publisher leaves answers to an earlier opening alone.

| from the publisher | |
| --- | --- |
| `open` | the flow begins, after this position; answered by `opened` or `refused` |
| `batch` | rows, of several shards one after the other; `parts` says which, how many, and up to which position |
| `token` | answered by `ack` once all before it is processed |
| `loss` | the log does not hold these positions any more |
| `skipped` | so many updates were too old for a realtime application |
| `close` | the flow ends here; answered by `closed` |
| `ping` | answered by `pong`, by a subscriber that is there |

| from the subscriber | |
| --- | --- |
| `opened`, `refused`, `closed` | the answers to `open` and `close` |
| `done` | all up to this position is processed: there is room for more |
| `ack` | the answer to `token` |
| `parked` | the handler failed again and again |
| `pong` | the answer to `ping` |
| `bye` | the subscriber leaves: end the exchange |
"""

from __future__ import annotations

import json
import logging
import queue
import re
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from tidings.errors import InvalidOption
from tidings.updates import SCHEMA

PROTOCOL = 1
MAX_METADATA_BYTES = 2**20
MAX_MESSAGE_BYTES = 64 * 2**20

Message = dict[str, Any]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Security:
    """How publishers and subscribers know each other: a shared token, and TLS.

    A publisher shows `token`, and a subscriber lets in who shows it, or one of those `accepted` beside it while a new
    token is rolled out. A subscriber has `certificate` and `key` (PEM files); a publisher has `authority`, the
    certificate that signed them.
    """

    token: str | None = None
    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None
    accepted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidOption("TLS needs both a certificate and its key")
        for path in (self.certificate, self.key, self.authority):
            if path is not None and not Path(path).is_file():
                raise InvalidOption(f"there is no file {path}, which TLS needs")
        if self.certificate is not None:
            try:
                # A key that is encrypted is refused, and its password not asked for.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, password="")
            except (ssl.SSLError, OSError) as error:
                reason = getattr(error, "reason", None) or error
                pair = f"{str(self.certificate)!r} and {str(self.key)!r}"
                raise InvalidOption(f"{pair} are no certificate in PEM with its key: {reason}") from None

    @property
    def tokens(self) -> tuple[str, ...]:
        """All tokens that let a publisher in; none if everybody is."""
        return (self.token, *self.accepted) if self.token else self.accepted

    def __repr__(self) -> str:
        return f"Security(token={'…' if self.token else None}, certificate={self.certificate})"


OPEN = Security()


def encode(message: Message) -> pa.Buffer:
    """A message as it travels."""
    return pa.py_buffer(json.dumps(message).encode())


def decode(metadata: pa.Buffer | None) -> Message:
    """The message that a peer sent; ValueError if it is none."""
    if metadata is None or metadata.size > MAX_METADATA_BYTES:
        raise ValueError("a message without metadata, or with too much of it")
    message = json.loads(metadata.to_pybytes())
    if not isinstance(message, dict) or not isinstance(message.get("t"), str):
        raise ValueError("a message that is no object, or has no type")
    return message


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
        self._heard = self._pinged = time.monotonic()
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

    def beat(self, patience: float) -> None:
        """Ask for a sign of life if none has come for a while; break off if none came for three times `patience`.

        A handler may take its time: it is not the handler that answers.
        """
        now = time.monotonic()
        if self._reader is not None and now - self._heard > 3 * patience:
            self._break_off(f"it has not answered for {now - self._heard:.0f} s")
        elif now - max(self._heard, self._pinged) > patience / 2:
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
        self._heard, self._reader = time.monotonic(), reader
        listener = threading.Thread(
            target=self._listen, args=(reader,), name=f"tidings-hear-{self.subscriber}", daemon=True
        )
        listener.start()
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
            listener.join(timeout=5)

    def _listen(self, reader: Any) -> None:
        try:
            while (message := decode(reader.read_chunk().app_metadata))["t"] != "bye":
                self._heard = time.monotonic()
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
    return found.expand(reason)[:500]
