"""How much may be said: entries and bytes a second, of a client, a user, an address, and of all together.

An entry is what becomes a row, as a registration or an acknowledgement does; a message counts as one at least. What a
client acknowledges because it was told of it is not counted against it, nor against its user. What is counted of a
client or an address outlives its connections, and is forgotten when it would not make a difference.

What all together may say is for the stage and its log, which all gateways share: each takes an equal part of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from math import ceil
from typing import NamedTuple

from tidings_thialfi.gateway.options import GatewayOptions
from tidings_thialfi.protocol.messages import FromClient
from tidings_thialfi.protocol.rate_limit import Bucket

BURST_S = 20  # what may be said in so many seconds may be said at once
SENT_PER_SAID = 2  # what is too much is refused with a word; what is so many times as much is not read
FRAMES_PER_MESSAGE = 10
NEW_CLIENT_ENTRIES = 100  # what a new client counts as for its address: the service keeps it for long

TOO_FAST = "you say too much"

_WHO = {
    "client": "you may say",
    "user": "all clients of a user may say",
    "address": "all clients of your address may say",
    "total": "all clients of this gateway may say",
    "connection": "a connection may send",
    "source": "all connections of your address may send",
}


class Amount(NamedTuple):
    """How much a message is."""

    entries: int = 0
    bytes: int = 0


class RateExceeded(NamedTuple):
    """A limit that was reached, why, and in how many seconds it may work."""

    limit: str
    reason: str
    wait: float


class Rates:
    """The rates of one gateway; `whose` maps some of `client`, `user`, `address` and `total` to who that is.

    >>> rates = Rates(GatewayOptions(entries=1, address_entries=2))
    >>> rates.take(0.0, Amount(20), {"client": 7, "address": "192.0.2.7"})
    >>> rates.take(0.0, Amount(1), {"client": 7, "address": "192.0.2.7"})
    RateExceeded(limit='client-entries', reason='you may say 1 entries a second', wait=1.0)
    >>> rates.take(0.0, Amount(1), {"client": 8, "address": "192.0.2.7"})
    """

    def __init__(self, options: GatewayOptions) -> None:
        self._options = options
        self._most = {
            "client": Amount(options.entries, options.bytes),
            "user": Amount(options.user_entries, options.user_bytes),
            "address": Amount(options.address_entries, options.address_bytes),
            "connection": Amount(
                ceil(FRAMES_PER_MESSAGE * max(options.rate, options.burst / BURST_S)), SENT_PER_SAID * options.bytes
            ),
            "source": Amount(SENT_PER_SAID * options.address_entries, SENT_PER_SAID * options.address_bytes),
        }
        self._total = self._most["total"] = Amount(options.total_entries, options.total_bytes)
        self._buckets: OrderedDict[tuple[str, Hashable], tuple[Bucket, Bucket]] = OrderedDict()

    def take(self, now: float, amount: Amount, whose: Mapping[str, Hashable]) -> RateExceeded | None:
        """Count so much, if it is within the limits of all of them; else the limit that it is not within."""
        found = []
        for scope, one in whose.items():
            buckets = self._of(scope, one)
            for at, count in enumerate(amount):
                if not count:
                    continue
                if (ready := buckets[at].ready(now, count)) > now:
                    what, most = Amount._fields[at], self._most[scope][at]
                    return RateExceeded(f"{scope}-{what}", f"{_WHO[scope]} {most:,} {what} a second", ready - now)
                found.append((buckets[at], count))
        for bucket, count in found:
            bucket.spend(count)
        return None

    def message(self, now: float, client: int) -> RateExceeded | None:
        """Count a message of a client, whatever channel it comes on, if it is within its rate."""
        bucket, _ = self._of("message", client)
        if bucket.take(now):
            return None
        return RateExceeded("rate", TOO_FAST, bucket.ready(now) - now)

    def owe(self, now: float, amount: Amount, whose: Mapping[str, Hashable]) -> None:
        """Count so much that is here already, be it within limits or not."""
        for scope, one in whose.items():
            for bucket, count in zip(self._of(scope, one), amount, strict=True):
                bucket.ready(now)
                bucket.spend(count)

    def owed(self, now: float, whose: Mapping[str, Hashable]) -> RateExceeded | None:
        """The limit beyond which more is here already than any other, if there is one."""
        found = [
            RateExceeded(f"{scope}-{what}", f"{_WHO[scope]} {most:,} {what} a second", ready - now)
            for scope, one in whose.items()
            for bucket, what, most in zip(self._of(scope, one), Amount._fields, self._most[scope], strict=True)
            if (ready := bucket.ready(now)) > now
        ]
        return max(found, key=lambda over: over.wait, default=None)

    def share(self, now: float, gateways: int) -> None:
        """So many gateways share what all together may say."""
        self._most["total"] = Amount(*(max(1, most // gateways) for most in self._total))
        for bucket, most in zip(self._of("total", ""), self._most["total"], strict=True):
            bucket.resize(now, most, BURST_S * most)

    def sweep(self, now: float) -> None:
        """Forget those of whom nothing was counted for a while."""
        while self._buckets:
            oldest, buckets = next(iter(self._buckets.items()))
            if not all(bucket.full(now) for bucket in buckets):
                return
            del self._buckets[oldest]

    def __len__(self) -> int:
        return len(self._buckets)

    def _of(self, scope: str, one: Hashable) -> tuple[Bucket, Bucket]:
        key = (scope, one)
        found = self._buckets.get(key)
        if found is None and scope == "message":
            found = self._buckets[key] = (self._options.bucket(), self._options.bucket())
        elif found is None:
            entries, size = self._most[scope]
            found = self._buckets[key] = (Bucket(entries, BURST_S * entries), Bucket(size, BURST_S * size))
        self._buckets.move_to_end(key)
        return found


def entries_of(message: FromClient) -> int:
    """How many entries a message has, or counts as."""
    lists = (message.register, message.unregister, message.acknowledge)
    return max(1, sum(map(len, lists)) + (len(message.sync.objects) if message.sync else 0))
