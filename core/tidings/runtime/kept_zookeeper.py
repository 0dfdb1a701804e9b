"""The ZooKeeper of a project: one that somebody named, or one of its own, which is kept running."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from tidings.errors import EmbeddedFailed
from tidings.runtime.log_lines import Tell, own_line
from tidings.runtime.processes import Restarts
from tidings.runtime.zookeeper_probes import PortTaken, usable_port
from tidings.runtime.zookeeper_server import EmbeddedZooKeeper

DEFAULT_PORT = 2181
NAME = "zookeeper"
_HOST = "127.0.0.1"


class ZooKeeperChoice:
    """Which ZooKeeper a project has: the one that is `named`, else the one of its file, else its own.

    Its own has the address that it had the last time, if that is free; people have been told to name that one, so to
    name it is to name none. `note` is the file that says it.
    """

    def __init__(self, note: Path, named: str | None, of_file: str | None) -> None:
        self._note = note
        self._noted = note.read_text() if note.exists() else ""
        self.named = None if named == self._noted else named
        self.address = self.named or of_file
        """None: its own."""

    def ports(self, wanted: int | None) -> Iterator[int]:
        """The ports to try for its own, one after the other; 0 is any that is free."""
        if wanted is not None:
            yield wanted
            return
        with contextlib.suppress(ValueError):
            yield int(self._noted.partition("/")[0].rpartition(":")[2])
        yield from (DEFAULT_PORT, 0)

    def note(self, address: str) -> None:
        """Its own has this address now."""
        self.named = self.address = address
        self._note.write_text(address)


class KeptZooKeeper:
    """A ZooKeeper in a folder, on the first of these ports that is free, which is started again if it ends."""

    def __init__(self, folder: Path, ports: Iterator[int], tell: Tell) -> None:
        self._server = EmbeddedZooKeeper(folder, port=_free(ports))
        self._tell = tell
        self._restarts = Restarts()
        self._began, self._due = 0.0, 0.0

    @property
    def address(self) -> str:
        """The cluster's address."""
        return f"{self._server.address}/tidings"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._server.pid

    def __enter__(self) -> Self:
        self._server.start()
        self._began = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()

    def keep(self) -> None:
        """See to it that it runs."""
        if time.monotonic() < self._due:
            return
        try:
            if self._due:
                self._server.start()
                self._began, self._due = time.monotonic(), 0.0
                self._tell(own_line(NAME, "INFO", f"runs again as process {self.pid}"))
            self._server.wait(0)
        except EmbeddedFailed as error:
            pause_s = self._restarts.pause_s(time.monotonic() - self._began)
            self._due = time.monotonic() + pause_s
            self._tell(
                own_line(NAME, "ERROR", f"{error}; it is started again in {pause_s:g} s ({self._restarts.said})")
            )


def _free(ports: Iterator[int]) -> int:
    tried = []
    for port in ports:
        with contextlib.suppress(PortTaken):
            return usable_port(_HOST, port)
        tried.append(str(port))
    raise EmbeddedFailed(f"port {', '.join(tried)} is in use by another program: stop that one, or choose another port")
