"""What ZooKeeper holds, as this process last saw it: reads are free until something changes.

A value is read once, with a watch. When the watch fires, the value is forgotten and `on_change` is called; the next
read asks ZooKeeper again. When the connection is lost, everything is forgotten.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.protocol.states import WatchedEvent

from tidings.coordination.zookeeper import Coordination, decode
from tidings.errors import CoordinationDenied, ForeignValue

logger = logging.getLogger(__name__)
T = TypeVar("T")


class NodeCache:
    """A cache over a part of the cluster's tree. May be read from any thread; `on_change` must not block."""

    def __init__(self, coordination: Coordination, on_change: Callable[[], None]) -> None:
        self._coordination = coordination
        self._on_change = on_change
        self._known: dict[tuple[str, str], Any] = {}
        self._versions: dict[str, int] = {}
        self._complaints: dict[str, str] = {}
        self._lock = threading.Lock()

    def value(self, *parts: str) -> dict[str, Any] | None:
        """The JSON value at a place, or None; None too if we may not read it, which is told once.

        Whoever may make a node can keep all others from it, and that must not stop what is done about the others. It is
        asked for each time, since ZooKeeper announces no change of it.
        """
        try:
            return self._read("value", self._value, *parts)
        except CoordinationDenied:
            self._complain(self._coordination.path(*parts), "we may not read it")
            return None

    def parsed(self, parse: Callable[[dict[str, Any]], T], *parts: str) -> T | None:
        """What `parse` makes of the value at a place; None if there is none, or it makes no sense, which is told once.

        Whatever is wrong with one value must not stop what is done about the others.
        """
        value, path = self.value(*parts), self._coordination.path(*parts)
        if value is None:
            return None
        try:
            found = parse(value)
        except Exception as error:  # noqa: BLE001 - whatever is in there
            self._complain(path, f"{type(error).__name__}: {error}"[:500])
            return None
        self._complaints.pop(path, None)
        return found

    def children(self, *parts: str) -> list[str]:
        """The names below a place."""
        return self._read("children", self._children, *parts)

    def exists(self, *parts: str) -> bool:
        """Whether there is something at a place."""
        return self._read("exists", self._exists, *parts)

    def version(self, *parts: str) -> int:
        """How often the value at a place was changed; -1 if nothing is known of it."""
        with self._lock:
            return self._versions.get(self._coordination.path(*parts), -1)

    def fill(self, places: Sequence[tuple[str, ...]]) -> None:
        """Learn the values of many places at once: in two round trips, where one by one takes as many as there are."""
        paths = [self._coordination.path(*place) for place in places]
        with self._lock:
            unknown = [path for path in paths if ("value", path) not in self._known]
        wait = self._coordination.wait
        with self._coordination.translating_errors():
            watched = {path: _Watch(self, ("value", path)) for path in unknown}
            asked = {path: self._coordination.client.exists_async(path, watch=watched[path]) for path in unknown}
            there = []
            for path, one in asked.items():
                with contextlib.suppress(NoAuthError):  # told when it is wanted
                    if wait(one) is None:
                        watched[path].note(None)
                    else:
                        there.append(path)
            asked = {path: self._coordination.client.get_async(path, watch=watched[path]) for path in there}
            for path, one in asked.items():
                with contextlib.suppress(NoNodeError):  # gone meanwhile: read again when it is wanted
                    watched[path].note(self._decoded(path, *wait(one)))

    def forget(self) -> None:
        """Ask ZooKeeper again for everything."""
        with self._lock:
            self._known.clear()

    def _read(self, kind: str, ask: Callable[[str, Callable[[WatchedEvent], None]], T], *parts: str) -> T:
        path = self._coordination.path(*parts)
        key = (kind, path)
        with self._lock:
            if key in self._known:
                value: T = self._known[key]
                return value
        watch = _Watch(self, key)
        with self._coordination.translating_errors():
            value = ask(path, watch)
        watch.note(value)
        return value

    def _complain(self, path: str, complaint: str) -> None:
        if self._complaints.get(path) != complaint:
            logger.warning("what ZooKeeper holds at %s is left alone: %s; mend it, or delete it", path, complaint)
        self._complaints[path] = complaint

    def _decoded(self, path: str, raw: bytes, stat: Any) -> dict[str, Any] | None:
        with self._lock:
            self._versions[path] = stat.version
        try:
            return decode(path, raw)
        except ForeignValue as error:
            logger.warning("%s; it is left alone until then", error)  # and does not stop what is done about the others
            return None

    def _value(self, path: str, watch: Callable[[WatchedEvent], None]) -> dict[str, Any] | None:
        try:
            raw, stat = self._coordination.wait(self._coordination.client.get_async(path, watch=watch))
        except NoNodeError:
            # A watch on a node that is not there is set by `exists` only.
            return self._value(path, watch) if self._exists(path, watch) else None
        return self._decoded(path, raw, stat)

    def _children(self, path: str, watch: Callable[[WatchedEvent], None]) -> list[str]:
        try:
            return sorted(self._coordination.wait(self._coordination.client.get_children_async(path, watch=watch)))
        except NoNodeError:
            return self._children(path, watch) if self._exists(path, watch) else []

    def _exists(self, path: str, watch: Callable[[WatchedEvent], None]) -> bool:
        return self._coordination.wait(self._coordination.client.exists_async(path, watch=watch)) is not None


class _Watch:
    """What ZooKeeper calls when something has changed; a value that it has overtaken is not kept."""

    def __init__(self, nodes: NodeCache, key: tuple[str, str]) -> None:
        self._nodes = nodes
        self._key = key
        self._fired = False

    def __call__(self, event: WatchedEvent) -> None:
        with self._nodes._lock:
            self._fired = True
            self._nodes._known.pop(self._key, None)
        self._nodes._on_change()

    def note(self, value: Any) -> None:
        """Keep what was read under this watch."""
        with self._nodes._lock:
            if not self._fired:
                self._nodes._known[self._key] = value
