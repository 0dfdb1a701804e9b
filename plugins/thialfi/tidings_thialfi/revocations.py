"""Tokens that are not good any more, and clients that are to be disconnected: what operators say, and gateways hear.

```
/<root>/thialfi/<service>/revoked/<whose>         kept until no token that it names could be renewed
/<root>/thialfi/<service>/disconnected/<whose>    kept for a day: whoever came before has said anew who it is by then
```

`<whose>` is `client.<number>.<when>`, `user.<digest>.<when>` or `token.<digest>.<when>`, in milliseconds since 1970:
all that gateways need is in the names, which they read at once. What makes no sense is left alone.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from typing import NamedTuple

from tidings.audit import recorded
from tidings.coordination.zookeeper import Coordination
from tidings.errors import InvalidOption
from tidings_thialfi.places import DISCONNECTED, PLACE, REVOKED
from tidings_thialfi.protocol.constants import MAX_NUMBER, MAX_RENEWAL_S, MAX_TOKEN_LIFETIME_S
from tidings_thialfi.protocol.tokens import ClientToken

KEPT_S = {REVOKED: MAX_TOKEN_LIFETIME_S + MAX_RENEWAL_S, DISCONNECTED: float(MAX_TOKEN_LIFETIME_S)}
MAX_KEPT = 8192  # of a service: the names of all come in one answer of ZooKeeper


class Whose(NamedTuple):
    """Whose tokens, or connections: a client's, a user's, or those under one token. No secret is in it."""

    kind: str
    value: str

    @classmethod
    def client(cls, client: int) -> Whose:
        """Those of one client."""
        if not 0 <= client <= MAX_NUMBER:
            raise InvalidOption(f"{client} is no client: its number is from 0 to 2^63-1")
        return cls("client", str(client))

    @classmethod
    def user(cls, user: str) -> Whose:
        """Those of all clients of a user, as the hooks call it."""
        try:
            found = user_digest(user)
        except UnicodeEncodeError:
            raise InvalidOption("the user's name is no UTF-8; say it as the hooks do") from None
        if not found:
            raise InvalidOption("a user has a name: say it as the hooks do")
        return cls("user", found)

    @classmethod
    def token(cls, token: str) -> Whose:
        """That of one token."""
        return cls("token", _digest(token))


class Revocations:
    """What is revoked, or to be disconnected, by the names of nodes.

    >>> revoked = Revocations(["client.7.1000", "user.8a23.1000", "nonsense"])
    >>> revoked.cover(ClientToken(7, "eu", "web", 1060, issued=1060), "…")
    True
    >>> [revoked.cover(ClientToken(8, "eu#8a23", "web", 1060, issued), "…") for issued in (1000, 1001)]
    [True, False]
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._since: dict[Whose, int] = {}
        for whose, since in filter(None, map(parsed, names)):
            self._since[whose] = max(since, self._since.get(whose, 0))

    def cover(self, about: ClientToken, token: str) -> bool:
        """Whether a token is revoked. A user may get others after that; a client's number is not given out again."""
        if not self._since:
            return False
        if Whose("client", str(about.client)) in self._since or Whose.token(token) in self._since:
            return True
        return about.issued <= self._since.get(Whose("user", about.user), -1)

    def last(self, about: ClientToken) -> int:
        """When its client or its user was last named, in milliseconds since 1970; -1 if they were not."""
        return max(self._since.get(one, -1) for one in (Whose("client", str(about.client)), Whose("user", about.user)))


def parsed(name: str) -> tuple[Whose, int] | None:
    """What the name of a node says; None if that makes no sense."""
    kind, _, rest = name.partition(".")
    value, _, since = rest.partition(".")
    sensible = kind in ("client", "user", "token") and value and since.isdecimal() and len(since) < 16
    return (Whose(kind, value), int(since)) if sensible else None


def say(coordination: Coordination, service: str, what: str, whose: Whose, now: float | None = None) -> None:
    """Have all gateways of a service hear that these are revoked, or to be disconnected."""
    action = {REVOKED: "thialfi revoke", DISCONNECTED: "thialfi disconnect"}[what]
    with recorded(coordination, action, [service], after={whose.kind: whose.value}):
        _say(coordination, service, what, whose, time.time() if now is None else now)


def _say(coordination: Coordination, service: str, what: str, whose: Whose, now: float) -> None:
    place = (PLACE, service, what)
    kept: list[tuple[int, str]] = []
    for name in coordination.children(*place):
        found = parsed(name)
        if found is None or found[0] == whose or found[1] / 1000 + KEPT_S[what] < now:
            coordination.delete(*place, name)
        else:
            kept.append((found[1], name))
    if len(kept) >= MAX_KEPT and what == REVOKED:
        raise InvalidOption(
            f"service {service!r} has {len(kept):,} {what} already, and no more are kept: put a new key into the "
            "gateways' file instead, and take the old one out, which ends all tokens under it"
        )
    for _, name in sorted(kept)[: max(0, len(kept) + 1 - MAX_KEPT)]:
        coordination.delete(*place, name)
    coordination.create({}, *place, f"{whose.kind}.{whose.value}.{int(1000 * now)}")


def user_digest(user: str) -> str:
    """What a token says of a user; nothing of nobody."""
    return hashlib.sha256(user.encode()).hexdigest()[:16] if user else ""


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()[:32]
