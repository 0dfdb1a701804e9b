"""Threads for what may take long: a log, a plugin, ZooKeeper. They end with the process, whatever they wait for."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from tidings.errors import ENDING, TidingsError

T = TypeVar("T")


class Overloaded(TidingsError):
    """All threads are busy, and enough waits for them."""


class WorkerPool:
    """At most so many threads, which are started as they are needed; `ahead` is how much may wait for one."""

    def __init__(self, name: str, threads: int, ahead: int = 1000) -> None:
        self._name = name
        self._most = threads
        self._work: queue.Queue[tuple[Future[Any], Callable[[], Any]] | None] = queue.Queue(ahead)
        self._lock = threading.Lock()
        self._threads = self._free = 0

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have a thread do this; `Overloaded` if too much waits already."""
        future: Future[T] = Future()
        try:
            self._work.put_nowait((future, work))
        except queue.Full:
            raise Overloaded("the console is busy: try again in a moment") from None
        with self._lock:
            if self._free < self._work.qsize() and self._threads < self._most:
                self._threads += 1
                name = f"tidings-console-{self._name}-{self._threads}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
        return future

    async def run(self, work: Callable[[], T], timeout: float | None = None) -> T:
        """The same, from the event loop. `TimeoutError` after so many seconds, and what comes later is dropped."""
        return await asyncio.wait_for(asyncio.wrap_future(self.submit(work)), timeout)

    def close(self) -> None:
        """Let the threads end that have nothing to do."""
        for _ in range(self._threads):
            try:
                self._work.put_nowait(None)
            except queue.Full:
                return

    def _run(self) -> None:
        while True:
            with self._lock:
                self._free += 1
            task = self._work.get()
            with self._lock:
                self._free -= 1
            if task is None:
                return
            future, work = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except ENDING:
                raise
            except BaseException as error:  # noqa: BLE001 - told to whoever waits
                future.set_exception(error)
