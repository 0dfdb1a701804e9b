"""How a command that runs until it is told to end is told so, and may finish what it has begun."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self


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


class SignalCount:
    """Counts the signals that ask for the end while its block runs; none of them interrupts anything."""

    def __init__(self) -> None:
        self.first = 0
        self.count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hurried(self) -> bool:
        """Whether the end was asked for more than once."""
        return self.count > 1

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.first, self.count = self.first or number, self.count + 1


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
