"""The fields of messages: each function takes a value of JSON and gives what it means, or raises `BadMessage`.

No value is repeated in an error: a message may hold a token, and what was wrong with it may be logged.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from tidings.errors import TidingsError
from tidings_thialfi.protocol.constants import (
    MAX_DEPTH,
    MAX_ENTRIES,
    MAX_MESSAGE_BYTES,
    MAX_NUMBER,
    MAX_OBJECT_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_SPAN_S,
    MAX_SUM,
)
from tidings_thialfi.protocol.digests import Digest

T = TypeVar("T")


class BadMessage(TidingsError):
    """A message breaks a rule of the protocol; `code` is what an `error` says of it: version, malformed or large."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def malformed(message: str) -> BadMessage:
    """The error of a message that is no message of this protocol."""
    return BadMessage("malformed", message)


def read(text: str | bytes) -> dict[str, Any]:
    """A message's parts, if it is an object of JSON of a version that we understand and no larger than it may be."""
    if len(text) > MAX_MESSAGE_BYTES:  # as many bytes at least
        raise BadMessage("large", f"a message has at most {MAX_MESSAGE_BYTES:,} bytes")
    try:
        size = len(text) if isinstance(text, bytes) else len(text.encode())
        if size > MAX_MESSAGE_BYTES:
            raise BadMessage("large", f"a message has at most {MAX_MESSAGE_BYTES:,} bytes, and this one has {size:,}")
        decoded = text.decode() if isinstance(text, bytes) else text
        value = json.loads(decoded, object_pairs_hook=unique, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise malformed("a message is an object of JSON, in UTF-8, without a key that comes twice") from None
    if not isinstance(value, dict):
        raise malformed("a message is an object of JSON")
    _check_version(value.get("v"))
    return value


def _check_version(version: Any) -> None:
    if not isinstance(version, str) or not (found := re.fullmatch(r"([0-9]{1,4})\.[0-9]{1,4}", version)):
        raise malformed('`v` is the version of the protocol, such as "1.0"')
    if int(found[1]) != 1:
        raise BadMessage("version", f"this side speaks version 1 of the protocol, and not {found[1]}")


def check_depth(value: Any, depth: int = MAX_DEPTH) -> None:
    """Refuse what is nested so deeply that whoever walks it might fail."""
    if not isinstance(value, dict | list):
        return
    if depth == 0:
        raise malformed(f"what this version does not know is nested at most {MAX_DEPTH} deep")
    for one in value.values() if isinstance(value, dict) else value:
        check_depth(one, depth - 1)


def text(what: str, value: Any, most: int, least: int = 1) -> str:
    """Text of so many bytes of UTF-8."""
    if isinstance(value, str) and len(value) <= most:
        with contextlib.suppress(UnicodeEncodeError):  # half of a surrogate pair
            if least <= len(value.encode()) <= most:
                return value
    raise malformed(f"`{what}` is text of {least:,} to {most:,} bytes of UTF-8")


def opaque(what: str, value: Any, most: int) -> str:
    """Text that nobody looks into: printable ASCII without blanks."""
    if isinstance(value, str) and len(value) <= most and re.fullmatch(r"[!-~]+", value):
        return value
    raise malformed(f"`{what}` is 1 to {most:,} printable characters of ASCII")


def name(value: Any) -> str:
    """The name of an object."""
    return text("object", value, MAX_OBJECT_BYTES)


def number(what: str, value: Any, most: int = MAX_NUMBER) -> int:
    """A whole number, written in decimal as text, because JavaScript has no such numbers."""
    if isinstance(value, str) and re.fullmatch(r"0|[1-9][0-9]{0,19}", value) and (found := int(value)) <= most:
        return found
    raise malformed(f"`{what}` is a whole number from 0 to {most}, as decimal text")


def small(what: str, value: Any, most: int) -> int:
    """A whole number that is small enough to be one in JSON."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
        return value
    raise malformed(f"`{what}` is a whole number from 0 to {most:,}")


def seconds(what: str, value: Any) -> float:
    """A time span, of a day at most."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_SPAN_S:
        return value
    raise malformed(f"`{what}` is a number of seconds from 0 to {MAX_SPAN_S:,.0f}")


def flag(what: str, value: Any) -> bool:
    """Yes or no."""
    if isinstance(value, bool):
        return value
    raise malformed(f"`{what}` is true or false")


def digest(value: Any) -> Digest:
    """A digest of registrations."""
    count, total = row("digest", value, 2)
    return Digest(number("digest", count), number("digest", total, MAX_SUM))


def payload(value: Any) -> bytes:
    """An update's payload, in base64 with its padding."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            found = base64.b64decode(value.encode("ascii"), validate=True)
            if len(found) <= MAX_PAYLOAD_BYTES:
                return found
    raise malformed(f"the payload in `notify` is base64 of at most {MAX_PAYLOAD_BYTES:,} bytes")


def row(what: str, value: Any, least: int, most: int | None = None) -> list[Any]:
    """An entry of a list: as many values as it has."""
    if isinstance(value, list) and least <= len(value) <= (most or least):
        return value
    raise malformed(f"each entry of `{what}` is a list of {least if most is None else f'{least} to {most}'} values")


def rows(what: str, value: Any, parse: Callable[[Any], T]) -> tuple[T, ...]:
    """A list of entries."""
    if not isinstance(value, list) or len(value) > MAX_ENTRIES:
        raise malformed(f"`{what}` is a list of at most {MAX_ENTRIES:,} entries")
    return tuple(parse(one) for one in value)


def part(what: str, value: Any) -> dict[str, Any]:
    """A part that has parts itself."""
    if isinstance(value, dict):
        return value
    raise malformed(f"`{what}` is an object of JSON")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, unless a key comes twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key comes twice")
    return value


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")
