"""What a service that only subscribes does not pay for."""

from __future__ import annotations

import subprocess
import sys

from tidings.cluster import Cluster

SERVICE = """
import queue, sys
import tidings

came = queue.SimpleQueue()

class Handler(tidings.Handler):
    def on_update(self, update):
        came.put(update)

with tidings.connect(sys.argv[1]) as cluster, cluster.subscribe("cache", Handler()):
    objects = sorted(came.get(timeout=30).object for _ in range(3))
    print(objects, sorted({"pandas", "pyspark", "deltalake"} & set(sys.modules)))
"""


def test_a_service_that_subscribes_imports_neither_pandas_nor_spark(cluster: Cluster) -> None:
    stream = cluster.create_stream("contacts", shards=2)
    cluster.create_application("cache", ["contacts"], start="earliest")
    with cluster.publisher(), stream.producer() as producer:
        for name in ("a", "b", "c"):
            producer.publish(name, version=1, attributes={"colour": "red"}, payload=b"x").result()
        command = [sys.executable, "-c", SERVICE, cluster.address]
        told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert told == "['a', 'b', 'c'] []\n"
