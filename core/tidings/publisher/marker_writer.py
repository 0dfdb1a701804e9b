"""What a publisher writes into ZooKeeper about its flows: datamarkers, and what operators should know.

A thread of its own does it, since those who hear subscribers must not wait for ZooKeeper. What has gathered meanwhile
is written together: thousands of flows then cost a round trip or two.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import NamedTuple

from tidings.datamarkers import Datamarker
from tidings.errors import TidingsError
from tidings.positions import Position
from tidings.publisher.flow_session import Sending, State
from tidings.publisher.ownership import Ownership

UNCERTAIN = "?"  # what operators see when it is not known whether the last word has reached ZooKeeper

logger = logging.getLogger(__name__)


class _Marker(NamedTuple):
    sending: Sending
    turn: int
    position: Position


class Records:
    """Writes for one publisher. `on_written` is called with a flow and the turn in which its datamarker was
    acknowledged, `on_replaced` with a flow that another publisher has taken.
    """

    def __init__(
        self,
        ownership: Ownership,
        on_written: Callable[[Sending, int, Position], None],
        on_replaced: Callable[[Sending], None],
    ) -> None:
        self._ownership = ownership
        self._on_written = on_written
        self._on_replaced = on_replaced
        self._todo: queue.SimpleQueue[_Marker | Sending | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tidings-records", daemon=True)
        self._thread.start()

    def acknowledge(self, sending: Sending, position: Position) -> None:
        """Write a datamarker; nothing waits for it."""
        self._todo.put(_Marker(sending, sending.turn, position))

    def tell(self, sending: Sending) -> None:
        """Let operators see what the trouble with a flow is, or that it is over."""
        sending.told = sending.trouble
        self._todo.put(sending)

    def close(self) -> None:
        """Write what is left, and end."""
        self._todo.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            todo = [self._todo.get()]
            while not self._todo.empty():
                todo.append(self._todo.get())
            begun = [(one, self._begin(one)) for one in todo if one is not None]
            for one, finish in begun:
                self._finish(one, finish)
            if None in todo:
                return

    def _begin(self, one: _Marker | Sending) -> Callable[[], bool]:
        if isinstance(one, _Marker):
            flow, epoch, marker = one.sending.flow, one.sending.epoch, one.position
            if marker <= one.sending.marker:
                return lambda: True  # that is written already
            return self._ownership.begin_write(flow, epoch, "datamarker", Datamarker.now(marker, epoch).to_json())
        record = {"id": one.subscriber, "epoch": one.epoch}
        if one.told:
            record["parked" if one.state is State.PARKED else "trouble"] = one.told
        if one.lost:
            record["lost"] = one.lost
        return self._ownership.begin_write(one.flow, one.epoch, "subscriber", record)

    def _finish(self, one: _Marker | Sending, finish: Callable[[], bool]) -> None:
        sending = one.sending if isinstance(one, _Marker) else one
        try:
            owned = finish()
        except TidingsError as error:
            logger.info("flow %s: %s", sending.flow, error)  # there will be another token, and another word
            sending.told = UNCERTAIN
            return
        if not owned:
            self._on_replaced(sending)
        elif isinstance(one, _Marker):
            self._on_written(*one)
