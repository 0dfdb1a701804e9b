"""What a gateway knows of the clients that are connected to it, and what follows from what they say. No I/O here.

A session is one client on one channel. It holds what was not acknowledged, the newest version of each object only; the
digest of the registrations that the service has, as the stage last sent it; and the parts of a `sync` that has not all
come. All of it is soft: when a session ends nothing is lost, because the client's next `online` makes the stage tell it
everything that is pending.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from tidings_thialfi.gateway.operations import Row
from tidings_thialfi.gateway.options import GatewayOptions
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.protocol.digests import Digest
from tidings_thialfi.protocol.messages import Failure, FromClient, FromService, Notice, SyncPart

SYNC_REQUEST_INTERVAL_S = 10.0  # the answer to an earlier request for a sync may be on its way


@dataclass(slots=True)
class Pending:
    """A notification that is not acknowledged, and when it was last sent."""

    notice: Notice
    sent: float


@dataclass(slots=True)
class SyncParts:
    """A `sync` that comes in parts."""

    number: int
    parts: int
    received: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def objects(self) -> int:
        """How many objects were received."""
        return sum(map(len, self.received.values()))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows from a message: rows that must be durable before the answer is given, if there is one."""

    rows: tuple[Row, ...] = ()
    answer: FromService | None = None


class Session:
    """One client, online at this gateway, on `channel`."""

    __slots__ = (
        "announced", "application", "channel", "client", "digest", "largest_sent", "last_seen", "more_than_kept",
        "parts", "pending", "registrations", "routed", "seen", "sync_requested", "user",
    )  # fmt: skip

    def __init__(self, client: int, application: str, user: str, channel: Any, now: float) -> None:
        self.client = client
        self.application = application
        self.user = user
        self.channel = channel
        self.last_seen = now
        self.routed = False
        """Whether what the stage says to this client arrives here."""
        self.announced = now
        """When the client was last marked online."""
        self.digest: Digest | None = None
        self.seen = 0
        self.largest_sent = 0
        """The largest number of an operation that went to the stage from here."""
        self.registrations = 0
        self.sync_requested = float("-inf")
        self.parts: SyncParts | None = None
        self.pending: dict[tuple[str, bool], Pending] = {}
        self.more_than_kept = False
        """Whether something is pending that is not kept here, and must be asked for again."""

    def wanted(self, message: FromClient) -> frozenset[str]:
        """The objects that the client would be registered for, to be authorized."""
        names = {name for name, _ in message.register}
        return frozenset(names | set(message.sync.objects)) if message.sync else frozenset(names)

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
        if not (failed or wants_sync or message.heartbeat):
            return Outcome(tuple(made))
        if wants_sync:
            self.sync_requested = now
        seen = None if self.digest is None else self.seen
        return Outcome(tuple(made), FromService(digest=self.digest, seen=seen, failed=tuple(failed), sync=wants_sync))

    def settle(self, message: FromClient) -> bool:
        """The message's rows are durable: forget what it acknowledged; True if there is room for what was not kept."""
        for ack in message.acknowledge:
            known = self.pending.get((ack.name, ack.unknown))
            if known is not None and known.notice.version <= ack.version:
                del self.pending[ack.name, ack.unknown]
        if self.more_than_kept and not self.pending:
            self.more_than_kept = False
            return True
        return False

    def notify(self, notice: Notice, now: float, most: int) -> bool:
        """Keep a notification until it is acknowledged; False if a later version is known already."""
        key = (notice.name, notice.unknown)
        known = self.pending.get(key)
        if known is not None and known.notice.version > notice.version:
            return False
        if known is None and len(self.pending) >= most:
            self.more_than_kept = True
        else:
            self.pending[key] = Pending(notice, now)
        return True

    def due(self, now: float, resend: float) -> list[Notice]:
        """What was sent so long ago that it is to be sent again."""
        found = [one for one in self.pending.values() if now - one.sent >= resend]
        for one in found:
            one.sent = now
        return [one.notice for one in found]

    def take_digest(self, digest: Digest, seen: int) -> None:
        """The stage has sent the digest of the client's registrations, as of this number."""
        if seen >= self.seen:
            self.digest, self.seen = digest, seen
            self.registrations = digest.count

    def _operations(
        self, message: FromClient, options: GatewayOptions, refused: Collection[str], failed: list[Failure]
    ) -> Iterator[Row]:
        for name, number in message.register:
            if name in refused:
                failed.append(Failure(name, number, False, "not permitted"))
            elif self.registrations >= options.max_registrations:
                failed.append(Failure(name, number, False, f"more than {options.max_registrations:,} registrations"))
            else:
                self.registrations += 1
                yield self._operation(stream_schema.REGISTER, number, object=name)
        for name, number in message.unregister:
            yield self._operation(stream_schema.UNREGISTER, number, object=name)

    def _sync(
        self, part: SyncPart, options: GatewayOptions, refused: Collection[str], failed: list[Failure]
    ) -> list[Row]:
        if self.parts is not None and self.parts.number > part.number:
            return []  # a late part of an earlier sync
        if self.parts is None or self.parts.number < part.number or self.parts.parts != part.parts:
            self.parts = SyncParts(part.number, part.parts)
        allowed: list[str] = []
        room = options.max_registrations - self.parts.objects + len(self.parts.received.get(part.part, ()))
        for name in dict.fromkeys(part.objects):
            if name in refused:
                failed.append(Failure(name, part.number, False, "not permitted"))
            elif len(allowed) >= room:
                failed.append(
                    Failure(name, part.number, False, f"more than {options.max_registrations:,} registrations")
                )
            else:
                allowed.append(name)
        self.parts.received[part.part] = tuple(allowed)
        if len(self.parts.received) < part.parts:
            return []
        names = [name for _, some in sorted(self.parts.received.items()) for name in some]
        self.parts = None
        self.registrations = len(names)
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


class Sessions:
    """All sessions of a gateway, one a client; the newest channel of a client has it."""

    def __init__(self) -> None:
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

    def begin(self, session: Session) -> Session | None:
        """A client has come; its session on an older channel, which is over now, if there is one."""
        older = self._by_client.get(session.client)
        self._by_client[session.client] = session
        self._unacknowledged.pop(session.client, None)
        return older

    def end(self, session: Session) -> bool:
        """A session is over; False if a newer one has taken its place already."""
        if self._by_client.get(session.client) is not session:
            return False
        del self._by_client[session.client]
        self._unacknowledged.pop(session.client, None)
        return True

    def track(self, session: Session, now: float) -> None:
        """Something was kept for the session, or acknowledged."""
        if session.pending and self._by_client.get(session.client) is session:
            self._unacknowledged.setdefault(session.client, now)
        else:
            self._unacknowledged.pop(session.client, None)

    def due(self, now: float, resend: float) -> Iterator[tuple[Session, list[Notice]]]:
        """What is to be sent again, to whom."""
        for client in [client for client, since in self._unacknowledged.items() if now - since >= resend]:
            session = self._by_client[client]
            notices = session.due(now, resend)
            self._unacknowledged[client] = min(one.sent for one in session.pending.values())
            if notices:
                yield session, notices

    def silent(self, now: float, offline_after: float) -> list[Session]:
        """The sessions of which nothing was received for so long."""
        return [session for session in self._by_client.values() if now - session.last_seen >= offline_after]
