"""What a client, an address and all together may say, counted in entries and bytes, whatever connection it comes on."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import gateway_scene
from tests.support.gateway_scene import PATIENCE, SERVICE, Client, Process, Scene, online
from tests.support.proxy import Proxy
from tidings.testing import eventually
from tidings_thialfi.gateway.gateway import Gateway
from tidings_thialfi.gateway.options import GatewayOptions
from tidings_thialfi.gateway.rates import BURST_S, Amount, Rates, entries_of
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.protocol.messages import parse_client
from tidings_thialfi.protocol.tokens import TokenKeys

scene = gateway_scene.scene


def limited(gateway: Process, limit: str) -> float:
    return gateway.metric("limited_total", limit=limit)


def registrations(count: int, start: int = 0) -> list[list[str]]:
    return [[f"o{number}", str(number + 1)] for number in range(start, start + count)]


def again(scene: Scene, gateway: Process, old: Client, address: str | None = None) -> Client:
    """The same client on another connection."""
    made = scene.client(gateway) if address is None else scene.client_from(scene.http_from(address), gateway)
    made.token, made.client = old.token, old.client
    return made


def test_a_clients_entries_are_counted_over_its_connections(scene: Scene) -> None:
    gateway = scene.gateway("g-client", "--entries", "1")
    client = scene.client(gateway)
    client.hello()
    client.say(register=registrations(400), heartbeat=True)  # more than may come at once: the first message may
    assert "error" not in client.hear()
    for address in (None, "127.0.0.2"):
        client = again(scene, gateway, client, address)
        client.say(register=registrations(400, 400))
        error = client.hear_of("error")["error"]
        assert (error["code"], error["message"]) == ("rate", "you may say 1 entries a second")
        assert error["retry"] > 300
    assert scene.ops(client.client).count(stream_schema.REGISTER) == 400
    assert limited(gateway, "client-entries") == 2
    gateway.end()


def test_a_clients_messages_are_counted_over_its_channels(scene: Scene) -> None:
    gateway = scene.gateway("g-messages", "--rate", "0.01", "--burst", "3")
    hello = {"v": "1.0", "hello": {"nonce": "n", "application": "a"}}

    def polled() -> dict[str, Any]:
        code, answer = gateway.post("/v1/poll", {"send": [hello], "wait": 0})
        assert code == 200
        found: dict[str, Any] = answer["receive"][0]
        return found

    token = hello["token"] = polled()["grant"]["token"]
    answers = [polled() for _ in range(6)]
    assert [one.get("error", {}).get("code") for one in answers] == [None] * 3 + ["rate"] * 3
    client = scene.client_from(scene.http_from("127.0.0.2"), gateway)
    client.token = token
    client.say(heartbeat=True)
    assert client.hear()["error"]["message"] == "you say too much"
    assert limited(gateway, "rate") == 4
    gateway.end()


def test_what_a_client_owes_is_not_counted_against_it(scene: Scene) -> None:
    gateway = scene.gateway("g-owed", "--entries", "1")
    client = online(scene, gateway)
    for number in range(100):
        scene.notify(client.client, f"o{number}", 1)
    told: set[str] = set()
    while len(told) < 100:
        told |= {one[0] for one in client.hear_of("notify")["notify"]}
    client.say(acknowledge=[[name, "1"] for name in sorted(told)], heartbeat=True)
    assert "error" not in client.hear_of("v")
    for _ in range(3):
        client.say(acknowledge=[[name, "1"] for name in sorted(told)])  # which it has done already
    assert client.hear_of("error")["error"]["code"] == "rate"
    gateway.end()


def test_what_one_address_says_too_much_does_no_harm_to_another(scene: Scene) -> None:
    gateway = scene.gateway("g-address", "--address-entries", "10", "--burst", "500")
    hostile, honest = scene.http_from("127.0.0.3"), scene.http_from("127.0.0.2")
    for number in range(40):  # a client each, which nobody knows yet
        client = scene.client_from(hostile, gateway)
        client.say(hello={"nonce": f"n{number}", "application": "crowd"}, register=registrations(10))
    assert client.hear()["error"]["message"] == "all clients of your address may say 10 entries a second"
    made = [row for row in scene.rows() if row["op"] == stream_schema.CREATED and row["source"] == "crowd"]
    assert len(made) < 40
    assert limited(gateway, "address-entries") > 0
    other = scene.client_from(honest, gateway)
    other.hello()
    other.say(register=registrations(50), heartbeat=True)
    assert "error" not in other.hear()
    gateway.end()


def test_bytes_are_counted_before_they_are_looked_into(scene: Scene) -> None:
    gateway = scene.gateway("g-bytes", "--address-bytes", "1KiB")
    client = scene.client(gateway)
    for _ in range(4):
        client.text("x" * 10_000)
    eventually(lambda: limited(gateway, "address-bytes") == 2)
    assert gateway.metric("refused_messages_total", reason="malformed") == 2
    code, answer = gateway.post("/v1/poll", json.dumps({"send": ["x" * 15_000]}).encode())
    assert (code, answer) == (429, "all clients of your address may say 1,024 bytes a second\n")
    gateway.end()


def test_all_together_have_a_limit_too() -> None:
    rates = Rates(GatewayOptions(total_entries=1))
    assert rates.take(0.0, Amount(20), {"client": 1, "address": "a", "total": ""}) is None
    over = rates.take(0.0, Amount(1), {"client": 2, "address": "b", "total": ""})
    assert over is not None
    assert over.limit == "total-entries"
    assert rates.take(over.wait, Amount(1), {"client": 2, "address": "b", "total": ""}) is None


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 2), st.booleans()), max_size=40))
def test_however_many_gateways_are_left_all_together_say_no_more_than_the_total(
    steps: list[tuple[float, int, bool]],
) -> None:
    gateways = [Rates(GatewayOptions(total_entries=6)) for _ in range(3)]
    now, passed = 0.0, 0
    for pause, at, leaves in ((0.0, 0, False), *steps):
        now += pause
        if leaves and len(gateways) > 1:
            gateways.pop()
        for one in gateways:
            one.share(now, len(gateways))
        while gateways[at % len(gateways)].take(now, Amount(1), {"total": ""}) is None:
            passed += 1
        assert passed <= 6 * (BURST_S + now) + 1e-6


def allowed(gateway: Process) -> str:
    """What all clients of a gateway may say, as one is told that says more."""
    for _ in range(9):
        code, answer = gateway.post("/v1/poll", b"x" * 40_000)
        if code == 429:
            break
    found: str = answer
    return found.strip()


def test_gateways_share_what_all_clients_may_say_and_one_that_is_cut_off_keeps_its_share(scene: Scene) -> None:
    total, whole, half = ("--total-bytes", "4KiB"), "4,096", "2,048"
    said = "all clients of this gateway may say {} bytes a second"
    first = scene.gateway("g-first", *total)
    assert allowed(first) == said.format(whole)
    host, _, root = scene.cluster.address.partition("/")
    with Proxy(host) as line:
        second = scene.gateway("g-second", *total, "--zookeeper", f"{line.address}/{root}")
        assert allowed(second) == said.format(half), "which it knows before the first client comes"
        assert eventually(lambda: allowed(first) == said.format(half))
        line.cut()
        assert eventually(lambda: allowed(first) == said.format(whole)), "when the session of the other has ended"
        assert second.get("/health/ready")[0] == 503
        assert allowed(second) == said.format(half)
        line.heal()
        assert eventually(lambda: allowed(first) == said.format(half), PATIENCE)
        second.end()
    assert eventually(lambda: allowed(first) == said.format(whole))
    first.end()


def test_a_gateway_that_starts_knows_its_share_before_it_is_one_of_them(scene: Scene) -> None:
    other = scene.gateway("g-other")
    made = Gateway(scene.cluster, SERVICE, TokenKeys.load(scene.keys), options=GatewayOptions(total_entries=10))
    now = time.monotonic()
    made._rates.take(now, Amount(100), {"total": ""})
    over = made._rates.take(now, Amount(1), {"total": ""})
    assert over is not None
    assert over.reason == "all clients of this gateway may say 5 entries a second"
    other.end()


def test_what_is_refused_is_not_counted_against_others() -> None:
    rates = Rates(GatewayOptions(address_entries=1, total_entries=2))
    for _ in range(10):
        rates.take(0.0, Amount(20), {"address": "hostile", "total": ""})
    assert rates.take(0.0, Amount(20), {"address": "honest", "total": ""}) is None


def test_who_says_nothing_more_is_forgotten_and_who_has_said_much_is_not() -> None:
    rates = Rates(GatewayOptions())
    for client in range(100):
        rates.take(0.0, Amount(1, 100), {"client": client})
    rates.take(10.0, Amount(20_000, 100), {"client": 7})
    rates.sweep(1.0)
    assert len(rates) == 1
    rates.sweep(31.0)
    assert len(rates) == 0


@pytest.mark.parametrize(
    ("parts", "entries"),
    [
        ({"heartbeat": True}, 1),
        ({"register": [["a", "1"], ["b", "2"]], "unregister": [["c", "3"]], "acknowledge": [["d", "4"]]}, 4),
        ({"sync": {"number": "1", "part": 0, "parts": 1, "objects": ["a", "b", "c"]}, "register": [["d", "2"]]}, 4),
    ],
)
def test_an_entry_is_what_becomes_a_row(parts: dict[str, object], entries: int) -> None:
    assert entries_of(parse_client(json.dumps({"v": "1.0", "token": "t", **parts}))) == entries


def test_new_clients_of_one_address_are_few_whatever_connections_they_come_on(scene: Scene) -> None:
    gateway = scene.gateway("g-new", "--address-entries", "10")  # two hundred entries at once
    errors = []
    for number in range(30):
        client = scene.client(gateway)
        client.say(hello={"nonce": f"n{number}", "application": "fresh"})
        heard = client.hear()
        if "grant" in heard:
            last = heard["grant"]
        else:
            errors.append(heard["error"]["message"])
        client.close()
    assert set(errors) == {"all clients of your address may say 10 entries a second"}
    made = [row for row in scene.rows() if row["op"] == stream_schema.CREATED and row["source"] == "fresh"]
    assert 0 < len(made) < 15, "though this takes its time on a busy machine"
    known = scene.client(gateway)  # who has a token is no new client
    known.token = last["token"]

    def comes_in() -> bool:
        known.say(hello={"nonce": "again", "application": "fresh"})
        return "grant" in known.hear()

    assert eventually(comes_in, every=1.0)  # who says it more often is read more and more slowly
    gateway.end()
