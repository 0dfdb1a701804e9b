"""Texts and numbers that others wrote, as people may see them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MAX_NUMBER = 2**63 - 1
MAX_SHORT = 500  # characters
MAX_ENTRIES = 1000
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STACK = re.compile(r"\s+(\d+: |at \S+:\d+).*")


def printable(text: str) -> str:
    r"""The text with line ends, and whatever else a terminal or a log would obey or choke on, made visible.

    >>> print(printable("red: \x1b[31m"))
    red: \x1b[31m
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def counted(number: int, one: str, more: str | None = None) -> str:
    """So many of something; `more` is the word for several, if it is not the other with an s.

    >>> counted(1, "flow"), counted(1200, "flow"), counted(1, "flow is", "flows are")
    ('1 flow', '1,200 flows', '1 flow is')
    """
    return f"{number:,} {one if number == 1 else more or f'{one}s'}"


def sentence(text: str) -> str:
    r"""What another library says of its failure, on one line: without colours, and without its stack.

    >>> sentence("no table: \x1b[31mJson error\x1b[0m\n\ncaused by: 'j'\n   0: <unknown>\n      at ./clone3.S:81:0")
    "no table: Json error caused by: 'j'"
    """
    lines = _COLOURS.sub("", text).splitlines()
    return " ".join(line.strip() for line in lines if line.strip() and not _STACK.fullmatch(line))


def number(value: Any, most: float = MAX_NUMBER) -> float | None:
    """The value, if it is a number from 0 to the most that it can be.

    >>> number(0.25), number(7), number(1e308), number(float("nan")), number(True), number({"a": 1}), number(2, most=1)
    (0.25, 7, None, None, None, None, None)
    """
    return value if type(value) in (int, float) and 0 <= value <= most else None


def whole(value: Any) -> int | None:
    """The value, if it is a whole number, as a pid and a count are.

    >>> whole(7), whole(7.5), whole(-1), whole("7")
    (7, None, None, None)
    """
    return value if type(value) is int and 0 <= value <= MAX_NUMBER else None


def short(value: Any, most: int = MAX_SHORT) -> str | None:
    """The value, if it is a text, or its beginning.

    >>> short("contacts"), short("contacts", most=4), short(["contacts"])
    ('contacts', 'con…', None)
    """
    if not isinstance(value, str):
        return None
    return value if len(value) <= most else f"{value[: most - 1]}…"


def short_list(value: Any) -> list[str] | None:
    """The texts in the value, the first of very many, if it is a list.

    >>> short_list(["contacts", 7]), short_list("contacts")
    (['contacts'], None)
    """
    return (
        [short(one) or "" for one in value[:MAX_ENTRIES] if isinstance(one, str)] if isinstance(value, list) else None
    )


def short_texts(value: Any) -> dict[str, str]:
    """The texts in the value by their names, the first of very many; none, if it is no mapping.

    >>> short_texts({"contacts": "no such table", "orders": 7}), short_texts(7)
    ({'contacts': 'no such table', 'orders': '7'}, {})
    """
    entries = list(value.items())[:MAX_ENTRIES] if isinstance(value, Mapping) else []
    return {short(str(name)) or "": short(str(text)) or "" for name, text in entries}
