"""One gateway, one client: what is said over the socket, and which rows are written for it."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway_scene import SERVICE, Client, Process, Scene, online, scene_of
from tidings.cluster import Cluster
from tidings.testing import eventually
from tidings_thialfi.console import services
from tidings_thialfi.protocol import stream_schema


@pytest.fixture
def scene(cluster: Cluster, tmp_path: Path) -> Iterator[Scene]:
    with scene_of(cluster, tmp_path) as own:
        yield own


@pytest.fixture
def gateway(scene: Scene) -> Process:
    return scene.gateway("g1", "--resend", "1", "--heartbeat", "5", "--offline-after", "6")


def goes_stale(client: Client) -> bool:
    client.say(heartbeat=True)
    heard = client.hear()
    assert heard.get("token", client.token) == client.token
    return "stale" in heard


def test_hello_gives_a_number_and_a_token_once_the_client_is_durable(scene: Scene, gateway: Process) -> None:
    client = scene.client(gateway)
    grant = client.hello(application="web-7")
    assert grant["again"] is False
    assert scene.rows(client.client)[0] == {"op": "created", "number": None, "source": "web-7"}
    assert scene.await_row(client.client, stream_schema.ONLINE)["gateway"] == "g1"


def test_operators_see_how_many_clients_a_gateway_has_and_how_long_notifications_take(scene: Scene) -> None:
    client = online(scene, scene.gateway("g1"))
    scene.notify(client.client, "alice", 7)
    client.hear_of("notify")
    shown = eventually(lambda: (one := services(scene.cluster)[0])["gateways"][0]["clients"] and one, timeout=30)
    assert shown["gateways"][0]["clients"] == 1
    assert 0 <= shown["delay_seconds"]["p50"] <= shown["delay_seconds"]["p99"] < 20


def test_a_late_grant_does_not_cost_a_second_number(scene: Scene, gateway: Process) -> None:
    client = scene.client(gateway)
    for nonce in ("first", "second"):
        client.say(hello={"nonce": nonce, "application": "web-1"})
    grants = [client.hear_of("grant")["grant"] for _ in range(2)]
    assert [grant["nonce"] for grant in grants] == ["first", "second"]
    assert grants[0]["client"] == grants[1]["client"]
    assert scene.ops(int(grants[0]["client"])).count("created") == 1


def test_a_client_keeps_its_number_when_it_says_hello_with_its_token(scene: Scene, gateway: Process) -> None:
    client = online(scene, gateway)
    before = client.client
    other = scene.client(gateway)
    other.token = client.token
    assert other.hello()["again"] is True
    assert other.client == before
    assert scene.ops(before).count("created") == 1


def test_a_forged_token_is_invalid(scene: Scene, gateway: Process) -> None:
    client = scene.client(gateway)
    client.say(token="forged", heartbeat=True)
    heard = client.hear()
    assert "token" in heard["invalid"]
    assert heard["token"] == "forged"  # so that it takes no other away, if it comes late
    client.say(token="forged", hello={"nonce": "n", "application": "a"})
    assert "invalid" in client.hear()
    assert gateway.metric("refused_messages_total", reason="forged") == 2


def test_an_expired_token_is_stale_and_its_number_is_kept(scene: Scene) -> None:
    gateway = scene.gateway("g1", "--token-lifetime", "1")
    client = online(scene, gateway)
    before = client.client
    eventually(lambda: goes_stale(client), every=0.2)
    assert client.hello()["again"] is True
    assert client.client == before
    assert scene.ops(before).count("created") == 1


def test_a_token_of_a_former_identity_is_stale_and_the_client_is_created_anew(scene: Scene, gateway: Process) -> None:
    client = online(scene, gateway)
    before = client.client
    scene.cluster.coordination.write({"identity": "after-the-fire"}, "thialfi", SERVICE)
    eventually(lambda: goes_stale(client), every=0.2)
    assert client.hello()["again"] is True
    assert client.client == before
    scene.await_row(before, stream_schema.CREATED, 2)
    scene.await_row(before, stream_schema.ONLINE, 2)
    client.say(heartbeat=True)
    assert "stale" not in client.hear()


def test_operations_become_rows_and_the_stages_answer_a_status(scene: Scene, gateway: Process) -> None:
    client = online(scene, gateway)
    client.say(register=[["alice", "11"], ["bob", "12"]], unregister=[["carol", "13"]], heartbeat=True)
    client.hear()  # the answer comes when the rows are durable
    made = [row for row in scene.rows(client.client) if row["op"] in ("register", "unregister")]
    assert [(row["op"], row["object"], row["number"]) for row in made] == [
        ("register", "alice", 11),
        ("register", "bob", 12),
        ("unregister", "carol", 13),
    ]
    assert {row["source"] for row in made} == {"web-1"}
    scene.tell(client.client, stream_schema.REGISTERED, 11, object="alice")
    assert client.hear_of("status")["status"] == [["alice", True, "11"]]


def test_a_notification_is_pushed_with_its_payload_and_its_acknowledgement_becomes_a_row(
    scene: Scene, gateway: Process
) -> None:
    client = online(scene, gateway)
    scene.notify(client.client, "alice", 7, b"hi")
    assert client.hear_of("notify")["notify"] == [["alice", "7", base64.b64encode(b"hi").decode()]]
    client.say(acknowledge=[["alice", "7"]])
    assert scene.await_row(client.client, stream_schema.ACKNOWLEDGE)["number"] == 7
    scene.tell(client.client, stream_schema.UNKNOWN, 1700, object="bob")
    assert client.hear_of("notify")["notify"] == [["bob", "1700", "unknown"]]
    client.say(acknowledge=[["bob", "1700", "unknown"]])
    assert scene.await_row(client.client, stream_schema.ACKNOWLEDGE_UNKNOWN)["object"] == "bob"


def test_what_is_not_acknowledged_comes_again_until_it_is_and_only_its_newest_version(
    scene: Scene, gateway: Process
) -> None:
    client = online(scene, gateway)
    scene.notify(client.client, "alice", 7)
    scene.notify(client.client, "alice", 8)
    heard = [client.hear_of("notify")["notify"] for _ in range(2)]
    assert heard in ([[["alice", "7"]], [["alice", "8"]]], [[["alice", "8"]], [["alice", "8"]]])
    assert client.hear_of("notify", 5)["notify"] == [["alice", "8"]]
    client.say(acknowledge=[["alice", "7"]])
    scene.await_row(client.client, stream_schema.ACKNOWLEDGE, number=7)
    assert client.hear_of("notify", 5)["notify"] == [["alice", "8"]]
    client.say(acknowledge=[["alice", "8"]])
    scene.await_row(client.client, stream_schema.ACKNOWLEDGE, number=8)
    eventually(lambda: gateway.metric("unacknowledged_notifications") == 0)


def test_differing_digests_bring_a_sync_and_its_parts_become_one(scene: Scene, gateway: Process) -> None:
    client = online(scene, gateway)
    scene.tell_digest(client.client, 0)
    assert client.hear_of("digest")["digest"] == ["0", "0"]
    client.say(digest=client.digest("alice", "bob"), heartbeat=True)
    assert client.hear_of("sync")["sync"] is True
    client.say(sync={"number": "20", "part": 1, "parts": 2, "objects": ["bob"]})
    client.say(heartbeat=True)
    client.hear()
    assert "sync" not in scene.ops(client.client)
    client.say(sync={"number": "20", "part": 0, "parts": 2, "objects": ["alice"]})
    scene.await_row(client.client, stream_schema.SYNC, number=20)
    made = [row for row in scene.rows(client.client) if row["op"] in ("register", "sync")]
    assert [(row["op"], row.get("object"), row["number"]) for row in made] == [
        ("register", "alice", 20),
        ("register", "bob", 20),
        ("sync", None, 20),
    ]
    scene.tell_digest(client.client, 20, "alice", "bob")
    assert client.hear_of("digest")["seen"] == "20"
    client.say(digest=client.digest("alice", "bob"), heartbeat=True)
    assert "sync" not in client.hear()


def test_a_client_that_the_stage_does_not_know_any_more_starts_afresh(scene: Scene, gateway: Process) -> None:
    client = online(scene, gateway)
    before = client.client
    scene.tell(before, stream_schema.INVALID, None, reason="collected")
    heard = client.hear_of("invalid")
    assert (heard["invalid"], heard["token"]) == ("collected", client.token)
    client.token = None
    assert client.hello()["again"] is False
    assert client.client != before


def test_a_client_that_goes_is_offline(scene: Scene, gateway: Process) -> None:
    client = online(scene, gateway)
    client.close()
    assert scene.await_row(client.client, stream_schema.OFFLINE)["gateway"] == "g1"


def test_a_client_that_is_silent_for_too_long_is_offline(scene: Scene, gateway: Process) -> None:
    client = online(scene, gateway)
    assert client.closed() == 3012
    scene.await_row(client.client, stream_schema.OFFLINE)


def test_the_newest_of_two_channels_has_the_client(scene: Scene, gateway: Process) -> None:
    old = online(scene, gateway)
    new = scene.client(gateway)
    new.token, new.client = old.token, old.client
    new.say(heartbeat=True)
    new.hear()
    assert old.closed() == 3002
    scene.await_row(new.client, stream_schema.ONLINE, 2)
    scene.notify(new.client, "alice", 1)
    assert new.hear_of("notify")["notify"] == [["alice", "1"]]
    assert stream_schema.OFFLINE not in scene.ops(new.client)


def test_a_gateway_that_is_stopped_sends_its_clients_elsewhere(scene: Scene, gateway: Process) -> None:
    client = online(scene, gateway)
    gateway.process.send_signal(signal.SIGTERM)
    assert client.closed() == 3001
    assert gateway.end(None) == 143
    assert scene.ops(client.client)[-1] == stream_schema.OFFLINE
    place = scene.cluster.coordination.children("thialfi", SERVICE, "gateways")
    assert place == []
    assert not any("Traceback" in line for line in gateway.lines), "".join(gateway.lines)


def test_no_token_is_logged(scene: Scene, gateway: Process) -> None:
    client = online(scene, gateway)
    client.text("{")
    client.hear()
    gateway.end()
    assert client.token is not None
    assert client.token not in "".join(gateway.lines)


def test_health_and_metrics_are_served(gateway: Process) -> None:
    assert gateway.get("/health/live") == (200, "alive\n")
    assert eventually(lambda: gateway.get("/health/ready") == (200, "ready\n"))
    assert "tidings_gateway_sessions 0.0" in gateway.get("/metrics")[1]
    assert gateway.get("/elsewhere")[0] == 404


def test_a_long_poll_does_what_a_socket_does(scene: Scene) -> None:
    gateway = scene.gateway("g1", "--poll-gap", "1")
    code, answer = gateway.post(
        "/v1/poll", {"send": [{"v": "1.0", "hello": {"nonce": "n", "application": "web"}}], "wait": 0}
    )
    grant = answer["receive"][0]["grant"]
    client = int(grant["client"])
    beat = {"v": "1.0", "token": grant["token"], "heartbeat": True}
    register = {"v": "1.0", "token": grant["token"], "register": [["alice", "1"]]}
    assert code == 200
    scene.await_row(client, stream_schema.ONLINE)
    gateway.post("/v1/poll", {"send": [register], "wait": 0})
    assert scene.await_row(client, stream_schema.REGISTER)["object"] == "alice"
    gateway.post("/v1/poll", {"send": [beat], "wait": 0})
    scene.notify(client, "alice", 3)
    heard = eventually(
        lambda: [m for m in gateway.post("/v1/poll", {"send": [beat], "wait": 5})[1]["receive"] if "notify" in m]
    )
    assert heard[0]["notify"] == [["alice", "3"]]
    scene.await_row(client, stream_schema.OFFLINE)  # it does not poll any more


def test_a_poll_that_makes_no_sense_is_refused(gateway: Process) -> None:
    for body in (b"", b"[]", b"{", b'{"send": 1}', b'{"send": []}', b'{"send": [1], "wait": "x"}', b"\xff"):
        code, answer = gateway.post("/v1/poll", body)
        assert (code, json.loads(answer)["receive"][0]["error"]["code"]) == (400, "malformed")
    code, answer = gateway.post("/v1/poll", {"send": [1]})
    assert answer["receive"][0]["error"]["code"] == "malformed"
