"""A ZooKeeper that speaks TLS, and wants a certificate of its clients."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.certificates import Certificate
from tidings.runtime.zookeeper_files import JVM_OPTIONS, LOG4J, class_path
from tidings.runtime.zookeeper_probes import usable_port
from tidings.testing import eventually

CONFIGURATION = """\
tickTime=500
dataDir=./data
secureClientPort={port}
secureClientPortAddress=127.0.0.1
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.keyStore.location=./own.pem
ssl.keyStore.type=PEM
ssl.trustStore.location=./clients.pem
ssl.trustStore.type=PEM
ssl.clientAuth=need
admin.enableServer=false
"""


@contextlib.contextmanager
def secure_zookeeper(folder: Path, own: Certificate, clients: Certificate) -> Iterator[int]:
    """The port, on which it answers those who have the clients' certificate."""
    port = usable_port("127.0.0.1", 0)
    (folder / "data").mkdir(parents=True)
    (folder / "zoo.cfg").write_text(CONFIGURATION.format(port=port))
    (folder / "log4j2.properties").write_text(LOG4J)
    (folder / "own.pem").write_text(own[1].read_text() + own[0].read_text())
    (folder / "clients.pem").write_text(clients[0].read_text())
    jars = class_path()
    more = Path(jars.split(os.pathsep)[0]).parent.glob("netty-*.jar")
    path = os.pathsep.join([jars, *map(str, more)])
    main = "org.apache.zookeeper.server.ZooKeeperServerMain"
    command = [shutil.which("java") or "java", *JVM_OPTIONS, "-cp", path, main, "zoo.cfg"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: _listens(port), timeout=30)
        yield port
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
