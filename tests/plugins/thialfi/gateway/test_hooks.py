"""An application's own word on who may come in, register and hear; and trunks, which carry many clients."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway_scene import SERVICE, Client, Process, Scene, online, scene_of
from tidings.cluster import Cluster
from tidings.testing import eventually, held
from tidings_thialfi.client.listener import Listener
from tidings_thialfi.client.pace import Pace
from tidings_thialfi.client.sync import Client as ThialfiClient
from tidings_thialfi.gateway.trunk import MAX_STRANGERS
from tidings_thialfi.places import DISCONNECTED, REVOKED
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.revocations import Whose, say

HOOKS = """
    import asyncio
    from pathlib import Path

    from tidings_thialfi.gateway.hooks import GatewayHooks

    class Doorman(GatewayHooks):
        timeout = 0.5
        checks_notifications = True

        def __init__(self, options):
            self.prefix = options["prefix"]
            self.withdrawn = Path(options["withdrawn"])
            self.asked = 0

        async def user(self, caller):
            given = caller.credentials or (caller.authorization or "").removeprefix("Bearer ")
            known = given.startswith("password-of-") and given not in self.withdrawn.read_text()
            return given.removeprefix("password-of-") if known else None

        async def may_register(self, user, objects):
            if "crash" in objects:
                raise RuntimeError("out of order")
            if "sleep" in objects:
                await asyncio.sleep(60)
            known = self.withdrawn.read_text()
            return [one for one in objects if one.startswith(f"{self.prefix}{user}/") and one not in known]

        async def may_hear(self, user, objects):
            self.asked += 1
            return [one for one in objects if "secret" not in one or self.asked > 3]
"""


PACE = Pace(first_retry=0.1, most_retry=1, answer=2, settle=0.3)


@pytest.fixture
def scene(cluster: Cluster, tmp_path: Path) -> Iterator[Scene]:
    with scene_of(cluster, tmp_path) as own:
        yield own


@pytest.fixture
def gateway(scene: Scene) -> Process:
    return hooked(scene)


def hooked(scene: Scene, *more: str) -> Process:
    """A gateway with these hooks."""
    withdrawn = scene.secret_file("withdrawn", "")
    options = ["--hooks", "doorman", "--hook-option", "prefix=u/", "--hook-option", f"withdrawn={withdrawn}"]
    options += ["--resend", "0.5", *more]
    return scene.gateway("g1", *options, env=scene.hooks(HOOKS))


def test_only_users_come_in(scene: Scene, gateway: Process) -> None:
    stranger = scene.client(gateway)
    stranger.say(hello={"nonce": "n", "application": "a", "credentials": "guess"})
    assert stranger.hear()["error"]["code"] == "denied"
    assert stranger.closed() == 3507
    assert scene.rows() == []
    scene.client(gateway).hello(credentials="password-of-ann")
    scene.client(gateway, Authorization="Bearer password-of-ann").hello()


def test_a_user_registers_for_what_is_allowed_and_nothing_else(scene: Scene, gateway: Process) -> None:
    client = scene.client(gateway)
    client.hello(credentials="password-of-ann")
    client.say(register=[["u/ann/1", "1"], ["u/bob/1", "2"]])
    assert client.hear_of("failed")["failed"] == [["u/bob/1", "2", False, "not permitted"]]
    assert [row["object"] for row in scene.rows(client.client) if row["op"] == "register"] == ["u/ann/1"]
    client.say(sync={"number": "9", "part": 0, "parts": 1, "objects": ["u/ann/2", "u/bob/2"]})
    assert client.hear_of("failed")["failed"] == [["u/bob/2", "9", False, "not permitted"]]


@pytest.mark.parametrize("name", ["crash", "sleep"])
def test_what_a_hook_does_not_answer_is_refused(scene: Scene, gateway: Process, name: str) -> None:
    client = scene.client(gateway)
    client.hello(credentials="password-of-ann")
    client.say(register=[[name, "1"]])
    assert client.hear_of("failed")["failed"][0][0] == name
    assert gateway.metric("hook_failures_total") == 1


def test_a_token_is_of_no_use_to_another_user(scene: Scene, gateway: Process) -> None:
    ann = scene.client(gateway)
    ann.hello(credentials="password-of-ann")
    again = scene.client(gateway)
    again.token = ann.token
    again.say(heartbeat=True)
    assert again.hear()["stale"] is True  # on a new channel it says who it is
    assert again.hello(credentials="password-of-ann")["again"] is True
    assert again.client == ann.client
    bob = scene.client(gateway)
    bob.token = ann.token
    assert bob.hello(credentials="password-of-bob")["again"] is False
    assert bob.client != ann.client


def test_a_poll_goes_on_with_a_channel_by_its_key_and_not_by_a_token(scene: Scene, gateway: Process) -> None:
    hello = {"nonce": "n", "application": "a", "credentials": "password-of-ann"}
    answer = gateway.post("/v1/poll", {"send": [{"v": "1.0", "hello": hello}], "wait": 0})[1]
    token, key = answer["receive"][0]["grant"]["token"], answer["channel"]
    client = int(answer["receive"][0]["grant"]["client"])
    ask = {"v": "1.0", "token": token, "register": [["u/ann/1", "1"]]}
    for thief in ({}, {"channel": "guess"}):
        answer = gateway.post("/v1/poll", {"send": [ask, ask], "wait": 0, **thief})[1]
        assert [message.get("stale") for message in answer["receive"]] == [True]  # it has to say who it is
        assert "channel" not in answer
    assert stream_schema.REGISTER not in scene.ops(client)
    answer = gateway.post("/v1/poll", {"send": [ask], "wait": 0, "channel": key})[1]
    assert (answer["receive"], answer["channel"]) == ([], key)
    assert scene.await_row(client, stream_schema.REGISTER)["object"] == "u/ann/1"


def test_a_users_tokens_are_revoked_and_those_from_after_that_are_good(scene: Scene, gateway: Process) -> None:
    ann, bob = scene.client(gateway), scene.client(gateway)
    ann.hello(credentials="password-of-ann")
    bob.hello(credentials="password-of-bob")
    say(scene.cluster.coordination, SERVICE, REVOKED, Whose.user("ann"))
    assert ann.hear_of("invalid")["invalid"] == "the token is revoked"
    assert ann.closed() == 3003
    again = scene.client(gateway)
    again.token = ann.token
    again.say(hello={"nonce": "n", "application": "web-1", "credentials": "password-of-ann"})
    assert again.hear()["invalid"] == "the token is revoked"
    again.token = None
    again.hello(credentials="password-of-ann")
    again.say(heartbeat=True)
    assert "invalid" not in again.hear()
    assert again.client != ann.client
    bob.say(heartbeat=True)
    assert "invalid" not in bob.hear()


def test_who_is_sent_away_comes_back_only_if_hooks_still_let_it_in(scene: Scene, gateway: Process) -> None:
    client = scene.client(gateway)
    client.hello(credentials="password-of-ann")
    scene.secret_file("withdrawn", "password-of-ann")
    say(scene.cluster.coordination, SERVICE, DISCONNECTED, Whose.user("ann"))
    assert client.closed() == 3003
    again = scene.client(gateway)
    again.token = client.token
    again.say(hello={"nonce": "n", "application": "web-1", "credentials": "password-of-ann"})
    assert again.hear()["error"]["code"] == "denied"
    assert again.closed() == 3507


def test_hooks_are_asked_again_for_everything_when_a_token_is_renewed(scene: Scene) -> None:
    gateway = hooked(scene, "--token-lifetime", "1")
    client = scene.client(gateway)
    client.hello(credentials="password-of-ann")
    client.say(register=[["u/ann/1", "1"], ["u/ann/2", "2"]])
    scene.await_row(client.client, stream_schema.REGISTER, 2)
    scene.secret_file("withdrawn", "u/ann/2")

    def expired() -> bool:
        client.say(heartbeat=True)
        return "stale" in client.hear()

    assert eventually(expired)
    client.say(hello={"nonce": "m", "application": "web-1", "credentials": "password-of-ann"})
    heard = client.hear_of("grant")
    assert heard["grant"]["again"] is True
    assert heard["sync"] is True  # the client says all that it wants, so that hooks can be asked
    client.token = heard["grant"]["token"]
    client.say(sync={"number": "9", "part": 0, "parts": 1, "objects": ["u/ann/1", "u/ann/2"]})
    assert client.hear_of("failed")["failed"] == [["u/ann/2", "9", False, "not permitted"]]
    scene.await_row(client.client, stream_schema.SYNC)
    kept = [row["object"] for row in scene.rows(client.client) if row["op"] == "register" and row["number"] == 9]
    assert kept == ["u/ann/1"]


@pytest.mark.parametrize("polling", [False, True])
def test_a_client_with_credentials_comes_in_and_hears(scene: Scene, gateway: Process, polling: bool) -> None:
    heard: queue.Queue[tuple[str, int]] = queue.Queue()

    class Told(Listener):
        def notify(self, object: str, version: int, payload: bytes | None = None) -> None:
            heard.put((object, version))

    address = gateway.url.replace("http", "ws")
    with ThialfiClient(
        address, "web-1", Told(), credentials=lambda: "password-of-ann", polling=polling, pace=PACE
    ) as client:
        client.register("u/ann/1")
        eventually(lambda: [row for row in scene.rows() if row["op"] == stream_schema.REGISTER], 20)
        [whose] = {int(row["object"]) for row in held(scene.operations.log).to_pylist()}
        scene.notify(whose, "u/ann/1", 3)
        assert heard.get(timeout=20) == ("u/ann/1", 3)


def test_a_notification_that_is_not_allowed_now_is_asked_for_again(scene: Scene, gateway: Process) -> None:
    client = online(scene, gateway, lambda: _shown(scene, gateway))
    scene.notify(client.client, "open", 1)
    assert client.hear_of("notify")["notify"] == [["open", "1"]]
    client.say(acknowledge=[["open", "1"]])
    scene.notify(client.client, "secret", 1)
    assert client.hear_of("notify")["notify"] == [["secret", "1"]]
    assert gateway.metric("notifications_total", outcome="denied") >= 1


def _shown(scene: Scene, gateway: Process) -> Client:
    return scene.client(gateway, Authorization="Bearer password-of-ann")


class Trunk:
    """Many clients on one socket."""

    def __init__(self, scene: Scene, gateway: Process) -> None:
        self.client = scene.client(
            gateway, "/v1/trunk", "tidings.thialfi.trunk.v1", Authorization="Bearer of-the-proxy"
        )

    def say(self, tag: int | str, message: object) -> None:
        self.client.text(json.dumps([tag, message]))

    def hear(self) -> list[object]:
        heard: object = self.client.hear()
        assert isinstance(heard, list)
        return heard


def test_a_trunk_carries_many_clients(scene: Scene) -> None:
    gateway = scene.gateway("g1", "--trunk-tokens", str(scene.secret_file("trunks", "of-the-proxy")))
    trunk = Trunk(scene, gateway)
    tags: list[int | str] = [1, 2, 'a"]b', "ü"]
    for tag in tags:
        trunk.say(tag, {"v": "1.0", "hello": {"nonce": f"n{tags.index(tag)}", "application": "web"}})
    grants: dict[Any, Any] = {}
    for _ in tags:
        whose, message = trunk.hear()
        assert isinstance(message, dict)
        grants[whose] = message["grant"]
    assert sorted(grants, key=str) == sorted(tags, key=str)
    clients = {tag: int(grant["client"]) for tag, grant in grants.items()}
    for tag, client in clients.items():
        scene.await_row(client, stream_schema.ONLINE)
        scene.notify(client, "alice", 4)
        assert trunk.hear() == [tag, {"v": "1.0", "notify": [["alice", "4"]]}]
    trunk.say(1, None)
    scene.await_row(clients[1], stream_schema.OFFLINE)
    trunk.say(2, {"v": "1.0"})
    whose, message = trunk.hear()
    assert (whose, message["error"]["code"]) == (2, "malformed")  # type: ignore[index]
    assert gateway.metric("sessions") == 3
    trunk.client.close()
    for tag in tags[1:]:
        scene.await_row(clients[tag], stream_schema.OFFLINE)
    eventually(lambda: gateway.metric("sessions") == 0)


def test_a_frame_that_makes_no_sense_ends_no_trunk_and_ten_of_them_do(scene: Scene) -> None:
    gateway = scene.gateway("g1", "--trunk-tokens", str(scene.secret_file("trunks", "of-the-proxy")))
    trunk = Trunk(scene, gateway)
    for frame in ("", "1", "[1]", '["x"]', "[null, {}]", "[1, {}", '{"v": "1.0"}', "[[1], {}]", "[" * 5000):
        trunk.client.text(frame)
        whose, message = trunk.hear()
        assert (whose, message["error"]["code"]) == (None, "malformed"), frame  # type: ignore[index]
    trunk.say(7, {"v": "1.0", "hello": {"nonce": "n", "application": "web"}})
    whose, message = trunk.hear()
    assert (whose, "grant" in message) == (7, True)  # type: ignore[operator]
    trunk.client.text("")
    assert trunk.client.closed() == 3501
    assert gateway.metric("refused_messages_total", reason="malformed") == 10


def test_tags_of_which_no_client_is_known_are_bounded_and_those_with_one_stay(scene: Scene) -> None:
    gateway = scene.gateway("g1", "--trunk-tokens", str(scene.secret_file("trunks", "of-the-proxy")))
    trunk = Trunk(scene, gateway)
    trunk.say("known", {"v": "1.0", "hello": {"nonce": "n", "application": "web"}})
    _, granted = trunk.hear()
    assert isinstance(granted, dict)
    for tag in range(MAX_STRANGERS + 1):
        trunk.say(tag, {"v": "1.0", "token": "AAAA"})
    while trunk.hear() != [0, None]:
        pass
    assert gateway.metric("limited_total", limit="connections") == 1
    trunk.say("known", {"v": "1.0", "token": granted["grant"]["token"], "heartbeat": True})
    whose: object = None
    while whose != "known":
        whose, heard = trunk.hear()
    assert isinstance(heard, dict)
    assert heard.keys().isdisjoint({"stale", "invalid"})
