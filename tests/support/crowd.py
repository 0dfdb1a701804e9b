"""A hostile address: `python -m tests.support.crowd URL ADDRESS` does all it can against a gateway until it is killed.

It prints what it has done: silent, half and slow requests (`sockets`), bodies of 8 MiB (`bodies`), clients that nobody
knows (`polls`), and as many registrations as messages can hold (`entries`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import aiohttp

HELLO = {"v": "1.0", "hello": {"nonce": "n", "application": "crowd"}}
SLOW = b"POST /v1/poll HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n"
LARGE = b'{"send":[' + b"{}," * (8 * 2**20 // 3) + b'{}],"wait":0}'


async def sockets(http: aiohttp.ClientSession, url: str, address: str) -> None:
    place = urlsplit(url)
    writers = []
    for sends in [b"", b"GET /v1/client HTTP/1.1\r\nX-Half: ", SLOW] * 100:
        _, writer = await asyncio.open_connection(place.hostname, place.port, local_addr=(address, 0))
        writer.write(sends)
        writers.append(writer)
    for _ in range(10):
        await asyncio.sleep(0.1)
        for writer in writers[2::3]:
            if not writer.is_closing():
                writer.write(b"[")
    for writer in writers:
        writer.close()


async def bodies(http: aiohttp.ClientSession, url: str, address: str) -> None:
    async with http.post(f"{url}/v1/poll", data=LARGE) as answer:
        await answer.read()


async def polls(http: aiohttp.ClientSession, url: str, address: str) -> None:
    async def poll() -> None:
        async with http.post(f"{url}/v1/poll", json={"send": [HELLO], "wait": 50}) as answer:
            await answer.read()

    await asyncio.wait([asyncio.create_task(poll()) for _ in range(100)], timeout=2.0)


async def entries(http: aiohttp.ClientSession, url: str, address: str) -> None:
    async with http.ws_connect(f"{url}/v1/client", protocols=["tidings.thialfi.v1"]) as socket:
        await socket.send_json(HELLO)
        heard = await socket.receive_json(timeout=5)
        token = heard["grant"]["token"]
        for number in range(40):
            names = [[f"o{number * 3000 + one}", "1"] for one in range(3000)]
            await socket.send_json({"v": "1.0", "token": token, "register": names})


Work = Callable[[aiohttp.ClientSession, str, str], Awaitable[None]]


async def again(work: Work, url: str, address: str) -> None:
    connector = aiohttp.TCPConnector(limit=0, local_addr=(address, 0), force_close=True)
    async with aiohttp.ClientSession(connector=connector) as http:
        while True:
            with contextlib.suppress(OSError, aiohttp.ClientError, TimeoutError, KeyError, TypeError):
                async with asyncio.timeout(10):
                    await work(http, url, address)
            print(work.__name__, flush=True)
            await asyncio.sleep(0.05)


async def main(url: str, address: str) -> None:
    await asyncio.gather(*(again(work, url, address) for work in (sockets, bodies, polls, entries)))


if __name__ == "__main__":
    os.nice(5)
    logging.disable()
    asyncio.run(main(*sys.argv[1:]))
