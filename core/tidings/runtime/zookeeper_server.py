"""ZooKeeper as a child process, from PySpark's own jars: for development, tests, demos and single machines.

Nothing is downloaded, and the server answers within a second. A small supervising process (`supervisor_main`) runs it,
so that it ends with the program that started it, however that one ends.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import signal
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tidings.errors import EmbeddedFailed, InvalidOption
from tidings.runtime import java, supervisor_main
from tidings.runtime.supervisor import Supervisor
from tidings.runtime.zookeeper_files import JVM_OPTIONS, LOG4J, LOG_FILE, ZOO_CFG, class_path
from tidings.runtime.zookeeper_probes import PortTaken, data_folder, plain, usable_port

if TYPE_CHECKING:
    from tidings.cluster import Cluster

_logger = logging.getLogger(__name__)


def embedded(folder: str | os.PathLike[str]) -> Cluster:
    """A cluster of one's own in a folder: an embedded ZooKeeper, and the logs of streams that name no place for theirs.

    The ZooKeeper ends when the cluster is closed, or with this process. The folder can be used again.
    """
    from tidings.cluster import Cluster
    from tidings.coordination.zookeeper import Coordination

    home = Path(folder).absolute()
    server = EmbeddedZooKeeper(home / "zookeeper")
    server.start()
    try:
        return Cluster(Coordination(server.address), logs=f"delta:{home / 'streams'}", on_close=server.stop)
    except BaseException:
        server.stop()
        raise


class EmbeddedZooKeeper:
    """A ZooKeeper server of one's own, which keeps its data in `folder` and ends with this process.

    `port` 0 takes a free one, and the same one again after `stop` and `start` if it is still free. Only this machine
    can connect, unless `host` says otherwise. The data outlives the server: another one on the same folder finds it
    again. One folder has one server at a time.

    It also ends when this process is killed, or crashes, and does not end by the Ctrl-C that is meant for this process.
    In a process forked from this one, `stop` does nothing: the server belongs to the process that started it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, EmbeddedZooKeeper(folder) as server:
    ...     server.address.startswith("127.0.0.1:")
    True
    """

    def __init__(self, folder: str | os.PathLike[str], port: int = 0, host: str = "127.0.0.1") -> None:
        if not 0 <= port <= 65535:
            raise InvalidOption(f"a port is a number from 0 to 65535, not {port}")
        if not re.fullmatch(r"[A-Za-z0-9_.:-]+", host):
            raise InvalidOption(f"{host!r} is no host name and no address to listen on")
        self._folder = Path(os.path.realpath(folder))
        self._host = host
        self._wanted_port = port
        self._port = port
        self._process: Supervisor | None = None
        self._pid = 0
        self._owner = 0
        self._lock = threading.RLock()

    @property
    def folder(self) -> Path:
        """Where the data, the configuration and the log are."""
        return self._folder

    @property
    def address(self) -> str:
        """What a client on this machine connects to, such as `127.0.0.1:41231`."""
        self._require_started()
        return self._address

    @property
    def pid(self) -> int:
        """The process id of the server itself."""
        self._require_started()
        return self._pid

    def start(self, timeout: float = 30.0) -> None:
        """Start the server, and return when it answers; nothing happens if it runs already.

        Raises `EmbeddedFailed` if it cannot start or does not answer in `timeout` seconds, and then leaves no process
        behind; `JavaMissing` if there is no Java to run it on.
        """
        with self._lock:
            if self._running():
                return
            self.stop()  # what is left of one that ended by a fault
            self._process = None
            command = [str(java.find().path), "-cp", class_path(), *JVM_OPTIONS]
            command += ["org.apache.zookeeper.server.ZooKeeperServerMain", "./zoo.cfg"]
            deadline = time.monotonic() + timeout
            for attempts_left in (2, 1, 0):
                try:
                    self._port = usable_port(self._host, self._port)
                    self._start(command, deadline)
                except PortTaken:
                    if self._wanted_port or not attempts_left:
                        holder = self._holder()
                        if holder is not None:
                            raise EmbeddedFailed(_in_use(self._folder, holder.get("address"))) from None
                        raise EmbeddedFailed(
                            f"port {self._port} on {self._host} is in use by another program: stop that one, or choose "
                            "another port (0 takes a free one)"
                        ) from None
                    self._port = 0
                else:
                    break
            _logger.info("ZooKeeper runs at %s in %s (pid %d)", self._address, self._folder, self._pid)

    def stop(self) -> None:
        """Stop the server, and return when its processes are gone; nothing happens if it does not run."""
        if self._owner != os.getpid():
            return  # before taking the lock, which another thread may have held while this process was forked off
        with self._lock:
            process = self._process
            if process is None:
                return
            process.signal(signal.SIGTERM)
            if process.wait(supervisor_main.TERMINATION_GRACE_S + 5) is None:
                process.signal(signal.SIGKILL)
                process.wait()
            if process.code() != 0:
                self._end_orphan()
            self._process = None
            atexit.unregister(self.stop)
            _logger.info("ZooKeeper at %s has stopped", self._address)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the server ends by itself, which is a fault: `EmbeddedFailed`.

        Returns when the timeout has passed, or when another thread has stopped the server.
        """
        process = self._process
        self._require_started()
        code = process.wait(timeout) if process else None
        with self._lock:
            if code is not None and self._process is process:
                raise EmbeddedFailed(f"the embedded ZooKeeper in {self._folder} has ended with exit code {code}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _connectable(self) -> str:
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)

    @property
    def _address(self) -> str:
        host = self._connectable
        return f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}"

    def _running(self) -> bool:
        return self._process is not None and self._owner == os.getpid() and self._process.code() is None

    def _require_started(self) -> None:
        if self._process is None:
            raise EmbeddedFailed(f"the embedded ZooKeeper in {self._folder} does not run: start it first")

    def _start(self, command: list[str], deadline: float) -> None:
        log_before = _size(self._folder / LOG_FILE)
        spec = {
            "parent": os.getpid(),
            "folder": str(self._folder),
            "address": self._address,
            "files": {"zoo.cfg": ZOO_CFG.format(port=self._port, host=self._host), "log4j2.properties": LOG4J},
            "command": command,
        }
        self._owner = os.getpid()
        self._pid = 0
        atexit.register(self.stop)
        try:
            process = self._spawn(spec)
            report = process.report(deadline)
            if "in_use" in report:
                raise EmbeddedFailed(_in_use(self._folder, report["in_use"]))
            if "folder" in report:
                raise EmbeddedFailed(
                    f"the embedded ZooKeeper cannot use the folder {self._folder}: {report['folder']}; choose one that "
                    "can be written to"
                )
            if "pid" not in report:
                raise EmbeddedFailed(f"the embedded ZooKeeper could not be run: {report.get('other')}")
            self._pid = report["pid"]
            self._await_answer(process, deadline, log_before)
        except BaseException:
            self.stop()
            raise

    def _spawn(self, spec: dict[str, Any]) -> Supervisor:
        """Run the supervisor, and know it even if this is interrupted.

        A KeyboardInterrupt, or what else a signal handler raises, comes in the main thread. In the midst of making a
        Popen it would lose a process that runs already; so another thread makes it.
        """

        def run() -> None:
            with gate:
                if not interrupted:
                    try:
                        self._process = Supervisor(spec)
                    except OSError as error:
                        failures.append(error)

        gate = threading.Lock()
        failures: list[OSError] = []
        interrupted = False
        thread = threading.Thread(target=run, name="tidings-embedded-spawn")
        try:
            thread.start()
            thread.join()
        except BaseException:
            with gate:  # the thread has made the process, or will not make it
                interrupted = True
            raise
        if self._process is None:
            raise EmbeddedFailed(f"the embedded ZooKeeper could not be run: {failures[0]}")
        return self._process

    def _await_answer(self, process: Supervisor, deadline: float, log_before: int) -> None:
        ours = plain(os.fsencode(self._folder / "data" / "version-2"))
        folder, patience = None, 0.05
        while True:
            try:
                folder = data_folder(self._connectable, self._port, patience)
            except TimeoutError:
                # It was asked too early, and then it never answers; or the machine is slow.
                patience = min(5.0, patience * 2)
            if folder == ours:  # and not another ZooKeeper, which took the port meanwhile
                return
            code = process.code()
            if code is None and time.monotonic() < deadline:
                time.sleep(0.02)
                continue
            said = self._last_words(log_before)
            if folder is not None or "BindException: Address already in use" in said:
                raise PortTaken
            why = f"it ended with exit code {code}" if code is not None else "it does not answer"
            raise EmbeddedFailed(
                f"the embedded ZooKeeper in {self._folder} did not start: {why}; the end of its log:\n"
                f"{said or '(nothing)'}"
            )

    def _last_words(self, log_before: int) -> str:
        lines = []
        for name, start in ((supervisor_main.OUTPUT_FILE, 0), (LOG_FILE, log_before)):
            path = self._folder / name
            try:
                with path.open("rb") as file:
                    # A log that is shorter than before was rolled over.
                    file.seek(max(start if start <= _size(path) else 0, _size(path) - 20_000))
                    text = file.read().decode(errors="replace")
            except OSError:
                continue
            lines += [line for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
        return "\n".join(lines[-15:])

    def _holder(self) -> dict[str, Any] | None:
        """Who has the lock on the folder, if anyone."""
        try:
            with (self._folder / supervisor_main.LOCK_FILE).open("r+b") as file:
                return None if supervisor_main.locked(file.fileno()) else supervisor_main.holder(file.fileno())
        except OSError:
            return None

    def _end_orphan(self) -> None:
        """End a server whose supervisor was killed. Linux does so by itself, and here we wait for it."""
        deadline = time.monotonic() + supervisor_main.TERMINATION_GRACE_S
        # That a server with our pid holds the lock shows that the pid is not some other process's by now.
        while self._pid and (self._holder() or {}).get("pid") == self._pid and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)
            time.sleep(0.02)


def _in_use(folder: Path, address: str | None) -> str:
    if address is None:
        return f"{folder} is in use by another embedded ZooKeeper, which is just starting; try again"
    return f"{folder} is in use by another embedded ZooKeeper; connect to it at {address}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
