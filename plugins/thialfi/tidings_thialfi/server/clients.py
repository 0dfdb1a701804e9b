"""Which clients there are: the mark that a client was created, whether it is there, and when it was last seen.

A client is made by `created`, and by nothing else. Its mark goes when it has stayed away for too long, and its
registrations with it. An operation of a client without the mark makes nothing: the client is told to start afresh.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.server.arrays import Flags, Longs, flags, groups, last_of_each, longs, places
from tidings_thialfi.server.tables import CLIENTS

MARK, PRESENCE, FLOOR, SEEN = range(4)
"""The facts of a client: its mark; whether it is online; the number of its last `sync`; the largest number seen.

A mark's number is twice the position of `created`, and one more once the mark has gone, so that it goes after it came;
that of the presence is a position; the others are their own numbers.
"""

PRESENCE_REFRESH_US = 3600 * 10**6  # a client that says nothing new is written as seen this often, and not oftener


@dataclass(frozen=True)
class Clients:
    """What is known of some clients; arrays in the order of `ids`, which are sorted."""

    ids: Longs
    marks: Longs
    marked: Flags
    online: Flags
    last_seen: Longs
    floors: Longs
    seen: Longs

    @classmethod
    def of(cls, ids: Longs, known: pa.Table) -> Clients:
        """These clients, from rows of the table."""

        def fact(which: int, column: str, default: int) -> Longs:
            rows = known.filter(pc.equal(known["fact"], which))
            at = places(longs(rows, "client"), ids)
            values = flags(rows, column).astype(np.int64) if column == "holds" else longs(rows, column)
            found = np.full(len(ids), default, np.int64)
            found[at >= 0] = values[at[at >= 0]]
            return found

        return cls(
            ids,
            fact(MARK, "number", -1),
            fact(MARK, "holds", 0) == 1,
            fact(PRESENCE, "holds", 0) == 1,
            fact(PRESENCE, "time", -1),
            fact(FLOOR, "number", -1),
            fact(SEEN, "number", -1),
        )

    def at(self, clients: Longs) -> Longs:
        """The places of these clients, which are all among them."""
        return np.searchsorted(self.ids, clients)


def step(known: Clients, ops: pa.Table) -> tuple[Clients, pa.Table]:
    """What is known after these operations, and the rows for the table.

    A batch in which a client is created counts for it as a whole.
    """
    clients, seqs, times = longs(ops, "client"), longs(ops, "seq"), longs(ops, "time")
    op = ops["op"].combine_chunks()

    def among(*names: str) -> Flags:
        return np.asarray(pc.is_in(op, pa.array(names, pa.string())), bool)

    created = among(stream_schema.CREATED)
    marked = known.marked | np.isin(known.ids, clients[created])
    alive = marked[known.at(clients)]
    numbered = alive & among(stream_schema.REGISTER, stream_schema.UNREGISTER, stream_schema.SYNC)
    syncs = alive & among(stream_schema.SYNC)
    numbers = longs(ops, "number")
    floors = np.maximum(known.floors, groups(numbers[syncs], clients[syncs], known.ids))
    seen = np.maximum(known.seen, groups(numbers[numbered], clients[numbered], known.ids))
    last_seen = np.maximum(known.last_seen, groups(times, clients, known.ids))
    turns = np.flatnonzero(among(stream_schema.ONLINE, stream_schema.OFFLINE))
    turns = turns[last_of_each(clients[turns], seqs[turns])]
    online = known.online.copy()
    online[known.at(clients[turns])] = among(stream_schema.ONLINE)[turns]

    last = last_of_each(clients, seqs)  # in the order of the ids
    fresh = marked & ~known.marked
    mark = np.flatnonzero(created)
    mark = mark[last_of_each(clients[mark], seqs[mark])]
    mark = mark[fresh[known.at(clients[mark])]]
    turned = np.isin(known.ids, clients[turns])
    written = marked & (turned | (last_seen - known.last_seen >= PRESENCE_REFRESH_US) | fresh)
    rows = [
        _facts(MARK, clients[mark], 2 * seqs[mark], times[mark], ops["source"].take(pa.array(mark))),
        _facts(PRESENCE, known.ids[written], seqs[last][written], last_seen[written], holds=online[written]),
        _facts(FLOOR, known.ids[floors > known.floors], floors[floors > known.floors]),
        _facts(SEEN, known.ids[seen > known.seen], seen[seen > known.seen]),
    ]
    return Clients(known.ids, known.marks, marked, online, last_seen, floors, seen), pa.concat_tables(rows)


def away(facts: pa.Table, since: int) -> Clients:
    """The clients among these, by their facts, that have not been seen since this time."""
    known = Clients.of(np.unique(longs(facts, "client")), facts)
    ids = known.ids[known.marked & (known.last_seen < since)]
    return Clients.of(ids, facts)


def unmarked(clients: Clients) -> pa.Table:
    """Rows that take the marks of these clients away."""
    return _facts(MARK, clients.ids, clients.marks + 1, clients.last_seen, holds=np.zeros(len(clients.ids), bool))


def _facts(
    fact: int,
    clients: Longs,
    numbers: Longs,
    times: Longs | None = None,
    application: pa.ChunkedArray | None = None,
    holds: Flags | None = None,
) -> pa.Table:
    count = len(clients)
    nothing = pa.nulls(count, pa.string())
    columns = {
        "client": clients,
        "fact": np.full(count, fact, np.int64),
        "number": numbers,
        "holds": np.ones(count, bool) if holds is None else holds,
        "time": np.zeros(count, np.int64) if times is None else times,
        "application": nothing if application is None else application,
        "gateway": nothing,
    }
    return pa.table(columns, CLIENTS)
