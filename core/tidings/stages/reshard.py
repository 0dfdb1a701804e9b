"""The stage `reshard`: the same updates in a stream with another number of shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from tidings.errors import InvalidOption
from tidings.stages import Stage
from tidings.stream_definition import MAX_SHARDS, StreamDefinition

if TYPE_CHECKING:
    pass


class ReshardStage(Stage):
    """Copies updates to a stream that has `shards` shards; the output's own number must be that.

    Order is kept for each object, and that is all that can be: an object's updates are in one shard of the input, a
    batch has the next rows of each shard and none that come later, the pipeline writes a batch's rows in the order of
    their shard and batch after batch, and the output's log keeps that order in whichever shard the object now has.
    Between objects that shared a shard, order is lost if they do no longer. With several inputs, an object that is in
    more than one has its order within each.
    """

    shards: Annotated[int, Field(ge=1, le=MAX_SHARDS)]

    def check(self, inputs: Sequence[StreamDefinition], output: StreamDefinition | None) -> None:
        """Refuse an output with another number of shards than the option says."""
        super().check(inputs, output)
        if output is not None and output.shards != self.shards:
            raise InvalidOption(f"stream {output.name!r} has {output.shards} shards, not {self.shards}")
