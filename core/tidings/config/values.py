"""The values of `tidings.yml`, each with the check that pydantic makes of it.

A validator raises ValueError where the rest of tidings raises TidingsError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from tidings.applications import check_on_failure, check_start
from tidings.config.units import parse_duration, parse_size
from tidings.coordination.session import split_address
from tidings.errors import InvalidOption, TidingsError
from tidings.filters import parse as parse_filter
from tidings.stream_definition import split_address as split_log

T = TypeVar("T")


def _check(parse: Callable[..., T], *arguments: Any) -> T:
    try:
        return parse(*arguments)
    except TidingsError as error:
        raise ValueError(str(error)) from None


def or_empty(value: Any) -> Any:
    """Of a mapping all of whose keys were taken out, or commented out: an empty one."""
    return {} if value is None else value


def _duration(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError(f"must be a duration, as in P7D, not {value!r}")
    return _check(parse_duration, value)


def _size(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"must be a size, as in 10GiB, not {value!r}")
    return _check(parse_size, str(value))


def _start(value: Any) -> Any:
    try:
        return check_start(value)
    except InvalidOption as error:
        raise ValueError(str(error).replace("start is", "must be", 1)) from None
    except TidingsError as error:
        raise ValueError(str(error)) from None


def _on_failure(value: Any) -> Any:
    try:
        return check_on_failure(value)
    except TidingsError as error:
        raise ValueError(str(error).replace("on_failure is", "must be", 1)) from None


def _filter(value: str) -> str:
    _check(parse_filter, _text(value))
    return value


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value


def _log(value: str) -> str:
    _check(split_log, value)
    return value


def _address(value: str) -> str:
    _check(split_address, value)
    return value


def _logs(value: Any) -> Any:
    if value == {}:
        raise ValueError("must name one at least, as in {east: 'postgres:…'}")
    return value


def _list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


# What an editor is told of a value, where that is not what the type says (`tidings.config.schema`).
_Duration = Annotated[str, Field(pattern="^P", examples=["P7D", "PT12H"])]
_Size = int | Annotated[str, Field(pattern="^[0-9]", examples=["500MB", "10GiB"])]
_Start = Literal["earliest", "latest"] | str | dict[str, dict[str, int]]
_OnFailure = Literal["park", "skip"] | Annotated[str, Field(pattern="^stream:.")]

Text = Annotated[str, AfterValidator(_text), WithJsonSchema({"type": "string", "minLength": 1})]
Seconds = Annotated[int, BeforeValidator(_duration, json_schema_input_type=_Duration)]
Bytes = Annotated[int, BeforeValidator(_size, json_schema_input_type=_Size)]
Address = Annotated[str, AfterValidator(_address)]
FilterText = Annotated[str, AfterValidator(_filter)]
Log = Annotated[str, AfterValidator(_log)]
Logs = Annotated[dict[str, Log], BeforeValidator(_logs)]
OnFailure = Annotated[str, BeforeValidator(_on_failure, json_schema_input_type=_OnFailure)]
OneOrMore = Annotated[list[Text], BeforeValidator(_list, json_schema_input_type=Text | list[Text]), Field(min_length=1)]
Start = Annotated[Any, BeforeValidator(_start, json_schema_input_type=_Start)]
