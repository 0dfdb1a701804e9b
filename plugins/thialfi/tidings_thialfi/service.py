"""A service, as ZooKeeper knows it: its identity, the streams whose objects its clients register for, its pipeline.

```
/<root>/thialfi/<service>    identity, streams, pipeline, storage, options
```

The identity is what clients' tokens are bound to. A service whose state was dropped has another one, and so its clients
notice, keep their numbers, and register anew.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.audit import recorded
from tidings.coordination.pipeline_lock import PipelineLock
from tidings.errors import ForeignValue, InvalidOption, TidingsError, UnknownApplication, UnknownStream
from tidings.names import check_name
from tidings.pipelines.pipeline import Pipeline
from tidings.positions import Position, Positions
from tidings.stages import make
from tidings.stream_definition import DEFAULT_SHARDS
from tidings_thialfi.places import GATEWAYS, PLACE, gateways_of
from tidings_thialfi.protocol.stream_schema import notifications_of, operations_of
from tidings_thialfi.server.collection import POLICIES

if TYPE_CHECKING:
    from tidings.cluster import Cluster


class UnknownService(TidingsError):
    """No service of that name is defined in this cluster."""


class ServiceExists(TidingsError):
    """A service of that name is there already, with another definition."""


@dataclass(frozen=True)
class Service:
    """What the cluster knows of a service.

    `streams` are those of the updates; `options` those of the stage. Checkpoint and tables are in
    `<storage>/pipelines/<pipeline>`.
    """

    name: str
    identity: str
    streams: tuple[str, ...]
    pipeline: str
    storage: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where its state is."""
        return Path(self.storage) / "pipelines" / self.pipeline

    def to_json(self) -> dict[str, Any]:
        """As it is kept in ZooKeeper."""
        value = {**asdict(self), "streams": list(self.streams), "options": dict(self.options)}
        del value["name"]
        return value

    def open(self, cluster: Cluster) -> Pipeline:
        """The pipeline that does the service's work; start it as any other, by `start` or `run`."""
        inputs = [*self.streams, operations_of(self.name)]
        options = {**self.options, "service": self.name}
        output = notifications_of(self.name)
        return Pipeline(
            cluster,
            self.pipeline,
            input=inputs,
            stage="thialfi",
            options=options,
            output=output,
            storage=self.storage,
        )


def create(
    cluster: Cluster,
    name: str,
    streams: Sequence[str],
    *,
    storage: str | Path,
    shards: int = DEFAULT_SHARDS,
    log: str | None = None,
    options: Mapping[str, Any] | None = None,
    pipeline: str | None = None,
) -> Service:
    """Make a service for the objects of these streams, or return the one that is there with this very definition.

    Its two streams are made, too, if they are not there: `<log>.operations` and `<log>.notifications` are their logs;
    and so is the application whose subscribers are its gateways. The pipeline is called as the service,
    unless it has another name.
    """
    check_name("a service", name)
    if not streams:
        raise InvalidOption(f"service {name!r} needs a stream of updates at least")
    for stream in streams:
        cluster.stream(stream)
    make("thialfi", {**(options or {}), "service": name})
    place = str(Path(storage).absolute())
    service = Service(name, new_identity(), tuple(streams), pipeline or name, place, dict(options or {}))
    if cluster.coordination.read(PLACE, name) is not None:
        return _make(cluster, service, shards, log)
    with recorded(cluster.coordination, "thialfi create", [name], after=service.to_json()):
        return _make(cluster, service, shards, log)


def _make(cluster: Cluster, service: Service, shards: int, log: str | None) -> Service:
    """Make what is not there of a service."""
    name = service.name
    for stream in (operations_of(name), notifications_of(name)):
        try:
            cluster.stream(stream)
        except UnknownStream:
            place = None if log is None else log + stream.removeprefix(name)
            cluster.create_stream(stream, shards, place, collect=POLICIES[stream.removeprefix(f"{name}.")])
    try:
        cluster.application(gateways_of(name))
    except UnknownApplication:
        told = [notifications_of(name)]
        cluster.create_application(gateways_of(name), told, start="latest", balance="zookeeper")
    made = cluster.coordination.create(service.to_json(), PLACE, name)
    cluster.coordination.create_path(PLACE, name, GATEWAYS)  # which gateways may not make themselves
    if made:
        return service
    known = read(cluster, name)
    if replace(known, identity=service.identity) != service:
        raise ServiceExists(f"service {name!r} is there already, with another definition")
    return known


def read(cluster: Cluster, name: str) -> Service:
    """The service of that name."""
    value = cluster.coordination.read(PLACE, check_name("a service", name))
    if value is None:
        there = ", ".join(cluster.coordination.children(PLACE)) or "none"
        raise UnknownService(
            f"there is no service {name!r} in {cluster.address} (services: {there}); see `tidings thialfi create`"
        )
    try:
        return Service(
            name,
            value["identity"],
            tuple(value["streams"]),
            value["pipeline"],
            value["storage"],
            value.get("options", {}),
        )
    except (KeyError, TypeError) as error:
        place = cluster.coordination.path(PLACE, name)
        raise ForeignValue(f"what ZooKeeper holds at {place} is no service ({error}): mend it, or delete it") from None


def new_identity() -> str:
    """An identity that no service has had."""
    return uuid.uuid4().hex[:16]


def drop_state(cluster: Cluster, name: str) -> Service:
    """Throw away all that the service knows: tables, runs, checkpoint, and what clients wanted and was not done yet.

    The service gets another identity, by which its clients notice; they register anew, and are told of all their
    objects. The pipeline must not run: `PipelineHeld` if it does. Dies it on the way, do it again.
    """
    service = read(cluster, name)
    claim = PipelineLock(cluster.coordination, service.pipeline)
    try:
        before = {"identity": service.identity}
        with recorded(cluster.coordination, "thialfi drop-state", [name], before=before) as entry:
            dropped = _drop_state(cluster, service)
            entry.after = {"identity": dropped.identity}
    finally:
        claim.release()
    return dropped


def _drop_state(cluster: Cluster, service: Service) -> Service:
    name = service.name
    # What comes after this is from clients that have noticed, or soon will.
    log = cluster.stream(operations_of(name)).writable_log
    heads = {shard: Position(bounds.head.seq + 1) for shard, bounds in log.bounds().items() if not bounds.empty}
    # Before anything goes, so that no client goes on as if nothing had happened, wherever this ends.
    while not cluster.coordination.replace(
        {**service.to_json(), "identity": (identity := new_identity())}, service.to_json(), PLACE, name
    ):
        service = read(cluster, name)
    shutil.rmtree(service.folder, ignore_errors=True)
    # A new checkpoint begins with the oldest rows, and would do once more all that clients ever wanted.
    log.truncate(Positions(heads))
    return replace(service, identity=identity)
