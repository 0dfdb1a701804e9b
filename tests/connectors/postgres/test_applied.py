"""A `tidings.yml` that names databases: what is wrong there is found first, and what was made there is taken back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import postgres_server
from tests.support.postgres_server import Database
from tidings.cli import main
from tidings.cli.apply_plan import Action, carry_out, plan
from tidings.cluster import Cluster
from tidings.config.spec import load
from tidings.errors import LogUnavailable
from tidings.stream_definition import StreamDefinition

database = postgres_server.database


def slots(database: Database) -> list[str]:
    mine = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    return [name for (name,) in database.execute(mine)]


def written(file: Path, streams: dict[str, Any]) -> Path:
    file.write_text(json.dumps({"streams": streams}, indent=1))
    return file


@pytest.mark.parametrize("command", [["apply"], ["apply", "--dry-run"]])
def test_what_is_wrong_with_a_database_is_told_before_a_slot_is_made(
    cluster: Cluster,
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
) -> None:
    monkeypatch.setenv("TIDINGS_ZOOKEEPER", cluster.address)
    log, options = database.address(), database.options()
    streams = {
        "good": {"log": log, "options": options},
        "published": {"log": log, "options": {"publication": "nope"}},
        "same": {"log": log, "options": options},
        "claimed": {"log": log, "options": {**options, "slot": f"another_{database.name}"}},
    }
    database.execute(f"SELECT pg_create_logical_replication_slot('another_{database.name}', 'pgoutput')")
    file = written(tmp_path / "tidings.yml", streams)
    assert main([*command, str(file)]) == 1
    err = capsys.readouterr().err
    told = [line.partition("tidings.yml:")[2].partition(": ")[2] for line in err.splitlines() if line[:6] == "error:"]
    assert [one.partition(": ")[0] for one in told] == [
        "streams.published.log",
        "streams.same.log",
        "streams.claimed.log",
    ]
    assert "has no publication 'nope': CREATE PUBLICATION" in told[0]
    assert "belongs to stream 'good' already: each stream has its own" in told[1]
    assert "has a replication slot" in told[2]
    assert (slots(database), cluster.streams()) == ([f"another_{database.name}"], [])


def test_a_slot_that_was_made_is_dropped_when_a_later_step_fails(
    cluster: Cluster, database: Database, tmp_path: Path
) -> None:
    file = written(tmp_path / "tidings.yml", {"shop": {"log": database.address(), "options": database.options()}})
    actions = plan(load(file), cluster)
    (tmp_path / "last").write_text("no folder")
    last = StreamDefinition("last", 1, f"delta:{tmp_path}/last")
    with pytest.raises(LogUnavailable, match=r"is no folder|Not a directory"):
        carry_out([*actions, Action("stream", "last", "create", after=last.to_json())], cluster)
    assert (slots(database), cluster.streams()) == ([], [])
    carry_out(actions, cluster)
    assert slots(database) == [database.options()["slot"]]
