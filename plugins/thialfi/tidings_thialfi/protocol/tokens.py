"""Client tokens: what a client shows to say who it is, so that a gateway need not look it up.

A token holds the client's number, the identity of the service that issued it, the client's application, when it was
issued and when it expires, under an HMAC-SHA256. Nobody but gateways looks inside. Gateways hold several keys at once:
a new key is added to all of them, then made current, and the old one is removed when the tokens under it have expired.

A file of keys has a line for each, its id and its secret in base64, the current one first:

```
2026-02 3q2+7wAB…
2026-01 8J+Qmw0d…
```
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidings.errors import InvalidOption, TidingsError
from tidings_thialfi.protocol.constants import MAX_APPLICATION_BYTES, MAX_NUMBER, MAX_TOKEN_BYTES

MIN_SECRET_BYTES, MAX_SECRET_BYTES = 32, 256
MAX_KEYS = 16
MAX_IDENTITY_BYTES = 64
_MAX_FILE_BYTES = 64 * 1024
_FORMAT = 3
# Format; lengths of the key's id, the identity and the application; the client, when it expires (s) and was issued (ms)
_HEAD = struct.Struct(">BBBHQQQ")
_MAC_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class ClientToken:
    """What a token says. `expires` is in seconds since 1970, `issued` in milliseconds."""

    client: int
    identity: str
    application: str
    expires: int
    issued: int

    @property
    def user(self) -> str:
        """Which user it is bound to; nothing if users are not asked who they are."""
        return self.identity.partition("#")[2]


class TokenForged(TidingsError):
    """A token was not issued under any of our keys, or was altered."""


class TokenExpired(TidingsError):
    """A token is genuine and too old; `token` says whose it was, so that the client keeps its number."""

    def __init__(self, token: ClientToken) -> None:
        super().__init__(f"the token of client {token.client} has expired: say hello with it, and get another")
        self.token = token


class TokenKeys:
    """The keys under which tokens are issued and checked, by id; `current` is the id of the one for new tokens.

    >>> keys = TokenKeys({"a": b"x" * 32, "b": b"y" * 32}, current="b", clock=lambda: 1000)
    >>> text = keys.issue(client=7, identity="eu-1", application="web", lifetime=60)
    >>> keys.check(text)
    ClientToken(client=7, identity='eu-1', application='web', expires=1060, issued=1000000)
    >>> TokenKeys({"a": b"x" * 32}, current="a").check(text)
    Traceback (most recent call last):
    ...
    tidings_thialfi.protocol.tokens.TokenForged: this is no token of ours
    """

    def __init__(self, keys: Mapping[str, bytes], current: str, *, clock: Callable[[], float] = time.time) -> None:
        if current not in keys:
            raise InvalidOption(f"the current key {current[:40]!r} is none of the keys for tokens")
        if len(keys) > MAX_KEYS:
            raise InvalidOption(f"{len(keys)} keys for tokens are too many; {MAX_KEYS} can be held at once")
        for key, secret in keys.items():
            if not re.fullmatch(r"[A-Za-z0-9._-]{1,32}", key):
                raise InvalidOption(f"{key[:40]!r} is no id of a key: write 1 to 32 letters, digits, '.', '_' or '-'")
            if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
                raise InvalidOption(
                    f"the secret of key {key!r} has {len(secret)} bytes;"
                    f" it needs {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} random ones"
                )
        self._keys = {key: bytes(secret) for key, secret in keys.items()}
        self.current = current
        self._clock = clock

    def __repr__(self) -> str:
        return f"TokenKeys({', '.join(self._keys)}; current={self.current!r})"

    @classmethod
    def random(cls) -> TokenKeys:
        """One fresh key, for a single gateway: its clients get new tokens when it starts again."""
        return cls({"random": secrets.token_bytes(MIN_SECRET_BYTES)}, "random")

    @classmethod
    def load(cls, path: Path | str, *, clock: Callable[[], float] = time.time) -> TokenKeys:
        """The keys in a file, one a line: an id and a secret in base64. The first is the current one."""
        try:
            with Path(path).open("rb") as file:
                text = file.read(_MAX_FILE_BYTES + 1).decode()
        except OSError as error:
            raise InvalidOption(f"the file of keys {path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InvalidOption(f"{path} is no file of keys: it is not text") from None
        if len(text) > _MAX_FILE_BYTES:
            raise InvalidOption(f"{path} is no file of keys: it has more than {_MAX_FILE_BYTES:,} bytes")
        keys: dict[str, bytes] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            try:
                key, encoded = line.split()
                secret = base64.b64decode(encoded, validate=True)
            except ValueError:  # nothing of the line is repeated: it may be a secret
                raise InvalidOption(f"line {number} of {path} is no key: write its id, a blank, base64") from None
            if key in keys:
                raise InvalidOption(f"line {number} of {path} has the id of a key that is there already")
            keys[key] = secret
        if not keys:
            raise InvalidOption(f"{path} has no key: write an id, a blank and 32 random bytes in base64 on a line")
        return cls(keys, next(iter(keys)), clock=clock)

    def now(self) -> int:
        """The time as tokens have it: in milliseconds since 1970."""
        return int(1000 * self._clock())

    def issue(self, client: int, identity: str, application: str, lifetime: float, *, issued: int | None = None) -> str:
        """A token for a client, for so many seconds; it counts as issued then, or now."""
        if not 0 <= client <= MAX_NUMBER:
            raise InvalidOption(f"{client} is no client: its number is from 0 to 2^63-1")
        about = identity.encode(), application.encode()
        if len(about[0]) > MAX_IDENTITY_BYTES or len(about[1]) > MAX_APPLICATION_BYTES:
            raise InvalidOption(
                f"an identity has at most {MAX_IDENTITY_BYTES} bytes, and an application {MAX_APPLICATION_BYTES}"
            )
        expires = min(int(self._clock() + lifetime), MAX_NUMBER)
        issued = self.now() if issued is None else issued
        key = self.current.encode()
        body = _HEAD.pack(_FORMAT, len(key), *map(len, about), client, expires, issued) + key + b"".join(about)
        return base64.urlsafe_b64encode(body + self._mac(self.current, body)).rstrip(b"=").decode()

    def check(self, token: str) -> ClientToken:
        """What a token says, or `TokenForged`, or `TokenExpired`, which still says whose it was."""
        key, found, body, mac = _opened(token)
        if key not in self._keys or not hmac.compare_digest(mac, self._mac(key, body)):
            raise TokenForged("this is no token of ours")
        if found.expires <= self._clock():
            raise TokenExpired(found)
        return found

    def expired_for(self, token: ClientToken) -> float:
        """How many seconds ago a token has expired."""
        return self._clock() - token.expires

    def _mac(self, key: str, body: bytes) -> bytes:
        return hmac.digest(self._keys[key], body, "sha256")


def is_whole(token: str) -> bool:
    """Whether this has the form of a token, from its first to its last character; whose it is only gateways can say.

    >>> token = TokenKeys({"a": b"x" * 32}, current="a").issue(7, "eu-1", "web", lifetime=60)
    >>> [is_whole(one) for one in (token, token[:-2], token[2:], token + token, f'"{token}"', "")]
    [True, False, False, False, False, False]
    """
    try:
        _opened(token)
    except TokenForged:
        return False
    return True


def _opened(token: str) -> tuple[str, ClientToken, bytes, bytes]:
    """A token's key, by its id, what it says, and that as bytes with its MAC, which is not checked here."""
    try:
        if len(token) > MAX_TOKEN_BYTES:
            raise ValueError
        both = base64.b64decode(token.encode("ascii") + b"=" * (-len(token) % 4), b"-_", validate=True)
        # Two texts of one token would make a list of revoked ones useless.
        if base64.urlsafe_b64encode(both).rstrip(b"=").decode() != token:
            raise ValueError
        body, mac = both[:-_MAC_BYTES], both[-_MAC_BYTES:]
        form, *sizes, client, expires, issued = _HEAD.unpack_from(body)
        if form != _FORMAT or len(body) != _HEAD.size + sum(sizes):
            raise ValueError
        texts, at = [], _HEAD.size
        for size in sizes:
            texts.append(body[at : at + size].decode())
            at += size
    except (binascii.Error, struct.error, ValueError):
        raise TokenForged("this is no token of ours") from None
    key, identity, application = texts
    return key, ClientToken(client, identity, application, expires, issued), body, mac
