"""`tidings streams snapshot`: dry run, execution, waiting, cancelling, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.support.commands import Run, told
from tests.support.subscribers import Seen
from tidings.cli.snapshot import sentence
from tidings.cluster import Cluster
from tidings.logs import SnapshotPlace
from tidings.positions import Position
from tidings.snapshot_requests import SnapshotRequest
from tidings.snapshots import SnapshotStatus


@pytest.fixture
def people(run: Run, tmp_path: Path) -> Run:
    """A stream of a Delta table's three rows, which the application `cache` reads."""
    place = tmp_path / "shop" / "people"
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
    write_deltalake(place, rows, configuration={"delta.enableChangeDataFeed": "true"})
    options = ("--option", 'key=["id"]', "--option", f"snapshot_folder={tmp_path / 'snapshots'}")
    assert run("streams", "create", "people", "--shards", "2", "--log", f"delta-cdf:{place}", *options).code == 0
    assert run("applications", "create", "cache", "--stream", "people").code == 0
    return run


def test_a_dry_run_shows_what_would_be_done_and_does_nothing(people: Run) -> None:
    shown = people("streams", "snapshot", "people", "--dry-run")
    assert (shown.code, shown.err) == (0, "nothing was done (--dry-run)\n")
    assert [line.split(maxsplit=1) for line in shown.out.splitlines()] == [
        ["stream", "people"],
        ["applications", "cache"],
        ["tables", "shop.people"],
        ["flows", "2"],
    ]
    planned = {"stream": "people", "applications": ["cache"], "tables": ["shop.people"], "flows": 2, "executed": False}
    assert people("streams", "snapshot", "people", "--dry-run", "--json").json == planned
    assert "newest_snapshot" not in people("streams", "describe", "people", "--json").json


def test_rows_come_while_one_waits_for_them(people: Run, joined: Cluster) -> None:
    seen = Seen()
    with joined.publisher(token_interval=0.2), joined.subscribe("cache", seen):
        done = people("streams", "snapshot", "people", "--application", "cache", "--execute", "--wait", "--json")
        assert done.code == 0, done.err
        assert {key: done.json[key] for key in ("stream", "state", "attempt", "executed")} == {
            "stream": "people",
            "state": "complete",
            "attempt": 1,
            "executed": True,
        }
        assert sorted(update.object for update in seen.updates) == [f"shop.people/{key}" for key in (1, 2, 3)]
    described = people("streams", "describe", "people")
    assert f"newest snapshot    the snapshot {done.json['id']} for cache is complete" in described.out
    assert people("streams", "describe", "people", "--json").json["newest_snapshot"]["state"] == "complete"


def test_one_that_nobody_can_do_yet_waits_is_refused_twice_and_can_be_cancelled(people: Run, joined: Cluster) -> None:
    asked = people("streams", "snapshot", "people", "--execute", "--yes")
    assert asked.code == 0
    assert asked.err.startswith(
        "warning: no publisher runs: it begins when one does\n"
        "warning: no subscriber of cache runs: its rows wait for one\nthe snapshot "
    )
    again = people("streams", "snapshot", "people", "--execute", "--yes")
    assert (again.code, told(again.err).startswith("error: a snapshot of stream 'people' runs already")) == (1, True)
    assert "waits for its place in the log" in people("streams", "describe", "people").out
    assert people("flows", "list", "--json").json[0]["reason"] == (
        "it is held until a snapshot on demand has its place in the log"
    )
    with joined.publisher():
        ended = people("streams", "snapshot", "people", "--cancel", "--wait", "--json")
        assert (ended.code, ended.json["state"]) == (0, "cancelled")
    none = people("streams", "snapshot", "people", "--cancel")
    assert (none.code, told(none.err)) == (1, "error: no snapshot of stream 'people' runs")


def test_who_waits_for_no_longer_than_a_time_is_told_that_it_goes_on(people: Run) -> None:
    late = people("streams", "snapshot", "people", "--execute", "--yes", "--wait", "--timeout", "0.5")
    assert late.code == 1
    last = late.err.splitlines()[-1]
    assert last.startswith("error: after 0.5 s the snapshot ")
    assert last.endswith(
        "of stream 'people' has not ended: publishers go on with it; see `tidings streams describe people`"
    )


def test_one_row_and_one_flow_are_called_one() -> None:
    request = SnapshotRequest("a1", ("cache",), place=SnapshotPlace(Position(7), Position(8)))
    for rows, flows, left, said in (
        (1, 1, 1, "1 row was read, and 1 of 1 flow has not come by them yet"),
        (2000, 4, 1, "2,000 rows were read, and 1 of 4 flows has not come by them yet"),
        (0, 4, 2, "0 rows were read, and 2 of 4 flows have not come by them yet"),
    ):
        told = sentence(SnapshotStatus(request, rows=rows, flows=flows, flows_left=left))
        assert told == f"the snapshot a1 for cache is under way: {said}"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "error: snapshot takes exactly one of --dry-run, --execute and --cancel"),
        (["--dry-run", "--execute"], 2, "error: snapshot takes exactly one of --dry-run, --execute and --cancel"),
        (["--cancel", "--table", "a.b"], 2, "error: --cancel ends the snapshot that runs, as a whole"),
        (["--execute"], 2, "error: without --application all that read the stream get the rows"),
        (["--application", "nobody", "--dry-run"], 1, "error: there is no application 'nobody'"),
        (["--table", "shop.dogs", "--dry-run"], 1, "error: stream 'people' has no table 'shop.dogs'"),
    ],
)
def test_what_makes_no_sense_is_an_error_of_one_sentence(
    people: Run, arguments: list[Any], code: int, message: str
) -> None:
    refused = people("streams", "snapshot", "people", *arguments)
    assert (refused.code, refused.out) == (code, "")
    assert told(refused.err).startswith(message)


def test_a_log_of_our_own_is_refused_and_what_to_do_instead_is_said(contacts: Run) -> None:
    refused = contacts("streams", "snapshot", "contacts", "--dry-run")
    assert refused.code == 1
    assert "tidings flows reset --application APP --stream contacts --to-earliest" in told(refused.err)
