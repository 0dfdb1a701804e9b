"""Nonsense in ZooKeeper, as a slip of the hand or a later version may leave it there."""

from __future__ import annotations

import json
from typing import Any

from tidings.cluster import Cluster

DEEP = b'{"version": 1, "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def _json(**value: Any) -> bytes:
    return json.dumps({"version": 1, **value}).encode()


STREAM = {"name": "bad", "shards": 2, "log": "delta:/nowhere"}
APPLICATION = {"name": "bad", "streams": ["contacts"]}
SUBSCRIBER = {"address": "127.0.0.1:1", "capacity": 1, "load": 0}
PUBLISHER = {"streams": None, "draining": False}

DEFINITIONS: dict[str, bytes] = {
    "streams/bad": _json(**{**STREAM, "shards": "many"}),
    "streams/half": _json(**{**STREAM, "name": "half", "shards": 1.5}),
    "streams/empty": _json(),
    "streams/deep": DEEP,
    "streams/bytes": b"\xff\xfe",
    "streams/list": b"[1]",
    "streams/a b": _json(**STREAM),
    "streams/options": _json(**{**STREAM, "name": "options", "options": 7}),
    "streams/log": _json(**{**STREAM, "name": "log", "log": 7}),
    "streams/caravans": _json(**{**STREAM, "name": "caravans", "caravans": {"rate": "x"}}),
    "streams/twin": _json(**{**STREAM, "name": "contacts"}),
    "applications/bad": _json(**{**APPLICATION, "streams": 7}),
    "applications/deep": DEEP,
    "applications/bytes": b"\xff\xfe",
    "applications/odd": _json(name=["x"], streams=["contacts"]),
    "applications/filter": _json(name="filter", streams=["contacts"], filter=3),
    "applications/balance": _json(name="balance", streams=["contacts"], balance=["x"]),
    "applications/age": b'{"version": 1, "name": "age", "streams": ["contacts"], "mode": "realtime", "max_age": NaN}',
    "applications/twin": _json(name="cache", streams=["contacts"]),
}
OTHERS: dict[str, bytes] = {
    "publishers/empty": _json(),
    "publishers/odd": _json(streams=7, draining="no"),
    "publishers/lists": _json(**{**PUBLISHER, "streams": [["contacts"]]}),
    "publishers/replica": _json(**{**PUBLISHER, "replica": ["x"]}),
    "publishers/unreadable": _json(**{**PUBLISHER, "unreadable": 7}),
    "publishers/deep": DEEP,
    "applications/cache/subscribers/huge": b'{"version": 1, "address": "x:1", "load": 0, "capacity": 1'
    + b"0" * 400
    + b"}",
    "applications/cache/subscribers/nan": b'{"version": 1, "address": "x:1", "load": 0, "capacity": NaN}',
    "applications/cache/subscribers/deep": DEEP,
    "applications/cache/subscribers/empty": _json(),
    "flows/cache/contacts": DEEP,
    "flows/other/contacts": _json(shards={"0": {"pin": ["x"], "skip": 7}, "1": 3, "x": {"skip": [["y"], [-7, 0]]}}),
    "flows/even/contacts": _json(shards=["x"]),
    "caravans/contacts": _json(policy=["x"], caravans="x", again="y"),
    "caravans/contacts/odd": _json(caravans="x", bytes_read="y", bytes_sent={}),
    "caravans/contacts/empty": _json(),
    "caravans/contacts/deep": DEEP,
}
EVERYWHERE = {**DEFINITIONS, **OTHERS}


def put(cluster: Cluster, nodes: dict[str, bytes]) -> None:
    """Put them where they are, whatever was there before."""
    client = cluster.coordination.client
    for place, raw in nodes.items():
        path = cluster.coordination.path(*place.split("/"))
        client.ensure_path(path)
        client.set(path, raw)
