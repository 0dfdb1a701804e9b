"""Long polls: a client without a WebSocket. What it is sent waits here for its next poll."""

from __future__ import annotations

import json
import time

from tidings_thialfi.gateway.channels import PollChannel
from tidings_thialfi.gateway.dispatch import Dispatcher
from tidings_thialfi.gateway.options import GatewayOptions
from tidings_thialfi.protocol.fields import malformed, unique

MAX_POLL_MESSAGES = 64


class Polls:
    """The clients that poll."""

    def __init__(self, dispatcher: Dispatcher, options: GatewayOptions) -> None:
        self._dispatcher = dispatcher
        self._options = options
        self._channels: dict[int, PollChannel] = {}

    async def answer(self, body: bytes, address: str, authorization: str | None) -> list[str]:
        """What there is for the client, after taking what it sends; `BadMessage` if the body is no poll."""
        messages, wait = poll_of(body, self._options.poll_wait)
        fresh = PollChannel(self._options.max_queue, address, authorization, self._options.bucket(), time.monotonic())
        channel = self._channels.get(self._dispatcher.client_of(messages[0]), fresh)
        channel.polling += 1
        try:
            for text in messages:
                await self._dispatcher.receive(channel, text)
            if channel.session is not None:
                self._channels[channel.session.client] = channel
            return await channel.receive(wait if channel.session is not None else 0.0)
        finally:
            channel.polling -= 1
            channel.polled = time.monotonic()
            if channel.closed:
                self._forget(channel)

    def sweep(self) -> None:
        """End the sessions of clients that have stopped polling."""
        now = time.monotonic()
        for channel in list(self._channels.values()):
            idle = not channel.polling and now - channel.polled >= self._options.poll_gap
            if idle or channel.closed:
                self._forget(channel)

    def close(self, code: int, reason: str) -> None:
        """Close the channels of all."""
        for channel in list(self._channels.values()):
            channel.close(code, reason)
            self._forget(channel)

    def _forget(self, channel: PollChannel) -> None:
        for client in [client for client, one in self._channels.items() if one is channel]:
            del self._channels[client]
        self._dispatcher.leave(channel)


def poll_of(body: bytes, longest: float) -> tuple[list[str], float]:
    """The messages of a poll, and how long it is to be held.

    >>> poll_of(b'{"send": [{"v": "1.0"}], "wait": 900}', 55.0)
    (['{"v":"1.0"}'], 55.0)
    """
    try:
        value = json.loads(body, object_pairs_hook=unique)
        messages, wait = value["send"], value.get("wait")
        # Without blanks: a message that was small enough must not grow.
        texts = [json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in messages]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise malformed("a poll is an object with `send`, an array of messages, and `wait`") from None
    if not isinstance(messages, list) or not 1 <= len(texts) <= MAX_POLL_MESSAGES:
        raise malformed(f"a poll sends 1 to {MAX_POLL_MESSAGES} messages: the first says whose it is")
    if wait is None:
        return texts, longest
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= 3600:
        raise malformed("`wait` is a number of seconds")
    return texts, min(float(wait), longest)
