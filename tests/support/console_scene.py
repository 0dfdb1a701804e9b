"""A cluster with something to look at, and a console of it: `python -m tests.support.console_scene [--flows N]`.

ZooKeeper, streams, applications, two publishers, subscribers and a producer run in this process, the console in one of
its own. Users are `admin` (operator) and `ann` (viewer); both have the password `tidings-demo`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidings import Handler, Update
from tidings.cluster import Cluster
from tidings.console.users import add_user
from tidings.coordination.values import encode
from tidings.coordination.zookeeper import Coordination
from tidings.flows import Flow
from tidings.runtime.zookeeper_server import EmbeddedZooKeeper

PASSWORD = "tidings-demo"
OPERATOR, VIEWER = "admin", "ann"
AT_ONCE = 200  # nodes that are made in one transaction
ODD = ['<img src=x onerror="alert(1)">', "contacts/‮evil", "a\"'`</script><script>alert(2)</script>"]


def make_users(file: Path) -> Path:
    """A file with an operator and a viewer."""
    add_user(file, OPERATOR, "operator", PASSWORD)
    add_user(file, VIEWER, "viewer", PASSWORD)
    return file


def make_flows(cluster: Cluster, applications: int, shards: int, folder: Path, *, stream: str = "wide") -> None:
    """Flows that look as if they ran, without anybody who runs them: nodes in ZooKeeper, made in few transactions."""
    cluster.create_stream(stream, shards, f"delta:{folder / stream}")
    tree = cluster.coordination
    for number in range(applications):
        name = f"many-{number}"
        cluster.create_application(name, [stream])
        tree.create_path("flows", name, stream)
        nodes: list[tuple[str, bytes]] = []
        for shard in range(shards):
            flow = Flow(name, stream, shard)
            nodes += [(tree.path(*flow.place), b""), (tree.path(*flow.place, "epoch"), b"")]
            owner = {"publisher": f"p{shard % 7}", "host": "nowhere", "pid": 1, "epoch": 0}
            marker = {"position": -1, "epoch": 0, "time": "2026-01-01T00:00:00+00:00"}
            nodes += [
                (tree.path(*flow.place, "owner"), encode(owner)),
                (tree.path(*flow.place, "datamarker"), encode(marker)),
                (tree.path(*flow.place, "subscriber"), encode({"id": f"s{shard % 50}", "epoch": 0})),
            ]
        for at in range(0, len(nodes), AT_ONCE):
            making = tree.client.transaction()
            for path, raw in nodes[at : at + AT_ONCE]:
                making.create(path, raw)
            for result in making.commit():
                if isinstance(result, Exception):
                    raise result


class Slow(Handler):
    """Takes its time, and fails at some objects."""

    def __init__(self, seconds: float, poison: str | None = None) -> None:
        self._seconds = seconds
        self._poison = poison

    def on_update(self, update: Update) -> None:
        time.sleep(self._seconds)
        if self._poison is not None and update.object.startswith(self._poison):
            raise ValueError(f"cannot read {update.object}")


@contextlib.contextmanager
def running_cluster(folder: Path, flows: int) -> Iterator[Cluster]:
    with EmbeddedZooKeeper(folder / "zookeeper") as server, contextlib.ExitStack() as stack:
        cluster = stack.enter_context(
            Cluster(Coordination(f"{server.address}/demo"), logs=f"delta:{folder / 'streams'}")
        )
        cluster.create_stream("contacts", 8)
        cluster.create_stream("clicks", 16)
        cluster.create_application("cache", ["contacts"], start="earliest")
        cluster.create_application("search", ["contacts", "clicks"], start="earliest", filter="region = eu")
        cluster.create_application("slow", ["contacts"], start="earliest")
        cluster.create_application("idle", ["clicks"])
        if flows:
            make_flows(cluster, max(1, flows // 1000), min(flows, 1000), folder)
        for name in ("east-1", "west-1"):
            own = stack.enter_context(Cluster(Coordination(cluster.address)))
            stack.enter_context(own.publisher(name=name, streams=["contacts", "clicks"], token_interval=1.0))
        for application, handler in (
            ("cache", Slow(0)),
            ("search", Slow(0)),
            ("search", Slow(0)),
            ("slow", Slow(0.05)),
        ):
            stack.enter_context(cluster.subscribe(application, handler))
        closed = threading.Event()
        thread = threading.Thread(target=produce, args=(cluster, closed), daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(closed.set)
        yield cluster


def produce(cluster: Cluster, closed: threading.Event) -> None:
    random_ = random.Random(7)
    with cluster.stream("contacts").producer() as contacts, cluster.stream("clicks").producer() as clicks:
        for version in itertools.count(1):
            for producer, name in ((contacts, "contacts"), (clicks, "page")):
                for _ in range(random_.randrange(1, 6)):
                    who = random_.choice([f"{name}/{random_.randrange(1000)}", *(ODD if version % 40 == 0 else [])])
                    value: dict[str, Any] = {"name": who, "version": version, "note": ODD[version % 3]}
                    payload = json.dumps(value).encode() if version % 5 else bytes(range(256))
                    region = random_.choice(["eu", "us"])
                    producer.publish(who, version=version, attributes={"region": region}, payload=payload)
            if closed.wait(0.2):
                return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flows", type=int, default=0, help="so many flows more, which nobody runs")
    parser.add_argument("--listen", default="127.0.0.1:8090")
    arguments, more = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        users = make_users(folder / "users.json")
        with running_cluster(folder, arguments.flows) as cluster:
            command = [sys.executable, "-c", "import sys; from tidings.cli import main; sys.exit(main())", "console"]
            command += ["--listen", arguments.listen, "--users", str(users), "--zookeeper", cluster.address, *more]
            print(f"users: {OPERATOR} and {VIEWER}, password {PASSWORD}; cluster {cluster.address}", flush=True)
            console = subprocess.Popen(command)
            try:
                return console.wait()
            except KeyboardInterrupt:
                return console.wait(10)
            finally:
                console.terminate()


if __name__ == "__main__":
    sys.exit(main())
