"""Turns: how an append that takes long gets its commit in, beside writers that are always quicker.

A writer that has lost for a while asks for a turn: it puts a file beside the segments. Whoever is about to append waits
for the turns that were asked for before. This is courtesy, not a lock: a commit still belongs to whoever makes it
first, and nobody waits for a writer that shows no sign of life.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

ASKED_AFTER_S = 0.5  # of losing
RENEWED_EVERY_S = 0.25
PATIENCE_S = 2.0  # with a turn that is not renewed
LOOKED_EVERY_S = 0.005


class Turns:
    """The turns that writers of one log have asked for. May be used from any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._signs: dict[str, tuple[int, float]] = {}  # of each turn when it was last renewed, and when that was seen

    def place(self) -> WriterPlace:
        """A place among the writers, for one append."""
        return WriterPlace(self)

    def is_free(self, turn: str | None) -> bool:
        """Whether no writer that lives has asked for a turn before this one was asked for; or at all, if it is None."""
        now = time.monotonic()
        known = self._signs
        self._signs = {
            name: known[name] if name in known and known[name][0] == renewed else (renewed, now)
            for name, renewed in self._asked()
        }
        return all(now - seen > PATIENCE_S for name, (_, seen) in self._signs.items() if turn is None or name < turn)

    def _asked(self) -> Iterator[tuple[str, int]]:
        """The turns, and when each was last renewed."""
        with contextlib.suppress(FileNotFoundError):  # nobody has ever asked
            for entry in os.scandir(self.folder):
                with contextlib.suppress(FileNotFoundError):  # it ended just now
                    yield entry.name, entry.stat().st_mtime_ns


class WriterPlace:
    """Where one append stands among the writers."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._began = time.monotonic()
        self._turn: Path | None = None
        self._ended = threading.Event()
        self._renewing: threading.Thread | None = None

    def __enter__(self) -> WriterPlace:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._ended.set()
        if self._renewing and self._turn:
            self._renewing.join()
            self._turn.unlink(missing_ok=True)

    def wait(self) -> None:
        """Wait for those whose turn comes before. After a while, ask for a turn."""
        while True:
            if self._turn is None and time.monotonic() - self._began > ASKED_AFTER_S:
                self._turn = self._ask()
            if self._turns.is_free(self._turn.name if self._turn else None):
                return
            time.sleep(LOOKED_EVERY_S)

    def _ask(self) -> Path:
        self._turns.folder.mkdir(exist_ok=True)
        turn = self._turns.folder / f"{time.time_ns():020}-{uuid.uuid4().hex}"
        turn.touch()
        self._renewing = threading.Thread(target=self._renew, args=(turn,), name="tidings-turn", daemon=True)
        self._renewing.start()
        return turn

    def _renew(self, turn: Path) -> None:
        while not self._ended.wait(RENEWED_EVERY_S):
            with contextlib.suppress(OSError):
                os.utime(turn)
