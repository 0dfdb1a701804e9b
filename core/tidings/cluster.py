"""A cluster: everything that shares one root in one ZooKeeper, and what can be run there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from tidings.audit import recorded
from tidings.catalogue import Catalogue
from tidings.coordination.tls import ZooKeeperTls
from tidings.coordination.zookeeper import Coordination
from tidings.errors import InvalidOption
from tidings.hosts import trust_addresses
from tidings.identity.credentials import Credentials
from tidings.stream_definition import split_address
from tidings.wire.security import OPEN, Security

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidings.pipelines.definition import PipelineKeywords
    from tidings.pipelines.pipeline import Pipeline
    from tidings.publisher.publisher import Publisher, PublisherKeywords
    from tidings.subscriber.subscriber import Subscriber, SubscriberKeywords

logger = logging.getLogger(__name__)


def connect(
    address: str,
    *,
    timeout: float = 10.0,
    refused_timeout: float | None = None,
    session_timeout: float = 10.0,
    security: Security = OPEN,
    credentials: Credentials | str | None = None,
    tls: ZooKeeperTls | None = None,
    insecure: bool = False,
) -> Cluster:
    """Join the cluster at `host:port[,host:port…][/root]`; the root is `/tidings` if none is named.

    ZooKeeper is waited for up to `timeout` seconds; up to `refused_timeout`, if nobody listens at its addresses. When
    this process dies, what it owned is free for others after `session_timeout` seconds.

    `security` has the key of an application, or the secret of the cluster: by it ZooKeeper knows us, and so do
    publishers and subscribers. Others have `credentials` for ZooKeeper alone, as `tidings keys show --role` prints
    them. `tls` is how ZooKeeper is known. Without either, ZooKeeper has to be on this machine, or this is `insecure`.
    """
    known = Credentials.of_text(credentials) if isinstance(credentials, str) else credentials or security.credentials()
    coordination = Coordination(
        address,
        timeout=timeout,
        refused_timeout=refused_timeout,
        session_timeout=session_timeout,
        credentials=known,
        tls=tls,
        insecure=insecure,
    )
    if known.passwords and not coordination.closed and coordination.is_there:
        logger.warning(
            "whoever reaches the ZooKeeper at %s may change everything below %s, since the cluster was made without a "
            "secret: see `tidings doctor --repair`",
            coordination.hosts,
            coordination.root,
        )
    return Cluster(coordination, security=security)


class Cluster(Catalogue):
    """The streams and applications of one cluster, and its publishers, subscribers and pipelines.

    A context manager; `close` ends the session.
    """

    def __init__(
        self,
        coordination: Coordination,
        *,
        logs: str | None = None,
        security: Security = OPEN,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(coordination, logs=logs)
        self._security = security
        self._on_close = on_close

    def move_stream(
        self, name: str, log: str | None = None, *, replicas: Mapping[str, str] | None = None, dry_run: bool = False
    ) -> list[str]:
        """Have a stream be read at another address, or replicas of it, if the very same datastore is there.

        Flows go on at their datamarkers. `LogMismatch` if it is another datastore, an older copy, or one whose history
        has parted from what flows have read. What is returned is what an operator should know of it.
        """
        from tidings.moves import check_move, moved_logs, prepare_move

        known = self.stream(name).definition
        for one in replicas or {}:
            if one not in known.replicas:
                raise InvalidOption(f"stream {name!r} has no replica {one!r} (replicas: {', '.join(known.replicas)})")
        wanted = replace(known, log=log or known.log, replicas={**known.replicas, **(replicas or {})})
        trust_addresses([split_address(one)[1] for one in (log, *(replicas or {}).values()) if one])
        told = [one for moved in moved_logs(known, wanted) for one in check_move(self, known, wanted, moved)]
        if not dry_run and wanted != known:
            before, after = ({"log": one.log, "replicas": dict(one.replicas)} for one in (known, wanted))
            with recorded(self.coordination, "streams move", [name], before=before, after=after):
                prepare_move(self, known, wanted)
                if not self.coordination.replace(wanted.to_json(), known.to_json(), "streams", name):
                    raise InvalidOption(f"stream {name!r} was changed while it was to be moved: move it again")
        return told

    def subscribe(self, application: str, handler: Any, **options: Unpack[SubscriberKeywords]) -> Subscriber:
        """Start a subscriber of an application; the options are those of `Subscriber`."""
        from tidings.subscriber.subscriber import Subscriber

        self.application(application)
        options.setdefault("security", self._security)
        return Subscriber(self.coordination, application, handler, **options)

    def publisher(
        self,
        spark: SparkSession | Callable[[], SparkSession] | None = None,
        *,
        streams: Sequence[str] | None = None,
        **options: Unpack[PublisherKeywords],
    ) -> Publisher:
        """Start a publisher; the options are those of `Publisher`.

        Spark is used for large backlogs only; given a function, such as `tidings.session`, it starts when it is needed.
        """
        from tidings.publisher.publisher import Publisher

        chosen = self.streams() if streams is None else [one for name in streams for one in self.streams_named(name)]
        there = {name for stream in chosen for name in stream.definition.replicas}
        if (replica := options.get("replica")) is not None and replica not in there:
            # It may get one while the publisher runs.
            logger.warning(
                "%s has a replica %r (replicas: %s), so this publisher reads nothing until one has: correct the name, "
                "or add the replica by `tidings apply`",
                "no stream" if streams is None else f"none of {', '.join(streams)}",
                replica,
                ", ".join(sorted(there)) or "none",
            )
        options.setdefault("security", self._security)
        return Publisher(self.coordination, streams, spark=spark, **options)

    def pipeline(self, name: str, **options: Unpack[PipelineKeywords]) -> Pipeline:
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
