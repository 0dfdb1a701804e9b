"""When a flow is stuck, and when it only looks so."""

from __future__ import annotations

import threading
from typing import cast

from tidings.applications import Application
from tidings.flows import Flow, FlowControl
from tidings.logs import Reader
from tidings.positions import Bounds, Position
from tidings.publisher.caravans import Caravan
from tidings.publisher.flow_session import FlowSession, SessionOptions, WriteMarker
from tidings.publisher.progress import FlowProgress, flow_progress
from tidings.wire.connection import Connection
from tidings.wire.protocol import Message, flow_message

FLOW = Flow("cache", "contacts", 0)
OPTIONS = SessionOptions(token_interval_s=3600.0)


class Peer:
    """A connection to nobody."""

    def send(self, message: Message) -> None:
        """Say nothing."""


class Stage:
    """A flow at 9, a log that grows, and a clock that is set."""

    def __init__(self, *, open: bool = True) -> None:
        self.now = 1000.0
        self.head = 9
        self.peer = cast(Connection, Peer())
        self.session = FlowSession(
            FLOW,
            1,
            Application("cache", ("contacts",)),
            Position(9),
            threading.RLock(),
            OPTIONS,
            holder="one",
            clock=lambda: self.now,
        )
        if open:
            self.open()

    def open(self) -> None:
        self.session.assign("one")
        self.session.open(self.peer)
        self.says("opened")
        self.session.board(Caravan(1, cast(Reader, None), ordered=False))

    def says(self, kind: str, **more: object) -> list[WriteMarker]:
        effects = self.session.answered(self.peer, flow_message(kind, FLOW, self.session.era, **more))
        return [one for one in effects if isinstance(one, WriteMarker)]

    def sends(self, upto: int, size: int = 10) -> None:
        self.session.advance(Position(upto), size, oldest=self.now)

    def look(self, *, gathers: bool = False, dense: bool = True) -> FlowProgress:
        held = Bounds(Position(-1), Position(self.head))
        return flow_progress(self.session, held, dense=dense, gathers=gathers, now=self.now, wall=self.now)


def test_a_flow_without_work_is_not_stuck_however_quiet_it_is() -> None:
    stage = Stage()
    stage.now += 86_400
    assert stage.look() == FlowProgress("running", 0, 0.0, 0.0)


def test_a_flow_is_stuck_from_the_moment_when_there_is_work_until_something_of_it_is_processed() -> None:
    stage = Stage()
    stage.now += 86_400
    stage.head = 12
    assert stage.look().stalled_seconds == 0, "it has just come"
    stage.now += 50
    stage.sends(12)
    stage.now += 20
    assert stage.look() == FlowProgress("running", 3, 20.0, 70.0), "to be sent is no progress"
    stage.says("done", position=[10, 0])
    assert stage.look().stalled_seconds == 0
    stage.now += 5
    assert stage.look().stalled_seconds == 5
    stage.says("done", position=[12, 0])
    stage.now += 500
    assert stage.look().stalled_seconds == 0, "all is processed"
    assert stage.look().lag == 3, "and not yet acknowledged"


def test_what_the_filter_leaves_out_is_progress() -> None:
    stage = Stage()
    stage.head = 12
    stage.look()
    stage.now += 100
    stage.sends(11, size=0)
    assert stage.look().stalled_seconds == 0
    stage.sends(12, size=0)
    stage.now += 500
    assert stage.look() == FlowProgress("running", 3, 0.0, 0.0)


def test_a_flow_that_breaks_off_and_begins_again_for_ever_is_stuck() -> None:
    stage = Stage()
    stage.head = 12
    stage.look()
    for _ in range(10):
        stage.sends(12)
        stage.now += 10
        stage.session.disconnected(stage.peer, "the connection broke")
        stage.open()
        stage.look()
    assert stage.look().stalled_seconds == 100


def test_a_token_that_is_not_acknowledged_counts_from_the_moment_when_it_was_sent() -> None:
    stage = Stage()
    stage.head = 12
    stage.sends(12)
    stage.says("done", position=[12, 0])
    stage.now += 5000
    stage.session.tick(holder_lives=True, allowed=True)
    assert stage.look().stalled_seconds == 0
    stage.now += 30
    assert stage.look().stalled_seconds == 30
    (write,) = stage.says("ack", position=[12, 0])
    stage.session.marker_written(*write)
    assert stage.look() == FlowProgress("running", 0, 0.0, 0.0)
    assert stage.session.counters.datamarkers == 1


def test_the_age_of_what_is_not_acknowledged_is_that_of_the_first_of_it() -> None:
    stage = Stage()
    stage.head = 11
    stage.sends(10)
    stage.says("done", position=[10, 0])
    stage.now += 3600
    stage.session.tick(holder_lives=True, allowed=True)
    stage.sends(11)
    stage.now += 40
    assert stage.look().lag_seconds == 3640
    (write,) = stage.says("ack", position=[10, 0])
    stage.session.marker_written(*write)
    assert stage.look().lag_seconds == 40


def test_a_flow_that_waits_is_paused_or_failed_is_not_stuck() -> None:
    stage = Stage()
    stage.head = 12
    stage.look()
    stage.now += 100
    assert stage.look().stalled_seconds == 100
    stage.session.tick(holder_lives=False, allowed=True)
    assert stage.look() == FlowProgress("waiting", 3, 100.0, 0.0)
    stage.session.tick(holder_lives=True, allowed=True)
    stage.session.heed(FlowControl(paused=True))
    assert stage.look() == FlowProgress("paused", 3, 100.0, 0.0)
    stage.session.heed(FlowControl())
    stage.says("parked", reason="no")
    assert stage.look() == FlowProgress("failed", 3, 100.0, 0.0)


def test_a_flow_is_not_stuck_while_a_snapshot_is_read_for_it_or_a_spark_job_sends() -> None:
    stage = Stage()
    stage.head = 12
    stage.look()
    stage.now += 100
    assert stage.look(gathers=True).stalled_seconds == 0
    assert stage.session.caravan is not None
    stage.session.caravan.bulk = True
    assert stage.look().stalled_seconds == 0


def test_a_lag_that_the_log_does_not_count_is_not_known_unless_there_is_none() -> None:
    stage = Stage()
    assert stage.look(dense=False).lag == 0
    stage.head = 12
    assert stage.look(dense=False).lag is None
    nothing = flow_progress(stage.session, None, dense=True, now=stage.now, wall=stage.now)
    assert (nothing.lag, nothing.lag_seconds, nothing.stalled_seconds) == (None, None, 0.0)
