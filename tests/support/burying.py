"""Collecting by hand: any updates, whether they are obsolete or not."""

from __future__ import annotations

from typing import Any

from tidings.logs import Transaction
from tidings.tombstones import Tombstones

APPLICATION = "by hand"


def bury(log: Any, gone: Tombstones) -> int:
    """Have a log put tombstones in the place of these updates; the number of the transaction."""
    last: int = log.last_transaction(APPLICATION)
    log.collect(gone, Transaction(APPLICATION, last + 1), last)
    return last + 1
