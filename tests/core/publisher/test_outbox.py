"""What is written of a flow whose state has changed since it was to be written."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tidings.applications import Application
from tidings.cluster import Cluster, connect
from tidings.flows import Flow
from tidings.positions import START, Position
from tidings.publisher.flow_session import FlowSession, SessionOptions
from tidings.publisher.outbox import Outbox
from tidings.publisher.ownership import Ownership, Wanted
from tidings.wire.connection import Connection
from tidings.wire.protocol import Message, flow_message, pair

FLOW = Flow("cache", "contacts", 0)
SENT = Position(5)


class Deaf(Connection):
    """A connection with nobody at its end."""

    full = False

    def __init__(self) -> None:
        pass

    def send(self, message: Message, rows: pa.RecordBatch | None = None) -> None:
        pass


@pytest.fixture
def session(cluster: Cluster) -> FlowSession:
    """An owned flow, of which everything sent is just being acknowledged."""
    cluster.coordination.write({}, "applications", FLOW.application)
    (taken,) = Ownership(cluster.coordination, "p1").take([Wanted(FLOW, lambda before: START)], {})
    assert taken is not None
    application, options = Application(FLOW.application, (FLOW.stream,)), SessionOptions(token_interval_s=0.0)
    session = FlowSession(FLOW, taken.epoch, application, START, threading.RLock(), options)
    session.assign("r1")
    session.open(Deaf())
    say(session, "opened")
    session.advance(SENT, size=10)
    session.tick(holder_lives=True, allowed=True)
    return session


@pytest.fixture
def outbox(cluster: Cluster) -> Iterator[Outbox]:
    outbox = Outbox(Ownership(cluster.coordination, "p1"), lambda *_: None, lambda *_: None)
    yield outbox
    outbox.close()


def say(session: FlowSession, kind: str, **more: object) -> None:
    """What the subscriber says that brings nothing about."""
    assert session.connection is not None
    assert not session.answered(session.connection, flow_message(kind, FLOW, session.era, **more))


def acknowledge(session: FlowSession, outbox: Outbox) -> None:
    assert session.connection is not None
    message = flow_message("ack", FLOW, session.era, position=pair(SENT))
    outbox.carry_out(session, session.answered(session.connection, message))


def marker(cluster: Cluster) -> Position:
    value = cluster.coordination.read(*FLOW.place, "datamarker")
    assert value is not None
    return Position.from_json(value["position"])


def test_a_datamarker_that_was_acknowledged_is_written(cluster: Cluster, session: FlowSession, outbox: Outbox) -> None:
    with session.lock:
        acknowledge(session, outbox)
    outbox.close()
    assert marker(cluster) == session.marker == SENT


def test_a_datamarker_of_a_log_that_was_restored_meanwhile_is_not_written(
    cluster: Cluster, session: FlowSession, outbox: Outbox
) -> None:
    with session.lock:  # which the outbox waits for
        acknowledge(session, outbox)
        outbox.carry_out(session, session.go_back(Position(3), SENT, Position(1)))
    outbox.close()
    assert marker(cluster) == session.marker == START


def test_a_holder_that_was_replaced_meanwhile_is_not_written(
    cluster: Cluster, session: FlowSession, outbox: Outbox
) -> None:
    with session.lock:
        outbox.carry_out(session, session.pass_over(Position(6), Position(7)))  # which reports of r1
        session.disconnected(session.connection or Deaf(), "the connection broke")
        effect = session.assign("r2")
        assert effect is not None
        assert outbox.begin(session, effect)()
    outbox.close()
    found = cluster.coordination.read(*FLOW.place, "subscriber") or {}
    assert (found["id"], found["epoch"], found.get("lost")) == ("r2", session.epoch, None)


def test_an_owner_that_is_found_to_be_replaced_sends_no_more(
    cluster: Cluster, session: FlowSession, outbox: Outbox
) -> None:
    cluster.coordination.delete(*FLOW.place, "owner")
    with connect(cluster.address) as other:
        (taken,) = Ownership(other.coordination, "p2").take([Wanted(FLOW, lambda before: before or START)], {})
        assert taken is not None
        with session.lock:
            acknowledge(session, outbox)
        outbox.close()
    assert session.ended
    assert marker(cluster) == START
