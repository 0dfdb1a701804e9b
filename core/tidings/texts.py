"""Texts that others wrote, as people may see them."""

from __future__ import annotations

import re

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


def sentence(text: str) -> str:
    r"""What another library says of its failure, on one line: without colours, and without its stack.

    >>> sentence("no table: \x1b[31mJson error\x1b[0m\n\ncaused by: 'j'\n   0: <unknown>\n      at ./clone3.S:81:0")
    "no table: Json error caused by: 'j'"
    """
    lines = _COLOURS.sub("", text).splitlines()
    return " ".join(line.strip() for line in lines if line.strip() and not _STACK.fullmatch(line))
