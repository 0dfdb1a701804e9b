"""What every request has to pass, and every answer has: limits, headers, and who may call the console by which name.

A page of somebody else can make a browser send requests here, also under a name of its own that it has come to resolve
to this machine. So only known names are answered, and what changes something has to come from the console's own pages:
it carries a token that only they can read, and the origin that the browser names is this one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import math
import re
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import hdrs, web

from tidings.console.options import ConsoleOptions
from tidings.hosts import is_loopback

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Server": "tidings",
}
MAX_LOGGED, LOGGED_WITHIN_S = 20, 60.0
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]{1,5})?", re.ASCII | re.IGNORECASE)

logger = logging.getLogger(__name__)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Put the headers on an answer, whatever it is."""
    for name, value in HEADERS.items():
        response.headers[name] = value
    response.headers.setdefault("Cache-Control", "no-store")


class HostNames:
    """By which names browsers may call the console.

    An address that is written in numbers is nobody's name, so pages of others cannot come to have it.
    """

    def __init__(self, options: ConsoleOptions) -> None:
        self._loopback = is_loopback(options.host)
        self._allowed = {one.lower() for one in options.allowed_hosts}
        self._named = {options.host.lower(), *self._allowed}

    def knows(self, host: str) -> bool:
        """Whether a `Host` is one of ours, with or without its port."""
        name = host_name(host)
        if name is None:
            return False
        if host.lower() in self._named or name in self._named:
            return True
        try:
            number = ipaddress.ip_address(name)
        except ValueError:
            return name == "localhost"
        return number.is_loopback or not self._loopback

    def own_origin(self, request: web.Request) -> bool:
        """Whether a request that changes something comes from a page of ours, as far as the browser tells."""
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            return False
        origin = request.headers.get("Origin")
        if origin is None:  # no browser: it would tell
            return True
        scheme, _, place = origin.lower().partition("://")
        return scheme in ("http", "https") and (place == request.host.lower() or place in self._allowed)

    def is_local(self, request: web.Request) -> bool:
        """Whether a request is from this machine, and not by way of a proxy which passes on how it was called."""
        name = host_name(request.headers.get("Host", ""))
        return is_loopback(request.remote or "") and name is not None and is_loopback(name)


def host_name(host: str) -> str | None:
    """The name in a `Host` header; None if there is none.

    >>> host_name("LOCALHOST:8090"), host_name("[::1]:8090"), host_name("[::1].evil.example"), host_name("")
    ('localhost', '::1', None, None)
    """
    found = _HOST.fullmatch(host)
    return None if found is None else (found[1] or found[2]).lower()


def json_answer(value: Any, status: int = 200, **headers: str) -> web.Response:
    """An answer of JSON; numbers that JSON does not have are null."""
    return web.Response(text=json_text(value), status=status, content_type="application/json", headers=headers)


def json_text(value: Any) -> str:
    """A value as JSON, on one line.

    >>> json_text({"load": float("nan")})
    '{"load":null}'
    """
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value


def refusal(status: int, error: str, **headers: str) -> web.Response:
    """An answer that refuses something, in one sentence."""
    return json_answer({"error": error}, status, **headers)


def expecting_nothing_else(
    handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    """Refuse what expects anything but `100-continue`: aiohttp would repeat it, and cannot if it is no text."""

    async def checked(request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get(hdrs.EXPECT, "100-continue").lower() == "100-continue":
            return await handle(request)
        return _last_answer(417, "nothing but 100-continue can be expected here")

    return checked


def _last_answer(status: int, error: str) -> web.Response:
    """A refusal that no application has put headers on; the connection ends with it."""
    response = refusal(status, error)
    response.headers.update(HEADERS)
    response.headers[hdrs.CACHE_CONTROL] = "no-store"
    response.force_close()
    return response


class BoundedLog:
    """Logs what strangers can cause: so much within a time. What is left out is counted, and told with the next one.

    >>> bounded = BoundedLog(most=1, within_s=60.0, clock=iter([0.0, 1.0, 61.0]).__next__)
    >>> bounded.room(), bounded.room(), bounded.room()
    ((True, 0), (False, 0), (True, 1))
    """

    def __init__(
        self,
        most: int = MAX_LOGGED,
        within_s: float = LOGGED_WITHIN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._within_s = within_s
        self._clock = clock
        self._began = -math.inf
        self._logged = self._left_out = 0

    def log(self, level: int, message: str, *values: object, exc_info: BaseException | None = None) -> None:
        """Log it, if there is room."""
        room, left_out = self.room()
        if left_out:
            logger.warning("%d more of such messages were left out", left_out)
        if room:
            logger.log(level, message, *values, exc_info=exc_info)

    def room(self) -> tuple[bool, int]:
        """Whether there is room for one, which is counted; and how many were left out before a time that begins now."""
        now, left_out = self._clock(), 0
        if now - self._began >= self._within_s:
            self._began, self._logged, left_out, self._left_out = now, 0, self._left_out, 0
        if self._logged >= self._most:
            self._left_out += 1
            return False, 0
        self._logged += 1
        return True, left_out


class BoundedConnection(web.RequestHandler):
    """The HTTP of one connection. A request has to come in whole within `patience` seconds, and there are only so many.

    What no request can be made of is answered without a word of what it was.
    """

    __slots__ = ("_counted", "_failures", "_late", "_open", "_patience")

    def __init__(
        self,
        server: web.Server,
        open: set[BoundedConnection],
        patience: float,
        most: int,
        failures: BoundedLog,
        **more: Any,
    ) -> None:
        super().__init__(server, **more)
        self._failures = failures
        self._open = open
        self._counted = len(open) < most
        self._patience = patience
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it, or close it if there are too many."""
        if not self._counted:
            transport.close()
            return
        self._open.add(self)
        self.expect()
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count it no more."""
        self.arrived()
        if self._counted:
            self._open.discard(self)
            super().connection_lost(exc)

    def expect(self) -> None:
        """Wait for a request, and not without end."""
        self._late = self._loop.call_later(self._patience, self.force_close)

    def arrived(self) -> None:
        """A request is here."""
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer what cannot be parsed, and what has failed."""
        if status >= 500:
            self._failures.log(logging.ERROR, "the console failed at a request", exc_info=exc)
        return _last_answer(status, "this is no request" if status < 500 else "the console failed at that; see its log")

    def log_exception(self, *words: Any, **more: Any) -> None:
        """Log what failed around a request."""
        found = more.get("exc_info")
        error = found if isinstance(found, BaseException) else sys.exception()
        self._failures.log(logging.ERROR, "a connection failed", exc_info=error)
