"""Which server and database a log is from, and whether another address leads to the same, with the same history.

A server keeps its system identifier for life, and so do all that are made from a copy of its files: standbys, and
those that were restored. When a standby is promoted it begins a new timeline: from there on its WAL is another one,
though the numbers of its places go on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tidings.errors import LogMismatch
from tidings.positions import Positions
from tidings_connectors.postgres.connections import PostgresServer, translating_errors

ORIGIN_MAX_AGE_S = 30.0


class PostgresOrigin(NamedTuple):
    """A database of a server, on one timeline."""

    system: str
    database: int
    timeline: int


def origin_of(server: PostgresServer) -> PostgresOrigin:
    """What the server says of itself; whoever may replicate may ask."""
    with _asking(server) as cursor:
        cursor.execute("IDENTIFY_SYSTEM")
        system, timeline = cursor.fetchone()[:2]
        cursor.execute("SELECT oid::text FROM pg_database WHERE datname = current_database()")
        ((database,),) = cursor.fetchall()
    return PostgresOrigin(str(system), int(database), int(timeline))


def check_origin(server: PostgresServer, known: Mapping[str, Any], passed: Positions) -> None:
    """Raise unless the server is the one that is known, and its WAL the one that was read up to these positions."""
    here, there = origin_of(server), PostgresOrigin(known["system"], known["database"], known["timeline"])
    if here.system != there.system:
        raise LogMismatch(
            f"PostgreSQL at {server} has the system identifier {here.system}, and the stream was read from "
            f"{there.system}: one that was dumped and restored, or upgraded, is another one, so make a new stream"
        )
    if here.database != there.database:
        raise LogMismatch(
            f"the database of PostgreSQL at {server} has the oid {here.database}, and the stream was read from the one "
            f"with {there.database}: name that one"
        )
    parted = None if here.timeline == there.timeline else _parted(server, here.timeline, there.timeline)
    beyond = max((at.seq for at in passed.values()), default=-1)
    if parted is not None and beyond > parted:
        raise LogMismatch(
            f"PostgreSQL at {server} is on timeline {here.timeline}, which parted from timeline {there.timeline} at "
            f"{parted}, and flows have read up to {beyond}: what is between was lost when it was promoted, so make a "
            "new stream"
        )


def _parted(server: PostgresServer, timeline: int, ancestor: int) -> int:
    """Where a timeline has left that of an ancestor."""
    if timeline > ancestor:
        with _asking(server) as cursor:
            cursor.execute(f"TIMELINE_HISTORY {timeline}")
            history = cursor.fetchone()[1]
        text = history if isinstance(history, str) else bytes(history).decode(errors="replace")
        places = dict(line.split()[:2] for line in text.splitlines() if line[:1].isdigit())
        if str(ancestor) in places:
            high, low = places[str(ancestor)].split("/")
            return (int(high, 16) << 32) + int(low, 16)
    raise LogMismatch(
        f"PostgreSQL at {server} is on timeline {timeline}, which does not come from timeline {ancestor}, of which the "
        "stream was read: name the server that was promoted last"
    )


@contextlib.contextmanager
def _asking(server: PostgresServer) -> Iterator[Any]:
    """What asks a server over a connection for replication."""
    with (
        translating_errors(server),
        contextlib.closing(server.replicate()) as connection,
        connection.cursor() as cursor,
    ):
        yield cursor
