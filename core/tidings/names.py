"""Names of streams, applications, publishers and whatever else is named."""

from __future__ import annotations

import re

from tidings.errors import InvalidName

NAME_PATTERN = "[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_NAME = re.compile(NAME_PATTERN)


def check_name(kind: str, name: str) -> str:
    """The name, if it can be a node of ZooKeeper's and a folder's name.

    >>> check_name("a stream", "contacts")
    'contacts'
    """
    if not _NAME.fullmatch(name):
        raise InvalidName(f"{name!r} is no name for {kind}: use 1 to 128 letters, digits, '.', '_' and '-'")
    return name
