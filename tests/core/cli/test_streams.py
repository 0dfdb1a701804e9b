"""`tidings streams`: create, list, describe and drop."""

from __future__ import annotations

import os
import pty
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.commands import Run, lags, lines, published, told
from tidings.cli import main
from tidings.cluster import Cluster
from tidings.publisher.publisher import Publisher
from tidings.testing import eventually


def test_a_stream_is_made_listed_described_and_dropped(run: Run, tmp_path: Path) -> None:
    made = run(
        "streams", "create", "contacts", "--shards", "4", "--log", "delta:data/contacts", "--retention-age", "P7D"
    )
    assert (made.code, made.out) == (0, "")
    assert made.err == f"stream 'contacts' has 4 shards in delta:{tmp_path}/data/contacts\n"
    definition = {
        "name": "contacts",
        "shards": 4,
        "log": f"delta:{tmp_path}/data/contacts",
        "retention_seconds": 7 * 86400,
        "retention_bytes": None,
    }
    listed = run("streams", "list", "--json").json
    definition["id"] = listed[0]["id"]
    assert listed == [definition]
    table = run("streams", "list").out.splitlines()
    assert table[0].split("  ")[0] == "STREAM"
    assert table[1].split()[:3] == ["contacts", "4", definition["log"]]
    described = run("streams", "describe", "contacts", "--json").json
    nothing = {"floor": None, "head": None, "updates": 0}
    assert described == {**definition, "held": [{"shard": shard, **nothing} for shard in range(4)]}
    assert run("streams", "drop", "contacts", "--yes", "--json").json["purged"] is False
    assert run("streams", "list", "--json").json == []


def test_one_is_told_as_one(run: Run, tmp_path: Path) -> None:
    made = run("streams", "create", "one", "--shards", "1", "--log", "delta:one", "--collect", "events")
    assert made.err == f"stream 'one' has 1 shard in delta:{tmp_path}/one\n"
    assert run("streams", "publish", "one", stdin=lines({"object": "a"})).code == 0
    matching = run("streams", "collect", "one", "object = a", "--dry-run").err
    assert matching == "1 update matches; nothing was published (--dry-run)\n"
    assert run("streams", "collect", "one", "object = a").err.startswith("gc events are in the shard of 'one'; ")


def test_making_the_same_stream_again_changes_nothing_and_another_is_refused(contacts: Run) -> None:
    again = contacts("streams", "create", "contacts", "--shards", "4", "--log", "delta:contacts", "--json")
    assert (again.code, again.json["shards"]) == (0, 4)
    other = contacts("streams", "create", "contacts", "--shards", "5", "--log", "delta:contacts")
    assert other.code == 1
    assert other.err.startswith("error: stream 'contacts' is there already, with 4 shards in ")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["a/b", "--log", "delta:x"], 1, "error: 'a/b' is no name for a stream"),
        (["a", "--log", "delta:a\0b"], 1, "a\\x00b' is no log: no place has a NUL in its name"),
        (["a", "--log", "here"], 1, "error: 'here' is no log: write a scheme and a place"),
        (["a", "--log", "tape:x"], 1, "error: no log 'tape' is installed (installed: delta, delta-cdf"),
        (["a", "--log", "delta:x", "--shards", "0"], 1, "error: stream 'a' cannot have 0 shards: from 1 to 4,096"),
        (["a", "--log", "delta:x", "--shards", "many"], 2, "Invalid value for '--shards'"),
        (["a", "--log", "delta:x", "--retention-age", "7d"], 2, "'7d' is no duration: write ISO 8601, as in P7D"),
        (["a", "--log", "delta:x", "--retention-size", "10G"], 2, "'10G' is no size: write bytes, or a unit"),
        (["a"], 2, "Missing option '--log'"),
        (["--log", "delta:x"], 2, "Missing argument 'NAME'"),
    ],
)
def test_a_stream_that_cannot_be_is_refused(
    run: Run, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    result = run("streams", "create", *arguments)
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert "Traceback" not in result.err
    assert not (tmp_path / "x").exists()
    assert run("streams", "list", "--json").json == []


def test_a_folder_that_holds_another_stream_is_refused(contacts: Run) -> None:
    result = contacts("streams", "create", "clicks", "--shards", "4", "--log", "delta:contacts")
    assert result.code == 1
    assert "/contacts belongs to stream 'contacts' already: each stream has its own" in told(result.err)
    assert contacts("streams", "drop", "contacts", "--yes").code == 0
    result = contacts("streams", "create", "clicks", "--shards", "4", "--log", "delta:contacts")
    assert "holds stream 'contacts' with 4 shards, not stream 'clicks' with 4 shards" in told(result.err)


@pytest.mark.parametrize("command", ["describe", "tail", "publish", "truncate", "drop"])
def test_an_unknown_stream_is_named_with_those_that_are_there(contacts: Run, command: str) -> None:
    more = {"truncate": ["--older-than", "P1D", "--dry-run"], "drop": ["--yes"]}.get(command, [])
    result = contacts("streams", command, "nope", *more)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: there is no stream 'nope' in ")
    assert result.err.endswith("(streams: contacts)\n")


def test_describe_counts_what_is_held_in_each_shard(contacts: Run) -> None:
    positions = published(contacts, *({"object": f"object-{n}", "version": n} for n in range(20)))
    held = contacts("streams", "describe", "contacts", "--json").json["held"]
    assert {str(one["shard"]): one["head"] for one in held if one["updates"]} == positions
    assert all(one["floor"] == 0 and one["updates"] == one["head"] + 1 for one in held if one["updates"])
    text = contacts("streams", "describe", "contacts").out
    assert "updates held       20\n" in text
    assert "SHARD  FLOOR  HEAD  UPDATES" in text


def test_describe_shows_what_it_can_when_the_log_is_gone(contacts: Run, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "contacts")
    result = contacts("streams", "describe", "contacts", "--json")
    assert result.code == 1
    assert result.json["held"][3] == {"shard": 3, "floor": None, "head": None, "updates": None}
    assert result.err.startswith("error: the log of stream 'contacts' ")
    rows = contacts("streams", "describe", "contacts").out.splitlines()
    assert rows[-1].split() == ["3", "-", "-", "-"]


def test_drop_refuses_where_nobody_can_be_asked(contacts: Run) -> None:
    result = contacts("streams", "drop", "contacts")
    assert (result.code, result.out) == (2, "")
    assert result.err == "error: drop asks before it drops, and there is no terminal to ask on: add --yes\n"
    assert len(contacts("streams", "list", "--json").json) == 1


@pytest.mark.parametrize(("answer", "code", "left"), [(b"n\n", 1, 1), (b"y\n", 0, 0)])
def test_drop_asks_on_a_terminal(
    contacts: Run, monkeypatch: pytest.MonkeyPatch, answer: bytes, code: int, left: int
) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    with monkeypatch.context() as patch, os.fdopen(theirs) as terminal:
        patch.setattr(sys, "stdin", terminal)
        assert main(["streams", "drop", "contacts"]) == code
    os.close(ours)
    assert len(contacts("streams", "list", "--json").json) == left


@pytest.mark.parametrize("purge", [False, True])
def test_a_dropped_stream_keeps_its_updates_unless_they_are_purged(contacts: Run, tmp_path: Path, purge: bool) -> None:
    published(contacts, {"object": "a"})
    assert contacts("streams", "drop", "contacts", "--yes", *(["--purge"] if purge else [])).code == 0
    assert (tmp_path / "contacts").exists() is not purge


def test_a_stream_that_is_read_is_dropped_by_force_only(cache: Cluster, publisher: Publisher, run: Run) -> None:
    eventually(lambda: lags(cache) == [0, 0])
    refused = run("streams", "drop", "contacts", "--yes")
    assert (refused.code, refused.out) == (1, "")
    assert (
        "is used by application 'cache' (2 flows are owned): drop or change these first, or add --force" in refused.err
    )
    assert [one.name for one in cache.streams()] == ["contacts"]
    assert run("streams", "drop", "contacts", "--yes", "--force").code == 0
    assert cache.streams() == []
