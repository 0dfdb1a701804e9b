"""Receiving: the Flight server that a subscriber runs, one exchange for each publisher."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import flight

from tidings.errors import InvalidOption
from tidings.updates import SCHEMA
from tidings.wire.bearers import Bearers
from tidings.wire.protocol import MAX_MESSAGE_BYTES, PROTOCOL, Message, decode, encode
from tidings.wire.security import Security

logger = logging.getLogger(__name__)

FAREWELL_S = 2.0  # for publishers to end their exchanges when they are asked to

Reply = Callable[[Message], bool]
"""Answers on the exchange on which something was said; False, and nothing is done, once that has ended."""


class ExchangeListener(Protocol):
    """Who is told what publishers say."""

    application: str

    def on_message(self, message: Message, rows: pa.RecordBatch | None, reply: Reply) -> None:
        """Take in one message; ValueError, KeyError or TypeError if it makes no sense."""

    def on_exchange_ended(self, reply: Reply) -> None:
        """The exchange of these answers has ended."""


class SubscriberServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no hints
    """Hears publishers, and hands on what they say."""

    def __init__(self, listener: ExchangeListener, address: str, security: Security) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise InvalidOption(f"{address!r} is no address to listen on: write host:port")
        scheme = "grpc+tls" if security.certificate else "grpc"
        options: dict[str, Any] = {}
        if security.certificate and security.key:
            options["tls_certificates"] = [(security.certificate.read_bytes(), security.key.read_bytes())]
        if security.tokens:
            options["middleware"] = {"token": _TokenFactory(security.tokens)}
        self._listener = listener
        self._replies: list[Reply] = []
        try:
            super().__init__(f"{scheme}://{host}:{port}", **options)
        except (pa.ArrowException, OSError) as error:
            raise InvalidOption(f"cannot listen on {address}: {str(error).splitlines()[0]}") from None

    def leave(self) -> None:
        """Ask publishers to end their exchanges, and stop; one that does not hear it is not waited for."""
        for reply in list(self._replies):
            reply({"t": "bye"})
        ending = threading.Thread(target=self.shutdown, name="tidings-shutdown", daemon=True)
        ending.start()
        ending.join(FAREWELL_S)
        if ending.is_alive():  # pyarrow would wait for the exchanges again when the process ends
            self._hang_up()
            ending.join(FAREWELL_S)

    def _hang_up(self) -> None:
        """Break the connections of publishers. Flight cannot end an exchange while it waits for the other side."""
        port = self.port
        for name in os.listdir("/dev/fd"):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
                listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.getsockname()[1] == port and not listens:
                    one.shutdown(socket.SHUT_RDWR)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """One publisher, until it goes."""
        try:
            hello = decode(pa.py_buffer(descriptor.command or b""))
        except ValueError:
            hello = {}
        if hello.get("protocol") != PROTOCOL or hello.get("application") != self._listener.application:
            raise flight.FlightServerError("this is another application's subscriber, or another protocol's")
        lock = threading.Lock()
        over = False
        writer.begin(pa.schema([]))

        def reply(message: Message) -> bool:
            try:
                with lock:
                    if not over:
                        writer.write_metadata(encode(message))
                    return not over
            except (pa.ArrowException, OSError):
                logger.debug("the publisher is gone")
                return False

        self._replies.append(reply)
        try:
            self._receive(reader, reply)
        finally:
            # A writer must not be touched once its exchange has ended: that is memory which is free by then.
            with lock:
                over = True
            self._replies.remove(reply)
            self._listener.on_exchange_ended(reply)

    def _receive(self, reader: Any, reply: Reply) -> None:
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            except pa.ArrowException as error:
                logger.debug("an exchange broke off: %s", error)
                raise flight.FlightServerError("an exchange that cannot be read") from None
            try:
                message = decode(chunk.app_metadata)
                if message["t"] == "ping":
                    reply({"t": "pong"})
                    continue
                if chunk.data is not None:
                    _check_rows(chunk.data)
                self._listener.on_message(message, chunk.data, reply)
            except (ValueError, KeyError, TypeError) as error:
                raise flight.FlightServerError(f"a message that makes no sense: {error}") from None
            except Exception:  # of which the peer would be sent the stack
                logger.exception("a publisher's message could not be taken in")
                raise flight.FlightServerError("a message that could not be taken in") from None


def _check_rows(rows: pa.RecordBatch) -> None:
    """ValueError unless these are rows of ours that hold what they say: whoever looks at others reads wild memory."""
    if not rows.schema.equals(SCHEMA):
        raise ValueError("rows of another schema")
    if rows.get_total_buffer_size() > MAX_MESSAGE_BYTES:
        raise ValueError("rows that are too large")
    try:
        rows.validate(full=True)
    except pa.ArrowException:
        raise ValueError("rows that are broken") from None


class _TokenFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no hints
    """Lets in only who knows a token."""

    def __init__(self, tokens: tuple[str, ...]) -> None:
        self._bearers = Bearers(tokens)

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        """Refuse a call that does not carry a token which is good."""
        if not self._bearers.admit(headers.get("authorization", [None])[0]):
            raise flight.FlightUnauthenticatedError("a token is needed, and this is not it")
