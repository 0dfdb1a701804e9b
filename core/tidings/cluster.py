"""A cluster: everything that shares one root in one ZooKeeper, and what can be run there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tidings.catalogue import Catalogue
from tidings.coordination.zookeeper import Coordination

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidings.pipelines.pipeline import Pipeline
    from tidings.publisher.publisher import Publisher
    from tidings.subscriber.subscriber import Subscriber


def connect(
    address: str, *, timeout: float = 10.0, session_timeout: float = 10.0, credentials: str | None = None
) -> Cluster:
    """Join the cluster at `host:port[,host:port…][/root]`; the root is `/tidings` if none is named.

    When this process dies, what it owned is free for others after `session_timeout` seconds.
    """
    return Cluster(Coordination(address, timeout=timeout, session_timeout=session_timeout, credentials=credentials))


class Cluster(Catalogue):
    """The streams and applications of one cluster, and its publishers, subscribers and pipelines.

    A context manager; `close` ends the session.
    """

    def __init__(
        self, coordination: Coordination, *, logs: str | None = None, on_close: Callable[[], None] | None = None
    ) -> None:
        super().__init__(coordination, logs=logs)
        self._on_close = on_close

    def subscribe(self, application: str, handler: Any, **options: Any) -> Subscriber:
        """Start a subscriber of an application; the options are those of `Subscriber`."""
        from tidings.subscriber.subscriber import Subscriber

        self.application(application)
        return Subscriber(self.coordination, application, handler, **options)

    def publisher(
        self,
        spark: SparkSession | Callable[[], SparkSession] | None = None,
        *,
        streams: Sequence[str] | None = None,
        **options: Any,
    ) -> Publisher:
        """Start a publisher; the options are those of `Publisher`.

        Spark is used for large backlogs only; given a function, such as `tidings.session`, it starts when it is needed.
        """
        from tidings.publisher.publisher import Publisher

        for stream in streams or ():
            self.streams_named(stream)
        return Publisher(self.coordination, streams, spark=spark, **options)

    def pipeline(self, name: str, **options: Any) -> Pipeline:
        """A pipeline on this cluster's streams, ready to be started; the options are those of `Pipeline`."""
        from tidings.pipelines.pipeline import Pipeline

        return Pipeline(self, name, **options)

    def close(self) -> None:
        """End the session, and the embedded ZooKeeper if this cluster started one."""
        try:
            self.coordination.close()
        finally:
            if self._on_close:
                self._on_close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
