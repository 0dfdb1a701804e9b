"""The client as a state machine: application calls, messages and the time go in; messages and events come out.

It does no input or output, and knows no clock and no chance but those passed in, so that every run can be repeated.
Whoever drives it calls `messages` whenever something was put in and whenever `wake` has come, sends what that returns,
and calls the listener with what `next_event` returns. The channel may lose, repeat and reorder what is sent.

`docs/thialfi-protocol.md` says what a client must do, in the order of this module.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from tidings.errors import InvalidOption
from tidings_thialfi.client.backoff import Backoff
from tidings_thialfi.client.dedup import Deduplicator
from tidings_thialfi.client.events import NEVER, Events
from tidings_thialfi.client.listener import Event, Handle
from tidings_thialfi.client.pace import Pace
from tidings_thialfi.client.registrations import Changes, Registrations, Verdict, check_name
from tidings_thialfi.client.resume import Resuming
from tidings_thialfi.client.saved_state import Saved, restore, save
from tidings_thialfi.protocol.constants import MAX_APPLICATION_BYTES, MAX_NUMBER
from tidings_thialfi.protocol.digests import Digest
from tidings_thialfi.protocol.messages import Ack, Fault, FromClient, FromService, Grant, Hello, Notice, split
from tidings_thialfi.protocol.rate_limit import Bucket

_STEADY_GRANT_S = 60.0  # a token that was good for so long was a good one


class ClientCore:
    """One client of one application. `now` is any clock that does not go back; `wall` is the time since 1970."""

    def __init__(self, application: str, *, rng: random.Random, pace: Pace | None = None) -> None:
        if not 1 <= len(application.encode()) <= MAX_APPLICATION_BYTES:
            raise InvalidOption(f"application {application[:40]!r} has to have 1 to {MAX_APPLICATION_BYTES} bytes")
        self.application = application
        self.halted = False
        self._rng, self._pace = rng, pace or Pace()
        self._bucket = Bucket(self._pace.rate, self._pace.burst)
        self._hellos = self._backoff()
        self._repeats, self._syncs = self._backoff(self._pace.answer), self._backoff(2 * self._pace.answer)
        self._registrations = Registrations(0)
        self._dedup = Deduplicator()
        self._events = Events(self._stands, self._backoff)
        self._resuming = Resuming(self._pace.settle, self._pace.resume, self._pace.held)
        self._acks: dict[tuple[str, bool], Ack] = {}
        self._acks_due = NEVER
        self._token: str | None = None
        self._stale = False
        self._asks = False  # for a digest, with what is sent next
        self._nonce: str | None = None
        self._connected = False
        self._theirs: tuple[Digest, int] | None = None
        self._interval = self._pace.heartbeat
        self._quiet = self._hello = self._beat = self._granted = -NEVER
        self._repeat = self._sync = self._behind = NEVER

    # What the application does.

    def start(self, state: bytes | None, *, now: float, wall: float) -> None:
        """Begin, with the state that an earlier run wrote, if there is one. State that is broken counts as none."""
        saved = restore(state, self.application)
        self._registrations = Registrations(max(0, int(wall * 1e6)), resuming=saved is not None)
        if saved is not None:
            self._token = saved.token
            self._registrations.adopt(saved.client, fresh=False)
            self._resuming.begin(now)
            self._begin()

    def register(self, name: str, version: int | None = None, *, now: float) -> None:
        """Intend to be registered for an object, of which the application has this version."""
        check_name(name)
        if version is not None and not (isinstance(version, int) and 0 <= version <= MAX_NUMBER):
            raise InvalidOption(f"{version!r} is no version of object {name[:32]!r}: it is from 0 to 2^63-1")
        self._registrations.register(name)
        self._dedup.track(name, version)
        self._resuming.registered(now)
        for notice in self._resuming.release(name):
            self._take_notice(notice)

    def unregister(self, name: str, *, now: float) -> None:
        """Intend not to be registered for an object."""
        self._registrations.unregister(name)
        self._drop(name)
        self._resuming.registered(now)

    def acknowledge(self, handle: Handle) -> None:
        """The application has dealt with a notification."""
        if not isinstance(handle, Handle):
            raise InvalidOption("what is acknowledged is a handle: the one that the listener's method was given")
        if ack := self._dedup.acknowledge(handle, self._registrations.client):
            self._acknowledge(ack)
        self._events.settle(("notify_unknown" if handle.unknown else "notify", handle.object))

    # What the listener is called with.

    def next_event(self) -> Event | None:
        """The next event for the listener, which is then to be answered by `delivered` or `redeliver`."""
        return self._events.next()

    def fault(self, code: str, message: str, *, permanent: bool = False) -> None:
        """Tell the listener that something is wrong; if `permanent`, give up, and say so of each object."""
        if permanent and not self.halted:
            self.halted = True
            for name in self._registrations.intended:
                self._events.emit(Event("registration_failure", (name, False, message), name))
        self._events.emit(Event("error", (code, message, permanent)))

    def delivered(self, event: Event, *, now: float) -> None:
        """The listener has returned. A notification is acknowledged apart from this."""
        if event.handle is None:
            self._events.settle(event.key)
        if event.method == "reissue_registrations":
            self._resuming.reissued(now)

    def redeliver(self, event: Event, *, now: float) -> None:
        """The listener has failed: call it again later, if nothing newer has come by then."""
        self._events.fail(event, now)

    # What the channel does.

    @property
    def token(self) -> str | None:
        """The token that the service accepts, as far as we know."""
        return None if self._stale else self._token

    def connected(self, *, now: float, introduce: bool = False) -> None:
        """There is a channel. Whatever was sent and not answered may be lost: it is sent again at once.

        With `introduce`, say hello first, although there is a token: the service wants credentials on each channel.
        """
        self._connected = True
        if introduce and self.token is not None:
            self._stale = True
            self._hello = now
        self._registrations.repeat()
        if self._nonce is not None:
            self._hello = now
        self._beat = now

    def disconnected(self) -> None:
        """There is no channel: nothing is sent until there is one."""
        self._connected = False

    def received(self, message: FromService, *, now: float) -> None:
        """Take in a message of the service."""
        if message.interval is not None:
            self._interval = max(1.0, message.interval)
            self._beat = min(self._beat, self._next_beat(now))
        if message.quiet is not None:
            self._be_quiet(message.quiet, now)
        if message.error is not None:
            self._take_error(message.error, now)
        if message.grant is not None:
            self._take_grant(message.grant, now)
        if self._token is None:
            return  # it is about a client that we are not any more
        ours = message.token in (None, self._token)  # else it is late, and about one that we have no more
        if message.invalid is not None and ours:
            self._lose_token(now)
            return
        if message.stale and ours and not self._stale:
            self._stale = True
            self._say_hello(now)
        for status in message.status:
            self._progress(self._registrations.status(status), now)
        for failure in message.failed:
            if self._registrations.failed(failure):
                self._drop(failure.name)
                arguments = failure.name, failure.transient, failure.reason
                self._events.emit(Event("registration_failure", arguments, failure.name))
        for notice in message.notify:
            self._take_notice(notice)
        if message.digest is not None and message.seen is not None:
            self._theirs = message.digest, message.seen
            self._compare(now)
        if message.sync and not self._busy():
            self._begin_sync(now)
        if message.all:
            self._events.emit(Event("notify_all"))
        if self._registrations.exhausted:
            self._lose_token(now)  # under another client number they begin anew
            self._registrations.count_anew()

    # What is sent, and when.

    def messages(self, *, now: float) -> list[FromClient]:
        """What to send now. A hello has no credentials: whoever sends it puts them in."""
        self._events.act(now)
        if not self._connected or self.halted or now < self._quiet:
            return []
        if self._token is None or self._stale:
            if now < self._hello or not self._bucket.take(now):
                return []
            self._nonce = f"{self._rng.getrandbits(128):032x}"
            self._hello = now + self._hellos.next()
            return [FromClient(self._token, hello=Hello(self._nonce, self.application))]
        self._act_on_time(now)
        if self._acks:
            # One message for all that the listener is just being told of, unless it takes its time.
            self._acks_due = min(self._acks_due, now + self._pace.gather) if self._events.waiting else now
        found = []
        for message in self._due(now):
            if not self._bucket.take(now):
                break
            self._sent(message, now)
            found.append(message)
        return found

    def wake(self, *, now: float) -> float:
        """When to call `messages` again, if nothing happens before."""
        events = self._events.wake()
        if not self._connected or self.halted:
            return events
        if self._token is None or self._stale:
            due = self._hello
        elif self._registrations.unsent or self._registrations.parts:
            due = now
        else:
            due = min(self._acks_due, self._beat, self._repeat, self._sync, self._resuming.wake)
        return min(events, max(due, self._quiet, self._bucket.ready(now)))

    def _due(self, now: float) -> Iterator[FromClient]:
        mine = self._registrations
        # Before the application has registered for everything again, its digest would only look like a difference.
        message = FromClient(self._token, None if self._resuming.settling else mine.digest)
        for part in list(mine.parts):
            yield replace(message, sync=part)
        operations = [(name, mine.outstanding[name]) for name in mine.unsent]
        yielded = bool(mine.parts)
        acks = tuple(self._acks.values()) if operations or now >= self._acks_due else ()
        if operations or acks:
            yielded = True
            yield from split(
                replace(
                    message,
                    register=tuple((name, one.number) for name, one in operations if one.register),
                    unregister=tuple((name, one.number) for name, one in operations if not one.register),
                    acknowledge=acks,
                    heartbeat=self._asks,
                )
            )
        if not yielded and now >= self._beat:
            yield replace(message, heartbeat=True)

    def _sent(self, message: FromClient, now: float) -> None:
        mine = self._registrations
        for name, _ in (*message.register, *message.unregister):
            mine.unsent.pop(name, None)
        for ack in message.acknowledge:
            self._acks.pop((ack.name, ack.unknown), None)
        if not self._acks:
            self._acks_due = NEVER
        self._asks &= not message.heartbeat
        if message.sync is not None:
            mine.parts.popleft()
            if not mine.parts:
                self._sync = now + self._syncs.next()
        if mine.outstanding and self._repeat == NEVER:
            self._repeat = now + self._repeats.next()
        self._beat = self._next_beat(now)

    def _act_on_time(self, now: float) -> None:
        mine = self._registrations
        if now >= self._repeat:
            self._repeat = NEVER
            mine.repeat()
            self._asks = True
        if now >= self._sync:
            self._sync = NEVER
            if mine.sync is not None:
                mine.begin_sync()
        if self._resuming.settled(now):
            self._beat = now  # with the digest
            self._compare(now)
        if self._resuming.gave_up(now):
            self._begin_sync(now)

    # Tokens.

    def _take_grant(self, grant: Grant, now: float) -> None:
        if grant.nonce != self._nonce:
            return  # an answer to an earlier hello, or the same once more
        mine = self._registrations
        fresh = not (grant.again and grant.client == mine.client)
        first, again = mine.client is None, mine.client is not None and fresh
        self._nonce, self._token, self._stale = None, grant.token, False
        if fresh:
            self._resuming.end()
            self._dedup.forget_numbers()
            self._acks = {key: ack for key, ack in self._acks.items() if not ack.unknown}
            self._theirs = None
        if first:
            self._begin()
        self._progress(mine.adopt(grant.client, fresh=fresh), now)
        if now - self._granted > _STEADY_GRANT_S:
            self._hellos.reset()
        self._granted = self._beat = now
        self._repeat = NEVER
        self._events.emit(Event("write_state", (save(Saved(grant.client, grant.token), self.application),)))
        if again:
            self._events.emit(Event("reissue_registrations"))

    def _begin(self) -> None:
        """The client has a number and a token: the application can go on."""
        self._events.emit(Event("ready"))
        self._events.emit(Event("reissue_registrations"))

    def _lose_token(self, now: float) -> None:
        self._token = self._theirs = None
        self._stale = False
        self._say_hello(now)

    def _say_hello(self, now: float) -> None:
        # A service that grants a token and refuses it at once is not to be asked in a tight loop.
        self._hello = now if now - self._granted > _STEADY_GRANT_S else now + self._hellos.next()

    def _take_error(self, error: Fault, now: float) -> None:
        if error.retry is not None:
            self._be_quiet(error.retry, now)
        self.fault(error.code, error.message, permanent=error.retry is None and error.code in ("denied", "version"))

    def _be_quiet(self, seconds: float, now: float) -> None:
        self._quiet = max(self._quiet, now + seconds * self._rng.uniform(1, 1.1))

    # Registrations.

    def _compare(self, now: float) -> None:
        if self._theirs is None:
            return
        mine = self._registrations
        verdict = mine.compare(*self._theirs, self._repeats.attempts)
        if self._resuming.settling:
            return
        if verdict is Verdict.BEHIND:
            if now >= self._behind:
                self._begin_sync(now)
            elif self._behind == NEVER:
                self._behind = now + self._pace.resume  # by then, one that is not late has come, if it is asked for
                self._beat = min(self._beat, self._behind)
            return
        self._behind = NEVER
        if verdict is Verdict.AGREE:
            self._resuming.end()
            self._syncs.reset()
            self._sync = NEVER
            self._progress(mine.agree(), now)
        elif verdict is Verdict.DIFFER:
            self._begin_sync(now)

    def _begin_sync(self, now: float) -> None:
        if self._resuming.settling or now < self._sync != NEVER:
            return
        self._resuming.end()
        self._registrations.begin_sync()
        self._repeat = self._behind = NEVER

    def _busy(self) -> bool:
        """Whether a difference between the digests is no surprise, because something is on its way."""
        mine = self._registrations
        return mine.sync is not None or bool(mine.outstanding) or self._resuming.settling

    def _progress(self, changes: Changes, now: float) -> None:
        for name, registered in changes:
            self._events.emit(Event("registration_status_changed", (name, registered), name))
        if not self._registrations.outstanding:
            self._repeats.reset()
            self._repeat = NEVER
        elif changes:
            self._repeats.reset()
            self._repeat = min(self._repeat, now + self._repeats.next())

    # Notifications.

    def _take_notice(self, notice: Notice) -> None:
        client = self._registrations.client
        assert client is not None
        found = self._dedup.take(notice, client)
        if isinstance(found, Ack):
            self._acknowledge(found)
        elif isinstance(found, Handle):
            method, more = ("notify_unknown", ()) if found.unknown else ("notify", (found.version, notice.payload))
            self._events.emit(Event(method, (found.object, *more), found.object, found))
        elif self._registrations.resuming and notice.name not in self._registrations.intended:
            self._resuming.hold(notice)

    def _acknowledge(self, ack: Ack) -> None:
        key = ack.name, ack.unknown
        self._acks[key] = max(ack, self._acks.get(key, ack), key=lambda one: one.version)

    def _drop(self, name: str) -> None:
        self._dedup.untrack(name)
        for method in ("notify", "notify_unknown"):
            self._events.drop((method, name))

    def _stands(self, event: Event) -> bool:
        return event.handle is None or self._dedup.current(event.handle)

    # Time.

    def _next_beat(self, now: float) -> float:
        return now + self._interval * self._rng.uniform(0.8, 1)

    def _backoff(self, first: float | None = None) -> Backoff:
        return Backoff(first or self._pace.first_retry, self._pace.most_retry, self._rng)
