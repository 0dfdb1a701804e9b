"""What gateways know of each other and of their service, in ZooKeeper.

```
/<root>/thialfi/<service>                    the service; `identity` is what its tokens are bound to
/<root>/thialfi/<service>/gateways/<id>      ephemeral: where other gateways reach this one, its clients and delays
/<root>/thialfi/<service>/revoked            below it, as below `disconnected`: see `tidings_thialfi.revocations`
/<root>/flows/<service>.gateways/<service>.notifications/<shard>/subscriber   the gateway that holds the flow
```
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kazoo.protocol.states import KazooState

from tidings.coordination.membership import Membership
from tidings.coordination.node_cache import NodeCache
from tidings.coordination.zookeeper import Coordination
from tidings.errors import InvalidOption, TidingsError
from tidings.flows import Flow
from tidings_thialfi.gateway.hearing import Hearing
from tidings_thialfi.places import DISCONNECTED, GATEWAYS, PLACE, REVOKED, gateways_of
from tidings_thialfi.protocol.stream_schema import notifications_of

LOOK_INTERVAL_S = 1.0  # a look is taken even if ZooKeeper has announced no change
LOAD_INTERVAL_S = 10.0  # between two records of what a gateway has to do

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Places:
    """Which gateway holds the flow of each shard, where the gateways are, and what operators have said of clients."""

    holders: dict[int, str]
    urls: dict[str, str]
    identity: str | None
    revoked: frozenset[str]
    disconnected: frozenset[str]
    losses: int
    """How often ZooKeeper was lost before this was looked up."""


class Registry:
    """Keeps a gateway registered, and calls `placed` from a thread of its own whenever something has changed.

    `load` says what operators should know of it, now and then.
    """

    def __init__(
        self,
        coordination: Coordination,
        service: str,
        id: str,
        url: str,
        shards: int,
        placed: Callable[[Places], None],
        hearing: Hearing,
        load: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._service = (PLACE, service)
        self._gateways = (*self._service, GATEWAYS)
        self._record: dict[str, Any] = {"url": url, "pid": os.getpid(), **load()}
        self._load = load
        self._loaded_at = time.monotonic()
        self._flows = [Flow(gateways_of(service), notifications_of(service), shard) for shard in range(shards)]
        self._placed = placed
        self._known: Places | None = None
        self._hearing = hearing
        self._losses = 0
        self._closed = threading.Event()
        self._changed = threading.Event()
        self._nodes = NodeCache(coordination, self._changed.set)
        taken = InvalidOption(f"service {service!r} has a gateway {id!r} already; give this one another id")
        self._membership = Membership(self._nodes, coordination, (*self._gateways, id), taken)
        self._membership.join(self._record)
        self._client = coordination.client
        self._client.add_listener(self._on_state)
        self._thread = threading.Thread(target=self._watch, name="tidings-gateway-registry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Be a gateway no more."""
        self._closed.set()
        self._changed.set()
        self._thread.join()
        self._client.remove_listener(self._on_state)
        self._membership.leave()

    def _on_state(self, state: str) -> None:
        if state == KazooState.LOST:
            self._membership.lost()
        if state == KazooState.CONNECTED:
            self._changed.set()

    def _watch(self) -> None:
        trouble = ""
        while not self._closed.is_set():
            try:
                places = self._look()
            except TidingsError as error:
                if str(error) != trouble:
                    logger.warning("gateways cannot be looked up: %s", error)
                trouble = str(error)
            else:
                trouble = ""
                if places != self._known:
                    self._known = places
                    self._placed(places)
            self._changed.wait(LOOK_INTERVAL_S)
            self._changed.clear()

    def _look(self) -> Places:
        losses = self._hearing.losses  # first: what is read now is of after these
        if losses != self._losses:
            self._losses = losses
            self._nodes.forget()
        if time.monotonic() - self._loaded_at >= LOAD_INTERVAL_S:  # all gateways hear of each change
            self._loaded_at = time.monotonic()
            self._record = {**self._record, **self._load()}
        self._membership.keep(self._record)
        gateways = {name: self._nodes.value(*self._gateways, name) for name in self._nodes.children(*self._gateways)}
        self._nodes.fill([(*flow.place, "subscriber") for flow in self._flows])
        holders = {flow.shard: self._nodes.value(*flow.place, "subscriber") for flow in self._flows}
        service = self._nodes.value(*self._service)
        return Places(
            {shard: str(value["id"]) for shard, value in holders.items() if value is not None and "id" in value},
            {name: str(value["url"]) for name, value in gateways.items() if value is not None and "url" in value},
            str(service["identity"]) if service is not None and "identity" in service else None,
            frozenset(self._nodes.children(*self._service, REVOKED)),
            frozenset(self._nodes.children(*self._service, DISCONNECTED)),
            losses,
        )
