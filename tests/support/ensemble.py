"""An ensemble of three ZooKeeper servers, any of which can be stopped."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from types import TracebackType

from tidings.runtime.zookeeper_files import JVM_OPTIONS, LOG4J, ZOO_CFG, class_path
from tidings.runtime.zookeeper_probes import usable_port
from tidings.testing import eventually

HOST = "127.0.0.1"
SYNC_S = 20  # for which a follower goes on without a word of its leader


class Ensemble:
    """Three servers on this machine; `modes` says which of them leads."""

    def __init__(self, folder: Path) -> None:
        self.ports = [usable_port(HOST, 0) for _ in range(3)]
        others = [(usable_port(HOST, 0), usable_port(HOST, 0)) for _ in range(3)]
        servers = "".join(f"server.{n}={HOST}:{quorum}:{election}\n" for n, (quorum, election) in enumerate(others))
        self.processes = []
        for number, port in enumerate(self.ports):
            place = folder / str(number)
            (place / "data").mkdir(parents=True)
            (place / "data" / "myid").write_text(str(number))
            (place / "log4j2.properties").write_text(LOG4J)
            limits = f"initLimit=40\nsyncLimit={SYNC_S * 2}\n"
            (place / "zoo.cfg").write_text(ZOO_CFG.format(host=HOST, port=port) + limits + servers)
            java = shutil.which("java") or "java"
            main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
            command = [java, *JVM_OPTIONS, "-cp", class_path(), main, "zoo.cfg"]
            quiet = subprocess.DEVNULL
            self.processes.append(subprocess.Popen(command, cwd=place, stdout=quiet, stderr=quiet))

    def __enter__(self) -> Ensemble:
        try:
            eventually(lambda: sorted(self.modes()) == ["follower", "follower", "leader"], timeout=60)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def modes(self) -> list[str]:
        """What each server says that it is; nothing of one that does not answer."""
        return [self._mode(port) for port in self.ports]

    def stop(self, number: int) -> None:
        """Stop a server for a while: connections stay, and nothing is answered."""
        os.kill(self.processes[number].pid, signal.SIGSTOP)

    def _mode(self, port: int) -> str:
        try:
            with socket.create_connection((HOST, port), timeout=2) as asking:
                asking.sendall(b"srvr")
                answer = b"".join(iter(lambda: asking.recv(4096), b"")).decode()
        except OSError:
            return ""
        return next((line.partition(": ")[2] for line in answer.splitlines() if line.startswith("Mode")), "")
