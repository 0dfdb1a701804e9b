from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.core.cli.conftest import address, joined, run
from tests.support.commands import Run
from tidings.cluster import Cluster
from tidings.collection import collect
from tidings.positions import Positions
from tidings.testing import held
from tidings.updates import TOMBSTONE

__all__ = ["address", "joined", "run"]


@pytest.fixture(autouse=True)
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How often this process should have given way to others, which the tests after these would have to suffer from."""
    made: list[str] = []
    monkeypatch.setattr("tidings_gc_tombstones.cli.give_way", lambda: made.append("given"))
    return made


@pytest.fixture
def filled(joined: Cluster, tmp_path: Path) -> Cluster:
    """A cluster with a stream of ten objects, changed ten times each."""
    log = f"delta:{tmp_path / 'contacts'}"
    stream = joined.create_stream("contacts", 2, log, collect={"latest_per_key": True, "events": True})
    with stream.producer() as producer:
        producer.publish_many([{"object": f"o{n}", "version": v} for v in range(10) for n in range(10)]).result()
    return joined


def test_a_plan_says_what_would_go_and_a_run_lets_it_go(filled: Cluster, run: Run, ways: list[str]) -> None:
    plan = run("gc", "plan", "contacts", "--json").json
    assert (plan["held"], plan["refused"]) == (100, [])
    assert {one["policy"]: one["updates"] for one in plan["policies"]} == {"latest_per_key": 90, "events": 0, "all": 90}
    assert all(bool(one["bytes"]) is bool(one["updates"]) for one in plan["policies"])
    before = run("gc", "status", "--json").json[0]
    assert (before["updates"], before["collected"], before["last_run"]) == (100, 0, None)
    assert run("gc", "run", "--json").json == [{"stream": "contacts", "read": 100, "collected": 90, "refused": 0}]
    assert ways == ["given"]
    after = run("gc", "status", "contacts", "--json").json[0]
    assert (after["updates"], after["collected"], after["ratio"]) == (10, 90, 0.9)
    assert after["last_run"] is not None
    assert run("gc", "run", "contacts", "--json").json == [
        {"stream": "contacts", "read": 0, "collected": 0, "refused": 0}
    ]


def test_people_see_tables(filled: Cluster, run: Run) -> None:
    plan = run("gc", "plan", "contacts")
    assert plan.code == 0
    assert "latest_per_key" in plan.out
    assert "100 updates are held; nothing was collected" in plan.err
    done = run("gc", "run", "contacts")
    assert done.out.split()[-4:] == ["contacts", "100", "90", "0"]
    assert "90.0%" in run("gc", "status").out


def test_a_gc_event_is_published_and_what_it_matches_goes(filled: Cluster, run: Run) -> None:
    published = run("streams", "collect", "contacts", "object in (o1, o2)", "--json")
    assert published.code == 0
    assert set(published.json["positions"]) == {"0", "1"}
    run("gc", "run", "contacts")
    rows = held(filled.stream("contacts").log).to_pylist()
    left = [row["object"] for row in rows if row["kind"] not in (TOMBSTONE, "gc")]
    assert sorted(left) == sorted(f"o{n}" for n in range(10) if n not in (1, 2))


def test_a_dry_run_says_how_many_match_and_publishes_nothing(filled: Cluster, run: Run) -> None:
    looked = run("streams", "collect", "contacts", "object in (o1, o2)", "--dry-run", "--json")
    assert looked.json["matching"] == 20
    assert "20 updates match" in run("streams", "collect", "contacts", "object in (o1, o2)", "--dry-run").err
    assert len(held(filled.stream("contacts").log)) == 100


def test_what_cannot_be_meant_is_a_warning(joined: Cluster, run: Run, tmp_path: Path) -> None:
    joined.create_stream("loose", 1, f"delta:{tmp_path / 'loose'}", collect={"events": True})
    assert (
        "`objct` is an attribute, and not the column object"
        in run("streams", "collect", "loose", "objct = a", "--dry-run").err
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("gc", "run", "nobody"), "there is no stream 'nobody'"),
        (("streams", "collect", "contacts", "object ="), "expected a value"),
        (("streams", "collect", "contacts", "version < 3"), "speaks of object and of seq"),
        (("streams", "create", "more", "--log", "delta:more", "--collect", "keep_last=0"), "1 or more"),
        (("streams", "create", "more", "--log", "delta:more", "--collect", "latest"), "no collection policy 'latest'"),
    ],
)
def test_a_mistake_is_one_sentence(filled: Cluster, run: Run, arguments: tuple[str, ...], reason: str) -> None:
    result = run(*arguments)
    assert result.code == 1
    assert reason in result.err
    assert "Traceback" not in result.err
    assert [stream.name for stream in filled.streams()] == ["contacts"]


def test_a_stream_without_policies_is_refused_with_the_cure(joined: Cluster, run: Run, tmp_path: Path) -> None:
    joined.create_stream("plain", 1, f"delta:{tmp_path / 'plain'}")
    assert "give one `collect: {latest_per_key: true}`" in run("gc", "run").err
    assert "latest_per_key: true" in run("gc", "run", "plain").err


def test_a_stream_that_cannot_be_collected_keeps_no_other_from_it(
    filled: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = filled.stream("contacts").definition
    broken = replace(definition, name="broken", log="delta:/nowhere/at/all")
    filled.coordination.create(broken.to_json(), "streams", "broken")
    result = run("gc", "run")
    assert result.code == 1
    assert "failed: broken: the log of stream 'broken' is not to be found" in result.err
    assert result.out.split()[-4:] == ["contacts", "100", "90", "0"]


def test_what_cannot_be_collected_is_refused_where_it_is_defined(joined: Cluster, run: Run) -> None:
    nowhere = run("streams", "create", "tailed", "--log", "delta-cdf:somewhere", "--collect", "latest_per_key")
    assert "cannot be collected there" in nowhere.err
    nothing = run("streams", "create", "plain", "--log", "delta:plain", "--collect", "protect_flows")
    assert "no policy says what" in nothing.err
    assert joined.streams() == []


def test_policies_come_from_tidings_yml_and_can_be_changed(joined: Cluster, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tidings.yml"
    text = "streams: {contacts: {shards: 2, log: 'delta:contacts', collect: {%s}}}\n"
    file.write_text(text % "latest_per_key: true")
    assert run("apply", str(file)).code == 0
    assert joined.stream("contacts").definition.collect == {"latest_per_key": True}
    file.write_text(text % "keep_last: 5")
    assert run("apply", str(file)).code == 0
    assert joined.stream("contacts").definition.collect == {"keep_last": 5}
    file.write_text(text % "keep_last: many")
    result = run("apply", str(file))
    assert result.code == 1
    assert "tidings.yml:1: streams.contacts.collect: keep_last: 'many' is no number of updates to keep" in result.err


def test_who_is_protected_is_named(joined: Cluster, run: Run, tmp_path: Path) -> None:
    policies = {"latest_per_key": True, "protect_flows": True}
    stream = joined.create_stream("contacts", 2, f"delta:{tmp_path / 'contacts'}", collect=policies)
    with stream.producer() as producer:
        producer.publish_many([{"object": "o", "version": v} for v in range(50)]).result()
    joined.create_application("cache", ["contacts"], start="earliest")
    assert run("gc", "plan", "contacts", "--json").json["kept_for"] == {"cache": 50}
    done = run("gc", "run", "contacts")
    assert "contacts: 50 positions are protected: application 'cache' has not acknowledged them" in done.err
    assert len(held(stream.log)) == 50


def test_the_status_of_one_stream_keeps_no_other_from_being_shown(filled: Cluster, run: Run) -> None:
    broken = replace(filled.stream("contacts").definition, name="broken", log="delta:/nowhere/at/all")
    filled.coordination.create(broken.to_json(), "streams", "broken")
    result = run("gc", "status", "--json")
    assert result.code == 1
    assert [one["stream"] for one in result.json] == ["contacts"]
    assert "failed: broken: " in result.err


def test_an_index_that_cannot_be_written_is_one_sentence(filled: Cluster, run: Run, tmp_path: Path) -> None:
    (tmp_path / "contacts" / "_collection").write_text("in the way")
    result = run("gc", "run", "contacts")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: the index of the collection cannot be used: ")
    assert run("gc", "status", "contacts", "--json").json[0]["updates"] == 100


def test_what_others_published_is_shown_short_and_without_what_a_terminal_would_obey(
    joined: Cluster, run: Run, tmp_path: Path
) -> None:
    stream = joined.create_stream("open", 1, f"delta:{tmp_path / 'open'}", collect={"events": True})
    with stream.producer() as producer:
        for predicate in ("object = '\x1b[2J\nerror: forged'", f"object in ({','.join(f'o{n}' for n in range(400))})"):
            producer.publish_many([{"object": "gc/0", "kind": "gc", "attributes": {"collects": predicate}}]).result()
        for n in range(120):
            predicate = f"kind = gc and n != {n}"
            producer.publish_many([{"object": "gc/0", "kind": "gc", "attributes": {"collects": predicate}}]).result()
    for command in ("plan", "run"):
        shown = run("gc", command, "open")
        assert "\x1b" not in shown.err
        assert "\nerror: forged" not in shown.err
        assert max(map(len, shown.err.splitlines())) < 1200
        assert len(shown.err.splitlines()) < 110
    assert "and 20 more" in shown.err
    for _ in range(2):
        status = run("gc", "status", "open", "--json").json[0]
        assert (status["refused_count"], len(status["refused"])) == (120, 100)
        run("gc", "run", "open")


def test_a_copy_lacks_nothing_that_was_said_again_while_it_was_made(
    filled: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = filled.stream("contacts")
    real = type(stream.log).tail
    looked: list[bool] = []

    def tail(log: Any, after: Positions, limit: int) -> Any:
        if not looked:  # the end is fixed, and nothing is read yet
            looked.append(True)
            with stream.producer() as producer:
                producer.publish_many([{"object": f"o{n}", "version": 99} for n in range(10)]).result()
            collect(stream.definition, stream.log)
        return real(log, after, limit)

    monkeypatch.setattr(type(stream.log), "tail", tail)
    lines = run("streams", "tail", "contacts", "--from", "earliest", "--no-follow", "--json").out.splitlines()
    told = {row["object"] for row in map(json.loads, lines) if row["kind"] != TOMBSTONE}
    assert told == {f"o{n}" for n in range(10)}


def test_gc_events_are_not_published_into_another_stream(filled: Cluster, run: Run, tmp_path: Path) -> None:
    copy = filled.create_stream("copy", 1, f"delta:{tmp_path / 'copy'}", collect={"events": True})
    run("streams", "collect", "contacts", "object = o1")
    lines = run("streams", "tail", "contacts", "--from", "earliest", "--no-follow", "--json").out
    assert run("streams", "publish", "copy", stdin=lines).code == 0
    assert len(held(copy.log)) == 100
