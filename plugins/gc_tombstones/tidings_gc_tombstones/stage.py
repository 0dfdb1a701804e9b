"""The stage `collect`: collects the stream that a pipeline reads, as updates come."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BeforeValidator, PrivateAttr

from tidings.cluster import Cluster
from tidings.collection import collectable
from tidings.config.units import parse_duration
from tidings.errors import InvalidOption, TidingsError
from tidings.positions import Positions
from tidings.stages import Stage
from tidings.streams import Stream
from tidings_gc_tombstones.collector import Collector
from tidings_gc_tombstones.flows import passed_by_flows
from tidings_gc_tombstones.policies import policies_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidings.catalogue import Catalogue
    from tidings.stages.state import State
    from tidings.stream_definition import StreamDefinition

logger = logging.getLogger(__name__)


class CollectStage(Stage):
    """Collects its input by the policies of the stream, and writes no stream.

    With every batch it collects what is obsolete by then, but not before so long has passed since the last time
    (`every`). A batch that is repeated changes nothing that is not so already.
    """

    every: Annotated[int, BeforeValidator(lambda value: parse_duration(str(value)))] = 10

    max_inputs: ClassVar[int | None] = 1
    writes: ClassVar[bool] = False

    _stream: Stream | None = PrivateAttr(default=None)
    _passed: Callable[[], Positions] | None = PrivateAttr(default=None)
    _collector: Collector | None = PrivateAttr(default=None)
    _due: float = PrivateAttr(default=0.0)
    _figures: dict[str, float] = PrivateAttr(default_factory=dict)

    def check(self, inputs: Sequence[StreamDefinition], output: StreamDefinition | None) -> None:
        """Refuse a stream that has no policies."""
        super().check(inputs, output)
        if not policies_of(inputs[0].collect).named:
            raise InvalidOption(f"stream {inputs[0].name!r} has no policy to collect by: give it `collect:`")

    def begin(self, cluster: Catalogue, inputs: Sequence[Stream], output: Stream | None) -> None:
        """From now on this stream is collected."""
        self._stream = inputs[0]
        self._passed = passed_by_flows(cluster, self._stream.name) if isinstance(cluster, Cluster) else None

    def end(self) -> None:
        """Let go of the index."""
        if self._collector is not None:
            self._collector.close()
            self._collector = None

    def figures(self) -> Mapping[str, float]:
        """What was collected since the pipeline started."""
        return self._figures

    def prepare(self, rows: DataFrame) -> DataFrame:
        """Nothing of the rows is needed but that they are there."""
        return rows.select("stream", "shard", "seq", "index")

    def apply(self, batch: DataFrame, state: State) -> None:
        """Collect, if it is time to; what fails is tried again the next time, as when somebody else collects."""
        if self._stream is None or time.monotonic() < self._due:
            return
        try:
            self._collect(self._stream)
        except TidingsError as error:
            self.end()  # another collector may have taken the index over: that is noticed by a new one
            self._count("failures", 1)
            logger.warning("stream %r was not collected, and will be later: %s", self._stream.name, error)
        self._due = time.monotonic() + self.every

    def _collect(self, stream: Stream) -> None:
        if self._collector is None:
            log = collectable(stream.definition, stream.log)
            self._collector = Collector(stream.definition, log, self._passed)
        for step in self._collector.run():
            self._count("collected_updates", step.gone.count)
            self._count("read_updates", step.read_rows)
            self._count("seconds", step.seconds)
            self._count("refused_events", len(step.refused))

    def _count(self, name: str, value: float) -> None:
        key = f"collect_{name}"
        self._figures[key] = self._figures.get(key, 0.0) + value
