"""What a gateway refuses: it says so, counts it, and lives on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from urllib.parse import urlsplit

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.crowd import Crowd
from tests.support import gateway_scene
from tests.support.gateway_scene import PROGRAM, SERVICE, Process, Scene, online
from tidings.testing import eventually, held
from tidings_thialfi.protocol import stream_schema

OPTIONS = ["--rate", "50", "--burst", "50", "--max-registrations", "3", "--origin", "https://app.example"]
OPTIONS += ["--max-message", "32KiB"]


scene = gateway_scene.scene


@pytest.fixture(scope="module")
def gateway(scene: Scene) -> Process:
    updates = scene.cluster.create_stream("updates", 2)
    tokens = scene.secret_file("publishers", "old-token\nnew-token")
    return scene.gateway("g1", *OPTIONS, "--publish-to", updates.name, "--publish-tokens", str(tokens))


def refused(gateway: Process, reason: str) -> float:
    return gateway.metric("refused_messages_total", reason=reason)


def limited(gateway: Process, limit: str) -> float:
    return gateway.metric("limited_total", limit=limit)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "malformed"),
        ("[]", "malformed"),
        ('{"v": "1.0"}', "malformed"),
        ('{"v": "2.0", "token": "t"}', "version"),
        ('{"v": "1.0", "token": 7}', "malformed"),
        ('{"v": "1.0", "token": "t", "register": [["alice", "-1"]]}', "malformed"),
        ('{"v": "1.0", "token": "t", "register": [["alice", "4611686018427387904"]]}', "malformed"),
        ('{"v": "1.0", "token": "t", "acknowledge": [["alice", "9223372036854775808"]]}', "malformed"),
        ("[" * 10_000, "malformed"),
        ('{"v": "1.0", "token": "' + "x" * 40_000 + '"}', "large"),
    ],
)
def test_a_bad_message_is_told_why_and_counted(scene: Scene, gateway: Process, text: str, code: str) -> None:
    client = online(scene, gateway)
    before = refused(gateway, code) + limited(gateway, code)
    client.text(text)
    assert client.hear_of("error")["error"]["code"] == code
    assert refused(gateway, code) + limited(gateway, code) == before + 1
    client.say(heartbeat=True)
    assert "error" not in client.hear()
    client.close()


def test_a_client_that_makes_no_sense_again_and_again_is_sent_away(scene: Scene, gateway: Process) -> None:
    client = scene.client(gateway)
    for _ in range(10):
        client.text("nonsense")
    assert client.closed() == 3501


def test_a_message_that_is_much_too_large_ends_the_connection_and_no_other(scene: Scene, gateway: Process) -> None:
    client, other = scene.client(gateway), online(scene, gateway)
    client.text("x" * 200_000)
    assert client.closed() == 1009
    other.say(heartbeat=True)
    other.hear()
    other.close()


def test_bytes_are_no_message(scene: Scene, gateway: Process) -> None:
    client = scene.client(gateway)
    scene.loop.run(client.socket.send_bytes(b"\x00\xff"))
    assert client.closed() == 3501


def test_a_client_that_says_too_much_is_told_to_wait(scene: Scene, gateway: Process) -> None:
    client = online(scene, gateway)
    before = limited(gateway, "rate")
    for _ in range(120):
        client.say(digest=["0", "0"])
    error = client.hear_of("error")["error"]
    assert error["code"] == "rate"
    assert 0 < error["retry"] < 1
    assert limited(gateway, "rate") - before >= 20

    def answered() -> bool:
        client.say(heartbeat=True)
        try:
            return "error" not in client.hear(timeout=0.5)
        except TimeoutError:
            return False

    eventually(answered, every=error["retry"])
    client.close()


def test_registrations_beyond_the_limit_fail_and_the_others_do_not(scene: Scene, gateway: Process) -> None:
    client = online(scene, gateway)
    client.say(register=[[f"o{n}", str(n)] for n in range(5)])
    failed = client.hear_of("failed")["failed"]
    assert [(one[0], one[2]) for one in failed] == [("o3", True), ("o4", True)]
    assert scene.ops(client.client).count("register") == 3
    client.say(register=[[f"o{n}", str(10 + n)] for n in range(3)] * 20, heartbeat=True)
    assert "failed" not in client.hear()
    client.say(sync={"number": "90", "part": 0, "parts": 2, "objects": ["a", "b", "a"]})
    client.say(sync={"number": "90", "part": 1, "parts": 2, "objects": ["a", "b", "c", "d"]})
    assert [one[0] for one in client.hear_of("failed")["failed"]] == ["d"]
    client.close()


def test_what_the_stage_refuses_has_failed(scene: Scene, gateway: Process) -> None:
    client = online(scene, gateway)
    before = limited(gateway, "registrations")
    client.say(register=[["alice", "5"]])
    scene.await_row(client.client, stream_schema.REGISTER)
    scene.tell(client.client, stream_schema.REFUSED, 5, object="alice")
    assert client.hear_of("failed")["failed"] == [["alice", "5", True, "too many registrations"]]
    assert limited(gateway, "registrations") == before + 1
    client.close()


def test_a_replayed_message_changes_nothing_for_the_gateway(scene: Scene, gateway: Process) -> None:
    client = online(scene, gateway)
    text = json.dumps({"v": "1.0", "token": client.token, "register": [["alice", "5"]], "heartbeat": True})
    for _ in range(3):
        client.text(text)
        client.hear()
    made = [row for row in scene.rows(client.client) if row["op"] == "register"]
    assert {(row["object"], row["number"]) for row in made} == {("alice", 5)}
    client.close()


def test_only_pages_of_the_listed_origins_may_connect(scene: Scene, gateway: Process) -> None:
    before = limited(gateway, "origin")
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        scene.client(gateway, Origin="https://evil.example")
    assert caught.value.status == 403
    assert limited(gateway, "origin") == before + 1
    client = scene.client(gateway, Origin="https://app.example")
    client.hello()
    client.close()
    assert gateway.post("/v1/poll", {"send": []}, Origin="https://evil.example")[0] == 403


def test_a_socket_without_the_subprotocol_is_refused(scene: Scene, gateway: Process) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        scene.client(gateway, protocol="graphql-ws")
    assert caught.value.status == 400


def test_a_trunk_without_a_token_is_refused(scene: Scene, gateway: Process) -> None:
    for path, protocol in (("/v1/trunk", "tidings.thialfi.trunk.v1"), ("/v1/relay", "tidings.thialfi.relay.v1")):
        for headers in ({}, {"Authorization": "Bearer guess"}, {"Authorization": "Bearer "}):
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                scene.client(gateway, path, protocol, **headers)
            assert caught.value.status == 403


def test_updates_are_published_when_the_answer_comes(scene: Scene, gateway: Process) -> None:
    updates = [
        {"object": "alice", "version": 7, "payload": "aGk=", "source": "web-1", "attributes": {"region": "eu"}},
        {"object": "bob", "version": "9223372036854775807"},
    ]
    for token in ("old-token", "new-token"):
        assert gateway.post("/v1/publish", updates, Authorization=f"Bearer {token}") == (200, {"published": 2})
    found = held(scene.cluster.stream("updates").log).to_pylist(maps_as_pydicts="lossy")
    assert len(found) == 4
    alice = next(row for row in found if row["object"] == "alice")
    assert (alice["version"], alice["payload"], alice["attributes"]) == (7, b"hi", {"region": "eu"})


def test_publishing_needs_a_token_and_updates_that_are_some(gateway: Process) -> None:
    good = [{"object": "alice", "version": 7}]
    assert gateway.post("/v1/publish", good)[0] == 401
    assert gateway.post("/v1/publish", good, Authorization="Bearer guess")[0] == 401
    bad = [b"", b"{}", b"[1]", b'[{"version": 1}]', b'[{"object": ""}]', b'[{"object": "a", "version": -1}]']
    bad += [
        b'[{"object": "a", "payload": "?"}]',
        b'[{"object": "a", "colour": 1}]',
        b'[{"object": "a", "version": "x"}]',
    ]
    bad += [b'[{"object": "a", "attributes": {"b": 1}}]', b'[{"object": "a", "payload": 7}]', b"[" * 50_000]
    for body in bad:
        code, answer = gateway.post("/v1/publish", body, Authorization="Bearer new-token")
        assert code == 400, (body, answer)


def test_bodies_that_are_published_at_once_are_bounded(gateway: Process) -> None:
    place = urlsplit(gateway.url)
    head = "POST /v1/publish HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer new-token\r\n"
    head += f"Content-Length: {8 * 2**20}\r\n\r\n"  # of which nothing comes
    before = limited(gateway, "bodies")
    held_back: list[socket.socket] = []
    while len(held_back) < 20 and limited(gateway, "bodies") == before:
        held_back.append(socket.create_connection(("127.0.0.1", place.port or 0), timeout=10))
        held_back[-1].sendall(head.encode())
    assert limited(gateway, "bodies") == before + 1, "eight of them are 64 MiB, and the next one is refused"
    code, answer = gateway.post("/v1/publish", [{"object": "a"}] * 10_000, Authorization="Bearer new-token")
    assert (code, answer) == (503, "too much is being published; publish it again\n")
    for one in held_back:
        one.close()
    good = [{"object": "alice", "version": 7}]
    assert eventually(lambda: gateway.post("/v1/publish", good, Authorization="Bearer new-token")[0] == 200)


def test_connections_from_one_address_are_limited(scene: Scene) -> None:
    gateway = scene.gateway("g-limited", "--max-per-address", "2")
    first = [scene.client(gateway) for _ in range(2)]
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        scene.client(gateway)
    assert caught.value.status == 429
    assert limited(gateway, "address") == 1
    first[0].close()
    eventually(lambda: gateway.metric("connections") == 1)
    scene.client(gateway).hello()
    gateway.end()


@pytest.mark.parametrize(
    "raw", [b"\x00\xff" * 2000, b"GET / HTTP/9\r\n\r\n", b"POST /v1/poll HTTP/1.1\r\nContent-Length: -1\r\n\r\n"]
)
def test_what_is_no_http_does_no_harm(gateway: Process, raw: bytes) -> None:
    place = urlsplit(gateway.url)
    assert place.port is not None
    with socket.create_connection(("127.0.0.1", place.port), timeout=10) as plain:
        plain.sendall(raw)
        plain.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while plain.recv(4096):
                pass
    assert gateway.get("/health/live")[0] == 200
    assert not any("Traceback" in line for line in gateway.lines), "".join(gateway.lines)


@pytest.fixture(scope="module")
def trust(scene: Scene) -> ssl.SSLContext:
    key, certificate = scene.folder / "key.pem", scene.folder / "certificate.pem"
    about = ["-days", "2", "-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-keyout", key, "-out", certificate, *about]
    try:
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs openssl, to make a certificate")
    return ssl.create_default_context(cafile=certificate)


@pytest.fixture(scope="module")
def tls_gateway(scene: Scene, trust: ssl.SSLContext) -> Iterator[Process]:
    files = ("--tls-certificate", str(scene.folder / "certificate.pem"), "--tls-key", str(scene.folder / "key.pem"))
    gateway = scene.gateway("g-tls", *files)
    yield gateway
    gateway.end()


def test_clients_speak_tls_when_there_is_a_certificate(
    scene: Scene, tls_gateway: Process, trust: ssl.SSLContext
) -> None:
    async def hello() -> str:
        url = tls_gateway.url.replace("http:", "wss:") + "/v1/client"
        async with scene.http.ws_connect(url, ssl=trust, protocols=["tidings.thialfi.v1"]) as socket:
            await socket.send_str('{"v": "1.0", "hello": {"nonce": "n", "application": "a"}}')
            heard: str = await socket.receive_str()
            return heard

    assert "grant" in scene.loop.run(hello())


MEASURED = 300  # beside which it matters little what else a process takes meanwhile


def test_a_connection_with_tls_takes_little_memory(tls_gateway: Process, trust: ssl.SSLContext) -> None:
    async def scenario() -> float:
        crowd = Crowd(tls=trust)
        await crowd.connect(tls_gateway.url, 50)
        before = tls_gateway.memory()
        await crowd.connect(tls_gateway.url, MEASURED)
        taken = tls_gateway.memory() - before
        await crowd.close()
        return taken / MEASURED

    each = asyncio.run(scenario())
    assert each < 160 * 2**10, f"a connection takes {each:,.0f} bytes"


def test_a_gateway_that_cannot_start_says_why(scene: Scene, gateway: Process) -> None:
    port = str(urlsplit(gateway.url).port)
    for options, why in (
        (["--listen", port], f"nothing can be served at 127.0.0.1:{port}"),
        (["--service", "nobody"], "there is no service 'nobody'"),
        (["--id", "g1"], "service 'contacts' has a gateway 'g1' already"),
        (["--origin", "app.example/x"], "is no origin"),
        (["--hooks", "doorman"], "no tidings.gateway_hooks 'doorman' is installed"),
        (["--publish-to", "updates"], "/v1/publish needs both"),
        (["--offline-after", "5"], "must be above its heartbeat"),
        (["--peer-authority", str(scene.secret_file("junk", "junk"))], "is no certificate in PEM"),
        (["--trusted-proxy", "10.0.0.0/99"], "write a proxy's address or network"),
    ):
        command = [*PROGRAM, "gateway", "--service", SERVICE, "--keys", str(scene.keys), "--listen", "0"]
        command += ["--zookeeper", scene.cluster.address, "--session-timeout", "1", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode in (1, 2), done.stderr
        assert why in " ".join(done.stderr.split()), done.stderr
        assert "Traceback" not in done.stderr


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
names = ("token", "digest", "hello", "register", "unregister", "acknowledge", "sync", "heartbeat")
parts = st.fixed_dictionaries({"v": st.just("1.0") | json_values}, optional=dict.fromkeys(names, json_values))
junk = st.text(max_size=200) | st.builds(json.dumps, json_values) | st.builds(json.dumps, parts)


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(junk, min_size=1, max_size=8))
def test_whatever_is_said_the_gateway_lives_and_refuses_it(scene: Scene, gateway: Process, texts: list[str]) -> None:
    client = scene.client(gateway)
    for text in texts:
        client.text(text.encode(errors="replace").decode())
    client.text('{"v": "9.0"}')
    with contextlib.suppress(ConnectionError):
        while client.hear().get("error", {}).get("code") != "version":
            pass
    client.close()
    assert gateway.get("/health/live")[0] == 200
    assert not any("Traceback" in line for line in gateway.lines), "".join(gateway.lines)
