"""Long polls: a client without a WebSocket. What it is sent waits here for its next poll."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidings_thialfi.gateway.channels import PollChannel
from tidings_thialfi.gateway.connection_limits import AddressQuota
from tidings_thialfi.gateway.dispatch import Dispatcher
from tidings_thialfi.gateway.options import GatewayOptions
from tidings_thialfi.protocol.constants import MAX_TOKEN_BYTES
from tidings_thialfi.protocol.fields import malformed, opaque, unique

MAX_POLL_MESSAGES = 64
MAX_WAIT_S = 3600.0


class TooManyPollers(Exception):
    """So many clients poll, in all or from one address, that another cannot."""


@dataclass(frozen=True, slots=True)
class Poll:
    """A poll: its messages, how long it is to be held, and the key of the channel that it goes on with."""

    messages: list[Any]
    wait: float
    channel: str | None

    def texts(self) -> Iterator[str]:
        """The messages, as they travel. Without blanks: one that was small enough must not grow."""
        for one in self.messages:
            try:
                yield json.dumps(one, ensure_ascii=False, separators=(",", ":"))
            except RecursionError:
                yield ""  # which makes as little sense


@dataclass(frozen=True, slots=True)
class PollAnswer:
    """What there is for the client, and the key of its channel, if it has one."""

    messages: list[str]
    channel: str | None

    def encode(self) -> str:
        """As it travels."""
        key = "" if self.channel is None else f',"channel":"{self.channel}"'
        return f'{{"receive":[{",".join(self.messages)}]{key}}}'


class Polls:
    """The clients that poll. They count for their address while they are online, and not only while they ask.

    `keyed`: a poll goes on with a channel by its key alone, and not by the token of its client.
    """

    def __init__(self, dispatcher: Dispatcher, options: GatewayOptions, *, keyed: bool) -> None:
        self._dispatcher = dispatcher
        self._options = options
        self._keyed = keyed
        self._quota = AddressQuota(most=options.max_connections, most_per_address=options.max_per_address)
        self._by_client: dict[int, PollChannel] = {}
        self._by_key: dict[str, PollChannel] = {}

    async def answer(self, body: bytes, address: str, authorization: str | None) -> PollAnswer:
        """What there is for the client, after taking what it sends; `BadMessage` if the body is no poll."""
        poll = poll_of(body, self._options.poll_wait)
        channel = self._known(poll) or self._fresh(address, authorization)
        channel.polling += 1
        try:
            for text in poll.texts():
                await self._dispatcher.receive(channel, text)
                if channel.session is None:
                    break  # whose the others are is not known
            if channel.session is not None:
                self._keep(channel, channel.session.client)
            found = await channel.receive(poll.wait if channel.session is not None else 0.0)
            return PollAnswer(found, channel.key if channel.key in self._by_key else None)
        finally:
            channel.polling -= 1
            channel.polled = time.monotonic()
            if channel.closed or channel.key not in self._by_key:
                self._forget(channel)

    def sweep(self) -> None:
        """End the sessions of clients that have stopped polling."""
        now = time.monotonic()
        for channel in list(self._by_key.values()):
            idle = not channel.polling and now - channel.polled >= self._options.poll_gap
            if idle or channel.closed:
                self._forget(channel)

    def close(self, code: int, reason: str) -> None:
        """Close the channels of all."""
        for channel in list(self._by_key.values()):
            channel.close(code, reason)
            self._forget(channel)

    def _known(self, poll: Poll) -> PollChannel | None:
        """The channel that a poll goes on with."""
        found = None if poll.channel is None else self._by_key.get(poll.channel)
        if found is None and not self._keyed:
            found = self._by_client.get(self._dispatcher.client_of(next(poll.texts())))
        return found if found is not None and not found.closed else None

    def _fresh(self, address: str, authorization: str | None) -> PollChannel:
        made = PollChannel(self._options.max_queue, address, authorization, self._options.bucket(), time.monotonic())
        if self._quota.accept(made.counted or ""):
            raise TooManyPollers
        made.counts = True
        return made

    def _keep(self, channel: PollChannel, client: int) -> None:
        channel.clients.add(client)
        self._by_client[client] = channel
        self._by_key[channel.key] = channel

    def _forget(self, channel: PollChannel) -> None:
        for client in channel.clients:
            if self._by_client.get(client) is channel:
                del self._by_client[client]
        self._by_key.pop(channel.key, None)
        if channel.counts:
            channel.counts = False
            self._quota.release(channel.counted or "")
        self._dispatcher.leave(channel)


def poll_of(body: bytes, longest: float) -> Poll:
    """A poll, which is held for so long at most.

    >>> poll = poll_of(b'{"send": [{"v": "1.0"}], "wait": 900}', 55.0)
    >>> list(poll.texts()), poll.wait
    (['{"v":"1.0"}'], 55.0)
    """
    try:
        value = json.loads(body, object_pairs_hook=unique)
        messages, wait, channel = value["send"], value.get("wait"), value.get("channel")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise malformed("a poll is an object with `send`, an array of messages, and `wait`") from None
    if not isinstance(messages, list) or not 1 <= len(messages) <= MAX_POLL_MESSAGES:
        raise malformed(f"a poll sends 1 to {MAX_POLL_MESSAGES} messages: the first says whose it is")
    if channel is not None:
        channel = opaque("channel", channel, MAX_TOKEN_BYTES)
    if wait is None:
        return Poll(messages, longest, channel)
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= MAX_WAIT_S:
        raise malformed("`wait` is a number of seconds")
    return Poll(messages, min(float(wait), longest), channel)
