"""What gateways know of each other and of their service, in ZooKeeper.

```
/<root>/thialfi/<service>                    the service; `identity` is what its tokens are bound to
/<root>/thialfi/<service>/gateways/<id>      ephemeral: where other gateways reach this one
/<root>/flows/<service>.gateways/<service>.notifications/<shard>/subscriber   the gateway that holds the flow
```
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from tidings.coordination import Coordination
from tidings.errors import InvalidOption, TidingsError
from tidings.flows import Flow
from tidings.views import View
from tidings_thialfi.rows import notifications_of

LOOK = 1.0  # seconds after which a look is taken even if nothing was heard

logger = logging.getLogger(__name__)


def gateways_of(service: str) -> str:
    """The application whose subscribers are a service's gateways."""
    return f"{service}.gateways"


def identity_of(coordination: Coordination, service: str) -> str:
    """The service's identity; a service that has none is given one."""
    while True:
        known = coordination.read("thialfi", service)
        if known is not None and known.get("identity"):
            return str(known["identity"])
        value = {**(known or {}), "identity": uuid.uuid4().hex[:16]}
        if known is None and coordination.create(value, "thialfi", service):
            continue
        coordination.replace(value, known, "thialfi", service)


@dataclass(frozen=True, slots=True)
class Places:
    """Which gateway holds the flow of each shard, and where the gateways are."""

    holders: dict[int, str]
    urls: dict[str, str]
    identity: str | None


class Registry:
    """Keeps a gateway registered, and calls `placed` from a thread of its own whenever something has changed."""

    def __init__(
        self, coordination: Coordination, service: str, id: str, url: str, shards: int, placed: Callable[[Places], None]
    ) -> None:
        self._coordination = coordination
        self._place = ("thialfi", service, "gateways", id)
        self._service = service
        self._record = {"url": url, "pid": os.getpid()}
        self._flows = [Flow(gateways_of(service), notifications_of(service), shard) for shard in range(shards)]
        self._placed = placed
        self._known: Places | None = None
        self._closed = threading.Event()
        self._changed = threading.Event()
        self._view = View(coordination, self._changed.set)
        if not coordination.claim(self._record, *self._place, patience=coordination.afterlife):
            raise InvalidOption(f"service {service!r} has a gateway {id!r} already; give this one another id")
        self._thread = threading.Thread(target=self._watch, name="tidings-gateway-registry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Be a gateway no more."""
        self._closed.set()
        self._changed.set()
        self._thread.join()
        try:
            self._coordination.delete(*self._place)
        except TidingsError:
            logger.debug("the registration goes with the session")

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
            self._changed.wait(LOOK)
            self._changed.clear()

    def _look(self) -> Places:
        if self._view.value(*self._place) is None:  # a session that was lost took it away
            self._coordination.claim(self._record, *self._place, again=True)
        place = self._place[:-1]
        gateways = {name: self._view.value(*place, name) for name in self._view.children(*place)}
        self._view.fill([(*flow.place, "subscriber") for flow in self._flows])
        holders = {flow.shard: self._view.value(*flow.place, "subscriber") for flow in self._flows}
        service = self._view.value("thialfi", self._service)
        return Places(
            {shard: str(value["id"]) for shard, value in holders.items() if value is not None and "id" in value},
            {name: str(value["url"]) for name, value in gateways.items() if value is not None and "url" in value},
            str(service["identity"]) if service is not None and "identity" in service else None,
        )
