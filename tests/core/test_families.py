"""Families: several streams that are read by one name."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidings
from tests.support.subscribers import Seen
from tidings.cluster import Cluster
from tidings.errors import InvalidOption, StreamExists, TidingsError, UnknownStream
from tidings.flow_status import status
from tidings.stream_definition import StreamDefinition
from tidings.testing import eventually


def logs(folder: Path, *names: str) -> dict[str, str]:
    return {name: f"delta:{folder}/{name}" for name in names}


def publish(cluster: Cluster, stream: str, *objects: str) -> None:
    with cluster.stream(stream).producer() as producer:
        for one in objects:
            producer.publish(one, 1)


def test_a_family_has_a_stream_for_each_log_which_are_listed_and_dropped_by_its_name(
    cluster: Cluster, tmp_path: Path
) -> None:
    made = cluster.create_family("shop", logs(tmp_path, "east", "west"), 2, retention_seconds=60)
    assert [one.name for one in made] == ["shop.east", "shop.west"]
    assert {(one.definition.family, one.definition.retention_seconds) for one in made} == {("shop", 60)}
    assert [one.name for one in cluster.streams_named("shop")] == ["shop.east", "shop.west"]
    assert [one.name for one in cluster.streams_named("shop.west")] == ["shop.west"]
    with pytest.raises(UnknownStream, match=r"'shop' is a family of streams in .*: name one of shop\.east, shop\.west"):
        cluster.stream("shop")
    cluster.create_family("shop", logs(tmp_path, "east", "west", "north"), 2, retention_seconds=60)
    cluster.drop_stream("shop.east")
    assert [one.name for one in cluster.streams_named("shop")] == ["shop.north", "shop.west"]
    cluster.drop_stream("shop", purge=True)
    assert cluster.streams() == []
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["east"]
    with pytest.raises(UnknownStream, match="there is no stream 'shop'"):
        cluster.streams_named("shop")


def test_a_definition_from_before_there_were_families_is_what_it_was() -> None:
    known = StreamDefinition("shop", 2, "delta:/shop")
    assert "family" not in known.to_json()
    member = StreamDefinition("shop.east", 2, "delta:/shop", family="shop")
    assert StreamDefinition.from_json(member.to_json()) == member
    with pytest.raises(InvalidOption, match=r"a stream of family 'shop' is called shop\.<name>, not 'east'"):
        StreamDefinition("east", 2, "delta:/shop", family="shop")


def test_a_stream_and_a_family_cannot_have_one_name(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_stream("shop", 1)
    with pytest.raises(StreamExists, match="there is a stream 'shop', so no family of streams can be called that"):
        cluster.create_family("shop", logs(tmp_path, "east"))
    cluster.create_family("store", logs(tmp_path, "east"))
    with pytest.raises(StreamExists, match=r"'store' is a family of streams \(store\.east\), so no stream"):
        cluster.create_stream("store", 1)
    for wrong in ({}, {"e/st": "delta:/x"}):
        with pytest.raises(TidingsError):
            cluster.create_family("other", wrong)
    with pytest.raises(InvalidOption, match="several logs, of which none can have replicas"):
        cluster.create_family("other", logs(tmp_path, "x"), replicas={"east": "delta:/y"})
    with pytest.raises(InvalidOption, match="a stream does not know that option"):
        cluster.create_family("other", logs(tmp_path, "x"), colour="red")


def test_an_application_that_names_a_family_reads_its_streams_and_those_that_come_later(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.create_family("shop", logs(tmp_path, "east", "west"), 2)
    cluster.create_stream("other", 1)
    cluster.create_application("cache", ["shop"], start="earliest")
    seen = Seen()
    with cluster.subscribe("cache", seen), cluster.publisher(streams=["shop"], token_interval=0.1):
        for stream in ("shop.east", "shop.west", "other"):
            publish(cluster, stream, stream)
        eventually(lambda: {one.stream for one in seen.updates} == {"shop.east", "shop.west"})
        cluster.create_family("shop", logs(tmp_path, "north"), 2)
        publish(cluster, "shop.north", "shop.north")
        eventually(lambda: "shop.north" in {one.stream for one in seen.updates})
        assert all(one.stream == one.object for one in seen.updates)
        eventually(lambda: sum(one.datamarker is not None and one.lag == 0 for one in status(cluster)) == 6)
        assert {one.flow.stream for one in status(cluster, stream="shop.east")} == {"shop.east"}
        assert len(status(cluster, stream="shop")) == 6


def test_an_application_names_a_stream_once(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_family("shop", logs(tmp_path, "east", "west"), 2)
    with pytest.raises(InvalidOption, match=r"names stream 'shop\.east' twice, by itself and by its family"):
        cluster.create_application("cache", ["shop", "shop.east"])
    with pytest.raises(InvalidOption, match="stream 'shop' is none of the application's"):
        cluster.create_application("cache", ["shop"], start={"shop": {0: 1}})
    with pytest.raises(InvalidOption, match=r"stream 'shop\.east' has shards 0 to 1, not 2"):
        cluster.create_application("cache", ["shop"], start={"shop.east": {2: 1}})
    cluster.create_application("cache", ["shop"], start={"shop.east": {1: 1}})
    with pytest.warns(tidings.errors.FilterWarning, match="shard is between 0 and 1"):
        cluster.create_application("none", ["shop"], filter="shard = 7")


def test_all_streams_of_a_family_are_made_or_none_is_and_those_that_were_there_stay(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.create_family("shop", logs(tmp_path, "east"), 2)
    (tmp_path / "south").write_text("no folder")
    with pytest.raises(TidingsError, match="south"):
        cluster.create_family("shop", logs(tmp_path, "east", "west", "south"), 2)
    assert [one.name for one in cluster.streams()] == ["shop.east"]
