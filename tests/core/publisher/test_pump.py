"""What a pump sends of one read to flows that leave its caravan in the midst of it, and get on again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from tidings.applications import Application
from tidings.cluster import Cluster
from tidings.filters import EVERYTHING, Filter
from tidings.filters.conditions import Terms
from tidings.flows import Flow, FlowControl
from tidings.positions import START, Position
from tidings.publisher.caravans import Caravan
from tidings.publisher.flow_session import FlowSession, SessionOptions
from tidings.publisher.flow_session import Ride as BoardedRide
from tidings.publisher.outbox import Outbox
from tidings.publisher.ownership import Ownership
from tidings.publisher.pump import Pump
from tidings.publisher.read_batch import LARGE_BATCH_ROWS
from tidings.stream_definition import StreamDefinition, split_address
from tidings.testing import eventually, make_updates
from tidings.wire.connection import Connection
from tidings.wire.protocol import Message, flow_message, pair
from tidings_connectors.delta.log import DeltaLog

WINDOW_BYTES = 10_000  # a part is more than that
PARTS = 3
EVERY_SEQ = list(range(PARTS * LARGE_BATCH_ROWS))
FIRST_PART = EVERY_SEQ[:LARGE_BATCH_ROWS]


class Subscriber(Connection):
    """Keeps what one flow is sent, and has processed it at once, unless it is busy."""

    full = False

    def __init__(self, pump: Pump, application: str, chosen: Filter) -> None:
        self.seqs: list[int] = []
        self.told: list[int] = []
        """How many updates it was told to be skipped, each time."""
        self.unbroken: list[bool] = []
        """Whether each message was said to have all updates."""
        self.busy = False
        flow = Flow(application, pump.stream.name, 0)
        options = SessionOptions(window_bytes=WINDOW_BYTES)
        self.session = FlowSession(flow, 1, Application(application, (flow.stream,)), START, pump.lock, options)
        self.session.filter = chosen
        self.open()

    def open(self) -> None:
        with self.session.lock:
            self.session.open(self)
            self.say("opened")

    def say(self, kind: str, **more: object) -> None:
        with self.session.lock:
            self.session.answered(self, flow_message(kind, self.session.flow, self.session.era, **more))

    def send(self, message: Message, rows: pa.RecordBatch | None = None) -> None:
        if rows is not None:
            self.seqs += rows["seq"].to_pylist()
            self.unbroken.append(message["parts"][0][-1] is not None)
        elif message["t"] == "skipped":
            self.told.append(message["count"])
        if not self.busy:
            self.process()

    def process(self) -> None:
        with self.session.lock:
            self.say("done", position=pair(self.session.sent))


@dataclass(frozen=True)
class Gate(Filter):
    """Passes everything, and keeps the caravan waiting before each part of a read."""

    any_of: Terms = EVERYTHING.any_of
    reached: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    opened: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def mask(self, rows: pa.Table | pa.RecordBatch) -> pa.BooleanArray:
        self.reached.release()
        assert self.opened.acquire(timeout=30)
        return super().mask(rows)


class Ride:
    """Two flows on one caravan, which is before the first of the parts of a read."""

    def __init__(self, pump: Pump, may_send: threading.Event) -> None:
        self.may_send = may_send
        self.pump = pump
        self._gate = Gate()
        # The gate is the last one's, so that it is passed when each application has been looked at.
        self.slow, self.fast = Subscriber(pump, "slow", EVERYTHING), Subscriber(pump, "fast", self._gate)
        with pump.lock:
            for one in (self.slow, self.fast):
                pump.add(one.session)
        self._await_gate()

    def next_part(self) -> None:
        """Have a part sent: when this returns, the caravan is before the next one."""
        self._gate.opened.release()
        self._await_gate()

    def _await_gate(self) -> None:
        assert self._gate.reached.acquire(timeout=30)

    def lose_lease(self) -> None:
        """Have the part that was read come when nothing may be sent any more."""
        self.may_send.clear()
        self._gate.opened.release()
        eventually(lambda: self.slow.session.ride is self.fast.session.ride is None)

    def get_on_again(self) -> None:
        """Have the slow flow ride on the same caravan, although that is in the midst of a read."""
        caravan = self.fast.session.caravan
        assert caravan is not None
        self.pump.allocation.wake()
        eventually(lambda: self.slow.session.caravan is caravan)

    def open(self) -> None:
        """Keep the caravan waiting no more."""
        self._gate.opened.release(1_000)

    def finish(self) -> None:
        """Have everything sent."""
        self.open()
        eventually(self._finished)

    def _finished(self) -> bool:
        with self.pump.lock:  # without it, what is about to be sent would count as sent
            return all(one.session.sent.seq == EVERY_SEQ[-1] for one in (self.slow, self.fast))


@pytest.fixture
def ride(cluster: Cluster, tmp_path: Path) -> Iterator[Ride]:
    stream = StreamDefinition("contacts", 1, f"delta:{tmp_path / 'contacts'}")
    log = DeltaLog.create(split_address(stream.log)[1], stream)
    for seed in range(PARTS):
        log.append(make_updates(LARGE_BATCH_ROWS, seed=seed))
    outbox = Outbox(Ownership(cluster.coordination, "here"), lambda *_: None, lambda *_: None)
    may_send = threading.Event()
    may_send.set()
    pump = Pump(stream, log, may_send.is_set, outbox)
    ride = Ride(pump, may_send)
    yield ride
    ride.open()
    pump.close()
    outbox.close()


def test_a_flow_whose_window_was_full_for_a_part_of_a_read_is_not_sent_the_next_part(ride: Ride) -> None:
    ride.slow.busy = True
    ride.next_part()  # which fills its window
    ride.next_part()
    assert ride.slow.seqs == FIRST_PART
    ride.slow.busy = False
    ride.slow.process()
    ride.get_on_again()
    ride.finish()
    assert ride.slow.seqs == EVERY_SEQ
    assert ride.fast.seqs == EVERY_SEQ


def test_what_was_read_is_not_sent_once_the_lease_is_over(ride: Ride) -> None:
    ride.next_part()
    ride.lose_lease()
    assert ride.slow.seqs == ride.fast.seqs == FIRST_PART
    ride.may_send.set()
    ride.finish()
    assert ride.slow.seqs == ride.fast.seqs == EVERY_SEQ


def test_a_flow_that_got_another_filter_during_a_part_of_a_read_is_not_sent_the_next_part(ride: Ride) -> None:
    ride.next_part()
    with ride.slow.session.lock:
        ride.slow.session.redefine(replace(ride.slow.session.application, filter="kind = data"))
    ride.next_part()
    assert ride.slow.seqs == FIRST_PART
    ride.get_on_again()
    ride.finish()
    assert ride.slow.seqs == EVERY_SEQ
    assert ride.fast.seqs == EVERY_SEQ


def test_a_flow_that_was_opened_again_during_a_part_of_a_read_is_sent_all_from_its_datamarker(ride: Ride) -> None:
    ride.next_part()
    with ride.slow.session.lock:
        ride.slow.session.disconnected(ride.slow, "the connection broke")
        ride.slow.open()
    ride.get_on_again()
    ride.finish()
    assert ride.slow.seqs == FIRST_PART + EVERY_SEQ
    assert ride.fast.seqs == EVERY_SEQ


def test_a_flow_that_is_paused_during_a_part_of_a_read_gets_no_more_of_it_and_goes_on_there_later(ride: Ride) -> None:
    ride.next_part()
    with ride.slow.session.lock:
        ride.slow.session.heed(FlowControl(paused=True))
    ride.next_part()
    ride.open()
    eventually(lambda: ride.fast.seqs == EVERY_SEQ)
    assert ride.slow.seqs == FIRST_PART
    with ride.slow.session.lock:
        ride.slow.session.heed(FlowControl())
    ride.finish()
    assert ride.slow.seqs == EVERY_SEQ


def test_what_is_skipped_during_a_read_is_left_out_for_one_flow_and_told(ride: Ride) -> None:
    ride.next_part()
    skipped = [EVERY_SEQ[LARGE_BATCH_ROWS], EVERY_SEQ[-1]]  # the first of the next part, and the very last
    with ride.slow.session.lock:
        ride.slow.session.heed(FlowControl(skip=frozenset(Position(seq) for seq in (7, *skipped))))
    ride.finish()
    assert ride.slow.seqs == [seq for seq in EVERY_SEQ if seq not in skipped]
    assert ride.fast.seqs == EVERY_SEQ
    assert ride.slow.told == [1, 1]
    assert ride.slow.unbroken == [True, False, False], "who checks for gaps is not told that there is none"


@pytest.mark.parametrize(
    ("control", "in_bulk"),
    [
        (FlowControl(), True),
        (FlowControl(skip=frozenset({Position(5)})), True),
        (FlowControl(skip=frozenset({Position(LARGE_BATCH_ROWS + 5)})), False),
        (FlowControl(paused=True), False),
    ],
    ids=["nothing is said", "what is passed is skipped", "what comes is skipped", "paused"],
)
def test_spark_sends_no_backlog_of_a_flow_that_is_paused_or_skips_what_comes(
    ride: Ride, control: FlowControl, in_bulk: bool
) -> None:
    ride.next_part()
    session = ride.slow.session
    with session.lock:
        session.heed(control)
        ride.pump._bulk, ride.pump._bulk_rows = (lambda *_: 0), 1
        backlog = ride.pump._backlog(
            {session: session.ride or BoardedRide(cast(Caravan, None))}, ride.pump.log.bounds()
        )
        ride.pump._bulk = None
    assert (session in backlog) == in_bulk
