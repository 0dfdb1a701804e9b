"""The catalogue of a cluster: which streams and applications there are, and how they come and go."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from kazoo.exceptions import NoNodeError

from tidings.applications import Application, start_problems
from tidings.collection import check_collection
from tidings.coordination.membership import sweep
from tidings.coordination.zookeeper import Coordination, decode
from tidings.errors import (
    ApplicationExists,
    FilterWarning,
    ForeignValue,
    InvalidName,
    InvalidOption,
    LogUnavailable,
    StreamExists,
    TidingsError,
    UnknownApplication,
    UnknownStream,
)
from tidings.filters import Filter
from tidings.logs import WritableLog, abandon_log, create_log, is_tailed
from tidings.names import check_name
from tidings.publisher.balancing import strategy
from tidings.stream_definition import DEFAULT_SHARDS, StreamDefinition
from tidings.streams import Stream

logger = logging.getLogger(__name__)


class Catalogue:
    """The streams and applications that a cluster knows, in the ZooKeeper that all its processes share.

    `logs` is the address under which the logs of streams lie that name no place of their own.
    """

    def __init__(self, coordination: Coordination, *, logs: str | None = None) -> None:
        self.coordination = coordination
        self._logs = logs

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
        options: Mapping[str, Any] | None = None,
        caravans: Mapping[str, Any] | None = None,
        replicas: Mapping[str, str] | None = None,
        collect: Mapping[str, Any] | None = None,
    ) -> Stream:
        """Make a stream, or return the one that is there if it has this very definition.

        `options` are its log's; `replicas` names other logs with the same updates at the same positions; `caravans` is
        how the log is read: `policy`, `caravans`, `rate`, `total_rate`; `collect` has the policies by which updates
        are collected.
        """
        definition = StreamDefinition(
            name,
            shards,
            log or self._default_log(name),
            retention_seconds,
            retention_bytes,
            *(given if given is not None else {} for given in (options, caravans, replicas, collect)),
        )
        check_collection(definition)
        made = self.coordination.create(definition.to_json(), "streams", name)
        known = definition if made else self.stream(name).definition
        if known != definition:
            before, after = known.to_json(), definition.to_json()
            changed = [key for key in (before | after) if before.get(key) != after.get(key)]
            raise StreamExists(
                f"stream {name!r} is there already, with {known.shards} shards in {known.log}, and another "
                f"{', '.join(changed)}; `tidings apply` changes what can be changed"
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
        """All streams, by name. One that cannot be read is left out, with a warning in the log."""
        found = []
        for name in self.coordination.children("streams"):
            try:
                definition = self._definition(name)
            except (InvalidOption, InvalidName, ForeignValue) as error:
                logger.warning("stream %r is left out: %s", name, error)
                continue
            if definition is not None:
                found.append(Stream(definition))
        return found

    def drop_stream(self, name: str, *, purge: bool = False) -> None:
        """Forget a stream; with `purge` delete its updates too, otherwise its log stays where it is.

        What a datastore keeps for the sake of a stream that tails it, as a replication slot, goes with the stream.
        """
        stream = self.stream(name)
        tailed = is_tailed(stream.definition)
        if tailed and purge:
            raise InvalidOption(f"the updates of stream {name!r} are its datastore's own, and cannot be purged")
        log = stream.log if purge else None
        self.coordination.delete("streams", name)
        self.coordination.delete("caravans", name)
        if tailed:
            try:
                abandon_log(stream.definition)
            except TidingsError as error:
                raise LogUnavailable(f"stream {name!r} is dropped, but its datastore was not told: {error}") from error
        elif isinstance(log, WritableLog):
            log.destroy()

    def create_application(
        self, name: str, streams: Sequence[str], *, filter: str | Filter | None = None, **options: Any
    ) -> Application:
        """Make an application, or return the one that is there if it has this very definition.

        The options are the fields of `Application`: `start`, `mode`, `max_age`, `balance`. What is allowed in a filter
        and cannot be meant, such as a shard that no stream has, is a `FilterWarning`.
        """
        try:
            application = Application(name, tuple(streams), None if filter is None else str(filter), **options)
        except TypeError as error:
            raise InvalidOption(f"an application does not know that option: {error}") from None
        shards = {stream: self.stream(stream).shards for stream in application.streams}
        for _, problem in start_problems(application.start, shards):
            raise InvalidOption(f"the start of application {name!r} cannot be: {problem}")
        strategy(application.balance)  # is there
        self._put_application(application)
        for warning in application.warnings(shards):
            warnings.warn(warning, FilterWarning, stacklevel=2)
        return application

    def application(self, name: str) -> Application:
        """The application of that name."""
        value = self.coordination.read("applications", check_name("an application", name))
        if value is None:
            raise self._unknown_application(name)
        return self._checked_application(name, value)

    def applications(self) -> list[Application]:
        """All applications, by name. One that cannot be read is left out, with a warning in the log."""
        found = []
        for name in self.coordination.children("applications"):
            raw = self._raw_application(name)
            try:
                if raw:
                    found.append(self._decoded_application(name, raw))
            except TidingsError as error:
                logger.warning("application %r is left out: %s", name, error)
        return found

    def drop_application(self, name: str) -> None:
        """Forget an application, its flows and their datamarkers; subscribers that run are left without flows."""
        if not self._raw_application(check_name("an application", name)):
            raise self._unknown_application(name)
        # The definition goes first, and alone, so that nobody takes a flow while the flows are deleted.
        with contextlib.suppress(NoNodeError):  # another one drops it, too
            self.coordination.clear("applications", name)
        self.coordination.delete("flows", name)
        # Those whose subscribers still ran when they were dropped are as empty as this one, once these have gone.
        for one in self.coordination.children("applications"):
            sweep(self.coordination, one)

    def _definition(self, name: str) -> StreamDefinition | None:
        value = self.coordination.read("streams", check_name("a stream", name))
        if value is None:
            return None
        place = self.coordination.path("streams", name)
        try:
            definition = StreamDefinition.from_json(value)
        except TidingsError as error:
            raise InvalidOption(
                f"what ZooKeeper holds at {place} cannot be read ({error}): mend or delete it"
            ) from None
        if definition.name != name:
            raise InvalidOption(f"what ZooKeeper holds at {place} is of {definition.name!r}: mend or delete it")
        return definition

    def _put_application(self, application: Application) -> None:
        name, value = application.name, application.to_json()
        while not self.coordination.create(value, "applications", name):
            raw = self._raw_application(name)
            if not raw:
                # A place that a subscriber made to hold its own, or that is just being swept away.
                if self.coordination.replace(value, None, "applications", name):
                    return
                continue
            try:
                same = self._decoded_application(name, raw) == application
            except TidingsError as error:
                raise ApplicationExists(
                    f"application {name!r} is there already, and cannot be read ({error}); drop it first"
                ) from None
            if same:
                return
            raise ApplicationExists(f"application {name!r} is there already, with another definition; drop it first")

    def _raw_application(self, name: str) -> bytes:
        """What is kept of an application, nothing if it is not there; perhaps something that is not ours."""
        with self.coordination.translating_errors():
            try:
                raw: bytes = self.coordination.client.get(self.coordination.path("applications", name))[0]
            except NoNodeError:
                return b""
        return raw

    def _decoded_application(self, name: str, raw: bytes) -> Application:
        return self._checked_application(name, decode(self.coordination.path("applications", name), raw) or {})

    def _checked_application(self, name: str, value: dict[str, Any]) -> Application:
        application = Application.from_json(value)
        if application.name != name:
            raise InvalidOption(f"application {name!r} has the definition of {application.name!r}: drop it first")
        return application

    def _unknown_application(self, name: str) -> UnknownApplication:
        there = ", ".join(one.name for one in self.applications()) or "none"
        return UnknownApplication(f"there is no application {name!r} in {self.address} (applications: {there})")

    def _default_log(self, name: str) -> str:
        if self._logs is None:
            raise InvalidOption(f"stream {name!r} needs a log: say where, as in log='delta:/data/{name}'")
        return f"{self._logs}/{check_name('a stream', name)}"
