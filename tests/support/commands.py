"""Commands, run in this process or in one of their own, and what they leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from importlib.metadata import entry_points as installed
from typing import Any

from tidings.cluster import Cluster
from tidings.flow_status import status

# Whoever runs the tests may ignore Ctrl-C, as a shell's background job does; commands would inherit that.
MAIN = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from tidings.cli import main
sys.exit(main())
"""
PROGRAM = [sys.executable, "-c", MAIN]
PATIENCE_S = 60.0


@dataclass
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Result]


@contextlib.contextmanager
def started(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process of its own, killed at the end if it still runs."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with subprocess.Popen([*PROGRAM, *arguments], **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[bytes]) -> Result:
    """What it left behind, once it has ended by itself."""
    out, err = process.communicate(timeout=PATIENCE_S)
    return Result(process.returncode, out.decode(), err.decode())


def line(process: subprocess.Popen[bytes]) -> bytes:
    """The next line that it prints."""
    assert process.stdout
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    assert ready, "nothing was printed"
    return process.stdout.readline()


def on_terminal(*arguments: str, **options: Any) -> Result:
    """What it left behind when its stderr is a terminal; `err` is all that the terminal was given to show."""
    terminal, end = pty.openpty()
    shown = bytearray()
    environment = {**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    with started(*arguments, stderr=end, env=environment, **options) as process:
        os.close(end)
        with contextlib.suppress(OSError):  # a terminal that nobody writes to any more has no end: reading it fails
            while select.select([terminal], [], [], PATIENCE_S)[0] and (chunk := os.read(terminal, 65_536)):
                shown += chunk
        os.close(terminal)
        out, _ = process.communicate(timeout=PATIENCE_S)
    return Result(process.returncode, out.decode(), shown.decode())


def told(error: str) -> str:
    """The sentence, if it is one and no trace."""
    lines = error.splitlines()
    assert len(lines) == 1, error
    return lines[0]


def lines(*updates: dict[str, Any]) -> str:
    """Updates as `streams publish` reads them."""
    return "".join(f"{json.dumps(update)}\n" for update in updates)


def published(run: Run, *updates: dict[str, Any]) -> dict[str, Any]:
    """Publish to `contacts`; the positions."""
    result = run("streams", "publish", "contacts", "--json", stdin=lines(*updates))
    assert result.code == 0, result.err
    positions: dict[str, Any] = result.json["positions"]
    return positions


def objects(run: Run) -> list[str]:
    """The objects that the stream holds, those of one shard in their order."""
    result = run("streams", "tail", "contacts", "--from", "earliest", "--no-follow", "--json")
    return [update["object"] for update in result.json_lines]


def tail(run: Run, *arguments: str) -> list[Any]:
    """What the stream holds, as `streams tail` prints it."""
    result = run("streams", "tail", "contacts", "--no-follow", "--json", *arguments)
    assert result.code == 0, result.err
    return result.json_lines


def publish(cluster: Cluster, *versions: int, objects: tuple[str, ...] = ("alice", "bob", "carol", "dave")) -> None:
    """An update of each object for each version, durable when it returns."""
    with cluster.stream("contacts").producer() as producer:
        for version in versions:
            for name in objects:
                producer.publish(name, version, payload=f"{name} {version}".encode())


def flow_list(run: Run, *arguments: str) -> list[dict[str, Any]]:
    """What `flows list` says."""
    result = run("flows", "list", "--json", *arguments)
    assert result.code == 0, result.err
    flows: list[dict[str, Any]] = result.json
    return flows


def lags(cluster: Cluster) -> list[int | None]:
    """The lag of each flow."""
    return [one.lag for one in status(cluster)]


def with_entry_points(*more: EntryPoint) -> Callable[..., Sequence[EntryPoint]]:
    """The plugins that are installed, and these."""

    def entry_points(group: str) -> Sequence[EntryPoint]:
        return [*installed(group=group), *(one for one in more if one.group == group)]

    return entry_points
