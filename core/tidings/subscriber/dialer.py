"""Dialling out: the exchanges that a subscriber holds with publishers. It opens no port, and nobody connects to it."""

from __future__ import annotations

import contextlib
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import grpc
import pyarrow as pa

from tidings.texts import printable
from tidings.wire.channel import explain, is_address, open_channel
from tidings.wire.flight_data import METHOD, Frame, pack, pack_first, unpack
from tidings.wire.handshake import HandshakeRefused, Parties, answer, new_nonce
from tidings.wire.protocol import MAX_REASON_CHARACTERS, Message
from tidings.wire.security import Security

HANDSHAKE_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0  # before a publisher is tried again
MAX_PATIENCE_S = 3600.0
FAREWELL_S = 2.0  # for publishers to end their exchanges
MAX_FETCHES = 256  # at a time
MAX_PUBLISHERS = 256

logger = logging.getLogger(__name__)


class Reply:
    """Answers on the exchange on which something was said; False, and nothing is done, once that has ended.

    `parent` is the exchange that has named this one, if it is not with a publisher itself.
    """

    def __init__(self, parent: Reply | None = None) -> None:
        self.parent = parent
        self.outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._over = False

    def __call__(self, message: Message) -> bool:
        """Say it."""
        if not self._over:
            self.outgoing.put(pack(message))
        return not self._over

    def end(self) -> None:
        """Nothing more is said here."""
        self._over = True
        self.outgoing.put(None)


class ExchangeListener(Protocol):
    """Who is told what publishers say."""

    application: str
    id: str

    def on_message(self, message: Message, rows: pa.RecordBatch | None, reply: Reply) -> None:
        """Take in one message; ValueError, KeyError or TypeError if it makes no sense."""

    def on_exchange_ended(self, reply: Reply) -> None:
        """The exchange of these answers has ended."""


class Dialer:
    """Holds an exchange with each publisher that it is told of, and dials again when one ends."""

    def __init__(self, listener: ExchangeListener, security: Security) -> None:
        self._listener = listener
        self._security = security
        self._lock = threading.Lock()
        self._lines: dict[str, _PublisherLine] = {}
        self._fetches: set[_PublisherLine] = set()
        self._left = False

    def keep(self, publishers: Mapping[str, str]) -> None:
        """Speak with these publishers, at their addresses, and with no others."""
        with self._lock:
            if self._left:
                return
            gone = [name for name, line in self._lines.items() if publishers.get(name) != line.address]
            ended = [self._lines.pop(name) for name in gone]
            for name in sorted(publishers.keys() - self._lines.keys())[: MAX_PUBLISHERS - len(self._lines)]:
                self._lines[name] = self._line(name, publishers[name])
        for line in ended:
            line.end()

    def check(self) -> None:
        """Break off exchanges on which a publisher has fallen silent."""
        with self._lock:
            lines = [*self._lines.values(), *self._fetches]
        for line in lines:
            line.check()

    @property
    def troubles(self) -> dict[str, str]:
        """Why there is no exchange with a publisher, of those with whom there should be one."""
        with self._lock:
            return {name: line.trouble for name, line in self._lines.items() if line.trouble}

    def fetch(self, message: Message, parent: Reply) -> None:
        """Speak once with another process, which a publisher has named."""
        name, address = message["publisher"], message["address"]
        if not isinstance(name, str) or not is_address(address) or parent.parent is not None:
            raise ValueError("a fetch without a name or an address")
        with self._lock:
            if len(self._fetches) >= MAX_FETCHES or self._left:
                return  # the other side does not wait for ever
            self._fetches.add(self._line(name, address, parent))

    def leave(self) -> None:
        """End all exchanges; one that does not end is not waited for."""
        with self._lock:
            self._left = True
            lines = [*self._lines.values(), *self._fetches]
        for line in lines:
            line.end()
        deadline = time.monotonic() + FAREWELL_S
        for line in lines:
            line.join(max(0.0, deadline - time.monotonic()))
        for line in lines:
            line.cancel()

    def _line(self, publisher: str, address: str, parent: Reply | None = None) -> _PublisherLine:
        return _PublisherLine(self._listener, publisher, address, self._security, parent, self._forget)

    def _forget(self, line: _PublisherLine) -> None:
        with self._lock:
            self._fetches.discard(line)


class _PublisherLine:
    """One exchange after the other with one publisher, by a thread of its own; a fetch is a single one."""

    def __init__(
        self,
        listener: ExchangeListener,
        publisher: str,
        address: str,
        security: Security,
        parent: Reply | None,
        on_end: Callable[[_PublisherLine], None],
    ) -> None:
        self.address = address
        self._publisher = publisher
        self._listener = listener
        self._security = security
        self._parent = parent
        self._on_end = on_end
        self._ended = threading.Event()
        self._reply: Reply | None = None
        self._call: Any = None
        self._silence_s = HANDSHAKE_S
        self._heard = time.monotonic()
        self.trouble = ""
        """Why there is no exchange."""
        self._failures = 0  # to connect, one after the other
        self._parted = ""  # why we have ended an exchange ourselves
        self._thread = threading.Thread(target=self._run, name=f"tidings-exchange-{publisher}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Say what is still to be said, and end."""
        self._ended.set()
        if self._reply is not None:
            self._reply.end()

    def join(self, timeout: float) -> None:
        """Wait for the end."""
        self._thread.join(timeout)

    def cancel(self) -> None:
        """End now."""
        if self._call is not None:
            self._call.cancel()

    def check(self) -> None:
        """Break off if nothing has been heard for longer than a publisher is ever silent."""
        if time.monotonic() - self._heard > self._silence_s and self._call is not None:
            self._tell(f"it has been silent for {time.monotonic() - self._heard:.0f} s")
            self._call.cancel()

    def _run(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._ended.is_set():
            try:
                if self._exchange():
                    pause = FIRST_PAUSE_S
            except OSError as error:  # a certificate's file that is gone, say
                self._tell(str(error))
            if self._parent is not None:
                break
            self._ended.wait(random.uniform(pause / 2, pause))
            pause = min(2 * pause, LONGEST_PAUSE_S)
        self._on_end(self)

    def _exchange(self) -> bool:
        """One exchange, until it ends; False if it has not even begun."""
        self._heard, self._silence_s = time.monotonic(), HANDSHAKE_S
        self._reply = reply = Reply(self._parent)
        begun = False
        with open_channel(self.address, self._security) as channel:
            self._call = channel.stream_stream(METHOD)(iter(reply.outgoing.get, None))
            try:
                frames = self._frames(self._call)
                welcome = self._introduce(frames, reply)
                self._silence_s, begun = 3 * min(float(welcome["patience"]), MAX_PATIENCE_S), True
                self.trouble, self._failures = "", 0
                if self._ended.is_set():
                    return begun
                for frame in frames:
                    self._take_in(frame, reply)
            except grpc.RpcError as error:
                if not self._ended.is_set():
                    self._tell(explain(error, self.address))
            except StopIteration:
                self._tell("it ended the exchange")
            except HandshakeRefused as error:
                self._part(reply, str(error))
            except (ValueError, KeyError, TypeError) as error:
                self._part(reply, f"a message that makes no sense: {error}")
            except Exception:
                logger.exception("publisher %s: a message could not be taken in", self._publisher)
                self._part(reply, "a message that could not be taken in")
            finally:
                reply.end()
                self._call.cancel()
                self._listener.on_exchange_ended(reply)
        return begun

    def _part(self, reply: Reply, reason: str) -> None:
        """End an exchange because of what the other side said, and let it know that; it has little time to hear it."""
        self.trouble = printable(reason)[:MAX_REASON_CHARACTERS]
        if self.trouble != self._parted:
            logger.warning("publisher %s at %s: %s", self._publisher, self.address, self.trouble)
        self._parted = self.trouble
        reply({"t": "bye", "reason": self.trouble})
        reply.end()
        self._heard, self._silence_s = time.monotonic(), FAREWELL_S  # after which `check` ends it
        with contextlib.suppress(grpc.RpcError):
            for _ in self._call:
                pass

    def _frames(self, call: Any) -> Iterator[Frame]:
        for raw in call:
            self._heard = time.monotonic()
            yield unpack(raw)

    def _introduce(self, frames: Iterator[Frame], reply: Reply) -> Message:
        """Say who we are, and hear who that is; nothing else is said or heard before."""
        parties = Parties(self._listener.application, self._listener.id, self._publisher, self.address)
        security, nonce = self._security, new_nonce()
        keys = security.keys(parties.application)
        if self._parent is not None:
            keys = security.job_keys(parties.application, self._publisher)
        reply.outgoing.put(pack_first(parties.hello(nonce)))
        reply(answer(parties, keys, nonce, next(frames).message))
        welcome = next(frames).message
        if welcome["t"] != "welcome":
            raise ValueError("no welcome where one was expected")
        return welcome

    def _take_in(self, frame: Frame, reply: Reply) -> None:
        if frame.is_schema():
            return
        if frame.message["t"] == "ping":
            reply({"t": "pong"})
        else:
            self._listener.on_message(frame.message, frame.rows(), reply)

    def _tell(self, trouble: str) -> None:
        """Log why there is no exchange, if it is not what was said of it last; a single failure is none to speak of."""
        self._failures += 1
        if self._failures == 2 or (self._failures > 2 and trouble != self.trouble):
            logger.warning("publisher %s at %s: %s", self._publisher, self.address, trouble)
        self.trouble = trouble
