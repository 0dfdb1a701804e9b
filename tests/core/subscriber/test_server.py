from __future__ import annotations

import threading
import time

import pyarrow as pa
from pyarrow import flight

from tidings.subscriber.server import FAREWELL_S, Reply, SubscriberServer
from tidings.testing import eventually
from tidings.updates import SCHEMA
from tidings.wire.protocol import PROTOCOL, Message, encode
from tidings.wire.security import Security


class Listener:
    application = "cache"

    def __init__(self) -> None:
        self.ended = threading.Event()

    def on_message(self, message: Message, rows: pa.RecordBatch | None, reply: Reply) -> None:
        raise AssertionError

    def on_exchange_ended(self, reply: Reply) -> None:
        self.ended.set()


def test_a_server_that_leaves_hangs_up_on_a_publisher_that_does_not_answer() -> None:
    listener = Listener()
    server = SubscriberServer(listener, "127.0.0.1:0", Security())
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        hello = {"t": "hello", "protocol": PROTOCOL, "publisher": "p1", "application": "cache"}
        descriptor = flight.FlightDescriptor.for_command(encode(hello).to_pybytes())
        writer, reader = client.do_exchange(descriptor)
        writer.begin(SCHEMA)
        writer.write_metadata(encode({"t": "ping"}))
        reader.read_chunk()  # the exchange is there; from now on the publisher is as one that is stopped
        began = time.monotonic()
        server.leave()
        assert time.monotonic() - began < FAREWELL_S + 1
        assert listener.ended.is_set()
        eventually(lambda: not any(thread.name == "tidings-shutdown" for thread in threading.enumerate()))
