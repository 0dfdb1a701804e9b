"""Spark drivers in processes of their own, for tests that kill them while there is work for them to do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tidings.cli import main
from tidings.cluster import Cluster, connect
from tidings.streams import Stream
from tidings.testing import eventually

PROGRAM = [sys.executable, "-c", "import sys; from tidings.cli import main; sys.exit(main())"]
PATIENCE = 150.0
# A driver lives for seconds here: Java spends a third of them on code that would pay off in minutes, unless told so.
HASTY = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}

Driver = subprocess.Popen[bytes]


@contextlib.contextmanager
def applied(spec: str, zookeeper: str, folder: Path) -> Iterator[Cluster]:
    """The cluster of the project whose `tidings.yml` has this text and is in this folder, with all that it names."""
    address = f"{zookeeper}/{uuid.uuid4()}"
    file = folder / "tidings.yml"
    file.write_text(spec)
    assert main(["apply", str(file), "--zookeeper", address]) == 0
    with connect(address) as cluster:
        yield cluster


class Drivers:
    """The drivers of a folder's `tidings.yml`, killed at the end if they still run; all that they print is in `log`."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "driver.log"
        self._command = [*PROGRAM, "run", "--zookeeper", cluster.address, "--session-timeout", "4"]
        self._started: list[Driver] = []

    def start(self, *options: str) -> Driver:
        with open(self.log, "ab") as log:
            driver = subprocess.Popen(
                [*self._command, *options],
                cwd=self.folder,
                env={**os.environ, **HASTY},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(driver)
        return driver

    def finish(self) -> None:
        """Process all that is there."""
        assert self.start("--once").wait(PATIENCE) == 0, self.log.read_text()

    def close(self) -> None:
        for driver in self._started:
            if driver.poll() is None:
                kill(driver)


def kill(driver: Driver) -> None:
    """Kill -9, at once with the Java process that it has started."""
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


class Load:
    """Something that is done over and over in a thread, every so many seconds, until it is stopped."""

    def __init__(self, work: Callable[[], None], every: float = 0.0) -> None:
        self._work = work
        self._every = every
        self._stopping = threading.Event()
        pool = ThreadPoolExecutor(1, "load")
        self._done = pool.submit(self._repeat)
        pool.shutdown(wait=False)

    def stop(self) -> None:
        """Stop it after what it is doing; raises what went wrong with it."""
        self._stopping.set()
        self._done.result()

    def _repeat(self) -> None:
        while not self._stopping.wait(self._every):
            self._work()


def written(stream: Stream) -> int:
    """How many updates were ever written to the stream."""
    return sum(bounds.head.seq + 1 for bounds in stream.log.bounds().values())


def grows(stream: Stream, by: int) -> None:
    """Wait until so many more updates are in the stream."""
    target = written(stream) + by
    eventually(lambda: written(stream) >= target, timeout=PATIENCE, every=0.05)
