"""A client with much to hear: it comes in pieces, at the client's pace, and nobody is sent away for it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.gateway_scene import Client, Process, Scene, online, scene_of
from tidings.cluster import Cluster
from tidings.testing import eventually
from tidings_thialfi.protocol import stream_schema


@pytest.fixture
def scene(cluster: Cluster, tmp_path: Path) -> Iterator[Scene]:
    with scene_of(cluster, tmp_path) as own:
        yield own


def notices(client: int, count: int, payload: int) -> list[dict[str, Any]]:
    return [
        {
            "object": str(client),
            "version": 1,
            "payload": os.urandom(payload),
            "attributes": {"say": "notify", "object": f"o{n}"},
        }
        for n in range(count)
    ]


def hear_all(client: Client, count: int) -> set[str]:
    """Acknowledge what comes, until so much has come."""
    heard: set[str] = set()
    for _ in range(1_000):
        if len(heard) == count:
            break
        entries = client.hear_of("notify")["notify"]
        heard |= {entry[0] for entry in entries if len(entry) == 3}
        client.say(acknowledge=[entry[:2] for entry in entries])
    return heard


def test_a_burst_beyond_the_window_comes_in_pieces_as_it_is_acknowledged(scene: Scene) -> None:
    gateway = scene.gateway("g1")
    client = online(scene, gateway)
    scene.tell_many(notices(client.client, 1_500, 1_000))
    assert len(hear_all(client, 1_500)) == 1_500
    eventually(lambda: gateway.metric("unacknowledged_notifications") == 0)
    assert gateway.metric("limited_total", limit="slow") == 0


def test_no_more_is_under_way_than_the_window_holds_until_it_is_acknowledged(scene: Scene) -> None:
    gateway = scene.gateway("g1", "--max-queue", "16KiB")
    client = online(scene, gateway)
    scene.tell_many(notices(client.client, 40, 1_000))
    eventually(lambda: gateway.metric("unacknowledged_notifications") == 40)
    first = hear_some(client)
    assert 1 <= len(first) <= 16
    assert hear_some(client) == []
    client.say(acknowledge=first)
    assert len(hear_all(client, 40 - len(first))) == 40 - len(first)


def test_who_acknowledges_nothing_hears_of_everything_all_the_same(scene: Scene) -> None:
    gateway = scene.gateway("g1", "--max-queue", "16KiB", "--resend", "0.3")
    client = online(scene, gateway)
    scene.tell_many(notices(client.client, 40, 1_000))
    heard: set[str] = set()
    while len(heard) < 40:
        heard |= {entry[0] for entry in client.hear_of("notify")["notify"]}


@pytest.mark.parametrize("option", ["--max-pending", "--max-pending-total"])
def test_what_is_beyond_what_is_kept_is_asked_of_the_stage_again(scene: Scene, option: str) -> None:
    gateway = scene.gateway("g1", option, "32KiB", "--resend", "1", "--rate", "10000", "--burst", "10000")
    client = online(scene, gateway)
    left, asked = notices(client.client, 60, 1_000), 0
    for _ in range(500):  # as the stage does: all that is not acknowledged, whenever the client is marked online
        if scene.ops(client.client).count(stream_schema.ONLINE) > asked:
            asked += 1
            scene.tell_many(left)
        if heard := hear_some(client):
            client.say(acknowledge=heard)
            names = {entry[0] for entry in heard}
            left = [row for row in left if row["attributes"]["object"] not in names]
        if not left:
            break
    assert not left
    assert asked > 1


def hear_some(client: Client) -> list[Any]:
    """What is notified next, if something is; the answer to a heartbeat says that nothing is."""
    client.say(heartbeat=True)
    heard: list[Any] = []
    while (message := client.hear()).keys() != {"v"}:
        heard += [entry[:2] for entry in message.get("notify", ())]
    return heard


def test_statuses_without_number_come_whole_and_the_digest_with_them(scene: Scene) -> None:
    gateway = scene.gateway("g1")
    client = online(scene, gateway)
    names = [f"{n:05}" + "x" * 200 for n in range(3_000)]
    said = [{"say": "registered", "object": name} for name in names]
    scene.tell_many([{"object": str(client.client), "version": 7, "attributes": one} for one in said])
    scene.tell_digest(client.client, 7, *names)
    heard: set[str] = set()
    digest = None
    while len(heard) < len(names) or digest is None:
        message = client.hear()
        heard |= {entry[0] for entry in message.get("status", ())}
        digest = message.get("digest", digest)
    assert digest == client.digest(*names)


def test_a_client_that_polls_hears_it_in_pieces_too(scene: Scene) -> None:
    gateway = scene.gateway("g1")
    polled = poll(gateway, {"v": "1.0", "hello": {"nonce": "n", "application": "web"}})[0]["grant"]
    scene.await_row(int(polled["client"]), stream_schema.ONLINE)
    scene.tell_many(notices(int(polled["client"]), 600, 1_000))
    heard: dict[str, Any] = {}
    for _ in range(100):
        acks = list(heard.values())
        for message in poll(gateway, {"v": "1.0", "token": polled["token"], "acknowledge": acks}, wait=5):
            heard |= {entry[0]: entry[:2] for entry in message.get("notify", ())}
        if len(heard) == 600:
            break
    assert len(heard) == 600


def test_the_largest_message_is_no_larger_in_a_poll(scene: Scene) -> None:
    gateway = scene.gateway("g1")
    grant = poll(gateway, {"v": "1.0", "hello": {"nonce": "n", "application": "web"}})[0]["grant"]
    names = [f"{n:04}é" for n in range(3_500)]
    message = {"v": "1.0", "token": grant["token"], "register": [[name, "1"] for name in names], "more": ""}
    message["more"] = "x" * (65_536 - len(dumped(message)))
    body = b'{"send":[' + dumped(message) + b'],"wait":0}'
    code, answer = gateway.post("/v1/poll", body)
    assert (code, answer["receive"]) == (200, [])
    assert scene.ops(int(grant["client"])).count(stream_schema.REGISTER) == 3_500


def dumped(message: Any) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def test_a_client_behind_a_proxy_hears_it_in_pieces_too(scene: Scene) -> None:
    tokens = scene.secret_file("trunks", "of-the-proxy")
    gateway = scene.gateway("g1", "--trunk-tokens", str(tokens))
    trunk = scene.client(gateway, "/v1/trunk", "tidings.thialfi.trunk.v1", Authorization="Bearer of-the-proxy")
    trunk.text('[7, {"v": "1.0", "hello": {"nonce": "n", "application": "web"}}]')
    grant = tagged(trunk)["grant"]
    scene.await_row(int(grant["client"]), stream_schema.ONLINE)
    scene.tell_many(notices(int(grant["client"]), 600, 1_000))
    heard: set[str] = set()
    for _ in range(200):
        acks = [entry[:2] for entry in tagged(trunk).get("notify", ())]
        heard |= {entry[0] for entry in acks}
        trunk.text(json.dumps([7, {"v": "1.0", "token": grant["token"], "acknowledge": acks}]))
        if len(heard) == 600:
            break
    assert len(heard) == 600


def tagged(trunk: Client) -> dict[str, Any]:
    tag, message = cast(Any, trunk.hear())
    assert tag == 7
    return cast(dict[str, Any], message)


def poll(gateway: Process, message: dict[str, Any], wait: float = 0) -> list[dict[str, Any]]:
    code, answer = gateway.post("/v1/poll", {"send": [message], "wait": wait})
    assert code == 200
    received: list[dict[str, Any]] = answer["receive"]
    return received
