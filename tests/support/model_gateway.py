"""A gateway around the model of the service: real WebSockets and long polls, in a thread of the test."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from types import TracebackType
from typing import Any

from aiohttp import WSMsgType, web

from tests.support.service_model import Service
from tidings_thialfi.protocol.constants import SUBPROTOCOL
from tidings_thialfi.protocol.messages import Fault, FromClient, FromService, encode, parse_client


class ModelGateway:
    """`websockets` says whether there are any; `closes` is the code with which each is closed at its first message."""

    def __init__(self, *, websockets: bool = True, closes: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.service = Service()
        self.received: list[FromClient] = []
        self.denied = False
        self._websockets, self._closes, self._tls = websockets, closes, tls
        self._sockets: dict[web.WebSocketResponse, int | None] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None
        self.port = 0

    def __enter__(self) -> ModelGateway:
        self._thread.start()
        self._do(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        self._do(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def address(self) -> str:
        return f"{'wss' if self._tls else 'ws'}://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        return len(self._sockets)

    def registered(self) -> list[set[str]]:
        return [set(about.registered()) for about in list(self.service.clients.values())]

    def publish(self, name: str, version: int) -> None:
        """Publish, and tell whoever is connected."""
        self._do(self._publish(name, version))

    def close_all(self, code: int) -> None:
        self._do(self._close_all(code))

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_get("/v1/client", self._client)
        app.router.add_post("/v1/poll", self._poll)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _publish(self, name: str, version: int) -> None:
        self.service.publish(name, version)
        for socket, client in list(self._sockets.items()):
            if client in self.service.clients:
                await socket.send_str(encode(self.service.repeat(client)))

    async def _close_all(self, code: int) -> None:
        for socket in list(self._sockets):
            await socket.close(code=code)

    def _take(self, text: str) -> tuple[FromService, int | None]:
        message = parse_client(text)
        self.received.append(message)
        if self.denied and message.hello is not None:
            return FromService(error=Fault("denied", "you are not let in")), None
        answer = self.service.take(message)
        owner = self.service._owner(message.token)
        return answer, answer.grant.client if answer.grant else owner[0] if owner else None

    async def _client(self, request: web.Request) -> web.StreamResponse:
        if not self._websockets:
            return web.Response(status=404)
        socket = web.WebSocketResponse(protocols=(SUBPROTOCOL,))
        await socket.prepare(request)
        self._sockets[socket] = None
        try:
            async for frame in socket:
                assert frame.type is WSMsgType.TEXT
                if self._closes:
                    await socket.close(code=self._closes)
                    break
                answer, self._sockets[socket] = self._take(frame.data)
                await socket.send_str(encode(answer))
        finally:
            self._sockets.pop(socket, None)
        return socket

    async def _poll(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        answers = []
        for message in body["send"]:
            if message.keys() == {"v", "token"}:
                answers += await self._held(int(message["token"].split(".")[0]), body["wait"])
            else:
                answers.append(json.loads(encode(self._take(json.dumps(message))[0])))
        return web.json_response({"receive": answers})

    async def _held(self, client: int, wait: float) -> list[Any]:
        for _ in range(int(wait / 0.02)):
            if client not in self.service.clients:
                return [json.loads(encode(FromService(invalid="not known")))]
            if (found := self.service.repeat(client)).notify:
                return [json.loads(encode(found))]
            await asyncio.sleep(0.02)
        return []
