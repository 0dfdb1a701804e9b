"""What the logs of datastores share: all that follows from a reader, and from where the log begins and ends."""

from __future__ import annotations

import abc
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import ValidationError

from tidings.errors import InvalidOption, InvalidPosition
from tidings.logs import Reader, Slice, open_log
from tidings.positions import MAX_SEQ, Bounds, Position, Positions
from tidings.updates import SCHEMA
from tidings_connectors.row_mapping import RowMapping

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidings.streams import StreamDefinition

STEP_ROWS = 50_000

Missing = dict[int, tuple[Position, Position]]
"""For each shard, the first and the last position that cannot be had."""
Options = TypeVar("Options", bound=RowMapping)


class Tailing(abc.ABC):
    """The methods of a `TailedLog` that are the same for all of them."""

    def __init__(self, stream: StreamDefinition) -> None:
        self._stream = stream

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

    def reach(self, after: Positions, limit: int | None) -> Positions:
        """The head, whatever the limit is: how many rows there are on the way is only known to those who read them."""
        after = self._whole(after)
        self.check(after)
        return Positions({shard: max(after[shard], held.head) for shard, held in self.bounds().items()})

    def tail(self, after: Positions, limit: int) -> pa.Table:
        """The next rows, up to the head as it is now. A connection is opened for it: who reads on uses `reader`."""
        after, found = self._whole(after), [SCHEMA.empty_table()]
        self.check(after)
        upto = Positions({shard: held.head for shard, held in self.bounds().items()})
        with contextlib.closing(self.reader()) as reader:
            for rows in between(reader, after, upto, min(limit, STEP_ROWS)):
                found.append(rows.slice(0, limit))
                limit -= len(found[-1])
                if limit <= 0:
                    break
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
        reader = spark.read.format("tidings").options(**self._source(after))
        if upto is not None:
            reader = reader.option("endingPosition", str(self._whole(upto)))
        rows: DataFrame = reader.load()
        return rows

    def stream(self, spark: SparkSession, after: Positions | None = None) -> DataFrame:
        """The rows after these positions, as they come."""
        rows: DataFrame = spark.readStream.format("tidings").options(**self._source(after)).load()
        return rows

    def _source(self, after: Positions | None) -> dict[str, str]:
        options = {"definition": json.dumps(self._stream.to_json())}
        if after is not None:
            first = {shard: Position(at.seq, at.index + 1) for shard, at in self._whole(after).items()}
            options["startingPosition"] = str(Positions(first))
        return options

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

    def read(self) -> Iterator[pa.RecordBatch]:
        with contextlib.closing(open_log(self.stream)) as log, contextlib.closing(log.reader()) as reader:
            for rows in between(reader, self.after, self.upto):
                yield from rows.to_batches()


def between(reader: Reader, after: Positions, upto: Positions, limit: int = STEP_ROWS) -> Iterator[pa.Table]:
    """The rows of the shards that `after` names, up to and including `upto`; about so many at a time."""
    while any(at < upto[shard] for shard, at in after.items()):
        rows, after = reader.read(after, limit)
        rows = chosen(rows, ~later(rows, upto))
        if len(rows):
            yield rows


def later(rows: pa.Table, positions: Positions) -> npt.NDArray[np.bool_]:
    """Which rows come after these positions; those of shards that are not named do not."""
    shards, seqs, indexes = (rows[name].to_numpy() for name in ("shard", "seq", "index"))
    count = int(max(shards.max(initial=0), max(positions, default=0))) + 1
    seq, index = np.full(count, MAX_SEQ), np.zeros(count, np.int64)
    for shard, at in positions.items():
        seq[shard], index[shard] = at.seq, at.index
    low, low_index = seq[shards], index[shards]
    found: npt.NDArray[np.bool_] = (seqs > low) | ((seqs == low) & (indexes > low_index))
    return found


def chosen(rows: pa.Table, which: npt.NDArray[np.bool_]) -> pa.Table:
    """These rows; nothing is copied if it is all of them."""
    return rows if which.all() else rows.filter(pa.array(which))


def missing(bounds: Bounds, after: Positions) -> tuple[Missing, Missing]:
    """What readers that stand at these positions need and the log does not hold any more; and how far they are ahead.

    >>> missing(Bounds(Position(5, -1), Position(9, -1)), Positions({0: Position(3, 2), 1: Position(7)}))
    ({0: (Position(seq=3, index=3), Position(seq=5, index=-1))}, {})
    """
    gone = {shard: (Position(at.seq, at.index + 1), bounds.floor) for shard, at in after.items() if at < bounds.floor}
    end = Position(bounds.head.seq, bounds.head.index + 1)
    return gone, {shard: (end, at) for shard, at in after.items() if at > bounds.head}


def options_of(model: type[Options], stream: StreamDefinition, datastore: str) -> Options:
    """The options of a stream, checked; `InvalidOption` says what is wrong with the first that is wrong."""
    try:
        return model.model_validate(dict(stream.options))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name, known = ".".join(map(str, first["loc"])), ", ".join(sorted(model.model_fields))
    match first["type"]:
        case "missing":
            raise InvalidOption(f"stream {stream.name!r} tails {datastore} and needs the option {name!r}")
        case "extra_forbidden":
            raise InvalidOption(
                f"stream {stream.name!r} has an option {name!r}, which a log of {datastore} does not know; "
                f"it knows {known}"
            )
    reason = first["msg"].removeprefix("Value error, ")
    raise InvalidOption(f"option {name!r} of stream {stream.name!r} cannot be used: {reason[:1].lower() + reason[1:]}")
