"""Membership: a record of this process in ZooKeeper, which only one process may have under its name.

The record is ephemeral: it goes with the session, so others see that we are gone. Whoever has one must call `keep` now
and then; it puts the record back after a session that was lost, and tells what has changed in it.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from kazoo.exceptions import NoNodeError

from tidings.coordination.node_cache import NodeCache
from tidings.coordination.zookeeper import Coordination
from tidings.errors import TidingsError


class Membership:
    """A record at `place`. `taken` is raised while another process has it."""

    def __init__(
        self, nodes: NodeCache, coordination: Coordination, place: tuple[str, ...], taken: TidingsError
    ) -> None:
        self._nodes = nodes
        self._coordination = coordination
        self._place = place
        self._taken = taken
        self._written: dict[str, Any] = {}
        self._lost_at: float | None = None

    @property
    def lost_seconds(self) -> float:
        """How long the record has not been there, as far as is known; 0 while it is."""
        since = self._lost_at
        return 0.0 if since is None else time.monotonic() - since

    def join(self, record: dict[str, Any]) -> None:
        """Put the record there. If the name was that of a process which has just died, wait for its session to end."""
        if not self._coordination.claim(record, *self._place, patience=self._coordination.afterlife):
            raise self._taken
        self._written = record

    def lost(self) -> None:
        """The session is over, and the record with it; what is there from now on may be another's."""
        self._written = {}
        self._lost_at = self._lost_at or time.monotonic()

    def keep(self, record: dict[str, Any]) -> None:
        """See to it that this record is there."""
        known = self._nodes.value(*self._place)
        if known is None or not self._written:
            if not self._coordination.claim(record, *self._place, again=True):
                raise self._taken
        elif record != self._written:
            changes = {key: value for key, value in record.items() if value != self._written[key]}
            if not self._coordination.replace(known | changes, known, *self._place):
                return  # the cache lags behind
        self._written, self._lost_at = record, None

    def leave(self) -> None:
        """Take the record away, if it is ours; without ZooKeeper it goes with the session."""
        if self._coordination.client.connected:
            with contextlib.suppress(TidingsError):
                self._coordination.release(*self._place)


def make_room(tree: Coordination, application: str) -> None:
    """Make the place of an application's subscribers, which they may not make themselves."""
    tree.create_path("applications", application, "subscribers")


def sweep(tree: Coordination, name: str) -> None:
    """Take the empty place of an application away that was dropped while subscribers ran, once they are gone.

    Safe beside a subscriber that registers, and beside who makes the application again: in one transaction either all
    is deleted, which makes them begin with the place itself, or nothing is.
    """
    place = tree.path("applications", name)
    with tree.translating_errors(), contextlib.suppress(NoNodeError):
        raw, stat = tree.client.get(place)
        if raw:
            return
        deletion = tree.client.transaction()
        if stat.numChildren:
            deletion.delete(f"{place}/subscribers")
        deletion.delete(place, version=stat.version)
        deletion.commit()
