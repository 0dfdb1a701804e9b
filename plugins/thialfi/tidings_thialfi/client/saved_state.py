"""What a client keeps over a restart: its token and its number, as bytes that the application stores.

The bytes carry a version and a checksum: what was cut short, mixed up or written by another application counts as
nothing, and the client starts afresh.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import xxhash

from tidings_thialfi.protocol import constants, fields

_MAGIC = b"tidings-thialfi-1\n"
_CHECKSUM_BYTES = 8


@dataclass(frozen=True, slots=True)
class Saved:
    """A client's token and number."""

    client: int
    token: str = field(repr=False)


def save(saved: Saved, application: str) -> bytes:
    """The bytes to keep.

    >>> restore(save(Saved(7, "secret"), "web"), "web")
    Saved(client=7)
    >>> restore(save(Saved(7, "secret"), "web"), "another")
    """
    parts = {"application": application, "client": str(saved.client), "token": saved.token}
    body = json.dumps(parts, separators=(",", ":")).encode()
    return _MAGIC + xxhash.xxh64_digest(body) + body


def restore(state: bytes | None, application: str) -> Saved | None:
    """What was kept, or None if these bytes are not of this application or are broken."""
    head = len(_MAGIC) + _CHECKSUM_BYTES
    if not state or not state.startswith(_MAGIC) or len(state) > constants.MAX_MESSAGE_BYTES:
        return None
    if xxhash.xxh64_digest(state[head:]) != state[len(_MAGIC) : head]:
        return None
    try:
        parts = json.loads(state[head:])
        if parts["application"] != application:
            return None
        token = fields.opaque("token", parts["token"], constants.MAX_TOKEN_BYTES)
        return Saved(fields.number("client", parts["client"]), token)
    except (ValueError, TypeError, KeyError, RecursionError, fields.BadMessage):
        return None
