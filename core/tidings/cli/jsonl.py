"""The lines that `tidings streams publish` reads: each a JSON object that stands for one update."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import os
import reprlib
import select
from collections.abc import Iterator
from typing import Any, NoReturn

from tidings.errors import InvalidOption, InvalidUpdate

MAX_LINE_BYTES = 16 * 2**20  # room for the largest payload and the most attributes, however they are escaped
READ_BYTES = 2**18

GIVEN_KEYS = ("object", "version", "kind", "range", "source", "attributes", "payload", "payload_base64", "time")
# Not the publisher's to give; they are here when the line was printed by `tail --json` or `subscribe --json`.
STAMPED_KEYS = ("stream", "shard", "seq", "index")


def read_lines(descriptor: int) -> Iterator[bytes | None]:
    """The lines of a file, a pipe or a terminal; None each time there is nothing more to read for the moment."""
    rest = b""
    while True:
        ready, _, _ = select.select([descriptor], [], [], 0)
        if not ready:
            yield None
        try:
            block = os.read(descriptor, READ_BYTES)
        except OSError as error:
            raise InvalidOption(f"the input cannot be read: {error.strerror or error}") from None
        if not block:
            break
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
        if len(rest) > MAX_LINE_BYTES:
            yield rest  # too long already: whoever parses it says so, and the rest need not be read
            return
    if rest:
        yield rest


def parse_line(line: bytes) -> dict[str, Any]:
    """The line as a row for `Producer.publish_many`; `InvalidUpdate` says why it is none.

    >>> parse_line(b'{"object": "alice", "version": 3, "payload": "hello"}')
    {'object': 'alice', 'version': 3, 'payload': b'hello'}
    >>> parse_line(b'{"object": "alice", "payload": {"amount": 3}}')
    {'object': 'alice', 'payload': b'{"amount":3}'}
    """
    if len(line) > MAX_LINE_BYTES:
        raise InvalidUpdate(f"the line is longer than {MAX_LINE_BYTES:,} bytes")
    try:
        value = _DECODER.decode(line.removeprefix(b"\xef\xbb\xbf").decode())  # some editors put that mark first
    except UnicodeDecodeError as error:
        raise InvalidUpdate(f"byte {error.start + 1:,} of the line is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise InvalidUpdate(f"no JSON: {error.msg} (character {error.colno:,})") from None
    except RecursionError:
        raise InvalidUpdate("no update: it is nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits
        raise InvalidUpdate(f"no JSON that can be read: {error}") from None
    if not isinstance(value, dict):
        raise InvalidUpdate(f"no JSON object: {reprlib.repr(value)}")
    row = {key: one for key, one in value.items() if one is not None and key not in STAMPED_KEYS}
    unknown = [key for key in row if key not in GIVEN_KEYS]
    if unknown:
        raise InvalidUpdate(f"an update has no key {unknown[0]!r}; it has {', '.join(GIVEN_KEYS)}")
    if "object" not in row:
        raise InvalidUpdate('the update does not name its "object"')
    if "payload" in row or "payload_base64" in row:
        row["payload"] = _payload(row)
    if "time" in row:
        row["time"] = _time(row["time"])
    if isinstance(attributes := row.get("attributes"), dict):
        _check_attributes(attributes)
    return row


def _check_attributes(attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        if isinstance(value, int | float):
            written = json.dumps(value)
            raise InvalidUpdate(f'attribute {reprlib.repr(name)} is {written}, not text: write "{written}"')


def _payload(row: dict[str, Any]) -> bytes:
    text, encoded = row.get("payload"), row.pop("payload_base64", None)
    if text is not None and encoded is not None:
        raise InvalidUpdate('the update has both "payload" and "payload_base64"')
    if encoded is None:
        try:
            if isinstance(text, dict | list):
                return json.dumps(text, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
            if not isinstance(text, str):
                raise InvalidUpdate(
                    f'"payload" is {json.dumps(text)}, not text: write it between quotes; only objects and lists are '
                    "published as JSON"
                )
            return text.encode()
        except UnicodeEncodeError:
            raise InvalidUpdate('"payload" is no valid text; send bytes as "payload_base64"') from None
        except (ValueError, RecursionError) as error:  # such as a number beyond all floats
            raise InvalidUpdate(f'"payload" cannot be written as JSON ({error}): write it as text') from None
    try:
        return base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise InvalidUpdate(f'"payload_base64" is not base64: {error}') from None


def _time(text: Any) -> dt.datetime:
    try:
        time = dt.datetime.fromisoformat(text)
        if time.tzinfo is None:
            raise ValueError
        return time.astimezone(dt.UTC)
    except (TypeError, ValueError, OverflowError):
        raise InvalidUpdate(
            f'"time" is {reprlib.repr(text)}, not a time with its zone, as in 2026-01-01T00:00:00Z'
        ) from None


def _no_number(text: str) -> NoReturn:
    raise InvalidUpdate(f"no JSON: {text} is not a number there")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InvalidUpdate(f"the key {twice!r} is there twice")
    return value


_DECODER = json.JSONDecoder(parse_constant=_no_number, object_pairs_hook=_pairs)
