"""The streams of a service are collected, and nobody misses what matters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidings.cluster import Cluster
from tidings.streams import Stream
from tidings.testing import held
from tidings.updates import TOMBSTONE
from tidings_thialfi import service
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.protocol.stream_schema import operation
from tidings_thialfi.server.collection import StreamCollection


def said(client: int, say: str, version: int | None = None, **more: str) -> dict[str, Any]:
    return {"object": str(client), "version": version, "attributes": {"say": say, **more}}


def left(stream: Stream) -> list[tuple[str, ...]]:
    """What is there: client, what is said or asked, about which object, version."""
    rows = [row for row in held(stream.log).to_pylist(maps_as_pydicts="lossy") if row["kind"] != TOMBSTONE]
    found = []
    for row in rows:
        about = row["attributes"]
        word = about.get("say") or about["op"]
        found.append((row["object"], word, about.get("object", "-"), str(row["version"])))
    return sorted(found)


def test_of_what_is_said_and_asked_the_latest_of_its_kind_about_an_object_is_left(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.create_stream("people", 2)
    service.create(cluster, "contacts", ["people"], storage=tmp_path, shards=2)
    operations, notifications = (cluster.stream(f"contacts.{name}") for name in ("operations", "notifications"))
    with operations.producer() as producer:
        producer.publish_many(
            [
                operation(7, stream_schema.CREATED),
                *(operation(7, stream_schema.REGISTER, number, object="a") for number in (1, 2, 3)),
                operation(7, stream_schema.UNREGISTER, 4, object="a"),
                operation(7, stream_schema.REGISTER, 5, object="b"),
                *(operation(7, stream_schema.ONLINE, gateway="g") for _ in range(3)),
                *(operation(8, stream_schema.ACKNOWLEDGE, version, object="a") for version in (1, 2)),
            ]
        ).result()
    with notifications.producer() as producer:
        producer.publish_many(
            [
                *(said(7, stream_schema.NOTIFY, version, object="a") for version in (1, 2, 3)),
                said(7, stream_schema.NOTIFY, 1, object="b"),
                said(7, stream_schema.REGISTERED, 9, object="a"),
                said(8, stream_schema.NOTIFY, 1, object="a"),
                *(said(7, stream_schema.DIGEST, number, count="1", sum="2") for number in (1, 2)),
            ]
        ).result()
    collection = StreamCollection([operations, notifications], interval_s=0)
    collection.look()
    collection.close()
    assert left(operations) == [
        ("7", "created", "-", "None"),
        ("7", "online", "-", "None"),
        ("7", "register", "a", "3"),
        ("7", "register", "b", "5"),
        ("7", "unregister", "a", "4"),
        ("8", "acknowledge", "a", "2"),
    ]
    assert left(notifications) == [
        ("7", "digest", "-", "2"),
        ("7", "notify", "a", "3"),
        ("7", "notify", "b", "1"),
        ("7", "registered", "a", "9"),
        ("8", "notify", "a", "1"),
    ]


def test_a_stream_that_somebody_else_collects_is_left_for_later(cluster: Cluster, tmp_path: Path, caplog: Any) -> None:
    cluster.create_stream("people", 1)
    service.create(cluster, "contacts", ["people"], storage=tmp_path, shards=1)
    stream = cluster.stream("contacts.operations")
    stream.writable_log.destroy()
    collection = StreamCollection([stream], interval_s=0)
    collection.look()
    collection.close()
    assert "'contacts.operations' was not collected, and will be later" in caplog.text
