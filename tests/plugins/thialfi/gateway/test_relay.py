"""Several gateways: a client is at one, and the flow of its shard with another."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway_scene import Client, Process, Scene, online, scene_of
from tests.support.proxy import Proxy
from tidings.cluster import Cluster
from tidings.flow_status import status
from tidings.testing import eventually
from tidings_thialfi.protocol import stream_schema


@pytest.fixture
def scene(cluster: Cluster, tmp_path: Path) -> Iterator[Scene]:
    with scene_of(cluster, tmp_path, shards=8) as own:
        yield own


@pytest.fixture
def gateways(scene: Scene) -> list[Process]:
    secret = scene.secret_file("peers", "between-gateways")
    made = [scene.gateway(name, "--peer-secret", str(secret)) for name in ("g1", "g2")]
    eventually(lambda: set(holders(scene).values()) == {"g1", "g2"})
    return made


def holders(scene: Scene) -> dict[int, str | None]:
    flows = status(scene.cluster, application="contacts.gateways")
    return {one.flow.shard: one.subscriber for one in flows if one.state == "running"}


def test_every_client_hears_wherever_it_is(scene: Scene, gateways: list[Process]) -> None:
    clients = [online(scene, gateway) for gateway in gateways for _ in range(8)]
    for number, client in enumerate(clients):
        scene.notify(client.client, "alice", number)
    for number, client in enumerate(clients):
        assert client.hear_of("notify")["notify"] == [["alice", str(number)]]
        client.say(acknowledge=[["alice", str(number)]])
        scene.await_row(client.client, stream_schema.ACKNOWLEDGE, number=number)
    assert sum(gateway.metric("relayed_rows_total", direction="in") for gateway in gateways) > 0


def test_a_client_that_comes_to_another_gateway_is_closed_at_the_first(scene: Scene, gateways: list[Process]) -> None:
    for first, second in (gateways, gateways[::-1]):
        old = online(scene, first)
        new = scene.client(second)
        new.token, new.client = old.token, old.client
        new.say(heartbeat=True)
        assert old.closed() == 3002
        scene.await_row(new.client, stream_schema.ONLINE, 2)
        scene.notify(new.client, "alice", 3)
        assert new.hear_of("notify")["notify"] == [["alice", "3"]]
        assert stream_schema.OFFLINE not in scene.ops(new.client)


def test_a_client_that_comes_again_while_its_older_channel_is_open_is_marked_online_again(
    scene: Scene, gateways: list[Process]
) -> None:
    for first in gateways:
        for holder in ("g1", "g2"):
            old = online(scene, first)
            while holders(scene)[scene.notifications.shard_of(str(old.client))] != holder:
                old = online(scene, first)
            new = scene.client(first)
            new.token, new.client = old.token, old.client
            new.say(heartbeat=True)
            assert old.closed() == 3002
            scene.await_row(new.client, stream_schema.ONLINE, 2)


def _told_by_the_survivor(scene: Scene, client: Client, count: int) -> None:
    """Wait until the client is marked online once more, as it is when its route is there again; then tell it."""
    scene.await_row(client.client, stream_schema.ONLINE, count)
    scene.notify(client.client, "bob", 9)
    while ["bob", "9"] not in client.hear_of("notify")["notify"]:
        pass


def test_when_a_gateway_dies_its_flows_and_its_clients_go_to_the_other(scene: Scene, gateways: list[Process]) -> None:
    first, second = gateways
    theirs = holders(scene)
    staying: list[Client] = []
    while len({theirs[scene.notifications.shard_of(str(one.client))] for one in staying}) < 2:
        staying.append(online(scene, second))  # until there is one whose flow each of them holds
    moving = online(scene, first)
    os.kill(first.process.pid, signal.SIGKILL)
    with pytest.raises(ConnectionError):
        moving.hear()
    again = scene.client(second)
    again.token, again.client = moving.token, moving.client
    again.say(heartbeat=True)
    for client in staying:
        count = 1 if theirs[scene.notifications.shard_of(str(client.client))] == "g2" else 2
        _told_by_the_survivor(scene, client, count)
    _told_by_the_survivor(scene, again, 2)


@pytest.mark.slow
def test_a_line_between_gateways_that_falls_silent_is_opened_anew_and_its_clients_are_marked_online_again(
    scene: Scene,
) -> None:
    secret = scene.secret_file("peers", "between-gateways")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with Proxy(f"127.0.0.1:{port}") as line:
        options = ("--listen", f"127.0.0.1:{port}", "--advertise", line.address)
        scene.gateway("g1", "--peer-secret", str(secret), *options)
        here = scene.gateway("g2", "--peer-secret", str(secret))
        eventually(lambda: set(holders(scene).values()) == {"g1", "g2"})
        theirs = holders(scene)
        client = online(scene, here)
        while theirs[scene.notifications.shard_of(str(client.client))] != "g1":
            client = online(scene, here)
        assert line.accepted == 1
        line.freeze()  # both gateways live, and neither hears that the other cannot be reached
        scene.notify(client.client, "alice", 1)
        eventually(lambda: line.accepted == 2, timeout=60)
        line.heal()
        _told_by_the_survivor(scene, client, 2)
        assert holders(scene) == theirs, "the flows have stayed where they were"


def test_the_newest_channel_has_the_client_although_an_older_one_was_not_told(scene: Scene) -> None:
    secret = scene.secret_file("peers", "between-gateways")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with Proxy(f"127.0.0.1:{port}") as line:
        options = ("--listen", f"127.0.0.1:{port}", "--advertise", line.address)
        holder = scene.gateway("g1", "--peer-secret", str(secret), *options)
        other = scene.gateway("g2", "--peer-secret", str(secret))
        eventually(lambda: set(holders(scene).values()) == {"g1", "g2"})
        theirs = holders(scene)
        old = online(scene, other)
        while theirs[scene.notifications.shard_of(str(old.client))] != "g1":
            old = online(scene, other)
        line.cut()
        eventually(lambda: other.metric("unrouted_sessions") > 0)
        new = scene.client(holder)
        new.token, new.client = old.token, old.client
        new.say(heartbeat=True)
        new.hear()
        line.heal()
        assert old.closed() == 3002
        scene.notify(new.client, "alice", 3)
        assert new.hear_of("notify")["notify"] == [["alice", "3"]]


def test_a_frame_that_makes_no_sense_ends_no_line_between_gateways(scene: Scene, gateways: list[Process]) -> None:
    relay = scene.client(gateways[0], "/v1/relay", "tidings.thialfi.relay.v1", Authorization="Bearer between-gateways")
    bad = ["", "[", "[" * 5000, "1", "[1]", '["want"]', '["want", 7]', '["want", ["x"]]', '["want", ["-1"]]']
    for frame in bad:
        relay.text(frame)
    relay.text('["sing", ["7"]]')  # of a later version, say
    relay.text('["want", ["7"]]')
    assert relay.hear()[0] in ("have", "not")  # type: ignore[index]
    eventually(lambda: gateways[0].metric("refused_messages_total", reason="malformed") == len(bad))
    relay.text("")
    assert relay.closed() == 3501


def test_when_a_gateway_leaves_the_other_takes_over_and_nobody_misses_anything(
    scene: Scene, gateways: list[Process]
) -> None:
    first, second = gateways
    theirs = holders(scene)
    client = online(scene, second)
    while theirs[scene.notifications.shard_of(str(client.client))] != "g1":
        client = online(scene, second)
    assert first.end() == 143
    _told_by_the_survivor(scene, client, 2)
    assert not any("Traceback" in line for line in first.lines + second.lines)


def test_a_gateway_without_the_secret_says_that_clients_hear_nothing(scene: Scene, gateways: list[Process]) -> None:
    lonely = scene.gateway("g3")
    eventually(lambda: "g3" in holders(scene).values())
    theirs = holders(scene)
    while True:
        client = scene.client(lonely)
        client.hello()
        if theirs[scene.notifications.shard_of(str(client.client))] != "g3":
            break
    assert eventually(lambda: lonely.get("/health/ready")[0] == 503)
    assert "secret" in lonely.get("/health/ready")[1]


def test_a_gateway_that_was_stopped_for_longer_than_its_session_comes_back(scene: Scene) -> None:
    gateway = scene.gateway("g1")
    client = online(scene, gateway)
    eventually(lambda: len(holders(scene)) == 8)
    os.kill(gateway.process.pid, signal.SIGSTOP)
    try:
        eventually(lambda: not scene.cluster.coordination.children("thialfi", "contacts", "gateways"), 60)
    finally:
        os.kill(gateway.process.pid, signal.SIGCONT)
    eventually(lambda: scene.cluster.coordination.children("thialfi", "contacts", "gateways") == ["g1"], 60)
    _told_by_the_survivor(scene, client, 2)
    assert gateway.get("/health/ready")[0] == 200
