"""Reads a log up to its end, and tells how many rows there were and how much memory grew on the way, in kilobytes.

Run as a program, since what a process has ever needed at most says nothing once other tests have run in it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys

from tidings.log_opening import open_log
from tidings.positions import Positions
from tidings.stream_definition import StreamDefinition

WARM = 50_000  # rows after which all is loaded that is needed


def read_apart(stream: StreamDefinition, after: Positions, limit: int) -> tuple[int, int]:
    """Do it in a process of its own."""
    command = [sys.executable, __file__, json.dumps(stream.to_json()), str(after), str(limit)]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    count, grown = map(int, told.split())
    return count, grown


def main() -> None:
    log = open_log(StreamDefinition.from_json(json.loads(sys.argv[1])))
    after, limit = Positions.parse(sys.argv[2]), int(sys.argv[3])
    count, begun, reader, bounds = 0, 0, log.reader(), log.bounds()
    while any(at < bounds[shard].head for shard, at in after.items()):
        rows, after = reader.read(after, limit)
        assert len(rows) <= limit
        count += len(rows)
        if count > WARM and not begun:
            begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begun)


if __name__ == "__main__":
    main()
