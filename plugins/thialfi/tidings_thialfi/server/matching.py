"""What a batch makes of the registrations and versions that were known before it: pure functions over columns.

Everything is derived from the state after the batch, so a registration and an update that are in one batch find each
other, whichever came first. All tables have the column `name` (`names.Names`), by which they find each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.storage.sorted_run_file import Layout
from tidings_thialfi.server.arrays import Flags, Longs, codes, flags, last_of_each, longs, places, text_equal
from tidings_thialfi.server.clients import Clients
from tidings_thialfi.server.names import NAME
from tidings_thialfi.server.tables import OBJECTS, REGISTRATIONS

MAX_CLIENT_NUMBER = 2**62 - 1  # of a client's numbers: two of them must fit into 64 bits

_OBJECTS, _REGISTRATIONS = OBJECTS.append(NAME), REGISTRATIONS.append(NAME)
_NEW = pa.schema([*_OBJECTS, ("late_bytes", pa.int64()), ("place", pa.int64())])
_NEWEST_OBJECTS = Layout(_OBJECTS, "name", ("unknown",), "number", 1)


@dataclass(frozen=True)
class Objects:
    """Versions: the rows that are new, and all that are known of the objects in question, after the batch.

    Clients are told of what is new, and of what is to be told `again`, by name.
    """

    new: pa.Table
    after: pa.Table
    again: Longs = field(default_factory=lambda: np.empty(0, np.int64))

    def including(self, rows: pa.Table, again: Longs | None = None) -> Objects:
        """With these rows, too; among those alike they count."""
        after = _NEWEST_OBJECTS.newest(pa.concat_tables([self.after, rows.select(_OBJECTS.names)]))
        return Objects(self.new, after, self.again if again is None else again)

    def told(self, unknown: int) -> Longs:
        """The names of which all registered clients are to be told that they have a version; or an unknown one."""
        return np.append(longs(self.new.filter(pc.equal(self.new["unknown"], unknown)), "name"), self.again)

    def facts(self, unknown: int) -> pa.Table:
        """The known versions; or the updates without one that no later version has superseded."""
        rows = self.after.filter(pc.equal(self.after["unknown"], unknown))
        if not unknown:
            return rows
        versions = self.facts(0)
        at = places(longs(versions, "name"), longs(rows, "name"))
        known = np.where(at >= 0, _taken(longs(versions, "number"), at), -1)
        return rows.filter(pa.array(longs(rows, "base") >= known))


def objects_after(updates: pa.Table, known: pa.Table) -> Objects:
    """Take the updates of a batch in: the largest version of each object, if it is above the one known before.

    An update without a version counts if it came after the batch's newest version, or in another stream. It gets a
    number that is above those of such updates before it.
    """
    versions = known.filter(pc.equal(known["unknown"], 0))
    names, numbers = longs(updates, "name"), longs(updates, "number")
    seqs = longs(updates, "seq")
    stated = np.flatnonzero(numbers >= 0)
    # Among equal versions the first, as between batches.
    best = stated[last_of_each(names[stated], numbers[stated], -seqs[stated])]
    at = places(longs(versions, "name"), names[best])
    best = best[numbers[best] > np.where(at >= 0, _taken(longs(versions, "number"), at), -1)]
    newer = _object_rows(updates, best, 0, numbers[best], np.zeros(len(best), np.int64))
    after = Objects(newer, known).including(newer).after

    unstated = np.flatnonzero(numbers < 0)
    last = unstated[last_of_each(names[unstated], seqs[unstated])]
    rival = places(names[best], names[last])
    here = updates["stream"].combine_chunks()
    alike = text_equal(here.take(pa.array(last)), here.take(pa.array(_taken(best, rival))))
    last = last[(rival < 0) | ~alike | (seqs[last] > _taken(seqs[best], rival))]
    versions = after.filter(pc.equal(after["unknown"], 0))
    before = known.filter(pc.equal(known["unknown"], 1))
    at, base = places(longs(before, "name"), names[last]), places(longs(versions, "name"), names[last])
    number = np.maximum(longs(updates, "time")[last], np.where(at >= 0, _taken(longs(before, "number"), at) + 1, 0))
    bases = np.where(base >= 0, _taken(longs(versions, "number"), base), -1)
    new = pa.concat_tables([newer, _object_rows(updates, last, 1, np.minimum(number, MAX_CLIENT_NUMBER), bases)])
    return Objects(new, known).including(new)


@dataclass(frozen=True)
class RegistrationChanges:
    """The registrations of some clients after the batch, with what became of each."""

    rows: pa.Table
    asked: Flags  # there was an operation on it
    fresh: Flags  # it is registered, and was not before
    changed: Flags  # to be written
    refused: pa.Table  # the operations that would have made one too many

    @property
    def registered(self) -> Flags:
        """Whether each is one that counts."""
        return flags(self.rows, "registered")


def registrations_after(
    known: pa.Table, ops: pa.Table, clients: Clients, ended: Longs, most: int
) -> RegistrationChanges:
    """Take operations in: the largest number wins, and what is below the client's last `sync` is void.

    `known` are all rows of the clients. Those of the clients in `ended` are void altogether. A client has `most`
    registrations; an operation that would make one more is as if it had not been.
    """
    op_clients, numbers, registers = longs(ops, "client"), longs(ops, "number"), flags(ops, "registers")
    known_pairs, op_pairs = codes((longs(known, "client"), op_clients), (longs(known, "name"), longs(ops, "name")))
    ranks = rank(numbers, registers)
    valid = np.flatnonzero(numbers >= clients.floors[clients.at(op_clients)])
    best = valid[last_of_each(op_pairs[valid], ranks[valid])]
    pairs = np.union1d(known_pairs, op_pairs)
    old, new, any_op = places(known_pairs, pairs), places(op_pairs[best], pairs), _first_places(op_pairs, pairs)
    new = np.where(new >= 0, _taken(best, new), -1)

    was = (old >= 0) & _taken(flags(known, "registered"), old)
    old_rank = np.where(old >= 0, _taken(longs(known, "rank"), old), -1)
    takes = (new >= 0) & (_taken(ranks, new) > old_rank)
    old_number = np.where(old >= 0, _taken(longs(known, "number"), old), -1)
    client = np.where(old >= 0, _taken(longs(known, "client"), old), _taken(op_clients, any_op))
    floor, gone = clients.floors[clients.at(client)], np.isin(client, ended)

    def settled() -> tuple[Longs, Flags]:
        number = np.where(takes, _taken(numbers, new), old_number)
        registered = np.where(takes, _taken(registers, new), was)
        void = (registered & (number < floor)) | (number < 0)
        return np.where(void, np.maximum(floor - 1, number), number), registered & ~void & ~gone

    number, registered = settled()
    beyond = _beyond(client, registered & was, registered & ~was, number, most)
    refused = ops.take(pa.array(new[beyond]))
    takes &= ~beyond
    number, registered = settled()
    since = np.where(was, _taken(longs(known, "since"), old), number)

    op_times = longs(ops, "time")
    time = np.where(takes, _taken(op_times, new), np.where(old >= 0, _taken(longs(known, "time"), old), 0))

    # The application comes from the operation, if it is that which counts, else from what was known.
    source = np.where(takes | (old < 0), len(known) + np.where(takes, new, any_op), old)
    keys, names = (np.append(longs(known, one), longs(ops, one))[source] for one in ("key", "name"))
    texts = pa.concat_tables([known.select(["object", "application"]), ops.select(["object", "application"])])
    texts = texts.take(pa.array(source))
    columns = {
        "client": client,
        "key": keys,
        "rank": rank(number, registered),
        "number": number,
        "registered": registered,
        "since": since,
        "object": texts["object"],
        "application": texts["application"],
        "time": time,
        "name": names,
    }
    changed = ((old >= 0) | takes) & ((number != old_number) | (registered != was))
    asked = (any_op >= 0) & ~beyond
    return RegistrationChanges(pa.table(columns, _REGISTRATIONS), asked, registered & ~was, changed, refused)


def _beyond(client: Longs, kept: Flags, fresh: Flags, number: Longs, most: int) -> Flags:
    """Which of the fresh registrations are too many for their client: those with the largest numbers."""
    found = np.zeros(len(client), bool)
    new = np.flatnonzero(fresh)
    new = new[np.lexsort((number[new], client[new]))]
    whose, first, at = np.unique(client[new], return_index=True, return_inverse=True)
    before = np.bincount(places(whose, client[kept]) + 1, minlength=len(whose) + 1)[1:]
    found[new] = before[at] + np.arange(len(new)) - first[at] >= most
    return found


def rank(numbers: Longs, registered: Flags) -> Longs:
    """What orders the rows of a registration: the number, and at the same number the end of it comes last."""
    return 2 * numbers + ~registered


def acknowledged_numbers(pairs: pa.Table, acknowledged: pa.Table, unknown: int) -> Longs:
    """The largest number of each client and object in `pairs` that the client has acknowledged; -1 if none."""
    rows = acknowledged.filter(pc.equal(acknowledged["unknown"], unknown))
    wanted, held = codes((longs(pairs, "client"), longs(rows, "client")), (longs(pairs, "name"), longs(rows, "name")))
    best = last_of_each(held, longs(rows, "number"))
    at = places(held[best], wanted)
    return np.where(at >= 0, _taken(longs(rows, "number")[best], at), -1)


@dataclass(frozen=True)
class DueNotices:
    """What clients are to be notified of: for each row of `pairs`, and the row of `facts` that it is about (or -1)."""

    unknown: bool
    pairs: pa.Table
    numbers: Longs
    facts: pa.Table
    places: Longs


def notifications_due(
    pairs: pa.Table, fresh: Flags, pending: Flags, objects: Objects, acknowledged: pa.Table | None
) -> tuple[DueNotices, DueNotices]:
    """What is to be notified of versions, and of unknown versions.

    A `fresh` registration is notified of what is known, in any case; one that may have something `pending`, of what it
    has not acknowledged; every registration of what is new. The client that made a change is not notified of it.
    """
    names = longs(pairs, "name")
    versions, unknowns = objects.facts(0), objects.facts(1)

    at = places(longs(versions, "name"), names)
    numbers = _taken(longs(versions, "number"), at)
    wanted = fresh | np.isin(names, objects.told(0))
    if acknowledged is not None:
        wanted |= pending & (numbers > acknowledged_numbers(pairs, acknowledged, 0))
    wanted &= (at >= 0) & (fresh | ~_own(pairs, versions, at))
    of_versions = _due(False, pairs, wanted, numbers, versions, at)

    since = np.minimum(longs(pairs, "since"), MAX_CLIENT_NUMBER)
    nothing = at < 0
    at = places(longs(unknowns, "name"), names)
    numbers = np.where(at >= 0, since + _taken(longs(unknowns, "number"), at), since)
    wanted = fresh | np.isin(names, objects.told(1))
    due = fresh
    if acknowledged is not None:
        known = acknowledged_numbers(pairs, acknowledged, 1)
        wanted |= pending & (numbers > known)
        # Whoever changed an object without having heard of it when registering knows the change, and not the object.
        due = fresh | (pending & (known < since))
    wanted &= np.where(at >= 0, due | ~_own(pairs, unknowns, at), nothing)
    return of_versions, _due(True, pairs, wanted, numbers, unknowns, at)


def _due(unknown: bool, pairs: pa.Table, wanted: Flags, numbers: Longs, facts: pa.Table, at: Longs) -> DueNotices:
    chosen = np.flatnonzero(wanted)
    return DueNotices(unknown, pairs.take(pa.array(chosen)), numbers[chosen], facts, at[chosen])


def _own(pairs: pa.Table, facts: pa.Table, at: Longs) -> Flags:
    """Where the fact comes from the client itself."""
    sources = facts["source"].combine_chunks().take(pa.array(at, mask=at < 0))
    return text_equal(pairs["application"].combine_chunks(), sources)


def _object_rows(updates: pa.Table, at: Longs, unknown: int, numbers: Longs, bases: Longs) -> pa.Table:
    rows = updates.take(pa.array(at))
    given = ("key", "object", "source", "payload", "time", "name", "late_bytes", "place")
    columns = {name: rows[name] for name in given}
    columns |= {"unknown": np.full(len(at), unknown, np.int64), "number": numbers, "base": bases}
    return pa.table([columns[name] for name in _NEW.names], _NEW)


def _first_places(held: Longs, wanted: Longs) -> Longs:
    """As `places`, for values that may be held several times."""
    values, first = np.unique(held, return_index=True)
    at = places(values, wanted)
    return np.where(at >= 0, _taken(first, at), -1)


def _taken(values: npt.NDArray[Any], at: Longs) -> npt.NDArray[Any]:
    """The values at these places; anything where a place is -1."""
    if not len(values):
        return np.zeros(len(at), values.dtype)
    return values[np.maximum(at, 0)]
