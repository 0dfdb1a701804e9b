"""Dialling out: the exchanges that a subscriber holds with publishers. It opens no port, and nobody connects to it."""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import grpc
import pyarrow as pa

from tidings.coordination.publisher_record import PublisherRecord
from tidings.outages import Outage
from tidings.protocol_versions import PROTOCOL, own_versions
from tidings.texts import printable
from tidings.wire.bundles import Outgoing, frames, messages_of
from tidings.wire.channel import explain, is_address, open_channel
from tidings.wire.flight_data import METHOD, Frame, pack_first, unpack
from tidings.wire.handshake import HandshakeRefused, Parties, answer, new_nonce
from tidings.wire.protocol import MAX_REASON_CHARACTERS, Message
from tidings.wire.security import Security

HANDSHAKE_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0  # before a publisher is tried again
ROOM_PAUSE_S = 0.5  # before a publisher is asked again that has no room yet; doubled each time
MAX_PATIENCE_S = 3600.0
FAREWELL_S = 2.0  # for publishers to end their exchanges
MAX_FETCHES = 256  # at a time
MAX_PUBLISHERS = 256

logger = logging.getLogger(__name__)


class Reply:
    """Answers on the exchange on which something was said; False, and nothing is done, once that has ended.

    `parent` is the exchange that has named this one, if it is not with a publisher itself. `protocol` is spoken there.
    """

    def __init__(self, parent: Reply | None = None, protocol: int = PROTOCOL) -> None:
        self.parent = parent
        self.protocol = protocol
        self.outgoing: Outgoing = queue.SimpleQueue()
        self._over = False

    def __call__(self, message: Message) -> bool:
        """Say it."""
        if not self._over:
            self.outgoing.put((message, None))
        return not self._over

    def end(self) -> None:
        """Nothing more is said here."""
        self._over = True
        self.outgoing.put(None)


class ExchangeListener(Protocol):
    """Who is told what publishers say."""

    application: str
    id: str

    def on_messages(self, messages: Sequence[Message], rows: pa.RecordBatch | None, reply: Reply) -> None:
        """Take in messages that came together; ValueError, KeyError or TypeError if they make no sense."""

    def on_exchange_ended(self, reply: Reply) -> None:
        """The exchange of these answers has ended."""


class PublisherTrouble(NamedTuple):
    """Why there is no exchange with a publisher, and at which address that was tried."""

    address: str
    reason: str


class Dialer:
    """Holds an exchange with each publisher that it is told of, and dials again when one ends."""

    def __init__(self, listener: ExchangeListener, security: Security) -> None:
        self._listener = listener
        self._security = security
        self._lock = threading.Lock()
        self._lines: dict[str, _PublisherLine] = {}
        self._fetches: set[_PublisherLine] = set()
        self._broken = 0  # with publishers that are gone
        self._misfits: dict[str, PublisherTrouble] = {}
        self._outages: dict[str, Outage] = {}  # by publisher: one that is started again has another address
        self._left = False

    def keep(self, publishers: Mapping[str, PublisherRecord]) -> None:
        """Speak with these publishers, at their addresses, and with no others; not with those that could not reply."""
        own = own_versions()
        wanted = {
            name: (record.address, protocol)
            for name, record in publishers.items()
            if (protocol := own.common(record.spoken)) is not None
        }
        with self._lock:
            if self._left:
                return
            self._note_misfits({name: publishers[name] for name in publishers.keys() - wanted.keys()})
            gone = [name for name, line in self._lines.items() if wanted.get(name) != (line.address, line.protocol)]
            ended = [self._lines.pop(name) for name in gone]
            self._broken += sum(line.broken for line in ended)
            for name in [name for name in self._outages if name not in self._lines]:
                if not self._outages[name].seconds or len(self._outages) > MAX_PUBLISHERS:
                    del self._outages[name]
            for name in sorted(wanted.keys() - self._lines.keys())[: MAX_PUBLISHERS - len(self._lines)]:
                self._lines[name] = self._line(name, *wanted[name])
        for line in ended:
            line.end()

    def check(self) -> None:
        """Break off exchanges on which a publisher has fallen silent."""
        with self._lock:
            lines = [*self._lines.values(), *self._fetches]
        for line in lines:
            line.check()

    @property
    def troubles(self) -> dict[str, PublisherTrouble]:
        """Why there is no exchange with a publisher, of those with whom there should be one."""
        with self._lock:
            troubles = {
                name: PublisherTrouble(line.address, line.trouble) for name, line in self._lines.items() if line.trouble
            }
            return {**troubles, **self._misfits}

    def gone(self, troubles: Mapping[str, PublisherTrouble]) -> dict[str, PublisherTrouble]:
        """Those of troubles that were with publishers which are not there any more."""
        with self._lock:
            return {name: one for name, one in troubles.items() if name not in self._lines}

    @property
    def exchanges(self) -> int:
        """How many publishers it is connected with."""
        with self._lock:
            return sum(line.connected for line in self._lines.values())

    @property
    def broken_exchanges(self) -> int:
        """How often an exchange has ended though we did not want it, or could not be begun."""
        with self._lock:
            return self._broken + sum(line.broken for line in self._lines.values())

    def lasting_troubles(self, seconds: float) -> dict[str, str]:
        """Why there has been no exchange with a publisher for so long."""
        with self._lock:
            lasting = {name: line.trouble for name, line in self._lines.items() if line.away_seconds > seconds}
            return {**lasting, **{name: one.reason for name, one in self._misfits.items()}}

    def fetch(self, message: Message, parent: Reply) -> None:
        """Speak once with another process, which a publisher has named."""
        name, address = message["publisher"], message["address"]
        if not isinstance(name, str) or not is_address(address) or parent.parent is not None:
            raise ValueError("a fetch without a name or an address")
        with self._lock:
            if len(self._fetches) >= MAX_FETCHES or self._left:
                return  # the other side does not wait for ever
            self._fetches.add(self._line(name, address, parent.protocol, parent))

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

    def _line(self, publisher: str, address: str, protocol: int, parent: Reply | None = None) -> _PublisherLine:
        outage = Outage(f"publisher {publisher}", logger.warning)
        if parent is None:
            outage = self._outages.setdefault(publisher, outage)
        return _PublisherLine(
            self._listener, publisher, address, protocol, self._security, parent, outage, self._forget
        )

    def _note_misfits(self, others: Mapping[str, PublisherRecord]) -> None:
        """Keep why publishers are not dialled that speak no version of ours; the log is told once."""
        known, self._misfits = self._misfits, {}
        for name, record in others.items():
            why = own_versions().misfit("this subscriber", record.spoken, "the publisher")
            self._misfits[name] = PublisherTrouble(record.address, why)
            if name not in known or known[name].reason != why:
                logger.warning("publisher %s: %s", name, why)

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
        protocol: int,
        security: Security,
        parent: Reply | None,
        outage: Outage,
        on_end: Callable[[_PublisherLine], None],
    ) -> None:
        self.address = address
        self.protocol = protocol
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
        self.connected = False
        self.broken = 0
        self._failures = 0  # to connect, one after the other
        self._outage = outage
        self._thread = threading.Thread(target=self._run, name=f"tidings-exchange-{publisher}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Say what is still to be said, and end."""
        self._ended.set()
        if self._reply is not None:
            self._reply.end()

    @property
    def away_seconds(self) -> float:
        """How long there has been no exchange."""
        return self._outage.seconds

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
        """One exchange, until it ends; False if it has not even begun.

        A publisher to which many come at once has no room for all of them at first. Nothing is wrong then, and it is
        asked again soon, over the connection that is there.
        """
        with open_channel(self.address, self._security) as channel:
            since, pause = time.monotonic(), ROOM_PAUSE_S
            while (begun := self._speak(channel, patient=time.monotonic() - since < HANDSHAKE_S)) is None:
                if self._ended.wait(random.uniform(pause / 2, pause)):
                    return False
                pause = min(2 * pause, LONGEST_PAUSE_S)  # else those who wait keep it from those who are there
        return begun

    def _speak(self, channel: Any, *, patient: bool) -> bool | None:
        """One exchange on a channel; None if there is no room for it yet, and that is borne with."""
        self._heard, self._silence_s = time.monotonic(), HANDSHAKE_S
        self._reply = reply = Reply(self._parent, self.protocol)
        begun = no_room = False
        parties = Parties(self._listener.application, self._listener.id, self._publisher, self.address, self.protocol)
        nonce = new_nonce()
        answers = (frame for frame, _ in frames(reply.outgoing, self.protocol))
        said = itertools.chain([pack_first(parties.hello(nonce))], answers)
        self._call = channel.stream_stream(METHOD)(said)
        try:
            heard = self._heard_frames(self._call)
            welcome = self._introduce(parties, nonce, heard, reply)
            self._silence_s, begun = 3 * min(float(welcome["patience"]), MAX_PATIENCE_S), True
            self.trouble, self._failures, self.connected = "", 0, True
            self._outage.end()
            if self._ended.is_set():
                return begun
            for frame in heard:
                self._take_in(frame, reply)
        except grpc.RpcError as error:
            if patient and not begun and error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                no_room = True
            elif not self._ended.is_set():
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
            self.connected = False
            self.broken += not (no_room or self._ended.is_set())
            reply.end()
            self._call.cancel()
            self._listener.on_exchange_ended(reply)
        return None if no_room else begun

    def _part(self, reply: Reply, reason: str) -> None:
        """End an exchange because of what the other side said, and let it know that; it has little time to hear it."""
        self.trouble = printable(reason)[:MAX_REASON_CHARACTERS]
        self._outage.begin(self.trouble)
        reply({"t": "bye", "reason": self.trouble})
        reply.end()
        self._heard, self._silence_s = time.monotonic(), FAREWELL_S  # after which `check` ends it
        with contextlib.suppress(grpc.RpcError):
            for _ in self._call:
                pass

    def _heard_frames(self, call: Any) -> Iterator[Frame]:
        for raw in call:
            self._heard = time.monotonic()
            yield unpack(raw)

    def _introduce(self, parties: Parties, nonce: str, heard: Iterator[Frame], reply: Reply) -> Message:
        """Prove who we are, as which we have said hello, and hear who that is; nothing else is said before."""
        keys = self._security.keys(parties.application)
        if self._parent is not None:
            keys = self._security.job_keys(parties.application, self._publisher)
        reply(answer(parties, keys, nonce, next(heard).message))
        welcome = next(heard).message
        if welcome["t"] != "welcome":
            raise ValueError("no welcome where one was expected")
        return welcome

    def _take_in(self, frame: Frame, reply: Reply) -> None:
        if frame.is_schema():
            return
        messages, rows = messages_of(frame.message), frame.rows()
        if len(messages) != 1 and rows is not None:
            raise ValueError("rows beside several messages")
        if any(message["t"] == "ping" for message in messages):
            reply({"t": "pong"})
        self._listener.on_messages([message for message in messages if message["t"] != "ping"], rows, reply)

    def _tell(self, trouble: str) -> None:
        """Log why there is no exchange, once; a single failure is none to speak of."""
        self._failures += 1
        if self._failures >= 2:
            self._outage.begin(trouble)
        self.trouble = trouble
