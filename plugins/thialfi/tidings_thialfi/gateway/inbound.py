"""The desk: every message of every client comes here, whatever its channel, and is answered.

A message is checked first (rate, size, form, token, user, permission), then its rows are made durable, then it is
answered. What is refused is counted and leaves no trace.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence

from tidings.errors import TidingsError
from tidings_thialfi.gateway.channels import DENIED, DISPLACED, MALFORMED, Channel
from tidings_thialfi.gateway.hooks import Caller, Guard
from tidings_thialfi.gateway.metrics import GatewayMetrics
from tidings_thialfi.gateway.options import GatewayOptions
from tidings_thialfi.gateway.sessions import Row, Session, Sessions
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.protocol.messages import BadMessage, Fault, FromClient, FromService, Grant, parse_client
from tidings_thialfi.protocol.tokens import ClientToken, TokenExpired, TokenForged, TokenKeys

PATIENCE = 10  # malformed messages of one channel, before it is closed
RETRY = 5.0  # seconds after which a client may try again what could not be written

logger = logging.getLogger(__name__)


class Desk:
    """Takes messages. `write` makes rows durable; `come` and `gone` hear of sessions that begin and end."""

    def __init__(
        self,
        keys: TokenKeys,
        identity: Callable[[], str],
        write: Callable[[Sequence[Row]], Awaitable[None]],
        *,
        come: Callable[[Session], None],
        gone: Callable[[Session], None],
        options: GatewayOptions,
        metrics: GatewayMetrics,
        guard: Guard,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sessions = Sessions()
        self.closed = False
        """Once it is, nothing is taken any more: clients say it again elsewhere."""
        self._keys = keys
        self._identity = identity
        self._write = write
        self._come = come
        self._gone = gone
        self._options = options
        self._metrics = metrics
        self._guard = guard
        self._clock = clock

    async def receive(self, channel: Channel, text: str | bytes) -> None:
        """Take one message of a channel; the next one of the channel only when this has returned."""
        if self.closed:
            return
        now = self._clock()
        if not channel.bucket.take(now):
            wait = channel.bucket.ready(now) - now
            self._slow_down(channel, now, wait)
            return
        try:
            if len(text) > self._options.max_message:
                raise BadMessage("large", f"a message has at most {self._options.max_message:,} bytes")
            message = parse_client(text)
        except BadMessage as error:
            self._refuse(channel, error)
            return
        session = await (self._hello(channel, message) if message.hello else self._known(channel, message))
        if session is None:
            return
        self._metrics.messages.labels(channel.kind).inc()
        await self._act(session, channel, message)

    def client_of(self, text: str) -> int:
        """Whose message this is, by its token; -1 if that is not sure, or if it says anew who it is."""
        try:
            message = parse_client(text)
            return -1 if message.token is None or message.hello else self._keys.check(message.token).client
        except TidingsError:
            return -1

    def leave(self, channel: Channel) -> None:
        """The channel is gone."""
        session, channel.session = channel.session, None
        if session is not None and self.sessions.end(session):
            self._gone(session)

    def dismiss(self, session: Session, code: int, reason: str) -> None:
        """Close a client's channel, and end its session without a word to the stage: another one has it now."""
        self.sessions.end(session)
        session.channel.session = None
        session.channel.close(code, reason)

    async def _act(self, session: Session, channel: Channel, message: FromClient) -> None:
        refused = await self._guard.refused(session.user, session.wanted(message))
        effects = session.take(message, self._clock(), self._options, refused)
        if effects.rows and not await self._durable(channel, effects.rows):
            return
        if session.settle(message):
            self._come(session)  # all that was kept is acknowledged: let the stage tell the rest
        self.sessions.note(session, self._clock())
        if effects.answer is not None:
            for failure in effects.answer.failed:
                denied = failure.reason == "not permitted"
                (self._count("registration") if denied else self._metrics.limited.labels("registrations").inc())
            if effects.answer.sync:
                self._metrics.syncs.inc()
            channel.send(effects.answer)

    async def _hello(self, channel: Channel, message: FromClient) -> Session | None:
        """Give the client a number, if it has none, and a token."""
        hello = message.hello
        assert hello is not None
        old: ClientToken | None = None
        if message.token is not None:
            try:
                old = self._keys.check(message.token)
            except TokenExpired as error:
                old = error.token
            except TokenForged:
                self._invalid(channel)
                return None
        user = await self._guard.user(
            Caller(hello.application, hello.credentials, channel.authorization, channel.address)
        )
        if user is None:
            self._count("denied")
            channel.send(FromService(error=Fault("denied", "you are not let in")))
            channel.close(DENIED, "not let in")
            return None
        channel.user = user
        identity = self._identity_of(user)
        if old is not None and _user_of(old.identity) != _user_of(identity):
            old = None  # the number belongs to another user
        before = channel.session
        if old is not None:
            client = old.client
        elif before is not None and before.user == user and message.token is None:
            client = before.client  # the grant was late: the same number again
        else:
            client = secrets.randbits(63)
        new = old is None and (before is None or before.client != client)
        forgotten = old is not None and old.identity != identity
        if new or forgotten:
            # A service that has another identity now knows nothing of the clients that it had.
            made = stream_schema.operation(client, stream_schema.CREATED, source=hello.application)
            if not await self._durable(channel, [made]):
                return None
            if channel.session is not None and channel.session.client == client:
                self.sessions.end(channel.session)  # what it knows is of the former identity
                channel.session = None
        token = self._keys.issue(client, identity, hello.application, self._options.token_lifetime)
        grant = Grant(hello.nonce, token, client, old is not None)
        session = self._begin(channel, client, hello.application)
        # A service that knows nothing of the client must be told what it wants, whatever digests say meanwhile.
        channel.send(FromService(grant=grant, interval=self._options.heartbeat, sync=forgotten))
        return session if old is not None else None

    async def _known(self, channel: Channel, message: FromClient) -> Session | None:
        """The session of a client that has shown its token."""
        assert message.token is not None
        try:
            token = self._keys.check(message.token)
        except TokenExpired:
            self._stale(channel, "expired")
            return None
        except TokenForged:
            self._invalid(channel)
            return None
        if channel.user is None and not self._guard.on:
            channel.user = ""
        if channel.user is None or token.identity != self._identity_of(channel.user):
            self._stale(channel, "stale")  # with hooks: it must say on each channel who it is
            return None
        return self._begin(channel, token.client, token.application)

    def _begin(self, channel: Channel, client: int, application: str) -> Session:
        """The channel's session: the one that it has, or a new one, which takes the client from older channels."""
        session = channel.session
        if session is not None and session.client == client and session.application == application:
            return session
        if session is not None:
            channel.session = None
            if self.sessions.end(session) and session.client != client:
                self._gone(session)
        session = Session(client, application, channel.user or "", channel, self._clock())
        older = self.sessions.begin(session)
        channel.session = session
        if older is not None:
            self._metrics.displaced.inc()
            older.channel.session = None
            if older.channel is not channel:
                older.channel.close(DISPLACED, "the client came on another channel")
        self._come(session)
        return session

    async def _durable(self, channel: Channel, made: Sequence[Row]) -> bool:
        try:
            await self._write(made)
        except TidingsError as error:
            logger.warning("a message's rows could not be written: %s", error)
            self._count("unavailable")
            channel.send(FromService(error=Fault("unavailable", "what you sent could not be kept", RETRY)))
            return False
        return True

    def _slow_down(self, channel: Channel, now: float, wait: float) -> None:
        self._metrics.limited.labels("rate").inc()
        if now - channel.told >= 1.0:  # one word a second: an answer to each would make it worse
            channel.told = now
            channel.send(FromService(error=Fault("rate", "you say too much", round(wait, 3))))

    def _refuse(self, channel: Channel, error: BadMessage) -> None:
        if error.code == "large":
            self._metrics.limited.labels("large").inc()
        else:
            self._count(error.code)
        channel.faults += 1
        channel.send(FromService(error=Fault(error.code, str(error))))
        if channel.faults >= PATIENCE:
            channel.close(MALFORMED, "too many messages that make no sense")

    def _stale(self, channel: Channel, reason: str) -> None:
        self._count(reason)
        channel.send(FromService(stale=True))

    def _invalid(self, channel: Channel) -> None:
        self._count("forged")
        channel.send(FromService(invalid="this is no token of ours"))

    def _count(self, reason: str) -> None:
        self._metrics.refused.labels(reason).inc()

    def _identity_of(self, user: str) -> str:
        """What a token is bound to: the service's identity, and the user if users are asked who they are."""
        if not user:
            return self._identity()
        return f"{self._identity()}#{hashlib.sha256(user.encode()).hexdigest()[:16]}"


def _user_of(identity: str) -> str:
    return identity.partition("#")[2]
