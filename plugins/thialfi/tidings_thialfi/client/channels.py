"""A client's channels to a gateway: a WebSocket, or long polls where a WebSocket cannot be had.

A channel loses what it cannot send: the client's state machine sends again whatever matters.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import urllib.parse
from collections.abc import Callable
from typing import Any, Protocol

from tidings.errors import InvalidOption, PluginMissing
from tidings_thialfi.protocol.constants import MAX_MESSAGE_BYTES, MAX_TOKEN_BYTES, SUBPROTOCOL
from tidings_thialfi.protocol.messages import BadMessage, FromClient, FromService, encode, parse_service

try:
    import aiohttp
except ModuleNotFoundError as error:
    raise PluginMissing("a Thialfi client needs aiohttp: pip install 'tidings[gateway]'") from error

POLL_WAIT_S = 50.0  # below the minute after which many proxies give up on an answer
CONNECT_TIMEOUT_S = 15.0
PING_INTERVAL_S = 30.0
MAX_POLL_BYTES = 64 * MAX_MESSAGE_BYTES

logger = logging.getLogger(__name__)
Receive = Callable[[FromService], None]


class ChannelRefused(Exception):
    """The service ended the channel, and a new one would end alike."""


class NoWebSocket(Exception):
    """Something answers at the address, and it is no WebSocket."""


class ChannelBroken(Exception):
    """The channel could not be opened, or has ended."""


class GatewayChannel(Protocol):
    """One connection to a gateway. `run` returns never: it raises when the channel has ended."""

    async def open(self) -> None:
        """Connect, or raise."""

    async def run(self, receive: Receive) -> None:
        """Hand on what comes, until the channel ends."""

    async def send(self, message: FromClient) -> None:
        """Send a message, or lose it."""

    async def close(self) -> None:
        """End the channel."""


def addresses(address: str) -> tuple[str, str]:
    """Where a gateway's WebSocket and its long polls are.

    >>> addresses("wss://gateway.example/thialfi/")
    ('wss://gateway.example/thialfi/v1/client', 'https://gateway.example/thialfi/v1/poll')
    """
    parts = urllib.parse.urlsplit(address)
    secure = {"wss": True, "https": True, "ws": False, "http": False}.get(parts.scheme)
    if secure is None or not parts.hostname:
        raise InvalidOption("the gateway's address is ws://<host>:<port>, or wss:// for TLS")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidOption("a gateway's address has no user, password or query: pass credentials as a callable")
    rest = f"{parts.netloc}{parts.path.rstrip('/')}/v1"
    return f"{'wss' if secure else 'ws'}://{rest}/client", f"{'https' if secure else 'http'}://{rest}/poll"


def new_session() -> aiohttp.ClientSession:
    """What all channels of a client share. It keeps no cookies: they are for browsers."""
    return aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())


class WebSocketChannel:
    """A WebSocket, one message a frame."""

    def __init__(self, session: aiohttp.ClientSession, address: str, tls: ssl.SSLContext | None) -> None:
        self._session, self._address, self._tls = session, address, tls
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def open(self) -> None:
        """Connect, or raise."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                self._socket = await self._session.ws_connect(
                    self._address,
                    protocols=(SUBPROTOCOL,),
                    ssl=self._tls or True,
                    heartbeat=PING_INTERVAL_S,
                    max_msg_size=2 * MAX_MESSAGE_BYTES,
                )
        except aiohttp.WSServerHandshakeError as error:
            raise NoWebSocket(f"the gateway answered {error.status} where a WebSocket was wanted") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _unreached(error, self._address) from None

    async def run(self, receive: Receive) -> None:
        """Hand on what comes, until the channel ends."""
        assert self._socket is not None
        async for frame in self._socket:
            if frame.type is aiohttp.WSMsgType.TEXT:
                _hand_on(frame.data, receive)
        code = self._socket.close_code or 1006
        if 3500 <= code < 4000:
            raise ChannelRefused(f"the gateway closed the WebSocket for good, with code {code}")
        raise ChannelBroken(f"the WebSocket was closed, with code {code}")

    async def send(self, message: FromClient) -> None:
        """Send a message, or lose it."""
        if self._socket is not None and not self._socket.closed:
            with contextlib.suppress(OSError, RuntimeError, aiohttp.ClientError):
                await self._socket.send_str(encode(message))

    async def close(self) -> None:
        """End the channel."""
        if self._socket is not None:
            with contextlib.suppress(OSError, TimeoutError, aiohttp.ClientError):
                async with asyncio.timeout(2):
                    await self._socket.close()


class LongPollChannel:
    """Long polls: one is always under way, and says nothing but whose it is; what is to be said goes beside it."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        address: str,
        tls: ssl.SSLContext | None,
        token: Callable[[], str | None],
    ) -> None:
        self._session, self._address, self._tls = session, address, tls
        self._token = token
        self._receive: Receive | None = None
        self._answered = asyncio.Event()
        self._broken: ChannelBroken | ChannelRefused | None = None
        self._key: str | None = None

    async def open(self) -> None:
        """Nothing is to be opened."""

    async def run(self, receive: Receive) -> None:
        """Poll, as soon as the client has a token."""
        self._receive = receive
        loop = asyncio.get_running_loop()
        while True:
            self._answered.clear()
            token = self._token()
            if token is None:
                # Until there is a token, answers come to what is sent.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self._answered.wait()
                if self._broken is not None:
                    raise self._broken
                continue
            began = loop.time()
            if not await self._post([FromClient(token)], POLL_WAIT_S) or self._token() is None:
                await asyncio.sleep(max(0.0, began + 1 - loop.time()))  # whatever answers at once is not to be hurried

    async def send(self, message: FromClient) -> None:
        """Send a message, or lose it."""
        try:
            await self._post([message], 0)
        except (ChannelBroken, ChannelRefused) as error:
            self._broken = error
            self._answered.set()

    async def close(self) -> None:
        """Nothing is to be closed."""

    async def _post(self, messages: list[FromClient], wait: float) -> int:
        texts = ",".join(map(encode, messages))
        key = "" if self._key is None else f',"channel":{json.dumps(self._key)}'
        limit = aiohttp.ClientTimeout(total=wait + CONNECT_TIMEOUT_S)
        try:
            async with self._session.post(
                self._address,
                data=f'{{"send":[{texts}],"wait":{wait}{key}}}'.encode(),
                headers={"Content-Type": "application/json"},
                ssl=self._tls or True,
                timeout=limit,
                allow_redirects=False,
            ) as answer:
                if answer.status != 200:
                    raise ChannelBroken(f"the gateway answered {answer.status} to a poll")
                whole = json.loads(await _body(answer))
                found = whole["receive"]
                if isinstance(named := whole.get("channel"), str) and len(named) <= MAX_TOKEN_BYTES:
                    self._key = named
                # As the gateway wrote it: a message that was small enough must not grow.
                received = [_dump(one) for one in found] if isinstance(found, list) else []
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _unreached(error, self._address) from None
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ChannelBroken("the answer to a poll is no answer of a gateway") from None
        if self._receive is not None:
            for text in received:
                _hand_on(text, self._receive)
        self._answered.set()
        return len(received)


def _unreached(error: Exception, address: str) -> ChannelBroken:
    """Why a gateway cannot be reached; one that speaks TLS says nothing to who does not."""
    plain = isinstance(error, aiohttp.ServerDisconnectedError) and address.startswith(("ws:", "http:"))
    hint = "; if it speaks TLS, its address begins with wss://" if plain else ""
    return ChannelBroken(f"the gateway cannot be reached: {str(error) or 'no answer'}{hint}")


def _dump(message: Any) -> str:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":"))


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for some in answer.content.iter_any():
        body += some
        if len(body) > MAX_POLL_BYTES:
            raise ChannelBroken(f"the gateway answered more than {MAX_POLL_BYTES:,} bytes to a poll")
    return bytes(body)


def _hand_on(text: str, receive: Receive) -> None:
    try:
        message = parse_service(text)
    except BadMessage as error:
        logger.warning("a message of the gateway is left alone: %s", error)
        return
    receive(message)
