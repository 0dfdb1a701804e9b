"""Every message of every client comes here, whatever its channel, and is answered.

A message is checked first (rate, size, form, token, user, permission), then its rows are made durable, then it is
answered. What is refused is counted and leaves no trace. Which sessions have begun and ended is returned as effects.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

from tidings.errors import TidingsError
from tidings_thialfi.gateway.channels import DENIED, DISCONNECTED, MALFORMED, SILENT, ClientChannel
from tidings_thialfi.gateway.effects import (
    NOTHING,
    Effect,
    Effects,
    PendingWanted,
    RoomToSend,
    SessionBegan,
    SessionDisplaced,
    SessionEnded,
)
from tidings_thialfi.gateway.hearing import Hearing
from tidings_thialfi.gateway.hooks import Caller, Guard
from tidings_thialfi.gateway.metrics import GatewayMetrics
from tidings_thialfi.gateway.operations import OperationWriter, Row
from tidings_thialfi.gateway.options import GatewayOptions
from tidings_thialfi.gateway.rates import NEW_CLIENT_ENTRIES, TOO_FAST, Amount, RateExceeded, Rates, entries_of
from tidings_thialfi.gateway.sessions import NOT_PERMITTED, Session, Sessions
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.protocol.messages import BadMessage, Fault, FromClient, FromService, Grant, parse_client
from tidings_thialfi.protocol.tokens import ClientToken, TokenExpired, TokenForged, TokenKeys
from tidings_thialfi.revocations import Revocations, user_digest

MAX_MALFORMED_MESSAGES = 10  # of one channel, before it is closed
INVALID = {
    "forged": "this is no token of ours",
    "expired": "the token has expired too long ago",
    "revoked": "the token is revoked",
}
RETRY_AFTER_S = 5.0  # what a client is told when its message could not be written

logger = logging.getLogger(__name__)


class Request(NamedTuple):
    """A message that is to be acted upon, and whose it is."""

    session: Session
    channel: ClientChannel
    message: FromClient


class Inbound:
    """Takes messages. Tokens are bound to `identity`, the service's, which may become another one."""

    def __init__(
        self,
        sessions: Sessions,
        keys: TokenKeys,
        identity: str,
        operations: OperationWriter,
        *,
        options: GatewayOptions,
        metrics: GatewayMetrics,
        guard: Guard,
        rates: Rates,
        hearing: Hearing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        self.revoked = Revocations()
        self._disconnected = Revocations()
        self._sessions = sessions
        self._keys = keys
        self._operations = operations
        self._options = options
        self._metrics = metrics
        self._guard = guard
        self._rates = rates
        self._hearing = hearing
        self._clock = clock
        self._closed = False

    async def admit(self, channel: ClientChannel, text: str | bytes) -> tuple[Effects, Request | None]:
        """Check one message of a channel; what it asks for, if it is to be acted upon."""
        if self._closed:
            return NOTHING, None  # the client says it again elsewhere
        now = self._clock()
        if not channel.bucket.take(now):
            wait = channel.bucket.ready(now) - now
            self._slow_down(channel, now, RateExceeded("rate", TOO_FAST, wait))
            return NOTHING, None
        around = {"total": ""} if channel.counted is None else {"total": "", "address": channel.counted}
        size = Amount(bytes=len(text))
        if not channel.weighed and (over := self._rates.take(now, size, around)):
            self._slow_down(channel, now, over)
            return NOTHING, None
        try:
            if len(text) > self._options.max_message:
                raise BadMessage("large", f"a message has at most {self._options.max_message:,} bytes")
            message = parse_client(text)
        except BadMessage as error:
            self._refuse(channel, error)
            return NOTHING, None
        amount = Amount(entries_of(message), len(text))
        if over := self._rates.take(now, amount._replace(bytes=0), around):
            self._slow_down(channel, now, over)
            return NOTHING, None
        effects, session = await (self._hello(channel, message) if message.hello else self._known(channel, message))
        if session is None:
            return effects, None
        own: dict[str, Hashable] = {"client": session.client}
        if session.user:
            own["user"] = session.user
        owed = session.awaited(message)
        if over := self._rates.take(now, amount._replace(entries=max(1, amount.entries - owed)), own):
            self._slow_down(channel, now, over)
            return effects, None
        self._metrics.messages.labels(channel.kind).inc()
        return effects, Request(session, channel, message)

    async def act(self, request: Request) -> Effects:
        """Make the rows of a message durable, and answer it."""
        session, channel, message = request
        refused = await self._guard.refused(session.user, session.wanted(message))
        if channel.session is not session:
            return NOTHING  # sent away while hooks were asked
        outcome = session.take(message, self._clock(), self._options, refused)
        if outcome.rows and not await self._durable(channel, outcome.rows):
            return NOTHING
        more = session.settle(message)
        self._sessions.track(session, self._clock())
        for failure in outcome.failed:
            session.outbox.report(failure)
            denied = failure.reason == NOT_PERMITTED
            (self._count("registration") if denied else self._metrics.limited.labels("registrations").inc())
        if outcome.answer is not None:
            if outcome.answer.sync:
                self._metrics.syncs.inc()
            channel.send(outcome.answer)
        return (PendingWanted(session), RoomToSend(session)) if more else (RoomToSend(session),)

    def client_of(self, text: str) -> int:
        """Whose message this is, by its token; -1 if that is not sure, or if it says anew who it is."""
        try:
            message = parse_client(text)
            return -1 if message.token is None or message.hello else self._keys.check(message.token).client
        except TidingsError:
            return -1

    def leave(self, channel: ClientChannel) -> Effects:
        """The channel is gone."""
        session, channel.session = channel.session, None
        return (SessionEnded(session),) if session is not None and self._sessions.end(session) else NOTHING

    def dismiss(self, session: Session, code: int, reason: str) -> None:
        """Close a client's channel, and end its session without a word to the stage: another one has it now."""
        self._sessions.end(session)
        session.channel.session = None
        session.channel.close(code, reason)

    def revoke(self, revoked: Revocations) -> Effects:
        """Take no more of these tokens; who goes by one is told so, and sent away."""
        self.revoked = revoked
        effects: list[Effect] = []
        for session, token, about in self._shown():
            if revoked.cover(about, token):
                session.channel.send(FromService(invalid=INVALID["revoked"], token=token))
                effects += self._disconnect(session, "revoked")
        return effects

    def disconnect(self, disconnected: Revocations) -> Effects:
        """Close the channels of these clients, if they were there before that was said; they may come again."""
        self._disconnected = disconnected
        effects: list[Effect] = []
        for session, _, about in self._shown():
            if session.channel.since <= disconnected.last(about):
                effects += self._disconnect(session, "disconnected")
        return effects

    def expire(self, now: float) -> Effects:
        """Close the channels of clients that were silent for too long."""
        effects: list[Effect] = []
        for session in self._sessions.silent(now, self._options.offline_after):
            session.channel.close(SILENT, "nothing was heard for too long")
            effects += self.leave(session.channel)
        return effects

    def close(self) -> Effects:
        """Take no more messages, and end all sessions."""
        self._closed = True
        return [SessionEnded(session) for session in self._sessions if self._sessions.end(session)]

    def _shown(self) -> Iterator[tuple[Session, str, ClientToken]]:
        """The sessions, with the tokens that they go by."""
        for session in self._sessions:
            if session.token is not None and session.about is not None:
                yield session, session.token, session.about

    def _disconnect(self, session: Session, reason: str) -> Effects:
        self._metrics.disconnected.labels(reason).inc()
        session.channel.close(DISCONNECTED, f"an operator has {reason} this client")
        return self.leave(session.channel)

    async def _hello(self, channel: ClientChannel, message: FromClient) -> tuple[Effects, Session | None]:
        """Give the client a number, if it has none, and a token."""
        hello = message.hello
        assert hello is not None
        old: ClientToken | None = None
        renewed = False
        if message.token is not None:
            if self._hearing.catching_up:
                self._unavailable(channel, "it is not known yet which tokens are revoked")
                return NOTHING, None
            try:
                old = self._keys.check(message.token)
            except TokenExpired as error:
                old, renewed = error.token, True
            except TokenForged:
                self._invalid(channel, message.token, "forged")
                return NOTHING, None
            if self._keys.expired_for(old) > self._options.renew_within:
                self._invalid(channel, message.token, "expired")
                return NOTHING, None
            if self._too_fast(channel, old.client):
                return NOTHING, None
        asked = self._keys.now()
        user = await self._guard.user(
            Caller(hello.application, hello.credentials, channel.authorization, channel.address)
        )
        if user is None:
            self._count("denied")
            channel.send(FromService(error=Fault("denied", "you are not let in")))
            channel.close(DENIED, "not let in")
            return NOTHING, None
        if old is not None and message.token is not None and self.revoked.cover(old, message.token):
            self._invalid(channel, message.token, "revoked")
            return NOTHING, None
        identity = self._identity_of(user)
        if old is not None and old.user != user_digest(user):
            old = None  # the number belongs to another user
        before = channel.session
        if old is not None:
            client = old.client
        elif before is not None and before.user == user and message.token is None:
            client = before.client  # the grant was late: the same number again
        else:
            client = secrets.randbits(63)
        lifetime = self._options.token_lifetime
        token = self._keys.issue(client, identity, hello.application, lifetime, issued=asked)
        about = self._keys.check(token)
        if self._overtaken(channel, about, token):
            return NOTHING, None
        new = old is None and (before is None or before.client != client)
        forgotten = old is not None and old.identity != identity
        if new and channel.counted is not None:
            now = self._clock()
            if over := self._rates.take(now, Amount(NEW_CLIENT_ENTRIES), {"address": channel.counted}):
                self._slow_down(channel, now, over)
                return NOTHING, None
        if new or forgotten:
            # A service that has another identity now knows nothing of the clients that it had.
            made = stream_schema.operation(client, stream_schema.CREATED, source=hello.application)
            if not await self._durable(channel, [made]) or self._overtaken(channel, about, token):
                return NOTHING, None
            if channel.session is not None and channel.session.client == client:
                self._sessions.end(channel.session)  # what it knows is of the former identity
                channel.session = None
        channel.user, channel.since = user, asked
        grant = Grant(hello.nonce, token, client, old is not None)
        effects, session = self._begin(channel, client, hello.application)
        session.token, session.about = token, about
        # A service that knows nothing of the client must be told what it wants, whatever digests say meanwhile; and
        # hooks are asked again now and then for all that a client is registered for.
        sync = forgotten or (renewed and self._guard.on)
        channel.send(FromService(grant=grant, interval=self._options.heartbeat, sync=sync))
        return effects, session if old is not None else None

    def _overtaken(self, channel: ClientChannel, about: ClientToken, token: str) -> bool:
        """Whether an operator has spoken since hooks were asked: then they are to be asked once more."""
        if not self.revoked.cover(about, token) and about.issued > self._disconnected.last(about):
            return False
        self._unavailable(channel, "say again who you are")
        return True

    async def _known(self, channel: ClientChannel, message: FromClient) -> tuple[Effects, Session | None]:
        """The session of a client that has shown its token."""
        assert message.token is not None
        try:
            token = self._keys.check(message.token)
        except TokenExpired:
            self._stale(channel, message.token, "expired")
            return NOTHING, None
        except TokenForged:
            self._invalid(channel, message.token, "forged")
            return NOTHING, None
        if self.revoked.cover(token, message.token):
            self._invalid(channel, message.token, "revoked")
            return NOTHING, None
        if self._too_fast(channel, token.client):
            return NOTHING, None
        if channel.user is None and not self._guard.on:
            channel.user = ""
        if channel.user is None or token.identity != self._identity_of(channel.user):
            self._stale(channel, message.token, "stale")  # with hooks: it must say on each channel who it is
            return NOTHING, None
        effects, session = self._begin(channel, token.client, token.application)
        session.token, session.about = message.token, token
        return effects, session

    def _begin(self, channel: ClientChannel, client: int, application: str) -> tuple[Effects, Session]:
        """The channel's session: the one that it has, or a new one, which takes the client from older channels."""
        session = channel.session
        if session is not None and session.client == client and session.application == application:
            return NOTHING, session
        effects: list[Effect] = []
        if session is not None:
            channel.session = None
            if self._sessions.end(session) and session.client != client:
                effects.append(SessionEnded(session))
        session = Session(client, application, channel.user or "", channel, self._clock(), self._sessions.outbox())
        older = self._sessions.begin(session)
        channel.session = session
        if older is not None:
            effects.append(SessionDisplaced(older))
        effects.append(SessionBegan(session))
        return effects, session

    async def _durable(self, channel: ClientChannel, rows: Sequence[Row]) -> bool:
        try:
            await self._operations.write(rows)
        except TidingsError as error:
            logger.warning("a message's rows could not be written: %s", error)
            self._unavailable(channel, "what you sent could not be kept")
            return False
        return True

    def _too_fast(self, channel: ClientChannel, client: int) -> bool:
        """Whether a client says more than it may, on all its channels together."""
        now = self._clock()
        if over := self._rates.message(now, client):
            self._slow_down(channel, now, over)
        return over is not None

    def _slow_down(self, channel: ClientChannel, now: float, over: RateExceeded) -> None:
        self._metrics.limited.labels(over.limit).inc()
        if now - channel.warned >= 1.0:  # one word a second: an answer to each would make it worse
            channel.warned = now
            channel.send(FromService(error=Fault("rate", over.reason, round(over.wait, 3))))

    def _refuse(self, channel: ClientChannel, error: BadMessage) -> None:
        if error.code == "large":
            self._metrics.limited.labels("large").inc()
        else:
            self._count(error.code)
        channel.faults += 1
        channel.send(FromService(error=Fault(error.code, str(error))))
        if channel.faults >= MAX_MALFORMED_MESSAGES:
            channel.close(MALFORMED, "too many messages that make no sense")

    def _unavailable(self, channel: ClientChannel, why: str) -> None:
        self._count("unavailable")
        channel.send(FromService(error=Fault("unavailable", why, RETRY_AFTER_S)))

    def _stale(self, channel: ClientChannel, token: str, reason: str) -> None:
        self._count(reason)
        channel.send(FromService(stale=True, token=token))

    def _invalid(self, channel: ClientChannel, token: str, reason: str) -> None:
        self._count(reason)
        channel.send(FromService(invalid=INVALID[reason], token=token))

    def _count(self, reason: str) -> None:
        self._metrics.refused.labels(reason).inc()

    def _identity_of(self, user: str) -> str:
        """What a token is bound to: the service's identity, and the user if users are asked who they are."""
        return f"{self.identity}#{user_digest(user)}" if user else self.identity
