"""Many transactions in few requests.

Those of thousands of flows are alike and small, and one after the other each costs ZooKeeper a request, a commit and an
answer. So they are joined, as many as fit. ZooKeeper takes a joined transaction whole or not at all: if it is refused,
each of its transactions is committed by itself, so that one which fails harms no other. Each still has all its own
checks in either case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import KazooException
from kazoo.protocol.serialization import CheckVersion

MAX_BATCH_BYTES = 256 * 2**10  # a server takes 1 MiB, and hangs up on more


class PendingTransaction:
    """The answer to come to one of several transactions that were joined; to be waited for as for one of kazoo's."""

    def __init__(self, batch: _Batch, number: int) -> None:
        self._batch = batch
        self._number = number

    def get(self, timeout: float | None = None) -> list[Any]:
        """The results of the transaction."""
        return self._batch.results(self._number, timeout)


class _Batch:
    def __init__(self, client: KazooClient, transactions: Sequence[TransactionRequest]) -> None:
        self._transactions = transactions
        self._whole: bool | None = None  # whether all were taken together, once that is known
        self._apart: list[Any] = []
        joined = client.transaction()
        checked: set[CheckVersion] = set()
        for operation in (operation for one in transactions for operation in one.operations):
            if not isinstance(operation, CheckVersion):
                joined.operations.append(operation)
            elif operation not in checked:  # many flows have an application in common
                joined.operations.append(operation)
                checked.add(operation)
        self._joined = joined.commit_async()

    def results(self, number: int, timeout: float | None) -> list[Any]:
        if self._whole is None:
            self._whole = not any(isinstance(one, KazooException) for one in self._joined.get(timeout=timeout))
            if not self._whole:
                self._apart = [one.commit_async() for one in self._transactions]
        if self._whole:
            return [True]
        found: list[Any] = self._apart[number].get(timeout=timeout)
        return found


def commit_together(client: KazooClient, transactions: Sequence[TransactionRequest]) -> list[Any]:
    """Begin to commit transactions, none of which changes what another one checks; what is returned waits for each.

    All is to be waited for by one thread.
    """
    pending: list[Any] = []
    for group in _groups(transactions):
        if len(group) == 1:
            pending.append(group[0].commit_async())
        else:
            batch = _Batch(client, group)
            pending += [PendingTransaction(batch, number) for number in range(len(group))]
    return pending


def _groups(transactions: Sequence[TransactionRequest]) -> Iterator[Sequence[TransactionRequest]]:
    """As many as fit into one request each, in their order."""
    first = size = 0
    for number, one in enumerate(transactions):
        more = sum(map(_size_bytes, one.operations))
        if number > first and size + more > MAX_BATCH_BYTES:
            yield transactions[first:number]
            first, size = number, 0
        size += more
    if transactions:
        yield transactions[first:]


def _size_bytes(operation: Any) -> int:
    """How much of a request an operation takes, about."""
    rights = sum(len(one.id.id) + 32 for one in getattr(operation, "acl", ()))
    return len(operation.path.encode()) + len(getattr(operation, "data", b"")) + rights + 64
