"""`POST /v1/publish`: how an application's servers publish without a library, a JSON array of updates at a time."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from tidings.errors import InvalidUpdate

MAX_BODY_BYTES = 8 * 2**20
MAX_UPDATES = 10_000
KEYS = frozenset({"object", "version", "source", "payload", "attributes"})


def updates_of(body: bytes) -> list[dict[str, Any]]:
    """The updates in a request, as a producer takes them; `InvalidUpdate` if they are none.

    >>> updates_of(b'[{"object": "alice", "version": 7, "payload": "aGk="}]')
    [{'object': 'alice', 'version': 7, 'payload': b'hi'}]
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidUpdate("the body is no JSON") from None
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise InvalidUpdate("the body is an array of objects, one an update")
    if len(value) > MAX_UPDATES:
        raise InvalidUpdate(f"{len(value):,} updates are too many at once; {MAX_UPDATES:,} are accepted")
    return [_update(at, one) for at, one in enumerate(value)]


def _update(at: int, value: dict[str, Any]) -> dict[str, Any]:
    if unknown := sorted(set(value) - KEYS):
        raise InvalidUpdate(f"update {at} has {unknown[0][:100]!r}, which is none of {', '.join(sorted(KEYS))}")
    if "object" not in value:
        raise InvalidUpdate(f"update {at} has no object")
    found = dict(value)
    if isinstance(version := found.get("version"), str):  # as JavaScript must write large ones
        if not version.isascii() or not version.isdecimal() or len(version) > 19:
            raise InvalidUpdate(f"the version of update {at} is no whole number")
        found["version"] = int(version)
    if found.get("payload") is not None:
        try:
            found["payload"] = base64.b64decode(found["payload"], validate=True)
        except (binascii.Error, ValueError, TypeError):
            raise InvalidUpdate(f"the payload of update {at} is no base64") from None
    return found
