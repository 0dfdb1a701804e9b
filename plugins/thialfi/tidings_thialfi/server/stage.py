"""The stage `thialfi`: updates and what clients want in, what clients are told out.

| option | default | meaning |
| --- | --- | --- |
| `service` | required | its streams are `<service>.operations`, an input, and `<service>.notifications`, the output |
| `away_days` | 30 | a client that was not heard of for so long is forgotten |
| `payload_bytes` | 1,024 | a larger payload is told when it comes, and not kept for those who hear of it later |
| `parts` | 16 | into how many parts the larger runs are split; runs are made anew when it changes |
| `collect_every` | 64 | batches between two looks for clients that are away, at one part of the clients each |

All other inputs are streams of updates. Spark makes keys and columns; they come to the driver as Arrow, and are matched
there over the memory-mapped runs, whatever the size of the batch. Matching 13,000 notifications and as many
acknowledgements takes 0.06 s of CPU with half a million registrations and 0.08 s with 7 million (`make bench
ONLY=thialfi-stage`); a `mapInArrow` that does nothing adds 0.08 s to the job, and what it found would come to the
driver all the same, from where the pipeline writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, Field, PrivateAttr

from tidings.errors import InvalidName, InvalidOption
from tidings.names import check_name
from tidings.stages import Stage
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.server import clients, notifications
from tidings_thialfi.server.arrays import Longs, flags, longs
from tidings_thialfi.server.collection import StreamCollection
from tidings_thialfi.server.compaction import Compactor
from tidings_thialfi.server.matching import (
    MAX_CLIENT_NUMBER,
    Objects,
    notifications_due,
    objects_after,
    registrations_after,
)
from tidings_thialfi.server.names import NAME, Names
from tidings_thialfi.server.tables import ACKNOWLEDGEMENTS, Index

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidings.catalogue import Catalogue
    from tidings.stages.state import State
    from tidings.stream_definition import StreamDefinition
    from tidings.streams import Stream

DAY_US = 86_400 * 10**6
ZOMBIE = "the service does not know this client any more"
AWAY = "the client was not heard of for too long"


def _named(service: str) -> str:
    try:
        return check_name("a service", service)
    except InvalidName as error:
        raise ValueError(str(error)) from None


class Thialfi(Stage):
    """Tells each registered client the latest version of each object, in the end and whatever fails."""

    service: Annotated[str, AfterValidator(_named)]
    away_days: Annotated[float, Field(gt=0)] = 30.0
    payload_bytes: Annotated[int, Field(ge=0)] = 1024
    parts: Annotated[int, Field(ge=1, le=1024)] = 16
    collect_every: Annotated[int, Field(ge=1)] = 64

    _index: Index | None = PrivateAttr(None)
    _compactor: Compactor = PrivateAttr(default_factory=Compactor)
    _collection: StreamCollection = PrivateAttr(default_factory=lambda: StreamCollection([]))

    def check(self, inputs: Sequence[StreamDefinition], output: StreamDefinition | None) -> None:
        """Refuse inputs without the service's operations, or another output than its notifications."""
        super().check(inputs, output)
        operations, notifications = (
            stream_schema.operations_of(self.service),
            stream_schema.notifications_of(self.service),
        )
        if operations not in [stream.name for stream in inputs]:
            raise InvalidOption(f"the stage reads what clients want: name {operations!r} among its inputs")
        if output is not None and output.name != notifications:
            raise InvalidOption(f"what clients are told is written to {notifications!r}, not to {output.name!r}")

    def begin(self, cluster: Catalogue, inputs: Sequence[Stream], output: Stream | None) -> None:
        """From now on, the two streams of the service are collected."""
        operations = stream_schema.operations_of(self.service)
        own = [stream for stream in inputs if stream.name == operations] + ([output] if output else [])
        self._collection = StreamCollection(own)

    def end(self) -> None:
        """Wait for the collection that is under way."""
        self._collection.close()

    def prepare(self, rows: DataFrame) -> DataFrame:
        """The rows as columns of numbers and texts, with the keys of objects.

        As SQL, which nobody else has a word in: the expressions read better than the same as calls.
        """
        from pyspark.sql import functions as sf

        rows = rows.withColumn("is_op", sf.col("stream") == sf.lit(stream_schema.operations_of(self.service)))
        rows = rows.where("not is_op or try_cast(object as bigint) is not null")
        return rows.selectExpr(*COLUMNS)

    def apply(self, batch: DataFrame, state: State) -> pa.Table:
        """What clients are told of this batch."""
        index = self.opened(state)
        with ThreadPoolExecutor(1, thread_name_prefix="tidings-thialfi-runs") as aside:
            advancing = aside.submit(index.advance, state.batch_id)  # while Spark reads
            rows = batch.toArrow()
            advancing.result()
        self._compactor.look(index, state.batch_id)
        self._collection.look()
        return self.step(rows, index, state)

    def opened(self, state: State) -> Index:
        """The index of this pipeline's state."""
        known = self._index
        if known is None or (known.folder, known.app) != (state.folder, state.app):
            if known is not None:
                known.close()
            self._index = known = Index(state.folder, state.app, self.parts)
        return known

    def step(self, rows: pa.Table, index: Index, state: State) -> pa.Table:
        """What clients are told of these rows, whose columns are `COLUMNS`, with the index as before the batch."""
        # Clients are not forgotten as of now, but as of when the operations that were read were written.
        read = min(pc.max(rows["time"]).as_py() or 0, pc.max(rows["written"]).as_py() or 0)
        limit = int(self.away_days * DAY_US)
        index.expiry.before = max(index.expiry.before, read - limit)
        names = Names()
        updates, ops = _split(names.numbered(rows))
        ids = np.unique(longs(ops, "client"))
        known = clients.Clients.of(ids, index["clients"].lookup(ids))
        after, facts = clients.step(known, ops)
        zombies = ids[~after.marked]
        ops = ops.filter(pa.array(after.marked[after.at(longs(ops, "client"))]))
        away = clients.away(self._some_clients(index, state.batch_id, ids), read - limit)

        # Everything about the clients whose registrations may change, or that come online.
        asking = _chosen(ops, stream_schema.REGISTER, stream_schema.UNREGISTER)
        coming = np.unique(longs(_chosen(ops, stream_schema.ONLINE), "client"))
        deciding = np.unique(
            np.concatenate([longs(_chosen(ops, stream_schema.SYNC), "client"), longs(asking, "client")])
        )
        ended = np.union1d(zombies, away.ids)
        touched = np.union1d(np.union1d(coming, deciding), ended)
        of_touched = clients.Clients.of(touched, index["clients"].lookup(touched))
        of_touched = _updated(of_touched, after)
        before = names.numbered(index["registrations_of"].lookup(touched))
        registrations = registrations_after(before, asking, of_touched, ended)
        mine = registrations.rows.filter(pa.array(registrations.registered))
        fresh, asked = (column[registrations.registered] for column in (registrations.fresh, registrations.asked))
        pending = asked | np.isin(longs(mine, "client"), coming)

        keys = np.union1d(longs(updates, "key"), longs(mine, "key")[fresh | pending])
        objects = objects_after(updates, names.numbered(index["objects"].lookup(keys)))
        acknowledged = _acknowledgements(ops)
        all_acknowledged = pa.concat_tables(
            [names.numbered(index["acknowledgements"].lookup(np.unique(longs(mine, "client")[pending]))), acknowledged]
        )
        others = _wanting(names.numbered(index["registered_for"].lookup(longs(objects.new, "key"))), objects, touched)
        everyone = pa.concat_tables([mine.select(others.column_names), others])
        more = np.zeros(len(others), bool)
        versions, unknowns = notifications_due(
            everyone, np.append(fresh, more), np.append(pending, more), objects, all_acknowledged
        )
        digest_due = np.union1d(coming, deciding)
        output = [
            notifications.invalid(zombies, ZOMBIE),
            notifications.invalid(away.ids, AWAY),
            notifications.statuses(registrations.rows.filter(pa.array(registrations.asked))),
            notifications.notices(versions),
            notifications.notices(unknowns),
            notifications.digests(digest_due, of_touched.seen[of_touched.at(digest_due)], mine),
        ]
        index.write(
            state,
            {
                "objects": self._kept(objects.new),
                "registrations": registrations.rows.filter(pa.array(registrations.changed)),
                "acknowledgements": acknowledged,
                "clients": pa.concat_tables([facts, clients.unmarked(away)]),
            },
        )
        return notifications.together(output)

    def _some_clients(self, index: Index, batch_id: int, here: Longs) -> pa.Table:
        """The facts of clients of whom it is time to see whether they are away; none of those that are here."""
        known = index["clients"]
        if batch_id % self.collect_every:
            return known.lookup([])
        facts = known.scan(batch_id // self.collect_every % self.parts)
        return facts.filter(pa.array(~np.isin(longs(facts, "client"), here)))

    def _kept(self, objects: pa.Table) -> pa.Table:
        """The rows without payloads that are too large to keep."""
        payload = objects["payload"]
        small = pc.if_else(pc.greater(pc.binary_length(payload), self.payload_bytes), None, payload)
        return objects.set_column(objects.column_names.index("payload"), objects.schema.field("payload"), small)


OBJECT = "if(is_op, try_element_at(attributes, 'object'), object)"
COLUMNS = (
    "stream",
    "seq",
    "if(is_op, try_element_at(attributes, 'op'), null) as op",
    "if(is_op, try_cast(object as bigint), null) as client",
    "coalesce(version, -1L) as number",
    f"{OBJECT} as object",
    f"xxhash64({OBJECT}) as key",
    "source",
    "if(is_op, null, payload) as payload",
    # In a stream, Spark's time of the batch: the machine's, and the same when the batch is repeated.
    "unix_micros(current_timestamp()) as time",
    "if(is_op, unix_micros(time), null) as written",
)


def _split(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The updates, and the operations, each in their order."""
    rows = rows.sort_by([("stream", "ascending"), ("seq", "ascending")])
    is_op = pc.is_valid(rows["client"])
    ops = rows.filter(is_op)
    ops = ops.filter(pc.less_equal(ops["number"], MAX_CLIENT_NUMBER))
    return rows.filter(pc.invert(is_op)), ops


def _chosen(ops: pa.Table, *names: str) -> pa.Table:
    """The operations of these kinds; if they are about objects, as registrations have them."""
    rows = ops.filter(pc.is_in(ops["op"], pa.array(names, pa.string())))
    if stream_schema.REGISTER not in names:
        return rows
    rows = rows.filter(pc.and_(pc.is_valid(rows["object"]), pc.greater_equal(rows["number"], 0)))
    registers = pc.equal(rows["op"], stream_schema.REGISTER)
    return rows.append_column("registers", registers).append_column("application", rows["source"])


def _wanting(registered: pa.Table, objects: Objects, touched: Longs) -> pa.Table:
    """The registrations for new versions, but for those of clients that are looked at anyway."""
    wanted = flags(registered, "registered") & np.isin(longs(registered, "name"), longs(objects.new, "name"))
    wanted &= ~np.isin(longs(registered, "client"), touched)
    return registered.filter(pa.array(wanted)).select(["client", "since", "object", "application", "name"])


def _acknowledgements(ops: pa.Table) -> pa.Table:
    rows = ops.filter(
        pc.is_in(ops["op"], pa.array([stream_schema.ACKNOWLEDGE, stream_schema.ACKNOWLEDGE_UNKNOWN], pa.string()))
    )
    rows = rows.filter(pc.and_(pc.is_valid(rows["object"]), pc.greater_equal(rows["number"], 0)))
    unknown = pc.equal(rows["op"], stream_schema.ACKNOWLEDGE_UNKNOWN).cast(pa.int64())
    columns = [rows["client"], rows["key"], unknown, rows["number"], rows["object"], rows["name"]]
    return pa.table(columns, ACKNOWLEDGEMENTS.append(NAME))


def _updated(clients: clients.Clients, after: clients.Clients) -> clients.Clients:
    """The clients, with what the batch has changed of some of them."""
    at = np.flatnonzero(np.isin(clients.ids, after.ids))
    there = after.at(clients.ids[at])
    for mine, theirs in ((clients.floors, after.floors), (clients.seen, after.seen)):
        mine[at] = theirs[there]
    return clients
