"""A claim: only one process at a time runs a pipeline, the one that holds `/pipelines/<name>` in ZooKeeper."""

from __future__ import annotations

import datetime as dt
import logging
import os
import socket
import time
from typing import Any

from kazoo.protocol.states import KazooState

from tidings.coordination import Coordination
from tidings.errors import PipelineHeld, TidingsError
from tidings.leases import Lease

logger = logging.getLogger(__name__)


class Claim:
    """The right to run a pipeline, for as long as this session lives. Taken when made, or `PipelineHeld`.

    Once the session is lost the claim is, for good: another process may have it by then.
    """

    def __init__(self, coordination: Coordination, pipeline: str) -> None:
        self._coordination = coordination
        self._place = ("pipelines", pipeline)
        self._lost = False
        self._lease = Lease(coordination)
        coordination.client.add_listener(self._on_state)
        try:
            self._take()
        except BaseException:
            self._forget()
            raise

    def valid(self) -> bool:
        """Whether no other process can have the claim yet."""
        return not self._lost and self._lease.valid()

    def release(self) -> None:
        """Let others have it."""
        held, self._lost = not self._lost, True
        self._forget()
        try:
            with self._coordination.speaking():
                path, client = self._coordination.path(*self._place), self._coordination.client
                there = client.exists(path) if held else None
                # Never another's: this session may have ended unnoticed.
                if there is not None and there.owner_session_id == self._session:
                    client.delete(path, there.version)
        except TidingsError:
            logger.debug("the claim goes with the session")

    def _take(self) -> None:
        mine = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            "session_timeout": self._coordination.session_timeout,
        }
        started = time.monotonic()
        while not self._coordination.create(mine, *self._place, ephemeral=True):
            holder = self._coordination.read(*self._place)
            if holder is None:
                continue  # it has gone this moment
            # A driver that was killed here, and is started again, need not be told to try later.
            if not _dead(holder) or time.monotonic() - started > 2 * float(holder["session_timeout"]):
                raise PipelineHeld(
                    f"pipeline {self._place[-1]!r} runs already: process {holder['pid']} on {holder['host']} has it "
                    f"since {holder['since']}; stop that one first"
                )
            time.sleep(0.1)
        self._session = self._coordination.client.client_id[0]

    def _on_state(self, state: str) -> None:
        if state == KazooState.LOST:
            self._lost = True
            self._lease.void()

    def _forget(self) -> None:
        self._coordination.client.remove_listener(self._on_state)
        self._lease.close()


def _dead(holder: dict[str, Any]) -> bool:
    """Whether the holder was a process of this machine that is no more."""
    if holder["host"] != socket.gethostname():
        return False
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
