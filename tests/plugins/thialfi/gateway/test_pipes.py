"""What is written out of a WebSocket: at once if it can be, in order, and not to who is gone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from tidings_thialfi.gateway.channels import SHORT_CHARACTERS, Pipe

PATIENCE_S = 20.0


def with_pipe(test: Callable[[Pipe, aiohttp.ClientWebSocketResponse], Awaitable[None]]) -> None:
    """Run a test with both ends of a real WebSocket."""

    async def run() -> None:
        made: asyncio.Future[Pipe] = asyncio.get_running_loop().create_future()

        async def serve(request: web.Request) -> web.StreamResponse:
            socket = web.WebSocketResponse(compress=False)
            pipe = Pipe(request, socket, ahead=2**16, limit=2**26, stall=PATIENCE_S, gave_up=lambda: None)
            await socket.prepare(request)
            made.set_result(pipe)
            async for _ in socket:
                pass
            return socket

        app = web.Application()
        app.router.add_get("/", serve)
        async with (
            asyncio.timeout(PATIENCE_S),
            TestServer(app) as server,
            aiohttp.ClientSession() as http,
            http.ws_connect(server.make_url("/"), max_msg_size=2**26) as client,
        ):
            await test(await made, client)

    asyncio.run(run())


def test_a_short_text_is_written_before_anything_else_has_its_turn() -> None:
    async def test(pipe: Pipe, client: aiohttp.ClientWebSocketResponse) -> None:
        tasks = asyncio.all_tasks()
        assert pipe.send("short")
        assert (pipe.waiting, asyncio.all_tasks()) == (0, tasks)
        assert await client.receive_str() == "short"
        assert pipe.send("long" * SHORT_CHARACTERS)
        assert pipe.send("short")
        assert pipe.waiting > 4 * SHORT_CHARACTERS
        assert [len(await client.receive_str()) for _ in range(2)] == [4 * SHORT_CHARACTERS, 5]

    with_pipe(test)


def test_short_and_long_texts_come_in_order_to_who_reads_late() -> None:
    async def test(pipe: Pipe, client: aiohttp.ClientWebSocketResponse) -> None:
        chance = random.Random(7)
        texts = [str(n) + "é" * chance.choice((1, 10, SHORT_CHARACTERS // 2, 3 * SHORT_CHARACTERS)) for n in range(999)]
        for text in texts:
            assert pipe.send(text)
        assert pipe.waiting, "there is more than the machine takes for a client"
        assert [await client.receive_str() for _ in texts] == texts
        while pipe.waiting:
            await asyncio.sleep(0.01)
        assert pipe.send("again")
        assert await client.receive_str() == "again"

    with_pipe(test)


def test_who_is_gone_is_sent_nothing() -> None:
    async def test(pipe: Pipe, client: aiohttp.ClientWebSocketResponse) -> None:
        transport = pipe._request.transport
        assert transport is not None
        transport.abort()
        assert not pipe.send("short")
        assert pipe.closed

    with_pipe(test)
