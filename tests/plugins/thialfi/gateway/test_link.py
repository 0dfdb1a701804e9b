"""A link to another gateway, with a real server at its other end."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import pytest
from aiohttp import web

from tidings_thialfi.gateway import relay
from tidings_thialfi.gateway.relay import RELAY_SUBPROTOCOL, Link, RelayAnswer


def test_a_link_whose_other_end_falls_silent_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "HEARTBEAT_S", 0.2)
    opened: list[str] = []

    async def silent(request: web.Request) -> web.WebSocketResponse:
        """Answers what it is asked first, and nothing after that, not even a ping."""
        socket = web.WebSocketResponse(protocols=[RELAY_SUBPROTOCOL], autoping=False)
        await socket.prepare(request)
        opened.append(await socket.receive_str())
        await socket.send_str(json.dumps(["have", ["7"]]))
        async for _ in socket:
            pass
        return socket

    async def heard() -> list[RelayAnswer]:
        app = web.Application()
        app.router.add_get("/v1/relay", silent)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        link = Link(f"http://127.0.0.1:{runner.addresses[0][1]}", "secret")
        link.want([7])
        found = []
        try:
            async with aclosing(link.events()) as events, asyncio.timeout(20):
                async for event in events:
                    assert isinstance(event, RelayAnswer)
                    found.append(event)
                    if len(found) == 3:
                        return found
        finally:
            await runner.cleanup()
        raise AssertionError("the events of a link have no end")

    assert asyncio.run(heard()) == [RelayAnswer("have", [7]), RelayAnswer("not", [7]), RelayAnswer("have", [7])]
    assert opened == ['["want", ["7"]]'] * 2
