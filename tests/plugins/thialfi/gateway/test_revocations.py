"""What operators take back: tokens that are revoked, and clients that are sent away, at all gateways."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import gateway_scene
from tests.support.gateway_scene import PROGRAM, SERVICE, Client, Process, Scene, online
from tidings.errors import InvalidOption
from tidings.testing import eventually
from tidings_thialfi import revocations
from tidings_thialfi.places import DISCONNECTED, PLACE, REVOKED
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.revocations import KEPT_S, Whose, say

scene = gateway_scene.scene


@pytest.fixture(scope="module")
def gateways(scene: Scene) -> list[Process]:
    secret = scene.secret_file("peers", "between-gateways")
    return [scene.gateway(name, "--peer-secret", str(secret)) for name in ("g1", "g2")]


def command(scene: Scene, *words: str) -> subprocess.CompletedProcess[str]:
    done = [*PROGRAM, "thialfi", *words, "--zookeeper", scene.cluster.address]
    return subprocess.run(done, capture_output=True, text=True, timeout=60)


def shown(scene: Scene, gateway: Process, token: str | None) -> Client:
    """A new connection that shows this token."""
    client = scene.client(gateway)
    client.token = token
    client.say(heartbeat=True)
    return client


def test_a_client_that_is_revoked_is_sent_away_and_its_token_opens_nothing_more(
    scene: Scene, gateways: list[Process]
) -> None:
    client, other = online(scene, gateways[0]), online(scene, gateways[0])
    done = command(scene, "revoke", SERVICE, "--client", str(client.client))
    assert done.returncode == 0, done.stderr
    heard = client.hear_of("invalid")
    assert (heard["invalid"], heard["token"]) == ("the token is revoked", client.token)
    assert client.closed() == 3003
    scene.await_row(client.client, stream_schema.OFFLINE)
    for gateway in gateways:
        assert eventually(lambda gateway=gateway: "invalid" in shown(scene, gateway, client.token).hear())  # type: ignore[misc]
        again = scene.client(gateway)
        again.token = client.token
        again.say(hello={"nonce": "n", "application": "web-1"})
        assert again.hear()["invalid"] == "the token is revoked"
        again.token = None
        assert again.hello()["again"] is False
        assert again.client != client.client
    assert gateways[0].metric("disconnected_sessions_total", reason="revoked") == 1
    assert gateways[1].metric("refused_messages_total", reason="revoked") >= 2
    other.say(heartbeat=True)
    other.hear()


def test_a_gateway_that_starts_knows_what_was_revoked_before(scene: Scene, gateways: list[Process]) -> None:
    client = online(scene, gateways[0])
    say(scene.cluster.coordination, SERVICE, REVOKED, Whose.client(client.client))
    late = scene.gateway("g-late")
    assert "invalid" in shown(scene, late, client.token).hear()
    late.end()


def test_one_token_is_revoked_and_the_next_of_its_client_is_not(scene: Scene, gateways: list[Process]) -> None:
    client = online(scene, gateways[0])
    stolen = client.token
    assert stolen is not None
    eventually(lambda: client.hello() and client.token != stolen)  # a token of another second is another one
    path = scene.secret_file("stolen", stolen)
    done = command(scene, "revoke", SERVICE, "--token", str(path))
    assert done.returncode == 0, done.stderr
    assert stolen not in done.stderr + done.stdout + str(scene.cluster.coordination.children(PLACE, SERVICE, REVOKED))
    assert eventually(lambda: "invalid" in shown(scene, gateways[1], stolen).hear())
    client = shown(scene, gateways[1], client.token)
    assert "invalid" not in client.hear()


def test_what_is_no_token_is_not_revoked(scene: Scene, gateways: list[Process]) -> None:
    client = online(scene, gateways[0])
    token = client.token
    assert token is not None
    path = scene.folder / "token"

    def revoked(text: str) -> bool:
        path.write_text(text)
        done = command(scene, "revoke", SERVICE, "--token", str(path))
        assert "Traceback" not in done.stderr
        assert done.returncode in (0, 1)
        assert (done.returncode == 0) or "holds no token: it has to hold one and nothing else" in " ".join(
            done.stderr.split()
        )
        return done.returncode == 0

    for text in (
        f"{token}\n{token}\n",
        f'"{token}"',
        f"token: {token}",
        token[:-1],
        token[:-2],
        token[:-3],
        "",
        "A" * 9999,
    ):
        assert not revoked(text), text
    client.say(heartbeat=True)
    assert "invalid" not in client.hear()
    assert revoked(f"\ufeff  {token}\r\n\n")
    assert client.hear_of("invalid")["token"] == token


def test_a_client_that_is_disconnected_comes_again_with_its_token(scene: Scene, gateways: list[Process]) -> None:
    for gateway in gateways:
        client = online(scene, gateway)
        done = command(scene, "disconnect", SERVICE, "--client", str(client.client))
        assert done.returncode == 0, done.stderr
        assert client.closed() == 3003
        assert "invalid" not in shown(scene, gateway, client.token).hear()


def test_a_token_that_expired_too_long_ago_is_not_renewed(scene: Scene) -> None:
    gateway = scene.gateway("g-short", "--token-lifetime", "1", "--renew-within", "0.1")
    client = scene.client(gateway)
    client.hello()

    def refused() -> bool:  # its first token: those that it is granted meanwhile are not kept
        client.say(hello={"nonce": "n", "application": "web-1"})
        return client.hear().get("invalid") == "the token has expired too long ago"

    assert eventually(refused)
    gateway.end()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["revoke", SERVICE], "say whose: --client, --user or --token"),
        (["revoke", SERVICE, "--client", "7", "--user", "ann"], "only one of them"),
        (["disconnect", SERVICE], "say whose: --client, --user"),
        (["revoke", "nobody", "--client", "7"], "there is no service 'nobody'"),
        (["revoke", SERVICE, "--client", str(2**63)], "is no client"),
        (["revoke", SERVICE, "--token", "/there/is/none"], "/there/is/none"),
        (["revoke", SERVICE, "--user", ""], "a user has a name"),
        (["disconnect", SERVICE, "--user", "J\udcf6rg"], "the user's name is no UTF-8"),
    ],
)
def test_what_cannot_be_revoked_is_one_sentence(scene: Scene, words: list[str], why: str) -> None:
    done = command(scene, *words)
    assert done.returncode in (1, 2)
    assert why in " ".join(done.stderr.split()), done.stderr
    assert "Traceback" not in done.stderr


def test_revocations_are_kept_until_no_token_that_they_name_could_be_renewed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = (PLACE, "other", REVOKED)
    coordination = scene.cluster.coordination

    def kept() -> set[str]:
        return {name.rpartition(".")[0] for name in coordination.children(*place)}

    for client, now in ((1, 1000), (2, 2000), (1, 3000)):
        say(coordination, "other", REVOKED, Whose.client(client), now)
    assert kept() == {"client.1", "client.2"}
    say(coordination, "other", REVOKED, Whose.client(3), 2001 + KEPT_S[REVOKED])
    assert kept() == {"client.1", "client.3"}
    monkeypatch.setattr(revocations, "MAX_KEPT", 2)
    with pytest.raises(InvalidOption, match="no more are kept: put a new key"):
        say(coordination, "other", REVOKED, Whose.client(4), 3000)


def test_who_is_to_be_disconnected_is_kept_for_a_day_and_the_oldest_give_way(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordination = scene.cluster.coordination

    def kept() -> set[str]:
        return {name.split(".")[1] for name in coordination.children(PLACE, "third", DISCONNECTED)}

    for client, now in ((1, 1000), (2, 1000 + 3600), (3, 1000 + 7200)):
        say(coordination, "third", DISCONNECTED, Whose.client(client), now)
    assert kept() == {"1", "2", "3"}, "a gateway that was cut off for two hours hears of it"
    say(coordination, "third", DISCONNECTED, Whose.client(4), 1001 + 86_400)
    assert kept() == {"2", "3", "4"}
    monkeypatch.setattr(revocations, "MAX_KEPT", 2)
    say(coordination, "third", DISCONNECTED, Whose.client(5), 1002 + 86_400)
    assert kept() == {"4", "5"}


def test_a_node_that_makes_no_sense_stops_nothing(scene: Scene, gateways: list[Process], tmp_path: Path) -> None:
    coordination = scene.cluster.coordination
    for what in (REVOKED, DISCONNECTED):
        for name in ("junk", "client.x.y", "client..", "user.1." + "9" * 40):
            coordination.create({}, PLACE, SERVICE, what, name)
    client = online(scene, gateways[0])
    say(coordination, SERVICE, DISCONNECTED, Whose.client(client.client))
    assert client.closed() == 3003
