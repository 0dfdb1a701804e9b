"""Reading on and on in the log of a PostgreSQL database."""

from __future__ import annotations

import bisect
import contextlib
import select
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import InvalidPosition, LogUnavailable, PositionsLost, TidingsError
from tidings.log_reading import ends
from tidings.logs import Read
from tidings.positions import Position, Positions
from tidings.updates import SCHEMA
from tidings_connectors.cdc.changes import Changes
from tidings_connectors.cdc.moved_rows import updates_with_ends
from tidings_connectors.cdc.positions import chosen, later
from tidings_connectors.postgres.before_images import BeforeImages
from tidings_connectors.postgres.connections import (
    LIMIT_EXCEEDED,
    UNDEFINED_OBJECT,
    Broken,
    Error,
    PostgresConnection,
    PostgresServer,
    quoted_name,
    translating_errors,
    unavailable,
)
from tidings_connectors.postgres.decoding import ROW_TAGS, Batch, Decoder
from tidings_connectors.postgres.heartbeat import Heartbeat
from tidings_connectors.postgres.keys import TableKeys
from tidings_connectors.postgres.left_out import LeftOutTables, form_of
from tidings_connectors.postgres.options import PostgresOptions
from tidings_connectors.postgres.publications import NotPublished, PostgresPublication
from tidings_connectors.postgres.relations import KnownKey
from tidings_connectors.postgres.slots import STATE_MAX_AGE_S, Slot
from tidings_connectors.postgres.unsendable import refused_change
from tidings_connectors.postgres.wal import lsn_text

POLL_TIMEOUT_S = 0.05  # that a read waits for something to come
LINGER_S = 0.001  # and for more, when something came
MAX_LINGER_S = 0.1  # in all
BATCH_BYTES = 32 * 2**20
STATUS_INTERVAL_S = 5


class PostgresReader:
    """A `Reader` with a replication connection, and a copy of the slot that goes with it."""

    def __init__(
        self,
        server: PostgresServer,
        connection: PostgresConnection,
        slot: Slot,
        options: PostgresOptions,
        shards: int,
        keys: TableKeys,
        left_out: LeftOutTables,
        heartbeat: Heartbeat | None = None,
        on_close: Callable[[PostgresReader], None] | None = None,
    ) -> None:
        self._server = server
        self._connection = connection
        self._slot = slot
        self._options = options
        self._shards = shards
        self._keys = keys
        self._left_out = left_out
        self._heartbeat = heartbeat
        self._on_close = on_close
        self._closed = False
        self._replication: Any = None
        self._cursor: Any = None
        self._publication = PostgresPublication(connection, options.publication)
        self._copy = ""
        self._failed: Error | None = None
        self._polling = select.poll()
        self._images = BeforeImages(server, connection)
        self._decoder = self._new_decoder()
        self._start = Position(0, -1)
        self._read_upto = 0
        """Where in the WAL all transactions were read that are over."""
        self._seen: dict[int, Position] = {}
        """The last row of each shard that came, whether it was asked for or not."""
        self._refused: int | None = None
        """Where in the WAL the change is that the server could not send."""

    def read(self, after: Positions, limit: int) -> Read:
        """The next rows, as `Reader` says it."""
        if len(after) == 0:
            return Read(SCHEMA.empty_table(), after)
        if max(after) >= self._shards:
            raise InvalidPosition(f"the stream has shards 0 to {self._shards - 1}, not {max(after)}")
        fresh = not self._goes_on(after)
        if fresh:
            self._open(after)
        try:
            rows = self._next(after, limit)
        except Error as error:
            self._drop()
            if not self._may_pass(error, fresh):
                raise self._reason(error, after) from error
            try:
                self._open(after)
                rows = self._next(after, limit)
            except Error as again:
                self._drop()
                raise self._reason(again, after) from again
        except BaseException:
            self._drop()  # messages were read that nobody got
            raise
        stand = self.stand
        upto = Positions({shard: max(at, stand) for shard, at in after.items()})
        loss = self._left_out.loss(after, upto)
        return Read(rows, upto) if loss is None else self._before(loss, rows, after)

    def _before(self, loss: PositionsLost, rows: pa.Table, after: Positions) -> Read:
        """What comes before a loss; when that was read, the loss."""
        self._drop()  # what comes after it is read again
        place = next(last for _, last in loss.lost.values())
        rows = rows.filter(pc.less(rows["seq"], place.seq))
        if len(rows) == 0:
            raise loss
        end = Position(place.seq - 1, -1)  # where no transaction is
        return Read(rows, Positions({shard: max(at, end) for shard, at in after.items()}))

    @property
    def stand(self) -> Position:
        """Up to where the log was read, in all shards."""
        if self._decoder.open:
            return Position(self._decoder.seq, self._decoder.rows - 1)
        return Position(self._read_upto, -1)

    def close(self) -> None:
        self._closed = True
        self._drop()
        if self._on_close is not None:
            self._on_close(self)

    def _goes_on(self, after: Positions) -> bool:
        """Whether the connection stands where nothing is behind it that is asked for."""
        if self._replication is None or any(at < self._seen.get(shard, self._start) for shard, at in after.items()):
            return False
        furthest = max(after.values())
        if furthest > self.stand and furthest > self._slot.state(STATE_MAX_AGE_S).head:
            self._slot.check(self._slot.state(), after)
        return True

    def _open(self, after: Positions) -> None:
        """Copy a slot, and begin to read the copy where the first of the shards stands."""
        self._drop()
        if self._closed:
            raise LogUnavailable("the reader was closed")
        self._slot.check(self._slot.readable_state(), after)
        start = min(after.values())
        with contextlib.ExitStack() as failed:
            self._replication = self._server.replicate()
            failed.callback(self._drop)
            self._cursor = self._replication.cursor()
            try:
                floor = self._copied_before(start)
            except Error as error:
                self._slot.check(self._slot.readable_state(), after)  # says so if the slot was lost, or just went away
                few = error.pgcode == LIMIT_EXCEEDED
                raise (self._slot.too_few() if few else unavailable(self._server, error)) from error
            # The server would go forward to this place in silence.
            self._slot.check(self._slot.state()._replace(floor=floor), after)
            self._replication.notices.clear()
            with translating_errors(self._server):
                self._cursor.start_replication_expert(
                    f"START_REPLICATION SLOT {quoted_name(self._copy)} LOGICAL {lsn_text(start.seq)} "
                    f"(proto_version '1', publication_names {self._publication.names})",
                    decode=False,
                    status_interval=STATUS_INTERVAL_S,
                )
            failed.pop_all()
        self._polling = select.poll()  # select() takes no more than the first 1,024 files of a process
        self._polling.register(self._replication, select.POLLIN)
        self._decoder = self._new_decoder()
        self._start, self._read_upto, self._seen, self._failed = start, start.seq, {}, None

    def _copied_before(self, start: Position) -> Position:
        """Copy the slot from which the server has the shortest way to this place; where the copy stands."""
        lead = self._slot.lead
        if lead.serves(start.seq):
            with contextlib.suppress(Error):
                if (floor := self._copied(lead.name)) <= start:
                    return floor
                self._cursor.execute("SELECT pg_drop_replication_slot(%s)", (self._copy,))  # it was moved meanwhile
        try:
            return self._copied(self._slot.name)
        except Error as error:
            if error.pgcode != LIMIT_EXCEEDED or not lead.drop():
                raise
        return self._copied(self._slot.name)

    def _copied(self, slot: str) -> Position:
        """Copy a slot; where the copy stands."""
        self._copy = f"{self._slot.name[:46]}_{uuid.uuid4().hex[:16]}"
        self._cursor.execute("SELECT pg_copy_logical_replication_slot(%s, %s, true)", (slot, self._copy))
        self._cursor.execute(
            "SELECT (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint FROM pg_replication_slots WHERE slot_name = %s",
            (self._copy,),
        )
        return Position(self._cursor.fetchone()[0], -1)

    def _next(self, after: Positions, limit: int) -> pa.Table:
        """The next rows. A transaction that was read in part before is gone through in one go up to there."""
        first = min(after.values())
        while True:
            messages, more = self._collect(limit)
            self._check_published()
            batches = self._decoder.decode(messages)
            self._read_upto = max(self._read_upto, self._decoder.end)
            if not self._decoder.open and not more:
                self._read_upto = max(self._read_upto, self._cursor.wal_end)
            rows = self._wanted(batches, after)
            self._cursor.send_feedback(write_lsn=self._read_upto, flush_lsn=self._read_upto)
            if len(rows) or not more or self.stand > first:
                break
        if self._heartbeat is not None:
            if batches:
                self._heartbeat.row_came()
            else:
                self._heartbeat.idle()
        return rows

    def _collect(self, limit: int) -> tuple[list[bytes], bool]:
        """Messages with about so many rows, and whether there may be more at hand."""
        if self._failed is not None:
            raise self._failed
        read = self._cursor.read_message
        messages: list[bytes] = []
        add = messages.append
        rows = size = 0
        deadline, waited = 0.0, False
        while True:
            begun = len(messages)
            for _ in range(max(1, min(limit - rows, 4096))):
                try:
                    last = read()
                except Error as error:  # which comes after these
                    if not messages:
                        raise
                    self._failed = error
                    return messages, True
                if last is None:
                    break
                add(last.payload)
                size += len(last.payload)
                if size >= BATCH_BYTES:
                    break
            rows += sum([message[0] in ROW_TAGS for message in messages[begun:]])
            if rows >= limit or size >= BATCH_BYTES:
                return messages, True
            if last is not None:
                continue
            if messages:
                now = time.monotonic()
                deadline = deadline or now + MAX_LINGER_S
                if now > deadline or not self._readable(LINGER_S):
                    return messages, False
            elif waited or not self._readable(POLL_TIMEOUT_S):
                return messages, False
            else:
                waited = True

    def _check_published(self) -> None:
        """From version 18 on the server goes on without a publication that is not there, and only sends a warning.

        A warning can be of anything, so it is the catalog that says whether it is of that.
        """
        self._replication.poll()  # which fetches warnings
        if self._replication.notices:
            self._replication.notices.clear()
            if not self._publication.always_there(self._copy):
                raise NotPublished

    def _readable(self, seconds: float) -> bool:
        return bool(self._polling.poll(seconds * 1000))

    def _wanted(self, batches: list[Batch], after: Positions) -> pa.Table:
        """The rows that were asked for, in the order of the log."""
        if not batches:
            return SCHEMA.empty_table()
        tables = []
        for changes, key_known_from in batches:
            form = form_of(changes)
            if (reason := self._left_out.reason(form)) is not None:
                self._left_out.note(form.name, reason, _place(changes, 0), _place(changes, -1))
                continue
            unnamed = int(np.searchsorted(changes.seqs, key_known_from))
            if unnamed:
                self._left_out.note_unnamed(form.name, _place(changes, 0), _place(changes, unnamed - 1))
            if unnamed < len(changes):
                self._left_out.came(form.name, _place(changes, unnamed))
            updates = updates_with_ends(changes, self._options, self._shards)
            tables.append(chosen(updates, updates["seq"].to_numpy() >= key_known_from))
        if not tables:
            return SCHEMA.empty_table()
        rows = tables[0]
        if len(tables) > 1:
            rows = pa.concat_tables(tables).combine_chunks()
            rows = rows.take(np.lexsort((rows["index"].to_numpy(), rows["seq"].to_numpy())))
        self._seen |= ends(rows)
        return chosen(rows, later(rows, after))

    def _new_decoder(self) -> Decoder:
        return Decoder(self._key_of, self._options.image_columns, self._images.of_all_partitions)

    def _key_of(self, oid: int, table: str, columns: Sequence[str]) -> KnownKey:
        return self._keys.key_of(oid, table, columns, self._copy)

    def _may_pass(self, error: Error, fresh: bool) -> bool:
        """Whether all may be well at once: the server has ended the connection since the last read, or is just coming
        back; or it could not send a change, for the first time."""
        refused = refused_change(error, self._copy)
        if refused is None:
            return _broken(error) and not fresh
        known, self._refused = self._refused, refused
        return refused != known

    def _reason(self, error: Error, after: Positions) -> TidingsError:
        """The server's error in a sentence of ours."""
        refused = refused_change(error, self._copy)
        if refused is not None and refused == self._refused:
            return self._unsendable(error, refused, after)
        if error.pgcode != UNDEFINED_OBJECT:
            return unavailable(self._server, error)
        name = self._publication.name
        if not self._publication.there():
            return LogUnavailable(
                f"PostgreSQL at {self._server} has no publication {name!r} any more: {self._publication.making}"
            )
        place = Position(self._readable_from(min(after.values()).seq, lambda one: one.pgcode == UNDEFINED_OBJECT), -1)
        return PositionsLost(
            f"publication {name!r} of PostgreSQL at {self._server} was made at {place.seq} in the log, and what was "
            "written before cannot be read by it",
            {shard: (Position(at.seq, at.index + 1), place) for shard, at in after.items() if at < place},
        )

    def _unsendable(self, error: Error, refused: int, after: Positions) -> PositionsLost:
        """What is lost by a change that cannot be sent: it, and what comes after it in its transaction."""
        if self._decoder.open:
            commit = self._decoder.seq
        else:  # it is the first of its transaction
            commit = self._readable_from(self._read_upto, lambda one: refused_change(one, self._copy) == refused) - 1
        reason = f"a row in transaction {commit} cannot be sent: {unavailable(self._server, error)}"
        first, place = Position(commit), Position(commit + 1, -1)  # where no transaction is
        return PositionsLost(
            f"{reason}; it is lost, with what comes after it in this transaction",
            {shard: (max(first, Position(at.seq, at.index + 1)), place) for shard, at in after.items() if at < place},
            reason,
        )

    def _readable_from(self, low: int, stops: Callable[[Error], bool]) -> int:
        """From where on the log can be read without this error, found by halving: not from here, and from its end."""
        head = self._slot.state().head
        between = range(low + 1, head.seq)
        return between.start + bisect.bisect_left(between, True, key=lambda lsn: self._passes(lsn, head, stops))

    def _passes(self, lsn: int, head: Position, stops: Callable[[Error], bool]) -> bool:
        """Whether one who reads from here on comes to a row, or another that cannot be sent, before the error."""
        stands = Positions(dict.fromkeys(range(self._shards), Position(lsn, -1)))
        self._open(stands)
        try:
            while self.stand < head:
                if len(self._next(stands, 1)):
                    break
        except Error as error:
            if stops(error):
                return False
            if refused_change(error, self._copy) is None:
                raise unavailable(self._server, error) from error
        finally:
            self._drop()
        return True

    def _drop(self) -> None:
        connection, self._replication, self._cursor = self._replication, None, None
        if connection is not None:
            with contextlib.suppress(Error):
                connection.close()


def _broken(error: Exception) -> bool:
    """Whether the connection is gone, and nothing else is wrong."""
    state = getattr(error, "pgcode", None)
    return isinstance(error, Broken) or state is None or state[:2] in ("08", "57")


def _place(changes: Changes, at: int) -> Position:
    return Position(int(changes.seqs[at]), int(changes.indexes[at]))
