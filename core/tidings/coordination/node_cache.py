"""What ZooKeeper holds, as this process last saw it: reads are free until something changes.

A value is read once, with a watch. When the watch fires, the value is forgotten and `on_change` is called; the next
read asks ZooKeeper again. When the connection is lost, everything is forgotten.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from kazoo.exceptions import KazooException, NoNodeError, UnimplementedError
from kazoo.protocol.states import WatchedEvent

from tidings.coordination.values import decode
from tidings.coordination.zookeeper import Coordination
from tidings.errors import CoordinationDenied, CoordinationUnavailable, ForeignValue, TidingsError

logger = logging.getLogger(__name__)
T = TypeVar("T")


class NodeValue(NamedTuple):
    """What is at a place, if anything, and ZooKeeper's transaction that made it; -1 if there is no such place."""

    value: dict[str, Any] | None
    made: int


class NodeCache:
    """A cache over a part of the cluster's tree. May be read from any thread; `on_change` must not block."""

    def __init__(self, coordination: Coordination, on_change: Callable[[], None]) -> None:
        self._coordination = coordination
        self._on_change = on_change
        self._known: dict[tuple[str, str], Any] = {}
        self._versions: dict[str, int] = {}
        self._complaints: dict[str, str] = {}
        self._lock = threading.Lock()
        self.generation = 0
        """Changes whenever something that was read may not be so any more."""

    @property
    def uncertain(self) -> bool:
        """Whether something makes no sense, or may not be read: that may change, and nobody tells of it."""
        return bool(self._complaints)

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

    def cached(self, *parts: str) -> dict[str, Any] | None:
        """The JSON value at a place if it is known already; None too if it is not, or if there is none."""
        with self._lock:
            value: dict[str, Any] | None = self._known.get(("value", self._coordination.path(*parts)))
        return value

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
        tree = self._coordination
        with self._lock:
            known = self._known.keys()
            unknown = [place for place in dict.fromkeys(places) if ("value", tree.path(*place)) not in known]
        kinds: tuple[dict[str, _Watch], dict[str, _Watch]] = {}, {}
        for place, node in zip(unknown, tree.read_many(unknown), strict=True):
            path = tree.path(*place)
            if not isinstance(node, CoordinationDenied):  # of which is told when it is wanted
                kinds[node is None][path] = _Watch(self, ("value", path))
        there, missing = kinds
        with tree.translating_errors():
            for paths, pending in tree.watch_many(there, missing):
                for path, answer in zip(paths, tree.wait(pending), strict=True):
                    if path in missing and isinstance(answer, NoNodeError):
                        missing[path].note(None)  # what has changed since the first look is not kept
                    elif path in there and not isinstance(answer, KazooException):
                        there[path].note(self._decoded(path, *answer))

    def ask(self, places: Sequence[tuple[str, ...]], answered: Callable[[int, NodeValue | TidingsError], None]) -> None:
        """Read places for one who does not wait: `answered` is told the number of each, and what there is.

        That is kept, as if it had been read by `value`. An error is told, too.
        """
        tree = self._coordination
        numbers = {tree.path(*place): number for number, place in enumerate(places)}
        watches = {path: _Watch(self, ("value", path)) for path in numbers}

        def take_in(paths: list[str], pending: Any) -> None:
            found: list[NodeValue | TidingsError] = []
            try:
                with tree.translating_errors():
                    answers = zip(paths, pending.get(), strict=True)
                    found = [self._taken_in(path, one, watches[path]) for path, one in answers]
            except TidingsError as error:
                found = [error] * len(paths)
            except UnimplementedError:
                tree.reads_one_by_one()
                found = [CoordinationUnavailable("ZooKeeper reads one node at a time")] * len(paths)
            except Exception:
                logger.exception("an answer of ZooKeeper's cannot be taken in")
                found = [CoordinationUnavailable("an internal error")] * len(paths)
            for path, one in zip(paths, found, strict=True):
                answered(numbers[path], one)

        for paths, pending in tree.watch_many(watches, {}):
            pending.rawlink(functools.partial(take_in, paths))

    def _taken_in(self, path: str, answer: Any, watch: _Watch) -> NodeValue | TidingsError:
        if isinstance(answer, NoNodeError):
            return NodeValue(None, -1)
        if isinstance(answer, KazooException):
            try:
                with self._coordination.translating_errors():
                    raise answer
            except TidingsError as error:
                return error
        value = self._decoded(path, *answer)
        watch.note(value)
        return NodeValue(value, answer[1].czxid)

    def forget(self) -> None:
        """Ask ZooKeeper again for everything."""
        with self._lock:
            self.generation += 1
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
            logger.warning("what ZooKeeper holds at %s is left alone: %s; mend it, or empty it", path, complaint)
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
            self._nodes.generation += 1
            self._nodes._known.pop(self._key, None)
        self._nodes._on_change()

    def note(self, value: Any) -> None:
        """Keep what was read under this watch."""
        with self._nodes._lock:
            if not self._fired:
                self._nodes._known[self._key] = value
