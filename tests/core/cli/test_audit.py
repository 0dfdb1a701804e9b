"""`tidings audit`: what each command leaves there, and how it is shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Run, publish
from tidings.audit import recorded
from tidings.cluster import Cluster
from tidings.publisher.publisher import Publisher


def audit(run: Run, *arguments: str) -> list[dict[str, Any]]:
    result = run("audit", "--json", *arguments)
    assert result.code == 0, result.err
    found: list[dict[str, Any]] = result.json
    return found


def test_a_command_that_another_has_started_is_known_by_its_name(cache: Cluster, run: Run) -> None:
    command = [sys.executable, "-P", "-m", "tidings.cli.child", str(os.getpid()), "flows", "stop", "cache/contacts/0"]
    subprocess.run([*command, "--zookeeper", cache.address], check=True, capture_output=True)
    assert audit(run)[-1]["from"].startswith("tidings on ")


def test_what_is_done_to_flows_and_publishers_is_recorded_a_command(publisher: Publisher, run: Run) -> None:
    before = len(audit(run))
    flows = ["cache/contacts/0", "cache/contacts/1"]
    for command in (
        ["flows", "stop", "--application", "cache"],
        ["flows", "resume", *flows],
        ["flows", "move", *flows, "--to", "here"],
        ["flows", "unpin", flows[0]],
        ["flows", "pause", "--application", "cache"],
        ["publishers", "drain", "here", "--force"],
        ["publishers", "undrain", "here"],
    ):
        assert run(*command).code == 0
    found = audit(run)[before:]
    assert [(one["action"], one["subject"], one["outcome"]) for one in found] == [
        ("flows stop", flows, "done"),
        ("flows resume", flows, "done"),
        ("flows move", flows, "done"),
        ("flows unpin", flows[:1], "done"),
        ("flows pause", flows, "done"),
        ("publishers drain", ["here"], "done"),
        ("publishers undrain", ["here"], "done"),
    ]
    changes = [(one["before"], one["after"]) for one in found]
    assert changes[0] == ({}, {"stopped": True})
    assert changes[1] == ({"stopped": True}, {})
    assert changes[2] == ({}, {"pin": "here"})
    assert changes[3] == ({"pin": "here"}, {})
    assert changes[4] == (
        {flows[0]: {}, flows[1]: {"pin": "here"}},
        {flows[0]: {"paused": True}, flows[1]: {"pin": "here", "paused": True}},
    )
    assert changes[5] == ({"draining": False}, {"draining": True})


def test_where_flows_are_set_and_what_they_skip_is_recorded(cache: Cluster, run: Run) -> None:
    for name in ("a", "b", "c"):
        publish(cache, 1, 2, objects=(name,))
    before = len(audit(run))
    for command in (
        ["flows", "reset", "cache/contacts/0", "--to-earliest", "--dry-run"],
        ["flows", "reset", "cache/contacts/0", "cache/contacts/1", "--to-earliest", "--execute"],
        ["flows", "skip", "cache/contacts/0", "--position", "1", "--execute"],
        ["applications", "update", "cache", "--filter", "region = eu"],
    ):
        done = run(*command)
        assert done.code == 0, (command, done.err)
    found = audit(run)[before:]
    assert found[1]["after"].pop("skip_log")  # the log in which the position is
    assert [(one["action"], one["count"], one["before"], one["after"]) for one in found] == [
        ("flows reset", 2, None, -1),
        ("flows skip", 1, {}, {"skip": [[1, 0]]}),
        ("applications update", 1, {"filter": None}, {"filter": "region = eu"}),
    ]


def test_what_is_refused_or_there_already_is_not_recorded(publisher: Publisher, run: Run) -> None:
    before = audit(run)
    assert run("publishers", "drain", "nobody").code == 1
    assert run("publishers", "drain", "here").code == 1  # nobody else could take its flows
    idle = run("publishers", "undrain", "here")
    assert (idle.code, idle.err) == (0, "publisher 'here' does not drain: nothing changes\n")
    assert run("publishers", "undrain", "here", "--json").json == {"undrained": None}
    assert run("publishers", "undrain", "nobody").err == "error: no publisher 'nobody' runs (publishers: here)\n"
    assert run("flows", "move", "cache/contacts/9", "--to", "here").code == 1
    assert audit(run) == before


def test_what_is_done_to_streams_and_applications_is_recorded_a_command(run: Run, tmp_path: Path) -> None:
    spec = tmp_path / "tidings.yml"
    spec.write_text(
        "streams:\n  contacts: {log: 'delta:moved', shards: 2, retention: {age: P7D}}\n"
        "  clicks: {log: 'delta:clicks', shards: 1}\napplications:\n  mailer: {streams: [clicks]}\n"
    )
    create = ["streams", "create", "contacts", "--shards", "2", "--log", "delta:contacts", "--collect", "events"]

    for command in (
        create,
        create,  # it is there
        ["streams", "create", "shop", "--shards", "1", "--log", "east=delta:east", "--log", "west=delta:west"],
        ["applications", "create", "cache", "--stream", "contacts"],
        ["applications", "create", "cache", "--stream", "contacts"],  # it is there
        ["streams", "truncate", "contacts", "--older-than", "P7D", "--dry-run"],
        ["streams", "truncate", "contacts", "--older-than", "P7D", "--execute"],
        ["streams", "collect", "contacts", "object = 'x'", "--dry-run"],
        ["streams", "collect", "contacts", "object = 'x'"],
        ["caravans", "set-limit", "contacts", "--caravans", "4"],
        ["caravans", "reassign", "contacts"],
        ["streams", "move", "contacts", "--log", "delta:moved"],
        ["apply", "--dry-run"],
        ["apply"],
        ["apply"],  # nothing is left to do
        ["applications", "drop", "cache", "--yes"],
        ["streams", "drop", "shop", "--yes"],
        ["streams", "drop", "contacts", "--yes", "--purge"],
    ):
        if command[1:2] == ["move"]:
            (tmp_path / "contacts").rename(tmp_path / "moved")
        done = run(*command)
        assert done.code == 0, (command, done.err)
    found = audit(run)
    assert {one["outcome"] for one in found} == {"done"}
    assert [(one["action"], one["subject"]) for one in found] == [
        ("streams create", ["contacts"]),
        ("streams create", ["shop.east", "shop.west"]),
        ("applications create", ["cache"]),
        ("streams truncate", ["contacts"]),
        ("streams collect", ["contacts"]),
        ("caravans set-limit", ["contacts"]),
        ("caravans reassign", ["contacts"]),
        ("streams move", ["contacts"]),
        ("apply", ["contacts", "clicks", "mailer"]),
        ("applications drop", ["cache"]),
        ("streams drop", ["shop.east", "shop.west"]),
        ("streams drop", ["contacts"]),
    ]
    by_action = {one["action"]: one for one in found}
    assert by_action["apply"]["before"]["stream contacts"]["retention_seconds"] is None
    assert by_action["apply"]["after"]["stream contacts"]["retention_seconds"] == 604_800
    assert by_action["streams move"]["after"] == {"log": f"delta:{tmp_path}/moved", "replicas": {}}
    assert by_action["applications drop"]["before"]["streams"] == ["contacts"]
    assert by_action["streams drop"]["after"] == {"updates": "purged"}


def test_what_fails_halfway_is_recorded_as_failed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("no table")
    assert run("streams", "create", "contacts", "--log", "delta:taken").code == 1
    (found,) = audit(run)
    assert (found["action"], found["outcome"]) == ("streams create", "failed")
    assert "taken" in found["error"]


def test_what_is_done_to_services_is_recorded_and_tells_nothing_of_tokens(contacts: Run, tmp_path: Path) -> None:
    place = ["--log", "delta:shop", "--storage", str(tmp_path), "--shards", "1"]
    for command in (
        ["create", "shop", "--stream", "contacts", *place],
        ["create", "shop", "--stream", "contacts", *place],  # it is there
        ["revoke", "shop", "--user", "ann"],
        ["disconnect", "shop", "--client", "7"],
        ["drop-state", "shop", "--dry-run"],
        ["drop-state", "shop", "--execute"],
    ):
        done = contacts("thialfi", *command)
        assert done.code == 0, (command, done.err)
    found = audit(contacts, "--action", "thialfi")
    assert [one["action"] for one in found] == [
        "thialfi create",
        "thialfi revoke",
        "thialfi disconnect",
        "thialfi drop-state",
    ]
    assert found[0]["subject"] == ["shop", "shop.operations", "shop.notifications", "shop.gateways"]
    assert (found[1]["after"].keys(), found[2]["after"]) == ({"user"}, {"client": "7"})
    assert "ann" not in str(found[1]["after"])
    assert found[3]["before"] != found[3]["after"]
    assert len(audit(contacts)) == 5  # with the stream


def test_a_restore_is_recorded_and_brings_no_entries_of_another_tree(
    contacts: Run, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(contacts("backup").out)
    monkeypatch.setenv("TIDINGS_ZOOKEEPER", f"{address}-again")
    for option in ("--dry-run", "--execute"):
        assert contacts("restore", str(file), option).code == 0
    (found,) = audit(contacts)
    assert (found["action"], found["outcome"], found["after"]["create"] > 0) == ("restore", "done", True)


def test_a_repair_is_recorded(run: Run, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("streams", "create", "contacts", "--shards", "1", "--log", "delta:contacts").code == 0
    monkeypatch.setenv("TIDINGS_SECRET", "the-secret-of-the-cluster")
    run("doctor", "--zookeeper", address, "--repair")
    found = audit(run)[-1]
    assert (found["action"], found["outcome"], found["who"].endswith("(operator)")) == ("doctor repair", "done", True)
    assert (found["before"], found["after"]["closed"]) == ({"closed": False}, True)


@pytest.fixture
def some(joined: Cluster) -> None:
    tree = joined.coordination
    for action, subjects in (
        ("streams create", ["contacts"]),
        ("flows stop", ["cache/contacts/0", "cache/contacts/1"]),
        ("flows resume", ["cachet/contacts/0"]),
    ):
        with recorded(tree, action, subjects, before={"a": 1}):
            pass


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ([], [0, 1, 2]),
        (["--limit", "2"], [1, 2]),
        (["--action", "flows"], [1, 2]),
        (["--action", "flows stop"], [1]),
        (["--action", "flow"], []),
        (["--subject", "cache"], [1]),
        (["--subject", "cache/contacts/1"], [1]),
        (["--since", "PT1H"], [0, 1, 2]),
        (["--since", "2999-01-01T00:00:00Z"], []),
    ],
)
def test_the_newest_are_last_and_can_be_chosen(some: None, run: Run, options: list[str], numbers: list[int]) -> None:
    assert [one["number"] for one in audit(run, *options)] == numbers


def test_people_see_a_line_for_each_and_one_of_them_whole(some: None, run: Run) -> None:
    header, *lines = run("audit").out.splitlines()
    assert header.split() == ["#", "TIME", "WHO", "ROLE", "ACTION", "SUBJECT", "OUTCOME", "FROM"]
    assert "cache/contacts/0 +1 " in lines[1]
    whole = run("audit", "1").out
    assert "before             a: 1\n" in whole
    assert "cache/contacts/0, cache/contacts/1" in whole
    missing = run("audit", "7")
    assert (missing.code, missing.err.startswith("error: the audit has no entry 7")) == (1, True)


def test_what_was_changed_is_shown_a_field_a_line(joined: Cluster, run: Run) -> None:
    after = {"name": "contacts", "shards": 4, "options": {"key": ["id"]}, "log": "delta:/\x1b[31m"}
    with recorded(joined.coordination, "streams create", ["contacts"], before={}, after=after):
        pass
    lines = run("audit", "0").out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("after "))
    assert lines[at : at + 6] == [
        "after              name: contacts",
        "                   shards: 4",
        "                   options:",
        "                     key:",
        "                     - id",
        '                   log: "delta:/\\e[31m"',
    ]
    assert "before             {}" in lines


@pytest.mark.parametrize("since", ["yesterday", "2026-01-01", "P0D", "PT", "2026-01-01T00:00:00"])
def test_a_time_that_is_none_is_bad_usage(run: Run, since: str) -> None:
    result = run("audit", "--since", since)
    assert (result.code, f"'{since}' is no" in result.err) == (2, True)


def test_a_cluster_without_any_change_has_an_empty_audit(run: Run) -> None:
    assert audit(run) == []
