"""The lock of a pipeline: one process at a time runs it, the one that holds `/pipelines/<name>` in ZooKeeper."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import socket
from collections.abc import Mapping
from typing import Any

from kazoo.protocol.states import KazooState

from tidings.coordination.lease import Lease
from tidings.coordination.zookeeper import Coordination
from tidings.errors import PipelineHeld, TidingsError

PIPELINES = "pipelines"


def lock_holder(coordination: Coordination, pipeline: str) -> str | None:
    """Who runs a pipeline, as a sentence has it; None if nobody does."""
    holder = coordination.read(PIPELINES, pipeline)
    return None if holder is None else f"process {holder.get('pid')} on {holder.get('host')}"


class PipelineLock:
    """The right to run a pipeline, for as long as this session lives. Taken when made, or `PipelineHeld`.

    Once the session is lost the lock is, for good: another process may have it by then.
    """

    def __init__(self, coordination: Coordination, pipeline: str) -> None:
        self._coordination = coordination
        self._place = (PIPELINES, pipeline)
        self._lost = False
        self._mine: dict[str, Any] = {}
        self._told: dict[str, Any] = {}
        self._lease = Lease(coordination)
        coordination.client.add_listener(self._on_state)
        try:
            self._take()
        except BaseException:
            self._forget()
            raise

    def valid(self) -> bool:
        """Whether no other process can have the lock yet."""
        return not self._lost and self._lease.valid()

    def release(self) -> None:
        """Let others have it."""
        self._forget()
        if not self._lost and self._coordination.client.connected:  # else it goes, or went, with the session
            with contextlib.suppress(TidingsError):
                self._coordination.release(*self._place)
        self._lost = True

    def tell(self, about: Mapping[str, Any]) -> None:
        """Say how the run goes on, where operators see who has the lock; if that cannot be, it is left unsaid."""
        told = {**self._mine, **about}
        with contextlib.suppress(TidingsError):
            if self.valid() and self._coordination.replace(told, self._told, *self._place):
                self._told = told

    def _take(self) -> None:
        self._mine = self._told = mine = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            "session_timeout": self._coordination.session_timeout,
        }
        patience = 0.0
        while not self._coordination.claim(mine, *self._place, patience=patience):
            holder = self._coordination.read(*self._place)
            # A driver that was killed here, and is started again, need not be told to try later.
            try:
                if holder is not None and (patience or not _dead(holder)):
                    who = f"process {holder['pid']} on {holder['host']} has it since {holder['since']}"
                    raise PipelineHeld(f"pipeline {self._place[-1]!r} runs already: {who}; stop that one first")
                patience = 2 * float(holder["session_timeout"]) if holder is not None else 0.0
            except (KeyError, TypeError, ValueError, OverflowError):
                raise PipelineHeld(
                    f"pipeline {self._place[-1]!r} is held by what ZooKeeper has at "
                    f"{self._coordination.path(*self._place)}, and that makes no sense: delete it if no driver runs"
                ) from None

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
