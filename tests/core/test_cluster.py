from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

import tidings
from tidings.cluster import Cluster, connect
from tidings.errors import (
    CoordinationUnavailable,
    InvalidName,
    InvalidOption,
    LogMismatch,
    LogUnavailable,
    StreamExists,
    UnknownStream,
)
from tidings.stream_definition import StreamDefinition
from tidings.testing import held


def test_a_stream_is_made_found_listed_and_dropped(cluster: Cluster) -> None:
    made = cluster.create_stream("contacts", shards=8)
    assert cluster.stream("contacts").definition == made.definition
    cluster.create_stream("accounts")
    assert [stream.name for stream in cluster.streams()] == ["accounts", "contacts"]
    cluster.drop_stream("contacts")
    assert [stream.name for stream in cluster.streams()] == ["accounts"]


def test_what_one_session_publishes_another_reads(cluster: Cluster) -> None:
    with cluster.create_stream("contacts").producer() as producer:
        producer.publish("alice", 1).result(10)
    with connect(cluster.address) as other:
        assert held(other.stream("contacts").log)["object"].to_pylist() == ["alice"]


def test_a_definition_is_small_json_that_people_can_read(cluster: Cluster) -> None:
    cluster.create_stream("contacts", shards=8, retention_seconds=3600)
    raw, _ = cluster.coordination.client.get(cluster.coordination.path("streams", "contacts"))
    value = json.loads(raw)
    assert (value["version"], value["shards"], value["retention_seconds"]) == (1, 8, 3600)


def test_making_the_same_stream_again_gives_it_and_another_one_is_refused(cluster: Cluster) -> None:
    cluster.create_stream("contacts", shards=8)
    cluster.create_stream("contacts", shards=8)
    with pytest.raises(StreamExists, match="there already, with 8 shards"):
        cluster.create_stream("contacts", shards=16)
    assert cluster.stream("contacts").shards == 8


def test_an_unknown_stream_is_named_beside_those_there_are(cluster: Cluster) -> None:
    cluster.create_stream("contacts")
    with pytest.raises(UnknownStream, match=r"no stream 'contcats' in .* \(streams: contacts\)"):
        cluster.stream("contcats")
    with pytest.raises(UnknownStream):
        cluster.drop_stream("contcats")


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "é", "x" * 129, ".hidden"])
def test_a_name_that_zookeeper_or_a_folder_could_not_bear_is_refused(cluster: Cluster, name: str) -> None:
    with pytest.raises(InvalidName):
        cluster.create_stream(name)
    with pytest.raises(InvalidName):
        cluster.stream(name)


@pytest.mark.parametrize("shards", [0, -1, 4097])
def test_a_number_of_shards_that_cannot_be_is_refused(cluster: Cluster, shards: int) -> None:
    with pytest.raises(InvalidOption, match="shards"):
        cluster.create_stream("contacts", shards=shards)
    assert cluster.streams() == []


def test_a_stream_whose_log_cannot_be_made_is_not_defined(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_stream("contacts", log=f"delta:{tmp_path / 'here'}")
    with pytest.raises(
        LogMismatch, match=r"delta:\S+/here belongs to stream 'contacts' already: each stream has its own"
    ):
        cluster.create_stream("accounts", log=f"delta:{tmp_path / 'here'}")
    assert [stream.name for stream in cluster.streams()] == ["contacts"]


MARIADB, POSTGRES = "mysql:mysql://tail@127.0.0.1:1/", "postgres:postgresql://tail@127.0.0.1:1/shop"


@pytest.mark.parametrize(
    ("log", "options", "other", "others", "claim"),
    [
        (
            f"{MARIADB}shop",
            {"tables": ["shop.a", "shop.b"]},
            f"{MARIADB}x",
            {"tables": ["shop.b"]},
            "table shop.b of Ma",
        ),
        (
            POSTGRES,
            {"publication": "p", "slot": "s"},
            POSTGRES,
            {"publication": "q", "slot": "s"},
            "slot s of postgresql:",
        ),
        ("delta-cdf:/data/t", {"key": ["id"]}, "delta-cdf:/data/t", {}, "delta-cdf:/data/t"),
    ],
)
def test_what_is_one_streams_alone_is_no_others(
    cluster: Cluster, log: str, options: dict[str, Any], other: str, others: dict[str, Any], claim: str
) -> None:
    known = StreamDefinition("first", 16, log, options=options)
    cluster.coordination.create(known.to_json(), "streams", "first")
    told = f"^{re.escape(claim)}.* belongs to stream 'first' already: each stream has its own$"
    with pytest.raises(LogMismatch, match=told):
        cluster.create_stream("second", log=other, options=others)
    with pytest.raises(LogMismatch, match=told):
        cluster.create_stream("second", log=f"{other}/elsewhere", options=others, replicas={"east": log})
    assert [stream.name for stream in cluster.streams()] == ["first"]


@pytest.mark.parametrize(
    ("log", "options", "others"),
    [
        (f"{MARIADB}shop", {"tables": ["shop.a"]}, {"tables": ["shop.b"]}),
        (f"{MARIADB}shop", {"tables": ["shop.a"]}, {"tables": ["shop.a"], "domain": 7}),
        (POSTGRES, {"publication": "p"}, {"publication": "p"}),
    ],
)
def test_streams_of_one_database_that_share_nothing_of_it_may_be_made(
    cluster: Cluster, log: str, options: dict[str, Any], others: dict[str, Any]
) -> None:
    known = StreamDefinition("first", 16, log, options=options)
    cluster.coordination.create(known.to_json(), "streams", "first")
    with pytest.raises(LogUnavailable, match=r"127\.0\.0\.1:1"):  # which is the first thing that is wrong
        cluster.create_stream("second", log=log, options=others)
    assert [stream.name for stream in cluster.streams()] == ["first"]


def test_dropping_keeps_the_log_unless_told_to_purge(cluster: Cluster, tmp_path: Path) -> None:
    for name in ("kept", "purged"):
        with cluster.create_stream(name, log=f"delta:{tmp_path / name}").producer() as producer:
            producer.publish("alice").result(10)
        cluster.drop_stream(name, purge=name == "purged")
    assert (tmp_path / "kept").exists()
    assert not (tmp_path / "purged").exists()
    assert held(cluster.create_stream("kept", log=f"delta:{tmp_path / 'kept'}").log).num_rows == 1


def test_a_stream_without_a_log_needs_a_cluster_with_a_folder(zookeeper: str) -> None:
    with connect(f"{zookeeper}/nowhere") as homeless, pytest.raises(InvalidOption, match="needs a log"):
        homeless.create_stream("contacts")


def test_a_dead_zookeeper_is_one_clear_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CoordinationUnavailable, match=f"no ZooKeeper answers at {address}: nobody listens there"):
            connect(address, timeout=0.5)


@pytest.mark.parametrize(
    "address", ["", "localhost", "localhost:", "localhost:x/root", "a:1 b:2", "a:1//b", "a:1/b/../c", "a:1/."]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidOption, match="no ZooKeeper address"):
        connect(address)


def test_a_session_that_ended_is_an_error_of_ours(zookeeper: str) -> None:
    cluster = connect(f"{zookeeper}/ended")
    cluster.close()
    with pytest.raises(CoordinationUnavailable, match="broke off"):
        cluster.streams()


def test_two_roots_in_one_zookeeper_are_two_clusters(zookeeper: str, tmp_path: Path) -> None:
    with connect(f"{zookeeper}/east") as east, connect(f"{zookeeper}/west") as west:
        east.create_stream("contacts", log=f"delta:{tmp_path / 'contacts'}")
        assert west.streams() == []
        east.drop_stream("contacts")


@pytest.mark.slow
def test_an_embedded_cluster_keeps_its_streams_in_its_folder(tmp_path: Path) -> None:
    with tidings.embedded(tmp_path) as cluster:
        with cluster.create_stream("contacts").producer() as producer:
            producer.publish("alice", 1).result(10)
        address = cluster.address
    with tidings.embedded(tmp_path) as again:
        assert held(again.stream("contacts").log)["object"].to_pylist() == ["alice"]
    client = KazooClient(address, timeout=0.5)
    with pytest.raises(client.handler.timeout_exception):
        client.start(0.5)
