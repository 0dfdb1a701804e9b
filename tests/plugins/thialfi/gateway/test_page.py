"""What the protocol's page says of a gateway, beside its messages, is what a gateway does."""

from __future__ import annotations

import functools
import threading
from typing import Any, cast

import pytest

from tests.support import gateway_scene
from tests.support.gateway_scene import Process, Scene, online
from tests.support.places import ROOT
from tidings.testing import eventually
from tidings_thialfi.gateway.acceptor import RESERVED_FILES, SPARE_PER_ADDRESS
from tidings_thialfi.gateway.http import MAX_PUBLISHING_BYTES
from tidings_thialfi.gateway.metrics import LIMITS
from tidings_thialfi.gateway.options import GatewayOptions
from tidings_thialfi.gateway.rates import BURST_S, FRAMES_PER_MESSAGE
from tidings_thialfi.gateway.trunk import MAX_CLIENTS, MAX_STRANGERS
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.server.stage import Thialfi

SECURITY = " ".join((ROOT / "docs" / "security.md").read_text().split())
PAGE = " ".join((ROOT / "docs" / "thialfi-protocol.md").read_text().split())


scene = gateway_scene.scene


@pytest.fixture(scope="module")
def gateway(scene: Scene) -> Process:
    return scene.gateway("g1")


def poll(gateway: Process, *messages: Any, wait: float = 0) -> list[dict[str, Any]]:
    code, answer = gateway.post("/v1/poll", {"send": messages, "wait": wait})
    assert code == 200
    received: list[dict[str, Any]] = answer["receive"]
    return received


def test_the_limits_of_a_gateway_are_those_of_the_page() -> None:
    options = GatewayOptions()
    frames = int(FRAMES_PER_MESSAGE * options.rate)
    for said in (
        f"{options.rate:g} a second, {options.burst} at once",
        f"{options.entries:,} a second; of all clients of a user, or of an address, {options.user_entries:,};",
        f"of all, {options.total_entries:,}. {BURST_S} times as many at once",
        f"{options.bytes // 2**10} KiB a second; of a user, or of an address, {options.user_bytes // 2**20} MiB;",
        f"of all, {options.total_bytes // 2**20} MiB",
        f"{options.max_per_address:,}, and as many clients that poll",
        f"{options.max_poll // 2**10} KiB, comes within {options.request_timeout:g} s",
        f"{options.max_registrations:,} objects",
        f"{options.max_queue // 2**10} KiB",
        f"{options.stall:g} s, then it is closed with 3008",
        f"one of more than {2 * options.max_message // 2**10} KiB",
        f"{frames} a second, {BURST_S * frames:,} at once, whatever they hold",
        f"held for {options.poll_wait:g} s at most",
        f"not polled for {options.poll_gap:g} s",
    ):
        assert said in PAGE, said
    assert (options.user_entries, options.user_bytes) == (options.address_entries, options.address_bytes)
    assert options.resend == 60, "the page says: a minute"


def test_the_page_on_security_has_every_limit_with_its_default() -> None:
    options = GatewayOptions()
    for said in (
        *(f"`{limit}`" for limit in LIMITS),
        f"`--max-per-address` | {options.max_per_address:,} connections of one address; {SPARE_PER_ADDRESS} more",
        f"`--max-connections` | {options.max_connections:,} connections, and no more than the files that the process",
        f"less {RESERVED_FILES} |",
        f"`--request-timeout` | {options.request_timeout:g} s",
        f"`--max-poll` | {options.max_poll // 2**10} KiB",
        f"`--max-message` | {options.max_message // 2**10} KiB",
        f"`--burst` | {options.rate:g} messages a second of a client, on all its channels together, {options.burst} ",
        f"A connection {FRAMES_PER_MESSAGE} times `--rate` in frames",
        f"{MAX_PUBLISHING_BYTES // 2**20} MiB of all requests to `/v1/publish`",
        f"{MAX_STRANGERS:,} tags of a trunk of which no client is known, and {MAX_CLIENTS:,} in all",
        f"`--bytes` | {options.entries:,} entries and {options.bytes // 2**10} KiB a second of a client; {BURST_S} ",
        f"`--user-bytes` | {options.user_entries:,} and {options.user_bytes // 2**20} MiB",
        f"`--address-bytes` | {options.address_entries:,} and {options.address_bytes // 2**20} MiB",
        f"`--total-bytes` | {options.total_entries:,} and {options.total_bytes // 2**20} MiB",
        f"`--max-registrations` | {options.max_registrations:,} objects of a client",
        f"`--max-queue` | {options.max_queue // 2**10} KiB",
        f"| {options.max_pending // 2**20} MiB kept for a client, {options.max_pending_total // 2**20} MiB for all |",
        f"`--stall` | {options.stall:g} s",
    ):
        assert said in SECURITY, said
    assert Thialfi(service="s").max_registrations == options.max_registrations


def test_a_heartbeat_is_answered_although_no_digest_is_known(scene: Scene, gateway: Process) -> None:
    client = online(scene, gateway)
    client.say(heartbeat=True)
    assert client.hear() == {"v": "1.0"}
    scene.tell_digest(client.client, 0)  # unasked
    assert client.hear()["digest"] == ["0", "0"]
    client.close()


def test_what_stands_beside_a_hello_counts_if_its_token_keeps_the_client(scene: Scene, gateway: Process) -> None:
    client = scene.client(gateway)
    client.say(hello={"nonce": "a", "application": "web"}, register=[["alice", "1"]])
    grant = client.hear_of("grant")["grant"]
    client.token, client.client = grant["token"], int(grant["client"])
    client.say(hello={"nonce": "b", "application": "web"}, register=[["bob", "2"]], heartbeat=True)
    client.hear_of("grant")
    scene.await_row(client.client, stream_schema.REGISTER)
    assert [row["object"] for row in scene.rows(client.client) if row["op"] == "register"] == ["bob"]
    client.close()


def test_names_are_compared_as_bytes(scene: Scene, gateway: Process) -> None:
    client = online(scene, gateway)
    client.say(register=[["\u00e9", "1"], ["e\u0301", "2"]], heartbeat=True)
    client.hear()
    assert [row["object"] for row in scene.rows(client.client) if row["op"] == "register"] == ["\u00e9", "e\u0301"]
    client.close()


def test_parts_are_taken_in_the_order_of_the_page_however_they_stand(scene: Scene, gateway: Process) -> None:
    client = online(scene, gateway)
    sync = {"number": "9", "part": 0, "parts": 1, "objects": ["carol"]}
    client.say(heartbeat=True, acknowledge=[["a", "1"]], sync=sync, unregister=[["b", "8"]], register=[["a", "7"]])
    client.hear()
    wanted = ["register", "unregister", "register", "sync", "acknowledge"]
    assert [op for op in scene.ops(client.client) if op in wanted] == wanted
    client.close()


def test_a_poll_of_a_client_that_comes_on_another_channel_is_answered_at_once(scene: Scene, gateway: Process) -> None:
    (hello,) = poll(gateway, {"v": "1.0", "hello": {"nonce": "n", "application": "web"}})
    token, name = hello["grant"]["token"], int(hello["grant"]["client"])
    scene.await_row(name, stream_schema.ONLINE)
    answers: list[Any] = []
    held = threading.Thread(target=lambda: answers.append(poll(gateway, {"v": "1.0", "token": token}, wait=50)))
    held.start()
    eventually(lambda: gateway.metric("connections") >= 1)
    other = scene.client(gateway)
    other.token = token
    other.say(heartbeat=True)
    other.hear()
    held.join(15)
    assert answers == [[]]
    poll(gateway, {"v": "1.0", "token": token})  # and takes it back
    assert other.closed() == 3002


def test_a_poll_that_is_none_is_refused_as_a_whole_and_so_is_one_that_is_too_large(gateway: Process) -> None:
    for body in (b'{"send": [{"v": "1.0"}], "wait": 3601}', b'{"send": [{"v": "1.0", "v": "1.0"}]}'):
        assert gateway.post("/v1/poll", body)[0] == 400
    assert gateway.post("/v1/poll", b" " * (9 * 2**20))[0] == 413


def test_a_wait_that_is_null_is_absent(gateway: Process) -> None:
    code, answer = gateway.post("/v1/poll", {"send": [{"v": "1.0", "token": "forged"}], "wait": None})
    assert code == 200
    assert "invalid" in answer["receive"][0]


def test_only_a_message_of_more_than_128_kib_ends_the_connection(scene: Scene, gateway: Process) -> None:
    client = online(scene, gateway)
    client.text("x" * 128 * 2**10)
    assert client.hear_of("error")["error"]["code"] == "large"
    client.text("x" * (128 * 2**10 + 1))
    assert client.closed() == 1009


def test_what_is_not_known_is_nested_as_deep_as_the_page_says(scene: Scene, gateway: Process) -> None:
    client = online(scene, gateway)
    for depth, said in ((8, {"v"}), (9, {"v", "error"})):
        client.say(heartbeat=True, news=functools.reduce(lambda inner, _: [inner], range(depth), cast(Any, 1)))
        assert client.hear().keys() == said
    client.close()
