"""What a payload is shown as: what it says, if it is JSON or its stream tells how to decode it; else text, else bytes.

So many bytes of it are shown at most, and whatever is in it, it is shown: what cannot be decoded comes as bytes, with
the reason.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from typing import Any

from tidings.errors import ENDING, InvalidUpdate, TidingsError
from tidings.logs import PayloadForm
from tidings.texts import short

SHOWN_BYTES = 4 * 2**10  # of one payload
MAX_JSON_BYTES = 64 * 2**10  # of a payload that is shown as what it says


def payload_json(payload: bytes, form: PayloadForm | None = None) -> dict[str, Any]:
    """A payload as what it is: JSON, text, or bytes in base64; large ones are cut off.

    >>> payload_json(b'{"name": "Alice"}')["value"], payload_json(b"hello")["as"], payload_json(b"\\xff")["as"]
    ({'name': 'Alice'}, 'text', 'bytes')
    >>> payload_json(b"7", PayloadForm("octal", lambda raw: int(raw, 8)))
    {'as': 'json', 'form': 'octal', 'value': 7, 'truncated': False}
    >>> payload_json(b"8", PayloadForm("octal", lambda raw: int(raw, 8)))["reason"]
    "ValueError: invalid literal for int() with base 8: b'8'"
    """
    if form is not None:
        try:
            return {"as": "json", "form": form.name, "value": _decoded(payload, form), "truncated": False}
        except ENDING:
            raise
        except BaseException as error:  # noqa: BLE001 - a log may be anybody's, and so is what it makes of bytes
            told = str(error) if isinstance(error, TidingsError) else f"{type(error).__name__}: {error}"
            return {**_bytes(payload), "form": form.name, "reason": short(told)}
    if len(payload) <= MAX_JSON_BYTES and payload[:1] in b'{["':
        try:
            return {"as": "json", "value": json.loads(payload, parse_constant=_no_constant), "truncated": False}
        except (ValueError, RecursionError):
            pass
    cut = len(payload) > SHOWN_BYTES
    try:
        text = payload[:SHOWN_BYTES].decode(errors="strict")
    except UnicodeDecodeError as error:
        if not cut or error.start < SHOWN_BYTES - 4:  # else a character was cut in two
            return _bytes(payload)
        text = payload[: error.start].decode()
    return {"as": "text", "value": text, "truncated": cut}


def _decoded(payload: bytes, form: PayloadForm) -> Any:
    if len(payload) > MAX_JSON_BYTES:
        raise InvalidUpdate(
            f"it has {len(payload):,} bytes, and of at most {MAX_JSON_BYTES:,} it is shown what they say"
        )
    text = json.dumps(form.read(payload), default=_text)
    if len(text) > MAX_JSON_BYTES:  # a few bytes may say very much
        raise InvalidUpdate(f"what it says has {len(text):,} bytes, and at most {MAX_JSON_BYTES:,} are shown")
    return json.loads(text, parse_constant=str)


def _text(value: Any) -> str:
    """What JSON has no word for, as databases print it."""
    if isinstance(value, bytes | bytearray):
        return f"\\x{value.hex()}"
    return value.isoformat() if isinstance(value, dt.date | dt.time) else str(value)


def _bytes(payload: bytes) -> dict[str, Any]:
    shown = base64.b64encode(payload[:SHOWN_BYTES]).decode()
    return {"as": "bytes", "value": shown, "truncated": len(payload) > SHOWN_BYTES}


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
