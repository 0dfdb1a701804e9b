"""Which clients are online, for the stage: rows that gather while the last ones are written.

An `online` row is written when a client's channel is there and what the stage answers will arrive; it is tried again
until it is durable or the client is gone. An `offline` row is best effort: heartbeats that stay out say the same.
"""

from __future__ import annotations

import asyncio
import logging

from tidings.errors import TidingsError
from tidings_thialfi.gateway.operations import OperationWriter
from tidings_thialfi.gateway.sessions import Session
from tidings_thialfi.protocol import stream_schema

RETRY_PAUSE_S = 1.0  # after a write that failed

logger = logging.getLogger(__name__)


class Presence:
    """Writes presence rows; `gateway` is this gateway's name in them."""

    def __init__(self, operations: OperationWriter, gateway: str) -> None:
        self._operations = operations
        self._gateway = gateway
        self._waiting: dict[int, tuple[str, Session]] = {}
        self._task: asyncio.Task[None] | None = None

    def online(self, session: Session) -> None:
        """The client is here, and what the stage says to it arrives."""
        self._put(stream_schema.ONLINE, session)

    def offline(self, session: Session) -> None:
        """The client is gone."""
        self._put(stream_schema.OFFLINE, session)

    async def flush(self) -> None:
        """Wait until all is written, or has failed."""
        if self._task is not None:
            await self._task

    def _put(self, op: str, session: Session) -> None:
        self._waiting.pop(session.client, None)
        self._waiting[session.client] = (op, session)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting:
                some, self._waiting = self._waiting, {}
                rows = [
                    stream_schema.operation(client, op, source=session.application, gateway=self._gateway)
                    for client, (op, session) in some.items()
                ]
                try:
                    await self._operations.write(rows)
                except TidingsError as error:
                    logger.warning("%d clients could not be marked online or offline: %s", len(rows), error)
                    again = {
                        client: one for client, one in some.items() if one[0] == stream_schema.ONLINE and one[1].routed
                    }
                    self._waiting = {**again, **self._waiting}
                    await asyncio.sleep(RETRY_PAUSE_S)
        finally:
            self._task = None
