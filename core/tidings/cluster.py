"""A cluster: everything that shares one root in one ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tidings.applications import Application
from tidings.coordination import Coordination, check_name
from tidings.errors import ApplicationExists, InvalidOption, StreamExists, UnknownApplication, UnknownStream
from tidings.filters import Filter
from tidings.logs import WritableLog, create_log
from tidings.streams import DEFAULT_SHARDS, Stream, StreamDefinition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidings.publisher import Publisher
    from tidings.subscriber import Subscriber


def connect(
    address: str, *, timeout: float = 10.0, session_timeout: float = 10.0, credentials: str | None = None
) -> Cluster:
    """Join the cluster at `host:port[,host:port…][/root]`; the root is `/tidings` if none is named.

    When this process dies, what it owned is free for others after `session_timeout` seconds.
    """
    return Cluster(Coordination(address, timeout=timeout, session_timeout=session_timeout, credentials=credentials))


class Cluster:
    """The streams of one cluster. A context manager; `close` ends the session.

    `logs` is the folder for the logs of streams that name no place of their own.
    """

    def __init__(
        self, coordination: Coordination, *, logs: Path | None = None, on_close: Callable[[], None] | None = None
    ) -> None:
        self.coordination = coordination
        self._logs = logs
        self._on_close = on_close

    @property
    def address(self) -> str:
        """What others pass to `connect`, or to Spark as the option `zookeeper`."""
        return self.coordination.address

    def create_stream(
        self,
        name: str,
        shards: int = DEFAULT_SHARDS,
        log: str | None = None,
        *,
        retention_seconds: int | None = None,
        retention_bytes: int | None = None,
    ) -> Stream:
        """Make a stream, or return the one that is there if it has this very definition."""
        definition = StreamDefinition(name, shards, log or self._default_log(name), retention_seconds, retention_bytes)
        made = self.coordination.create(definition.to_json(), "streams", name)
        known = definition if made else self.stream(name).definition
        if known != definition:
            raise StreamExists(
                f"stream {name!r} is there already, with {known.shards} shards in {known.log}; "
                f"it cannot be made again with {shards} shards in {definition.log}"
            )
        try:
            create_log(definition).close()
        except BaseException:
            if made:
                self.coordination.delete("streams", name)
            raise
        return Stream(definition)

    def stream(self, name: str) -> Stream:
        """The stream of that name."""
        definition = self._definition(name)
        if definition is None:
            there = ", ".join(self.coordination.children("streams")) or "none"
            raise UnknownStream(f"there is no stream {name!r} in {self.address} (streams: {there})")
        return Stream(definition)

    def streams(self) -> list[Stream]:
        """All streams, by name."""
        definitions = (self._definition(name) for name in self.coordination.children("streams"))
        return [Stream(definition) for definition in definitions if definition is not None]

    def drop_stream(self, name: str, *, purge: bool = False) -> None:
        """Forget a stream; with `purge` delete its updates too, otherwise its log stays where it is."""
        stream = self.stream(name)
        log = stream.log if purge else None
        self.coordination.delete("streams", name)
        if isinstance(log, WritableLog):
            log.destroy()

    def create_application(
        self, name: str, streams: Sequence[str], *, filter: str | Filter | None = None, **options: Any
    ) -> Application:
        """Make an application, or return the one that is there if it has this very definition.

        The options are the fields of `Application`: `start`, `mode`, `max_age`, `balance`.
        """
        try:
            application = Application(name, tuple(streams), None if filter is None else str(filter), **options)
        except TypeError as error:
            raise InvalidOption(f"an application does not know that option: {error}") from None
        for stream in application.streams:
            self.stream(stream)
        if not self.coordination.create(application.to_json(), "applications", name):
            known = self.coordination.read("applications", name)
            if known is None:  # a subscriber was here first, and made the node to hold its own
                self.coordination.write(application.to_json(), "applications", name)
            elif Application.from_json(known) != application:
                raise ApplicationExists(
                    f"application {name!r} is there already, with another definition; drop it first"
                )
        return application

    def application(self, name: str) -> Application:
        """The application of that name."""
        value = self.coordination.read("applications", check_name("an application", name))
        if value is None:
            there = ", ".join(one.name for one in self.applications()) or "none"
            raise UnknownApplication(f"there is no application {name!r} in {self.address} (applications: {there})")
        return Application.from_json(value)

    def applications(self) -> list[Application]:
        """All applications, by name."""
        values = (self.coordination.read("applications", name) for name in self.coordination.children("applications"))
        return [Application.from_json(value) for value in values if value is not None]

    def drop_application(self, name: str) -> None:
        """Forget an application, its flows and their datamarkers; subscribers that run are left without flows."""
        self.application(name)
        # The definition goes first, and alone, so that nobody takes a flow while the flows are deleted.
        self.coordination.clear("applications", name)
        self.coordination.delete("flows", name)
        if not self.coordination.children("applications", name, "subscribers"):
            self.coordination.delete("applications", name)

    def subscribe(self, application: str, handler: Any, **options: Any) -> Subscriber:
        """Start a subscriber of an application; the options are those of `Subscriber`."""
        from tidings.subscriber import Subscriber

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
        from tidings.publisher import Publisher

        for stream in streams or ():
            self.stream(stream)
        return Publisher(self.coordination, streams, spark=spark, **options)

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

    def _definition(self, name: str) -> StreamDefinition | None:
        value = self.coordination.read("streams", check_name("a stream", name))
        return None if value is None else StreamDefinition.from_json(value)

    def _default_log(self, name: str) -> str:
        if self._logs is None:
            raise InvalidOption(f"stream {name!r} needs a log: say where, as in log='delta:/data/{name}'")
        return f"delta:{self._logs / check_name('a stream', name)}"
