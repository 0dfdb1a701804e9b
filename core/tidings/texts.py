"""Texts that others wrote, as people may see them."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""The text with line ends, and whatever else a terminal or a log would obey or choke on, made visible.

    >>> print(printable("red: \x1b[31m"))
    red: \x1b[31m
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
