"""What the console tells of a cluster is what the cluster is."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from tests.support import bad_nodes
from tests.support.console_client import Browser, ConsoleThread
from tidings.cluster import Cluster
from tidings.console.cluster_view import STATES
from tidings.console.flow_map import next_colours
from tidings.testing import eventually


def test_the_overview_counts_what_there_is(operator: Browser) -> None:
    found = operator.get("/api/overview").json
    assert found["counts"] == {
        "streams": 1,
        "applications": 2,
        "publishers": 1,
        "subscribers": 1,
        "flows": 8,
        "pipelines": 0,
    }
    assert found["states"] == dict.fromkeys(STATES, 0) | {"running": 4, "waiting": 4}
    assert (found["health"], found["reasons"][0]) == ("warning", "4 flows wait for subscribers")
    # What was sent to the other application is acknowledged at the next token.
    eventually(
        lambda: {one["application"] for one in operator.get("/api/overview").json["worst"]} == {"idle"}, every=0.1
    )
    assert {len(found["history"][name]) for name in found["history"]} == {len(found["history"]["times"])}
    assert (found["partial"], found["problems"]) == (False, [])


def test_the_map_has_each_shard_with_its_owner(operator: Browser) -> None:
    found = operator.get("/api/map").json
    (colour,) = next_colours({"east-1": None}, ["east-1"]).values()
    assert found["publishers"] == [{"name": "east-1", "state": "running", "colour": colour}]
    assert [(row["application"], row["owners"], row["states"]) for row in found["rows"]] == [
        ("cache", [0] * 4, "rrrr"),
        ("idle", [0] * 4, "wwww"),
    ]
    assert [row["row"] for row in operator.get("/api/map?application=idle").json["rows"]] == [1]


def test_flows_come_by_the_page(operator: Browser) -> None:
    pages = [operator.get(f"/api/flows?size=3&page={page}").json for page in range(4)]
    assert [len(page["items"]) for page in pages] == [3, 3, 2, 0]
    assert {page["total"] for page in pages} == {8}
    names = [one["flow"] for page in pages for one in page["items"]]
    assert names == [f"{name}/contacts/{shard}" for name in ("cache", "idle") for shard in range(4)]


@pytest.mark.parametrize(
    ("query", "total"),
    [
        ("application=idle", 4),
        ("application=idle&stream=contacts", 4),
        ("stream=other", 0),
        ("state=running", 4),
        ("state=running,waiting", 8),
        ("state=failed", 0),
        ("publisher=east-1", 8),
        ("publisher=west-1", 0),
        ("q=CONTACTS/3", 2),
        ("q=east", 8),
        ("subscriber=nobody", 0),
    ],
)
def test_flows_are_chosen(operator: Browser, query: str, total: int) -> None:
    assert operator.get(f"/api/flows?{query}").json["total"] == total


def test_the_worst_flows_come_first(operator: Browser) -> None:
    items = operator.get("/api/flows?sort=lag").json["items"]
    lags = [one["lag"] for one in items]
    assert lags == sorted(lags, reverse=True)
    assert sum(lags) == 22
    assert items[0]["application"] == "idle"
    assert items[0]["lag_seconds"] > 0


def test_a_flow_tells_all_that_is_known_of_it(operator: Browser) -> None:
    found = operator.get("/api/flows/cache/contacts/1").json
    assert (found["owner"], found["state"], found["lag"], found["lag_seconds"]) == ("east-1", "running", 0, 0.0)
    assert found["datamarker"] == found["head"]
    assert found["acknowledged"].endswith("Z")
    assert found["epoch"] >= 1
    assert found["pid"]
    operator.get("/api/flows/cache/contacts/1")
    eventually(lambda: len(operator.get("/api/flows/cache/contacts/1").json["lag_history"]["times"]) > 1)


def test_streams_applications_and_members_are_told_of(operator: Browser) -> None:
    (stream,) = operator.get("/api/streams").json["items"]
    assert (stream["name"], stream["shards"], stream["updates"]) == ("contacts", 4, 22)
    assert (stream["readers"], stream["problem"]) == (["cache", "idle"], None)
    shards = operator.get("/api/streams/contacts").json["shards"]
    assert sum(one["updates"] for one in shards) == 22
    assert all(one["last_time"].endswith("Z") for one in shards)
    cache, idle = operator.get("/api/applications").json["items"]
    assert (cache["flows"], cache["states"]["running"], cache["subscribers"], cache["lag"]) == (4, 4, 1, 0)
    assert (idle["states"]["waiting"], idle["lag"]) == (4, 22)
    (publisher,) = operator.get("/api/publishers").json["items"]
    assert (publisher["name"], publisher["flows"], publisher["state"]) == ("east-1", 8, "running")
    (subscriber,) = operator.get("/api/subscribers").json["items"]
    assert (subscriber["application"], subscriber["flows"], subscriber["state"]) == ("cache", 4, "running")
    assert operator.get("/api/subscribers?application=idle").json["items"] == []
    (report,) = eventually(lambda: operator.get("/api/caravans").json["items"])
    assert (report["stream"], report["publisher"]) == ("contacts", "east-1")

    def riding() -> bool:
        (lead,) = operator.get("/api/caravans").json["items"][0]["caravans"]
        return bool(
            lead["lead"] and lead["flow_count"] == 4 and "cache/contacts/0" in lead["flows"] and lead["position"]
        )

    eventually(riding)


def test_records_are_read_from_the_newest_or_from_where_one_wants(operator: Browser) -> None:
    newest = operator.get("/api/streams/contacts/records?limit=4").json
    assert len(newest["items"]) == 4
    at, seen = "earliest", []
    while True:
        page = operator.get(f"/api/streams/contacts/records?limit=5&after={quote(at)}").json
        seen += [(one["shard"], one["seq"]) for one in page["items"]]
        if page["next"] is None:
            break
        at = json.dumps(page["next"])
    assert len(seen) == len(set(seen)) == 22
    shard = operator.get("/api/streams/contacts/records?shard=2&after=earliest&limit=3").json
    assert [one["seq"] for one in shard["items"]] == [0, 1, 2]
    on = operator.get(f"/api/streams/contacts/records?shard=2&after={shard['next']}&limit=1").json
    assert on["items"][0]["seq"] == 3


@pytest.mark.parametrize(
    ("query", "objects"),
    [
        ("object = contacts/7", ["contacts/7"]),
        ("version > 17", ["contacts/18", "contacts/19"]),
        ("version > 1000", []),
    ],
)
def test_records_are_chosen_by_the_language_of_filters(operator: Browser, query: str, objects: list[str]) -> None:
    found = operator.get(f"/api/streams/contacts/records?after=earliest&filter={quote(query)}").json
    assert sorted(one["object"] for one in found["items"]) == objects
    assert found["next"] is None


def test_a_filter_that_cannot_be_read_points_at_its_fault(operator: Browser) -> None:
    refused = operator.get(f"/api/streams/contacts/records?filter={quote('version >')}")
    assert refused.status == 400
    assert "version >" in refused.error


@pytest.mark.parametrize(
    "query", ["shard=4", "shard=x", "limit=0", "limit=501", "after=x", "after=7", "after=[", 'after={"0":"x"}']
)
def test_records_that_cannot_be_are_refused(operator: Browser, query: str) -> None:
    assert operator.get(f"/api/streams/contacts/records?{quote(query, safe='=&')}").status == 400


def test_what_looks_like_markup_is_data(operator: Browser) -> None:
    found = operator.get("/api/streams/contacts/records?after=earliest&limit=50").json["items"]
    odd = next(one for one in found if one["object"].startswith("<script>"))
    assert odd["object"] == "<script>alert(1)</script>"
    assert odd["attributes"] == {"<b>": "<i>"}
    assert odd["payload"] == {"as": "text", "value": "<img src=x>", "truncated": False}
    assert next(one for one in found if one["object"] == "bytes")["payload"]["as"] == "bytes"
    numbered = next(one for one in found if one["object"] == "contacts/7")
    assert numbered["payload"] == {"as": "json", "value": {"number": 7}, "truncated": False}


def test_a_page_hears_of_the_cluster_as_it_changes(served: ConsoleThread, operator: Browser, scene: Cluster) -> None:
    tree = scene.coordination
    with operator.events() as events:
        kind, first = next(events)
        assert (kind, first["changes"]) == ("map", [])
        kind, overview = next(events)
        assert (kind, len(overview["point"]), "history" in overview) == ("overview", 4, False)
        whole = operator.get("/api/map").json
        assert whole["layout"] == first["layout"]
        tree.create({"address": "x"}, "publishers", "west-1", ephemeral=True)
        changed = next(data for kind, data in events if kind == "map")
        assert [one["name"] for one in changed["publishers"]] == ["east-1", "west-1"]
        assert (changed["changes"], changed["layout"]) == ([], whole["layout"])
        tree.delete("publishers", "west-1")
        west = changed["publishers"][1]
        changed = next(data for kind, data in events if kind == "map")
        assert changed["publishers"][1] == {**west, "state": "gone"}


def test_metrics_tell_what_it_costs(operator: Browser) -> None:
    text = operator.get("/metrics").body.decode()
    assert "tidings_console_flows 8.0" in text
    assert "tidings_console_readings_total" in text


def test_what_members_tell_is_checked(operator: Browser, scene: Cluster) -> None:
    odd = {"a": [1]}
    member = {"pid": odd, "load": odd, "weight": 1e308, "host": odd, "address": odd, "streams": odd, "replica": odd}
    report = {"caravans": [{"number": odd, "riders": [odd, 7], "flows": odd, "behind": odd, "at": {"0": odd}}, 7]}
    run = {"stage": odd, "inputs": odd, "output": odd, "batch": odd, "updates_in": True, "rate": "x", "at": odd}
    records: dict[str, dict[str, Any]] = {
        "applications/cache/subscribers/odd": {**member, "unreachable": {"x": odd, "y": "z" * 100_000}},
        "publishers/odd": {**member, "unreadable": ["contacts"]},
        "caravans/contacts/odd": {**report, "bytes_read": -1, "bytes_sent": 1e308, "trouble": odd},
        "pipelines/odd": run,
    }
    bad_nodes.put(scene, {place: json.dumps({"version": 1, **told}).encode() for place, told in records.items()})

    def told(kind: str, key: str) -> dict[str, Any]:
        def find() -> dict[str, Any]:
            items = operator.get(f"/api/{kind}").json["items"]
            return next((one for one in items if one[key] == "odd"), {})

        return eventually(find)

    try:
        one = told("subscribers", "id")
        assert [one[key] for key in ("load", "weight", "pid", "state")] == [None, None, None, "running"]
        assert one["unreachable"]["x"] == str(odd)
        assert len(one["unreachable"]["y"]) == 500
        one = told("publishers", "name")
        assert [one[key] for key in ("address", "host", "pid", "replica", "streams")] == [None] * 5
        assert one["unreadable"] == {}
        one = told("caravans", "publisher")
        assert [one[key] for key in ("bytes_read", "bytes_sent", "trouble")] == [None] * 3
        (caravan,) = one["caravans"]
        assert (caravan["id"], caravan["flows"], caravan["position"]) == (0, [], {})
        assert [caravan[key] for key in ("flow_count", "behind", "rate", "rows_read", "bytes_read")] == [None] * 5
        one = told("pipelines", "name")
        assert {one[key] for key in run.keys() & one.keys()} == {None}
        assert (one["input_rows_per_second"], one["last_progress"]) == (None, None)
    finally:
        for place in records:
            scene.coordination.client.delete(scene.coordination.path(*place.split("/")))


# Last in this module: it leaves nonsense in the tree.


def test_nonsense_in_zookeeper_is_told_of_and_harms_nothing_else(operator: Browser, scene: Cluster) -> None:
    bad_nodes.put(scene, bad_nodes.EVERYWHERE)
    found = eventually(lambda: (now := operator.get("/api/overview").json)["partial"] and now)
    assert any("streams/bad" in one for one in found["problems"])
    assert found["counts"]["applications"] == 2
    assert found["counts"]["flows"] == 8
    for path in ("map", "flows", "streams", "applications", "publishers", "subscribers", "caravans", "pipelines"):
        reply = operator.get(f"/api/{path}")
        assert (reply.status, reply.json["partial"]) == (200, True), path
        assert b"NaN" not in reply.body
    assert operator.get("/api/flows?state=running").json["total"] == 4
