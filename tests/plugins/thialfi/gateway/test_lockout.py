"""An operator speaks while a user is being let in, or while a gateway is cut off: nobody slips through."""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support import gateway_scene
from tests.support.gateway_scene import PATIENCE, SERVICE, Client, Process, Scene
from tests.support.proxy import Proxy
from tidings.testing import eventually
from tidings_thialfi.places import DISCONNECTED, REVOKED
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.revocations import Whose, say

HOOKS = """
    import asyncio
    from pathlib import Path

    from tidings_thialfi.gateway.hooks import GatewayHooks

    class Doorman(GatewayHooks):
        timeout = 20

        def __init__(self, options):
            self.folder = Path(options["folder"])

        async def user(self, caller):
            allowed = not (self.folder / f"refused-{caller.credentials}").exists()
            await self.answered(caller.credentials)
            return caller.credentials if allowed else None

        async def may_register(self, user, objects):
            await self.answered(user)
            return objects

        async def answered(self, user):
            held = self.folder / f"held-{user}"
            if held.exists():
                (self.folder / f"asked-{user}").touch()
            while held.exists():
                await asyncio.sleep(0.01)
"""


class Hooks:
    """What hooks have been told, and were asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def hold(self, user: str) -> None:
        (self.folder / f"held-{user}").touch()

    def release(self, user: str) -> None:
        (self.folder / f"held-{user}").unlink()

    def until_asked(self, user: str) -> None:
        assert eventually((self.folder / f"asked-{user}").exists)

    def refuse(self, user: str) -> None:
        (self.folder / f"refused-{user}").touch()


scene = gateway_scene.scene


@pytest.fixture(scope="module")
def hooks(scene: Scene) -> Hooks:
    return Hooks(scene.folder / "hooks")


def peers(scene: Scene) -> list[str]:
    return ["--peer-secret", str(scene.secret_file("peers", "between-gateways"))]


@pytest.fixture(scope="module")
def gateway(scene: Scene, hooks: Hooks) -> Process:
    options = ["--hooks", "doorman", "--hook-option", f"folder={hooks.folder}", *peers(scene)]
    options += ["--trunk-tokens", str(scene.secret_file("trunks", "of-the-proxy"))]
    return scene.gateway("g1", *options, env=scene.hooks(HOOKS))


def come(scene: Scene, gateway: Process, user: str) -> Client:
    client = scene.client(gateway)
    client.hello(credentials=user)
    return client


def hello(user: str) -> dict[str, Any]:
    return {"nonce": uuid.uuid4().hex, "application": "web-1", "credentials": user}


@pytest.mark.parametrize("what", [REVOKED, DISCONNECTED])
@pytest.mark.parametrize("channel", ["websocket", "poll", "renewal"])
def test_who_was_being_let_in_when_an_operator_spoke_is_asked_again(
    scene: Scene, hooks: Hooks, gateway: Process, what: str, channel: str
) -> None:
    user = f"{channel}-{what}"
    witness = come(scene, gateway, user)
    hooks.hold(user)
    answers: list[Any] = []
    if channel == "poll":
        body = {"send": [{"v": "1.0", "hello": hello(user)}], "wait": 0}
        thread = threading.Thread(target=lambda: answers.append(gateway.post("/v1/poll", body)))
        thread.start()
    else:
        client = scene.client(gateway)
        client.say(hello=hello(user), token=witness.token if channel == "renewal" else None)
    hooks.until_asked(user)
    hooks.refuse(user)
    say(scene.cluster.coordination, SERVICE, what, Whose.user(user))
    assert witness.closed() == 3003, "the gateway has heard of it"
    hooks.release(user)
    if channel == "poll":
        thread.join(PATIENCE)
        code, answer = answers[0]
        assert code == 200
        assert answer["receive"][0]["error"]["code"] == "unavailable"
        assert "channel" not in answer
        code, answer = gateway.post("/v1/poll", body)
        assert answer["receive"][0]["error"]["code"] == "denied"
    else:
        heard = client.hear()
        refused = heard.get("invalid") if channel == "renewal" and what == REVOKED else heard["error"]["code"]
        assert refused in ("the token is revoked", "unavailable")
        client.say(token=witness.token, heartbeat=True)
        assert client.hear().keys() & {"stale", "invalid"}, "nobody is let in here yet"
        client.say(hello=hello(user))
        assert client.hear()["error"]["code"] == "denied"


def test_a_token_counts_as_issued_when_hooks_were_asked(scene: Scene, hooks: Hooks, gateway: Process) -> None:
    hooks.hold("late")
    client = scene.client(gateway)
    client.say(hello=hello("late"))
    hooks.until_asked("late")
    name = f"user.{Whose.user('late').value}."
    say(scene.cluster.coordination, "elsewhere", REVOKED, Whose.user("late"))  # which no gateway hears of yet
    (said,) = [one for one in scene.cluster.coordination.children("thialfi", "elsewhere", REVOKED) if name in one]
    hooks.release("late")
    client.token = client.hear_of("grant")["grant"]["token"]
    scene.cluster.coordination.create({}, "thialfi", SERVICE, REVOKED, said)
    assert client.hear_of("invalid")["invalid"] == "the token is revoked"
    assert client.closed() == 3003


def test_what_hooks_allow_too_late_is_not_done(scene: Scene, hooks: Hooks, gateway: Process) -> None:
    client = come(scene, gateway, "writer")
    hooks.hold("writer")
    client.say(register=[["a", "1"]])
    hooks.until_asked("writer")
    say(scene.cluster.coordination, SERVICE, REVOKED, Whose.client(client.client))
    assert client.closed() == 3003
    hooks.release("writer")
    come(scene, gateway, "writer").say(heartbeat=True)
    scene.await_row(client.client, stream_schema.OFFLINE)
    assert stream_schema.REGISTER not in scene.ops(client.client)


def test_who_has_left_a_trunk_while_hooks_were_asked_is_not_there(scene: Scene, hooks: Hooks, gateway: Process) -> None:
    trunk = scene.client(gateway, "/v1/trunk", "tidings.thialfi.trunk.v1", Authorization="Bearer of-the-proxy")
    hooks.hold("passer-by")
    trunk.text(json.dumps([1, {"v": "1.0", "hello": hello("passer-by")}]))
    hooks.until_asked("passer-by")
    trunk.text("[1, null]")
    trunk.text(json.dumps([2, {"v": "1.0", "hello": hello("witness")}]))
    trunk.hear()  # of the second: so the first has left
    before = gateway.metric("operation_rows_total", op="offline")
    hooks.release("passer-by")
    assert eventually(lambda: gateway.metric("operation_rows_total", op="offline") > before), "it came, and left"
    trunk.close()


def test_a_gateway_that_was_cut_off_hears_what_was_said_to_those_who_were_there_before(
    scene: Scene,
) -> None:
    host, _, root = scene.cluster.address.partition("/")
    with Proxy(host) as line:
        gateway = scene.gateway("g-cut", *peers(scene), "--zookeeper", f"{line.address}/{root}")
        clients = [scene.client(gateway) for _ in range(3)]
        for client in clients:
            client.hello()
        gone, stolen, later = clients
        line.cut()
        assert eventually(lambda: gateway.get("/health/ready")[0] == 503)
        for client in (gone, later):
            say(scene.cluster.coordination, SERVICE, DISCONNECTED, Whose.client(client.client))
        say(scene.cluster.coordination, SERVICE, DISCONNECTED, Whose.client(1))  # operators go on
        say(scene.cluster.coordination, SERVICE, REVOKED, Whose.token(stolen.token or ""))
        again = scene.client(gateway)
        again.token, again.client = later.token, later.client
        again.hello()  # after it was said
        line.heal()
        assert eventually(lambda: gateway.get("/health/ready")[0] == 200, PATIENCE, every=0.001)
        code, answer = gateway.post("/v1/poll", json.dumps({"send": [stolen_hello(stolen)], "wait": 0}).encode())
        assert (code, answer["receive"][0].get("invalid")) == (200, "the token is revoked"), "as soon as it is ready"
        assert gone.closed() == 3003
        again.say(heartbeat=True)
        again.hear()
        gateway.end()


def stolen_hello(client: Client) -> dict[str, Any]:
    return {"v": "1.0", "token": client.token, "hello": {"nonce": "n", "application": "web-1"}}
