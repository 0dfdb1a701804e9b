"""Snapshots of a Delta table on demand: what holds of them whatever the datastore is, and is quickest to see here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from tests.connectors.delta_cdf.test_log import FEED, merge, people
from tests.support import demanded_steps, snapshot_steps
from tests.support.demanded_steps import (
    KEYS,
    Gate,
    Store,
    a_lost_store_is_filled_while_rows_change,
    ask,
    ended,
    heard,
)
from tests.support.places import ROOT
from tidings.cluster import Cluster
from tidings.errors import InvalidOption
from tidings.flow_status import status
from tidings.publisher import snapshot_taker
from tidings.snapshot_requests import read_request
from tidings.snapshots import cancel_snapshot, plan_snapshot, snapshot_status
from tidings.testing import eventually
from tidings_connectors.delta_cdf.snapshot import DeltaRows

small_chunks, gate, soon = snapshot_steps.small_chunks, demanded_steps.gate, demanded_steps.soon


class People:
    """The table of a test."""

    def __init__(self, place: Path) -> None:
        self.place = place
        write_deltalake(place, people(**{f"_{key}": "old" for key in range(KEYS)}), configuration=FEED)

    def put(self, key: int, name: str) -> None:
        merge(self.place, people(**{f"_{key}": name}))

    def delete(self, key: int) -> None:
        DeltaTable(self.place).delete(f"id = {key}")

    def rows(self) -> dict[str, Any]:
        found = DeltaTable(self.place).to_pyarrow_table().to_pylist()
        return {f"shop.people/{row['id']}": row for row in found}


@pytest.fixture
def table(cluster: Cluster, tmp_path: Path) -> People:
    """A table that is tailed as the stream `people`, by an application `cache`."""
    made = People(tmp_path / "shop" / "people")
    options = {"key": ["id"], "snapshot_folder": str(tmp_path / "snapshots")}
    cluster.create_stream("people", 2, f"delta-cdf:{made.place}", options=options)
    return made


def with_cache(cluster: Cluster) -> Store:
    cluster.create_application("cache", ["people"], start="latest")
    return Store()


def test_a_lost_store_is_filled_while_rows_change_and_others_get_nothing_of_it(
    cluster: Cluster, table: People, tmp_path: Path
) -> None:
    _, cache = a_lost_store_is_filled_while_rows_change(cluster, "people", table)
    cache.check_order()
    assert read_request(cluster.coordination, "people") is not None
    cluster.drop_stream("people")
    assert read_request(cluster.coordination, "people") is None
    assert not list((tmp_path / "snapshots").rglob("*.parquet"))


def test_an_application_that_nobody_has_served_yet_begins_with_the_rows(cluster: Cluster, table: People) -> None:
    cache = with_cache(cluster)
    ask(cluster, "people", ["cache"])
    with cluster.publisher(token_interval=0.2), cluster.subscribe("cache", cache):
        assert ended(cluster, "people").ended == "complete"
        assert cache.rows == table.rows()
    cache.check_order()


def test_an_idle_table_is_sent_once_more_at_each_request(cluster: Cluster, table: People) -> None:
    cache = with_cache(cluster)
    with cluster.publisher(token_interval=0.2), cluster.subscribe("cache", cache):
        for times in 1, 2:
            cache.empty()
            ask(cluster, "people", ["cache"])
            assert ended(cluster, "people").ended == "complete"
            assert cache.rows == table.rows()
            assert cache.operations == {"snapshot": times * KEYS}


def test_changes_go_on_up_to_the_rows_and_wait_behind_them(cluster: Cluster, table: People, gate: Gate) -> None:
    cache = with_cache(cluster)
    with cluster.publisher(token_interval=0.2), cluster.subscribe("cache", cache):
        ask(cluster, "people", ["cache"])
        gate.wait_until_placed(cluster, "people")
        table.put(1, "new")
        eventually(lambda: all("snapshot on demand" in (one.reason or "") for one in status(cluster)))
        found = snapshot_status(cluster, "people")
        assert found is not None
        assert (found.flows, found.flows_left) == (2, 2)
        assert not cache.updates
        gate.open.set()
        eventually(lambda: cache.rows == table.rows())
        assert cache.operations == {"snapshot": KEYS, "update": 1}
    cache.check_order()


def test_a_second_request_is_refused_while_one_runs(cluster: Cluster, table: People, gate: Gate) -> None:
    cache = with_cache(cluster)
    with cluster.publisher(token_interval=0.2), cluster.subscribe("cache", cache):
        ask(cluster, "people", ["cache"])
        with pytest.raises(InvalidOption, match="a snapshot of stream 'people' runs already, for cache: wait until"):
            ask(cluster, "people", ["cache"])
        gate.open.set()
        assert ended(cluster, "people").ended == "complete"
        assert cache.operations == {"snapshot": KEYS}


def test_one_that_is_cancelled_leaves_the_flows_in_the_log(cluster: Cluster, table: People, gate: Gate) -> None:
    cache = with_cache(cluster)
    with cluster.publisher(token_interval=0.2), cluster.subscribe("cache", cache):
        ask(cluster, "people", ["cache"])
        gate.wait_until_placed(cluster, "people")
        table.put(1, "new")
        cancel_snapshot(cluster, "people")
        eventually(gate.reading[0]._over)
        gate.open.set()
        assert ended(cluster, "people").ended == "cancelled"
        eventually(lambda: cache.operations == {"update": 1})
        with pytest.raises(InvalidOption, match="no snapshot of stream 'people' runs"):
            cancel_snapshot(cluster, "people")
        ask(cluster, "people", ["cache"])  # and another one is whole
        assert ended(cluster, "people").ended == "complete"
        assert cache.rows == table.rows()


def test_rows_wait_for_an_application_whose_subscribers_are_away(cluster: Cluster, table: People) -> None:
    cache = with_cache(cluster)
    with cluster.publisher(token_interval=0.2):
        ask(cluster, "people", ["cache"])
        eventually(lambda: (found := snapshot_status(cluster, "people")) and found.rows == KEYS)
        table.delete(3)
        with cluster.subscribe("cache", cache):
            assert ended(cluster, "people").ended == "complete"
            eventually(lambda: cache.rows == table.rows())
    assert cache.operations == {"snapshot": KEYS, "delete": 1}


def test_flows_are_not_held_for_a_snapshot_that_cannot_be_taken(
    cluster: Cluster, table: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_taker, "HOLD_TIMEOUT_S", 0.5)

    def broken(self: DeltaRows) -> Any:
        raise InvalidOption("it is not allowed")

    monkeypatch.setattr(DeltaRows, "state", broken)
    cache = with_cache(cluster)
    with cluster.publisher(token_interval=0.2), cluster.subscribe("cache", cache):
        ask(cluster, "people", ["cache"])
        found = ended(cluster, "people")
        assert (found.ended, found.reason) == ("failed", "it is not allowed")
        eventually(lambda: heard(table, cache))
    assert cache.operations["snapshot"] == 0


def test_what_cannot_be_asked_for_is_refused_with_the_cure(cluster: Cluster, table: People, tmp_path: Path) -> None:
    with_cache(cluster)
    cluster.create_application("now", ["people"], mode="realtime")
    cluster.create_stream("contacts", 1)
    cluster.create_application("elsewhere", ["contacts"])
    bare = People(tmp_path / "shop" / "bare")
    cluster.create_stream("bare", 1, f"delta-cdf:{bare.place}", options={"key": ["id"]})
    cluster.create_application("barely", ["bare"])
    for stream, applications, tables, message in (
        ("contacts", [], [], "a log of our own, and no tables: .* `tidings flows reset .* --to-earliest`"),
        ("people", ["elsewhere"], [], r"'elsewhere' does not read stream 'people' \(applications: cache, now\)"),
        ("people", ["now"], [], "application 'now' is realtime: it gets what is new, and no snapshot"),
        ("people", [], ["shop.things"], r"stream 'people' has no table 'shop.things' \(tables: shop.people\)"),
        (
            "bare",
            [],
            [],
            "stream 'bare' has no folder for the rows of a snapshot: give it the option 'snapshot_folder'",
        ),
    ):
        with pytest.raises(InvalidOption, match=message):
            plan_snapshot(cluster, stream, applications, tables)
    assert plan_snapshot(cluster, "people").applications == ("cache",)


def test_the_example_of_the_docs_fills_a_cache() -> None:
    page = (ROOT / "docs" / "tail-a-database.md").read_text()
    (example,) = re.findall(
        r"```python\n(.*?)```", page.split("## A snapshot on demand")[1].split("\n## ")[0], re.DOTALL
    )
    found: dict[str, Any] = {}
    exec(example, found)
    assert sorted(found["rows"]) == [f"shop.item/{key}" for key in (1, 2, 3)]
