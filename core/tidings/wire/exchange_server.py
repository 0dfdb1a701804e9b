"""The server of a publisher: subscribers come to it, prove who they are, and are sent their flows.

Nothing of a peer's is kept, and nobody hears of it, before it has proved itself; until then there is little time, and
room for few. gRPC refuses what is larger than an answer can be, before it is in memory.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import grpc

from tidings.errors import InvalidOption
from tidings.metrics import parse_address
from tidings.texts import printable
from tidings.wire.channel import NO_COMPRESSION, is_address
from tidings.wire.connection import Connection
from tidings.wire.flight_data import METHOD, pack, pack_schema, unpack, unpack_first
from tidings.wire.handshake import HandshakeRefused, Parties, challenge, new_nonce, parties_of, verify
from tidings.wire.protocol import MAX_ANSWER_BYTES, Message
from tidings.wire.security import Security
from tidings.wire.strangers import HANDSHAKE_S, MAX_STRANGERS, MAX_STRANGERS_OF_HOST, Strangers

MAX_EXCHANGES = 2000
MAX_EXCHANGES_OF_APPLICATION = 500
TELLING_S = 10.0  # between two lines in the log about peers that are refused
EVERYWHERE = ("0.0.0.0", "::")
HEARTBEAT_CHECK_S = 0.5  # between two looks at who has been silent
CLOSING_S = 2.0  # for subscribers to take what is on its way to them

logger = logging.getLogger(__name__)
T = TypeVar("T")


class ExchangeServer:
    """Serves the exchanges of one publisher, or of a task that sends for one, from `start` on.

    `listen` is where; `advertise` is the address that subscribers know, if it is another. `keys` tells those of an
    application that are good. `patience_s` is told to subscribers: a sign of life comes at least that often.
    """

    def __init__(
        self,
        name: str,
        listen: str,
        security: Security,
        keys: Callable[[str], Sequence[str]],
        *,
        advertise: str | None = None,
        patience_s: float,
    ) -> None:
        self.name = name
        self._security = security
        self._keys = keys
        self._patience_s = patience_s
        self._on_message: Callable[[Connection, Message], None]
        self._on_broken: Callable[[Connection, str], None]
        self._on_offer: Callable[[Message], None] | None = None
        self._lock = threading.Lock()
        self._connections: dict[tuple[str, str], Connection] = {}
        self._strangers = Strangers()
        self._closed = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="tidings-heartbeats", daemon=True)
        self._refused, self._told = 0, -TELLING_S
        self.refused_peers = 0
        """How many peers were sent away so far."""
        host, port = parse_address(listen)
        if advertise is None and host in EVERYWHERE:
            raise InvalidOption(f"nobody can connect to {host}: say by --advertise which address others are told")
        if advertise is not None and not is_address(advertise):
            raise InvalidOption(f"{advertise!r} is no address that others can connect to: write host:port")
        self._server = grpc.server(
            _Threads(),
            handlers=[_Handler(self._exchange)],
            maximum_concurrent_rpcs=MAX_EXCHANGES + MAX_STRANGERS,
            options=[
                ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", MAX_STRANGERS_OF_HOST),
                ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
                ("grpc.max_connection_idle_ms", int(HANDSHAKE_S * 1000)),
                ("grpc.so_reuseport", 0),
                NO_COMPRESSION,
            ],
        )
        place = f"[{host}]" if ":" in host else host
        bound = self._bind(host, port)
        self.address = advertise or f"{place}:{bound}"

    def start(
        self,
        on_message: Callable[[Connection, Message], None],
        on_broken: Callable[[Connection, str], None],
        on_offer: Callable[[Message], None] | None = None,
    ) -> None:
        """Let subscribers come; they are told of what they say and of their end. `on_offer` hears what tasks say."""
        self._on_message, self._on_broken, self._on_offer = on_message, on_broken, on_offer
        self._server.start()
        self._heart.start()

    def _bind(self, host: str, port: int) -> int:
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if reason := _why_not(host, port):
            raise InvalidOption(f"cannot listen on {place}: {reason}")
        with contextlib.suppress(RuntimeError):
            if self._security.certificate and self._security.key:
                pair = (self._security.key.read_bytes(), self._security.certificate.read_bytes())
                authority = self._security.authority and self._security.authority.read_bytes()
                return int(
                    self._server.add_secure_port(
                        place, grpc.ssl_server_credentials([pair], authority or None, bool(authority))
                    )
                )
            return int(self._server.add_insecure_port(place))
        raise InvalidOption(f"cannot listen on {place}")

    def connection(self, key: tuple[str, str]) -> Connection:
        """The connection with this subscriber, or one that waits for it."""
        with self._lock:
            known = self._connections.get(key)
            if known is None or known.broken:
                known = self._connections[key] = Connection(key, self._on_message, self._on_end)
            return known

    def connections(self) -> list[Connection]:
        """All of them."""
        with self._lock:
            return list(self._connections.values())

    def disconnect(self) -> None:
        """End all connections: what is said on one that ends is not heard."""
        for connection in self.connections():
            connection.close()

    def close(self) -> None:
        """Send what is queued, and end."""
        self._closed.set()
        self.disconnect()
        self._server.stop(CLOSING_S).wait()

    def _beat(self) -> None:
        """Look after all exchanges, whatever else there is to do."""
        while not self._closed.wait(min(HEARTBEAT_CHECK_S, self._patience_s / 10)):
            for connection in self.connections():
                try:
                    connection.heartbeat(self._patience_s)
                except Exception:  # the others go on
                    logger.exception("subscriber %s", connection.subscriber)

    def _on_end(self, connection: Connection, reason: str) -> None:
        with self._lock:
            replaced = self._connections.get(connection.key) is not connection
            if not replaced:
                del self._connections[connection.key]
        self._on_broken(connection, "closed" if replaced else reason)

    # Who comes

    def _exchange(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """One peer, until it goes."""
        peer = context.peer()
        try:
            connection = yield from self._known(requests, context)
        except NoRoom as error:
            self._refuse(peer, context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except HandshakeRefused as error:
            self._refuse(peer, context, grpc.StatusCode.UNAUTHENTICATED, str(error))
        except ValueError as error:
            self._refuse(peer, context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except grpc.RpcError:
            logger.debug("a peer went before it had said who it is")
        except Exception:  # of which gRPC would tell the peer
            logger.exception("a peer at %s", printable(peer))
            self._refuse(peer, context, grpc.StatusCode.INTERNAL, "an internal error")
        else:
            if connection is not None:
                yield pack({"t": "welcome", "patience": self._patience_s})
                yield pack_schema()
                yield from connection.serve()

    def _known(self, requests: Iterator[bytes], context: Any) -> Generator[bytes, None, Connection | None]:
        """Find out who a peer is, in time; returns its connection, or None if there is nothing to be said to it."""
        with self._stranger(context):
            hello = unpack_first(_next(requests))
            if hello["t"] == "offer" and self._on_offer is not None:
                self._on_offer(hello)
                return None
            parties, asked = parties_of(hello)
            if parties.publisher != self.name or parties.address != self.address:
                raise HandshakeRefused(f"this is {self.name} at {self.address}, not who was asked for")
            keys, nonces = self._keys(parties.application), (asked, new_nonce())
            yield pack(challenge(parties, keys, nonces))
            verify(parties, keys, nonces, unpack(_next(requests)).message)
        return self._attach(parties, requests, context.cancel)

    @contextlib.contextmanager
    def _stranger(self, context: Any) -> Iterator[None]:
        """Bear with a peer that nobody knows, for a while."""
        host = context.peer().rpartition(":")[0]
        if not self._strangers.enter(context, host, context.cancel):
            raise NoRoom("too many peers have not said who they are; try again later")
        try:
            yield
        finally:
            self._strangers.leave(context, host)

    def _refuse(self, peer: str, context: Any, code: Any, reason: str) -> None:
        """Send a peer away, with a word; operators are told of some, so that a crowd does not fill the disk."""
        with self._lock:
            self._refused += 1
            self.refused_peers += 1
            now = time.monotonic()
            due = now - self._told > TELLING_S
            refused, self._refused, self._told = (self._refused, 0, now) if due else (0, self._refused, self._told)
        if refused:
            others = f" (and {refused - 1} others since the last that was told)" if refused > 1 else ""
            logger.warning("a peer at %s is refused: %s%s", printable(peer), printable(reason), others)
        context.set_code(code)
        context.set_details(printable(reason))

    def _attach(self, parties: Parties, requests: Iterator[bytes], cancel: Callable[[], object]) -> Connection:
        """The connection that a subscriber has from now on; one that it had before is over."""
        key = parties.application, parties.subscriber
        others = [one for one in self.connections() if one.key[0] == key[0] and one.key != key and not one.waits]
        if len(others) >= MAX_EXCHANGES_OF_APPLICATION:
            raise HandshakeRefused(f"{len(others)} subscribers of application {key[0]!r} are here already: no more fit")
        while not (connection := self.connection(key)).attach(requests, cancel, parties.protocol):
            with self._lock:
                if self._connections.get(key) is connection:
                    del self._connections[key]
            connection.break_off("it has connected anew")
        return connection


class NoRoom(HandshakeRefused):
    """A peer is sent away for the moment, whoever it is."""


class _Threads(Executor):
    """A thread for each exchange, which lasts as long; none of them keeps the process alive."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run it."""
        future: Future[T] = Future()
        threading.Thread(
            target=lambda: future.set_result(fn(*args, **kwargs)), name="tidings-send", daemon=True
        ).start()
        return future


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no hints
    """The one method that there is."""

    def __init__(self, exchange: Callable[[Iterator[bytes], Any], Iterator[bytes]]) -> None:
        self._method = grpc.stream_stream_rpc_method_handler(exchange)

    def service(self, handler_call_details: Any) -> Any:
        """How a method is served, if it is."""
        return self._method if handler_call_details.method == METHOD else None


def _next(requests: Iterator[bytes]) -> bytes:
    raw = next(requests, None)
    if raw is None:
        raise ValueError("a peer that does not say who it is")
    return raw


def _why_not(host: str, port: int) -> str | None:
    """Why one cannot listen there, which gRPC does not tell."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None
