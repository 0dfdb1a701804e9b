"""A thread for what sessions ask for and nobody waits for: what has come up meanwhile is done together."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class GatheringThread(Generic[T]):
    """Hands what is put to `work`, in its order, as a list of all that is there; `work` must not raise."""

    def __init__(self, name: str, work: Callable[[list[T]], None]) -> None:
        self._work = work
        self._todo: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, one: T) -> None:
        """Have this done."""
        self._todo.put(one)

    def close(self) -> None:
        """Do what is left, and end."""
        self._todo.put(None)
        self._thread.join()

    def _run(self) -> None:
        ended = False
        while not ended:
            todo = [self._todo.get()]
            while not self._todo.empty():
                todo.append(self._todo.get())
            ended = None in todo
            self._work([one for one in todo if one is not None])
