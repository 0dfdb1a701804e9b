"""What a gateway knows of the clients that are connected to it, and what follows from what they say. No I/O here.

A session is one client on one channel. It holds what the client is still to hear, in its outbox; the digest of the
registrations that the service has, as the stage last sent it; and the parts of a `sync` that has not all come. All of
it is soft: when a session ends nothing is lost, because the client's next `online` makes the stage tell it everything
that is pending.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from tidings_thialfi.gateway.client_outbox import Budget, ClientOutbox
from tidings_thialfi.gateway.operations import Row
from tidings_thialfi.gateway.options import GatewayOptions
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.protocol.digests import Digest
from tidings_thialfi.protocol.messages import Failure, FromClient, FromService, SyncPart
from tidings_thialfi.protocol.tokens import ClientToken

NOT_PERMITTED = "not permitted"
SYNC_REQUEST_INTERVAL_S = 10.0  # the answer to an earlier request for a sync may be on its way


@dataclass(slots=True)
class SyncParts:
    """A `sync` that comes in parts."""

    number: int
    parts: int
    received: dict[int, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows from a message: rows that must be durable before the answer is given, if there is one."""

    rows: tuple[Row, ...] = ()
    failed: tuple[Failure, ...] = ()
    answer: FromService | None = None


class Session:
    """One client, online at this gateway, on `channel`."""

    __slots__ = (
        "_asked", "_fresh", "_registered", "about", "announced", "application", "channel", "claimed", "client",
        "digest", "largest_sent", "last_seen", "outbox", "parts", "routed", "seen", "sync_requested", "token", "user",
    )  # fmt: skip

    def __init__(
        self, client: int, application: str, user: str, channel: Any, now: float, outbox: ClientOutbox
    ) -> None:
        self.client = client
        self.application = application
        self.user = user
        self.channel = channel
        self.last_seen = now
        self.token: str | None = None
        """What the client goes by; when it is told that this is not good any more, it is told which."""
        self.about: ClientToken | None = None
        """What that token says."""
        self.routed = False
        """Whether what the stage says to this client arrives here."""
        self.claimed = False
        """Whether a route was there: then it is known that the client came here, and who asks for it later is newer."""
        self.announced = now
        """When the client was last marked online."""
        self.digest: Digest | None = None
        self.seen = 0
        self.largest_sent = 0
        """The largest number of an operation that went to the stage from here."""
        self._registered = 0
        """How many objects the client is registered for, as the stage last said."""
        self._fresh = 0
        """How many it has registered for since."""
        self._asked: set[str] = set()
        """Those that it has registered for on this channel: to repeat it costs nothing."""
        self.sync_requested = float("-inf")
        self.parts: SyncParts | None = None
        self.outbox = outbox

    def wanted(self, message: FromClient) -> frozenset[str]:
        """The objects that the client would be registered for, to be authorized."""
        names = {name for name, _ in message.register}
        return frozenset(names | set(message.sync.objects)) if message.sync else frozenset(names)

    def awaited(self, message: FromClient) -> int:
        """How many of the message's acknowledgements are of what the client was told: it owes them."""
        return sum((ack.name, ack.unknown) in self.outbox.pending for ack in message.acknowledge)

    def take(self, message: FromClient, now: float, options: GatewayOptions, refused: Collection[str] = ()) -> Outcome:
        """What follows from a message of this client; objects in `refused` are not permitted."""
        self.last_seen = now
        failed: list[Failure] = []
        made = list(self._operations(message, options, refused, failed))
        if message.sync is not None:
            made += self._sync(message.sync, options, refused, failed)
        for ack in message.acknowledge:
            op = stream_schema.ACKNOWLEDGE_UNKNOWN if ack.unknown else stream_schema.ACKNOWLEDGE
            made.append(self._row(op, ack.version, object=ack.name))
        wants_sync = self._differs(message, now)
        if not (wants_sync or message.heartbeat):
            return Outcome(tuple(made), tuple(failed))
        if wants_sync:
            self.sync_requested = now
        seen = None if self.digest is None else self.seen
        return Outcome(tuple(made), tuple(failed), FromService(digest=self.digest, seen=seen, sync=wants_sync))

    def settle(self, message: FromClient) -> bool:
        """The message's rows are durable: forget what it acknowledged; True if the stage is to be asked for more."""
        for ack in message.acknowledge:
            self.outbox.acknowledge(ack)
        return self.outbox.exhausted()

    def take_digest(self, digest: Digest, seen: int) -> None:
        """The stage has sent the digest of the client's registrations, as of this number."""
        if seen >= self.seen:
            self.digest, self.seen = digest, seen
            self._registered = digest.count
            if seen >= self.largest_sent:
                self._fresh = 0

    def _operations(
        self, message: FromClient, options: GatewayOptions, refused: Collection[str], failed: list[Failure]
    ) -> Iterator[Row]:
        intends = None if message.digest is None else message.digest.count
        for name, number in message.register:
            if name in refused:
                failed.append(Failure(name, number, False, NOT_PERMITTED))
            elif self._is_beyond(name, intends, options.max_registrations):
                failed.append(_too_many(name, number, options))
            else:
                self._fresh += name not in self._asked
                self._asked.add(name)
                yield self._operation(stream_schema.REGISTER, number, object=name)
        for name, number in message.unregister:
            self._fresh -= name in self._asked
            self._asked.discard(name)
            yield self._operation(stream_schema.UNREGISTER, number, object=name)

    def _is_beyond(self, name: str, intends: int | None, most: int) -> bool:
        """Whether a registration is one too many. One that repeats another is not, and only the client knows which do.

        So it is believed how many it intends in all; if that is not true, the next digest of the stage shows it.
        """
        if name in self._asked:
            return False
        if len(self._asked) >= most or self._registered > most:
            return True
        return intends is not None and intends > most and self._registered + self._fresh >= most

    def _sync(
        self, part: SyncPart, options: GatewayOptions, refused: Collection[str], failed: list[Failure]
    ) -> list[Row]:
        if self.parts is not None and self.parts.number > part.number:
            return []  # a late part of an earlier sync
        if self.parts is None or self.parts.number < part.number or self.parts.parts != part.parts:
            self.parts = SyncParts(part.number, part.parts)
        others = {name for at, some in self.parts.received.items() if at != part.part for name in some}
        allowed: list[str] = []
        for name in dict.fromkeys(part.objects):
            if name in refused:
                failed.append(Failure(name, part.number, False, NOT_PERMITTED))
            elif name not in others and len(others) + len(allowed) >= options.max_registrations:
                failed.append(_too_many(name, part.number, options))
            elif name not in others:
                allowed.append(name)
        self.parts.received[part.part] = tuple(allowed)
        if len(self.parts.received) < part.parts:
            return []
        names = [name for _, some in sorted(self.parts.received.items()) for name in some]
        self.parts = None
        self._asked, self._registered, self._fresh = set(names), len(names), 0
        # The registrations go first: then no reader ever sees the client without them.
        found = [self._operation(stream_schema.REGISTER, part.number, object=name) for name in names]
        return [*found, self._operation(stream_schema.SYNC, part.number)]

    def _differs(self, message: FromClient, now: float) -> bool:
        """Whether client and service surely have different registrations: nothing is under way between them."""
        if message.digest is None or self.digest is None or self.parts is not None or self.seen < self.largest_sent:
            return False
        if message.register or message.unregister or message.sync:
            return False
        return message.digest != self.digest and now - self.sync_requested >= SYNC_REQUEST_INTERVAL_S

    def _operation(self, op: str, number: int, **more: str) -> Row:
        self.largest_sent = max(self.largest_sent, number)
        return self._row(op, number, **more)

    def _row(self, op: str, number: int | None = None, **more: str) -> Row:
        return stream_schema.operation(self.client, op, number, source=self.application, **more)


def _too_many(name: str, number: int, options: GatewayOptions) -> Failure:
    """It may work later: when the client has given up others."""
    return Failure(name, number, True, f"more than {options.max_registrations:,} registrations")


class Sessions:
    """All sessions of a gateway, one a client; the newest channel of a client has it."""

    def __init__(self, options: GatewayOptions | None = None) -> None:
        self._options = options or GatewayOptions()
        self._shared = Budget(self._options.max_pending_total)
        self._by_client: dict[int, Session] = {}
        self._unacknowledged: dict[int, float] = {}
        """The clients of which something is not acknowledged, and since when; it may have been sent later."""

    def __len__(self) -> int:
        return len(self._by_client)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_client.values()))

    def get(self, client: int) -> Session | None:
        """The client's session, if it is online here."""
        return self._by_client.get(client)

    def outbox(self) -> ClientOutbox:
        """An outbox for one more session."""
        return ClientOutbox(self._options.max_pending, self._options.max_queue, self._shared)

    def begin(self, session: Session) -> Session | None:
        """A client has come; its session on an older channel, which is over now, if there is one."""
        older = self._by_client.get(session.client)
        if older is not None:
            older.outbox.clear()
        self._by_client[session.client] = session
        self._unacknowledged.pop(session.client, None)
        return older

    def end(self, session: Session) -> bool:
        """A session is over; False if a newer one has taken its place already."""
        if self._by_client.get(session.client) is not session:
            return False
        del self._by_client[session.client]
        self._unacknowledged.pop(session.client, None)
        session.outbox.clear()
        return True

    def track(self, session: Session, now: float) -> None:
        """Something was kept for the session, or acknowledged."""
        outbox = session.outbox
        if (outbox.pending or outbox.more_than_kept) and self._by_client.get(session.client) is session:
            self._unacknowledged.setdefault(session.client, now)
        else:
            self._unacknowledged.pop(session.client, None)

    def due(self, now: float, resend: float) -> list[Session]:
        """The sessions of which something has not been acknowledged for so long, or has not been kept."""
        found = [client for client, since in self._unacknowledged.items() if now - since >= resend]
        return [self._by_client[client] for client in found]

    def repeat(self, session: Session, now: float, resend: float) -> None:
        """Have sent again what is due."""
        session.outbox.repeat(now, resend)
        self._unacknowledged[session.client] = session.outbox.oldest(now)

    def silent(self, now: float, offline_after: float) -> list[Session]:
        """The sessions of which nothing was received for so long."""
        return [session for session in self._by_client.values() if now - session.last_seen >= offline_after]
