"""Rows that are in the log, and that the server cannot send.

A `bytea` of 600 MB is more than 1 GiB as text; a character may have no place in UTF-8; the condition of a publication
may divide by zero. The server then ends the connection with an error, and does so each time that it comes to the row.
Such an error is known by its SQLSTATE, and by the place of the row in the WAL, which the server tells with it in every
language.
"""

from __future__ import annotations

import re
from typing import Any

UNSENDABLE = ("22", "54", "XX000")
"""What SQLSTATEs begin with that are about a value: a wrong one, or one beyond a limit. The server has none of its own
for what it cannot allocate, and calls that an internal error."""
PLACE = re.compile(r"\b([0-9A-F]{1,8})/([0-9A-F]{1,8})\b")


def refused_change(error: Any, slot: str) -> int | None:
    """Where in the WAL the change is that the server cannot send to the reader of this slot; None if it is not that."""
    if not (error.pgcode or "").startswith(UNSENDABLE):
        return None
    for line in (error.diag.context or "").splitlines():
        if slot in line and (found := PLACE.search(line)):
            return (int(found[1], 16) << 32) + int(found[2], 16)
    return None
