"""What writers, subscribers and clients note down: a file each, a line for each event, as JSON.

| line | |
| --- | --- |
| `try <time> <stream> <object> <number> <digest> <bytes>` | a writer is about to publish or to commit this |
| `ack <time> <stream> <object> <number>` | it was acknowledged |
| `row <time> <application> <recorder> <stream> <shard> <seq> <index> <object> <number> <digest>` | it came to one |
| `notice <time> <application> <recorder> <stream> <shard>` | a flow begins |
| `loss <time> <application> <recorder> <stream> <shard> <text>` | a subscriber was told that something is lost |
| `wants <time> <client> <objects>` | a client will register for these |
| `told <time> <client> <object> <number> <digest>` | a client has heard of a version |
| `unknown <time> <client> <object>` | it was told to fetch the object, of all its objects if none is named |

Times are those of the monotonic clock, which all processes of a machine share and which nobody sets.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import xxhash

Line = list[Any]


class Journal:
    """Writes each note with one system call, so that nothing is held back when the process is killed."""

    def __init__(self, file: Path | str) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(self._file, b"\n")  # who was killed in the midst of a line did not end it

    def note(self, kind: str, *fields: Any) -> None:
        self.note_all(kind, [fields])

    def note_all(self, kind: str, rows: Iterable[Iterable[Any]]) -> None:
        now = round(time.monotonic(), 4)
        os.write(self._file, "".join(f"{json.dumps([kind, now, *fields])}\n" for fields in rows).encode())


class Follower:
    """Reads what was added to a file since the last time."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._at = 0

    def lines(self) -> Iterator[Line]:
        """The new lines that are whole; half a line is nothing that anybody may rely on."""
        if not self.file.exists():
            return
        with open(self.file, "rb") as file:
            file.seek(self._at)
            for raw in file:
                if not raw.endswith(b"\n"):
                    return
                self._at += len(raw)
                try:
                    found = json.loads(raw)
                except ValueError:
                    continue
                yield found


def digest(body: bytes | None) -> str | None:
    """What stands for a payload."""
    return None if body is None else xxhash.xxh64_hexdigest(body)
