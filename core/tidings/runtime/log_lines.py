"""One form for the log lines of many processes: time, level, process, text.

What a process prints may be a log line of ours, one of Spark's, a note of a command, or anything.

>>> print(read_line("publisher-1", "warning: whoever can reach it gets every update", "2026-01-01T00:00:00Z").render())
2026-01-01T00:00:00Z WARNING publisher-1: whoever can reach it gets every update
"""

from __future__ import annotations

import datetime as dt
import re
import zlib
from collections.abc import Callable
from typing import NamedTuple

from tidings.texts import printable

MAX_CHARACTERS = 8192  # of a line; what is beyond is left out

_OURS = re.compile(r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z) (?:(?P<level>[A-Z]+) )?(?P<text>.*)")
_SPARKS = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (?P<level>[A-Z]+) (?P<text>.*)")
_NOTE = re.compile(r"(?P<level>[Ee]rror|[Ww]arning): (?P<text>.*)")  # typer writes it large
_LEVELS = {"WARN": "WARNING", "FATAL": "CRITICAL"}
_COLOURS = {"WARNING": 33, "ERROR": 31, "CRITICAL": 31}
_PROCESS_COLOURS = (32, 34, 35, 36, 92, 94, 95, 96)


class LogLine(NamedTuple):
    """A line of the log."""

    time: str
    level: str
    process: str
    text: str

    def render(self, *, colour: bool = False) -> str:
        r"""As it is printed.

        >>> LogLine("…", "ERROR", "run", "it failed").render(colour=True)
        '\x1b[2m…\x1b[0m \x1b[31mERROR\x1b[0m \x1b[32mrun\x1b[0m: it failed'
        """
        if not colour:
            return f"{self.time} {self.level} {self.process}: {self.text}"
        process = _PROCESS_COLOURS[zlib.crc32(self.process.encode()) % len(_PROCESS_COLOURS)]
        return (
            f"\x1b[2m{self.time}\x1b[0m \x1b[{_COLOURS.get(self.level, 0)}m{self.level}\x1b[0m "
            f"\x1b[{process}m{self.process}\x1b[0m: {self.text}"
        )


Tell = Callable[[LogLine], None]


def own_line(process: str, level: str, text: str) -> LogLine:
    """What is told of a process, now."""
    return LogLine(timestamp(), level, process, text)


def timestamp() -> str:
    """The time now, as log lines have it."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_line(process: str, text: str, now: str) -> LogLine:
    r"""What a process has printed, as a line of the log; it keeps its own time and level, if it says them.

    >>> read_line("run", "2026-01-01T00:00:00Z europe: batch 7, lag 12", "…")
    LogLine(time='2026-01-01T00:00:00Z', level='INFO', process='run', text='europe: batch 7, lag 12')
    >>> read_line("run", "26/01/01 00:00:00 WARN Utils: slow", "2026-01-01T00:00:00.000Z").level
    'WARNING'
    >>> read_line("run", "red: \x1b[31m", "…").text
    'red: \\x1b[31m'
    """
    text = text[:MAX_CHARACTERS].rstrip()
    found = _OURS.match(text) or _SPARKS.match(text) or _NOTE.match(text)
    if found is None:
        return LogLine(now, "INFO", process, printable(text))
    said = found.groupdict()
    level = (said["level"] or "INFO").upper()
    return LogLine(said.get("time") or now, _LEVELS.get(level, level), process, printable(said["text"]))
