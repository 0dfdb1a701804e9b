"""What messages hold: a class for each kind of entry, and one for each direction.

No token, credentials or payload is in any `repr`: messages may be logged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidings_thialfi.protocol.digests import Digest


@dataclass(frozen=True, slots=True)
class Hello:
    """Asks for a token. `credentials` are the application's, and never shown."""

    nonce: str
    application: str
    credentials: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Ack:
    """The application was told of this version; if `unknown`, of the unknown version with this number."""

    name: str
    version: int
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class SyncPart:
    """Some of the objects that the client intends to be registered for; the parts of one number are all of them."""

    number: int
    part: int
    parts: int
    objects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FromClient:
    """A message from a client. Operations are pairs of object and number."""

    token: str | None = field(default=None, repr=False)
    digest: Digest | None = None
    hello: Hello | None = None
    register: tuple[tuple[str, int], ...] = ()
    unregister: tuple[tuple[str, int], ...] = ()
    acknowledge: tuple[Ack, ...] = ()
    sync: SyncPart | None = None
    heartbeat: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer to a hello with this nonce. `again`: the client id is the one that the client had."""

    nonce: str
    token: str = field(repr=False)
    client: int
    again: bool


@dataclass(frozen=True, slots=True)
class Notice:
    """An object has this version; if `unknown`, an unknown one, and `version` is the number of this notice."""

    name: str
    version: int
    unknown: bool = False
    payload: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Status:
    """Whether the client is registered for an object, since the operation with this number."""

    name: str
    registered: bool
    number: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A registration was refused; if `transient`, it may work later."""

    name: str
    number: int
    transient: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A message was not acted upon. `retry`: in so many seconds it may work; None if it never will."""

    code: str
    message: str
    retry: float | None = None


@dataclass(frozen=True, slots=True)
class FromService:
    """A message from the service. `invalid` is the reason; `token` is which one is stale or invalid."""

    grant: Grant | None = None
    stale: bool = False
    invalid: str | None = None
    digest: Digest | None = None
    seen: int | None = None
    notify: tuple[Notice, ...] = ()
    status: tuple[Status, ...] = ()
    failed: tuple[Failure, ...] = ()
    sync: bool = False
    all: bool = False
    interval: float | None = None
    quiet: float | None = None
    error: Fault | None = None
    token: str | None = field(default=None, repr=False)
