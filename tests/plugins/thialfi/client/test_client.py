"""The clients, over real WebSockets and long polls, against a model of the gateway."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import tidings_thialfi
from tests.support.certificates import certificate_of
from tests.support.model_gateway import ModelGateway
from tidings.errors import InvalidOption
from tidings.testing import eventually
from tidings_thialfi.client.aio import AsyncClient, ClientStopped
from tidings_thialfi.client.channels import ChannelBroken, WebSocketChannel, _unreached, new_session
from tidings_thialfi.client.listener import Handle, Listener
from tidings_thialfi.client.pace import Pace
from tidings_thialfi.client.sync import Client

FAST = Pace(first_retry=0.05, most_retry=0.4, answer=0.2, settle=0.1, resume=2, rate=500, burst=100)


class Notes(Listener):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.state: bytes | None = None

    def ready(self) -> None:
        self.told.append(("ready",))

    def notify(self, object: str, version: int, payload: bytes | None = None) -> Any:
        self.told.append(("notify", object, version))

    def notify_unknown(self, object: str) -> None:
        self.told.append(("unknown", object))

    def registration_status_changed(self, object: str, registered: bool) -> None:
        self.told.append(("status", object, registered))

    def registration_failure(self, object: str, transient: bool, reason: str) -> None:
        self.told.append(("failure", object, transient, reason))

    def reissue_registrations(self) -> None:
        self.told.append(("reissue",))

    def write_state(self, state: bytes) -> None:
        self.state = state

    def error(self, code: str, message: str, permanent: bool) -> None:
        self.told.append(("error", code, permanent))


@pytest.fixture(params=["websocket", "poll"])
def polling(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "poll")


def test_a_client_registers_is_notified_and_acknowledges(polling: bool) -> None:
    notes = Notes()
    with ModelGateway() as gateway, Client(gateway.address, "web", notes, polling=polling, pace=FAST) as client:
        client.register("alice")
        client.register_many(["bob", ("carol", 7), "forbidden"])
        eventually(lambda: ("unknown", "alice") in notes.told and ("status", "bob", True) in notes.told)
        gateway.publish("alice", 3)
        gateway.publish("carol", 7)
        gateway.publish("bob", 1)
        eventually(lambda: {("notify", "alice", 3), ("notify", "bob", 1)} <= set(notes.told))
        eventually(lambda: gateway.registered() == [{"alice", "bob", "carol"}])
        eventually(lambda: [about.acked.get("carol") for about in gateway.service.clients.values()] == [7])
        assert ("notify", "carol", 7) not in notes.told
        eventually(lambda: ("failure", "forbidden", False, "no") in notes.told)
        client.unregister("alice")
        eventually(lambda: ("status", "alice", False) in notes.told)
    assert notes.told[0] == ("ready",)


def test_where_there_are_no_websockets_a_client_polls() -> None:
    notes = Notes()
    with ModelGateway(websockets=False) as gateway, Client(gateway.address, "web", notes, pace=FAST) as client:
        client.register("alice")
        eventually(lambda: ("status", "alice", True) in notes.told)
        gateway.publish("alice", 3)
        eventually(lambda: ("notify", "alice", 3) in notes.told)


def test_a_client_connects_again_and_misses_nothing() -> None:
    notes = Notes()
    with ModelGateway() as gateway, Client(gateway.address, "web", notes, pace=FAST) as client:
        client.register("alice")
        eventually(lambda: ("status", "alice", True) in notes.told)
        for version in range(5):
            gateway.service.publish("alice", version)
            gateway.close_all(3001)
        eventually(lambda: ("notify", "alice", 4) in notes.told)
        assert ("error", "disconnected", False) in notes.told


def test_a_gateway_that_forgets_everything_is_told_again() -> None:
    notes = Notes()
    with ModelGateway() as gateway, Client(gateway.address, "web", notes, pace=FAST) as client:
        client.register_many(["alice", "bob"])
        eventually(lambda: ("status", "bob", True) in notes.told)
        gateway.service.forget()
        gateway.close_all(3001)
        eventually(lambda: {"alice", "bob"} in gateway.registered())
        eventually(lambda: notes.told.count(("reissue",)) == 2)


def test_a_restart_with_its_state_sends_no_registrations() -> None:
    notes = Notes()
    with ModelGateway() as gateway:
        with Client(gateway.address, "web", notes, pace=FAST) as client:
            client.register_many(["alice", "bob"])
            eventually(lambda: ("status", "bob", True) in notes.told)
        gateway.received.clear()
        gateway.service.publish("alice", 5)
        again = Notes()
        client = Client(gateway.address, "web", again, pace=FAST)
        client.start(notes.state)
        client.register_many(["alice", "bob"])
        eventually(lambda: ("notify", "alice", 5) in again.told and ("status", "bob", True) in again.told)
        client.stop()
        assert not any(message.register or message.sync or message.hello for message in gateway.received)
        assert len(gateway.service.clients) == 1


def test_a_listener_that_raises_is_told_again_and_nothing_is_acknowledged_before() -> None:
    class Clumsy(Notes):
        def notify(self, object: str, version: int, payload: bytes | None = None) -> None:
            super().notify(object, version)
            if len(self.told) < 6:
                raise RuntimeError("clumsy")

    notes = Clumsy()
    with ModelGateway() as gateway, Client(gateway.address, "web", notes, pace=FAST) as client:
        gateway.service.publish("alice", 3)
        client.register("alice")
        eventually(lambda: notes.told.count(("notify", "alice", 3)) > 1)
        eventually(lambda: [about.acked.get("alice") for about in gateway.service.clients.values()] == [3])


def test_an_application_may_acknowledge_by_itself() -> None:
    class Explicit(Notes):
        handle: Handle | None = None

        def notify(
            self, object: str, version: int, payload: bytes | None = None, *, handle: Handle | None = None
        ) -> None:
            super().notify(object, version)
            self.handle = handle

    notes = Explicit()
    with ModelGateway() as gateway, Client(gateway.address, "web", notes, pace=FAST) as client:
        gateway.service.publish("alice", 3)
        client.register("alice")
        eventually(lambda: notes.handle is not None)
        gateway.publish("bob", 1)  # the service says it once more
        (about,) = gateway.service.clients.values()
        assert about.acked == {}
        assert notes.handle is not None
        client.acknowledge(notes.handle)
        eventually(lambda: about.acked == {"alice": 3})
        assert notes.told.count(("notify", "alice", 3)) == 1


def test_a_slow_listener_holds_up_nothing_else() -> None:
    go_on = threading.Event()

    class Slow(Notes):
        def notify_unknown(self, object: str) -> None:
            go_on.wait(20)

    with ModelGateway() as gateway, Client(gateway.address, "web", Slow(), pace=FAST) as client:
        client.register("alice")
        eventually(lambda: gateway.registered() == [{"alice"}])
        client.register("bob")
        eventually(lambda: gateway.registered() == [{"alice", "bob"}])
        go_on.set()


def test_a_client_that_is_not_let_in_gives_up_and_says_so(polling: bool) -> None:
    notes = Notes()
    with ModelGateway() as gateway:
        gateway.denied = True
        with Client(gateway.address, "web", notes, polling=polling, pace=FAST):
            eventually(lambda: ("error", "denied", True) in notes.told)
            before = len(gateway.received)
            with pytest.raises(AssertionError, match="still not true"):
                eventually(lambda: len(gateway.received) > before, timeout=1)


def test_a_close_for_good_ends_the_client() -> None:
    notes = Notes()
    with ModelGateway(closes=3507) as gateway, Client(gateway.address, "web", notes, pace=FAST):
        eventually(lambda: ("error", "refused", True) in notes.told)


def test_credentials_are_asked_for_anew_on_each_channel_and_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    given: list[str] = []

    def credentials() -> str:
        given.append(f"secret-{len(given)}")
        if len(given) == 2:
            raise RuntimeError("secret-in-an-error")
        return given[-1]

    notes = Notes()
    with (
        ModelGateway() as gateway,
        Client(gateway.address, "web", notes, credentials=credentials, pace=FAST) as client,
    ):
        client.register("alice")
        eventually(lambda: ("status", "alice", True) in notes.told)
        gateway.close_all(3001)
        eventually(lambda: [one.hello.credentials for one in gateway.received if one.hello] == ["secret-0", "secret-2"])
        assert ("error", "credentials", False) in notes.told
        shown = caplog.text + repr(client) + repr(gateway.received) + repr(client._client._core.__dict__["_events"])
        tokens = [one.token for one in gateway.received if one.token]
    assert "secret-" not in shown
    assert len(tokens) > 0


def test_clients_speak_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    about = ["-subj", "/CN=gateway", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1", "-nodes"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-keyout", key, "-out", certificate, *about]
    try:
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs openssl, to make a certificate")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=str(certificate))
    trusted, untrusted = Notes(), Notes()
    with ModelGateway(tls=server) as gateway:
        with Client(gateway.address, "web", trusted, tls=trusting, pace=FAST) as client:
            client.register("alice")
            eventually(lambda: ("status", "alice", True) in trusted.told)
        with Client(gateway.address, "web", untrusted, pace=FAST):
            eventually(lambda: untrusted.told.count(("error", "disconnected", False)) > 4)
        assert len(gateway.service.clients) == 1


def test_a_client_waits_for_a_gateway_that_is_not_there_yet() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    notes = Notes()
    with Client(f"ws://127.0.0.1:{port}", "web", notes, pace=FAST) as client:
        client.register("alice")
        eventually(lambda: notes.told.count(("error", "disconnected", False)) > 1)
        gateway = ModelGateway()
        gateway.port = port
        with gateway:
            eventually(lambda: ("status", "alice", True) in notes.told)


def test_a_client_can_be_stopped_by_its_listener_and_started_again() -> None:
    class Leaver(Notes):
        client: Client

        def notify_unknown(self, object: str) -> None:
            self.client.stop()

    notes = Leaver()
    with ModelGateway() as gateway:
        notes.client = client = Client(gateway.address, "web", notes, pace=FAST)
        client.start()
        client.register("alice")

        def stopped() -> bool:
            try:
                client.register("alice")
            except ClientStopped:
                return True
            return False

        eventually(stopped)
        client.start(notes.state)
        client.register("bob")
        eventually(lambda: gateway.registered() == [{"bob"}])
        client.stop()
        client.stop()
        eventually(lambda: gateway.connections == 0)


def test_no_thread_is_left_behind() -> None:
    before = set(threading.enumerate())
    with ModelGateway() as gateway:
        for _ in range(3):
            with Client(gateway.address, "web", Notes(), pace=FAST) as client:
                client.register("alice")
    left = [thread for thread in set(threading.enumerate()) - before if "tidings" in thread.name]
    assert left == []


def test_a_program_that_just_ends_stops_its_client_without_a_word(tmp_path: Path) -> None:
    with ModelGateway() as gateway:
        program = f"""
import threading
from tidings_thialfi import Client, Listener
registered = threading.Event()
class Waiting(Listener):
    def registration_status_changed(self, object, registered_now):
        registered.set()
client = Client({gateway.address!r}, "web", Waiting())
client.start()
client.register("alice")
assert registered.wait(30)
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert gateway.registered() == [{"alice"}]


def test_the_asynchronous_client_takes_listeners_of_both_kinds() -> None:
    class Waiting(Notes):
        async def notify(self, object: str, version: int, payload: bytes | None = None) -> None:
            await asyncio.sleep(0)
            self.told.append(("notify", object, version))

    notes = Waiting()

    async def converse(gateway: ModelGateway) -> None:
        async with AsyncClient(gateway.address, "web", notes, pace=FAST) as client:
            gateway.service.publish("alice", 3)
            client.register("alice")
            async with asyncio.timeout(10):
                while ("notify", "alice", 3) not in notes.told or ("status", "alice", True) not in notes.told:
                    await asyncio.sleep(0.01)
            while [about.acked.get("alice") for about in gateway.service.clients.values()] != [3]:
                await asyncio.sleep(0.01)
        with pytest.raises(ClientStopped):
            client.register("bob")

    with ModelGateway() as gateway:
        asyncio.run(asyncio.wait_for(converse(gateway), 30))


def test_mistakes_are_raised_where_they_are_made() -> None:
    with ModelGateway() as gateway, Client(gateway.address, "web", Notes(), pace=FAST) as client:
        for name in ("", "x" * 1025, "\ud800"):
            with pytest.raises(InvalidOption):
                client.register(name)
        with pytest.raises(InvalidOption):
            client.register("alice", version=-1)
        with pytest.raises(ClientStopped, match="already"):
            client.start()


@pytest.mark.parametrize(
    "address", ["", "gateway", "ftp://gateway", "ws://", "wss://user:secret@gateway", "wss://gateway?token=secret"]
)
def test_an_address_that_is_none_or_holds_a_secret_is_refused(address: str) -> None:
    with pytest.raises(InvalidOption) as raised:
        Client(address, "web", Listener())
    assert "secret" not in str(raised.value)


def test_the_package_exports_its_clients() -> None:
    exported: Callable[..., Client] = tidings_thialfi.Client
    assert exported is Client
    assert tidings_thialfi.Listener is Listener
    with pytest.raises(AttributeError):
        _ = tidings_thialfi.Nothing


def test_a_missing_extra_names_itself() -> None:
    program = "import sys; sys.modules['aiohttp'] = None\nimport tidings_thialfi\ntidings_thialfi.Client"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "pip install 'tidings[gateway]'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(("address", "hinted"), [("ws://x/v1/client", True), ("wss://x/v1/client", False)])
def test_a_gateway_that_says_nothing_may_speak_tls(address: str, hinted: bool) -> None:
    told = str(_unreached(aiohttp.ServerDisconnectedError(), address))
    assert told.startswith("the gateway cannot be reached: Server disconnected")
    assert told.endswith("; if it speaks TLS, its address begins with wss://") is hinted


def test_who_speaks_no_tls_to_a_gateway_that_does_is_told(tmp_path: Path) -> None:
    certificate, key = certificate_of(tmp_path, "gateway", "IP:127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def connect() -> str:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        async with server, new_session() as session:
            with pytest.raises(ChannelBroken) as broken:
                await WebSocketChannel(session, f"ws://127.0.0.1:{port}/v1/client", None).open()
        return str(broken.value)

    assert asyncio.run(connect()).endswith("if it speaks TLS, its address begins with wss://")
