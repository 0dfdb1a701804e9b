"""How much is asked of a ZooKeeper, by its own count."""

from __future__ import annotations

import re
import socket

from tidings.coordination.zookeeper import Coordination


def received(tree: Coordination) -> int:
    """How many packets the server has received since it was started, from everybody."""
    host, port = tree.hosts.split(",")[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as asking:
        asking.sendall(b"srvr")
        told = b"".join(iter(lambda: asking.recv(4096), b"")).decode()
    found = re.search(r"Received: (\d+)", told)
    assert found, told
    return int(found[1])
