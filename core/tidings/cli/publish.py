"""`tidings streams publish`: JSON lines into a stream."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.jsonl import parse_line, read_lines
from tidings.cli.options import COMMAND_TIMEOUT_S, Json, Name, Timeout, ZooKeeper, connected
from tidings.cli.output import console, emit, note
from tidings.errors import InvalidOption, InvalidUpdate, TidingsError
from tidings.texts import counted

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tidings.positions import Position, Positions
    from tidings.producers import Producer

EXAMPLES = """\b
Examples:
  echo '{"object": "alice", "version": 3, "payload": "hello"}' | tidings streams publish contacts
  tidings streams publish contacts --file contacts.jsonl

\b
A line is a JSON object with these keys; all but the first may be left out:
  object          the object's name
  version         a whole number that grows with each change of the object
  source          the application id of the client that made the change
  payload         text; an object or a list is published as JSON text; or payload_base64, for bytes
  attributes      an object of texts: what filters see
  time            when it was committed, as in 2026-01-01T00:00:00Z; else now
Lines that `tidings streams tail --json` printed can be published as they are.
"""

BATCH_BYTES = 8 * 2**20  # of lines that are gathered for one commit

Advance = Callable[[int, int], None]
"""Is told how many bytes of input were read so far, and how many updates are durable."""


def publish_command(
    name: Name,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read from this file instead of stdin.", show_default=False)
    ] = None,
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, max=50_000, help="Commit so many updates at once, at the most.")
    ] = 20_000,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Publish updates, one JSON object a line, from stdin or a file.

    An invalid line ends it: nothing after that line is published, and how much is durable is printed. When input
    comes slowly, what is there is published at once.
    """
    with connected(zookeeper, timeout) as cluster:
        stream = cluster.stream(name)
    with _input(file) as descriptor, stream.producer() as producer:
        publication = Publication(producer, batch)
        try:
            with _progress(descriptor) as advance:
                publication.run(descriptor, advance)
        except BadLine as error:
            _report(publication, json, lambda: None)
            raise BadLine(f"{_durable(publication)}; {error}") from None
        except BaseException:
            with contextlib.suppress(TidingsError):
                publication.settle()
            _report(publication, json, lambda: None)
            note(_durable(publication))
            raise
    _report(publication, json, lambda: note(_durable(publication)))


class BadLine(InvalidUpdate):
    """A line that is no update; the message names it by its number."""


class Publication:
    """Lines on their way into a stream.

    One batch is committed while the next one is read, and it is durable before that one is sent: so what is durable is
    always the beginning of the input, and memory holds two batches at the most.
    """

    def __init__(self, producer: Producer, batch: int) -> None:
        self.published = 0
        self.positions: dict[int, Position] = {}
        self._producer = producer
        self._batch = batch
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0
        self._pending: tuple[Future[Positions], int] | None = None

    def run(self, descriptor: int, advance: Advance) -> None:
        """Publish all lines; `BadLine` at the first that is no update, once all before it are durable."""
        number = read = 0
        try:
            for line in read_lines(descriptor):
                if line is None:
                    self._send()
                    advance(read, self.published)
                    continue
                number += 1
                read += len(line) + 1
                if line.strip():
                    self._add(line)
                if len(self._rows) >= self._batch or self._bytes >= BATCH_BYTES:
                    self._send()
                    advance(read, self.published)
        except InvalidUpdate as error:
            self._send()
            self.settle()
            raise BadLine(f"line {number:,}: {error}") from None
        self._send()
        self.settle()

    def settle(self) -> None:
        """Wait until what was sent is durable."""
        if self._pending:
            (future, rows), self._pending = self._pending, None
            self.positions |= future.result()
            self.published += rows

    def _add(self, line: bytes) -> None:
        from tidings.collection import COLLECTS
        from tidings.updates import GC, TOMBSTONE, check_row

        row = parse_line(line)
        if row.get("kind") == TOMBSTONE:  # of a stream that was tailed: what it stands for is gone
            return
        check_row(**row, max_payload_bytes=self._producer.options.max_payload_bytes)
        if row.get("kind") == GC and COLLECTS in (row.get("attributes") or {}):  # it speaks of another stream
            return
        self._rows.append(row)
        self._bytes += len(line)

    def _send(self) -> None:
        self.settle()
        if self._rows:
            self._pending = self._producer.publish_many(self._rows), len(self._rows)
            self._rows, self._bytes = [], 0


def _told(published: int) -> str:
    return f"{counted(published, 'update')} durable"


def _durable(publication: Publication) -> str:
    return _told(publication.published)


def _report(publication: Publication, json: bool, show: Callable[[], None]) -> None:
    from tidings.positions import Positions

    positions = Positions(publication.positions).to_json()
    emit({"published": publication.published, "positions": positions}, json, show)


@contextlib.contextmanager
def _input(file: Path | None) -> Iterator[int]:
    if file is None:
        if sys.stdin is None:
            raise InvalidOption("there is no stdin to read from: use --file")
        if sys.stdin.isatty():
            note("reading JSON lines from the terminal; Ctrl-D ends them")
        yield sys.stdin.fileno()
        return
    try:
        opened = open(file, "rb", buffering=0)  # noqa: SIM115 - closed below, when its opening did not fail
    except OSError as error:
        raise InvalidOption(f"{file} cannot be read: {error.strerror or error}") from None
    with opened:
        yield opened.fileno()


@contextlib.contextmanager
def _progress(descriptor: int) -> Iterator[Advance]:
    """A progress bar on stderr, if that is a terminal; measured in bytes where the input's size is known."""
    if not sys.stderr.isatty() or os.isatty(descriptor):
        yield lambda read, published: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    state = os.fstat(descriptor)
    size = state.st_size if stat.S_ISREG(state.st_mode) else None
    columns = (BarColumn(), TextColumn("{task.fields[durable]}"), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("publish", total=size, durable=_told(0))
        yield lambda read, published: progress.update(task, completed=read, durable=_told(published))
