"""How much WAL a PostgreSQL keeps for a stream, and for which flow."""

from __future__ import annotations

import json
import re

import pytest

from tests.support import postgres_server
from tests.support.postgres_server import Database
from tests.support.subscribers import Seen
from tidings import retention
from tidings.cli import main
from tidings.cluster import Cluster
from tidings.flow_status import status
from tidings.publisher import reports
from tidings.publisher.reports import read_reports, retained_in
from tidings.retention import RetainedBy
from tidings.testing import eventually

database = postgres_server.database
WRITTEN = 4 * 2**20  # bytes, at least


def test_what_is_kept_for_the_application_that_is_behind_is_told(
    cluster: Cluster, database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reports, "REPORT_INTERVAL_S", 0.2)
    monkeypatch.setattr(retention, "MUCH_BYTES", WRITTEN)
    monkeypatch.setenv("TIDINGS_ZOOKEEPER", cluster.address)
    database.execute("CREATE TABLE item (id int PRIMARY KEY, name text)")
    cluster.create_stream("shop", 1, database.address(), options=database.options())
    for name in ("ahead", "away"):
        cluster.create_application(name, ["shop"], start="latest")
    seen = Seen()

    def told() -> RetainedBy | None:
        return retained_in(read_reports(cluster.coordination, "shop"))

    with cluster.publisher(token_interval=0.2), cluster.subscribe("ahead", seen):
        eventually(lambda: told() is not None)
        database.execute("INSERT INTO item SELECT n, repeat('x', 1000) FROM generate_series(1, 5000) n")
        eventually(lambda: len(seen.updates) == 5000)
        eventually(lambda: (found := told()) and found.bytes > WRITTEN and found.flow.application == "away")
        found = told()
        assert found is not None
        assert (found.room, found.status) == (None, "reserved")
        by_application = {one.flow.application: one.retained for one in status(cluster)}
        assert by_application["ahead"] is None
        assert by_application["away"] is not None
        assert main(["streams", "describe", "shop", "--json"]) == 0
        described = json.loads(capsys.readouterr().out)["retained"]
        assert described["bytes"] > WRITTEN
        assert (described["application"], described["flow"]) == ("away", ["away", "shop", 0])
        assert main(["flows", "list", "--json"]) == 0
        listed = capsys.readouterr()
        assert [one["retained_bytes"] is None for one in json.loads(listed.out)] == [True, False]
        assert re.fullmatch(r"warning: the datastore keeps \d+\.\d MiB of its log for away/shop/0\n", listed.err), (
            listed.err
        )
