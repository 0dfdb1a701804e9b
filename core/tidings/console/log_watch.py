"""What logs say, kept fresh: each is asked in a thread, and one that does not answer holds up no other.

A log stays open between two looks, while somebody looks at the console.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass

from tidings.console.workers import WorkerPool
from tidings.datamarkers import Datamarker
from tidings.errors import ENDING, TidingsError
from tidings.flow_status import LogReading
from tidings.log_opening import open_log
from tidings.logs import Log
from tidings.stream_definition import StreamDefinition

THREADS = 8
SLOW_S = 1.0
SLOW_FACTOR = 4  # a log that took long is left alone for so many times as long
SILENT_S = 5.0  # after which it is told that a log does not answer

Stands = set[tuple[int, Datamarker]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogState:
    """What a log said last, when, and how long it took; `problem` is why it says nothing now."""

    reading: LogReading
    time: float | None = None
    problem: str | None = None
    seconds: float = 0.0


class _Watched:
    """One stream's log."""

    def __init__(self, definition: StreamDefinition) -> None:
        self.definition = definition
        self.state = LogState(LogReading())
        self.pending: Future[LogState] | None = None
        self.asked = 0.0
        self.next = 0.0
        self._closed = False
        self._lock = threading.Lock()
        self._log: Log | None = None

    def look(self, stands: Stands) -> LogState:
        with self._lock:
            reading, began, started = LogReading(), time.time(), time.monotonic()
            try:
                if self._log is None:
                    self._log = open_log(self.definition)
                reading.look(self._log, self.definition, stands)
            except ENDING:
                raise
            except BaseException as error:  # a log may be anybody's, and harms its own stream alone
                self._close()
                if not isinstance(error, TidingsError):
                    logger.warning("the log of stream %r failed", self.definition.name, exc_info=error)
                reading.problem = str(error) if isinstance(error, TidingsError) else f"{type(error).__name__}: {error}"
            if self._closed:
                self._close()
            return LogState(reading, began, reading.problem, time.monotonic() - started)

    def close(self) -> None:
        self._closed = True
        if self._lock.acquire(blocking=False):  # else by who asks it just now
            self._close()
            self._lock.release()

    def _close(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            with contextlib.suppress(Exception):
                log.close()


class LogWatch:
    """The logs of all streams. Used by one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = WorkerPool("log", THREADS)
        self._clock = clock
        self._watched: dict[str, _Watched] = {}

    def refresh(
        self, streams: Mapping[str, StreamDefinition], stands: Mapping[str, Stands], budget_s: float
    ) -> dict[str, LogState]:
        """Ask every log that is not being asked, and wait for these, not for others; what each said last."""
        for name in [name for name, one in self._watched.items() if not _same(streams.get(name), one.definition)]:
            self._watched.pop(name).close()
        asked = []
        for name, definition in streams.items():
            one = self._watched.setdefault(name, _Watched(definition))
            if one.pending is None and self._clock() >= one.next:
                one.asked = self._clock()
                one.pending = self._pool.submit(functools.partial(one.look, stands.get(name, set())))
                asked.append(one.pending)
        wait(asked, budget_s)
        return {name: self._taken(self._watched[name]) for name in streams}

    def close(self, names: Iterable[str] | None = None) -> None:
        """Let go of logs: nobody looks."""
        for name in list(self._watched) if names is None else names:
            self._watched.pop(name).close()

    def _taken(self, one: _Watched) -> LogState:
        silent = self._clock() - one.asked
        if one.pending is not None and one.pending.done():
            one.state, one.pending = one.pending.result(), None
            one.next = self._clock() + (SLOW_FACTOR * one.state.seconds if one.state.seconds > SLOW_S else 0.0)
        elif one.pending is not None and silent > SILENT_S:
            told = f"the log of stream {one.definition.name!r} has not answered for {silent:.0f} s"
            return LogState(one.state.reading, one.state.time, told)
        return one.state


def _same(now: StreamDefinition | None, before: StreamDefinition) -> bool:
    return now == before and now.id == before.id  # one that was made anew has another id
