"""The stage `thialfi`: updates and what clients want in, what clients are told out.

| option | default | meaning |
| --- | --- | --- |
| `service` | required | its streams are `<service>.operations`, an input, and `<service>.notifications`, the output |
| `away_days` | 30 | a client that was not heard of for so long is forgotten |
| `max_registrations` | 10,000 | objects that a client may be registered for; what is beyond is refused |
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
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, Field, PrivateAttr

from tidings.errors import InvalidName, InvalidOption
from tidings.names import check_name
from tidings.stages import Stage
from tidings.storage.sorted_run_file import Share
from tidings.updates import from_rows, timed
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.protocol.constants import MAX_PAYLOAD_BYTES
from tidings_thialfi.protocol.digests import items
from tidings_thialfi.server import clients, notifications
from tidings_thialfi.server.arrays import Longs, flags, longs
from tidings_thialfi.server.collection import StreamCollection
from tidings_thialfi.server.compaction import Compactor
from tidings_thialfi.server.fanout import FanOut, plan_fan_out
from tidings_thialfi.server.matching import MAX_CLIENT_NUMBER, notifications_due, objects_after, registrations_after
from tidings_thialfi.server.names import NAME, Names
from tidings_thialfi.server.payloads import INLINE_BYTES, ReadLate, with_late_payloads
from tidings_thialfi.server.tables import ACKNOWLEDGEMENTS, QUEUE, Index

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidings.catalogue import Catalogue
    from tidings.stages.state import State
    from tidings.stream_definition import StreamDefinition
    from tidings.streams import Stream

DAY_US = 86_400 * 10**6
ZOMBIE = "the service does not know this client any more"
AWAY = "the client was not heard of for too long"
NOBODY = -1  # who is no client
ROOM_ROWS = 100_000  # that a batch tells of objects, and as many to clients that come
ROOM_BYTES = 64 * 2**20  # if each of them had the largest payload that is kept


class Step(NamedTuple):
    """What clients are told, and rows for the operations, if there is more to do."""

    told: pa.Table
    more: Sequence[dict[str, Any]]


def _named(service: str) -> str:
    try:
        return check_name("a service", service)
    except InvalidName as error:
        raise ValueError(str(error)) from None


class Thialfi(Stage):
    """Tells each registered client the latest version of each object, in the end and whatever fails."""

    service: Annotated[str, AfterValidator(_named)]
    away_days: Annotated[float, Field(gt=0)] = 30.0
    max_registrations: Annotated[int, Field(ge=1)] = 10_000
    payload_bytes: Annotated[int, Field(ge=0, le=MAX_PAYLOAD_BYTES)] = 1024
    parts: Annotated[int, Field(ge=1, le=1024)] = 16
    collect_every: Annotated[int, Field(ge=1)] = 64

    _index: Index | None = PrivateAttr(None)
    _compactor: Compactor = PrivateAttr(default_factory=Compactor)
    _collection: StreamCollection = PrivateAttr(default_factory=lambda: StreamCollection([]))
    _operations: Stream | None = PrivateAttr(None)

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
        [self._operations] = [stream for stream in inputs if stream.name == operations]
        self._collection = StreamCollection([self._operations, *([output] if output else [])])

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
        """What clients are told of this batch.

        What there is no room for is done in the next one. That it comes, even if nothing else does, is seen to by rows
        among the operations, which make no difference if they come twice.
        """
        from pyspark.sql import functions as sf

        def read_late(places: list[int]) -> pa.Table:
            return batch.where(sf.col("place").isin(places)).select("place", "object", "late").toArrow()

        index = self.opened(state)
        with ThreadPoolExecutor(1, thread_name_prefix="tidings-thialfi-runs") as aside:
            advancing = aside.submit(index.advance, state.batch_id)  # while Spark reads
            rows = batch.drop("late").toArrow()
            advancing.result()
        self._compactor.look(index, state.batch_id)
        self._collection.look()
        told, more = self.step(rows, index, state, read_late)
        if more and self._operations is not None:
            self._operations.writable_log.append(timed(from_rows(more)))
        return told

    def opened(self, state: State) -> Index:
        """The index of this pipeline's state."""
        known = self._index
        if known is None or (known.folder, known.app) != (state.folder, state.app):
            if known is not None:
                known.close()
            self._index = known = Index(state.folder, state.app, self.parts)
        return known

    def step(self, rows: pa.Table, index: Index, state: State, read_late: ReadLate) -> Step:
        """What clients are told of these rows, whose columns are `COLUMNS`, with the index as before the batch."""
        # Clients are not forgotten as of now, but as of when the operations that were read were written.
        now = pc.max(rows["time"]).as_py() or 0
        read = min(now, pc.max(rows["written"]).as_py() or 0)
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
        room = min(ROOM_ROWS, ROOM_BYTES // max(1, self.payload_bytes))
        returned = ids[after.marked & after.online & ~known.online]
        calls = longs(_chosen(ops, stream_schema.ONLINE, stream_schema.CONTINUE), "client")
        offline = ids[~after.online]
        coming, later = self._in_turn(np.setdiff1d(np.union1d(returned, calls), offline), index, state, room)
        deciding = np.unique(
            np.concatenate([longs(_chosen(ops, stream_schema.SYNC), "client"), longs(asking, "client")])
        )
        ended = np.union1d(zombies, away.ids)
        touched = np.union1d(np.union1d(coming, deciding), ended)
        of_touched = clients.Clients.of(touched, index["clients"].lookup(touched))
        of_touched = _updated(of_touched, after)
        before = names.numbered(index["registrations_of"].lookup(touched))
        registrations = registrations_after(before, asking, of_touched, ended, self.max_registrations)
        mine = registrations.rows.filter(pa.array(registrations.registered))
        fresh, asked = (column[registrations.registered] for column in (registrations.fresh, registrations.asked))
        pending = asked | np.isin(longs(mine, "client"), coming)

        keys = np.union1d(longs(updates, "key"), longs(mine, "key")[fresh | pending])
        objects = objects_after(updates, names.numbered(index["objects"].lookup(keys)))
        acknowledged = _acknowledgements(ops)
        all_acknowledged = pa.concat_tables(
            [names.numbered(index["acknowledgements"].lookup(np.unique(longs(mine, "client")[pending]))), acknowledged]
        )
        counts = index["registered_for"].counts(longs(objects.new, "key"))
        queue = names.numbered(index["fanouts"].lookup([QUEUE]))
        fan_out = plan_fan_out(objects.new, counts, queue, room, now)
        objects = objects.including(
            names.numbered(index["objects"].lookup(np.setdiff1d(fan_out.all_keys, keys))),
            again=np.setdiff1d(fan_out.all_names, longs(objects.new, "name")),
        )
        wanted = np.union1d(longs(objects.new, "name")[counts > 0], longs(mine, "name"))
        objects = with_late_payloads(objects, wanted, self.payload_bytes, names, read_late)
        others = _registered_for(index, names, fan_out, touched)
        others = others.filter(pa.array(~np.isin(longs(others, "client"), _offline(index, others, after))))
        everyone = pa.concat_tables([mine.select(others.column_names), others])
        neither = np.zeros(len(others), bool)
        versions, unknowns = notifications_due(
            everyone, np.append(fresh, neither), np.append(pending, neither), objects, all_acknowledged
        )
        digest_due = np.union1d(coming, deciding)
        output = [
            notifications.invalid(zombies, ZOMBIE),
            notifications.invalid(away.ids, AWAY),
            notifications.statuses(registrations.rows.filter(pa.array(registrations.asked))),
            notifications.refusals(registrations.refused),
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
                "fanouts": fan_out.changed,
            },
        )
        waiting = [*later.tolist(), *([NOBODY] if fan_out.waits else [])]
        more = [stream_schema.operation(client, stream_schema.CONTINUE) for client in waiting]
        return Step(notifications.together(output), more)

    def _in_turn(self, coming: Longs, index: Index, state: State, room: int) -> tuple[Longs, Longs]:
        """Clients that are told now what is pending for them, and those that are told later; in each batch others."""
        coming = coming[np.argsort(items(np.full(len(coming), state.batch_id), coming))]
        fits = np.cumsum(index["registrations_of"].counts(coming)) <= room
        fits[:1] = True
        return np.sort(coming[fits]), np.sort(coming[~fits])

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
LATE = f"not is_op and length(payload) between {INLINE_BYTES + 1} and {MAX_PAYLOAD_BYTES}"
COLUMNS = (
    "stream",
    "seq",
    "if(is_op, try_element_at(attributes, 'op'), null) as op",
    "if(is_op, try_cast(object as bigint), null) as client",
    "coalesce(version, -1L) as number",
    f"{OBJECT} as object",
    f"xxhash64({OBJECT}) as key",
    "if(is_op, try_element_at(attributes, 'gateway'), null) as gateway",
    "source",
    f"if(is_op or length(payload) > {INLINE_BYTES}, null, payload) as payload",
    f"if({LATE}, length(payload), 0L) as late_bytes",
    f"if({LATE}, payload, null) as late",
    "xxhash64(stream, shard, seq) as place",
    # In a stream, Spark's time of the batch: the machine's, and the same when the batch is repeated.
    "unix_micros(current_timestamp()) as time",
    "if(is_op, unix_micros(time), null) as written",
)


def _split(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The updates, and the operations, each in their order."""
    rows = rows.sort_by([("stream", "ascending"), ("seq", "ascending")])
    is_op = pc.is_valid(rows["client"])
    ops = rows.filter(is_op)
    numbered = pc.is_in(ops["op"], pa.array([stream_schema.REGISTER, stream_schema.UNREGISTER, stream_schema.SYNC]))
    too_large = pc.and_kleene(numbered, pc.greater(ops["number"], MAX_CLIENT_NUMBER))
    ops = ops.filter(pc.and_(pc.invert(too_large), pc.greater(ops["client"], NOBODY)))
    return rows.filter(pc.invert(is_op)), ops


def _chosen(ops: pa.Table, *names: str) -> pa.Table:
    """The operations of these kinds; if they are about objects, as registrations have them."""
    rows = ops.filter(pc.is_in(ops["op"], pa.array(names, pa.string())))
    if stream_schema.REGISTER not in names:
        return rows
    rows = rows.filter(pc.and_(pc.is_valid(rows["object"]), pc.greater_equal(rows["number"], 0)))
    registers = pc.equal(rows["op"], stream_schema.REGISTER)
    return rows.append_column("registers", registers).append_column("application", rows["source"])


def _registered_for(index: Index, names: Names, fan_out: FanOut, touched: Longs) -> pa.Table:
    """The registrations that are told now, but for those of clients that are looked at anyway."""

    def wanting(rows: pa.Table, objects: Longs) -> pa.Table:
        rows = names.numbered(rows)
        wanted = flags(rows, "registered") & np.isin(longs(rows, "name"), objects)
        wanted &= ~np.isin(longs(rows, "client"), touched)
        return rows.filter(pa.array(wanted)).select(["client", "since", "object", "application", "name"])

    runs = index["registered_for"]
    found = [wanting(runs.lookup(fan_out.keys), fan_out.names)]
    found += [wanting(runs.lookup([part.key], part.share), np.array([part.name])) for part in fan_out.parts]
    return pa.concat_tables(found)


def _offline(index: Index, registered: pa.Table, after: clients.Clients) -> Longs:
    """Which of the clients of these registrations are not there, and are told what is pending when they come back."""
    wanted = np.setdiff1d(longs(registered, "client"), after.ids)
    known = index["clients"].lookup(wanted, Share("fact", clients.PRESENCE, clients.FACTS))
    return np.append(longs(known, "client")[~flags(known, "holds")], after.ids[~after.online])


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
