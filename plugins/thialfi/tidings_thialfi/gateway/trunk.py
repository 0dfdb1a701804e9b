"""Trunks: many clients on one WebSocket, each behind a tag that the proxy at the other end has chosen."""

from __future__ import annotations

import asyncio
import json
import re

from aiohttp import WSMsgType, web

from tidings_thialfi.gateway.channels import DISCONNECTED, MALFORMED, Pipe, TagChannel
from tidings_thialfi.gateway.dispatch import Dispatcher
from tidings_thialfi.gateway.metrics import GatewayMetrics
from tidings_thialfi.gateway.options import GatewayOptions
from tidings_thialfi.gateway.relay import MAX_BAD_FRAMES
from tidings_thialfi.protocol.messages import Fault, FromService, encode

MAX_MESSAGES_AT_ONCE = 4096  # of a trunk; while so many are worked on its frames are not read
MAX_CLIENTS = 200_000
MAX_STRANGERS = (
    5_000  # tags of which no client is known; above what is worked on at once, so that newcomers are not hit
)

_FRAME = re.compile(r'\s*\[\s*(-?\d{1,19}|"(?:[^"\\]|\\.){1,256}")\s*,\s*')


def split_frame(text: str) -> tuple[str, str] | None:
    """A frame's tag and message, both as they are written; None if it is no frame. The message is not looked into.

    >>> split_frame('[7, {"v": "1.0"}]')
    ('7', '{"v": "1.0"}')
    >>> split_frame('{"v": "1.0"}')
    """
    found, end = _FRAME.match(text), text.rstrip()
    return (found[1], end[found.end() : -1].strip()) if found and end.endswith("]") else None


class Trunk:
    """One trunk, and the clients on it. The messages of each are taken one after the other, those of all at once."""

    def __init__(
        self, pipe: Pipe, address: str, dispatcher: Dispatcher, options: GatewayOptions, metrics: GatewayMetrics
    ) -> None:
        self._pipe = pipe
        self._address = address
        self._dispatcher = dispatcher
        self._options = options
        self._metrics = metrics
        self._channels: dict[str, TagChannel] = {}
        self._strangers: dict[str, None] = {}
        self._room = asyncio.Semaphore(MAX_MESSAGES_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._bad = 0

    async def converse(self, socket: web.WebSocketResponse) -> None:
        """Take frames until the trunk is closed; then all its clients are gone."""
        try:
            async for message in socket:
                frame = split_frame(message.data) if message.type is WSMsgType.TEXT else None
                if frame is not None:
                    await self._take(*frame)
                elif not self._refuse():
                    break
                await self._pipe.until_room()
        finally:
            for channel in self._channels.values():
                channel.open = False
                self._dispatcher.leave(channel)

    def _refuse(self) -> bool:
        """Say that a frame makes no sense, to nobody in particular; False if it was one too many."""
        self._metrics.refused.labels("malformed").inc()
        self._bad += 1
        about = "a trunk's frames are [tag, message]"
        self._pipe.send(f"[null,{encode(FromService(error=Fault('malformed', about)))}]")
        if self._bad == MAX_BAD_FRAMES:
            self._pipe.close(MALFORMED, about)
        return self._bad < MAX_BAD_FRAMES

    async def _take(self, tag: str, text: str) -> None:
        channel = self._channels.get(tag)
        if text == "null":
            if channel is not None:
                channel.open = False
                self._forget(tag)
            return
        if channel is None or not channel.open:
            if len(self._channels) >= MAX_CLIENTS:
                self._metrics.limited.labels("connections").inc()
                self._pipe.send(f"[{tag},null]")
                return
            # The trunk's own credentials are the proxy's, and no client's.
            channel = TagChannel(self._pipe, json.loads(tag), self._address, None, self._options.bucket())
            self._channels[tag] = channel
            self._make_room(tag)
        await self._room.acquire()
        channel.inbox.append(text)
        if not channel.working:
            channel.working = True
            task = asyncio.create_task(self._work(tag, channel))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _make_room(self, tag: str) -> None:
        """There is one more of which no client is known; of too many, the oldest is sent away."""
        self._strangers[tag] = None
        if len(self._strangers) > MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            self._metrics.limited.labels("connections").inc()
            self._channels[oldest].close(DISCONNECTED, "too many strangers")
            self._forget(oldest)

    def _taken(self, tag: str, channel: TagChannel) -> None:
        """A message was: its client may be known now, or have gone meanwhile."""
        if not channel.open:
            self._dispatcher.leave(channel)
        elif channel.session is not None:
            self._strangers.pop(tag, None)

    def _forget(self, tag: str) -> None:
        self._strangers.pop(tag, None)
        self._dispatcher.leave(self._channels.pop(tag))

    async def _work(self, tag: str, channel: TagChannel) -> None:
        try:
            while channel.inbox:
                text = channel.inbox.popleft()
                try:
                    if channel.open:
                        await self._dispatcher.receive(channel, text)
                        self._taken(tag, channel)
                finally:
                    self._room.release()
        finally:
            channel.working = False
