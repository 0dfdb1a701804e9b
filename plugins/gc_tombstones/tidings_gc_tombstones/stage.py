"""The stage `collect`: collects the stream that a pipeline reads, as updates come."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BeforeValidator, PrivateAttr

from tidings.cluster import Cluster
from tidings.collection import collectable
from tidings.config.units import parse_duration
from tidings.errors import InvalidOption
from tidings.stages import Stage
from tidings_gc_tombstones.collector import Collector
from tidings_gc_tombstones.flows import passed_by_flows
from tidings_gc_tombstones.policies import policies_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidings.catalogue import Catalogue
    from tidings.stages.state import State
    from tidings.stream_definition import StreamDefinition
    from tidings.streams import Stream


class CollectStage(Stage):
    """Collects its input by the policies of the stream, and writes no stream.

    With every batch it collects what is obsolete by then, but not before so long has passed since the last time
    (`every`). A batch that is repeated changes nothing that is not so already.
    """

    every: Annotated[int, BeforeValidator(lambda value: parse_duration(str(value)))] = 10

    max_inputs: ClassVar[int | None] = 1
    writes: ClassVar[bool] = False

    _collector: Collector | None = PrivateAttr(default=None)
    _due: float = PrivateAttr(default=0.0)
    _figures: dict[str, float] = PrivateAttr(default_factory=dict)

    def check(self, inputs: Sequence[StreamDefinition], output: StreamDefinition | None) -> None:
        """Refuse a stream that has no policies."""
        super().check(inputs, output)
        if not policies_of(inputs[0].collect).named:
            raise InvalidOption(f"stream {inputs[0].name!r} has no policy to collect by: give it `collect:`")

    def begin(self, cluster: Catalogue, inputs: Sequence[Stream], output: Stream | None) -> None:
        """Take the index of the stream over."""
        stream = inputs[0]
        passed = passed_by_flows(cluster, stream.name) if isinstance(cluster, Cluster) else None
        self._collector = Collector(stream.definition, collectable(stream.definition, stream.log), passed)

    def end(self) -> None:
        """Let go of the index."""
        if self._collector is not None:
            self._collector.close()

    def figures(self) -> Mapping[str, float]:
        """What was collected since the pipeline started."""
        return self._figures

    def prepare(self, rows: DataFrame) -> DataFrame:
        """Nothing of the rows is needed but that they are there."""
        return rows.select("stream", "shard", "seq", "index")

    def apply(self, batch: DataFrame, state: State) -> None:
        """Collect, if it is time to."""
        if self._collector is None or time.monotonic() < self._due:
            return
        for step in self._collector.run():
            counts = {"collected_updates": step.gone.count, "read_updates": step.read_rows, "seconds": step.seconds}
            for name, value in {**counts, "refused_events": len(step.refused)}.items():
                key = f"collect_{name}"
                self._figures[key] = self._figures.get(key, 0.0) + value
        self._due = time.monotonic() + self.every
