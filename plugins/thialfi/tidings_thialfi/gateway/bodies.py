"""Reading the body of a request: so many bytes, in so many seconds, as they were sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from tidings_thialfi.gateway.metrics import GatewayMetrics


async def read_body(
    request: web.Request,
    most: int,
    seconds: float,
    metrics: GatewayMetrics,
    pay: Callable[[int], None] = lambda size: None,
) -> bytes:
    """The body; an `HTTPException` that says why not. What its head says already is refused before anything is read.

    `pay` is called for each part, and may raise.
    """
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        metrics.refused.labels("malformed").inc()
        raise web.HTTPUnsupportedMediaType(reason="a body is not compressed")
    if (request.content_length or 0) > most:
        raise _too_large(most, metrics)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.content.iter_any():
                pay(len(part))
                body += part
                if len(body) > most:
                    raise _too_large(most, metrics)
    except TimeoutError:
        metrics.limited.labels("timeout").inc()
        raise web.HTTPRequestTimeout(reason=f"a body comes within {seconds:g} s") from None
    except (web.RequestPayloadError, ConnectionError):
        metrics.refused.labels("malformed").inc()
        raise web.HTTPBadRequest(reason="the body is cut off") from None
    return bytes(body)


def _too_large(most: int, metrics: GatewayMetrics) -> web.HTTPException:
    metrics.limited.labels("large").inc()
    return web.HTTPRequestEntityTooLarge(most, reason=f"a body has at most {most:,} bytes")
