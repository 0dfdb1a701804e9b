"""Values as they are kept in ZooKeeper: small UTF-8 JSON with a `version` field, to be read by people in `zkCli`."""

from __future__ import annotations

import json
from typing import Any

from tidings.errors import ForeignValue

VALUE_VERSION = 1
_ENCODER = json.JSONEncoder(ensure_ascii=False)  # made once: thousands of flows are written at a time


def encode(value: dict[str, Any]) -> bytes:
    """A value as it is kept in ZooKeeper: JSON, with the version of its form."""
    return _ENCODER.encode({"version": VALUE_VERSION, **value}).encode()


def decode(path: str, raw: bytes) -> dict[str, Any] | None:
    """The value that `encode` wrote; None for a node that was made only to hold those below it."""
    if not raw:
        return None
    try:
        value: dict[str, Any] = json.loads(raw)
        del value["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ForeignValue(
            f"what ZooKeeper holds at {path} was not put there by tidings: mend it, or empty it"
        ) from None
    return value
