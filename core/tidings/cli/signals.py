"""How a command that runs until it is told to end is told so, and may finish what it has begun."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Ending:
    """Whether a signal has asked for the end, and which."""

    def __init__(self) -> None:
        self.signal = 0
        self._asked = threading.Event()

    def ask(self, number: int) -> None:
        """Ask for the end, by the number of a signal."""
        self.signal = number
        self._asked.set()

    def wait(self, seconds: float) -> None:
        """Wait for so long, or until the end is asked for."""
        self._asked.wait(seconds)


@contextlib.contextmanager
def signals() -> Iterator[Ending]:
    """Note the first Ctrl-C or SIGTERM, so that batches can end; a second one does what it always does."""
    ending = Ending()
    before: dict[int, Any] = {}

    def note_signal(number: int, frame: FrameType | None) -> None:
        restore()
        ending.ask(number)

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    if threading.current_thread() is not threading.main_thread():
        yield ending
        return
    before[signal.SIGTERM] = signal.signal(signal.SIGTERM, note_signal)
    # Not what was there: that is Spark's, and cancels the jobs of the batches that are to end.
    signal.signal(signal.SIGINT, note_signal)
    before[signal.SIGINT] = signal.default_int_handler
    try:
        yield ending
    finally:
        restore()
