"""The pumps of a publisher: which logs it reads, and which it cannot read.

A log that cannot be read is left to others, who may be at a replica of it, and tried again every now and then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Set

from tidings.errors import TidingsError
from tidings.outages import Outage
from tidings.publisher.flow_session import FlowSession
from tidings.publisher.pump import RETRY_S, Pump, log_outage
from tidings.stream_definition import StreamDefinition

CLOSE_PATIENCE_S = 5.0
MAX_REASON, MAX_REASONS = 500, 64 * 2**10  # characters, of what others are told of one stream, and of all

logger = logging.getLogger(__name__)


class PumpSet:
    """Makes and closes pumps. `release` is called with each flow of a log that is not read any more; it cannot fail.

    A log is given up when it could not be read for `patience` seconds.
    """

    def __init__(
        self, make: Callable[[StreamDefinition], Pump], release: Callable[[FlowSession], None], patience: float
    ) -> None:
        self.running: dict[str, Pump] = {}
        """The pumps, by stream."""
        self._make = make
        self._release = release
        self._patience = patience
        self._unreadable: dict[str, str] = {}
        self._outages: dict[str, Outage] = {}  # of the streams that were given up, until they are read again
        self._retry = 0.0

    @property
    def unreadable(self) -> dict[str, str]:
        """The streams whose logs cannot be read, and why."""
        room = min(MAX_REASON, MAX_REASONS // max(1, len(self._unreadable)))
        return {name: reason[:room] for name, reason in sorted(self._unreadable.items())}

    @property
    def broken(self) -> bool:
        """Whether there is a log to be given up."""
        return any(pump.broken(self._patience) is not None for pump in self.running.values())

    def open(self, wanted: Set[str], defined: Mapping[str, StreamDefinition]) -> None:
        """Have a pump for each stream that is wanted, and none for one that was dropped or made anew."""
        for name, pump in list(self.running.items()):
            now = defined.get(name)
            if now != pump.stream or now.id != pump.stream.id:
                self._close(name)
        for name, pump in list(self.running.items()):
            if (reason := pump.broken(self._patience)) is not None:
                self.give_up(name, reason)
        self._unreadable = {name: reason for name, reason in self._unreadable.items() if name in defined}
        self._outages = {name: outage for name, outage in self._outages.items() if name in self._unreadable}
        if self._unreadable and time.monotonic() >= self._retry:
            # Others may read them meanwhile, if they are at a replica.
            self._retry = time.monotonic() + RETRY_S
            wanted = wanted | self._unreadable.keys()
        for name in wanted - self.running.keys():
            try:
                pump = self._make(defined[name])
            except TidingsError as error:
                self._note_unreadable(name, str(error))
            else:
                if (reason := self._unreadable.pop(name, None)) is not None:
                    pump.suspect(reason)
                    pump.outage = self._outages[name]
                self.running[name] = pump

    def give_up(self, stream: str, reason: str) -> None:
        """Leave a stream whose log cannot be read to others."""
        self._outages[stream] = self.running[stream].outage
        self._close(stream)
        self._note_unreadable(stream, reason)

    def close(self) -> None:
        """Stop them all."""
        for pump in self.running.values():
            _close_soon(pump)

    def _close(self, stream: str) -> None:
        pump = self.running.pop(stream)
        for session in pump.sessions():
            self._release(session)
        _close_soon(pump)

    def _note_unreadable(self, stream: str, reason: str) -> None:
        self._outages.setdefault(stream, log_outage(stream)).begin(reason)
        self._unreadable[stream] = reason


def _close_soon(pump: Pump) -> None:
    """Stop a pump, whose flows are not sent any more. One that waits for a datastore which has fallen silent is left
    behind: what there is to do about all other streams does not wait with it."""
    closing = threading.Thread(target=_close, args=(pump,), name="tidings-close", daemon=True)
    closing.start()
    closing.join(CLOSE_PATIENCE_S)
    if closing.is_alive():
        logger.warning("the log of stream %r in %s does not answer, and is left", pump.stream.name, pump.stream.log)


def _close(pump: Pump) -> None:
    try:
        pump.close()
    except Exception as error:  # noqa: BLE001 - a log may be anybody's, and this one is of no concern any more
        logger.warning("the log of stream %r could not be closed: %r", pump.stream.name, error)
