"""What a subscriber takes from whom: a publisher that is the owner, and one that is not, not any more, or not yet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.owner import STREAM, Owner, owning
from tests.support.proxy import Proxy
from tidings.cluster import Cluster
from tidings.coordination.lease import Lease
from tidings.coordination.zookeeper import Coordination
from tidings.datamarkers import Datamarker
from tidings.flows import Flow
from tidings.handlers import Handler
from tidings.subscriber.subscriber import Subscriber
from tidings.testing import eventually, held, make_updates
from tidings.updates import Update
from tidings.wire.protocol import Era

APPLICATION, ID, SHARDS = "cache", "r1", 2
NOT_NAMED = "ZooKeeper does not name this subscriber for that epoch"


class Wayward(Handler):
    """Keeps what it gets, waits before it is done with an update if it is told to, and fails if it is told to."""

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.closed: list[Flow] = []
        self.lease: Lease | None = None
        self.certain: list[bool] = []
        """Whether the lease was valid, at each update."""
        self.fails = ""
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def on_update(self, update: Update) -> None:
        if self.fails == "on_update":
            raise RuntimeError("no good")
        if self.lease is not None:
            self.certain.append(self.lease.valid())
        self.seqs.append(update.position.seq)
        self.reached.set()
        assert self.go_on.wait(30)

    def on_token(self, flow: Flow, datamarker: Datamarker) -> None:
        if self.fails == "on_token":
            raise RuntimeError("no good")

    def on_flow_closed(self, flow: Flow) -> None:
        self.closed.append(flow)


@pytest.fixture
def handler() -> Wayward:
    return Wayward()


@pytest.fixture
def rows(cluster: Cluster) -> list[pa.Table]:
    """Rows of each shard."""
    stream = cluster.create_stream(STREAM, SHARDS)
    cluster.create_application(APPLICATION, [STREAM], start="earliest")
    stream.writable_log.append(make_updates(40))
    found = held(stream.log)
    return [found.filter(pc.equal(found["shard"], shard)) for shard in range(SHARDS)]


@pytest.fixture
def subscriber(cluster: Cluster, rows: list[pa.Table], handler: Wayward) -> Iterator[Subscriber]:
    """One without a publisher that it would wait for when it leaves."""
    subscriber = cluster.subscribe(APPLICATION, handler, id=ID, retries=0)
    yield subscriber
    handler.go_on.set()
    subscriber.close(timeout=0)


@pytest.fixture
def owner(subscriber: Subscriber) -> Iterator[Owner]:
    with owning(subscriber._coordination, APPLICATION) as owner:
        yield owner


Name = Callable[..., None]


@pytest.fixture
def name(cluster: Cluster) -> Name:
    """Has ZooKeeper name the holder of a flow."""

    def write(epoch: int, id: str = ID, shard: int = 0) -> None:
        place = Flow(APPLICATION, STREAM, shard).place
        cluster.coordination.write({"id": id, "epoch": epoch}, *place, "subscriber")

    return write


@pytest.mark.parametrize(
    "holder", [None, {"id": "r2", "epoch": 3}, {"id": ID, "epoch": 2}, {"id": ID, "epoch": 4}], ids=str
)
def test_a_flow_is_opened_only_if_zookeeper_names_this_subscriber_for_the_epoch(
    subscriber: Subscriber, owner: Owner, name: Name, holder: dict[str, Any] | None
) -> None:
    if holder is not None:
        name(**holder)
    answer = owner.open(Era(3, 1))
    assert (answer["t"], answer.get("reason")) == ("refused", NOT_NAMED)
    assert subscriber.flows == []
    name(3)
    assert owner.open(Era(3, 2))["t"] == "opened"
    assert subscriber.flows == [owner.flow(0)]


def test_an_opening_that_was_overtaken_or_is_repeated_is_refused(
    subscriber: Subscriber, owner: Owner, name: Name
) -> None:
    name(3)
    assert owner.open(Era(3, 2))["t"] == "opened"
    for late in (Era(3, 1), Era(3, 2)):
        assert owner.open(late)["reason"] == "the flow's epoch is 3 already"
    assert subscriber.flows == [owner.flow(0)]


@pytest.fixture
def apart(
    cluster: Cluster, rows: list[pa.Table], zookeeper: str, handler: Wayward
) -> Iterator[tuple[Proxy, Subscriber, Owner]]:
    """A subscriber with a proxy between it and ZooKeeper."""
    with Proxy(zookeeper) as proxy, ExitStack() as closing:
        own = closing.enter_context(Cluster(Coordination(f"{proxy.address}{cluster.coordination.root}")))
        subscriber = own.subscribe(APPLICATION, handler, id=ID)
        closing.callback(subscriber.close, timeout=0)
        owner = closing.enter_context(owning(cluster.coordination, APPLICATION))
        eventually(lambda: owner.exchanges)
        yield proxy, subscriber, owner
        proxy.heal()


def test_an_opening_that_was_withdrawn_before_zookeeper_answered_is_refused(
    apart: tuple[Proxy, Subscriber, Owner], name: Name
) -> None:
    proxy, subscriber, owner = apart
    name(3)
    proxy.freeze()
    owner.say("open", Era(3, 1), after=[-1, 0])
    owner.say("close", Era(3, 1))
    owner.heard(["refused"], Era(3, 1))  # the close, of what is not open yet
    proxy.heal()
    assert owner.heard(["opened", "refused"], Era(3, 1)).get("reason") == "it was closed before it was opened"
    assert subscriber.flows == []


def test_a_handler_is_not_called_before_the_session_is_certain_again(
    apart: tuple[Proxy, Subscriber, Owner], name: Name, rows: list[pa.Table], handler: Wayward
) -> None:
    proxy, subscriber, owner = apart
    name(3)
    owner.open(Era(3, 1))
    handler.lease = subscriber._lease
    proxy.cut()
    eventually(lambda: not subscriber._coordination.client.connected)
    subscriber._lease.void()  # as it is by itself after a while
    owner.send(Era(3, 1), rows[0].slice(0, 2))
    proxy.heal()
    owner.heard(["done"], Era(3, 1))
    assert handler.certain == [True, True]


def test_what_an_owner_sends_that_was_replaced_is_refused(
    owner: Owner, name: Name, rows: list[pa.Table], handler: Wayward
) -> None:
    for epoch in (3, 4):
        name(epoch)
        assert owner.open(Era(epoch, 1))["t"] == "opened"
    owner.send(Era(3, 1), rows[0].slice(0, 2))
    owner.send(Era(4, 1), rows[0].slice(2, 2))
    owner.heard(["done"], Era(4, 1))
    assert owner.heard(["refused"], Era(3, 1))["reason"] == "that epoch is over"
    assert handler.seqs == [2, 3]


def test_what_is_left_of_a_message_when_another_owner_has_opened_the_flow_is_not_processed(
    owner: Owner, name: Name, rows: list[pa.Table], handler: Wayward
) -> None:
    name(3)
    owner.open(Era(3, 1))
    handler.go_on.clear()
    owner.send(Era(3, 1), rows[0].slice(0, 4))
    assert handler.reached.wait(30)
    name(4)
    assert owner.open(Era(4, 1))["t"] == "opened"
    owner.send(Era(4, 1), rows[0].slice(1, 1))
    handler.go_on.set()
    owner.heard(["done"], Era(4, 1))
    assert handler.seqs == [0, 1]


def test_a_flow_that_zookeeper_gives_to_another_subscriber_is_let_go(
    subscriber: Subscriber, owner: Owner, name: Name, handler: Wayward
) -> None:
    name(3)
    owner.open(Era(3, 1))
    name(3, id="r2")
    assert owner.heard(["refused"], Era(3, 1))["reason"] == "ZooKeeper names another subscriber"
    assert subscriber.flows == []
    eventually(lambda: handler.closed == [owner.flow(0)])


def test_a_flow_whose_publisher_is_gone_is_let_go(
    subscriber: Subscriber, owner: Owner, name: Name, handler: Wayward
) -> None:
    name(3)
    owner.open(Era(3, 1))
    owner.hang_up()
    eventually(lambda: subscriber.flows == [])
    eventually(lambda: handler.closed == [owner.flow(0)])


@pytest.mark.parametrize("fails", ["on_update", "on_token"])
def test_nothing_is_acknowledged_at_or_after_what_a_handler_failed_at(
    owner: Owner, name: Name, rows: list[pa.Table], handler: Wayward, fails: str
) -> None:
    for shard in range(SHARDS):
        name(3, shard=shard)
        owner.open(Era(3, 1), shard)
    handler.fails = fails
    upto = owner.send(Era(3, 1), rows[0].slice(0, 2))
    owner.say("token", Era(3, 1), position=[upto.seq, upto.index])
    assert f"{fails}: RuntimeError: no good" in owner.heard(["parked"], Era(3, 1))["reason"]
    handler.fails = ""
    owner.say("token", Era(3, 1), position=[upto.seq, upto.index])
    # The other flow has the same worker: when it is done, so is all that came before.
    owner.send(Era(3, 1), rows[1].slice(0, 1), shard=1)
    owner.heard(["done"], Era(3, 1), shard=1)
    assert [one for one in owner.answers if one["t"] == "ack"] == []
