"""Which clients there are: the mark that a client was created, whether it is there, and when it was last seen.

A client is made by `created`, and by nothing else. Its mark goes when it has stayed away for too long, and its
registrations with it. An operation of a client without the mark makes nothing: the client is told to start afresh.

A client is offline once the gateway to which it came last says so; another's word is late, and of an earlier stay. It
is online again when a gateway says so, or when an operation of its own comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.server.arrays import Flags, Longs, flags, groups, last_of_each, longs, places, text_equal
from tidings_thialfi.server.tables import CLIENTS

FACTS = 4
MARK, PRESENCE, FLOOR, SEEN = range(FACTS)
"""The facts of a client: its mark; whether it is online, and where; the number of its last `sync`; the largest number
seen.

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
    gateways: pa.Array
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

        present = known.filter(pc.equal(known["fact"], PRESENCE))
        at = places(longs(present, "client"), ids)
        return cls(
            ids,
            fact(MARK, "number", -1),
            fact(MARK, "holds", 0) == 1,
            fact(PRESENCE, "holds", 1) == 1,
            present["gateway"].combine_chunks().take(pa.array(at, mask=at < 0)),
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
    online, came, gateways = _presence(known, clients, seqs, ops["gateway"], among)

    last = last_of_each(clients, seqs)  # in the order of the ids
    fresh = marked & ~known.marked
    mark = np.flatnonzero(created)
    mark = mark[last_of_each(clients[mark], seqs[mark])]
    mark = mark[fresh[known.at(clients[mark])]]
    written = marked & (came | (online != known.online) | (last_seen - known.last_seen >= PRESENCE_REFRESH_US) | fresh)
    rows = [
        _facts(MARK, clients[mark], 2 * seqs[mark], times[mark], ops["source"].take(pa.array(mark))),
        _facts(
            PRESENCE,
            known.ids[written],
            seqs[last][written],
            last_seen[written],
            None,
            online[written],
            gateways.filter(pa.array(written)),
        ),
        _facts(FLOOR, known.ids[floors > known.floors], floors[floors > known.floors]),
        _facts(SEEN, known.ids[seen > known.seen], seen[seen > known.seen]),
    ]
    return Clients(known.ids, known.marks, marked, online, gateways, last_seen, floors, seen), pa.concat_tables(rows)


def _presence(
    known: Clients, clients: Longs, seqs: Longs, said: pa.ChunkedArray, among: Callable[..., Flags]
) -> tuple[Flags, Flags, pa.Array]:
    """Who is online after these operations; who has come, in any case; and to which gateway each came last."""
    count = len(known.ids)
    came = np.flatnonzero(among(stream_schema.ONLINE))
    came = came[last_of_each(clients[came], seqs[came])]
    since, source = np.full(count, -1), np.arange(count)
    since[known.at(clients[came])], source[known.at(clients[came])] = seqs[came], count + came
    names = pa.chunked_array([known.gateways, *said.chunks], pa.string())
    gateways = names.take(pa.array(source)).combine_chunks()

    left = np.flatnonzero(among(stream_schema.OFFLINE))
    at = known.at(clients[left])
    there = gateways.take(pa.array(at))
    same = np.asarray(pc.is_null(there), bool) | text_equal(there, said.take(pa.array(left)).combine_chunks())
    gone = np.isin(np.arange(count), at[same & (seqs[left] > since[at])])
    active = np.isin(known.ids, clients[~among(stream_schema.OFFLINE, stream_schema.CONTINUE)])
    return (known.online | active) & ~gone, since >= 0, gateways


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
    gateways: pa.Array | None = None,
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
        "gateway": nothing if gateways is None else gateways,
    }
    return pa.table(columns, CLIENTS)
