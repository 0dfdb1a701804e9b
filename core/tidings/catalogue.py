"""The catalogue of a cluster: which streams and applications there are, and how they come and go."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from kazoo.exceptions import NoNodeError

from tidings.applications import Application, ApplicationChanges, ApplicationKeywords, start_problems
from tidings.audit import differences, recorded
from tidings.collection import check_collection
from tidings.coordination.membership import make_room, sweep
from tidings.coordination.origins import note_origin
from tidings.coordination.values import decode
from tidings.coordination.zookeeper import Coordination
from tidings.errors import (
    ApplicationExists,
    CoordinationDenied,
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
from tidings.hosts import trust_addresses
from tidings.log_checks import check_claims, check_dead_letters, check_new_log, check_unclaimed, prove_replica
from tidings.log_opening import abandon_log, create_log, has_log, is_tailed, unmake_log
from tidings.logs import Log, MovableLog, WritableLog
from tidings.names import check_name
from tidings.publisher.balancing import strategy
from tidings.snapshot_requests import SNAPSHOTS
from tidings.stream_definition import DEFAULT_SHARDS, StreamDefinition
from tidings.streams import Stream
from tidings.texts import counted
from tidings.undo import Undo

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
        return self.define_stream(
            StreamDefinition(
                name,
                shards,
                log or self._default_log(name),
                retention_seconds,
                retention_bytes,
                {} if options is None else options,
                {} if caravans is None else caravans,
                {} if replicas is None else replicas,
                {} if collect is None else collect,
            )
        )

    def create_family(
        self, name: str, logs: Mapping[str, str], shards: int = DEFAULT_SHARDS, **options: Any
    ) -> list[Stream]:
        """Make a stream for each of several logs, as `shop.east` and `shop.west`, which are read by one name, `shop`.

        An application that names the family reads all of its streams, also those that are added later. Streams that
        are there already, with this very definition, are left as they are. All are made, or none is. The options are
        those of `create_stream`.
        """
        if not logs:
            raise InvalidOption(f"family {name!r} needs a log at least: say where, as in logs={{'east': 'postgres:…'}}")
        if "replicas" in options:
            raise InvalidOption(f"family {name!r} has several logs, of which none can have replicas")
        given = {key: value for key, value in options.items() if value is not None}
        try:
            members = [
                StreamDefinition(f"{name}.{member}", shards, log, family=name, **given) for member, log in logs.items()
            ]
        except TypeError as error:
            raise InvalidOption(f"a stream does not know that option: {error}") from None
        new = {member.name for member in members} - set(self.coordination.children("streams"))
        with contextlib.ExitStack() as stack:
            if new:
                names = [member.name for member in members if member.name in new]
                stack.enter_context(recorded(self.coordination, "streams create", names))
            undo = stack.enter_context(Undo())
            return [self.define_stream(member, undo) for member in members]

    def define_stream(self, definition: StreamDefinition, undo: Undo | None = None) -> Stream:
        """Make the stream that is defined so, or return the one that is there if it has this very definition.

        All of it is made, or nothing is. Who makes more than this passes an `undo`, which is told how to take it back.
        """
        name = definition.name
        trust_addresses(definition.locations)
        check_collection(definition)
        self._check_names(definition)
        if self._definition(name) is not None:
            return self._known(definition)
        made = definition.made_now()
        with recorded(self.coordination, "streams create", [name], after=made.to_json()):
            if self.coordination.create(made.to_json(), "streams", name):
                return self._make(made, undo)
            return self._known(definition)  # which another has made this moment

    def _known(self, definition: StreamDefinition) -> Stream:
        known = self._same(definition)
        with contextlib.closing(create_log(known)) as log:
            self._note_origin(known, log)
        return Stream(known)

    def _make(self, definition: StreamDefinition, undo: Undo | None) -> Stream:
        """Make all that belongs to a stream whose definition was put down this moment; or take that back."""
        name = definition.name
        with Undo() as failed:
            failed.add(f"stream {name!r}", lambda: self.coordination.delete("streams", name))
            # Of two that are made at the same time, and want the same, one sees the other here.
            check_claims(definition, (stream.definition for stream in self.streams()))
            if definition.replicas:
                found = check_new_log(definition)
                for replica in definition.replicas:
                    prove_replica(definition, replica, found)
            check_unclaimed(definition)
            new = is_tailed(definition) or not has_log(definition)
            with contextlib.closing(create_log(definition)) as log:
                if new:
                    failed.add(f"what was made in {definition.log}", lambda: unmake_log(definition))
                self._note_origin(definition, log)
        if undo is not None:
            undo.take_over(failed)
        return Stream(definition)

    def _same(self, definition: StreamDefinition) -> StreamDefinition:
        """The stream that is there; `StreamExists` if it is another than this one."""
        known = self.stream(definition.name).definition
        before, after = known.to_json(), replace(definition, id=known.id).to_json()
        changed = [key for key in (before | after) if before.get(key) != after.get(key)]
        if changed:
            raise StreamExists(
                f"stream {definition.name!r} is there already, with {counted(known.shards, 'shard')} in {known.log}, "
                f"and differs in {', '.join(changed)}; `tidings apply` changes what can be changed"
            )
        return known

    def stream(self, name: str) -> Stream:
        """The stream of that name."""
        definition = self._definition(name)
        if definition is None:
            if members := ", ".join(stream.name for stream in self._family(name)):
                raise UnknownStream(f"{name!r} is a family of streams in {self.address}: name one of {members}")
            there = ", ".join(self.coordination.children("streams")) or "none"
            raise UnknownStream(f"there is no stream {name!r} in {self.address} (streams: {there})")
        return Stream(definition)

    def streams_named(self, name: str) -> list[Stream]:
        """The stream of that name, or all streams of the family of that name."""
        check_name("a stream", name)
        return self._family(name) or [self.stream(name)]

    def streams(self) -> list[Stream]:
        """All streams, by name. One that cannot be read is left out, with a warning in the log."""
        return self._readable(self.coordination.children("streams"))

    def drop_stream(self, name: str, *, purge: bool = False) -> None:
        """Forget a stream, or all of a family; with `purge` delete its updates too, otherwise its log stays.

        What a datastore keeps for the sake of a stream that tails it, as a replication slot, goes with the stream.
        """
        streams = self.streams_named(name)
        for stream in streams:
            if purge and is_tailed(stream.definition):
                raise InvalidOption(
                    f"the updates of stream {stream.name!r} are its datastore's own, and cannot be purged"
                )
        known = {stream.name: stream.definition.to_json() for stream in streams}
        left = {"updates": "purged"} if purge else None
        with recorded(self.coordination, "streams drop", known, before=known, after=left):
            untold = []
            for stream in streams:
                try:
                    self._drop(stream, purge=purge)
                except LogUnavailable as error:  # the others are to be dropped, too
                    untold.append(str(error))
            if untold:
                raise LogUnavailable("; ".join(untold))

    def _drop(self, stream: Stream, *, purge: bool) -> None:
        name, tailed = stream.name, is_tailed(stream.definition)
        log = stream.log if purge else None
        self.coordination.delete("streams", name)
        self.coordination.delete("caravans", name)
        self.coordination.delete(SNAPSHOTS, name)
        if tailed:
            try:
                abandon_log(stream.definition)
            except TidingsError as error:
                raise LogUnavailable(f"stream {name!r} is dropped, but its datastore was not told: {error}") from error
        elif isinstance(log, WritableLog):
            log.destroy()

    def create_application(
        self,
        name: str,
        streams: Sequence[str],
        *,
        filter: str | Filter | None = None,
        **options: Unpack[ApplicationKeywords],
    ) -> Application:
        """Make an application, or return the one that is there if it has this very definition.

        The options are the fields of `Application`: `start`, `mode`, `max_age`, `balance` and `on_failure`. What is
        allowed in a filter and cannot be meant, such as a shard that no stream has, is a `FilterWarning`.
        """
        try:
            application = Application(name, tuple(streams), None if filter is None else str(filter), **options)
        except TypeError as error:
            raise InvalidOption(f"an application does not know that option: {error}") from None
        shards = self._check_application(application)
        if self._raw_application(name):
            self._put_application(application)  # if it is this very one
            make_room(self.coordination, name)
        else:
            with recorded(self.coordination, "applications create", [name], after=application.to_json()):
                self._put_application(application)
                make_room(self.coordination, name)
        for warning in application.warnings(shards):
            warnings.warn(warning, FilterWarning, stacklevel=2)
        return application

    def update_application(self, name: str, **changes: Unpack[ApplicationChanges]) -> Application:
        """Change `streams`, `filter`, `max_age`, `balance` or `on_failure` of an application while it runs.

        What it has acknowledged stays, and a new filter holds from the next read on. `start` and `mode` say where its
        flows begin and what they may leave out: they cannot change under flows that have begun.
        """
        changeable = list(ApplicationChanges.__annotations__)
        for key in changes:
            if key not in changeable:
                raise InvalidOption(
                    f"{key!r} of application {name!r} cannot change, but {', '.join(changeable)} can: drop the "
                    "application, and make it again"
                )
        check_name("an application", name)
        while True:
            before = self.coordination.read("applications", name)
            if before is None:
                raise self._unknown_application(name)
            known = self._checked_application(name, before)
            wanted: dict[str, Any] = {**changes, "streams": tuple(changes.get("streams", known.streams))}
            application = replace(known, **wanted)
            shards = self._check_application(application)
            after = {**before, **application.to_json()}  # what a later version has put there stays
            if after == before:
                break
            was, becomes = differences(before, after)
            with recorded(self.coordination, "applications update", [name], before=was, after=becomes) as entry:
                if self.coordination.replace(after, before, "applications", name):
                    break
                entry.problem = "it was changed by another meanwhile, and is changed once more"
        for warning in application.warnings(shards):
            warnings.warn(warning, FilterWarning, stacklevel=2)
        return application

    def _check_application(self, application: Application) -> dict[str, int]:
        """Raise if an application cannot be served; how many shards its streams have."""
        name = application.name
        read = {one: self.streams_named(one) for one in application.streams}
        shards = {stream.name: stream.shards for those in read.values() for stream in those}
        for twice in application.repeated({one: [stream.name for stream in those] for one, those in read.items()}):
            raise InvalidOption(f"application {name!r} names stream {twice!r} twice, by itself and by its family")
        for _, problem in start_problems(application.start, shards):
            raise InvalidOption(f"the start of application {name!r} cannot be: {problem}")
        strategy(application.balance)  # is there
        if application.dead_letters is not None:
            check_dead_letters(self.stream(application.dead_letters).definition, shards)
        return shards

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
        raw = self._raw_application(check_name("an application", name))
        if not raw:
            raise self._unknown_application(name)
        before = None
        with contextlib.suppress(TidingsError):  # what cannot be read is dropped all the same
            before = self._decoded_application(name, raw).to_json()
        with recorded(self.coordination, "applications drop", [name], before=before):
            # The definition goes first, and alone, so that nobody takes a flow while the flows are deleted.
            with contextlib.suppress(NoNodeError):  # another one drops it, too
                self.coordination.clear("applications", name)
            self.coordination.delete("flows", name)
            # Those whose subscribers still ran when they were dropped are as empty as this one, once these have gone.
            for one in self.coordination.children("applications"):
                sweep(self.coordination, one)

    def _readable(self, names: Sequence[str]) -> list[Stream]:
        """The streams of these names that can be read, asked for all at once."""
        tree = self.coordination
        found = []
        for name, node in zip(names, tree.read_many([("streams", name) for name in names]), strict=True):
            if isinstance(node, CoordinationDenied):
                raise node
            try:
                value = decode(tree.path("streams", check_name("a stream", name)), node.raw) if node else None
                if value is not None:
                    found.append(Stream(self._checked_definition(name, value)))
            except (InvalidOption, InvalidName, ForeignValue) as error:
                logger.warning("stream %r is left out: %s", name, error)
        return found

    def _definition(self, name: str) -> StreamDefinition | None:
        value = self.coordination.read("streams", check_name("a stream", name))
        return None if value is None else self._checked_definition(name, value)

    def _checked_definition(self, name: str, value: dict[str, Any]) -> StreamDefinition:
        place = self.coordination.path("streams", name)
        try:
            definition = StreamDefinition.from_json(value)
        except TidingsError as error:
            raise InvalidOption(
                f"what ZooKeeper holds at {place} cannot be read ({error}): mend it, or empty it"
            ) from None
        if definition.name != name:
            raise InvalidOption(f"what ZooKeeper holds at {place} is of {definition.name!r}: mend it, or empty it")
        return definition

    def _note_origin(self, definition: StreamDefinition, log: Log) -> None:
        """Note what the datastore is known by; if it does not tell, a publisher will ask it again."""
        with contextlib.suppress(LogUnavailable):
            if isinstance(log, MovableLog) and (known := log.origin()) is not None:
                note_origin(self.coordination, known, definition)

    def _family(self, name: str) -> list[Stream]:
        """The streams of a family; none if a stream has that name, or it is nobody's."""
        names = self.coordination.children("streams")
        if name in names:
            return []
        near = self._readable([one for one in names if one.startswith(f"{name}.")])
        return [one for one in near if one.definition.family == name]

    def _check_names(self, definition: StreamDefinition) -> None:
        """Raise if a stream and a family of streams would have one name."""
        name, family = definition.name, definition.family
        if family and self._definition(family) is not None:
            raise StreamExists(f"there is a stream {family!r}, so no family of streams can be called that")
        if members := ", ".join(stream.name for stream in self._family(name)):
            raise StreamExists(f"{name!r} is a family of streams ({members}), so no stream can be called that")

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
            raise ApplicationExists(
                f"application {name!r} is there already, with another definition: change it by `tidings applications "
                "update`; to drop it is to lose where its flows stand"
            )

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
