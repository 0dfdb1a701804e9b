"""Payloads as values: a handler says what it wants of the bytes, and a stream how they are written.

| `payload_as` | the value of a payload |
| --- | --- |
| `dict`, `list`, `dict[str, int]`, … | what its JSON says |
| a dataclass, a `TypedDict`, a pydantic model | one of these, made of what its JSON says and checked |
| a function | what that makes of the bytes |

A stream whose definition says how its payloads are written, as one of rows in Avro does, is decoded by that instead of
JSON. An update without a payload, such as a delete, has no value.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, get_origin

from tidings.errors import InvalidOption, InvalidUpdate, TidingsError
from tidings.logs import PayloadForm

MAX_PROBLEM_CHARACTERS = 200  # of what is told of a payload, which may be anything


class PayloadReader:
    """Makes values of payloads. `form_of` tells how those of a stream are written; it is asked once a stream.

    >>> PayloadReader(dict, lambda stream: None).read("contacts", b'{"name": "Alice"}')
    {'name': 'Alice'}
    >>> PayloadReader(bytes.decode, lambda stream: None).read("contacts", b"hello")
    'hello'
    """

    def __init__(self, wanted: Any, form_of: Callable[[str], PayloadForm | None]) -> None:
        self._wanted = wanted
        self._form_of = form_of
        self._forms: dict[str, PayloadForm | None] = {}
        is_type = isinstance(wanted, type | types.UnionType) or get_origin(wanted) is not None
        if not is_type and not callable(wanted):
            raise InvalidOption(f"payload_as is a type, as dict or a dataclass, or a function, not {wanted!r}")
        self._adapter = _adapter(wanted) if is_type else None

    def read(self, stream: str, payload: bytes | None) -> Any:
        """The value of a payload; `InvalidUpdate` if it has none, and whatever a function of the user's raises."""
        if payload is None:
            return None
        if self._adapter is None:
            return self._wanted(payload)
        if stream not in self._forms:
            self._forms[stream] = self._form_of(stream)
        form = self._forms[stream]
        try:
            if form is None:
                return self._adapter.validate_json(payload)
            return self._adapter.validate_python(form.read(payload))
        except TidingsError:
            self._forms.pop(stream)  # it may have another schema by now
            raise
        except ValueError as error:  # pydantic's among them
            name = getattr(self._wanted, "__name__", self._wanted)
            raise InvalidUpdate(f"the payload is no {name}: {_first_problem(error)}") from None


def _adapter(wanted: Any) -> Any:
    from pydantic import PydanticUserError, TypeAdapter

    try:
        return TypeAdapter(wanted)
    except PydanticUserError:
        raise InvalidOption(
            f"payload_as {wanted!r} is a type that no payload can be made into: name dict, a dataclass, a pydantic "
            "model, or a function that takes bytes"
        ) from None


def _first_problem(error: ValueError) -> str:
    """What pydantic found first, in one line."""
    told = str(error)
    if hasattr(error, "errors"):
        first = error.errors()[0]
        told = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
    return told[:MAX_PROBLEM_CHARACTERS]
