"""Who speaks with a subscriber as a publisher does, and says whatever it likes."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

from tidings.updates import SCHEMA
from tidings.wire.protocol import PROTOCOL

PATIENCE_S = 10.0

Message = dict[str, Any]


class Peer:
    """One exchange with a subscriber. Made by `speaking`."""

    def __init__(self, writer: Any, reader: Any, schema: pa.Schema) -> None:
        self._writer, self._reader = writer, reader
        with contextlib.suppress(pa.ArrowException):  # it has ended already; `fault` says why
            writer.begin(schema)

    def say(self, message: Message | bytes, rows: pa.RecordBatch | None = None) -> None:
        raw = pa.py_buffer(message if isinstance(message, bytes) else json.dumps(message).encode())
        if rows is None:
            self._writer.write_metadata(raw)
        else:
            self._writer.write_with_metadata(rows, raw)

    def hear(self) -> Message:
        """The next answer; the error with which the exchange has ended, if it has."""
        alarm = threading.Timer(PATIENCE_S, self._reader.cancel)
        alarm.start()
        try:
            answer: Message = json.loads(self._reader.read_chunk().app_metadata.to_pybytes())
        finally:
            alarm.cancel()
        return answer

    def fault(self) -> str:
        """Why the exchange has ended, in the words that the peer was given."""
        try:
            while True:
                self.hear()
        except (pa.ArrowException, StopIteration) as error:
            return str(error)


@contextlib.contextmanager
def speaking(
    address: str, application: str = "cache", *, schema: pa.Schema = SCHEMA, hello: bytes | None = None
) -> Iterator[Peer]:
    """An exchange with the subscriber at an address."""
    if hello is None:
        said = {"t": "hello", "protocol": PROTOCOL, "publisher": "peer", "application": application}
        hello = json.dumps(said).encode()
    with flight.connect(f"grpc://{address}") as client:
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(hello))
        yield Peer(writer, reader, schema)
        with contextlib.suppress(pa.ArrowException):
            writer.done_writing()
        reader.cancel()
