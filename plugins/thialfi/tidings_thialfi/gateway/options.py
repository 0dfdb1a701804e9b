"""What a gateway may be told: times, limits and what is checked. One place, so that the command and the docs agree."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from tidings.errors import InvalidOption
from tidings_thialfi.gateway.addresses import Addresses
from tidings_thialfi.protocol.constants import MAX_MESSAGE_BYTES, MAX_RENEWAL_S, MAX_TOKEN_LIFETIME_S
from tidings_thialfi.protocol.rate_limit import Bucket

_ORIGIN = re.compile(r"https?://[^/\s*]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """How a gateway treats its clients.

    | option | default | meaning |
    | --- | --- | --- |
    | `token_lifetime` | 86,400 | seconds for which a client's token is good |
    | `renew_within` | 2,592,000 | seconds after its end in which a token can be renewed |
    | `heartbeat` | 1,200 | seconds between a client's signs of life, as it is told |
    | `offline_after` | 4,800 | a client that was silent for so many seconds is offline |
    | `resend` | 60 | seconds after which what was not acknowledged is sent again |
    | `ping` | 30 | seconds between a WebSocket's pings, which keep proxies from closing it; 0: none |
    | `poll_wait` | 55 | the longest that a long poll is held, in seconds |
    | `poll_gap` | 60 | a client that polls is gone when it has not for so many seconds |
    | `request_timeout` | 20 | seconds in which a request has to come, and its body after it |
    | `max_message` | 64 KiB | bytes of a message from a client |
    | `max_poll` | 256 KiB | bytes of a long poll's body |
    | `stall` | 30 | a client that has taken nothing for so many seconds, while something waits, is sent away (3008) |
    | `max_queue` | 256 KiB | the window: bytes of notifications that a client was sent and has not acknowledged |
    | `max_pending` | 4 MiB | bytes kept for a client; what is beyond is asked of the stage again |
    | `max_pending_total` | 256 MiB | bytes kept for all clients |
    | `max_registrations` | 10,000 | objects that a client may be registered for |
    | `rate`, `burst` | 20, 100 | messages a second of one client, and how many at once |
    | `entries`, `bytes` | 2,000, 256 KiB | of one client's messages, a second; 20 times as much at once, as all below |
    | `user_entries`, `user_bytes` | 5,000, 1 MiB | of all clients of a user here |
    | `address_entries`, `address_bytes` | 5,000, 1 MiB | of all clients of an address |
    | `total_entries`, `total_bytes` | 50,000, 32 MiB | of all clients at all gateways, which have equal parts of it |
    | `max_connections` | 20,000 | connections in all |
    | `max_per_address` | 1,000 | connections from one address, and as many clients of it that poll; IPv6 by /64 |
    | `trusted_proxies` | none | networks of proxies that say in `X-Forwarded-For` whom they forward |
    | `origins` | none | pages that may connect from a browser, as in `https://app.example`; `*`: all |
    """

    token_lifetime: float = MAX_TOKEN_LIFETIME_S
    renew_within: float = MAX_RENEWAL_S
    heartbeat: float = 1200.0
    offline_after: float = 4800.0
    resend: float = 60.0
    ping: float = 30.0
    poll_wait: float = 55.0
    poll_gap: float = 60.0
    request_timeout: float = 20.0
    max_message: int = MAX_MESSAGE_BYTES
    max_poll: int = 256 * 2**10
    stall: float = 30.0
    max_queue: int = 256 * 2**10
    max_pending: int = 4 * 2**20
    max_pending_total: int = 256 * 2**20
    max_registrations: int = 10_000
    rate: float = 20.0
    burst: int = 100
    entries: int = 2000
    bytes: int = 256 * 2**10
    user_entries: int = 5000
    user_bytes: int = 2**20
    address_entries: int = 5000
    address_bytes: int = 2**20
    total_entries: int = 50_000
    total_bytes: int = 32 * 2**20
    max_connections: int = 20_000
    max_per_address: int = 1000
    trusted_proxies: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                continue
            if value < 0 or (value == 0 and field.name not in ("ping", "renew_within")):
                raise InvalidOption(f"a gateway's {field.name} is above 0, not {value!r}")
        if self.max_message > MAX_MESSAGE_BYTES:
            raise InvalidOption(
                f"a gateway's max_message is at most {MAX_MESSAGE_BYTES:,} bytes, which the protocol allows"
            )
        if self.token_lifetime > MAX_TOKEN_LIFETIME_S or self.renew_within > MAX_RENEWAL_S:
            raise InvalidOption("a token is good for a day at most, and can be renewed for 30 more")
        if self.offline_after <= self.heartbeat:
            raise InvalidOption(
                f"a client is offline after {self.offline_after:g} s, which must be above its heartbeat's "
                f"{self.heartbeat:g} s"
            )
        Addresses(self.trusted_proxies)
        for origin in self.origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise InvalidOption(f"{origin!r} is no origin: write one as in https://app.example, without a path")

    def bucket(self) -> Bucket:
        """The rate limit of one more client."""
        return Bucket(self.rate, self.burst)
