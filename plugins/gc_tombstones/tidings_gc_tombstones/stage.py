"""The stage `collect`: collects the stream that a pipeline reads, as updates come."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BeforeValidator, PrivateAttr

from tidings.catalogue import Catalogue
from tidings.cluster import Cluster
from tidings.collection import collectable
from tidings.config.units import parse_duration
from tidings.errors import InvalidOption
from tidings.stages import Stage
from tidings.streams import Stream
from tidings_gc_tombstones.collector import Collector
from tidings_gc_tombstones.flows import passed_by_flows
from tidings_gc_tombstones.policies import policies_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidings.stages.state import State
    from tidings.stream_definition import StreamDefinition

logger = logging.getLogger(__name__)


class CollectStage(Stage):
    """Collects its input by the policies of the stream, and writes no stream.

    It collects what is obsolete once in so long (`every`), as soon as updates come and while none do: what is too old
    gets so by itself. A batch that is repeated changes nothing that is not so already.
    """

    every: Annotated[int, BeforeValidator(lambda value: parse_duration(str(value)))] = 10

    max_inputs: ClassVar[int | None] = 1
    writes: ClassVar[bool] = False

    _cluster: Catalogue | None = PrivateAttr(default=None)
    _name: str = PrivateAttr(default="")
    _collector: Collector | None = PrivateAttr(default=None)
    _due: float = PrivateAttr(default=0.0)
    _is_behind: bool = PrivateAttr(default=False)
    _figures: dict[str, float] = PrivateAttr(default_factory=dict)
    _collecting: threading.Lock = PrivateAttr(default_factory=threading.Lock)
    _ended: threading.Event = PrivateAttr(default_factory=threading.Event)
    _thread: threading.Thread | None = PrivateAttr(default=None)

    def check(self, inputs: Sequence[StreamDefinition], output: StreamDefinition | None) -> None:
        """Refuse a stream that has no policies."""
        super().check(inputs, output)
        if not policies_of(inputs[0].collect).named:
            raise InvalidOption(f"stream {inputs[0].name!r} has no policy to collect by: give it `collect:`")

    def begin(self, cluster: Catalogue, inputs: Sequence[Stream], output: Stream | None) -> None:
        """From now on this stream is collected."""
        self._cluster, self._name = cluster, inputs[0].name
        self._ended.clear()
        self._thread = threading.Thread(target=self._look, name="tidings-collect", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Collect what the last batches brought, and let go of the index."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        with self._collecting:
            if self._is_behind:
                self._collect()
            self._close()

    def figures(self) -> Mapping[str, float]:
        """What was collected since the pipeline started."""
        return self._figures

    def prepare(self, rows: DataFrame) -> DataFrame:
        """Nothing of the rows is needed but that they are there."""
        return rows.select("stream", "shard", "seq", "index")

    def apply(self, batch: DataFrame, state: State) -> None:
        """Collect, if it is time to; if it is not yet, somebody looks when it is."""
        with self._collecting:
            self._is_behind = True
            self._collect_if_due()

    def _look(self) -> None:
        while not self._ended.wait(self.every):
            with self._collecting:
                self._collect_if_due()

    def _collect_if_due(self) -> None:
        if time.monotonic() >= self._due:
            self._collect()
            self._due = time.monotonic() + self.every

    def _collect(self) -> None:
        """Collect what is obsolete. What fails is tried again the next time, as when somebody else collects."""
        self._is_behind = False
        try:
            for step in self._opened().run():
                self._count("collected_updates", step.gone.count)
                self._count("read_updates", step.read_rows)
                self._count("seconds", step.seconds)
                self._count("refused_events", len(step.refused))
        except Exception as error:  # noqa: BLE001 - a pipeline goes on, whatever is wrong with its collection
            self._close()  # another collector may have taken the index over: that is noticed by a new one
            self._is_behind = True
            self._count("failures", 1)
            logger.warning("stream %r was not collected, and will be later: %s", self._name, error)

    def _opened(self) -> Collector:
        """A collector by the policies as they are now."""
        assert self._cluster is not None, "the pipeline has begun"
        stream = self._cluster.stream(self._name)
        if self._collector is None or self._collector.stream != stream.definition:
            self._close()
            passed = passed_by_flows(self._cluster, self._name) if isinstance(self._cluster, Cluster) else None
            log = collectable(stream.definition, stream.log)
            self._collector = Collector(stream.definition, log, passed)
        return self._collector

    def _close(self) -> None:
        if self._collector is not None:
            self._collector.close()
            self._collector = None

    def _count(self, name: str, value: float) -> None:
        key = f"collect_{name}_total"
        self._figures[key] = self._figures.get(key, 0.0) + value
