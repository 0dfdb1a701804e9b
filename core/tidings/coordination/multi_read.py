"""Reading many nodes in one request, which ZooKeeper answers since 3.6, and kazoo 2.11 does not know.

`MultiRead` is to `getData` and `getChildren` what a transaction is to writes, with one difference: each part has an
answer of its own, so that a node which is missing or forbidden harms no other. It sets no watches. A server that
does not know the request says so, and hangs up; the session goes on.

`SetWatches` sets those, many at once. Clients of other languages say it when they have connected anew, with the newest
transaction that they know, to hear of what they missed. Said before a `MultiRead` on the same session, by somebody who
claims to know all, it makes one of it that watches: what changes after the read is told, and nothing else is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol.serialization import (
    GetChildren,
    GetData,
    MultiHeader,
    int_struct,
    multiheader_struct,
    read_buffer,
    read_string,
    stat_struct,
    write_string,
)
from kazoo.protocol.states import WatchedEvent, ZnodeStat

MAX_READS = 256  # in one request
MAX_PATHS_BYTES = 256 * 2**10  # of one request: a server takes 1 MiB, and hangs up on more

ALL_KNOWN = 2**63 - 1  # a transaction after which none comes

Watch = Callable[[WatchedEvent], None]
Answer = Any
"""`(raw, stat)` of a node, the names of children, or the error that this one read has met."""


@dataclass(frozen=True)
class MultiRead:
    """A request: reads, answered in their order."""

    operations: Sequence[GetData | GetChildren]
    type: ClassVar[int] = 22

    def serialize(self) -> bytes:
        """As it is sent."""
        head = {kind.type: MultiHeader(kind.type, False, -1).serialize() for kind in (GetData, GetChildren)}
        parts = [part for one in self.operations for part in (head[one.type], one.serialize())]
        return b"".join([*parts, multiheader_struct.pack(-1, True, -1)])

    def deserialize(self, buffer: bytes, offset: int) -> list[Answer]:
        """What a server has answered."""
        answers: list[Answer] = []
        while True:
            kind, done, _ = multiheader_struct.unpack_from(buffer, offset)
            offset += multiheader_struct.size
            if done:
                return answers
            if kind == GetData.type:
                raw, offset = read_buffer(buffer, offset)
                answers.append((raw or b"", ZnodeStat._make(stat_struct.unpack_from(buffer, offset))))
                offset += stat_struct.size
            elif kind == GetChildren.type:
                names = []
                (count,) = int_struct.unpack_from(buffer, offset)
                offset += int_struct.size
                for _ in range(count):
                    name, offset = read_string(buffer, offset)
                    names.append(name)
                answers.append(names)
            else:
                (code,) = int_struct.unpack_from(buffer, offset)
                offset += int_struct.size
                answers.append(EXCEPTIONS[code]())


@dataclass(frozen=True)
class SetWatches:
    """A request: watch nodes that are there, and others that are not. If it is otherwise, a watch is called at once."""

    client: KazooClient
    there: Mapping[str, Watch]
    missing: Mapping[str, Watch]
    type: ClassVar[int] = 101

    def serialize(self) -> bytes:
        """As it is sent; by the thread that hears of changes, so that none can come in between."""
        for path, watch in (*self.there.items(), *self.missing.items()):
            self.client._data_watchers[path].add(watch)
        lists = (self.there, self.missing, ())
        parts = [part for one in lists for part in (int_struct.pack(len(one)), *map(write_string, one))]
        return b"".join([struct.pack("!q", ALL_KNOWN), *parts])

    def deserialize(self, buffer: bytes, offset: int) -> None:
        """There is no answer but that it was done."""


def split(operations: Sequence[GetData | GetChildren]) -> Iterator[Sequence[GetData | GetChildren]]:
    """Reads that fit into one request each, in their order."""
    first = size = 0
    for number, one in enumerate(operations):
        more = len(one.path.encode())
        if number > first and (number - first == MAX_READS or size + more > MAX_PATHS_BYTES):
            yield operations[first:number]
            first, size = number, 0
        size += more
    if operations:
        yield operations[first:]
