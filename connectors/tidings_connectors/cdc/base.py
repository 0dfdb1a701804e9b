"""What the logs of datastores share: all that follows from a reader, and from where the log begins and ends.

`TailedLogBase` is for connectors outside of this repository, too.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import json
import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pyarrow as pa
from pydantic import ValidationError

from tidings.errors import InvalidOption, InvalidOptions, InvalidPosition, LogRestored, PositionsLost
from tidings.log_opening import open_log
from tidings.logs import PayloadForm, Reader, Slice, SnapshotPlace, SnapshotProgress
from tidings.positions import Bounds, Position, Positions
from tidings.updates import SCHEMA
from tidings_connectors.cdc.demanded_snapshot import DemandedSnapshot
from tidings_connectors.cdc.positions import RowsLeftOut, chosen, later
from tidings_connectors.cdc.snapshot import SnapshotOptions, SnapshotSource, StreamSnapshot
from tidings_connectors.cdc.snapshot_note import DEMANDED, LATE, SnapshotRun, aside, waiting
from tidings_connectors.cdc.snapshot_reader import Losses, MergedReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidings.stream_definition import StreamDefinition

STEP_ROWS = 50_000
TAIL_BYTES = 64 * 2**20  # that one look at the next rows brings at most, or a little more

logger = logging.getLogger(__name__)
Options = TypeVar("Options", bound=SnapshotOptions)


class TailedLogBase(abc.ABC):
    """A `TailedLog` to begin a connector with. What a subclass must do, beyond what `Log` and `TailedLog` say:

    - `_unopened` makes the log from its address and its options (`options_of`), and asks the datastore nothing.
    - `create` and `open` begin with `_unopened`, raise unless the datastore can be tailed, and end with
      `_take_snapshot` and `_resume_snapshot`. If they raise, nothing stays open.
    - `bounds` are the same for all shards, and have gone through `_bounds_with_snapshot` or `_bounds_from_snapshot`.
      They are asked for all the time, and may be some tenths of a second old.
    - `reader` returns what `_reader_with_snapshot` makes of a reader of the datastore's log. That one comes to every
      head that `bounds` had: it says by `Read.upto` how far it is, also where no row came.
    - `check` asks the datastore anew.
    - `confirm` calls `_release_snapshots`, and lets go of the log only up to the place that it returns.
    - `_abandon` and `close` are there already, and are extended by a log that keeps more than a snapshot.

    The rows that are there already come before the log if the constructor calls `_use_snapshots`, with a
    `SnapshotSource` of them; without it, whatever goes through the methods above comes out as it went in.
    """

    def __init__(self, stream: StreamDefinition, options: SnapshotOptions) -> None:
        self._stream = stream
        self._options = options
        self._snapshot: StreamSnapshot | None = None
        self._late: StreamSnapshot | None = None
        self._demanded: DemandedSnapshot | None = None

    @classmethod
    @abc.abstractmethod
    def _unopened(cls, location: str, stream: StreamDefinition) -> Self:
        """The log of a stream, not looked at yet."""

    @classmethod
    @abc.abstractmethod
    def create(cls, location: str, stream: StreamDefinition) -> Self:
        """As `Log` has it."""

    @classmethod
    @abc.abstractmethod
    def open(cls, location: str, stream: StreamDefinition) -> Self:
        """As `Log` has it."""

    @classmethod
    def resolve(cls, location: str, folder: Path) -> str:
        return location

    @classmethod
    def abandon(cls, location: str, stream: StreamDefinition) -> None:
        with contextlib.closing(cls._unopened(location, stream)) as log:
            log._abandon()

    @classmethod
    def placing(cls, location: str, stream: StreamDefinition) -> dict[str, Any]:
        """As `tidings.log_opening.placing` has it."""
        with contextlib.closing(cls._unopened(location, stream)) as log:
            return {name: getattr(log._options, name) for name in log._options.placing}

    @classmethod
    def payload_form(cls, location: str, stream: StreamDefinition) -> PayloadForm | None:
        """As `tidings.log_opening.payload_form` has it."""
        with contextlib.closing(cls._unopened(location, stream)) as log:
            if log._options.payload != "avro":
                return None
            from tidings_connectors.cdc.avro_columns import columns_of  # its library is an extra
            from tidings_connectors.cdc.avro_payloads import decoder

            schemas = log._options.schemas
            return PayloadForm("Avro", decoder(schemas), functools.partial(columns_of, schemas))

    def _abandon(self) -> None:
        """Delete what is kept for the sake of the stream; a datastore may keep more than the snapshot."""
        for snapshot in self._snapshots:
            snapshot.discard()

    @property
    def _snapshots(self) -> list[StreamSnapshot]:
        return [one for one in (self._late, self._demanded, self._snapshot) if one is not None]

    def _use_snapshots(self, source: SnapshotSource, name: str) -> None:
        """Put the rows of this source before the log, if the options say so."""
        options = self._options
        if options.snapshot_folder is not None:
            own = f"{name}-{self._stream.id}" if self._stream.id else name  # others may share what is around it
            folder = Path(options.snapshot_folder) / own
            self._snapshot = StreamSnapshot(source, self._stream, folder, options)
            self._demanded = DemandedSnapshot(source, self._stream, folder / DEMANDED.name, options)
            if options.snapshot:
                self._late = StreamSnapshot(source, self._stream, folder / LATE.name, options, aside=LATE)

    def _take_snapshot(self) -> None:
        """Take a snapshot, if one is wanted and was not taken yet."""
        if self._snapshot is not None and self._options.snapshot:
            self._snapshot.take()

    def _resume_snapshot(self) -> None:
        """Go on with a snapshot that was interrupted."""
        if self._snapshot is not None:
            note = self._snapshot.note()
            if not note.complete and (note.runs or self._options.snapshot):
                self._snapshot.begin()

    def earliest(self) -> Position:
        """Where an application begins that wants all: with the rows, if the stream has snapshots, or with the log."""
        floor = self.bounds()[0].floor
        if self._snapshot is not None and self._snapshot.covers() and self._snapshot.hold():
            return self._snapshot.note().runs[0].before
        return floor if self._late is None else waiting(floor)

    def aside(self, position: Position) -> str | None:
        """As `TailedLog` has it."""
        return aside(position)

    # Snapshots on demand, as `SnapshotLog` has them

    def snapshot_tables(self) -> list[str]:
        return self._on_demand().tables()

    def begin_snapshot(self, request: str, tables: Collection[str], since: Position) -> SnapshotPlace | None:
        return self._on_demand().begin_for(request, tables, since)

    def snapshot_progress(self, request: str, place: SnapshotPlace) -> SnapshotProgress | None:
        return self._on_demand().progress(request, place)

    def drop_snapshot(self, request: str) -> bool:
        return self._on_demand().drop(request)

    def snapshot_trouble(self) -> str | None:
        return None if self._demanded is None else self._demanded.trouble

    def _on_demand(self) -> DemandedSnapshot:
        if self._demanded is None:
            raise InvalidOption(
                f"stream {self._stream.name!r} has no folder for the rows of a snapshot: give it the option "
                "'snapshot_folder' in tidings.yml, and `tidings apply`"
            )
        return self._demanded

    def _bounds_with_snapshot(self, held: Bounds) -> Bounds:
        """What is held of the log and the snapshot, if the one goes on from the other."""
        run = self._first_run(held)
        return held if run is None else Bounds(min(held.floor, run.before), held.head)

    def _bounds_from_snapshot(self, held: Bounds) -> Bounds:
        """The same for a log that goes back further than the snapshot: what came before is in that."""
        run = self._first_run(held)
        return held if run is None else Bounds(run.before, held.head)

    def _first_run(self, held: Bounds) -> SnapshotRun | None:
        """The first rows of the snapshot, if the log goes on from there."""
        runs = self._snapshot.note().runs if self._snapshot is not None else []
        return runs[0] if runs and held.floor <= runs[0].after <= held.head else None

    def _reader_with_snapshot(self, reader: Reader) -> Reader:
        """The reader of the datastore's log, with the rows of the snapshot where they belong."""
        if self._snapshot is None or self._demanded is None:
            return reader
        losses: Losses = ()
        if self._options.on_data_loss == "snapshot":
            # A replica that is not as far yet as another one looks like a log that was restored.
            losses = (PositionsLost,) if self._stream.replicas else (PositionsLost, LogRestored)
        return MergedReader(reader, self._snapshot, self._late, self._demanded, self.check, losses)

    def _release_snapshots(self, upto: Positions) -> Position:
        """Delete the rows of snapshots that every flow has passed. The place from which on the log is needed, by the
        slowest flow, or by who may yet begin with rows that are there."""
        slowest = min(self._whole(upto).values())
        for snapshot in self._snapshots:
            snapshot.release(slowest)
        notes = [snapshot.note() for snapshot in self._snapshots]
        return min([slowest, *(run.after for note in notes if note.complete for run in note.runs)])

    def close(self) -> None:
        """Let go of what is held; a snapshot that is being taken is gone on with by who opens the log next."""
        for snapshot in self._snapshots:
            snapshot.close()

    @abc.abstractmethod
    def bounds(self) -> dict[int, Bounds]:
        """As `Log` has it."""

    @abc.abstractmethod
    def reader(self) -> Reader:
        """As `Log` has it."""

    @abc.abstractmethod
    def check(self, after: Positions) -> None:
        """Raise unless the log holds what comes after these positions, and reaches up to them.

        The datastore is asked anew; so `bounds` are those of now after it.
        """

    @abc.abstractmethod
    def confirm(self, upto: Positions) -> None:
        """As `TailedLog` has it."""

    @abc.abstractmethod
    def distance(self, after: Position, upto: Position) -> int:
        """As `TailedLog` has it."""

    def reach(self, after: Positions, limit: int | None) -> Positions:
        """The head, whatever the limit is: how many rows there are on the way is only known to those who read them."""
        after = self._whole(after)
        self.check(after)
        return Positions({shard: max(after[shard], held.head) for shard, held in self.bounds().items()})

    def tail(self, after: Positions, limit: int) -> pa.Table:
        """The next rows, up to the head as it is now, or to what is lost. A connection is opened for it: who reads on
        uses `reader`."""
        after, found, size = self._whole(after), [SCHEMA.empty_table()], 0
        self.check(after)
        upto = Positions({shard: held.head for shard, held in self.bounds().items()})
        with contextlib.closing(self.reader()) as reader:
            try:
                for rows in between(reader, after, upto, min(limit, STEP_ROWS)):
                    found.append(rows.slice(0, limit))
                    limit -= len(found[-1])
                    size += rows.nbytes
                    if limit <= 0 or size >= TAIL_BYTES:
                        break
            except PositionsLost:
                if len(found) == 1:
                    raise
        return pa.concat_tables(found)

    def slices(self, after: Positions, upto: Positions) -> list[Slice]:
        """One slice: each of several would have to be read from the beginning of the first."""
        after, upto = self._whole(after), self._whole(upto)
        self.check(after)
        wanted = [shard for shard in after if after[shard] < upto[shard]]
        chosen = (Positions({shard: positions[shard] for shard in wanted}) for positions in (after, upto))
        return [TailedSlice(self._stream, *chosen)] if wanted else []

    def scan(self, spark: SparkSession, after: Positions | None = None, upto: Positions | None = None) -> DataFrame:
        """The rows between, read by one task: the log is in one piece."""
        reader = spark.read.format("tidings").option("definition", json.dumps(self._stream.to_json()))
        if after is not None:
            first = {shard: Position(at.seq, at.index + 1) for shard, at in self._whole(after).items()}
            reader = reader.option("startingPosition", str(Positions(first)))
        if upto is not None:
            reader = reader.option("endingPosition", str(self._whole(upto)))
        rows: DataFrame = reader.load()
        return rows

    def _whole(self, positions: Positions) -> Positions:
        """The positions of all shards; one that is not named stands at the start."""
        shards = self._stream.shards
        if len(positions) and max(positions) >= shards:
            raise InvalidPosition(f"stream {self._stream.name!r} has shards 0 to {shards - 1}, not {max(positions)}")
        return Positions({shard: positions[shard] for shard in range(shards)})


@dataclass(frozen=True)
class TailedSlice:
    """The rows of some shards between two positions, read from the datastore by whoever has the slice."""

    stream: StreamDefinition
    after: Positions
    upto: Positions
    passes_losses: bool = field(default=False, kw_only=True)

    def past_losses(self) -> TailedSlice:
        """The same, for one who was told to go on in spite of what is lost."""
        return replace(self, passes_losses=True)

    def read(self) -> Iterator[pa.RecordBatch]:
        with contextlib.closing(open_log(self.stream)) as log, contextlib.closing(log.reader()) as reader:
            for rows in between(reader, self.after, self.upto, passes_losses=self.passes_losses):
                yield from rows.to_batches()


def between(
    reader: Reader, after: Positions, upto: Positions, limit: int = STEP_ROWS, passes_losses: bool = False
) -> Iterator[pa.Table]:
    """The rows of the shards that `after` names, up to and including `upto`; about so many at a time."""
    while any(at < upto[shard] for shard, at in after.items()):
        try:
            rows, after = reader.read(after, limit)
        except PositionsLost as loss:
            if not isinstance(loss, RowsLeftOut):
                if not passes_losses or isinstance(loss, LogRestored):
                    raise
                logger.warning("%s", loss)
            after = Positions({shard: max(at, *loss.lost.get(shard, (at, at))) for shard, at in after.items()})
            continue
        rows = chosen(rows, ~later(rows, upto))
        if len(rows):
            yield rows


def options_of(model: type[Options], stream: StreamDefinition, datastore: str) -> Options:
    """The options of a stream, checked; `InvalidOptions` says what is wrong with each that is wrong."""
    try:
        return model.model_validate(dict(stream.options))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
    problems = [(one["loc"], _problem(dict(one), model, stream.name, datastore)) for one in found]
    raise InvalidOptions("; ".join(problem for _, problem in problems), problems)


def _problem(error: dict[str, Any], model: type[SnapshotOptions], stream: str, datastore: str) -> str:
    """What is wrong with one option."""
    name = ".".join(map(str, error["loc"]))
    match error["type"]:
        case "missing":
            return f"stream {stream!r} tails {datastore} and needs the option {name!r}"
        case "extra_forbidden":
            known = ", ".join(sorted(model.model_fields))
            return (
                f"stream {stream!r} has an option {name!r}, which a log of {datastore} does not know; it knows {known}"
            )
    reason = str(error["msg"]).removeprefix("Value error, ")
    what = f"option {name!r}" if name else "the options"
    return f"{what} of stream {stream!r} cannot be used: {reason[:1].lower() + reason[1:]}"
