"""A collector that never stops by itself.

Run as `collect_forever.py <folder> <shards>`; the test that starts it kills it.
"""

from __future__ import annotations

import sys

from tidings.stream_definition import StreamDefinition
from tidings_connectors.delta.log import DeltaLog
from tidings_gc_tombstones.collector import Collector

if __name__ == "__main__":
    folder, shards = sys.argv[1], int(sys.argv[2])
    stream = StreamDefinition("contacts", shards, f"delta:{folder}", collect={"latest_per_key": True})
    log = DeltaLog.open(folder, stream)
    print("ready", flush=True)
    while True:
        with Collector(stream, log) as collector:
            for _ in collector.run():
                pass
