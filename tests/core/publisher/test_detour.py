"""Flows that leave the log at a place, for rows that are for their application alone."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from tidings.applications import Application
from tidings.cluster import Cluster
from tidings.flows import Flow
from tidings.logs import Log, SnapshotPlace
from tidings.positions import START, Position
from tidings.publisher.data_loss import DataLoss
from tidings.publisher.flow_session import FlowSession, SessionOptions
from tidings.publisher.outbox import Outbox
from tidings.publisher.ownership import Ownership, Wanted
from tidings.snapshot_requests import SNAPSHOTS, SnapshotRequest, change_request
from tidings.wire.connection import Connection
from tidings.wire.protocol import flow_message

FLOW = Flow("cache", "shop", 0)
PLACE = SnapshotPlace(Position(7, 99), Position(8, -1))


@pytest.fixture
def session() -> FlowSession:
    """A flow that is open, and stands before its detour."""
    connection = cast(Connection, object())
    application = Application(FLOW.application, (FLOW.stream,))
    made = FlowSession(FLOW, 1, application, Position(3), threading.RLock(), SessionOptions(), detour=PLACE.before)
    made.open(connection)
    made.answered(connection, flow_message("opened", FLOW, made.era))
    return made


def test_what_is_behind_the_place_waits_until_the_flow_has_been_there(session: FlowSession) -> None:
    session.advance(Position(5))
    assert (session.sent, session.detour) == (Position(5), PLACE.before)
    session.advance(Position(20))
    assert (session.sent, session.detour) == (PLACE.before, None)
    for place in (Position(7, 120), PLACE.after, Position(20)):
        session.advance(place)
        assert (session.sent, session.detour) == (place, None)


def test_a_flow_that_begins_again_before_the_place_comes_by_it_again(session: FlowSession) -> None:
    assert session.connection is not None
    session.advance(Position(20))
    session.disconnected(session.connection, "broken")
    assert (session.sent, session.detour) == (Position(3), PLACE.before)


def test_what_is_lost_behind_the_place_is_told_when_the_flow_comes_there(session: FlowSession) -> None:
    losses = DataLoss(cast(Log, object()), cast(Outbox, None))
    losses.truncated([session], {0: (Position(9), Position(12))})
    assert session.sent == PLACE.before


@pytest.fixture
def asked(cluster: Cluster) -> SnapshotRequest:
    """A snapshot for the application, which has no place yet."""
    cluster.coordination.write({}, "applications", FLOW.application)
    request = SnapshotRequest.now([FLOW.application], [])
    cluster.coordination.create(request.to_json(), SNAPSHOTS, FLOW.stream)
    return request


def test_who_takes_a_flow_goes_by_the_request_that_is_there(cluster: Cluster, asked: SnapshotRequest) -> None:
    ownership, wanted = Ownership(cluster.coordination, "p1"), [Wanted(FLOW, lambda before: before or Position(20))]
    assert ownership.take(wanted, {}) == [None]
    assert change_request(cluster.coordination, FLOW.stream, asked, place=PLACE)
    (taken,) = ownership.take(wanted, {})
    assert taken is not None
    assert (taken.position, taken.detour) == (PLACE.before, PLACE.before)  # nobody begins behind the rows


def test_who_has_not_seen_the_request_cannot_take_a_flow_that_is_fenced(cluster: Cluster) -> None:
    cluster.coordination.write({}, "applications", FLOW.application)
    ownership, other = Ownership(cluster.coordination, "p1"), Ownership(cluster.coordination, "p2")
    fenced = []

    def start(before: Position | None) -> Position:
        fenced.append(other.fence(FLOW))  # just before the transaction
        return START

    assert ownership.take([Wanted(FLOW, start)], {}) == [None]
    (epoch,) = fenced
    assert epoch is not None
    assert other.write(FLOW, epoch, "epoch", {}) is True  # by that epoch what is the flow's can be written
    (taken,) = ownership.take([Wanted(FLOW, lambda before: START)], {})
    assert taken is not None
    assert taken.epoch > epoch
    assert other.fence(FLOW) is None  # it has an owner


def test_a_request_that_makes_no_sense_holds_nobody(cluster: Cluster) -> None:
    cluster.coordination.write({}, "applications", FLOW.application)
    cluster.coordination.create({"id": 7}, SNAPSHOTS, FLOW.stream)
    (taken,) = Ownership(cluster.coordination, "p1").take([Wanted(FLOW, lambda before: START)], {})
    assert taken is not None
    assert taken.detour is None
