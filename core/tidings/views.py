"""What ZooKeeper holds, as this process last saw it: reads are free until something changes.

A value is read once, with a watch. When the watch fires, the value is forgotten and `on_change` is called; the next
read asks ZooKeeper again. When the connection is lost, everything is forgotten.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import WatchedEvent

from tidings.coordination import Coordination, decode

T = TypeVar("T")


class View:
    """A cache over a part of the cluster's tree. May be read from any thread; `on_change` must not block."""

    def __init__(self, coordination: Coordination, on_change: Callable[[], None]) -> None:
        self._coordination = coordination
        self._on_change = on_change
        self._known: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    def value(self, *parts: str) -> dict[str, Any] | None:
        """The JSON value at a place, or None."""
        return self._read("value", self._value, *parts)

    def children(self, *parts: str) -> list[str]:
        """The names below a place."""
        return self._read("children", self._children, *parts)

    def exists(self, *parts: str) -> bool:
        """Whether there is something at a place."""
        return self._read("exists", self._exists, *parts)

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
        fired = threading.Event()

        def watch(event: WatchedEvent) -> None:
            fired.set()
            with self._lock:
                self._known.pop(key, None)
            self._on_change()

        with self._coordination.speaking():
            value = ask(path, watch)
        with self._lock:
            if not fired.is_set():  # else it has changed while it was read
                self._known[key] = value
        return value

    def _value(self, path: str, watch: Callable[[WatchedEvent], None]) -> dict[str, Any] | None:
        try:
            raw, _ = self._coordination.client.get(path, watch=watch)
        except NoNodeError:
            # A watch on a node that is not there is set by `exists` only.
            return self._value(path, watch) if self._exists(path, watch) else None
        return decode(path, raw)

    def _children(self, path: str, watch: Callable[[WatchedEvent], None]) -> list[str]:
        try:
            return sorted(self._coordination.client.get_children(path, watch=watch))
        except NoNodeError:
            return self._children(path, watch) if self._exists(path, watch) else []

    def _exists(self, path: str, watch: Callable[[WatchedEvent], None]) -> bool:
        return self._coordination.client.exists(path, watch=watch) is not None
