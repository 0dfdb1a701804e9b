"""The audit: nothing is changed unrecorded, an entry is small and tells no secret, and there are never too many."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidings.audit
from tidings.audit import MAX_ENTRY_BYTES, OpenEntry, acting_as, entries, recorded
from tidings.cluster import Cluster, connect
from tidings.coordination.access_check import check_access
from tidings.coordination.values import encode
from tidings.coordination.zookeeper import Coordination
from tidings.errors import CoordinationDenied, InvalidOption
from tidings.identity.credentials import Credentials, role_credentials
from tidings.testing import eventually
from tidings.wire.security import Security

SECRET = "the-secret-of-the-cluster"


def newest(tree: Coordination) -> dict[str, Any]:
    return next(entries(tree)).to_json()


def test_an_entry_says_who_did_what_from_where_and_how_it_ended(cluster: Cluster) -> None:
    tree = cluster.coordination
    with recorded(tree, "flows stop", ["cache/contacts/0"], before={}, after={"stopped": True}):
        under_way = newest(tree)
    done = newest(tree)
    assert (under_way["outcome"], under_way["ended"]) == ("unknown", None)
    assert (under_way["before"], under_way["after"]) == ({}, {"stopped": True})
    assert (done["number"], done["outcome"], done["ended"] >= done["time"]) == (under_way["number"], "done", True)
    assert done["who"].endswith("(anonymous)")
    assert f"process {os.getpid()}" in done["from"]
    assert (done["action"], done["subject"], done["count"]) == ("flows stop", ["cache/contacts/0"], 1)


@pytest.mark.parametrize(
    ("error", "outcome", "told"),
    [
        (InvalidOption("there is no other publisher"), "failed", "there is no other publisher"),
        (InvalidOption("postgresql://ann:hush@db/shop"), "failed", "(hidden)"),
        (RuntimeError("hush"), "failed", "RuntimeError"),
        (KeyboardInterrupt(), "interrupted", None),
        (SystemExit(143), "interrupted", None),
    ],
)
def test_a_change_that_fails_is_recorded_as_failed(
    cluster: Cluster, error: BaseException, outcome: str, told: str | None
) -> None:
    with pytest.raises(type(error)), recorded(cluster.coordination, "apply", ["stream contacts"]):
        raise error
    found = newest(cluster.coordination)
    assert (found["outcome"], found["error"]) == (outcome, told)


def test_a_change_that_was_not_made_whole_is_failed(cluster: Cluster) -> None:
    with recorded(cluster.coordination, "flows reset", ["a/b/0", "a/b/1"]) as entry:
        entry.problem = "1 of 2 flows was not reset"
    found = newest(cluster.coordination)
    assert (found["outcome"], found["error"]) == ("failed", "1 of 2 flows was not reset")


def test_what_is_done_within_a_change_is_a_part_of_it(cluster: Cluster) -> None:
    tree = cluster.coordination
    with recorded(tree, "flows stop", [f"cache/contacts/{shard}" for shard in range(10_000)]):
        for shard in range(10_000):
            with recorded(tree, "flows stop", [f"cache/contacts/{shard}"], before=shard, after={"stopped": shard}):
                pass
    (found,) = [one.to_json() for one in entries(tree)]
    assert (found["count"], len(found["subject"])) == (10_000, 20)
    assert found["before"] == {f"cache/contacts/{shard}": shard for shard in range(20)}


def test_a_console_says_who_its_user_is(cluster: Cluster) -> None:
    with acting_as("console user anna"), recorded(cluster.coordination, "publishers drain", ["east-1"]):
        pass
    assert newest(cluster.coordination)["who"] == "console user anna (anonymous)"


KILLED = """
import sys
from tidings.audit import recorded
from tidings.cluster import connect
with connect(sys.argv[1]) as cluster, recorded(cluster.coordination, "apply", ["stream contacts"], after={"shards": 4}):
    print("begun", flush=True)
    sys.stdin.read()
"""


def test_a_change_whose_process_is_killed_is_seen_as_one_without_an_outcome(cluster: Cluster) -> None:
    command = [sys.executable, "-c", KILLED, cluster.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGKILL)
    found = newest(cluster.coordination)
    assert (found["outcome"], found["subject"], found["after"]) == ("unknown", ["stream contacts"], {"shards": 4})


def test_only_the_newest_are_kept_beside_many_writers(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidings.audit, "MAX_ENTRIES", 50)
    monkeypatch.setattr(tidings.audit, "TRIM_EVERY", 10)
    tree, outcomes = cluster.coordination, list[str]()
    put(cluster, "not-ours", b"x")  # stays, and is in nobody's way

    def write(writer: int) -> None:
        for number in range(60):
            with recorded(tree, "flows stop", [f"{writer}/{number}"]):
                pass

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    found = list(entries(tree))
    outcomes += [one.outcome for one in found]
    assert set(outcomes) == {"done"}
    numbers = [one.number for one in found]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[:50] == list(range(numbers[0], numbers[0] - 50, -1)), "one of the newest is gone"
    assert len(numbers) < 50 + 2 * 10
    assert "not-ours" in tree.children("audit")


def put(cluster: Cluster, name: str, raw: bytes) -> None:
    client = cluster.coordination.client
    client.ensure_path(cluster.coordination.path("audit", name))
    client.set(cluster.coordination.path("audit", name), raw)


def test_what_somebody_has_put_where_an_entry_is_to_be_is_passed(cluster: Cluster) -> None:
    for number in (1, 2):
        put(cluster, f"entry-{number:010d}", b"x")  # these are 0 and 1 of those that were made
    for action in ("apply", "restore"):
        with recorded(cluster.coordination, action, []):
            pass
    found = [(one.number, one.action) for one in entries(cluster.coordination)]
    assert found == [(4, "restore"), (3, "apply")]
    assert len(cluster.coordination.children("audit")) == 4


def test_what_makes_no_sense_is_left_out_of_the_list(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with recorded(cluster.coordination, "apply", ["stream contacts"]):
        pass
    nonsense = [b"", b"x", b"[1]", encode({}), encode({"action": 7, "subjects": []}), b"[" * 5000, b"0" * 10**5]
    odd = encode({"action": "x", "subjects": [None, ["y"]], "count": "z", "outcome": 1.5, "before": [[1]]})
    for at, raw in enumerate([*nonsense, odd]):
        put(cluster, f"entry-{at + 50:010d}", raw)
    put(cluster, "entry-12", b"x")
    put(cluster, "entry-00000000²1", b"x")
    with caplog.at_level(logging.WARNING):
        assert [one.to_json()["action"] for one in entries(cluster.coordination)] == ["x", "apply"]
    assert len(caplog.records) == len(nonsense)


texts = st.text(st.characters(), max_size=500)  # with halves of surrogates, as a command line may have
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(texts, inner, max_size=30),
    max_leaves=40,
)


class Nowhere:
    """As much of a tree as an entry asks for."""

    credentials = Credentials()


@given(texts, st.lists(texts, max_size=40), anything, anything, texts)
def test_an_entry_is_small_whatever_it_is_of(
    action: str, subjects: list[str], before: Any, after: Any, error: str
) -> None:
    entry = OpenEntry(Nowhere(), action, subjects, before, after)  # type: ignore[arg-type]
    value = encode(entry.to_json("failed", error))
    assert len(value) <= MAX_ENTRY_BYTES
    assert len(json.loads(value)["subjects"]) <= 20


def test_no_secret_gets_into_it() -> None:
    given = {
        "log": "postgres:postgresql://tail:hush@db/shop",
        "replicas": {"east": "postgres:host=db password = hush"},
        "encoded": ["postgres:postgresql://db/shop?passwor%64=hush"],
        "options": {"password": "hush", "sslPassphrase": "hush", "nested": {"client_secret": "hush"}},
        "shards": 4,
    }
    entry = OpenEntry(Nowhere(), "streams create", [given["log"]], given, given)  # type: ignore[arg-type,list-item]
    value = entry.to_json("failed", "no such database: postgresql://tail:hush@db/shop")
    assert "hush" not in json.dumps(value)
    assert value["after"]["shards"] == 4


@pytest.fixture
def closed(zookeeper: str) -> str:
    address = f"{zookeeper}/{uuid.uuid4()}"
    with connect(address, security=Security(secret=SECRET)) as cluster, recorded(cluster.coordination, "apply", []):
        pass
    return address


@pytest.mark.parametrize("role", ["publisher", "producer", "member", "viewer"])
def test_whoever_is_no_operator_is_refused_before_anything_is_changed(closed: str, role: str) -> None:
    with connect(closed, credentials=role_credentials(SECRET, role)) as cluster:
        told = rf"to us \({role}\).*nothing was changed, since `flows stop`"
        with pytest.raises(CoordinationDenied, match=told), recorded(cluster.coordination, "flows stop", ["a/b/0"]):
            raise AssertionError("it was done")
        if role == "viewer":
            assert newest(cluster.coordination)["who"].endswith("(operator)")
        else:
            with pytest.raises(CoordinationDenied):
                list(entries(cluster.coordination))


def test_what_others_may_do_too_is_done_with_a_warning(closed: str, caplog: pytest.LogCaptureFixture) -> None:
    producer = role_credentials(SECRET, "producer")
    with connect(closed, credentials=producer) as cluster:
        tree = cluster.coordination
        with recorded(tree, "streams truncate", ["contacts"], required=False):
            pass
    assert "`streams truncate` is not recorded in the audit" in caplog.text


def test_in_a_closed_tree_from_before_there_was_an_audit_the_first_operator_makes_its_place(closed: str) -> None:
    with connect(closed, security=Security(secret=SECRET)) as cluster:
        tree = cluster.coordination
        tree.delete("audit")
        with connect(closed, credentials=role_credentials(SECRET, "viewer")) as viewer:
            assert list(entries(viewer.coordination)) == []
        with recorded(tree, "apply", ["stream contacts"]):
            pass
        assert newest(tree)["outcome"] == "done"
        assert not check_access(tree).wrong


def test_a_change_is_made_though_its_outcome_cannot_be_written(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(cluster.address) as other, recorded(other.coordination, "apply", ["stream contacts"]):
        other.coordination.client.stop()
    assert "the audit does not say how `apply` ended" in caplog.text
    assert eventually(lambda: newest(cluster.coordination)["outcome"] == "unknown")
