"""Roles on the command line: who one is by the environment, what `doctor` finds, and what it mends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import Run
from tidings.cluster import connect
from tidings.coordination.zookeeper import Coordination
from tidings.errors import CoordinationDenied
from tidings.identity.credentials import Credentials, role_credentials
from tidings.identity.keys import application_key
from tidings.wire.security import Security

SECRET = "the-secret-of-the-cluster"


@pytest.fixture
def closed(address: str, tmp_path: Path) -> str:
    with connect(address, security=Security(secret=SECRET)) as cluster:
        cluster.create_stream("contacts", log=f"delta:{tmp_path}/contacts")
        cluster.create_application("cache", ["contacts"])
    return address


def test_keys_are_shown_for_applications_and_roles(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = tmp_path / "secret"
    both.write_text(f"a-later-secret-of-the-cluster\n{SECRET}\n")
    monkeypatch.setenv("TIDINGS_SECRET_FILE", str(both))
    shown = run("keys", "show", "--role", "viewer")
    assert shown.out.splitlines()[1] == role_credentials(SECRET, "viewer")
    assert run("keys", "show", "--application", "cache").out.splitlines()[1] == application_key(SECRET, "cache")
    for wrong in ((), ("--role", "viewer", "--application", "cache")):
        refused = run("keys", "show", *wrong)
        assert (refused.code, "name either an application" in refused.err) == (2, True)
    assert run("keys", "show", "--role", "operator").code == 2  # that is who has the secret


def test_one_is_who_the_environment_says(closed: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = run("streams", "list")
    assert (stranger.code, "does not know us (anonymous)" in stranger.err) == (1, True)
    monkeypatch.setenv("TIDINGS_APPLICATION_KEY", application_key(SECRET, "cache"))
    assert "contacts" in run("streams", "list").out
    monkeypatch.setenv("TIDINGS_SECRET", SECRET)
    assert run("applications", "drop", "cache", "--yes").code == 0
    monkeypatch.setenv("TIDINGS_ZOOKEEPER_CREDENTIALS", role_credentials(SECRET, "viewer"))
    assert "are set, and each says who we are: unset one" in run("streams", "list").err
    monkeypatch.delenv("TIDINGS_SECRET")
    assert "contacts" in run("streams", "list").out
    denied = run("streams", "drop", "contacts", "--yes")
    assert (denied.code, "to us (viewer); check the credentials" in denied.err) == (1, True)
    monkeypatch.setenv("TIDINGS_ZOOKEEPER_CREDENTIALS", "no-password")
    assert "have the form user:password" in run("streams", "list").err


def test_the_doctor_finds_what_is_open_and_closes_it(
    address: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(address) as cluster:
        cluster.create_stream("contacts", log=f"delta:{tmp_path}/contacts")

    def roles(*options: str) -> dict[str, object]:
        found = run("doctor", "--zookeeper", address, "--json", *options)
        return next(one for one in json.loads(found.out) if one["name"] == "roles")

    assert roles() == {
        "name": "roles",
        "ok": True,
        "found": (
            "open: everybody who reaches it may change everything; it is on this machine, and TIDINGS_SECRET would "
            "close it"
        ),
        "fix": "",
    }
    assert "needs the secret of the cluster" in run("doctor", "--repair").err
    monkeypatch.setenv("TIDINGS_SECRET", SECRET)
    before = roles()
    assert (before["ok"], before["fix"]) == (False, f"Run 'tidings doctor --zookeeper {address} --repair'.")
    assert "mended" in str(roles("--repair")["found"])
    assert roles()["ok"] is True
    monkeypatch.setenv("TIDINGS_SECRET", "another-secret-of-no-cluster")
    assert "does not know us (operator)" in str(roles()["found"])
    monkeypatch.delenv("TIDINGS_SECRET")
    monkeypatch.setenv("TIDINGS_ZOOKEEPER_CREDENTIALS", role_credentials(SECRET, "viewer"))
    assert "known as viewer" in str(roles()["found"])


def test_a_repair_wants_to_know_of_what(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDINGS_ZOOKEEPER")
    assert "name it by --zookeeper" in run("doctor", "--repair").err


def test_a_zookeeper_elsewhere_needs_credentials_or_a_word(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elsewhere = ("streams", "list", "--zookeeper", "192.0.2.1:2181", "--timeout", "0.1")
    assert "is on another machine, and we have no credentials" in run(*elsewhere).err
    insecure = run("--insecure", *elsewhere)
    assert "INSECURE: whoever reaches the ZooKeeper at 192.0.2.1:2181 may change everything" in insecure.err
    assert "no ZooKeeper answers at 192.0.2.1:2181" in insecure.err
    assert "is on another machine" in run(*elsewhere).err  # it was said for one command
    monkeypatch.setenv("TIDINGS_SECRET", SECRET)
    assert "the password for the ZooKeeper at 192.0.2.1:2181 travels in clear" in run(*elsewhere).err


def test_an_address_from_a_file_above_gets_no_credentials_of_any_kind(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tidings.yml").write_text("zookeeper: 127.0.0.1:1/other\n")
    below = tmp_path / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    monkeypatch.delenv("TIDINGS_ZOOKEEPER")
    for name, value in (("TIDINGS_SECRET", SECRET), ("TIDINGS_APPLICATION_KEY", application_key(SECRET, "cache"))):
        monkeypatch.setenv(name, value)
        assert "our credentials are not sent to 127.0.0.1:1/other" in run("apply").err
        monkeypatch.delenv(name)


def test_nobody_is_let_in_by_half_a_secret(closed: str) -> None:
    with pytest.raises(CoordinationDenied, match="does not know us"):
        Coordination(closed, credentials=Credentials.of_secrets([SECRET[:-1]]))


def test_a_secret_in_the_wrong_variable_is_not_shown_and_a_short_one_closes_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDINGS_SECRET_FILE", SECRET)
    mistaken = run("streams", "list")
    assert (mistaken.code, SECRET in mistaken.err) == (1, False)
    assert "what TIDINGS_SECRET_FILE names cannot be read: No such file" in mistaken.err
    monkeypatch.delenv("TIDINGS_SECRET_FILE")
    monkeypatch.setenv("TIDINGS_SECRET", "secret")
    assert "a secret of fewer than 16 characters is guessed" in run("streams", "list").err
    monkeypatch.delenv("TIDINGS_SECRET")
    assert run("streams", "list").code == 0  # nobody has closed it


def test_operators_act_on_flows_of_a_closed_cluster_and_viewers_only_look(
    closed: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDINGS_SECRET", SECRET)
    assert run("flows", "reset", "cache/contacts/0", "--to-earliest", "--execute").code == 0
    assert run("flows", "stop", "--application", "cache").code == 0
    monkeypatch.delenv("TIDINGS_SECRET")
    monkeypatch.setenv("TIDINGS_ZOOKEEPER_CREDENTIALS", role_credentials(SECRET, "viewer"))
    assert {one["state"] for one in run("flows", "list", "--json").json} == {"stopped"}
    assert run("flows", "history", "cache/contacts/0").code == 0
    assert run("flows", "reset", "cache/contacts/0", "--to-latest", "--dry-run").code == 0
    for act in (
        ("flows", "reset", "cache/contacts/0", "--to-latest", "--execute"),
        ("flows", "resume", "--application", "cache"),
        ("flows", "pause", "cache/contacts/0"),
        ("applications", "update", "cache", "--filter", "a = b"),
    ):
        denied = run(*act)
        assert (denied.code, "to us (viewer); check the credentials" in denied.err) == (1, True), (act, denied.err)
    with (
        connect(closed, security=Security(secret=SECRET)) as operator,
        connect(closed, credentials=role_credentials(SECRET, "publisher")) as publisher,
    ):
        value = operator.coordination.read("flows", "cache", "contacts")
        assert publisher.coordination.read("flows", "cache", "contacts") == value
        with pytest.raises(CoordinationDenied):
            publisher.coordination.write({}, "flows", "cache", "contacts")
