"""What operators are told of a flow and its subscriber: since when that one has it, why it failed, and what was before.

It is written into ZooKeeper beside the name of the subscriber, with what is written there anyway.
"""

from __future__ import annotations

import datetime as dt
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidings.flows import HISTORY_ENTRIES
from tidings.positions import Position
from tidings.wire.protocol import pair

REASON_CHARACTERS = 200  # in the history of a flow


class HolderNotes:
    """The notes of one flow in one epoch; `history` is what its subscribers have met with before."""

    def __init__(self, epoch: int, history: Sequence[Mapping[str, Any]], wall_clock: Callable[[], float]) -> None:
        self.failure = ""
        """Why the flow was parked; until it is opened again, also without a subscriber."""
        self.failed_at: Position | None = None
        self.left: tuple[str, str, str] | None = None
        """Who had the flow last, until when, and why not any more; until that is told."""
        self.reported: str | None = ""
        """The problem as operators see it in ZooKeeper; None if that is not certain."""
        self._epoch = epoch
        self._history = deque(history, HISTORY_ENTRIES)
        self._wall_clock = wall_clock
        self._since = ""
        self._lost = ""  # which updates the holder was told to be lost

    def assigned(self, holder: str, before: str | None) -> dict[str, Any]:
        """A subscriber gets the flow, or gets it again: the record of it."""
        if holder != before:
            self._lost = ""
        self._since, self.reported = self._now(), ""
        self.opened()
        self._note("assigned", holder)
        return self._record(holder)

    def opened(self) -> None:
        """What was wrong before is over."""
        self.failure, self.failed_at, self.left = "", None, None

    def failed(self, holder: str | None, reason: str, at: Position | None) -> None:
        """The flow is parked; it may be tried again before that is reported."""
        self.failure, self.failed_at = reason, at
        self._note("failed", holder, reason)

    def put_aside(self, holder: str | None, reason: str) -> None:
        """The flow goes on without an update at which the subscriber failed."""
        self._note("put aside", holder, reason)

    def lost(self, holder: str | None, what: str) -> None:
        """The subscriber is told that updates are lost."""
        self._lost = what
        self._note("lost", holder, what)

    def leaves(self, holder: str | None, reason: str) -> None:
        """The subscriber does not have the flow any more."""
        if holder is not None:
            self.left = (holder, self._now(), reason)

    def report(self, holder: str | None, problem: str) -> dict[str, Any]:
        """The record by which operators see a problem, or that there is none."""
        self.reported = problem
        if problem and not self.failure:
            self._note("trouble", holder, problem)
        return self._record(holder)

    def report_left(self) -> dict[str, Any]:
        """The record by which operators see that nobody has got the flow since one left it."""
        assert self.left is not None
        (holder, time, reason), self.left = self.left, None
        self._history.append({"time": time, **self._entry("left", holder, reason)})
        return {**self._record(holder), "left": time}

    def _record(self, holder: str | None) -> dict[str, Any]:
        record: dict[str, Any] = {"id": holder, "epoch": self._epoch, "since": self._since}
        if self.reported:
            record["parked" if self.failure else "trouble"] = self.reported
        if self.failed_at is not None:
            record["at"] = pair(self.failed_at)
        if self._lost:
            record["lost"] = self._lost
        return {**record, "history": list(self._history)}

    def _note(self, kind: str, holder: str | None, reason: str = "") -> None:
        entry = self._entry(kind, holder, reason)
        last = self._history[-1] if self._history else {}
        if any(last.get(key) != value for key, value in entry.items()):
            self._history.append({"time": self._now(), **entry})

    def _entry(self, kind: str, holder: str | None, reason: str) -> dict[str, Any]:
        return {"kind": kind, "epoch": self._epoch, "subscriber": holder, "reason": reason[:REASON_CHARACTERS]}

    def _now(self) -> str:
        return dt.datetime.fromtimestamp(self._wall_clock(), dt.UTC).isoformat(timespec="milliseconds")
